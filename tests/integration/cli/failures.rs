//! Every command with what cannot be done: one line that says so, its exit code, nothing changed.

use std::collections::BTreeMap;
use std::net::TcpListener;

use serde_json::Value;

use super::Desk;

const SETTINGS: &str = "[channel.sales]\nurl = \"http://localhost:9/\"\n";

/// A till with one dead letter, one sent message and one that waits, and files around it.
fn desk() -> Desk {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, dedupe_key, payload, status, last_error)
             VALUES ('sales', 'S-1', '{}', 'dead', 'no such article'), ('sales', 'S-2', '{}', 'sent', NULL),
                    ('mail', 'S-1', '{}', 'pending', NULL), ('sales', 'S-3', '{}', 'sending', NULL);
             PRAGMA wal_checkpoint(TRUNCATE);",
        )
        .unwrap();
    desk.write("outbox.toml", SETTINGS);
    desk.write(
        "wrong.toml",
        "[channel.sales]\nulr = \"http://localhost:9/\"\n",
    );
    desk.write("taken.json", "{}");
    desk
}

/// All files with their bytes, but for what SQLite keeps beside its own.
fn files(desk: &Desk) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(desk.folder.path()).unwrap();
    let named = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
    let ours = named.filter(|it| !it.ends_with("-wal") && !it.ends_with("-shm"));
    ours.map(|it| (it.clone(), std::fs::read(desk.path(&it)).unwrap()))
        .collect()
}

#[test]
fn what_cannot_be_done_is_one_line_and_changes_nothing() {
    let desk = desk();
    let before = files(&desk);
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = port.local_addr().unwrap().port().to_string();
    for (args, says) in [
        // No match.
        ("show till.db S-9", "S-9"),
        ("show till.db 99 --json", "99"),
        ("why till.db S-9", "S-9"),
        ("why till.db S-2 --channel mail", "S-2"),
        ("curl till.db S-9 --config outbox.toml", "S-9"),
        ("edit till.db S-9 {}", "S-9"),
        ("conflicts till.db 9", "9"),
        ("conflicts till.db 9 --drop", "9"),
        ("retry till.db S-9", "S-9"),
        ("cancel till.db S-9 --dry-run", "S-9"),
        // Several.
        ("show till.db S-1", "id:1 (dead in sales, key S-1), id:3"),
        ("edit till.db S-1 {}", "id:1 (dead in sales, key S-1), id:3"),
        // Another channel.
        ("retry till.db 1 --channel mail", "no message 1"),
        ("curl till.db 3 --config outbox.toml", "mail"),
        // What makes no sense for where it stands.
        ("retry till.db S-2", "sent"),
        ("cancel till.db S-2", "sent"),
        ("edit till.db S-2 {}", "sent"),
        ("edit till.db S-3 {}", "is being sent"),
        // Settings.
        ("drain till.db --config none.toml", "none.toml"),
        ("drain till.db --config wrong.toml", "line 2"),
        ("run till.db --config none.toml", "none.toml"),
        ("run till.db --config wrong.toml", "did you mean url?"),
        ("why till.db --config wrong.toml", "line 2"),
        ("curl till.db 1 --config wrong.toml", "line 2"),
        // Other files.
        ("enqueue till.db --channel a --file none.json", "none.json"),
        (
            "enqueue till.db --channel a --lines none.jsonl",
            "none.jsonl",
        ),
        ("edit till.db 1 --file none.json", "none.json"),
        ("backup till.db taken.json", "taken.json"),
        ("backup till.db no/folder/copy.db", "there is no folder"),
        ("bundle till.db taken.json", "taken.json"),
        ("bundle till.db no/folder/support.json", "support.json"),
        ("watch till.db", "needs a terminal"),
        (&format!("sink --port {taken}"), "port"),
    ] {
        let ran = desk.run(args.split(' '));
        ran.failed(1, says);
        assert_eq!(files(&desk), before, "{args}");
    }
}

#[test]
fn what_is_said_wrongly_is_a_matter_of_usage_and_changes_nothing() {
    let desk = desk();
    let before = files(&desk);
    for args in [
        "init",
        "init till.db more",
        "enqueue till.db --channel a",
        "enqueue till.db {}",
        "enqueue till.db --channel a --delay soon {}",
        "enqueue till.db --channel a --header nothing {}",
        "enqueue till.db --channel a --on-duplicate perhaps {}",
        "enqueue till.db --channel a --file a.json {}",
        "drain till.db",
        "drain till.db --config outbox.toml --url http://localhost:9/",
        "drain till.db --config outbox.toml --workers 0",
        "drain till.db --config outbox.toml -q -v",
        "run till.db",
        "run till.db --config outbox.toml --grace later",
        "status till.db sales",
        "watch till.db --every 1ms",
        "list till.db --status gone",
        "list till.db --limit none",
        "list till.db --limit -1",
        "show till.db",
        "why till.db --channel sales",
        "retry till.db",
        "retry till.db 1 --all",
        "retry till.db --all --status gone",
        "cancel till.db 1 --code timeout",
        "edit till.db 1",
        "conflicts till.db one",
        "conflicts till.db --all",
        "conflicts till.db 1 --drop --replace",
        "edit till.db 1 {} --file a.json",
        "pause till.db",
        "resume till.db",
        "export till.db --status gone",
        "backup till.db",
        "purge till.db",
        "purge till.db --older-than 30",
        "compact",
        "check till.db --connect",
        "curl till.db 1",
        "bundle till.db",
        "sink --mood jolly",
        "sink --port 70000",
        "upgrade",
        "schema till.db",
        "completions tcsh",
        "man dance",
        "help dance",
    ] {
        let ran = desk.run(args.split(' '));
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args}: {ran:?}");
        assert!(ran.err.starts_with("error: "), "{args}: {ran:?}");
        assert_eq!(files(&desk), before, "{args}");
    }
}

/// Each on the same file, in this order; what is printed with `--json` is JSON.
#[test]
fn every_command_succeeds_where_it_can() {
    let desk = desk();
    for args in [
        "init shop.db",
        "enqueue till.db --channel sales --key S-4 {}",
        "list till.db",
        "show till.db S-2",
        "why till.db",
        "why till.db S-2",
        "export till.db",
        "retry till.db 1 --dry-run",
        "retry till.db 1",
        "cancel till.db 1 --dry-run",
        "cancel till.db 1",
        "edit till.db S-4 []",
        "pause till.db sales",
        "resume till.db sales",
        "purge till.db --older-than 1d --dry-run",
        "purge till.db --older-than 1d",
        "compact till.db --dry-run",
        "compact till.db",
        "curl till.db S-4 --config outbox.toml",
        "backup till.db copy.db",
        "bundle till.db support.json --config outbox.toml",
        "upgrade till.db",
        "schema",
        "conflicts till.db",
        "status till.db",
    ] {
        let ran = desk.run(args.split(' '));
        assert!(
            ran.code == 0 && !ran.err.contains("error"),
            "{args}: {ran:?}"
        );
        assert!(!ran.out.is_empty(), "{args}");
        // What can be done once only has been.
        let once = ["backup", "bundle", "retry till.db 1", "cancel till.db 1"];
        if once.iter().any(|it| args.starts_with(it)) && !args.ends_with("--dry-run") {
            continue;
        }
        let ran = desk.run(args.split(' ').chain(["--json"]));
        assert_eq!(ran.code, 0, "{args}: {ran:?}");
        for line in ran.out.lines() {
            serde_json::from_str::<Value>(line).unwrap();
        }
    }
}

#[test]
fn a_channel_that_no_message_was_ever_in_is_told_of() {
    let desk = desk();
    let text = "note: no message was ever in a channel \"slaes\"; there are sales, mail\n";
    for args in [
        "list till.db --channel slaes",
        "list till.db --channel slaes --json",
        "export till.db --channel slaes",
        "retry till.db --all --channel slaes",
        "cancel till.db --all --channel slaes --dry-run",
    ] {
        let ran = desk.run(args.split(' '));
        let said = match args.contains("--json") {
            true => serde_json::json!({"note": text[6..].trim_end()}).to_string() + "\n",
            false => text.into(),
        };
        assert_eq!((ran.code, ran.err), (0, said), "{args}");
    }
    for args in [
        "list till.db --channel mail --status dead",
        "retry till.db --all --channel mail",
    ] {
        assert_eq!(desk.run(args.split(' ')).err, "", "{args}");
    }
}
