//! What settled messages tell of mistakes that nobody was told of. Reads only, and of each channel the
//! newest.

use rusqlite::{Connection, Row, params};

use crate::error::Result;
use crate::stats::other_unit;
use crate::store::read::{Name, number, text};
use crate::store::retention::settled;

/// So many of a channel are looked at, and so many of each where there are many channels.
const NEWEST: i64 = 1_000;
const ALL: i64 = 20_000;
const FEWEST: i64 = 10;

/// How many of each channel are looked at in a file with so many channels.
pub(crate) fn depth(channels: usize) -> i64 {
    let channels = super::rows(channels).max(1);
    (ALL / channels).clamp(FEWEST, NEWEST)
}

/// Index `outbox_settled`.
pub(crate) const LATEST: &str = settled!(
    "id, expires_at, CASE WHEN ?2 = 'sent' THEN substr(answer, 1, 200) END AS start",
    "?3 > 0 ORDER BY settled_at DESC LIMIT ?3"
);

/// Expired messages whose moment looks like another unit than milliseconds, the latest first.
pub(crate) fn expired_at_once(conn: &Connection, channel: &Name, depth: i64) -> Result<Vec<i64>> {
    latest(conn, channel, "expired", depth, |row| {
        Ok(number(row, "expires_at")?.and_then(other_unit).is_some())
    })
}

/// Sent messages that a web page answered, the latest first.
pub(crate) fn answered_by_a_page(
    conn: &Connection,
    channel: &Name,
    depth: i64,
) -> Result<Vec<i64>> {
    latest(conn, channel, "sent", depth, |row| {
        Ok(text(row, "start")?.as_deref().is_some_and(is_page))
    })
}

fn latest(
    conn: &Connection,
    channel: &Name,
    status: &str,
    depth: i64,
    odd: impl Fn(&Row<'_>) -> rusqlite::Result<bool>,
) -> Result<Vec<i64>> {
    let mut found = Vec::new();
    let mut statement = conn.prepare_cached(LATEST)?;
    let mut rows = statement.query(params![channel, status, depth])?;
    while let Some(row) = rows.next()? {
        if odd(row)? {
            found.push(row.get("id")?);
        }
    }
    Ok(found)
}

/// Whether an answer that begins so is a web page, as something in between sends it.
pub(crate) fn is_page(start: &str) -> bool {
    let start = start.trim_start_matches('\u{feff}').trim_start();
    ["<!doctype html", "<html"].iter().any(|it| {
        start
            .get(..it.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(it))
    })
}
