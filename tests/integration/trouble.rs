//! A disk that is full or broken, and files that are locked: whoever asked is told by a typed
//! error, nothing is done by halves, and all goes on without a restart once the trouble is over.
//!
//! Method: every deed of the outbox is tried again and again on a fresh copy of one file. The first
//! time its first write fails, the next time its second, until it gets through; so with syncs,
//! truncations, locks and the rest (`tests/vfs`), each once and for good. `OUTBOX_LONG=1` tries
//! every call, the short form the first few of each kind.

mod pump;
mod scene;
mod tiny;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sqlite_outbox::{Error, Severity};

use scene::{DEEDS, Deed, Scene};

use crate::fixture::{column, folder_in_memory, long, one};
use crate::vfs::{Call, Fault, Trouble, Vfs};

/// No call takes longer, whatever fails.
const HANG: Duration = Duration::from_secs(20);

/// What failed, what was said, and how often.
type Told = BTreeMap<(&'static str, String), u64>;

fn check(scene: &Scene, deed: &Deed, states: [&str; 2], result: &Result<(), Error>, what: &str) {
    let [before, after] = states;
    let conn = scene.sql();
    assert_eq!(one(&conn, "PRAGMA integrity_check"), "ok", "{what}");
    let alone = "SELECT dedupe_key FROM outbox WHERE rtrim(dedupe_key, ' receipt') NOT IN (SELECT id FROM sale)";
    assert_eq!(
        column(&conn, alone),
        Vec::<String>::new(),
        "{what}: messages without sale"
    );
    let alone =
        "SELECT id FROM sale WHERE id LIKE 'new-%' AND id NOT IN (SELECT dedupe_key FROM outbox)";
    if deed.whole {
        assert_eq!(
            column(&conn, alone),
            Vec::<String>::new(),
            "{what}: a sale without message"
        );
        let now = scene.state();
        match result {
            Ok(()) => assert_eq!(now, after, "{what}: not done"),
            Err(_) => assert!(now == before || now == after, "{what}: by halves\n{now}"),
        }
    }
    if let Err(error) = result {
        // An I/O error is no damage of the file, and it may be over soon.
        let typed =
            error.is_transient() || matches!(error, Error::TransactionGone | Error::ReadOnly(_));
        assert!(typed, "{what}: {error:?}");
    }
}

/// The trouble is over: the deed is done now, if it was not, and everything is delivered, once.
fn go_on(scene: &Scene, deed: &Deed, before: &str, what: &str) {
    if scene.state() == before {
        (deed.run)(scene).unwrap_or_else(|error| panic!("{what}: still {error:?}"));
    }
    let outbox = scene.outbox();
    outbox.operator("anna").resume("sales").unwrap();
    for _ in 0..200 {
        if outbox.unsent().unwrap() == 0 {
            break;
        }
        scene
            .step()
            .unwrap_or_else(|error| panic!("{what}: still {error:?}"));
    }
    assert_eq!(
        outbox.unsent().unwrap(),
        0,
        "{what}: {:?}",
        outbox.why_all()
    );
    if what.contains("pages") {
        // It was opened anew meanwhile: a drain that had claimed something is gone.
        return;
    }
    let mut arrived = scene.arrived.lock().unwrap().clone();
    let calls = arrived.len();
    arrived.sort();
    arrived.dedup();
    assert_eq!(
        arrived.len(),
        calls,
        "{what}: sent twice, though nothing crashed"
    );
    let faults = outbox.check().unwrap();
    let faults: Vec<_> = faults
        .iter()
        .filter(|it| it.severity == Severity::Fault)
        .collect();
    assert!(faults.is_empty(), "{what}: {faults:?}");
}

/// Tries every deed with this trouble at its first call, its second, and so on.
fn everywhere(journal: &str, calls: &'static [Call], trouble: Trouble, times: u64, most: u64) {
    let folder = folder_in_memory();
    let template = scene::template(folder.path(), journal);
    let vfs = Vfs::register();
    let (mut told, mut tries) = (Told::new(), 0);
    for deed in DEEDS {
        let scene = Scene::new(&template, &vfs, None);
        (deed.before)(&scene);
        let before = scene.state();
        (deed.run)(&scene).unwrap();
        let after = scene.state();
        for first in (1..).take_while(|first| long() || *first <= most) {
            let what = format!(
                "{} {journal} {calls:?} {trouble:?} {times} from {first}",
                deed.name
            );
            let scene = Scene::new(&template, &vfs, None);
            (deed.before)(&scene);
            vfs.fail(Fault {
                calls,
                first,
                times,
                trouble,
            });
            let started = Instant::now();
            let result = (deed.run)(&scene);
            let struck = vfs.heal();
            assert!(started.elapsed() < HANG, "{what}: {:?}", started.elapsed());
            check(&scene, deed, [&before, &after], &result, &what);
            if let Err(error) = &result {
                let text = format!("{error}: {}", cause(error));
                *told.entry((deed.name, text)).or_default() += 1;
            }
            go_on(&scene, deed, &before, &what);
            if struck == 0 {
                break;
            }
            tries += 1;
        }
    }
    println!("{journal} {calls:?} {trouble:?} {times}: {tries} tries, told {told:#?}");
    assert!(tries > 0);
}

fn cause(error: &Error) -> String {
    std::error::Error::source(error)
        .map(ToString::to_string)
        .unwrap_or_default()
}

const ONCE: u64 = 1;
const FOR_GOOD: u64 = u64::MAX;

#[test]
fn a_disk_that_is_full_stops_a_deed_and_harms_nothing() {
    for journal in ["WAL", "DELETE"] {
        everywhere(journal, &[Call::Write], Trouble::Full, ONCE, 2);
        everywhere(journal, &[Call::Write], Trouble::Full, FOR_GOOD, 1);
    }
}

#[test]
fn a_disk_that_fails_to_write_stops_a_deed_and_harms_nothing() {
    for journal in ["WAL", "DELETE"] {
        everywhere(
            journal,
            &[Call::Write, Call::Truncate],
            Trouble::Io,
            ONCE,
            2,
        );
        everywhere(
            journal,
            &[Call::Write, Call::Truncate],
            Trouble::Io,
            FOR_GOOD,
            1,
        );
    }
}

#[test]
fn a_disk_that_fails_to_sync_stops_a_deed_and_harms_nothing() {
    for journal in ["WAL", "DELETE"] {
        everywhere(journal, &[Call::Sync, Call::Delete], Trouble::Io, ONCE, 2);
        everywhere(
            journal,
            &[Call::Sync, Call::Delete],
            Trouble::Io,
            FOR_GOOD,
            1,
        );
    }
}

#[test]
fn a_disk_that_fails_to_read_stops_a_deed_and_harms_nothing() {
    for journal in ["WAL", "DELETE"] {
        everywhere(journal, &[Call::Read, Call::Open], Trouble::Io, ONCE, 2);
    }
    everywhere("WAL", &[Call::Read, Call::Open], Trouble::Io, FOR_GOOD, 1);
}

#[test]
fn locks_that_fail_stop_a_deed_and_harm_nothing() {
    const LOCKS: &[Call] = &[Call::Lock, Call::ShmLock, Call::ShmMap];
    for journal in ["WAL", "DELETE"] {
        everywhere(journal, LOCKS, Trouble::Io, ONCE, 2);
    }
    everywhere("WAL", LOCKS, Trouble::Io, FOR_GOOD, 1);
}

#[test]
fn locks_that_others_hold_for_a_moment_are_waited_for() {
    for journal in ["WAL", "DELETE"] {
        everywhere(journal, &[Call::Lock, Call::ShmLock], Trouble::Busy, 3, 2);
    }
}

/// The application may bound its file; then SQLite says that the disk is full.
#[test]
fn a_file_that_may_not_grow_stops_a_deed_and_harms_nothing() {
    let folder = folder_in_memory();
    let template = scene::template(folder.path(), "WAL");
    let vfs = Vfs::register();
    let mut tries = 0;
    let grows = [
        "enqueue",
        "careless",
        "claim",
        "drain",
        "retry",
        "edit",
        "cancel all",
    ];
    for deed in DEEDS.iter().filter(|it| grows.contains(&it.name)) {
        let scene = Scene::new(&template, &vfs, None);
        let before = scene.state();
        (deed.run)(&scene).unwrap();
        let after = scene.state();
        for pages in 0..100 {
            let what = format!("{} with {pages} more pages", deed.name);
            let scene = Scene::new(&template, &vfs, Some(pages));
            let result = (deed.run)(&scene);
            check(&scene, deed, [&before, &after], &result, &what);
            scene.open(None).unwrap();
            go_on(&scene, deed, &before, &what);
            match result {
                Ok(()) => break,
                Err(error) => assert!(matches!(error, Error::DiskFull(_)), "{what}: {error:?}"),
            }
            tries += 1;
        }
    }
    assert!(tries > 4, "only {tries}");
}
