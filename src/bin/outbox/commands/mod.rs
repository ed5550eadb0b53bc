//! One file for each command: its arguments, and what it does. A new one is a file, a variant and
//! a line in [`run`].

mod drain;
mod enqueue;
mod entry;
mod init;
mod list;
mod schema;
mod show;
mod status;

use clap::Subcommand;

use crate::args::Exit;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Init(init::Arguments),
    Enqueue(Box<enqueue::Arguments>),
    Drain(drain::Arguments),
    Status(status::Arguments),
    List(list::Arguments),
    Show(show::Arguments),
    Schema(schema::Arguments),
}

pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Init(arguments) => init::run(&arguments),
        Command::Enqueue(arguments) => enqueue::run(*arguments),
        Command::Drain(arguments) => drain::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::List(arguments) => list::run(arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::Schema(arguments) => schema::run(&arguments),
    }
}
