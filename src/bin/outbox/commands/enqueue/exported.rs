//! A line of `outbox export`, made a message again.

use anyhow::{Context, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use sqlite_outbox::{Status, Transfer};

/// The bytes a line may have. All of it is in memory a few times over while it is read.
pub(in crate::commands) const MAX_LINE: usize = 64 * 1024 * 1024;

/// The columns that say what is to be sent. What became of it in the other file stays there. Where
/// a text is no UTF-8, its base64 stands beside it and counts.
#[derive(Deserialize)]
struct Exported {
    channel: String,
    channel_base64: Option<String>,
    message_id: String,
    message_id_base64: Option<String>,
    dedupe_key: String,
    dedupe_key_base64: Option<String>,
    event_type: Option<String>,
    event_type_base64: Option<String>,
    recipient: Option<String>,
    recipient_base64: Option<String>,
    ordering_key: Option<String>,
    ordering_key_base64: Option<String>,
    principal: Option<String>,
    principal_base64: Option<String>,
    content_type: String,
    content_type_base64: Option<String>,
    headers: Option<String>,
    headers_base64: Option<String>,
    payload: Option<String>,
    payload_base64: Option<String>,
    status: String,
    available_at: Option<i64>,
    expires_at: Option<i64>,
}

/// The dedupe key, to name a line by it that is no message.
pub(super) fn key(line: &[u8]) -> Option<String> {
    let row: serde_json::Value = serde_json::from_slice(line).ok()?;
    row.get("dedupe_key")?.as_str().map(str::to_string)
}

/// Whether `outbox conflicts --json` has printed it.
fn is_conflict(line: &[u8]) -> bool {
    let row: Option<serde_json::Value> = serde_json::from_slice(line).ok();
    row.is_some_and(|it| it.get("holder_status").is_some())
}

fn decoded(column: &str, code: &str) -> anyhow::Result<Vec<u8>> {
    let decoded = BASE64_STANDARD.decode(code);
    decoded.with_context(|| format!("{column}_base64 is no base64"))
}

fn text(column: &str, text: String, code: Option<String>) -> anyhow::Result<Vec<u8>> {
    match code {
        Some(code) => decoded(column, &code),
        None => Ok(text.into_bytes()),
    }
}

fn optional(
    column: &str,
    it: Option<String>,
    code: Option<String>,
) -> anyhow::Result<Option<Vec<u8>>> {
    it.map(|it| text(column, it, code)).transpose()
}

/// The message, or nothing when it is over.
pub(super) fn transfer(line: &[u8]) -> anyhow::Result<Option<Transfer>> {
    let row = serde_json::from_slice(line);
    if row.is_err() && is_conflict(line) {
        bail!(
            "this is a conflict, and no line of `outbox export`: in its own file `outbox conflicts DB \
             NUMBER --enqueue-as KEY` makes it a message, which an export then has"
        );
    }
    let row: Exported = row.context("this is no line of `outbox export`")?;
    match Status::parse(&row.status) {
        Some(Status::Sent | Status::Expired | Status::Cancelled) => return Ok(None),
        Some(_) => {}
        None => bail!("the status {:?} is not known", row.status),
    }
    let payload = match (row.payload, row.payload_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(code)) => decoded("payload", &code)?,
        _ => bail!("there must be one of payload and payload_base64"),
    };
    Ok(Some(Transfer {
        channel: text("channel", row.channel, row.channel_base64)?,
        message_id: text("message_id", row.message_id, row.message_id_base64)?,
        dedupe_key: text("dedupe_key", row.dedupe_key, row.dedupe_key_base64)?,
        event_type: optional("event_type", row.event_type, row.event_type_base64)?,
        recipient: optional("recipient", row.recipient, row.recipient_base64)?,
        ordering_key: optional("ordering_key", row.ordering_key, row.ordering_key_base64)?,
        principal: optional("principal", row.principal, row.principal_base64)?,
        content_type: text("content_type", row.content_type, row.content_type_base64)?,
        headers: optional("headers", row.headers, row.headers_base64)?,
        payload,
        available_at: row.available_at,
        expires_at: row.expires_at,
    }))
}
