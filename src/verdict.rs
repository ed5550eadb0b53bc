//! Whose fault was it: what becomes of a message and of its channel after one attempt.
//!
//! | outcome | message | channel |
//! |---|---|---|
//! | delivered | sent | circuit closes, evidence is set |
//! | rejected | dead, unless the brake is on | counts towards the brake |
//! | retry, unreachable, with evidence | charged: back-off, dead when its budget is spent | evidence is spent |
//! | retry, unreachable, without evidence | given back uncharged | circuit opens |
//! | blocked | given back uncharged | circuit opens |
//! | not taken by the dispatcher | given back uncharged | nothing |
//! | not sent | given back as it was | nothing |

use crate::circuit::Channel;
use crate::clock::{Dice, millis};
use crate::dispatch::{Failure, Outcome, Receipt};
use crate::retry::{Hold, Policy, give_back_delay, hold_for};
use crate::stats::ChannelState;

/// What is to be written about one message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// It arrived.
    Sent(Receipt),
    /// It stays, due again at `due`. `attempts` is the new count, raised only by a charge.
    Again {
        due: i64,
        attempts: u32,
        charged: bool,
        failure: Failure,
    },
    /// It is a dead letter.
    Dead {
        attempts: u32,
        charged: bool,
        failure: Failure,
    },
    /// It was not sent and stays as it was, due at once.
    Released,
}

/// What is known of the message that was attempted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Facts {
    /// Attempts charged before this one.
    pub(crate) attempts: u32,
    /// When the first attempt of the present budget was charged, if any was.
    pub(crate) first_charged_at: Option<i64>,
    /// Whether it went out as its channel's probe.
    pub(crate) probe: bool,
    /// Whether the clock can be believed.
    pub(crate) clock_trusted: bool,
}

/// Judges one attempt. Changes `channel` and nothing else.
pub(crate) fn judge(
    outcome: Option<Outcome>,
    facts: Facts,
    channel: &mut Channel,
    policy: &Policy,
    now: i64,
    dice: &mut Dice,
) -> Verdict {
    match outcome {
        None => Verdict::Released,
        Some(Outcome::Delivered(receipt)) => {
            channel.delivered(now);
            Verdict::Sent(receipt)
        }
        Some(Outcome::Rejected(failure)) if failure.local => Verdict::Dead {
            attempts: facts.attempts,
            charged: false,
            failure,
        },
        Some(Outcome::Rejected(failure)) => {
            let suspected = channel.rejected(policy.brake);
            if channel.rejections >= policy.brake {
                channel.open(ChannelState::Rejecting, &failure, facts.probe, now, dice);
            }
            if suspected {
                uncharged(failure, facts, now, dice)
            } else {
                Verdict::Dead {
                    attempts: facts.attempts,
                    charged: false,
                    failure,
                }
            }
        }
        Some(Outcome::Blocked(failure)) => {
            let state = match failure.code.as_ref() {
                Failure::UNAUTHORISED | Failure::NO_CREDENTIALS => ChannelState::Unauthorised,
                _ => ChannelState::Offline,
            };
            channel.open(state, &failure, facts.probe, now, dice);
            uncharged(failure, facts, now, dice)
        }
        Some(Outcome::Retry(failure)) if failure.code == Failure::UNTAKEN => {
            uncharged(failure, facts, now, dice)
        }
        Some(Outcome::Retry(failure) | Outcome::Unreachable(failure)) => {
            failed(failure, facts, channel, policy, now, dice)
        }
    }
}

fn failed(
    failure: Failure,
    facts: Facts,
    channel: &mut Channel,
    policy: &Policy,
    now: i64,
    dice: &mut Dice,
) -> Verdict {
    let charged = channel.charge();
    let wish = failure.retry_after.map(hold_for).filter(|wish| *wish > 0);
    match wish {
        Some(span) if policy.hold == Hold::Channel => channel.hold(span, &failure, now),
        // A limit of this recipient says nothing about the others, once the receiver is known to
        // be well.
        Some(_) if charged => {}
        // A channel that just delivered is healthy: the failure is the message's own.
        _ if charged && channel.state == ChannelState::Ok => {}
        _ => {
            let state = match channel.state {
                ChannelState::Rejecting => ChannelState::Rejecting,
                _ => ChannelState::Offline,
            };
            channel.open(state, &failure, facts.probe, now, dice);
        }
    }
    if !charged {
        return delayed(uncharged(failure, facts, now, dice), wish, now);
    }
    let attempts = facts.attempts.saturating_add(1);
    let first = facts.first_charged_at.unwrap_or(now);
    // A clock that cannot be believed tells no age.
    let age = now.saturating_sub(first);
    let due = millis(policy.min_dead_age);
    let old_enough = due == 0 || (age >= due && facts.clock_trusted);
    // While the channel is suspected of rejecting everything, nobody dies by it.
    let suspected = channel.rejections >= policy.brake;
    if attempts >= policy.max_attempts && old_enough && !suspected {
        return Verdict::Dead {
            attempts,
            charged,
            failure,
        };
    }
    let due = now.saturating_add(policy.delay_after(attempts, dice));
    delayed(
        Verdict::Again {
            due,
            attempts,
            charged,
            failure,
        },
        wish,
        now,
    )
}

/// The receiver's own delay holds for the message too, whatever its back-off says.
fn delayed(verdict: Verdict, wish: Option<i64>, now: i64) -> Verdict {
    match (verdict, wish) {
        (
            Verdict::Again {
                due,
                attempts,
                charged,
                failure,
            },
            Some(span),
        ) => Verdict::Again {
            due: due.max(now.saturating_add(span)),
            attempts,
            charged,
            failure,
        },
        (verdict, _) => verdict,
    }
}

fn uncharged(failure: Failure, facts: Facts, now: i64, dice: &mut Dice) -> Verdict {
    Verdict::Again {
        due: now.saturating_add(give_back_delay(dice)),
        attempts: facts.attempts,
        charged: false,
        failure,
    }
}

#[cfg(test)]
mod tests;
