//! An hour of a shop: what a process holds stays flat, and nothing is lost meanwhile.
//!
//! Goal: memory, threads, open files, write-ahead log and file of a program that sells and drains are no
//! larger in the last quarter of the run than in the second. Method: a child process (`shop`) sells 30
//! times a second and drains with four workers, to a receiver of random moods (`receiver`) in this process,
//! which measures the child from outside. Afterwards every sale is accounted for. `OUTBOX_LONG=1` takes
//! an hour, `OUTBOX_SOAK_SECONDS` any other time, `OUTBOX_SEED` other dice.

mod receiver;
mod shop;

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use sqlite_outbox::rusqlite::Connection;

use crate::fixture::{Process, Till, child, column, long, nap, one};
use receiver::{Erp, Mood, Weather};
use shop::Said;

/// What outlives everything but a hang: the last claims, probes and back-offs.
const CLOSING: Duration = Duration::from_secs(240);

#[test]
fn what_a_process_holds_stays_flat_and_every_sale_is_accounted_for() {
    if !cfg!(target_os = "linux") {
        println!(
            "SKIPPED: memory, threads and open files are read from /proc, which only Linux has"
        );
        return;
    }
    let seconds = number("OUTBOX_SOAK_SECONDS").unwrap_or(if long() { 3600 } else { 6 });
    let seed = number("OUTBOX_SEED").unwrap_or(7);
    println!("\nseed {seed}, {seconds} s");
    let till = Till::new();
    let erp = Erp::new(seed);
    shop::prepare(&till, &erp.url(), seed, seconds);
    let mut shop = child("soak::shop::child_sells_and_drains", &till.path);
    let mut shop = Process(shop.stderr(Stdio::inherit()).spawn().unwrap());
    let heard = listen(&mut shop.0);
    let every = Duration::from_secs(30).min(Duration::from_secs(seconds) / 24);
    let weather = Weather::new(seed, seconds);
    let (samples, books) = watch(&mut shop.0, &heard, &till.path, every, &erp, weather);
    books.account(&erp, &till.sql());
    flat(&samples);
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap())
}

/// What the shop says, line by line, until it ends.
fn listen(shop: &mut Child) -> Receiver<Said> {
    let lines = std::io::BufReader::new(shop.stdout.take().unwrap()).lines();
    let (tell, heard) = channel();
    std::thread::spawn(move || {
        for said in lines
            .map_while(Result::ok)
            .filter_map(|it| Said::parse(&it))
        {
            if tell.send(said).is_err() {
                return;
            }
        }
    });
    heard
}

/// Measures while the weather changes, until the shop has closed.
fn watch(
    shop: &mut Child,
    heard: &Receiver<Said>,
    path: &Path,
    every: Duration,
    erp: &Erp,
    mut weather: Weather,
) -> (Vec<Sample>, Books) {
    let began = Instant::now();
    let conn = Connection::open(path).unwrap();
    let mut books = Books::default();
    let mut samples = Vec::new();
    let mut next = every;
    println!("{}", Sample::HEADING);
    while !books.closed {
        let now = began.elapsed();
        weather.pass(now, erp);
        if now >= next {
            let sample = Sample::take(now, shop.id(), path, &conn, erp);
            sample.iter().for_each(|it| println!("{it}"));
            samples.extend(sample);
            next += every;
        }
        if shop.try_wait().unwrap().is_some() {
            break;
        }
        books.enter(heard.try_iter());
        nap(10);
    }
    erp.turn(Mood::Ok);
    let last = Instant::now();
    let ended = loop {
        if let Some(ended) = shop.try_wait().unwrap() {
            break ended;
        }
        let sold = books.sold.len();
        assert!(
            last.elapsed() < CLOSING,
            "not drained after the last sale of {sold}"
        );
        nap(10);
    };
    assert!(ended.success(), "the shop has failed");
    books.enter(heard.iter());
    (samples, books)
}

/// What the shop said that it sold.
#[derive(Default)]
struct Books {
    /// Committed, and whether the message has an expiry.
    sold: BTreeMap<u64, bool>,
    rolled_back: u64,
    duplicates: u64,
    expired: u64,
    busy: u64,
    closed: bool,
}

impl Books {
    fn enter(&mut self, said: impl Iterator<Item = Said>) {
        for said in said {
            match said {
                Said::Sold { sale, expires } => drop(self.sold.insert(sale, expires)),
                Said::RolledBack => self.rolled_back += 1,
                Said::Duplicate => self.duplicates += 1,
                Said::Expired(messages) => self.expired += messages,
                Said::Busy => self.busy += 1,
                Said::Closed => self.closed = true,
            }
        }
    }

    /// Each sale that was committed arrived, is dead by the receiver's own rejection, or ran out of
    /// time; none that was rolled back arrived.
    fn account(&self, erp: &Erp, conn: &Connection) {
        let ledger = erp.ledger();
        let dead = "SELECT payload ->> '$.sale' FROM outbox WHERE status = 'dead'";
        let dead: BTreeSet<u64> = column(conn, dead)
            .iter()
            .map(|it| it.parse().unwrap())
            .collect();
        let elsewhere = |sale: &u64| ledger.taken.contains_key(sale) || dead.contains(sale);
        let missing: Vec<_> = self.sold.iter().filter(|it| !elsewhere(it.0)).collect();
        let (late, lost): (Vec<_>, Vec<_>) = missing.into_iter().partition(|it| *it.1);
        let repeats: u64 = ledger.taken.values().map(|times| times - 1).sum();
        println!(
            "{} sold, {} rolled back, {} put in twice, {} times busy; {} moods, {} times nobody \
             listened; {} requests, {} sales taken, {repeats} times again after {} lost answers and {} \
             sales taken as the line was cut; {} dead, {} expired, {} of them never taken",
            self.sold.len(),
            self.rolled_back,
            self.duplicates,
            self.busy,
            ledger.moods,
            ledger.hung_up,
            ledger.requests,
            ledger.taken.len(),
            ledger.lost_answers,
            ledger.cut,
            dead.len(),
            self.expired,
            late.len(),
        );
        assert!(lost.is_empty(), "lost: {lost:?}");
        assert!(
            late.len() as u64 <= self.expired,
            "{} not sent, {} told",
            late.len(),
            self.expired
        );
        let strange: Vec<_> = ledger
            .taken
            .keys()
            .filter(|it| !self.sold.contains_key(it))
            .collect();
        assert!(strange.is_empty(), "sent without a sale: {strange:?}");
        assert!(dead.is_subset(&ledger.rejected), "dead without a rejection");
        assert_eq!(
            ledger.out_of_order,
            Vec::<u64>::new(),
            "arrived before one of its key"
        );
        assert_eq!(
            ledger.repeated_for_nothing(),
            Vec::<u64>::new(),
            "repeated although the answer arrived"
        );
        assert_eq!(
            one(conn, "SELECT sum(sales) FROM account"),
            self.sold.len().to_string()
        );
        let unsent =
            "SELECT count(*) FROM outbox WHERE status IN ('pending', 'waiting', 'sending')";
        assert_eq!(one(conn, unsent), "0");
        assert_eq!(one(conn, "PRAGMA integrity_check"), "ok");
    }
}

/// The child at one moment.
struct Sample {
    at: Duration,
    rss_kib: u64,
    threads: u64,
    files: u64,
    wal_kib: u64,
    file_kib: u64,
    unsent: u64,
    sent: usize,
}

impl Sample {
    const HEADING: &str = "| minute | RSS KiB | threads | open files | WAL KiB | file KiB | unsent | sent |\n\
                           |-------:|--------:|--------:|-----------:|--------:|---------:|-------:|-----:|";

    /// `None` when the process is gone.
    fn take(at: Duration, process: u32, path: &Path, conn: &Connection, erp: &Erp) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let kib = |path: &Path| std::fs::metadata(path).map_or(0, |it| it.len() / 1024);
        let unsent =
            "SELECT count(*) FROM outbox WHERE status IN ('pending', 'waiting', 'sending')";
        let files = std::fs::read_dir(format!("/proc/{process}/fd")).ok()?;
        Some(Self {
            at,
            rss_kib: value("VmRSS:")?,
            threads: value("Threads:")?,
            files: files.count() as u64,
            wal_kib: kib(&path.with_extension("db-wal")),
            file_kib: kib(path),
            unsent: one(conn, unsent).parse().unwrap(),
            sent: erp.ledger().taken.len(),
        })
    }
}

impl std::fmt::Display for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "| {:.1} | {} | {} | {} | {} | {} | {} | {} |",
            self.at.as_secs_f64() / 60.0,
            self.rss_kib,
            self.threads,
            self.files,
            self.wal_kib,
            self.file_kib,
            self.unsent,
            self.sent
        )
    }
}

type Figure = fn(&Sample) -> u64;

/// The last quarter against the second; the first one fills caches.
fn flat(samples: &[Sample]) {
    let quarter = samples.len() / 4;
    assert!(quarter > 0, "measured {} times only", samples.len());
    let middle = |samples: &[Sample], of: Figure| {
        let mut values: Vec<_> = samples.iter().map(of).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    // Dead letters stay, so the file grows by those.
    let bounds: [(&str, Figure, u64); 4] = [
        ("KiB of memory", |it| it.rss_kib, 512),
        ("threads", |it| it.threads, 1),
        ("open files", |it| it.files, 1),
        ("KiB of file", |it| it.file_kib, 256),
    ];
    for (what, of, slack) in bounds {
        let before = middle(&samples[quarter..2 * quarter], of);
        let after = middle(&samples[samples.len() - quarter..], of);
        println!("{what}: {before} in the second quarter, {after} in the last");
        assert!(
            after <= before + before / 20 + slack,
            "{what} grew from {before} to {after}"
        );
    }
    let wal = samples.iter().map(|it| it.wal_kib).max().unwrap();
    println!("KiB of write-ahead log: {wal} at most");
    assert!(wal <= 8 * 1024, "{wal} KiB of write-ahead log");
}
