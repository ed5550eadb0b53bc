//! Several processes on one file, some of them killed. Real files, real sockets, real kills.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlite_outbox::{Delivery, HttpDispatcher, Message, Outbox, Outcome, Route, Settings};

use crate::fixture::{Process, Rng, Till, argument, child, column, long, nap, one};
use crate::server::{Seen, Server, ok};

/// Drains until it is killed.
#[test]
fn child_drains_on() {
    let Some(path) = argument() else { return };
    pump(&path, Settings::default());
}

const WORKERS: usize = 8;
const PREFETCH: usize = 16;

/// Messages that a process has claimed at most: of one channel, so none beyond.
const CAPACITY: usize = WORKERS * PREFETCH;

fn pump(path: &Path, settings: Settings) {
    let pump = Outbox::open_existing(path).unwrap().pump(erp(path));
    let settings = settings.workers(WORKERS).prefetch(PREFETCH);
    let _pump = pump.settings(settings).start().unwrap();
    loop {
        nap(60_000);
    }
}

/// Each request names the process that sent it.
fn erp(path: &Path) -> HttpDispatcher {
    let url = std::fs::read_to_string(path.with_extension("url")).unwrap();
    let route = Route::post(url).header("X-Process", std::env::var(NUMBER).unwrap());
    HttpDispatcher::builder().fallback(route).build().unwrap()
}

const NUMBER: &str = "OUTBOX_TEST_NUMBER";

/// A process that drains.
fn drain(name: &str, till: &Till, number: usize) -> Process {
    let mut drain = child(name, &till.path);
    Process(drain.env(NUMBER, number.to_string()).spawn().unwrap())
}

/// A file, and where what is in it goes.
fn opened(till: &Till, server: &Server) -> Outbox {
    std::fs::write(till.path.with_extension("url"), server.url("/sales")).unwrap();
    till.open()
}

/// Half of the messages have a key.
fn lane(number: usize) -> Option<usize> {
    number.is_multiple_of(2).then_some(number / 2 % 40)
}

fn sell(outbox: &Outbox, numbers: std::ops::Range<usize>) {
    let sold = outbox.transaction(|tx| {
        for number in numbers {
            let mut message = Message::text("sales", number.to_string());
            if let Some(lane) = lane(number) {
                message = message.ordering_key(format!("customer {lane}"));
            }
            outbox.enqueue(tx, &message)?;
        }
        anyhow::Ok(())
    });
    sold.unwrap();
}

fn arrivals(seen: &[Seen]) -> HashMap<String, usize> {
    let mut arrivals = HashMap::new();
    for request in seen {
        let key = request.header("idempotency-key").unwrap().to_owned();
        *arrivals.entry(key).or_default() += 1;
    }
    arrivals
}

/// The application's side: sells until its time is over, and tells how long each commit took.
#[test]
fn child_sells() {
    let Some(path) = argument() else { return };
    let outbox = Outbox::open_existing(&path).unwrap();
    println!();
    let began = Instant::now();
    while began.elapsed() < selling() {
        let asked = Instant::now();
        let sold = outbox.transaction(|tx| {
            tx.execute("INSERT INTO sale (total) VALUES (1250)", [])?;
            let sale = tx.last_insert_rowid().to_string();
            outbox.enqueue(tx, &Message::text("sales", sale))
        });
        sold.unwrap();
        println!("commit {}", asked.elapsed().as_micros());
        nap(2);
    }
}

/// `OUTBOX_LONG=1` sells for three minutes.
fn selling() -> Duration {
    Duration::from_secs(if long() { 180 } else { 2 })
}

/// Goal: without faults each message arrives once, whoever drains; the application never hears of a locked
/// file, waits little, and the write-ahead log stays small. Method: four processes of eight threads drain
/// while a fifth sells and measures its commits.
#[test]
fn four_processes_of_eight_threads_send_each_message_exactly_once() {
    let till = Till::with("CREATE TABLE sale (id INTEGER PRIMARY KEY, total INTEGER)");
    till.sql()
        .execute_batch("PRAGMA journal_mode = WAL")
        .unwrap();
    let server = Server::start(|_| ok());
    let outbox = opened(&till, &server);
    sell(&outbox, 1_000_000..1_000_000 + 2_000);
    let mut drains = [0, 1, 2, 3].map(|it| drain("processes::child_drains_on", &till, it));
    let mut shop = child("processes::child_sells", &till.path);
    let mut shop = Process(shop.stderr(Stdio::inherit()).spawn().unwrap());
    let lines = BufReader::new(shop.0.stdout.take().unwrap()).lines();
    let commits = std::thread::spawn(move || {
        let lines = lines.map_while(Result::ok);
        let waits = lines.filter_map(|it| it.strip_prefix("commit ")?.parse::<u64>().ok());
        waits.map(Duration::from_micros).collect::<Vec<_>>()
    });
    let log = till.path.with_extension("db-wal");
    let mut largest = 0;
    let until = Instant::now() + selling() + Duration::from_secs(120);
    while shop.0.try_wait().unwrap().is_none() || outbox.unsent().unwrap() > 0 {
        assert!(Instant::now() < until, "not drained");
        largest = largest.max(std::fs::metadata(&log).map_or(0, |it| it.len()));
        nap(10);
    }
    let well = shop.0.wait().unwrap().success();
    assert!(well, "an error reached the application");
    for drain in &mut drains {
        let ended = drain.0.try_wait().unwrap();
        assert!(ended.is_none(), "a drain has ended: {ended:?}");
    }
    drop(drains);
    let mut waits = commits.join().unwrap();
    waits.sort();
    let arrivals = arrivals(&server.seen());
    let at = |share: usize| waits[(waits.len() - 1) * share / 1000];
    println!(
        "{} messages; {} commits beside them: p50 {:.1?}, p99 {:.1?}, p99.9 {:.1?}, max {:.1?}; \
         write-ahead log {} KiB at most",
        arrivals.len(),
        waits.len(),
        at(500),
        at(990),
        at(999),
        at(1000),
        largest / 1024
    );
    let sales = one(&till.sql(), "SELECT count(*) FROM sale")
        .parse::<usize>()
        .unwrap();
    assert_eq!(sales, waits.len());
    assert_eq!(arrivals.len(), sales + 2_000, "lost");
    let twice = arrivals.values().filter(|times| **times > 1).count();
    assert_eq!(twice, 0, "sent more than once");
    assert!(at(990) < Duration::from_secs(2), "starved: {:?}", at(990));
    assert!(largest < 16 << 20, "a write-ahead log of {largest} bytes");
}

/// Drains until it is killed; the claims of the dead are free again soon.
#[test]
fn child_drains_with_a_short_lease() {
    let Some(path) = argument() else { return };
    pump(&path, Settings::default().lease(Duration::from_secs(2)));
}

/// What is known of a process that was killed.
struct Killed {
    /// Requests that the receiver had when it was dead.
    requests: usize,
    at: Instant,
    /// Messages that were claimed then, by whomever, and therefore not recorded.
    claimed: HashSet<String>,
}

/// When the receiver had the requests, in the order of their numbers.
type Times = Arc<Mutex<BTreeMap<usize, Instant>>>;

/// Goal: a process killed at any moment loses nothing, breaks no lane, and what is sent again was in flight: sent
/// by that process, and not recorded when it died. That is never more than a process may have claimed, and none of
/// it old. Method: three processes drain; sales go on; at moments chosen by dice one of
/// them is killed and another takes its place. Each request names its process, and after each kill the claims
/// are read from the file. `OUTBOX_LONG=1` kills a thousand times, `OUTBOX_SEED` takes other dice.
#[test]
fn killed_drains_lose_nothing_and_keep_the_order_of_each_key() {
    let kills = if long() { 1_000 } else { 20 };
    let seed = std::env::var("OUTBOX_SEED").map_or(7, |it| it.parse().unwrap());
    let mut dice = Rng(seed);
    let till = Till::new();
    let times = Times::default();
    let timed = times.clone();
    let server = Server::start(move |seen| {
        timed.lock().unwrap().insert(seen.number, Instant::now());
        nap(2);
        ok()
    });
    let outbox = opened(&till, &server);
    let start = |number| {
        let name = "processes::child_drains_with_a_short_lease";
        (number, drain(name, &till, number))
    };
    let mut drains = [0, 1, 2].map(start);
    let mut messages = 0;
    let mut killed = HashMap::new();
    let began = Instant::now();
    for kill in 0..kills {
        sell(&outbox, messages..messages + 60);
        messages += 60;
        let more = server.requests() + 1 + dice.below(40) as usize;
        // What is left may wait for the leases of the dead; then one is killed all the same.
        let until = Instant::now() + Duration::from_secs(6);
        while server.requests() < more && Instant::now() < until {
            nap(1);
        }
        let (number, victim) = &mut drains[dice.below(3) as usize];
        victim.kill();
        let (requests, at) = (server.requests(), Instant::now());
        let claimed = "SELECT message_id FROM outbox WHERE status = 'sending'";
        let claimed = column(&till.sql(), claimed).into_iter().collect();
        let dead = Killed {
            requests,
            at,
            claimed,
        };
        killed.insert(number.to_string(), dead);
        (*number, *victim) = start(kill + 3);
    }
    let killing = began.elapsed();
    let until = Instant::now() + Duration::from_secs(120);
    while outbox.unsent().unwrap() > 0 && Instant::now() < until {
        nap(20);
    }
    drop(drains);
    let mut seen = server.seen();
    seen.sort_by_key(|request| request.number);
    let arrivals = arrivals(&seen);
    let mut histogram = BTreeMap::<usize, usize>::new();
    for times in arrivals.values() {
        *histogram.entry(*times).or_default() += 1;
    }
    println!(
        "seed {seed}: {kills} kills in {killing:.0?}, {messages} messages, {} requests; \
         arrivals: {histogram:?}",
        seen.len(),
    );
    assert_eq!(outbox.unsent().unwrap(), 0);
    assert_eq!(arrivals.len(), messages, "lost");
    each_repetition_was_in_flight_at_a_kill(&seen, &killed, &times.lock().unwrap());
    first_arrivals_are_in_order(&seen);
}

/// What a dead process had sent and not recorded, with the number of its request.
type InFlight<'a> = HashMap<&'a str, usize>;

/// Whoever sent the message before was dead when it was sent again, and had not recorded it.
fn each_repetition_was_in_flight_at_a_kill(
    seen: &[Seen],
    killed: &HashMap<String, Killed>,
    times: &BTreeMap<usize, Instant>,
) {
    let mut in_flight = HashMap::<&str, InFlight>::new();
    for request in seen {
        let (message, process) = of(request);
        if killed
            .get(process)
            .is_some_and(|it| it.claimed.contains(message))
        {
            let sent = in_flight.entry(process).or_default();
            sent.insert(message, request.number);
        }
    }
    let mut last = HashMap::<&str, &str>::new();
    let mut repeated = HashMap::<&str, usize>::new();
    for request in seen {
        let (message, process) = of(request);
        let Some(before) = last.insert(message, process) else {
            continue;
        };
        let number = request.number;
        let dead = killed.get(before).filter(|it| it.requests < number);
        assert!(
            dead.is_some(),
            "request {number} repeats, by {process}, what {before} sent, which lives"
        );
        let unrecorded = in_flight.get(before);
        let unrecorded = unrecorded.is_some_and(|it| it.contains_key(message));
        assert!(unrecorded, "sent again though recorded");
        *repeated.entry(before).or_default() += 1;
    }
    let waited = |(process, sent): (&&str, &InFlight)| {
        let first = sent.values().min().unwrap();
        killed[*process].at.saturating_duration_since(times[first])
    };
    let oldest = in_flight.iter().map(waited).max().unwrap_or_default();
    let most = in_flight
        .values()
        .map(HashMap::len)
        .max()
        .unwrap_or_default();
    println!(
        "at one kill {most} at most were sent and not recorded, the oldest for {oldest:.0?}; \
         {} repetitions, {} at most of one kill, by kills: {:?}",
        repeated.values().sum::<usize>(),
        repeated.values().max().copied().unwrap_or_default(),
        by_size(&repeated, killed.len()),
    );
    assert!(most <= CAPACITY, "{most} sent and not recorded");
    assert!(oldest < Duration::from_secs(5), "not recorded: {oldest:?}");
}

/// The message and the process of a request.
fn of(request: &Seen) -> (&str, &str) {
    let header = |name| request.header(name).unwrap();
    (header("idempotency-key"), header("x-process"))
}

/// How many kills repeated 0, up to 8, up to 16 and so on.
fn by_size(repeated: &HashMap<&str, usize>, kills: usize) -> BTreeMap<usize, usize> {
    let mut kills = BTreeMap::from([(0, kills - repeated.len())]);
    for size in repeated.values() {
        *kills.entry(size.next_multiple_of(8)).or_default() += 1;
    }
    kills
}

/// A replay repeats the end of a lane.
fn first_arrivals_are_in_order(seen: &[Seen]) {
    let mut newest = HashMap::<usize, usize>::new();
    let mut known = HashSet::new();
    for request in seen {
        let number: usize = String::from_utf8(request.body.clone())
            .unwrap()
            .parse()
            .unwrap();
        if let (true, Some(lane)) = (known.insert(number), lane(number)) {
            let newest = newest.entry(lane).or_default();
            assert!(*newest <= number, "{number} first arrived after {newest}");
            *newest = number;
        }
    }
}

/// The lock is not fair, and a stock busy handler sleeps in growing steps: what counts is the share
/// of time in which it is free. The figures are printed; the bound only catches starvation.
#[test]
fn the_applications_own_commits_do_not_wait_for_a_drain_to_end() {
    let till = Till::new();
    let outbox = till.open();
    till.sql()
        .execute_batch("CREATE TABLE sale (id INTEGER PRIMARY KEY, total INTEGER)")
        .unwrap();
    let messages = if cfg!(debug_assertions) {
        5_000
    } else {
        20_000
    };
    outbox
        .transaction(|tx| {
            for i in 0..messages {
                outbox.enqueue(tx, &Message::text("sales", i.to_string()))?;
            }
            anyhow::Ok(())
        })
        .unwrap();
    let draining = Arc::new(AtomicBool::new(true));
    let committed = Arc::new(AtomicUsize::new(0));
    let application = {
        let conn = till.sql();
        conn.busy_timeout(Duration::from_secs(5)).unwrap();
        let (draining, committed) = (draining.clone(), committed.clone());
        std::thread::spawn(move || {
            let mut waits = Vec::new();
            while draining.load(Ordering::SeqCst) {
                let began = Instant::now();
                conn.execute("INSERT INTO sale (total) VALUES (1250)", [])
                    .unwrap();
                waits.push(began.elapsed());
                committed.fetch_add(1, Ordering::SeqCst);
                nap(2);
            }
            waits
        })
    };
    let receiver = |_: &Delivery| Ok(Outcome::delivered());
    let report = outbox.draining(&receiver).workers(8).run().unwrap();
    draining.store(false, Ordering::SeqCst);
    let mut waits = application.join().unwrap();
    assert_eq!((report.sent, report.unsent), (messages, 0));
    waits.sort();
    let at = |share: usize| waits[(waits.len() - 1) * share / 100];
    println!(
        "{messages} messages in {:.1?}; {} commits beside them: p50 {:.1?}, p99 {:.1?}, max {:.1?}",
        report.elapsed,
        waits.len(),
        at(50),
        at(99),
        at(100)
    );
    assert!(at(99) < Duration::from_millis(500), "starved: {:?}", at(99));
}
