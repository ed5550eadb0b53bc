//! The message that a person means: by id, dedupe key or message id. Reads only.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension, params};

use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::store::read::{get, stored_channels};
use crate::store::salvage;

/// Rows that one statement looks at, at most.
const SLICE: i64 = 5_000;

/// Messages named when several answer to a word.
const MOST: usize = 8;

/// What a person may have written.
enum Form<'a> {
    Id(i64),
    Key(&'a str),
    MessageId(&'a str),
    /// Any of them.
    Bare(&'a str),
}

/// `id:17`, `key:17`, `message:0f3a…`; `None`: none of these.
fn prefixed(which: &str) -> Option<Form<'_>> {
    let (prefix, rest) = which.split_once(':')?;
    match prefix {
        "id" => rest.parse().ok().map(Form::Id),
        "key" => Some(Form::Key(rest)),
        "message" => Some(Form::MessageId(rest)),
        _ => None,
    }
}

/// How ids are found by a text.
struct Ways {
    by_key: fn(&Connection, &str) -> Result<BTreeSet<i64>>,
    by_message_id: fn(&Connection, &str) -> Result<BTreeSet<i64>>,
}

/// The message that a person calls `which`. A prefix says what it is; where nothing answers to
/// that, the whole of it may be a key.
pub(crate) fn find(conn: &Connection, which: &str, channel: Option<&str>) -> Result<Entry> {
    let ways = Ways {
        by_key,
        by_message_id,
    };
    find_by(&ways, conn, which, channel)
}

/// The same in a damaged file: along the rows that can be read, without an index.
pub(crate) fn find_salvaged(
    conn: &Connection,
    which: &str,
    channel: Option<&str>,
) -> Result<Entry> {
    let ways = Ways {
        by_key: |conn, key| salvage::having(conn, "dedupe_key", key, MOST),
        by_message_id: |conn, id| salvage::having(conn, "message_id", id, 1),
    };
    let found = find_by(&ways, conn, which, channel);
    if matches!(found, Err(Error::NotFound(_))) {
        // It may be among what cannot be read.
        let sql = "SELECT count(dedupe_key), count(message_id) FROM outbox NOT INDEXED";
        conn.query_row(sql, [], |_| Ok(()))?;
    }
    found
}

fn find_by(ways: &Ways, conn: &Connection, which: &str, channel: Option<&str>) -> Result<Entry> {
    let mut ids = match prefixed(which) {
        Some(form) => ids(ways, conn, &form)?,
        None => BTreeSet::new(),
    };
    if ids.is_empty() {
        ids = self::ids(ways, conn, &Form::Bare(which))?;
    }
    let (mut wanted, mut elsewhere) = (Vec::new(), Vec::new());
    for id in ids.into_iter().take(MOST) {
        let Some(entry) = get(conn, id)? else {
            continue;
        };
        match channel.is_none_or(|it| entry.channel == it) {
            true => wanted.push(entry),
            false => elsewhere.push(entry),
        }
    }
    match (wanted.pop(), channel, elsewhere.first()) {
        (Some(entry), ..) if wanted.is_empty() => Ok(entry),
        (Some(last), ..) => {
            wanted.push(last);
            let candidates = wanted.iter().map(named).collect();
            Err(Error::Ambiguous {
                which: which.into(),
                candidates,
            })
        }
        (None, Some(channel), Some(entry)) => Err(Error::NotFound(format!(
            "{which} in the channel {channel}; it is {}",
            named(entry)
        ))),
        (None, ..) => Err(Error::NotFound(which.into())),
    }
}

/// The form that means this message and no other, and what it is.
fn named(entry: &Entry) -> String {
    let Entry {
        id,
        channel,
        dedupe_key,
        status,
        ..
    } = entry;
    format!("id:{id} ({status} in {channel}, key {dedupe_key})")
}

fn ids(ways: &Ways, conn: &Connection, form: &Form<'_>) -> Result<BTreeSet<i64>> {
    match form {
        Form::Id(id) => Ok(get(conn, *id)?.into_iter().map(|it| it.id).collect()),
        Form::Key(key) => (ways.by_key)(conn, key),
        Form::MessageId(id) => (ways.by_message_id)(conn, id),
        Form::Bare(word) => {
            let mut ids = (ways.by_key)(conn, word)?;
            if let Ok(id) = word.parse() {
                ids.extend(get(conn, id)?.map(|it| it.id));
            }
            if ids.is_empty() {
                ids = (ways.by_message_id)(conn, word)?;
            }
            Ok(ids)
        }
    }
}

/// In every channel.
fn by_key(conn: &Connection, key: &str) -> Result<BTreeSet<i64>> {
    let mut ids = BTreeSet::new();
    let mut statement = conn.prepare_cached(
        "SELECT id FROM outbox WHERE channel = CAST(?1 AS TEXT) AND dedupe_key = ?2",
    )?;
    for name in stored_channels(conn)? {
        let id = statement.query_row(params![name, key], |row| row.get::<_, i64>(0));
        ids.extend(id.optional()?);
    }
    Ok(ids)
}

/// Nothing indexes the message id, which only people on the phone ask for; newest first.
fn by_message_id(conn: &Connection, message_id: &str) -> Result<BTreeSet<i64>> {
    let mut statement = conn.prepare_cached(
        "SELECT id FROM outbox WHERE id > ?1 AND id <= ?2 AND message_id = ?3 LIMIT 1",
    )?;
    let edge = |sql: &str, id: i64| -> Result<i64> {
        let edge: Option<i64> = conn
            .prepare_cached(sql)?
            .query_row([id], |row| row.get(0))?;
        Ok(edge.unwrap_or(0))
    };
    let mut to = edge("SELECT max(id) FROM outbox WHERE id <= ?1", i64::MAX)?;
    let first = edge("SELECT min(id) FROM outbox WHERE id > ?1", 0)?;
    while to >= first && to > 0 {
        let from = to.saturating_sub(SLICE);
        let id = statement.query_row(params![from, to, message_id], |row| row.get(0));
        if let Some(id) = id.optional()? {
            return Ok(BTreeSet::from([id]));
        }
        to = edge("SELECT max(id) FROM outbox WHERE id <= ?1", from)?;
    }
    Ok(BTreeSet::new())
}
