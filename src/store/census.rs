//! Counting what is unsent, however much it is: few by looking at each, many by the census that the
//! triggers of the schema keep.

use rusqlite::Connection;

use crate::error::Result;

/// So many entries of an index are looked at rather than the census.
pub(crate) const FEW: i64 = 4_096;

/// So many messages the census says nothing of are looked at; beyond, the indexes are counted whole.
const MOST: i64 = 4_096;

/// Two bounded reads: all that is due, and all that stands in lanes.
pub(crate) const LOOK: &str = "
SELECT d.n AS due, l.n AS lanes, l.waiting AS waiting
  FROM (SELECT count(*) AS n FROM (
          SELECT 1 FROM outbox INDEXED BY outbox_due
           WHERE status = 'pending' OR status = 'sending' LIMIT ?1)) AS d,
       (SELECT count(*) AS n, coalesce(sum(behind), 0) AS waiting FROM (
          SELECT status = 'waiting' AS behind FROM outbox INDEXED BY outbox_lane
           WHERE ordering_key IS NOT NULL
             AND (status = 'pending' OR status = 'waiting' OR status = 'sending' OR status = 'dead')
           LIMIT ?1)) AS l";

pub(crate) const ALL: &str = "
SELECT (SELECT count(*) FROM outbox INDEXED BY outbox_due
         WHERE status = 'pending' OR status = 'sending')
     + (SELECT count(*) FROM outbox INDEXED BY outbox_lane
         WHERE ordering_key IS NOT NULL AND status = 'waiting')";

/// The first and the last block there is.
const SPAN: &str = "
SELECT ((SELECT min(id) FROM outbox) - 1) >> 10, ((SELECT max(id) FROM outbox) - 1) >> 10";

/// In the blocks from the first up to the second, up to a limit. That comes first: with statistics of
/// a small table SQLite would read from the first block to the end.
pub(crate) const COUNT: &str = "
SELECT count(*), coalesce(sum(status IN ('pending', 'waiting', 'sending')), 0) FROM (
  SELECT id, status FROM outbox NOT INDEXED WHERE id > ?1 << 10
   ORDER BY id LIMIT min(?3, (?2 - ?1) << 10))
 WHERE id <= ?2 << 10";

/// The first message from a block on.
const FIRST: &str = "SELECT (min(id) - 1) >> 10 FROM outbox NOT INDEXED WHERE id > ?1 << 10";

/// One statement, so that it takes the write lock before it counts.
pub(crate) const FILL: &str = "
INSERT OR REPLACE INTO outbox_census (block, unsent)
SELECT ?1, count(*) FROM (
  SELECT id, status FROM outbox NOT INDEXED WHERE id > ?1 << 10 ORDER BY id LIMIT 1024)
 WHERE id <= (?1 + 1) << 10 AND status IN ('pending', 'waiting', 'sending')";

/// What a person does about a wrong one.
pub(crate) const FORGET: &str = "DELETE FROM outbox_census";

const WRONG: &str = "
SELECT c.unsent <> (SELECT count(*) FROM (
         SELECT id, status FROM outbox NOT INDEXED WHERE id > ?1 << 10 ORDER BY id LIMIT 1024)
        WHERE id <= (?1 + 1) << 10 AND status IN ('pending', 'waiting', 'sending'))
  FROM outbox_census AS c WHERE c.block = ?1";

/// Pending, waiting and sending messages of all channels.
pub(crate) fn unsent(conn: &Connection) -> Result<u64> {
    let unsent = match few(conn)? {
        Some(few) => few,
        None => match many(conn)? {
            Some(many) => many,
            None => conn.prepare_cached(ALL)?.query_row([], |row| row.get(0))?,
        },
    };
    Ok(u64::try_from(unsent).unwrap_or(0))
}

fn few(conn: &Connection) -> Result<Option<i64>> {
    let found = conn.prepare_cached(LOOK)?.query_row([FEW], |row| {
        let (due, lanes, waiting): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok((due < FEW && lanes < FEW).then_some(due + waiting))
    })?;
    Ok(found)
}

/// Nothing where the census says too little.
fn many(conn: &Connection) -> Result<Option<i64>> {
    // Census and gaps have to be of one moment.
    let _moment = match conn.is_autocommit() {
        true => Some(conn.unchecked_transaction()?),
        false => None,
    };
    let census = Census::load(conn)?;
    let (mut unsent, mut left) = (census.unsent, MOST);
    for (from, to) in census.gaps {
        let (looked, found): (i64, i64) = conn
            .prepare_cached(COUNT)?
            .query_row([from, to, left], |row| Ok((row.get(0)?, row.get(1)?)))?;
        left -= looked;
        unsent = unsent.saturating_add(found);
        if left <= 0 {
            return Ok(None);
        }
    }
    Ok(Some(unsent))
}

/// What the census says, and of what it says nothing.
#[derive(Debug, Default)]
struct Census {
    unsent: i64,
    /// Blocks that have no row: from the first up to the second.
    gaps: Vec<(i64, i64)>,
    /// The block of the newest message, which new ones come into.
    last: i64,
}

impl Census {
    fn load(conn: &Connection) -> Result<Self> {
        let span = conn
            .prepare_cached(SPAN)?
            .query_row([], |row| Ok(row.get::<_, Option<i64>>(0)?.zip(row.get(1)?)))?;
        let Some((mut next, last)) = span else {
            return Ok(Self::default());
        };
        let mut census = Self {
            last,
            ..Self::default()
        };
        let mut statement =
            conn.prepare_cached("SELECT block, unsent FROM outbox_census ORDER BY block")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (block, unsent): (i64, i64) = (row.get(0)?, row.get(1)?);
            census.unsent = census.unsent.saturating_add(unsent);
            if block > next {
                census.gaps.push((next, block));
            }
            next = next.max(block.saturating_add(1));
        }
        if next <= last {
            census.gaps.push((next, last + 1));
        }
        Ok(census)
    }
}

/// Counts a block that has no row, one of those that no new message comes into. False when there is
/// none, or so few unsent messages that nobody asks the census; then nothing is written.
pub(crate) fn fill(conn: &Connection) -> Result<bool> {
    if few(conn)?.is_some() {
        return Ok(false);
    }
    let census = Census::load(conn)?;
    for (from, to) in census.gaps {
        let block: Option<i64> = conn
            .prepare_cached(FIRST)?
            .query_row([from], |row| row.get(0))?;
        if let Some(block) = block.filter(|it| *it < to && *it < census.last) {
            conn.prepare_cached(FILL)?.execute([block])?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// How many blocks have another number than their row says. Each is a read of its own.
pub(crate) fn wrong(conn: &Connection) -> Result<u64> {
    let blocks = conn
        .prepare_cached("SELECT block FROM outbox_census")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut wrong = 0;
    for block in blocks {
        let mut statement = conn.prepare_cached(WRONG)?;
        let mut rows = statement.query([block])?;
        if let Some(row) = rows.next()? {
            wrong += u64::from(row.get::<_, bool>(0)?);
        }
    }
    Ok(wrong)
}
