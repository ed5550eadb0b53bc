//! Messages that count as sent and have not arrived: found, sent again, and no longer complained of.

use serde_json::json;

use super::Desk;
use crate::server::{Server, ok, respond};

/// A file with S-1 and S-2, which a portal took, S-3, which the receiver has, and W-1 that waits.
fn shop() -> Desk {
    let desk = Desk::new();
    desk.put("sales", "S-1", "one");
    desk.put("sales", "S-2", "two");
    let portal = Server::start(|_| respond(200, &[], "<!doctype html><title>Log in"));
    desk.run(["drain", "till.db", "--url", &portal.url("/")]);
    desk.put("sales", "S-3", "three");
    desk.run([
        "drain",
        "till.db",
        "--url",
        &Server::start(|_| ok()).url("/"),
    ]);
    desk.put("sales", "W-1", "four");
    desk
}

#[test]
fn what_a_portal_took_is_found_and_sent_again_by_what_is_told() {
    let desk = shop();
    for command in ["why", "check"] {
        let text = desk.run([command, "till.db"]).out;
        assert!(
            text.contains("2 messages counted as sent, and a web page answered"),
            "{text}"
        );
        assert!(text.contains("outbox send-again "), "{text}");
        assert!(
            text.contains("--all --web-page --dry-run --channel sales"),
            "{text}"
        );
    }
    let list = desk.done(["list", "till.db"]);
    assert_eq!(list.matches("a web page answered").count(), 2, "{list}");
    let why = desk.done(["why", "till.db", "S-1"]);
    assert!(
        why.contains("outbox send-again ") && why.contains(" id:1 "),
        "{why}"
    );
    assert!(
        desk.run(["retry", "till.db", "S-1"])
            .err
            .contains("send-again")
    );

    let dry = desk.done(["send-again", "till.db", "S-1", "--dry-run"]);
    assert_eq!(
        dry,
        "message 1 (key S-1) would go out again under the key S-1-again\n"
    );
    let done = desk.done(["send-again", "till.db", "S-1", "--reason=not there"]);
    assert_eq!(
        done,
        "message 1 (key S-1) goes out again as message 5 (key S-1-again)\n"
    );
    let why = desk.done(["why", "till.db", "S-1"]);
    assert!(
        why.contains("sent again since") && why.contains("outbox show "),
        "{why}"
    );
    let show = desk.done(["show", "till.db", "S-1"]);
    assert!(
        show.contains("send_again by") && show.contains("as message 5"),
        "{show}"
    );

    let erp = Server::start(|_| ok());
    let all = ["--all", "--channel=sales", "--web-page"];
    let ran = desk.run(["send-again", "till.db"].iter().chain(&all));
    assert_eq!(ran.out, "1 message put in to be sent again\n");
    assert!(
        ran.err
            .contains("1 message is left out: sent again already"),
        "{ran:?}"
    );
    assert_eq!(
        desk.run(["drain", "till.db", "--url", &erp.url("/")]).code,
        0
    );
    let bodies: Vec<_> = erp.seen().into_iter().map(|it| it.body).collect();
    for body in ["one", "two", "four"] {
        let times = bodies
            .iter()
            .filter(|it| it[..] == *body.as_bytes())
            .count();
        assert_eq!(times, 1, "{body}");
    }
    let text = desk.run(["check", "till.db"]).out;
    assert!(!text.contains("web page"), "{text}");
}

#[test]
fn all_of_a_window_are_counted_before_and_sent_again_once() {
    let desk = shop();
    let all = [
        "send-again",
        "till.db",
        "--all",
        "--channel=sales",
        "--json",
    ];
    let run = |more: &[&str]| desk.run(all.iter().chain(more)).json();
    assert_eq!(
        run(&["--web-page", "--dry-run"]),
        json!({"count": 2, "dry_run": true, "left_out": 0, "keys": ["S-1", "S-2"]})
    );
    assert_eq!(run(&["--since=2h", "--until=1h"])["count"], 0);
    assert_eq!(run(&["--until=2001-02-03T04:05Z"])["count"], 0);
    assert_eq!(
        desk.json(["send-again", "till.db", "S-2", "--key=S-2-b", "--json"]),
        json!({"count": 1, "dry_run": false, "sent": [
            {"former": 2, "former_key": "S-2", "id": 5, "dedupe_key": "S-2-b"}]})
    );
    assert_eq!(
        run(&["--since=1h"]),
        json!({"count": 2, "dry_run": false, "left_out": 1})
    );
    assert_eq!(run(&["--since=1h"])["count"], 0);
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line_and_nothing_is_done() {
    let desk = shop();
    let refused = |args: &[&str], code: i32, says: &str| {
        let all = ["send-again", "till.db"].iter().chain(args);
        desk.run(all).failed(code, says);
    };
    refused(&[], 2, "which message?");
    refused(&["S-1", "S-2", "--key=K"], 2, "--key takes one message");
    refused(&["W-1"], 1, "it will be sent by itself");
    refused(&["S-1", "W-1"], 1, "it will be sent by itself");
    refused(&["S-1", "--key=W-1"], 1, "already has this dedupe key");
    refused(&["X"], 1, "there is no message X");
    assert_eq!(
        desk.run(["send-again", "till.db", "--all", "--channel=sales"])
            .code,
        2
    );
    assert_eq!(
        desk.run(["send-again", "till.db", "--all", "--web-page"])
            .code,
        2
    );
    desk.sql()
        .execute_batch(
            "UPDATE outbox SET payload = '', answer = NULL WHERE id = 1;
             INSERT INTO outbox_meta VALUES ('retention_noted_at', 1)",
        )
        .unwrap();
    refused(&["S-1"], 1, "has no payload any more");
    let count: i64 = desk
        .sql()
        .query_row("SELECT count(*) FROM outbox", [], |row| row.get(0))
        .unwrap();
    assert_eq!(count, 4);
    let ran = desk.run([
        "send-again",
        "till.db",
        "--all",
        "--channel=sales",
        "--since=1h",
    ]);
    assert!(
        ran.out.starts_with("2 messages put in to be sent again"),
        "{ran:?}"
    );
    assert!(ran.err.contains("1 message is left out"), "{ran:?}");
}

/// A nervous operator types the command once more after each drain.
#[test]
fn a_repetition_is_not_repeated_by_all_but_where_a_portal_took_it_too() {
    let desk = shop();
    let all = |more: &[&str]| {
        let all = [
            "send-again",
            "till.db",
            "--all",
            "--channel=sales",
            "--json",
        ];
        desk.run(all.iter().chain(more)).json()
    };
    assert_eq!(all(&["--since=1h"])["count"], 3);
    let drain = |server: &Server| {
        desk.run(["drain", "till.db", "--url", &server.url("/")]);
    };
    // The first goes into the portal again.
    let portal = Server::start(|seen| match seen.body == b"one" {
        true => respond(200, &[], "<!doctype html><title>Log in"),
        false => ok(),
    });
    drain(&portal);
    for more in [&["--since=1h"][..], &["--web-page"]] {
        let dry = all(&[more, &["--dry-run"]].concat());
        let keys: Vec<_> = dry["keys"].as_array().unwrap().iter().collect();
        assert!(keys.contains(&&json!("S-1-again")), "{dry}");
        assert!(!keys.contains(&&json!("S-2-again")), "{dry}");
    }
    // W-1 was sent since, and no repetition.
    assert_eq!(
        all(&["--since=1h"]),
        json!({"count": 2, "dry_run": false, "left_out": 5})
    );
    drain(&Server::start(|_| ok()));
    assert_eq!(all(&["--since=1h"])["count"], 0);
    assert_eq!(all(&["--web-page"])["count"], 0);
    // Whoever names one means it.
    desk.done(["send-again", "till.db", "S-2-again"]);
}
