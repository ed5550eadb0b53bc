//! Opening: what is refused, what is made, what is left alone.

use std::path::Path;

use sqlite_outbox::{Enqueued, Error, Message, Outbox, Result, SCHEMA, SCHEMA_VERSION};

use crate::desk::{Desk, SECOND, up};
use crate::fixture::{Till, argument, child, column, nap, one, put, succeeded};

const EITHER_WAY: [fn(&Path) -> Result<Outbox>; 2] = [
    |path| Outbox::open(path),
    |path| Outbox::open_existing(path),
];

#[test]
fn a_missing_file_is_named_and_not_made() {
    let till = Till::new();
    let error = Outbox::open_existing(&till.path).unwrap_err();
    assert!(matches!(&error, Error::Missing(path) if *path == till.path));
    assert!(error.to_string().contains("till.db"), "{error}");
    assert!(till.files().is_empty());
}

#[test]
fn a_missing_folder_is_named_and_not_made() {
    let till = Till::new();
    let folder = till.folder.path().join("no/such");
    let error = Outbox::open(folder.join("till.db")).unwrap_err();
    assert!(matches!(error, Error::MissingFolder(path) if path == folder));
    assert!(till.files().is_empty());
    let file = till.folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Outbox::open(file.join("till.db")).unwrap_err();
    assert!(matches!(error, Error::MissingFolder(path) if path == file));
}

#[test]
fn what_is_no_file_is_refused() {
    let till = Till::new();
    for open in EITHER_WAY {
        let names = ["", ":memory:", "file::memory:", "file:till.db?mode=memory"];
        let paths = names.map(Path::new).into_iter().chain([till.folder.path()]);
        for path in paths {
            let error = open(path).unwrap_err();
            assert!(matches!(error, Error::NotAFile(_)), "{path:?}: {error:?}");
        }
    }
    assert!(till.files().is_empty());
    assert!(!Path::new("file:till.db?mode=memory").exists());
}

#[cfg(unix)]
#[test]
fn a_device_is_refused() {
    let error = Outbox::open("/dev/null").unwrap_err();
    assert!(matches!(error, Error::NotAFile(_)));
}

#[test]
fn a_file_that_is_no_database_is_refused_and_unchanged() {
    let till = Till::new();
    let text = "just some notes\n".repeat(200);
    std::fs::write(&till.path, &text).unwrap();
    for open in EITHER_WAY {
        let error = open(&till.path).unwrap_err();
        assert!(matches!(error, Error::NotADatabase(_)), "{error:?}");
    }
    assert_eq!(std::fs::read_to_string(&till.path).unwrap(), text);
    assert_eq!(till.files(), ["till.db"]);
}

#[test]
fn a_database_without_outbox_is_unchanged_until_open_makes_one() {
    for script in ["", "CREATE TABLE sale (id TEXT)"] {
        let till = Till::new();
        std::fs::write(&till.path, "").unwrap();
        till.sql().execute_batch(script).unwrap();
        let before = std::fs::read(&till.path).unwrap();
        let error = Outbox::open_existing(&till.path).unwrap_err();
        assert!(matches!(error, Error::NoOutbox(_)), "{error:?}");
        assert_eq!(std::fs::read(&till.path).unwrap(), before);
        assert_eq!(till.files(), ["till.db"]);
        till.open();
        Outbox::open_existing(&till.path).unwrap();
    }
}

#[test]
fn a_foreign_object_of_our_name_is_named_and_nothing_changes() {
    let cases = [
        (
            "outbox",
            "CREATE TABLE outbox (id INTEGER PRIMARY KEY, body TEXT)",
        ),
        ("outbox", "CREATE VIEW outbox AS SELECT 1 AS id"),
        (
            "OUTBOX",
            "CREATE TABLE OUTBOX (id INTEGER PRIMARY KEY, body TEXT)",
        ),
        ("outbox_meta", "CREATE TABLE outbox_meta (name, content)"),
        (
            "outbox_channel",
            "CREATE TABLE outbox_channel (channel TEXT)",
        ),
        (
            "outbox_status",
            "CREATE VIEW outbox_status AS SELECT 1 AS one",
        ),
        (
            "outbox_due",
            "CREATE TABLE sale (id TEXT); CREATE INDEX outbox_due ON sale (id)",
        ),
    ];
    for (name, script) in cases {
        let till = Till::with(script);
        let before = std::fs::read(&till.path).unwrap();
        let error = Outbox::open(&till.path).unwrap_err();
        assert!(
            matches!(&error, Error::ForeignTable(it) if it == name),
            "{script}: {error:?}"
        );
        assert_eq!(std::fs::read(&till.path).unwrap(), before, "{script}");
        assert_eq!(till.files(), ["till.db"]);
    }
}

#[test]
fn other_objects_that_start_like_ours_do_not_matter() {
    let till = Till::with("CREATE TABLE outbox_notes (text); CREATE TABLE outboxes (id)");
    put(&till.open(), &Message::text("sales", "x")).unwrap();
}

#[test]
fn the_schema_may_come_from_the_applications_own_migration() {
    let till = Till::with(SCHEMA);
    let mode = one(&till.sql(), "PRAGMA journal_mode");
    let outbox = Outbox::open_existing(&till.path).unwrap();
    put(&outbox, &Message::text("sales", "x")).unwrap();
    assert_eq!(one(&till.sql(), "PRAGMA journal_mode"), mode);
    assert_eq!(
        outbox.instance_id(),
        one(
            &till.sql(),
            "SELECT value FROM outbox_meta WHERE key = 'instance_id'"
        )
    );
}

#[test]
fn an_interrupted_migration_is_completed() {
    let (start, _) = SCHEMA.split_once("CREATE VIEW").unwrap();
    let till = Till::with(start);
    assert!(matches!(
        Outbox::open_existing(&till.path),
        Err(Error::Incomplete { .. })
    ));
    let outbox = till.open();
    put(&outbox, &Message::text("sales", "x")).unwrap();
    let whole = Till::new();
    whole.open();
    let objects = "SELECT type || ' ' || name FROM sqlite_master ORDER BY 1";
    assert_eq!(column(&till.sql(), objects), column(&whole.sql(), objects));
}

#[test]
fn a_dropped_index_is_made_again_by_open_and_only_by_open() {
    let till = Till::new();
    put(&till.open(), &Message::text("sales", "x")).unwrap();
    till.sql().execute_batch("DROP INDEX outbox_due").unwrap();
    let there = "SELECT count(*) FROM sqlite_master WHERE name = 'outbox_due'";
    let refused = Outbox::open_existing(&till.path).unwrap_err();
    let told =
        |error: Error| matches!(error, Error::Incomplete { missing } if missing == ["outbox_due"]);
    assert!(told(refused));
    let outbox = Outbox::open_to_read(&till.path).unwrap();
    assert_eq!(one(&till.sql(), there), "0");
    assert!(
        told(outbox.stats().unwrap_err()),
        "it must not look healthy"
    );
    till.open();
    assert_eq!(one(&till.sql(), there), "1");
    outbox.stats().unwrap();
}

#[test]
fn everything_else_in_the_file_stays_as_it_was() {
    let facts = "SELECT group_concat(fact) FROM (
        SELECT user_version AS fact FROM pragma_user_version
        UNION ALL SELECT application_id FROM pragma_application_id
        UNION ALL SELECT auto_vacuum FROM pragma_auto_vacuum
        UNION ALL SELECT page_size FROM pragma_page_size
        UNION ALL SELECT encoding FROM pragma_encoding
        UNION ALL SELECT sql FROM sqlite_master WHERE name NOT LIKE '%outbox%'
          AND name <> 'sqlite_sequence')";
    for mode in ["delete", "truncate", "wal"] {
        for foreign_keys in [true, false] {
            let till = Till::with(&format!(
                "PRAGMA page_size = 8192; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA encoding = 'UTF-16';
                 PRAGMA user_version = 42; PRAGMA application_id = 4711; PRAGMA journal_mode = {mode};
                 CREATE TABLE sale (id TEXT PRIMARY KEY, total INTEGER);
                 CREATE INDEX by_total ON sale (total);
                 CREATE TRIGGER t AFTER INSERT ON sale BEGIN SELECT 1; END;"
            ));
            let before = one(&till.sql(), facts);
            let settings =
                format!("PRAGMA journal_mode = {mode}; PRAGMA foreign_keys = {foreign_keys}");
            let outbox = Outbox::options()
                .on_connect(move |conn| conn.execute_batch(&settings))
                .open(&till.path)
                .unwrap();
            let message = Message::bytes("sales", [0, 159, 146, 150]).dedupe_key("ключ");
            for expected in [Enqueued::New { id: 1 }, Enqueued::Duplicate { id: 1 }] {
                assert_eq!(put(&outbox, &message).unwrap(), expected);
            }
            assert_eq!(outbox.stats().unwrap().total.unsent(), 1);
            assert_eq!(
                one(&outbox.connection().unwrap(), "PRAGMA journal_mode"),
                mode
            );
            drop(outbox);
            assert_eq!(one(&till.sql(), facts), before, "{mode}");
            let stored = if mode == "wal" { "wal" } else { "delete" };
            assert_eq!(one(&till.sql(), "PRAGMA journal_mode"), stored);
            assert_eq!(one(&till.sql(), "PRAGMA integrity_check"), "ok");
        }
    }
}

fn stamp(till: &Till, schema_version: i64, min_writer: i64) {
    till.sql()
        .execute_batch(&format!(
            "UPDATE outbox_meta SET value = '{schema_version}' WHERE key = 'schema_version';
             UPDATE outbox_meta SET value = '{min_writer}' WHERE key = 'min_writer';"
        ))
        .unwrap();
}

#[test]
fn a_file_that_forbids_old_writers_is_refused_with_both_versions() {
    let till = Till::new();
    let outbox = till.open();
    let newer = SCHEMA_VERSION + 1;
    stamp(&till, newer, newer);
    for open in EITHER_WAY {
        let error = open(&till.path).unwrap_err();
        assert!(
            matches!(error, Error::SchemaTooNew { found, supported } if found == newer && supported == SCHEMA_VERSION),
            "{error:?}"
        );
    }
    // A program that was running when the newer one came notices too.
    for message in [
        Message::text("sales", "x"),
        Message::text("sales", "x").dedupe_key("k"),
    ] {
        let error = put(&outbox, &message).unwrap_err();
        assert!(matches!(error, Error::SchemaTooNew { .. }), "{error:?}");
    }
    assert_eq!(outbox.unsent().unwrap(), 0);
}

/// What is no version: no number, no text, one that no number holds.
const SPOILED: [&str; 5] = ["'abc'", "''", "NULL", "x'ff'", "'99999999999999999999'"];

#[test]
fn a_version_that_cannot_be_read_is_mended_beside_all_that_is_ours() {
    for key in ["schema_version", "min_writer"] {
        for value in SPOILED {
            let till = Till::new();
            let outbox = till.open();
            put(&outbox, &Message::text("sales", "x")).unwrap();
            let name = outbox.instance_id().to_owned();
            drop(outbox);
            let sql = format!("UPDATE outbox_meta SET value = {value} WHERE key = '{key}'");
            till.sql().execute_batch(&sql).unwrap();
            let refused = Outbox::open_existing(&till.path).unwrap_err();
            let told = format!("outbox_meta.{key} (unreadable)");
            assert!(refused.to_string().contains(&told), "{refused}");
            let looked = Outbox::open_to_read(&till.path).unwrap();
            assert_eq!(looked.stats().unwrap().total.unsent(), 1, "{sql}");
            let mended = till.open();
            assert_eq!(mended.instance_id(), name, "{sql}");
            assert_eq!(mended.missing_parts().unwrap(), Vec::<String>::new());
            let stored = format!("SELECT value FROM outbox_meta WHERE key = '{key}'");
            assert_eq!(one(&till.sql(), &stored), "1", "{sql}");
        }
    }
}

#[test]
fn a_version_that_cannot_be_read_in_a_table_of_another_program_is_left_alone() {
    let till = Till::new();
    let theirs = "CREATE TABLE outbox_meta (key TEXT PRIMARY KEY, value);
                  INSERT INTO outbox_meta VALUES ('schema_version', 'abc')";
    till.sql().execute_batch(theirs).unwrap();
    for open in [&EITHER_WAY[..], &[|path| Outbox::open_to_read(path)]].concat() {
        let error = open(&till.path).unwrap_err();
        assert!(matches!(error, Error::ForeignTable(_)), "{error:?}");
    }
    assert_eq!(one(&till.sql(), "SELECT value FROM outbox_meta"), "abc");
}

#[test]
fn nobody_writes_where_a_newer_program_may_have_forbidden_it() {
    let till = Till::new();
    till.open();
    let newer = SCHEMA_VERSION + 1;
    for (spoilt, left) in [
        ("min_writer", "schema_version"),
        ("schema_version", "min_writer"),
    ] {
        stamp(&till, newer, newer);
        let sql = "UPDATE outbox_meta SET value = 'abc' WHERE key = ?1";
        till.sql().execute(sql, [spoilt]).unwrap();
        for open in EITHER_WAY {
            let error = open(&till.path).unwrap_err();
            assert!(
                matches!(error, Error::SchemaTooNew { found, .. } if found == newer),
                "{left}: {error:?}"
            );
        }
    }
}

/// It has looked when it began, and looks again before each transaction that follows a commit of others.
#[test]
fn a_drain_at_work_writes_nothing_more_once_a_newer_program_forbids_it() {
    let desk = Desk::new();
    let mut drain = desk.drain();
    desk.put(Message::text("sales", "one"));
    desk.live(&mut drain, SECOND, &up);
    assert_eq!(desk.states(), ["sent"]);
    desk.put(Message::text("sales", "two"));
    let newer = SCHEMA_VERSION + 1;
    stamp(&desk.till, newer, newer);
    for _ in 0..5 {
        let error = drain.step(&up).unwrap_err();
        assert!(matches!(error, Error::SchemaTooNew { .. }), "{error:?}");
        desk.pass(SECOND);
    }
    let claims = "SELECT claims FROM outbox";
    assert_eq!(column(&desk.till.sql(), claims), ["1", "0"]);
}

#[test]
fn a_file_whose_name_was_deleted_gets_another() {
    let till = Till::new();
    let name = till.open().instance_id().to_owned();
    till.sql()
        .execute_batch("DELETE FROM outbox_meta WHERE key = 'instance_id'")
        .unwrap();
    assert_ne!(till.open().instance_id(), name);
}

#[test]
fn a_newer_file_that_allows_old_writers_goes_on_working() {
    let till = Till::new();
    till.open();
    stamp(&till, SCHEMA_VERSION + 1, SCHEMA_VERSION);
    let newer = "ALTER TABLE outbox ADD COLUMN colour TEXT; CREATE TABLE outbox_later (id);
                 DROP TRIGGER outbox_guard";
    till.sql().execute_batch(newer).unwrap();
    put(&till.open(), &Message::text("sales", "x")).unwrap();
    let guard = "SELECT count(*) FROM sqlite_master WHERE name = 'outbox_guard'";
    assert_eq!(
        one(&till.sql(), guard),
        "0",
        "completing a newer schema is not ours"
    );
}

#[test]
fn an_older_file_is_upgraded_by_open_only() {
    let till = Till::new();
    till.open();
    stamp(&till, SCHEMA_VERSION - 1, 0);
    let error = Outbox::open_existing(&till.path).unwrap_err();
    assert!(matches!(error, Error::SchemaTooOld { .. }), "{error:?}");
    till.open();
    Outbox::open_existing(&till.path).unwrap();
}

#[test]
fn an_empty_file_in_someones_transaction_is_waited_for() {
    let till = Till::new();
    let other = till.sql();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let path = till.path.clone();
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| Outbox::open(path).unwrap());
        nap(300);
        other.execute_batch("ROLLBACK").unwrap();
        opened.join().unwrap();
    });
    assert_eq!(one(&till.sql(), "PRAGMA journal_mode"), "wal");
}

#[test]
fn a_file_that_someone_else_begins_meanwhile_keeps_their_journal_mode() {
    let till = Till::new();
    let other = till.sql();
    other
        .execute_batch("BEGIN IMMEDIATE; CREATE TABLE sale (id)")
        .unwrap();
    let path = till.path.clone();
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| Outbox::open(path).unwrap());
        nap(300);
        other.execute_batch("COMMIT").unwrap();
        opened.join().unwrap();
    });
    assert_eq!(one(&till.sql(), "PRAGMA journal_mode"), "delete");
}

/// The power went after the first page was written and before the log was chosen.
#[test]
fn a_file_that_was_begun_and_has_nothing_in_it_gets_the_write_ahead_log() {
    let till = Till::new();
    let begun = till.sql();
    begun.execute_batch("BEGIN IMMEDIATE; COMMIT").unwrap();
    assert_eq!(one(&begun, "PRAGMA page_count"), "1");
    assert_eq!(one(&begun, "PRAGMA journal_mode"), "delete");
    drop(begun);
    till.open();
    assert_eq!(one(&till.sql(), "PRAGMA journal_mode"), "wal");
}

#[test]
fn a_connection_that_may_not_write_is_refused() {
    let till = Till::new();
    till.open();
    let options = Outbox::options().on_connect(|conn| conn.execute_batch("PRAGMA query_only = 1"));
    let error = options.open(&till.path).unwrap_err();
    assert!(
        matches!(&error, Error::ReadOnly(path) if *path == till.path),
        "{error:?}"
    );
}

#[cfg(unix)]
#[test]
fn a_file_that_may_not_be_written_is_refused() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let till = Till::new();
    till.open();
    let before = std::fs::read(&till.path).unwrap();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&till.path, 0o444);
    mode(till.folder.path(), 0o555);
    let mut command = child("store::child_is_refused_as_read_only", &till.path);
    if std::fs::metadata(&till.path).unwrap().uid() == 0 {
        // File modes do not bind root.
        command.uid(65534).gid(65534);
    }
    match command.spawn() {
        Ok(child) => succeeded(child),
        Err(error) => eprintln!("skipped: this program cannot be run as nobody: {error}"),
    }
    assert_eq!(std::fs::read(&till.path).unwrap(), before);
    mode(till.folder.path(), 0o755);
    assert_eq!(till.files(), ["till.db"]);
}

#[test]
fn child_is_refused_as_read_only() {
    if let Some(path) = argument() {
        for open in EITHER_WAY {
            let error = open(&path).unwrap_err();
            assert!(matches!(error, Error::ReadOnly(_)), "{error:?}");
        }
        let error = Outbox::open(path.with_file_name("new.db")).unwrap_err();
        assert!(matches!(error, Error::ReadOnly(_)), "{error:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_new_file_has_the_mode_that_any_new_file_has() {
    use std::os::unix::fs::PermissionsExt;
    let till = Till::new();
    till.open();
    let plain = till.folder.path().join("plain");
    std::fs::write(&plain, "").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&till.path) & !mode(&plain), 0);
}

#[test]
fn the_path_is_fixed_when_opened() {
    let till = Till::new();
    assert_eq!(till.open().path(), till.path);
    let outbox = till.open();
    assert!(outbox.path().is_absolute());
    assert_eq!(outbox.clone().instance_id().len(), 32);
}
