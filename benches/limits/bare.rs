//! What bare prepared statements do with the same table: the limits of enqueue and drain.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use sqlite_outbox::SCHEMA;
use sqlite_outbox::rusqlite::{Connection, params};

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
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000;",
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

/// Claims and settles everything in one loop on one connection, `batch` at a time: the last batch
/// is settled and the next one claimed in one transaction, as a drain does. Messages a second.
pub fn drain(path: &Path, batch: usize) -> Result<f64> {
    let conn = connection(path)?;
    let mut fresh = conn.prepare(
        "SELECT id FROM outbox
          WHERE channel = ?1 AND status = 'pending' AND next_attempt_at = 0
            AND (expires_at IS NULL OR expires_at > ?2)
          ORDER BY id LIMIT ?3",
    )?;
    let mut take = conn.prepare(
        "UPDATE outbox SET status = 'sending', claims = claims + 1, next_attempt_at = ?2
          WHERE id = ?1 AND status = 'pending'
         RETURNING claims, message_id, dedupe_key, content_type, headers, payload",
    )?;
    let mut settle = conn.prepare(
        "UPDATE outbox SET status = 'sent', settled_at = ?3, last_attempt_at = ?3, last_error = NULL
          WHERE id = ?1 AND claims = ?2 AND status = 'sending' AND settled_at IS NULL",
    )?;
    let begun = Instant::now();
    let now = 1_800_000_000_000_i64;
    let mut claimed: Vec<(i64, i64, [Option<String>; 5])> = Vec::new();
    let mut count = 0;
    loop {
        conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for (id, claims, _) in claimed.drain(..) {
            count += settle.execute((id, claims, now))?;
        }
        let ids: Vec<i64> = fresh
            .query_map((CHANNEL, now, batch as i64), |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        for id in ids {
            claimed.push(take.query_row((id, now + 30_000), |row| {
                let columns = [
                    row.get(1)?,
                    row.get(2)?,
                    row.get(3)?,
                    row.get(4)?,
                    row.get(5)?,
                ];
                Ok((id, row.get(0)?, columns))
            })?);
        }
        conn.prepare_cached("COMMIT")?.execute([])?;
        if claimed.is_empty() {
            return Ok(rate(count, begun.elapsed()));
        }
    }
}
