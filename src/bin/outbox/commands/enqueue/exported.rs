//! A line of `outbox export`, made a message again.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use sqlite_outbox::{DEFAULT_MAX_PAYLOAD, Message, Status};

use super::{Arguments, body, with};

/// Every byte of a payload may be written as six, and there are other columns.
pub(super) const MAX_LINE: usize = 8 * DEFAULT_MAX_PAYLOAD;

/// The columns that say what is to be sent. What became of it in the other file stays there.
#[derive(Deserialize)]
struct Exported {
    channel: String,
    message_id: String,
    dedupe_key: String,
    event_type: Option<String>,
    recipient: Option<String>,
    ordering_key: Option<String>,
    principal: Option<String>,
    content_type: String,
    headers: Option<String>,
    payload: Option<String>,
    payload_base64: Option<String>,
    status: String,
    available_at: Option<i64>,
    expires_at: Option<i64>,
}

/// The dedupe key, to name a line by it.
pub(super) fn key(line: &[u8]) -> Option<String> {
    let row: serde_json::Value = serde_json::from_slice(line).ok()?;
    row.get("dedupe_key")?.as_str().map(str::to_string)
}

/// The message, or nothing when it is over.
pub(super) fn message(arguments: &Arguments, line: &[u8]) -> anyhow::Result<Option<Message>> {
    let row: Exported =
        serde_json::from_slice(line).context("this is no line of `outbox export`")?;
    match Status::parse(&row.status) {
        Some(Status::Sent | Status::Expired | Status::Cancelled) => return Ok(None),
        Some(_) => {}
        None => bail!("the status {:?} is not known", row.status),
    }
    let payload = match (row.payload, row.payload_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(code)) => BASE64_STANDARD
            .decode(code)
            .context("payload_base64 is no base64")?,
        _ => bail!("there must be one of payload and payload_base64"),
    };
    let mut message = body(&row.channel, payload)
        .content_type(row.content_type)
        .message_id(row.message_id)
        .dedupe_key(row.dedupe_key);
    message = with(message, &row.event_type, Message::event_type);
    message = with(message, &row.recipient, Message::recipient);
    message = with(message, &row.ordering_key, Message::ordering_key);
    message = with(message, &row.principal, Message::principal);
    if let Some(headers) = row.headers {
        let headers: BTreeMap<String, String> =
            serde_json::from_str(&headers).context("headers are no JSON object of texts")?;
        for (name, value) in headers {
            message = message.header(name, value);
        }
    }
    if let Some(at) = row.available_at {
        message = message.available_at(at);
    }
    if let Some(at) = row.expires_at {
        message = message.expires_at(at);
    }
    Ok(Some(message.on_duplicate(arguments.on_duplicate.into())))
}
