//! The pump in the background: when it wakes, what it leaves alone, how it ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, unbounded};
use sqlite_outbox::{Delivery, Event, Failure, Message, Outbox, Outcome, Settings, Status};

use crate::fixture::{Till, nap, one, put};

/// Longer than anything here should take: it catches hangs.
const HANG: Duration = Duration::from_secs(20);

/// An outbox whose events can be waited for.
fn observed(till: &Till) -> (Outbox, Receiver<Event>) {
    let (events, heard) = unbounded();
    let outbox = Outbox::options()
        .observer(move |event: &Event| drop(events.send(event.clone())))
        .open(&till.path)
        .unwrap();
    (outbox, heard)
}

fn delivered(events: &Receiver<Event>, messages: usize) {
    let until = Instant::now() + HANG;
    let mut seen = 0;
    while seen < messages {
        if let Event::Delivered { .. } = events.recv_deadline(until).unwrap() {
            seen += 1;
        }
    }
}

#[test]
fn a_message_committed_through_the_outbox_goes_out_at_once() {
    let till = Till::new();
    let (outbox, events) = observed(&till);
    let pump = outbox
        .pump(|_: &Delivery| Ok(Outcome::delivered()))
        .settings(Settings::default().poll(Duration::from_secs(60)))
        .start()
        .unwrap();
    put(&outbox, &Message::text("sales", "one")).unwrap();
    delivered(&events, 1);
    pump.stop(HANG).unwrap();
}

#[test]
fn a_commit_of_a_connection_that_knows_nothing_of_the_outbox_is_seen() {
    let till = Till::new();
    let (outbox, events) = observed(&till);
    let pump = outbox
        .pump(|_: &Delivery| Ok(Outcome::delivered()))
        .start()
        .unwrap();
    till.sql()
        .execute_batch("INSERT INTO outbox (channel, payload) VALUES ('sales', 'one')")
        .unwrap();
    delivered(&events, 1);
    pump.stop(HANG).unwrap();
}

/// Others were told at enqueue time, found nothing, and went back to sleep.
#[test]
fn nothing_is_sent_before_the_commit_and_nothing_after_a_rollback() {
    let till = Till::new();
    let (outbox, events) = observed(&till);
    let pump = outbox
        .pump(|_: &Delivery| Ok(Outcome::delivered()))
        .start()
        .unwrap();
    let mut conn = till.sql();
    let tx = conn.transaction().unwrap();
    outbox.enqueue(&tx, &Message::text("sales", "one")).unwrap();
    pump.wake();
    nap(300);
    assert!(events.is_empty(), "{:?}", events.try_recv());
    tx.rollback().unwrap();
    nap(300);
    assert!(events.is_empty(), "{:?}", events.try_recv());
    let tx = conn.transaction().unwrap();
    outbox.enqueue(&tx, &Message::text("sales", "two")).unwrap();
    tx.commit().unwrap();
    delivered(&events, 1);
    pump.stop(HANG).unwrap();
}

#[test]
fn an_idle_outbox_writes_no_byte() {
    let till = Till::new();
    let (outbox, events) = observed(&till);
    let pump = outbox
        .pump(|_: &Delivery| Ok(Outcome::delivered()))
        .start()
        .unwrap();
    put(&outbox, &Message::text("sales", "one")).unwrap();
    put(
        &outbox,
        &Message::text("sales", "later").delay(Duration::from_secs(3600)),
    )
    .unwrap();
    delivered(&events, 1);
    nap(200);
    let conn = till.sql();
    let version = || one(&conn, "PRAGMA data_version");
    let size = |name: &str| {
        std::fs::metadata(till.folder.path().join(name))
            .unwrap()
            .len()
    };
    let before = (version(), size("till.db"), size("till.db-wal"));
    nap(2_000);
    assert_eq!((version(), size("till.db"), size("till.db-wal")), before);
    pump.stop(HANG).unwrap();
}

#[test]
fn stop_returns_in_time_and_gives_back_what_was_not_sent() {
    let till = Till::new();
    let outbox = till.open();
    for i in 0..20 {
        put(&outbox, &Message::text("sales", i.to_string())).unwrap();
    }
    let (entered, inside) = bounded(100);
    let (release, released) = bounded::<()>(0);
    let receiver = move |_: &Delivery| {
        entered.send(()).unwrap();
        // Hangs until the test is over.
        let _ = released.recv();
        Ok(Outcome::delivered())
    };
    let pump = outbox.pump(receiver).workers(2).start().unwrap();
    inside.recv_timeout(HANG).unwrap();
    let started = Instant::now();
    pump.stop(Duration::from_millis(200)).unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
    let stats = outbox.stats().unwrap();
    assert_eq!((stats.total.pending, stats.total.sending), (20, 0));
    assert_eq!(stats.total.max_attempts, 0, "a stop charges nobody");
    drop(release);
    let again = outbox
        .drain(&|_: &Delivery| Ok(Outcome::delivered()))
        .unwrap();
    assert_eq!((again.sent, again.unsent), (20, 0));
}

#[test]
fn a_panicking_observer_or_hook_stops_nothing() {
    let till = Till::new();
    let outbox = Outbox::options()
        .observer(|_: &Event| panic!("observer"))
        .on_delivered(|_, _, _| panic!("hook"))
        .open(&till.path)
        .unwrap();
    for i in 0..10 {
        put(&outbox, &Message::text("sales", i.to_string())).unwrap();
    }
    let report = outbox
        .drain(&|_: &Delivery| Ok(Outcome::delivered()))
        .unwrap();
    assert_eq!((report.sent, report.unsent), (10, 0));
    let error = one(&till.sql(), "SELECT last_error FROM outbox LIMIT 1");
    assert!(error.contains("hook"), "{error}");
}

/// A slow call must not be taken for a dead one: its claim is renewed while it lasts.
#[test]
fn a_call_longer_than_its_lease_is_made_once_while_another_drain_looks_on() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &Message::text("sales", "slow")).unwrap();
    let calls = std::sync::Arc::new(AtomicUsize::new(0));
    let receiver = |calls: std::sync::Arc<AtomicUsize>| {
        move |_: &Delivery| {
            calls.fetch_add(1, Ordering::SeqCst);
            nap(5_000);
            Ok(Outcome::delivered())
        }
    };
    let settings = Settings::default().lease(Duration::from_secs(1));
    let first = outbox
        .pump(receiver(calls.clone()))
        .settings(settings.clone())
        .start()
        .unwrap();
    let until = Instant::now() + HANG;
    while calls.load(Ordering::SeqCst) == 0 && Instant::now() < until {
        nap(5);
    }
    // Waits for the other's claim to end, one way or the other.
    let report = till
        .open()
        .draining(&receiver(calls.clone()))
        .settings(settings)
        .run()
        .unwrap();
    assert_eq!((report.sent, report.unsent), (0, 0));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    first.stop(HANG).unwrap();
}

#[test]
fn while_the_file_cannot_be_written_nothing_more_is_sent_and_health_says_so() {
    let till = Till::new();
    let (outbox, events) = observed(&till);
    for i in 0..50 {
        put(&outbox, &Message::text("sales", i.to_string())).unwrap();
    }
    // After ten, each call waits for leave. A channel that has delivered has more claimed.
    let (leave, gate) = bounded::<()>(0);
    let calls = std::sync::Arc::new(AtomicUsize::new(0));
    let receiver = {
        let calls = calls.clone();
        move |_: &Delivery| {
            if calls.fetch_add(1, Ordering::SeqCst) >= 10 {
                let _ = gate.recv();
            }
            Ok(Outcome::delivered())
        }
    };
    let pump = outbox.pump(receiver).workers(1).start().unwrap();
    let until = Instant::now() + HANG;
    let wait_until = |what: &str, reached: &dyn Fn() -> bool| {
        while !reached() {
            assert!(Instant::now() < until, "never: {what}");
            nap(5);
        }
    };
    wait_until("an eleventh call", &|| calls.load(Ordering::SeqCst) == 11);
    wait_until("more claimed", &|| pump.health().in_flight > 5);
    // The application takes the write lock and keeps it.
    let blocker = till.sql();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    leave.send(()).unwrap();
    wait_until("an error", &|| pump.health().error.is_some());
    assert!(pump.health().error.unwrap().contains("lock"));
    // The call that is under way ends, and none follows.
    nap(50);
    leave.send(()).unwrap();
    nap(500);
    assert_eq!(
        calls.load(Ordering::SeqCst),
        12,
        "sent what cannot be recorded"
    );
    blocker.execute_batch("COMMIT").unwrap();
    drop(leave);
    delivered(&events, 50);
    assert_eq!(calls.load(Ordering::SeqCst), 50, "each exactly once");
    assert_eq!(pump.health().error, None);
    pump.stop(HANG).unwrap();
}

/// The next run of a lane is claimed while one is being sent: when that fails, nobody would have
/// sent the other, nor given it back.
#[test]
fn what_was_claimed_behind_a_run_that_failed_is_given_back() {
    let till = Till::new();
    let (outbox, events) = observed(&till);
    for i in 0..40 {
        let lane = Message::text("sales", i.to_string()).ordering_key("customer");
        put(&outbox, &lane).unwrap();
    }
    let (fail, failing) = bounded::<()>(0);
    let receiver = move |delivery: &Delivery| {
        if delivery.payload == b"2" {
            let _ = failing.recv();
            return Ok(Outcome::retry("busy"));
        }
        Ok(Outcome::delivered())
    };
    let pump = outbox.pump(receiver).start().unwrap();
    let until = Instant::now() + HANG;
    let in_flight = |wanted: &dyn Fn(usize) -> bool| {
        while !wanted(pump.health().in_flight) {
            assert!(
                Instant::now() < until,
                "{} in flight",
                pump.health().in_flight
            );
            nap(5);
        }
    };
    delivered(&events, 2);
    in_flight(&|it| it == 14 + 16);
    drop(fail);
    in_flight(&|it| it == 0);
    let claimed = "SELECT count(*) FROM outbox WHERE status = 'sending'";
    assert_eq!(one(&till.sql(), claimed), "0");
    pump.stop(HANG).unwrap();
}

/// Beyond the workers, a thread is started for a channel that has none.
#[test]
fn a_channel_that_hangs_keeps_no_other_waiting_though_it_has_every_worker() {
    let till = Till::new();
    let (outbox, events) = observed(&till);
    let (entered, inside) = bounded(100);
    let (release, released) = bounded::<()>(0);
    let receiver = move |delivery: &Delivery| {
        if delivery.channel == "hangs" {
            entered.send(()).unwrap();
            let _ = released.recv();
        }
        Ok(Outcome::delivered())
    };
    let pump = outbox.pump(receiver).workers(1).start().unwrap();
    put(&outbox, &Message::text("hangs", "one")).unwrap();
    inside.recv_timeout(HANG).unwrap();
    put(&outbox, &Message::text("flows", "one")).unwrap();
    delivered(&events, 1);
    drop(release);
    delivered(&events, 1);
    pump.stop(HANG).unwrap();
}

#[test]
fn a_process_that_only_enqueues_is_served_by_one_that_only_drains() {
    let till = Till::new();
    let producer = till.open();
    for i in 0..30 {
        put(&producer, &Message::text("sales", i.to_string())).unwrap();
    }
    assert_eq!(producer.stats().unwrap().total.pending, 30);
    let drainer = Outbox::open_existing(&till.path).unwrap();
    assert_eq!(
        drainer
            .drain(&|_: &Delivery| Ok(Outcome::delivered()))
            .unwrap()
            .sent,
        30
    );
}

#[test]
fn one_undecodable_row_is_set_aside_and_the_others_flow() {
    let till = Till::new();
    let outbox = till.open();
    for i in 0..20 {
        put(
            &outbox,
            &Message::text("sales", i.to_string()).dedupe_key(format!("S-{i}")),
        )
        .unwrap();
    }
    let conn = till.sql();
    conn.execute_batch(
        "UPDATE outbox SET headers = '{' WHERE dedupe_key = 'S-3';
         UPDATE outbox SET headers = '{\"Authorization\": \"x\"}' WHERE dedupe_key = 'S-4';
         UPDATE outbox SET recipient = CAST(x'ff41' AS TEXT) WHERE dedupe_key = 'S-5';
         UPDATE outbox SET claims = 1000000000 WHERE dedupe_key = 'S-6';",
    )
    .unwrap();
    let report = outbox
        .drain(&|_: &Delivery| Ok(Outcome::delivered()))
        .unwrap();
    assert_eq!((report.sent, report.dead, report.unsent), (16, 4, 0));
    for key in ["S-3", "S-4", "S-5", "S-6"] {
        let row = outbox.get_by_key("sales", key).unwrap().unwrap();
        assert_eq!(row.status, Status::Dead, "{key}");
        assert!(row.last_error.is_some(), "{key} has no reason");
    }
    let stats = outbox.stats().unwrap();
    assert_eq!(
        stats.channels[0].reason, None,
        "the receiver is not to blame"
    );
}

#[test]
fn a_row_that_an_application_trigger_protects_does_not_stop_the_others() {
    let till = Till::new();
    let outbox = till.open();
    for i in 0..20 {
        put(
            &outbox,
            &Message::text("sales", i.to_string()).dedupe_key(format!("S-{i}")),
        )
        .unwrap();
    }
    till.sql()
        .execute_batch(
            "CREATE TRIGGER mine BEFORE UPDATE ON outbox WHEN OLD.dedupe_key = 'S-7'
             BEGIN SELECT RAISE(ABORT, 'hands off'); END;",
        )
        .unwrap();
    let report = outbox
        .draining(&|_: &Delivery| Ok(Outcome::delivered()))
        .deadline(Duration::from_secs(10))
        .run()
        .unwrap();
    assert_eq!((report.sent, report.unsent), (19, 1));
}

/// A probe into a black hole used to keep every hint out until its timeout.
#[test]
fn a_wake_sends_another_probe_when_the_one_that_is_out_hangs() {
    let till = Till::new();
    let (outbox, events) = observed(&till);
    for i in 0..5 {
        put(&outbox, &Message::text("sales", i.to_string())).unwrap();
    }
    let calls = std::sync::Arc::new(AtomicUsize::new(0));
    let (release, released) = bounded::<()>(0);
    let receiver = {
        let calls = calls.clone();
        move |_: &Delivery| match calls.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => Ok(Outcome::unreachable("refused")),
            2 => {
                let _ = released.recv();
                Ok(Outcome::unreachable("timeout"))
            }
            _ => Ok(Outcome::delivered()),
        }
    };
    let pump = outbox.pump(receiver).start().unwrap();
    let until = Instant::now() + HANG;
    while calls.load(Ordering::SeqCst) < 3 && Instant::now() < until {
        nap(10);
    }
    nap(2_200);
    assert_eq!(calls.load(Ordering::SeqCst), 3, "it hangs");
    pump.wake();
    delivered(&events, 4);
    drop(release);
    pump.stop(HANG).unwrap();
}

/// What was claimed stands in its queue, which is emptied, and behind what its worker sends, which only the
/// lease can stop.
#[test]
fn a_pump_ends_its_runs_when_a_receiver_asks_for_peace() {
    let till = Till::new();
    let (outbox, events) = observed(&till);
    let both = |n: usize| ["a", "b"].map(|lane| (lane, n));
    outbox
        .transaction(|tx| {
            for (lane, n) in (0..8).flat_map(both) {
                let message = Message::text("sales", format!("{lane}{n}")).ordering_key(lane);
                outbox.enqueue(tx, &message)?;
            }
            anyhow::Ok(())
        })
        .unwrap();
    let (arrive, arrived) = unbounded();
    let (on_the_wire, other_is_on_the_wire) = bounded(1);
    let (go_on, may_go_on) = bounded(0);
    let receiver = move |it: &Delivery| {
        arrive.send(String::from_utf8(it.payload.clone())?)?;
        if it.payload == b"a4" {
            other_is_on_the_wire.recv_timeout(HANG)?;
            let failure = Failure::new("http_503", "later").after(Duration::from_secs(3_600));
            return Ok(Outcome::Retry(failure));
        }
        if it.payload == b"b4" {
            on_the_wire.send(())?;
            may_go_on.recv_timeout(HANG)?;
        }
        Ok(Outcome::delivered())
    };
    let pump = outbox.pump(receiver).start().unwrap();
    let until = Instant::now() + HANG;
    // The workers hear of it before the observer does.
    while !matches!(events.recv_deadline(until).unwrap(), Event::Channel { .. }) {}
    go_on.send_deadline((), until).unwrap();
    let under_way = "SELECT count(*) FROM outbox WHERE status = 'sending'";
    while one(&till.sql(), under_way) != "0" {
        assert!(Instant::now() < until, "it never came back");
        nap(5);
    }
    pump.stop(HANG).unwrap();
    let mut arrived: Vec<String> = arrived.try_iter().collect();
    arrived.sort();
    let sent = ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2", "b3", "b4"];
    assert_eq!(arrived, sent);
}
