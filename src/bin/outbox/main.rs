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
            misunderstood(&help::advised(wrong).render().to_string());
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

/// A command line that makes no sense. What clap says repeats arguments, which may have come from
/// anywhere.
fn misunderstood(text: &str) {
    match as_json() {
        true => failed(&[in_one_line(text)], Exit::Usage as u8),
        false => text.lines().for_each(|it| say(&printable(it))),
    }
}

/// What clap says of a command line, but for its pointers to the usage and to the help.
fn in_one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let said = lines.take_while(|it| !it.starts_with("Usage:") && !it.starts_with("For more "));
    let said: Vec<_> = said.filter(|it| !it.is_empty()).collect();
    let (first, rest) = said.split_first().unwrap_or((&"", &[]));
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let gap = match rest {
        [next, ..] if next.starts_with("tip: ") => "; ",
        _ => " ",
    };
    format!("{first}{gap}{}", rest.join(", "))
        .trim_end()
        .to_string()
}
