//! A dedupe key that is taken: told, never doubled, and replaced only on request.

use std::time::Duration;

use sqlite_outbox::{Enqueued, Error, Message, OnDuplicate, Outbox, Status};

use crate::desk::{Desk, MINUTE, up};
use crate::fixture::{Till, argument, child, nap, put, succeeded};

fn sale(key: &str) -> Message {
    Message::text("sales", "12.50").dedupe_key(key)
}

#[test]
fn a_key_is_taken_in_every_status_and_only_in_its_channel() {
    let till = Till::new();
    let outbox = till.open();
    for status in Status::ALL {
        let key = status.as_str();
        let message = sale(key).ordering_key(key);
        let id = put(&outbox, &message).unwrap().id();
        let set = format!("UPDATE outbox SET status = '{key}' WHERE id = {id}");
        till.sql().execute_batch(&set).unwrap();
        assert_eq!(
            put(&outbox, &message).unwrap(),
            Enqueued::Duplicate { id },
            "{key}"
        );
        let elsewhere = Message::text("other", "12.50").dedupe_key(key);
        assert!(matches!(
            put(&outbox, &elsewhere).unwrap(),
            Enqueued::New { .. }
        ));
        till.sql()
            .execute("DELETE FROM outbox WHERE id = ?1", [id])
            .unwrap();
        let answer = put(&outbox, &message).unwrap();
        assert!(
            matches!(answer, Enqueued::New { id: new } if new > id),
            "{answer:?}"
        );
    }
}

/// The table in the documentation of `enqueue`, line by line.
#[test]
fn the_published_table_of_answers_holds() {
    let other = |key: &str| Message::text("sales", "99.00").dedupe_key(key);
    let replace = |key: &str| other(key).on_duplicate(OnDuplicate::Replace);
    let fail = |key: &str| sale(key).on_duplicate(OnDuplicate::Fail);
    let lines = [
        ("status = 'pending'", "conflict", "replaced"),
        ("claims = 1", "conflict", "conflict"),
        ("claims = 1, status = 'sending'", "conflict", "conflict"),
        ("status = 'sent'", "conflict", "conflict"),
        ("status = 'dead'", "conflict", "conflict"),
        ("status = 'expired'", "conflict", "conflict"),
        ("status = 'cancelled'", "conflict", "conflict"),
        ("status = 'sent', payload = ''", "duplicate", "duplicate"),
    ];
    let till = Till::new();
    let outbox = till.open();
    let word = |message: &Message| match put(&outbox, message) {
        Ok(Enqueued::New { .. }) => "new",
        Ok(Enqueued::Duplicate { .. }) => "duplicate",
        Ok(Enqueued::Conflict { .. }) => "conflict",
        Ok(Enqueued::Replaced { .. }) => "replaced",
        Err(Error::Duplicate { .. }) => "refused",
        Err(error) => panic!("{error:?}"),
    };
    for (change, other_content, latest) in lines {
        let id = put(&outbox, &sale(change)).unwrap().id();
        let set = format!("UPDATE outbox SET {change} WHERE id = {id}");
        till.sql().execute_batch(&set).unwrap();
        assert_eq!(word(&sale(change)), "duplicate", "{change}");
        assert_eq!(word(&fail(change)), "refused", "{change}");
        assert_eq!(word(&other(change)), other_content, "{change}");
        assert_eq!(word(&replace(change)), latest, "{change}");
        till.sql()
            .execute("DELETE FROM outbox WHERE id = ?1", [id])
            .unwrap();
        assert_eq!(word(&fail(change)), "new", "{change}");
    }
    // A message behind another one of its lane.
    let follower = |text: &str| {
        Message::text("sales", text)
            .dedupe_key("behind")
            .ordering_key("lane")
    };
    put(&outbox, &sale("before").ordering_key("lane")).unwrap();
    let id = put(&outbox, &follower("1")).unwrap().id();
    assert_eq!(outbox.get(id).unwrap().unwrap().status, Status::Waiting);
    assert_eq!(word(&follower("1")), "duplicate");
    assert_eq!(word(&follower("2")), "conflict");
    let latest = follower("2").on_duplicate(OnDuplicate::Replace);
    assert_eq!(word(&latest.clone().ordering_key("other lane")), "conflict");
    assert_eq!(word(&latest), "replaced");
}

#[test]
fn a_duplicate_with_other_content_is_a_conflict_and_changes_nothing() {
    let till = Till::new();
    let outbox = till.open();
    let full = || {
        sale("S-1")
            .event_type("sale")
            .recipient("r")
            .principal("p")
            .header("X-A", "1")
            .available_at(5)
            .expires_at(9)
    };
    put(&outbox, &full()).unwrap();
    let before = outbox.get(1).unwrap();
    let others = [
        Message::text("sales", "12.51").dedupe_key("S-1"),
        full().event_type("sale.changed"),
        full().recipient("s"),
        full().principal("q"),
        full().ordering_key("lane"),
        full().content_type("text/csv"),
        full().header("X-A", "2"),
        full().header("X-B", "1"),
        full().available_at(6),
        full().expires_at(10),
        sale("S-1"),
    ];
    let mut conn = outbox.connection().unwrap();
    let tx = conn.transaction().unwrap();
    for message in others {
        let answer = outbox.enqueue(&tx, &message).unwrap();
        assert_eq!(answer, Enqueued::Conflict { id: 1 }, "{message:?}");
    }
    assert_eq!(
        outbox.enqueue(&tx, &full()).unwrap(),
        Enqueued::Duplicate { id: 1 }
    );
    outbox.enqueue(&tx, &sale("S-2")).unwrap();
    tx.commit().unwrap();
    assert_eq!(outbox.get(1).unwrap(), before);
    assert_eq!(outbox.unsent().unwrap(), 2, "the transaction stayed usable");
    assert_eq!(outbox.stats().unwrap().conflicts, 0, "the caller was told");
}

#[test]
fn a_message_that_asks_for_it_is_kept_aside_and_the_transaction_goes_on() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &sale("S-1")).unwrap();
    let other = sale("S-1").header("X-Till", "4").keep_aside();
    for message in [&other, &other.clone().on_duplicate(OnDuplicate::Replace)] {
        let message = message.clone().ordering_key("customer-7");
        let answer = put(&outbox, &message).unwrap();
        assert_eq!(answer, Enqueued::Conflict { id: 1 });
    }
    let kept = outbox.conflicts(None, 0, 10).unwrap();
    assert_eq!(kept.len(), 1, "once for each content");
    assert_eq!(kept[0].headers.as_deref(), Some("{\"X-Till\":\"4\"}"));
    assert_eq!((kept[0].holder, outbox.unsent().unwrap()), (Some(1), 1));

    // What is no conflict leaves nothing there.
    let same = put(&outbox, &sale("S-1").keep_aside());
    assert_eq!(same.unwrap(), Enqueued::Duplicate { id: 1 });
    let refused = put(&outbox, &other.clone().on_duplicate(OnDuplicate::Fail));
    assert!(matches!(refused, Err(Error::Duplicate { id: 1 })));
    let latest = put(&outbox, &other.on_duplicate(OnDuplicate::Replace));
    assert_eq!(latest.unwrap(), Enqueued::Replaced { id: 1 });
    assert_eq!(outbox.conflicts(None, 0, 10).unwrap().len(), 1);
}

#[test]
fn text_and_the_same_bytes_are_the_same_content() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &sale("S-1")).unwrap();
    let bytes = Message::bytes("sales", "12.50").dedupe_key("S-1");
    let same = bytes.clone().content_type("text/plain; charset=utf-8");
    assert_eq!(put(&outbox, &same).unwrap(), Enqueued::Duplicate { id: 1 });
    assert_eq!(put(&outbox, &bytes).unwrap(), Enqueued::Conflict { id: 1 });
}

#[test]
fn spans_counted_from_the_enqueue_are_the_same_each_time() {
    let till = Till::new();
    let outbox = till.open();
    let span = Duration::from_secs(60);
    let message = sale("S-1").delay(span).ttl(span * 9);
    put(&outbox, &message).unwrap();
    nap(5);
    assert_eq!(
        put(&outbox, &message).unwrap(),
        Enqueued::Duplicate { id: 1 }
    );
    assert_eq!(
        put(&outbox, &sale("S-1")).unwrap(),
        Enqueued::Conflict { id: 1 }
    );
}

#[test]
fn a_payload_that_retention_emptied_is_no_other_content() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &sale("S-1")).unwrap();
    let emptied = "UPDATE outbox SET payload = '', status = 'sent'";
    till.sql().execute_batch(emptied).unwrap();
    assert_eq!(
        put(&outbox, &sale("S-1")).unwrap(),
        Enqueued::Duplicate { id: 1 }
    );
}

#[test]
fn a_duplicate_may_be_an_error() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &sale("S-1")).unwrap();
    let mut conn = outbox.connection().unwrap();
    let tx = conn.transaction().unwrap();
    let message = sale("S-1").on_duplicate(OnDuplicate::Fail);
    let error = outbox.enqueue(&tx, &message).unwrap_err();
    assert!(matches!(error, Error::Duplicate { id: 1 }), "{error:?}");
    outbox
        .enqueue(&tx, &sale("S-2").on_duplicate(OnDuplicate::Fail))
        .unwrap();
    tx.commit().unwrap();
    assert_eq!(outbox.unsent().unwrap(), 2);
}

#[test]
fn the_latest_replaces_what_was_never_attempted_in_its_place() {
    let till = Till::new();
    let outbox = till.open();
    put(
        &outbox,
        &sale("S-1")
            .ordering_key("lane")
            .available_at(77)
            .header("X-A", "1"),
    )
    .unwrap();
    put(&outbox, &sale("S-2").ordering_key("lane")).unwrap();
    let before = outbox.get(1).unwrap().unwrap();
    let newer = Message::bytes("sales", "new")
        .dedupe_key("S-1")
        .ordering_key("lane")
        .on_duplicate(OnDuplicate::Replace);
    assert_eq!(put(&outbox, &newer).unwrap(), Enqueued::Replaced { id: 1 });
    assert_eq!(put(&outbox, &newer).unwrap(), Enqueued::Duplicate { id: 1 });
    let after = outbox.get(1).unwrap().unwrap();
    assert_eq!(after.payload, b"new");
    assert_eq!(after.content_type, "application/octet-stream");
    assert_eq!(after.message_id, before.message_id);
    assert_eq!((after.status, after.next_attempt_at), (Status::Pending, 0));
    assert_eq!((after.available_at, after.headers), (None, None));

    let scheduled = newer.clone().available_at(99);
    assert_eq!(
        put(&outbox, &scheduled).unwrap(),
        Enqueued::Replaced { id: 1 }
    );
    assert_eq!(outbox.get(1).unwrap().unwrap().next_attempt_at, 99);

    let follower = Message::text("sales", "newer")
        .dedupe_key("S-2")
        .ordering_key("lane")
        .on_duplicate(OnDuplicate::Replace);
    assert_eq!(
        put(&outbox, &follower).unwrap(),
        Enqueued::Replaced { id: 2 }
    );
    assert_eq!(outbox.get(2).unwrap().unwrap().status, Status::Waiting);
}

#[test]
fn what_replaces_a_message_has_its_own_end_or_none() {
    let desk = Desk::new();
    let newer = |text: &str| {
        let message = Message::text("sales", text).dedupe_key("S-1");
        message.on_duplicate(OnDuplicate::Replace)
    };
    let id = desk.put(newer("old").ttl(Duration::from_secs(60)));
    desk.put(newer("new"));
    assert_eq!(desk.get(id).expires_at, None);
    desk.pass(5 * MINUTE);
    let mut drain = desk.drain();
    desk.live(&mut drain, 5 * MINUTE, &up);
    assert_eq!(desk.states(), ["sent"]);
}

#[test]
fn what_may_have_been_seen_or_stands_elsewhere_is_not_replaced() {
    let till = Till::new();
    let outbox = till.open();
    let newer = |key: &str| {
        Message::text("sales", "new")
            .dedupe_key(key)
            .on_duplicate(OnDuplicate::Replace)
    };
    let changes = [
        "claims = 1",
        "status = 'sending', claims = 1",
        "status = 'sent'",
        "status = 'dead'",
        "status = 'expired'",
        "status = 'cancelled'",
    ];
    for change in changes {
        let id = put(&outbox, &sale(change)).unwrap().id();
        let set = format!("UPDATE outbox SET {change} WHERE id = {id}");
        till.sql().execute_batch(&set).unwrap();
        let answer = put(&outbox, &newer(change)).unwrap();
        assert_eq!(answer, Enqueued::Conflict { id }, "{change}");
        assert_eq!(outbox.get(id).unwrap().unwrap().payload, b"12.50");
    }
    let id = put(&outbox, &sale("lane").ordering_key("a")).unwrap().id();
    let answer = put(&outbox, &newer("lane").ordering_key("b")).unwrap();
    assert_eq!(answer, Enqueued::Conflict { id });
}

#[test]
fn one_key_raced_for_by_threads_and_processes_is_one_message() {
    let till = Till::new();
    let outbox = till.open();
    let name = "duplicates::child_enqueues_the_same_key";
    let children: Vec<_> = (0..2)
        .map(|_| child(name, &till.path).spawn().unwrap())
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for key in 0..20 {
                    let answer = put(&outbox, &sale(&key.to_string())).unwrap();
                    assert!(!matches!(answer, Enqueued::Conflict { .. }));
                    let stored = outbox.get_by_key("sales", &key.to_string()).unwrap();
                    assert_eq!(stored.unwrap().id, answer.id());
                }
            });
        }
    });
    children.into_iter().for_each(succeeded);
    assert_eq!(outbox.unsent().unwrap(), 20);
}

#[test]
fn child_enqueues_the_same_key() {
    if let Some(path) = argument() {
        let outbox = Outbox::open_existing(path).unwrap();
        for key in 0..20 {
            put(&outbox, &sale(&key.to_string())).unwrap();
        }
    }
}
