//! What a person mends in messages: broken headers, keys that stand for something settled, imports
//! with a bad line; and how the message that is meant is named.

use serde_json::{Value, json};

use super::Desk;
use crate::server::{Server, ok, respond};

fn drain(desk: &Desk, server: &Server) {
    desk.run(["drain", "till.db", "--workers=1", "--url", &server.url("/")]);
}

/// A message that no program could have enqueued: it is dead after one look.
fn broken(headers: &str) -> Desk {
    let desk = Desk::new();
    desk.sql()
        .execute(
            "INSERT INTO outbox (channel, dedupe_key, payload, headers) VALUES ('sales', 'S-1', '{}', ?1)",
            [headers],
        )
        .unwrap();
    drain(&desk, &Server::start(|_| ok()));
    let row = desk.json(["show", "till.db", "S-1", "--json"]);
    assert_eq!(row["status"], "dead", "{row}");
    desk
}

/// An id that is given by the doing is told by nobody before.
#[test]
fn a_dry_run_of_an_edit_tells_what_the_edit_will_tell_or_null() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "one");
    let edits: [(&[&str], bool, bool); 4] = [
        (&["--available=now"], true, true),
        (&["two", "--key=S-2"], true, false),
        (&["--header=X-Store: 17"], true, false),
        (&["--to-channel=other"], false, false),
    ];
    for (edit, same_id, same_message_id) in edits {
        let args = ["edit", "till.db", "1", "--json"].iter().chain(edit);
        let dry = desk.json(args.clone().chain(&["--dry-run"]));
        let done = desk.json(args);
        for (column, known) in [
            ("id", same_id),
            ("message_id", same_message_id),
            ("status", same_id),
            ("dedupe_key", true),
            ("former_message_id", true),
            ("available_at", true),
        ] {
            let told = if known { &done[column] } else { &Value::Null };
            assert_eq!(&dry[column], told, "{edit:?}: {column}");
        }
        let changed = done["message_id"] != done["former_message_id"];
        assert_ne!(changed, same_message_id, "{edit:?}: {done}");
    }
}

#[test]
fn broken_headers_are_mended_by_an_edit_and_why_says_so() {
    for headers in [
        "no json",
        "{\"X-Store\":\"17\\r\\nX-Evil: 1\"}",
        "[\"a\"]",
        "{\"Authorization\":\"Bearer PRIVATE\"}",
    ] {
        let desk = broken(headers);
        let before = desk.json(["show", "till.db", "S-1", "--json"]);
        for args in [&["why", "till.db"][..], &["why", "till.db", "S-1"]] {
            let text = desk.done(args);
            let mut lines = text.lines().map(str::trim);
            assert!(lines.any(|it| it.starts_with("outbox edit ")), "{text}");
            assert!(!text.contains("outbox retry"), "{text}");
        }
        let edit = ["edit", "till.db", "S-1", "--header", "X-Store: 17"];
        desk.done(edit.into_iter().chain(["--dry-run"]));
        assert_eq!(desk.json(["show", "till.db", "S-1", "--json"]), before);
        desk.done(edit.into_iter().chain(["--reason", "typo of ours"]));
        let server = Server::start(|_| ok());
        drain(&desk, &server);
        let seen = server.seen();
        assert_eq!(seen[0].header("x-store"), Some("17"), "{headers}");
        assert_eq!(seen[0].body, b"{}");

        let row = desk.json(["show", "till.db", "S-1", "--json"]);
        assert_eq!(row["status"], "sent");
        let deed = &row["audit"][0];
        assert_eq!(
            (&deed["action"], &deed["reason"], &deed["former_message_id"]),
            (
                &json!("edit"),
                &json!("other headers; typo of ours"),
                &before["message_id"]
            )
        );
        let text = desk.done(["show", "till.db", "S-1"]);
        assert!(text.contains("what people did\n"), "{text}");
        assert!(text.contains(": other headers; typo of ours\n"), "{text}");
    }
}

#[test]
fn headers_are_cleared_and_the_content_type_changed_without_a_new_payload() {
    let desk = broken("no json");
    desk.done([
        "edit",
        "till.db",
        "S-1",
        "--no-headers",
        "--content-type",
        "text/csv",
    ]);
    let row = desk.json(["show", "till.db", "S-1", "--json"]);
    assert_eq!(
        (&row["headers"], &row["content_type"], &row["payload"]),
        (&Value::Null, &json!("text/csv"), &json!("{}"))
    );
    desk.run(["edit", "till.db", "S-1", "--header", "Authorization: x"])
        .failed(1, "belongs to the route");
    desk.run(["edit", "till.db", "S-1", "--content-type", "a\nb"])
        .failed(1, "content type");
    assert_eq!(
        desk.run(["edit", "till.db", "S-1", "--reason", "none"])
            .code,
        2
    );
    assert_eq!(desk.json(["show", "till.db", "S-1", "--json"]), row);
}

#[test]
fn a_key_that_stands_for_something_settled_says_so_at_enqueue() {
    let desk = Desk::new();
    let put = |payload: &str| {
        desk.run([
            "enqueue",
            "till.db",
            "--channel=sales",
            "--key=S-1",
            "--content-type=text/plain",
            payload,
        ])
    };
    put("one");
    desk.done(["cancel", "till.db", "S-1"]);
    let same = put("one");
    assert!(same.out.contains("was cancelled"), "{same:?}");
    assert!(same.out.contains("outbox retry till.db id:1"), "{same:?}");
    let other = put("two");
    assert!(other.out.contains("was cancelled"), "{other:?}");
    assert!(other.err.contains("OTHER content"), "{other:?}");

    desk.done(["retry", "till.db", "S-1"]);
    drain(&desk, &Server::start(|_| respond(422, &[], "")));
    assert!(
        put("one")
            .out
            .contains("it is a dead letter; `outbox retry")
    );
    desk.done(["retry", "till.db", "S-1"]);
    drain(&desk, &Server::start(|_| ok()));
    assert!(put("one").out.contains("it was sent"), "{:?}", put("one"));
}

#[test]
fn a_delay_that_outlives_the_message_is_refused() {
    let desk = Desk::new();
    let args = ["enqueue", "till.db", "--channel=a", "--delay=2h", "{}"];
    let ran = desk.run(args.into_iter().chain(["--ttl=1h"]));
    ran.failed(2, "--delay is not shorter than --ttl");
    desk.done(args.into_iter().chain(["--ttl=3h"]));
}

#[test]
fn an_import_names_the_bad_line_and_goes_on_when_told_to() {
    let desk = Desk::new();
    let line = |key: &str, headers: &str| {
        format!(
            "{{\"channel\":\"a\",\"message_id\":\"m-{key}\",\"dedupe_key\":\"{key}\",\
             \"content_type\":\"text/plain\",\"headers\":{headers},\"payload\":\"x\",\
             \"status\":\"dead\",\"created_at\":1}}\n"
        )
    };
    // A row that the table could not hold.
    let nameless = line("K-2", "null").replace("\"m-K-2\"", "\"\"");
    let lines = [
        line("K-1", "null"),
        nameless,
        "no json\n".to_string(),
        line("K-4", "null"),
    ]
    .concat();
    desk.write("old.jsonl", &lines);
    let args = ["enqueue", "till.db", "--lines", "old.jsonl", "--exported"];
    let stopped = desk.run(args);
    stopped.failed(1, "line 2, key K-2: ");
    for told in [
        "it ended there. Before it: 1 message enqueued",
        "Mend it and take all lines again",
    ] {
        assert!(stopped.err.contains(told), "{stopped:?}");
    }
    let ran = desk.run(args.into_iter().chain(["--skip-bad"]));
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("skipped: line 2, key K-2: "), "{ran:?}");
    assert!(ran.err.contains("skipped: line 3: "), "{ran:?}");
    assert_eq!(
        ran.out,
        "1 message enqueued, 1 there already, 2 refused and skipped\n"
    );
    // A program is told of each line, by its number.
    let told = desk.run(args.into_iter().chain(["--skip-bad", "--json"]));
    let mut told: Vec<_> = told.lines();
    told.sort_by_key(|it| it["line"].as_u64());
    let results: Vec<_> = told.iter().map(|it| it["result"].as_str()).collect();
    let expected = ["duplicate", "refused", "refused", "duplicate"].map(Some);
    assert_eq!(results, expected, "{told:?}");
    let error = told[1]["error"].as_str().unwrap();
    assert!(error.starts_with("line 2, key K-2: "), "{error}");
    // A dead letter comes as a message with a fresh budget, enqueued now.
    let row = desk.json(["show", "till.db", "K-4", "--json"]);
    assert_eq!(
        (&row["status"], &row["message_id"]),
        (&json!("pending"), &json!("m-K-4"))
    );
    assert!(row["created_at"].as_i64().unwrap() > 1);
}

/// A till whose sales are numbered as the rows are.
#[test]
fn a_number_that_is_an_id_and_a_key_is_told_apart() {
    let desk = Desk::new();
    desk.put("sales", "2", "key two");
    desk.put("sales", "7", "id two");
    desk.put("stock", "id:9", "odd key");
    let show = |which: &str| desk.run(["show", "till.db", which, "--json"]);
    show("2").failed(
        1,
        "id:1 (pending in sales, key 2), id:2 (pending in sales, key 7)",
    );
    assert_eq!(show("id:2").json()["payload"], "id two");
    assert_eq!(show("key:2").json()["payload"], "key two");
    let message = format!(
        "message:{}",
        show("id:2").json()["message_id"].as_str().unwrap()
    );
    assert_eq!(show(&message).json()["id"], 2);
    assert_eq!(
        show("id:9").json()["payload"],
        "odd key",
        "nothing has this id"
    );
    assert_eq!(show("key:id:9").json()["id"], 3);
    show("key:9").failed(1, "no message key:9");
    for command in ["cancel", "retry"] {
        desk.done([command, "till.db", "id:2", "key:2"]);
    }
    assert!(
        desk.done(["why", "till.db", "key:2"])
            .starts_with("Message 1 ")
    );
}

#[test]
fn a_message_of_another_channel_is_named_with_its_own() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "x");
    desk.run(["cancel", "till.db", "S-1", "--channel", "slaes"])
        .failed(
            1,
            "no message S-1 in the channel slaes; it is id:1 (pending in sales, key S-1)",
        );
    let text = desk.run(["retry", "till.db"]);
    text.failed(2, "--all");
}

#[test]
fn bulk_dry_runs_name_the_first_messages_and_a_purge_may_be_of_one_channel() {
    let desk = Desk::new();
    for number in 1..=12 {
        desk.put("sales", &format!("S-{number}"), "x");
    }
    desk.put("stock", "T-1", "x");
    let text = desk.done(["cancel", "till.db", "--all", "--dry-run"]);
    assert!(text.starts_with("13 messages would be cancelled\n  sales: message 1 (key S-1)\n"));
    assert!(text.ends_with("\n  and 3 more\n"), "{text}");
    assert_eq!(
        desk.json(["status", "till.db", "--json"])["total"]["pending"],
        13
    );
    desk.done(["cancel", "till.db", "--all"]);
    desk.sql()
        .execute_batch("UPDATE outbox SET settled_at = settled_at - 200000000")
        .unwrap();
    let purge = [
        "purge",
        "till.db",
        "--older-than=1d",
        "--channel=stock",
        "--json",
    ];
    let dry = desk.json(purge.into_iter().chain(["--dry-run"]));
    assert_eq!(dry, json!({"count": 1, "dry_run": true, "keys": ["T-1"]}));
    assert_eq!(desk.json(purge)["count"], 1);
    assert_eq!(
        desk.json(["status", "till.db", "--json"])["total"]["cancelled"],
        12
    );
}

#[test]
fn errors_are_an_object_for_programs() {
    let desk = Desk::new();
    let error = |args: &[&str]| -> Value {
        let ran = desk.run(args);
        assert_eq!(ran.out, "", "{ran:?}");
        let error: Value = serde_json::from_str(&ran.err).unwrap();
        assert_eq!(error["exit"], ran.code);
        error
    };
    let missing = error(&["show", "till.db", "S-9\u{1b}[2J", "--json"]);
    assert_eq!(
        missing["error"],
        "there is no message S-9\u{1b}[2J; it was never committed to this file, or was purged: look for another \
         key, another file, or an error where it was enqueued; `outbox list till.db` shows those that are there"
    );
    let usage = error(&["show", "till.db", "--json", "--nonsense"]);
    assert_eq!(usage["exit"], 2);
    assert!(usage["error"].as_str().unwrap().contains("--nonsense"));
    // What clap says on further lines is the useful part of it.
    let absent = error(&["enqueue", "--json"]);
    let absent = absent["error"].as_str().unwrap();
    assert!(
        absent.contains("<DB>") && absent.contains("--channel"),
        "{absent}"
    );
    let status = error(&["list", "till.db", "--json", "--status", "gone"]);
    let status = status["error"].as_str().unwrap();
    assert!(
        status.contains("'gone'") && status.contains("waiting, sending"),
        "{status}"
    );
    assert!(!status.contains("--help"), "{status}");
    // Not an option: a payload.
    let ran = desk.run(["enqueue", "no.db", "--channel=a", "--", "--json"]);
    ran.failed(1, "no file");
    assert!(ran.err.starts_with("error: "), "{ran:?}");
}

/// Booked for next year by a typo: nothing but an edit of its moment sends it today.
#[test]
fn a_scheduled_message_is_sent_now_or_at_another_moment() {
    let desk = Desk::new();
    let put = |key: &str, more: &str| {
        let args = [
            "enqueue",
            "till.db",
            "--channel=sales",
            "--delay=300d",
            "{}",
        ];
        desk.done(args.into_iter().chain(["--key", key, more]));
    };
    put("S-1", "--ttl=400d");
    put("S-2", "--recipient=x");
    let before = desk.json(["show", "till.db", "S-1", "--json"]);
    let edit = |key: &str, when: &str| desk.run(["edit", "till.db", key, "--available", when]);
    let why = desk.done(["why", "till.db", "S-1"]);
    assert!(why.contains("till.db id:1 --available now"), "{why}");
    edit("S-1", "500d").failed(1, "would expire before that moment");
    assert_eq!(edit("S-1", "soon").code, 2);
    assert!(edit("S-2", "100d").out.contains("may be sent from"));
    let ran = edit("S-1", "now");
    assert_eq!(
        ran.out,
        "message 1 (key S-1) is pending and may be sent at once\n"
    );

    let server = Server::start(|_| ok());
    drain(&desk, &server);
    assert_eq!(server.seen().len(), 1);
    let row = desk.json(["show", "till.db", "S-1", "--json"]);
    assert_eq!(
        (&row["status"], &row["message_id"], &row["available_at"]),
        (&json!("sent"), &before["message_id"], &Value::Null)
    );
    assert_eq!(
        (
            &row["audit"][0]["reason"],
            &row["audit"][0].get("former_payload")
        ),
        (&json!("other schedule"), &None)
    );
    edit("S-1", "now").failed(1, "was sent already");
    let other = desk.json(["show", "till.db", "S-2", "--json"]);
    assert_eq!(other["next_attempt_at"], other["available_at"]);
}

/// It is the same message at another moment, so that the receiver may have seen it is no matter.
#[test]
fn the_schedule_of_an_attempted_message_changes_and_its_content_does_not() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "x");
    drain(&desk, &Server::start(|_| respond(503, &[], "")));
    let edit = |args: &[&str]| desk.run(["edit", "till.db", "S-1"].iter().chain(args));
    edit(&["other"]).failed(1, "cancel it and enqueue the other content");
    edit(&["other", "--available", "now"]).failed(1, "the receiver may have seen it");
    assert_eq!(edit(&["--available", "now"]).code, 0);
    let row = desk.json(["show", "till.db", "S-1", "--json"]);
    assert_eq!(
        (&row["payload"], &row["status"]),
        (&json!("x"), &json!("pending"))
    );

    // A dead one is retried with it.
    desk.done(["resume", "till.db", "sales"]);
    drain(&desk, &Server::start(|_| respond(422, &[], "")));
    let dead = desk.json(["show", "till.db", "S-1", "--json"]);
    assert_eq!(dead["status"], "dead");
    let done = edit(&["--available", "10m", "--json"]).json();
    assert_eq!(
        (&done["status"], &done["message_id"]),
        (&json!("pending"), &dead["message_id"])
    );
    assert!(done["available_at"].as_i64() > dead["settled_at"].as_i64());
}

#[test]
fn a_retry_of_what_cannot_be_sent_says_that_it_cannot_help() {
    for args in [&["id:1"][..], &["--all"]] {
        let desk = broken("no json");
        for dry in [&["--dry-run"][..], &[]] {
            let ran = desk.run(["retry", "till.db"].iter().chain(args).chain(dry));
            assert_eq!(ran.code, 0, "{ran:?}");
            assert!(
                ran.err.contains("1 dead letter cannot be sent as stored"),
                "{ran:?}"
            );
        }
    }
    let desk = Desk::new();
    desk.put("sales", "S-1", "x");
    drain(&desk, &Server::start(|_| respond(422, &[], "")));
    desk.done(["retry", "till.db", "S-1"]);
}

/// SQLite's own words come once, with what to do.
#[test]
fn a_file_that_another_program_is_writing_is_told_of_once() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "x");
    let other = desk.sql();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let ran = desk.run(["cancel", "till.db", "S-1"]);
    ran.failed(1, "left a transaction open; try again");
    assert_eq!(ran.err.matches("database is locked").count(), 1, "{ran:?}");
    assert!(ran.err.contains("`lsof till.db`"), "{ran:?}");
}
