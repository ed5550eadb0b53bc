//! Starting a drain or a pump: what can be set, and what a drain reports.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::dispatch::Dispatcher;
use crate::error::Result;
use crate::outbox::Outbox;
use crate::pump::{self, Calm, Parts, Pump, Tally};
use crate::settings::Settings;
use crate::stats::{ChannelState, ChannelStats, Stats};

type Progress<'a> = dyn FnMut(&Tally) + 'a;

/// A drain about to start; see [`Outbox::draining`].
#[must_use = "a drain starts with `run`"]
pub struct Draining<'a> {
    outbox: &'a Outbox,
    dispatcher: &'a dyn Dispatcher,
    settings: Settings,
    deadline: Option<Duration>,
    cancel: Cancel,
    progress: Option<Box<Progress<'a>>>,
    now: bool,
}

/// Breaks off a drain, a backup, a compact or what an [`Operator`](crate::Operator) does to many, from another
/// thread; clones are the same switch.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A switch that is not thrown yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the drain: nothing more is claimed, calls under way are interrupted after two seconds,
    /// and those that do not let themselves be interrupted are waited for.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn switch(&self) -> &Arc<AtomicBool> {
        &self.0
    }
}

/// A switch that something else throws, such as a handler of signals.
impl From<Arc<AtomicBool>> for Cancel {
    fn from(switch: Arc<AtomicBool>) -> Self {
        Self(switch)
    }
}

/// What a drain did, and what it left and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainReport {
    /// Delivered.
    pub sent: u64,
    /// Attempts that failed and will be repeated.
    pub retried: u64,
    /// New dead letters.
    pub dead: u64,
    /// Messages that passed their `expires_at`.
    pub expired: u64,
    /// Messages that were left alone, as their rows refuse every change.
    pub refused: u64,
    /// Messages still unsent, in the whole file.
    pub unsent: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Why it ended.
    pub ended: Ended,
    /// Each channel with messages or a state.
    pub channels: Vec<ChannelReport>,
    /// The file as it is now.
    pub stats: Stats,
}

/// What a drain did for one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelReport {
    /// The channel.
    pub channel: String,
    /// Delivered by this drain.
    pub sent: u64,
    /// Messages still unsent.
    pub unsent: u64,
    /// Its state; `Unrouted` when the dispatcher does not serve it.
    pub state: ChannelState,
    /// Why, for a person.
    pub reason: Option<String>,
}

/// Why a drain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// Nothing more can be done now.
    Idle,
    /// Its deadline passed.
    Deadline,
    /// It was cancelled.
    Cancelled,
}

impl fmt::Debug for Draining<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draining")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl<'a> Draining<'a> {
    pub(crate) fn new(outbox: &'a Outbox, dispatcher: &'a dyn Dispatcher) -> Self {
        Self {
            outbox,
            dispatcher,
            settings: Settings::default(),
            deadline: None,
            cancel: Cancel::default(),
            progress: None,
            now: false,
        }
    }

    /// All settings at once. Default: [`Settings::default`].
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Requests under way at once. Default 4.
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings = self.settings.workers(workers);
        self
    }

    /// Ends after this span, with what was done by then; as with [`Cancel::cancel`], calls under way
    /// come on top. Default: none.
    pub fn deadline(mut self, span: Duration) -> Self {
        self.deadline = Some(span);
        self
    }

    /// Ends when this switch is thrown.
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Hears how far it is, between transactions, on the calling thread.
    pub fn progress(mut self, progress: impl FnMut(&Tally) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Ignores back-off once. Schedules and ordering stay in force.
    pub fn now(mut self) -> Self {
        self.now = true;
        self
    }

    /// Drains until nothing more can be done now: nothing is due, and nothing is claimed by anyone
    /// in a channel that is open. It waits for the leases of crashed processes, not for back-off,
    /// schedules or a receiver that is down.
    ///
    /// Fails when the file cannot be opened, or not be written for half a minute, or for five where
    /// answers are still to be recorded.
    pub fn run(mut self) -> Result<DrainReport> {
        let shared = self.outbox.shared();
        let clock = shared.clock();
        let started = clock.monotonic();
        let mut drainer = shared.drainer(&self.settings)?;
        drainer.wake(self.now);
        let parts = Parts {
            drainer,
            settings: self.settings,
            clock: Arc::clone(&clock),
            observer: shared.observer(),
        };
        let mut progress = self.progress.take();
        let cancel = self.cancel.clone();
        let mut heard = |tally: &Tally| {
            if let Some(progress) = &mut progress {
                progress(tally);
            }
            !cancel.is_cancelled()
        };
        let dispatcher = Calm::new(self.dispatcher);
        let tally = pump::drain(parts, &dispatcher, self.deadline, &mut heard)?;
        let elapsed = clock.monotonic().saturating_sub(started);
        let ended = if self.cancel.is_cancelled() {
            Ended::Cancelled
        } else if self.deadline.is_some_and(|deadline| elapsed >= deadline) {
            Ended::Deadline
        } else {
            Ended::Idle
        };
        let stats = self.outbox.stats()?;
        let report = |channel: &ChannelStats| ChannelReport {
            channel: channel.channel.clone(),
            sent: tally.sent_by(&channel.channel),
            unsent: channel.counts.unsent(),
            state: if dispatcher.serves(&channel.channel) {
                channel.state
            } else {
                ChannelState::Unrouted
            },
            reason: channel.reason.clone(),
        };
        Ok(DrainReport {
            sent: tally.sent,
            retried: tally.retried,
            dead: tally.dead,
            expired: tally.expired,
            refused: tally.refused,
            unsent: stats.total.unsent(),
            elapsed,
            ended,
            channels: stats.channels.iter().map(report).collect(),
            stats,
        })
    }
}

/// A pump about to start; see [`Outbox::pump`].
#[must_use = "a pump starts with `start`"]
pub struct PumpBuilder {
    outbox: Outbox,
    dispatcher: Arc<dyn Dispatcher>,
    settings: Settings,
}

impl fmt::Debug for PumpBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PumpBuilder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl PumpBuilder {
    pub(crate) fn new(outbox: &Outbox, dispatcher: Arc<dyn Dispatcher>) -> Self {
        Self {
            outbox: outbox.clone(),
            dispatcher,
            settings: Settings::default(),
        }
    }

    /// All settings at once. Default: [`Settings::default`].
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Requests under way at once. Default 4.
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings = self.settings.workers(workers);
        self
    }

    /// Starts the pump's thread. Fails when the file cannot be opened or no thread be started.
    pub fn start(self) -> Result<Pump> {
        let shared = self.outbox.shared();
        let parts = Parts {
            drainer: shared.drainer(&self.settings)?,
            settings: self.settings,
            clock: shared.clock(),
            observer: shared.observer(),
        };
        let pump = Pump::start(parts, self.dispatcher)?;
        shared.add_waker(pump.waker());
        Ok(pump)
    }
}
