//! A till's whole life by one seed: whatever happens to it, at whatever boundary, every promise holds.
//!
//! Goal: P1 to P4 and P6, by name. Method: applications, several drains on one real file, a person,
//! receivers with moods and a clock that cannot be trusted take turns by dice, in one thread and
//! without waiting; drains are stepped call by call and end, with all they knew, before, within and
//! after their commits. Then everything is mended. Afterwards a checker reads the history of the
//! receivers and that of the file. A broken promise prints its seed and the last events;
//! `OUTBOX_SEED=seed` lives that life again, `OUTBOX_SEED=0..500` these. `OUTBOX_LONG=1` lives 10,000
//! lives with more than a million messages, `OUTBOX_THREADS` of them at a time.

mod checker;
mod fuse;
mod history;
mod life;
mod person;
mod till;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use checker::{Checker, Figures, Violation};
use history::{Event, What};
use life::Life;

use crate::fixture::long;

/// Events that a broken promise shows.
const SHOWN: usize = 60;

/// One life: what happened in it, or what it broke.
fn live(seed: u64) -> (Vec<Event>, Result<Figures, Violation>) {
    let (mut life, rules) = Life::new(seed);
    let lived = catch_unwind(AssertUnwindSafe(|| life.live()));
    let history = std::mem::take(&mut life.till.history);
    if lived.is_err() {
        let violation = Violation {
            promise: "no panic",
            event: history.len().saturating_sub(1),
            text: "see above".into(),
        };
        return (history, Err(violation));
    }
    let mut checker = Checker::new(&rules, &history);
    let verdict = checker.follow().and_then(|()| checker.end(&life.till.sql));
    let verdict = verdict.map(|()| checker.figures());
    (history, verdict)
}

/// The last events up to the one that broke a promise.
fn story(seed: u64, history: &[Event], broken: &Violation) -> String {
    let until = history[..=broken.event].iter().rev();
    let told = until.filter(|it| !matches!(it.what, What::Cycle(true)));
    let mut lines: Vec<_> = told.take(SHOWN).map(ToString::to_string).collect();
    lines.reverse();
    let Violation { promise, text, .. } = broken;
    format!(
        "{}\n{promise} is broken: {text}\nOUTBOX_SEED={seed} lives this life again",
        lines.join("\n")
    )
}

/// Lives all of `seeds`, on as many threads as asked for, each life in one.
fn live_all(seeds: std::ops::Range<u64>, threads: usize) -> Figures {
    let next = AtomicU64::new(seeds.start);
    let sum = Mutex::new((Figures::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || !sum.lock().unwrap().1.is_empty() {
                        return;
                    }
                    let (history, verdict) = live(seed);
                    let mut sum = sum.lock().unwrap();
                    match verdict {
                        Ok(figures) => sum.0.add(&figures),
                        Err(broken) => sum.1.push(story(seed, &history, &broken)),
                    }
                }
            });
        }
    });
    let (figures, broken) = sum.into_inner().unwrap();
    assert!(broken.is_empty(), "{}", broken[0]);
    figures
}

#[test]
fn whatever_happens_in_a_tills_life_every_promise_holds() {
    let given = std::env::var("OUTBOX_SEED").ok();
    let threads = std::env::var("OUTBOX_THREADS").map_or(1, |it| it.parse().unwrap());
    let seeds = match given
        .as_deref()
        .map(|it| it.split_once("..").unwrap_or((it, "")))
    {
        Some((one, "")) => one.parse().map(|it| it..it + 1).unwrap(),
        Some((from, to)) => from.parse().unwrap()..to.parse().unwrap(),
        None if long() => 0..10_000,
        None => 0..50,
    };
    let figures = live_all(seeds, threads);
    println!("{figures:#?}");
    if given.is_none() {
        assert!(figures.of("repeated") > 0 && figures.of("taken back") > 0);
    }
    if given.is_none() && long() {
        assert_eq!(figures.missing(), [""; 0], "{figures:?}");
        assert!(figures.of("enqueued") >= 1_000_000, "{figures:?}");
    }
}

#[test]
fn the_same_seed_lives_the_same_life() {
    for seed in 0..5 {
        let [once, again] = [live(seed).0, live(seed).0]
            .map(|history| history.iter().map(ToString::to_string).collect::<Vec<_>>());
        let apart = once.iter().zip(&again).find(|(one, other)| one != other);
        assert_eq!(apart, None, "seed {seed}");
        assert_eq!(once.len(), again.len());
    }
}
