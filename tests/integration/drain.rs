//! The drain with closures as receivers: what is delivered, charged, kept and repeated.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlite_outbox::rusqlite::{self, TransactionBehavior};
use sqlite_outbox::testing::{Inline, ManualClock, Script};
use sqlite_outbox::{
    ChannelState, Delivery, Filter, Message, Outbox, Outcome, Policy, Receipt, Settings, Status,
};
use tempfile::TempDir;

use crate::fixture::{Till, column};

fn outbox() -> (TempDir, Outbox) {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(dir.path().join("till.db")).unwrap();
    (dir, outbox)
}

fn enqueue(outbox: &Outbox, messages: impl IntoIterator<Item = Message>) {
    let mut conn = outbox.connection().unwrap();
    let tx = conn
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    for message in messages {
        outbox.enqueue(&tx, &message).unwrap();
    }
    tx.commit().unwrap();
}

fn sales(n: usize) -> impl Iterator<Item = Message> {
    (0..n).map(|i| Message::text("sales", format!("sale {i}")).dedupe_key(format!("S-{i}")))
}

#[test]
fn everything_that_was_committed_is_delivered_once() {
    let (_dir, outbox) = outbox();
    enqueue(&outbox, sales(1_000));
    let seen = Mutex::new(HashMap::<String, usize>::new());
    let receiver = |delivery: &Delivery| {
        *seen
            .lock()
            .unwrap()
            .entry(delivery.message_id.clone())
            .or_default() += 1;
        Ok(Outcome::delivered())
    };
    let report = outbox.drain(&receiver).unwrap();
    assert_eq!((report.sent, report.unsent, report.dead), (1_000, 0, 0));
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), 1_000);
    assert!(seen.values().all(|times| *times == 1));
}

#[test]
fn a_rolled_back_message_is_never_sent() {
    let (_dir, outbox) = outbox();
    let mut conn = outbox.connection().unwrap();
    let tx = conn
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    outbox
        .enqueue(&tx, &Message::text("sales", "never"))
        .unwrap();
    drop(tx);
    let receiver = |_: &Delivery| -> anyhow::Result<Outcome> { panic!("nothing may be sent") };
    assert_eq!(outbox.drain(&receiver).unwrap().sent, 0);
}

#[test]
fn an_unreachable_receiver_kills_and_charges_nothing() {
    let (_dir, outbox) = outbox();
    enqueue(&outbox, sales(100));
    let calls = AtomicUsize::new(0);
    let receiver = |_: &Delivery| {
        calls.fetch_add(1, Ordering::SeqCst);
        Ok(Outcome::unreachable("no route to host"))
    };
    for _ in 0..3 {
        let report = outbox.drain(&receiver).unwrap();
        assert_eq!((report.sent, report.dead, report.unsent), (0, 0, 100));
        assert_eq!(report.channels[0].state, ChannelState::Offline);
        assert_eq!(
            report.channels[0].reason.as_deref(),
            Some("no route to host")
        );
    }
    assert!(
        calls.load(Ordering::SeqCst) <= 4,
        "a dead receiver is probed, not hammered"
    );
    assert_eq!(outbox.stats().unwrap().total.max_attempts, 0);
    let report = outbox
        .drain(&|_: &Delivery| Ok(Outcome::delivered()))
        .unwrap();
    assert_eq!((report.sent, report.unsent), (100, 0));
}

#[test]
fn a_rejected_message_is_a_dead_letter_and_the_others_flow() {
    let (_dir, outbox) = outbox();
    enqueue(&outbox, sales(50));
    let receiver = |delivery: &Delivery| {
        Ok(match delivery.dedupe_key.as_str() {
            "S-7" => Outcome::rejected("no such article"),
            _ => Outcome::delivered(),
        })
    };
    let report = outbox.drain(&receiver).unwrap();
    assert_eq!((report.sent, report.dead, report.unsent), (49, 1, 0));
    let dead = outbox.get_by_key("sales", "S-7").unwrap().unwrap();
    assert_eq!(dead.last_error.as_deref(), Some("no such article"));
}

#[test]
fn messages_of_one_ordering_key_arrive_in_order_one_at_a_time() {
    let (_dir, outbox) = outbox();
    let messages = (0..400).map(|i| {
        let key = format!("customer {}", i % 20);
        Message::text("sales", i.to_string()).ordering_key(key)
    });
    enqueue(&outbox, messages);
    let arrived = Mutex::new(HashMap::<String, Vec<usize>>::new());
    let under_way = Mutex::new(HashMap::<String, usize>::new());
    let receiver = |delivery: &Delivery| {
        let key = delivery.ordering_key.clone().unwrap();
        let number: usize = String::from_utf8(delivery.payload.clone())?.parse()?;
        let entered = {
            let mut under_way = under_way.lock().unwrap();
            let entry = under_way.entry(key.clone()).or_default();
            *entry += 1;
            *entry
        };
        assert_eq!(entered, 1, "two messages of {key} under way");
        arrived
            .lock()
            .unwrap()
            .entry(key.clone())
            .or_default()
            .push(number);
        *under_way.lock().unwrap().get_mut(&key).unwrap() -= 1;
        Ok(Outcome::delivered())
    };
    let report = outbox.draining(&receiver).workers(8).run().unwrap();
    assert_eq!((report.sent, report.unsent), (400, 0));
    for (key, numbers) in arrived.into_inner().unwrap() {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
        assert_eq!(numbers.len(), 20);
    }
}

/// Runs of one lane go out together: its messages cost a few transactions, not one each.
#[test]
fn five_hundred_messages_of_one_ordering_key_drain_in_few_transactions() {
    let (_dir, outbox) = outbox();
    let messages = 500;
    enqueue(
        &outbox,
        (0..messages).map(|i| Message::text("sales", i.to_string()).ordering_key("till 7")),
    );
    let clock = ManualClock::at(1_800_000_000_000);
    let other = Outbox::options()
        .clock(clock.shared())
        .open(outbox.path())
        .unwrap();
    let mut drain = Inline::new(&other, Settings::default()).unwrap();
    let watch = outbox.connection().unwrap();
    let version = || -> i64 {
        let read = |row: &rusqlite::Row<'_>| row.get(0);
        watch.query_row("PRAGMA data_version", [], read).unwrap()
    };
    let script = Script::default();
    let (mut commits, mut known) = (0, version());
    while outbox.unsent().unwrap() > 0 {
        drain.step(&script).unwrap();
        let now = version();
        commits += usize::from(now != known);
        known = now;
        clock.advance(Duration::from_millis(10));
        assert!(commits < messages, "a transaction for each message");
    }
    let arrived: Vec<usize> = script
        .seen()
        .iter()
        .map(|it| String::from_utf8_lossy(&it.payload).parse().unwrap())
        .collect();
    assert!(arrived.iter().copied().eq(0..messages), "{arrived:?}");
    // Runs of 16, and one more transaction at each end.
    assert!(commits <= messages / 16 + 3, "{commits} transactions");
}

#[test]
fn a_failing_head_holds_its_lane_and_no_other() {
    let (_dir, outbox) = outbox();
    let messages = (0..60)
        .map(|i| Message::text("sales", i.to_string()).ordering_key(format!("customer {}", i % 3)));
    enqueue(&outbox, messages);
    let receiver = |delivery: &Delivery| {
        Ok(match delivery.payload.as_slice() {
            b"3" => Outcome::retry("try later"),
            _ => Outcome::delivered(),
        })
    };
    let report = outbox.drain(&receiver).unwrap();
    assert_eq!((report.sent, report.unsent), (41, 19));
    let report = outbox
        .draining(&|_: &Delivery| Ok(Outcome::delivered()))
        .now()
        .run()
        .unwrap();
    assert_eq!((report.sent, report.unsent), (19, 0));
}

#[test]
fn a_panic_in_a_dispatcher_is_a_retry_and_the_worker_lives_on() {
    let (_dir, outbox) = outbox();
    enqueue(&outbox, sales(100));
    let receiver = |delivery: &Delivery| {
        assert!(delivery.dedupe_key != "S-50", "bad luck");
        Ok(Outcome::delivered())
    };
    let report = outbox.draining(&receiver).workers(2).run().unwrap();
    assert_eq!((report.sent, report.retried, report.unsent), (99, 1, 1));
    let left = outbox.get_by_key("sales", "S-50").unwrap().unwrap();
    assert!(left.last_error.unwrap().contains("bad luck"));
}

#[test]
fn a_poison_message_dies_of_its_own_budget_among_good_ones() {
    let (_dir, outbox) = outbox();
    enqueue(&outbox, sales(40));
    let policy = Policy::default()
        .max_attempts(3)
        .min_dead_age(Duration::ZERO)
        .backoff(Duration::ZERO, Duration::ZERO);
    let settings = Settings::default().default_policy(policy);
    let receiver = |delivery: &Delivery| {
        Ok(match delivery.dedupe_key.as_str() {
            "S-0" => Outcome::retry("500"),
            _ => Outcome::delivered(),
        })
    };
    let mut dead = 0;
    for round in 0..20 {
        enqueue(&outbox, [Message::text("sales", format!("later {round}"))]);
        dead += outbox
            .draining(&receiver)
            .settings(settings.clone())
            .run()
            .unwrap()
            .dead;
    }
    assert_eq!(dead, 1);
    let stats = outbox.stats().unwrap();
    assert_eq!(
        (stats.total.sent, stats.total.dead, stats.total.unsent()),
        (59, 1, 0)
    );
    let poison = outbox.get_by_key("sales", "S-0").unwrap().unwrap();
    assert_eq!(poison.attempts, 3);
}

#[test]
fn the_brake_stops_a_mass_death_after_ten() {
    let (_dir, outbox) = outbox();
    enqueue(&outbox, sales(100));
    let refuse = |_: &Delivery| Ok(Outcome::rejected("400 of a broken deployment"));
    for _ in 0..5 {
        outbox.drain(&refuse).unwrap();
    }
    let stats = outbox.stats().unwrap();
    assert_eq!((stats.total.dead, stats.total.unsent()), (10, 90));
    assert_eq!(stats.channels[0].state, ChannelState::Rejecting);
    let report = outbox
        .drain(&|_: &Delivery| Ok(Outcome::delivered()))
        .unwrap();
    assert_eq!((report.sent, report.unsent), (90, 0));
}

#[test]
fn the_hook_writes_in_the_transaction_of_the_delivery() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::options()
        .on_delivered(|tx, delivery, receipt| {
            tx.execute(
                "UPDATE sale SET invoice = ?2 WHERE id = ?1",
                (&delivery.dedupe_key, &receipt.provider_id),
            )?;
            anyhow::ensure!(delivery.dedupe_key != "S-3", "no");
            Ok(())
        })
        .open(dir.path().join("till.db"))
        .unwrap();
    let conn = outbox.connection().unwrap();
    conn.execute_batch("CREATE TABLE sale (id TEXT PRIMARY KEY, invoice TEXT)")
        .unwrap();
    for i in 0..5 {
        conn.execute("INSERT INTO sale (id) VALUES (?1)", [format!("S-{i}")])
            .unwrap();
    }
    drop(conn);
    enqueue(&outbox, sales(5));
    let receiver = |delivery: &Delivery| {
        let number = format!("INV-{}", delivery.dedupe_key);
        Ok(Outcome::Delivered(Receipt::with_id(number).answer("{}")))
    };
    let report = outbox.drain(&receiver).unwrap();
    assert_eq!((report.sent, report.unsent), (5, 0));
    let conn = outbox.connection().unwrap();
    let invoices: i64 = conn
        .query_row(
            "SELECT count(*) FROM sale WHERE invoice = 'INV-' || id",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(invoices, 4, "the failed hook's own write is undone");
    let failed = outbox.get_by_key("sales", "S-3").unwrap().unwrap();
    assert_eq!(failed.provider_id.as_deref(), Some("INV-S-3"));
    assert!(
        failed
            .last_error
            .unwrap()
            .contains("on_delivered failed: no")
    );
    assert!(
        outbox
            .list(&Filter::default())
            .unwrap()
            .iter()
            .all(|it| it.settled_at.is_some())
    );
}

#[test]
fn a_hook_that_ends_the_transaction_loses_its_own_writes_only() {
    let dir = tempfile::tempdir().unwrap();
    let outbox = Outbox::options()
        .on_delivered(|tx, _, _| Ok(tx.execute_batch("ROLLBACK")?))
        .open(dir.path().join("till.db"))
        .unwrap();
    enqueue(&outbox, sales(3));
    let calls = AtomicUsize::new(0);
    let receiver = |_: &Delivery| {
        calls.fetch_add(1, Ordering::SeqCst);
        Ok(Outcome::delivered())
    };
    let report = outbox.drain(&receiver).unwrap();
    assert_eq!((report.sent, report.unsent), (3, 0));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

/// Those settled before it in the same transaction, which it committed, had their hooks run twice.
#[test]
fn a_hook_that_commits_makes_no_other_hook_run_again() {
    let till = Till::with("CREATE TABLE ledger (key TEXT)");
    let outbox = Outbox::options()
        .on_delivered(|tx, delivery, _| {
            tx.execute("INSERT INTO ledger VALUES (?1)", [&delivery.dedupe_key])?;
            if delivery.dedupe_key.ends_with('3') {
                tx.execute_batch("COMMIT")?;
            }
            Ok(())
        })
        .open(&till.path)
        .unwrap();
    enqueue(
        &outbox,
        (0..6).map(|n| Message::text("sales", "x").dedupe_key(format!("k{n}"))),
    );
    let receiver = |_: &Delivery| Ok(Outcome::delivered());
    assert_eq!(outbox.drain(&receiver).unwrap().sent, 6);
    let ledger = column(&till.sql(), "SELECT key FROM ledger ORDER BY key");
    assert_eq!(ledger, ["k0", "k1", "k2", "k3", "k4", "k5"]);
}

#[test]
fn a_rate_spreads_a_backlog_and_a_drain_waits_for_it() {
    a_rate_spreads(|message| message);
}

/// A run of a lane counts as all the messages it has.
#[test]
fn a_rate_counts_the_messages_of_a_lane_one_by_one() {
    a_rate_spreads(|message| message.ordering_key("till 7"));
}

fn a_rate_spreads(messages: fn(Message) -> Message) {
    let till = Till::new();
    let (clock, outbox) = till.manual(1_800_000_000_000);
    enqueue(&outbox, sales(30).map(messages));
    let settings = Settings::default().default_policy(Policy::default().rate(5.0));
    let mut drain = Inline::new(&outbox, settings).unwrap();
    let script = Script::default();
    let mut seconds = Vec::new();
    for _ in 0..70 {
        let mut idle = false;
        for _ in 0..20 {
            idle = drain.step(&script).unwrap().idle;
        }
        let sent = script.seen().len();
        assert!(!idle || sent == 30, "it ended with {sent} sent");
        seconds.push(sent);
        clock.advance(Duration::from_millis(100));
    }
    assert_eq!(seconds[0], 5, "a second's worth at once");
    assert!((8..=11).contains(&seconds[10]), "{seconds:?}");
    assert!((18..=21).contains(&seconds[30]), "{seconds:?}");
    assert_eq!(seconds[69], 30);
}

/// What waited for slow calls went out at once when they were over: 62 in a second at a rate of 5.
#[test]
fn a_rate_lets_no_more_than_a_seconds_worth_wait_for_workers() {
    let till = Till::new();
    let (clock, outbox) = till.manual(1_800_000_000_000);
    enqueue(&outbox, sales(200));
    let policy = Policy::default().rate(5.0);
    let settings = Settings::default().workers(4).default_policy(policy);
    let mut drain = Inline::new(&outbox, settings).unwrap();
    let script = Script::default();
    while script.seen().len() < 50 {
        drain.step(&script).unwrap();
        clock.advance(Duration::from_millis(100));
    }
    drain.until_idle(&script).unwrap();
    for _ in 0..200 {
        drain.cycle(&script).unwrap();
        clock.advance(Duration::from_millis(100));
    }
    let claimed = outbox.stats().unwrap().total.sending;
    assert_eq!(claimed, 4 + 5, "with the workers, and a second's worth");
}

/// A transport that puts several messages into one request, as one may be added later. The receiver has
/// trouble with number 7.
struct Batches {
    sizes: Mutex<Vec<usize>>,
    /// It goes no further then, and says nothing of the others.
    stops: bool,
}

impl sqlite_outbox::Dispatcher for Batches {
    fn dispatch(&self, _: &Delivery) -> anyhow::Result<Outcome> {
        unreachable!("it sends batches")
    }

    fn dispatch_run(&self, run: &mut sqlite_outbox::Run<'_>) {
        loop {
            let batch: Vec<_> = run.next_batch(5).iter().map(|it| it.id).collect();
            if batch.is_empty() {
                return;
            }
            self.sizes.lock().unwrap().push(batch.len());
            for id in batch {
                run.settle(Ok(match id {
                    7 => Outcome::retry("one of the batch"),
                    _ => Outcome::delivered(),
                }));
                if id == 7 && self.stops {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_transport_may_put_several_messages_into_one_request() {
    let (_dir, outbox) = outbox();
    let messages = (0..12).map(|i| Message::text("sales", i.to_string()).ordering_key("one"));
    enqueue(&outbox, messages);
    let transport = Batches {
        sizes: Mutex::default(),
        stops: false,
    };
    let report = outbox.drain(&transport).unwrap();
    // 1 to 5, then 6 to 10 of which 7 failed: 8, 9 and 10 had gone with it, 11 and 12 wait.
    assert_eq!(*transport.sizes.lock().unwrap(), [5, 5]);
    assert_eq!((report.sent, report.retried, report.unsent), (9, 1, 3));
}

/// What a batch has not come to was not sent: it keeps its place behind the one that failed, and nobody is
/// charged for it.
#[test]
fn the_rest_of_a_batch_that_ended_early_waits_behind_what_failed() {
    let (_dir, outbox) = outbox();
    let messages = (0..12).map(|i| Message::text("sales", i.to_string()).ordering_key("one"));
    enqueue(&outbox, messages);
    let transport = Batches {
        sizes: Mutex::default(),
        stops: true,
    };
    let report = outbox.drain(&transport).unwrap();
    assert_eq!(*transport.sizes.lock().unwrap(), [5, 5]);
    assert_eq!((report.sent, report.retried, report.unsent), (6, 1, 6));
    for id in 8..=12 {
        let entry = outbox.get(id).unwrap().unwrap();
        assert_eq!((entry.status, entry.attempts), (Status::Waiting, 0));
        assert_eq!(entry.last_error, None);
    }
    assert_eq!(outbox.stats().unwrap().channels[0].state, ChannelState::Ok);
}
