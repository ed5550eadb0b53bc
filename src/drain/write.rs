//! Around the transaction: what is done when it fails, and how the lock is shared.

use std::time::Duration;

use rusqlite::{Transaction, TransactionBehavior};

use crate::clock::Instant;
use crate::dispatch::{Dispatcher, Outcome};
use crate::drain::flight::Told;
use crate::drain::guard::is_constraint;
use crate::drain::look::Look;
use crate::drain::transact::{Effects, Transact, Trouble};
use crate::drain::{
    AFTER_FAILURE, BATCH, BATCH_MIN, Cycle, Drainer, HOLD, LINGER, SYNC_WITHIN, WATCH, data_version,
};
use crate::error::{Error, Result};
use crate::observer::Event;
use crate::schema;
use crate::store::connect::explain;
use crate::store::untold::Untold;

impl Drainer {
    /// The transaction. A constraint error is met by doing it again row by row, which finds the
    /// culprit. A hook that ended the transaction is left out the second time, and so is one that
    /// left a violated foreign key behind, which shows at the commit only.
    pub(crate) fn write(
        &mut self,
        dispatcher: &dyn Dispatcher,
        at: Instant,
        found: &Look,
    ) -> Result<Effects> {
        let mut careful = false;
        let mut batch = self.batch;
        for _ in 0..64 {
            let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate)?;
            let begun = self.clock.monotonic();
            // Under the lock: another process may have paused a channel or opened its circuit.
            let version = data_version(&tx)?;
            if version != self.data_version {
                self.data_version = version;
                self.memory.channels_stale = true;
                self.survey.overtaken();
            }
            if self.writer_checked != Some(version) {
                schema::check_writer(&tx)?;
                self.writer_checked = Some(version);
            }
            let transact = Transact {
                conn: &tx,
                at,
                dispatcher,
                settings: &self.settings,
                hook: self.hook.as_deref(),
                instance: &self.instance,
                memory: &self.memory,
                trusted: self.watch.trusted(),
                claiming: self.is_claiming(),
                proving: self.is_held(),
                batch,
                careful,
                broken_lanes: &self.broken_lanes,
                found,
            };
            let done = transact.run(&self.reports, &mut self.dice);
            let effects = match done {
                Ok(effects) => effects,
                Err(Trouble::HookEndedTransaction { id, error }) => {
                    self.memory.hookless.insert(id, error);
                    continue;
                }
                Err(Trouble::RowEndedTransaction { id }) => {
                    drop(tx);
                    self.leave_alone(id);
                    continue;
                }
                Err(Trouble::Sqlite(error)) if is_constraint(&error) && !careful => {
                    careful = true;
                    continue;
                }
                Err(Trouble::Uneven) => {
                    careful = true;
                    continue;
                }
                Err(Trouble::Sqlite(error)) => return Err(error.into()),
            };
            let worked = self.clock.monotonic().saturating_sub(begun);
            match tx.commit() {
                Ok(()) => {
                    self.failing = false;
                    self.mind_manners(worked, self.clock.monotonic().saturating_sub(begun));
                    return Ok(effects);
                }
                Err(error) if is_constraint(&error) && self.hook.is_some() && batch > 1 => {
                    batch = 1;
                }
                Err(error) if is_constraint(&error) && self.hook.is_some() => {
                    let Some(report) = self.reports.first() else {
                        return Err(error.into());
                    };
                    let text = format!("it left the transaction impossible to commit: {error}");
                    if self.memory.hookless.insert(report.id, text).is_some() {
                        return Err(error.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Refused(
            "the on_delivered hook ends every transaction it is given".into(),
        ))
    }

    /// A trigger of the application rolls back whatever touches this row.
    fn leave_alone(&mut self, id: i64) {
        let report = self.reports.iter().find(|it| it.id == id);
        let untold = match report.map(|it| &it.told) {
            Some(Told::Outcome(_, Outcome::Delivered(receipt))) => Untold::Delivered(receipt, 0),
            _ => Untold::Nothing,
        };
        let error = untold
            .refused("a trigger rolls back whatever touches it")
            .text;
        self.memory.untouchable.insert(id);
        self.memory.notices.push(Event::Refused { id, error });
    }

    /// Leaves the lock free in proportion to how long it was held, and keeps transactions short.
    /// The commit itself, a sync of the disk, takes as long for few rows as for many.
    pub(crate) fn mind_manners(&mut self, worked: Duration, held: Duration) {
        let share = self.settings.lock_share;
        let now = self.clock.monotonic();
        // Never so long that a lease could not be renewed in time.
        let longest = (self.settings.lease / 4).min(WATCH);
        let pause = held.mul_f64(1.0 / share - 1.0).min(longest);
        self.not_before = now.saturating_add(pause);
        self.batch = if share >= 1.0 {
            BATCH * 4
        } else if worked > HOLD {
            (self.batch / 2).max(BATCH_MIN)
        } else {
            (self.batch + 4).min(BATCH)
        };
    }

    /// After the commit: memory changes, and the world may be told.
    pub(crate) fn apply(&mut self, effects: Effects, at: Instant) -> Cycle {
        let recorded = effects.recorded;
        self.reports.drain(..recorded.min(self.reports.len()));
        self.first_report = (!self.reports.is_empty()).then_some(at.monotonic);
        self.broken_lanes
            .drain(..effects.lanes_mended.min(self.broken_lanes.len()));
        self.look_at = Duration::ZERO;
        self.survey.begin_anew();
        if self.lazy_sync {
            self.unsynced.get_or_insert(at.monotonic);
        }
        self.memory
            .spend(&effects.runs, &self.settings, at.monotonic);
        for report in self.memory.apply(effects.changes, &effects.runs) {
            self.take_in(report);
        }
        Cycle {
            runs: effects.runs,
            events: effects.events,
            wait: self.not_before.saturating_sub(self.clock.monotonic()),
            ..Cycle::default()
        }
    }

    /// A checkpoint syncs the log first; a passive one waits for nobody.
    pub(crate) fn sync_if_due(&mut self, at: Instant) -> Result<()> {
        let due = |since: Duration| at.monotonic >= since.saturating_add(SYNC_WITHIN);
        if self.unsynced.is_some_and(due) {
            self.unsynced = None;
            self.conn
                .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        }
        Ok(())
    }

    pub(crate) fn after_failure(&mut self, error: Error, at: Instant) -> Cycle {
        let error = explain(self.place.path(), error);
        // A commit that waits for readers keeps new ones out: it leaves them their time as well.
        let now = self.clock.monotonic();
        let spent = now.saturating_sub(at.monotonic);
        let manners = spent
            .mul_f64(1.0 / self.settings.lock_share - 1.0)
            .min(WATCH);
        let renewal = self.memory.flight.next_renewal(at, self.settings.lease) == Some(0);
        let wait = match error {
            // It would miss one gap between two transactions of another after the other.
            Error::Busy(_) if renewal => spent.max(LINGER),
            Error::Busy(_) => manners.max(LINGER),
            _ => AFTER_FAILURE,
        };
        if matches!(error, Error::Busy(_)) {
            self.memory.missed = now;
        }
        self.failing = true;
        // What was noticed may not have been looked at.
        self.look_at = Duration::ZERO;
        self.not_before = now.saturating_add(wait);
        Cycle {
            wait,
            error: Some(error),
            ..Cycle::default()
        }
    }
}
