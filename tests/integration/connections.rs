//! The connections of the outbox: how they are set, lent, and shared with other processes.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Error, Message, Outbox, Result};

use crate::fixture::{Till, argument, child, nap, one, put, succeeded};
use crate::vfs::{Call, Fault, Trouble, Vfs};

#[test]
fn a_new_file_has_the_write_ahead_log_and_syncs_every_commit() {
    let till = Till::new();
    let outbox = till.open();
    assert_eq!(one(&till.sql(), "PRAGMA journal_mode"), "wal");
    let lent: Vec<_> = (0..4).map(|_| outbox.connection().unwrap()).collect();
    for conn in &lent {
        assert_eq!(one(conn, "PRAGMA synchronous"), "3");
        assert_eq!(one(conn, "PRAGMA busy_timeout"), "5000");
        assert_eq!(one(conn, "PRAGMA temp_store"), "2");
    }
}

#[test]
fn many_processes_may_make_one_file_at_once() {
    for _ in 0..3 {
        let till = Till::new();
        let children: Vec<_> = (0..8)
            .map(|_| {
                child("connections::child_opens_and_enqueues", &till.path)
                    .spawn()
                    .unwrap()
            })
            .collect();
        children.into_iter().for_each(succeeded);
        assert_eq!(till.open().unsent().unwrap(), 8 + 1);
        assert_eq!(one(&till.sql(), "SELECT count(*) FROM outbox_meta"), "3");
        assert_eq!(one(&till.sql(), "PRAGMA journal_mode"), "wal");
    }
}

#[test]
fn child_opens_and_enqueues() {
    if let Some(path) = argument() {
        let outbox = Outbox::open(path).unwrap();
        put(&outbox, &Message::text("sales", "mine")).unwrap();
        let message = Message::text("sales", "ours").dedupe_key("ours");
        put(&outbox, &message).unwrap();
    }
}

#[test]
fn a_process_killed_while_it_makes_the_file_harms_nobody() {
    for step in 0..10 {
        let till = Till::new();
        let start = || {
            child("connections::child_opens_and_enqueues", &till.path)
                .spawn()
                .unwrap()
        };
        let mut victim = start();
        let survivors = [start(), start()];
        nap(step * 2);
        victim.kill().unwrap();
        victim.wait().unwrap();
        survivors.into_iter().for_each(succeeded);
        let outbox = Outbox::open_existing(&till.path).unwrap();
        assert!((3..=4).contains(&outbox.unsent().unwrap()));
        assert_eq!(one(&till.sql(), "SELECT count(*) FROM outbox_meta"), "3");
        assert_eq!(one(&till.sql(), "PRAGMA integrity_check"), "ok");
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    for _ in 0..5 {
        let till = Till::new();
        let mut command = child("connections::child_enqueues_until_it_is_killed", &till.path);
        let mut child = command.spawn().unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = Vec::new();
        for line in lines.map_while(std::result::Result::ok) {
            acknowledged.extend(line.strip_prefix("committed ").map(String::from));
            if acknowledged.len() == 30 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(acknowledged.len() >= 30);
        let outbox = Outbox::open_existing(&till.path).unwrap();
        for key in acknowledged {
            assert!(outbox.get_by_key("sales", &key).unwrap().is_some(), "{key}");
        }
    }
}

#[test]
fn child_enqueues_until_it_is_killed() {
    if let Some(path) = argument() {
        let outbox = Outbox::open(path).unwrap();
        println!();
        for key in 0..100_000 {
            let message = Message::text("sales", "x").dedupe_key(key.to_string());
            put(&outbox, &message).unwrap();
            println!("committed {key}");
        }
    }
}

#[test]
fn the_connect_hook_runs_on_every_connection_and_its_error_is_told() {
    let till = Till::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let hook = move |_: &Connection| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let outbox = Outbox::options().on_connect(hook).open(&till.path).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let _lent = [outbox.connection().unwrap(), outbox.connection().unwrap()];
    assert_eq!(calls.load(Ordering::SeqCst), 3);

    let options = Outbox::options().on_connect(|conn| conn.execute_batch("SELECT no_such"));
    let error = options.open(&till.path).unwrap_err();
    assert!(matches!(error, Error::Sqlite(_)), "{error:?}");
}

#[test]
fn a_higher_durability_of_the_application_is_kept() {
    let till = Till::new();
    let outbox = Outbox::options()
        .on_connect(|conn| {
            conn.execute_batch("PRAGMA synchronous = EXTRA; PRAGMA busy_timeout = 9000")
        })
        .open(&till.path)
        .unwrap();
    let conn = outbox.connection().unwrap();
    assert_eq!(one(&conn, "PRAGMA synchronous"), "3");
    assert_eq!(one(&conn, "PRAGMA busy_timeout"), "9000");
}

#[test]
fn temporary_storage_is_where_the_application_wants_it() {
    let till = Till::new();
    let outbox = Outbox::options()
        .on_connect(|conn| conn.execute_batch("PRAGMA temp_store = FILE"))
        .open(&till.path)
        .unwrap();
    let conn = outbox.connection().unwrap();
    assert_eq!(one(&conn, "PRAGMA temp_store"), "1");
}

/// What SQLite keeps to undo a statement went to a file, for the rest of a large transaction, and
/// cost ten writes for every message.
#[test]
fn a_large_transaction_opens_no_temporary_file() {
    let vfs = Vfs::register();
    let till = Till::new();
    let outbox = Outbox::options().vfs(vfs.name()).open(&till.path).unwrap();
    outbox
        .transaction(|tx| {
            vfs.fail(Fault {
                calls: &[Call::Open],
                first: 1,
                times: u64::MAX,
                trouble: Trouble::Io,
            });
            let insert =
                "INSERT INTO outbox (channel, ordering_key, payload) VALUES ('sales', ?1, ?2)";
            let mut insert = tx.prepare(insert).map_err(Error::from)?;
            for i in 0..2_000 {
                insert.execute((i % 7, "x".repeat(300)))?;
            }
            tx.execute("UPDATE outbox SET event_type = 'sale'", [])?;
            anyhow::Ok(())
        })
        .unwrap();
    assert_eq!(vfs.heal(), 0);
    assert_eq!(outbox.unsent().unwrap(), 2_000);
}

#[test]
fn the_applications_own_settings_do_not_get_in_the_way() {
    let till = Till::new();
    let settings = "PRAGMA trusted_schema = OFF; PRAGMA recursive_triggers = ON;
                    PRAGMA case_sensitive_like = ON; PRAGMA cell_size_check = ON";
    let outbox = Outbox::options()
        .on_connect(move |conn| conn.execute_batch(settings))
        .open(&till.path)
        .unwrap();
    for _ in 0..3 {
        put(&outbox, &Message::text("sales", "x").ordering_key("lane")).unwrap();
    }
    let counts = outbox.stats().unwrap().total;
    assert_eq!((counts.pending, counts.waiting), (1, 2));
}

#[test]
fn a_connection_given_back_holds_no_transaction() {
    let till = Till::new();
    let outbox = Outbox::options().pool_size(1).open(&till.path).unwrap();
    let conn = outbox.connection().unwrap();
    conn.execute_batch("BEGIN IMMEDIATE; CREATE TABLE half (done)")
        .unwrap();
    drop(conn);
    till.sql().execute_batch("CREATE TABLE sale (id)").unwrap();
    let conn = outbox.connection().unwrap();
    assert!(conn.is_autocommit());
    assert_eq!(
        one(
            &conn,
            "SELECT count(*) FROM sqlite_master WHERE name = 'half'"
        ),
        "0"
    );
}

#[test]
fn a_panic_within_a_transaction_leaves_nothing_behind() {
    let till = Till::new();
    let outbox = Outbox::options().pool_size(1).open(&till.path).unwrap();
    let work = || {
        let _: Result<()> = outbox.transaction(|tx| {
            outbox.enqueue(tx, &Message::text("sales", "x"))?;
            panic!("the application failed");
        });
    };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_err();
    assert_eq!(outbox.unsent().unwrap(), 0);
    put(&outbox, &Message::text("sales", "y")).unwrap();
}

#[test]
fn looking_does_not_wait_for_connections_the_application_holds() {
    let till = Till::new();
    let outbox = Outbox::options().pool_size(1).open(&till.path).unwrap();
    let started = Instant::now();
    let answer: Result<_> = outbox.transaction(|tx| {
        outbox.enqueue(tx, &Message::text("sales", "x"))?;
        outbox.list(&Default::default())?;
        Ok(outbox.stats()?.total.unsent())
    });
    assert_eq!(answer.unwrap(), 0, "not committed at that time");
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[test]
fn an_exhausted_pool_is_an_error_in_the_end() {
    let till = Till::new();
    let outbox = Outbox::options().pool_size(1).open(&till.path).unwrap();
    let lent = outbox.connection().unwrap();
    let started = Instant::now();
    let error = outbox.connection().unwrap_err();
    assert!(matches!(error, Error::Pool(_)), "{error:?}");
    let waited = started.elapsed();
    assert!(
        (Duration::from_secs(6)..Duration::from_secs(12)).contains(&waited),
        "{waited:?}"
    );
    drop(lent);
    outbox.connection().unwrap();
}

#[test]
fn a_pool_of_nothing_is_refused() {
    let till = Till::new();
    let error = Outbox::options().pool_size(0).open(&till.path).unwrap_err();
    assert!(matches!(error, Error::InvalidSetting(_)));
    assert!(till.files().is_empty());
}

#[test]
fn a_file_that_went_away_is_said_at_once() {
    let till = Till::new();
    let outbox = till.open();
    std::fs::remove_file(&till.path).unwrap();
    let started = Instant::now();
    let away = |error: &Error| match cfg!(unix) {
        true => matches!(error, Error::Replaced(_)),
        false => matches!(error, Error::Missing(_)),
    };
    let error = outbox.connection().unwrap_err();
    assert!(away(&error), "{error:?}");
    let error = outbox.stats().unwrap_err();
    assert!(away(&error), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(3));
    assert!(till.files().is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn opening_starts_one_thread_at_most() {
    let till = Till::new();
    succeeded(
        child("connections::child_counts_its_threads", &till.path)
            .spawn()
            .unwrap(),
    );
}

#[cfg(target_os = "linux")]
#[test]
fn child_counts_its_threads() {
    if let Some(path) = argument() {
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        let outbox = Outbox::open(path).unwrap();
        put(&outbox, &Message::text("sales", "x")).unwrap();
        assert!(threads() <= before + 1);
        drop(outbox);
    }
}

#[test]
fn an_outbox_can_be_shared_among_threads() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<Outbox>();
    fn sent<T: Send>() {}
    sent::<sqlite_outbox::PooledConnection>();
}

#[test]
fn what_one_borrower_set_on_a_connection_is_not_the_next_ones() {
    let till = Till::new();
    let outbox = Outbox::options().pool_size(1).open(&till.path).unwrap();
    let conn = outbox.connection().unwrap();
    conn.execute_batch("PRAGMA synchronous = OFF; PRAGMA busy_timeout = 0")
        .unwrap();
    drop(conn);
    let conn = outbox.connection().unwrap();
    assert_eq!(one(&conn, "PRAGMA synchronous"), "3");
    assert_eq!(one(&conn, "PRAGMA busy_timeout"), "5000");
}
