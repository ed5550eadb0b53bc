//! Looking, without standing in anyone's way: short statements, each its own read transaction,
//! through the partial indexes and never over the whole table at once.
//!
//! Foreign hands may have written what is read here, so no value may make it fail.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::types::{FromSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

use crate::entry::{Attempt, Entry, Filter, Status};
use crate::error::{Error, Result};
use crate::store::{Raw, rows};

/// Rows that one statement looks at, at most, where there is no index to follow.
const SLICE: i64 = 5_000;

/// Payload bytes of one list, about: it ends early rather than fill the memory.
const LIST_BYTES: usize = 8 * 1024 * 1024;

macro_rules! columns {
    () => {
        "id, channel, status, next_attempt_at, claims, attempts, ordering_key, message_id,
         dedupe_key, event_type, recipient, principal, content_type, available_at, expires_at,
         created_at, last_attempt_at, settled_at, provider_id, last_error, headers, answer, payload"
    };
}

pub(super) use columns;

/// What a value says as text.
pub(crate) fn text(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<String>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
    })
}

/// A text or a blob as it is stored, to find its like.
pub(crate) fn raw(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<Raw>> {
    Ok(Raw::column_result(row.get_ref(column)?).ok())
}

/// What a value says as a whole number.
pub(crate) fn number(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<i64>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Integer(number) => Some(number),
        #[allow(clippy::cast_possible_truncation)] // saturates
        ValueRef::Real(number) => Some(number as i64),
        ValueRef::Null | ValueRef::Text(_) | ValueRef::Blob(_) => None,
    })
}

/// The bytes of a text or a blob.
pub(crate) fn bytes(value: ValueRef<'_>) -> &[u8] {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        _ => &[],
    }
}

/// The columns of text, but for the status, which is one of a few words.
const TEXTS: [&str; 12] = [
    "channel",
    "ordering_key",
    "message_id",
    "dedupe_key",
    "event_type",
    "recipient",
    "principal",
    "content_type",
    "provider_id",
    "last_error",
    "headers",
    "answer",
];

/// Those of them that are no UTF-8, as they are.
pub(crate) fn broken(
    row: &Row<'_>,
    columns: &[&'static str],
) -> rusqlite::Result<BTreeMap<&'static str, Vec<u8>>> {
    let mut broken = BTreeMap::new();
    for &column in columns {
        let stored = bytes(row.get_ref(column)?);
        if std::str::from_utf8(stored).is_err() {
            broken.insert(column, stored.to_vec());
        }
    }
    Ok(broken)
}

pub(super) fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let word = |column| Ok::<_, rusqlite::Error>(text(row, column)?.unwrap_or_default());
    let count = |column| Ok::<_, rusqlite::Error>(number(row, column)?.unwrap_or_default());
    let payload = row.get_ref("payload")?;
    Ok(Entry {
        id: count("id")?,
        channel: word("channel")?,
        status: Status::parse(&word("status")?).unwrap_or(Status::Unknown),
        next_attempt_at: count("next_attempt_at")?,
        claims: count("claims")?,
        attempts: count("attempts")?,
        ordering_key: text(row, "ordering_key")?,
        message_id: word("message_id")?,
        dedupe_key: word("dedupe_key")?,
        event_type: text(row, "event_type")?,
        recipient: text(row, "recipient")?,
        principal: text(row, "principal")?,
        content_type: word("content_type")?,
        available_at: number(row, "available_at")?,
        expires_at: number(row, "expires_at")?,
        created_at: count("created_at")?,
        last_attempt_at: number(row, "last_attempt_at")?,
        settled_at: number(row, "settled_at")?,
        provider_id: text(row, "provider_id")?,
        last_error: text(row, "last_error")?,
        headers: text(row, "headers")?,
        answer: text(row, "answer")?,
        payload: bytes(payload).to_vec(),
        payload_is_text: matches!(payload, ValueRef::Text(_)),
        broken: broken(row, &TEXTS)?,
    })
}

/// A channel's name as it is stored, which need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(Vec<u8>);

impl Name {
    pub(crate) fn new(name: &str) -> Self {
        Self(name.into())
    }

    pub(crate) fn read(row: &Row<'_>, column: &str) -> rusqlite::Result<Self> {
        Ok(Self(bytes(row.get_ref(column)?).to_vec()))
    }

    pub(crate) fn is_text(&self) -> bool {
        std::str::from_utf8(&self.0).is_ok()
    }

    pub(crate) fn show(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl ToSql for Name {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

/// Begins a statement that walks over the channels that have messages: a step each along the index,
/// and a NULL at the end.
macro_rules! walk {
    () => {
        "
WITH RECURSIVE used (channel) AS (
  SELECT min(channel) FROM outbox
  UNION ALL
  SELECT (SELECT min(o.channel) FROM outbox AS o WHERE o.channel > used.channel)
    FROM used WHERE used.channel IS NOT NULL)"
    };
}

pub(crate) use walk;

/// Every channel that has messages or a state: hops from one to the next along the index.
pub(crate) fn channels(conn: &Connection) -> Result<Vec<Name>> {
    let mut statement = conn.prepare_cached(concat!(
        walk!(),
        "
         SELECT channel FROM used WHERE channel IS NOT NULL
         UNION SELECT channel FROM outbox_channel"
    ))?;
    let names = statement
        .query_map([], |row| Ok(Name(bytes(row.get_ref(0)?).to_vec())))?
        .collect::<rusqlite::Result<BTreeSet<_>>>()?;
    Ok(names.into_iter().collect())
}

/// One message.
pub(crate) fn get(conn: &Connection, id: i64) -> Result<Option<Entry>> {
    let sql = concat!("SELECT ", columns!(), " FROM outbox WHERE id = ?1");
    Ok(conn
        .prepare_cached(sql)?
        .query_row([id], entry)
        .optional()?)
}

/// The message that has this key.
pub(crate) fn by_key(conn: &Connection, channel: &str, key: &str) -> Result<Option<Entry>> {
    let sql = concat!(
        "SELECT ",
        columns!(),
        " FROM outbox WHERE channel = ?1 AND dedupe_key = ?2"
    );
    let mut statement = conn.prepare_cached(sql)?;
    Ok(statement.query_row([channel, key], entry).optional()?)
}

pub(super) fn edge_at(conn: &Connection, sql: &str, id: i64) -> Result<i64> {
    let id: Option<i64> = conn
        .prepare_cached(sql)?
        .query_row([id], |row| row.get(0))?;
    Ok(id.unwrap_or(0))
}

/// The channels that have messages, as a statement finds them again (`CAST(?1 AS TEXT)`): a name that
/// is no text is another one when it was read, in a file of UTF-16.
pub(super) fn stored_channels(conn: &Connection) -> Result<Vec<Raw>> {
    let mut statement = conn.prepare_cached(concat!(
        walk!(),
        "
         SELECT CAST(channel AS BLOB) AS channel FROM used WHERE channel IS NOT NULL"
    ))?;
    let names = statement.query_map([], |row| row.get("channel"))?;
    Ok(names.collect::<rusqlite::Result<_>>()?)
}

/// One of them, or all.
pub(super) fn chosen(conn: &Connection, channel: Option<&str>) -> Result<Vec<Raw>> {
    match channel {
        Some(channel) => Ok(vec![Raw::text(channel)]),
        None => stored_channels(conn),
    }
}

/// Messages by id, a page of them.
///
/// A long list costs the same for each of its pages: what is wanted mostly stands side by side and
/// is met along the ids. What was sent always does so; the others are found by an index of theirs
/// where they are few among many, and there a page sorts what is left.
pub(crate) fn list(conn: &Connection, filter: &Filter) -> Result<Vec<Entry>> {
    let indexed = |it: &Status| !matches!(it, Status::Sent | Status::Unknown);
    let indexed = !filter.statuses.is_empty() && filter.statuses.iter().all(indexed);
    let mut page = Page::new(filter.bound());
    let most = rows(page.bound).saturating_mul(NEAR);
    match by_slices(conn, filter, indexed.then_some(most), &mut page)? {
        Some(reached) if !page.is_full() => by_index(conn, filter, reached, &mut page)?,
        _ => {}
    }
    let mut before = start(filter);
    for entry in &page.entries {
        before = onward(before, entry.id, filter.newest_first)?;
    }
    Ok(page.entries)
}

/// The id that comes after another. In a damaged file they may be out of order, and who goes on behind
/// the last of them would go round for ever.
pub(super) fn onward(before: i64, id: i64, turned: bool) -> Result<i64> {
    let behind = match turned {
        true => id < before,
        false => id > before,
    };
    match behind {
        true => Ok(id),
        false => Err(Error::damaged("messages are out of order")),
    }
}

/// Ids looked at for each message of a page before an index is asked.
const NEAR: i64 = 4;

/// From slice to slice of the ids; where there is a gap, over it. Answers the last id it looked at
/// when that were enough of them, and nothing when there are no more.
fn by_slices(
    conn: &Connection,
    filter: &Filter,
    most: Option<i64>,
    page: &mut Page,
) -> Result<Option<i64>> {
    let turned = filter.newest_first;
    let order = if turned { "DESC" } else { "ASC" };
    let columns = columns!();
    let mut statement = conn.prepare_cached(&format!(
        "SELECT {columns} FROM outbox WHERE id >= ?1 AND id <= ?2 AND (?3 IS NULL OR channel = ?3)
            AND (?4 = '' OR instr(?4, ' ' || status || ' ')) ORDER BY id {order} LIMIT ?5"
    ))?;
    let statuses = statuses(filter);
    let next = match turned {
        true => "SELECT max(id) FROM outbox WHERE id < ?1",
        false => "SELECT min(id) FROM outbox WHERE id > ?1",
    };
    let mut left = most.unwrap_or(i64::MAX);
    let mut reached = start(filter);
    let mut first = edge_at(conn, next, reached)?;
    while first > 0 && !page.is_full() {
        if left == 0 {
            return Ok(Some(reached));
        }
        let slice = left.min(SLICE);
        left -= slice;
        let last = match turned {
            true => first.saturating_sub(slice - 1),
            false => first.saturating_add(slice - 1),
        };
        let room = rows(page.room());
        let (low, high) = (first.min(last), first.max(last));
        let mut found = statement.query(params![low, high, filter.channel, statuses, room])?;
        while let Some(row) = found.next()?
            && !page.is_full()
        {
            page.add(entry(row)?);
        }
        drop(found);
        reached = last;
        first = match edge_at(conn, next, last)? {
            0 => 0,
            next => onward(last, next, turned)?,
        };
    }
    Ok(None)
}

/// Those that are wanted, each between two blanks.
pub(super) fn statuses(filter: &Filter) -> String {
    filter.statuses.iter().map(|it| format!(" {it} ")).collect()
}

/// The row that the page comes after.
pub(super) fn start(filter: &Filter) -> i64 {
    match filter.newest_first {
        true => filter.after.unwrap_or(i64::MAX),
        false => filter.after.unwrap_or(0),
    }
}

/// Which of the pending ones: those that were never tried stand by id in their index, the others by
/// the moment they are due.
const DUE: [&str; 2] = [" AND next_attempt_at = 0", " AND next_attempt_at > 0"];

/// The ids of one status of one channel, by the indexes that have them.
pub(crate) fn ids_of(status: Status, turned: bool) -> Vec<String> {
    let (index, parts): (_, &[&str]) = match status {
        Status::Pending => ("outbox_due", &DUE),
        Status::Sending => ("outbox_due", &[""]),
        Status::Waiting => ("outbox_lane", &[" AND ordering_key IS NOT NULL"]),
        Status::Dead => ("outbox_dead_rows", &[""]),
        _ => ("outbox_settled", &[""]),
    };
    let (after, order) = match turned {
        true => ("<", "DESC"),
        false => (">", "ASC"),
    };
    let sql = |part: &&str| {
        format!(
            "SELECT id FROM outbox INDEXED BY {index}
              WHERE channel = CAST(?1 AS TEXT) AND status = '{status}'{part} AND id {after} ?2
              ORDER BY id {order} LIMIT ?3"
        )
    };
    parts.iter().map(sql).collect()
}

/// What comes after an id, by the indexes.
fn by_index(conn: &Connection, filter: &Filter, after: i64, page: &mut Page) -> Result<()> {
    let turned = filter.newest_first;
    let room = rows(page.room());
    let mut ids = BTreeSet::new();
    let names = chosen(conn, filter.channel.as_deref())?;
    let statements = filter.statuses.iter().flat_map(|it| ids_of(*it, turned));
    for sql in statements {
        let mut statement = conn.prepare_cached(&sql)?;
        for name in &names {
            let found = statement.query_map(params![name, after, room], |row| row.get(0))?;
            ids.extend(found.collect::<rusqlite::Result<Vec<i64>>>()?);
        }
    }
    let mut ids = ids.into_iter();
    while !page.is_full()
        && let Some(id) = if turned { ids.next_back() } else { ids.next() }
    {
        // It may have moved on since.
        if let Some(entry) = get(conn, id)?.filter(|it| filter.statuses.contains(&it.status)) {
            page.add(entry);
        }
    }
    Ok(())
}

/// A list under way, bounded in rows and in bytes.
pub(super) struct Page {
    pub(super) entries: Vec<Entry>,
    bound: usize,
    bytes: usize,
}

impl Page {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            entries: Vec::new(),
            bound,
            bytes: 0,
        }
    }

    fn room(&self) -> usize {
        self.bound.saturating_sub(self.entries.len())
    }

    pub(super) fn is_full(&self) -> bool {
        self.room() == 0 || self.bytes >= LIST_BYTES
    }

    pub(super) fn add(&mut self, entry: Entry) {
        self.bytes = self.bytes.saturating_add(entry.payload.len());
        self.entries.push(entry);
    }
}

/// The failed attempts of a message that are still remembered, oldest first.
pub(crate) fn attempts(conn: &Connection, id: i64) -> Result<Vec<Attempt>> {
    let mut statement = conn.prepare_cached(
        "SELECT at, duration_ms, outcome, http_status, charged, error
           FROM outbox_attempt WHERE message = ?1 ORDER BY id LIMIT 1000",
    )?;
    let attempts = statement.query_map([id], |row| {
        Ok(Attempt {
            at: number(row, "at")?.unwrap_or_default(),
            duration_ms: number(row, "duration_ms")?,
            outcome: text(row, "outcome")?.unwrap_or_default(),
            http_status: number(row, "http_status")?,
            charged: number(row, "charged")?.filter(|it| *it > 0),
            error: text(row, "error")?,
        })
    })?;
    Ok(attempts.collect::<rusqlite::Result<Vec<_>>>()?)
}
