//! Threads and channels around the drain: the only place that starts any.

mod bell;
mod calm;
mod engine;
mod told;
mod work;
mod worker;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::clock::{Clock, Instant};
use crate::dispatch::Dispatcher;
use crate::drain::{Cycle, Drainer};
use crate::error::{Error, Result};
use crate::observer::{Event, Observer};
use crate::settings::Settings;

use bell::Bell;
pub(crate) use calm::Calm;
use engine::Engine;
use worker::Shop;

/// How a pump or drain is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Health {
    /// Whether its thread runs.
    pub running: bool,
    /// Messages claimed and not yet recorded.
    pub in_flight: usize,
    /// Delivered since the start.
    pub sent: u64,
    /// When the file was last read or written without an error, in milliseconds since 1970 UTC.
    pub last_success_at: Option<i64>,
    /// Why the file could not be used the last time; `None` when it could.
    pub error: Option<String>,
    /// Since when it cannot be used, in milliseconds since 1970 UTC.
    pub failing_since: Option<i64>,
    /// Answers that came for claims which had passed on.
    pub late: u64,
}

/// What a drain has done so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Tally {
    /// Delivered.
    pub sent: u64,
    /// Attempts that failed and will be repeated.
    pub retried: u64,
    /// Dead letters.
    pub dead: u64,
    /// Too late to be sent.
    pub expired: u64,
    /// Left alone, as their rows refuse every change.
    pub refused: u64,
    /// Claimed and not yet recorded.
    pub in_flight: usize,
    by_channel: HashMap<String, u64>,
}

impl Tally {
    /// Delivered in one channel.
    pub fn sent_by(&self, channel: &str) -> u64 {
        self.by_channel.get(channel).copied().unwrap_or(0)
    }

    fn count(&mut self, event: &Event) {
        match event {
            Event::Delivered { channel, .. } => {
                self.sent += 1;
                match self.by_channel.get_mut(channel) {
                    Some(sent) => *sent += 1,
                    None => {
                        self.by_channel.insert(channel.clone(), 1);
                    }
                }
            }
            Event::Retried { .. } => self.retried += 1,
            Event::Dead { .. } => self.dead += 1,
            Event::Expired { messages } => self.expired += *messages as u64,
            Event::Refused { .. } => self.refused += 1,
            _ => {}
        }
    }
}

/// Drains in the background until stopped. Dropping it asks it to stop without waiting.
///
/// It ends by itself, and [`Event::Stopped`] says why, when nothing of it may be written any more: a newer
/// program took the file over ([`Error::SchemaTooNew`]), or the file was removed or replaced
/// ([`Error::Replaced`]).
#[must_use = "a pump that is dropped stops"]
pub struct Pump {
    bell: Arc<Bell>,
    ended: Receiver<()>,
    thread: Option<JoinHandle<Result<()>>>,
    health: Arc<Mutex<Health>>,
}

impl fmt::Debug for Pump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pump")
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

/// Everything a drain works with.
pub(crate) struct Parts {
    pub(crate) drainer: Drainer,
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

/// Wakes a pump from anywhere; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Waker(Arc<Bell>);

impl Waker {
    /// Connectivity may be back. False when the pump is gone.
    pub(crate) fn wake(&self) -> bool {
        self.0.wake()
    }

    /// Something was committed. False when the pump is gone.
    pub(crate) fn look(&self) -> bool {
        self.0.look()
    }
}

impl Pump {
    #[allow(clippy::disallowed_methods)]
    pub(crate) fn start(parts: Parts, dispatcher: Arc<dyn Dispatcher>) -> Result<Self> {
        let bell = Arc::new(Bell::default());
        let (ending, ended) = bounded::<()>(0);
        let health = Arc::new(Mutex::new(Health {
            running: true,
            ..Health::default()
        }));
        let (shared, rung) = (Arc::clone(&health), Arc::clone(&bell));
        let thread = std::thread::Builder::new()
            .name("outbox-pump".into())
            .spawn(move || {
                // Dropped with the thread, however it ends: whoever waits for it is told.
                let _ending = ending;
                let mut guard = Ending(shared);
                let result = pump(parts, dispatcher, rung, &guard.0);
                guard.end(result.as_ref().err());
                result
            })
            .map_err(|error| Error::Stopped(format!("its thread could not be started: {error}")))?;
        Ok(Self {
            bell,
            ended,
            thread: Some(thread),
            health,
        })
    }

    /// Connectivity is back, or "sync now" was pressed: probes come forward, and messages that were
    /// given back with a short delay are due. A receiver's own Retry-After stays in force.
    pub fn wake(&self) {
        self.waker().wake();
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.bell))
    }

    /// How it is.
    pub fn health(&self) -> Health {
        self.health
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Stops: nothing more is claimed, calls under way get `grace` to finish and are interrupted
    /// then; what was not sent is given back uncharged, due at once.
    ///
    /// Returns within the grace period plus about a second, with the error that had ended the pump
    /// before, or the one that kept the last results from being recorded: such a message counts as
    /// claimed until its lease ends, and is then sent again.
    pub fn stop(mut self, grace: Duration) -> Result<()> {
        self.bell.stop(grace);
        let bound = grace.saturating_add(Duration::from_secs(5));
        if self
            .ended
            .recv_timeout(bound)
            .is_err_and(|it| it.is_timeout())
        {
            return Err(Error::Stopped("it did not end in time".into()));
        }
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(Error::Stopped("it panicked".into())),
            None => Ok(()),
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.bell.stop(Duration::ZERO);
    }
}

/// Sets the health right when the pump's thread ends, by return or by panic.
struct Ending(Arc<Mutex<Health>>);

impl Ending {
    fn end(&mut self, error: Option<&Error>) {
        let mut health = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        health.running = false;
        if let Some(error) = error {
            health.error = Some(error.chain());
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end(Some(&Error::Stopped("it panicked".into())));
        }
    }
}

#[allow(clippy::disallowed_methods)]
fn pump(
    parts: Parts,
    dispatcher: Arc<dyn Dispatcher>,
    bell: Arc<Bell>,
    health: &Mutex<Health>,
) -> Result<()> {
    let clock = Arc::clone(&parts.clock);
    let calm = Calm::new(dispatcher.as_ref());
    let engine = Engine {
        drainer: parts.drainer,
        dispatcher: &calm,
        settings: &parts.settings,
        clock: parts.clock,
        observer: parts.observer,
        bell,
        until_idle: false,
        deadline: None,
    };
    // Detached: a call that hangs beyond every limit must not keep `stop` from returning.
    let mut spawn = |shop: Shop| {
        let dispatcher = Arc::clone(&dispatcher);
        std::thread::Builder::new()
            .name("outbox-worker".into())
            .spawn(move || shop.work(dispatcher.as_ref()))
            .map(drop)
    };
    let mut seen = |cycle: &Cycle, in_flight: usize| {
        let mut health = health.lock().unwrap_or_else(PoisonError::into_inner);
        health.in_flight = in_flight;
        let now = Instant::read(clock.as_ref()).wall;
        if let Some(error) = &cycle.error {
            health.error = Some(error.chain());
            health.failing_since.get_or_insert(now);
        } else if !cycle.failing {
            health.last_success_at = Some(now);
            health.error = None;
            health.failing_since = None;
        }
        for event in &cycle.events {
            match event {
                Event::Delivered { .. } => health.sent += 1,
                Event::Late { .. } => health.late += 1,
                _ => {}
            }
        }
        true
    };
    engine.run(&mut spawn, &mut seen)
}

/// Drains in the calling thread until nothing more can be done now, `deadline` passes, or
/// `progress` answers false.
pub(crate) fn drain(
    parts: Parts,
    dispatcher: &dyn Dispatcher,
    deadline: Option<Duration>,
    progress: &mut dyn FnMut(&Tally) -> bool,
) -> Result<Tally> {
    let start = parts.clock.monotonic();
    let engine = Engine {
        drainer: parts.drainer,
        dispatcher,
        settings: &parts.settings,
        clock: parts.clock,
        observer: parts.observer,
        bell: Arc::default(),
        until_idle: true,
        deadline: deadline.map(|span| start.saturating_add(span)),
    };
    let mut tally = Tally::default();
    let mut seen = |cycle: &Cycle, in_flight: usize| {
        for event in &cycle.events {
            tally.count(event);
        }
        tally.in_flight = in_flight;
        progress(&tally)
    };
    std::thread::scope(|scope| {
        let mut spawn = |shop: Shop| {
            std::thread::Builder::new()
                .name("outbox-worker".into())
                .spawn_scoped(scope, move || shop.work(dispatcher))
                .map(drop)
        };
        engine.run(&mut spawn, &mut seen)
    })?;
    Ok(tally)
}
