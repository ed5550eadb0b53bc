//! Counting from the partial indexes, all channels by a few statements.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::circuit::{Channel, OnDead};
use crate::condition::Lost;
use crate::entry::Status;
use crate::error::{Error, Result};
use crate::retry;
use crate::stats::{ChannelState, ChannelStats, Stats};
use crate::store::read::{Name, number, text, walk};
use crate::store::salvage::{self, Walk};

/// Settled messages that one statement counts.
const SLICE: i64 = 50_000;

/// A count of each channel and status, with the lowest id and when that was enqueued: a walk along an
/// index, from the channel after one.
macro_rules! groups {
    ($index:literal, $which:literal) => {
        concat!(
            "SELECT g.channel, g.status, g.n, g.first, g.last, g.latest,
                    (SELECT o.created_at FROM outbox AS o WHERE o.id = g.first) AS created
               FROM (SELECT channel, status, count(*) AS n, min(id) AS first, max(id) AS last,
                            max(next_attempt_at) AS latest
                       FROM outbox INDEXED BY ",
            $index,
            " WHERE channel > ?1 AND ",
            $which,
            " GROUP BY channel, status) AS g"
        )
    };
}

/// Index `outbox_due`.
pub(crate) const DUE: &str = groups!("outbox_due", "(status = 'pending' OR status = 'sending')");

/// Index `outbox_lane`.
pub(crate) const WAITING: &str = "
    SELECT g.channel, 'waiting' AS status, g.n, g.first, g.last, 0 AS latest,
           (SELECT o.created_at FROM outbox AS o WHERE o.id = g.first) AS created
      FROM (SELECT channel, count(*) AS n, min(id) AS first, max(id) AS last
              FROM outbox INDEXED BY outbox_lane
             WHERE channel > ?1 AND ordering_key IS NOT NULL AND status = 'waiting'
             GROUP BY channel) AS g";

/// Index `outbox_dead_rows`.
pub(crate) const DEAD: &str = "
    SELECT channel, 'dead' AS status, count(*) AS n, min(id) AS first, max(id) AS last,
           0 AS latest, NULL AS created
      FROM outbox INDEXED BY outbox_dead_rows
     WHERE channel > ?1 AND status = 'dead' GROUP BY channel";

/// Which channels have something settled, a step each.
pub(crate) const SETTLED: &str = concat!(
    walk!(),
    "
    SELECT channel,
           EXISTS (SELECT 1 FROM outbox AS o INDEXED BY outbox_settled
                    WHERE o.channel = used.channel AND o.status = 'sent') AS sent,
           EXISTS (SELECT 1 FROM outbox AS o INDEXED BY outbox_settled
                    WHERE o.channel = used.channel AND o.status = 'expired') AS expired,
           EXISTS (SELECT 1 FROM outbox AS o INDEXED BY outbox_settled
                    WHERE o.channel = used.channel AND o.status = 'cancelled') AS cancelled
      FROM used WHERE channel IS NOT NULL"
);

/// Back-off doubles, so the most attempts are among those that wait longest.
pub(crate) const MOST_ATTEMPTS: &str = "
    SELECT max(attempts) AS most FROM (
      SELECT * FROM (SELECT attempts FROM outbox INDEXED BY outbox_due
                      WHERE channel = ?1 AND status = 'pending' AND next_attempt_at > 0
                      ORDER BY next_attempt_at DESC LIMIT 10000)
      UNION ALL
      SELECT * FROM (SELECT attempts FROM outbox INDEXED BY outbox_due
                      WHERE channel = ?1 AND status = 'sending' LIMIT 10000))";

/// Which message of each channel may be tried first. Index `outbox_due`, a few steps for each.
pub(crate) const NEXT_DUE: &str = "
WITH RECURSIVE used (channel) AS (
  SELECT min(channel) FROM outbox INDEXED BY outbox_due WHERE status = 'pending' OR status = 'sending'
  UNION ALL
  SELECT (SELECT min(o.channel) FROM outbox AS o INDEXED BY outbox_due
           WHERE (o.status = 'pending' OR o.status = 'sending') AND o.channel > used.channel)
    FROM used WHERE used.channel IS NOT NULL)
SELECT o.channel, o.id, o.next_attempt_at AS at, o.available_at
  FROM used CROSS JOIN outbox AS o
 WHERE o.id = (SELECT p.id FROM outbox AS p INDEXED BY outbox_due
                WHERE p.channel = used.channel AND p.status = 'pending'
                ORDER BY p.next_attempt_at, p.id LIMIT 1)";

pub(crate) const STATES: &str = "
    SELECT channel, state, since, until, reason_code, reason, paused_at, paused_by, pause_reason,
           clock_skew, on_dead
      FROM outbox_channel";

/// Messages of one channel with one status.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) channel: Name,
    pub(crate) count: u64,
    /// The lowest id and the highest, and when the lowest was enqueued.
    pub(crate) first: i64,
    pub(crate) last: i64,
    created: Option<i64>,
    /// The last due time; 0 where there is none.
    pub(crate) latest: i64,
    status: String,
}

impl Group {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let value = |column| Ok::<_, rusqlite::Error>(number(row, column)?.unwrap_or_default());
        Ok(Self {
            channel: Name::read(row, "channel")?,
            count: value("n")?.unsigned_abs(),
            first: value("first")?,
            last: value("last")?,
            created: number(row, "created")?,
            latest: value("latest")?,
            status: text(row, "status")?.unwrap_or_default(),
        })
    }

    pub(crate) fn is(&self, status: &str) -> bool {
        self.status == status
    }
}

/// All groups that a statement finds. So that no read lasts, it begins anew after each [`SLICE`].
pub(crate) fn groups(conn: &Connection, sql: &str) -> Result<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    let mut statement = conn.prepare_cached(sql)?;
    let mut more = true;
    while std::mem::take(&mut more) {
        let after = groups.last().map_or(Name::new(""), |it| it.channel.clone());
        let mut rows = statement.query([&after])?;
        let mut seen = 0;
        while let Some(row) = rows.next()? {
            let group = Group::read(row)?;
            if seen > SLICE && groups.last().is_some_and(|it| it.channel != group.channel) {
                more = true;
                break;
            }
            seen = seen.saturating_add_unsigned(group.count);
            groups.push(group);
        }
    }
    Ok(groups)
}

/// The whole file.
pub(crate) fn stats(conn: &Connection, now: i64) -> Result<Stats> {
    let mut channels = states(conn, now)?;
    for sql in [DUE, WAITING, DEAD] {
        for group in groups(conn, sql)? {
            add(
                conn,
                channels.entry(group.channel.clone()).or_default(),
                &group,
            )?;
        }
    }
    for (name, has) in settled_channels(conn)? {
        let counts = &mut channels.entry(name.clone()).or_default().stats.counts;
        for (status, has) in has {
            match status {
                _ if !has => {}
                "sent" => counts.sent = settled(conn, &name, status)?,
                "expired" => counts.expired = settled(conn, &name, status)?,
                _ => counts.cancelled = settled(conn, &name, status)?,
            }
        }
    }
    next_due(conn, &mut channels, now)?;
    Ok(together(channels, conflicts(conn)?, now))
}

/// What can be counted of a damaged file, row by row, and what cannot.
pub(crate) fn salvaged(conn: &Connection, now: i64) -> Result<(Stats, Vec<Lost>)> {
    let mut missing = Vec::new();
    let mut channels = match states(conn, now) {
        Err(Error::Damaged(_)) => {
            missing.push(Lost::States);
            BTreeMap::new()
        }
        states => states?,
    };
    let unread = !missing.is_empty();
    let mut lost = Walk {
        conn,
        what: "id, channel, status, attempts, created_at",
        parameters: &[],
        ids: salvage::all(conn)?,
        turned: false,
    }
    .each(|row| {
        let known = channels.entry(Name::read(row, "channel")?);
        let known = known.or_insert_with(|| unseen(unread));
        let counts = &mut known.stats.counts;
        let status = text(row, "status")?.and_then(|it| Status::parse(&it));
        let Some(number_of) = status.and_then(|it| counts.of(it)) else {
            return Ok(true);
        };
        *number_of += 1;
        if status.is_some_and(Status::is_unsent) {
            let attempts = number(row, "attempts")?.unwrap_or(0).max(0);
            let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
            counts.max_attempts = counts.max_attempts.max(attempts);
            if counts.oldest_unsent_at.is_none() {
                counts.oldest_unsent_at = number(row, "created_at")?;
            }
        }
        Ok(true)
    })?;
    let conflicts = match conflicts(conn) {
        Err(Error::Damaged(_)) => {
            missing.push(Lost::Conflicts);
            0
        }
        conflicts => conflicts?,
    };
    lost.append(&mut missing);
    Ok((together(channels, conflicts, now), lost))
}

/// A channel without a row of its own, or one whose row cannot be read.
fn unseen(unread: bool) -> Known {
    let mut known = Known::default();
    if unread {
        known.stats.state = ChannelState::Unknown;
        known.stats.reason = Some("how it stands cannot be read".into());
    }
    known
}

fn conflicts(conn: &Connection) -> Result<u64> {
    let sql = "SELECT count(*) FROM outbox_conflict";
    let conflicts: i64 = conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
    Ok(conflicts.unsigned_abs())
}

fn together(channels: BTreeMap<Name, Known>, conflicts: u64, now: i64) -> Stats {
    let mut stats = Stats {
        conflicts,
        now,
        ..Stats::default()
    };
    for (
        name,
        Known {
            stats: mut channel, ..
        },
    ) in channels
    {
        channel.channel = name.show();
        stats.total.add(&channel.counts);
        stats.channels.push(channel);
    }
    stats
}

fn next_due(conn: &Connection, channels: &mut BTreeMap<Name, Known>, now: i64) -> Result<()> {
    let mut statement = conn.prepare_cached(NEXT_DUE)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if let Some(known) = channels.get_mut(&Name::read(row, "channel")?) {
            let at = number(row, "at")?.zip(Some(number(row, "available_at")?));
            let at = at.map(|(at, available)| retry::due_at(at, available, now));
            known.stats.next_due = number(row, "id")?.zip(at);
        }
    }
    Ok(())
}

/// A channel while it is counted.
#[derive(Debug, Default)]
struct Known {
    stats: ChannelStats,
    /// Its lowest unsent message.
    first: Option<i64>,
}

fn add(conn: &Connection, known: &mut Known, group: &Group) -> Result<()> {
    let counts = &mut known.stats.counts;
    if group.is("dead") {
        counts.dead = group.count;
        return Ok(());
    }
    match &*group.status {
        "pending" => counts.pending = group.count,
        "waiting" => counts.waiting = group.count,
        _ => counts.sending = group.count,
    }
    if known.first.is_none_or(|first| group.first < first) {
        known.first = Some(group.first);
        counts.oldest_unsent_at = group.created;
    }
    // What was never tried has no attempts.
    if group.latest > 0 || group.is("sending") {
        let most = conn
            .prepare_cached(MOST_ATTEMPTS)?
            .query_row([&group.channel], |row| number(row, "most"))?;
        counts.max_attempts = u32::try_from(most.unwrap_or(0).max(0)).unwrap_or(u32::MAX);
    }
    Ok(())
}

type Has = [(&'static str, bool); 3];

fn settled_channels(conn: &Connection) -> Result<Vec<(Name, Has)>> {
    let mut statement = conn.prepare_cached(SETTLED)?;
    let channels = statement.query_map([], |row| {
        let mut has: Has = ["sent", "expired", "cancelled"].map(|status| (status, false));
        for (status, has) in &mut has {
            *has = row.get(*status)?;
        }
        Ok((Name::read(row, "channel")?, has))
    })?;
    Ok(channels.collect::<rusqlite::Result<_>>()?)
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
    // Of most channels it is this little.
    let few = sql!("1", "?3 > 0 LIMIT ?3");
    let few: i64 = conn
        .prepare_cached(&format!("SELECT count(*) FROM ({few})"))?
        .query_row(params![name, status, SLICE], |row| row.get(0))?;
    if few < SLICE {
        return Ok(few.unsigned_abs());
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
fn states(conn: &Connection, now: i64) -> Result<BTreeMap<Name, Known>> {
    let mut statement = conn.prepare_cached(STATES)?;
    let states = statement.query_map([], |row| {
        let stats = state(row, now)?;
        let known = Known { stats, first: None };
        Ok((Name::read(row, "channel")?, known))
    })?;
    Ok(states.collect::<rusqlite::Result<_>>()?)
}

fn state(row: &Row<'_>, now: i64) -> rusqlite::Result<ChannelStats> {
    let circuit = Channel {
        state: ChannelState::parse(&text(row, "state")?.unwrap_or_default()),
        since: number(row, "since")?,
        until: number(row, "until")?,
        ..Channel::default()
    };
    let stored = ChannelStats {
        state: circuit.state,
        since: circuit.since,
        until: circuit.next_try(now),
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
}
