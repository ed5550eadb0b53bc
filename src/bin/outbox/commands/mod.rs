//! One file for each command: its arguments, and what it does. A new one is a file, a variant and
//! a line in [`run()`].

mod backup;
mod bundle;
mod check;
mod compact;
mod completions;
mod conflicts;
mod crowd;
mod curl;
mod damage;
mod disk;
mod drain;
mod enqueue;
mod entry;
mod errors;
mod export;
mod findings;
mod init;
mod list;
pub(crate) mod operate;
mod reasons;
mod run;
mod schema;
#[cfg(test)]
mod screens;
pub(crate) mod shell;
mod show;
mod sink;
mod status;
mod upgrade;
mod watch;
mod why;

use clap::Subcommand;

use crate::args::Exit;

pub(crate) use errors::told;
use operate::{Change, Deed};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Init(init::Arguments),
    Enqueue(Box<enqueue::Arguments>),
    Drain(drain::Arguments),
    Run(run::Arguments),
    Status(status::Arguments),
    Watch(watch::Arguments),
    List(list::Arguments),
    Show(show::Arguments),
    Why(why::Arguments),
    /// Send dead, expired or cancelled messages after all
    ///
    /// They are due at once, with a fresh budget of attempts, the same message id and the same bytes. A
    /// schedule that lies ahead stays in force until `outbox edit --available now`. --all means the dead
    /// letters, unless --status says otherwise.
    #[command(after_help = "\
Examples:
  outbox retry till.db S-104522
  outbox retry till.db --all --channel sales --code http_400 --dry-run")]
    Retry(operate::Bulk),
    /// Take messages back that were not sent yet
    ///
    /// One that was attempted may have arrived all the same, when its answer was lost. --all means
    /// pending, waiting and dead ones, unless --status says otherwise.
    #[command(after_help = "\
Examples:
  outbox cancel till.db S-104522 --reason 'entered twice'
  outbox cancel till.db --all --channel test --dry-run")]
    Cancel(operate::Bulk),
    SendAgain(operate::Again),
    Edit(Box<operate::Edit>),
    Conflicts(conflicts::Arguments),
    /// Stop a channel, for every process, until it is resumed
    #[command(after_help = "\
Example:
  outbox pause till.db sales --reason 'ERP maintenance until 6'")]
    Pause(operate::OfChannel),
    /// Let a channel go on, whatever stopped it
    ///
    /// A pause, a receiver that is down or asked for a delay, refused credentials, too many
    /// rejections: it is tried at once, but for messages in a back-off of their own, and the next ten rejections are believed again.
    #[command(after_help = "Example:\n  outbox resume till.db sales")]
    Resume(operate::OfChannel),
    Export(export::Arguments),
    Backup(backup::Arguments),
    Purge(operate::Purge),
    Compact(compact::Arguments),
    Check(check::Arguments),
    Curl(curl::Arguments),
    Bundle(bundle::Arguments),
    Sink(sink::Arguments),
    Upgrade(upgrade::Arguments),
    Schema(schema::Arguments),
    Completions(completions::Completions),
    Man(completions::Man),
}

pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Init(arguments) => init::run(&arguments),
        Command::Enqueue(arguments) => enqueue::run(*arguments),
        Command::Drain(arguments) => drain::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Watch(arguments) => watch::run(&arguments),
        Command::List(arguments) => list::run(&arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::Why(arguments) => why::run(&arguments),
        Command::Retry(arguments) => operate::bulk(&arguments, Deed::Retry),
        Command::Cancel(arguments) => operate::bulk(&arguments, Deed::Cancel),
        Command::SendAgain(arguments) => operate::again(&arguments),
        Command::Edit(arguments) => operate::edit(&arguments),
        Command::Conflicts(arguments) => conflicts::run(&arguments),
        Command::Pause(arguments) => operate::channel(&arguments, Change::Pause),
        Command::Resume(arguments) => operate::channel(&arguments, Change::Resume),
        Command::Purge(arguments) => operate::purge(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Backup(arguments) => backup::run(&arguments),
        Command::Compact(arguments) => compact::run(&arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Curl(arguments) => curl::run(&arguments),
        Command::Bundle(arguments) => bundle::run(&arguments),
        Command::Sink(arguments) => sink::run(&arguments),
        Command::Schema(arguments) => schema::run(&arguments),
        Command::Completions(arguments) => completions::completions(&arguments),
        Command::Man(arguments) => completions::man(&arguments),
    }
}
