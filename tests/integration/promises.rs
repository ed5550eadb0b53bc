//! Sentences of the documents that a reviewer found untrue once.

use std::sync::Mutex;
use std::time::Duration;

use sqlite_outbox::testing::{Inline, ManualClock, Script};
use sqlite_outbox::{
    ChannelState, Delivery, Enqueued, Failure, Hold, Message, OnDuplicate, Outbox, Outcome, Policy,
    Receipt, Settings, SettleSync, Status,
};

use crate::fixture::{Till, put};

const NOW: i64 = 1_800_000_000_000;

/// Expiry was looked at when a run was claimed, and its last message went out minutes later.
#[test]
fn a_message_that_expires_while_its_run_is_under_way_is_not_sent() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    for i in 0..6 {
        let message = Message::text("sales", i.to_string())
            .ordering_key("one")
            .ttl(Duration::from_millis(1_500));
        put(&outbox, &message).unwrap();
    }
    let slow = |_: &Delivery| {
        clock.advance(Duration::from_millis(400));
        Ok(Outcome::delivered())
    };
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    for _ in 0..10 {
        drain.step(&slow).unwrap();
    }
    let total = outbox.stats().unwrap().total;
    assert_eq!((total.sent, total.expired, total.unsent()), (4, 2, 0));
}

/// `settled_at` of the noted delivery did not keep the second success from being told again.
#[test]
fn the_hook_runs_once_for_a_message_that_two_holders_delivered() {
    let till = Till::new();
    let clock = ManualClock::at(NOW);
    let told = std::sync::Arc::new(Mutex::new(Vec::new()));
    let heard = told.clone();
    let outbox = Outbox::options()
        .clock(clock.shared())
        .on_delivered(move |_, delivery, receipt| {
            let id = receipt.provider_id.clone().unwrap_or_default();
            heard.lock().unwrap().push((delivery.id, id));
            Ok(())
        })
        .open(&till.path)
        .unwrap();
    put(&outbox, &Message::text("sales", "one").ordering_key("one")).unwrap();
    let mut a = Inline::new(&outbox, Settings::default()).unwrap();
    let mut b = Inline::new(&outbox, Settings::default()).unwrap();
    let first = |_: &Delivery| {
        clock.advance(Duration::from_secs(40));
        Ok(Outcome::Delivered(Receipt::with_id("INV-A")))
    };
    a.step(&first).unwrap();
    let a = Mutex::new(a);
    let second = |_: &Delivery| {
        a.lock().unwrap().step(&Script::default())?;
        Ok(Outcome::Delivered(Receipt::with_id("INV-B")))
    };
    for _ in 0..5 {
        b.step(&second).unwrap();
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(*told.lock().unwrap(), [(1, "INV-A".to_owned())]);
    let row = outbox.get(1).unwrap().unwrap();
    assert_eq!(row.status, Status::Sent);
    assert_eq!(row.provider_id.as_deref(), Some("INV-A"));
}

#[test]
fn an_outage_that_asks_for_peace_per_message_opens_the_circuit_all_the_same() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    outbox
        .transaction(|tx| {
            for i in 0..200 {
                outbox.enqueue(tx, &Message::text("sales", i.to_string()))?;
            }
            anyhow::Ok(())
        })
        .unwrap();
    let policy = Policy::default().retry_after(Hold::Message);
    let settings = Settings::default().default_policy(policy);
    let mut drain = Inline::new(&outbox, settings).unwrap();
    let down = |_: &Delivery| {
        let failure = Failure::new("http_503", "busy").after(Duration::from_secs(2));
        Ok(Outcome::Retry(failure))
    };
    let mut requests = 0;
    for _ in 0..600 {
        requests += drain.step(&down).unwrap().dispatched;
        clock.advance(Duration::from_millis(100));
    }
    assert!(requests < 30, "{requests} requests in a minute");
    let stats = outbox.stats().unwrap();
    assert_eq!(stats.channels[0].state, ChannelState::Offline);
}

/// A wake took it for one that was put a place further back: with `wake` in a hurry it was asked for 20 times in
/// 6 s and died of it.
#[test]
fn a_wake_cuts_no_back_off_short_that_a_message_earned() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    let policy = Policy::default().retry_after(Hold::Message);
    let settings = Settings::default().default_policy(policy);
    let mut drain = Inline::new(&outbox, settings).unwrap();
    put(&outbox, &Message::text("sales", "warm")).unwrap();
    drain.until_idle(&Script::default()).unwrap();
    put(&outbox, &Message::text("sales", "x")).unwrap();
    let asks = |_: &Delivery| {
        let failure = Failure::new("http", "too many").status(429);
        Ok(Outcome::Retry(failure.after(Duration::from_secs(4))))
    };
    let mut requests = 0;
    for _ in 0..39 {
        requests += drain.step(&asks).unwrap().dispatched;
        drain.wake();
        clock.advance(Duration::from_millis(100));
    }
    assert_eq!(requests, 1, "within 4 s");
}

#[test]
fn a_hold_survives_a_restart_with_the_clock_set_back() {
    for (span, back) in [
        (60, 12 * 3600),
        (20 * 3600, 12 * 3600),
        (3600, 57 * 365 * 86_400),
    ] {
        let till = Till::new();
        let (clock, outbox) = till.manual(NOW);
        put(&outbox, &Message::text("sales", "one")).unwrap();
        let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
        let busy = move |_: &Delivery| {
            let failure = Failure::new("http_503", "busy").after(Duration::from_secs(span));
            Ok(Outcome::Retry(failure))
        };
        drain.step(&busy).unwrap();
        drain.step(&busy).unwrap();
        drop(drain);
        clock.jump(-(back * 1000));
        let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
        let script = Script::default();
        let step = Duration::from_secs(span / 20);
        for _ in 0..18 {
            drain.step(&script).unwrap();
            clock.advance(step);
        }
        assert!(
            script.seen().is_empty(),
            "hold of {span} s, back {back} s: too soon"
        );
        for _ in 0..20 {
            drain.step(&script).unwrap();
            clock.advance(step);
        }
        assert_eq!(
            script.seen().len(),
            1,
            "hold of {span} s, back {back} s: never"
        );
    }
}

#[test]
fn several_processes_do_not_probe_together() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    for i in 0..50 {
        put(&outbox, &Message::text("sales", i.to_string())).unwrap();
    }
    let down = |_: &Delivery| Ok(Outcome::unreachable("no answer"));
    let mut first = Inline::new(&outbox, Settings::default()).unwrap();
    first.until_idle(&down).unwrap();
    let others: Vec<_> = (0..6)
        .map(|_| Mutex::new(Inline::new(&outbox, Settings::default()).unwrap()))
        .collect();
    clock.advance(Duration::from_secs(3));
    // While the first probe hangs for half a minute, nobody else tries.
    let hanging = |_: &Delivery| {
        for _ in 0..30 {
            clock.advance(Duration::from_secs(1));
            for other in &others {
                let nobody = |_: &Delivery| -> anyhow::Result<Outcome> { panic!("a second probe") };
                other.lock().unwrap().step(&nobody)?;
            }
        }
        Ok(Outcome::unreachable("timeout"))
    };
    assert_eq!(first.step(&hanging).unwrap().dispatched, 1);
}

#[test]
fn a_doubted_clock_kills_nobody() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    let policy = Policy::default()
        .max_attempts(3)
        .backoff(Duration::from_secs(1), Duration::from_secs(1));
    let settings = Settings::default().default_policy(policy);
    let mut drain = Inline::new(&outbox, settings).unwrap();
    put(
        &outbox,
        &Message::text("sales", "poison").dedupe_key("poison"),
    )
    .unwrap();
    let world = |it: &Delivery| match it.dedupe_key.as_str() {
        "poison" => Ok(Outcome::retry("500")),
        _ => Ok(Outcome::delivered()),
    };
    let live = |drain: &mut Inline| {
        for i in 0..60 {
            put(&outbox, &Message::text("sales", i.to_string())).unwrap();
            for _ in 0..4 {
                drain.step(&world).unwrap();
            }
            clock.advance(Duration::from_millis(500));
        }
    };
    live(&mut drain);
    clock.jump(10 * 365 * 86_400_000);
    live(&mut drain);
    let poison = outbox.get_by_key("sales", "poison").unwrap().unwrap();
    assert!(poison.attempts >= 3);
    assert_eq!(poison.status, Status::Pending, "killed by a clock");
}

#[test]
fn the_latest_schedule_wins_when_a_message_is_replaced() {
    let till = Till::new();
    let (_clock, outbox) = till.manual(NOW);
    let message = |seconds: u64| {
        Message::text("sales", "one")
            .dedupe_key("S-1")
            .delay(Duration::from_secs(seconds))
            .on_duplicate(OnDuplicate::Replace)
    };
    put(&outbox, &message(60)).unwrap();
    assert_eq!(
        put(&outbox, &message(86_400)).unwrap(),
        Enqueued::Replaced { id: 1 }
    );
    let row = outbox.get(1).unwrap().unwrap();
    assert_eq!(row.available_at, Some(NOW + 86_400_000));
    assert_eq!(row.next_attempt_at, NOW + 86_400_000);
}

#[test]
fn what_was_sent_under_a_clock_of_2022_keeps_its_row_when_the_clock_is_mended() {
    let till = Till::new();
    let clock = ManualClock::at(1_641_000_000_000);
    let outbox = Outbox::options()
        .clock(clock.shared())
        .open(&till.path)
        .unwrap();
    put(&outbox, &Message::text("sales", "one").dedupe_key("S-1")).unwrap();
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    drain.until_idle(&Script::default()).unwrap();
    clock.jump(NOW - clock.now());
    for _ in 0..3 * 3600 / 30 {
        drain.step(&Script::default()).unwrap();
        clock.advance(Duration::from_secs(30));
    }
    let again = put(&outbox, &Message::text("sales", "one").dedupe_key("S-1")).unwrap();
    assert_eq!(again, Enqueued::Duplicate { id: 1 });
}

#[test]
fn headers_that_speak_of_credentials_are_refused() {
    let till = Till::new();
    let outbox = till.open();
    for name in [
        "X-Shopify-Access-Token",
        "Private-Token",
        "Ocp-Apim-Subscription-Key",
        "X-Auth",
        "apikey",
        "Set-Cookie",
    ] {
        let message = Message::text("sales", "one").header(name, "x");
        assert!(put(&outbox, &message).is_err(), "{name}");
    }
    put(
        &outbox,
        &Message::text("sales", "one").header("X-Author", "x"),
    )
    .unwrap();
}

#[test]
fn with_a_lazy_sync_a_delivery_is_on_disk_within_about_a_second() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    put(&outbox, &Message::bytes("sales", vec![b'x'; 200_000])).unwrap();
    let settings = Settings::default().settle_sync(SettleSync::Normal);
    let mut drain = Inline::new(&outbox, settings).unwrap();
    let size = || std::fs::metadata(&till.path).unwrap().len();
    drain.until_idle(&Script::default()).unwrap();
    let before = size();
    clock.advance(Duration::from_millis(1_100));
    drain.step(&Script::default()).unwrap();
    assert!(size() > before + 150_000, "nothing was checkpointed");
}

/// Only the newest attempts are kept, and with the first charge its age would be forgotten: a message
/// that failed through a long outage would never be old enough to die.
#[test]
fn a_poison_message_dies_however_many_attempts_were_not_charged_to_it() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    let policy = Policy::default().max_attempts(2);
    let mut drain = Inline::new(&outbox, Settings::default().default_policy(policy)).unwrap();
    let receiver = |delivery: &Delivery| {
        Ok(match delivery.payload.as_slice() {
            b"poison" => Outcome::retry("500"),
            _ => Outcome::delivered(),
        })
    };
    let attempts = |id| outbox.get(id).unwrap().unwrap().attempts;
    let good = |drain: &mut Inline| {
        put(&outbox, &Message::text("sales", "good")).unwrap();
        drain.until_idle(&receiver).unwrap();
    };
    good(&mut drain);
    let poison = put(&outbox, &Message::text("sales", "poison"))
        .unwrap()
        .id();
    drain.until_idle(&receiver).unwrap();
    assert_eq!(attempts(poison), 1);
    // Nothing is delivered meanwhile, and so nothing is charged.
    for _ in 0..30 {
        clock.advance(Duration::from_secs(6 * 3600));
        drain.until_idle(&receiver).unwrap();
    }
    let outcomes = outbox.attempts(poison).unwrap();
    assert_eq!(attempts(poison), 1, "{outcomes:?}");
    assert!(outcomes.len() > 20, "the outage was too short");
    for _ in 0..10 {
        good(&mut drain);
        clock.advance(Duration::from_secs(6 * 3600));
        drain.until_idle(&receiver).unwrap();
    }
    let row = outbox.get(poison).unwrap().unwrap();
    assert_eq!((row.status, row.attempts), (Status::Dead, 2));
}

/// A receiver that is barely back must not be met by every process at full speed, also by those that
/// have not felt its trouble.
#[test]
fn where_another_process_found_trouble_this_one_begins_slowly_too() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    let fill = |messages: usize| {
        for n in 0..messages {
            put(&outbox, &Message::text("sales", n.to_string())).unwrap();
        }
    };
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    let up = |_: &Delivery| Ok(Outcome::delivered());
    fill(100);
    drain.until_idle(&up).unwrap();
    fill(100);
    let at_full_pace = drain.step(&up).unwrap().dispatched;
    assert!(at_full_pace > 10, "{at_full_pace}");
    drain.until_idle(&up).unwrap();

    fill(100);
    let mut other = Inline::new(&outbox, Settings::default()).unwrap();
    let down = |_: &Delivery| Ok(Outcome::unreachable("no network"));
    // Evidence is spent by the first failure, and the channel opens with the next.
    for _ in 0..5 {
        other.until_idle(&down).unwrap();
    }
    assert_eq!(
        outbox.stats().unwrap().channels[0].state,
        ChannelState::Offline
    );
    let mut claimed = Vec::new();
    while claimed.iter().sum::<usize>() < 10 {
        let step = drain.step(&up).unwrap();
        clock.advance(step.wait.max(Duration::from_millis(10)));
        claimed.extend((step.dispatched > 0).then_some(step.dispatched));
    }
    // The probe, the one that a troubled channel has, and then one more for each delivery.
    assert_eq!(claimed.get(..3), Some(&[1, 1, 2][..]), "{claimed:?}");
}
