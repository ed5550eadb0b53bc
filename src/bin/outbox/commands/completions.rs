//! `outbox completions` and `outbox man`: what packagers and shells want.

use anyhow::bail;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::{Cli, Exit};
use crate::output::Out;

/// Print the completions of a shell
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  outbox completions bash > /etc/bash_completion.d/outbox")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Print the manual page, of the tool or of one command
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  outbox man > outbox.1 && outbox man drain > outbox-drain.1")]
pub(crate) struct Man {
    /// The command
    command: Option<String>,
}

pub(crate) fn completions(arguments: &Completions) -> anyhow::Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "outbox", &mut text);
    print(&text)
}

pub(crate) fn man(arguments: &Man) -> anyhow::Result<Exit> {
    let mut whole = Cli::command();
    whole.build();
    let page = match &arguments.command {
        None => whole,
        Some(name) => match whole.find_subcommand(name) {
            Some(command) => command.clone(),
            None => bail!("there is no command {name}"),
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    print(&text)
}

fn print(text: &[u8]) -> anyhow::Result<Exit> {
    let mut out = Out::new();
    out.line(String::from_utf8_lossy(text).trim_end())?;
    out.flush()?;
    Ok(Exit::Done)
}
