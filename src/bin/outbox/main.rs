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

use args::{Cli, Exit, Usage};
use output::{Closed, scrub};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // What was asked for by --help goes to stdout and is no error.
            let _ = error.print();
            return match error.use_stderr() {
                true => Exit::Usage.into(),
                false => Exit::Done.into(),
            };
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
            // Not eprintln!, which panics when stderr is closed.
            let _ = writeln!(std::io::stderr(), "error: {}", scrub(&format!("{error:#}")));
            exit.into()
        }
    }
}
