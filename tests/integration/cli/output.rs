//! What reaches a terminal, a pipe and a person.

use std::io::{BufRead, BufReader};

use super::{Desk, ended};
use crate::server::{Server, ok};

/// Clears the screen, rings, turns the direction, and pretends to be another line.
const EVIL: &str = "\u{1b}[2J\u{7}\u{9b}31m\u{202e}\r\nfine\u{7f}";

fn harmless(text: &str) {
    let bad = |it: char| it != '\n' && (it.is_control() || it == '\u{202e}');
    assert!(!text.contains(bad), "{text:?}");
}

#[test]
fn no_control_character_of_a_message_reaches_the_terminal() {
    let desk = Desk::new();
    desk.sql()
        .execute(
            "INSERT INTO outbox (channel, dedupe_key, ordering_key, event_type, payload, status,
                                 last_error, provider_id, answer, headers, message_id)
             VALUES (?1, ?1, ?1, ?1, ?1, 'dead', ?1, ?1, ?1, ?1, ?1)",
            [EVIL],
        )
        .unwrap();
    for command in [
        vec!["list", "till.db"],
        vec!["list", "till.db", "--json"],
        vec!["show", "till.db", "1"],
        vec!["show", "till.db", "1", "--json"],
        vec!["status", "till.db"],
        vec!["status", "till.db", "--json"],
        vec!["show", "till.db", EVIL, "--channel", "x"],
        vec!["list", EVIL],
        vec!["drain", "till.db", "--url", EVIL],
    ] {
        let ran = desk.run(command);
        harmless(&ran.out);
        harmless(&ran.err);
    }
    let row = desk.json(["show", "till.db", "1", "--json"]);
    assert_eq!(row["payload"], EVIL);
    assert_eq!(row["last_error"], EVIL);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let desk = Desk::new();
    let lines = "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]\n".repeat(2_000);
    desk.feed(lines, ["enqueue", "till.db", "--channel=a", "--lines=-"]);
    let mut child = desk.command(["list", "till.db", "--json"]).spawn().unwrap();
    let mut first = String::new();
    let mut reader = BufReader::with_capacity(64, child.stdout.take().unwrap());
    reader.read_line(&mut first).unwrap();
    drop(reader);
    let ran = ended(child);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[test]
fn an_exit_code_holds_when_nobody_reads() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let closed = Server::start(|_| ok()).url("/");
    let mut child = desk
        .command(["drain", "till.db", "--url", &closed])
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ran = ended(child);
    assert_eq!((ran.code, ran.err.as_str()), (3, ""));
}

#[test]
fn no_read_transaction_is_held_while_a_pager_waits() {
    let desk = Desk::new();
    let lines = "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]\n".repeat(2_000);
    desk.feed(lines, ["enqueue", "till.db", "--channel=a", "--lines=-"]);
    let conn = desk.sql();
    let mut child = desk.command(["list", "till.db", "--json"]).spawn().unwrap();
    let mut reader = BufReader::with_capacity(64, child.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    // The pipe is full now, or soon. A reader would keep the log from being taken over.
    conn.execute_batch("UPDATE outbox SET recipient = 'x' WHERE id = 1")
        .unwrap();
    let mut busy = 1;
    for _ in 0..100 {
        busy = conn
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
                row.get::<_, i64>(0)
            })
            .unwrap();
        if busy == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(busy, 0);
    drop(reader);
    ended(child);
}

#[test]
fn a_pipe_gets_no_colours_and_all_of_every_line() {
    let desk = Desk::new();
    desk.sql()
        .execute(
            "INSERT INTO outbox (channel, dedupe_key, payload, status, last_error)
             VALUES ('a-channel-with-a-long-name', ?1, '{}', 'dead', ?2)",
            ["key-".repeat(20), "the server said no ".repeat(30)],
        )
        .unwrap();
    for (command, whole) in [
        ("list", "the server said no ".repeat(30)),
        ("list", "key-".repeat(20)),
        ("status", "a-channel-with-a-long-name".into()),
        ("show", "the server said no ".repeat(30)),
    ] {
        let which = (command == "show").then_some("1");
        let out = desk.run([command, "till.db"].into_iter().chain(which)).out;
        assert!(out.contains(whole.trim_end()), "{out}");
        harmless(&out);
    }
}

#[test]
fn help_teaches_every_command_by_example() {
    let desk = Desk::empty();
    let help = desk.done(["--help"]);
    for command in [
        "init", "enqueue", "drain", "status", "list", "show", "schema",
    ] {
        assert!(help.contains(command), "{help}");
        let own = desk.done([command, "--help"]);
        assert!(own.contains("Example"), "{own}");
        assert!(own.contains(&format!("  outbox {command}")), "{own}");
    }
    assert!(desk.done(["--version"]).starts_with("outbox "));
}

#[test]
fn what_is_no_command_is_a_matter_of_usage() {
    let desk = Desk::new();
    for wrong in [
        &[] as &[&str],
        &["stauts", "till.db"],
        &["status"],
        &["status", "till.db", "--jsno"],
        &["drain", "till.db"],
        &[
            "drain",
            "till.db",
            "--config",
            "a.toml",
            "--url",
            "https://erp.example/",
        ],
        &[
            "drain",
            "till.db",
            "--url",
            "https://erp.example/",
            "--workers",
            "0",
        ],
        &[
            "drain",
            "till.db",
            "--url",
            "https://erp.example/",
            "--deadline",
            "soon",
        ],
    ] {
        let ran = desk.run(wrong);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{wrong:?} {ran:?}");
    }
}
