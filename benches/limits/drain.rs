//! Sending, beside bare statements and raw ureq. The `drain_…` figures have the whole write lock
//! (`lock_share` 1, for a night run); those with `_share` leave it free four fifths of the time,
//! as is the default.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use sqlite_outbox::{Delivery, Dispatcher, HttpDispatcher, Outbox, Outcome, Route, Settings};

use crate::Asked;
use crate::bare::{self, By};
use crate::figure::{Figure, Target, in_turn, rate};
use crate::file::CHANNEL;
use crate::wire::{self, Sink};

const UNIT: &str = "messages/s";

pub fn noop_dispatcher(_: &Delivery) -> anyhow::Result<Outcome> {
    Ok(Outcome::delivered())
}

pub fn http(url: &str) -> Result<HttpDispatcher> {
    let route = Route::post(url);
    Ok(HttpDispatcher::builder().channel(CHANNEL, route).build()?)
}

/// 50,000 to a dispatcher that does nothing, with 8 workers ÷ the same claims and settles by bare
/// statements in a loop, on the same table with its triggers, as many in a transaction: a
/// statement for each row, and in `drain_noop_sets` one for all of them.
pub fn noop(asked: &Asked) -> Result<Vec<Figure>> {
    let count = asked.size(50_000);
    let batch = messages_per_commit(asked, count)?;
    let bare = |by| bare::drain(&asked.till(count, None)?.path, batch, by);
    let [value, share, rows, sets] = in_turn(
        asked.rounds(5),
        [
            &mut || ours(asked, &noop_dispatcher, count, None, 8, 1.0),
            &mut || ours(asked, &noop_dispatcher, count, None, 8, 0.2),
            &mut || bare(By::Row),
            &mut || bare(By::Set),
        ],
    )?;
    let mut figures = pair("drain_noop", value, share, rows, 0.8);
    figures.push(Figure::new(
        "drain_noop_sets",
        value,
        sets,
        UNIT,
        Target::None,
    ));
    Ok(figures)
}

/// How many a drain settles and claims in one transaction, on average.
fn messages_per_commit(asked: &Asked, count: usize) -> Result<usize> {
    let till = asked.till(count, None)?;
    let commits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&commits);
    let outbox = Outbox::options()
        .on_connect(move |conn| {
            let counted = Arc::clone(&counted);
            conn.commit_hook(Some(move || {
                counted.fetch_add(1, Ordering::Relaxed);
                false
            }))
        })
        .open_existing(&till.path)?;
    send(&outbox, &noop_dispatcher, count, 8, 1.0)?;
    Ok(count.div_ceil(commits.load(Ordering::Relaxed).max(1)))
}

/// 30,000 POSTs to a bare receiver in another process, 8 workers ÷ as many by raw ureq from 8
/// threads.
pub fn http_0(asked: &Asked) -> Result<Vec<Figure>> {
    let count = asked.size(30_000);
    wired(asked, "drain_http_0", 0, count, None, 8, (5, 0.85))
}

/// A receiver that waits 20 ms, 8 workers ÷ raw ureq from 8 threads.
pub fn http_20ms_8(asked: &Asked) -> Result<Vec<Figure>> {
    let count = asked.size(1_600);
    wired(asked, "drain_http_20ms_8", 20, count, None, 8, (3, 0.99))
}

/// A receiver that waits 20 ms, 64 workers ÷ raw ureq from 64 threads.
pub fn http_20ms_64(asked: &Asked) -> Result<Vec<Figure>> {
    let count = asked.size(12_800);
    wired(asked, "drain_http_20ms_64", 20, count, None, 64, (3, 0.99))
}

/// 5,000 messages of one ordering key ÷ raw ureq from one thread.
pub fn lane(asked: &Asked) -> Result<Vec<Figure>> {
    let count = asked.size(5_000);
    wired(
        asked,
        "drain_lane",
        0,
        count,
        Some("customer-7"),
        1,
        (5, 0.9),
    )
}

fn wired(
    asked: &Asked,
    name: &str,
    delay_ms: u64,
    count: usize,
    ordering_key: Option<&'static str>,
    threads: usize,
    (rounds, target): (usize, f64),
) -> Result<Vec<Figure>> {
    let sink = Sink::start(delay_ms)?;
    let workers = threads.max(8);
    let [value, share, limit] = in_turn(
        asked.rounds(rounds),
        [
            &mut || ours(asked, &http(&sink.url)?, count, ordering_key, workers, 1.0),
            &mut || ours(asked, &http(&sink.url)?, count, ordering_key, workers, 0.2),
            &mut || wire::raw(&sink, count, threads),
        ],
    )?;
    Ok(pair(name, value, share, limit, target))
}

fn pair(name: &str, value: f64, share: f64, limit: f64, target: f64) -> Vec<Figure> {
    vec![
        Figure::new(name, value, limit, UNIT, Target::Ratio(target)),
        Figure::new(&format!("{name}_share"), share, limit, UNIT, Target::None),
    ]
}

/// Messages a second of a drain of a new file, from its call to its report.
pub fn ours(
    asked: &Asked,
    dispatcher: &dyn Dispatcher,
    count: usize,
    ordering_key: Option<&'static str>,
    workers: usize,
    lock_share: f64,
) -> Result<f64> {
    let till = asked.till(count, ordering_key)?;
    send(&till.open()?, dispatcher, count, workers, lock_share)
}

fn send(
    outbox: &Outbox,
    dispatcher: &dyn Dispatcher,
    count: usize,
    workers: usize,
    lock_share: f64,
) -> Result<f64> {
    let settings = Settings::new().workers(workers).lock_share(lock_share);
    let begun = Instant::now();
    let report = outbox.draining(dispatcher).settings(settings).run()?;
    let took = begun.elapsed();
    ensure!(report.sent == count as u64, "not all was sent: {report:?}");
    Ok(rate(count, took))
}
