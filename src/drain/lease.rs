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

/// How long a run may be sent, on both clocks: wall time is what other processes see, monotonic
/// time is what a clock that was set back cannot stretch. Shared with the worker.
#[derive(Debug)]
pub(crate) struct Lease {
    wall: AtomicI64,
    monotonic: AtomicI64,
    /// Monotonic milliseconds since when a message of the run is on the wire, or -1.
    sending_since: AtomicI64,
    recalled: AtomicBool,
}

impl Lease {
    pub(crate) fn new(wall: i64, monotonic: Duration) -> Self {
        Self {
            wall: AtomicI64::new(wall),
            monotonic: AtomicI64::new(millis(monotonic)),
            sending_since: AtomicI64::new(-1),
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

    pub(crate) fn sending(&self, since: Option<Duration>) {
        self.sending_since
            .store(since.map_or(-1, millis), Ordering::Release);
    }

    pub(crate) fn is_sending(&self) -> bool {
        self.sending_since.load(Ordering::Acquire) >= 0
    }

    /// Whether the call under way has taken longer than `limit`.
    pub(crate) fn overdue(&self, now: Duration, limit: Duration) -> bool {
        let since = self.sending_since.load(Ordering::Acquire);
        since >= 0 && millis(now).saturating_sub(since) > millis(limit)
    }

    /// Milliseconds that the call under way has taken.
    pub(crate) fn sending_for(&self, now: Duration) -> i64 {
        match self.sending_since.load(Ordering::Acquire) {
            since if since >= 0 => millis(now).saturating_sub(since),
            _ => 0,
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
