//! What a drain must know by its own cycles: that the clock cannot be believed, and that a receiver
//! is in trouble.

use super::Checker;
use super::file::HONEST;
use crate::simulation::history::{At, Channel, Who};

/// A leap of the wall clock that has to prove itself, and for how long.
const LEAP: i64 = 5 * 60 * 1000;
const PROOF: i64 = 60 * 1000;

/// The clock as one drain saw it, from cycle to cycle. What it knew of the file when it came is left
/// out, so it may doubt more than this says.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Watch {
    last: At,
    doubted_since: Option<i64>,
}

impl Watch {
    pub(super) fn new(at: At) -> Self {
        Self {
            last: at,
            doubted_since: None,
        }
    }

    pub(super) fn observe(&mut self, at: At) {
        let leap = (at.now() - self.last.now()) - (at.mono - self.last.mono);
        if leap > LEAP {
            self.doubted_since = Some(at.mono);
        }
        if self.doubted_since.is_some_and(|it| at.mono - it >= PROOF) {
            self.doubted_since = None;
        }
        self.last = at;
    }

    /// Whether nothing may expire by it.
    pub(super) fn doubts(&self) -> bool {
        self.doubted_since.is_some() || self.last.now() < HONEST
    }
}

impl Checker<'_> {
    /// Remembers that a drain wrote that a channel got into other trouble than it had before.
    pub(super) fn closes(&mut self, name: &str, state: &Channel, who: Who) {
        let known = self.channels.get(name).map_or("ok", |it| &it.state);
        if let Who::Life(life) = who
            && state.state != "ok"
            && state.state != known
        {
            self.lives[life].closed.insert(name.to_owned(), self.at);
        }
    }
}
