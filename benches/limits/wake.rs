//! How soon a message is on its way after its commit.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::json;
use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Delivery, Outbox, Outcome, Pump};

use crate::Asked;
use crate::child;
use crate::figure::{Figure, Target, percentile};
use crate::file::{CHANNEL, Till, message, payload};

pub const NAMES: &[&str] = &[
    "wake_in_process_p50_ms",
    "wake_in_process_p99_ms",
    "wake_other_process_p50_ms",
    "wake_other_process_p99_ms",
];

/// When each message was handed to the dispatcher, by its dedupe key.
type Arrivals = Arc<Mutex<HashMap<String, f64>>>;

/// Milliseconds of the wall clock, which two processes share.
fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
        * 1e3
}

/// From the return of the commit to the call of the dispatcher, with a pump that has nothing else
/// to do: a commit by [`Outbox::transaction`], and one by plain SQL in another process.
pub fn wake(asked: &Asked) -> Result<Vec<Figure>> {
    let count = asked.size(200);
    let here = in_process(asked, count)?;
    let there = other_process(asked, count)?;
    let figure = |name: &str, times: &[f64], part, limit, target| {
        Figure::new(name, percentile(times, part), limit, "ms", target)
    };
    Ok(vec![
        figure(NAMES[0], &here, 0.5, 0.3, Target::Limit),
        figure(NAMES[1], &here, 0.99, 0.3, Target::None),
        figure(NAMES[2], &there, 0.5, 15.0, Target::Limit),
        figure(NAMES[3], &there, 0.99, 15.0, Target::None),
    ])
}

fn pump(till: &Till) -> Result<(Outbox, Pump, Arrivals)> {
    let outbox = till.open()?;
    let arrivals = Arrivals::default();
    let seen = Arc::clone(&arrivals);
    let pump = outbox
        .pump(move |delivery: &Delivery| {
            let at = now();
            seen.lock().unwrap().insert(delivery.dedupe_key.clone(), at);
            Ok(Outcome::delivered())
        })
        .start()?;
    thread::sleep(Duration::from_millis(300));
    Ok((outbox, pump, arrivals))
}

fn all_sent(outbox: &Outbox, pump: Pump) -> Result<()> {
    while outbox.unsent()? > 0 {
        thread::sleep(Duration::from_millis(10));
    }
    Ok(pump.stop(Duration::from_secs(5))?)
}

fn in_process(asked: &Asked, count: usize) -> Result<Vec<f64>> {
    let till = asked.till(0, None)?;
    let (outbox, pump, arrivals) = pump(&till)?;
    let mut committed = HashMap::new();
    for number in 0..count {
        let message = message(number);
        outbox.transaction(|tx| outbox.enqueue(tx, &message))?;
        committed.insert(format!("S-{number}"), now());
        thread::sleep(pause(number));
    }
    all_sent(&outbox, pump)?;
    Ok(spans(&committed, &arrivals))
}

fn other_process(asked: &Asked, count: usize) -> Result<Vec<f64>> {
    let till = asked.till(0, None)?;
    let (outbox, pump, arrivals) = pump(&till)?;
    let said = child::run(&["commit", &till.path.to_string_lossy(), &count.to_string()])?;
    all_sent(&outbox, pump)?;
    let committed: HashMap<String, f64> = serde_json::from_value(said)?;
    Ok(spans(&committed, &arrivals))
}

fn spans(committed: &HashMap<String, f64>, arrivals: &Arrivals) -> Vec<f64> {
    let arrivals = arrivals.lock().unwrap();
    let span = |(key, at): (&String, &f64)| (arrivals[key] - at).max(0.0);
    committed.iter().map(span).collect()
}

/// Pauses that meet the poll at every phase.
fn pause(number: usize) -> Duration {
    Duration::from_millis(17 + (number as u64 * 7) % 26)
}

/// The child: commits by plain SQL now and then, and says when each commit returned.
pub fn child(path: &Path, count: usize) -> Result<()> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(Duration::from_secs(5))?;
    let mut committed = HashMap::new();
    for number in 0..count {
        let key = format!("other-{number}");
        conn.execute(
            "INSERT INTO outbox (channel, dedupe_key, payload) VALUES (?1, ?2, ?3)",
            (CHANNEL, &key, payload()),
        )?;
        committed.insert(key, now());
        thread::sleep(pause(number));
    }
    println!("{}", json!(committed));
    Ok(())
}
