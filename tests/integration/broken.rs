//! Files that should not be: each call answers with a typed error of one line or something that
//! makes sense, in time, and a file that cannot be opened is left as it is.
//!
//! The corpus has damaged files, foreign ones, and good ones on which someone ran a statement past
//! all checks. `OUTBOX_LONG=1` takes all of it: every cut, every page, more dice. What dice find in
//! rows beyond that is the business of the fuzz targets.

mod corpus;
mod exercise;
#[cfg(feature = "cli")]
mod tool;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Delivery, Outbox, Outcome, Status};
use tempfile::TempDir;

use corpus::Broken;

use crate::fixture::{folder_in_memory, long};

const NOW: i64 = 1_800_000_000_000;

/// No file takes longer.
const HANG: Duration = Duration::from_secs(60);

fn write(broken: &Broken, folder: &Path) -> PathBuf {
    let path = folder.join("till.db");
    std::fs::write(&path, &broken.file).unwrap();
    for (end, bytes) in &broken.beside {
        std::fs::write(folder.join(format!("till.db{end}")), bytes).unwrap();
    }
    path
}

/// A good file on which this was run. None where SQLite refused it.
fn run_on_good(good: &[u8], script: &str) -> Option<(TempDir, PathBuf)> {
    let folder = folder_in_memory();
    let path = folder.path().join("till.db");
    std::fs::write(&path, good).unwrap();
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("PRAGMA ignore_check_constraints = ON")
        .unwrap();
    conn.execute_batch(script).ok()?;
    Some((folder, path))
}

#[test]
fn a_damaged_file_is_told_of_and_nothing_panics_or_hangs() {
    let folder = folder_in_memory();
    let good = corpus::good(folder.path());
    let (mut opened, mut refused) = (0, 0);
    for broken in corpus::damaged(&good) {
        let folder = folder_in_memory();
        let path = write(&broken, folder.path());
        println!("{}", broken.name);
        if broken.beside.is_empty() && Outbox::open_existing(&path).is_err() {
            let file = std::fs::read(&path).unwrap();
            assert!(file == broken.file, "{}: it was changed", broken.name);
        }
        let started = Instant::now();
        let answers = exercise::everything(&path);
        assert!(
            started.elapsed() < HANG,
            "{}: {:?}",
            broken.name,
            started.elapsed()
        );
        match answers.good {
            0 => refused += 1,
            _ => opened += 1,
        }
    }
    println!("{opened} could be opened, {refused} could not");
    assert!(opened > 10 && refused > 20, "{opened} {refused}");
}

/// As a name was read back as text, whatever it had been, a walk over all lanes began anew behind
/// a blob and never came to an end.
#[test]
fn a_walk_over_names_that_are_no_text_ends() {
    let folder = folder_in_memory();
    let good = corpus::good(folder.path());
    for column in ["channel", "ordering_key"] {
        for value in ["x''", "x'61'", "x'ff'"] {
            let script = format!(
                "DROP TRIGGER outbox_place; DROP TRIGGER outbox_status_changed;
                 UPDATE outbox SET {column} = {value} WHERE dedupe_key IN ('lane-3', 'free-3')"
            );
            let (_folder, path) = run_on_good(&good, &script).unwrap();
            let answers = exercise::everything(&path);
            assert!(answers.sent > 20, "{column} {value}: {answers:?}");
        }
    }
}

/// In UTF-16 a surrogate without its other half is read as U+FFFD, which stands elsewhere in the
/// order than what was read.
#[test]
fn a_walk_over_names_that_change_when_they_are_read_ends() {
    for (encoding, before, broken) in [("UTF-16le", "fe00", "fedc"), ("UTF-16be", "fffe", "dc00")] {
        let folder = folder_in_memory();
        let good = corpus::encoded(folder.path(), encoding);
        for column in ["channel", "ordering_key"] {
            let script = format!(
                "DROP TRIGGER outbox_place; DROP TRIGGER outbox_status_changed;
                 UPDATE outbox SET {column} = CAST(x'{before}' AS TEXT)
                  WHERE dedupe_key IN ('lane-3', 'free-3');
                 UPDATE outbox SET {column} = CAST(x'{broken}' AS TEXT)
                  WHERE dedupe_key IN ('lane-4', 'free-4')"
            );
            let (_folder, path) = run_on_good(&good, &script).unwrap();
            let answers = exercise::everything(&path);
            assert!(answers.sent > 20, "{encoding} {column}: {answers:?}");
        }
    }
}

/// With an empty idempotency key the receiver would take it for any other that has none.
#[test]
fn a_message_without_an_id_is_not_sent() {
    let folder = folder_in_memory();
    let good = corpus::good(folder.path());
    let script = "UPDATE outbox SET message_id = '' WHERE dedupe_key = 'free-3'";
    let (_folder, path) = run_on_good(&good, script).unwrap();
    let outbox = Outbox::open(&path).unwrap();
    outbox
        .drain(&|_: &Delivery| Ok(Outcome::delivered()))
        .unwrap();
    let entry = outbox.get_by_key("sales", "free-3").unwrap().unwrap();
    assert_eq!(entry.status, Status::Dead);
    assert_eq!(entry.last_error.as_deref(), Some("message_id is empty"));
}

/// Whatever one row holds, it keeps no other from being sent; and what is done to the whole file seldom does.
#[test]
fn what_foreign_hands_wrote_past_all_checks_is_read_or_told_of() {
    let folder = folder_in_memory();
    let good = corpus::good(folder.path());
    let (mut tried, mut sent) = ([0, 0], [0, 0]);
    let every = if long() { 1 } else { 6 };
    for statement in corpus::statements().into_iter().step_by(every) {
        let sql = &statement.sql;
        let Some((_folder, path)) = run_on_good(&good, sql) else {
            continue;
        };
        let started = Instant::now();
        let answers = exercise::everything(&path);
        assert!(started.elapsed() < HANG, "{sql}: {:?}", started.elapsed());
        let (_folder, path) = run_on_good(&good, sql).unwrap();
        let unsent = exercise::unsent_beside(&path, corpus::ODD_ONE);
        println!("{sql}: {answers:?}, {unsent} others unsent");
        let kind = usize::from(statement.one_row);
        tried[kind] += 1;
        sent[kind] += u64::from(unsent == 0);
    }
    println!(
        "[of the whole file, of one row]: {tried:?} tried, after {sent:?} all others were sent"
    );
    assert!(tried[0] > 50 && tried[1] > 40, "{tried:?}");
    assert_eq!(sent[1], tried[1], "one odd row kept others from being sent");
    assert!(sent[0] * 10 > tried[0] * 9, "{sent:?} of {tried:?}");
}
