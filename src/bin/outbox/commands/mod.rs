//! One file for each command: its arguments, and what it does. A new one is a file, a variant and
//! a line in [`run`].

mod backup;
mod check;
mod compact;
mod curl;
mod drain;
mod enqueue;
mod entry;
mod export;
mod init;
mod list;
mod run;
mod schema;
mod show;
mod sink;
mod status;
mod upgrade;

use clap::Subcommand;

use crate::args::Exit;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Init(init::Arguments),
    Enqueue(Box<enqueue::Arguments>),
    Drain(drain::Arguments),
    Run(run::Arguments),
    Status(status::Arguments),
    List(list::Arguments),
    Show(show::Arguments),
    Export(export::Arguments),
    Backup(backup::Arguments),
    Compact(compact::Arguments),
    Check(check::Arguments),
    Curl(curl::Arguments),
    Sink(sink::Arguments),
    Upgrade(upgrade::Arguments),
    Schema(schema::Arguments),
}

pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Init(arguments) => init::run(&arguments),
        Command::Enqueue(arguments) => enqueue::run(*arguments),
        Command::Drain(arguments) => drain::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::List(arguments) => list::run(arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::Export(arguments) => export::run(arguments),
        Command::Backup(arguments) => backup::run(&arguments),
        Command::Compact(arguments) => compact::run(&arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Curl(arguments) => curl::run(&arguments),
        Command::Sink(arguments) => sink::run(&arguments),
        Command::Schema(arguments) => schema::run(&arguments),
    }
}
