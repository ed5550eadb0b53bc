//! `outbox purge`: forget what is over.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::{FIRST, Meant, early, entries, first, operator, remark};
use crate::args::{self, Database, Exit, Format};
use crate::output::{Out, count};
use crate::signals::Signals;

/// Remove what was sent, expired or cancelled a while ago
///
/// Nothing unsent and no dead letter is ever removed, nor a message whose key is in an open
/// conflict. A removed message frees its dedupe key: the same sale enqueued again would be sent
/// again. The file does not shrink by itself; see compact.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  outbox purge till.db --older-than 400d --dry-run
  outbox purge till.db --older-than 30d --channel telemetry")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Over for at least this span
    #[arg(long, value_name = "D", value_parser = args::duration)]
    older_than: Duration,
    /// Only this channel
    #[arg(long)]
    channel: Option<String>,
    #[command(flatten)]
    meant: Meant,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Done {
    count: u64,
    dry_run: bool,
    /// The dedupe keys of the first that a dry run found.
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<Vec<String>>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open()?;
    let signals = Signals::listen()?;
    let operator = operator(&outbox, arguments.meant.reason.as_deref()).unless(&signals.cancel());
    let channel = arguments.channel.as_deref();
    let span = arguments.older_than;
    let dry_run = arguments.meant.dry_run;
    let (removed, shown) = match (dry_run, channel) {
        (true, _) => {
            let mut ids = operator.purgeable(span, channel)?;
            ids.sort_unstable();
            let shown = entries(&outbox, ids.get(..FIRST).unwrap_or(&ids))?;
            (ids.len() as u64, shown)
        }
        (false, channel) => {
            let removed = match channel {
                Some(channel) => operator.purge_channel(channel, span),
                None => operator.purge(span),
            };
            let removed = removed.map_err(|it| early(it, 0, |number| said(number, false)))?;
            (removed, Vec::new())
        }
    };
    let mut out = Out::new();
    if arguments.format.json {
        let keys = shown.into_iter().map(|it| it.dedupe_key).collect();
        out.json(&Done {
            count: removed,
            dry_run,
            keys: dry_run.then_some(keys),
        })?;
    } else {
        out.line(said(removed, dry_run))?;
        first(&shown, removed, &mut out)?;
    }
    out.flush()?;
    if let (0, Some(channel)) = (removed, channel) {
        remark(&outbox, channel)?;
    }
    Ok(Exit::Done)
}

fn said(number: u64, dry: bool) -> String {
    let messages = count(number, "message", "messages");
    match dry {
        true => format!("{messages} would be removed"),
        false => format!("{messages} removed"),
    }
}
