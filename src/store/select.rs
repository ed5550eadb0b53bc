//! Finding the messages a person means, why letters are dead, and what was done to them. Reads
//! only, in slices, so that no reader stands in the application's way for long.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, named_params, params};

use crate::entry::{AuditEntry, DeadReason, Status};
use crate::error::Result;
use crate::selection::Selection;
use crate::store::odd::is_page;
use crate::store::read::{Name, bytes, number, text};
use crate::store::stats;

/// Rows that one statement looks at, at most.
const SLICE: i64 = 5_000;

/// Groups of dead letters whose error is told, at most: errors are long, and groups may be many.
const TOLD: usize = 1_000;

/// The code of what has no failed attempt on record.
macro_rules! unrecorded {
    () => {
        "unknown"
    };
}

/// What a selection asks of a row `o`; the same for every way of finding it.
macro_rules! wanted {
    () => {
        concat!(
            "
  AND (:channel IS NULL OR o.channel = :channel)
  AND (:code IS NULL OR :code = coalesce((SELECT a.outcome FROM outbox_attempt AS a
                                  WHERE a.message = o.id ORDER BY a.id DESC LIMIT 1), '",
            unrecorded!(),
            "'))
  AND (:http_status IS NULL OR :http_status = (SELECT a.http_status FROM outbox_attempt AS a
                                  WHERE a.message = o.id ORDER BY a.id DESC LIMIT 1))
  AND (:error IS NULL OR instr(lower(o.last_error), lower(:error)) > 0)
  AND (:since IS NULL OR coalesce(o.settled_at, o.created_at) >= :since)
  AND (:before IS NULL OR coalesce(o.settled_at, o.created_at) < :before)
ORDER BY o.id"
        )
    };
}

/// Index `outbox_dead_rows`. The channel is that of a row: in a file of UTF-16 a name that is no text
/// does not come back as it is stored.
pub(crate) const DEAD: &str = concat!(
    "
SELECT o.id, CASE WHEN :page THEN substr(o.answer, 1, 200) END AS start
  FROM outbox AS o INDEXED BY outbox_dead_rows
 WHERE o.channel = (SELECT c.channel FROM outbox AS c WHERE c.id = :of) AND o.status = 'dead' AND o.id > :from AND o.id <= :to
   AND :status = 'dead'",
    wanted!()
);

/// By rowid.
pub(crate) const OTHERS: &str = concat!(
    "
SELECT o.id, CASE WHEN :page THEN substr(o.answer, 1, 200) END AS start
  FROM outbox AS o NOT INDEXED
 WHERE o.id > :from AND o.id <= :to AND o.status = :status AND :of IS NULL",
    wanted!()
);

/// The last row of a slice of dead ones. Index `outbox_dead_rows`.
pub(crate) const DEAD_EDGE: &str = "
SELECT o.id FROM outbox AS o INDEXED BY outbox_dead_rows
 WHERE o.channel = (SELECT c.channel FROM outbox AS c WHERE c.id = ?1)
   AND o.status = 'dead' AND o.id > ?2 ORDER BY o.id LIMIT 1 OFFSET ?3";

const EDGE: &str =
    "SELECT id FROM outbox WHERE id > ?2 AND ?1 IS NULL ORDER BY id LIMIT 1 OFFSET ?3";

/// Index `outbox_dead_rows`, and `outbox_attempt_message` for each.
pub(crate) const DEAD_WITH_REASON: &str = "
SELECT o.id, o.settled_at, a.outcome, a.http_status, o.last_error
  FROM outbox AS o INDEXED BY outbox_dead_rows
  LEFT JOIN outbox_attempt AS a
    ON a.id = (SELECT max(l.id) FROM outbox_attempt AS l WHERE l.message = o.id)
 WHERE o.channel = (SELECT c.channel FROM outbox AS c WHERE c.id = ?1)
   AND o.status = 'dead' AND o.id > ?2
 ORDER BY o.id LIMIT ?3";

const AUDIT: &str = "
SELECT id, at, who, action, message, channel, reason, former_message_id, former_payload
  FROM outbox_audit WHERE ?1 IS NULL OR message = ?1
 ORDER BY id DESC LIMIT ?2";

/// The highest id that was ever given: what is enqueued from now on gets a higher one.
pub(crate) fn highest(conn: &Connection) -> Result<i64> {
    let sql = "SELECT max(coalesce((SELECT max(id) FROM outbox), 0),
                          coalesce((SELECT max(seq) FROM sqlite_sequence WHERE name = 'outbox'), 0))";
    Ok(conn.query_row(sql, [], |row| row.get(0))?)
}

/// The ids of the selected messages, in order: 8 bytes for each.
///
/// They are collected before any is touched, since cancelling a head would make its follower
/// pending and so, perhaps, one of the selected. What is enqueued meanwhile is not among them.
pub(crate) fn matching(conn: &Connection, selection: &Selection) -> Result<Vec<i64>> {
    let highest = highest(conn)?;
    let last = selection.up_to.map_or(highest, |it| it.min(highest));
    let mut ids = Vec::new();
    if selection.status == Status::Dead {
        let channel = selection.channel.as_deref().map(Name::new);
        for dead in stats::groups(conn, stats::DEAD)? {
            if channel.as_ref().is_none_or(|it| *it == dead.channel) {
                let of = Some(dead.first);
                slices(conn, selection, last, of, DEAD_EDGE, DEAD, &mut ids)?;
            }
        }
        ids.sort_unstable();
    } else {
        slices(conn, selection, last, None, EDGE, OTHERS, &mut ids)?;
    }
    Ok(ids)
}

/// Those up to `last`, of the channel that the row `of` is in, or of any.
fn slices(
    conn: &Connection,
    selection: &Selection,
    last: i64,
    of: Option<i64>,
    edge: &str,
    find: &str,
    ids: &mut Vec<i64>,
) -> Result<()> {
    let mut edge = conn.prepare_cached(edge)?;
    let mut find = conn.prepare_cached(find)?;
    let mut from = 0;
    loop {
        let to = edge.query_row(params![of, from, SLICE - 1], |row| row.get(0));
        let to = to.optional()?.unwrap_or(i64::MAX);
        let mut found = find.query(named_params! {
            ":of": of, ":channel": selection.channel, ":status": selection.status.as_str(),
            ":from": from, ":to": to.min(last), ":code": selection.code,
            ":http_status": selection.http_status, ":error": selection.error,
            ":since": selection.since, ":before": selection.before, ":page": selection.web_page,
        })?;
        while let Some(row) = found.next()? {
            if !selection.web_page || text(row, "start")?.as_deref().is_some_and(is_page) {
                ids.push(row.get("id")?);
            }
        }
        if to >= last {
            return Ok(());
        }
        from = to;
    }
}

/// Why letters are dead, most frequent first.
pub(crate) fn dead_reasons(conn: &Connection) -> Result<Vec<DeadReason>> {
    let mut groups = BTreeMap::new();
    for dead in stats::groups(conn, stats::DEAD)? {
        let mut from = 0;
        while let Some(last) = dead_slice(conn, &dead, from, &mut groups)? {
            from = last;
        }
    }
    let mut reasons: Vec<_> = groups.into_values().collect();
    reasons.sort_by_key(|it: &DeadReason| std::cmp::Reverse(it.count));
    Ok(reasons)
}

type Groups = BTreeMap<(String, String, Option<i64>), DeadReason>;

fn dead_slice(
    conn: &Connection,
    dead: &stats::Group,
    from: i64,
    groups: &mut Groups,
) -> Result<Option<i64>> {
    let mut statement = conn.prepare_cached(DEAD_WITH_REASON)?;
    let mut rows = statement.query(params![dead.first, from, SLICE])?;
    let mut last = None;
    while let Some(row) = rows.next()? {
        let id = row.get("id")?;
        last = Some(id);
        let died = number(row, "settled_at")?;
        let code = text(row, "outcome")?.unwrap_or_else(|| unrecorded!().into());
        let key = (dead.channel.show(), code, number(row, "http_status")?);
        let told = groups.len() < TOLD || groups.get(&key).is_some_and(|it| it.text.is_some());
        let group = groups.entry(key).or_insert_with_key(|key| DeadReason {
            channel: key.0.clone(),
            code: key.1.clone(),
            http_status: key.2,
            count: 0,
            oldest: None,
            newest: None,
            sample: id,
            text: None,
        });
        group.count += 1;
        group.oldest = group.oldest.into_iter().chain(died).min();
        group.newest = group.newest.into_iter().chain(died).max();
        group.sample = id;
        group.text = match told {
            true => text(row, "last_error")?,
            false => None,
        };
    }
    Ok(last)
}

/// What was done, newest first; to one message, or at all.
pub(crate) fn audit(
    conn: &Connection,
    message: Option<i64>,
    limit: usize,
) -> Result<Vec<AuditEntry>> {
    let mut statement = conn.prepare_cached(AUDIT)?;
    let entries = statement.query_map(params![message, super::rows(limit)], |row| {
        Ok(AuditEntry {
            id: row.get("id")?,
            at: number(row, "at")?.unwrap_or_default(),
            who: text(row, "who")?.unwrap_or_default(),
            action: text(row, "action")?.unwrap_or_default(),
            message: number(row, "message")?,
            channel: text(row, "channel")?,
            reason: text(row, "reason")?,
            former_message_id: text(row, "former_message_id")?,
            former_payload: match row.get_ref("former_payload")? {
                rusqlite::types::ValueRef::Null => None,
                payload => Some(bytes(payload).to_vec()),
            },
        })
    })?;
    Ok(entries.collect::<rusqlite::Result<Vec<_>>>()?)
}
