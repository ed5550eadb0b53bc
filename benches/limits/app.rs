//! What an application feels of a drain at the default `lock_share`, and what the drain reaches
//! meanwhile. The application has a plain connection with nothing but a busy timeout, and commits
//! a sale and its message every 5 ms: so much lies between two commits, however long they take.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use sqlite_outbox::rusqlite::{Connection, OpenFlags};
use sqlite_outbox::{Dispatcher, Outbox, Settings, SettleSync};

use crate::Asked;
use crate::drain::http;
use crate::figure::{Figure, Target, median, millis, percentile, rate};
use crate::file::{CHANNEL, Till, payload};
use crate::vfs::Vfs;
use crate::wire::{self, Sink};

pub const NAMES: &[&str] = &[
    "app_commits_rate",
    "app_commits_p50_ms",
    "app_commits_p99_ms",
    "drain_share_http_0",
    "drain_share_http_20ms_8",
];

pub const SLOW_NAMES: &[&str] = &[
    "app_commits_slow_full_p50_ms",
    "app_commits_slow_normal_p50_ms",
    "app_commits_slow_full_p99_ms",
    "app_commits_slow_normal_p99_ms",
    "app_commits_slow_full_rate",
    "app_commits_slow_normal_rate",
];

/// A sync of the slow disk.
const SYNC: Duration = Duration::from_millis(20);
/// Between two commits of the application.
const PAUSE: Duration = Duration::from_millis(5);

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
    let disk = Disk::default();
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let mut rates = [const { Vec::new() }; 4];
    for _ in 0..asked.rounds(3) {
        alone.push(disk.alone(asked, span)?);
        let (felt, sent) = disk.beside(asked, &http(&quick.url)?, asked.size(120_000), span)?;
        beside.push(felt);
        rates[0].push(sent);
        rates[1].push(wire::raw(&quick, asked.size(30_000), 8)?);
        let (_, sent) = disk.beside(asked, &http(&slow.url)?, asked.size(5_000), span)?;
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

/// The same on a disk whose sync takes 20 ms, beside a drain that records its deliveries with
/// `settle_sync` full and normal, ÷ alone on that disk.
pub fn slow_commits(asked: &Asked) -> Result<Vec<Figure>> {
    let span = Duration::from_millis(asked.size(6_000) as u64);
    let sink = Sink::start(0)?;
    let vfs = Vfs::register();
    let disk = |settle_sync| Disk {
        vfs: Some(vfs.clone()),
        settle_sync,
    };
    let [full, normal] = [SettleSync::Full, SettleSync::Normal].map(disk);
    let mut felt = [const { Vec::new() }; 3];
    for _ in 0..asked.rounds(3) {
        felt[0].push(full.alone(asked, span)?);
        felt[1].push(
            full.beside(asked, &http(&sink.url)?, asked.size(50_000), span)?
                .0,
        );
        felt[2].push(
            normal
                .beside(asked, &http(&sink.url)?, asked.size(50_000), span)?
                .0,
        );
    }
    let [alone, full, normal] = felt.map(|it| middle(&it));
    let two_syncs = Target::Beyond(2.0 * millis(SYNC));
    let five = Target::Beyond(5.0);
    let ms = |name, value, limit, target| Figure::new(name, value, limit, "ms", target);
    let rate =
        |name, felt: Felt| Figure::new(name, felt.rate, alone.rate, "commits/s", Target::None);
    Ok(vec![
        ms(SLOW_NAMES[0], full.p50, alone.p50, Target::None),
        ms(SLOW_NAMES[1], normal.p50, alone.p50, Target::None),
        ms(SLOW_NAMES[2], full.p99, alone.p99, two_syncs),
        ms(SLOW_NAMES[3], normal.p99, alone.p99, five),
        rate(SLOW_NAMES[4], full),
        rate(SLOW_NAMES[5], normal),
    ])
}

/// The disk an application and a drain share.
#[derive(Default)]
struct Disk {
    /// Of the slow one.
    vfs: Option<Vfs>,
    settle_sync: SettleSync,
}

impl Disk {
    fn till(&self, asked: &Asked, backlog: usize) -> Result<Till> {
        self.sync_takes(Duration::ZERO);
        let till = asked.till(backlog, None)?;
        self.connection(&till.path)?.execute_batch(
            "CREATE TABLE IF NOT EXISTS sale (id INTEGER PRIMARY KEY, total INTEGER)",
        )?;
        self.sync_takes(SYNC);
        Ok(till)
    }

    fn sync_takes(&self, time: Duration) {
        if let Some(vfs) = &self.vfs {
            vfs.sync_takes(time);
        }
    }

    fn connection(&self, path: &Path) -> Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
        let conn = match &self.vfs {
            Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs.name())?,
            None => Connection::open_with_flags(path, flags)?,
        };
        conn.busy_timeout(Duration::from_secs(5))?;
        Ok(conn)
    }

    fn alone(&self, asked: &Asked, span: Duration) -> Result<Felt> {
        let till = self.till(asked, 0)?;
        application(&self.connection(&till.path)?, span, &AtomicBool::new(false))
    }

    /// A drain and an application on a new file, for a while: what the application felt, and the
    /// drain's messages a second.
    fn beside(
        &self,
        asked: &Asked,
        dispatcher: &dyn Dispatcher,
        backlog: usize,
        span: Duration,
    ) -> Result<(Felt, f64)> {
        let till = self.till(asked, backlog)?;
        let mut options = Outbox::options();
        if let Some(vfs) = &self.vfs {
            options = options.vfs(vfs.name());
        }
        let outbox = options.open_existing(&till.path)?;
        let settings = Settings::new().workers(8).settle_sync(self.settle_sync);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let conn = self.connection(&till.path)?;
            let felt = scope.spawn({
                let done = &done;
                move || application(&conn, span, done)
            });
            let begun = Instant::now();
            let drain = outbox.draining(dispatcher).settings(settings);
            let report = drain.deadline(span).run()?;
            let sent = rate(report.sent as usize, begun.elapsed());
            // With nothing left to send, the application would be alone.
            done.store(true, Ordering::Release);
            Ok((felt.join().expect("the application panicked")?, sent))
        })
    }
}

/// Commits a sale and its message, and waits 5 ms, again and again for a while.
fn application(conn: &Connection, span: Duration, done: &AtomicBool) -> Result<Felt> {
    let mut sale = conn.prepare("INSERT INTO sale (total) VALUES (1250)")?;
    let mut message =
        conn.prepare("INSERT INTO outbox (channel, dedupe_key, payload) VALUES (?1, ?2, ?3)")?;
    let mut begin = conn.prepare("BEGIN IMMEDIATE")?;
    let mut commit = conn.prepare("COMMIT")?;
    let payload = payload();
    let mut times = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < span && !done.load(Ordering::Acquire) {
        let start = Instant::now();
        begin.execute([])?;
        sale.execute([])?;
        message.execute((CHANNEL, format!("live-{}", times.len()), &payload))?;
        commit.execute([])?;
        times.push(millis(start.elapsed()));
        thread::sleep(PAUSE);
    }
    Ok(Felt {
        rate: rate(times.len(), begun.elapsed()),
        p50: median(&times),
        p99: percentile(&times, 0.99),
    })
}
