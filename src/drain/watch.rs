//! Whether the wall clock can be believed. Tills boot in 1970, sleep, and are set by hand.

use std::time::Duration;

use crate::clock::{Instant, millis};

/// No honest clock reads less: 2026-01-01, before the first release.
const FIRST_HONEST: i64 = 1_767_225_600_000;
/// A clock this far behind the newest message of the file is wrong until it has kept its word.
const BEHIND: i64 = 24 * 3600 * 1000;
/// A file this much older than the clock, or a jump, must be confirmed before anything expires.
const LONG_AGO: i64 = 30 * 24 * 3600 * 1000;
const JUMP: i64 = 5 * 60 * 1000;
/// How long a clock must run evenly to be believed again.
const CONFIRM: Duration = Duration::from_secs(60);

/// Watches both clocks from cycle to cycle.
#[derive(Debug)]
pub(crate) struct ClockWatch {
    last: Instant,
    /// Set while the clock has still to prove itself.
    doubted_since: Option<Duration>,
    /// Whether due times may have been stamped by a clock that ran ahead of this one.
    repair: bool,
}

impl ClockWatch {
    /// `newest` is the newest moment the file knows of.
    pub(crate) fn new(at: Instant, newest: Option<i64>) -> Self {
        let odd = newest.is_some_and(|newest| {
            at.wall < newest.saturating_sub(BEHIND) || at.wall > newest.saturating_add(LONG_AGO)
        });
        Self {
            last: at,
            doubted_since: odd.then_some(at.monotonic),
            repair: true,
        }
    }

    /// Takes the next reading.
    pub(crate) fn observe(&mut self, at: Instant) {
        let went = at.wall.saturating_sub(self.last.wall);
        let passed = millis(at.monotonic.saturating_sub(self.last.monotonic));
        let slip = went.saturating_sub(passed);
        if slip > JUMP {
            self.doubted_since = Some(at.monotonic);
        }
        if slip < -1_000 {
            self.repair = true;
        }
        let confirmed = |since: Duration| at.monotonic.saturating_sub(since) >= CONFIRM;
        if self.doubted_since.is_some_and(confirmed) {
            self.doubted_since = None;
            self.repair = true;
        }
        self.last = at;
    }

    /// Whether the clock may make something expire or be purged.
    pub(crate) fn trusted(&self) -> bool {
        self.last.wall >= FIRST_HONEST && self.doubted_since.is_none()
    }

    /// Whether due times beyond any honest wait should be pulled in now. Once per occasion.
    pub(crate) fn take_repair(&mut self) -> bool {
        self.trusted() && std::mem::take(&mut self.repair)
    }
}
