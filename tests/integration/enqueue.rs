//! Enqueueing: both or neither, once per key, and never silently nothing.

use std::time::Duration;

use sqlite_outbox::rusqlite::TransactionBehavior;
use sqlite_outbox::{Enqueued, Error, Message, Outbox, Status, rusqlite};

use crate::fixture::{Till, column, nap, one, put};

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
fn a_message_takes_its_place_in_its_ordering_key_whatever_stands_before_it() {
    let heads = [
        ("pending", Status::Waiting),
        ("sending", Status::Waiting),
        ("dead", Status::Waiting),
        ("sent", Status::Pending),
        ("expired", Status::Pending),
        ("cancelled", Status::Pending),
    ];
    let till = Till::new();
    let outbox = till.open();
    for (head, expected) in heads {
        let first = put(&outbox, &sale(head).ordering_key(head)).unwrap().id();
        let set = format!("UPDATE outbox SET status = '{head}' WHERE id = {first}");
        till.sql().execute_batch(&set).unwrap();
        let followers = ["a", "b"].map(|it| {
            let message = Message::text("sales", it).ordering_key(head);
            put(&outbox, &message).unwrap().id()
        });
        let status = |id| outbox.get(id).unwrap().unwrap().status;
        assert_eq!(status(followers[0]), expected, "behind {head}");
        assert_eq!(status(followers[1]), Status::Waiting, "behind {head}");
        let elsewhere = Message::text("other", "x").ordering_key(head);
        assert_eq!(
            status(put(&outbox, &elsewhere).unwrap().id()),
            Status::Pending
        );
    }
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
                nap(50);
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
    assert!(matches!(error, Error::Incomplete { .. }), "{error:?}");
    assert!(error.to_string().contains("another file"), "{error}");
}
