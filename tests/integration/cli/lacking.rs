//! Files from which somebody removed a part of the outbox, or which a newer program keeps for itself.

use super::Desk;

/// What a tidy-minded person or another migration tool does to a file with messages in it.
const REMOVALS: [(&str, &str); 16] = [
    ("DROP INDEX outbox_due", "outbox_due"),
    ("DROP INDEX outbox_lane", "outbox_lane"),
    ("DROP INDEX outbox_expiry", "outbox_expiry"),
    ("DROP INDEX outbox_settled", "outbox_settled"),
    ("DROP INDEX outbox_dead_rows", "outbox_dead_rows"),
    (
        "DROP INDEX outbox_attempt_message",
        "outbox_attempt_message",
    ),
    ("DROP INDEX outbox_conflict_key", "outbox_conflict_key"),
    ("DROP TABLE outbox_attempt", "outbox_attempt"),
    ("DROP TABLE outbox_census", "outbox_census"),
    ("DROP TABLE outbox_conflict", "outbox_conflict"),
    ("DROP TABLE outbox_audit", "outbox_audit"),
    ("DROP TABLE outbox_channel", "outbox_channel"),
    ("DROP TABLE outbox_meta", "outbox_meta"),
    ("DELETE FROM outbox_meta", "outbox_meta.schema_version"),
    (
        "UPDATE outbox_meta SET value = 'abc' WHERE key = 'schema_version'",
        "outbox_meta.schema_version (unreadable)",
    ),
    (
        "UPDATE outbox_meta SET value = '' WHERE key = 'min_writer'",
        "outbox_meta.min_writer (unreadable)",
    ),
];

const SEND: [&str; 4] = ["drain", "till.db", "--url", "http://127.0.0.1:1/a"];

#[test]
fn what_was_removed_is_named_with_the_command_that_puts_it_back() {
    for (removal, part) in REMOVALS {
        let desk = Desk::new();
        desk.put("sales", "S-1", "text");
        desk.sql().execute_batch(removal).unwrap();

        let ran = desk.run(["check", "till.db"]);
        assert_eq!(ran.code, 4, "{removal}: {ran:?}");
        let told = ["parts of the outbox are missing: ", part, "outbox upgrade "];
        assert!(told.iter().all(|it| ran.out.contains(it)), "{ran:?}");

        for look in [
            &["status", "till.db"][..],
            &["why", "till.db"],
            &["list", "till.db"],
        ] {
            let ran = desk.run(look);
            match ran.code {
                0 => {}
                _ => ran.failed(1, "outbox upgrade"),
            }
        }
        let put = ["enqueue", "till.db", "--channel=sales", "1"];
        for write in [&SEND[..], &put, &["pause", "till.db", "sales"]] {
            let ran = desk.run(write);
            ran.failed(1, part);
            assert!(
                ran.err.contains("messages are there: `outbox upgrade`"),
                "{ran:?}"
            );
        }

        let ran = desk.run(["bundle", "till.db", "-"]);
        let bundle: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert!(bundle["findings"].to_string().contains(part), "{bundle}");
        assert!(!ran.err.contains("damaged"), "{ran:?}");

        let ran = desk.done(["upgrade", "till.db"]);
        assert!(ran.contains("there again: ") && ran.contains(part), "{ran}");
        assert_eq!(desk.run(SEND).code, 3, "{removal}");
        assert_eq!(
            desk.json(["status", "till.db", "--json"])["total"]["unsent"],
            1
        );
        let ran = desk.run(["check", "till.db", "--json"]);
        assert!(!ran.out.contains("schema_incomplete"), "{ran:?}");
    }
}

#[test]
fn a_file_without_its_messages_is_not_called_mendable() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql().execute_batch("DROP TABLE outbox").unwrap();
    desk.run(SEND).failed(1, "restore a backup");
    let ran = desk.run(["check", "till.db"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.out.contains("restore a backup"), "{ran:?}");
}

#[test]
fn a_file_that_a_newer_program_keeps_for_itself_is_told_by_those_who_look() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let newer = "UPDATE outbox_meta SET value = '2' WHERE key IN ('schema_version', 'min_writer');
                 UPDATE outbox SET created_at = created_at - 7200000";
    desk.sql().execute_batch(newer).unwrap();
    let truth = "the outbox has schema 2, this program knows 1";
    desk.run(SEND).failed(1, truth);
    let ran = desk.run(["check", "till.db", "--json"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.out.contains("schema_too_new") && ran.out.contains(truth),
        "{ran:?}"
    );
    for which in [&["why", "till.db", "S-1"][..], &["why", "till.db"]] {
        let text = desk.done(which);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            text.contains(truth) && text.contains("use the `outbox` that comes with"),
            "{text}"
        );
        assert!(!text.contains("outbox run"), "{text}");
    }
    assert_eq!(ran.json()["file"]["schema_version"], 2);
}

#[test]
fn a_message_that_was_claimed_as_often_as_can_be_has_words_and_a_remedy() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let worn = "UPDATE outbox SET claims = 1000000000";
    desk.sql().execute_batch(worn).unwrap();
    for _ in 0..2 {
        let ran = desk.run(["why", "till.db", "S-1"]);
        let text = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("claims is 1000000000"), "{ran:?}");
        assert!(
            text.contains("outbox cancel ") && !text.contains("outbox edit"),
            "{ran:?}"
        );
        desk.run(SEND);
    }
    assert_eq!(
        desk.json(["show", "till.db", "S-1", "--json"])["status"],
        "dead"
    );
    desk.done(["cancel", "till.db", "S-1"]);
    desk.put("sales", "S-1-again", "text");
    assert_eq!(
        desk.json(["status", "till.db", "--json"])["total"]["dead"],
        0
    );
}
