//! The judgement as a table: outcome × evidence × state of the channel.

use std::time::Duration;

use super::*;
use crate::dispatch::Receipt;
use ChannelState::{Holding, Offline, Ok as Flowing, Rejecting, Unauthorised};

const NOW: i64 = 1_800_000_000_000;
const DAY: i64 = 24 * 3600 * 1000;
const ALL: [ChannelState; 5] = [Flowing, Offline, Unauthorised, Rejecting, Holding];

fn failure() -> Failure {
    Failure::new("http_500", "it broke")
}

fn holding(seconds: u64) -> Failure {
    failure().after(Duration::from_secs(seconds))
}

/// A channel in `state`, its next look long past.
fn channel(state: ChannelState, evidence: bool) -> Channel {
    Channel {
        state,
        evidence,
        until: (state != Flowing).then_some(NOW - 1),
        since: (state != Flowing).then_some(NOW - DAY),
        reason: (state != Flowing).then(|| "earlier".into()),
        ..Channel::default()
    }
}

fn judged(outcome: Outcome, facts: Facts, channel: &mut Channel, policy: &Policy) -> Verdict {
    let mut dice = Dice::seeded(7);
    judge(Some(outcome), facts, channel, policy, NOW, &mut dice)
}

fn probe() -> Facts {
    Facts {
        probe: true,
        clock_trusted: true,
        ..Facts::default()
    }
}

/// What became of the message: `s`ent, `d`ead, `c`harged, given `b`ack, re`l`eased.
fn word(verdict: &Verdict) -> char {
    match verdict {
        Verdict::Sent(_) => 's',
        Verdict::Dead { .. } => 'd',
        Verdict::Again { charged: true, .. } => 'c',
        Verdict::Again { charged: false, .. } => 'b',
        Verdict::Released => 'l',
    }
}

type Make = fn() -> Outcome;

/// One line per row of the table: the name, the outcome, what becomes of the message without and
/// with evidence, and the state of the channel after a probe, without and with evidence.
#[allow(clippy::type_complexity)]
const TABLE: &[(&str, Make, [char; 2], fn(ChannelState) -> [ChannelState; 2])] = &[
    (
        "delivered",
        || Outcome::Delivered(Receipt::default()),
        ['s', 's'],
        |_| [Flowing, Flowing],
    ),
    (
        "rejected",
        || Outcome::Rejected(failure()),
        ['d', 'd'],
        // One refusal of its own merits says nothing about the channel.
        |state| [state, state],
    ),
    (
        "rejected on this side",
        || Outcome::Rejected(failure().local()),
        ['d', 'd'],
        |state| [state, state],
    ),
    (
        "unauthorised",
        || Outcome::unauthorised("expired"),
        ['b', 'b'],
        |_| [Unauthorised, Unauthorised],
    ),
    (
        "redirected",
        || Outcome::Blocked(Failure::new("redirected", "to a login page")),
        ['b', 'b'],
        |_| [Offline, Offline],
    ),
    (
        "retry",
        || Outcome::Retry(failure()),
        ['b', 'c'],
        |state| match state {
            // A delivery since the last charge: the message is at fault, the channel is not.
            Flowing => [Offline, Flowing],
            Rejecting => [Rejecting, Rejecting],
            _ => [Offline, Offline],
        },
    ),
    (
        "unreachable",
        || Outcome::Unreachable(failure()),
        ['b', 'c'],
        |state| match state {
            Flowing => [Offline, Flowing],
            Rejecting => [Rejecting, Rejecting],
            _ => [Offline, Offline],
        },
    ),
    (
        "retry, with the receiver's own delay",
        || Outcome::Retry(holding(30)),
        ['b', 'c'],
        |_| [Holding, Holding],
    ),
];

#[test]
fn each_outcome_has_one_meaning_for_message_and_channel() {
    for (name, outcome, words, states) in TABLE {
        for state in ALL {
            for evidence in [false, true] {
                let case = format!("{name}, {state}, evidence {evidence}");
                let mut channel = channel(state, evidence);
                let verdict = judged(outcome(), probe(), &mut channel, &Policy::default());
                let column = usize::from(evidence);
                assert_eq!(word(&verdict), words[column], "{case}");
                assert_eq!(channel.state, states(state)[column], "{case}");
            }
        }
    }
}

#[test]
fn what_was_not_sent_changes_nothing() {
    for state in ALL {
        for evidence in [false, true] {
            let mut channel = channel(state, evidence);
            let before = channel.clone();
            let mut dice = Dice::seeded(1);
            let policy = Policy::default();
            let verdict = judge(None, probe(), &mut channel, &policy, NOW, &mut dice);
            assert_eq!(verdict, Verdict::Released);
            assert_eq!(channel, before);
        }
    }
}

#[test]
fn one_delivery_pays_for_one_charge() {
    let policy = Policy::default();
    let mut channel = channel(Flowing, false);
    let mut next = |outcome: Outcome| word(&judged(outcome, probe(), &mut channel, &policy));
    let retry = || Outcome::Retry(failure());
    let unreachable = || Outcome::Unreachable(failure());
    assert_eq!(next(retry()), 'b', "nothing was ever delivered");
    assert_eq!(next(Outcome::delivered()), 's');
    assert_eq!(next(unreachable()), 'c', "the delivery pays");
    assert_eq!(next(retry()), 'b', "and is spent");
    assert_eq!(next(Outcome::delivered()), 's');
    assert_eq!(next(Outcome::delivered()), 's');
    assert_eq!(next(retry()), 'c', "two deliveries pay once");
    assert_eq!(next(retry()), 'b');
    assert_eq!(next(Outcome::delivered()), 's');
    assert_eq!(next(Outcome::unauthorised("expired")), 'b');
    assert_eq!(next(Outcome::Rejected(failure())), 'd');
    assert_eq!(next(retry()), 'c', "only a charge spends the evidence");
}

#[test]
fn only_the_budget_and_the_age_together_kill() {
    let policy = Policy::default();
    let cases = [
        // attempts before, age of the first charge, dead
        (0, None, false),
        (18, Some(90 * DAY), false),
        (19, Some(DAY), true),
        (19, Some(DAY - 1), false),
        (19, Some(0), false),
        // The clock went back since the first charge: no proof of age.
        (19, Some(-DAY), false),
        (500, Some(DAY - 1), false),
        (500, Some(DAY), true),
        // What a foreign hand may have written.
        (u32::MAX, Some(DAY), true),
        (u32::MAX, None, false),
    ];
    for (attempts, age, dead) in cases {
        let facts = Facts {
            attempts,
            first_charged_at: age.map(|age| NOW - age),
            probe: false,
            clock_trusted: true,
        };
        let mut channel = channel(Flowing, true);
        let verdict = judged(Outcome::Retry(failure()), facts, &mut channel, &policy);
        let wanted = if dead { 'd' } else { 'c' };
        assert_eq!(word(&verdict), wanted, "{attempts} attempts, {age:?}");
        let (Verdict::Again {
            attempts: count, ..
        }
        | Verdict::Dead {
            attempts: count, ..
        }) = verdict
        else {
            panic!("neither kept nor dead");
        };
        assert_eq!(count, attempts.saturating_add(1));
    }
    // Without evidence no budget, however overspent, and no age kills.
    let facts = Facts {
        attempts: u32::MAX,
        first_charged_at: Some(i64::MIN),
        probe: false,
        clock_trusted: true,
    };
    for state in ALL {
        let mut channel = channel(state, false);
        let verdict = judged(Outcome::Retry(failure()), facts, &mut channel, &policy);
        assert_eq!(word(&verdict), 'b', "{state}");
    }
}

/// A delivery before the rejections may still pay for a charge.
#[test]
fn while_the_receiver_is_suspected_nobody_dies_of_a_spent_budget() {
    let policy = Policy::default();
    let facts = Facts {
        attempts: policy.max_attempts,
        first_charged_at: Some(NOW - DAY),
        ..probe()
    };
    for (rejections, fate) in [(0, 'd'), (9, 'd'), (10, 'c'), (11, 'c')] {
        let mut channel = channel(Rejecting, true);
        channel.rejections = rejections;
        let verdict = judged(Outcome::Retry(failure()), facts, &mut channel, &policy);
        assert_eq!(word(&verdict), fate, "after {rejections} rejections");
    }
}

#[test]
fn the_brake_believes_ten_rejections_in_a_row_and_no_more() {
    let policy = Policy::default();
    let mut channel = channel(Flowing, true);
    let mut fates = String::new();
    for _ in 0..13 {
        let outcome = Outcome::Rejected(failure());
        fates.push(word(&judged(outcome, probe(), &mut channel, &policy)));
    }
    assert_eq!(fates, "ddddddddddbbb");
    assert_eq!(channel.state, Rejecting);
    assert_eq!(channel.reason.as_deref(), Some("it broke"));
    // What is found on this side says nothing about the receiver, and does not wait for it.
    let local = Outcome::Rejected(failure().local());
    assert_eq!(word(&judged(local, probe(), &mut channel, &policy)), 'd');
    assert_eq!(channel.state, Rejecting);
    // Another kind of failure does not let the next rejections be believed.
    judged(Outcome::Retry(failure()), probe(), &mut channel, &policy);
    judged(Outcome::Retry(holding(1)), probe(), &mut channel, &policy);
    let outcome = Outcome::Rejected(failure());
    assert_eq!(word(&judged(outcome, probe(), &mut channel, &policy)), 'b');
    assert_eq!(channel.state, Holding, "the receiver's wish stays in force");
    // A delivery does, and so does a person.
    judged(Outcome::delivered(), probe(), &mut channel, &policy);
    for _ in 0..10 {
        let outcome = Outcome::Rejected(failure());
        assert_eq!(word(&judged(outcome, probe(), &mut channel, &policy)), 'd');
    }
    channel.resume();
    assert_eq!(channel.state, Flowing);
    let outcome = Outcome::Rejected(failure());
    assert_eq!(word(&judged(outcome, probe(), &mut channel, &policy)), 'd');
}

#[test]
fn a_message_waits_as_long_as_the_receiver_asked() {
    let due = |verdict: Verdict| match verdict {
        Verdict::Again { due, .. } => due - NOW,
        other => panic!("{other:?}"),
    };
    // A wish for one message says nothing about the others, unless nothing shows that the receiver
    // is well at all.
    for (hold, states) in [
        (Hold::Channel, [Holding, Holding]),
        (Hold::Message, [Offline, Flowing]),
    ] {
        let policy = Policy::default().retry_after(hold);
        for (evidence, state) in [false, true].into_iter().zip(states) {
            let mut channel = channel(Flowing, evidence);
            let outcome = Outcome::Retry(holding(600));
            let verdict = judged(outcome, Facts::default(), &mut channel, &policy);
            assert_eq!(due(verdict), 600_000, "{hold:?}, evidence {evidence}");
            assert_eq!(channel.state, state, "{hold:?}, evidence {evidence}");
        }
    }
    // Nor does it when a probe brings it: whatever the channel waits for, it waits no longer for that.
    let policy = Policy::default().retry_after(Hold::Message);
    for state in ALL {
        let mut channel = channel(state, true);
        let mut before = channel.clone();
        let outcome = Outcome::Retry(holding(600));
        assert_eq!(word(&judged(outcome, probe(), &mut channel, &policy)), 'c');
        before.evidence = false;
        assert_eq!(channel, before, "{state}");
    }
    // A longer back-off of our own stays; a wish of nothing is none.
    let facts = Facts {
        attempts: 30,
        first_charged_at: Some(NOW),
        probe: false,
        clock_trusted: true,
    };
    let policy = Policy::default();
    let mut channel = channel(Flowing, true);
    let verdict = judged(Outcome::Retry(holding(1)), facts, &mut channel, &policy);
    assert!(due(verdict) >= 3 * 3600 * 1000);
    let mut channel = super::tests::channel(Flowing, false);
    let verdict = judged(
        Outcome::Retry(holding(0)),
        facts,
        &mut channel,
        &Policy::default(),
    );
    assert!(due(verdict) >= 1_000, "no loop without a wait");
    assert_eq!(channel.state, Offline);
}

#[test]
fn a_message_given_back_waits_seconds_and_is_not_charged() {
    let policy = Policy::default();
    let facts = Facts {
        attempts: 7,
        first_charged_at: Some(NOW - DAY),
        probe: true,
        clock_trusted: true,
    };
    let outcomes: [Make; 4] = [
        || Outcome::Retry(failure()),
        || Outcome::Unreachable(failure()),
        || Outcome::unauthorised("expired"),
        || Outcome::Blocked(failure()),
    ];
    for outcome in outcomes {
        let mut channel = channel(Flowing, false);
        let verdict = judged(outcome(), facts, &mut channel, &policy);
        let Verdict::Again { due, attempts, .. } = verdict else {
            panic!("{verdict:?}");
        };
        assert!((1_000..=5_000).contains(&(due - NOW)), "{due}");
        assert_eq!(attempts, 7);
    }
}

#[test]
fn no_clock_and_no_wish_makes_the_arithmetic_overflow() {
    let spans = [0, 1, u64::MAX / 1_000, u64::MAX];
    for now in [i64::MIN, -1, 0, NOW, i64::MAX] {
        for first in [None, Some(i64::MIN), Some(0), Some(i64::MAX)] {
            for attempts in [0, 1, u32::MAX] {
                for span in spans {
                    for evidence in [false, true] {
                        let facts = Facts {
                            attempts,
                            first_charged_at: first,
                            probe: true,
                            clock_trusted: true,
                        };
                        let mut channel = channel(Offline, evidence);
                        channel.failures = u32::MAX;
                        channel.rejections = u32::MAX;
                        let mut dice = Dice::seeded(3);
                        let policy = Policy::default()
                            .backoff(Duration::MAX, Duration::MAX)
                            .min_dead_age(Duration::MAX);
                        for outcome in [Outcome::Retry(holding(span)), Outcome::Rejected(failure())]
                        {
                            let outcome = Some(outcome);
                            judge(outcome, facts, &mut channel, &policy, now, &mut dice);
                            channel.admission(now);
                        }
                    }
                }
            }
        }
    }
}
