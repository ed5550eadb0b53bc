//! Whether the wall clock can be believed. Tills boot in 1970, sleep, and are set by hand.

use std::time::Duration;

use crate::clock::{FIRST_HONEST, Instant, millis};

/// A clock this far behind the newest message of the file is wrong until it has kept its word.
const BEHIND: i64 = 24 * 3600 * 1000;
/// A file this much older than the clock, or a jump, must be confirmed before anything expires.
const LONG_AGO: i64 = 30 * 24 * 3600 * 1000;
const JUMP: i64 = 5 * 60 * 1000;
/// How long a clock must run evenly to be believed again.
const CONFIRM: Duration = Duration::from_secs(60);

/// A backward step that is worth mending; a smaller one is waited out.
const STEP_BACK: i64 = 60 * 1000;

/// A moment so far ahead was written by no clock but by a mistake.
const IMPLAUSIBLE: i64 = 20 * 365 * 24 * 3600 * 1000;

/// What the clock's past makes necessary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repair {
    /// Due times may have been stamped by a clock that ran far ahead of this one.
    Horizon,
    /// The clock went back by this many milliseconds while we watched.
    SteppedBack(i64),
    /// The file's newest moment lies ahead: the clock went back before we came. By how much nobody
    /// knows, so holds stay as they are.
    WasAhead,
}

/// Watches both clocks from cycle to cycle.
#[derive(Debug)]
pub(crate) struct ClockWatch {
    last: Instant,
    /// Set while the clock has still to prove itself.
    doubted_since: Option<Duration>,
    repairs: Vec<Repair>,
}

impl ClockWatch {
    /// `newest` is the newest moment the file knows of.
    pub(crate) fn new(at: Instant, newest: Option<i64>) -> Self {
        let odd = newest.is_some_and(|newest| {
            at.wall < newest.saturating_sub(BEHIND) || at.wall > newest.saturating_add(LONG_AGO)
        });
        let ahead = newest.map_or(0, |newest| newest.saturating_sub(at.wall));
        let behind = (STEP_BACK..IMPLAUSIBLE).contains(&ahead);
        Self {
            last: at,
            doubted_since: odd.then_some(at.monotonic),
            repairs: match behind {
                true => vec![Repair::WasAhead],
                false => vec![Repair::Horizon],
            },
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
        if slip < -STEP_BACK {
            self.repairs
                .push(Repair::SteppedBack(slip.saturating_neg()));
        }
        let confirmed = |since: Duration| at.monotonic.saturating_sub(since) >= CONFIRM;
        if self.doubted_since.is_some_and(confirmed) {
            self.doubted_since = None;
            self.repairs.push(Repair::Horizon);
        }
        self.last = at;
    }

    /// Whether the clock may make something expire or be purged.
    pub(crate) fn trusted(&self) -> bool {
        self.honest() && self.doubted_since.is_none()
    }

    fn honest(&self) -> bool {
        self.last.wall >= FIRST_HONEST
    }

    /// What is to be mended now, once per occasion. Also while the clock is plainly wrong: to a
    /// till that booted in 1970 every back-off would last for ever, and ignoring one costs an
    /// attempt.
    pub(crate) fn repairs(&mut self) -> impl Iterator<Item = Repair> + use<> {
        std::mem::take(&mut self.repairs).into_iter()
    }
}
