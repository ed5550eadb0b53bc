//! Counting, channel by channel, from the partial indexes.

use rusqlite::{Connection, OptionalExtension, params};

use crate::circuit::OnDead;
use crate::error::Result;
use crate::stats::{ChannelState, ChannelStats, Counts, Stats};
use crate::store::read::{Name, channels, number, text};

/// Settled messages that one statement counts.
const SLICE: i64 = 50_000;

pub(crate) const UNSENT: &str = "
    SELECT p.n AS pending, w.n AS waiting, s.n AS sending, p.first AS pending_first,
           w.first AS waiting_first, s.first AS sending_first
      FROM (SELECT count(*) AS n, min(id) AS first FROM outbox INDEXED BY outbox_due
             WHERE channel = ?1 AND status = 'pending') AS p,
           (SELECT count(*) AS n, min(id) AS first FROM outbox INDEXED BY outbox_lane
             WHERE channel = ?1 AND ordering_key IS NOT NULL AND status = 'waiting') AS w,
           (SELECT count(*) AS n, min(id) AS first FROM outbox INDEXED BY outbox_due
             WHERE channel = ?1 AND status = 'sending') AS s";

/// Back-off doubles, so the most attempts are among those that wait longest.
pub(crate) const MOST_ATTEMPTS: &str = "
    SELECT max(attempts) AS most FROM (
      SELECT * FROM (SELECT attempts FROM outbox INDEXED BY outbox_due
                      WHERE channel = ?1 AND status = 'pending' AND next_attempt_at > 0
                      ORDER BY next_attempt_at DESC LIMIT 10000)
      UNION ALL
      SELECT * FROM (SELECT attempts FROM outbox INDEXED BY outbox_due
                      WHERE channel = ?1 AND status = 'sending' LIMIT 10000))";

pub(crate) const STATE: &str = "
    SELECT state, since, until, reason_code, reason, paused_at, paused_by, pause_reason, clock_skew, on_dead
      FROM outbox_channel WHERE channel = ?1";

/// The whole file.
pub(crate) fn stats(conn: &Connection, now: i64) -> Result<Stats> {
    let mut stats = Stats {
        now,
        ..Stats::default()
    };
    for name in channels(conn)? {
        let channel = channel(conn, &name)?;
        stats.total.add(&channel.counts);
        stats.channels.push(channel);
    }
    let sql = "SELECT count(*) FROM outbox_conflict";
    let conflicts: i64 = conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
    stats.conflicts = conflicts.unsigned_abs();
    Ok(stats)
}

fn channel(conn: &Connection, name: &Name) -> Result<ChannelStats> {
    let mut stats = state(conn, name)?;
    stats.channel = name.show();
    stats.counts = counts(conn, name)?;
    Ok(stats)
}

fn counts(conn: &Connection, name: &Name) -> Result<Counts> {
    let (mut counts, first) = conn.prepare_cached(UNSENT)?.query_row([name], |row| {
        let count =
            |column| Ok::<_, rusqlite::Error>(number(row, column)?.map_or(0, i64::unsigned_abs));
        let first = [
            number(row, "pending_first")?,
            number(row, "waiting_first")?,
            number(row, "sending_first")?,
        ];
        let counts = Counts {
            pending: count("pending")?,
            waiting: count("waiting")?,
            sending: count("sending")?,
            ..Counts::default()
        };
        Ok((counts, first.into_iter().flatten().min()))
    })?;
    if let Some(id) = first {
        counts.oldest_unsent_at = conn
            .prepare_cached("SELECT created_at FROM outbox WHERE id = ?1")?
            .query_row([id], |row| number(row, "created_at"))
            .optional()?
            .flatten();
        let most = conn
            .prepare_cached(MOST_ATTEMPTS)?
            .query_row([name], |row| number(row, "most"))?;
        counts.max_attempts = u32::try_from(most.unwrap_or(0).max(0)).unwrap_or(u32::MAX);
    }
    let dead = "SELECT count(*) FROM outbox INDEXED BY outbox_dead_rows
                 WHERE channel = ?1 AND status = 'dead'";
    let dead: i64 = conn
        .prepare_cached(dead)?
        .query_row([name], |row| row.get(0))?;
    counts.dead = dead.unsigned_abs();
    counts.sent = settled(conn, name, "sent")?;
    counts.expired = settled(conn, name, "expired")?;
    counts.cancelled = settled(conn, name, "cancelled")?;
    Ok(counts)
}

/// A history of years is counted in steps along the moment of settling: without a write-ahead log
/// a long read would keep the application from committing.
fn settled(conn: &Connection, name: &Name, status: &'static str) -> Result<u64> {
    // The first condition is what makes the index usable: the status itself is not in the text.
    macro_rules! sql {
        ($what:literal, $rest:literal) => {
            concat!(
                "SELECT ",
                $what,
                " FROM outbox INDEXED BY outbox_settled
                  WHERE (status = 'sent' OR status = 'expired' OR status = 'cancelled')
                    AND channel = ?1 AND status = ?2 AND ",
                $rest
            )
        };
    }
    let edge = sql!(
        "settled_at",
        "settled_at > ?3 ORDER BY settled_at LIMIT 1 OFFSET ?4"
    );
    let mut edge = conn.prepare_cached(edge)?;
    let mut step = conn.prepare_cached(sql!("count(*)", "settled_at > ?3 AND settled_at <= ?4"))?;
    let mut rest = conn.prepare_cached(sql!("count(*)", "settled_at IS NULL"))?;
    let mut total: i64 = rest.query_row(params![name, status], |row| row.get(0))?;
    let mut from = i64::MIN;
    loop {
        let to = edge.query_row(params![name, status, from, SLICE], |row| row.get(0));
        let to: Option<i64> = to.optional()?;
        let last = to.unwrap_or(i64::MAX);
        total += step.query_row(params![name, status, from, last], |row| {
            row.get::<_, i64>(0)
        })?;
        match to {
            Some(to) => from = to,
            None => return Ok(total.unsigned_abs()),
        }
    }
}

/// What every process agrees on. A person's pause shows before any other state.
fn state(conn: &Connection, name: &Name) -> Result<ChannelStats> {
    let stored = conn.prepare_cached(STATE)?.query_row([name], |row| {
        let stored = ChannelStats {
            state: ChannelState::parse(&text(row, "state")?.unwrap_or_default()),
            since: number(row, "since")?,
            until: number(row, "until")?,
            reason_code: text(row, "reason_code")?,
            reason: text(row, "reason")?,
            clock_skew: number(row, "clock_skew")?,
            on_dead: match text(row, "on_dead")?.as_deref() {
                Some("skip") => OnDead::Skip,
                _ => OnDead::Hold,
            },
            ..ChannelStats::default()
        };
        Ok(match number(row, "paused_at")? {
            None => stored,
            paused_at => ChannelStats {
                state: ChannelState::Paused,
                since: paused_at,
                until: None,
                reason_code: Some("paused".into()),
                reason: text(row, "pause_reason")?,
                paused_by: text(row, "paused_by")?,
                ..stored
            },
        })
    });
    Ok(stored.optional()?.unwrap_or_default())
}
