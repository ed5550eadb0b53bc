//! Many messages at once. What SQLite sets aside to undo a statement costs a third of an insert, so
//! one statement takes several messages.

use std::sync::LazyLock;

use rusqlite::Connection;

use crate::error::Result;
use crate::message::Message;
use crate::schema::SCHEMA_VERSION;
use crate::store::enqueue::{self, ALLOWED, COLUMNS, Limits, PARAMETERS};

/// Messages of one statement.
pub(crate) const ROWS: usize = 16;

/// Their payload bytes, at most: SQLite holds them until they are stored.
const BYTES: usize = 256 * 1024;

pub(crate) static INSERT: LazyLock<String> = LazyLock::new(|| {
    let row = |first: usize| {
        let all: Vec<_> = (first..first + PARAMETERS)
            .map(|it| format!("?{it}"))
            .collect();
        format!("({})", all.join(", "))
    };
    let rows: Vec<_> = (0..ROWS).map(|it| row(3 + it * PARAMETERS)).collect();
    let rows = rows.join(", ");
    let status = enqueue::place("behind", "m.channel", "m.ordering_key");
    format!(
        "WITH m (channel, behind, message_id, dedupe_key, event_type, recipient, ordering_key,
                 principal, content_type, headers, available_at, expires_at, payload)
           AS (VALUES {rows})
         INSERT INTO outbox ({COLUMNS})
         SELECT channel, {status}, coalesce(message_id, lower(hex(randomblob(16)))),
                coalesce(dedupe_key, lower(hex(randomblob(16)))), event_type, recipient,
                ordering_key, principal, content_type, headers, available_at, expires_at, ?2,
                payload
           FROM m WHERE {ALLOWED}
         RETURNING id"
    )
});

/// Stores all of them and returns their ids, in their order. `None`: something stands in the way of
/// one of them, and none is stored. Where it fails otherwise, none is stored either.
pub(super) fn insert(
    conn: &Connection,
    messages: &[&Message],
    limits: &Limits,
    now: i64,
) -> Result<Option<Vec<i64>>> {
    let bytes: usize = messages.iter().map(|it| it.payload.as_bytes().len()).sum();
    let valid = |it: &&Message| it.validate(limits.max_payload).is_ok();
    if messages.len() < ROWS
        || bytes > BYTES
        || !messages.iter().all(valid)
        || !limits.take(ROWS as u64)
    {
        return Ok(None);
    }
    // A trigger of the application may leave a row out, or refuse it and keep those before it.
    let savepoint = conn.prepare_cached("SAVEPOINT outbox_bulk")?.execute([]);
    if savepoint.is_err() {
        return Ok(None);
    }
    let inserted = all(conn, messages, now);
    if matches!(&inserted, Ok(ids) if ids.len() == ROWS) {
        conn.prepare_cached("RELEASE outbox_bulk")?.execute([])?;
        return Ok(inserted.ok());
    }
    let undone = match conn.is_autocommit() {
        true => Ok(()),
        false => conn.execute_batch("ROLLBACK TO outbox_bulk; RELEASE outbox_bulk"),
    };
    match inserted {
        Err(error) if !enqueue::refused(conn, &error) => Err(error.into()),
        _ => Ok(undone.map(|()| None)?),
    }
}

fn all(conn: &Connection, messages: &[&Message], now: i64) -> rusqlite::Result<Vec<i64>> {
    let mut statement = conn.prepare_cached(&INSERT)?;
    statement.raw_bind_parameter(1, SCHEMA_VERSION)?;
    statement.raw_bind_parameter(2, now)?;
    let mut before: &[&Message] = &[];
    for (index, message) in messages.iter().enumerate() {
        let mates = |it: &&Message| {
            it.ordering_key == message.ordering_key && it.channel == message.channel
        };
        let behind = message.ordering_key.is_some() && before.iter().any(mates);
        let from = 3 + index * PARAMETERS;
        enqueue::bind(&mut statement, from, message, behind, now)?;
        before = messages.get(..=index).unwrap_or_default();
    }
    let ids = statement.raw_query().mapped(|row| row.get(0));
    let mut ids = ids.collect::<rusqlite::Result<Vec<_>>>()?;
    // They rise with the messages; nothing is said of the order in which they are returned.
    ids.sort_unstable();
    Ok(ids)
}
