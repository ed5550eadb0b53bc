//! A file that a command writes is there whole or not at all.

use std::path::PathBuf;

use super::Desk;
use sqlite_outbox::rusqlite::Connection;

/// What lies beside the till's own files.
fn others(desk: &Desk) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(desk.folder.path()).unwrap();
    let paths = entries.map(|it| it.unwrap().path());
    let own = |it: &PathBuf| {
        it.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("till.db")
    };
    paths.filter(|it| !own(it)).collect()
}

#[test]
fn what_was_left_by_a_killed_one_is_removed_and_blocks_nothing() {
    let desk = Desk::new();
    for end in ["", "-journal", "-wal", "-shm"] {
        desk.write(&format!("copy.db.0a1b2c3d.partial{end}"), "half");
    }
    // Not ours: other names.
    for name in [
        "copy.db.partial",
        "copy.db.0a1b2c3.partial",
        "other.db.0a1b2c3d.partial",
    ] {
        desk.write(name, "kept");
    }
    desk.done(["backup", "till.db", "copy.db"]);
    let mut names: Vec<_> = others(&desk)
        .iter()
        .map(|it| it.file_name().unwrap().to_str().unwrap().to_string())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "copy.db",
            "copy.db.0a1b2c3.partial",
            "copy.db.partial",
            "other.db.0a1b2c3d.partial"
        ]
    );
}

#[test]
fn a_backup_that_is_under_way_keeps_its_file() {
    let desk = Desk::new();
    let path = desk.path("copy.db.0a1b2c3d.partial");
    let working = Connection::open(&path).unwrap();
    working
        .execute_batch("PRAGMA locking_mode = EXCLUSIVE; CREATE TABLE sale (id)")
        .unwrap();
    desk.done(["backup", "till.db", "copy.db"]);
    assert!(path.exists());
}

#[test]
fn a_support_file_in_the_making_is_nobodys_business_for_a_while() {
    let desk = Desk::new();
    let (old, young) = ("b.json.00000000.partial", "b.json.11111111.partial");
    desk.write(old, "half");
    desk.write(young, "half");
    let hour = std::time::Duration::from_secs(3600);
    let file = std::fs::File::options()
        .write(true)
        .open(desk.path(old))
        .unwrap();
    file.set_modified(file.metadata().unwrap().modified().unwrap() - hour)
        .unwrap();
    desk.done(["bundle", "till.db", "b.json"]);
    assert!(!desk.path(old).exists() && desk.path(young).exists());
}

/// A limit on the size of files stands for a disk that is full in the middle.
#[cfg(target_os = "linux")]
#[test]
fn where_the_disk_takes_no_more_nothing_is_left() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
             INSERT INTO outbox (channel, payload, status, last_error, settled_at)
             SELECT 'sales', '{}', 'dead', 'no such article in the list of this year', 1 FROM n;
             PRAGMA wal_checkpoint(TRUNCATE);",
        )
        .unwrap();
    for command in ["backup till.db copy.db", "bundle till.db b.json"] {
        let tool = env!("CARGO_BIN_EXE_outbox");
        let limited = format!("trap '' XFSZ; ulimit -f 40; exec {tool} {command}");
        let ran = std::process::Command::new("bash")
            .args(["-c", &limited])
            .current_dir(desk.folder.path())
            .output()
            .unwrap();
        super::Ran::from(ran).failed(1, "");
        assert_eq!(others(&desk), Vec::<PathBuf>::new(), "{command}");
        desk.done(command.split(' '));
        std::fs::remove_file(desk.path(command.split(' ').next_back().unwrap())).unwrap();
    }
}

#[cfg(unix)]
mod broken_off {
    use std::time::Duration;

    use super::*;

    /// A till with something to copy.
    fn large() -> Desk {
        let desk = Desk::new();
        desk.sql()
            .execute_batch(
                "CREATE TABLE picture (bytes);
                 WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 24)
                 INSERT INTO picture SELECT zeroblob(4000000) FROM n;
                 PRAGMA wal_checkpoint(TRUNCATE);",
            )
            .unwrap();
        desk
    }

    fn whole(desk: &Desk) -> bool {
        let copy = Connection::open(desk.path("copy.db")).unwrap();
        let pictures = copy.query_row("SELECT count(*) FROM picture", [], |row| row.get(0));
        pictures == Ok(24)
    }

    /// Sends the signal as soon as something is written beside the till; true if it came in time.
    fn hit(desk: &Desk, signal: &str) -> bool {
        let going = desk.start(["backup", "till.db", "copy.db"]);
        let started = std::time::Instant::now();
        while others(desk).is_empty() {
            assert!(started.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        going.signal(signal);
        let ran = going.end();
        match ran.code {
            0 => assert!(whole(desk)),
            1 => {
                ran.failed(
                    1,
                    "no copy was made: it was broken off, and nothing of it is left",
                );
                assert_eq!(others(desk), Vec::<PathBuf>::new());
            }
            _ => assert!(!desk.path("copy.db").exists(), "half of it under its name"),
        }
        ran.code != 0
    }

    #[test]
    fn a_backup_that_is_broken_off_leaves_nothing_and_the_next_one_works() {
        let desk = large();
        for signal in ["-TERM", "-INT", "-KILL"] {
            let mut tries = 0;
            while !hit(&desk, signal) {
                tries += 1;
                assert!(tries < 50, "{signal} comes too late every time");
                std::fs::remove_file(desk.path("copy.db")).unwrap();
            }
            desk.done(["backup", "till.db", "copy.db"]);
            assert!(whole(&desk));
            assert_eq!(others(&desk), [desk.path("copy.db")], "{signal}");
            std::fs::remove_file(desk.path("copy.db")).unwrap();
        }
    }

    #[test]
    fn a_compact_that_is_killed_or_stopped_has_changed_nothing() {
        for mode in ["wal", "delete"] {
            let desk = large();
            desk.put("sales", "S-1", "text");
            desk.sql()
                .execute_batch(&format!(
                    "PRAGMA journal_mode = {mode}; DELETE FROM picture WHERE rowid < 12"
                ))
                .unwrap();
            for (signal, pause) in [("-TERM", 5), ("-KILL", 20), ("-INT", 40), ("-KILL", 80)] {
                let going = desk.start(["compact", "till.db"]);
                std::thread::park_timeout(Duration::from_millis(pause));
                going.signal(signal);
                let ran = going.end();
                assert!(matches!(ran.code, -1..=1), "{ran:?}");
                let check = desk
                    .sql()
                    .query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
                assert_eq!(check.as_deref(), Ok("ok"), "{mode} {signal}");
                assert_eq!(desk.json(["show", "till.db", "S-1", "--json"])["id"], 1);
            }
        }
    }
}
