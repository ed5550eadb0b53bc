//! Putting messages in, within the caller's own transaction.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, named_params};

use crate::error::{Error, Result};
use crate::message::{Enqueued, Message, Moment, OnDuplicate, Payload};
use crate::schema::{self, SCHEMA_VERSION};
use crate::store::read;

/// How much the application lets in.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) max_payload: usize,
    pub(crate) max_unsent: Option<u64>,
    /// New messages that fit for certain, so that a bulk enqueue need not count each time.
    spare: AtomicU64,
}

impl Limits {
    pub(crate) fn new(max_payload: usize, max_unsent: Option<u64>) -> Self {
        Self {
            max_payload,
            max_unsent,
            spare: AtomicU64::new(0),
        }
    }
}

/// One statement, so that it takes the write lock before it reads. The key is looked for here
/// and not left to the unique index: then the trigger that keeps conflicts aside for plain SQL
/// stays out of it, since here the caller is told. A follower comes as `waiting`, which spares the
/// triggers half of the work; they decide all the same.
pub(crate) const INSERT: &str = "
    INSERT INTO outbox (channel, status, message_id, dedupe_key, event_type, recipient, ordering_key, principal,
                        content_type, headers, available_at, expires_at, created_at, payload)
    SELECT :channel,
           CASE WHEN :ordering_key IS NOT NULL
                 AND (EXISTS (SELECT 1 FROM outbox WHERE channel = :channel
                                 AND ordering_key = :ordering_key AND status = 'pending')
                   OR EXISTS (SELECT 1 FROM outbox WHERE channel = :channel
                                 AND ordering_key = :ordering_key AND status = 'sending'))
                THEN 'waiting' ELSE 'pending' END,
           coalesce(:message_id, lower(hex(randomblob(16)))),
           coalesce(:dedupe_key, lower(hex(randomblob(16)))), :event_type, :recipient,
           :ordering_key, :principal, :content_type, :headers, :available_at, :expires_at,
           :created_at, :payload
     WHERE :room
       AND NOT EXISTS (SELECT 1 FROM outbox
                        WHERE channel = :channel AND dedupe_key = :dedupe_key)
       AND coalesce((SELECT CAST(value AS INTEGER) FROM outbox_meta
                      WHERE key = 'min_writer'), 0) <= :version
    RETURNING id";

pub(crate) const HOLDER: &str = "
    SELECT id, status, claims, event_type, recipient, ordering_key, principal, content_type,
           headers, available_at, expires_at, payload
      FROM outbox WHERE channel = ?1 AND dedupe_key = ?2";

pub(crate) const REPLACE: &str = "
    UPDATE outbox
       SET event_type = :event_type, recipient = :recipient, principal = :principal,
           content_type = :content_type, headers = :headers, available_at = :available_at,
           expires_at = :expires_at, next_attempt_at = max(coalesce(:available_at, 0), 0),
           payload = :payload
     WHERE id = :id AND claims = 0 AND status IN ('pending', 'waiting')
       AND ordering_key IS :ordering_key";

/// Stores one message in the transaction that is open on `conn`.
pub(crate) fn enqueue(
    conn: &Connection,
    message: &Message,
    limits: &Limits,
    now: i64,
) -> Result<Enqueued> {
    message.validate(limits.max_payload)?;
    let room = room(conn, limits)?;
    let inserted = insert(conn, message, room.is_none(), now)?;
    if let Some(id) = inserted {
        return Ok(Enqueued::New { id });
    }
    if let Some(holder) = holder(conn, message)? {
        return duplicate(conn, message, holder, now);
    }
    if let Some(full) = room {
        return Err(full);
    }
    schema::check_writer(conn)?;
    Err(Error::Refused(
        "a trigger of the application ignored the message".into(),
    ))
}

/// Stores many. A message that is refused has its error in its place and does not stop the
/// others; when SQLite fails, so does the whole call.
pub(crate) fn enqueue_all<'a>(
    conn: &Connection,
    messages: impl IntoIterator<Item = &'a Message>,
    limits: &Limits,
    now: i64,
) -> Result<Vec<Result<Enqueued>>> {
    let mut answers = Vec::new();
    for message in messages {
        match enqueue(conn, message, limits, now) {
            Err(
                refused @ (Error::InvalidMessage { .. }
                | Error::TooLarge { .. }
                | Error::Duplicate { .. }
                | Error::OutboxFull { .. }),
            ) => answers.push(Err(refused)),
            answer => answers.push(Ok(answer?)),
        }
    }
    Ok(answers)
}

impl ToSql for Payload {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

fn insert(conn: &Connection, message: &Message, room: bool, now: i64) -> Result<Option<i64>> {
    let mut statement = conn.prepare_cached(INSERT)?;
    let mut rows = statement.query(named_params! {
        ":channel": message.channel,
        ":message_id": message.message_id,
        ":dedupe_key": message.dedupe_key,
        ":event_type": message.event_type,
        ":recipient": message.recipient,
        ":ordering_key": message.ordering_key,
        ":principal": message.principal,
        ":content_type": message.content_type,
        ":headers": message.headers_json(),
        ":available_at": message.available.map(|it| it.resolve(now)),
        ":expires_at": message.expires.map(|it| it.resolve(now)),
        ":created_at": now,
        ":payload": message.payload,
        ":room": room,
        ":version": SCHEMA_VERSION,
    })?;
    let id = rows.next()?.map(|row| row.get(0)).transpose()?;
    // To the end, so that the statement is done and not merely abandoned.
    while rows.next()?.is_some() {}
    Ok(id)
}

/// The message that has the key.
struct Holder {
    id: i64,
    same: bool,
    /// Never claimed, so nobody can have seen it, and in the same lane.
    replaceable: bool,
}

fn holder(conn: &Connection, message: &Message) -> Result<Option<Holder>> {
    let Some(key) = &message.dedupe_key else {
        return Ok(None);
    };
    let holder = conn
        .prepare_cached(HOLDER)?
        .query_row([&message.channel, key], |row| {
            let status = read::text(row, "status")?.unwrap_or_default();
            let lane = same_text(row, "ordering_key", message.ordering_key.as_deref())?;
            Ok(Holder {
                id: row.get("id")?,
                same: lane && same_content(row, message, &status)?,
                replaceable: lane
                    && read::number(row, "claims")? == Some(0)
                    && matches!(status.as_str(), "pending" | "waiting"),
            })
        })
        .optional()?;
    Ok(holder)
}

fn duplicate(conn: &Connection, message: &Message, holder: Holder, now: i64) -> Result<Enqueued> {
    let id = holder.id;
    match message.on_duplicate {
        OnDuplicate::Fail => Err(Error::Duplicate { id }),
        // Whether a span ends at the same moment nobody can say: the latest holds.
        OnDuplicate::Replace if holder.replaceable && (!holder.same || spans(message)) => {
            let changed = conn.prepare_cached(REPLACE)?.execute(named_params! {
                ":id": id,
                ":event_type": message.event_type,
                ":recipient": message.recipient,
                ":ordering_key": message.ordering_key,
                ":principal": message.principal,
                ":content_type": message.content_type,
                ":headers": message.headers_json(),
                ":available_at": message.available.map(|it| it.resolve(now)),
                ":expires_at": message.expires.map(|it| it.resolve(now)),
                ":payload": message.payload,
            })?;
            match changed {
                0 => Ok(Enqueued::Conflict { id }),
                _ => Ok(Enqueued::Replaced { id }),
            }
        }
        _ if holder.same => Ok(Enqueued::Duplicate { id }),
        _ => Ok(Enqueued::Conflict { id }),
    }
}

/// Whether the message has times that are counted from the enqueue.
fn spans(message: &Message) -> bool {
    let relative = |it: Option<Moment>| matches!(it, Some(Moment::In(_)));
    relative(message.available) || relative(message.expires)
}

/// Compares here, on bytes: in SQL a text never equals a blob, and a cast depends on the file's
/// encoding.
fn same_content(row: &Row<'_>, message: &Message, status: &str) -> rusqlite::Result<bool> {
    let texts = [
        ("event_type", message.event_type.as_deref()),
        ("recipient", message.recipient.as_deref()),
        ("principal", message.principal.as_deref()),
        ("content_type", Some(message.content_type.as_str())),
    ];
    for (column, text) in texts {
        if !same_text(row, column, text)? {
            return Ok(false);
        }
    }
    let stored = read::bytes(row.get_ref("payload")?);
    // Retention may have emptied it: then there is nothing left to differ from.
    let emptied = stored.is_empty() && matches!(status, "sent" | "expired" | "cancelled");
    Ok((emptied || stored == message.payload.as_bytes())
        && same_headers(read::text(row, "headers")?.as_deref(), &message.headers)
        && same_moment(read::number(row, "available_at")?, message.available)
        && same_moment(read::number(row, "expires_at")?, message.expires))
}

fn same_text(row: &Row<'_>, column: &str, text: Option<&str>) -> rusqlite::Result<bool> {
    Ok(match (row.get_ref(column)?, text) {
        (ValueRef::Null, None) => true,
        (ValueRef::Text(stored), Some(text)) => stored == text.as_bytes(),
        _ => false,
    })
}

fn same_headers(stored: Option<&str>, headers: &BTreeMap<String, String>) -> bool {
    match stored {
        None => headers.is_empty(),
        Some(stored) => serde_json::from_str::<BTreeMap<String, String>>(stored)
            .is_ok_and(|stored| stored == *headers),
    }
}

/// A span counted from the enqueue gives another moment each time, so only its presence counts.
fn same_moment(stored: Option<i64>, moment: Option<Moment>) -> bool {
    match moment {
        None => stored.is_none(),
        Some(Moment::In(_)) => stored.is_some(),
        Some(Moment::At(at)) => stored == Some(at),
    }
}

/// Whether one more fits; the error if not.
fn room(conn: &Connection, limits: &Limits) -> Result<Option<Error>> {
    let Some(limit) = limits.max_unsent else {
        return Ok(None);
    };
    let take = |spare: u64| spare.checked_sub(1);
    let order = Ordering::Relaxed;
    if limits.spare.fetch_update(order, order, take).is_ok() {
        return Ok(None);
    }
    // Changes nothing, but takes the write lock before the count reads: a transaction that reads
    // first may not write once another connection has.
    conn.prepare_cached("UPDATE outbox_meta SET value = value WHERE key IS NULL")?
        .execute([])?;
    let unsent = read::unsent(conn)?;
    if unsent >= limit {
        return Ok(Some(Error::OutboxFull { unsent, limit }));
    }
    // Only a part of what is free, since other processes enqueue too; the closer to the limit,
    // the more often it is counted.
    limits.spare.store((limit - unsent - 1) / 8, order);
    Ok(None)
}
