//! Long reads of a file without a write-ahead log, where readers keep writers waiting.

use std::sync::Arc;
use std::time::Duration;

use sqlite_outbox::Outbox;
use sqlite_outbox::testing::ManualClock;

use crate::desk::{START, Slow};
use crate::fixture::Till;

/// A till with a table of the application's that takes some seconds to look through.
fn till(journal: &str) -> (Till, Outbox) {
    let till = Till::with(&format!(
        "PRAGMA journal_mode = {journal};
         CREATE TABLE line (id INTEGER PRIMARY KEY, text);
         WITH n (it) AS (SELECT 1 UNION ALL SELECT it + 1 FROM n WHERE it < 40000)
         INSERT INTO line (text) SELECT hex(zeroblob(500)) FROM n;"
    ));
    let clock = Arc::new(Slow(ManualClock::at(START), Duration::from_secs(1)));
    let outbox = Outbox::options().clock(clock).open(&till.path).unwrap();
    (till, outbox)
}

fn not_checked(outbox: &Outbox) -> Option<String> {
    let found = outbox.check().unwrap();
    let found = found.into_iter().find(|it| it.code == "not_checked");
    found.map(|it| {
        assert!(it.needs_person() && it.remedy.contains("outbox backup"));
        it.text
    })
}

#[test]
fn a_check_gives_way_to_whoever_waits_to_write_and_says_what_it_left() {
    let (till, outbox) = till("DELETE");
    assert_eq!(not_checked(&outbox), None, "nobody writes");
    let other = till.sql();
    other
        .execute_batch("BEGIN IMMEDIATE; DELETE FROM line WHERE id = 1")
        .unwrap();
    let text = not_checked(&outbox).unwrap();
    assert!(text.contains(": line"), "{text}");
    other.execute_batch("COMMIT").unwrap();
    assert_eq!(not_checked(&outbox), None);
}

#[test]
fn a_check_of_a_write_ahead_log_keeps_nobody_waiting_and_goes_on_to_the_end() {
    let (till, outbox) = till("WAL");
    let other = till.sql();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(not_checked(&outbox), None);
}

#[cfg(feature = "backup")]
#[test]
fn a_backup_does_not_keep_a_till_waiting_that_leaves_it_no_peace() {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::fixture::nap;
    use sqlite_outbox::Error;

    let (till, outbox) = till("DELETE");
    let to = till.folder.path().join("copy.db");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let conn = till.sql();
            conn.busy_timeout(Duration::from_secs(60)).unwrap();
            while !over.load(Ordering::Acquire) {
                conn.execute("INSERT INTO line (text) VALUES (1)", [])
                    .unwrap();
                nap(25);
            }
        });
        // It is at work.
        nap(50);
        let copied = outbox.backup(&to);
        over.store(true, Ordering::Release);
        let error = copied.unwrap_err();
        let told = matches!(&error, Error::Refused(why) if why.contains("close the application"));
        assert!(told, "{error:?}");
    });
    assert_eq!(till.files(), ["till.db"], "nothing is left of it");
    outbox.backup(&to).unwrap();
    assert!(to.exists());
}
