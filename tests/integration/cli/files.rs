//! What is done to the whole file: export and back, backup, compact, upgrade.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use sqlite_outbox::rusqlite::Connection;

use super::Desk;
use crate::server::{Server, respond};

/// What the receiver would see of a message.
const SEEN: &str = "SELECT channel, message_id, dedupe_key, event_type, recipient, ordering_key,
    principal, content_type, headers, available_at, expires_at, hex(payload) FROM outbox ORDER BY id";

fn seen(conn: &Connection) -> Vec<String> {
    let mut statement = conn.prepare(SEEN).unwrap();
    let rows = statement.query_map([], |row| {
        let cells = (0..12).map(|it| format!("{:?}", row.get_ref_unwrap(it)));
        Ok(cells.collect::<Vec<_>>().join(" "))
    });
    rows.unwrap().map(|it| it.unwrap()).collect()
}

#[test]
fn what_is_exported_comes_back_byte_for_byte() {
    let desk = Desk::new();
    let conn = desk.sql();
    let payloads: Vec<Vec<u8>> = vec![
        b"{\"total\":1250}".to_vec(),
        "two\nlines\r\n and \u{1b}[2J\u{7f}\u{202e}\u{2028} caf\u{e9} \u{1f600}".into(),
        (0..=255).collect(),
        b"a\0b".to_vec(),
        b"".to_vec(),
        b" spaces at both ends ".to_vec(),
        vec![0xff; 200_000],
        "\u{1}".repeat(200_000).into_bytes(),
    ];
    for (number, payload) in payloads.iter().enumerate() {
        conn.execute(
            "INSERT INTO outbox (channel, dedupe_key, event_type, recipient, ordering_key, principal,
                                 content_type, headers, available_at, expires_at, payload)
             VALUES ('sales', ?1, 'sale.done', '+49 1', 'lane', 'anna', 'text/plain',
                     '{\"x-a\":\"1\",\"x-b\":\"2\"}', 1000, 4000000000000, ?2)",
            (format!("S-{number}"), payload),
        )
        .unwrap();
    }
    conn.execute_batch("INSERT INTO outbox (channel, payload) VALUES ('a', 'as text')")
        .unwrap();
    desk.done(["init", "new.db"]);
    let export = desk.done(["export", "till.db"]);
    assert!(!export.chars().any(|it| it.is_control() && it != '\n'));
    let ran = desk.feed(&export, ["enqueue", "new.db", "--lines=-", "--exported"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    assert_eq!(ran.out, "9 messages enqueued\n");
    let new = Connection::open(desk.path("new.db")).unwrap();
    assert_eq!(seen(&new), seen(&conn));
    let text: String = new
        .query_row(
            "SELECT typeof(payload) FROM outbox WHERE channel = 'a'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(text, "text");
    // Again, and nothing is there twice.
    let ran = desk.feed(&export, ["enqueue", "new.db", "--lines=-", "--exported"]);
    assert_eq!(ran.out, "0 messages enqueued, 9 there already\n");
}

#[test]
fn an_export_has_every_column_and_is_narrowed_by_status_and_channel() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.put("other", "O-1", "text");
    let server = Server::start(|_| respond(422, &[], ""));
    desk.run(["drain", "till.db", "--url", &server.url("/")]);
    desk.put("sales", "S-2", "text");
    let keys = |args: &[&str]| -> Vec<Value> {
        let ran = desk.run(["export", "till.db"].iter().chain(args));
        ran.lines()
            .iter()
            .map(|it| it["dedupe_key"].clone())
            .collect()
    };
    assert_eq!(keys(&[]), ["S-1", "O-1", "S-2"]);
    assert_eq!(keys(&["--status=dead"]), ["S-1", "O-1"]);
    assert_eq!(keys(&["--status=dead", "--channel=sales"]), ["S-1"]);
    assert_eq!(keys(&["--channel=none"]), Vec::<Value>::new());
    let row = &desk.run(["export", "till.db", "--json"]).lines()[0];
    let mut columns: Vec<String> = desk
        .sql()
        .prepare("SELECT name FROM pragma_table_info('outbox')")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(|it| it.unwrap())
        .collect();
    columns.sort();
    let mut exported: Vec<String> = row.as_object().unwrap().keys().cloned().collect();
    exported.sort();
    assert_eq!(exported, columns);
}

#[test]
fn what_is_over_is_left_out_and_a_dead_letter_is_tried_again() {
    let desk = Desk::new();
    for key in ["S-1", "S-2", "S-3", "S-4", "S-5"] {
        desk.put("sales", key, "text");
    }
    desk.sql()
        .execute_batch(
            "UPDATE outbox SET status = 'sent', settled_at = 1 WHERE id = 1;
             UPDATE outbox SET status = 'expired', settled_at = 1 WHERE id = 2;
             UPDATE outbox SET status = 'cancelled', settled_at = 1 WHERE id = 3;
             UPDATE outbox SET status = 'dead', settled_at = 1, attempts = 20 WHERE id = 4;",
        )
        .unwrap();
    desk.done(["init", "new.db"]);
    let export = desk.done(["export", "till.db"]);
    let ran = desk.feed(export, ["enqueue", "new.db", "--lines=-", "--exported"]);
    assert_eq!(
        ran.out,
        "2 messages enqueued, 3 left out: sent, expired or cancelled\n"
    );
    let rows = desk.run(["list", "new.db", "--json"]).lines();
    assert_eq!(rows[0]["dedupe_key"], "S-4");
    assert_eq!(
        (&rows[0]["status"], &rows[0]["attempts"]),
        (&json!("pending"), &json!(0))
    );
}

#[test]
fn a_line_that_is_no_export_is_named_and_what_stands_before_it_is_kept() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let good = desk.done(["export", "till.db"]);
    desk.done(["init", "new.db"]);
    for bad in [
        "{}",
        "text",
        &good.replace("\"payload\":\"text\"", "\"payload_base64\":\"?\""),
        &good.replace("\"payload\":\"text\",", ""),
        &good.replace("\"pending\"", "\"posted\""),
    ] {
        let input = format!("{good}{}\n{good}", bad.trim_end());
        let ran = desk.feed(input, ["enqueue", "new.db", "--lines=-", "--exported"]);
        ran.failed(1, "line 2");
    }
    assert_eq!(desk.run(["list", "new.db", "--json"]).lines().len(), 1);
    let usage = desk.run([
        "enqueue",
        "new.db",
        "--exported",
        "--lines=-",
        "--channel=a",
    ]);
    assert_eq!(usage.code, 2);
    assert_eq!(desk.run(["enqueue", "new.db", "--exported", "{}"]).code, 2);
}

#[test]
fn a_backup_has_everything_in_every_journal_mode_while_others_write() {
    for mode in ["wal", "delete", "truncate", "persist"] {
        let desk = Desk::new();
        let conn = desk.sql();
        conn.execute_batch(&format!(
            "PRAGMA journal_mode = {mode};
             CREATE TABLE sale (id INTEGER PRIMARY KEY, message INTEGER);
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
             INSERT INTO outbox (channel, payload) SELECT 'old', randomblob(1000) FROM n;"
        ))
        .unwrap();
        let path = desk.path("till.db");
        let (done, begun) = (AtomicBool::new(false), AtomicBool::new(false));
        let sales = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut conn = Connection::open(&path).unwrap();
                conn.busy_timeout(std::time::Duration::from_secs(20))
                    .unwrap();
                let mut sales = 0;
                while !done.load(Ordering::SeqCst) {
                    let tx = conn
                        .transaction_with_behavior(
                            sqlite_outbox::rusqlite::TransactionBehavior::Immediate,
                        )
                        .unwrap();
                    tx.execute_batch(
                        "INSERT INTO outbox (channel, payload) VALUES ('sales', randomblob(3000));
                         INSERT INTO sale (message) VALUES (last_insert_rowid());",
                    )
                    .unwrap();
                    tx.commit().unwrap();
                    sales += 1;
                    begun.store(true, Ordering::SeqCst);
                    // Without a write-ahead log, a writer that never pauses leaves nobody a read.
                    std::thread::park_timeout(std::time::Duration::from_millis(2));
                }
                sales
            });
            while !begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let copied = desk.run(["backup", "till.db", "copy.db", "--json"]);
            done.store(true, Ordering::SeqCst);
            let sales: i64 = writer.join().unwrap();
            assert_eq!(
                (copied.code, copied.err.as_str()),
                (0, ""),
                "{mode}: {copied:?}"
            );
            assert_eq!(
                copied.json()["bytes"],
                std::fs::metadata(desk.path("copy.db")).unwrap().len()
            );
            sales
        });
        let copy = Connection::open(desk.path("copy.db")).unwrap();
        let check: String = copy
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .unwrap();
        assert_eq!(check, "ok", "{mode}");
        let (in_copy, alone): (i64, i64) = copy
            .query_row(
                "SELECT (SELECT count(*) FROM sale),
                        (SELECT count(*) FROM sale WHERE message NOT IN (SELECT id FROM outbox))",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .unwrap();
        assert!(
            (1..=sales).contains(&in_copy),
            "{mode}: {in_copy} of {sales}"
        );
        assert_eq!(alone, 0, "{mode}: half a transaction");
        drop(copy);
        assert!(!desk.path("copy.db-wal").exists() && !desk.path("copy.db-journal").exists());
        let old = desk.json(["status", "copy.db", "--json"])["channels"][0]["pending"].clone();
        assert_eq!(old, 2000, "{mode}");
    }
}

#[test]
fn a_backup_overwrites_nothing_and_leaves_nothing_behind() {
    let desk = Desk::new();
    desk.write("there.db", "notes");
    desk.run(["backup", "till.db", "there.db"])
        .failed(1, "nothing is overwritten");
    desk.run(["backup", "till.db", "till.db"])
        .failed(1, "nothing is overwritten");
    desk.run(["backup", "till.db", "no/folder/copy.db"])
        .failed(1, "folder");
    assert_eq!(std::fs::read(desk.path("there.db")).unwrap(), b"notes");
    // A damaged file has no good copy.
    desk.sql()
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
             INSERT INTO outbox (channel, payload) SELECT 'a', randomblob(500) FROM n;
             PRAGMA wal_checkpoint(TRUNCATE);",
        )
        .unwrap();
    let mut bytes = std::fs::read(desk.path("till.db")).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0xa5);
    desk.write("till.db", &bytes);
    desk.run(["backup", "till.db", "copy.db"])
        .failed(1, "damaged");
    assert!(!desk.path("copy.db").exists());
}

#[cfg(unix)]
#[test]
fn a_backup_is_no_more_readable_than_its_original() {
    use std::os::unix::fs::PermissionsExt;
    let desk = Desk::new();
    let rights = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(desk.path("till.db"), rights).unwrap();
    desk.done(["backup", "till.db", "copy.db"]);
    let mode = std::fs::metadata(desk.path("copy.db"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn compact_gives_the_disk_back_and_says_so() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let conn = desk.sql();
    conn.execute_batch(
        "CREATE TABLE log (text);
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
         INSERT INTO log SELECT randomblob(1000) FROM n;
         DELETE FROM log;",
    )
    .unwrap();
    drop(conn);
    let plan = desk.json(["compact", "till.db", "--dry-run", "--json"]);
    assert!(plan["free_bytes"].as_u64().unwrap() > 1_500_000, "{plan}");
    assert_eq!(plan["bytes_after"], Value::Null);
    let before = std::fs::metadata(desk.path("till.db")).unwrap().len();
    let ran = desk.run(["compact", "till.db"]);
    assert_eq!(ran.code, 0);
    assert!(ran.err.contains("nobody else can write"), "{ran:?}");
    assert!(ran.out.contains("gained"), "{ran:?}");
    let after = std::fs::metadata(desk.path("till.db")).unwrap().len();
    assert!(after + 1_500_000 < before, "{before} {after}");
    assert_eq!(desk.json(["show", "till.db", "S-1", "--json"])["id"], 1);
    let again = desk.json(["compact", "till.db", "--json"]);
    assert_eq!(again["gained"], 0);
}

#[test]
fn compact_changes_nothing_while_another_writes() {
    let desk = Desk::new();
    let conn = desk.sql();
    conn.execute_batch("BEGIN IMMEDIATE; CREATE TABLE sale (id)")
        .unwrap();
    let ran = desk.run(["compact", "till.db", "--json"]);
    ran.failed(1, "lock");
    conn.execute_batch("COMMIT").unwrap();
}

#[test]
fn upgrade_is_asked_for_by_name_and_puts_back_what_is_missing() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let done = desk.json(["upgrade", "till.db", "--json"]);
    assert_eq!(done, json!({"from": 1, "to": 1}));
    let conn = desk.sql();
    let parts = "SELECT count(*) FROM sqlite_master WHERE name LIKE 'outbox%'";
    let count = || {
        conn.query_row(parts, [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    let whole = count();
    conn.execute_batch("DROP TRIGGER outbox_inserted; DROP INDEX outbox_dead_rows")
        .unwrap();
    let done = desk.done(["upgrade", "till.db"]);
    assert!(done.contains("there again: outbox_dead_rows"), "{done}");
    assert_eq!(count(), whole);
    assert!(desk.done(["upgrade", "till.db"]).contains("is complete"));
    // Without this one, messages go out all the same.
    conn.execute_batch("DROP TRIGGER outbox_counted; DROP VIEW outbox_dead")
        .unwrap();
    let done = desk.json(["upgrade", "till.db", "--json"]);
    let mended = json!(["outbox_counted", "outbox_dead"]);
    assert_eq!(done, json!({"from": 1, "to": 1, "mended": mended}));
    assert_eq!(count(), whole);
    conn.execute_batch("UPDATE outbox_meta SET value = '0' WHERE key = 'schema_version'")
        .unwrap();
    desk.run(["status", "till.db"]).failed(1, "outbox upgrade");
    let done = desk.json(["upgrade", "till.db", "--json"]);
    assert_eq!(done, json!({"from": 0, "to": 1}));
    assert_eq!(desk.json(["show", "till.db", "S-1", "--json"])["id"], 1);
}
