//! `outbox purge`: forget what is over.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::operator;
use crate::args::{self, Database, Exit, Format};
use crate::output::{Out, count};

/// Remove what was sent, expired or cancelled a while ago
///
/// Nothing unsent and no dead letter is ever removed. A removed message frees its dedupe key: the
/// same sale enqueued again would be sent again. The file does not shrink by itself; see compact.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  outbox purge till.db --older-than 400d --dry-run")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Over for at least this span
    #[arg(long, value_name = "D", value_parser = args::duration)]
    older_than: Duration,
    /// Only say how many
    #[arg(long)]
    dry_run: bool,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Done {
    count: u64,
    dry_run: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open()?;
    let operator = operator(&outbox, arguments.reason.as_deref());
    let removed = match arguments.dry_run {
        true => operator.count_purge(arguments.older_than)?,
        false => operator.purge(arguments.older_than)?,
    };
    let mut out = Out::new();
    match arguments.format.json {
        true => out.json(&Done {
            count: removed,
            dry_run: arguments.dry_run,
        })?,
        false => {
            let messages = count(removed, "message", "messages");
            out.line(match arguments.dry_run {
                true => format!("{messages} would be removed"),
                false => format!("{messages} removed"),
            })?;
        }
    }
    out.flush()?;
    Ok(Exit::Done)
}
