//! The receivers: each channel has one, with moods that change.

use std::collections::HashMap;
use std::time::Duration;

use sqlite_outbox::{Failure, Outcome, Receipt};

use super::history::{Told, receipt};
use crate::fixture::Rng;

const SECOND: i64 = 1_000;

/// How a receiver behaves for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Well,
    Refused,
    Silent,
    LostAnswers,
    Broken,
    Busy,
    Unauthorised,
    Portal,
    Lying,
    RejectsAll,
    Flaky,
    Slow,
    Hanging,
}

/// What becomes of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) reached: bool,
    pub(super) accepted: bool,
    pub(super) told: Told,
    /// Milliseconds until the caller is told.
    pub(super) lasts: i64,
}

pub(super) struct World {
    moods: HashMap<&'static str, (Mood, i64)>,
    calm: bool,
}

/// What the message itself does to whoever receives it, by its payload.
pub(super) const POISON: [&str; 3] = ["sale", "unacceptable", "crashing"];

impl World {
    pub(super) fn new() -> Self {
        Self {
            moods: HashMap::new(),
            calm: false,
        }
    }

    /// Everything is mended; nothing is refused any more.
    pub(super) fn calm(&mut self) {
        self.calm = true;
    }

    /// The receiver's mood changes; its name.
    pub(super) fn turn(&mut self, channel: &'static str, now: i64, dice: &mut Rng) -> &'static str {
        let (mood, name) = match dice.below(26) {
            0 => (Mood::Refused, "refused"),
            1 => (Mood::Silent, "silent"),
            2 | 3 => (Mood::LostAnswers, "answers get lost"),
            4 => (Mood::Broken, "broken"),
            5 => (Mood::Busy, "busy"),
            6 => (Mood::Unauthorised, "unauthorised"),
            7 => (Mood::Portal, "portal"),
            8 => (Mood::Lying, "lying"),
            9 | 10 => (Mood::RejectsAll, "rejects all"),
            11..15 => (Mood::Flaky, "flaky"),
            15 | 16 => (Mood::Slow, "slow"),
            17 => (Mood::Hanging, "hanging"),
            _ => (Mood::Well, "well"),
        };
        let span = [5, 30, 120, 1200, 7200][dice.below(5) as usize] * SECOND;
        self.moods.insert(channel, (mood, now + span));
        name
    }

    fn mood(&self, channel: &str, now: i64) -> Mood {
        match self.moods.get(channel) {
            Some((mood, until)) if now < *until && !self.calm => *mood,
            _ => Mood::Well,
        }
    }

    /// Decides what becomes of a request that goes out now.
    pub(super) fn receive(&self, channel: &str, payload: &[u8], now: i64, dice: &mut Rng) -> Plan {
        let plan = |told, lasts| Plan {
            reached: true,
            accepted: false,
            told,
            lasts,
        };
        let poison = |word: &str| payload.starts_with(word.as_bytes()) && !self.calm;
        let accepted = |lasts| Plan {
            accepted: true,
            ..plan(Told::Delivered, lasts)
        };
        let takes = |lasts| {
            if poison(POISON[1]) {
                plan(Told::Rejected, lasts)
            } else if poison(POISON[2]) {
                plan(Told::Retry(None), lasts)
            } else {
                accepted(lasts)
            }
        };
        let nowhere = |lasts| Plan {
            reached: false,
            ..plan(Told::Unreachable, lasts)
        };
        let quick = dice.below(40);
        match self.mood(channel, now) {
            Mood::Well => takes(quick),
            Mood::Refused => nowhere(0),
            Mood::Silent => nowhere(60 * SECOND),
            Mood::LostAnswers if dice.percent(60) => Plan {
                told: match dice.below(3) {
                    0 => Told::Unknown,
                    1 => Told::Retry(None),
                    _ => Told::Unreachable,
                },
                ..takes(quick * 100)
            },
            Mood::LostAnswers => takes(quick),
            Mood::Broken => plan(Told::Retry(None), quick),
            Mood::Busy => plan(Told::Retry(Some(dice.below(90).unsigned_abs())), quick),
            Mood::Unauthorised => plan(Told::Unauthorised, quick),
            Mood::Portal => plan(Told::Portal, quick),
            // 200, and not what a real answer has.
            Mood::Lying => plan(Told::Retry(None), quick),
            Mood::RejectsAll => plan(Told::Rejected, quick),
            Mood::Flaky => match dice.below(10) {
                0 => nowhere(quick),
                1 | 2 => plan(Told::Retry(None), quick),
                3 => plan(Told::Unknown, quick),
                4 => plan(Told::Retry(Some(3)), quick),
                _ => takes(quick),
            },
            Mood::Slow => takes(SECOND + dice.below(100 * SECOND)),
            // Longer than any call may take.
            Mood::Hanging => takes(150 * SECOND),
        }
    }
}

/// The outcome that stands for it, for this claim of this message.
pub(super) fn outcome(told: Told, id: i64, claims: i64) -> anyhow::Result<Outcome> {
    let status = |code: u16| Failure::new("http", format!("status {code}")).status(code);
    Ok(match told {
        Told::Delivered => {
            let [number, body] = receipt(id, claims).map(Option::unwrap_or_default);
            Outcome::Delivered(Receipt::with_id(number).answer(body))
        }
        Told::Rejected => Outcome::Rejected(status(422)),
        Told::Retry(None) => Outcome::Retry(status(500)),
        Told::Retry(Some(seconds)) => {
            Outcome::Retry(status(503).after(Duration::from_secs(seconds)))
        }
        Told::Unreachable => Outcome::unreachable("no route to host"),
        Told::Unauthorised => Outcome::unauthorised("who are you"),
        Told::Portal => Outcome::Blocked(Failure::new("portal", "log in to Wi-Fi")),
        Told::Unknown => anyhow::bail!("nobody knows"),
    })
}
