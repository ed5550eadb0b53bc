//! The VFS that the tests on power cuts and broken disks stand on does what it says.

use std::time::{Duration, Instant};

use sqlite_outbox::rusqlite::{Connection, ErrorCode, OpenFlags};
use sqlite_outbox::{Error, Message, Outbox, Outcome};

use super::fixture::{Rng, Till, one, put};
use super::vfs::{Call, Fault, Survival, Trouble, Vfs};

fn sql(vfs: &Vfs, till: &Till) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    Connection::open_with_flags_and_vfs(&till.path, flags, vfs.name()).unwrap()
}

#[test]
fn an_outbox_works_through_a_vfs_of_the_program() {
    let (vfs, till) = (Vfs::register(), Till::new());
    let outbox = Outbox::options().vfs(vfs.name()).open(&till.path).unwrap();
    put(&outbox, &Message::text("sales", "one")).unwrap();
    let before = vfs.syncs();
    assert!(before > 0, "it was not used");
    put(&outbox, &Message::text("sales", "two")).unwrap();
    assert_eq!(vfs.syncs(), before + 1, "one commit, one sync");
    let sent = outbox
        .drain(&|_: &_| Ok(Outcome::delivered()))
        .unwrap()
        .sent;
    assert_eq!(sent, 2);
    assert_eq!(till.open().unsent().unwrap(), 0, "a plain file");
}

#[test]
fn a_vfs_that_nobody_registered_is_named() {
    let till = Till::new();
    for path in [&till.path, &till.folder.path().join("other.db")] {
        let error = Outbox::options().vfs("attic").open(path).unwrap_err();
        assert!(matches!(error, Error::Sqlite(_)), "{error:?}");
        assert!(
            format!("{error:?}").contains("no such vfs: attic"),
            "{}",
            format!("{error:?}")
        );
        drop(till.open());
    }
}

#[test]
fn a_slow_disk_is_slow() {
    let (vfs, till) = (Vfs::register(), Till::new());
    let conn = sql(&vfs, &till);
    vfs.sync_takes(Duration::from_millis(20));
    let (started, syncs) = (Instant::now(), vfs.syncs());
    conn.execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (1)")
        .unwrap();
    let syncs = u32::try_from(vfs.syncs() - syncs).unwrap();
    assert!(syncs >= 2);
    assert!(started.elapsed() >= syncs * Duration::from_millis(20));
}

#[test]
fn the_call_that_is_to_fail_fails_and_no_other() {
    let (vfs, till) = (Vfs::register(), Till::new());
    let conn = sql(&vfs, &till);
    conn.execute_batch("CREATE TABLE t (n)").unwrap();
    let troubles: [(&[Call], Trouble, ErrorCode); 3] = [
        (&[Call::Write], Trouble::Full, ErrorCode::DiskFull),
        (&[Call::Sync], Trouble::Io, ErrorCode::SystemIoFailure),
        (&[Call::Lock], Trouble::Busy, ErrorCode::DatabaseBusy),
    ];
    for (calls, trouble, expected) in troubles {
        vfs.fail(Fault {
            calls,
            first: 1,
            times: 1,
            trouble,
        });
        conn.busy_timeout(Duration::ZERO).unwrap();
        let error = conn.execute_batch("INSERT INTO t VALUES (1)").unwrap_err();
        assert_eq!(error.sqlite_error_code(), Some(expected));
        conn.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        assert_eq!(vfs.heal(), 1);
    }
    assert_eq!(one(&conn, "SELECT count(*) || min(n) FROM t"), "32");
}

/// Without a sync nothing is certain, with one everything is, and what lies between is torn.
#[test]
fn a_power_cut_takes_what_was_not_synced() {
    let (vfs, till) = (Vfs::register(), Till::new());
    vfs.record();
    let conn = sql(&vfs, &till);
    conn.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE t (n);
         PRAGMA wal_checkpoint(TRUNCATE); INSERT INTO t VALUES (1)",
    )
    .unwrap();
    vfs.mark(1);
    let disk = vfs.recorded();
    let cut = disk.ops.len();
    assert_eq!(disk.marks(cut).collect::<Vec<_>>(), [1]);
    let mut rng = Rng(1);
    let rows = |survival, rng: &mut Rng| {
        let after = Till::new();
        disk.after(cut, survival, &mut || rng.next(), after.folder.path())
            .unwrap();
        one(&after.sql(), "SELECT count(*) FROM t")
    };
    assert_eq!(rows(Survival::Nothing, &mut rng), "0");
    assert_eq!(rows(Survival::Everything, &mut rng), "1");
    let torn: Vec<_> = (0..20).map(|_| rows(Survival::Some, &mut rng)).collect();
    assert!(
        torn.contains(&"0".into()) && torn.contains(&"1".into()),
        "{torn:?}"
    );
}
