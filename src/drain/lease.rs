//! How long a claim is ours, as the worker that sends it and the drain that renews it see it.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use crate::clock::{Instant, millis};
use crate::dispatch::Delivery;
use crate::settings::MAX_LEASE;

/// No honest lease ends later than this; one that does was given by a clock that has gone back since.
pub(crate) fn horizon(now: i64) -> i64 {
    now.saturating_add(2 * millis(MAX_LEASE))
}

/// No worker has the run.
const NOBODY: i64 = -1;
/// The worker is kept from going on: that it is silent says nothing.
const HELD: i64 = i64::MAX;

/// How long a run may be sent, on both clocks: wall time is what other processes see, monotonic
/// time is what a clock that was set back cannot stretch. Shared with the worker.
#[derive(Debug)]
pub(crate) struct Lease {
    wall: AtomicI64,
    monotonic: AtomicI64,
    /// Monotonic milliseconds: when the worker that has the run last did something with it.
    /// [`NOBODY`] has it, or it waits, [`HELD`].
    heard_at: AtomicI64,
    recalled: AtomicBool,
}

impl Lease {
    pub(crate) fn new(wall: i64, monotonic: Duration) -> Self {
        Self {
            wall: AtomicI64::new(wall),
            monotonic: AtomicI64::new(millis(monotonic)),
            heard_at: AtomicI64::new(NOBODY),
            recalled: AtomicBool::new(false),
        }
    }

    /// Whether a message of the run may be sent: both clocks say that the claim is still ours, the
    /// channel has not got into trouble since, and the message has not expired.
    pub(crate) fn allows(&self, delivery: &Delivery, at: Instant) -> bool {
        let in_time = delivery.expires_at.is_none_or(|it| at.wall < it);
        in_time && self.left(at) > 0 && !self.recalled.load(Ordering::Acquire)
    }

    /// Nothing more of the run is sent; what is on the wire stays ours.
    pub(crate) fn recall(&self) {
        self.recalled.store(true, Ordering::Release);
    }

    pub(crate) fn extend(&self, wall: i64, monotonic: Duration) {
        self.wall.store(wall, Ordering::Release);
        self.monotonic.store(millis(monotonic), Ordering::Release);
    }

    pub(crate) fn void(&self) {
        self.extend(i64::MIN, Duration::ZERO);
    }

    /// A worker took the run, a message of it, or said what became of one.
    pub(crate) fn heard(&self, now: Duration) {
        self.heard_at.store(millis(now), Ordering::Release);
    }

    /// The worker has to wait before it may go on.
    pub(crate) fn held(&self) {
        self.heard_at.store(HELD, Ordering::Release);
    }

    /// The worker is done with the run, and free for others.
    pub(crate) fn returned(&self) {
        self.heard_at.store(NOBODY, Ordering::Release);
    }

    /// Whether a worker has the run: from when it took it until it has returned, whatever was told
    /// of its messages meanwhile.
    pub(crate) fn is_out(&self) -> bool {
        self.heard_at.load(Ordering::Acquire) != NOBODY
    }

    /// Whether the worker has been silent for longer than `limit`.
    pub(crate) fn overdue(&self, now: Duration, limit: Duration) -> bool {
        self.silent_for(now) > millis(limit)
    }

    /// Milliseconds since the worker that has the run was heard of.
    pub(crate) fn silent_for(&self, now: Duration) -> i64 {
        match self.heard_at.load(Ordering::Acquire) {
            NOBODY => 0,
            heard => millis(now).saturating_sub(heard).max(0),
        }
    }

    /// Milliseconds until the first of both clocks says it is over. So it is where the clock has gone
    /// so far back that others take it for abandoned.
    pub(crate) fn left(&self, at: Instant) -> i64 {
        let monotonic = self.monotonic.load(Ordering::Acquire);
        let wall = self.wall.load(Ordering::Acquire);
        if wall > horizon(at.wall) {
            return 0;
        }
        monotonic
            .saturating_sub(millis(at.monotonic))
            .min(wall.saturating_sub(at.wall))
    }

    /// Whether it should be renewed: half of it is spent, or the wall clock went back and others
    /// see it end in a future that no lease of ours reaches.
    pub(crate) fn is_worn(&self, at: Instant, lease: Duration) -> bool {
        let ahead = self.wall.load(Ordering::Acquire).saturating_sub(at.wall);
        self.left(at) <= millis(lease) / 2 || ahead > millis(lease).saturating_add(1_000)
    }
}
