//! `outbox pause` and `outbox resume`.

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use sqlite_outbox::ChannelStats;

use super::{operator, who};
use crate::args::{Database, Exit, Format};
use crate::commands::shell::command;
use crate::nearest::there_are;
use crate::output::{Out, ago, now};

/// Which channel, and why.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// The channel
    channel: String,
    /// Why, for the record and for everyone who looks at the status
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Even if no message was ever in the channel
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    format: Format,
}

/// What is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Pause,
    Resume,
}

#[derive(Serialize)]
struct Done<'a> {
    channel: &'a str,
    state: &'static str,
    unsent: u64,
    who: String,
}

pub(crate) fn run(arguments: &Arguments, change: Change) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open()?;
    let name = &arguments.channel;
    arguments.check(&outbox.stats()?.channels)?;
    let operator = operator(&outbox, arguments.reason.as_deref());
    match change {
        Change::Pause => operator.pause(name)?,
        Change::Resume => operator.resume(name)?,
    }
    let stats = outbox.stats()?.channels;
    let stats = stats.iter().find(|it| it.channel == *name);
    let unsent = stats.map_or(0, |it| it.counts.unsent());
    let mut out = Out::new();
    if arguments.format.json {
        out.json(&Done {
            channel: name,
            state: stats.map_or("ok", |it| it.state.as_str()),
            unsent,
            who: who(),
        })?;
    } else {
        out.text(&match change {
            Change::Pause => format!(
                "{name} is paused, unsent messages: {unsent}; what is under way is still sent"
            ),
            Change::Resume => format!("{name} goes on, unsent messages: {unsent}"),
        })?;
        let resumed = stats.filter(|_| change == Change::Resume);
        if let Some((id, at)) = resumed
            .and_then(|it| it.next_due)
            .filter(|it| it.1 > now() + 60_000)
        {
            out.text(&format!(
                "nothing is tried before message {id} is due, {}; what tries it at once:",
                ago(at, now()),
            ))?;
            let rest = format!("id:{id} --available now");
            out.command(2, &command("edit", &arguments.database.db, &rest))?;
        }
    }
    out.flush()?;
    Ok(Exit::Done)
}

impl Arguments {
    /// A mistyped channel would be paused, and the one that was meant go on.
    fn check(&self, known: &[ChannelStats]) -> anyhow::Result<()> {
        match unknown(&self.channel, known) {
            Some(text) if !self.force => bail!("{text}; --force if it is yet to come"),
            _ => Ok(()),
        }
    }
}

/// What to say about a channel that no message was ever in: it may be mistyped.
pub(in crate::commands) fn unknown(name: &str, known: &[ChannelStats]) -> Option<String> {
    if known.iter().any(|it| it.channel == name) {
        return None;
    }
    let names = there_are(name, known.iter().map(|it| it.channel.as_str()));
    Some(format!(
        "no message was ever in a channel {name:?}; {names}"
    ))
}
