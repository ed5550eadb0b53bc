//! How often, how long and how hard a channel is tried: numbers only.

use std::time::Duration;

use crate::clock::{Dice, millis};

/// The rules of one channel, all with defaults that let nothing die over a weekend.
///
/// Setters clamp what makes no sense: `max_attempts`, `max_in_flight`, `run_length` and `brake`
/// are at least 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub(crate) base: Duration,
    pub(crate) cap: Duration,
    pub(crate) max_attempts: u32,
    pub(crate) min_dead_age: Duration,
    pub(crate) max_in_flight: Option<usize>,
    pub(crate) rate: Option<f64>,
    pub(crate) run_length: usize,
    pub(crate) brake: u32,
    pub(crate) hold: Hold,
    pub(crate) keep_answer: usize,
}

/// What a Retry-After of the receiver holds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hold {
    /// Every message of the channel: the receiver itself is short of breath.
    #[default]
    Channel,
    /// Only this message: the receiver counts per recipient. It is then the message's own back-off,
    /// which a person, a clock that is set right and, where it is uncharged and of 5 s at most,
    /// [`Pump::wake`](crate::Pump::wake) cut short.
    Message,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(30),
            cap: Duration::from_secs(6 * 3600),
            max_attempts: 20,
            min_dead_age: Duration::from_secs(24 * 3600),
            max_in_flight: None,
            rate: None,
            run_length: 16,
            brake: 10,
            hold: Hold::Channel,
            keep_answer: 4096,
        }
    }
}

impl Policy {
    /// Back-off between charged attempts: `base`, doubling, never above `cap`. Default 30 s, 6 h.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.base = base;
        self.cap = cap.max(base);
        self
    }

    /// Charged attempts after which a message becomes a dead letter. Default 20.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// A death by retries needs the first charged failure to be at least this old. Default 24 h.
    pub fn min_dead_age(mut self, age: Duration) -> Self {
        self.min_dead_age = age;
        self
    }

    /// Requests of this channel under way at once in this process. Default: as many as workers.
    pub fn max_in_flight(mut self, requests: usize) -> Self {
        self.max_in_flight = Some(requests.max(1));
        self
    }

    /// Messages of this channel sent per second at most, on average, by this process; a second's worth
    /// may go out at once, and after calls that took long as much again of what had waited for them, and one more
    /// for each worker. What is no positive number sets no limit. Default: none.
    pub fn rate(mut self, per_second: f64) -> Self {
        self.rate = (per_second.is_finite() && per_second > 0.0).then_some(per_second.max(0.001));
        self
    }

    /// Messages of one ordering key claimed together. The next run is claimed while one is being
    /// sent, so a crash may repeat twice as many; with 1 none is claimed ahead. Default 16.
    pub fn run_length(mut self, messages: usize) -> Self {
        self.run_length = messages.max(1);
        self
    }

    /// Rejections in a row, without a delivery between, after which the channel itself is
    /// suspected and no further message dies. Default 10.
    pub fn brake(mut self, rejections: u32) -> Self {
        self.brake = rejections.max(1);
        self
    }

    /// What a Retry-After holds back. Default: the channel.
    pub fn retry_after(mut self, hold: Hold) -> Self {
        self.hold = hold;
        self
    }

    /// Bytes of the receiver's answer kept in the row; 0 keeps none. Default 4096.
    pub fn keep_answer(mut self, bytes: usize) -> Self {
        self.keep_answer = bytes;
        self
    }

    /// Milliseconds to wait after the `attempts`-th charged failure: doubling from the base to the
    /// cap, drawn from the upper half so that a burst of failures spreads out.
    pub(crate) fn delay_after(&self, attempts: u32, dice: &mut Dice) -> i64 {
        let doublings = attempts.saturating_sub(1).min(40);
        let full = millis(self.base)
            .saturating_mul(1_i64 << doublings)
            .min(millis(self.cap))
            .max(1);
        dice.between(full - full / 2, full)
    }
}

/// The longest delay of a message that was given back uncharged.
pub(crate) const GIVE_BACK_MAX: i64 = 5_000;

/// Milliseconds before an uncharged message is looked at again: enough for another to be the next
/// probe, too little for anyone to notice.
pub(crate) fn give_back_delay(dice: &mut Dice) -> i64 {
    dice.between(GIVE_BACK_MAX / 2, GIVE_BACK_MAX)
}

/// Beyond any back-off that makes sense.
pub(crate) const LONGEST_WAIT: i64 = 31 * 24 * 3600 * 1000;

/// When a message is due, as a drain that begins now takes it: a moment that no wait reaches, and that
/// is no schedule, was stamped by a clock that ran ahead.
pub(crate) fn due_at(next_attempt: i64, available: Option<i64>, now: i64) -> i64 {
    let stamped = next_attempt > now.saturating_add(LONGEST_WAIT);
    match stamped && available.is_none_or(|it| it <= now) {
        true => now,
        false => next_attempt,
    }
}

/// Whether a message waits for a moment of its own, and not for its channel's next try: by a minute, as
/// what is given back uncharged waits for some seconds too.
pub(crate) fn outlasts(due: i64, next_try: Option<i64>, now: i64) -> bool {
    due > own_wait_after(next_try, now)
}

/// See [`outlasts`].
pub(crate) fn own_wait_after(next_try: Option<i64>, now: i64) -> i64 {
    next_try.unwrap_or(now).max(now).saturating_add(60_000)
}

/// The longest a receiver's Retry-After is honoured.
pub(crate) const HOLD_MAX: i64 = 24 * 3600 * 1000;

/// A receiver's wish in milliseconds, clamped.
pub(crate) fn hold_for(wish: Duration) -> i64 {
    millis(wish).clamp(0, HOLD_MAX)
}

#[cfg(test)]
mod tests;
