//! The only place that reads the time, waits for it, or throws dice.
//!
//! Everything below takes `now` and dice as arguments, so a test decides both.

use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, SystemTime};

/// A source of time.
///
/// Wall time is what is stored and shown; monotonic time is what is waited on.
pub trait Clock: Debug + Send + Sync {
    /// Milliseconds since 1970 UTC. May jump in either direction.
    fn wall(&self) -> i64;

    /// Time since an arbitrary start. Never goes back; may stand still while the machine sleeps.
    fn monotonic(&self) -> Duration;
}

/// No honest clock reads less: 2026-01-01, before the first release, in milliseconds since 1970 UTC.
/// A moment before it in the file was stamped while a clock was wrong.
pub const FIRST_HONEST: i64 = 1_767_225_600_000;

/// One reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instant {
    pub(crate) wall: i64,
    pub(crate) monotonic: Duration,
}

impl Instant {
    /// A clock before 1970 counts from zero: every due time in a file is later than what it shows.
    pub(crate) fn read(clock: &dyn Clock) -> Self {
        let monotonic = clock.monotonic();
        let wall = match clock.wall() {
            ..0 => millis(monotonic),
            wall => wall,
        };
        Self { wall, monotonic }
    }
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    started: std::time::Instant,
}

impl Default for SystemClock {
    #[allow(clippy::disallowed_methods)]
    fn default() -> Self {
        Self {
            started: std::time::Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)]
    fn wall(&self) -> i64 {
        match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => millis(since),
            Err(before) => -millis(before.duration()),
        }
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }
}

/// A span in whole milliseconds, clamped to what the file can store.
pub(crate) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Stops the calling thread: for a busy handler, which has no event to wait on.
#[allow(clippy::disallowed_methods)]
pub(crate) fn pause(span: Duration) {
    std::thread::sleep(span);
}

/// Random numbers for jitter (SplitMix64): spread, not secrecy.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Dice that fall differently in every process.
    pub(crate) fn random() -> Self {
        Self(std::hash::RandomState::new().build_hasher().finish())
    }

    /// A number in `low ..= high`; `low` when the range is empty.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        let width = high.saturating_sub(low).max(0).unsigned_abs();
        let step = (u128::from(bits) * (u128::from(width) + 1)) >> 64;
        low.saturating_add(i64::try_from(step).unwrap_or(0))
    }
}
