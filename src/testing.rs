//! For tests of programs that use the outbox: a clock that is set by hand, a scripted receiver, and
//! a drain that runs in the calling thread, step by step.
//!
//! ```
//! use sqlite_outbox::testing::{Inline, ManualClock, Script};
//! use sqlite_outbox::{Message, Outbox, Outcome};
//! use std::time::Duration;
//!
//! # fn main() -> anyhow::Result<()> {
//! # let dir = tempfile::tempdir()?;
//! let clock = ManualClock::at(1_800_000_000_000);
//! let outbox = Outbox::options().clock(clock.shared()).open(dir.path().join("till.db"))?;
//! outbox.transaction(|tx| outbox.enqueue(tx, &Message::text("sales", "one")))?;
//!
//! let script = Script::new([Outcome::unreachable("no network"), Outcome::delivered()]);
//! let mut drain = Inline::new(&outbox, Default::default())?;
//! drain.until_idle(&script)?;
//! assert_eq!(outbox.unsent()?, 1);
//!
//! clock.advance(Duration::from_secs(60));
//! drain.until_idle(&script)?;
//! assert_eq!(outbox.unsent()?, 0);
//! assert_eq!(script.seen().len(), 2);
//! # Ok(())
//! # }
//! ```

mod inline;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, millis};
use crate::dispatch::{Delivery, Dispatcher, Outcome};
use crate::entry::{Entry, Filter};
use crate::error::Result;
use crate::observer::Event;
use crate::outbox::Outbox;
use crate::settings::Settings;

pub use inline::{Call, Inline, Step};

/// A clock that moves only by hand. Clones show the same time.
#[derive(Debug, Clone)]
pub struct ManualClock {
    hands: Arc<Hands>,
}

#[derive(Debug)]
struct Hands {
    wall: AtomicI64,
    monotonic: AtomicI64,
}

impl ManualClock {
    /// A clock that shows this many milliseconds since 1970 UTC.
    pub fn at(wall: i64) -> Self {
        Self {
            hands: Arc::new(Hands {
                wall: AtomicI64::new(wall),
                monotonic: AtomicI64::new(0),
            }),
        }
    }

    /// The clock as [`Options::clock`](crate::Options::clock) takes it.
    pub fn shared(&self) -> Arc<dyn Clock> {
        Arc::new(self.clone())
    }

    /// Time passes.
    pub fn advance(&self, span: Duration) {
        self.hands.wall.fetch_add(millis(span), Ordering::SeqCst);
        self.hands
            .monotonic
            .fetch_add(millis(span), Ordering::SeqCst);
    }

    /// The machine sleeps: the wall clock goes on, the monotonic one stands still.
    pub fn sleep(&self, span: Duration) {
        self.jump(millis(span));
    }

    /// Someone sets the wall clock, by this many milliseconds.
    pub fn jump(&self, by: i64) {
        self.hands.wall.fetch_add(by, Ordering::SeqCst);
    }

    /// Milliseconds since 1970 UTC.
    pub fn now(&self) -> i64 {
        self.wall()
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> i64 {
        self.hands.wall.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        let monotonic = self.hands.monotonic.load(Ordering::SeqCst);
        Duration::from_millis(monotonic.unsigned_abs())
    }
}

/// The messages of a channel that are neither sent nor settled otherwise, in the order of their
/// enqueue: what a test of the application's own code has put there.
///
/// # Panics
///
/// If the file cannot be read.
#[allow(clippy::panic)] // An assertion.
#[track_caller]
pub fn pending(outbox: &Outbox, channel: &str) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut after = 0;
    loop {
        let page = match outbox.list(&Filter::new().channel(channel).after(after)) {
            Ok(page) => page,
            Err(error) => panic!("the outbox cannot be read: {}", error.chain()),
        };
        let Some(last) = page.last() else {
            return found;
        };
        after = last.id;
        found.extend(page.into_iter().filter(|it| it.status.is_unsent()));
    }
}

/// The message of a channel with this dedupe key, in whatever state it is.
///
/// ```
/// use sqlite_outbox::testing::{assert_enqueued, deliver_all, pending, Script};
/// use sqlite_outbox::{Message, Outbox};
///
/// # fn main() -> sqlite_outbox::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let outbox = Outbox::open(dir.path().join("till.db"))?;
/// outbox.transaction(|tx| {
///     outbox.enqueue(tx, &Message::text("sales", "12.50").dedupe_key("S-1"))
/// })?;
///
/// let message = assert_enqueued(&outbox, "sales", "S-1");
/// assert_eq!(message.payload, b"12.50");
/// assert_eq!(pending(&outbox, "sales").len(), 1);
///
/// let receiver = Script::default();
/// deliver_all(&outbox, &receiver)?;
/// assert_eq!(receiver.seen()[0].dedupe_key, "S-1");
/// assert!(pending(&outbox, "sales").is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// If there is none; it then says what else waits in the channel.
#[allow(clippy::panic)] // An assertion.
#[track_caller]
pub fn assert_enqueued(outbox: &Outbox, channel: &str, dedupe_key: &str) -> Entry {
    match outbox.get_by_key(channel, dedupe_key) {
        Ok(Some(entry)) => entry,
        Ok(None) => {
            let others = pending(outbox, channel);
            let keys: Vec<&str> = others.iter().map(|it| it.dedupe_key.as_str()).collect();
            panic!("{channel:?} has no message {dedupe_key:?}; unsent there: {keys:?}")
        }
        Err(error) => panic!("the outbox cannot be read: {}", error.chain()),
    }
}

/// Sends all that is due now, in the calling thread, as [`Inline::until_idle`] with the default
/// settings; returns what happened.
pub fn deliver_all(outbox: &Outbox, dispatcher: &dyn Dispatcher) -> Result<Vec<Event>> {
    Inline::new(outbox, Settings::default())?.until_idle(dispatcher)
}

/// A receiver that answers from a list, then always `Delivered`, and remembers what it saw.
#[derive(Debug, Default)]
pub struct Script {
    answers: Mutex<VecDeque<Outcome>>,
    seen: Mutex<Vec<Delivery>>,
}

impl Script {
    /// Answers in this order.
    pub fn new(answers: impl IntoIterator<Item = Outcome>) -> Self {
        Self {
            answers: Mutex::new(answers.into_iter().collect()),
            seen: Mutex::default(),
        }
    }

    /// Everything it was sent, in order of arrival.
    pub fn seen(&self) -> Vec<Delivery> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Dispatcher for Script {
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(delivery.clone());
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(answers.pop_front().unwrap_or_else(Outcome::delivered))
    }
}
