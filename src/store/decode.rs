//! A row as its next attempt will see it, or why it cannot be sent as it is stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row};

use crate::dispatch::Delivery;

/// What a sender needs of a message, in the order in which [`decode`] reads it.
macro_rules! columns {
    ($payload:literal) => {
        concat!(
            "id, message_id, channel, dedupe_key, event_type, recipient, ordering_key, principal,
             content_type, headers, ",
            $payload,
            ", claims, attempts, created_at, expires_at"
        )
    };
}
pub(crate) use columns;

/// Of a message that may be claimed.
pub(crate) const READ: &str = concat!(
    "SELECT ",
    columns!("payload"),
    " FROM outbox WHERE id = ?1 AND (status = 'pending' OR status = 'waiting')"
);

/// A row that was read for sending: either it can be sent, or it says why not.
pub(crate) type Decoded = Result<Delivery, String>;

/// Reads one message as its next attempt will see it; `None` when it may not be claimed.
pub(crate) fn read(
    conn: &Connection,
    id: i64,
    instance: &Arc<str>,
) -> rusqlite::Result<Option<Decoded>> {
    conn.prepare_cached(READ)?
        .query_row([id], |row| decode(row, instance))
        .optional()
}

/// Foreign hands may have stored text that is none. The outer error is the database's; the inner
/// one is the row's own and says so to a person.
pub(crate) fn decode(row: &Row<'_>, instance: &Arc<str>) -> rusqlite::Result<Decoded> {
    // By position: to look names up would take longer than to read the row.
    let id: i64 = row.get(0)?;
    let number = |index: usize, column: &str| -> rusqlite::Result<Result<Option<i64>, String>> {
        Ok(match row.get_ref(index)? {
            ValueRef::Null => Ok(None),
            ValueRef::Integer(number) => Ok(Some(number)),
            other => Err(format!("{column} is {}, not an integer", other.data_type())),
        })
    };
    let numbers = [
        number(11, "claims")?,
        number(12, "attempts")?,
        number(13, "created_at")?,
        number(14, "expires_at")?,
    ];
    let payload = match row.get_ref(10)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
        other => {
            return Ok(Err(format!(
                "the payload is {}, not text or bytes",
                other.data_type()
            )));
        }
    };
    let text = |index: usize, column: &str| -> rusqlite::Result<Result<Option<String>, String>> {
        Ok(match row.get_ref(index)? {
            ValueRef::Null => Ok(None),
            ValueRef::Text(bytes) => String::from_utf8(bytes.to_vec())
                .map(Some)
                .map_err(|_| not_utf8(column)),
            other => Err(format!("{column} is {}, not text", other.data_type())),
        })
    };
    let headers = text(9, "headers")?;
    let columns = [
        text(1, "message_id")?,
        text(2, "channel")?,
        text(3, "dedupe_key")?,
        text(8, "content_type")?,
        text(4, "event_type")?,
        text(5, "recipient")?,
        text(6, "ordering_key")?,
        text(7, "principal")?,
    ];
    Ok((|| {
        let [
            message_id,
            channel,
            dedupe_key,
            content_type,
            event_type,
            recipient,
            ordering_key,
            principal,
        ] = columns;
        let [claims, attempts, created_at, expires_at] = numbers;
        // The receiver would take it for any other that has none.
        let message_id = message_id?
            .filter(|it| !it.is_empty())
            .ok_or("message_id is empty")?;
        let claims = claims?.unwrap_or_default();
        if claims >= MOST_CLAIMS {
            return Err(format!(
                "claims is {claims}, as some program wrote it, and goes no higher: cancel the message \
                 and enqueue it anew under another key"
            ));
        }
        let attempts = attempts?.unwrap_or_default();
        Ok(Delivery {
            id,
            message_id,
            instance: Arc::clone(instance),
            channel: channel?.unwrap_or_default(),
            dedupe_key: dedupe_key?.unwrap_or_default(),
            event_type: event_type?,
            recipient: recipient?,
            ordering_key: ordering_key?,
            principal: principal?,
            content_type: content_type?.unwrap_or_default(),
            headers: parse_headers(headers?.as_deref())?,
            payload,
            attempt: u32::try_from(claims.saturating_add(1)).unwrap_or(u32::MAX),
            charged: u32::try_from(attempts).unwrap_or(0),
            created_at: created_at?.unwrap_or_default(),
            expires_at: expires_at?,
        })
    })())
}

/// The schema lets it rise no further.
const MOST_CLAIMS: i64 = 1_000_000_000;

/// Why a message cannot be sent that has other bytes in a text.
pub(crate) fn not_utf8(column: &str) -> String {
    format!("{column} is not valid UTF-8")
}

fn parse_headers(json: Option<&str>) -> Result<Vec<(String, String)>, String> {
    let Some(json) = json else {
        return Ok(Vec::new());
    };
    let headers: BTreeMap<String, String> = serde_json::from_str(json)
        .map_err(|_| r#"headers are no JSON object of texts, as {"X-Store": "17"} is"#)?;
    crate::message::headers(&headers).map_err(|error| error.to_string())?;
    Ok(headers.into_iter().collect())
}
