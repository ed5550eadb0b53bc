//! What programs in any language may rely on when they write the tables by plain SQL.

use sqlite_outbox::rusqlite::{Connection, Result};
use sqlite_outbox::{Enqueued, Message, Status};

use crate::fixture::{Till, column, one, put};

/// The minimal insert of the documentation.
const INSERT: &str = "INSERT INTO outbox (channel, dedupe_key, payload) VALUES (?1, ?2, ?3)
                      ON CONFLICT (channel, dedupe_key) DO NOTHING";

fn till() -> (Till, Connection) {
    let till = Till::new();
    till.open();
    let conn = till.sql();
    (till, conn)
}

fn lane(conn: &Connection) -> Vec<String> {
    column(conn, "SELECT id || ' ' || status FROM outbox ORDER BY id")
}

fn refused(answer: Result<()>) -> String {
    answer.unwrap_err().to_string()
}

#[test]
fn the_minimal_insert_is_a_whole_message() {
    let (till, conn) = till();
    conn.execute(INSERT, ("sales", "S-1", "{}")).unwrap();
    let entry = till.open().get_by_key("sales", "S-1").unwrap().unwrap();
    assert_eq!((entry.id, entry.status), (1, Status::Pending));
    assert_eq!(
        (entry.next_attempt_at, entry.claims, entry.attempts),
        (0, 0, 0)
    );
    assert_eq!(entry.content_type, "application/json");
    assert_eq!(entry.payload, b"{}");
    assert_eq!(entry.message_id.len(), 32);
    let now = one(
        &conn,
        "SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000",
    );
    assert!((entry.created_at - now.parse::<i64>().unwrap()).abs() < 60_000);
    let only = "INSERT INTO outbox (channel, payload) VALUES ('sales', x'00ff')";
    conn.execute(only, []).unwrap();
    assert_eq!(till.open().get(2).unwrap().unwrap().dedupe_key.len(), 32);
}

#[test]
fn sql_and_the_library_see_one_key() {
    let (till, conn) = till();
    let outbox = till.open();
    conn.execute(INSERT, ("sales", "S-1", "{}")).unwrap();
    let message = Message::json("sales", &serde_json::json!({}))
        .unwrap()
        .dedupe_key("S-1");
    assert_eq!(
        put(&outbox, &message).unwrap(),
        Enqueued::Duplicate { id: 1 }
    );
    put(&outbox, &message.clone().dedupe_key("S-2")).unwrap();
    conn.execute(INSERT, ("sales", "S-2", "{}")).unwrap();
    assert_eq!(outbox.unsent().unwrap(), 2);
    assert_eq!(outbox.stats().unwrap().conflicts, 0);
}

#[test]
fn a_duplicate_with_other_content_is_kept_aside_and_shown() {
    let (till, conn) = till();
    conn.execute(INSERT, ("sales", "S-1", "{}")).unwrap();
    for payload in ["{}", "[1]", "[1]", "[2]"] {
        assert_eq!(conn.execute(INSERT, ("sales", "S-1", payload)).unwrap(), 0);
    }
    let kept = "SELECT payload FROM outbox_conflict ORDER BY id";
    assert_eq!(column(&conn, kept), ["[1]", "[2]"]);
    let stats = till.open().stats().unwrap();
    assert_eq!((stats.conflicts, stats.total.pending), (2, 1));
    assert!(stats.to_string().ends_with("2 need attention"), "{stats}");
}

#[test]
fn a_duplicate_that_differs_in_any_column_is_kept_aside_once() {
    let values = [
        ("payload", ["'[1]'", "x'7b7d00'"]),
        ("event_type", ["'sale'", "'refund'"]),
        ("recipient", ["'anna'", "'boris'"]),
        ("ordering_key", ["'till-1'", "'till-2'"]),
        ("principal", ["'anna'", "'boris'"]),
        ("content_type", ["'text/plain'", "'text/csv'"]),
        (
            "headers",
            ["'{\"X-Kind\": \"a\"}'", "'{\"X-Kind\": \"b\"}'"],
        ),
        ("available_at", ["5000", "6000"]),
        ("expires_at", ["4000000000000", "5000000000000"]),
    ];
    for (name, others) in values {
        let (_till, conn) = till();
        let put = |value: Option<&str>| {
            let (payload, more, value) = match (name, value) {
                ("payload", Some(value)) => (value, "", String::new()),
                (_, Some(value)) => ("'{}'", name, value.to_string()),
                (_, None) => ("'{}'", "", String::new()),
            };
            let comma = if more.is_empty() { "" } else { ", " };
            let insert = format!(
                "INSERT INTO outbox (channel, dedupe_key, payload{comma}{more})
                 VALUES ('sales', 'S-1', {payload}{comma}{value})
                 ON CONFLICT (channel, dedupe_key) DO NOTHING"
            );
            conn.execute(&insert, []).unwrap()
        };
        assert_eq!(put(None), 1);
        for other in [others[0], others[0], others[1], others[0]] {
            assert_eq!(put(Some(other)), 0);
        }
        assert_eq!(put(None), 0);
        let kept = format!("SELECT quote({name}) FROM outbox_conflict ORDER BY id");
        let others = others.map(|it| it.replace("x'7b7d00'", "X'7B7D00'"));
        assert_eq!(column(&conn, &kept), others, "{name}");
    }
}

#[test]
fn or_ignore_does_not_swallow_an_impossible_message() {
    let (_till, conn) = till();
    let bad = [
        "(channel, payload) VALUES (NULL, 'x')",
        "(channel, payload) VALUES ('', 'x')",
        "(channel, payload) VALUES ('a:b', 'x')",
        "(channel, payload) VALUES (x'61', 'x')",
        "(channel, payload) VALUES ('sales', NULL)",
        "(channel, payload) VALUES ('sales', 12)",
        "(channel, payload, dedupe_key) VALUES ('sales', 'x', NULL)",
        "(channel, payload, dedupe_key) VALUES ('sales', 'x', '')",
        "(channel, payload, status) VALUES ('sales', 'x', 'done')",
        "(channel, payload, status) VALUES ('sales', 'x', 'waiting')",
        "(channel, payload, next_attempt_at) VALUES ('sales', 'x', -5)",
        "(channel, payload, claims) VALUES ('sales', 'x', 9223372036854775807)",
        "(channel, payload, attempts) VALUES ('sales', 'x', -1)",
        "(channel, payload, expires_at) VALUES ('sales', 'x', 'tomorrow')",
        "(channel, payload, available_at) VALUES ('sales', 'x', 'now')",
        "(channel, payload, headers) VALUES ('sales', 'x', x'7b7d')",
        "(channel, payload, ordering_key) VALUES ('sales', 'x', '')",
    ];
    for values in bad {
        for verb in ["INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE"] {
            let error = refused(conn.execute_batch(&format!("{verb} INTO outbox {values}")));
            assert!(error.contains("outbox"), "{verb} {values}: {error}");
        }
    }
    assert_eq!(one(&conn, "SELECT count(*) FROM outbox"), "0");
}

#[test]
fn a_scheduled_message_is_due_at_its_time() {
    let (_till, conn) = till();
    conn.execute_batch(
        "INSERT INTO outbox (channel, payload, available_at) VALUES ('sales', 'x', 5000);
         INSERT INTO outbox (channel, payload, available_at, ordering_key)
                VALUES ('sales', 'x', 6000, 'a');",
    )
    .unwrap();
    let due = "SELECT next_attempt_at FROM outbox ORDER BY id";
    assert_eq!(column(&conn, due), ["5000", "6000"]);
    conn.execute_batch("UPDATE outbox SET available_at = 7000 WHERE id = 1")
        .unwrap();
    conn.execute_batch("UPDATE outbox SET available_at = NULL WHERE id = 2")
        .unwrap();
    assert_eq!(column(&conn, due), ["7000", "0"]);
    // Once it was tried, it is due when its back-off is over.
    conn.execute_batch(
        "UPDATE outbox SET claims = 1, next_attempt_at = 8000 WHERE id = 1;
         UPDATE outbox SET available_at = 9000 WHERE id = 1;",
    )
    .unwrap();
    assert_eq!(column(&conn, due), ["8000", "0"]);
}

#[test]
fn only_the_first_of_an_ordering_key_is_pending() {
    let (_till, conn) = till();
    for (channel, key) in [
        ("sales", "a"),
        ("sales", "a"),
        ("sales", "b"),
        ("other", "a"),
        ("sales", "a"),
    ] {
        let insert = "INSERT INTO outbox (channel, ordering_key, payload) VALUES (?1, ?2, 'x')";
        conn.execute(insert, (channel, key)).unwrap();
    }
    assert_eq!(
        lane(&conn),
        [
            "1 pending",
            "2 waiting",
            "3 pending",
            "4 pending",
            "5 waiting"
        ]
    );
    conn.execute_batch("UPDATE outbox SET status = 'cancelled' WHERE id = 1")
        .unwrap();
    assert_eq!(lane(&conn)[..2], ["1 cancelled", "2 pending"]);
    conn.execute_batch("DELETE FROM outbox WHERE id = 2")
        .unwrap();
    assert_eq!(
        lane(&conn),
        ["1 cancelled", "3 pending", "4 pending", "5 pending"]
    );
}

#[test]
fn a_dead_message_holds_its_ordering_key_unless_the_channel_skips() {
    for (policy, behind) in [("hold", "waiting"), ("skip", "pending")] {
        let (_till, conn) = till();
        conn.execute(
            "INSERT INTO outbox_channel (channel, on_dead) VALUES ('sales', ?1)",
            [policy],
        )
        .unwrap();
        for _ in 0..2 {
            conn.execute_batch(
                "INSERT INTO outbox (channel, ordering_key, payload) VALUES ('sales', 'a', 'x')",
            )
            .unwrap();
        }
        conn.execute_batch("UPDATE outbox SET status = 'dead' WHERE id = 1")
            .unwrap();
        assert_eq!(lane(&conn), ["1 dead".into(), format!("2 {behind}")]);
    }
}

#[test]
fn a_message_never_moves_to_another_place() {
    let (_till, conn) = till();
    conn.execute_batch(
        "INSERT INTO outbox (channel, ordering_key, payload) VALUES ('sales', 'a', 'x')",
    )
    .unwrap();
    for change in [
        "id = 7",
        "channel = 'other'",
        "ordering_key = 'b'",
        "ordering_key = NULL",
    ] {
        let error = refused(conn.execute_batch(&format!("UPDATE outbox SET {change}")));
        assert!(error.contains("never change"), "{change}: {error}");
    }
}

#[test]
fn an_id_is_never_given_twice() {
    let (_till, conn) = till();
    conn.execute(INSERT, ("sales", "S-1", "x")).unwrap();
    conn.execute_batch("DELETE FROM outbox").unwrap();
    conn.execute(INSERT, ("sales", "S-1", "x")).unwrap();
    assert_eq!(column(&conn, "SELECT id FROM outbox"), ["2"]);
}

#[test]
fn a_replaced_message_frees_its_place_in_the_lane() {
    let (_till, conn) = till();
    conn.execute_batch(
        "INSERT INTO outbox (channel, dedupe_key, ordering_key, payload) VALUES ('sales', 'k', 'a', 'x');
         INSERT INTO outbox (channel, ordering_key, payload) VALUES ('sales', 'a', 'y');
         INSERT OR REPLACE INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'k', 'z');",
    )
    .unwrap();
    assert_eq!(lane(&conn), ["2 pending", "3 pending"]);
    assert_eq!(one(&conn, "SELECT count(*) FROM outbox_conflict"), "0");
}

#[test]
fn the_views_for_people_show_what_stands_where() {
    let (_till, conn) = till();
    conn.execute(INSERT, ("sales", "S-1", "x")).unwrap();
    conn.execute(INSERT, ("sales", "S-2", "x")).unwrap();
    conn.execute_batch(
        "UPDATE outbox SET status = 'dead', settled_at = 0, last_error = 'no such item' WHERE id = 2",
    )
    .unwrap();
    let line = "SELECT channel || ' ' || pending || ' ' || dead || ' ' || state FROM outbox_status";
    assert_eq!(one(&conn, line), "sales 1 1 ok");
    let dead = "SELECT dedupe_key || ' ' || dead_since_utc || ' ' || last_error FROM outbox_dead";
    assert_eq!(one(&conn, dead), "S-2 1970-01-01 00:00:00 no such item");
}
