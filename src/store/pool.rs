//! The connections that are lent out.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use r2d2::ManageConnection;
use rusqlite::Connection;
use scheduled_thread_pool::ScheduledThreadPool;

use crate::error::{Error, Result};
use crate::store::connect::Opener;

/// Longer than a connection waits for the write lock, so that whoever holds one gives it back.
const CHECKOUT: Duration = Duration::from_secs(8);

/// After this much waiting the file itself is looked at.
const PATIENCE: Duration = Duration::from_millis(500);

/// A connection of the outbox's pool. Goes back when it is dropped; a transaction that is still
/// open on it then is rolled back.
#[derive(Debug)]
pub struct PooledConnection(r2d2::PooledConnection<Manager>);

impl Deref for PooledConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.0
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.0
    }
}

#[derive(Debug)]
struct Manager(Arc<Opener>);

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = Error;

    fn connect(&self) -> Result<Connection> {
        self.0.open()
    }

    /// Called before a connection is lent: what the last borrower set is not the next one's.
    fn is_valid(&self, conn: &mut Connection) -> Result<()> {
        self.0.vouch(conn)
    }

    /// Called when a connection comes back. In the pool it must hold no lock.
    fn has_broken(&self, conn: &mut Connection) -> bool {
        !conn.is_autocommit() && conn.execute_batch("ROLLBACK").is_err()
    }
}

/// What a failed connect is told to: the next caller hears of it, so no log line.
#[derive(Debug)]
struct Silent;

impl r2d2::HandleError<Error> for Silent {
    fn handle_error(&self, _: Error) {}
}

thread_local! {
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

/// Runs `on_delivered`. It holds the write lock, so a connection of its own could only wait for
/// itself: it is refused one.
pub(crate) fn within_hook<T>(hook: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            IN_HOOK.set(false);
        }
    }
    IN_HOOK.set(true);
    let _leave = Leave;
    hook()
}

/// A small pool that opens nothing before it is asked.
#[derive(Debug)]
pub(crate) struct Pool {
    opener: Arc<Opener>,
    pool: r2d2::Pool<Manager>,
}

impl Pool {
    pub(crate) fn new(opener: Arc<Opener>, size: u32) -> Result<Self> {
        if size == 0 {
            return Err(Error::InvalidSetting("pool_size must be at least 1".into()));
        }
        let thread = ScheduledThreadPool::builder()
            .num_threads(1)
            .thread_name_pattern("outbox-pool")
            .build();
        let pool = r2d2::Pool::builder()
            .max_size(size)
            .min_idle(Some(0))
            // Nothing expires, so nothing wakes up while nothing happens.
            .max_lifetime(None)
            .idle_timeout(None)
            .test_on_check_out(true)
            .connection_timeout(CHECKOUT)
            .error_handler(Box::new(Silent))
            .thread_pool(Arc::new(thread))
            .build(Manager(opener.clone()))
            .map_err(|error| Error::Pool(error.to_string()))?;
        Ok(Self { opener, pool })
    }

    pub(crate) fn opener(&self) -> &Opener {
        &self.opener
    }

    /// A connection, waiting for one if all are lent.
    pub(crate) fn get(&self) -> Result<PooledConnection> {
        self.opener.check_process()?;
        if IN_HOOK.get() {
            let why = "on_delivered must use the connection it is given, not another one";
            return Err(Error::Refused(why.into()));
        }
        if let Ok(conn) = self.pool.get_timeout(PATIENCE) {
            return Ok(PooledConnection(conn));
        }
        // The pool would go on trying in vain where the file cannot be opened at all, and it keeps
        // the cause as text only.
        drop(self.opener.open()?);
        let size = self.pool.max_size();
        let late = |_| Error::Pool(format!("all {size} of the pool are lent"));
        let conn = self.pool.get_timeout(CHECKOUT - PATIENCE).map_err(late)?;
        Ok(PooledConnection(conn))
    }

    /// A connection for a read of ours, without waiting for those that the application holds: its
    /// own thread may hold them.
    pub(crate) fn reader(&self) -> Result<Reader> {
        self.opener.check_process()?;
        self.opener.place().check()?;
        let state = self.pool.state();
        if (state.idle_connections > 0 || state.connections < self.pool.max_size())
            && let Ok(conn) = self.pool.get_timeout(PATIENCE)
        {
            return Ok(Reader::Lent(PooledConnection(conn)));
        }
        Ok(Reader::Own(self.opener.open()?))
    }
}

/// See [`Pool::reader`].
pub(crate) enum Reader {
    Lent(PooledConnection),
    Own(Connection),
}

impl Deref for Reader {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match self {
            Self::Lent(conn) => conn,
            Self::Own(conn) => conn,
        }
    }
}
