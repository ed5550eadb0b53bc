//! The tool `outbox`: the library's public interface at the command line.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod logger;
mod output;
mod settings;
mod signals;
mod threads;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;

use args::{Cli, Exit, Usage};
use output::{Closed, scrub};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // What was asked for by --help goes to stdout and is no error.
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return Exit::Done.into();
        }
        Err(error) => {
            let text = error.render().to_string();
            if as_json() {
                tell(&in_one_line(&text), Exit::Usage);
            } else {
                // It repeats arguments, which may have come from anywhere.
                for line in text.lines() {
                    let _ = writeln!(std::io::stderr(), "{}", scrub(line));
                }
            }
            return Exit::Usage.into();
        }
    };
    match commands::run(cli.command) {
        Ok(exit) => exit.into(),
        Err(error) if error.is::<Closed>() => Exit::Done.into(),
        Err(error) => {
            let exit = match error.is::<Usage>() {
                true => Exit::Usage,
                false => Exit::Error,
            };
            tell(&commands::told(&error), exit);
            exit.into()
        }
    }
}

/// What clap says of a command line, but for its pointers to the usage and to the help.
fn in_one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let said = lines.take_while(|it| !it.starts_with("Usage:") && !it.starts_with("For more "));
    let said: Vec<_> = said.filter(|it| !it.is_empty()).collect();
    let (first, rest) = said.split_first().unwrap_or((&"", &[]));
    let first = first.strip_prefix("error: ").unwrap_or(first);
    format!("{first} {}", rest.join(", "))
        .trim_end()
        .to_string()
}

/// What went wrong, in one line on stderr: for a person, or as a JSON object for a program.
fn tell(text: &str, exit: Exit) {
    let line = match as_json() {
        true => output::json_line(&Failed {
            error: text,
            exit: exit as u8,
        })
        .unwrap_or_default(),
        false => format!("error: {}", scrub(text)),
    };
    // Not eprintln!, which panics when stderr is closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[derive(Serialize)]
struct Failed<'a> {
    error: &'a str,
    exit: u8,
}

/// Whether `--json` was asked for, also where the rest of the command line makes no sense.
fn as_json() -> bool {
    let words = std::env::args_os().skip(1);
    words.take_while(|it| it != "--").any(|it| it == "--json")
}
