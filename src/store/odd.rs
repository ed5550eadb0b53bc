//! What settled messages tell of mistakes that nobody was told of. Reads only, and of each channel the
//! newest.

use rusqlite::{Connection, params};

use crate::error::Result;
use crate::stats::other_unit;
use crate::store::check::Seen;
use crate::store::read::{Name, number, text};
use crate::store::retention::settled;

/// So many of a channel are looked at.
const NEWEST: i64 = 1_000;

/// Index `outbox_settled`.
pub(crate) const LATEST: &str = settled!(
    "id, expires_at, substr(answer, 1, 200) AS start",
    "?3 > 0 ORDER BY settled_at DESC LIMIT ?3"
);

/// Expired messages whose moment looks like another unit than milliseconds.
pub(crate) fn expired_at_once(conn: &Connection, channel: &Name) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut statement = conn.prepare_cached(LATEST)?;
    let mut rows = statement.query(params![channel, "expired", NEWEST])?;
    while let Some(row) = rows.next()? {
        if number(row, "expires_at")?.and_then(other_unit).is_some() {
            seen.note(number(row, "id")?);
        }
    }
    Ok(seen)
}

/// Sent messages that a web page answered.
pub(crate) fn answered_by_a_page(conn: &Connection, channel: &Name) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut statement = conn.prepare_cached(LATEST)?;
    let mut rows = statement.query(params![channel, "sent", NEWEST])?;
    while let Some(row) = rows.next()? {
        if text(row, "start")?.as_deref().is_some_and(is_page) {
            seen.note(number(row, "id")?);
        }
    }
    Ok(seen)
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
