//! The transactions of an operator: short, and with the lock left free between several.

use std::time::Duration;

use rusqlite::{Connection, Transaction};

use super::Operator;
use crate::clock;
use crate::error::{Error, Result};
use crate::store::operate::{self, Deed};

/// Messages changed in one transaction, at most, and the time after which no more are begun.
pub(super) const STEP: usize = 256;
const SPAN: Duration = Duration::from_millis(10);

/// The write lock is left free this much longer than it was held, so that the application's own
/// commits get in between.
const MANNERS: u32 = 4;

impl Operator<'_> {
    /// As [`Outbox::transaction`](crate::Outbox::transaction), for one of several: before this returns, the
    /// write lock was left free for four times as long as the transaction held it, so that the application's own
    /// commits get in between. A dry run is the caller's.
    pub fn transaction<T, E>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E>
    where
        E: From<Error>,
    {
        self.mannerly(|begun| {
            self.outbox.transaction(|tx| {
                begun();
                work(tx)
            })
        })
    }

    /// Does something to each, in steps, up to the first that refuses: the one way to change many.
    pub(super) fn each<T>(
        &self,
        ids: &[i64],
        mut act: impl FnMut(&Connection, i64, Deed<'_>) -> Result<T>,
    ) -> (Vec<T>, Result<()>) {
        let mut done = Vec::with_capacity(ids.len());
        while let Some(rest) = ids.get(done.len()..).filter(|it| !it.is_empty()) {
            if self.cancel.is_cancelled() {
                let interrupted = Error::Interrupted {
                    done: done.len() as u64,
                };
                return (done, Err(interrupted));
            }
            match self.step(|conn, deed| self.some(conn, rest, deed, &mut act)) {
                Ok((some, ended)) => {
                    done.extend(some);
                    if ended.is_err() {
                        return (done, ended);
                    }
                }
                Err(error) => return (done, Err(error)),
            }
        }
        (done, Ok(()))
    }

    /// As many of them as one transaction takes. What stands before one that refuses stays done.
    fn some<T>(
        &self,
        conn: &Connection,
        ids: &[i64],
        deed: Deed<'_>,
        act: &mut impl FnMut(&Connection, i64, Deed<'_>) -> Result<T>,
    ) -> Result<(Vec<T>, Result<()>)> {
        let clock = self.outbox.shared().clock();
        let begun = clock.monotonic();
        let mut done = Vec::new();
        for id in ids.iter().take(STEP) {
            match operate::whole(conn, || act(conn, *id, deed)) {
                Ok(it) => done.push(it),
                Err(error) if conn.is_autocommit() => return Err(error),
                Err(error) => return Ok((done, Err(error))),
            }
            if clock.monotonic().saturating_sub(begun) >= SPAN {
                break;
            }
        }
        Ok((done, Ok(())))
    }

    /// One of several transactions.
    pub(super) fn step<T>(
        &self,
        act: impl FnOnce(&Connection, Deed<'_>) -> Result<T>,
    ) -> Result<T> {
        self.mannerly(|begun| {
            self.write(|conn, deed| {
                begun();
                act(conn, deed)
            })
        })
    }

    /// Leaves the lock free after a transaction, which tells when it has it.
    fn mannerly<T>(&self, write: impl FnOnce(&mut dyn FnMut()) -> T) -> T {
        let clock = self.outbox.shared().clock();
        let mut begun = None;
        let done = write(&mut || begun = Some(clock.monotonic()));
        if let Some(begun) = begun {
            let held = clock.monotonic().saturating_sub(begun);
            clock::pause(held.saturating_mul(MANNERS));
        }
        done
    }

    /// One transaction. Afterwards the pumps of this process look.
    pub(super) fn write<T>(
        &self,
        act: impl FnOnce(&Connection, Deed<'_>) -> Result<T>,
    ) -> Result<T> {
        let shared = self.outbox.shared();
        shared.opener().check_writable()?;
        let conn = shared.reader()?;
        let tx = operate::begin(&conn).map_err(|error| shared.opener().explain(error))?;
        let done = act(&tx, self.deed())?;
        match self.dry_run {
            true => tx.rollback()?,
            false => tx.commit()?,
        }
        shared.look();
        Ok(done)
    }
}
