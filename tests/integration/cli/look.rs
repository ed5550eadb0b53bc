//! Commands that only look need no right to write. (Where the tests run as root, the tool is
//! started as nobody, for whom rights count.)

#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;

use super::{Desk, Ran, ended};

/// Of `nobody` on Linux and macOS alike, or near enough: not ours, and not root's.
const NOBODY: u32 = 65_534;

/// A folder and file that only their owner may write, and nobody is.
struct Locked {
    desk: Desk,
}

impl Locked {
    fn new(desk: Desk) -> Self {
        Self::within(desk, 0o555)
    }

    /// With these rights to the folder.
    fn within(desk: Desk, rights: u32) -> Self {
        let locked = Self { desk };
        for entry in std::fs::read_dir(locked.desk.path(".")).unwrap() {
            set_permissions(entry.unwrap().path(), Permissions::from_mode(0o444)).unwrap();
        }
        set_permissions(locked.desk.path("."), Permissions::from_mode(rights)).unwrap();
        locked
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.desk.command(args);
        let root = std::fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0);
        if root {
            command.uid(NOBODY);
        }
        ended(command.spawn().unwrap())
    }

    /// Everything in the folder, byte for byte.
    fn image(&self) -> BTreeMap<String, Vec<u8>> {
        let files = std::fs::read_dir(self.desk.path(".")).unwrap();
        let files = files.map(|it| it.unwrap());
        files
            .map(|it| {
                let name = it.file_name().to_string_lossy().into_owned();
                (name, std::fs::read(it.path()).unwrap())
            })
            .collect()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Or the folder could not be removed.
        let _ = set_permissions(self.desk.path("."), Permissions::from_mode(0o755));
    }
}

const LOOKS: [&[&str]; 9] = [
    &["status", "till.db"],
    &["list", "till.db"],
    &["show", "till.db", "S-1"],
    &["why", "till.db"],
    &["why", "till.db", "S-1"],
    &["export", "till.db"],
    &["conflicts", "till.db"],
    &["curl", "till.db", "S-1", "--config", "outbox.toml"],
    &["bundle", "till.db", "-"],
];

fn till() -> Desk {
    let desk = Desk::new();
    desk.put("sales", "S-1", "x");
    desk.write(
        "outbox.toml",
        "[channel.default]\nurl = \"https://erp.example/\"\n",
    );
    desk
}

#[test]
fn a_file_that_may_not_be_written_is_read_and_left_as_it_is() {
    // In a folder that may be written, an index of this user's would keep the application out.
    for (mode, rights) in [
        ("WAL", 0o555),
        ("WAL", 0o777),
        ("DELETE", 0o555),
        ("DELETE", 0o777),
    ] {
        let desk = till();
        let conn = desk.sql();
        conn.query_row(&format!("PRAGMA journal_mode = {mode}"), [], |_| Ok(()))
            .unwrap();
        drop(conn);
        let locked = Locked::within(desk, rights);
        let before = locked.image();
        for args in LOOKS {
            let ran = locked.run(args);
            assert_eq!(ran.code, 0, "{args:?} {ran:?}");
            assert!(!ran.out.is_empty(), "{args:?}");
            let told = ran.err.contains("is read as it lies");
            assert_eq!(told, mode == "WAL", "{args:?} {ran:?}");
        }
        let ran = locked.run(&["check", "till.db", "--json"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        let report = ran.json();
        assert_eq!(report["file"]["journal_mode"], mode.to_lowercase());
        for (code, says) in [
            (
                "journal_mode",
                if mode == "WAL" {
                    "has a write-ahead log"
                } else {
                    "has no"
                },
            ),
            ("not_writable", "this user may not write"),
        ] {
            let mut found = report["findings"].as_array().unwrap().iter();
            let found = found.find(|it| it["code"] == code).unwrap();
            assert!(found["text"].as_str().unwrap().contains(says), "{found}");
        }
        assert_eq!(locked.image(), before);
        // What writes is refused in one line, and writes nothing.
        for args in [
            &["cancel", "till.db", "S-1"][..],
            &["pause", "till.db", "sales"],
            &["drain", "till.db", "--config", "outbox.toml"],
            &["compact", "till.db"],
        ] {
            locked.run(args).failed(1, "");
        }
        assert_eq!(locked.image(), before);
    }
}

#[test]
fn a_log_beside_it_is_read_where_it_can_be_and_else_the_way_out_is_told() {
    let desk = till();
    // Held open, so that the log stays.
    let conn = desk.sql();
    conn.execute_batch("UPDATE outbox SET recipient = 'in the log'")
        .unwrap();
    // Its index may be read: the log counts.
    let locked = Locked::new(desk);
    let ran = locked.run(&["show", "till.db", "S-1", "--json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.json()["recipient"], "in the log");
    // Without it, an answer from the file alone would be out of date.
    set_permissions(
        locked.desk.path("till.db-shm"),
        Permissions::from_mode(0o000),
    )
    .unwrap();
    let ran = locked.run(&["show", "till.db", "S-1"]);
    ran.failed(1, "at a copy of the file together with its -wal");
    drop(conn);
}

#[test]
fn a_file_that_may_not_even_be_read_is_one_line() {
    let locked = Locked::new(till());
    set_permissions(locked.desk.path("till.db"), Permissions::from_mode(0o000)).unwrap();
    let commands: [&[&str]; 8] = [
        &["status", "till.db"],
        &["check", "till.db"],
        &["pause", "till.db", "sales"],
        &["enqueue", "till.db", "--channel=sales", "1"],
        &["drain", "till.db", "--url", "http://127.0.0.1:1/a"],
        &["backup", "till.db", "copy.db"],
        &["compact", "till.db"],
        &["init", "till.db"],
    ];
    for command in commands {
        let ran = locked.run(command);
        ran.failed(1, "may not be read by this user");
        assert!(!ran.err.contains("Error code"), "{ran:?}");
    }
}

#[test]
fn a_copy_is_made_of_what_may_only_be_read_and_of_a_file_of_the_future() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "one");
    desk.sql()
        .execute_batch(
            "UPDATE outbox_meta SET value = 99 WHERE key IN ('min_writer', 'schema_version')",
        )
        .unwrap();
    desk.done(["backup", "till.db", "copy.db"]);
    desk.sql()
        .execute_batch(
            "UPDATE outbox_meta SET value = 1 WHERE key IN ('min_writer', 'schema_version')",
        )
        .unwrap();
    let locked = Locked::new(desk);
    let there = tempfile::tempdir().unwrap();
    set_permissions(there.path(), Permissions::from_mode(0o777)).unwrap();
    let copy = there.path().join("copy.db");
    let ran = locked.run(&["backup", "till.db", copy.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let copied = sqlite_outbox::rusqlite::Connection::open(copy).unwrap();
    let number = copied.query_row("SELECT count(*) FROM outbox", [], |row| {
        row.get::<_, i64>(0)
    });
    assert_eq!(number.unwrap(), 1);
}

/// A technician's copy may be read only, and its reader was told that his own rights keep the till's
/// messages from being sent.
#[test]
fn who_may_only_look_is_told_the_same_cause_fault_and_advice() {
    let desk = Desk::new();
    desk.put("other", "o1", "x");
    desk.write(
        "outbox.toml",
        "[channel.default]\nurl = \"https://erp.example/\"\nbearer = { env = \"NOT_SET_HERE\" }\n",
    );
    let ran = desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    assert_eq!(ran.code, 3, "{ran:?}");
    // That was long ago.
    let conn = desk.sql();
    conn.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))
        .unwrap();
    conn.execute_batch(
        "UPDATE outbox SET created_at = created_at - 900000, next_attempt_at = 0;
         UPDATE outbox SET last_attempt_at = last_attempt_at - 900000;
         UPDATE outbox_attempt SET at = at - 900000;
         UPDATE outbox_channel SET since = since - 900000, until = until - 900000;",
    )
    .unwrap();
    drop(conn);
    let owner = desk.json(["why", "till.db", "o1", "--json"]);
    let locked = Locked::new(desk);
    let reader = locked.run(&["why", "till.db", "o1", "--json"]).json();
    for key in [
        "reason_code",
        "fault",
        "cause",
        "detail",
        "advice",
        "remedy",
        "commands",
    ] {
        assert_eq!(owner[key], reader[key], "{key}: {owner}\n{reader}");
    }
    assert_eq!(reader["reason_code"], "no_drain", "{reader}");
    assert!(
        owner["text"].to_string().contains("NOT_SET_HERE"),
        "{owner}"
    );
    assert!(reader.get("obstacle").is_none(), "{reader}");
    assert_eq!(reader["notes"][0]["code"], "not_writable", "{reader}");
    let text = reader["text"].as_str().unwrap();
    assert!(
        text.contains("NOT_SET_HERE") && text.contains("Note: this user may not write"),
        "{text}"
    );
    let whole = locked.run(&["why", "till.db"]);
    assert!(whole.out.contains("NOT_SET_HERE"), "{whole:?}");
    assert_eq!(whole.out.matches("may not write").count(), 1, "{whole:?}");
    assert!(!whole.out.contains("chown"), "{whole:?}");
}
