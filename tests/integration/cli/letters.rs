//! Dead letters of very many kinds: what is told stays readable, and what is suggested works.

use super::Desk;
use crate::server::{Server, respond};

/// 1,200 channels with two dead letters each: one with its own code, one without any record.
fn many() -> Desk {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200)
             INSERT INTO outbox (id, channel, payload, status, settled_at, last_error)
             SELECT i, printf('ch%04d', i), 'x', 'dead', 1, 'wrong' FROM n UNION ALL
             SELECT 5000 + i, printf('ch%04d', i), 'x', 'dead', 1, 'lost' FROM n;
             INSERT INTO outbox_attempt (message, at, outcome, http_status)
             SELECT id, 1, iif(id % 2, 'http_422', 'timeout'), iif(id % 2, 422, NULL)
               FROM outbox WHERE id < 5000",
        )
        .unwrap();
    desk
}

#[test]
fn of_very_many_reasons_the_codes_are_told_with_commands_that_work() {
    let desk = many();
    let told = desk.done(["why", "till.db"]);
    assert!(told.lines().count() < 40, "{told}");
    for head in [
        "unknown: 1,200 dead letters in 1,200 channels",
        "http_422: 600 dead letters in 600 channels",
        "timeout: 600 dead letters in 600 channels",
    ] {
        assert!(told.contains(head), "{told}");
    }
    let commands: Vec<_> = told
        .lines()
        .filter(|it| it.starts_with("  outbox retry"))
        .collect();
    assert_eq!(commands.len(), 3, "{told}");
    let mut retried = Vec::new();
    for command in commands {
        let words = command.split_whitespace().skip(1);
        let args = words.map(|it| {
            if it.ends_with("till.db") {
                "till.db"
            } else {
                it
            }
        });
        retried.push(desk.done(args).lines().next().unwrap().to_string());
    }
    assert_eq!(
        retried,
        [
            "1,200 messages retried",
            "600 messages retried",
            "600 messages retried"
        ]
    );
}

#[test]
fn programs_are_told_each_channel_with_its_true_code() {
    let desk = many();
    let why = desk.json(["why", "till.db", "--json"]);
    let dead = why["dead"].as_array().unwrap();
    assert_eq!(dead.len(), 2_400);
    let known = ["unknown", "http_422", "timeout"];
    assert!(
        dead.iter()
            .all(|it| known.contains(&it["code"].as_str().unwrap()))
    );
}

/// In UTF-16 a surrogate without its other half is read as another character than is stored.
#[test]
fn dead_letters_of_a_channel_that_is_no_text_are_counted_in_a_file_of_utf_16() {
    let desk = Desk::empty();
    let conn = desk.sql();
    conn.execute_batch("PRAGMA encoding = 'UTF-16le'; CREATE TABLE sales (id)")
        .unwrap();
    drop(conn);
    desk.done(["init", "till.db"]);
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, payload, status, settled_at) VALUES
                 ('sales', 'x', 'dead', 1),
                 (CAST(x'00d8' AS TEXT), 'x', 'dead', 1), (CAST(x'00d8' AS TEXT), 'y', 'dead', 1)",
        )
        .unwrap();
    let why = desk.json(["why", "till.db", "--json"]);
    let mut counts: Vec<_> = why["dead"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["count"].as_u64())
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [Some(1), Some(2)], "{why}");
    assert_eq!(desk.done(["export", "till.db"]).lines().count(), 3);
}

/// Encodings of a file, and bytes that are no text in each.
const NO_TEXT: [(&str, &str); 3] = [
    ("UTF-8", "61ff"),
    ("UTF-16le", "00d8"),
    ("UTF-16be", "d800"),
];

fn written_in(encoding: &str) -> Desk {
    let desk = Desk::empty();
    desk.sql()
        .execute_batch(&format!(
            "PRAGMA encoding = '{encoding}'; CREATE TABLE sale (id)"
        ))
        .unwrap();
    desk.done(["init", "till.db"]);
    desk
}

/// A key that can be typed, and a list that is taken from an index as it goes over many others.
#[test]
fn messages_of_a_channel_that_is_no_text_are_found_and_listed_in_any_encoding() {
    for (encoding, broken) in NO_TEXT {
        let desk = written_in(encoding);
        desk.sql()
            .execute_batch(&format!(
                "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 100)
                 INSERT INTO outbox (channel, payload) SELECT 'sales', 'x' FROM n;
                 INSERT INTO outbox (channel, dedupe_key, payload, status, settled_at)
                 VALUES (CAST(x'{broken}' AS TEXT), 'S-1', 'x', 'dead', 1)"
            ))
            .unwrap();
        for which in ["S-1", "key:S-1"] {
            let shown = desk.json(["show", "till.db", which, "--json"]);
            assert_eq!(shown["id"], 101, "{encoding}");
        }
        let dead = ["list", "till.db", "--status=dead", "--limit=2", "--json"];
        assert_eq!(desk.run(dead).json()["id"], 101, "{encoding}");
    }
}

/// Their name cannot be typed, and all of them are meant.
#[test]
fn bulk_commands_miss_no_channel_that_is_no_text_in_any_encoding() {
    for (encoding, broken) in NO_TEXT {
        let desk = written_in(encoding);
        desk.sql()
            .execute_batch(&format!(
                "INSERT INTO outbox (channel, payload, status, settled_at) VALUES
                   ('sales', 'x', 'dead', 1), (CAST(x'{broken}' AS TEXT), 'x', 'dead', 1),
                   (CAST(x'{broken}' AS TEXT), 'y', 'dead', 1)"
            ))
            .unwrap();
        let count = |args: &[&str]| desk.run(args).json()["count"].clone();
        let one = [
            "retry",
            "till.db",
            "--all",
            "--channel=sales",
            "--dry-run",
            "--json",
        ];
        assert_eq!(count(&one), 1, "{encoding}");
        assert_eq!(
            count(&["retry", "till.db", "--all", "--json"]),
            3,
            "{encoding}"
        );
        assert_eq!(
            count(&["cancel", "till.db", "--all", "--json"]),
            3,
            "{encoding}"
        );
        let purge = ["purge", "till.db", "--older-than=0s", "--json"];
        let dry = purge.iter().chain(&["--dry-run"]);
        assert_eq!(desk.run(dry).json()["count"], 3, "{encoding}");
        assert_eq!(count(&purge), 3, "{encoding}");
    }
}

/// `why --help` promises that it ends with whose fault that is.
#[test]
fn each_group_of_dead_letters_is_told_with_whose_fault_it_is() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let server = Server::start(|_| respond(422, &[], "no such article"));
    desk.run(["drain", "till.db", "--url", &server.url("/")]);
    let told = desk.done(["why", "till.db"]);
    assert!(
        told.contains("The fault lies with the message itself."),
        "{told}"
    );
    let whole = desk.json(["why", "till.db", "--json"]);
    assert_eq!(whole["dead"][0]["fault"], "message", "{whole}");
}

/// The advice for it was refused until a drain had run.
#[test]
fn what_has_passed_its_expiry_unmarked_is_told_with_what_works() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.put("sales", "S-2", "text");
    desk.sql()
        .execute_batch("UPDATE outbox SET expires_at = created_at + 1 WHERE id = 1")
        .unwrap();
    let whole = desk.json(["why", "till.db", "--json"]);
    let groups = whole["groups"].as_array().unwrap();
    let told: Vec<_> = groups
        .iter()
        .map(|it| (it["messages"].as_u64(), it["why"]["reason_code"].as_str()))
        .collect();
    let expected = [(Some(1), Some("expired")), (Some(1), Some("due"))];
    assert_eq!(told, expected, "{whole}");
    let why = desk.json(["why", "till.db", "S-1", "--json"]);
    assert!(
        why["advice"].as_str().unwrap().contains("retry it then"),
        "{why}"
    );
    assert!(
        why["commands"][0]
            .as_str()
            .unwrap()
            .contains("once a drain has marked it"),
        "{why}"
    );
    let server = Server::start(|_| respond(200, &[], "{}"));
    let drain = ["drain", "till.db", "--url", &server.url("/")];
    assert!(desk.run(drain).out.contains("1 expired"));
    desk.done(["retry", "till.db", "S-1"]);
    desk.run(drain);
    assert_eq!(server.requests(), 2);
}
