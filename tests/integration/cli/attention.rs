//! Whoever watches over tills asks `status --attention`, and whoever is called asks `check`: they agree.

use sqlite_outbox::rusqlite::Connection;

use super::Desk;
use super::truths::now;
use crate::server::{Server, ok, respond};

const MINUTE: i64 = 60_000;
const DAY: i64 = 24 * 60 * MINUTE;

/// What happened to a till, and what both say of it.
type Story = (&'static str, fn(&Desk, &Connection), &'static str);

fn kept(desk: &Desk, sql: &str) {
    desk.sql().execute_batch(sql).unwrap();
}

fn refused(desk: &Desk) {
    desk.run(["drain", "till.db", "--url", "http://127.0.0.1:9/"]);
}

const STORIES: [Story; 7] = [
    (
        "a receiver that has not answered for three weeks",
        |desk, conn| {
            refused(desk);
            conn.execute("UPDATE outbox_channel SET since = ?1", [now() - 21 * DAY])
                .unwrap();
        },
        "sales: offline for 21 days",
    ),
    (
        "one that asks again and again to be left alone",
        |desk, conn| {
            let busy = Server::start(|_| respond(503, &[("Retry-After", "600")], ""));
            desk.run(["drain", "till.db", "--url", &busy.url("/")]);
            conn.execute("UPDATE outbox SET created_at = ?1", [now() - 2 * DAY])
                .unwrap();
        },
        "sales: holding",
    ),
    (
        "nobody drains",
        |_, conn| {
            conn.execute("UPDATE outbox SET created_at = ?1", [now() - 3 * DAY])
                .unwrap();
        },
        "nobody sends them",
    ),
    (
        "nobody probes",
        |desk, conn| {
            refused(desk);
            let long_ago = now() - 9 * DAY;
            conn.execute("UPDATE outbox_channel SET until = ?1", [long_ago])
                .unwrap();
            conn.execute(
                "UPDATE outbox SET created_at = ?1, next_attempt_at = ?1",
                [long_ago],
            )
            .unwrap();
        },
        "nobody sends them",
    ),
    (
        "scheduled in another unit",
        |desk, _| {
            kept(
                desk,
                "UPDATE outbox SET available_at = 1900000000000000, next_attempt_at = 1900000000000000",
            );
        },
        "scheduled more than ten years ahead",
    ),
    (
        "enqueued by a clock that ran ahead",
        |_, conn| {
            conn.execute("UPDATE outbox SET created_at = ?1", [now() + 3 * DAY])
                .unwrap();
        },
        "enqueued more than a day in the future",
    ),
    (
        "a head that fails and fails, and others behind it",
        |desk, conn| {
            for key in ["S-2", "S-3"] {
                desk.done([
                    "enqueue",
                    "till.db",
                    "--channel=sales",
                    "--ordering-key=till",
                    "--key",
                    key,
                    "{}",
                ]);
            }
            conn.execute_batch(&format!(
                "UPDATE outbox SET attempts = 7, next_attempt_at = {next}, last_error = 'HTTP 500'
                  WHERE dedupe_key = 'S-2';
                 INSERT INTO outbox_attempt (message, at, duration_ms, outcome, http_status, charged, error)
                 VALUES (2, {first}, 1, 'http_500', 500, 1, 'HTTP 500');
                 UPDATE outbox SET status = 'sent', settled_at = {now} WHERE dedupe_key = 'S-1'",
                next = now() + 60 * MINUTE,
                first = now() - 23 * 60 * MINUTE,
                now = now()
            ))
            .unwrap();
        },
        "sales: message 2 has failed for 23 h, and 1 of its ordering key wait behind it",
    ),
];

#[test]
fn what_check_counts_as_needing_a_person_status_counts_as_well() {
    for (what, happens, says) in STORIES {
        let desk = Desk::new();
        desk.put("sales", "S-1", "text");
        assert_eq!(desk.run(["status", "till.db", "--attention"]).code, 0);
        happens(&desk, &desk.sql());
        let check = desk.run(["check", "till.db"]);
        assert_eq!(check.code, 4, "{what}: {check:?}");
        assert!(check.out.contains(says), "{what}: {check:?}");
        let status = desk.run(["status", "till.db", "--attention"]);
        assert_eq!(status.code, 4, "{what}: {status:?}");
        assert!(status.out.contains(says), "{what}: {status:?}");
        // What is unsent may go on by itself: scripts rely on it.
        assert_eq!(desk.run(["status", "till.db"]).code, 0);
    }
}

/// A night, or a Sunday, is no reason to call anybody.
#[test]
fn a_receiver_that_has_been_away_for_hours_needs_nobody() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    refused(&desk);
    let hours = now() - 20 * 60 * MINUTE;
    desk.sql()
        .execute("UPDATE outbox_channel SET since = ?1", [hours])
        .unwrap();
    for look in [
        &["check", "till.db"][..],
        &["status", "till.db", "--attention"],
    ] {
        let ran = desk.run(look);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
}

#[test]
fn a_clock_that_ran_ahead_is_no_news_once_its_messages_are_sent() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let ahead = now() + 3 * DAY;
    desk.sql()
        .execute("UPDATE outbox SET created_at = ?1", [ahead])
        .unwrap();
    let told = |desk: &Desk| desk.run(["check", "till.db"]).out.contains("in the future");
    assert!(told(&desk));
    let server = Server::start(|_| ok());
    desk.done(["drain", "till.db", "--url", &server.url("/")]);
    assert!(!told(&desk));
}

/// It stands in the plain screen too: STATE says ok of a channel that nobody drains.
#[test]
fn status_says_that_nobody_sends() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let long_ago = now() - 3 * DAY;
    desk.sql()
        .execute("UPDATE outbox SET created_at = ?1", [long_ago])
        .unwrap();
    let status = desk.done(["status", "till.db"]);
    assert!(status.contains("nobody sends them"), "{status}");
    // Who asks why is told once.
    let why = desk.done(["why", "till.db"]);
    assert!(why.contains("no drain has left a trace"), "{why}");
    assert!(!why.contains("nobody sends them"), "{why}");
}
