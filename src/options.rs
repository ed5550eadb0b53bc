//! How an outbox is opened.

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;

use crate::clock::{Clock, SystemClock};
use crate::dispatch::{DeliveredHook, Delivery, Receipt};
use crate::error::Result;
use crate::message::DEFAULT_MAX_PAYLOAD;
use crate::observer::Observer;
use crate::outbox::Outbox;
use crate::store::connect::{Access, ConnectHook};

/// How to open an [`Outbox`]: everything has a default.
///
/// ```no_run
/// # fn main() -> sqlite_outbox::Result<()> {
/// use sqlite_outbox::Outbox;
/// let outbox = Outbox::options().max_unsent(100_000).open("till.db")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "options open nothing by themselves"]
pub struct Options {
    pub(crate) max_payload: usize,
    pub(crate) max_unsent: Option<u64>,
    pub(crate) pool_size: u32,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) on_connect: Option<Arc<ConnectHook>>,
    pub(crate) vfs: Option<String>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) on_delivered: Option<Arc<DeliveredHook>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_payload: DEFAULT_MAX_PAYLOAD,
            max_unsent: None,
            pool_size: 4,
            clock: Arc::new(SystemClock::default()),
            on_connect: None,
            vfs: None,
            observer: None,
            on_delivered: None,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("max_payload", &self.max_payload)
            .field("max_unsent", &self.max_unsent)
            .field("pool_size", &self.pool_size)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The largest payload in bytes that is let in. Default
    /// [`DEFAULT_MAX_PAYLOAD`](crate::DEFAULT_MAX_PAYLOAD).
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// The most unsent messages; one more is refused with
    /// [`Error::OutboxFull`](crate::Error::OutboxFull). Several processes that enqueue at once may
    /// exceed it by an eighth of what was free. Default: no limit but the disk.
    ///
    /// There is no limit in bytes: how many bytes all payloads have cannot be known without
    /// reading them. Together with [`max_payload`](Self::max_payload) this one bounds them.
    pub fn max_unsent(mut self, messages: u64) -> Self {
        self.max_unsent = Some(messages);
        self
    }

    /// The most connections that [`Outbox::connection`] lends at once, at least 1. Default 4; none
    /// is opened before it is asked for.
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.pool_size = connections;
        self
    }

    /// Another source of time, for tests. Default: the machine's clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Runs on every connection the outbox opens, before anything is read: the key of an encrypted
    /// file, pragmas of the application. Before it `temp_store` was set to `MEMORY`, which it may
    /// change. `synchronous` and the busy timeout are raised to `EXTRA` and 5 s afterwards where
    /// they are lower.
    pub fn on_connect(
        mut self,
        hook: impl Fn(&Connection) -> rusqlite::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.on_connect = Some(Arc::new(hook));
        self
    }

    /// Reaches the file through the SQLite VFS of this name, which the program has registered: an
    /// encrypted or compressed one, or one of its tests. Default: the system's. The path must name
    /// a real file all the same.
    ///
    /// Opening fails with [`Error::Sqlite`](crate::Error::Sqlite) ("no such vfs") where none is
    /// registered. Other programs, such as the tool, know nothing of it.
    pub fn vfs(mut self, name: impl Into<String>) -> Self {
        self.vfs = Some(name.into());
        self
    }

    /// Hears what happens while messages are sent.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Runs within the transaction that records a delivery, on that transaction: the place to
    /// store the receiver's document number. When it fails, what it wrote is undone; the delivery
    /// stays recorded, and the failure is told ([`Event::HookFailed`](crate::Event::HookFailed),
    /// `last_error`), not repeated. It holds the write lock, so it must be brief, and it must use
    /// the connection it is given.
    ///
    /// It runs where this outbox drains. Another program that drains the file, such as the tool,
    /// stores the receiver's id and answer in the row and nothing more.
    pub fn on_delivered(
        mut self,
        hook: impl Fn(&Connection, &Delivery, &Receipt) -> anyhow::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.on_delivered = Some(Arc::new(hook));
        self
    }

    /// Opens the outbox in this database; makes the file and the tables where they are missing,
    /// and brings an older outbox up to date.
    ///
    /// A database that is there keeps its journal mode and everything else that is in it. A new
    /// file gets the write-ahead log.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Outbox> {
        Outbox::with(self, path.as_ref(), Access::Full, true)
    }

    /// Opens an outbox that is there. Creates and changes nothing.
    pub fn open_existing(self, path: impl AsRef<Path>) -> Result<Outbox> {
        Outbox::with(self, path.as_ref(), Access::Full, false)
    }

    /// Opens an outbox that is there for a look: what writes fails with
    /// [`Error::ReadOnly`](crate::Error::ReadOnly), and it works where
    /// this user may write neither the file nor its folder, where a newer program forbids
    /// writers as old as this one, and where a part of the file is damaged: what can be read is.
    ///
    /// A file with a write-ahead log that nobody has open, in a folder that cannot be written or on a
    /// full disk, is read as it lies, without locks: whatever another program writes meanwhile may be missed. If
    /// there is something in its log: [`Error::NeedsWriting`](crate::Error::NeedsWriting).
    pub fn open_to_read(self, path: impl AsRef<Path>) -> Result<Outbox> {
        Outbox::with(self, path.as_ref(), Access::Look, false)
    }
}
