//! Bounds of every wait, at the edges of every number.

use super::*;

const SECOND: i64 = 1_000;
const HOUR: i64 = 3_600 * SECOND;

fn dice() -> Dice {
    Dice::seeded(11)
}

/// The least and the most of a thousand throws.
fn bounds(policy: &Policy, attempts: u32) -> (i64, i64) {
    let mut dice = dice();
    let throws = (0..1_000).map(|_| policy.delay_after(attempts, &mut dice));
    throws.fold((i64::MAX, i64::MIN), |(low, high), it| {
        (low.min(it), high.max(it))
    })
}

#[test]
fn back_off_doubles_from_thirty_seconds_to_six_hours_in_the_upper_half() {
    let policy = Policy::default();
    let cases = [
        // Not a charge at all: as the first.
        (0, 30 * SECOND),
        (1, 30 * SECOND),
        (2, 60 * SECOND),
        (3, 120 * SECOND),
        (10, 30 * 512 * SECOND),
        (11, 6 * HOUR),
        (20, 6 * HOUR),
        (41, 6 * HOUR),
        (64, 6 * HOUR),
        (65, 6 * HOUR),
        (u32::MAX, 6 * HOUR),
    ];
    for (attempts, full) in cases {
        let (low, high) = bounds(&policy, attempts);
        assert!(low >= full / 2 && high <= full, "{attempts}: {low}..{high}");
        assert!(high - low >= full * 45 / 100, "{attempts}: hardly spread");
    }
}

/// Twenty charged attempts outlast a weekend.
#[test]
fn the_whole_budget_takes_more_than_two_days_at_the_least() {
    let policy = Policy::default();
    let full: i64 = (1..policy.max_attempts)
        .map(|attempts| bounds(&policy, attempts).0)
        .sum();
    assert!(full > 24 * HOUR, "{} h", full / HOUR);
    assert!(millis(policy.min_dead_age) == 24 * HOUR);
}

#[test]
fn impossible_numbers_are_clamped() {
    let huge = Policy::default().backoff(Duration::MAX, Duration::MAX);
    for attempts in [0, 1, 40, u32::MAX] {
        let delay = huge.delay_after(attempts, &mut dice());
        assert!(delay >= i64::MAX / 2, "{delay}");
    }
    let none = Policy::default().backoff(Duration::ZERO, Duration::ZERO);
    for attempts in [0, 1, u32::MAX] {
        assert_eq!(none.delay_after(attempts, &mut dice()), 1, "never no wait");
    }
    // A cap below the base is the base.
    let odd = Policy::default().backoff(Duration::from_secs(60), Duration::from_secs(1));
    let (low, high) = bounds(&odd, 5);
    assert!(low >= 30 * SECOND && high <= 60 * SECOND);
    let policy = Policy::default()
        .max_attempts(0)
        .max_in_flight(0)
        .run_length(0)
        .brake(0);
    assert_eq!(
        (
            policy.max_attempts,
            policy.max_in_flight,
            policy.run_length,
            policy.brake
        ),
        (1, Some(1), 1, 1)
    );
}

#[test]
fn a_wish_is_kept_up_to_a_day() {
    let cases = [
        (Duration::ZERO, 0),
        (Duration::from_millis(1), 1),
        (Duration::from_secs(30), 30 * SECOND),
        (Duration::from_secs(24 * 3600), 24 * HOUR),
        (Duration::from_secs(24 * 3600 + 1), 24 * HOUR),
        (Duration::from_secs(u64::MAX), 24 * HOUR),
        (Duration::MAX, 24 * HOUR),
    ];
    for (wish, held) in cases {
        assert_eq!(hold_for(wish), held, "{wish:?}");
    }
}

#[test]
fn what_is_given_back_waits_a_few_seconds() {
    let mut dice = dice();
    for _ in 0..1_000 {
        let delay = give_back_delay(&mut dice);
        assert!((2 * SECOND..=GIVE_BACK_MAX).contains(&delay), "{delay}");
    }
}

#[test]
fn dice_stay_within_every_range_and_differ_by_seed() {
    let ranges = [
        (0, 0),
        (5, 5),
        (5, 4),
        (-3, 3),
        (0, i64::MAX),
        (i64::MIN, i64::MAX),
        (i64::MAX - 1, i64::MAX),
    ];
    for (low, high) in ranges {
        let mut dice = dice();
        for _ in 0..200 {
            let thrown = dice.between(low, high);
            assert!(thrown >= low && thrown <= high.max(low), "{low}..{high}");
        }
    }
    let throw = |mut dice: Dice| -> Vec<i64> { (0..50).map(|_| dice.between(0, 999)).collect() };
    let equal = |a: &[i64], b: &[i64]| a.iter().zip(b).filter(|(a, b)| a == b).count();
    assert_eq!(throw(Dice::seeded(1)), throw(Dice::seeded(1)));
    assert!(equal(&throw(Dice::seeded(1)), &throw(Dice::seeded(2))) < 5);
    assert!(equal(&throw(Dice::random()), &throw(Dice::random())) < 5);
}
