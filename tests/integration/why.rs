//! Why a message has not arrived: one answer for each cause, from the file alone.

mod kinds;
mod odd;

use std::time::Duration;

use sqlite_outbox::{
    Delivery, Dispatcher, Error, Failure, Fault, Message, OnDead, Outcome, Policy, Reason, Router,
    Run, Settings, Status, Why,
};

use crate::desk::{DAY, Desk, HOUR, MINUTE, SECOND, START, down, rejects, status, up};

fn why(desk: &Desk, id: i64) -> Why {
    let why = desk.outbox.why(id).unwrap();
    let text = why.to_string();
    assert!(text.starts_with(&format!("Message {id} of ")), "{text}");
    assert!(text.ends_with('.') && !text.contains('\n'), "{text}");
    assert!(text.matches(". ").count() <= 5, "too long: {text}");
    why
}

fn code(desk: &Desk, id: i64) -> &'static str {
    why(desk, id).reason.code()
}

#[test]
fn a_message_that_just_came_is_due() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    let it = why(&desk, id);
    assert_eq!((it.reason, it.fault), (Reason::Due, Fault::Nobody));
    assert!(matches!(desk.outbox.why(9), Err(Error::NotFound(which)) if which == "9"));
}

#[test]
fn no_drain_is_named_when_none_has_left_a_trace_since() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    desk.pass(14 * MINUTE);
    let it = why(&desk, id);
    assert_eq!((it.reason, it.fault), (Reason::NoDrain, Fault::Program));
    assert_eq!(it.since, Some(START));
    let text = it.to_string();
    assert!(
        text.contains("no drain has left a trace, for 14 min now"),
        "{text}"
    );
    // A drain that served another channel since is a trace; so is a claim that lives.
    desk.put(Message::text("stock", "x"));
    let mut router = Router::new();
    router = router.route("stock", up);
    desk.sync(&router);
    assert_eq!(code(&desk, id), "due");
}

#[test]
fn a_living_claim_shows_that_a_drain_runs() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    let claimed = desk.put(Message::text("stock", "x"));
    desk.pass(10 * MINUTE);
    let lease = desk.clock.now() + 30 * SECOND;
    desk.sql(&format!(
        "UPDATE outbox SET status = 'sending', claims = 1, next_attempt_at = {lease} WHERE id = {claimed}"
    ));
    assert_eq!(code(&desk, id), "due");
    let it = why(&desk, claimed);
    assert_eq!(
        it.reason,
        Reason::Claimed {
            until: lease,
            stale: false
        }
    );
    assert_eq!(it.until, Some(lease));
    desk.pass(MINUTE);
    let it = why(&desk, claimed);
    assert_eq!(
        it.reason,
        Reason::Claimed {
            until: lease,
            stale: true
        }
    );
    assert!(it.to_string().contains("takes it back"), "{it}");
    assert_eq!(code(&desk, id), "no_drain");
}

#[test]
fn a_scheduled_message_waits_for_its_moment() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x").available_at(START + DAY));
    let it = why(&desk, id);
    assert_eq!((it.reason, it.fault), (Reason::Scheduled, Fault::Nobody));
    assert_eq!(it.until, Some(START + DAY));
    desk.pass(DAY + 2 * MINUTE);
    let it = why(&desk, id);
    assert_eq!((it.reason, it.since), (Reason::NoDrain, Some(START + DAY)));
}

#[test]
fn a_follower_names_its_head_and_what_that_waits_for() {
    let desk = Desk::new();
    let ids = desk.lane("customer", 3);
    desk.sync(&rejects("1"));
    let it = why(&desk, ids[2]);
    let behind = Reason::Behind {
        id: ids[0],
        status: Status::Dead,
    };
    assert_eq!((it.reason, it.fault), (behind, Fault::Message));
    let head = it.behind.as_ref().unwrap();
    assert_eq!((head.id, head.reason), (ids[0], Reason::Dead));
    let text = it.to_string();
    assert!(
        text.contains(&format!("behind message {}, which is dead", ids[0])),
        "{text}"
    );
    assert!(text.contains("status 422"), "{text}");
    assert!(
        text.contains("A retry sends the same content: edit what is wrong"),
        "{text}"
    );

    desk.anna().on_dead("sales", OnDead::Skip).unwrap();
    assert_eq!(code(&desk, ids[1]), "due");
    let it = why(&desk, ids[2]);
    assert!(matches!(it.reason, Reason::Behind { id, status: Status::Pending } if id == ids[1]));

    // A run that is under way holds even a message that stands before it.
    let lease = desk.clock.now() + 30 * SECOND;
    desk.sql(&format!(
        "UPDATE outbox SET status = 'sending', next_attempt_at = {lease} WHERE id = {}",
        ids[1]
    ));
    desk.anna().retry(ids[0]).unwrap();
    let it = why(&desk, ids[0]);
    assert!(matches!(it.reason, Reason::Behind { id, status: Status::Sending } if id == ids[1]));
}

#[test]
fn a_follower_of_an_offline_channel_names_the_network() {
    let desk = Desk::new();
    let ids = desk.lane("customer", 2);
    desk.sync(&down);
    let it = why(&desk, ids[1]);
    assert_eq!((it.reason.code(), it.fault), ("behind", Fault::Network));
    assert_eq!(it.behind.unwrap().reason, Reason::Offline);
}

#[test]
fn each_trouble_of_a_channel_has_its_name_and_its_culprit() {
    type Answer = fn() -> Outcome;
    let cases: [(Answer, &str, Fault); 6] = [
        (
            || Outcome::Unreachable(Failure::new("dns", "erp.example cannot be found")),
            "offline",
            Fault::Network,
        ),
        (
            || Outcome::Blocked(Failure::new("portal", "log in to Wi-Fi")),
            "offline",
            Fault::Network,
        ),
        (
            || Outcome::Blocked(Failure::new("redirected", "moved")),
            "offline",
            Fault::Route,
        ),
        (|| Outcome::Retry(status(503)), "offline", Fault::Receiver),
        (
            || Outcome::unauthorised("token expired"),
            "unauthorised",
            Fault::Route,
        ),
        (
            || Outcome::Retry(status(429).after(Duration::from_secs(600))),
            "holding",
            Fault::Receiver,
        ),
    ];
    for (answer, word, fault) in cases {
        let desk = Desk::new();
        let ids = [
            desk.put(Message::text("sales", "x")),
            desk.put(Message::text("sales", "y")),
        ];
        desk.drain()
            .until_idle(&move |_: &Delivery| Ok(answer()))
            .unwrap();
        for id in ids {
            let it = why(&desk, id);
            assert_eq!((it.reason.code(), it.fault), (word, fault));
            assert_eq!(it.since, Some(START));
            assert!(it.until.is_some_and(|until| until > START), "{it:?}");
            assert!(it.detail.is_some());
        }
        // Nobody has probed for an hour: there is no drain.
        desk.pass(2 * HOUR);
        assert_eq!(code(&desk, ids[0]), "no_drain", "{word}");
    }
}

#[test]
fn a_receiver_that_rejects_everything_is_named() {
    let desk = Desk::new();
    for _ in 0..30 {
        desk.put(Message::text("sales", "x"));
    }
    let mut drain = desk.drain();
    desk.live(&mut drain, MINUTE, &|_: &Delivery| {
        Ok(Outcome::Rejected(status(400)))
    });
    let groups = desk.outbox.why_all().unwrap();
    let codes: Vec<_> = groups.iter().map(|it| it.why.reason.code()).collect();
    assert_eq!(codes, ["rejecting", "dead"]);
    assert_eq!((groups[0].messages, groups[1].messages), (20, 10));
    assert_eq!(groups[0].why.fault, Fault::Receiver);
    assert!(groups[0].why.to_string().contains("`resume`"));
}

#[test]
fn a_pause_names_who_and_why_before_anything_else() {
    let desk = Desk::new();
    let ids = desk.lane("customer", 2);
    desk.sync(&down);
    desk.anna()
        .reason("stocktaking\n\u{1b}[2J")
        .pause("sales")
        .unwrap();
    for id in ids {
        let it = why(&desk, id);
        assert_eq!((it.reason, it.fault), (Reason::Paused, Fault::Operator));
        let text = it.to_string();
        assert!(text.contains("by anna@till-7: stocktaking"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
    desk.put(Message::text("sales", "keyless"));
    let groups = desk.outbox.why_all().unwrap();
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0].messages, 3);
}

#[test]
fn a_channel_without_a_route_is_named_by_who_knows_the_routes() {
    let desk = Desk::new();
    let id = desk.put(Message::text("stock", "x"));
    let router = Router::new().route("sales", up);
    let it = desk.outbox.why_routed(id, &router).unwrap();
    assert_eq!((it.reason, it.fault), (Reason::Unrouted, Fault::Route));
    let groups = desk.outbox.why_all_routed(&router).unwrap();
    assert_eq!(groups[0].why, it);
    assert_eq!(code(&desk, id), "due", "nobody asked about routes");
}

/// A till whose channel has just delivered, and then fails once in this way: that is charged.
fn charged(failure: Outcome) -> (Desk, i64) {
    let desk = Desk::new();
    desk.put(Message::text("sales", "good"));
    let mut drain = desk.drain();
    drain.until_idle(&up).unwrap();
    let id = desk.put(Message::text("sales", "next"));
    drain
        .until_idle(&move |_: &Delivery| Ok(failure.clone()))
        .unwrap();
    assert_eq!(desk.get(id).attempts, 1);
    (desk, id)
}

#[test]
fn a_charged_message_waits_for_its_next_attempt() {
    let (desk, id) = charged(Outcome::Retry(status(500)));
    let it = why(&desk, id);
    assert_eq!((it.reason, it.fault), (Reason::BackOff, Fault::Receiver));
    assert_eq!(it.detail.as_deref(), Some("status 500"));
    assert_eq!(it.cause.as_deref(), Some("http_500"));
    assert_eq!(it.until, Some(desk.get(id).next_attempt_at));
}

/// The channel had just delivered, so the failure is charged; yet a certificate that has run out, or
/// a line that is cut, says nothing against the message.
#[test]
fn a_charged_failure_is_blamed_on_what_failed() {
    let unreachable = |code| Outcome::Unreachable(Failure::new(code, "it failed"));
    let cases = [
        (unreachable("tls"), Fault::Network, "set the clock"),
        (
            Outcome::Unreachable(Failure::new(
                "tls",
                "TLS with a: its certificate has expired",
            )),
            Fault::Receiver,
            "must renew it",
        ),
        (
            Outcome::Unreachable(Failure::new(
                "tls",
                "TLS with a: its certificate is not valid yet",
            )),
            Fault::Machine,
            "this machine's clock",
        ),
        (unreachable("reset"), Fault::Network, "check the network"),
        (unreachable("refused"), Fault::Network, "check the port"),
        (unreachable("dns"), Fault::Network, "check the name"),
        (unreachable("timeout"), Fault::Network, "check the network"),
        (unreachable("proxy"), Fault::Network, "HTTPS_PROXY"),
        (
            Outcome::Retry(status(503)),
            Fault::Receiver,
            "Nothing is lost",
        ),
        (Outcome::Retry(status(429)), Fault::Receiver, "receiver"),
        // Nobody knows yet.
        (
            Outcome::Retry(status(409)),
            Fault::Receiver,
            "may be the receiver's or the message's own",
        ),
        (
            Outcome::Retry(status(404)),
            Fault::Route,
            "look at the URL and the method in the settings",
        ),
        (Outcome::Retry(status(405)), Fault::Route, "address"),
    ];
    for (failure, fault, says) in cases {
        let (desk, id) = charged(failure.clone());
        let it = why(&desk, id);
        let text = it.to_string();
        assert_eq!(it.fault, fault, "{failure:?}: {text}");
        assert!(text.contains(says), "{failure:?}: {text}");
        assert!(!text.contains("Nothing needs to be done"), "{text}");
        assert!(
            !text.contains("meanwhile"),
            "nothing was delivered since: {text}"
        );
    }
}

/// A program that forgets to say what happened, or panics, was not refused by anybody.
#[test]
fn a_dispatcher_that_does_not_do_its_part_is_the_program_s_fault() {
    struct Silent;
    impl Dispatcher for Silent {
        fn dispatch(&self, _: &Delivery) -> anyhow::Result<Outcome> {
            Ok(Outcome::delivered())
        }
        fn dispatch_run(&self, run: &mut Run<'_>) {
            run.next_batch(16);
        }
    }
    // As a worker has it of one that panics.
    let panics = |_: &Delivery| {
        let text = "the dispatcher panicked: index out of bounds";
        Ok(Outcome::Retry(Failure::new("panic", text)))
    };
    let cases: [(&dyn Dispatcher, &str, &str); 2] = [
        (&Silent, "unsaid", "did not say what happened"),
        (&panics, "panic", "index out of bounds"),
    ];
    for (dispatcher, code, says) in cases {
        let desk = Desk::new();
        let id = desk.put(Message::text("sales", "x"));
        desk.drain().until_idle(dispatcher).unwrap();
        let it = why(&desk, id);
        assert_eq!((it.reason, it.fault), (Reason::Offline, Fault::Program));
        assert_eq!(it.cause.as_deref(), Some(code));
        let text = it.to_string();
        assert!(
            text.contains("The fault lies with the program that sends.") && text.contains(says),
            "{text}"
        );
        assert!(text.contains("whoever made the program"), "{text}");
        let found = desk.outbox.check().unwrap();
        assert!(
            found
                .iter()
                .any(|it| it.code == "offline" && it.needs_person())
        );
        // Dead of it, it is no more at fault.
        desk.sql("UPDATE outbox SET status = 'dead', settled_at = 1");
        assert_eq!(why(&desk, id).fault, Fault::Program);
    }
}

/// Only a delivery after its first failure shows that the address and the receiver are well.
#[test]
fn a_message_is_blamed_once_others_were_delivered_since() {
    for answer in [404, 405, 409] {
        let (desk, id) = charged(Outcome::Retry(status(answer)));
        assert_ne!(why(&desk, id).fault, Fault::Message);
        desk.pass(SECOND);
        desk.put(Message::text("sales", "another"));
        desk.drain().until_idle(&up).unwrap();
        let it = why(&desk, id);
        assert_eq!((it.reason, it.fault), (Reason::BackOff, Fault::Message));
        let text = it.to_string();
        assert!(
            text.contains("others of its channel were delivered meanwhile"),
            "{text}"
        );
        assert!(!text.contains("look at the URL"), "{text}");
    }
}

/// The first address that was ever set may be mistyped.
#[test]
fn an_address_that_is_not_known_is_the_fault_of_the_settings() {
    for answer in [404, 405] {
        let desk = Desk::new();
        let id = desk.put(Message::text("sales", "x"));
        let wrong = move |_: &Delivery| Ok(Outcome::Retry(status(answer)));
        desk.drain().until_idle(&wrong).unwrap();
        let it = why(&desk, id);
        assert_eq!((it.reason, it.fault), (Reason::Offline, Fault::Route));
        let text = it.to_string();
        assert!(
            text.contains("look at the URL and the method in the settings"),
            "{text}"
        );
        let found = desk.outbox.check().unwrap();
        let found = found.iter().find(|it| it.code == "offline").unwrap();
        assert!(
            found.needs_person() && found.remedy.contains("look at the URL"),
            "{found:?}"
        );
    }
    // One that is gone rejects; what died of it is no more at fault.
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    let gone = |_: &Delivery| Ok(Outcome::Rejected(status(410)));
    desk.drain().until_idle(&gone).unwrap();
    let it = why(&desk, id);
    assert_eq!((it.reason, it.fault), (Reason::Dead, Fault::Route));
    assert!(it.to_string().contains("look at the URL"), "{it}");
}

/// Only that no drain runs takes a while to be known.
#[test]
fn what_failed_last_is_told_at_once() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    desk.sync(&down);
    desk.anna().resume("sales").unwrap();
    desk.pass(2 * SECOND);
    let it = why(&desk, id);
    assert_eq!((it.reason, it.fault), (Reason::Due, Fault::Network));
    let text = it.to_string();
    assert!(
        text.contains("; its last attempt, 12 s ago, failed: erp.example refuses"),
        "{text}"
    );
    assert!(text.contains("check the port"), "{text}");
}

#[test]
fn what_is_missing_is_told_at_once() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    desk.sql("DROP TRIGGER outbox_inserted");
    let it = why(&desk, id);
    assert_eq!((it.reason, it.fault), (Reason::Due, Fault::Machine));
    let text = it.to_string();
    assert!(
        it.obstacle.is_some() && text.contains("The fault lies on this machine"),
        "{text}"
    );
}

/// Whoever does not agree on TLS has seen no message.
#[test]
fn a_certificate_is_never_the_fault_of_the_message() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    let expired = |_: &Delivery| {
        let text = "TLS with erp.example:443: its certificate has expired";
        Ok(Outcome::Unreachable(Failure::new("tls", text)))
    };
    let mut drain = desk.drain();
    desk.live(&mut drain, HOUR, &expired);
    let it = why(&desk, id);
    assert_eq!((it.reason, it.fault), (Reason::Offline, Fault::Receiver));
    assert!(
        it.to_string().contains("The fault lies with the receiver."),
        "{it}"
    );
}

/// That nobody tries any more may come of what was heard last.
#[test]
fn no_drain_tells_what_the_last_attempt_came_to() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    desk.sync(&down);
    let fresh = desk.put(Message::text("sales", "y"));
    desk.pass(59 * MINUTE);
    let it = why(&desk, id);
    assert_eq!(
        (it.reason.code(), it.cause.as_deref()),
        ("no_drain", Some("refused"))
    );
    assert_eq!(
        it.fault,
        Fault::Network,
        "not the program that would fail again"
    );
    let text = it.to_string();
    assert!(
        text.contains("; its last attempt, 59 min ago, failed: erp.example refuses"),
        "{text}"
    );
    assert!(text.contains("check the port"), "{text}");
    let text = why(&desk, fresh).to_string();
    assert!(
        text.contains("; its channel is offline: erp.example refuses"),
        "{text}"
    );
}

#[test]
fn the_only_message_of_a_channel_that_keeps_failing_is_told_apart() {
    let desk = Desk::new();
    let ids = desk.lane("customer", 3);
    let failing = |_: &Delivery| Ok(Outcome::Retry(status(500)));
    let mut drain = desk.drain();
    desk.live(&mut drain, DAY, &failing);
    let it = why(&desk, ids[0]);
    assert_eq!(it.reason, Reason::NoOther);
    let text = it.to_string();
    assert!(text.contains("no other message to try"), "{text}");
    assert!(text.contains("status 500"), "{text}");
    desk.put(Message::text("sales", "another"));
    assert_eq!(code(&desk, ids[0]), "offline");
}

#[test]
fn what_is_over_says_how_it_ended() {
    let desk = Desk::new();
    let policy = Policy::default()
        .max_attempts(1)
        .min_dead_age(Duration::ZERO);
    let mut drain = desk.drain_with(Settings::default().default_policy(policy));
    let sent = desk.put(Message::text("sales", "x"));
    drain.until_idle(&up).unwrap();
    let dead = desk.put(Message::text("sales", "y"));
    drain
        .until_idle(&|_: &Delivery| Ok(Outcome::Rejected(status(422))))
        .unwrap();
    let expired = desk.put(Message::text("sales", "z").ttl(Duration::from_secs(60)));
    let cancelled = desk.put(Message::text("sales", "z"));
    desk.anna().cancel(cancelled).unwrap();
    desk.pass(2 * MINUTE);
    let it = why(&desk, expired);
    assert_eq!(
        (it.reason, it.status),
        (Reason::Expired, Status::Pending),
        "not marked yet"
    );
    drain.until_idle(&up).unwrap();
    for (id, reason, fault) in [
        (sent, Reason::Sent, Fault::Nobody),
        (dead, Reason::Dead, Fault::Message),
        (expired, Reason::Expired, Fault::Nobody),
        (cancelled, Reason::Cancelled, Fault::Operator),
    ] {
        let it = why(&desk, id);
        assert_eq!((it.reason, it.fault), (reason, fault));
        assert!(it.since.is_some() && it.until.is_none());
    }
    let groups = desk.outbox.why_all().unwrap();
    assert_eq!(
        groups.len(),
        1,
        "only what waits or needs a person: {groups:?}"
    );
}

#[test]
fn an_empty_or_settled_file_waits_for_nothing() {
    let desk = Desk::new();
    assert!(desk.outbox.why_all().unwrap().is_empty());
    desk.put(Message::text("sales", "x"));
    desk.sync(&up);
    assert!(desk.outbox.why_all().unwrap().is_empty());
}

#[test]
fn a_clock_that_is_behind_is_mentioned() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    desk.clock.jump(-START);
    let it = why(&desk, id);
    assert_eq!(it.clock_behind, Some(START));
    assert!(it.to_string().contains("The clock is"), "{it}");
}

#[test]
fn hostile_rows_are_explained_too() {
    let desk = Desk::new();
    desk.sql(
        "PRAGMA ignore_check_constraints = 1; DROP TRIGGER outbox_guard;
         INSERT INTO outbox (channel, payload, created_at, next_attempt_at, status, attempts)
         VALUES (CAST(x'fffe' AS TEXT), 'x', -9223372036854775808, 9223372036854775807, 'pending', 'many'),
                ('sales', 'x', 9223372036854775807, 'soon', 'pending', 0),
                ('sales', 'x', 'once', 0, 'teleported', 0),
                ('sales', 'x', 0, -5, 'sending', 0)",
    );
    for id in 1..=4 {
        let _ = desk.outbox.why(id).unwrap().to_string();
    }
    desk.outbox.why_all().unwrap();
}

/// A till that boots in 1970 has enqueued with a time to live; then its clock is set. The drain
/// gives the message its span anew, and until it has done so nothing has expired.
#[test]
fn a_span_that_began_in_1970_has_not_run_out() {
    let desk = Desk::new();
    desk.clock.jump(-START);
    let id = desk.put(Message::text("sales", "x").ttl(Duration::from_secs(3600)));
    desk.clock.jump(START);
    assert_eq!(code(&desk, id), "no_drain");
    let mut drain = desk.drain();
    desk.live(&mut drain, 2 * MINUTE, &down);
    assert_ne!(desk.get(id).status, Status::Expired);
    assert_eq!(code(&desk, id), "offline");
}

/// No probe takes it before its own wait is over, so the next probe is not what it waits for.
#[test]
fn a_charged_message_of_an_offline_channel_waits_for_its_own_next_attempt() {
    let desk = Desk::new();
    desk.put(Message::text("sales", "good"));
    let mut drain = desk.drain();
    drain.until_idle(&up).unwrap();
    let poison = desk.put(Message::text("sales", "poison"));
    drain
        .until_idle(&|_: &Delivery| Ok(Outcome::Retry(status(500))))
        .unwrap();
    let other = desk.put(Message::text("sales", "other"));
    drain.until_idle(&down).unwrap();
    assert_eq!(code(&desk, other), "offline");
    let it = why(&desk, poison);
    assert_eq!(it.reason, Reason::BackOff);
    assert_eq!(it.until, Some(desk.get(poison).next_attempt_at));
    let text = it.to_string();
    assert!(
        text.contains("its next attempt is in ")
            && text.contains("its channel is offline meanwhile"),
        "{text}"
    );
}

#[test]
fn the_dead_of_a_receiver_that_rejects_everything_are_not_blamed() {
    let desk = Desk::new();
    let bad = desk.put(Message::text("sales", "bad"));
    let mut drain = desk.drain();
    drain
        .until_idle(&|_: &Delivery| Ok(Outcome::Rejected(status(422))))
        .unwrap();
    assert_eq!(why(&desk, bad).fault, Fault::Message);
    desk.pass(SECOND);
    desk.put(Message::text("sales", "good"));
    drain.until_idle(&up).unwrap();
    desk.pass(SECOND);
    let ids: Vec<_> = (0..20)
        .map(|_| desk.put(Message::text("sales", "x")))
        .collect();
    desk.live(&mut drain, MINUTE, &|_: &Delivery| {
        Ok(Outcome::Rejected(status(400)))
    });
    let it = why(&desk, ids[0]);
    assert_eq!((it.reason, it.fault), (Reason::Dead, Fault::Receiver));
    assert!(
        it.to_string().contains("retry all its dead letters"),
        "{it}"
    );
    let it = why(&desk, bad);
    assert_eq!(it.fault, Fault::Message, "it died before the last delivery");
}

#[test]
fn only_a_message_with_an_ordering_key_is_said_to_hold_others() {
    let desk = Desk::new();
    let alone = desk.put(Message::text("sales", "x"));
    let ids = desk.lane("customer", 2);
    desk.sync(&|_: &Delivery| Ok(Outcome::Rejected(status(422))));
    assert!(!why(&desk, alone).to_string().contains("stands behind it"));
    let text = why(&desk, ids[1]).to_string();
    assert!(text.contains("it holds what stands behind it"), "{text}");
    let key = desk.get(ids[0]).dedupe_key;
    assert!(text.contains(&format!("Message {} of sales (key {key})", ids[0])));
}

#[test]
fn moments_are_told_exactly_and_an_expiry_by_its_own_time() {
    let desk = Desk::new();
    // 2027-01-15 08:00:00 UTC
    let id = desk.put(Message::text("sales", "x").available_at(START + DAY));
    let text = why(&desk, id).to_string();
    assert!(
        text.contains("in 24 h, at 2027-01-16 08:00:00 UTC"),
        "{text}"
    );

    let late = desk.put(Message::text("sales", "y").ttl(Duration::from_secs(60)));
    desk.pass(3 * HOUR);
    let mut drain = desk.drain();
    desk.live(&mut drain, 2 * MINUTE, &up);
    assert_eq!(desk.get(late).status, Status::Expired);
    desk.pass(HOUR);
    let it = why(&desk, late);
    assert_eq!(it.since, desk.get(late).expires_at);
    assert_eq!(it.noticed, desk.get(late).settled_at);
    assert!(it.to_string().contains("(noticed 1 h ago)"), "{it}");
}

#[test]
fn a_secret_that_is_missing_here_is_not_the_receivers_refusal() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "x"));
    desk.sync(&|_: &Delivery| {
        let text = "no credentials: the environment variable ERP_TOKEN is not set";
        let failure = Failure::new(Failure::NO_CREDENTIALS, text);
        Ok(Outcome::Blocked(failure.local()))
    });
    let it = why(&desk, id);
    assert_eq!((it.reason, it.fault), (Reason::NoCredentials, Fault::Route));
    let text = it.to_string();
    for part in [
        "ERP_TOKEN is not set",
        "the receiver was not asked",
        "Set the variable",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("not accepted"), "{text}");
}

/// To look takes two seconds where the lock is kept, and a list may have many pages.
#[test]
fn what_keeps_all_from_being_sent_is_looked_for_once_for_many_pages() {
    let desk = Desk::new();
    let ids = [0, 1].map(|_| desk.put(Message::text("sales", "x")));
    desk.pass(2 * MINUTE);
    let blocker = desk.till.sql();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let explainer = desk.outbox.explainer();
    let code = |id| {
        let why = explainer.each(&[id]).unwrap().remove(0);
        why.obstacle.map(|it| it.code)
    };
    assert_eq!(code(ids[0]), Some("write_lock"));
    blocker.execute_batch("ROLLBACK").unwrap();
    assert_eq!(code(ids[1]), Some("write_lock"));
    assert_eq!(desk.outbox.why(ids[1]).unwrap().obstacle, None);
}
