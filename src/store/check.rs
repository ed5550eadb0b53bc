//! Looking for what should not be: in slices, so that no read lasts.

use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, Row, params};

use crate::error::{Error, Result};
use crate::store::patience::Patience;
use crate::store::read::{Name, number, text};
use crate::store::upkeep::{self, LaneCursor};

/// Rows that one statement looks at.
const SLICE: i64 = 5_000;

/// Lanes looked at in one go.
const LANES: usize = 500;

/// Damages that are told; more would say nothing new.
const MOST: usize = 10;

/// How many rows have something, and the first of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) count: u64,
    pub(crate) first: Option<i64>,
}

impl Seen {
    /// One more, if it is so.
    pub(crate) fn note(&mut self, id: i64, is_so: bool) {
        if is_so {
            self.count += 1;
            self.first = Some(self.first.map_or(id, |first| first.min(id)));
        }
    }

    fn add(&mut self, row: &Row<'_>, count: &str, first: &str) -> rusqlite::Result<()> {
        self.count += number(row, count)?.unwrap_or(0).unsigned_abs();
        self.first = match self.first {
            None => number(row, first)?,
            first => first,
        };
        Ok(())
    }
}

/// What breaks a rule in a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Odd {
    /// A status or type that the schema forbids.
    pub(crate) impossible: Seen,
    /// Settled or dead, and nobody knows since when.
    pub(crate) undated: Seen,
}

const ODD: &str = "
SELECT count(*) FILTER (WHERE impossible) AS impossible, min(id) FILTER (WHERE impossible) AS impossible_first,
       count(*) FILTER (WHERE undated) AS undated, min(id) FILTER (WHERE undated) AS undated_first
  FROM (
    SELECT id,
           typeof(channel) <> 'text' OR channel = '' OR typeof(dedupe_key) <> 'text'
             OR typeof(message_id) <> 'text' OR message_id = ''
             OR typeof(next_attempt_at) <> 'integer' OR typeof(claims) <> 'integer'
             OR typeof(attempts) <> 'integer' OR claims < 0 OR attempts < 0
             OR status IS NULL
             OR status NOT IN ('pending', 'waiting', 'sending', 'sent', 'dead', 'expired', 'cancelled')
             OR status = 'waiting' AND ordering_key IS NULL AS impossible,
           status IN ('sent', 'dead', 'expired', 'cancelled') AND settled_at IS NULL AS undated
      FROM outbox WHERE id > ?1 AND id <= ?2)";

/// Looks at every message.
pub(crate) fn odd(conn: &Connection) -> Result<Odd> {
    let mut odd = Odd::default();
    let mut statement = conn.prepare_cached(ODD)?;
    slices(
        conn,
        "SELECT min(id) FROM outbox WHERE id > ?1",
        |from, to| {
            statement.query_row([from, to], |row| {
                odd.impossible.add(row, "impossible", "impossible_first")?;
                odd.undated.add(row, "undated", "undated_first")
            })
        },
    )?;
    Ok(odd)
}

/// How many of its ordering key wait behind a message. Index `outbox_lane`.
pub(crate) fn behind(conn: &Connection, id: i64) -> Result<u64> {
    let sql = "
        SELECT count(*) FROM outbox AS o JOIN outbox AS head
            ON o.channel = head.channel AND o.ordering_key = head.ordering_key
         WHERE head.id = ?1 AND o.status = 'waiting'";
    let behind: i64 = conn
        .prepare_cached(sql)?
        .query_row([id], |row| row.get(0))?;
    Ok(behind.unsigned_abs())
}

/// Attempts of messages that are not there.
pub(crate) fn orphans(conn: &Connection) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut statement = conn.prepare_cached(
        "SELECT count(*) AS n, min(a.message) AS first FROM outbox_attempt AS a
          WHERE a.id > ?1 AND a.id <= ?2
            AND NOT EXISTS (SELECT 1 FROM outbox AS o WHERE o.id = a.message)",
    )?;
    let next = "SELECT min(id) FROM outbox_attempt WHERE id > ?1";
    slices(conn, next, |from, to| {
        statement.query_row([from, to], |row| seen.add(row, "n", "first"))
    })?;
    Ok(seen)
}

fn slices(
    conn: &Connection,
    next: &str,
    mut look: impl FnMut(i64, i64) -> rusqlite::Result<()>,
) -> Result<()> {
    let mut next = conn.prepare_cached(next)?;
    let mut from = i64::MIN;
    while let Some(first) = next.query_row([from], |row| row.get::<_, Option<i64>>(0))? {
        let to = first.saturating_add(SLICE - 1);
        look(first.saturating_sub(1), to)?;
        from = to;
        if to == i64::MAX {
            break;
        }
    }
    Ok(())
}

/// Lanes in which messages wait for nobody.
pub(crate) fn headless(conn: &Connection) -> Result<u64> {
    let mut count = 0;
    let mut cursor = Some(LaneCursor::default());
    while let Some(at) = cursor.take() {
        let (found, next) = upkeep::headless_lanes(conn, at, i64::MAX, LANES)?;
        count += found.len() as u64;
        cursor = next;
    }
    Ok(count)
}

/// Lanes of a channel in which more than one message may be sent at a time. Index `outbox_lane`.
pub(crate) fn many_headed(conn: &Connection, channel: &Name) -> Result<u64> {
    let sql = "
        SELECT count(*) FROM (
          SELECT 1 FROM outbox INDEXED BY outbox_lane
           WHERE channel = ?1 AND ordering_key IS NOT NULL
             AND (status = 'pending' OR status = 'waiting' OR status = 'sending' OR status = 'dead')
           GROUP BY ordering_key
          HAVING sum(status = 'pending') + max(status = 'sending') > 1)";
    let lanes: i64 = conn
        .prepare_cached(sql)?
        .query_row([channel], |row| row.get(0))?;
    Ok(lanes.unsigned_abs())
}

/// Whether messages of a channel have been due since `since`, or claimed by somebody who is gone since
/// then, and nobody has sent any from then on.
pub(crate) fn unattended(conn: &Connection, channel: &Name, since: i64, now: i64) -> Result<bool> {
    let sql = "
        SELECT (EXISTS (SELECT 1 FROM outbox INDEXED BY outbox_due
                         WHERE channel = ?1 AND status = 'pending' AND next_attempt_at <= ?2
                           AND created_at <= ?2)
                OR EXISTS (SELECT 1 FROM outbox INDEXED BY outbox_due
                            WHERE channel = ?1 AND status = 'sending' AND next_attempt_at <= ?2))
           AND NOT EXISTS (SELECT 1 FROM outbox INDEXED BY outbox_due
                            WHERE channel = ?1 AND status = 'sending' AND next_attempt_at > ?3)
           AND NOT EXISTS (SELECT 1 FROM outbox INDEXED BY outbox_settled
                            WHERE (status = 'sent' OR status = 'expired' OR status = 'cancelled')
                              AND channel = ?1 AND status = 'sent' AND settled_at > ?2)";
    Ok(conn
        .prepare_cached(sql)?
        .query_row(params![channel, since, now], |row| row.get(0))?)
}

/// Whether this user may write the file.
pub(crate) fn is_writable(conn: &Connection) -> Result<bool> {
    Ok(!conn.is_readonly("main")?)
}

/// Whether the write lock can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteLock {
    Free,
    /// Others held it whenever it was looked at, for two seconds.
    Held,
    /// This user may not have it: something beside the file is not to be written.
    Denied,
}

/// To look is to take it and give it back at once. The connection is good for nothing else afterwards.
pub(crate) fn write_lock(conn: &Connection) -> Result<WriteLock> {
    const LOOKS: u32 = 20;
    const BETWEEN: Duration = Duration::from_millis(100);
    conn.busy_timeout(Duration::ZERO)?;
    // For a look it is set, and no lock can be had.
    conn.execute_batch("PRAGMA query_only = 0")?;
    for _ in 0..LOOKS {
        match conn
            .execute_batch("BEGIN IMMEDIATE; ROLLBACK")
            .map_err(Error::from)
        {
            Err(Error::Busy(_)) => crate::clock::pause(BETWEEN),
            Err(Error::Sqlite(error)) if error.sqlite_error_code() == Some(ErrorCode::ReadOnly) => {
                return Ok(WriteLock::Denied);
            }
            // Where it cannot be had for another reason, that is told by what else is looked at.
            _ => return Ok(WriteLock::Free),
        }
    }
    Ok(WriteLock::Held)
}

/// Half of all ids: no till gets there by selling.
pub(crate) const FAR: i64 = 1 << 52;

/// Removes what is settled beyond that, and goes on behind what is left.
pub(crate) const TAKE_BACK_IDS: &str = "DELETE FROM outbox WHERE id >= 4503599627370496 AND status IN \
    ('sent', 'expired', 'cancelled'); UPDATE sqlite_sequence SET seq = (SELECT coalesce(max(id), 0) \
    FROM outbox) WHERE name = 'outbox'";

/// When the newest message was enqueued.
pub(crate) fn newest(conn: &Connection) -> Result<Option<i64>> {
    Ok(upkeep::newest_enqueue(conn)?)
}

/// SQLite's own words, which may come in several lines.
pub(super) fn on_one_line(said: &str) -> String {
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What SQLite finds damaged.
#[derive(Debug, Default)]
pub(crate) struct Damages {
    /// Its own words, a few.
    pub(crate) said: Vec<String>,
    /// Tables that were not looked at to the end, as somebody waited.
    pub(crate) left: Vec<String>,
}

/// Looks table by table: each is a read of its own.
pub(crate) fn damages(conn: &Connection, patience: Option<&Patience>) -> Result<Damages> {
    let mut tables = conn.prepare(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0
         UNION ALL SELECT 'sqlite_master'",
    )?;
    let tables = tables
        .query_map([], |row| text(row, "name"))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let mut found = Damages::default();
    for table in tables.into_iter().flatten() {
        let mut look = || look_at(conn, &table, &mut found.said);
        let looked = match patience {
            Some(patience) => patience.read(conn, look)?,
            None => Some(look()?),
        };
        if looked.is_none() {
            found.left.push(table);
        }
    }
    Ok(found)
}

fn look_at(conn: &Connection, table: &str, found: &mut Vec<String>) -> Result<()> {
    let mut statement = conn.prepare_cached("SELECT quick_check FROM pragma_quick_check(?1)")?;
    let mut tell = |said: &str| {
        let said = on_one_line(said);
        if said != "ok" && found.len() < MOST {
            found.push(format!("{table}: {said}"));
        }
    };
    let mut rows = statement.query([table])?;
    loop {
        match rows.next() {
            Ok(None) => return Ok(()),
            Ok(Some(row)) => {
                if let ValueRef::Text(said) = row.get_ref(0)? {
                    tell(&String::from_utf8_lossy(said));
                }
            }
            // Some damages it does not tell, but stops at them.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt) => {
                tell(&error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
}
