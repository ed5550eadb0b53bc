//! Triggers of the application on the outbox: what they refuse is told as it is, and mended without
//! sending anything twice.

use serde_json::Value;

use super::Desk;
use crate::server::{Server, respond};

const ONLY_SENT: &str =
    "CREATE TRIGGER mine AFTER UPDATE OF status ON outbox WHEN NEW.status = 'sent'
     BEGIN SELECT RAISE(ABORT, 'no sent'); END";

const EVERYTHING: &str = "CREATE TRIGGER mine AFTER UPDATE ON outbox
     BEGIN SELECT RAISE(ABORT, 'no way'); END";

fn receiver() -> Server {
    Server::start(|_| respond(201, &[], r#"{"id": "INV-17"}"#))
}

fn drain(desk: &Desk, server: &Server) -> super::Ran {
    drain_with(desk, server, &[])
}

fn drain_with(desk: &Desk, server: &Server, more: &[&str]) -> super::Ran {
    desk.write(
        "outbox.toml",
        format!(
            "[channel.default]\nurl = \"{}\"\nprovider_id = \"/id\"\n",
            server.url("/")
        ),
    );
    let args = ["drain", "till.db", "--config", "outbox.toml"];
    desk.run(args.iter().chain(more))
}

fn found<'a>(report: &'a Value, code: &str) -> Option<&'a Value> {
    let mut found = report["findings"].as_array().unwrap().iter();
    found.find(|it| it["code"] == code)
}

/// The receiver had it, and it was a dead letter of which the documentation says that nothing went out;
/// the advice made another message of it.
#[test]
fn what_was_delivered_and_cannot_be_recorded_is_told_so_and_not_sent_again() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql().execute_batch(ONLY_SENT).unwrap();
    let server = receiver();
    let ran = drain(&desk, &server);
    assert_eq!(ran.code, 4, "{ran:?}");
    let shown = desk.json(["show", "till.db", "S-1", "--json"]);
    assert_eq!(shown["status"], "dead");
    assert_eq!(shown["provider_id"], "INV-17");
    let error = shown["last_error"].as_str().unwrap();
    assert_eq!(
        error,
        "delivered as INV-17, and could not be recorded: no sent"
    );
    let why = desk.json(["why", "till.db", "S-1", "--json"]);
    assert_eq!(why["failure"], "unrecorded");
    assert_eq!(why["fault"], "machine");
    let text = why["text"].as_str().unwrap();
    assert!(
        text.contains("a retry would send it a second time"),
        "{text}"
    );
    assert!(!text.contains("edit"), "{text}");
    let commands = why["commands"].to_string();
    assert!(commands.contains("outbox cancel "), "{commands}");
    let whole = desk.done(["why", "till.db"]);
    assert!(
        whole.contains("sales: 1 dead letter, unrecorded"),
        "{whole}"
    );
    assert!(whole.contains("a trigger or rule in the file"), "{whole}");
    assert!(
        whole.contains("--channel sales --code unrecorded"),
        "{whole}"
    );
    assert!(!whole.contains("outbox retry"), "{whole}");
    for which in ["--all", "S-1"] {
        let ran = desk.run(["retry", "till.db", which, "--dry-run"]);
        let note = "1 dead letter arrived already (code unrecorded)";
        assert!(ran.err.contains(note), "{ran:?}");
    }
    // As it says.
    desk.sql().execute_batch("DROP TRIGGER mine").unwrap();
    desk.done([
        "cancel",
        "till.db",
        "--all",
        "--channel",
        "sales",
        "--code",
        "unrecorded",
    ]);
    assert_eq!(drain(&desk, &server).code, 0);
    assert_eq!(server.requests(), 1, "once");
}

/// What failed is told with what refused to hold it, and is safe to retry.
#[test]
fn a_failure_that_cannot_be_recorded_was_not_delivered() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql()
        .execute_batch(
            "CREATE TRIGGER mine AFTER UPDATE OF status ON outbox
             WHEN OLD.status = 'sending' AND NEW.status = 'pending'
             BEGIN SELECT RAISE(ABORT, 'no more tries'); END",
        )
        .unwrap();
    drain(&desk, &Server::start(|_| respond(503, &[], "busy")));
    let why = desk.json(["why", "till.db", "S-1", "--json"]);
    assert_eq!(why["failure"], "row_refuses", "{why}");
    let detail = why["detail"].as_str().unwrap();
    assert!(
        detail.contains("no more tries") && detail.contains("503"),
        "{detail}"
    );
    desk.sql().execute_batch("DROP TRIGGER mine").unwrap();
    desk.done(["retry", "till.db", "S-1"]);
    let server = receiver();
    desk.write(
        "outbox.toml",
        format!("[channel.default]\nurl = \"{}\"\n", server.url("/")),
    );
    let args = ["drain", "till.db", "--config", "outbox.toml", "--now"];
    assert_eq!(desk.run(args).code, 0);
}

/// It was said to go out with the next drain, by each drain.
#[test]
fn a_row_that_refuses_every_change_is_told_by_drain_why_and_check() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql().execute_batch(EVERYTHING).unwrap();
    let server = receiver();
    let ran = drain(&desk, &server);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(
        ran.err.contains("message 1") && ran.err.contains("no way"),
        "{ran:?}"
    );
    assert!(ran.out.contains("1 row refused every change"), "{ran:?}");
    assert!(!ran.out.contains("drain again"), "{ran:?}");
    assert_eq!(server.requests(), 0);
    let why = desk.json(["why", "till.db", "S-1", "--json"]);
    assert_eq!(why["notes"][0]["code"], "interfering_trigger", "{why}");
    for text in [
        desk.done(["why", "till.db", "S-1"]),
        desk.done(["why", "till.db"]),
    ] {
        assert!(text.contains("mine on outbox"), "{text}");
    }
    let ran = desk.run(["check", "till.db"]);
    assert_ne!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("mine on outbox"), "{ran:?}");
    desk.sql().execute_batch("DROP TRIGGER mine").unwrap();
    assert_eq!(drain(&desk, &server).code, 0);
    assert_eq!(server.requests(), 1);
}

/// `RAISE(ROLLBACK)` takes the verdicts of all others with it, and only the log told.
#[test]
fn a_trigger_that_rolls_back_what_was_delivered_is_told_with_the_receivers_id() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let rolls_back = ONLY_SENT.replace("ABORT", "ROLLBACK");
    desk.sql().execute_batch(&rolls_back).unwrap();
    // Its claim stays, and is waited for.
    let ran = drain_with(&desk, &receiver(), &["--deadline", "1s"]);
    assert!(
        ran.err
            .contains("delivered as INV-17, and could not be recorded"),
        "{ran:?}"
    );
}

#[test]
fn triggers_of_other_hands_are_named_and_those_that_only_watch_are_a_note() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let before = desk.json(["check", "till.db", "--json"]);
    assert!(found(&before, "interfering_trigger").is_none(), "{before}");
    assert!(found(&before, "foreign_trigger").is_none(), "{before}");
    desk.sql()
        .execute_batch(
            "CREATE TABLE log (message);
             CREATE TRIGGER watch_sent AFTER UPDATE OF status ON outbox
             BEGIN INSERT INTO log VALUES (NEW.id); END;
             CREATE TRIGGER elsewhere AFTER INSERT ON log BEGIN SELECT RAISE(IGNORE); END;",
        )
        .unwrap();
    let ran = desk.run(["check", "till.db", "--json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let report = ran.json();
    let note = found(&report, "foreign_trigger").unwrap();
    assert_eq!(note["severity"], "note");
    assert!(
        note["text"]
            .as_str()
            .unwrap()
            .contains("watch_sent on outbox"),
        "{note}"
    );
    assert!(!report.to_string().contains("elsewhere"), "{report}");
}

/// It ended as if all were well.
#[test]
fn an_enqueue_that_a_trigger_deletes_is_an_error() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "CREATE TRIGGER gone AFTER INSERT ON outbox BEGIN DELETE FROM outbox WHERE id = NEW.id; END",
        )
        .unwrap();
    let ran = desk.run([
        "enqueue",
        "till.db",
        "--channel",
        "sales",
        "--key",
        "S-1",
        "{}",
    ]);
    ran.failed(1, "a trigger on the outbox may delete it");
    let ran = desk.run(["check", "till.db"]);
    assert!(ran.out.contains("gone on outbox"), "{ran:?}");
}
