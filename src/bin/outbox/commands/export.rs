//! `outbox export`: messages as JSON lines, with nothing left out.

use clap::Args;
use sqlite_outbox::{Filter, Status};

use super::entry::Row;
use super::list::each_page;
use crate::args::{self, Database, Exit};
use crate::output::Out;

/// Print messages as JSON, one a line: all columns, the payload byte for byte
///
/// A payload that is not UTF-8 stands as payload_base64 in place of payload. `enqueue --exported`
/// takes the lines back, with the same message ids.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  outbox export till.db --status dead > dead.jsonl
  outbox export old.db | outbox enqueue new.db --lines - --exported")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Only these: pending, waiting, sending, sent, dead, expired or cancelled
    #[arg(long, value_parser = args::status)]
    status: Option<Status>,
    /// Only this channel
    #[arg(long)]
    channel: Option<String>,
    /// Say it if you like: it is always JSON
    #[arg(long, hide = true)]
    json: bool,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open()?;
    let mut filter = Filter::new();
    if let Some(status) = arguments.status {
        filter = filter.status(status);
    }
    if let Some(channel) = arguments.channel {
        filter = filter.channel(channel);
    }
    let mut out = Out::new();
    each_page(&outbox, filter, usize::MAX, |page| {
        page.iter().try_for_each(|entry| out.json(&Row::new(entry)))
    })?;
    out.flush()?;
    Ok(Exit::Done)
}
