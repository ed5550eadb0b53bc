//! What an application feels of a drain at the default `lock_share`, and what the drain reaches
//! meanwhile. The application has a plain connection with nothing but a busy timeout, and commits
//! a sale and its message every 5 ms.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Cancel, Dispatcher, Settings, SettleSync};

use crate::Asked;
use crate::drain::http;
use crate::figure::{Figure, Target, median, millis, percentile, rate};
use crate::file::{CHANNEL, Till, payload};
use crate::wire::{self, Sink};

pub const NAMES: &[&str] = &[
    "app_commits_rate",
    "app_commits_p50_ms",
    "app_commits_p99_ms",
    "drain_share_http_0",
    "drain_share_http_20ms_8",
];

const EVERY: Duration = Duration::from_millis(5);

/// What the application felt.
#[derive(Debug, Clone, Copy)]
pub struct Felt {
    pub rate: f64,
    pub p50: f64,
    pub p99: f64,
}

/// The median of each over several rounds.
fn middle(rounds: &[Felt]) -> Felt {
    let of = |part: fn(&Felt) -> f64| median(&rounds.iter().map(part).collect::<Vec<_>>());
    Felt {
        rate: of(|it| it.rate),
        p50: of(|it| it.p50),
        p99: of(|it| it.p99),
    }
}

/// Rate, p50 and p99 of the application beside a drain to a receiver that answers at once ÷ alone;
/// and the drain's own rate beside the application, with that receiver and with one that waits
/// 20 ms, ÷ raw ureq from 8 threads with the machine to itself.
pub fn commits(asked: &Asked) -> Result<Vec<Figure>> {
    let span = Duration::from_millis(asked.size(4_000) as u64);
    let (quick, slow) = (Sink::start(0)?, Sink::start(20)?);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let mut rates = [const { Vec::new() }; 4];
    for _ in 0..asked.rounds(3) {
        let till = Till::filled(0, None)?;
        alone.push(application(&till.path, span, &AtomicBool::new(false))?);
        let (felt, sent) = together(&http(&quick)?, asked.size(120_000), span, SettleSync::Full)?;
        beside.push(felt);
        rates[0].push(sent);
        rates[1].push(wire::raw(&quick, asked.size(30_000), 8)?);
        let (_, sent) = together(&http(&slow)?, asked.size(5_000), span, SettleSync::Full)?;
        rates[2].push(sent);
        rates[3].push(wire::raw(&slow, asked.size(1_600), 8)?);
    }
    let (alone, beside) = (middle(&alone), middle(&beside));
    let [drain_0, raw_0, drain_20, raw_20] = rates.map(|it| median(&it));
    Ok(vec![
        Figure::new(
            NAMES[0],
            beside.rate,
            alone.rate,
            "commits/s",
            Target::Ratio(0.9),
        ),
        Figure::new(NAMES[1], beside.p50, alone.p50, "ms", Target::None),
        Figure::new(NAMES[2], beside.p99, alone.p99, "ms", Target::AtMost(5.0)),
        Figure::new(NAMES[3], drain_0, raw_0, "messages/s", Target::Ratio(0.1)),
        Figure::new(
            NAMES[4],
            drain_20,
            raw_20,
            "messages/s",
            Target::Ratio(0.99),
        ),
    ])
}

/// A drain and an application on a new file, for a while: what the application felt, and the
/// drain's messages a second.
pub fn together(
    dispatcher: &dyn Dispatcher,
    backlog: usize,
    span: Duration,
    settle_sync: SettleSync,
) -> Result<(Felt, f64)> {
    let till = Till::filled(backlog, None)?;
    let outbox = till.open()?;
    let settings = Settings::new().workers(8).settle_sync(settle_sync);
    let (done, cancel) = (AtomicBool::new(false), Cancel::new());
    thread::scope(|scope| {
        let felt = scope.spawn(|| application(&till.path, span, &done));
        let begun = Instant::now();
        let drain = outbox
            .draining(dispatcher)
            .settings(settings)
            .cancel(&cancel);
        let report = drain.deadline(span).run()?;
        let sent = rate(report.sent as usize, begun.elapsed());
        // With nothing left to send, the application would be alone.
        done.store(true, Ordering::Release);
        Ok((felt.join().expect("the application panicked")?, sent))
    })
}

/// Commits a sale and its message every 5 ms for a while. Of a commit that is late the next one is
/// not made up for.
fn application(path: &Path, span: Duration, done: &AtomicBool) -> Result<Felt> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(Duration::from_secs(5))?;
    conn.execute_batch("CREATE TABLE IF NOT EXISTS sale (id INTEGER PRIMARY KEY, total INTEGER)")?;
    let mut sale = conn.prepare("INSERT INTO sale (total) VALUES (1250)")?;
    let mut message =
        conn.prepare("INSERT INTO outbox (channel, dedupe_key, payload) VALUES (?1, ?2, ?3)")?;
    let mut begin = conn.prepare("BEGIN IMMEDIATE")?;
    let mut commit = conn.prepare("COMMIT")?;
    let payload = payload();
    let mut times = Vec::new();
    let begun = Instant::now();
    let mut next = begun;
    while begun.elapsed() < span && !done.load(Ordering::Acquire) {
        let start = Instant::now();
        begin.execute([])?;
        sale.execute([])?;
        message.execute((CHANNEL, format!("live-{}", times.len()), &payload))?;
        commit.execute([])?;
        times.push(millis(start.elapsed()));
        next = (next + EVERY).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(Felt {
        rate: rate(times.len(), begun.elapsed()),
        p50: median(&times),
        p99: percentile(&times, 0.99),
    })
}
