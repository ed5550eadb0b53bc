//! What the file says about a message that has not arrived. Reads only.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use crate::circuit::Channel;
use crate::condition::Lost;
use crate::entry::Status;
use crate::error::Result;
use crate::stats::is_ahead;
use crate::store::Raw;
use crate::store::decode::{self, columns};
use crate::store::read::{Name, number, raw, text, walk};
use crate::store::retention::settled;
use crate::store::salvage::{self, Walk};
use crate::store::upkeep::Lane;
use crate::store::{channel, stats};

pub(crate) use crate::store::stats::Group;

const FACTS: &str = "
SELECT o.id, o.channel, o.dedupe_key, o.status, o.next_attempt_at, o.claims, o.attempts, o.ordering_key,
       o.available_at, o.expires_at, o.created_at, o.last_attempt_at, o.settled_at, o.last_error,
       (SELECT a.outcome FROM outbox_attempt AS a WHERE a.message = o.id
         ORDER BY a.id DESC LIMIT 1) AS code,
       CASE WHEN o.status = 'sent' THEN substr(o.answer, 1, 200) END AS answer
  FROM outbox AS o WHERE o.id = ?1";

/// Who of its lane holds a message: the first that stands before it, else one that is under way.
/// Index `outbox_lane`.
pub(crate) const BLOCKER: &str = "
SELECT coalesce(
  (SELECT min(id) FROM (
     SELECT min(id) AS id FROM outbox
      WHERE channel = ?1 AND ordering_key = ?2 AND status = 'pending' AND id < ?3
     UNION ALL
     SELECT min(id) FROM outbox
      WHERE channel = ?1 AND ordering_key = ?2 AND status = 'sending' AND id < ?3
     UNION ALL
     SELECT min(id) FROM outbox
      WHERE channel = ?1 AND ordering_key = ?2 AND status = 'waiting' AND id < ?3
     UNION ALL
     SELECT min(id) FROM outbox
      WHERE channel = ?1 AND ordering_key = ?2 AND status = 'dead' AND id < ?3
        AND NOT EXISTS (SELECT 1 FROM outbox_channel WHERE channel = ?1 AND on_dead = 'skip'))),
  (SELECT min(id) FROM outbox
    WHERE channel = ?1 AND ordering_key = ?2 AND status = 'sending' AND id > ?3)) AS blocker";

/// Whether the channel has another message that could be tried. Index `outbox_due`.
pub(crate) const OTHER: &str = "
SELECT EXISTS (SELECT 1 FROM outbox WHERE channel = ?1 AND status = 'pending' AND id <> ?2)
    OR EXISTS (SELECT 1 FROM outbox WHERE channel = ?1 AND status = 'sending' AND id <> ?2)";

const LAST_SETTLED: &str = settled!("max(settled_at)", "settled_at <= ?3");

/// By channel, a step each: indexes `outbox_due` and `outbox_settled`.
pub(crate) const LAST_DRAIN: &str = concat!(
    walk!(),
    "
SELECT max(max(
    CASE WHEN EXISTS (SELECT 1 FROM outbox AS o INDEXED BY outbox_due
                       WHERE o.channel = used.channel AND o.status = 'sending'
                         AND o.next_attempt_at > ?1) THEN ?1 ELSE 0 END,
    coalesce((SELECT max(o.settled_at) FROM outbox AS o INDEXED BY outbox_settled
               WHERE o.channel = used.channel AND o.status = 'sent' AND o.settled_at <= ?1), 0),
    coalesce((SELECT max(o.settled_at) FROM outbox AS o INDEXED BY outbox_settled
               WHERE o.channel = used.channel AND o.status = 'expired' AND o.settled_at <= ?1), 0)))
  FROM used WHERE used.channel IS NOT NULL"
);

/// A slice of the rows of a channel and status along an index, with all that may tell one from the
/// other: what a sender would read of them, but for the payload itself.
macro_rules! rows {
    ($index:literal, $status:literal, $after:literal, $order:literal) => {
        concat!(
            "SELECT ",
            columns!(
                "CASE typeof(payload) WHEN 'text' THEN '' WHEN 'blob' THEN x'' ELSE payload END"
            ),
            ", next_attempt_at, available_at FROM outbox INDEXED BY ",
            $index,
            " WHERE channel = (SELECT c.channel FROM outbox AS c WHERE c.id = ?1) AND ",
            $status,
            " AND ",
            $after,
            " ORDER BY ",
            $order,
            " LIMIT ?4"
        )
    };
}

/// What is due first comes first.
pub(crate) const PENDING_ROWS: &str = rows!(
    "outbox_due",
    "status = 'pending'",
    "(next_attempt_at, id) > (?2, ?3)",
    "next_attempt_at, id"
);

pub(crate) const SENDING_ROWS: &str = rows!(
    "outbox_due",
    "status = 'sending'",
    "(next_attempt_at, id) > (?2, ?3)",
    "next_attempt_at, id"
);

/// Lane by lane. The plus: else SQLite takes the status for a constant and sorts each lane.
pub(crate) const WAITING_ROWS: &str = rows!(
    "outbox_lane",
    "(status = 'pending' OR status = 'waiting' OR status = 'sending' OR status = 'dead')
     AND +status = 'waiting'",
    "ordering_key IS NOT NULL AND ?2 IS NOT NULL
     AND (ordering_key, id) > (coalesce((SELECT c.ordering_key FROM outbox AS c WHERE c.id = ?3), ''), ?3)",
    "ordering_key, status, id"
);

/// Rows that one statement reads, so that no read lasts.
const SLICE: i64 = 5_000;

/// The moments of a message, and how often it has failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) created_at: i64,
    pub(crate) available_at: Option<i64>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) next_attempt_at: i64,
    pub(crate) attempts: i64,
}

impl Times {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let count = |column| Ok::<_, rusqlite::Error>(number(row, column)?.unwrap_or_default());
        Ok(Self {
            created_at: count("created_at")?,
            available_at: number(row, "available_at")?,
            expires_at: number(row, "expires_at")?,
            next_attempt_at: count("next_attempt_at")?,
            attempts: count("attempts")?,
        })
    }

    /// Since when it has been due, once it is.
    pub(crate) fn due_since(&self) -> i64 {
        self.created_at.max(self.next_attempt_at)
    }
}

/// One message, as far as the reason is to be found in its own row.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) id: i64,
    pub(crate) channel: String,
    pub(crate) dedupe_key: String,
    pub(crate) status: Status,
    pub(crate) times: Times,
    pub(crate) ordering_key: Option<String>,
    pub(crate) last_attempt_at: Option<i64>,
    pub(crate) settled_at: Option<i64>,
    pub(crate) last_error: Option<String>,
    /// What its last failed attempt came to.
    pub(crate) code: Option<String>,
    /// How the answer begins with which it was sent.
    pub(crate) answer: Option<String>,
    /// Channel and ordering key as they are stored, whatever they are.
    lane: Option<Lane>,
}

pub(crate) fn facts(conn: &Connection, id: i64) -> Result<Option<Facts>> {
    let facts = conn.prepare_cached(FACTS)?.query_row([id], |row| {
        let count = |column| Ok::<_, rusqlite::Error>(number(row, column)?.unwrap_or_default());
        let status = text(row, "status")?.unwrap_or_default();
        Ok(Facts {
            id: count("id")?,
            channel: text(row, "channel")?.unwrap_or_default(),
            dedupe_key: text(row, "dedupe_key")?.unwrap_or_default(),
            status: Status::parse(&status).unwrap_or(Status::Unknown),
            times: Times::read(row)?,
            ordering_key: text(row, "ordering_key")?,
            last_attempt_at: number(row, "last_attempt_at")?,
            settled_at: number(row, "settled_at")?,
            last_error: text(row, "last_error")?,
            code: text(row, "code")?,
            answer: text(row, "answer")?,
            lane: raw(row, "channel")?.zip(raw(row, "ordering_key")?),
        })
    });
    Ok(facts.optional()?)
}

/// What a drain will find wrong with a message that waits, as it is stored.
pub(crate) fn unsendable(conn: &Connection, id: i64) -> Result<Option<String>> {
    Ok(decode::read(conn, id, &Arc::from(""))?.and_then(|it| it.err()))
}

/// The state that all processes share.
pub(crate) fn state(conn: &Connection, name: &str) -> Result<Channel> {
    Ok(channel::load(conn, name)?)
}

/// Who of its lane holds the message.
pub(crate) fn blocker(conn: &Connection, facts: &Facts) -> Result<Option<i64>> {
    match &facts.lane {
        Some((channel, key)) => blocks(conn, channel, key, facts.id),
        None => Ok(None),
    }
}

fn blocks(conn: &Connection, channel: &Raw, key: &Raw, id: i64) -> Result<Option<i64>> {
    Ok(conn
        .prepare_cached(BLOCKER)?
        .query_row(params![channel, key, id], |row| row.get("blocker"))?)
}

/// Whether the channel has another message that could be tried.
pub(crate) fn has_other(conn: &Connection, facts: &Facts) -> Result<bool> {
    Ok(conn
        .prepare_cached(OTHER)?
        .query_row(params![facts.channel, facts.id], |row| row.get(0))?)
}

/// When the channel last delivered something that is still remembered.
pub(crate) fn last_sent(conn: &Connection, channel: &str, now: i64) -> Result<Option<i64>> {
    Ok(conn
        .prepare_cached(LAST_SETTLED)?
        .query_row(params![channel, "sent", now], |row| row.get(0))?)
}

/// When a drain last left a trace in the file: a claim that lives, an attempt that failed, a
/// message sent or expired.
pub(crate) fn last_drain(conn: &Connection, now: i64) -> Result<Option<i64>> {
    let sql = "SELECT at FROM outbox_attempt ORDER BY id DESC LIMIT 1";
    let failed: Option<i64> = conn
        .prepare_cached(sql)?
        .query_row([], |row| number(row, "at"))
        .optional()?
        .flatten();
    let settled: Option<i64> = conn
        .prepare_cached(LAST_DRAIN)?
        .query_row([now], |row| row.get(0))?;
    let failed = failed.filter(|at| !is_ahead(*at, now));
    let last = failed.into_iter().chain(settled.filter(|it| *it > 0)).max();
    Ok(last.map(|at| at.min(now)))
}

/// How many messages of a kind there are, and one of them.
pub(crate) type Kind = (u64, i64);

/// What each channel has that has not arrived, channel by channel.
pub(crate) fn groups(conn: &Connection) -> Result<Vec<Group>> {
    let mut groups = stats::groups(conn, stats::DUE)?;
    groups.extend(stats::groups(conn, stats::WAITING)?);
    groups.extend(stats::groups(conn, stats::DEAD)?);
    // By name, and within it as they were read, but for those that are on their way.
    groups.sort_by(|a, b| (&a.channel, !a.is("sending")).cmp(&(&b.channel, !b.is("sending"))));
    Ok(groups)
}

/// Kinds of the rows that can be read, and which cannot. One that is due counts apart from those
/// that are due later.
pub(crate) fn kinds_salvaged(conn: &Connection, now: i64) -> Result<(Vec<Kind>, Vec<Lost>)> {
    let mut kinds = BTreeMap::new();
    let lost = Walk {
        conn,
        what: "id, channel, status, next_attempt_at",
        parameters: &[],
        ids: salvage::all(conn)?,
        turned: false,
    }
    .each(|row| {
        let status = text(row, "status")?.unwrap_or_default();
        let known = Status::parse(&status).unwrap_or(Status::Unknown);
        if known.is_unsent() || known == Status::Dead {
            let later = number(row, "next_attempt_at")?.is_some_and(|at| at > now);
            let kind = (Name::read(row, "channel")?, status, later);
            let (count, sample) = kinds.entry(kind).or_insert((0, 0));
            *count += 1;
            // The first of them; of the dead, the last.
            if *count == 1 || known == Status::Dead {
                *sample = row.get("id")?;
            }
        }
        Ok(true)
    })?;
    Ok((kinds.into_values().collect(), lost))
}

/// An unsent message, as far as it may be told from others of its channel.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) id: i64,
    pub(crate) status: Status,
    pub(crate) times: Times,
    /// Whether the next attempt will find something wrong with it.
    pub(crate) unsendable: bool,
    /// Whether it has an ordering key.
    pub(crate) keyed: bool,
    /// Whether another of its lane goes first.
    pub(crate) behind: bool,
}

/// Each message of a group of unsent ones, in slices.
pub(crate) fn each(
    conn: &Connection,
    group: &Group,
    mut look: impl FnMut(Row) -> Result<()>,
) -> Result<()> {
    let (sql, status) = match group {
        it if it.is("pending") => (PENDING_ROWS, Status::Pending),
        it if it.is("sending") => (SENDING_ROWS, Status::Sending),
        _ => (WAITING_ROWS, Status::Waiting),
    };
    let instance = Arc::from("");
    let mut statement = conn.prepare_cached(sql)?;
    let mut after = (i64::MIN, 0);
    let mut lane = None;
    // Of a damaged index the walk could go round for ever; what is more than that has come since.
    let mut left = group.count.saturating_add(SLICE.unsigned_abs());
    loop {
        let mut rows = statement.query(params![group.first, after.0, after.1, SLICE])?;
        let mut seen = 0;
        while let Some(row) = rows.next()? {
            let count = |column| Ok::<_, rusqlite::Error>(number(row, column)?.unwrap_or_default());
            let id = count("id")?;
            let times = Times::read(row)?;
            let key = raw(row, "ordering_key")?;
            let behind = match &key {
                None => false,
                // Who stands behind the first of those that wait waits for him at least.
                Some(_) if status == Status::Waiting && lane == key => true,
                Some(key) => match raw(row, "channel")? {
                    Some(channel) => blocks(conn, &channel, key, id)?.is_some(),
                    None => false,
                },
            };
            let keyed = key.is_some();
            lane = key;
            after = (times.next_attempt_at, id);
            seen += 1;
            left = left.saturating_sub(1);
            look(Row {
                id,
                status,
                times,
                unsendable: status == Status::Pending && decode::decode(row, &instance)?.is_err(),
                keyed,
                behind,
            })?;
        }
        if seen < SLICE || left == 0 {
            return Ok(());
        }
    }
}
