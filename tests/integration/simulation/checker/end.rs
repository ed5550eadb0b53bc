//! What must be true when everything has worked for long enough.

use std::collections::HashMap;

use sqlite_outbox::rusqlite::Connection;

use super::file::lane;
use super::{Checked, Checker, P1, P3, P6};
use crate::simulation::history::Status;

/// Failed attempts that are kept of one message, and one more for each budget it had.
const ATTEMPTS: i64 = 21;

impl Checker<'_> {
    /// Compares the file with the history.
    pub(in crate::simulation) fn end(&mut self, conn: &Connection) -> Checked {
        self.at = self.history.len().saturating_sub(1);
        self.file_is_as_followed(conn)?;
        for (id, message) in &self.messages {
            let row = &message.row;
            let name = (*id, row.message_id.clone());
            let taken = self.taken.get(&name).map_or(&[][..], Vec::as_slice);
            match row.status {
                Status::Sent => {
                    self.demand(!taken.is_empty(), P1, || format!("never arrived: {row:?}"))?;
                }
                Status::Dead | Status::Expired | Status::Cancelled => {}
                Status::Waiting => {
                    let skips = self.channels.get(&row.channel).is_some_and(|it| it.skip);
                    let members = lane(row).and_then(|lane| self.lanes.get(&lane));
                    let dead = |it: &i64| self.messages[it].row.status == Status::Dead;
                    let held = members.is_some_and(|it| it.range(..*id).any(dead));
                    self.demand(held && !skips, P1, || format!("never goes out: {row:?}"))?;
                }
                Status::Pending | Status::Sending => {
                    return self.broken(P1, format!("never goes out: {row:?}"));
                }
            }
            let unexcused = taken.iter().filter(|it| !it.excused).count();
            self.demand(unexcused <= 1, P3, || {
                format!("taken {unexcused} times without a reason: {row:?}")
            })?;
        }
        self.hook_ran_once(conn)?;
        self.attempts_are_bounded(conn)
    }

    fn file_is_as_followed(&self, conn: &Connection) -> Checked {
        let sql = "SELECT id, status, message_id, CAST(payload AS BLOB) FROM outbox";
        let mut statement = conn.prepare_cached(sql).unwrap();
        let mut rows = statement.query([]).unwrap();
        let mut count = 0;
        while let Some(row) = rows.next().unwrap() {
            count += 1;
            let id: i64 = row.get(0).unwrap();
            let known = &self.messages[&id].row;
            let status: String = row.get(1).unwrap();
            let same = format!("{:?}", known.status).to_lowercase() == status
                && known.message_id == row.get::<_, String>(2).unwrap()
                && known.payload == row.get::<_, Vec<u8>>(3).unwrap();
            self.demand(same, P1, || format!("{known:?} is {status} in the file"))?;
        }
        self.demand(count == self.messages.len(), P1, || "rows are gone".into())?;
        // Sale and message, both or neither.
        let sql = "SELECT (SELECT count(*) FROM sale WHERE message NOT IN (SELECT id FROM outbox))
                        + (SELECT count(*) FROM outbox WHERE id NOT IN (SELECT message FROM sale))";
        let halves: i64 = conn.query_row(sql, [], |row| row.get(0)).unwrap();
        self.demand(halves == 0, P1, || {
            format!("{halves} sales without message, or reverse")
        })
    }

    /// The application's own code ran with each delivery that was recorded, and only then.
    fn hook_ran_once(&self, conn: &Connection) -> Checked {
        let mut statement = conn.prepare_cached("SELECT message FROM ledger").unwrap();
        let ids = statement.query_map([], |row| row.get::<_, i64>(0)).unwrap();
        let mut ran: HashMap<i64, u64> = HashMap::new();
        for id in ids {
            *ran.entry(id.unwrap()).or_default() += 1;
        }
        for (id, message) in &self.messages {
            let sent = u64::from(self.rules.hook && message.row.status == Status::Sent);
            let times = ran.get(id).copied().unwrap_or(0);
            self.demand(times == sent, P3, || {
                format!("the hook ran {times} times for {:?}", message.row)
            })?;
        }
        Ok(())
    }

    fn attempts_are_bounded(&self, conn: &Connection) -> Checked {
        let sql = "SELECT message, count(*) FROM outbox_attempt GROUP BY message";
        let mut statement = conn.prepare_cached(sql).unwrap();
        let mut rows = statement.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let (id, kept): (i64, i64) = (row.get(0).unwrap(), row.get(1).unwrap());
            let most = ATTEMPTS + self.messages[&id].budgets;
            self.demand(kept <= most, P6, || {
                format!("{kept} attempts of {id} are kept")
            })?;
        }
        Ok(())
    }
}
