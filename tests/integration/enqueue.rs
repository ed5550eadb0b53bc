//! Enqueueing: both or neither, once per key, and never silently nothing.

use std::time::Duration;

use sqlite_outbox::rusqlite::TransactionBehavior;
use sqlite_outbox::{
    Enqueued, Error, Filter, Message, OnDuplicate, Outbox, Result, Status, rusqlite,
};

use crate::fixture::{Till, argument, child, column, one, put, succeeded};

fn sale(key: &str) -> Message {
    Message::text("sales", "12.50").dedupe_key(key)
}

#[test]
fn a_committed_message_is_there_and_a_rolled_back_one_is_not() {
    let till = Till::with("CREATE TABLE sale (id TEXT)");
    let outbox = till.open();
    let mut conn = till.sql();
    for commit in [false, true] {
        let tx = conn.transaction().unwrap();
        tx.execute("INSERT INTO sale VALUES ('S-1')", []).unwrap();
        let answer = outbox.enqueue(&tx, &sale("S-1")).unwrap();
        assert_eq!(answer, Enqueued::New { id: 1 });
        assert_eq!(outbox.unsent().unwrap(), 0, "not before the commit");
        match commit {
            true => tx.commit().unwrap(),
            false => tx.rollback().unwrap(),
        }
        let there = u64::from(commit);
        assert_eq!(outbox.unsent().unwrap(), there);
        assert_eq!(
            one(&till.sql(), "SELECT count(*) FROM sale"),
            there.to_string()
        );
    }
}

#[test]
fn everything_said_of_a_message_is_stored() {
    let till = Till::new();
    let outbox = till.open();
    let message = Message::json("sales", &("a", 1))
        .unwrap()
        .dedupe_key("S-1")
        .event_type("sale.completed")
        .recipient("+49170")
        .ordering_key("till-7")
        .principal("anna")
        .header("X-Store", "17")
        .available_at(1_000)
        .expires_at(2_000);
    let id = put(&outbox, &message).unwrap().id();
    let entry = outbox.get(id).unwrap().unwrap();
    assert_eq!(entry.channel, "sales");
    assert_eq!(entry.dedupe_key, "S-1");
    assert_eq!(entry.event_type.as_deref(), Some("sale.completed"));
    assert_eq!(entry.recipient.as_deref(), Some("+49170"));
    assert_eq!(entry.ordering_key.as_deref(), Some("till-7"));
    assert_eq!(entry.principal.as_deref(), Some("anna"));
    assert_eq!(entry.content_type, "application/json");
    assert_eq!(entry.headers.as_deref(), Some(r#"{"X-Store":"17"}"#));
    assert_eq!(
        (entry.available_at, entry.expires_at),
        (Some(1_000), Some(2_000))
    );
    assert_eq!(entry.next_attempt_at, 1_000, "due when it is available");
    assert_eq!(entry.payload, br#"["a",1]"#);
    assert!(entry.payload_is_text);
    assert_eq!(entry.status, Status::Pending);
    assert_eq!((entry.claims, entry.attempts), (0, 0));
    assert_eq!(entry.message_id.len(), 32);
    assert!(entry.created_at > 1_700_000_000_000, "{}", entry.created_at);
}

#[test]
fn bytes_are_stored_as_they_are() {
    let till = Till::new();
    let outbox = till.open();
    let payloads: [&[u8]; 3] = [b"", &[0, 255, 13, 10], "ü\0x".as_bytes()];
    for payload in payloads {
        let id = put(&outbox, &Message::bytes("sales", payload))
            .unwrap()
            .id();
        let entry = outbox.get(id).unwrap().unwrap();
        assert_eq!(entry.payload, payload);
        assert!(!entry.payload_is_text);
    }
    let id = put(&outbox, &Message::text("sales", "ü\0x")).unwrap().id();
    assert_eq!(outbox.get(id).unwrap().unwrap().payload, "ü\0x".as_bytes());
}

#[test]
fn a_message_without_key_is_always_new() {
    let till = Till::new();
    let outbox = till.open();
    for id in 1..=3 {
        let answer = put(&outbox, &Message::text("sales", "same")).unwrap();
        assert_eq!(answer, Enqueued::New { id });
    }
}

#[test]
fn outside_a_transaction_nothing_is_stored() {
    let till = Till::new();
    let outbox = till.open();
    let conn = till.sql();
    let error = outbox.enqueue_on(&conn, &sale("S-1")).unwrap_err();
    assert!(matches!(error, Error::NoTransaction), "{error:?}");
    conn.execute_batch("BEGIN").unwrap();
    outbox.enqueue_on(&conn, &sale("S-1")).unwrap();
    conn.execute_batch("COMMIT").unwrap();
    assert_eq!(outbox.unsent().unwrap(), 1);
}

#[test]
fn a_transaction_that_was_ended_by_hand_is_refused() {
    let till = Till::new();
    let outbox = till.open();
    let mut conn = till.sql();
    let tx = conn.transaction().unwrap();
    tx.execute_batch("ROLLBACK").unwrap();
    let error = outbox.enqueue(&tx, &sale("S-1")).unwrap_err();
    assert!(matches!(error, Error::TransactionGone), "{error:?}");
    let error = outbox.enqueue_all(&tx, [&sale("S-1")]).unwrap_err();
    assert!(matches!(error, Error::TransactionGone), "{error:?}");
    drop(tx);
    assert_eq!(outbox.unsent().unwrap(), 0);
}

#[test]
fn a_savepoint_takes_its_messages_back() {
    let till = Till::new();
    let outbox = till.open();
    let mut conn = till.sql();
    let mut tx = conn.transaction().unwrap();
    let savepoint = tx.savepoint().unwrap();
    outbox.enqueue_in(&savepoint, &sale("S-1")).unwrap();
    savepoint.commit().unwrap();
    let savepoint = tx.savepoint().unwrap();
    outbox.enqueue_in(&savepoint, &sale("S-2")).unwrap();
    drop(savepoint);
    tx.commit().unwrap();
    assert_eq!(
        column(&till.sql(), "SELECT dedupe_key FROM outbox"),
        ["S-1"]
    );
}

/// A connection that finds the disk full soon.
fn nearly_full(till: &Till) -> rusqlite::Connection {
    let conn = till.sql();
    let pages: u32 = one(&conn, "PRAGMA page_count").parse().unwrap();
    let limit = format!("PRAGMA max_page_count = {}", pages + 40);
    conn.execute_batch(&limit).unwrap();
    conn
}

#[test]
fn a_full_disk_is_named_and_nothing_of_the_transaction_stays() {
    let till = Till::with("CREATE TABLE sale (id TEXT)");
    let outbox = till.open();
    let mut conn = nearly_full(&till);
    let message = Message::bytes("sales", vec![7; 20_000]);
    let tx = conn
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    tx.execute("INSERT INTO sale VALUES ('S-1')", []).unwrap();
    let error = (0..100)
        .find_map(|_| outbox.enqueue(&tx, &message).err())
        .unwrap();
    assert!(matches!(error, Error::DiskFull(_)), "{error:?}");
    assert!(
        std::error::Error::source(&error).is_some(),
        "the cause is kept"
    );
    drop(tx);
    assert_eq!(one(&till.sql(), "SELECT count(*) FROM sale"), "0");
    assert_eq!(outbox.unsent().unwrap(), 0);

    conn.execute_batch("PRAGMA max_page_count = 1000000")
        .unwrap();
    let tx = conn.transaction().unwrap();
    outbox.enqueue(&tx, &message).unwrap();
    tx.commit().unwrap();
    assert_eq!(outbox.unsent().unwrap(), 1);
}

#[test]
fn nothing_is_added_to_a_transaction_that_a_full_disk_has_ended() {
    let till = Till::with("CREATE TABLE sale (id TEXT)");
    let outbox = till.open();
    let mut conn = nearly_full(&till);
    let mut tx = conn
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    outbox.enqueue(&tx, &sale("S-1")).unwrap();
    let fill = "INSERT INTO sale VALUES (hex(zeroblob(20000)))";
    while tx.execute(fill, []).is_ok() {}
    // The application did not notice.
    for _ in 0..2 {
        let error = outbox.enqueue(&tx, &sale("S-2")).unwrap_err();
        assert!(matches!(error, Error::TransactionGone), "{error:?}");
    }
    let error = outbox.enqueue_on(&tx, &sale("S-2")).unwrap_err();
    assert!(matches!(error, Error::NoTransaction), "{error:?}");
    tx.set_drop_behavior(rusqlite::DropBehavior::Ignore);
    tx.commit().unwrap_err();
    assert_eq!(one(&till.sql(), "SELECT count(*) FROM sale"), "0");
    assert_eq!(outbox.unsent().unwrap(), 0);
}

#[test]
fn a_transaction_that_read_before_another_wrote_is_to_be_restarted() {
    let till = Till::new();
    let outbox = till.open();
    for message in [sale("S-1"), Message::text("sales", "x")] {
        let mut conn = till.sql();
        let tx = conn.transaction().unwrap();
        one(&tx, "SELECT count(*) FROM outbox");
        put(&outbox, &Message::text("other", "x")).unwrap();
        let before = outbox.unsent().unwrap();
        let error = outbox.enqueue(&tx, &message).unwrap_err();
        assert!(matches!(error, Error::RestartTransaction(_)), "{error:?}");
        assert!(!error.is_transient(), "the same call cannot succeed");
        drop(tx);
        assert_eq!(outbox.unsent().unwrap(), before);
        let tx = conn.transaction().unwrap();
        outbox.enqueue(&tx, &message).unwrap();
        tx.commit().unwrap();
    }
}

#[test]
fn a_deferred_transaction_that_begins_with_the_enqueue_waits_for_the_lock() {
    let till = Till::new();
    let limited = Outbox::options().max_unsent(100).open(&till.path).unwrap();
    for outbox in [till.open(), limited] {
        for message in [sale("S-1"), Message::text("sales", "x")] {
            let other = till.sql();
            other
                .execute_batch("BEGIN IMMEDIATE; UPDATE outbox_meta SET value = value")
                .unwrap();
            let mut conn = till.sql();
            std::thread::scope(|scope| {
                let answer = scope.spawn(|| {
                    let tx = conn.transaction().unwrap();
                    outbox.enqueue(&tx, &message).unwrap();
                    tx.commit().unwrap();
                });
                std::thread::sleep(Duration::from_millis(50));
                other.execute_batch("COMMIT").unwrap();
                answer.join().unwrap();
            });
        }
    }
}

#[test]
fn a_lock_held_too_long_is_busy_and_nothing_is_stored() {
    let till = Till::new();
    let outbox = till.open();
    let other = till.sql();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut conn = till.sql();
    conn.busy_timeout(Duration::from_millis(20)).unwrap();
    let tx = conn.transaction().unwrap();
    let error = outbox.enqueue(&tx, &sale("S-1")).unwrap_err();
    assert!(matches!(error, Error::Busy(_)), "{error:?}");
    assert!(error.is_transient());
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(
        outbox.enqueue(&tx, &sale("S-1")).unwrap(),
        Enqueued::New { id: 1 }
    );
    tx.commit().unwrap();
    assert_eq!(
        put(&outbox, &sale("S-1")).unwrap(),
        Enqueued::Duplicate { id: 1 }
    );
}

#[test]
fn a_commit_that_cannot_be_had_stores_nothing() {
    // Without the write-ahead log a reader keeps others from committing.
    let till = Till::with("PRAGMA journal_mode = DELETE; CREATE TABLE sale (id)");
    let outbox = till.open();
    put(&outbox, &sale("S-0")).unwrap();
    let reader = till.sql();
    let mut statement = reader.prepare("SELECT id FROM outbox").unwrap();
    let mut rows = statement.query([]).unwrap();
    rows.next().unwrap();
    let mut conn = till.sql();
    conn.busy_timeout(Duration::from_millis(20)).unwrap();
    let tx = conn.transaction().unwrap();
    outbox.enqueue(&tx, &sale("S-1")).unwrap();
    let error = Error::from(tx.commit().unwrap_err());
    assert!(matches!(error, Error::Busy(_)), "{error:?}");
    drop(rows);
    assert_eq!(outbox.unsent().unwrap(), 1);
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
    std::thread::sleep(Duration::from_millis(5));
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
    let name = "enqueue::child_enqueues_the_same_key";
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

#[test]
fn many_at_once_have_the_same_answers_in_their_order() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &sale("taken")).unwrap();
    let messages = [
        sale("a"),
        sale("a"),
        Message::text("sales", "other").dedupe_key("a"),
        sale("taken"),
        Message::text("", "no channel"),
        sale("b").on_duplicate(OnDuplicate::Fail),
        sale("b").on_duplicate(OnDuplicate::Fail),
        sale("c"),
    ];
    let answers: Result<_> = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
    let answers = answers.unwrap();
    let good = |index: usize| *answers[index].as_ref().unwrap();
    assert_eq!(answers.len(), messages.len());
    assert_eq!(good(0), Enqueued::New { id: 2 });
    assert_eq!(good(1), Enqueued::Duplicate { id: 2 });
    assert_eq!(good(2), Enqueued::Conflict { id: 2 });
    assert_eq!(good(3), Enqueued::Duplicate { id: 1 });
    assert!(matches!(
        answers[4],
        Err(Error::InvalidMessage {
            field: "channel",
            ..
        })
    ));
    assert_eq!(good(5), Enqueued::New { id: 3 });
    assert!(matches!(answers[6], Err(Error::Duplicate { id: 3 })));
    assert_eq!(good(7), Enqueued::New { id: 4 });
    assert_eq!(outbox.unsent().unwrap(), 4);
}

#[test]
fn a_failure_of_sqlite_ends_the_whole_batch() {
    let till = Till::new();
    let outbox = till.open();
    till.sql()
        .execute_batch(
            "CREATE TRIGGER no_more BEFORE INSERT ON outbox WHEN NEW.dedupe_key = 'b'
             BEGIN SELECT RAISE(ABORT, 'not this one'); END",
        )
        .unwrap();
    let messages = [sale("a"), sale("b"), sale("c")];
    let error: Error = outbox
        .transaction(|tx| outbox.enqueue_all(tx, &messages))
        .unwrap_err();
    assert!(matches!(error, Error::Sqlite(_)), "{error:?}");
    assert_eq!(outbox.unsent().unwrap(), 0);
}

#[test]
fn a_message_that_a_trigger_swallows_is_an_error() {
    let till = Till::new();
    let outbox = till.open();
    till.sql()
        .execute_batch(
            "CREATE TRIGGER silence BEFORE INSERT ON outbox BEGIN SELECT RAISE(IGNORE); END",
        )
        .unwrap();
    for message in [sale("a"), Message::text("sales", "x")] {
        let error = put(&outbox, &message).unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error:?}");
    }
}

#[test]
fn a_refused_message_leaves_the_transaction_usable() {
    let till = Till::new();
    let outbox = Outbox::options().max_payload(10).open(&till.path).unwrap();
    let bad = [
        Message::text("", "x"),
        Message::text("a:b", "x"),
        sale("line\nbreak"),
        sale(""),
        sale("a").recipient("x".repeat(513)),
        sale("a").header("Authorization", "Bearer s3cret"),
        sale("a").header("x-api-key", "s3cret"),
        sale("a").header("Cookie", "s3cret"),
        sale("a").header("X-A", "a\r\nX-B: b"),
        sale("a").header("X A", "a"),
        sale("a").header("", "a"),
        sale("a").header("X-A", "ü"),
        sale("a").header("X-A", "a".repeat(20_000)),
        sale("a").content_type("text/plain\r\n"),
        sale("a").available_at(-1),
    ];
    let mut conn = outbox.connection().unwrap();
    let tx = conn.transaction().unwrap();
    for message in bad {
        let error = outbox.enqueue(&tx, &message).unwrap_err();
        assert!(
            matches!(error, Error::InvalidMessage { .. }),
            "{message:?}: {error:?}"
        );
        assert!(!error.to_string().contains("s3cret"));
    }
    let error = outbox
        .enqueue(&tx, &Message::text("sales", "x".repeat(11)))
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::TooLarge {
                bytes: 11,
                limit: 10
            }
        ),
        "{error:?}"
    );
    outbox.enqueue(&tx, &sale("good")).unwrap();
    tx.commit().unwrap();
    assert_eq!(outbox.list(&Filter::new()).unwrap().len(), 1);
    drop(conn);
    drop(outbox);
    let bytes = std::fs::read(&till.path).unwrap();
    assert!(!bytes.windows(6).any(|it| it == b"s3cret"));
}

#[test]
fn a_full_outbox_takes_duplicates_but_nothing_new() {
    let till = Till::new();
    let outbox = Outbox::options().max_unsent(50).open(&till.path).unwrap();
    let all: Vec<_> = (0..60).map(|it| sale(&it.to_string())).collect();
    let answers: Result<_> = outbox.transaction(|tx| outbox.enqueue_all(tx, &all));
    let full = |it: &Result<Enqueued>| {
        matches!(
            it,
            Err(Error::OutboxFull {
                unsent: 50,
                limit: 50
            })
        )
    };
    let answers = answers.unwrap();
    assert!(answers[..50].iter().all(Result::is_ok));
    assert!(answers[50..].iter().all(full));
    assert_eq!(
        put(&outbox, &sale("7")).unwrap(),
        Enqueued::Duplicate { id: 8 }
    );
    let sent = "UPDATE outbox SET status = 'sent' WHERE id = 8";
    till.sql().execute_batch(sent).unwrap();
    put(&outbox, &sale("50")).unwrap();
    assert!(full(&put(&outbox, &sale("51"))));
    assert_eq!(outbox.unsent().unwrap(), 50);
}

#[test]
fn a_rolled_back_batch_does_not_use_up_the_room() {
    let till = Till::new();
    let outbox = Outbox::options().max_unsent(20).open(&till.path).unwrap();
    for _ in 0..5 {
        let answer: std::result::Result<(), Error> = outbox.transaction(|tx| {
            for key in 0..15 {
                outbox.enqueue(tx, &sale(&key.to_string()))?;
            }
            Err(Error::Refused("the sale was cancelled".into()))
        });
        assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
    }
    for key in 0..20 {
        put(&outbox, &sale(&key.to_string())).unwrap();
    }
    assert!(matches!(
        put(&outbox, &sale("20")),
        Err(Error::OutboxFull { .. })
    ));
}

#[test]
fn an_error_in_the_transaction_is_told_and_nothing_stays() {
    let till = Till::new();
    let outbox = till.open();
    let error = outbox
        .transaction(
            |tx| -> std::result::Result<(), Box<dyn std::error::Error>> {
                outbox.enqueue(tx, &sale("S-1"))?;
                tx.execute("INSERT INTO no_such_table VALUES (1)", [])?;
                Ok(())
            },
        )
        .unwrap_err();
    assert!(error.is::<rusqlite::Error>(), "{error:?}");
    assert_eq!(outbox.unsent().unwrap(), 0);
}

#[test]
fn a_database_without_outbox_is_an_error_and_not_silence() {
    let till = Till::new();
    let outbox = till.open();
    let other = Till::with("CREATE TABLE sale (id)");
    let mut conn = other.sql();
    let tx = conn.transaction().unwrap();
    let error = outbox.enqueue(&tx, &sale("S-1")).unwrap_err();
    assert!(matches!(error, Error::Sqlite(_)), "{error:?}");
}
