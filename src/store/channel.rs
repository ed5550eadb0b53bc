//! The rows of `outbox_channel`: read in the claiming transaction, written on change only.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, Row, named_params};

use crate::circuit::{Channel, OnDead, Pause, Turn};
use crate::stats::ChannelState;
use crate::store::{Raw, read, rows};

pub(crate) const LOAD: &str = "
SELECT channel, on_dead, state, since, until, reason_code, reason, failures, evidence, probe_turn,
       rejections, paused_at, paused_by, pause_reason, clock_skew
  FROM outbox_channel";

/// What a person decides (`on_dead`, the pause) is not the drain's to write.
pub(crate) const SAVE: &str = "
INSERT INTO outbox_channel (channel, state, since, until, reason_code, reason, failures, evidence,
                            probe_turn, rejections, clock_skew)
VALUES (:channel, :state, :since, :until, :reason_code, :reason, :failures, :evidence,
        :probe_turn, :rejections, :clock_skew)
ON CONFLICT (channel) DO UPDATE SET
  state = excluded.state, since = excluded.since, until = excluded.until,
  reason_code = excluded.reason_code, reason = excluded.reason, failures = excluded.failures,
  evidence = excluded.evidence, probe_turn = excluded.probe_turn,
  rejections = excluded.rejections, clock_skew = excluded.clock_skew";

/// Every channel that ever had a state to show.
pub(crate) fn load_all(conn: &Connection) -> rusqlite::Result<HashMap<String, Channel>> {
    conn.prepare_cached(LOAD)?.query_map([], decode)?.collect()
}

/// Reads some channels after one, by name; answers the last of them if there may be more.
pub(crate) fn load_after(
    conn: &Connection,
    after: &Raw,
    limit: usize,
    found: &mut HashMap<String, Channel>,
) -> rusqlite::Result<Option<Raw>> {
    let sql = format!("{LOAD} WHERE channel > ?1 ORDER BY channel LIMIT ?2");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query((after, rows(limit)))?;
    let mut last = after.clone();
    let mut left = limit;
    while let Some(row) = rows.next()? {
        let name: Raw = row.get("channel")?;
        if !last.leads_to(&name) {
            return Ok(None);
        }
        last = name;
        left = left.saturating_sub(1);
        found.extend([decode(row)?]);
    }
    Ok((left == 0).then_some(last))
}

/// One channel's state; the blank one when it never had any.
pub(crate) fn load(conn: &Connection, channel: &str) -> rusqlite::Result<Channel> {
    let found = conn
        .prepare_cached(&format!("{LOAD} WHERE channel = ?1"))?
        .query_row([channel], decode)
        .optional()?;
    Ok(found.map(|(_, state)| state).unwrap_or_default())
}

/// Writes what the drain found out about a channel.
pub(crate) fn save(conn: &Connection, name: &str, channel: &Channel) -> rusqlite::Result<()> {
    conn.prepare_cached(SAVE)?.execute(named_params! {
        ":channel": name,
        ":state": channel.state.as_str(),
        ":since": channel.since,
        ":until": channel.until,
        ":reason_code": channel.reason_code,
        ":reason": channel.reason,
        ":failures": channel.failures,
        ":evidence": channel.evidence,
        ":probe_turn": channel.turn == Turn::Retry,
        ":rejections": channel.rejections,
        ":clock_skew": channel.clock_skew,
    })?;
    Ok(())
}

/// Foreign hands may have written anything the constraints allow; whatever does not fit is taken
/// as not being there.
fn decode(row: &Row<'_>) -> rusqlite::Result<(String, Channel)> {
    let text = |column: &str| row.get::<_, Option<String>>(column).unwrap_or_default();
    // What a person reads is better half read than not at all.
    let words = |column: &str| read::text(row, column).unwrap_or_default();
    let number = |column: &str| row.get::<_, Option<i64>>(column).unwrap_or_default();
    let count = |column: &str| u32::try_from(number(column).unwrap_or(0)).unwrap_or(0);
    let channel = Channel {
        on_dead: match text("on_dead").as_deref() {
            Some("skip") => OnDead::Skip,
            _ => OnDead::Hold,
        },
        state: ChannelState::parse(text("state").as_deref().unwrap_or_default()),
        since: number("since"),
        until: number("until"),
        reason_code: text("reason_code"),
        reason: words("reason"),
        failures: count("failures"),
        evidence: number("evidence") == Some(1),
        turn: match number("probe_turn") {
            Some(1) => Turn::Retry,
            _ => Turn::Fresh,
        },
        rejections: count("rejections"),
        pause: number("paused_at").map(|at| Pause {
            at,
            by: words("paused_by"),
            reason: words("pause_reason"),
        }),
        clock_skew: number("clock_skew"),
    };
    Ok((text("channel").unwrap_or_default(), channel))
}
