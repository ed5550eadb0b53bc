//! Reads that take long, where readers keep writers waiting: in a file without a write-ahead log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use crate::clock::{self, Clock};
use crate::error::{Error, Result, unless_damaged};
use crate::store::connect::Opener;
use crate::store::file;

/// How long somebody who writes is kept waiting by one read.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often it is asked whether somebody is.
const EVERY: Duration = Duration::from_millis(200);

/// Operations of SQLite's machine, or pages that it checks, between two looks at the clock.
const OPERATIONS: i32 = 32;

/// Breaks a read off that somebody has waited for. Whoever reads on while nobody writes is let be.
pub(crate) struct Patience(Arc<Mutex<State>>);

struct State {
    /// Takes the write lock and gives it back at once: where it cannot be had, somebody writes.
    asks: Connection,
    clock: Arc<dyn Clock>,
    begun: Duration,
    asked: Duration,
    /// Since when somebody writes.
    writing: Option<Duration>,
}

impl Patience {
    /// `None` where reading keeps nobody waiting.
    pub(crate) fn of(
        opener: &Opener,
        conn: &Connection,
        clock: Arc<dyn Clock>,
    ) -> Result<Option<Self>> {
        let mode: String = unless_damaged(file::journal_mode(conn))?;
        if mode == "wal" || opener.unlocked() {
            return Ok(None);
        }
        let asks = opener.open()?;
        asks.busy_timeout(Duration::ZERO)?;
        // For a look it is set, and no lock can be had.
        asks.execute_batch("PRAGMA query_only = 0")?;
        let now = clock.monotonic();
        Ok(Some(Self(Arc::new(Mutex::new(State {
            asks,
            clock,
            begun: now,
            asked: now,
            writing: None,
        })))))
    }

    /// A read begins.
    pub(crate) fn begin(&self) {
        let mut state = lock(&self.0);
        state.begun = state.clock.monotonic();
        state.asked = state.begun;
        state.writing = None;
    }

    /// Whether somebody has waited for long enough.
    #[cfg(feature = "backup")]
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.0).is_over()
    }

    /// Reads. `None` where it was broken off; then, or where somebody had to wait, they have the file for
    /// as long afterwards.
    pub(crate) fn read<T>(
        &self,
        conn: &Connection,
        read: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        self.begin();
        let state = self.0.clone();
        conn.progress_handler(OPERATIONS, Some(move || lock(&state).is_over()))?;
        let done = read();
        conn.progress_handler(0, None::<fn() -> bool>)?;
        if let Some(held) = lock(&self.0).kept_waiting() {
            clock::pause(held.min(PATIENCE));
        }
        match done {
            Err(Error::Sqlite(error))
                if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) =>
            {
                Ok(None)
            }
            done => done.map(Some),
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn is_over(&mut self) -> bool {
        let now = self.clock.monotonic();
        if now.saturating_sub(self.asked) < EVERY {
            return false;
        }
        self.asked = now;
        // Where the lock cannot be had at all, somebody may be waiting.
        if self.asks.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok() {
            self.writing = None;
            return false;
        }
        let since = *self.writing.get_or_insert(now);
        now.saturating_sub(since) >= PATIENCE.saturating_sub(EVERY)
    }

    /// How long the read took, if somebody waits for its end.
    fn kept_waiting(&self) -> Option<Duration> {
        let held = self.clock.monotonic().saturating_sub(self.begun);
        self.writing.map(|_| held)
    }
}
