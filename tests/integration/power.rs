//! The power is cut: what was acknowledged is there, what was not is whole or gone.
//!
//! Method: a day is played once on a disk that is recorded (`tests/vfs`), with sales in ordered
//! lanes, two drains that die now and then, a receiver with moods, people, and retention. Then the
//! power is cut at every sync and in between: the disk at that moment is made from the record,
//! with what was not synced there, gone, or torn in sectors, and opened by the system's own VFS.
//!
//! What is found must be a state that the file went through, no earlier than the promise; the file
//! must be sound, and the outbox goes on from there and delivers everything, in order, with the
//! same keys and bytes. `OUTBOX_SEED=seed` plays one day; `OUTBOX_LONG=1` plays many.

mod after;
mod scenario;

use sqlite_outbox::SettleSync;

use after::{Findings, Inquest};
use scenario::{Mode, Note};

use crate::fixture::{Rng, long};
use crate::vfs::Survival;

/// The day that was asked for.
fn asked_for() -> Option<u64> {
    let seed = std::env::var("OUTBOX_SEED").ok()?;
    Some(seed.parse().unwrap())
}

/// Of the days that are played when none is asked for, each mode must have seen this. Any other may be quiet.
fn must_have(happened: bool, found: &Findings) {
    assert!(happened || asked_for().is_some(), "too quiet: {found:?}");
}

/// Cuts the power of several days at all their syncs.
fn days(mode: Mode, kept: fn(&Note) -> bool) -> Findings {
    let seeds = match asked_for() {
        Some(seed) => seed..seed + 1,
        None if long() => 0..4,
        None => 3..4,
    };
    let (moves, rounds) = match long() {
        true => (100, 2),
        false if mode.journal == "WAL" => (40, 1),
        false => (20, 1),
    };
    let mut sum = Findings::default();
    for seed in seeds {
        println!("OUTBOX_SEED={seed}");
        let record = scenario::play(mode, seed, moves);
        let mut inquest = Inquest::new(&record, mode, seed);
        inquest.the_record_is_true();
        let mut dice = Rng(seed);
        let length = record.disk.ops.len();
        for cut in record.disk.boundaries() {
            inquest.cut(cut, Survival::Nothing, kept);
            for _ in 0..rounds {
                inquest.cut(cut, Survival::Some, kept);
                let between = usize::try_from(dice.below(length as i64)).unwrap();
                inquest.cut(between, Survival::Some, kept);
            }
        }
        sum.add(inquest.findings);
    }
    println!("{mode:?}: {sum:?}");
    if mode.journal == "WAL" {
        must_have(sum.cancelled + sum.edited > 0, &sum);
        must_have(sum.tidied > 0, &sum);
    }
    sum
}

/// All that returned.
fn all(note: &Note) -> bool {
    matches!(note, Note::Done { .. })
}

fn full(journal: &'static str) -> Mode {
    Mode {
        journal,
        synchronous: None,
        settle_sync: SettleSync::Full,
    }
}

#[test]
fn what_was_acknowledged_survives_with_a_write_ahead_log() {
    assert_eq!(days(full("WAL"), all).taken_back, 0);
}

#[test]
fn what_was_acknowledged_survives_with_a_deleted_journal() {
    assert_eq!(days(full("DELETE"), all).taken_back, 0);
}

#[test]
fn what_was_acknowledged_survives_with_a_truncated_journal() {
    assert_eq!(days(full("TRUNCATE"), all).taken_back, 0);
}

/// The application has chosen NORMAL: the last commits may be gone, together with whatever came
/// after them. What was sent is not, as the claim was on the disk before.
#[test]
fn with_normal_a_cut_takes_back_a_suffix_and_nothing_that_was_sent() {
    let mode = Mode {
        synchronous: Some("NORMAL"),
        ..full("WAL")
    };
    let found = days(mode, |_| false);
    must_have(found.commits_taken_back > 0, &found);
    assert_eq!(found.sent_and_taken_back, 0, "{found:?}");
}

/// Only EXTRA syncs the folder after the journal was deleted, so the journal may come back and take
/// the last commit with it. Whatever a drain, or anyone, committed afterwards has made it certain.
#[test]
fn with_full_and_a_deleted_journal_a_cut_may_take_back_the_last_commit() {
    let mode = Mode {
        synchronous: Some("FULL"),
        ..full("DELETE")
    };
    let found = days(mode, |note| matches!(note, Note::Done { by_drain: true }));
    must_have(found.commits_taken_back > 0, &found);
    assert_eq!(found.sent_and_taken_back, 0, "{found:?}");
}

/// Deliveries may have to be repeated; no commit of the application or a person is taken back.
#[test]
fn with_a_lazy_settle_a_cut_takes_back_settles_only() {
    let mode = Mode {
        settle_sync: SettleSync::Normal,
        ..full("WAL")
    };
    let found = days(mode, |note| matches!(note, Note::Done { by_drain: false }));
    must_have(found.taken_back > 0, &found);
    assert_eq!(found.commits_taken_back, 0, "{found:?}");
    assert_eq!(found.sent_and_taken_back, 0, "{found:?}");
}
