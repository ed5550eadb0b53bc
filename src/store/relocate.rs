//! Another channel or ordering key for a message. The place of a row never changes, so it becomes
//! another row: at the end of its new lane.

use rusqlite::{Connection, OptionalExtension, named_params};

use crate::edit::Edit;
use crate::error::{Error, Result};
use crate::store::Raw;

/// Makes room for its copy: a key is for one message.
const LEAVE_KEY: &str = "UPDATE outbox SET dedupe_key = lower(hex(randomblob(16))) WHERE id = ?1";

/// What is not named stays, byte for byte.
const COPY: &str = "
INSERT INTO outbox (channel, ordering_key, message_id, dedupe_key, event_type, recipient, principal,
                    content_type, headers, available_at, expires_at, created_at, payload)
SELECT coalesce(:channel, channel), CASE WHEN :with_lane THEN :ordering_key ELSE ordering_key END,
       message_id, :key, event_type, recipient, principal, content_type, headers, available_at,
       expires_at, created_at, payload
  FROM outbox WHERE id = :id";

/// What is known of it goes with it.
const FOLLOW: [&str; 2] = [
    "UPDATE outbox_attempt SET message = ?2 WHERE message = ?1",
    "UPDATE outbox_audit SET message = ?2 WHERE message = ?1",
];

const LEAVE: &str = "DELETE FROM outbox WHERE id = ?1";

/// Moves a message, which nobody can have seen, to where an edit wants it; answers its new id.
pub(crate) fn relocate(conn: &Connection, id: i64, edit: &Edit) -> Result<i64> {
    let key: Raw = conn
        .prepare_cached("SELECT dedupe_key FROM outbox WHERE id = ?1")?
        .query_row([id], |row| row.get(0))?;
    if let Some(channel) = &edit.channel
        && let Some(holder) = holder(conn, channel, &key)?.filter(|it| *it != id)
    {
        return Err(Error::Duplicate { id: holder });
    }
    conn.prepare_cached(LEAVE_KEY)?.execute([id])?;
    conn.prepare_cached(COPY)?.execute(named_params! {
        ":id": id, ":key": key, ":channel": edit.channel,
        ":with_lane": edit.ordering_key.is_some(), ":ordering_key": edit.ordering_key.as_ref(),
    })?;
    let moved = conn.last_insert_rowid();
    for sql in FOLLOW {
        conn.prepare_cached(sql)?.execute((id, moved))?;
    }
    conn.prepare_cached(LEAVE)?.execute([id])?;
    Ok(moved)
}

/// Who has the key in that channel.
fn holder(conn: &Connection, channel: &str, key: &Raw) -> Result<Option<i64>> {
    let sql = "SELECT id FROM outbox WHERE channel = ?1 AND dedupe_key = ?2";
    let mut statement = conn.prepare_cached(sql)?;
    Ok(statement
        .query_row((channel, key), |row| row.get(0))
        .optional()?)
}
