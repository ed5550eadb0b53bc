//! The child's side: a program that sells and drains.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use sqlite_outbox::rusqlite::TransactionBehavior;
use sqlite_outbox::{
    Enqueued, Error, Event, HttpDispatcher, Message, OnDead, Outbox, Policy, ReplyRule, Route,
    Settings,
};

use crate::fixture::{Rng, Till, argument, nap};

const WORKERS: usize = 4;
/// Sales in a second: 108,000 in an hour, of which one in twenty is rolled back.
const RATE: u64 = 30;
const CUSTOMERS: i64 = 25;

/// What the shop tells, a line each.
pub(super) enum Said {
    Sold { sale: u64, expires: bool },
    RolledBack,
    Duplicate,
    Expired(u64),
    Busy,
    Closed,
}

impl Said {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let word = words.next()?;
        let mut number = || words.next()?.parse().ok();
        Some(match word {
            "sold" => Self::Sold {
                sale: number()?,
                expires: number()? == 1,
            },
            "rolled-back" => Self::RolledBack,
            "duplicate" => Self::Duplicate,
            "expired" => Self::Expired(number()?),
            "busy" => Self::Busy,
            "closed" => Self::Closed,
            _ => return None,
        })
    }
}

/// Leaves the file and what the child must know.
pub(super) fn prepare(till: &Till, url: &str, seed: u64, seconds: u64) {
    let outbox = till.open();
    till.sql()
        .execute_batch("CREATE TABLE account (customer INTEGER PRIMARY KEY, sales INTEGER)")
        .unwrap();
    // A person would look at the dead; nobody is here.
    outbox
        .operator("shop")
        .on_dead("sales", OnDead::Skip)
        .unwrap();
    let orders = format!("{url} {seed} {seconds}");
    std::fs::write(till.path.with_extension("orders"), orders).unwrap();
}

#[test]
fn child_sells_and_drains() {
    let Some(path) = argument() else { return };
    let orders = std::fs::read_to_string(path.with_extension("orders")).unwrap();
    let orders: Vec<_> = orders.split(' ').collect();
    let span = Duration::from_secs(orders[2].parse().unwrap());
    let outbox = open(&path);
    let erp = HttpDispatcher::builder()
        .fallback(Route::post(orders[0]).reply(ReplyRule::new().require("/data/name")))
        .build()
        .unwrap();
    let policy = Policy::default().backoff(Duration::from_millis(500), Duration::from_secs(20));
    let settings = Settings::default().workers(WORKERS).default_policy(policy);
    let pump = outbox.pump(erp).settings(settings).start().unwrap();
    // The harness has begun a line.
    println!();
    sell(&outbox, Rng(orders[1].parse().unwrap()), span);
    println!("closed");
    while outbox.unsent().unwrap() > 0 {
        pump.wake();
        nap(250);
    }
    pump.stop(Duration::from_secs(10)).unwrap();
}

fn open(path: &Path) -> Outbox {
    Outbox::options()
        .observer(|event: &Event| {
            if let Event::Expired { messages } = event {
                println!("expired {messages}");
            }
        })
        .open(path)
        .unwrap()
}

/// Retention proper begins an hour after something is due; this shop tidies up by itself, so that what
/// it keeps is the same after one minute and after sixty.
fn sell(outbox: &Outbox, mut dice: Rng, span: Duration) {
    let keep = Duration::from_secs(60).min(span / 6);
    let began = Instant::now();
    let mut tidied = began;
    let mut sale = 0;
    while began.elapsed() < span {
        let due = Duration::from_millis(sale * 1000 / RATE);
        if let Some(early) = due.checked_sub(began.elapsed()) {
            std::thread::sleep(early);
        }
        sale += 1;
        sell_one(outbox, sale, &mut dice);
        if tidied.elapsed() >= keep / 6 {
            tidied = Instant::now();
            retried(|| outbox.operator("shop").purge(keep));
        }
    }
}

/// One sale in twenty is rolled back, one in twenty put in twice, one in ten expires, half have a key.
fn sell_one(outbox: &Outbox, sale: u64, dice: &mut Rng) {
    let customer = dice.below(CUSTOMERS);
    let key = dice.percent(50).then(|| format!("customer {customer}"));
    let lines = "x".repeat(200 + sale as usize % 150);
    let body = json!({"sale": sale, "key": key, "lines": lines});
    let mut message = Message::json("sales", &body)
        .unwrap()
        .dedupe_key(format!("S-{sale}"));
    if let Some(key) = key {
        message = message.ordering_key(key);
    }
    let expires = dice.percent(10);
    if expires {
        message = message.ttl(Duration::from_secs(10 + dice.below(50).unsigned_abs()));
    }
    let rolled_back = dice.percent(5);
    let committed = retried(|| {
        let mut conn = outbox.connection()?;
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute(
            "INSERT INTO account VALUES (?1, 1) ON CONFLICT DO UPDATE SET sales = sales + 1",
            [customer],
        )?;
        assert!(matches!(
            outbox.enqueue(&tx, &message)?,
            Enqueued::New { .. }
        ));
        match rolled_back {
            true => tx.rollback()?,
            false => tx.commit()?,
        }
        Ok(!rolled_back)
    });
    if !committed {
        println!("rolled-back");
        return;
    }
    println!("sold {sale} {}", u8::from(expires));
    if dice.percent(5) {
        let again = retried(|| outbox.transaction(|tx| outbox.enqueue(tx, &message)));
        assert!(matches!(again, Enqueued::Duplicate { .. }), "{again:?}");
        println!("duplicate");
    }
}

/// Does it again when the lock could not be had in time, and tells so.
fn retried<T>(mut act: impl FnMut() -> sqlite_outbox::Result<T>) -> T {
    loop {
        match act() {
            Err(Error::Busy(_)) => println!("busy"),
            done => return done.unwrap(),
        }
    }
}
