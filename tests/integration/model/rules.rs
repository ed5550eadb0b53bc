//! What must be true of the file, whatever was done to it.

use std::collections::{BTreeMap, HashSet};

use sqlite_outbox::Outbox;
use sqlite_outbox::rusqlite::Connection;

use crate::census::WRONG;
use crate::fixture::column;

/// A message as it stands in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) channel: String,
    pub(super) status: String,
    pub(super) claims: i64,
    pub(super) attempts: i64,
    pub(super) lane: Option<String>,
    pub(super) message_id: String,
    pub(super) key: String,
    pub(super) available: Option<i64>,
    pub(super) expires: Option<i64>,
    pub(super) settled: Option<i64>,
    pub(super) payload: Vec<u8>,
}

impl Row {
    pub(super) fn is(&self, statuses: &[&str]) -> bool {
        statuses.contains(&self.status.as_str())
    }

    pub(super) fn same_lane(&self, other: &Self) -> bool {
        self.lane.is_some() && self.lane == other.lane && self.channel == other.channel
    }
}

pub(super) type Rows = BTreeMap<i64, Row>;

pub(super) fn rows(conn: &Connection) -> Rows {
    let sql = "SELECT id, channel, status, claims, attempts, ordering_key, message_id, dedupe_key,
                      available_at, expires_at, settled_at, CAST(payload AS BLOB) FROM outbox";
    let mut statement = conn.prepare_cached(sql).unwrap();
    let rows = statement.query_map([], |row| {
        let message = Row {
            channel: row.get(1)?,
            status: row.get(2)?,
            claims: row.get(3)?,
            attempts: row.get(4)?,
            lane: row.get(5)?,
            message_id: row.get(6)?,
            key: row.get(7)?,
            available: row.get(8)?,
            expires: row.get(9)?,
            settled: row.get(10)?,
            payload: row.get(11)?,
        };
        Ok((row.get(0)?, message))
    });
    rows.unwrap().map(|it| it.unwrap()).collect()
}

/// Whether dead messages of a channel hold those behind them.
pub(super) fn holds(conn: &Connection, channel: &str) -> bool {
    let sql = "SELECT count(*) FROM outbox_channel WHERE channel = ?1 AND on_dead = 'skip'";
    let skips: i64 = conn
        .prepare_cached(sql)
        .unwrap()
        .query_row([channel], |row| row.get(0))
        .unwrap();
    skips == 0
}

pub(super) fn paused(conn: &Connection, channel: &str) -> bool {
    let sql = "SELECT count(*) FROM outbox_channel WHERE channel = ?1 AND paused_at IS NOT NULL";
    let paused: i64 = conn
        .prepare_cached(sql)
        .unwrap()
        .query_row([channel], |row| row.get(0))
        .unwrap();
    paused > 0
}

/// Of each lane only the lowest unsettled member is pending, none while one is sending; a dead
/// head holds, and nothing else does.
pub(super) fn lanes_are_in_order(conn: &Connection, rows: &Rows) {
    let mut lanes: BTreeMap<(&str, &str), Vec<(i64, &str)>> = BTreeMap::new();
    for (id, row) in rows {
        if let Some(lane) = &row.lane {
            let members = lanes.entry((&row.channel, lane)).or_default();
            members.push((*id, &row.status));
        }
    }
    for ((channel, lane), members) in lanes {
        let first = |status: &str| members.iter().find(|it| it.1 == status).map(|it| it.0);
        let pending = members.iter().filter(|it| it.1 == "pending").count();
        let sending = first("sending").is_some();
        let dead = first("dead").filter(|_| holds(conn, channel));
        let what = format!("lane {channel}/{lane}: {members:?}");
        assert!(pending <= 1, "two are pending in {what}");
        if let Some(head) = first("pending") {
            assert!(!sending, "one is pending while one is sending in {what}");
            assert!(
                first("waiting").is_none_or(|it| it > head),
                "not the lowest: {what}"
            );
            assert!(
                dead.is_none_or(|it| it > head),
                "the dead head does not hold: {what}"
            );
        } else if let Some(waiting) = first("waiting") {
            let held = sending || dead.is_some_and(|it| it < waiting);
            assert!(held, "nobody is before those who wait in {what}");
        }
    }
}

/// What the library counts is what stands there.
pub(super) fn counts_are_true(outbox: &Outbox, rows: &Rows) {
    let stats = outbox.stats().unwrap();
    let count = |channel: Option<&str>, status: &str| {
        let here = |row: &&Row| row.status == status && channel.is_none_or(|it| it == row.channel);
        rows.values().filter(here).count() as u64
    };
    let every = stats
        .channels
        .iter()
        .map(|it| (Some(it.channel.as_str()), &it.counts));
    for (channel, counts) in every.chain([(None, &stats.total)]) {
        let told = [
            ("pending", counts.pending),
            ("waiting", counts.waiting),
            ("sending", counts.sending),
            ("sent", counts.sent),
            ("dead", counts.dead),
            ("expired", counts.expired),
            ("cancelled", counts.cancelled),
        ];
        for (status, told) in told {
            assert_eq!(told, count(channel, status), "{status} in {channel:?}");
        }
    }
    assert_eq!(outbox.unsent().unwrap(), stats.total.unsent());
}

/// Each block of the census has as many unsent messages as its row says.
pub(super) fn census_is_true(conn: &Connection) {
    assert_eq!(column(conn, WRONG), Vec::<String>::new());
}

/// Failed attempts belong to messages that exist, or to those that were replaced unheard.
pub(super) fn no_attempt_is_left_behind(conn: &Connection, replaced: &HashSet<i64>) {
    let orphans = "SELECT DISTINCT message FROM outbox_attempt
                    WHERE message NOT IN (SELECT id FROM outbox)";
    for id in column(conn, orphans) {
        assert!(
            replaced.contains(&id.parse().unwrap()),
            "attempts of message {id}, which is gone"
        );
    }
}
