//! The façade: one outbox in one file.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, Savepoint, Transaction, TransactionBehavior};

use crate::clock::Clock;
use crate::conflict::Conflict;
use crate::dispatch::{DeliveredHook, Dispatcher};
use crate::drain::Drainer;
use crate::draining::{DrainReport, Draining, PumpBuilder};
use crate::entry::{Attempt, AuditEntry, DeadReason, Entry, Filter};
use crate::error::{Error, Result};
use crate::message::{Enqueued, Message};
use crate::observer::Observer;
use crate::operator::Operator;
use crate::options::Options;
use crate::pump::Waker;
use crate::settings::Settings;
use crate::stats::Stats;
use crate::store::connect::{Access, Opener};
use crate::store::enqueue::{self, Limits};
use crate::store::pool::{Pool, PooledConnection, Reader};
use crate::store::{census, conflict, find, read, select, stats};

/// The outbox in one SQLite file. Cheap to clone; clones share everything.
#[derive(Debug, Clone)]
pub struct Outbox {
    shared: Arc<Shared>,
}

/// What all parts of one opened outbox have in common.
pub(crate) struct Shared {
    pool: Pool,
    instance: Arc<str>,
    limits: Limits,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
    on_delivered: Option<Arc<DeliveredHook>>,
    /// Pumps of this process, to be woken by commits that go through here.
    wakers: Mutex<Vec<Waker>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("path", &self.path())
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn path(&self) -> &Path {
        self.pool.opener().path()
    }

    /// The wall clock, in milliseconds since 1970 UTC.
    pub(crate) fn now(&self) -> i64 {
        self.clock.wall()
    }

    /// Something was committed: the pumps of this process look.
    pub(crate) fn look(&self) {
        self.wakers().retain(Waker::look);
    }

    /// Whether a payload of this size is let in.
    pub(crate) fn check_size(&self, bytes: usize) -> Result<()> {
        let limit = self.limits.max_payload;
        match bytes > limit {
            true => Err(Error::TooLarge { bytes, limit }),
            false => Ok(()),
        }
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    pub(crate) fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.observer.clone()
    }

    /// A drain on a connection of its own, which is never lent out.
    pub(crate) fn drainer(&self, settings: &Settings) -> Result<Drainer> {
        self.opener().check_writable()?;
        Drainer::new(
            self.opener().open()?,
            Arc::clone(self.opener().place()),
            self.clock(),
            settings.clone(),
            self.on_delivered.clone(),
            Arc::clone(&self.instance),
        )
    }

    /// A connection for work of ours, without waiting for those that the application holds.
    pub(crate) fn reader(&self) -> Result<Reader> {
        self.pool.reader()
    }

    pub(crate) fn opener(&self) -> &Opener {
        self.pool.opener()
    }

    pub(crate) fn add_waker(&self, waker: Waker) {
        self.wakers().push(waker);
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outbox {
    /// Opens the outbox in this database; makes the file and the tables where they are missing.
    /// See [`Options::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Options::default().open(path)
    }

    /// Opens an outbox that is there. Creates and changes nothing.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Self> {
        Options::default().open_existing(path)
    }

    /// Opens an outbox that is there for a look, also where this user may not write it. See
    /// [`Options::open_to_read`].
    pub fn open_to_read(path: impl AsRef<Path>) -> Result<Self> {
        Options::default().open_to_read(path)
    }

    /// Limits, hooks, the pool's size: what to set before opening.
    pub fn options() -> Options {
        Options::default()
    }

    pub(crate) fn with(
        options: Options,
        path: &Path,
        access: Access,
        create: bool,
    ) -> Result<Self> {
        let opener = Arc::new(Opener::new(path, options.on_connect, options.vfs, access)?);
        let pool = Pool::new(opener.clone(), options.pool_size)?;
        let conn = opener.establish(create)?;
        let instance = opener.instance_id(&conn)?.into();
        let shared = Shared {
            pool,
            instance,
            limits: Limits::new(options.max_payload, options.max_unsent),
            clock: options.clock,
            observer: options.observer,
            on_delivered: options.on_delivered,
            wakers: Mutex::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The database file, as an absolute path.
    pub fn path(&self) -> &Path {
        self.shared.path()
    }

    /// Whether the file is read as it lies, without locks: see [`Options::open_to_read`].
    pub fn reads_unlocked(&self) -> bool {
        self.shared.opener().unlocked()
    }

    /// The random name of this file's outbox, which tells two tills apart.
    pub fn instance_id(&self) -> &str {
        &self.shared.instance
    }

    /// A connection to the file, for the application's own work: `synchronous=EXTRA`, 5 s busy
    /// timeout. Waits up to 8 s when all are lent, then answers [`Error::Pool`].
    ///
    /// It has `temp_store=MEMORY`, which makes large transactions faster and spares the disk. So
    /// temporary tables and large sorts are in memory too, and a `VACUUM` builds the whole file
    /// there: leave that to [`compact`](Self::compact), or set `temp_store` as you like in
    /// [`Options::on_connect`].
    pub fn connection(&self) -> Result<PooledConnection> {
        (self.shared.opener().place().check()).and_then(|()| self.shared.pool.get())
    }

    /// Runs `work` in an immediate transaction on a connection of the pool and commits.
    ///
    /// When `work` or the commit fails, everything is rolled back and nothing is sent.
    ///
    /// ```no_run
    /// # use sqlite_outbox::{Message, Outbox};
    /// # fn main() -> anyhow::Result<()> {
    /// # let outbox = Outbox::open("till.db")?;
    /// outbox.transaction(|tx| {
    ///     tx.execute("INSERT INTO sale (id, total) VALUES ('S-104522', 1250)", [])?;
    ///     outbox.enqueue(tx, &Message::text("sales", "S-104522").dedupe_key("S-104522"))?;
    ///     anyhow::Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn transaction<T, E>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E>
    where
        E: From<Error>,
    {
        self.shared.opener().check_writable().map_err(E::from)?;
        let mut conn = self.shared.pool.get()?;
        let explain = |error| self.shared.opener().explain(error);
        let begun = conn.transaction_with_behavior(TransactionBehavior::Immediate);
        let tx = begun.map_err(explain)?;
        let value = work(&tx)?;
        if tx.is_autocommit() {
            return Err(Error::TransactionGone.into());
        }
        // As `tx.commit()`, with a statement that is prepared already.
        let committed = tx
            .prepare_cached("COMMIT")
            .and_then(|mut it| it.execute([]));
        committed.map_err(explain)?;
        drop(tx);
        // What went into a file that was taken away is not confirmed.
        self.shared.opener().place().check()?;
        self.shared.look();
        Ok(value)
    }

    /// Puts a message into the outbox, within the caller's transaction: both are committed or
    /// neither.
    ///
    /// The transaction may be on any connection to the file. That there is one is checked, not
    /// that it is one of this file: a message goes where the transaction is. Let it be an immediate one: a
    /// deferred one that read first fails with [`Error::RestartTransaction`] when another
    /// connection has written since.
    ///
    /// # When the dedupe key is taken
    ///
    /// A key is taken as long as a message of the channel with it is in the file, whatever its
    /// status. It is freed when the message is removed: by retention
    /// ([`Settings::keep_sent`](crate::Settings::keep_sent)), by
    /// [`Operator::purge`](crate::Operator::purge), or by a `DELETE`. Keys of different channels have nothing to do with each
    /// other. In the table, an answer without a word on the content is the same for both.
    ///
    /// | the key's message is | same content | other content | other content, [`Replace`] |
    /// |---|---|---|---|
    /// | pending or waiting, never claimed | [`Duplicate`] | [`Conflict`] | [`Replaced`]; in another lane [`Conflict`] |
    /// | pending or waiting, attempted before | [`Duplicate`] | [`Conflict`] | [`Conflict`] |
    /// | sending, sent, dead, expired, cancelled | [`Duplicate`] | [`Conflict`] | [`Conflict`] |
    /// | sent, its payload emptied by retention | [`Duplicate`] | [`Duplicate`] if all but the payload is equal | the same |
    /// | purged or deleted | [`New`] | [`New`] | [`New`] |
    ///
    /// With [`OnDuplicate::Fail`](crate::OnDuplicate::Fail), every answer but `New` is
    /// [`Error::Duplicate`]. Keys are remembered as long as
    /// [`Settings::keep_sent`](crate::Settings::keep_sent) says; those of unsent and dead messages
    /// for ever.
    ///
    /// The content counts as the same when payload, event type,
    /// recipient, ordering key, principal, content type, headers and the moments of
    /// [`Message::available_at`] and [`Message::expires_at`] are equal. A span
    /// ([`Message::delay`], [`Message::ttl`]) counts as equal to any moment. A payload that
    /// retention has emptied counts as equal to any payload.
    ///
    /// [`New`]: Enqueued::New
    /// [`Duplicate`]: Enqueued::Duplicate
    /// [`Conflict`]: Enqueued::Conflict
    /// [`Replaced`]: Enqueued::Replaced
    /// [`Replace`]: crate::OnDuplicate::Replace
    ///
    /// # Errors
    ///
    /// A refused message ([`Error::InvalidMessage`], [`Error::TooLarge`], [`Error::Duplicate`],
    /// [`Error::OutboxFull`]) leaves the transaction usable. After a full disk or another failure
    /// of the storage, SQLite may have rolled it back by itself: then every further call with it
    /// is refused with [`Error::TransactionGone`], and so is its commit.
    pub fn enqueue(&self, tx: &Transaction<'_>, message: &Message) -> Result<Enqueued> {
        self.enqueue_within(tx, message, Error::TransactionGone)
    }

    /// As [`enqueue`](Self::enqueue), within a savepoint.
    pub fn enqueue_in(&self, savepoint: &Savepoint<'_>, message: &Message) -> Result<Enqueued> {
        self.enqueue_within(savepoint, message, Error::TransactionGone)
    }

    /// As [`enqueue`](Self::enqueue), on a plain connection on which the caller, or another
    /// library, has begun a transaction. Outside one: [`Error::NoTransaction`].
    pub fn enqueue_on(&self, conn: &Connection, message: &Message) -> Result<Enqueued> {
        self.enqueue_within(conn, message, Error::NoTransaction)
    }

    /// Puts many messages in: for each, in their order, the same as [`enqueue`](Self::enqueue).
    ///
    /// A refused message has its error in its place and does not stop the others; whether to
    /// commit without it is the caller's decision. Any other failure ends the call, and the
    /// transaction should then be rolled back.
    pub fn enqueue_all<'a>(
        &self,
        tx: &Transaction<'_>,
        messages: impl IntoIterator<Item = &'a Message>,
    ) -> Result<Vec<Result<Enqueued>>> {
        self.check_open(tx, Error::TransactionGone)?;
        let now = self.shared.clock.wall();
        enqueue::enqueue_all(tx, messages, &self.shared.limits, now)
    }

    fn enqueue_within(
        &self,
        conn: &Connection,
        message: &Message,
        otherwise: Error,
    ) -> Result<Enqueued> {
        self.check_open(conn, otherwise)?;
        let now = self.shared.clock.wall();
        enqueue::enqueue(conn, message, &self.shared.limits, now)
    }

    /// After an automatic rollback a handle looks as before, but what is written through it would
    /// be committed at once and alone.
    fn check_open(&self, conn: &Connection, otherwise: Error) -> Result<()> {
        self.shared.opener().check_process()?;
        self.shared.opener().place().check()?;
        match conn.is_autocommit() {
            true => Err(otherwise),
            false => Ok(()),
        }
    }

    /// Sync now: drains in the calling thread until nothing more can be done. See [`Draining::run`].
    pub fn drain(&self, dispatcher: &dyn Dispatcher) -> Result<DrainReport> {
        self.draining(dispatcher).run()
    }

    /// A drain with settings, deadline, cancel or progress.
    pub fn draining<'a>(&'a self, dispatcher: &'a dyn Dispatcher) -> Draining<'a> {
        Draining::new(self, dispatcher)
    }

    /// Drains in the background until stopped.
    pub fn pump(&self, dispatcher: impl Dispatcher + 'static) -> PumpBuilder {
        PumpBuilder::new(self, Arc::new(dispatcher))
    }

    /// Wakes this process's pumps; see [`Pump::wake`](crate::Pump::wake).
    pub fn wake(&self) {
        self.shared.wakers().retain(Waker::wake);
    }

    /// What is waiting, for how long, and why. Its `Display` is one line for the cashier.
    ///
    /// Reads indexes only, some 120 ms per million messages. Each channel is read at a moment of
    /// its own.
    pub fn stats(&self) -> Result<Stats> {
        let conn = self.shared.pool.reader()?;
        stats::stats(&conn, self.shared.clock.wall())
    }

    /// How many messages are still to be sent: pending, waiting and sending. Dead letters are not
    /// among them.
    ///
    /// Exact, and a matter of a few milliseconds at a million.
    pub fn unsent(&self) -> Result<u64> {
        census::unsent(&*self.shared.pool.reader()?)
    }

    /// Messages by id. The answer may be shorter than the limit while more follow (it is bounded
    /// in bytes too); an empty one is the end.
    ///
    /// All pages of a long list cost about the same. Only where what is wanted is scattered, less
    /// than one in four among others, does a page of tried, waiting, expired or cancelled messages
    /// sort what each channel has of them.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Entry>> {
        read::list(&*self.shared.pool.reader()?, filter)
    }

    /// The message with this id.
    pub fn get(&self, id: i64) -> Result<Option<Entry>> {
        read::get(&*self.shared.pool.reader()?, id)
    }

    /// The message that has this dedupe key in this channel.
    pub fn get_by_key(&self, channel: &str, dedupe_key: &str) -> Result<Option<Entry>> {
        read::by_key(&*self.shared.pool.reader()?, channel, dedupe_key)
    }

    /// The message that a person means by an id, a dedupe key or a message id; `id:17`, `key:17` and
    /// `message:0f3a…` say which of them it is.
    ///
    /// [`Error::NotFound`] when there is none, [`Error::Ambiguous`] when there are several: the
    /// same key in two channels (then name one), or a key that is another message's id. A message
    /// id is looked for last and takes a moment per million messages.
    pub fn find(&self, which: &str, channel: Option<&str>) -> Result<Entry> {
        find::find(&*self.shared.pool.reader()?, which, channel)
    }

    /// The failed attempts of a message that are still remembered, oldest first, at most 1,000.
    pub fn attempts(&self, id: i64) -> Result<Vec<Attempt>> {
        read::attempts(&*self.shared.pool.reader()?, id)
    }

    /// Someone who acts on stored messages and channels: a person, or a part of the application.
    /// `who` is recorded with everything done, so let it tell two people apart: `anna@till-7`.
    pub fn operator(&self, who: impl Into<String>) -> Operator<'_> {
        Operator::new(self, who.into())
    }

    /// What operators did, newest first, at most `limit` entries: to one message, or at all.
    ///
    /// Entries are kept as long as sent messages ([`Settings::keep_sent`](crate::Settings::keep_sent)),
    /// and never more than about 100,000.
    pub fn audit(&self, message: Option<i64>, limit: usize) -> Result<Vec<AuditEntry>> {
        select::audit(&*self.shared.reader()?, message, limit)
    }

    /// Why letters are dead: grouped by channel, code and HTTP status of their last failed attempt,
    /// the largest group first. [`Selection`](crate::Selection) picks such a group.
    pub fn dead_reasons(&self) -> Result<Vec<DeadReason>> {
        select::dead_reasons(&*self.shared.reader()?)
    }

    /// Duplicates with other content that plain SQL put in and that wait for a person's decision:
    /// those after one of them (0 for the first), of one channel or of all. An empty answer is the
    /// end; at most 1,000, and fewer where payloads are large.
    pub fn conflicts(
        &self,
        channel: Option<&str>,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Conflict>> {
        conflict::list(&*self.shared.reader()?, after, channel, limit)
    }

    /// The conflicts over the key that this message holds, at most 1,000.
    pub fn conflicts_of(&self, message: i64) -> Result<Vec<Conflict>> {
        conflict::of_message(&*self.shared.reader()?, message)
    }

    /// The conflict with this number.
    pub fn conflict(&self, id: i64) -> Result<Option<Conflict>> {
        conflict::get(&*self.shared.reader()?, id)
    }
}
