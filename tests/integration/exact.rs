//! What is written is what was meant, to the last column and millisecond: where a bound or a sum
//! would look right with a wrong value as well.

use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{
    ChannelState, Delivery, Event, Failure, Hold, Message, Outbox, Outcome, Policy, Receipt,
    Settings, Status,
};

use crate::costs::{count, note_statements, ran};
use crate::fixture::{Till, one, put};

const NOW: i64 = 1_800_000_000_000;
const LEASE: i64 = 30_000;

fn up(_: &Delivery) -> anyhow::Result<Outcome> {
    Ok(Outcome::delivered())
}

/// Two hundred are delivered, so that as many as there is room for may go at once.
pub(crate) fn warm(outbox: &Outbox, drain: &mut Inline) {
    let messages: Vec<_> = (0..200).map(|_| Message::text("sales", "x")).collect();
    let answers = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
    assert!(answers.unwrap().iter().all(Result::is_ok));
    drain.until_idle(&up).unwrap();
    assert_eq!(outbox.unsent().unwrap(), 0);
}

#[test]
fn each_of_many_messages_keeps_its_own_receipt() {
    for size in [1_usize, 3, 9, 70] {
        let till = Till::new();
        let options = Outbox::options()
            .clock(ManualClock::at(NOW).shared())
            .on_connect(|conn: &Connection| {
                note_statements(conn);
                Ok(())
            });
        let outbox = options.open(&till.path).unwrap();
        let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
        warm(&outbox, &mut drain);
        for number in 0..size {
            let message = Message::text("sales", "x").dedupe_key(format!("S-{number}"));
            put(&outbox, &message).unwrap();
        }
        // Each has its own number of claims.
        let claims = "UPDATE outbox SET claims = id % 3 WHERE status = 'pending'";
        till.sql().execute(claims, []).unwrap();
        ran();
        let receipts = |delivery: &Delivery| {
            let key = &delivery.dedupe_key;
            Ok(match delivery.id % 4 {
                0 => Outcome::delivered(),
                _ => Outcome::Delivered(
                    Receipt::with_id(format!("INV-{key}")).answer(format!("thanks for {key}")),
                ),
            })
        };
        drain.until_idle(&receipts).unwrap();
        for number in 0..size {
            let key = format!("S-{number}");
            let row = outbox.get_by_key("sales", &key).unwrap().unwrap();
            let told = row.id % 4 != 0;
            assert_eq!(row.status, Status::Sent);
            assert_eq!(row.provider_id, told.then(|| format!("INV-{key}")));
            assert_eq!(row.answer, told.then(|| format!("thanks for {key}")));
        }
        let written = |sql: &str| sql.starts_with("UPDATE outbox NOT INDEXED SET status = 'sent'");
        let ran = ran();
        assert_eq!(
            count(&ran, written),
            size.div_ceil(64),
            "together: {ran:#?}"
        );
    }
}

/// A message at a receiver, again and again.
struct Tries {
    clock: ManualClock,
    outbox: Outbox,
    drain: Inline,
    till: Till,
    seen: Vec<Delivery>,
}

impl Tries {
    fn of(message: &Message) -> Self {
        let till = Till::new();
        let (clock, outbox) = till.manual(NOW);
        put(&outbox, message).unwrap();
        let drain = Inline::new(&outbox, Settings::default()).unwrap();
        Self {
            clock,
            outbox,
            drain,
            till,
            seen: Vec::new(),
        }
    }

    fn restart(&mut self) {
        self.drain = Inline::new(&self.outbox, Settings::default()).unwrap();
    }

    /// Waits until it is claimed.
    fn claimed(&mut self) {
        for _ in 0..10 {
            if self.drain.cycle(&up).unwrap().dispatched > 0 {
                return;
            }
            self.clock.advance(Duration::from_secs(61));
        }
        panic!("never due: {:?}", self.outbox.why(1));
    }

    fn attempt(&mut self, outcome: Outcome) {
        self.claimed();
        let call = self.drain.begin().unwrap();
        self.seen.push(call.delivery.clone());
        self.drain.end(call, Ok(outcome));
        self.drain.cycle(&up).unwrap();
    }

    /// What was put in, as it is stored now.
    fn content(&self) -> String {
        let sql = "SELECT json_array(message_id, channel, dedupe_key, event_type, recipient,
                          ordering_key, principal, content_type, headers, hex(payload), created_at,
                          available_at, expires_at) FROM outbox";
        one(&self.till.sql(), sql)
    }
}

#[test]
fn a_message_is_the_same_in_every_field_however_often_it_is_tried() {
    let message = Message::bytes("sales", [0, 159, 146, 150])
        .dedupe_key("S-1")
        .event_type("sale.completed")
        .recipient("+49 30 1234")
        .principal("branch 7")
        .content_type("application/octet-stream")
        .header("x-till", "7")
        .header("x-shift", "late")
        .available_at(NOW)
        .ttl(Duration::from_secs(30 * 24 * 3600));
    for message in [message.clone(), message.ordering_key("customer 7")] {
        let mut tries = Tries::of(&message);
        let content = tries.content();
        tries.attempt(Outcome::unreachable("no network"));
        // The delivery of another message pays for a charge.
        put(&tries.outbox, &Message::text("sales", "other")).unwrap();
        tries.clock.advance(Duration::from_secs(61));
        let others = |it: &Delivery| match it.id {
            1 => Ok(Outcome::unreachable("no network")),
            _ => Ok(Outcome::delivered()),
        };
        tries.drain.until_idle(&others).unwrap();
        till_gone(&tries.till);
        tries.attempt(Outcome::retry("not now"));
        assert_eq!(tries.outbox.get(1).unwrap().unwrap().attempts, 1, "charged");
        assert_eq!(tries.content(), content, "after failures");
        // Given back unsent.
        tries.claimed();
        tries.drain.stop();
        tries.drain.cycle(&up).unwrap();
        assert!(tries.drain.is_empty());
        assert_eq!(tries.content(), content, "after a stop");
        tries.restart();
        // Taken from a process that is gone.
        tries.claimed();
        tries.restart();
        tries.attempt(Outcome::unreachable("no network"));
        let attempts = tries.outbox.attempts(1).unwrap();
        assert!(
            attempts.iter().any(|it| it.outcome == "lost"),
            "{attempts:?}"
        );
        assert_eq!(tries.content(), content, "after a crash");
        // Renewed.
        tries.claimed();
        let call = tries.drain.begin().unwrap();
        tries.clock.advance(Duration::from_secs(20));
        tries.drain.cycle(&up).unwrap();
        assert_eq!(tries.content(), content, "after a renewal");
        tries.seen.push(call.delivery.clone());
        tries
            .drain
            .end(call, Ok(Outcome::rejected("no such customer")));
        tries.drain.cycle(&up).unwrap();
        assert_eq!(tries.outbox.get(1).unwrap().unwrap().status, Status::Dead);
        tries.outbox.operator("anna").retry(1).unwrap();
        assert_eq!(tries.content(), content, "after a retry by hand");
        tries.attempt(Outcome::delivered());
        assert_eq!(tries.outbox.get(1).unwrap().unwrap().status, Status::Sent);
        assert_eq!(tries.content(), content);
        let numbers: Vec<_> = tries.seen.iter().map(|it| it.attempt).collect();
        assert!(numbers.is_sorted() && numbers[0] == 1, "{numbers:?}");
        let same = |it: &Delivery| {
            let mut it = it.clone();
            (it.attempt, it.charged) = (0, 0);
            format!("{it:?}")
        };
        for delivery in &tries.seen {
            assert_eq!(same(delivery), same(&tries.seen[0]));
        }
        assert_eq!(tries.seen.len(), 5);
    }
}

/// The other message has served.
fn till_gone(till: &Till) {
    let removed = till.sql().execute("DELETE FROM outbox WHERE id > 1", []);
    assert_eq!(removed.unwrap(), 1);
}

/// On both clocks: what other processes see, and what its own worker goes by.
#[test]
fn a_lease_ends_exactly_when_it_was_last_renewed_for() {
    for (last, sent) in [(LEASE - 1, true), (LEASE, false)] {
        let till = Till::new();
        let (clock, outbox) = till.manual(NOW);
        for text in ["one", "two"] {
            put(
                &outbox,
                &Message::text("sales", text).ordering_key("customer"),
            )
            .unwrap();
        }
        let leases = |wanted: i64| {
            let sql = "SELECT min(next_attempt_at) || ' ' || max(next_attempt_at) FROM outbox
                        WHERE status = 'sending'";
            assert_eq!(one(&till.sql(), sql), format!("{wanted} {wanted}"));
        };
        let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
        drain.cycle(&up).unwrap();
        leases(NOW + LEASE);
        let call = drain.begin().unwrap();
        for _ in 0..3 {
            clock.advance(Duration::from_secs(16));
            drain.cycle(&up).unwrap();
            leases(clock.now() + LEASE);
        }
        clock.advance(Duration::from_millis(last.unsigned_abs()));
        drain.end(call, Ok(Outcome::delivered()));
        assert_eq!(drain.begin().is_some(), sent, "{last} ms after the renewal");
    }
}

#[test]
fn a_receiver_that_asks_for_peace_gets_exactly_that() {
    let day = 24 * 3_600_000_u64;
    for (asked, held) in [(7_000, 7_000), (120_000, 120_000), (10 * day, day)] {
        let till = Till::new();
        let (_clock, outbox) = till.manual(NOW);
        put(&outbox, &Message::text("sales", "one")).unwrap();
        put(&outbox, &Message::text("stock", "two")).unwrap();
        let busy = |delivery: &Delivery| match delivery.channel.as_str() {
            "sales" => Ok(Outcome::Retry(
                Failure::new("http_429", "too many")
                    .status(429)
                    .after(Duration::from_millis(asked)),
            )),
            _ => Ok(Outcome::delivered()),
        };
        let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
        drain.until_idle(&busy).unwrap();
        let stats = outbox.stats().unwrap();
        let states = stats
            .channels
            .iter()
            .map(|it| (&*it.channel, it.state, it.until));
        let states: Vec<_> = states.collect();
        let wanted = [
            ("sales", ChannelState::Holding, Some(NOW + held as i64)),
            ("stock", ChannelState::Ok, None),
        ];
        assert_eq!(states, wanted);
    }
    // Of this recipient alone: its message waits, and the channel goes on.
    let till = Till::new();
    let (_clock, outbox) = till.manual(NOW);
    let policy = Policy::default().retry_after(Hold::Message);
    let settings = Settings::default().default_policy(policy);
    let mut drain = Inline::new(&outbox, settings).unwrap();
    warm(&outbox, &mut drain);
    let id = put(&outbox, &Message::text("sales", "one")).unwrap().id();
    let asks = |_: &Delivery| {
        let failure = Failure::new("http_429", "too many").after(Duration::from_secs(3_600));
        Ok(Outcome::Retry(failure))
    };
    drain.until_idle(&asks).unwrap();
    let due = format!("SELECT next_attempt_at FROM outbox WHERE id = {id}");
    assert_eq!(one(&till.sql(), &due), (NOW + 3_600_000).to_string());
    assert_eq!(outbox.stats().unwrap().channels[0].state, ChannelState::Ok);
}

#[test]
fn what_is_claimed_is_not_sent_once_its_channel_is_in_trouble() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    for key in ["a", "a", "a", "b"] {
        put(&outbox, &Message::text("sales", "x").ordering_key(key)).unwrap();
    }
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    assert_eq!(drain.cycle(&up).unwrap().dispatched, 4);
    let (first, other) = (drain.begin().unwrap(), drain.begin().unwrap());
    assert_eq!((first.delivery.id, other.delivery.id), (1, 4));
    drain.end(other, Ok(Outcome::unreachable("no network")));
    // It waits a little for others to come back.
    let mut events = drain.cycle(&up).unwrap().events;
    clock.advance(Duration::from_millis(10));
    events.extend(drain.cycle(&up).unwrap().events);
    let offline =
        |it: &Event| matches!(it, Event::Channel { state, .. } if *state == ChannelState::Offline);
    assert!(events.iter().any(offline), "{events:?}");
    // What is on the wire may arrive; those behind it wait.
    drain.end(first, Ok(Outcome::delivered()));
    let next = drain.begin().map(|it| it.delivery.id);
    assert_eq!(next, None);
}

/// It does so in no tight loop, and power cuts are not its fault.
#[test]
fn a_message_that_ends_its_process_waits_after_ten_losses() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    put(&outbox, &Message::text("sales", "deadly")).unwrap();
    let sql = "SELECT status || ' ' || next_attempt_at FROM outbox";
    for loss in 1..=12 {
        // Claimed, on the wire, and the process is gone.
        let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
        assert_eq!(
            drain.cycle(&up).unwrap().dispatched,
            1,
            "before loss {loss}"
        );
        drain.begin().unwrap();
        drop(drain);
        clock.advance(Duration::from_secs(31));
        let mut next = Inline::new(&outbox, Settings::default()).unwrap();
        next.cycle(&up).unwrap();
        clock.advance(Duration::from_millis(2_001));
        // Taken back, and claimed again if it may.
        next.cycle(&up).unwrap();
        next.cycle(&up).unwrap();
        let status = one(&till.sql(), sql);
        if loss <= 10 {
            assert!(status.starts_with("sending"), "after loss {loss}: {status}");
            next.stop();
            next.cycle(&up).unwrap();
        } else {
            let due = status
                .strip_prefix("pending ")
                .unwrap_or_else(|| panic!("{status}"));
            let wait = due.parse::<i64>().unwrap() - clock.now();
            assert!(
                (30_000..=60_000).contains(&wait),
                "{wait} ms after loss {loss}"
            );
            clock.advance(Duration::from_millis(wait.unsigned_abs()));
        }
    }
    assert_eq!(
        outbox.get(1).unwrap().unwrap().attempts,
        0,
        "nobody is charged"
    );
}

/// A till was off for months, or its clock has been set wrong: nobody knows yet.
#[test]
fn nothing_expires_by_a_clock_that_has_not_proved_itself() {
    let till = Till::new();
    let (_, outbox) = till.manual(NOW);
    put(
        &outbox,
        &Message::text("sales", "one").ttl(Duration::from_secs(3_600)),
    )
    .unwrap();
    drop(outbox);
    let (clock, outbox) = till.manual(NOW + 40 * 24 * 3_600_000);
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    let status = || outbox.get(1).unwrap().unwrap().status;
    for _ in 0..59 {
        drain.until_idle(&up).unwrap();
        assert_eq!(status(), Status::Pending);
        clock.advance(Duration::from_secs(1));
    }
    clock.advance(Duration::from_secs(2));
    drain.until_idle(&up).unwrap();
    clock.advance(Duration::from_secs(1));
    drain.until_idle(&up).unwrap();
    assert_eq!(status(), Status::Expired);
    // The clock jumps while it is watched.
    put(
        &outbox,
        &Message::text("sales", "two")
            .ttl(Duration::from_secs(3_600))
            .delay(Duration::from_secs(60)),
    )
    .unwrap();
    clock.jump(7_200_000);
    drain.until_idle(&up).unwrap();
    assert_eq!(outbox.get(2).unwrap().unwrap().status, Status::Pending);
    for _ in 0..3 {
        clock.advance(Duration::from_secs(31));
        drain.until_idle(&up).unwrap();
    }
    assert_eq!(outbox.get(2).unwrap().unwrap().status, Status::Expired);
}

/// Until they are recorded a kill repeats them: so they wait for others a few milliseconds, and not at all
/// where most have come back.
#[test]
fn an_answer_is_recorded_while_other_calls_go_on() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    warm(&outbox, &mut drain);
    for _ in 0..8 {
        put(&outbox, &Message::text("sales", "x")).unwrap();
    }
    while drain.cycle(&up).unwrap().dispatched == 0 {
        clock.advance(Duration::from_millis(10));
    }
    let mut calls: Vec<_> = std::iter::from_fn(|| drain.begin()).collect();
    assert_eq!(calls.len(), 8);
    let under_way = || {
        let sending = "SELECT count(*) FROM outbox WHERE status = 'sending'";
        one(&till.sql(), sending).parse::<usize>().unwrap()
    };
    drain.end(calls.pop().unwrap(), Ok(Outcome::delivered()));
    drain.cycle(&up).unwrap();
    clock.advance(Duration::from_millis(5));
    drain.cycle(&up).unwrap();
    assert_eq!(under_way(), 7, "one that came back alone");
    for call in calls.split_off(3) {
        drain.end(call, Ok(Outcome::delivered()));
    }
    drain.cycle(&up).unwrap();
    assert_eq!(under_way(), 3, "most of them");
}

/// It stands among the retries as before, so that it takes no turn of a message that was never tried.
#[test]
fn what_is_given_back_is_due_at_once_as_what_it_was() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    warm(&outbox, &mut drain);
    put(&outbox, &Message::text("sales", "tried")).unwrap();
    drain
        .until_idle(&|_: &Delivery| Ok(Outcome::retry("later")))
        .unwrap();
    clock.advance(Duration::from_secs(3_600));
    put(&outbox, &Message::text("sales", "new")).unwrap();
    while drain.cycle(&up).unwrap().dispatched == 0 {
        clock.advance(Duration::from_millis(10));
    }
    drain.stop();
    while !drain.is_empty() {
        drain.cycle(&up).unwrap();
        clock.advance(Duration::from_millis(10));
    }
    let due = |text: &str| {
        let sql = "SELECT next_attempt_at FROM outbox WHERE status = 'pending' AND payload = ";
        let due = one(&till.sql(), &format!("{sql}'{text}'"));
        due.parse::<i64>().unwrap()
    };
    assert!(
        (1..=clock.now()).contains(&due("tried")),
        "{}",
        due("tried")
    );
    assert_eq!(due("new"), 0);
}
