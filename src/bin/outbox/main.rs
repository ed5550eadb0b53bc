//! The tool `outbox`: the library's public interface at the command line.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod help;
mod logger;
mod nearest;
mod output;
// The library's own, which is no part of its interface; so is `spelling`.
#[path = "../../store/partial.rs"]
mod partial;
mod settings;
mod signals;
#[path = "../../http/spelling.rs"]
mod spelling;
mod threads;

use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::FromArgMatches;

use args::{Cli, Exit, Usage};
use output::{Closed, as_json, failed, printable, say, settle, written};
use settings::Faults;

fn main() -> ExitCode {
    if as_json() {
        std::panic::set_hook(Box::new(|it| {
            failed(&[format!("a bug: {it}")], 101);
            settle();
        }));
    }
    let exit = exit();
    settle();
    exit
}

fn exit() -> ExitCode {
    let mut whole = help::command();
    let asked = whole.try_get_matches_from_mut(std::env::args_os());
    let asked = asked.and_then(|it| Cli::from_arg_matches(&it).map_err(|it| it.format(&mut whole)));
    let ended = match asked {
        Ok(cli) => commands::run(cli.command),
        // What was asked for by --help goes to stdout and is no error.
        Err(asked) if !asked.use_stderr() => {
            written(asked.print().and_then(|()| stdout().flush())).map(|()| Exit::Done)
        }
        Err(wrong) => {
            let text = help::advised(wrong).render().to_string();
            match text.starts_with("error: ") {
                true => failed(&[in_one_line(&text)], Exit::Usage as u8),
                // The help, where no command is named.
                false => text.lines().for_each(|it| say(&printable(it))),
            }
            return Exit::Usage.into();
        }
    };
    match ended {
        Ok(exit) => exit.into(),
        Err(error) if error.is::<Closed>() => Exit::Done.into(),
        Err(error) => {
            let exit = match error.is::<Usage>() {
                true => Exit::Usage,
                false => Exit::Error,
            };
            let texts = match error.downcast_ref::<Faults>() {
                Some(faults) => faults.each().collect(),
                None => vec![commands::told(&error)],
            };
            failed(&texts, exit as u8);
            exit.into()
        }
    }
}

/// What clap says of a command line that makes no sense; to people with one pointer to the help in the
/// place of its own.
fn in_one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let said = lines.take_while(|it| !it.starts_with("Usage:") && !it.starts_with("For more "));
    // How a value that begins with dashes is written is rarely what is asked for.
    let said = said.filter(|it| !it.is_empty() && !it.starts_with("tip: to pass '"));
    let said: Vec<_> = said.collect();
    let (first, rest) = said.split_first().unwrap_or((&"", &[]));
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let gap = match rest {
        [next, ..] if next.starts_with("tip: ") => "; ",
        _ => " ",
    };
    let said = format!("{first}{gap}{}", rest.join(", "));
    let said = said.trim_end();
    match as_json() {
        true => said.to_string(),
        false => format!("{said}; see `{} --help`", help::meant()),
    }
}
