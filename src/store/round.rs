//! Retention: payloads of sent messages go first, rows later, both by themselves and in rounds.
//!
//! A clock may run years ahead, by its own account for hours. So a round takes what was settled
//! within one day, the earliest that is due, and begins only when the file says that something was
//! due an hour ago as well: whatever the clock, a day of history goes in an hour, not all of it.

use std::collections::VecDeque;

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::FIRST_HONEST;
use crate::error::Result;
use crate::store::operate;
use crate::store::read::{number, walk};
use crate::store::retention::{DELETE, NEXT, ROWS, SETTLED, Shelf, each, settled};
use crate::store::rows;

const HOUR: i64 = 3600 * 1000;
const DAY: i64 = 24 * HOUR;

/// A note older than this proves nothing about the clock.
const NOTE_HOLDS: i64 = 40 * DAY;

/// What people did is remembered this often at most, whatever its age.
const MAX_AUDIT: i64 = 100_000;

/// In `outbox_meta`: when something was last removed, or first found to be due.
pub(crate) const NOTED: &str = "retention_noted_at";
/// In `outbox_meta`: what was sent until then has no payload any more.
const EMPTIED: &str = "payloads_emptied_until";

/// Settled at no moment, or at one that cannot be (before [`FIRST_HONEST`] no clock was right): it
/// counts from when it was noticed. Index `outbox_settled`.
pub(crate) const ODD: [&str; 3] = [
    settled!("id", "settled_at IS NULL AND ?3 > 0 LIMIT ?4"),
    settled!("id", "settled_at < min(?3, 1767225600000) LIMIT ?4"),
    settled!("id", "settled_at > ?3 LIMIT ?4"),
];

/// Each channel's settled messages of each status: whether there are odd ones, and the earliest moments
/// that were not seen to. Index `outbox_settled`, a few steps each.
pub(crate) const SHELVES: &str = concat!(
    walk!(),
    ",
shelf (channel, status) AS (
  SELECT used.channel, s.status
    FROM used, (SELECT 'sent' AS status UNION ALL SELECT 'expired' UNION ALL SELECT 'cancelled') AS s
   WHERE used.channel IS NOT NULL)
SELECT CAST(channel AS BLOB) AS channel, status,
       EXISTS (SELECT 1 FROM outbox AS o INDEXED BY outbox_settled
                WHERE (o.status = 'sent' OR o.status = 'expired' OR o.status = 'cancelled')
                  AND o.channel = shelf.channel AND o.status = shelf.status AND o.settled_at IS NULL)
       OR EXISTS (SELECT 1 FROM outbox AS o INDEXED BY outbox_settled
                WHERE (o.status = 'sent' OR o.status = 'expired' OR o.status = 'cancelled')
                  AND o.channel = shelf.channel AND o.status = shelf.status
                  AND o.settled_at < min(?1, 1767225600000))
       OR EXISTS (SELECT 1 FROM outbox AS o INDEXED BY outbox_settled
                WHERE (o.status = 'sent' OR o.status = 'expired' OR o.status = 'cancelled')
                  AND o.channel = shelf.channel AND o.status = shelf.status
                  AND o.settled_at > ?1) AS odd,
       (SELECT min(o.settled_at) FROM outbox AS o INDEXED BY outbox_settled
         WHERE (o.status = 'sent' OR o.status = 'expired' OR o.status = 'cancelled')
           AND o.channel = shelf.channel AND o.status = shelf.status AND o.settled_at > ?2) AS full,
       (SELECT min(o.settled_at) FROM outbox AS o INDEXED BY outbox_settled
         WHERE (o.status = 'sent' OR o.status = 'expired' OR o.status = 'cancelled')
           AND o.channel = shelf.channel AND o.status = shelf.status AND o.settled_at > ?3) AS kept
  FROM shelf"
);

pub(crate) const STAMP: &str = "
UPDATE outbox SET settled_at = ?2
 WHERE id = ?1 AND (status = 'sent' OR status = 'expired' OR status = 'cancelled')";

pub(crate) const EMPTY: &str = "
UPDATE outbox SET payload = CASE typeof(payload) WHEN 'text' THEN '' ELSE x'' END, answer = NULL
 WHERE id = ?1 AND status = 'sent' AND settled_at <= ?2";

/// An edit's former payload goes when the message's own may, or when there is no message.
const OLD_PAYLOADS: &str = "
SELECT a.id FROM outbox_audit AS a
 WHERE a.former_payload IS NOT NULL AND a.at <= ?1
   AND NOT EXISTS (SELECT 1 FROM outbox AS o
                    WHERE o.id = a.message AND o.status NOT IN ('sent', 'expired', 'cancelled'))
 LIMIT ?2";

const FORGET_PAYLOAD: &str = "
UPDATE outbox_audit SET former_payload = NULL WHERE id = ?1 AND at <= ?2";

const OLD_DEEDS: &str = "
SELECT id FROM (SELECT id, at FROM outbox_audit ORDER BY id LIMIT ?2) WHERE at <= ?1";

const FORGET_OLD: &str = "DELETE FROM outbox_audit WHERE id = ?1 AND at <= ?2";

const FIRST_DEEDS: &str = "SELECT id FROM outbox_audit WHERE id <= ?1 ORDER BY id LIMIT ?2";

const FORGET_FIRST: &str = "DELETE FROM outbox_audit WHERE id = ?1 AND id <= ?2";

/// Behind all moments that cannot be. A round goes no further back: it may have been planned before
/// somebody settled a message by a clock that was wrong again, and that one is to be stamped first.
const HONEST: (i64, i64) = (FIRST_HONEST - 1, i64::MAX);

/// Former payloads in one transaction: they may be as large as any.
const PAYLOADS: usize = 4;

/// Up to which moment something may go; `None`: it is kept for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cutoffs {
    pub(crate) now: i64,
    pub(crate) payloads: Option<i64>,
    pub(crate) rows: Option<i64>,
}

/// Up to which moment of settling everything has been seen to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Marks {
    emptied: i64,
    removed: i64,
}

impl Marks {
    /// Where an earlier process stopped.
    pub(crate) fn load(conn: &Connection) -> Result<Self> {
        Ok(Self {
            emptied: meta(conn, EMPTIED)?.unwrap_or(0),
            removed: 0,
        })
    }
}

#[derive(Debug)]
enum Job {
    /// Gives odd rows a moment.
    Stamp(Shelf),
    /// Empties what was sent after, and until.
    Empty(Shelf, i64, i64),
    Remove(Shelf, i64),
    /// Forgets the record of what people did: payloads until, entries until, the first up to an id.
    Payloads(i64),
    OldDeeds(i64),
    FirstDeeds(i64),
}

/// One round under way.
#[derive(Debug)]
pub(crate) struct Round {
    jobs: VecDeque<Job>,
    /// The last row of the present job that was looked at.
    from: Option<(i64, i64)>,
    now: i64,
    marks: Marks,
    wrote: bool,
    more: bool,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// It looked at some rows.
    Looked,
    /// It wrote.
    Wrote,
    /// Something is due, and the clock has not proved itself for long enough.
    NotYet,
    /// There is nothing left to do; whether the round wrote, and whether there is another.
    Finished { wrote: bool, more: bool },
}

impl Round {
    /// Looks for what is due. Reads only; `None`: nothing is.
    pub(crate) fn plan(conn: &Connection, cutoffs: Cutoffs, marks: Marks) -> Result<Option<Self>> {
        let mut round = Self {
            jobs: VecDeque::new(),
            from: None,
            now: cutoffs.now,
            marks,
            wrote: false,
            more: false,
        };
        let shelves = shelves(conn, cutoffs.now, marks)?;
        if cutoffs.payloads.is_some() || cutoffs.rows.is_some() {
            let odd = shelves.iter().filter(|it| it.odd);
            round
                .jobs
                .extend(odd.map(|it| Job::Stamp(it.shelf.clone())));
        }
        if let Some(cutoff) = cutoffs.payloads {
            let full = |it: &Stock| it.full.filter(|_| it.shelf.status == "sent");
            if let Some(until) = round.day(shelves.iter().filter_map(full).min(), cutoff) {
                let due = shelves
                    .iter()
                    .filter(|it| full(it).is_some_and(|it| it <= until));
                let jobs = due.map(|it| Job::Empty(it.shelf.clone(), marks.emptied, until));
                round.jobs.extend(jobs);
                round.marks.emptied = until;
            }
            if !listed(conn, OLD_PAYLOADS, cutoff, 1)?.is_empty() {
                round.jobs.push_back(Job::Payloads(cutoff));
            }
        }
        if let Some(cutoff) = cutoffs.rows
            && let Some(until) = round.day(shelves.iter().filter_map(|it| it.kept).min(), cutoff)
        {
            let due = shelves
                .iter()
                .filter(|it| it.kept.is_some_and(|it| it <= until));
            let jobs = due.map(|it| Job::Remove(it.shelf.clone(), until));
            round.jobs.extend(jobs);
            round.marks.removed = until;
        }
        round.plan_audit(conn, cutoffs.rows)?;
        Ok((!round.jobs.is_empty()).then_some(round))
    }

    /// The end of the day that begins with the first moment, if that is due.
    fn day(&mut self, first: Option<i64>, cutoff: i64) -> Option<i64> {
        let first = first.filter(|first| *first <= cutoff)?;
        let until = first.saturating_add(DAY).min(cutoff);
        self.more |= until < cutoff;
        Some(until)
    }

    fn plan_audit(&mut self, conn: &Connection, cutoff: Option<i64>) -> Result<()> {
        let edge = |sql: &str| -> Result<Option<(i64, i64)>> {
            let mut statement = conn.prepare_cached(sql)?;
            let edge = statement.query_row([], |row| Ok((row.get("id")?, row.get("at")?)));
            Ok(edge.optional()?)
        };
        let first = edge("SELECT id, at FROM outbox_audit ORDER BY id LIMIT 1")?;
        let last = edge("SELECT id, at FROM outbox_audit ORDER BY id DESC LIMIT 1")?;
        let (Some((first, at)), Some((last, _))) = (first, last) else {
            return Ok(());
        };
        if let Some(cutoff) = cutoff.filter(|cutoff| at <= *cutoff) {
            let until = at.saturating_add(DAY).min(cutoff);
            self.jobs.push_back(Job::OldDeeds(until));
        }
        if last.saturating_sub(first) >= MAX_AUDIT {
            self.jobs.push_back(Job::FirstDeeds(last - MAX_AUDIT));
        }
        Ok(())
    }

    /// The next few rows; in a transaction of its own, if there is something to write.
    pub(crate) fn step(&mut self, conn: &Connection) -> Result<Stepped> {
        let Some(job) = self.jobs.front() else {
            return self.finish(conn);
        };
        let mut last = None;
        let (sql, bound, ids) = match job {
            Job::Stamp(shelf) => (STAMP, self.now, odd(conn, shelf, self.now, ROWS)?),
            Job::Empty(shelf, after, until) => {
                let from = self.from.unwrap_or((*after, i64::MAX).max(HONEST));
                let batch = shelf.next(conn, NEXT, from, *until, true)?;
                last = batch.last;
                (EMPTY, *until, batch.ids)
            }
            Job::Remove(shelf, until) => {
                let from = self.from.unwrap_or(HONEST);
                let batch = shelf.next(conn, NEXT, from, *until, false)?;
                last = batch.last;
                (DELETE, *until, batch.ids)
            }
            Job::Payloads(until) => {
                let ids = listed(conn, OLD_PAYLOADS, *until, PAYLOADS)?;
                (FORGET_PAYLOAD, *until, ids)
            }
            Job::OldDeeds(until) => (FORGET_OLD, *until, listed(conn, OLD_DEEDS, *until, ROWS)?),
            Job::FirstDeeds(id) => (FORGET_FIRST, *id, listed(conn, FIRST_DEEDS, *id, ROWS)?),
        };
        if ids.is_empty() {
            self.go_on(last);
            return Ok(Stepped::Looked);
        }
        if !self.wrote && !confirmed(conn, self.now)? {
            return Ok(Stepped::NotYet);
        }
        let tx = operate::begin(conn)?;
        let changed = each(&tx, sql, &ids, bound)?;
        if !self.wrote {
            set_meta(&tx, NOTED, self.now)?;
        }
        tx.commit()?;
        self.wrote = true;
        // Without a place to go on from, rows that are held fast would be found again for ever.
        if last.is_some() || changed == 0 {
            self.go_on(last);
        }
        Ok(Stepped::Wrote)
    }

    /// From there within the job; with the next job, if there is no there.
    fn go_on(&mut self, last: Option<(i64, i64)>) {
        self.from = last;
        if last.is_none() {
            self.jobs.pop_front();
        }
    }

    fn finish(&self, conn: &Connection) -> Result<Stepped> {
        if self.wrote && meta(conn, EMPTIED)?.unwrap_or(0) != self.marks.emptied {
            let tx = operate::begin(conn)?;
            set_meta(&tx, EMPTIED, self.marks.emptied)?;
            tx.commit()?;
        }
        Ok(Stepped::Finished {
            wrote: self.wrote,
            more: self.more,
        })
    }

    /// Where the next round begins.
    pub(crate) fn marks(&self) -> Marks {
        self.marks
    }
}

/// What stands on a shelf.
struct Stock {
    shelf: Shelf,
    odd: bool,
    /// The earliest moment of settling that has not been emptied, and that has not been removed.
    full: Option<i64>,
    kept: Option<i64>,
}

fn shelves(conn: &Connection, now: i64, marks: Marks) -> Result<Vec<Stock>> {
    let mut statement = conn.prepare_cached(SHELVES)?;
    let tomorrow = now.saturating_add(DAY);
    let (honest, _) = HONEST;
    let seen = (marks.emptied.max(honest), marks.removed.max(honest));
    let mut rows = statement.query((tomorrow, seen.0, seen.1))?;
    let mut shelves = Vec::new();
    while let Some(row) = rows.next()? {
        let status: String = row.get("status")?;
        let Some(status) = SETTLED.into_iter().find(|it| *it == status) else {
            continue;
        };
        let stock = Stock {
            shelf: Shelf {
                channel: row.get("channel")?,
                status,
            },
            odd: row.get("odd")?,
            full: number(row, "full")?,
            kept: number(row, "kept")?,
        };
        if stock.odd || stock.full.is_some() || stock.kept.is_some() {
            shelves.push(stock);
        }
    }
    Ok(shelves)
}

/// Rows whose moment of settling is missing or cannot be.
fn odd(conn: &Connection, shelf: &Shelf, now: i64, limit: usize) -> Result<Vec<i64>> {
    let tomorrow = now.saturating_add(DAY);
    let mut ids = Vec::new();
    for sql in ODD {
        let mut statement = conn.prepare_cached(sql)?;
        let params = params![shelf.channel, shelf.status, tomorrow, rows(limit)];
        for id in statement.query_map(params, |row| row.get(0))? {
            ids.push(id?);
        }
    }
    ids.truncate(limit);
    Ok(ids)
}

fn listed(conn: &Connection, sql: &str, bound: i64, limit: usize) -> Result<Vec<i64>> {
    let mut statement = conn.prepare_cached(sql)?;
    let ids = statement.query_map((bound, rows(limit)), |row| row.get(0))?;
    Ok(ids.collect::<rusqlite::Result<Vec<_>>>()?)
}

/// Whether something was found to be due an hour ago already. If nobody has looked for long, or
/// the note is from the future, it is written anew.
fn confirmed(conn: &Connection, now: i64) -> Result<bool> {
    if let Some(noted) = meta(conn, NOTED)? {
        let age = now.saturating_sub(noted);
        if (0..=NOTE_HOLDS).contains(&age) {
            return Ok(age >= HOUR);
        }
    }
    let tx = operate::begin(conn)?;
    set_meta(&tx, NOTED, now)?;
    tx.commit()?;
    Ok(false)
}

fn meta(conn: &Connection, key: &str) -> Result<Option<i64>> {
    let sql = "SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE key = ?1";
    let value = conn
        .prepare_cached(sql)?
        .query_row([key], |row| row.get::<_, Option<i64>>(0))
        .optional()?;
    Ok(value.flatten())
}

fn set_meta(conn: &Connection, key: &str, value: i64) -> Result<()> {
    let sql = "INSERT INTO outbox_meta (key, value) VALUES (?1, ?2)
               ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    conn.prepare_cached(sql)?.execute((key, value))?;
    Ok(())
}
