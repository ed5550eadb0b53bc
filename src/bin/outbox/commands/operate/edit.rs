//! `outbox edit`: another payload for a message that could not be delivered as it was.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::operator;
use crate::args::{Database, Exit, Format};
use crate::commands::enqueue::read_payload;
use crate::output::Out;

/// Give a dead or never attempted message another payload
///
/// It keeps its place, its keys and its headers, and gets a new message id and a fresh budget:
/// to the receiver it is another message. The former bytes and id are kept for the record.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  outbox edit till.db S-104522 --file mended.json --reason 'wrong article, ticket 4711'")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// An id, a dedupe key or a message id
    which: String,
    /// The payload, or - for standard input
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    payload: Option<String>,
    /// Take the payload from this file, - for standard input
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// The channel, where a dedupe key stands in several
    #[arg(long)]
    channel: Option<String>,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Done<'a> {
    id: i64,
    message_id: &'a str,
    former_message_id: &'a str,
    status: &'static str,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open()?;
    let before = outbox.find(&arguments.which, arguments.channel.as_deref())?;
    let payload = read_payload(arguments.payload.clone(), arguments.file.as_deref())?;
    operator(&outbox, arguments.reason.as_deref()).edit(before.id, payload)?;
    let after = outbox.get(before.id)?.unwrap_or_else(|| before.clone());
    let mut out = Out::new();
    match arguments.format.json {
        true => out.json(&Done {
            id: after.id,
            message_id: &after.message_id,
            former_message_id: &before.message_id,
            status: after.status.as_str(),
        })?,
        false => out.text(&format!(
            "message {} has the new payload and is {}; its message id is {} now",
            after.id, after.status, after.message_id
        ))?,
    }
    out.flush()?;
    Ok(Exit::Done)
}
