//! Putting messages in, within the caller's own transaction.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, Statement, ToSql, named_params};

use crate::error::{Error, Result};
use crate::message::{Enqueued, Message, Moment, OnDuplicate, Payload};
use crate::schema::{self, SCHEMA_VERSION};
use crate::store::{bulk, census, read};

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

    /// Whether so many more fit for certain. They count as let in.
    pub(super) fn take(&self, messages: u64) -> bool {
        let order = Ordering::Relaxed;
        let take = |spare: u64| spare.checked_sub(messages);
        self.max_unsent.is_none() || self.spare.fetch_update(order, order, take).is_ok()
    }
}

/// What is stored of a new message.
pub(super) const COLUMNS: &str = "
    channel, status, message_id, dedupe_key, event_type, recipient, ordering_key, principal,
    content_type, headers, available_at, expires_at, created_at, payload";

/// Whether a writer of version `?1` may still write here.
pub(super) const ALLOWED: &str =
    "coalesce((SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE key = 'min_writer'), 0) <= ?1";

/// The status a message comes with. A follower comes as `waiting`, which spares the triggers half of
/// the work; they decide all the same.
pub(super) fn place(behind: &str, channel: &str, key: &str) -> String {
    let lane = format!("SELECT 1 FROM outbox WHERE channel = {channel} AND ordering_key = {key}");
    format!(
        "CASE WHEN {key} IS NOT NULL
               AND ({behind} OR EXISTS ({lane} AND status = 'pending')
                 OR EXISTS ({lane} AND status = 'sending'))
              THEN 'waiting' ELSE 'pending' END"
    )
}

/// One statement, so that it takes the write lock before it reads. Where it may not write it has no
/// `message_id` to give, which is refused. `VALUES`, as what a `SELECT` yields would be put into a
/// table of its own first.
pub(crate) static INSERT: LazyLock<String> = LazyLock::new(|| {
    let status = place("?4", "?3", "?9");
    format!(
        "INSERT INTO outbox ({COLUMNS})
         VALUES (?3, {status},
                 CASE WHEN {ALLOWED} THEN coalesce(?5, lower(hex(randomblob(16)))) END,
                 coalesce(?6, lower(hex(randomblob(16)))), ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14,
                 ?2, ?15)"
    )
});

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
    let refusal = match room(conn, limits)? {
        Some(full) => full,
        None => match insert(conn, message, now) {
            Ok(Some(id)) => return Ok(Enqueued::New { id }),
            Ok(None) => Error::Refused("a trigger of the application ignored the message".into()),
            // Its key may be taken: SQLite has undone the statement, and with it what the trigger
            // that keeps conflicts aside has noted. Here the caller is told.
            Err(error) if refused(conn, &error) => error.into(),
            Err(error) => return Err(error.into()),
        },
    };
    schema::check_writer(conn)?;
    match holder(conn, message)? {
        Some(holder) => duplicate(conn, message, holder, now),
        None => Err(refusal),
    }
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
    let mut messages = messages.into_iter();
    loop {
        let some: Vec<_> = messages.by_ref().take(bulk::ROWS).collect();
        if some.is_empty() {
            return Ok(answers);
        }
        if let Some(ids) = bulk::insert(conn, &some, limits, now)? {
            answers.extend(ids.into_iter().map(|id| Ok(Enqueued::New { id })));
            continue;
        }
        for message in some {
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
    }
}

/// Whether the row was refused and the transaction goes on.
pub(super) fn refused(conn: &Connection, error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) && !conn.is_autocommit()
}

impl ToSql for Payload {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// Its id, or nothing where a trigger of the application left it out.
fn insert(conn: &Connection, message: &Message, now: i64) -> rusqlite::Result<Option<i64>> {
    let mut statement = conn.prepare_cached(&INSERT)?;
    let rows = execute(&mut statement, message, now)?;
    Ok((rows > 0).then(|| conn.last_insert_rowid()))
}

fn execute(statement: &mut Statement<'_>, message: &Message, now: i64) -> rusqlite::Result<usize> {
    statement.raw_bind_parameter(1, SCHEMA_VERSION)?;
    statement.raw_bind_parameter(2, now)?;
    bind(statement, 3, message, false, now)?;
    statement.raw_execute()
}

/// Parameters of one message.
pub(super) const PARAMETERS: usize = 13;

/// Gives a statement one message, from this parameter on. `behind`: another of its lane comes
/// before it in the same statement.
pub(super) fn bind(
    statement: &mut Statement<'_>,
    from: usize,
    message: &Message,
    behind: bool,
    now: i64,
) -> rusqlite::Result<()> {
    let values: [&dyn ToSql; PARAMETERS] = [
        &message.channel,
        &behind,
        &message.message_id,
        &message.dedupe_key,
        &message.event_type,
        &message.recipient,
        &message.ordering_key,
        &message.principal,
        &message.content_type,
        &message.headers_json(),
        &message.available.map(|it| it.resolve(now)),
        &message.expires.map(|it| it.resolve(now)),
        &message.payload,
    ];
    for (index, value) in (from..).zip(values) {
        statement.raw_bind_parameter(index, value)?;
    }
    Ok(())
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
    let replaces = holder.replaceable && (!holder.same || spans(message));
    match message.on_duplicate {
        OnDuplicate::Fail => return Err(Error::Duplicate { id }),
        // Whether a span ends at the same moment nobody can say: the latest holds.
        OnDuplicate::Replace if replaces && replace(conn, message, id, now)? => {
            return Ok(Enqueued::Replaced { id });
        }
        _ if holder.same => return Ok(Enqueued::Duplicate { id }),
        _ => {}
    }
    if message.kept_aside {
        keep_aside(conn, message, now)?;
    }
    Ok(Enqueued::Conflict { id })
}

fn replace(conn: &Connection, message: &Message, id: i64, now: i64) -> Result<bool> {
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
    Ok(changed > 0)
}

/// The conflict keeper of the schema does it, for an INSERT that does nothing else.
fn keep_aside(conn: &Connection, message: &Message, now: i64) -> Result<()> {
    let sql = format!("{} ON CONFLICT (channel, dedupe_key) DO NOTHING", *INSERT);
    let mut statement = conn.prepare_cached(&sql)?;
    execute(&mut statement, message, now)?;
    Ok(())
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
    if limits.take(1) {
        return Ok(None);
    }
    // Changes nothing, but takes the write lock before the count reads: a transaction that reads
    // first may not write once another connection has.
    conn.prepare_cached("UPDATE outbox_meta SET value = value WHERE key IS NULL")?
        .execute([])?;
    let unsent = census::unsent(conn)?;
    if unsent >= limit {
        return Ok(Some(Error::OutboxFull { unsent, limit }));
    }
    // Only a part of what is free, since other processes enqueue too; the closer to the limit,
    // the more often it is counted.
    limits
        .spare
        .store((limit - unsent - 1) / 8, Ordering::Relaxed);
    Ok(None)
}
