//! The circuit, step by step, and at the edges of the clock.

use super::*;
use crate::retry::HOLD_MAX;

const NOW: i64 = 1_800_000_000_000;

fn dice() -> Dice {
    Dice::seeded(5)
}

fn failure() -> Failure {
    Failure::new("refused", "connection refused")
}

fn opened(now: i64, dice: &mut Dice) -> Channel {
    let mut channel = Channel::default();
    channel.open(ChannelState::Offline, &failure(), false, now, dice);
    channel
}

fn until(channel: &Channel) -> i64 {
    channel.until.expect("a time to look again")
}

#[test]
fn the_first_failure_opens_and_says_why() {
    let mut dice = dice();
    let channel = opened(NOW, &mut dice);
    assert_eq!(channel.state, ChannelState::Offline);
    assert_eq!(channel.since, Some(NOW));
    assert_eq!(channel.reason_code.as_deref(), Some("refused"));
    assert_eq!(channel.reason.as_deref(), Some("connection refused"));
    let wait = until(&channel) - NOW;
    assert!((500..=1_000).contains(&wait), "{wait}");
    let closed = Admission::Closed(channel.until);
    assert_eq!(channel.admission(NOW), closed);
    assert_eq!(channel.admission(until(&channel) - 1), closed);
    let probe = Admission::Probe(Turn::Fresh);
    assert_eq!(channel.admission(until(&channel)), probe);
}

#[test]
fn probes_alternate_between_fresh_and_failed_whichever_was_taken() {
    let mut dice = dice();
    let mut channel = opened(NOW, &mut dice);
    let mut now = NOW;
    for took in [Turn::Fresh, Turn::Retry, Turn::Fresh, Turn::Retry] {
        now = until(&channel);
        assert_eq!(channel.admission(now), Admission::Probe(took));
        channel.take_probe(took, now);
        // The slot is taken: another process, or the next cycle, waits.
        assert_eq!(channel.admission(now), Admission::Closed(channel.until));
        channel.open(ChannelState::Offline, &failure(), true, now, &mut dice);
    }
    // No fresh message was there, so a failed one went: the next turn is a fresh one's.
    channel.turn = Turn::Fresh;
    channel.take_probe(Turn::Retry, now);
    assert_eq!(channel.turn, Turn::Fresh);
}

#[test]
fn waits_double_to_a_minute_and_no_further() {
    let mut dice = dice();
    let mut channel = Channel::default();
    let mut now = NOW;
    for round in 0..200_u32 {
        channel.open(ChannelState::Offline, &failure(), true, now, &mut dice);
        let full = 60_000.min(1_000_i64 << round.min(16));
        let wait = until(&channel) - now;
        assert!((full / 2..=full).contains(&wait), "{round}: {wait}");
        assert_eq!(channel.since, Some(NOW), "still the same trouble");
        now = until(&channel);
    }
    channel.failures = u32::MAX;
    channel.open(ChannelState::Offline, &failure(), true, now, &mut dice);
    assert!(until(&channel) - now <= PROBE_CEILING);
    channel.delivered(NOW);
    channel.open(ChannelState::Offline, &failure(), false, now, &mut dice);
    assert!(until(&channel) - now <= 1_000, "new trouble starts anew");
}

#[test]
fn what_was_under_way_when_it_opened_extends_nothing() {
    let mut dice = dice();
    let before = opened(NOW, &mut dice);
    let mut channel = before.clone();
    for late in 1..50 {
        let other = Failure::new("timeout", "60 s");
        channel.open(ChannelState::Offline, &other, false, NOW + late, &mut dice);
        let other = Failure::new(Failure::UNAUTHORISED, "401");
        channel.open(ChannelState::Unauthorised, &other, false, NOW, &mut dice);
    }
    assert_eq!(channel, before);
}

#[test]
fn a_probe_may_find_other_trouble() {
    let mut dice = dice();
    let mut channel = opened(NOW, &mut dice);
    let now = until(&channel);
    let other = Failure::new(Failure::UNAUTHORISED, "expired");
    channel.open(ChannelState::Unauthorised, &other, true, now, &mut dice);
    assert_eq!(channel.state, ChannelState::Unauthorised);
    assert_eq!(channel.since, Some(now));
    assert_eq!(channel.reason.as_deref(), Some("expired"));
}

#[test]
fn a_delivery_closes_everything_but_a_persons_pause() {
    let mut dice = dice();
    let mut channel = opened(NOW, &mut dice);
    channel.rejections = 9;
    channel.pause = Some(Pause {
        at: NOW,
        by: None,
        reason: None,
    });
    channel.delivered(NOW);
    assert!(channel.evidence);
    assert_eq!(channel.rejections, 0);
    assert_eq!(channel.state, ChannelState::Ok);
    assert_eq!(
        (channel.since, channel.until, channel.failures),
        (None, None, 0)
    );
    assert_eq!(
        (channel.reason_code.as_ref(), channel.reason.as_ref()),
        (None, None)
    );
    assert_eq!(channel.admission(NOW), Admission::Closed(None));
    channel.resume();
    assert_eq!(channel.admission(NOW), Admission::Open);
    assert!(channel.evidence, "a person's word is no charge");
}

#[test]
fn a_time_beyond_any_honest_wait_counts_as_passed() {
    let cases = [
        // state, how far ahead, closed
        (ChannelState::Offline, 1, true),
        (ChannelState::Offline, PROBE_CEILING, true),
        (ChannelState::Offline, PROBE_CEILING + 1, false),
        (ChannelState::Unauthorised, PROBE_CEILING + 1, false),
        (ChannelState::Rejecting, PROBE_CEILING + 1, false),
        (ChannelState::Holding, PROBE_CEILING + 1, true),
        (ChannelState::Holding, HOLD_MAX, true),
        (ChannelState::Holding, HOLD_MAX + 1, false),
        (ChannelState::Holding, i64::MAX - NOW, false),
        (ChannelState::Offline, 0, false),
        (ChannelState::Offline, -NOW, false),
        (ChannelState::Offline, i64::MIN, false),
    ];
    for (state, ahead, closed) in cases {
        let channel = Channel {
            state,
            until: Some(NOW.saturating_add(ahead)),
            ..Channel::default()
        };
        let wanted = match closed {
            true => Admission::Closed(channel.until),
            false => Admission::Probe(Turn::Fresh),
        };
        assert_eq!(channel.admission(NOW), wanted, "{state}, {ahead}");
    }
    // A foreign hand, or a clock at its end: something may still go.
    for (now, until) in [
        (i64::MIN, Some(i64::MAX)),
        (i64::MAX, Some(i64::MIN)),
        (i64::MIN, None),
        (i64::MAX, None),
    ] {
        let channel = Channel {
            state: ChannelState::Holding,
            until,
            ..Channel::default()
        };
        assert_eq!(channel.admission(now), Admission::Probe(Turn::Fresh));
    }
}

#[test]
fn the_longest_wish_holds_whoever_asked_last() {
    let mut channel = Channel::default();
    for (span, kept) in [
        (30_000, 30_000),
        (5_000, 30_000),
        (60_000, 60_000),
        (1, 60_000),
    ] {
        channel.hold(span, &failure(), NOW);
        assert_eq!(channel.state, ChannelState::Holding);
        assert_eq!(channel.until, Some(NOW + kept), "{span}");
    }
    assert_eq!(channel.since, Some(NOW));
    // A probe time of ours is no wish of the receiver's.
    let mut dice = dice();
    let mut channel = opened(NOW, &mut dice);
    channel.until = Some(NOW + PROBE_CEILING);
    channel.hold(2_000, &failure(), NOW);
    assert_eq!(channel.until, Some(NOW + 2_000));
    // What was under way when the receiver asked is no reason to disturb it.
    channel.open(ChannelState::Offline, &failure(), false, NOW, &mut dice);
    assert_eq!(channel.state, ChannelState::Holding);
    assert_eq!(channel.until, Some(NOW + 2_000));
    channel.hold(i64::MAX, &failure(), i64::MAX);
    assert_eq!(channel.until, Some(i64::MAX));
}

#[test]
fn a_wake_brings_probes_forward_and_no_hold() {
    let mut dice = dice();
    for state in [
        ChannelState::Offline,
        ChannelState::Unauthorised,
        ChannelState::Rejecting,
    ] {
        let mut channel = Channel::default();
        channel.open(state, &failure(), false, NOW, &mut dice);
        channel.bring_forward(NOW, None);
        assert_eq!(
            channel.admission(NOW),
            Admission::Probe(Turn::Fresh),
            "{state}"
        );
    }
    let mut channel = Channel::default();
    channel.bring_forward(NOW, None);
    assert_eq!(channel, Channel::default());
    channel.hold(30_000, &failure(), NOW);
    channel.bring_forward(NOW + 10_000, None);
    assert_eq!(channel.until, Some(NOW + 30_000));
    // Twelve hours back on the clock: twenty seconds are left all the same.
    let back = 12 * 3_600_000;
    let now = NOW + 10_000 - back;
    let known = NOW + 30_000;
    let end = known - back;
    // Every process that notices the step says so; it must not count twice.
    for _ in 0..2 {
        channel.bring_forward(now, Some(MovedHold { known, end }));
        assert_eq!(until(&channel) - now, 20_000);
    }
    channel.hold(40_000, &failure(), now);
    channel.bring_forward(now, Some(MovedHold { known, end }));
    assert_eq!(until(&channel) - now, 40_000, "asked for since");
}

/// Requests that were under way when the receiver asked for peace used to end it.
#[test]
fn a_hold_outlives_what_was_under_way() {
    let mut dice = dice();
    let mut channel = Channel::default();
    channel.hold(60_000, &failure(), NOW);
    channel.delivered(NOW + 1_000);
    assert!(channel.evidence, "the delivery counts all the same");
    channel.open(
        ChannelState::Offline,
        &failure(),
        true,
        NOW + 2_000,
        &mut dice,
    );
    assert_eq!(channel.state, ChannelState::Holding);
    assert_eq!(until(&channel), NOW + 60_000);
    channel.delivered(NOW + 60_000);
    assert_eq!(channel.state, ChannelState::Ok);
}

#[test]
fn two_tills_are_never_in_step() {
    let life = |seed: u64| -> Vec<i64> {
        let mut dice = Dice::seeded(seed);
        let mut channel = Channel::default();
        let mut now = NOW;
        let mut probes = Vec::new();
        for _ in 0..30 {
            channel.open(ChannelState::Offline, &failure(), true, now, &mut dice);
            now = until(&channel);
            probes.push(now);
        }
        probes
    };
    for other in 2..40 {
        let (one, other) = (life(1), life(other));
        let close = |(a, b): &(&i64, &i64)| (**a - **b).abs() < 50;
        let together = one.iter().zip(&other).filter(close).count();
        // The first waits are a second at most; two of them may fall close by chance.
        assert!(together <= 6, "{together} of 30 probes together");
        let last = (one[29] - other[29]).abs();
        assert!(last > 1_000, "a quarter of an hour later {last} ms apart");
    }
}

#[test]
fn the_count_of_rejections_cannot_run_over() {
    let mut channel = Channel {
        rejections: u32::MAX,
        ..Channel::default()
    };
    assert!(channel.rejected(10));
    assert!(channel.rejections < u32::MAX);
    let mut channel = Channel::default();
    let suspected: Vec<bool> = (0..12).map(|_| channel.rejected(10)).collect();
    assert_eq!(suspected.iter().filter(|it| !**it).count(), 10);
    assert_eq!(suspected[9..], [false, true, true]);
}

#[test]
fn a_hold_ends_exactly_when_the_receiver_asked_for() {
    for span in [1, 1_000, 120_000, HOLD_MAX] {
        let mut channel = Channel::default();
        channel.hold(span, &failure(), NOW);
        assert_eq!(
            (channel.since, channel.until),
            (Some(NOW), Some(NOW + span))
        );
        let closed = Admission::Closed(Some(NOW + span));
        assert_eq!(channel.admission(NOW + span - 1), closed);
        assert_eq!(channel.admission(NOW + span), Admission::Probe(Turn::Fresh));
    }
    let mut channel = Channel::default();
    channel.hold(5_000, &failure(), NOW);
    channel.hold(9_000, &failure(), NOW + 1_000);
    assert_eq!(channel.until, Some(NOW + 10_000), "the longest wish holds");
    channel.hold(2_000, &failure(), NOW + 2_000);
    assert_eq!(channel.until, Some(NOW + 10_000));
}
