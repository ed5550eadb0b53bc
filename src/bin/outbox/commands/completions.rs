//! `outbox completions` and `outbox man`: what packagers and shells want.

use clap::builder::Resettable;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::args::{Exit, Usage};
use crate::help;
use crate::output::Out;

/// Print the completions of a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Example: for this shell, which is a bash
  source <(outbox completions bash)
and for every one, as root
  outbox completions bash > /etc/bash_completion.d/outbox")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Print the manual page, of the tool or of one command
///
/// It is the source of the page, which `man` makes readable; on a terminal `outbox help` says the
/// same. `outbox man outbox.toml` prints a complete settings file that explains each key.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  outbox man drain | man -l -
  outbox man outbox.toml > outbox.toml
  outbox man > outbox.1 && outbox man drain > outbox-drain.1")]
pub(crate) struct Man {
    /// The command, or outbox.toml
    command: Option<String>,
}

pub(crate) fn completions(arguments: &Completions) -> anyhow::Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut help::command(), "outbox", &mut text);
    print(&text)
}

pub(crate) fn man(arguments: &Man) -> anyhow::Result<Exit> {
    if arguments.command.as_deref() == Some("outbox.toml") {
        return print(include_bytes!("../../../../docs/outbox.toml"));
    }
    let mut whole = help::command();
    whole.build();
    let page = match &arguments.command {
        None => whole,
        Some(name) => match whole.find_subcommand(name) {
            Some(command) => command.clone(),
            None => return Err(Usage(unknown(name, &whole)).into()),
        },
    };
    if Out::new().room().is_some() {
        let name = arguments.command.as_deref().unwrap_or_default();
        return Err(Usage(format!(
            "a terminal cannot show the source of a manual page: `{}` shows the page, `{}` says the same",
            format!("outbox man {name} | man -l -").replace("  ", " "),
            format!("outbox help {name}").trim_end()
        ))
        .into());
    }
    let below = page.get_after_help().map(ToString::to_string);
    let values = values(&page);
    let man = clap_mangen::Man::new(page.after_help(Resettable::Reset));
    let man = man.source(concat!("outbox ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    man.render(&mut text)?;
    let mut text = synopsis(&String::from_utf8_lossy(&text), &values);
    for part in below.unwrap_or_default().split("\n\n") {
        text.push_str(&section(part));
    }
    print(text.as_bytes())
}

fn unknown(name: &str, whole: &Command) -> String {
    let names = whole.get_subcommands().map(Command::get_name);
    let names: Vec<_> = names.filter(|it| *it != "help").collect();
    format!("there is no command {name}; there are {}", names.join(", "))
}

/// The options that take a value, and what it is called.
fn values(page: &Command) -> Vec<(String, String)> {
    let options = page.get_opts().filter(|it| it.get_action().takes_values());
    options
        .filter_map(|it| {
            let names = it.get_value_names().unwrap_or_default();
            let name = match names.first() {
                Some(name) => name.to_string(),
                None => it.get_id().as_str().to_uppercase(),
            };
            Some((it.get_long()?.to_string(), name))
        })
        .collect()
}

/// The page with these names where its synopsis has the bare options.
fn synopsis(page: &str, values: &[(String, String)]) -> String {
    const HEAD: &str = ".SH SYNOPSIS\n";
    let Some((before, rest)) = page.split_once(HEAD) else {
        return page.to_string();
    };
    let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
    let mut line = line.to_string();
    for (option, value) in values {
        let bare = format!("\\fB{}\\fR", plain(&format!("--{option}")));
        let value = plain(value);
        line = line.replace(&bare, &format!("{bare} \\fI{value}\\fR"));
    }
    format!("{before}{HEAD}{line}\n{after}")
}

/// A part of what `--help` says below the options, as a section of a manual page: its lines stay
/// as they are.
fn section(part: &str) -> String {
    let (first, rest) = part.split_once('\n').unwrap_or((part, ""));
    let (title, said) = match first.split_once(':') {
        Some(("Exit codes", said)) => ("EXIT STATUS", said),
        Some(("Example" | "Examples", said)) => ("EXAMPLES", said),
        Some((said, "")) => ("FILES", said),
        _ => ("NOTES", first),
    };
    let mut text = format!(".SH {title}\n");
    for line in [said.trim()].into_iter().filter(|it| !it.is_empty()) {
        text.push_str(&format!("{}\n.PP\n", plain(line)));
    }
    text.push_str(".nf\n");
    for line in rest.lines() {
        text.push_str(&plain(line));
        text.push('\n');
    }
    text + ".fi\n"
}

/// A line without anything that a formatter would act on.
fn plain(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line,
    }
}

fn print(text: &[u8]) -> anyhow::Result<Exit> {
    let mut out = Out::new();
    out.line(String::from_utf8_lossy(text).trim_end())?;
    out.flush()?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_below_the_options_has_its_section() {
        for (part, page) in [
            (
                "Exit codes:\n  0  done",
                ".SH EXIT STATUS\n.nf\n  0  done\n.fi\n",
            ),
            (
                "Example: what?\n  outbox a-b c\\d",
                ".SH EXAMPLES\nwhat?\n.PP\n.nf\n  outbox a\\-b c\\ed\n.fi\n",
            ),
            ("A file:\n.x", ".SH FILES\nA file\n.PP\n.nf\n\\&.x\n.fi\n"),
        ] {
            assert_eq!(section(part), page);
        }
    }
}
