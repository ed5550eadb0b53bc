//! What the file says about a message that has not arrived. Reads only.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use crate::circuit::Channel;
use crate::condition::Lost;
use crate::entry::Status;
use crate::error::Result;
use crate::retry::LONGEST_WAIT;
use crate::stats::{far_ahead, is_ahead};
use crate::store::read::{Name, number, raw, text, walk};
use crate::store::retention::settled;
use crate::store::salvage::{self, Walk};
use crate::store::upkeep::Lane;
use crate::store::{channel, decode, stats};

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

/// How many pending messages of a channel are due within a range of moments, and the first of them.
pub(crate) const FIRST: &str = "
SELECT count(*) AS n, min(id) AS first FROM outbox INDEXED BY outbox_due
 WHERE channel = ?1 AND status = 'pending' AND next_attempt_at > ?2 AND next_attempt_at <= ?3";

/// The same, and the one that is due first.
pub(crate) const SOONEST: &str = "
SELECT count(*) AS n, id AS first, min(next_attempt_at) FROM outbox INDEXED BY outbox_due
 WHERE channel = ?1 AND status = 'pending' AND next_attempt_at > ?2 AND next_attempt_at <= ?3";

/// One message, as far as the reason is to be found in its own row.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) id: i64,
    pub(crate) channel: String,
    pub(crate) dedupe_key: String,
    pub(crate) status: Status,
    pub(crate) next_attempt_at: i64,
    pub(crate) attempts: i64,
    pub(crate) ordering_key: Option<String>,
    pub(crate) available_at: Option<i64>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) created_at: i64,
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
            next_attempt_at: count("next_attempt_at")?,
            attempts: count("attempts")?,
            ordering_key: text(row, "ordering_key")?,
            available_at: number(row, "available_at")?,
            expires_at: number(row, "expires_at")?,
            created_at: count("created_at")?,
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
    let Some((channel, key)) = &facts.lane else {
        return Ok(None);
    };
    Ok(conn
        .prepare_cached(BLOCKER)?
        .query_row(params![channel, key, facts.id], |row| row.get("blocker"))?)
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
type Kind = (u64, i64);

/// What each channel has that has not arrived, channel by channel.
pub(crate) fn kinds(conn: &Connection, now: i64) -> Result<Vec<Kind>> {
    let mut groups = stats::groups(conn, stats::DUE)?;
    groups.extend(stats::groups(conn, stats::WAITING)?);
    groups.extend(stats::groups(conn, stats::DEAD)?);
    // By name, and within it as they were read, but for those that are on their way.
    groups.sort_by(|a, b| (&a.channel, !a.is("sending")).cmp(&(&b.channel, !b.is("sending"))));
    let mut kinds = Vec::new();
    for group in groups {
        match &group {
            it if it.is("dead") => kinds.push((it.count, it.last)),
            // None of them waits for a moment.
            it if !it.is("pending") || it.latest <= now => kinds.push((it.count, it.first)),
            it => {
                let (wait, far) = (now.saturating_add(LONGEST_WAIT), far_ahead(now));
                let far = far.max(wait);
                for (sql, range) in [
                    (FIRST, (i64::MIN, now)),
                    (SOONEST, (now, wait)),
                    (SOONEST, (wait, far)),
                    (FIRST, (far, i64::MAX)),
                ] {
                    let kind = kind(conn, sql, &it.channel, range)?;
                    kinds.extend(kind.filter(|(count, _)| *count > 0));
                }
            }
        }
    }
    Ok(kinds)
}

/// The same of the rows that can be read, and which cannot. One that is due counts apart from those
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

fn kind(
    conn: &Connection,
    sql: &str,
    name: &Name,
    (after, until): (i64, i64),
) -> Result<Option<Kind>> {
    Ok(conn
        .prepare_cached(sql)?
        .query_row(params![name, after, until], |row| {
            let count = number(row, "n")?.unwrap_or_default().unsigned_abs();
            Ok(number(row, "first")?.map(|first| (count, first)))
        })?)
}
