//! Duplicates with other content: reading them, and what a person decides about them.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension, Params, Row, named_params, params};

use crate::conflict::{Conflict, Resolution};
use crate::entry::Status;
use crate::error::{Error, Result};
use crate::message;
use crate::store::operate::{self, Deed};
use crate::store::read::{broken, bytes, number, text};

/// Conflicts of one answer, at most, and the bytes of their payloads, about.
const MOST: usize = 1_000;
const BYTES: usize = 8 * 1024 * 1024;

macro_rules! conflicts {
    ($rest:literal) => {
        concat!(
            "SELECT k.id, k.at, o.id AS holder, o.status AS holder_status, k.channel, k.dedupe_key,
                    k.event_type, k.recipient, k.ordering_key, k.principal, k.content_type,
                    k.headers, k.available_at, k.expires_at, k.payload
               FROM outbox_conflict AS k
               LEFT JOIN outbox AS o ON o.channel = k.channel AND o.dedupe_key = k.dedupe_key ",
            $rest
        )
    };
}

const LIST: &str =
    conflicts!("WHERE k.id > ?1 AND (?2 IS NULL OR k.channel = ?2) ORDER BY k.id LIMIT ?3");

/// Index `outbox_conflict_key`.
const OF_MESSAGE: &str = conflicts!(
    "WHERE (k.channel, k.dedupe_key) = (SELECT channel, dedupe_key FROM outbox WHERE id = ?1)
     ORDER BY k.id LIMIT 1000"
);

/// Index `outbox_conflict_key`.
const COUNT_OF_MESSAGE: &str = "
SELECT count(*) FROM outbox_conflict AS k
 WHERE (k.channel, k.dedupe_key) = (SELECT channel, dedupe_key FROM outbox WHERE id = ?1)";

/// As a message of its own. Its new message id tells the receiver that it is one.
const ENQUEUE: &str = "
INSERT INTO outbox (channel, dedupe_key, event_type, recipient, ordering_key, principal,
                    content_type, headers, available_at, expires_at, created_at, payload)
SELECT channel, :key, event_type, recipient, ordering_key, principal, content_type, headers,
       available_at, CASE WHEN expires_at <= :now THEN NULL ELSE expires_at END, :now, payload
  FROM outbox_conflict WHERE id = :id";

/// Who has a key in the channel of a conflict.
const TAKEN: &str = "
SELECT id FROM outbox
 WHERE channel = (SELECT channel FROM outbox_conflict WHERE id = ?1) AND dedupe_key = ?2";

/// What was never claimed was never seen, so it may change.
const REPLACE: &str = "
UPDATE outbox
   SET (event_type, recipient, principal, content_type, headers, available_at, expires_at, payload)
     = (SELECT event_type, recipient, principal, content_type, headers, available_at, expires_at,
               payload
          FROM outbox_conflict WHERE id = :id),
       next_attempt_at = max(coalesce((SELECT available_at FROM outbox_conflict WHERE id = :id), 0), 0)
 WHERE id = :holder AND claims = 0 AND status IN ('pending', 'waiting')
   AND ordering_key IS (SELECT ordering_key FROM outbox_conflict WHERE id = :id)";

/// The first conflict of the same key. Index `outbox_conflict_key`.
pub(crate) const FIRST_OF_KEY: &str = "
SELECT (SELECT k.id FROM outbox_conflict AS k
         WHERE k.channel = c.channel AND k.dedupe_key = c.dedupe_key ORDER BY k.id LIMIT 1)
  FROM outbox_conflict AS c WHERE c.id = ?1";

const DELETE: &str = "DELETE FROM outbox_conflict WHERE id = ?1";

/// With the payload that would otherwise be gone.
const AUDIT_DROP: &str = "
INSERT INTO outbox_audit (at, who, action, message, channel, reason, former_payload)
SELECT :at, :who, 'conflict_drop', :message, channel, :reason, payload
  FROM outbox_conflict WHERE id = :id";

/// The columns of text.
const TEXTS: [&str; 8] = [
    "channel",
    "dedupe_key",
    "event_type",
    "recipient",
    "ordering_key",
    "principal",
    "content_type",
    "headers",
];

fn conflict(row: &Row<'_>) -> rusqlite::Result<Conflict> {
    let word = |column| Ok::<_, rusqlite::Error>(text(row, column)?.unwrap_or_default());
    let status = text(row, "holder_status")?;
    Ok(Conflict {
        id: row.get("id")?,
        at: number(row, "at")?.unwrap_or_default(),
        holder: row.get("holder")?,
        holder_status: status.map(|it| Status::parse(&it).unwrap_or(Status::Unknown)),
        channel: word("channel")?,
        dedupe_key: word("dedupe_key")?,
        event_type: text(row, "event_type")?,
        recipient: text(row, "recipient")?,
        ordering_key: text(row, "ordering_key")?,
        principal: text(row, "principal")?,
        content_type: word("content_type")?,
        headers: text(row, "headers")?,
        available_at: number(row, "available_at")?,
        expires_at: number(row, "expires_at")?,
        payload: bytes(row.get_ref("payload")?).to_vec(),
        broken: broken(row, &TEXTS)?,
    })
}

/// Conflicts after one, in the order they came.
pub(crate) fn list(
    conn: &Connection,
    after: i64,
    channel: Option<&str>,
    limit: usize,
) -> Result<Vec<Conflict>> {
    let limit = super::rows(limit.clamp(1, MOST));
    some(conn, LIST, params![after, channel, limit])
}

/// Those that stand against the key that a message holds.
pub(crate) fn of_message(conn: &Connection, id: i64) -> Result<Vec<Conflict>> {
    some(conn, OF_MESSAGE, [id])
}

/// How many they are.
pub(crate) fn count_of_message(conn: &Connection, id: i64) -> Result<u64> {
    let count: i64 = conn
        .prepare_cached(COUNT_OF_MESSAGE)?
        .query_row([id], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

fn some(conn: &Connection, sql: &str, which: impl Params) -> Result<Vec<Conflict>> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(which)?;
    let (mut found, mut size) = (Vec::new(), 0_usize);
    while size < BYTES
        && let Some(row) = rows.next()?
    {
        let conflict = conflict(row)?;
        size = size.saturating_add(conflict.payload.len());
        found.push(conflict);
    }
    Ok(found)
}

pub(crate) fn get(conn: &Connection, id: i64) -> Result<Option<Conflict>> {
    let mut statement = conn.prepare_cached(conflicts!("WHERE k.id = ?1"))?;
    Ok(statement.query_row([id], conflict).optional()?)
}

/// Refuses to put several contents in one place, where all but the last would be lost.
pub(crate) fn one_of_each_key(conn: &Connection, conflicts: &[i64]) -> Result<()> {
    let mut keys: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
    let mut first = conn.prepare_cached(FIRST_OF_KEY)?;
    for id in conflicts {
        let first = first.query_row([id], |row| row.get(0)).optional()?;
        if let Some(first) = first {
            keys.entry(first).or_default().insert(*id);
        }
    }
    let rivals: Vec<_> = keys.values().filter(|it| it.len() > 1).collect();
    let Some(named) = rivals.first() else {
        return Ok(());
    };
    let others = match rivals.len() - 1 {
        0 => String::new(),
        more => format!(" (as have others, of {more} more)"),
    };
    Err(Error::Refused(format!(
        "the conflicts {} have the same key{others}, and a message has one content: choose one of them",
        listed(named)
    )))
}

/// The first of these numbers, and how many more there are.
fn listed(ids: &BTreeSet<i64>) -> String {
    const NAMED: usize = 10;
    let mut named: Vec<_> = ids.iter().take(NAMED).map(i64::to_string).collect();
    let last = match ids.len().saturating_sub(NAMED) {
        0 => named.pop().unwrap_or_default(),
        more => format!("{more} more"),
    };
    format!("{} and {last}", named.join(", "))
}

/// Does what a person decided; answers the message that has the content now.
pub(crate) fn resolve(
    conn: &Connection,
    id: i64,
    resolution: &Resolution,
    deed: Deed<'_>,
) -> Result<Option<i64>> {
    let conflict = get(conn, id)?.ok_or(Error::NoConflict(id))?;
    let message = match resolution {
        Resolution::Enqueue(key) => Some(enqueue(conn, &conflict, key, deed)?),
        Resolution::Replace => Some(replace(conn, &conflict, deed)?),
        Resolution::Drop => {
            let (who, reason) = operate::signed(deed);
            conn.prepare_cached(AUDIT_DROP)?.execute(named_params! {
                ":id": id, ":at": deed.now, ":who": who, ":message": conflict.holder,
                ":reason": reason,
            })?;
            None
        }
    };
    conn.prepare_cached(DELETE)?.execute([id])?;
    Ok(message)
}

fn enqueue(conn: &Connection, conflict: &Conflict, key: &str, deed: Deed<'_>) -> Result<i64> {
    message::name("dedupe key", key)?;
    let taken = conn
        .prepare_cached(TAKEN)?
        .query_row((conflict.id, key), |row| row.get(0));
    if let Some(id) = taken.optional()? {
        return Err(Error::Duplicate { id });
    }
    conn.prepare_cached(ENQUEUE)?.execute(named_params! {
        ":id": conflict.id, ":key": key, ":now": deed.now,
    })?;
    let id = conn.last_insert_rowid();
    let channel = Some(conflict.channel.as_str());
    let reason = deed.reason.map(|it| format!("; {it}")).unwrap_or_default();
    let reason = format!("it was in conflict over {}{reason}", conflict.dedupe_key);
    operate::note(
        conn,
        "conflict_enqueue",
        Some(id),
        channel,
        Some(&reason),
        deed,
    )?;
    Ok(id)
}

fn replace(conn: &Connection, conflict: &Conflict, deed: Deed<'_>) -> Result<i64> {
    let refused = |why: String| Err(Error::Refused(why));
    let (Some(holder), Some(status)) = (conflict.holder, conflict.holder_status) else {
        return refused(format!(
            "no message holds the key {} any more; enqueue the conflict under it",
            conflict.dedupe_key
        ));
    };
    operate::note_former(conn, "conflict_replace", holder, deed)?;
    let changed = conn.prepare_cached(REPLACE)?.execute(named_params! {
        ":id": conflict.id, ":holder": holder,
    })?;
    match changed {
        0 => refused(format!(
            "message {holder} is {status}: only a message that was never attempted, of the same \
             ordering key, can be replaced; enqueue the conflict under another key"
        )),
        _ => Ok(holder),
    }
}
