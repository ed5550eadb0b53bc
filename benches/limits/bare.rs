//! What bare prepared statements do with the same table: the limits of enqueue and drain.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use sqlite_outbox::SCHEMA;
use sqlite_outbox::rusqlite::{Connection, Statement, params};

use crate::figure::rate;
use crate::file::{CHANNEL, payload};

/// The table with its indexes, its checks and its defaults, without the triggers.
pub fn table(path: &Path) -> Result<Connection> {
    let conn = connection(path)?;
    conn.execute_batch(SCHEMA)?;
    let triggers: Vec<String> = conn
        .prepare("SELECT name FROM sqlite_master WHERE type = 'trigger'")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for trigger in triggers {
        conn.execute_batch(&format!("DROP TRIGGER {trigger}"))?;
    }
    Ok(conn)
}

/// With the pragmas of an outbox's own connections.
pub fn connection(path: &Path) -> Result<Connection> {
    let conn = Connection::open(path)?;
    conn.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000;
         PRAGMA temp_store = MEMORY;",
    )?;
    Ok(conn)
}

/// A row to insert.
#[derive(Debug)]
pub struct Row {
    pub dedupe_key: String,
    pub ordering_key: Option<String>,
    pub status: &'static str,
    pub payload: String,
}

impl Row {
    /// The same as [`crate::file::message`].
    pub fn new(number: usize) -> Self {
        Self {
            dedupe_key: format!("S-{number}"),
            ordering_key: None,
            status: "pending",
            payload: payload(),
        }
    }
}

/// Inserts rows in one transaction.
pub fn insert<'a>(conn: &Connection, rows: impl IntoIterator<Item = &'a Row>) -> Result<()> {
    let mut insert = conn.prepare_cached(
        "INSERT INTO outbox (channel, status, dedupe_key, ordering_key, created_at, payload)
         VALUES (?1, ?2, ?3, ?4, 1800000000000, ?5)",
    )?;
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    for row in rows {
        insert.execute(params![
            CHANNEL,
            row.status,
            row.dedupe_key,
            row.ordering_key,
            row.payload
        ])?;
    }
    conn.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}

const FRESH: &str = "
SELECT id FROM outbox
 WHERE channel = ?1 AND status = 'pending' AND next_attempt_at = 0
   AND (expires_at IS NULL OR expires_at > ?2)
 ORDER BY id LIMIT ?3";

const READ: &str = "
SELECT message_id, dedupe_key, content_type, headers, payload FROM outbox WHERE id = ?1";

/// What is bound to `?1`: one id, or a JSON array of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Row,
    Set,
}

/// Claims and settles everything in one loop on one connection, `batch` at a time: the last batch
/// is settled and the next one read and claimed in one transaction, as a drain does, row by row or
/// by one statement for all. Messages a second.
pub fn drain(path: &Path, batch: usize, by: By) -> Result<f64> {
    let conn = connection(path)?;
    let ids = match by {
        By::Row => "id = ?1",
        By::Set => "id IN (SELECT value FROM json_each(?1))",
    };
    let mut fresh = conn.prepare(FRESH)?;
    let mut read = conn.prepare(READ)?;
    let mut take = conn.prepare(&format!(
        "UPDATE outbox SET status = 'sending', claims = claims + 1, next_attempt_at = ?2
          WHERE {ids} AND status = 'pending'"
    ))?;
    let mut settle = conn.prepare(&format!(
        "UPDATE outbox SET status = 'sent', settled_at = ?2, last_attempt_at = ?2, last_error = NULL
          WHERE {ids} AND claims = 1 AND status = 'sending' AND settled_at IS NULL"
    ))?;
    let change = |statement: &mut Statement<'_>, ids: &[i64], at: i64| -> Result<usize> {
        match by {
            By::Row => Ok(ids
                .iter()
                .map(|id| statement.execute((id, at)))
                .sum::<Result<_, _>>()?),
            By::Set => Ok(statement.execute((serde_json::to_string(ids)?, at))?),
        }
    };
    let begun = Instant::now();
    let now = 1_800_000_000_000_i64;
    let mut claimed: Vec<i64> = Vec::new();
    let mut messages: Vec<[Option<String>; 5]> = Vec::new();
    let mut count = 0;
    loop {
        conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        count += change(&mut settle, &claimed, now)?;
        claimed = fresh
            .query_map((CHANNEL, now, batch as i64), |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        messages.clear();
        for id in &claimed {
            messages.push(read.query_row([id], |row| {
                Ok([
                    row.get(0)?,
                    row.get(1)?,
                    row.get(2)?,
                    row.get(3)?,
                    row.get(4)?,
                ])
            })?);
        }
        change(&mut take, &claimed, now + 30_000)?;
        conn.prepare_cached("COMMIT")?.execute([])?;
        if claimed.is_empty() {
            return Ok(rate(count, begun.elapsed()));
        }
    }
}
