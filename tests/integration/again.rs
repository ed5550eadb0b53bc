//! What counts as sent and has not arrived is sent again, as a message of its own.

use std::sync::Mutex;

use sqlite_outbox::testing::Inline;
use sqlite_outbox::{
    Delivery, Error, Fault, Message, Outcome, Reason, Receipt, Selection, Settings, Status,
};

use crate::desk::{DAY, Desk, HOUR, MINUTE, rejects, up};

/// Answers 200 in place of the receiver.
fn portal(_: &Delivery) -> anyhow::Result<Outcome> {
    let page = "<!doctype html><title>Log in";
    Ok(Outcome::Delivered(Receipt::default().answer(page)))
}

fn refused<T: std::fmt::Debug>(result: sqlite_outbox::Result<T>, word: &str) {
    match result {
        Err(Error::Refused(why)) => assert!(why.contains(word), "{why}"),
        other => panic!("{word}: {other:?}"),
    }
}

fn taken() -> Selection {
    let sent = Selection::new().status(Status::Sent);
    sent.channel("sales").web_page()
}

/// All that the receiver sees of it stays, but for the key; and it stands behind what came since.
#[test]
fn what_a_portal_took_goes_out_again_at_the_end_of_its_lane_under_another_key() {
    let desk = Desk::new();
    let sale = Message::bytes("sales", b"\xff{}")
        .dedupe_key("S-1")
        .ordering_key("customer-7")
        .event_type("sale.completed")
        .recipient("17")
        .principal("anna")
        .content_type("application/x-sale")
        .header("X-Till", "4");
    let id = desk.put(sale);
    desk.sync(&portal);
    let later = desk.put(Message::text("sales", "x").ordering_key("customer-7"));
    let before = desk.get(id);
    let anna = desk.anna().reason("not in the ERP");
    let again = anna.send_again(id, None).unwrap();
    assert_eq!(again.dedupe_key, "S-1-again");
    let new = desk.get(again.id);
    assert_eq!(new.status, Status::Waiting, "behind what came since");
    assert_eq!(new.created_at, desk.clock.now());
    let mut same = before.clone();
    (same.id, same.status, same.dedupe_key) = (new.id, new.status, "S-1-again".into());
    (same.claims, same.created_at, same.answer) = (0, new.created_at, None);
    (same.last_attempt_at, same.settled_at, same.next_attempt_at) = (None, None, 0);
    assert_eq!(new, same);
    assert_eq!(desk.get(id), before, "the former one stays as it is");
    let seen = Mutex::new(Vec::new());
    desk.sync(&|it: &Delivery| {
        seen.lock().unwrap().push((it.id, it.message_id.clone()));
        Ok(Outcome::delivered())
    });
    let seen = seen.into_inner().unwrap();
    assert_eq!(
        seen.iter().map(|it| it.0).collect::<Vec<_>>(),
        [later, new.id]
    );
    assert_eq!(seen[1].1, before.message_id);
    let record = desk.outbox.audit(None, 10).unwrap();
    let record: Vec<_> = record
        .iter()
        .map(|it| (&*it.action, it.message, it.reason.as_deref().unwrap()))
        .collect();
    assert_eq!(
        record,
        [
            (
                "again_of",
                Some(new.id),
                "it is message 1, key S-1; not in the ERP"
            ),
            (
                "send_again",
                Some(id),
                "as message 3, key S-1-again; not in the ERP"
            ),
        ]
    );
}

#[test]
fn what_was_sent_again_is_said_to_be_and_no_more_complained_of() {
    let desk = Desk::new();
    let ids: Vec<_> = (0..2)
        .map(|_| desk.put(Message::text("sales", "x")))
        .collect();
    desk.sync(&portal);
    let found = desk.outbox.unnoticed().unwrap();
    assert_eq!(found[0].command[..2], ["send-again", "--all"], "{found:?}");
    desk.anna().send_again(ids[1], None).unwrap();
    let found = desk.outbox.unnoticed().unwrap();
    assert_eq!((found.len(), found[0].count), (1, 1), "{found:?}");
    assert_eq!(found[0].command, ["send-again", "id:1"]);
    let [before, after] = [ids[0], ids[1]].map(|it| desk.outbox.why(it).unwrap());
    assert!(
        !before.sent_again && before.advice().contains("send it again"),
        "{before}"
    );
    assert!(
        after.sent_again && after.advice().contains("sent again since"),
        "{after}"
    );
    assert!(
        after.sent_as == Some(3) && after.to_string().ends_with(" That is message 3."),
        "{after}"
    );
    assert_eq!((after.reason, after.fault), (Reason::Sent, Fault::Network));
}

#[test]
fn what_makes_no_sense_is_refused_with_what_to_do() {
    let desk = Desk::new();
    let anna = desk.anna();
    let dead = desk.put(Message::text("sales", "bad"));
    desk.sync(&rejects("bad"));
    let sent = desk.put(Message::text("sales", "x").dedupe_key("S-1"));
    let emptied = desk.put(Message::text("sales", "y").dedupe_key("S-2"));
    desk.sync(&up);
    desk.sql(
        "UPDATE outbox SET payload = '' WHERE id = 3;
         INSERT INTO outbox_meta VALUES ('retention_noted_at', 1)",
    );
    let waits = desk.put(Message::text("sales", "x").dedupe_key("S-3"));
    refused(anna.send_again(dead, None), "retry it");
    refused(anna.send_again(waits, None), "is pending: it will be sent");
    refused(anna.send_again(emptied, None), "has no payload any more");
    refused(anna.send_all_again(&Selection::new()), "only sent ones");
    refused(anna.retry(sent), "send-again");
    assert!(matches!(anna.send_again(99, None), Err(Error::NotFound(_))));
    assert!(matches!(
        anna.send_again(sent, Some("S-3")),
        Err(Error::Duplicate { id }) if id == waits
    ));
    assert!(matches!(
        anna.send_again(sent, Some("")),
        Err(Error::InvalidMessage { .. })
    ));
    let dry = anna.clone().dry_run().send_again(sent, None).unwrap();
    assert_eq!(
        (dry.dedupe_key.as_str(), desk.states().len()),
        ("S-1-again", 4)
    );
    anna.send_again(sent, Some("S-1-b")).unwrap();
    refused(anna.send_again(sent, None), "was sent again already");
    anna.send_again(sent, Some("S-1-c")).unwrap();
    // A key that is there already is not that of another one.
    desk.put(Message::text("sales", "x").dedupe_key("S-4-again"));
    let other = desk.put(Message::text("sales", "x").dedupe_key("S-4"));
    desk.sync(&up);
    refused(
        anna.send_again(other, None),
        "which message 7 has; give a key",
    );
}

/// The portal stood there for an hour, and the answer of the receiver came before and after.
#[test]
fn all_that_were_taken_in_a_window_go_out_again_once() {
    let desk = Desk::new();
    let json = |_: &Delivery| Ok(Outcome::Delivered(Receipt::default().answer("{}")));
    let mut begun = 0;
    for hour in 0..3 {
        if hour == 1 {
            begun = desk.clock.now();
        }
        for _ in 0..300 {
            desk.put(Message::text("sales", "x"));
        }
        desk.put(Message::text("other", "x"));
        match hour {
            1 => drop(desk.sync(&portal)),
            _ => drop(desk.sync(&json)),
        }
        desk.pass(HOUR);
    }
    let anna = desk.anna();
    let window = Selection::new().status(Status::Sent).channel("sales");
    let window = window.since(begun).before(begun + HOUR);
    assert_eq!(anna.count(&window).unwrap(), 300);
    assert_eq!(
        anna.selected(&taken()).unwrap(),
        anna.selected(&window).unwrap()
    );
    let first = anna.selected(&taken()).unwrap()[0];
    anna.send_again(first, Some("by hand")).unwrap();
    assert_eq!(
        anna.clone().dry_run().send_all_again(&taken()).unwrap(),
        299
    );
    assert_eq!(desk.outbox.stats().unwrap().total.unsent(), 1);
    assert_eq!(anna.send_all_again(&taken()).unwrap(), 299);
    assert_eq!(anna.send_all_again(&window).unwrap(), 0, "once is enough");
    assert_eq!(desk.outbox.stats().unwrap().total.unsent(), 300);
    assert!(
        desk.outbox
            .unnoticed()
            .unwrap()
            .iter()
            .all(|it| it.channel.as_deref() == Some("other"))
    );
}

/// A signal without content: its URL says it all.
#[test]
fn a_message_that_never_had_a_payload_is_sent_again() {
    let desk = Desk::new();
    let answered = desk.put(Message::text("sales", "").dedupe_key("S-1"));
    desk.sync(&portal);
    let silent = desk.put(Message::text("sales", "").dedupe_key("S-2"));
    desk.sync(&up);
    for id in [answered, silent] {
        let new = desk.anna().send_again(id, None).unwrap();
        assert!(desk.get(new.id).payload.is_empty());
    }
    // Once retention was here, an answer still tells that it did not touch the message.
    desk.sql("INSERT INTO outbox_meta VALUES ('retention_noted_at', 1)");
    desk.anna().send_again(answered, Some("S-1-b")).unwrap();
    refused(
        desk.anna().send_again(silent, Some("S-2-b")),
        "if it had none",
    );
}

/// The payload goes two weeks after it was sent.
#[test]
fn what_retention_has_emptied_is_left_out() {
    let desk = Desk::new();
    desk.put(Message::text("sales", "x"));
    desk.sync(&portal);
    desk.pass(20 * DAY);
    let mut drain: Inline = desk.drain_with(Settings::default());
    desk.live(&mut drain, 10 * MINUTE, &up);
    desk.doze(&mut drain, 2 * DAY, &up);
    assert!(desk.get(1).payload.is_empty());
    refused(desk.anna().send_again(1, None), "has no payload any more");
    let all = Selection::new().status(Status::Sent);
    assert_eq!(desk.anna().send_all_again(&all).unwrap(), 0);
}

/// A check of a file with many channels looks at fewer messages of each.
#[test]
fn of_many_channels_the_newest_few_are_looked_at() {
    for (channels, found) in [(1, 1), (40, 0)] {
        let desk = Desk::new();
        desk.sql(&format!(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 600)
             INSERT INTO outbox (channel, status, settled_at, answer, payload)
             SELECT 'sales', 'sent', n, CASE n WHEN 50 THEN '<html>' ELSE '{{}}' END, 'x' FROM n;
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {channels})
             INSERT INTO outbox (channel, status, settled_at, payload)
             SELECT 'channel ' || n, 'sent', n, 'x' FROM n WHERE n > 1"
        ));
        let pages = desk.outbox.unnoticed().unwrap();
        assert_eq!(pages.len(), found, "{channels}: {pages:?}");
    }
}
