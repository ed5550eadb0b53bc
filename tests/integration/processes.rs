//! Several processes on one file, some of them killed. Real files, real sockets, real kills.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlite_outbox::{Delivery, HttpDispatcher, Message, Outbox, Outcome, Route, Settings};

use crate::fixture::{Till, argument, child, nap, succeeded};
use crate::server::{Seen, Server, ok};

fn settings() -> Settings {
    Settings::default().workers(8).lease(Duration::from_secs(2))
}

/// The child's side: drains the parent's file to the parent's server.
#[test]
fn child_drains() {
    let Some(path) = argument() else { return };
    let url = std::fs::read_to_string(path.with_extension("url")).unwrap();
    let erp = HttpDispatcher::builder()
        .fallback(Route::post(url))
        .build()
        .unwrap();
    let outbox = Outbox::open_existing(&path).unwrap();
    outbox.draining(&erp).settings(settings()).run().unwrap();
}

fn drainer(till: &Till) -> std::process::Child {
    child("processes::child_drains", &till.path)
        .spawn()
        .unwrap()
}

fn fill(till: &Till, server: &Server, messages: usize, lanes: usize) -> Outbox {
    std::fs::write(till.path.with_extension("url"), server.url("/sales")).unwrap();
    let outbox = till.open();
    outbox
        .transaction(|tx| {
            for i in 0..messages {
                let mut message = Message::text("sales", i.to_string());
                if lanes > 0 {
                    message = message.ordering_key(format!("customer {}", i % lanes));
                }
                outbox.enqueue(tx, &message)?;
            }
            anyhow::Ok(())
        })
        .unwrap();
    outbox
}

fn arrivals(seen: &[Seen]) -> HashMap<String, usize> {
    let mut arrivals = HashMap::new();
    for request in seen {
        let key = request.header("idempotency-key").unwrap().to_owned();
        *arrivals.entry(key).or_default() += 1;
    }
    arrivals
}

#[test]
fn four_processes_of_eight_threads_send_each_message_exactly_once() {
    let till = Till::new();
    let server = Server::start(|_| ok());
    let outbox = fill(&till, &server, 5_000, 0);
    let children: Vec<_> = (0..4).map(|_| drainer(&till)).collect();
    children.into_iter().for_each(succeeded);
    let arrivals = arrivals(&server.seen());
    assert_eq!(arrivals.len(), 5_000);
    let twice = arrivals.values().filter(|times| **times > 1).count();
    assert_eq!(twice, 0, "sent more than once");
    let total = outbox.stats().unwrap().total;
    assert_eq!((total.sent, total.unsent()), (5_000, 0));
}

/// `OUTBOX_LONG=1` kills a thousand times.
#[test]
fn killed_drains_lose_nothing_and_keep_the_order_of_each_key() {
    let kills = if std::env::var_os("OUTBOX_LONG").is_some() {
        1_000
    } else {
        20
    };
    let till = Till::new();
    let server = Server::start(|_| {
        nap(2);
        ok()
    });
    let messages = kills * 60;
    let lanes = 25;
    let outbox = fill(&till, &server, messages, lanes);
    let mut dice = 7_usize;
    for _ in 0..kills {
        let before = server.seen().len();
        let mut victim = drainer(&till);
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let more = 1 + (dice >> 33) % 40;
        // It may find nothing to do while leases of the dead run out; then it is killed all the same.
        let until = Instant::now() + Duration::from_secs(6);
        while server.seen().len() < before + more && Instant::now() < until {
            nap(1);
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    let last = Instant::now();
    succeeded(drainer(&till));
    let seen = server.seen();
    let arrivals = arrivals(&seen);
    assert_eq!(arrivals.len(), messages, "lost");
    assert_eq!(outbox.unsent().unwrap(), 0);
    let mut histogram = HashMap::<usize, usize>::new();
    for times in arrivals.values() {
        *histogram.entry(*times).or_default() += 1;
    }
    println!(
        "{kills} kills, {messages} messages, {} requests; arrivals: {histogram:?}; last drain {:.1?}",
        seen.len(),
        last.elapsed()
    );
    let repeated = seen.len() - messages;
    let in_flight = settings_in_flight() * kills;
    assert!(
        repeated <= in_flight,
        "{repeated} repeated, {in_flight} could be in flight"
    );
    // First arrivals of each key are in order; a replay repeats a suffix.
    let mut newest = HashMap::<usize, usize>::new();
    let mut known = std::collections::HashSet::new();
    for request in &seen {
        let number: usize = String::from_utf8(request.body.clone())
            .unwrap()
            .parse()
            .unwrap();
        if known.insert(number) {
            let newest = newest.entry(number % lanes).or_default();
            assert!(*newest <= number, "{number} first arrived after {newest}");
            *newest = number;
        }
    }
}

fn settings_in_flight() -> usize {
    8 * 16
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
