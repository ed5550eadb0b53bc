//! The trouble of one channel: a circuit that opens, probes and closes again.
//!
//! A [`Channel`] is the image of one `outbox_channel` row. Its methods are the only transitions;
//! they take `now` and dice and touch nothing else, so the cycle works on a copy and keeps it
//! after the commit.

use crate::clock::Dice;
use crate::dispatch::Failure;
use crate::stats::ChannelState;

/// First and longest wait between probes, in milliseconds.
const PROBE_FIRST: i64 = 1_000;
/// See [`PROBE_FIRST`]. The longest any channel stays untried once its receiver is back.
pub(crate) const PROBE_CEILING: i64 = 60_000;

/// Whose turn the next probe is, so that no single message can hold the door.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Turn {
    /// The newest message that was never tried.
    #[default]
    Fresh,
    /// The failed message with the smallest due time.
    Retry,
}

/// Stopped by a person, until resumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) at: i64,
    pub(crate) by: Option<String>,
    pub(crate) reason: Option<String>,
}

/// What a dead letter does to the messages behind it in its ordering key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDead {
    /// They wait until a person retries or cancels it.
    #[default]
    Hold,
    /// They go on without it.
    Skip,
}

/// How much a channel may be given now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// As much as there is room for.
    Open,
    /// One message, chosen by the turn.
    Probe(Turn),
    /// Nothing before this moment; `None` when only a person can change that.
    Closed(Option<i64>),
}

/// When a hold ends by a clock that has gone back, and by the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MovedHold {
    pub(crate) known: i64,
    pub(crate) end: i64,
}

/// One channel's stored state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Channel {
    pub(crate) on_dead: OnDead,
    pub(crate) state: ChannelState,
    pub(crate) since: Option<i64>,
    pub(crate) until: Option<i64>,
    pub(crate) reason_code: Option<String>,
    pub(crate) reason: Option<String>,
    /// Probes failed in a row: the exponent of the next wait.
    pub(crate) failures: u32,
    /// Whether a delivery since the last charge can pay for the next one.
    pub(crate) evidence: bool,
    pub(crate) turn: Turn,
    /// Rejections in a row without a delivery.
    pub(crate) rejections: u32,
    pub(crate) pause: Option<Pause>,
    pub(crate) clock_skew: Option<i64>,
}

/// Until when a channel in trouble is left alone; `None`: it is to be probed. An `until` further away
/// than any wait of ours was written by a wrong clock, or by hand, and counts as passed.
fn left_alone(state: ChannelState, until: Option<i64>, now: i64) -> Option<i64> {
    let longest = match state {
        ChannelState::Holding => crate::retry::HOLD_MAX,
        _ => PROBE_CEILING,
    };
    until.filter(|at| *at > now && at.saturating_sub(now) <= longest)
}

impl Channel {
    /// What may be claimed at `now`.
    pub(crate) fn admission(&self, now: i64) -> Admission {
        if self.pause.is_some() {
            return Admission::Closed(None);
        }
        if self.state == ChannelState::Ok {
            return Admission::Open;
        }
        match left_alone(self.state, self.until, now) {
            Some(until) => Admission::Closed(Some(until)),
            None => Admission::Probe(self.turn),
        }
    }

    /// When it is tried again, or was to be, as a drain that begins now takes it: a hold that was asked
    /// for by a clock that ran ahead lasts its whole span, and what is further away than any wait of
    /// ours has come.
    pub(crate) fn next_try(&self, now: i64) -> Option<i64> {
        let until = self.until.filter(|it| *it > now);
        let mut begun = Self {
            pause: None,
            ..self.clone()
        };
        begun.mend_hold(now);
        match (until, begun.admission(now)) {
            (None, _) => self.until,
            (Some(_), Admission::Closed(at)) => at,
            (Some(_), _) => Some(now),
        }
    }

    /// Takes the probe slot: whoever looks next waits for another interval.
    pub(crate) fn take_probe(&mut self, took: Turn, now: i64) {
        self.turn = match took {
            Turn::Fresh => Turn::Retry,
            Turn::Retry => Turn::Fresh,
        };
        // The hold is over, and whether the receiver is back is to be seen. A hold that comes while
        // the probe is out is another one.
        if self.state == ChannelState::Holding {
            self.state = ChannelState::Offline;
        }
        // Until its answer is here, nobody else probes; nor for longer than any wait of ours.
        self.until = Some(now.saturating_add(PROBE_CEILING));
    }

    /// Makes the next probe due. A hold the receiver asked for stays in force; where the clock has
    /// gone back, it ends when what was left of it is over. One that was asked for since then knows
    /// of it.
    pub(crate) fn bring_forward(&mut self, now: i64, moved: Option<MovedHold>) {
        let until = match self.state {
            ChannelState::Ok => return,
            ChannelState::Holding => moved
                .filter(|it| self.until == Some(it.known))
                .map(|it| it.end),
            _ => Some(now),
        };
        if let Some(until) = until {
            self.until = self.until.map(|known| known.min(until));
            self.since = self.since.map(|since| since.min(now));
        }
    }

    /// Whether a hold began in the future: it was asked for before the clock went back.
    pub(crate) fn holds_from_ahead(&self, now: i64) -> bool {
        let ahead = |since| since > now.saturating_add(1_000);
        self.state == ChannelState::Holding && self.until.is_some() && self.since.is_some_and(ahead)
    }

    /// By how much the clock went back since a hold was asked for nobody knows: the receiver gets
    /// its whole span, from now.
    pub(crate) fn mend_hold(&mut self, now: i64) {
        if self.holds_from_ahead(now)
            && let (Some(since), Some(until)) = (self.since, self.until)
        {
            let span = until.saturating_sub(since);
            self.until = Some(now.saturating_add(span.clamp(0, crate::retry::HOLD_MAX)));
            self.since = Some(now);
        }
    }

    /// Whether the receiver's wish to be left alone is still in force.
    fn holds(&self, now: i64) -> bool {
        self.state == ChannelState::Holding && matches!(self.admission(now), Admission::Closed(_))
    }

    /// A message arrived: the receiver is healthy, and the next failure may be charged. One that was
    /// under way when the receiver asked for peace does not end that.
    pub(crate) fn delivered(&mut self, now: i64) {
        self.evidence = true;
        self.rejections = 0;
        if !self.holds(now) {
            self.close();
        }
    }

    /// Spends the evidence. One delivery pays for one charge.
    pub(crate) fn charge(&mut self) -> bool {
        std::mem::take(&mut self.evidence)
    }

    /// Counts a rejection; true when it came on top of a full brake and must not be believed.
    pub(crate) fn rejected(&mut self, brake: u32) -> bool {
        let suspected = self.rejections >= brake;
        self.rejections = self.rejections.saturating_add(1).min(1_000_000);
        suspected
    }

    /// The receiver is in trouble. Only the failure that opens the circuit and a failed probe
    /// move it; what was under way meanwhile says nothing new.
    pub(crate) fn open(
        &mut self,
        state: ChannelState,
        failure: &Failure,
        probe: bool,
        now: i64,
        dice: &mut Dice,
    ) {
        if (self.state != ChannelState::Ok && !probe) || self.holds(now) {
            return;
        }
        if self.state != state {
            self.state = state;
            self.since = Some(now);
        }
        self.reason_code = Some(failure.code.clone().into_owned());
        self.reason = Some(failure.text.clone());
        self.until = Some(now.saturating_add(self.wait(dice)));
        self.failures = self.failures.saturating_add(1).min(30);
    }

    /// The receiver asked for `span` milliseconds of peace; the longest wish holds.
    pub(crate) fn hold(&mut self, span: i64, failure: &Failure, now: i64) {
        let until = now.saturating_add(span);
        if self.state != ChannelState::Holding {
            self.state = ChannelState::Holding;
            self.since = Some(now);
            self.until = None;
        }
        self.reason_code = Some(failure.code.clone().into_owned());
        self.reason = Some(failure.text.clone());
        self.until = Some(self.until.map_or(until, |known| known.max(until)));
    }

    /// A person says the cause is mended: the next ten rejections are believed again.
    pub(crate) fn resume(&mut self) {
        self.pause = None;
        self.rejections = 0;
        self.close();
    }

    fn close(&mut self) {
        self.state = ChannelState::Ok;
        self.since = None;
        self.until = None;
        self.reason_code = None;
        self.reason = None;
        self.failures = 0;
    }

    /// Doubling from the first wait to the ceiling, drawn from the upper half so that two tills
    /// fall out of step.
    fn wait(&self, dice: &mut Dice) -> i64 {
        let full = (PROBE_FIRST << self.failures.min(16)).min(PROBE_CEILING);
        dice.between(full / 2, full)
    }
}

#[cfg(test)]
mod tests;
