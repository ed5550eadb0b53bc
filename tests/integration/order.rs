//! Order per key: nothing overtakes, whatever delays the one before.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sqlite_outbox::testing::{Inline, Script};
use sqlite_outbox::{
    Delivery, Dispatcher, Event, Failure, Hold, Message, OnDead, Outcome, Policy, Run, Settings,
    Status,
};

use crate::desk::{Desk, HOUR, MINUTE, SECOND, rejects, status, up};
use crate::fixture::{Till, nap, put};

/// Lives on for an hour and returns the arrivals of the lane, first ones only; counts the others.
fn arrivals(desk: &Desk, drains: &mut [Inline]) -> (Vec<String>, usize) {
    let seen = Mutex::new((Vec::new(), 0));
    let receiver = |delivery: &Delivery| {
        let text = String::from_utf8_lossy(&delivery.payload).into_owned();
        let mut seen = seen.lock().unwrap();
        match delivery.ordering_key {
            Some(_) if !seen.0.contains(&text) => seen.0.push(text),
            Some(_) => {}
            None => seen.1 += 1,
        }
        Ok(Outcome::delivered())
    };
    let end = desk.clock.now() + HOUR;
    while desk.clock.now() < end {
        for drain in &mut *drains {
            drain.until_idle(&receiver).unwrap();
        }
        desk.pass(10_000);
    }
    seen.into_inner().unwrap()
}

/// Something that delays the first message.
type Delay = fn(&Desk, &mut Inline);

#[test]
fn nothing_overtakes_a_message_that_is_delayed_by_whatever() {
    let delays: [(&str, Delay); 6] = [
        ("back-off", |_, drain| {
            let receiver = |delivery: &Delivery| {
                Ok(match delivery.payload.as_slice() {
                    b"1" => Outcome::Retry(status(503)),
                    _ => Outcome::delivered(),
                })
            };
            drain.until_idle(&receiver).unwrap();
        }),
        ("Retry-After", |_, drain| {
            let receiver = |delivery: &Delivery| {
                Ok(match delivery.payload.as_slice() {
                    b"1" => Outcome::Retry(status(429).after(Duration::from_secs(120))),
                    _ => Outcome::delivered(),
                })
            };
            drain.until_idle(&receiver).unwrap();
        }),
        ("a lease of a process that ended", |desk, drain| {
            // Claimed, and never heard of again.
            let lost = |_: &Delivery| -> anyhow::Result<Outcome> { panic!("killed") };
            let crash = std::panic::AssertUnwindSafe(|| drain.until_idle(&lost));
            assert!(std::panic::catch_unwind(crash).is_err());
            assert_eq!(desk.states()[0], "sending");
            *drain = desk.drain();
        }),
        ("a pause", |desk, drain| {
            desk.anna().pause("sales").unwrap();
            drain.until_idle(&up).unwrap();
            desk.pass(10 * MINUTE);
            drain.until_idle(&up).unwrap();
            desk.anna().resume("sales").unwrap();
        }),
        ("a schedule", |desk, _| {
            desk.sql(&format!(
                "UPDATE outbox SET available_at = {} WHERE id = 1",
                desk.clock.now() + 5 * MINUTE
            ));
        }),
        ("a death and a retry", |desk, drain| {
            drain.until_idle(&rejects("1")).unwrap();
            desk.pass(10 * MINUTE);
            desk.anna().retry(1).unwrap();
        }),
    ];
    for (what, delay) in delays {
        let desk = Desk::new();
        desk.lane("customer", 5);
        let mut drains = [desk.drain(), desk.drain()];
        delay(&desk, &mut drains[0]);
        desk.put(Message::text("sales", "keyless"));
        let (order, others) = arrivals(&desk, &mut drains);
        assert_eq!(order, ["1", "2", "3", "4", "5"], "{what}");
        assert_eq!(others, 1, "{what}");
        assert!(desk.states().iter().all(|it| it == "sent"), "{what}");
    }
}

/// Ordering keys are per channel: an invoice and the customer it refers to belong in one channel, or
/// the invoice is enqueued by `on_delivered` of the customer.
#[test]
fn the_same_key_in_two_channels_is_two_lanes() {
    let desk = Desk::new();
    desk.put(Message::text("customers", "1").ordering_key("C-1"));
    desk.put(Message::text("invoices", "2").ordering_key("C-1"));
    assert_eq!(desk.states(), ["pending", "pending"]);
    desk.sync(&rejects("1"));
    assert_eq!(desk.states(), ["dead", "sent"]);
}

#[test]
fn a_retried_message_that_was_skipped_goes_out_once_the_run_before_it_is_done() {
    let desk = Desk::new();
    let ids = desk.lane("customer", 4);
    desk.anna().on_dead("sales", OnDead::Skip).unwrap();
    desk.sync(&rejects("1"));
    assert_eq!(desk.states(), ["dead", "sent", "sent", "sent"]);
    desk.lane("customer", 1);
    let lease = desk.clock.now() + MINUTE;
    desk.sql(&format!(
        "UPDATE outbox SET status = 'sending', claims = 1, next_attempt_at = {lease} WHERE id = 5"
    ));
    desk.anna().retry(ids[0]).unwrap();
    assert_eq!(desk.states()[0], "waiting", "one at a time");
    desk.sql("UPDATE outbox SET status = 'sent' WHERE id = 5");
    assert_eq!(desk.states()[0], "pending");
    desk.sync(&up);
    assert_eq!(desk.states()[0], "sent");
}

/// Sends the next `count` messages, which the receiver takes; returns their payloads.
fn deliver(drain: &mut Inline, count: usize) -> Vec<String> {
    let mut sent = Vec::new();
    while sent.len() < count {
        let call = drain.begin().unwrap();
        sent.push(String::from_utf8_lossy(&call.delivery.payload).into_owned());
        drain.end(call, Ok(Outcome::delivered()));
    }
    sent
}

fn numbers(range: std::ops::RangeInclusive<usize>) -> Vec<String> {
    range.map(|it| it.to_string()).collect()
}

#[test]
fn the_next_run_of_a_lane_is_claimed_while_one_is_sent_and_goes_out_after_it() {
    let desk = Desk::new();
    desk.lane("customer", 60);
    let mut drain = desk.drain();
    assert_eq!(drain.cycle(&up).unwrap().dispatched, 16);
    assert_eq!(deliver(&mut drain, 8), numbers(1..=8));
    drain.cycle(&up).unwrap();
    let states = desk.states();
    let sending = states.iter().filter(|it| *it == "sending").count();
    assert_eq!(sending, 8 + 16, "the rest of one run, and the next");
    drain.cycle(&up).unwrap();
    assert_eq!(deliver(&mut drain, 24), numbers(9..=32));
    assert!(drain.begin().is_none(), "never more than one run ahead");
    while !drain.is_empty() {
        drain.step(&up).unwrap();
    }
    assert_eq!(desk.states(), vec!["sent"; 60]);
}

#[test]
fn what_was_claimed_behind_a_message_that_fails_is_given_back_untried() {
    let desk = Desk::new();
    desk.lane("customer", 40);
    let mut drain = desk.drain();
    drain.cycle(&up).unwrap();
    deliver(&mut drain, 12);
    drain.cycle(&up).unwrap();
    assert_eq!(desk.states()[31], "sending", "claimed behind the first run");
    let call = drain.begin().unwrap();
    assert_eq!(call.delivery.payload, b"13");
    drain.end(call, Ok(Outcome::Retry(status(500))));
    assert!(drain.begin().is_none(), "nothing overtakes it");
    drain.until_idle(&up).unwrap();
    let entry = desk.get(32);
    assert_eq!((entry.status.as_str(), entry.attempts), ("waiting", 0));
    assert_eq!(desk.outbox.attempts(32).unwrap(), []);
    let (arrived, _) = arrivals(&desk, &mut [drain]);
    assert_eq!(arrived, numbers(13..=40));
}

#[test]
fn who_wants_one_message_at_a_time_has_none_claimed_ahead() {
    let desk = Desk::new();
    desk.lane("customer", 3);
    let policy = sqlite_outbox::Policy::default().run_length(1);
    let settings = sqlite_outbox::Settings::default().policy("sales", policy);
    let mut drain = desk.drain_with(settings);
    drain.cycle(&up).unwrap();
    let call = drain.begin().unwrap();
    drain.cycle(&up).unwrap();
    assert_eq!(desk.states(), ["sending", "waiting", "waiting"]);
    drain.end(call, Ok(Outcome::delivered()));
    drain.until_idle(&up).unwrap();
    assert_eq!(desk.states(), ["sent"; 3]);
}

#[test]
fn a_call_that_hangs_does_not_hold_what_was_claimed_behind_it() {
    let desk = Desk::new();
    desk.lane("customer", 40);
    let mut hung = desk.drain();
    hung.cycle(&up).unwrap();
    deliver(&mut hung, 12);
    hung.cycle(&up).unwrap();
    assert_eq!(desk.states()[31], "sending", "claimed behind the first run");
    let call = hung.begin().unwrap();
    let end = desk.clock.now() + HOUR;
    let overrun = |event: &Event| matches!(event, Event::Overrun { .. });
    while !hung.cycle(&up).unwrap().events.iter().any(overrun) {
        desk.pass(1_000);
        assert!(desk.clock.now() < end, "a call may not take for ever");
    }
    hung.cycle(&up).unwrap();
    let behind = &desk.states()[16..];
    assert_eq!(behind, ["waiting"; 24], "given back at once");
    while desk.clock.now() < end {
        hung.cycle(&up).unwrap();
        desk.pass(1_000);
    }
    let (arrived, _) = arrivals(&desk, &mut [desk.drain()]);
    assert_eq!(
        arrived,
        numbers(13..=40),
        "by another process, while the call still hangs"
    );
    hung.end(call, Ok(Outcome::delivered()));
    hung.until_idle(&up).unwrap();
    assert_eq!(desk.states(), vec!["sent"; 40]);
}

/// Fails the second message once the next run of the lane is claimed, while that transaction is not
/// committed yet: the run has no place behind the first when that one ends.
#[derive(Default)]
struct Window {
    runs: AtomicUsize,
    failed: AtomicBool,
    arrived: Mutex<Vec<i64>>,
}

impl Dispatcher for Window {
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        self.arrived.lock().unwrap().push(delivery.id);
        if delivery.id != 2 || self.failed.load(Ordering::SeqCst) {
            return Ok(Outcome::delivered());
        }
        for _ in 0..1_000 {
            if self.runs.load(Ordering::SeqCst) > 1 {
                break;
            }
            nap(5);
        }
        self.failed.store(true, Ordering::SeqCst);
        Ok(Outcome::retry("not now"))
    }

    /// Asked for each run, in the transaction that claims it.
    fn time_limit(&self, _: &str) -> Duration {
        if self.runs.fetch_add(1, Ordering::SeqCst) == 1 {
            while !self.failed.load(Ordering::SeqCst) {
                nap(5);
            }
            // The worker has returned from the call by then, and its run is over.
            nap(100);
        }
        Duration::from_secs(120)
    }
}

#[test]
fn a_run_that_was_claimed_behind_one_that_fails_meanwhile_goes_back() {
    let till = Till::new();
    let outbox = till.open();
    for number in 0..40 {
        let message = Message::text("sales", number.to_string()).ordering_key("one");
        put(&outbox, &message).unwrap();
    }
    let window = Window::default();
    let report = outbox.drain(&window).unwrap();
    assert!(
        window.runs.load(Ordering::SeqCst) >= 2,
        "none was claimed behind"
    );
    assert_eq!((report.sent, report.retried, report.unsent), (1, 1, 39));
    assert_eq!(*window.arrived.lock().unwrap(), [1, 2]);
    outbox.draining(&window).now().run().unwrap();
    let arrived = window.arrived.into_inner().unwrap();
    assert!(arrived[2..].iter().copied().eq(2..=40), "{arrived:?}");
}

/// What stood behind was claimed in the transaction that made it so, if its worker had not returned yet: it was
/// given back unsent, but could not be edited any more.
#[test]
fn behind_a_dead_letter_that_ends_its_run_nothing_is_claimed() {
    let desk = Desk::new();
    let sale = |text: &str| Message::text("sales", text).ordering_key("customer");
    let first = desk.put(sale("1"));
    let receiver = Script::default();
    let mut drain = desk.drain();
    drain.cycle(&receiver).unwrap();
    let call = drain.begin().unwrap();
    let second = desk.put(sale("2"));
    drain.settle(
        call,
        Ok(Outcome::Rejected(Failure::new("http", "no such item"))),
    );
    assert_eq!(drain.cycle(&receiver).unwrap().dispatched, 0);
    let dead = desk.outbox.get(first).unwrap().unwrap();
    assert_eq!(dead.status, Status::Dead);
    let behind = desk.outbox.get(second).unwrap().unwrap();
    assert_eq!((behind.status, behind.claims), (Status::Waiting, 0));

    assert_eq!(drain.finish(), 1, "its worker returns");
    desk.anna().retry(first).unwrap();
    drain.until_idle(&receiver).unwrap();
    let seen = receiver.seen().into_iter().map(|it| it.payload);
    assert_eq!(seen.collect::<Vec<_>>(), [b"1", b"2"]);
}

/// Who was taken out and comes back stands before what was enqueued after it, though the lane has
/// gone on.
#[test]
fn one_who_comes_back_while_its_lane_is_sent_goes_before_those_behind() {
    let desk = Desk::new();
    let sale = |text: &str| Message::text("sales", text).ordering_key("customer");
    let first = desk.put(sale("1"));
    desk.anna().cancel(first).unwrap();
    desk.put(sale("2"));
    let receiver = Script::default();
    let mut drain = desk.drain();
    drain.cycle(&receiver).unwrap();
    let call = drain.begin().unwrap();
    desk.anna().retry(first).unwrap();
    desk.put(sale("3"));
    desk.put(Message::text("sales", "beside"));
    assert_eq!(drain.cycle(&receiver).unwrap().dispatched, 1);
    drain.end(call, Ok(Outcome::delivered()));
    drain.until_idle(&receiver).unwrap();
    let seen = receiver.seen().into_iter();
    let texts = seen
        .filter(|it| it.ordering_key.is_some())
        .map(|it| it.payload);
    assert_eq!(texts.collect::<Vec<_>>(), [b"1", b"3"]);
}

/// A transport that settles one by one and does something more before it returns.
struct Tidies(Mutex<Vec<i64>>);

impl Dispatcher for Tidies {
    fn dispatch(&self, _: &Delivery) -> anyhow::Result<Outcome> {
        unreachable!("it takes runs")
    }

    fn dispatch_run(&self, run: &mut Run<'_>) {
        while let Some(delivery) = run.next() {
            let id = delivery.id;
            nap(1);
            self.0.lock().unwrap().push(id);
            run.settle(Ok(Outcome::delivered()));
        }
        nap(20);
    }
}

/// Its last answer was recorded, the next of the lane claimed anew, and a run behind the one that was
/// over all the same: both went out at once.
#[test]
fn a_lane_goes_on_once_where_a_run_is_recorded_before_its_worker_returns() {
    let till = Till::new();
    let outbox = till.open();
    for _ in 0..100 {
        put(&outbox, &Message::text("sales", "x").ordering_key("k")).unwrap();
    }
    let receiver = Tidies(Mutex::default());
    let settings = Settings::new().default_policy(Policy::default().run_length(2));
    let drain = outbox.draining(&receiver).settings(settings);
    assert_eq!(drain.run().unwrap().sent, 100);
    let arrived = receiver.0.into_inner().unwrap();
    assert!(arrived.is_sorted() && arrived.len() == 100, "{arrived:?}");
}

/// A run takes the followers of its head along, but not one that its receiver has put off.
#[test]
fn a_follower_keeps_its_own_moment_when_a_person_brings_one_before_it_back() {
    let desk = Desk::new();
    let ids = desk.lane("customer", 2);
    desk.anna().cancel(ids[0]).unwrap();
    desk.put(Message::text("sales", "something"));
    let policy = Policy::default().retry_after(Hold::Message);
    let mut drain = desk.drain_with(Settings::default().default_policy(policy));
    let later = |it: &Delivery| {
        Ok(match it.payload == b"2" {
            true => Outcome::Retry(status(429).after(Duration::from_secs(3_600))),
            false => Outcome::delivered(),
        })
    };
    desk.live(&mut drain, 10 * SECOND, &later);
    assert_eq!(desk.states(), ["cancelled", "pending", "sent"]);
    desk.anna().retry(ids[0]).unwrap();
    desk.live(&mut drain, MINUTE, &up);
    assert_eq!(desk.states(), ["sent", "pending", "sent"]);
    desk.live(&mut drain, HOUR, &up);
    assert_eq!(desk.states(), ["sent"; 3]);
}
