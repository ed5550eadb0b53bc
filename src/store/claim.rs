//! Choosing and marking what goes out next. All of it runs under the write lock, which is what
//! stands in for `SKIP LOCKED`. Each statement is a bounded range read of the index it names.

use std::sync::LazyLock;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, params_from_iter};

use crate::store::{Raw, Sized, moment, rows, sets};

/// Channels that have something pending or claimed, by name, a step each: the first and the last due
/// time, the first and the last lease end. Index `outbox_due`, loose.
pub(crate) const STANDINGS: &str = "
WITH RECURSIVE used (channel) AS (
  SELECT min(channel) FROM outbox
   WHERE (status = 'pending' OR status = 'sending') AND channel > ?1
  UNION ALL
  SELECT (SELECT min(o.channel) FROM outbox AS o
           WHERE (o.status = 'pending' OR o.status = 'sending') AND o.channel > used.channel)
    FROM used WHERE used.channel IS NOT NULL)
SELECT channel,
       (SELECT min(next_attempt_at) FROM outbox
         WHERE channel = used.channel AND status = 'pending') AS due,
       (SELECT max(next_attempt_at) FROM outbox
         WHERE channel = used.channel AND status = 'pending') AS last_due,
       (SELECT min(next_attempt_at) FROM outbox
         WHERE channel = used.channel AND status = 'sending') AS lease,
       (SELECT max(next_attempt_at) FROM outbox
         WHERE channel = used.channel AND status = 'sending') AS last_lease
  FROM used WHERE channel IS NOT NULL";

/// What waits or is claimed in one channel, in no order. Index `outbox_due`.
pub(crate) const ANY: &str = "
SELECT id FROM outbox
 WHERE channel = ?1 AND (status = 'pending' OR status = 'sending') LIMIT ?2";

/// The same with their channels, of all. Index `outbox_due`, alone.
pub(crate) const EACH: &str = "
SELECT id, channel FROM outbox INDEXED BY outbox_due WHERE status = 'pending' OR status = 'sending'";

/// What may be claimed of a channel now, and whether others stand behind it in its lane; with `?4` also
/// what is overdue, so that a claim need not step over it. Index `outbox_due`, and for the lane
/// `outbox_lane`.
macro_rules! candidates {
    ($due:literal, $order:literal) => {
        concat!(
            "
SELECT id, ordering_key,
       EXISTS (SELECT 1 FROM outbox AS o
                WHERE o.channel = ?1 AND o.ordering_key = outbox.ordering_key AND o.status = 'waiting'),
       expires_at <= ?2
  FROM outbox
 WHERE channel = ?1 AND status = 'pending' AND next_attempt_at ",
            $due,
            "
   AND (expires_at IS NULL OR expires_at > ?2 OR ?4)
 ORDER BY ",
            $order,
            " LIMIT ?3"
        )
    };
}

/// Never tried, oldest first.
pub(crate) const FRESH: &str = candidates!("= 0", "id");

/// Never tried, newest first: a probe's choice.
pub(crate) const NEWEST: &str = candidates!("= 0", "id DESC");

/// Failed or scheduled, and due.
pub(crate) const RETRIES: &str = candidates!("BETWEEN 1 AND ?2", "next_attempt_at, id");

/// The members behind a head, in order, up to a dead one that holds the rest. Index `outbox_lane`.
pub(crate) const FOLLOWERS: &str = "
SELECT id, next_attempt_at, available_at, expires_at FROM outbox
 WHERE channel = ?1 AND ordering_key = ?2 AND status = 'waiting' AND id > ?3
   AND id < coalesce((SELECT min(id) FROM outbox
                       WHERE channel = ?1 AND ordering_key = ?2 AND status = 'dead' AND id > ?3
                         AND NOT EXISTS (SELECT 1 FROM outbox_channel
                                          WHERE channel = ?1 AND on_dead = 'skip')),
                     9223372036854775807)
 ORDER BY id LIMIT ?4";

/// Whether the lane may go on behind a message: nothing of it is left before that one, nothing dead
/// holds it, and nobody has gone on behind it already. A run can be over in the file while its worker
/// has not returned yet. Index `outbox_lane`.
pub(crate) const GOES_ON: &str = "
SELECT NOT EXISTS (SELECT 1 FROM outbox
                    WHERE channel = ?1 AND ordering_key = ?2 AND status = 'waiting' AND id <= ?3)
   AND NOT EXISTS (SELECT 1 FROM outbox
                    WHERE channel = ?1 AND ordering_key = ?2 AND status = 'pending')
   AND NOT EXISTS (SELECT 1 FROM outbox
                    WHERE channel = ?1 AND ordering_key = ?2 AND status = 'sending' AND id > ?3)
   AND (NOT EXISTS (SELECT 1 FROM outbox
                     WHERE channel = ?1 AND ordering_key = ?2 AND status = 'dead' AND id <= ?3)
        OR EXISTS (SELECT 1 FROM outbox_channel WHERE channel = ?1 AND on_dead = 'skip'))";

/// Marks messages as claimed. The claim number only rises: with the id it is the fencing token.
/// A `settled_at` that a foreign hand left behind would pass for an earlier holder's delivery.
pub(crate) static TAKE: LazyLock<Sized> = LazyLock::new(|| Sized::new(take_sql));

fn take_sql(size: usize) -> String {
    let ids = vec!["?"; size].join(", ");
    format!(
        "
UPDATE outbox NOT INDEXED SET status = 'sending', claims = claims + 1, next_attempt_at = ?1, settled_at = NULL
 WHERE id BETWEEN ?2 AND ?3 AND id IN ({ids}) AND (status = 'pending' OR status = 'waiting')"
    )
}

/// The earliest due time of a channel; 0 for a fresh message. Index `outbox_due`.
pub(crate) const FIRST_PENDING: &str = "
SELECT min(next_attempt_at) FROM outbox WHERE channel = ?1 AND status = 'pending'";

/// Claims whose lease has ended, or lies further ahead than any lease of ours. Index `outbox_due`.
pub(crate) const STALE: &str = "
SELECT id, claims, next_attempt_at, ordering_key FROM outbox
 WHERE channel = ?1 AND status = 'sending' AND next_attempt_at <= ?2
UNION ALL
SELECT id, claims, next_attempt_at, ordering_key FROM outbox
 WHERE channel = ?1 AND status = 'sending' AND next_attempt_at > ?3
 LIMIT ?4";

/// A message that may be claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) id: i64,
    /// Of the lane that it leads, if others stand behind it there.
    pub(crate) leads: Option<String>,
    /// Its time has passed.
    pub(crate) overdue: bool,
}

/// Which range a claim reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Range {
    Fresh,
    Newest,
    Retries,
}

/// A claim of someone else that looks abandoned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stale {
    pub(crate) id: i64,
    pub(crate) claims: i64,
    pub(crate) lease: i64,
    pub(crate) ordering_key: Option<String>,
}

/// What one channel has pending and claimed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    /// The earliest due time and the latest; 0 for a fresh message.
    pub(crate) due: Option<i64>,
    pub(crate) last_due: Option<i64>,
    /// The first and the last end of a lease.
    pub(crate) leases: Option<(i64, i64)>,
}

/// Goes through the channels after `after` as long as `visit` wants more, in one read. Whether it
/// came to the end.
pub(crate) fn standings(
    conn: &Connection,
    after: &Raw,
    mut visit: impl FnMut(&Raw, Standing) -> bool,
) -> rusqlite::Result<bool> {
    let mut statement = conn.prepare_cached(STANDINGS)?;
    let mut rows = statement.query([after])?;
    let mut at = after.clone();
    while let Some(row) = rows.next()? {
        let name: Raw = row.get(0)?;
        if !at.leads_to(&name) {
            break;
        }
        at = name;
        let (lease, last_lease) = (moment(row, 3)?, moment(row, 4)?);
        let standing = Standing {
            due: moment(row, 1)?,
            last_due: moment(row, 2)?,
            leases: lease.zip(last_lease),
        };
        if !visit(&at, standing) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Messages of a channel that no route can have: whatever waits there, or was marked as claimed by
/// hand.
pub(crate) fn nameless(
    conn: &Connection,
    channel: &Raw,
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    let mut any = conn.prepare_cached(ANY)?;
    let found = any.query_map((channel, rows(limit)), |row| row.get(0))?;
    let found = found.collect::<rusqlite::Result<Vec<i64>>>()?;
    // In a file of another encoding it is read as other bytes than are stored, and those find nothing.
    let encoding: String = conn.pragma_query_value(None, "encoding", |row| row.get(0))?;
    if !found.is_empty() || encoding == "UTF-8" {
        return Ok(found);
    }
    let mut each = conn.prepare_cached(EACH)?;
    let named = each.query_map([], |row| Ok((row.get(0)?, row.get::<_, Raw>(1)?)))?;
    let same = named.filter_map(|it| match it {
        Ok((id, name)) => (name == *channel).then_some(Ok(id)),
        Err(error) => Some(Err(error)),
    });
    same.take(limit).collect()
}

/// Those of a range that are due, up to `limit`; the `overdue` ones among them if they are asked for.
pub(crate) fn candidates(
    conn: &Connection,
    range: Range,
    channel: &str,
    now: i64,
    limit: usize,
    overdue: bool,
) -> rusqlite::Result<Vec<Candidate>> {
    let statement = match range {
        Range::Fresh => FRESH,
        Range::Newest => NEWEST,
        Range::Retries => RETRIES,
    };
    conn.prepare_cached(statement)?
        .query_map((channel, now, rows(limit), overdue), |row| {
            Ok(Candidate {
                id: row.get(0)?,
                leads: match row.get(2)? {
                    true => lossy(row.get_ref(1)?),
                    false => None,
                },
                overdue: row.get::<_, Option<bool>>(3)?.unwrap_or_default(),
            })
        })?
        .collect()
}

/// The members right behind `head` that may go out with it: the first one that is not due ends
/// the run, so that nothing overtakes it.
pub(crate) fn followers(
    conn: &Connection,
    channel: &str,
    key: &str,
    head: i64,
    now: i64,
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    let mut statement = conn.prepare_cached(FOLLOWERS)?;
    let mut members = statement.query((channel, key, head, rows(limit)))?;
    let mut run = Vec::new();
    while let Some(row) = members.next()? {
        let due = moment(row, "next_attempt_at")?.unwrap_or_default();
        let available = moment(row, "available_at")?;
        let expires = moment(row, "expires_at")?;
        if due > now || available.is_some_and(|it| it > now) || expires.is_some_and(|it| it <= now)
        {
            break;
        }
        run.push(row.get("id")?);
    }
    Ok(run)
}

/// Whether followers of a lane may be claimed although what stands before them is being sent.
pub(crate) fn goes_on(
    conn: &Connection,
    channel: &str,
    key: &str,
    last: i64,
) -> rusqlite::Result<bool> {
    conn.prepare_cached(GOES_ON)?
        .query_row((channel, key, last), |row| row.get(0))
}

/// Claims messages, given in the order of their ids, until `lease`, many by one statement. Returns
/// how many were claimed.
pub(crate) fn take(conn: &Connection, ids: &[i64], lease: i64) -> rusqlite::Result<usize> {
    let mut taken = 0;
    for set in sets(ids, |id| *id) {
        let (sql, size) = TAKE.of(set.len());
        let bounds = [Some(lease), set.first().copied(), set.last().copied()];
        let padding = std::iter::repeat_n(None, size.saturating_sub(set.len()));
        let ids = set.iter().copied().map(Some).chain(padding);
        taken += conn
            .prepare_cached(sql)?
            .execute(params_from_iter(bounds.into_iter().chain(ids)))?;
    }
    Ok(taken)
}

pub(crate) fn first_pending(conn: &Connection, channel: &str) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached(FIRST_PENDING)?
        .query_row([channel], |row| moment(row, 0))
}

pub(crate) fn stale(
    conn: &Connection,
    channel: &str,
    now: i64,
    horizon: i64,
    limit: usize,
) -> rusqlite::Result<Vec<Stale>> {
    conn.prepare_cached(STALE)?
        .query_map((channel, now, horizon, rows(limit)), |row| {
            Ok(Stale {
                id: row.get("id")?,
                claims: row.get("claims")?,
                lease: moment(row, "next_attempt_at")?.unwrap_or_default(),
                ordering_key: lossy(row.get_ref("ordering_key")?),
            })
        })?
        .collect()
}

/// Text for finding a row again, however broken it is.
fn lossy(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}
