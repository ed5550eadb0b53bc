//! What a person does to stored messages and channels: retry, cancel, edit, pause, resume.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlite_outbox::testing::Script;
use sqlite_outbox::{
    ChannelState, Delivery, Error, Message, OnDead, Outbox, Outcome, Policy, Selection, Settings,
    Status,
};

use crate::desk::{DAY, Desk, HOUR, MINUTE, SECOND, START, down, rejects, status, up};
use crate::fixture::{column, one, put};

/// What a message says for itself, whatever happens to it.
fn identity(desk: &Desk, id: i64) -> (String, String, Vec<u8>, Option<String>) {
    let it = desk.get(id);
    (it.message_id, it.dedupe_key, it.payload, it.ordering_key)
}

fn refused<T: std::fmt::Debug>(result: sqlite_outbox::Result<T>, word: &str) {
    match result {
        Err(Error::Refused(why)) => assert!(why.contains(word), "{why}"),
        other => panic!("{word}: {other:?}"),
    }
}

#[test]
fn a_retried_dead_letter_has_exactly_one_fresh_budget_and_its_history() {
    let desk = Desk::new();
    let poison = desk.put(Message::text("sales", "poison"));
    let policy = Policy::default()
        .max_attempts(3)
        .min_dead_age(Duration::ZERO)
        .backoff(Duration::from_secs(30), Duration::from_secs(30));
    let mut drain = desk.drain_with(Settings::default().default_policy(policy));
    let receiver = |delivery: &Delivery| {
        Ok(match delivery.payload.as_slice() {
            b"poison" => Outcome::Retry(status(500)),
            _ => Outcome::delivered(),
        })
    };
    let mut deaths = Vec::new();
    for _ in 0..2 {
        let before = identity(&desk, poison);
        let mut charges = 0;
        while desk.get(poison).status != Status::Dead {
            let known = desk.get(poison).attempts;
            desk.put(Message::text("sales", "good"));
            drain.until_idle(&receiver).unwrap();
            desk.pass(40 * SECOND);
            charges += usize::from(desk.get(poison).attempts > known);
        }
        deaths.push((charges, desk.get(poison).attempts));
        desk.anna().retry(poison).unwrap();
        let retried = desk.get(poison);
        assert_eq!(identity(&desk, poison), before, "the same message");
        assert_eq!((retried.status, retried.attempts), (Status::Pending, 0));
        assert!(retried.next_attempt_at <= desk.clock.now());
        assert_eq!((retried.settled_at, retried.answer), (None, None));
        assert!(retried.last_error.is_some(), "the evidence stays");
        assert!(desk.outbox.attempts(poison).unwrap().len() >= 3);
    }
    assert_eq!(deaths, [(3, 3), (3, 3)], "a full budget each time");
    drain.until_idle(&up).unwrap();
    assert_eq!(desk.get(poison).status, Status::Sent);
}

#[test]
fn a_retried_dead_letter_dies_again_only_when_its_fresh_budget_is_old_enough() {
    let desk = Desk::new();
    let poison = desk.put(Message::text("sales", "poison"));
    let policy = Policy::default()
        .max_attempts(3)
        .min_dead_age(Duration::from_secs(3600))
        .backoff(Duration::from_secs(30), Duration::from_secs(30));
    let mut drain = desk.drain_with(Settings::default().default_policy(policy));
    let receiver = |delivery: &Delivery| {
        Ok(match delivery.payload.as_slice() {
            b"poison" => Outcome::Retry(status(500)),
            _ => Outcome::delivered(),
        })
    };
    for budget in 1..=2 {
        let mut first = None;
        while desk.get(poison).status != Status::Dead {
            desk.put(Message::text("sales", "good"));
            drain.until_idle(&receiver).unwrap();
            if desk.get(poison).attempts > 0 {
                first.get_or_insert(desk.clock.now());
            }
            desk.pass(5 * MINUTE);
        }
        let settled = desk.get(poison).settled_at.unwrap();
        assert!(settled - first.unwrap() >= HOUR, "budget {budget}");
        desk.anna().retry(poison).unwrap();
    }
}

#[test]
fn the_answer_of_a_delivery_replaces_that_of_the_rejection() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    let mut failure = status(422);
    failure.answer = Some(b"no such article".to_vec());
    let receipt = sqlite_outbox::Receipt::with_id("INV-1").answer("thank you");
    let script = Script::new([Outcome::Rejected(failure), Outcome::Delivered(receipt)]);
    desk.sync(&script);
    assert_eq!(desk.get(id).answer.as_deref(), Some("no such article"));
    desk.anna().retry(id).unwrap();
    desk.sync(&script);
    assert_eq!(desk.get(id).answer.as_deref(), Some("thank you"));
    let seen = script.seen();
    assert_eq!(seen[0].message_id, seen[1].message_id);
    assert_eq!(seen[0].payload, seen[1].payload);
}

#[test]
fn retry_takes_what_is_dead_expired_or_cancelled_and_says_why_not_otherwise() {
    let desk = Desk::new();
    for status in Status::ALL {
        let key = status.as_str();
        let id = desk.put(
            Message::text("sales", "x")
                .ordering_key(key)
                .ttl(Duration::from_secs(3600)),
        );
        desk.put(Message::text("sales", "behind").ordering_key(key));
        if status == Status::Waiting {
            desk.sql(&format!(
                "UPDATE outbox SET status = 'dead' WHERE id = {id}"
            ));
            refused(desk.anna().retry(id + 1), "is waiting");
            continue;
        }
        desk.sql(&format!(
            "UPDATE outbox SET status = '{key}', settled_at = 5, attempts = 7 WHERE id = {id}"
        ));
        match status {
            Status::Dead | Status::Expired | Status::Cancelled => {
                desk.anna().retry(id).unwrap();
                let it = desk.get(id);
                assert_eq!((it.attempts, it.settled_at), (0, None));
                assert_eq!(it.status, Status::Pending, "{key}");
                assert_eq!(desk.get(id + 1).status, Status::Waiting, "{key}");
                assert_eq!(it.expires_at.is_none(), status == Status::Expired);
            }
            Status::Sending => refused(desk.anna().retry(id), "is being sent right now"),
            Status::Sent => refused(desk.anna().retry(id), "was sent already"),
            _ => refused(desk.anna().retry(id), "is pending"),
        }
        desk.lanes_are_in_order();
    }
    let error = desk.anna().retry(4711).unwrap_err();
    assert!(matches!(error, Error::NotFound(which) if which == "4711"));
}

#[test]
fn a_retried_message_does_not_expire_at_once_and_keeps_a_schedule_that_lies_ahead() {
    let desk = Desk::new();
    let late = desk.put(Message::text("sales", "x").expires_at(START + HOUR));
    let later = desk.put(Message::text("sales", "x").available_at(START + DAY));
    desk.sync(&|_: &Delivery| Ok(Outcome::Rejected(status(422))));
    desk.anna().cancel(later).unwrap();
    desk.pass(2 * HOUR);
    desk.anna().retry(late).unwrap();
    desk.anna().retry(later).unwrap();
    assert_eq!(desk.get(late).expires_at, None);
    assert_eq!(desk.get(later).next_attempt_at, START + DAY);
    desk.sync(&up);
    assert_eq!(desk.states(), ["sent", "pending"]);
}

#[test]
fn cancel_takes_what_was_not_sent_and_is_not_being_sent() {
    let desk = Desk::new();
    for status in Status::ALL {
        let key = status.as_str();
        let id = desk.lane(key, 2)[0];
        let target = match status {
            Status::Waiting => id + 1,
            _ => id,
        };
        if status != Status::Waiting {
            desk.sql(&format!(
                "UPDATE outbox SET status = '{key}' WHERE id = {id}"
            ));
        }
        let answer = desk.anna().cancel(target);
        match status {
            Status::Pending | Status::Waiting | Status::Dead => {
                answer.unwrap();
                let it = desk.get(target);
                assert_eq!(it.status, Status::Cancelled);
                assert_eq!(it.settled_at, Some(START));
                let other = if target == id { id + 1 } else { id };
                assert_eq!(desk.get(other).status, Status::Pending, "{key}");
            }
            Status::Sending => refused(answer, "is being sent right now"),
            Status::Sent => refused(answer, "was sent already"),
            Status::Expired => refused(answer, "has expired"),
            _ => refused(answer, "was cancelled"),
        }
        desk.lanes_are_in_order();
    }
    assert!(matches!(desk.anna().cancel(0), Err(Error::NotFound(_))));
}

#[test]
fn an_edited_message_goes_out_in_its_place_under_a_new_name() {
    let desk = Desk::new();
    let mut ids = desk.lane("customer", 3);
    desk.sync(&rejects("2"));
    ids.extend(desk.lane("customer", 1));
    assert_eq!(desk.states(), ["sent", "dead", "waiting", "waiting"]);
    let before = desk.get(ids[1]);
    desk.anna()
        .reason("typing error")
        .edit(ids[1], "two")
        .unwrap();
    let after = desk.get(ids[1]);
    assert_ne!(after.message_id, before.message_id);
    assert_eq!(after.message_id.len(), 32);
    assert_eq!(after.dedupe_key, before.dedupe_key);
    assert_eq!((after.attempts, after.settled_at), (0, None));
    assert!(after.payload_is_text);
    // The last one was never claimed, so it may be changed where it stands.
    desk.anna().edit(ids[3], [0xff, 0x00]).unwrap();
    assert_eq!(desk.states(), ["sent", "pending", "waiting", "waiting"]);
    let script = Script::default();
    desk.sync(&script);
    let payloads: Vec<_> = script.seen().into_iter().map(|it| it.payload).collect();
    assert_eq!(payloads, [b"two".to_vec(), b"3".to_vec(), vec![0xff, 0x00]]);

    let audit = desk.outbox.audit(Some(ids[1]), 10).unwrap();
    assert_eq!(audit.len(), 1);
    assert_eq!(audit[0].action, "edit");
    assert_eq!(audit[0].who, "anna@till-7");
    assert_eq!(audit[0].reason.as_deref(), Some("typing error"));
    assert_eq!(
        audit[0].former_message_id.as_ref(),
        Some(&before.message_id)
    );
    assert_eq!(audit[0].former_payload.as_deref(), Some(&b"2"[..]));
}

#[test]
fn edit_refuses_what_the_receiver_may_have_seen() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    desk.sync(&down);
    assert_eq!(desk.get(id).status, Status::Pending);
    refused(desk.anna().edit(id, "y"), "was attempted already");
    for (state, word) in [
        ("sending", "is being sent right now"),
        ("sent", "was sent already"),
        ("expired", "has expired"),
        ("cancelled", "was cancelled"),
    ] {
        desk.sql(&format!("UPDATE outbox SET status = '{state}'"));
        refused(desk.anna().edit(id, "y"), word);
    }
    assert_eq!(desk.get(id).payload, b"x");
    assert!(desk.outbox.audit(None, 10).unwrap().is_empty());
    assert!(matches!(desk.anna().edit(9, "y"), Err(Error::NotFound(_))));
    let huge = vec![0; sqlite_outbox::DEFAULT_MAX_PAYLOAD + 1];
    let error = desk.anna().edit(id, huge).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
}

#[test]
fn a_late_success_of_the_former_bytes_does_not_settle_the_edited_message() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "old"));
    let former = desk.get(id).message_id;
    let mut asleep = desk.drain();
    // Claims and sends; its report waits for the next step.
    let script = Script::default();
    while asleep.step(&script).unwrap().dispatched == 0 {}
    desk.sql("UPDATE outbox SET status = 'dead', claims = claims + 1");
    desk.anna().edit(id, "new").unwrap();
    asleep.until_idle(&script).unwrap();
    let seen = script.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].message_id, former);
    assert_eq!(seen[1].message_id, desk.get(id).message_id);
    assert_eq!(seen[1].payload, b"new");
}

/// In a lane it would be noted for whoever has it on the wire, and count as the new bytes' own success.
#[test]
fn a_late_success_of_the_former_bytes_is_not_noted_for_the_edited_message_on_the_wire() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "old").ordering_key("customer"));
    let mut asleep = desk.drain();
    while asleep.step(&up).unwrap().dispatched == 0 {}
    desk.sql("UPDATE outbox SET status = 'dead', claims = claims + 1");
    desk.anna().edit(id, "new").unwrap();
    let mut other = desk.drain();
    let call = loop {
        other.cycle(&up).unwrap();
        if let Some(call) = other.begin() {
            break call;
        }
    };
    assert_eq!(call.delivery.payload, b"new");
    asleep.until_idle(&up).unwrap();
    other.end(call, Ok(Outcome::retry("not taken")));
    while desk.get(id).status == Status::Sending {
        other.cycle(&up).unwrap();
        desk.pass(10);
    }
    assert_eq!(desk.states(), ["pending"], "the new bytes were not taken");
}

/// A dead head holds its lane; what a person does with it decides about those behind.
#[test]
fn a_dead_head_holds_its_lane_until_a_person_decides() {
    type Decision = fn(&Desk, i64);
    let decisions: [(&str, Decision); 4] = [
        ("retry", |desk, id| desk.anna().retry(id).unwrap()),
        ("cancel", |desk, id| desk.anna().cancel(id).unwrap()),
        ("edit", |desk, id| {
            desk.anna().edit(id, "mended").unwrap();
        }),
        ("delete", |desk, id| {
            desk.sql(&format!("DELETE FROM outbox WHERE id = {id}"));
        }),
    ];
    for (what, decide) in decisions {
        let desk = Desk::new();
        let ids = desk.lane("customer", 5);
        desk.sync(&rejects("1"));
        let held = ["dead", "waiting", "waiting", "waiting", "waiting"];
        assert_eq!(desk.states(), held);
        // A restart and another process change nothing about it.
        desk.sync(&up);
        assert_eq!(desk.states(), held);
        decide(&desk, ids[0]);
        desk.lanes_are_in_order();
        let script = Script::default();
        desk.sync(&script);
        let seen = script.seen();
        let payloads: Vec<_> = seen
            .iter()
            .map(|it| String::from_utf8_lossy(&it.payload).into_owned())
            .collect();
        let expected: &[&str] = match what {
            "retry" => &["1", "2", "3", "4", "5"],
            "edit" => &["mended", "2", "3", "4", "5"],
            _ => &["2", "3", "4", "5"],
        };
        assert_eq!(payloads, expected, "{what}");
    }
}

/// Those behind a head go out with it, but not past a dead one that stands between.
#[test]
fn a_head_that_is_put_back_takes_nobody_past_a_dead_one() {
    let desk = Desk::new();
    let ids = desk.lane("customer", 3);
    desk.anna().cancel(ids[0]).unwrap();
    desk.sync(&rejects("2"));
    assert_eq!(desk.states(), ["cancelled", "dead", "waiting"]);
    desk.anna().retry(ids[0]).unwrap();
    desk.sync(&up);
    assert_eq!(desk.states(), ["sent", "dead", "waiting"]);
    desk.anna().on_dead("sales", OnDead::Skip).unwrap();
    desk.sync(&up);
    assert_eq!(desk.states(), ["sent", "dead", "sent"]);
}

/// Whatever is done to whichever member, by the API or by hand, the lane stays in order.
#[test]
fn any_change_to_any_member_keeps_the_lane_in_order() {
    let mut seed = 7_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    let desk = Desk::new();
    for key in ["a", "b"] {
        desk.lane(key, 8);
    }
    for round in 0..400 {
        let ids: Vec<i64> = column(&desk.till.sql(), "SELECT id FROM outbox")
            .iter()
            .map(|it| it.parse().unwrap())
            .collect();
        let id = ids[random(ids.len())];
        let anna = desk.anna();
        let set = |status: &str| {
            desk.sql(&format!(
                "UPDATE outbox SET status = '{status}' WHERE id = {id}"
            ));
        };
        match random(9) {
            0 => drop(anna.retry(id)),
            1 => drop(anna.cancel(id)),
            2 => drop(anna.edit(id, "other")),
            3 => desk.sql(&format!("DELETE FROM outbox WHERE id = {id}")),
            4 => set("dead"),
            5 => set("cancelled"),
            6 => {
                let choice = [OnDead::Hold, OnDead::Skip][random(2)];
                anna.on_dead("sales", choice).unwrap();
            }
            7 => {
                desk.sync(&|_: &Delivery| Ok(Outcome::retry("later")));
            }
            _ => {
                let key = ["a", "b"][random(2)];
                desk.lane(key, 2);
            }
        }
        desk.lanes_are_in_order();
        assert!(!desk.states().is_empty(), "round {round}");
    }
}

#[test]
fn skipping_the_dead_lets_their_lanes_go_and_holding_stops_them_again() {
    let desk = Desk::new();
    for lane in 0..600 {
        desk.lane(&lane.to_string(), 3);
    }
    desk.sql("UPDATE outbox SET status = 'dead' WHERE payload = '1'");
    desk.put(Message::text("other", "1").ordering_key("k"));
    desk.put(Message::text("other", "2").ordering_key("k"));
    desk.sql("UPDATE outbox SET status = 'dead' WHERE channel = 'other' AND payload = '1'");
    let pending = || {
        let sql = "SELECT count(*) FROM outbox WHERE channel = 'sales' AND status = 'pending'";
        one(&desk.till.sql(), sql)
    };
    assert_eq!(pending(), "0");
    desk.anna().on_dead("sales", OnDead::Skip).unwrap();
    assert_eq!(pending(), "600");
    desk.lanes_are_in_order();
    desk.anna().on_dead("sales", OnDead::Hold).unwrap();
    assert_eq!(pending(), "0");
    desk.lanes_are_in_order();
    // Interrupted right after it was stored: asking again finishes it.
    desk.sql("UPDATE outbox_channel SET on_dead = 'skip' WHERE channel = 'sales'");
    desk.anna().on_dead("sales", OnDead::Skip).unwrap();
    assert_eq!(pending(), "600");
    let other = "SELECT status FROM outbox WHERE channel = 'other' ORDER BY id";
    assert_eq!(column(&desk.till.sql(), other), ["dead", "waiting"]);
}

#[test]
fn a_paused_channel_stands_still_in_every_process_until_it_is_resumed() {
    let desk = Desk::new();
    let mut here = desk.drain();
    let mut there = desk.drain();
    for channel in ["sales", "stock"] {
        desk.put(Message::text(channel, "x"));
    }
    desk.anna().reason("stocktaking").pause("sales").unwrap();
    for drain in [&mut here, &mut there, &mut desk.drain()] {
        drain.until_idle(&up).unwrap();
        desk.pass(DAY);
        drain.wake();
        drain.until_idle(&up).unwrap();
    }
    assert_eq!(desk.states(), ["pending", "sent"]);
    let stats = desk.outbox.stats().unwrap();
    assert_eq!(stats.channels[0].state, ChannelState::Paused);
    assert_eq!(stats.channels[0].paused_by.as_deref(), Some("anna@till-7"));
    assert_eq!(stats.channels[0].reason.as_deref(), Some("stocktaking"));
    assert_eq!(stats.channels[0].since, Some(START));
    // Who pauses again is to be asked from then on: name, moment and reason go together.
    desk.outbox.operator("bob@till-8").pause("sales").unwrap();
    let stats = desk.outbox.stats().unwrap();
    assert_eq!(stats.channels[0].since, Some(desk.clock.now()));
    assert_eq!(stats.channels[0].paused_by.as_deref(), Some("bob@till-8"));
    assert_eq!(stats.channels[0].reason, None);
    desk.anna().resume("sales").unwrap();
    here.until_idle(&up).unwrap();
    assert_eq!(desk.states(), ["sent", "sent"]);
}

/// A drain that always has something to record must notice all the same.
#[test]
fn a_busy_drain_notices_a_pause_at_its_next_cycle() {
    let desk = Desk::new();
    for _ in 0..500 {
        desk.put(Message::text("sales", "x"));
    }
    let mut drain = desk.drain();
    let calls = AtomicUsize::new(0);
    let receiver = |_: &Delivery| {
        calls.fetch_add(1, Ordering::SeqCst);
        Ok(Outcome::delivered())
    };
    while calls.load(Ordering::SeqCst) < 20 {
        drain.step(&receiver).unwrap();
    }
    desk.anna().pause("sales").unwrap();
    let before = calls.load(Ordering::SeqCst);
    drain.until_idle(&receiver).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), before, "sent while paused");
    assert_eq!(desk.outbox.stats().unwrap().total.sending, 0);
}

#[test]
fn a_resumed_channel_believes_the_next_ten_rejections() {
    let desk = Desk::new();
    for _ in 0..40 {
        desk.put(Message::text("sales", "x"));
    }
    let mut drain = desk.drain();
    let broken = |_: &Delivery| Ok(Outcome::Rejected(status(400)));
    let dead = || desk.outbox.stats().unwrap().total.dead;
    desk.live(&mut drain, HOUR, &broken);
    assert_eq!(dead(), 10);
    assert_eq!(
        desk.outbox.stats().unwrap().channels[0].state,
        ChannelState::Rejecting
    );
    desk.anna().resume("sales").unwrap();
    assert_eq!(
        desk.outbox.stats().unwrap().channels[0].state,
        ChannelState::Ok
    );
    desk.live(&mut drain, HOUR, &broken);
    assert_eq!(dead(), 20);
    assert_eq!(desk.anna().retry_all(&Selection::new()).unwrap(), 20);
    desk.live(&mut drain, HOUR, &up);
    let total = desk.outbox.stats().unwrap().total;
    assert_eq!((total.sent, total.dead), (40, 0));
}

#[test]
fn a_resumed_channel_is_tried_at_once() {
    let desk = Desk::new();
    desk.put(Message::text("sales", "x"));
    let mut drain = desk.drain();
    desk.live(&mut drain, DAY, &down);
    let offline = &desk.outbox.stats().unwrap().channels[0];
    assert_eq!(offline.state, ChannelState::Offline);
    desk.anna().resume("sales").unwrap();
    desk.live(&mut drain, 6 * SECOND, &up);
    assert_eq!(desk.states(), ["sent"]);
}

/// The receiver asked for twenty seconds; whoever is told that `resume` ends that needs no second word.
#[test]
fn a_resumed_channel_sends_what_waited_for_it() {
    let desk = Desk::new();
    let later = |_: &Delivery| Ok(Outcome::Retry(status(503).after(Duration::from_secs(20))));
    for evidence in [false, true] {
        if evidence {
            // What fails next is charged, and has a back-off of its own.
            desk.put(Message::text("sales", "before"));
            desk.drain().until_idle(&up).unwrap();
        }
        let id = desk.put(Message::text("sales", "x"));
        desk.drain().until_idle(&later).unwrap();
        assert_eq!(desk.get(id).attempts, i64::from(evidence));
        desk.drain().until_idle(&up).unwrap();
        assert_eq!(desk.get(id).status, Status::Pending, "it is left alone");
        desk.anna().resume("sales").unwrap();
        desk.drain().until_idle(&up).unwrap();
        assert_eq!(desk.get(id).status, Status::Sent);
    }
}

/// A back-off of hours is the message's own.
#[test]
fn a_resumed_channel_leaves_long_waits_and_schedules_as_they_are() {
    let desk = Desk::new();
    let scheduled = Message::text("sales", "scheduled").delay(Duration::from_secs(30));
    let scheduled = desk.put(scheduled);
    let slow = desk.put(Message::text("sales", "slow"));
    desk.sync(&down);
    desk.sql(&format!(
        "UPDATE outbox SET attempts = 9, next_attempt_at = {} WHERE id = {slow}",
        desk.clock.now() + HOUR
    ));
    desk.anna().resume("sales").unwrap();
    desk.drain().until_idle(&up).unwrap();
    for id in [scheduled, slow] {
        assert_eq!(desk.get(id).status, Status::Pending);
    }
}

#[test]
fn a_channel_without_a_name_is_refused() {
    let desk = Desk::new();
    for name in ["", "a:b"] {
        refused(desk.anna().pause(name), "cannot be a channel");
        refused(desk.anna().resume(name), "cannot be a channel");
        refused(
            desk.anna().on_dead(name, OnDead::Skip),
            "cannot be a channel",
        );
    }
    desk.anna().resume("never seen").unwrap();
    let rows = "SELECT count(*) FROM outbox_channel";
    assert_eq!(one(&desk.till.sql(), rows), "0");
}

/// Dead letters of three kinds in two channels.
fn graveyard() -> Desk {
    let desk = Desk::new();
    for index in 0..700 {
        let channel = if index % 7 == 0 { "stock" } else { "sales" };
        desk.put(Message::text(channel, index.to_string()));
    }
    desk.sql(
        "UPDATE outbox SET status = 'dead', attempts = 5, settled_at = 1800000000000 + id * 1000,
                last_error = CASE WHEN id % 2 THEN 'Customer is on Hold' ELSE 'no route to host' END;
         INSERT INTO outbox_attempt (message, at, outcome, http_status)
         SELECT id, 0, 'timeout', NULL FROM outbox;
         INSERT INTO outbox_attempt (message, at, outcome, http_status)
         SELECT id, 1, CASE WHEN id % 2 THEN 'http_422' ELSE 'unreachable' END,
                CASE WHEN id % 2 THEN 422 END FROM outbox WHERE id <= 690;",
    );
    desk
}

#[test]
fn a_selection_finds_what_a_person_means() {
    let desk = graveyard();
    let count = |selection: Selection| desk.anna().count(&selection).unwrap();
    let all = Selection::new;
    assert_eq!(count(all()), 700);
    assert_eq!(count(all().channel("stock")), 100);
    assert_eq!(count(all().channel("none")), 0);
    assert_eq!(count(all().reason_code("http_422")), 345);
    assert_eq!(count(all().http_status(422)), 345);
    assert_eq!(count(all().http_status(400)), 0);
    assert_eq!(
        count(all().reason_code("timeout")),
        10,
        "the last attempt counts"
    );
    assert_eq!(count(all().error_contains("customer is on hold")), 350);
    assert_eq!(count(all().error_contains("%")), 0, "no pattern");
    assert_eq!(count(all().since(START + 601_000)), 100);
    assert_eq!(count(all().before(START + 601_000)), 600);
    assert_eq!(count(all().up_to(0)), 0);
    assert_eq!(count(all().up_to(300)), 300);
    assert_eq!(count(all().channel("stock").up_to(7)), 1);
    let highest = desk.anna().highest_id().unwrap();
    assert_eq!((highest, count(all().up_to(highest + 1))), (700, 700));
    let narrow = all()
        .channel("stock")
        .http_status(422)
        .before(START + 100_000);
    assert_eq!(count(narrow), 8);
    assert_eq!(count(all().status(Status::Pending)), 0);
}

#[test]
fn all_selected_are_retried_in_steps_and_what_was_done_is_recorded() {
    let desk = graveyard();
    let selection = Selection::new().http_status(422);
    let anna = desk.anna().reason("customer released");
    assert_eq!(anna.count(&selection).unwrap(), 345);
    assert_eq!(anna.retry_all(&selection).unwrap(), 345);
    assert_eq!(anna.retry_all(&selection).unwrap(), 0);
    let total = desk.outbox.stats().unwrap().total;
    assert_eq!((total.pending, total.dead), (345, 355));
    let audit = desk.outbox.audit(None, 1_000).unwrap();
    assert_eq!(audit.len(), 345);
    assert!(audit.iter().all(|it| it.action == "retry"
        && it.at == START
        && it.message.is_some()
        && it.channel.is_some()
        && it.reason.as_deref() == Some("customer released")));
    assert!(audit.is_sorted_by_key(|it| -it.id), "newest first");
    assert_eq!(desk.outbox.audit(None, 7).unwrap().len(), 7);
    assert_eq!(anna.cancel_all(&Selection::new()).unwrap(), 355);
    let cancelled = Selection::new().status(Status::Cancelled).channel("stock");
    assert_eq!(
        anna.retry_all(&cancelled).unwrap(),
        anna.count(&Selection::new().status(Status::Pending).channel("stock"))
            .unwrap()
            - 50
    );
}

#[test]
fn a_selection_that_makes_no_sense_is_refused() {
    let desk = Desk::new();
    desk.put(Message::text("sales", "x"));
    for status in [
        Status::Pending,
        Status::Waiting,
        Status::Sending,
        Status::Sent,
    ] {
        let selection = Selection::new().status(status);
        refused(
            desk.anna().retry_all(&selection).map(drop),
            "can be retried",
        );
    }
    for status in [
        Status::Sending,
        Status::Sent,
        Status::Expired,
        Status::Cancelled,
    ] {
        let selection = Selection::new().status(status);
        refused(
            desk.anna().cancel_all(&selection).map(drop),
            "can be cancelled",
        );
    }
}

#[test]
fn cancelling_all_heads_does_not_cancel_those_behind() {
    let desk = Desk::new();
    for lane in 0..5 {
        desk.lane(&lane.to_string(), 3);
    }
    let heads = Selection::new().status(Status::Pending);
    assert_eq!(desk.anna().count(&heads).unwrap(), 5);
    assert_eq!(desk.anna().count(&heads.clone().up_to(4)).unwrap(), 2);
    assert_eq!(desk.anna().cancel_all(&heads).unwrap(), 5);
    let total = desk.outbox.stats().unwrap().total;
    assert_eq!((total.cancelled, total.pending, total.waiting), (5, 5, 5));
    let behind = Selection::new().status(Status::Waiting);
    assert_eq!(desk.anna().cancel_all(&behind).unwrap(), 5);
    desk.lanes_are_in_order();
}

#[test]
fn dead_letters_are_grouped_by_reason() {
    let desk = graveyard();
    desk.sql("DELETE FROM outbox_attempt WHERE message > 690");
    let reasons = desk.outbox.dead_reasons().unwrap();
    let first = &reasons[0];
    assert_eq!(first.channel, "sales");
    assert!(reasons.is_sorted_by_key(|it| std::cmp::Reverse(it.count)));
    let total: u64 = reasons.iter().map(|it| it.count).sum();
    assert_eq!(total, 700);
    assert!(reasons.iter().any(|it| it.code == "unknown"));
    for reason in &reasons {
        let mut same = Selection::new().channel(&reason.channel);
        if reason.code != "unknown" {
            same = same.reason_code(&reason.code);
            assert_eq!(desk.anna().count(&same).unwrap(), reason.count);
        }
        let sample = desk.get(reason.sample);
        assert_eq!(
            (sample.status, sample.last_error),
            (Status::Dead, reason.text.clone())
        );
        assert!(reason.oldest <= reason.newest && reason.oldest.is_some());
    }
    assert!(Desk::new().outbox.dead_reasons().unwrap().is_empty());
}

#[test]
fn an_operator_waits_for_no_connection_that_the_application_holds() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    let outbox = Outbox::options()
        .pool_size(1)
        .open(&desk.till.path)
        .unwrap();
    let held = outbox.connection().unwrap();
    outbox.operator("app").cancel(id).unwrap();
    drop(held);
    assert_eq!(desk.states(), ["cancelled"]);
}

#[test]
fn a_file_of_the_future_is_not_operated_on() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    desk.sql("UPDATE outbox_meta SET value = 99 WHERE key IN ('min_writer', 'schema_version')");
    for result in [
        desk.anna().cancel(id),
        desk.anna().pause("sales"),
        desk.anna().purge(Duration::ZERO).map(drop),
    ] {
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::SchemaTooNew { found: 99, .. }),
            "{error:?}"
        );
    }
    assert_eq!(desk.states(), ["pending"]);
}

#[test]
fn a_pump_hears_of_what_an_operator_did() {
    let desk = Desk::new();
    let outbox = Outbox::open(&desk.till.path).unwrap();
    let id = put(&outbox, &Message::text("sales", "x")).unwrap().id();
    outbox.operator("anna").pause("sales").unwrap();
    let settings = Settings::default().poll(Duration::from_secs(60));
    let pump = outbox.pump(up).settings(settings).start().unwrap();
    crate::fixture::nap(100);
    assert_eq!(outbox.get(id).unwrap().unwrap().status, Status::Pending);
    outbox.operator("anna").resume("sales").unwrap();
    let started = std::time::Instant::now();
    while outbox.unsent().unwrap() > 0 {
        assert!(started.elapsed() < Duration::from_secs(10));
        crate::fixture::nap(10);
    }
    pump.stop(Duration::from_secs(5)).unwrap();
}
