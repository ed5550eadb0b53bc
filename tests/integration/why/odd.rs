//! Odd moments, odd answers, and claims that nobody holds any more.

use sqlite_outbox::{Delivery, Failure, Fault, Message, Outcome, Reason, Router, Severity, Status};

use super::{code, why};
use crate::desk::{DAY, Desk, MINUTE, SECOND, START, down, up};

/// 2027-01-15 08:00:00 UTC, as [`START`], in another unit.
const MICROSECONDS: i64 = START * 1_000;
const SECONDS: i64 = START / 1_000;

#[test]
fn a_schedule_in_microseconds_is_told_apart_from_honest_ones() {
    let desk = Desk::new();
    let near = desk.put(Message::text("sales", "x").available_at(START + DAY));
    let far = desk.put(Message::text("sales", "y").available_at(MICROSECONDS));
    let it = why(&desk, far);
    assert_eq!((it.reason, it.fault), (Reason::FarAhead, Fault::Message));
    assert_eq!(it.until, Some(MICROSECONDS));
    let text = it.to_string();
    assert!(text.contains("looks like microseconds"), "{text}");
    assert!(text.contains("edit of its schedule"), "{text}");
    assert_eq!(code(&desk, near), "scheduled");
    let groups = desk.outbox.why_all().unwrap();
    let told: Vec<_> = groups
        .iter()
        .map(|it| (it.messages, it.why.id, it.why.reason.code()))
        .collect();
    assert_eq!(told, [(1, near, "scheduled"), (1, far, "far_ahead")]);

    let found = desk.outbox.check().unwrap();
    let found = found.iter().find(|it| it.code == "scheduled_far_ahead");
    let found = found.unwrap();
    assert_eq!((found.count, found.message), (1, Some(far)));
    assert!(found.needs_person());
    // A till that has booted in 1970 sees every honest schedule far ahead of it.
    desk.clock.jump(-START);
    assert_eq!(code(&desk, near), "scheduled");
}

#[test]
fn a_due_time_without_a_schedule_that_no_wait_reaches_is_mended_by_a_drain() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    desk.sql(&format!(
        "UPDATE outbox SET next_attempt_at = {MICROSECONDS}"
    ));
    let it = why(&desk, id);
    assert_eq!((it.reason, it.fault), (Reason::FarAhead, Fault::Machine));
    assert!(it.to_string().contains("a drain that begins makes it due"));
    let mut drain = desk.drain();
    desk.live(&mut drain, 5 * MINUTE, &up);
    assert_eq!(desk.get(id).status, Status::Sent);
}

#[test]
fn an_expiry_in_seconds_is_told_apart_from_one_that_has_passed() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    desk.sql(&format!("UPDATE outbox SET expires_at = {SECONDS}"));
    let mut drain = desk.drain();
    for _ in 0..2 {
        let it = why(&desk, id);
        assert_eq!((it.reason, it.fault), (Reason::Expired, Fault::Message));
        let text = it.to_string();
        assert!(text.contains(", at 1970-01-21 "), "{text}");
        assert!(text.contains("looks like seconds"), "{text}");
        desk.live(&mut drain, 2 * MINUTE, &up);
    }
    assert_eq!(desk.get(id).status, Status::Expired);
}

/// The process that was sending it has died, and then somebody paused the channel: no drain takes
/// it back before the channel is resumed.
#[test]
fn a_stale_claim_of_a_channel_that_stands_still_names_that_first() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    let claim = |until: i64| {
        desk.sql(&format!(
            "UPDATE outbox SET status = 'sending', claims = 1, next_attempt_at = {until} WHERE id = {id}"
        ));
    };
    claim(START);
    desk.pass(SECOND);
    desk.anna().reason("stocktaking").pause("sales").unwrap();
    let it = why(&desk, id);
    assert_eq!((it.reason, it.stale), (Reason::Paused, true));
    assert_eq!(it.until, None);
    let text = it.to_string();
    assert!(
        text.contains("by anna@till-7: stocktaking") && text.contains("then resume the channel. "),
        "{text}"
    );
    assert!(text.contains("the next drain takes it back"), "{text}");

    let far = desk.clock.now() + 40 * DAY;
    claim(far);
    let found = desk.outbox.check().unwrap();
    let found = found
        .iter()
        .find(|it| it.code == "lease_in_future")
        .unwrap();
    assert!(
        found.remedy.starts_with("resume their channel"),
        "{found:?}"
    );
    assert_eq!(found.command, ["resume", "sales"]);

    desk.anna().resume("sales").unwrap();
    assert_eq!(
        why(&desk, id).reason,
        Reason::Claimed {
            until: far,
            stale: true
        }
    );
    let found = desk.outbox.check().unwrap();
    let found = found
        .iter()
        .find(|it| it.code == "lease_in_future")
        .unwrap();
    assert!(found.command.is_empty() && found.remedy.contains("takes them back"));

    let router = Router::new().route("stock", up);
    let it = desk.outbox.why_routed(id, &router).unwrap();
    assert_eq!((it.reason, it.stale), (Reason::Unrouted, true));

    // Nor while the channel's receiver is down.
    desk.sql(&format!(
        "UPDATE outbox SET status = 'pending', next_attempt_at = 0 WHERE id = {id}"
    ));
    desk.sync(&down);
    claim(START);
    let it = why(&desk, id);
    assert_eq!((it.reason, it.stale), (Reason::Offline, true));
}

/// The rule wants `/id`, and the receiver answers `{"number": 7}`: it can be reached, and waiting
/// mends nothing.
#[test]
fn an_answer_that_does_not_hold_the_rule_is_no_receiver_that_is_away() {
    let broken = "/id is missing; HTTP 200 OK";
    for (body, fault, says) in [
        (
            "{\"number\":7}",
            Fault::Route,
            "does not hold the `reply` rule",
        ),
        (
            "<!DOCTYPE HTML><title>Log in",
            Fault::Network,
            "a web page answers",
        ),
    ] {
        let desk = Desk::new();
        let id = desk.put(Message::text("sales", "x"));
        let text = format!("{broken}: {body}");
        desk.sync(&move |_: &Delivery| {
            Ok(Outcome::Retry(
                Failure::new("reply_rule", text.clone()).status(200),
            ))
        });
        let it = why(&desk, id);
        assert_eq!((it.reason, it.fault), (Reason::Offline, fault), "{it}");
        let text = it.to_string();
        assert!(text.contains(says) && text.contains(broken), "{text}");
        assert!(
            text.contains("compare the answer with the `reply` rule"),
            "{text}"
        );
        assert!(!text.contains("cannot be reached"), "{text}");

        let found = desk.outbox.check().unwrap();
        let found = found.iter().find(|it| it.code == "reply_rule").unwrap();
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.remedy.contains("compare the answer"), "{found:?}");
    }
}

#[test]
fn a_trouble_that_probing_does_not_mend_needs_a_person() {
    for (failure, severity) in [
        (
            Outcome::Blocked(Failure::new("redirected", "moved")),
            Severity::Warning,
        ),
        (
            Outcome::Unreachable(Failure::new("tls", "unknown issuer")),
            Severity::Warning,
        ),
        (
            Outcome::Unreachable(Failure::new("refused", "refused")),
            Severity::Note,
        ),
    ] {
        let desk = Desk::new();
        desk.put(Message::text("sales", "x"));
        let given = failure.clone();
        desk.sync(&move |_: &Delivery| Ok(given.clone()));
        let found = desk.outbox.check().unwrap();
        let found = found.iter().find(|it| it.code == "offline").unwrap();
        assert_eq!(found.severity, severity, "{failure:?}");
    }
}

/// Without a reply rule the login page of a network's portal counted as a delivery.
#[test]
fn a_message_that_a_web_page_answered_is_not_simply_sent() {
    for (answer, fault) in [
        ("\u{feff} <!doctype html><title>Welcome", Fault::Network),
        ("{\"html\":\"<html>\"}", Fault::Nobody),
    ] {
        let desk = Desk::new();
        let id = desk.put(Message::text("sales", "x"));
        desk.sync(&move |_: &Delivery| {
            Ok(Outcome::Delivered(
                sqlite_outbox::Receipt::default().answer(answer),
            ))
        });
        let it = why(&desk, id);
        assert_eq!((it.reason, it.fault), (Reason::Sent, fault), "{it}");
        let told = it.to_string().contains("but a web page answered");
        assert_eq!(told, fault == Fault::Network, "{it}");
    }
}

/// The till booted in 1970, found the receiver down, and then its clock was set.
#[test]
fn what_began_in_1970_is_not_said_to_last_for_decades() {
    let desk = Desk::new();
    desk.clock.jump(-START);
    let id = desk.put(Message::text("sales", "x"));
    desk.sync(&down);
    desk.clock.jump(START);
    let since = "since a time when the clock was wrong";
    let text = why(&desk, id).to_string();
    assert!(text.contains(since) && !text.contains("days"), "{text}");
    let text = desk.outbox.stats().unwrap().to_string();
    assert!(text.contains(&format!("sales offline {since}")), "{text}");
    assert!(!text.contains("days"), "{text}");
    let found = desk.outbox.check().unwrap();
    let found = found.iter().find(|it| it.code == "offline").unwrap();
    assert!(found.text.contains(since), "{found:?}");
    desk.anna().pause("sales").unwrap();
    desk.sql("UPDATE outbox_channel SET paused_at = 5000");
    let text = why(&desk, id).to_string();
    assert!(
        text.contains("paused at a time when the clock was wrong by anna"),
        "{text}"
    );
}
