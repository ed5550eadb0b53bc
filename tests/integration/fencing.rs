//! Two drains, one claim: what a late answer may still do. All on one manual clock.

use std::sync::Mutex;
use std::time::Duration;

use sqlite_outbox::testing::{Call, Inline, ManualClock, Script};
use sqlite_outbox::{Delivery, Event, Message, Outbox, Outcome, Policy, Receipt, Settings, Status};

use crate::fixture::{Till, put};

struct Two {
    till: Till,
    clock: ManualClock,
    outbox: Outbox,
    a: Inline,
    b: Mutex<Inline>,
}

impl Two {
    fn new() -> Self {
        let till = Till::new();
        let (clock, outbox) = till.manual(1_800_000_000_000);
        let a = Inline::new(&outbox, Settings::default()).unwrap();
        let b = Mutex::new(Inline::new(&outbox, Settings::default()).unwrap());
        Self {
            till,
            clock,
            outbox,
            a,
            b,
        }
    }
}

/// Lets A lose its claim: past the lease, with B looking twice.
fn lose(clock: &ManualClock, b: &Mutex<Inline>, receiver: &Script) {
    clock.advance(Duration::from_secs(40));
    let mut b = b.lock().unwrap();
    for _ in 0..4 {
        b.step(receiver).unwrap();
        clock.advance(Duration::from_secs(1));
    }
    b.until_idle(receiver).unwrap();
}

#[test]
fn a_late_failure_changes_nothing_in_a_row_that_another_delivered() {
    let mut two = Two::new();
    put(&two.outbox, &Message::text("sales", "one")).unwrap();
    let others = Script::new([Outcome::Delivered(Receipt::with_id("INV-B"))]);
    let (clock, b) = (&two.clock, &two.b);
    let late = |_: &Delivery| {
        lose(clock, b, &others);
        Ok(Outcome::rejected("400, but too late"))
    };
    let mut events = two.a.step(&late).unwrap().events;
    events.extend(two.a.step(&late).unwrap().events);
    assert!(events.iter().any(|it| matches!(
        it,
        Event::Late {
            delivered: false,
            ..
        }
    )));
    let row = two.outbox.get(1).unwrap().unwrap();
    assert_eq!((row.status, row.attempts), (Status::Sent, 0));
    assert_eq!(row.provider_id.as_deref(), Some("INV-B"));
    assert_eq!(others.seen().len(), 1);
    assert_eq!(others.seen()[0].attempt, 2, "the fencing token rose");
}

#[test]
fn a_late_success_is_true_and_the_first_provider_id_stays() {
    let mut two = Two::new();
    put(&two.outbox, &Message::text("sales", "one")).unwrap();
    let others = Script::new([Outcome::retry("busy")]);
    let (clock, b) = (&two.clock, &two.b);
    let late = |_: &Delivery| {
        lose(clock, b, &others);
        Ok(Outcome::Delivered(Receipt::with_id("INV-A")))
    };
    two.a.step(&late).unwrap();
    two.a.step(&late).unwrap();
    let row = two.outbox.get(1).unwrap().unwrap();
    assert_eq!(row.status, Status::Sent);
    assert_eq!(row.provider_id.as_deref(), Some("INV-A"));
}

/// The one who took the claim over was told no, and before that the receiver had taken it.
#[test]
fn a_late_success_is_true_of_a_dead_letter_too() {
    let mut two = Two::new();
    put(&two.outbox, &Message::text("sales", "one")).unwrap();
    let others = Script::new([Outcome::rejected("422")]);
    let (clock, b, outbox) = (&two.clock, &two.b, &two.outbox);
    let late = |_: &Delivery| {
        lose(clock, b, &others);
        assert_eq!(outbox.get(1).unwrap().unwrap().status, Status::Dead);
        Ok(Outcome::Delivered(Receipt::with_id("INV-A")))
    };
    two.a.step(&late).unwrap();
    two.a.step(&late).unwrap();
    let row = two.outbox.get(1).unwrap().unwrap();
    assert_eq!((row.status, row.last_error), (Status::Sent, None));
    assert_eq!(row.provider_id.as_deref(), Some("INV-A"));
}

/// Freeing the lane at once would let the next message overtake the copy on the wire.
#[test]
fn a_late_success_in_a_lane_frees_it_only_with_the_present_holders_report() {
    let mut two = Two::new();
    for text in ["one", "two"] {
        let message = Message::text("sales", text).ordering_key("customer");
        put(&two.outbox, &message).unwrap();
    }
    let (clock, b, outbox) = (&two.clock, &two.b, &two.outbox);
    let policy = Policy::default().run_length(1);
    let single = Settings::default().default_policy(policy);
    two.a = Inline::new(outbox, single.clone()).unwrap();
    *b.lock().unwrap() = Inline::new(outbox, single).unwrap();
    let a = Mutex::new(&mut two.a);
    // B re-claims "one"; while its copy is on the wire, A's answer is recorded.
    let arrived = Mutex::new(Vec::new());
    let copy = |delivery: &Delivery| {
        arrived
            .lock()
            .unwrap()
            .push(String::from_utf8(delivery.payload.clone())?);
        let mut a = a.lock().unwrap();
        a.step(&|_: &Delivery| -> anyhow::Result<Outcome> { panic!("the lane is not free") })?;
        Ok(Outcome::retry("whatever it says"))
    };
    let first = |_: &Delivery| {
        clock.advance(Duration::from_secs(40));
        Ok(Outcome::Delivered(Receipt::with_id("INV-1")))
    };
    a.lock().unwrap().step(&first).unwrap();
    let mut b = b.lock().unwrap();
    for _ in 0..4 {
        if arrived.lock().unwrap().is_empty() {
            b.step(&copy).unwrap();
            clock.advance(Duration::from_secs(1));
        }
    }
    assert_eq!(
        *arrived.lock().unwrap(),
        ["one"],
        "B sent its copy and nothing overtook it"
    );
    b.step(&|_: &Delivery| Ok(Outcome::delivered())).unwrap();
    let row = outbox.get(1).unwrap().unwrap();
    assert_eq!(row.status, Status::Sent, "{row:?}");
    assert_eq!(row.provider_id.as_deref(), Some("INV-1"));
    b.until_idle(&|_: &Delivery| Ok(Outcome::delivered()))
        .unwrap();
    assert_eq!(outbox.get(2).unwrap().unwrap().status, Status::Sent);
}

/// Fifteen of forty living claims were stolen without the rule of the two looks.
#[test]
fn a_claim_whose_holder_renews_between_two_looks_is_not_taken() {
    let mut two = Two::new();
    put(&two.outbox, &Message::text("sales", "one")).unwrap();
    let (clock, b) = (&two.clock, &two.b);
    let nobody = |_: &Delivery| -> anyhow::Result<Outcome> { panic!("stolen") };
    // The application holds the write lock for longer than the lease; then everyone wakes at once.
    let slow = |_: &Delivery| {
        clock.advance(Duration::from_secs(31));
        b.lock().unwrap().step(&nobody)?;
        Ok(Outcome::delivered())
    };
    two.a.step(&slow).unwrap();
    two.a.step(&slow).unwrap();
    clock.advance(Duration::from_secs(3));
    b.lock().unwrap().step(&nobody).unwrap();
    assert_eq!(two.outbox.get(1).unwrap().unwrap().status, Status::Sent);
}

#[test]
fn a_claim_of_a_dead_process_is_taken_after_its_lease_and_two_looks() {
    let mut two = Two::new();
    for i in 0..3 {
        let message = Message::text("sales", i.to_string()).ordering_key("customer");
        put(&two.outbox, &message).unwrap();
    }
    let crashed = std::panic::AssertUnwindSafe(|| {
        let die = |_: &Delivery| -> anyhow::Result<Outcome> { panic!("power cut") };
        let _ = two.a.step(&die);
    });
    assert!(std::panic::catch_unwind(crashed).is_err());
    drop(two.a);
    assert_eq!(two.outbox.stats().unwrap().total.sending, 3);
    let receiver = Script::default();
    let mut b = two.b.lock().unwrap();
    two.clock.advance(Duration::from_secs(29));
    b.step(&receiver).unwrap();
    assert!(receiver.seen().is_empty(), "the lease still holds");
    two.clock.advance(Duration::from_secs(2));
    b.step(&receiver).unwrap();
    assert!(receiver.seen().is_empty(), "seen stale once");
    two.clock.advance(Duration::from_millis(2_001));
    b.until_idle(&receiver).unwrap();
    let texts: Vec<_> = receiver
        .seen()
        .iter()
        .map(|it| it.payload.clone())
        .collect();
    assert_eq!(texts, [b"0", b"1", b"2"]);
    assert_eq!(
        two.outbox.stats().unwrap().total.max_attempts,
        0,
        "a crash charges nobody"
    );
}

#[test]
fn what_came_back_before_a_stop_gave_up_is_recorded_and_not_given_back() {
    let mut two = Two::new();
    let messages = ["arrived", "refused", "hanging"].map(|it| Message::text("sales", it));
    let ids = messages.map(|it| put(&two.outbox, &it).unwrap().id());
    let receiver = Script::default();
    // The first channel's pace is two runs.
    two.a.cycle(&receiver).unwrap();
    let (arrived, refused) = (two.a.begin().unwrap(), two.a.begin().unwrap());
    two.a.end(arrived, Ok(Outcome::delivered()));
    two.a
        .end(refused, Ok(Outcome::rejected("no such customer")));
    two.a.stop();
    two.a.abandon();
    two.a.cycle(&receiver).unwrap();
    assert!(two.a.is_empty());
    let status = |id| two.outbox.get(id).unwrap().unwrap().status;
    assert_eq!(
        ids.map(status),
        [Status::Sent, Status::Dead, Status::Pending]
    );
    let interrupted = ids.map(|id| {
        let attempts = two.outbox.attempts(id).unwrap();
        attempts
            .iter()
            .filter(|it| it.outcome == "interrupted")
            .count()
    });
    assert_eq!(interrupted, [0, 0, 0]);
}

#[test]
fn a_run_that_hung_while_the_clock_went_far_back_goes_no_further() {
    let mut two = Two::new();
    for i in 0..2 {
        let message = Message::text("sales", i.to_string()).ordering_key("customer");
        put(&two.outbox, &message).unwrap();
    }
    let receiver = Script::default();
    two.a.cycle(&receiver).unwrap();
    let first = two.a.begin().unwrap();
    two.clock.jump(-7_200_000);
    let mut b = two.b.lock().unwrap();
    b.step(&receiver).unwrap();
    two.clock.advance(Duration::from_millis(2_001));
    b.until_idle(&receiver).unwrap();
    assert_eq!(receiver.seen().len(), 2, "b took the lane over");
    two.a.end(first, Ok(Outcome::delivered()));
    let more = two.a.begin().map(|it| it.delivery.payload);
    assert_eq!(more, None, "the rest is not a's any more");
}

#[test]
fn behind_a_run_that_another_took_over_nothing_more_is_claimed() {
    nothing_is_claimed_behind_it(|_, _| {});
}

/// In the transaction that wrote it the run passed for one that was still its own.
#[test]
fn nor_where_its_late_answer_comes_in_at_that_moment() {
    nothing_is_claimed_behind_it(|a, call| a.settle(call, Ok(Outcome::delivered())));
    nothing_is_claimed_behind_it(|a, call| a.settle(call, Ok(Outcome::retry("not now"))));
}

fn nothing_is_claimed_behind_it(wakes: fn(&mut Inline, Call)) {
    let mut two = Two::new();
    let sale = |text| Message::text("sales", text).ordering_key("customer");
    put(&two.outbox, &sale("one")).unwrap();
    let receiver = Script::default();
    two.a.cycle(&receiver).unwrap();
    let hanging = two.a.begin().unwrap();
    two.clock.advance(Duration::from_secs(40));
    let mut b = two.b.lock().unwrap();
    b.cycle(&receiver).unwrap();
    two.clock.advance(Duration::from_millis(2_001));
    // Taken back, then claimed.
    b.cycle(&receiver).unwrap();
    b.cycle(&receiver).unwrap();
    let copy = b.begin().expect("b took the lane over");
    let second = put(&two.outbox, &sale("two")).unwrap().id();
    wakes(&mut two.a, hanging);
    assert_eq!(
        two.a.cycle(&receiver).unwrap().dispatched,
        0,
        "the lane is b's"
    );
    let row = two.outbox.get(second).unwrap().unwrap();
    assert_eq!(row.status, Status::Waiting);
    b.end(copy, Ok(Outcome::delivered()));
    b.until_idle(&receiver).unwrap();
    assert_eq!(
        two.outbox.get(second).unwrap().unwrap().status,
        Status::Sent
    );
}

/// A lets a run of a hundred wait, more than B takes back in a transaction.
fn claim_a_hundred(two: &mut Two, receiver: &Script) {
    let policy = Policy::default().run_length(100);
    let many = Settings::default().workers(1).prefetch(100);
    let many = many.lock_share(1.0).default_policy(policy);
    two.a = Inline::new(&two.outbox, many).unwrap();
    // Its first transaction takes fewer.
    put(&two.outbox, &Message::text("sales", "before")).unwrap();
    two.a.until_idle(receiver).unwrap();
    for i in 0..100 {
        let message = Message::text("sales", i.to_string()).ordering_key("customer");
        put(&two.outbox, &message).unwrap();
    }
    assert_eq!(two.a.cycle(receiver).unwrap().dispatched, 100);
}

/// Row by row, a transaction that is full would leave a part of the run with the dead.
#[test]
fn the_run_of_a_dead_process_is_taken_back_whole() {
    let mut two = Two::new();
    let receiver = Script::default();
    claim_a_hundred(&mut two, &receiver);
    drop(two.a);
    let sending = || two.outbox.stats().unwrap().total.sending;
    let mut b = two.b.lock().unwrap();
    two.clock.advance(Duration::from_secs(31));
    b.cycle(&receiver).unwrap();
    assert_eq!(sending(), 100, "seen stale once");
    two.clock.advance(Duration::from_millis(2_001));
    b.cycle(&receiver).unwrap();
    assert_eq!(sending(), 0);
    b.until_idle(&receiver).unwrap();
    let texts = receiver.seen().into_iter().skip(1);
    let texts: Vec<_> = texts
        .map(|it| String::from_utf8(it.payload).unwrap())
        .collect();
    let order: Vec<_> = (0..100).map(|it| it.to_string()).collect();
    assert_eq!(texts, order);
    assert_eq!(two.outbox.stats().unwrap().total.max_attempts, 0);
}

/// A transaction that was full left some of the ripe ones, and with them a reason to look again.
/// Who holds the claim could not renew it: an application that wrote in one long transaction after the
/// other made living processes take from each other.
#[test]
fn while_nobody_could_write_no_claim_gets_older() {
    let mut two = Two::new();
    let receiver = Script::default();
    let id = put(&two.outbox, &Message::text("sales", "one"))
        .unwrap()
        .id();
    assert_eq!(two.a.cycle(&receiver).unwrap().dispatched, 1);
    let mut b = two.b.lock().unwrap();
    two.clock.advance(Duration::from_millis(30_001));
    b.cycle(&receiver).unwrap();
    let app = two.till.sql();
    app.execute_batch("BEGIN IMMEDIATE").unwrap();
    for _ in 0..3 {
        two.clock.advance(Duration::from_secs(2));
        assert!(b.cycle(&receiver).is_err());
    }
    app.execute_batch("COMMIT").unwrap();
    let is_held = || two.outbox.attempts(id).unwrap().is_empty();
    two.clock.advance(Duration::from_millis(600));
    b.cycle(&receiver).unwrap();
    assert!(is_held(), "its holder had no time to renew it");
    for _ in 0..5 {
        two.clock.advance(Duration::from_millis(600));
        b.until_idle(&receiver).unwrap();
    }
    assert!(!is_held(), "now it had");
}

#[test]
fn a_claim_that_was_just_seen_stale_is_watched_although_others_are_ripe() {
    let mut two = Two::new();
    let receiver = Script::default();
    claim_a_hundred(&mut two, &receiver);
    two.clock.advance(Duration::from_secs(1));
    let mut later = Inline::new(&two.outbox, Settings::default()).unwrap();
    let last = put(&two.outbox, &Message::text("sales", "later")).unwrap();
    assert_eq!(later.cycle(&receiver).unwrap().dispatched, 1);
    drop((two.a, later));
    let is_held = || two.outbox.attempts(last.id()).unwrap().is_empty();
    let mut b = two.b.lock().unwrap();
    two.clock.advance(Duration::from_millis(29_500));
    b.cycle(&receiver).unwrap();
    two.clock.advance(Duration::from_millis(2_001));
    b.cycle(&receiver).unwrap();
    let taken_back = two.outbox.stats().unwrap().total.sending == 1;
    assert!(
        taken_back && is_held(),
        "the later one was seen for the first time"
    );
    two.clock.advance(Duration::from_millis(1_900));
    for _ in 0..4 {
        b.cycle(&receiver).unwrap();
        assert!(is_held());
    }
    two.clock.advance(Duration::from_millis(101));
    b.until_idle(&receiver).unwrap();
    assert_eq!(
        two.outbox.get(last.id()).unwrap().unwrap().status,
        Status::Sent
    );
}
