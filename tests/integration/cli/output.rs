//! What reaches a terminal, a pipe and a person.

use std::io::{BufRead, BufReader};

use super::{Desk, ended};
use crate::server::{Server, ok, respond};

/// Clears the screen, rings, turns the direction, and pretends to be another line.
const EVIL: &str = "\u{1b}[2J\u{7}\u{9b}31m\u{202e}\r\nfine\u{7f}";

fn harmless(text: &str) {
    let bad = |it: char| it != '\n' && (it.is_control() || it == '\u{202e}');
    assert!(!text.contains(bad), "{text:?}");
}

/// A till in which every text that can hold it is full of escape codes.
fn evil_till() -> Desk {
    let desk = Desk::new();
    let sql = desk.sql();
    for (status, key) in [
        ("dead", "d"),
        ("sent", "s"),
        ("pending", "p"),
        ("sending", "c"),
    ] {
        sql.execute(
            "INSERT INTO outbox (channel, dedupe_key, ordering_key, event_type, recipient, principal,
                                 content_type, payload, status, last_error, provider_id, answer,
                                 headers, message_id, attempts, next_attempt_at)
             VALUES (?1, ?1 || ?2, ?1, ?1, ?1, ?1, ?1, ?1, ?3, ?1, ?1, ?1, ?1, ?1 || ?2, 3, 1)",
            [EVIL, key, status],
        )
        .unwrap();
    }
    sql.execute_batch(&format!(
        "INSERT INTO outbox_attempt (message, at, outcome, http_status, error)
           SELECT id, 1, '{EVIL}', 422, '{EVIL}' FROM outbox;
         INSERT INTO outbox_channel (channel, state, since, until, reason_code, reason)
           VALUES ('{EVIL}', 'offline', 1, 1, '{EVIL}', '{EVIL}');
         INSERT INTO outbox_audit (at, who, action, channel, reason)
           VALUES (1, '{EVIL}', 'pause', '{EVIL}', '{EVIL}');
         INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('{EVIL}', '{EVIL}d', 'other')
           ON CONFLICT (channel, dedupe_key) DO NOTHING;"
    ))
    .unwrap();
    desk
}

#[test]
fn no_control_character_of_a_message_reaches_the_terminal() {
    let desk = evil_till();
    let server = Server::start(|_| respond(500, &[("x", "y")], EVIL));
    let url = server.url("/");
    desk.write(
        "outbox.toml",
        format!("[channel.default]\nurl = \"{url}\"\n"),
    );
    desk.write(
        "evil.toml",
        format!(
            "[channel.\"{}\"]\nurl = \"x\u{9b}31m\u{202e}\"\n",
            EVIL.escape_unicode()
        ),
    );
    desk.write("key.toml", "[channel.default]\n\"\u{202e}\u{9b}\" = 1\n");
    desk.write(
        "value.toml",
        "[channel.default]\nurl = \"http://localhost\"\nmethod = \"\u{9b}\u{202e}\"\n",
    );
    let config = ["--config", "outbox.toml"];
    let mut seen = 0;
    for (command, more) in [
        ("list", &[] as &[&str]),
        ("list", &["--newest", "--status=dead,sent"]),
        ("list", &["--channel", EVIL]),
        ("list", &["--status", EVIL]),
        ("show", &["1"]),
        ("show", &["2"]),
        ("show", &[EVIL, "--channel", EVIL]),
        ("why", &[]),
        ("why", &["1"]),
        ("why", &["3", "--config", "outbox.toml"]),
        ("why", &["--config", "evil.toml"]),
        ("status", &[]),
        ("conflicts", &[]),
        ("conflicts", &["1"]),
        ("conflicts", &["1", "--enqueue-as", EVIL]),
        ("conflicts", &["--channel", EVIL]),
        ("check", &[]),
        ("check", &config),
        ("check", &["--config", "outbox.toml", "--connect"]),
        ("check", &["--config", "evil.toml"]),
        ("check", &["--config", "key.toml"]),
        ("check", &["--config", "value.toml"]),
        ("check", &["--config", EVIL]),
        ("curl", &["1", "--config", "outbox.toml"]),
        ("curl", &["1", "--config", "key.toml"]),
        ("export", &[]),
        ("export", &["--channel", EVIL]),
        ("bundle", &["support.json", "--config", "outbox.toml"]),
        ("bundle", &["-", "--config", "outbox.toml"]),
        ("bundle", &[EVIL]),
        ("backup", &[EVIL]),
        ("retry", &["1", "--dry-run"]),
        (
            "retry",
            &["--all", "--channel", EVIL, "--code", EVIL, "--dry-run"],
        ),
        ("cancel", &["3", "--dry-run"]),
        ("cancel", &[EVIL, "--dry-run"]),
        ("edit", &[EVIL, EVIL]),
        ("edit", &["3", EVIL]),
        ("pause", &[EVIL, "--reason", EVIL]),
        ("resume", &[EVIL]),
        ("purge", &["--older-than", EVIL]),
        ("enqueue", &["--channel", EVIL, "x"]),
        ("enqueue", &["--channel", "a", "--header", EVIL, "x"]),
        ("enqueue", &["--channel", "a", "--key", EVIL, "x"]),
        ("enqueue", &["--channel", "a", "--file", EVIL]),
        ("watch", &["--every", EVIL]),
        ("drain", &["--url", EVIL]),
        ("drain", &["--config", "evil.toml"]),
        ("drain", &["--config", "key.toml"]),
        ("drain", &["--config", "value.toml"]),
        ("drain", &["--config", "outbox.toml", "-vv", "--now"]),
        ("status", &[EVIL]),
    ] {
        for json in [None, Some("--json")] {
            let args = [command, "till.db"].into_iter().chain(more.iter().copied());
            let ran = desk.run(args.chain(json));
            harmless(&ran.out);
            harmless(&ran.err);
            seen += usize::from(ran.code != 2);
        }
    }
    // Most of them came further than to their arguments.
    assert!(seen > 70, "{seen}");
    harmless(&std::fs::read_to_string(desk.path("support.json")).unwrap());
    for command in [
        vec!["list", EVIL],
        vec![EVIL],
        vec!["man", EVIL],
        vec!["sink", "--mood", EVIL],
    ] {
        let ran = desk.run(command);
        harmless(&ran.out);
        harmless(&ran.err);
    }
    let row = desk.json(["show", "till.db", "2", "--json"]);
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

/// Commands that print more than any pipe holds.
const LONG: [&[&str]; 12] = [
    &["conflicts", "till.db"],
    &["curl", "till.db", "long", "--config", "outbox.toml"],
    &["bundle", "till.db", "-"],
    &["list", "till.db"],
    &["list", "till.db", "--json", "--newest"],
    &["export", "till.db"],
    &["show", "till.db", "long"],
    &["show", "till.db", "long", "--json"],
    &["why", "till.db"],
    &["why", "till.db", "--json"],
    &["status", "till.db"],
    &["status", "till.db", "--json"],
];

#[test]
fn nothing_is_held_while_a_pager_waits() {
    let desk = Desk::new();
    let conn = desk.sql();
    // A thousand channels, each with a reason of its own; and one long answer.
    conn.execute_batch(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1000)
         INSERT INTO outbox (channel, dedupe_key, payload, status, last_error)
         SELECT 'channel-' || n, 'K-' || n || hex(zeroblob(40)), hex(zeroblob(100)), 'dead', hex(zeroblob(200)) FROM n;
         INSERT INTO outbox_channel (channel, state, since, reason)
         SELECT channel, 'offline', 1, last_error FROM outbox;
         INSERT INTO outbox (channel, dedupe_key, payload)
         SELECT channel, dedupe_key, 'other' FROM outbox WHERE true ON CONFLICT DO NOTHING;
         INSERT INTO outbox (channel, payload) SELECT channel, 'waits' FROM outbox_channel;
         INSERT INTO outbox (channel, dedupe_key, payload, answer)
         VALUES ('a', 'long', hex(zeroblob(200000)), hex(zeroblob(200000)));",
    )
    .unwrap();
    desk.write(
        "outbox.toml",
        "[channel.default]\nurl = \"http://localhost:9/\"\n",
    );
    for args in LONG {
        let mut child = desk.command(args).spawn().unwrap();
        let mut reader = BufReader::with_capacity(64, child.stdout.take().unwrap());
        reader.fill_buf().unwrap();
        // It prints, and the pipe is full now, or soon. Whoever reads the file still would keep the
        // log from being taken over; whoever writes would keep others from it.
        conn.execute_batch(
            "BEGIN IMMEDIATE; UPDATE outbox SET recipient = 'x' WHERE id = 1; COMMIT",
        )
        .unwrap();
        let taken_over = || {
            let busy = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0));
            busy.unwrap_or(1) == 0
        };
        let free = (0..400).any(|_| {
            let free = taken_over();
            if !free {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            free
        });
        assert!(free, "{args:?}");
        assert!(
            child.try_wait().unwrap().is_none(),
            "{args:?} was not held up"
        );
        drop(reader);
        ended(child);
    }
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
fn a_command_without_json_says_what_there_is_in_its_place() {
    let desk = Desk::new();
    for (args, says) in [
        (
            &["watch", "till.db", "--json"][..],
            "outbox status DB --json",
        ),
        (&["man", "--json"], "man prints no JSON"),
        (
            &["completions", "bash", "--json"],
            "completions prints no JSON",
        ),
        (&["--json", "status", "till.db"], "behind the command"),
    ] {
        let ran = desk.run(args);
        ran.failed(2, says);
        assert!(!ran.err.contains("-- --json"), "{ran:?}");
        let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
        assert!(
            error["error"].as_str().unwrap().contains("found; tip: "),
            "{error}"
        );
    }
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

#[test]
fn a_command_line_that_makes_no_sense_is_one_line_that_says_where_help_is() {
    let desk = Desk::new();
    for (line, end) in [
        (
            &["enqueue"][..],
            "<DB>, <PAYLOAD>; see `outbox enqueue --help`",
        ),
        (&["lst"], "tip: list may be meant; see `outbox --help`"),
        (
            &["list", "x", "--status", "no"],
            "cancelled]; see `outbox list --help`",
        ),
        (
            &["retry", "x", "--limit", "1"],
            "'--limit' found; see `outbox retry --help`",
        ),
    ] {
        let ran = desk.run(line);
        assert_eq!(ran.code, 2, "{ran:?}");
        let said: Vec<_> = ran.err.lines().collect();
        assert!(
            matches!(said[..], [it] if it.starts_with("error: ") && it.ends_with(end)),
            "{ran:?}"
        );
    }
    let whole = desk.run([""; 0]);
    assert!(whole.err.lines().count() > 20, "the help: {whole:?}");
}
