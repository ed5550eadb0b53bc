//! Rows and triggers that refuse: met row by row under savepoints, so that each stops itself only.

use rusqlite::ErrorCode;

use crate::drain::transact::{Effects, Transact, Trouble};
use crate::observer::{Event, logged};
use crate::store::settle;
use crate::store::untold::Untold;

impl Transact<'_> {
    /// Does something that can wait; when careful, under a savepoint, so that a row which refuses
    /// it stops nobody. `None`: it was refused.
    pub(crate) fn tolerated<T>(
        &self,
        act: impl FnOnce() -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Trouble> {
        if !self.careful {
            return Ok(Some(act()?));
        }
        self.conn.execute_batch("SAVEPOINT outbox_step")?;
        let done = match act() {
            Ok(done) => Some(done),
            Err(error) if is_constraint(&error) => {
                logged(|| log::warn!("a row of the outbox refuses to be changed: {error}"));
                self.conn.execute_batch("ROLLBACK TO outbox_step")?;
                None
            }
            Err(error) => return Err(error.into()),
        };
        self.conn.execute_batch("RELEASE outbox_step")?;
        Ok(done)
    }

    /// Does something to one row; when careful, under a savepoint, so that a row which refuses it
    /// is quarantined instead of stopping everyone. `None`: it was.
    pub(crate) fn guarded<T>(
        &self,
        id: i64,
        effects: &mut Effects,
        act: impl FnOnce(&mut Effects) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Trouble> {
        self.recording(id, Untold::Nothing, effects, act)
    }

    /// The same where the row is to hold what an attempt came to: that is told also where it refuses.
    pub(crate) fn recording<T>(
        &self,
        id: i64,
        untold: Untold<'_>,
        effects: &mut Effects,
        act: impl FnOnce(&mut Effects) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Trouble> {
        if self.memory.untouchable.contains(&id) {
            return Ok(None);
        }
        if !self.careful {
            return Ok(Some(act(effects)?));
        }
        self.conn.execute_batch("SAVEPOINT outbox_row")?;
        let refusal = match act(effects) {
            Ok(done) => {
                self.conn.execute_batch("RELEASE outbox_row")?;
                return Ok(Some(done));
            }
            Err(_) if self.conn.is_autocommit() => return Err(Trouble::RowEndedTransaction { id }),
            Err(error) if is_constraint(&error) => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        self.conn.execute_batch("ROLLBACK TO outbox_row")?;
        let failure = untold.refused(&refusal);
        let quarantined = match settle::quarantine(self.conn, id, &failure, untold, self.at.wall) {
            Ok(quarantined) => quarantined,
            Err(_) if self.conn.is_autocommit() => return Err(Trouble::RowEndedTransaction { id }),
            Err(error) if is_constraint(&error) => {
                self.conn.execute_batch("ROLLBACK TO outbox_row")?;
                effects.changes.untouchable.push(id);
                effects.events.push(Event::Refused {
                    id,
                    error: untold.refused(&error.to_string()).text,
                });
                None
            }
            Err(error) => return Err(error.into()),
        };
        self.conn.execute_batch("RELEASE outbox_row")?;
        if let Some(channel) = quarantined {
            effects.events.push(Event::Dead {
                id,
                channel,
                error: failure.text,
            });
        }
        Ok(None)
    }
}

/// Whether it is a rule of the file that refuses a row.
pub(super) fn is_constraint(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch)
    )
}
