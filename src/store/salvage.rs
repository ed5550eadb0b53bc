//! Reading the messages of a damaged file: along their ids, without any index, and around what is
//! damaged.

use std::collections::BTreeSet;

use rusqlite::{Connection, Row, ToSql};

use crate::condition::{Lost, Salvage};
use crate::entry::Filter;
use crate::error::{Error, Result};
use crate::store::read::{self, Page, columns, edge_at, entry, start};

/// Rows that one statement reads, at most, so that no read lasts.
const SLICE: usize = 5_000;

/// After so many reads in vain, the smallest range that is still halved is twice as large.
const VAIN: u32 = 8_192;

/// A walk over the rows of the table `outbox`.
pub(super) struct Walk<'a> {
    pub(super) conn: &'a Connection,
    /// What of a row is read: its `id`, and more. Parameters begin with `?3`.
    pub(super) what: &'a str,
    pub(super) parameters: &'a [&'a dyn ToSql],
    /// The lowest id and the highest.
    pub(super) ids: (i64, i64),
    /// From the highest to the lowest.
    pub(super) turned: bool,
}

impl Walk<'_> {
    /// Takes row by row, as long as `take` answers that it goes on. Answers which ids cannot be read,
    /// in the order of the walk.
    ///
    /// A range whose first row cannot be read is halved, down to the single id. The longer nothing
    /// can be read, the larger are the ranges that are given up whole, so the walk comes to its end
    /// whatever is damaged.
    pub(super) fn each(
        &self,
        mut take: impl FnMut(&Row<'_>) -> rusqlite::Result<bool>,
    ) -> Result<Vec<Lost>> {
        let order = if self.turned { "DESC" } else { "ASC" };
        let mut statement = self.conn.prepare_cached(&format!(
            "SELECT {} FROM outbox NOT INDEXED WHERE id >= ?1 AND id <= ?2
              ORDER BY id {order} LIMIT {SLICE}",
            self.what
        ))?;
        let mut lost = Vec::new();
        let mut vain = 0_u32;
        let mut ranges = vec![self.ids];
        while let Some((low, high)) = ranges.pop() {
            if low > high {
                continue;
            }
            let ends: [&dyn ToSql; 2] = [&low, &high];
            let parameters = ends.iter().chain(self.parameters);
            let mut rows = statement.query(rusqlite::params_from_iter(parameters))?;
            let (mut reached, mut read) = (None, 0);
            let end = loop {
                match rows.next() {
                    Ok(Some(row)) => {
                        let id = row.get::<_, i64>("id")?;
                        // Of rows that are out of order none is taken twice.
                        let behind = |before| read::onward(before, id, self.turned).is_ok();
                        if !(low..=high).contains(&id) || !reached.is_none_or(behind) {
                            break Err(Error::damaged("messages are out of order"));
                        }
                        reached = Some(id);
                        read += 1;
                        if !take(row)? {
                            return Ok(lost);
                        }
                    }
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(Error::from(error)),
                }
            };
            let left = match (reached, self.turned) {
                (None, _) => (low, high),
                (Some(id), false) => (id.saturating_add(1), high),
                (Some(id), true) => (low, id.saturating_sub(1)),
            };
            match end {
                Ok(()) if read < SLICE => {}
                Ok(()) => ranges.push(left),
                Err(Error::Damaged(_)) if reached.is_some() => {
                    vain = 0;
                    ranges.push(left);
                }
                Err(Error::Damaged(_)) => {
                    vain = vain.saturating_add(1);
                    if high.saturating_sub(low) < 1 << (vain / VAIN).min(62) {
                        lose(&mut lost, low, high);
                        continue;
                    }
                    let middle = low.midpoint(high);
                    let (lower, upper) = ((low, middle), (middle.saturating_add(1), high));
                    // What is pushed last comes first.
                    ranges.extend(match self.turned {
                        false => [upper, lower],
                        true => [lower, upper],
                    });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(lost)
    }
}

/// Adds to the last range where it goes on with that.
fn lose(lost: &mut Vec<Lost>, low: i64, high: i64) {
    let ids = match lost.last() {
        Some(Lost::Messages(ids)) if ids.end().saturating_add(1) == low => *ids.start()..=high,
        Some(Lost::Messages(ids)) if high.saturating_add(1) == *ids.start() => low..=*ids.end(),
        _ => return lost.push(Lost::Messages(low..=high)),
    };
    lost.pop();
    lost.push(Lost::Messages(ids));
}

/// The ids from the first to the last message, or to the highest that was given away: what is out of
/// order may end with any of them.
pub(super) fn all(conn: &Connection) -> Result<(i64, i64)> {
    let edges = [
        "SELECT max(id) FROM outbox WHERE id <= ?1",
        "SELECT max(seq) FROM sqlite_sequence WHERE name = 'outbox' AND seq <= ?1",
    ];
    let mut last = None;
    for sql in edges {
        match edge_at(conn, sql, i64::MAX) {
            Ok(edge) => last = last.max(Some(edge)),
            Err(Error::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((1, last.filter(|it| *it > 0).unwrap_or(i64::MAX)))
}

/// A page of messages.
pub(crate) fn list(conn: &Connection, filter: &Filter) -> Result<Salvage> {
    let (first, last) = all(conn)?;
    let ids = match (filter.newest_first, start(filter)) {
        (true, after) => (first, last.min(after.saturating_sub(1))),
        (false, after) => (first.max(after.saturating_add(1)), last),
    };
    let mut page = Page::new(filter.bound());
    let mut next = None;
    let lost = Walk {
        conn,
        what: concat!(
            columns!(),
            ", (?3 IS NULL OR channel = ?3) AND (?4 = '' OR instr(?4, ' ' || status || ' ')) AS wanted"
        ),
        parameters: &[&filter.channel, &read::statuses(filter)],
        ids,
        turned: filter.newest_first,
    }
    .each(|row| {
        // Foreign hands may have left a status that is none.
        if row.get::<_, Option<bool>>("wanted")? == Some(true) {
            let entry = entry(row)?;
            next = Some(entry.id);
            page.add(entry);
        }
        Ok(!page.is_full())
    })?;
    let next = next.filter(|_| page.is_full());
    let entries = page.entries;
    Ok(Salvage {
        entries,
        lost,
        next,
    })
}

/// The ids of messages that have this in a column of text, some of them, the newest first.
pub(super) fn having(
    conn: &Connection,
    column: &str,
    value: &str,
    most: usize,
) -> Result<BTreeSet<i64>> {
    let mut found = BTreeSet::new();
    Walk {
        conn,
        what: &format!("id, {column} = ?3 AS wanted"),
        parameters: &[&value],
        ids: all(conn)?,
        turned: true,
    }
    .each(|row| {
        if row.get::<_, Option<bool>>("wanted")? == Some(true) {
            found.insert(row.get("id")?);
        }
        Ok(found.len() < most)
    })?;
    Ok(found)
}
