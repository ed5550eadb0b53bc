//! What time and foreign hands do to rows, mended in small steps: expiry, due times, lanes.

use rusqlite::{Connection, OptionalExtension};

use crate::retry::GIVE_BACK_MAX;
use crate::store::{Raw, moment, rows};

/// Unsent messages whose time has passed. Index `outbox_expiry`.
pub(crate) const EXPIRED: &str = "
SELECT id FROM outbox
 WHERE expires_at <= ?1 AND (status = 'pending' OR status = 'waiting')
 ORDER BY expires_at LIMIT ?2";

/// Index `outbox_expiry`.
pub(crate) const NEXT_EXPIRY: &str = "
SELECT min(expires_at) FROM outbox
 WHERE expires_at IS NOT NULL AND (status = 'pending' OR status = 'waiting')";

pub(crate) const EXPIRE: &str = "
UPDATE outbox SET status = 'expired', settled_at = ?2
 WHERE id = ?1 AND (status = 'pending' OR status = 'waiting')";

/// Enqueued, with an end, by a clock that stood before any honest time. Index `outbox_expiry`.
pub(crate) const DATED_BEFORE: &str = "
SELECT id FROM outbox
 WHERE expires_at < ?1 AND created_at < ?1 AND (status = 'pending' OR status = 'waiting')
 LIMIT ?2";

pub(crate) const REBASE: &str = "
UPDATE outbox SET expires_at = ?2 + max(expires_at - max(created_at, 0), 0) WHERE id = ?1";

/// What is due later, soonest first. Index `outbox_due`.
pub(crate) const DUE_LATER: &str = "
SELECT id, next_attempt_at, coalesce(available_at, 0) AS available_at FROM outbox
 WHERE channel = ?1 AND status = 'pending' AND (next_attempt_at, id) > (?2, ?3) AND next_attempt_at <= ?4
 ORDER BY next_attempt_at, id LIMIT ?5";

/// Whether a message's delay is more than a place further back: its last attempt was charged, or it is
/// longer than that ever is. Index `outbox_attempt_message`.
pub(crate) const EARNED: &str = "
SELECT (SELECT charged > 0 FROM outbox_attempt WHERE message = ?1 ORDER BY id DESC LIMIT 1) IS 1
    OR next_attempt_at - last_attempt_at > ?2
  FROM outbox WHERE id = ?1";

const BRING_FORWARD: &str = "
UPDATE outbox SET next_attempt_at = ?2 WHERE id = ?1 AND status = 'pending'";

/// The head of a lane that failed at a moment which is still to come: it waited for its turn while the
/// clock was set right, and its back-off counts no more. Index `outbox_lane`.
macro_rules! belated {
    () => {
        "channel = ?1 AND ordering_key = ?2 AND status = 'pending'
     AND +next_attempt_at > ?3 AND last_attempt_at > ?3 AND coalesce(available_at, 0) <= ?3"
    };
}

pub(crate) const BELATED: &str = concat!(
    "SELECT EXISTS (SELECT 1 FROM outbox WHERE ",
    belated!(),
    ")"
);

const FORGIVE: &str = concat!("UPDATE outbox SET next_attempt_at = ?3 WHERE ", belated!());

/// The newest moment this file knows of: by rowid, and by index `outbox_settled`, loosely.
pub(crate) const NEWEST_ENQUEUE: &str =
    "SELECT created_at FROM outbox NOT INDEXED ORDER BY id DESC LIMIT 1";

/// By rowid.
pub(crate) const NEWEST_FAILURE: &str =
    "SELECT at FROM outbox_attempt NOT INDEXED ORDER BY rowid DESC LIMIT 1";

/// Lanes by name, loosely. Index `outbox_lane`.
pub(crate) const NEXT_LANE: &str = "
SELECT min(ordering_key) FROM outbox
 WHERE channel = ?1 AND ordering_key > ?2
   AND (status = 'pending' OR status = 'waiting' OR status = 'sending' OR status = 'dead')";

/// Whether a lane has members that wait for nobody. Index `outbox_lane`.
pub(crate) const HEADLESS: &str = "
SELECT EXISTS (SELECT 1 FROM outbox WHERE channel = ?1 AND ordering_key = ?2 AND status = 'waiting')
   AND NOT EXISTS (SELECT 1 FROM outbox
                    WHERE channel = ?1 AND ordering_key = ?2 AND status = 'pending')
   AND NOT EXISTS (SELECT 1 FROM outbox
                    WHERE channel = ?1 AND ordering_key = ?2 AND status = 'sending')
   AND (coalesce((SELECT on_dead FROM outbox_channel WHERE channel = ?1), 'hold') = 'skip'
     OR coalesce((SELECT min(id) FROM outbox
                   WHERE channel = ?1 AND ordering_key = ?2 AND status = 'dead'), 9223372036854775807)
      > (SELECT min(id) FROM outbox
          WHERE channel = ?1 AND ordering_key = ?2 AND status = 'waiting'))";

/// Channels with members of lanes that have not settled. Index `outbox_lane`.
pub(crate) const NEXT_LANE_CHANNEL: &str = "
SELECT min(channel) FROM outbox
 WHERE channel > ?1 AND ordering_key IS NOT NULL
   AND (status = 'pending' OR status = 'waiting' OR status = 'sending' OR status = 'dead')";

/// The schema's own procedure decides who of a lane is `pending`.
pub(crate) const NORMALISE: &str =
    "INSERT INTO outbox_lane_procedure (channel, ordering_key) VALUES (?1, ?2)";

/// Gives messages that were enqueued while the clock stood before `honest` the span they were
/// meant to live for, from now on. Index `outbox_expiry`.
pub(crate) fn rebase(
    conn: &Connection,
    now: i64,
    honest: i64,
    limit: usize,
) -> rusqlite::Result<usize> {
    let dated: Vec<i64> = conn
        .prepare_cached(DATED_BEFORE)?
        .query_map((honest, rows(limit)), |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let mut rebase = conn.prepare_cached(REBASE)?;
    for id in &dated {
        rebase.execute((id, now))?;
    }
    Ok(dated.len())
}

/// Unsent messages whose time has passed, at most `limit`.
pub(crate) fn overdue(conn: &Connection, now: i64, limit: usize) -> rusqlite::Result<Vec<i64>> {
    conn.prepare_cached(EXPIRED)?
        .query_map((now, rows(limit)), |row| row.get(0))?
        .collect()
}

/// Marks one of them. False when it was claimed or settled already.
pub(crate) fn expire(conn: &Connection, id: i64, now: i64) -> rusqlite::Result<bool> {
    Ok(conn.prepare_cached(EXPIRE)?.execute((id, now))? > 0)
}

pub(crate) fn next_expiry(conn: &Connection) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached(NEXT_EXPIRY)?
        .query_row([], |row| moment(row, 0))
}

/// A place in the order of what is due: the moment, and the id within it.
pub(crate) type Place = (i64, i64);

/// Makes messages due that stand behind `after`, up to `until`; schedules are kept, and a back-off that was
/// `earned` where that is not asked for. Looks at
/// `limit` of them and returns how many there were and where to go on, or `None` when there are no
/// more.
pub(crate) fn bring_forward(
    conn: &Connection,
    channel: &str,
    now: i64,
    (after, until): (Place, i64),
    earned: bool,
    limit: usize,
) -> rusqlite::Result<(usize, Option<Place>)> {
    let mut statement = conn.prepare_cached(DUE_LATER)?;
    let found = statement
        .query_map((channel, after.0, after.1, until, rows(limit)), |row| {
            let place = (row.get("next_attempt_at")?, row.get("id")?);
            Ok((place, moment(row, "available_at")?.unwrap_or_default()))
        })?
        .collect::<rusqlite::Result<Vec<(Place, i64)>>>()?;
    let mut is_earned = conn.prepare_cached(EARNED)?;
    let mut is_earned =
        |id: i64| is_earned.query_row([id, GIVE_BACK_MAX], |row| row.get::<_, Option<bool>>(0));
    for ((_, id), available) in &found {
        if *available <= now && (earned || is_earned(*id)? != Some(true)) {
            conn.prepare_cached(BRING_FORWARD)?.execute((id, now))?;
        }
    }
    let last = found.last().filter(|_| found.len() == limit);
    Ok((found.len(), last.map(|(place, _)| *place)))
}

/// When a message was last enqueued or failed: a clock far before that is wrong.
pub(crate) fn newest_stamp(conn: &Connection) -> rusqlite::Result<Option<i64>> {
    let failed = conn
        .prepare_cached(NEWEST_FAILURE)?
        .query_row([], |row| Ok(row.get_ref("at")?.as_i64().ok()))
        .optional()?;
    Ok(newest_enqueue(conn)?.max(failed.flatten()))
}

/// When the newest message was enqueued.
pub(crate) fn newest_enqueue(conn: &Connection) -> rusqlite::Result<Option<i64>> {
    let newest = conn
        .prepare_cached(NEWEST_ENQUEUE)?
        .query_row([], |row| Ok(row.get_ref("created_at")?.as_i64().ok()))
        .optional()?;
    // One that is no moment tells nothing.
    Ok(newest.flatten())
}

/// A place in the walk over all lanes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LaneCursor {
    channel: Raw,
    key: Raw,
}

/// A channel and an ordering key.
pub(crate) type Lane = (Raw, Raw);

/// Looks at up to `limit` lanes after the cursor and returns those without a head, which a
/// foreign hand left behind (`INSERT OR REPLACE` fires no delete trigger). Reads only. The cursor
/// is `None` when the walk is over.
pub(crate) fn headless_lanes(
    conn: &Connection,
    mut cursor: LaneCursor,
    now: i64,
    limit: usize,
) -> rusqlite::Result<(Vec<Lane>, Option<LaneCursor>)> {
    let mut found = Vec::new();
    for _ in 0..limit {
        let next: Option<Raw> = conn
            .prepare_cached(NEXT_LANE)?
            .query_row((&cursor.channel, &cursor.key), |row| row.get(0))?;
        match next {
            Some(key) if cursor.key.leads_to(&key) => cursor.key = key,
            _ => {
                let channel: Option<Raw> = conn
                    .prepare_cached(NEXT_LANE_CHANNEL)?
                    .query_row([&cursor.channel], |row| row.get(0))?;
                match channel {
                    Some(channel) if cursor.channel.leads_to(&channel) => {
                        cursor = LaneCursor {
                            channel,
                            key: Raw::default(),
                        };
                    }
                    _ => return Ok((found, None)),
                }
                continue;
            }
        }
        let LaneCursor { channel, key } = &cursor;
        let mut headless = conn.prepare_cached(HEADLESS)?;
        let mut belated = conn.prepare_cached(BELATED)?;
        if headless.query_row((channel, key), |row| row.get(0))?
            || belated.query_row((channel, key, now), |row| row.get(0))?
        {
            found.push((cursor.channel.clone(), cursor.key.clone()));
        }
    }
    Ok((found, Some(cursor)))
}

/// Gives a lane its head again, due by the right clock.
pub(crate) fn normalise(
    conn: &Connection,
    (channel, key): &Lane,
    now: i64,
) -> rusqlite::Result<()> {
    conn.prepare_cached(NORMALISE)?.execute((channel, key))?;
    conn.prepare_cached(FORGIVE)?.execute((channel, key, now))?;
    Ok(())
}
