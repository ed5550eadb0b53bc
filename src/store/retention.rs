//! What a purge removes: rows that were sent, expired or cancelled, never anything unsent and no
//! dead letter. The statements themselves see to that. See `round` for what goes by itself.

use std::collections::VecDeque;

use rusqlite::{Connection, ErrorCode, params};

use crate::error::Result;
use crate::observer::logged;
use crate::store::operate::{self, Deed};
use crate::store::read::chosen;
use crate::store::{Raw, conflict, select};

/// Rows and bytes of one transaction, about.
pub(crate) const ROWS: usize = 200;
const BYTES: i64 = 1 << 20;

/// A range of `outbox_settled`: the first condition is what makes the index usable. The channel is a text
/// or the bytes of one, in the encoding of the file: of UTF-16 that is no text, those alone come back as
/// they are stored.
macro_rules! settled {
    ($what:literal, $rest:literal) => {
        concat!(
            "SELECT ",
            $what,
            " FROM outbox INDEXED BY outbox_settled
               WHERE (status = 'sent' OR status = 'expired' OR status = 'cancelled')
                 AND channel = CAST(?1 AS TEXT) AND status = ?2 AND ",
            $rest
        )
    };
}

pub(crate) use settled;

/// By moment. Index `outbox_settled`.
pub(crate) const NEXT: &str = settled!(
    "id, settled_at AS at, length(CAST(payload AS BLOB)) AS bytes,
     length(payload) > 0 OR answer IS NOT NULL AS full",
    "(settled_at, id) > (?3, ?4) AND settled_at <= ?5 ORDER BY settled_at, id LIMIT ?6"
);

/// Settled by hand, without a moment: the enqueue counts. Index `outbox_settled`.
pub(crate) const UNDATED: &str = settled!(
    "id, ?3 AS at, length(CAST(payload AS BLOB)) AS bytes, 1 AS full",
    "settled_at IS NULL AND id > ?4 AND created_at <= ?5 ORDER BY id LIMIT ?6"
);

/// As long as a conflict over its key is open, a message stays: a person has to compare the two,
/// and the key stays taken.
pub(crate) const DELETE: &str = "
DELETE FROM outbox
 WHERE id = ?1 AND (status = 'sent' OR status = 'expired' OR status = 'cancelled')
   AND coalesce(settled_at, created_at) <= ?2
   AND NOT EXISTS (SELECT 1 FROM outbox_conflict AS k
                    WHERE k.channel = outbox.channel AND k.dedupe_key = outbox.dedupe_key)";

/// The settled states.
pub(crate) const SETTLED: [&str; 3] = ["sent", "expired", "cancelled"];

/// Before the first row of a shelf.
pub(crate) const BEGINNING: (i64, i64) = (i64::MIN, 0);

/// Messages of one channel in one settled state.
#[derive(Debug, Clone)]
pub(crate) struct Shelf {
    /// Its bytes.
    pub(crate) channel: Raw,
    pub(crate) status: &'static str,
}

/// All that there may be, of one channel or of all.
fn shelves(conn: &Connection, channel: Option<&str>) -> Result<Vec<Shelf>> {
    let channels = chosen(conn, channel)?;
    let shelf = |channel: Raw| {
        SETTLED.map(|status| Shelf {
            channel: channel.clone(),
            status,
        })
    };
    Ok(channels.into_iter().flat_map(shelf).collect())
}

/// A step's worth of rows.
pub(crate) struct Batch {
    pub(crate) ids: Vec<i64>,
    /// The last row looked at.
    pub(crate) last: Option<(i64, i64)>,
}

impl Shelf {
    /// The next rows after `from`; with `full`, only those that still have something to empty.
    pub(crate) fn next(
        &self,
        conn: &Connection,
        sql: &str,
        from: (i64, i64),
        until: i64,
        full: bool,
    ) -> Result<Batch> {
        let mut statement = conn.prepare_cached(sql)?;
        let limit = super::rows(ROWS);
        let mut rows = statement.query(params![
            self.channel,
            self.status,
            from.0,
            from.1,
            until,
            limit
        ])?;
        let mut batch = Batch {
            ids: Vec::new(),
            last: None,
        };
        let mut bytes = 0_i64;
        // Read one by one, since each reads its payload: not more than are taken.
        while bytes < BYTES
            && let Some(row) = rows.next()?
        {
            let id = row.get("id")?;
            batch.last = Some((row.get("at")?, id));
            if !full || row.get("full")? {
                bytes = bytes.saturating_add(row.get("bytes")?);
                batch.ids.push(id);
            }
        }
        Ok(batch)
    }
}

/// Does it to each row up to a bound. A row that a trigger or a reference of the application holds
/// fast stays; the others go on.
pub(crate) fn each(conn: &Connection, sql: &str, ids: &[i64], bound: i64) -> Result<u64> {
    let mut changed = 0;
    let mut statement = conn.prepare_cached(sql)?;
    for id in ids {
        match statement.execute((id, bound)) {
            Ok(rows) => changed += rows as u64,
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation)
                    && !conn.is_autocommit() =>
            {
                logged(|| log::debug!("row {id} is held fast: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(changed)
}

/// A person's purge under way.
#[derive(Debug)]
pub(crate) struct Purge {
    shelves: VecDeque<(Shelf, &'static str)>,
    from: (i64, i64),
    until: i64,
    /// The highest id when it began: a clock that is set back meanwhile would let others in.
    last: i64,
    audit: Option<i64>,
    removed: u64,
}

impl Purge {
    /// Of everything settled until then, of one channel or of all. Reads only.
    pub(crate) fn new(conn: &Connection, until: i64, channel: Option<&str>) -> Result<Self> {
        let shelves = shelves(conn, channel)?;
        let both = |it: Shelf| [(it.clone(), NEXT), (it, UNDATED)];
        Ok(Self {
            shelves: shelves.into_iter().flat_map(both).collect(),
            from: BEGINNING,
            until,
            last: select::highest(conn)?,
            audit: None,
            removed: 0,
        })
    }

    /// The rows it would remove, 8 bytes for each. Reads only, in slices.
    pub(crate) fn find(mut self, conn: &Connection) -> Result<Vec<i64>> {
        let mut found = Vec::new();
        loop {
            let batch = self.batch(conn)?;
            if batch.is_empty() {
                return Ok(found);
            }
            for id in batch {
                if conflict::count_of_message(conn, id)? == 0 {
                    found.push(id);
                }
            }
        }
    }

    /// The next rows; none at the end.
    fn batch(&mut self, conn: &Connection) -> Result<Vec<i64>> {
        while let Some((shelf, sql)) = self.shelves.front() {
            let mut batch = shelf.next(conn, sql, self.from, self.until, false)?;
            match batch.last {
                Some(last) => self.from = last,
                None => {
                    self.shelves.pop_front();
                    self.from = BEGINNING;
                }
            }
            batch.ids.retain(|id| *id <= self.last);
            if !batch.ids.is_empty() {
                return Ok(batch.ids);
            }
        }
        Ok(Vec::new())
    }

    pub(crate) fn removed(&self) -> u64 {
        self.removed
    }

    /// The next rows, within the caller's transaction. False when there are no more.
    pub(crate) fn step(&mut self, conn: &Connection, deed: Deed<'_>) -> Result<bool> {
        let ids = self.batch(conn)?;
        self.removed += each(conn, DELETE, &ids, self.until)?;
        let reason = deed.reason.map(|it| format!("; {it}")).unwrap_or_default();
        let reason = format!("removed {} messages{reason}", self.removed);
        match self.audit {
            None => {
                operate::note(conn, "purge", None, None, Some(&reason), deed)?;
                self.audit = Some(conn.last_insert_rowid());
            }
            Some(id) => {
                conn.prepare_cached("UPDATE outbox_audit SET reason = ?2 WHERE id = ?1")?
                    .execute((id, &reason))?;
            }
        }
        Ok(!ids.is_empty())
    }
}
