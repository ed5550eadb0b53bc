//! What a pump costs that has nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::rusqlite::hooks::{AuthContext, Authorization};
#[cfg(unix)]
use sqlite_outbox::rusqlite::trace::{TraceEvent, TraceEventCodes};
use sqlite_outbox::{Message, Outbox, Settings};

use super::up;
use crate::fixture::{Till, nap, put};

/// What takes CPU in an idle pump is a look at `data_version`; it prepares no statement for it and
/// begins no transaction.
#[test]
fn an_idle_pump_prepares_nothing_and_commits_nothing() {
    let till = Till::new();
    let (prepared, committed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (preparing, committing) = (Arc::clone(&prepared), Arc::clone(&committed));
    let options = Outbox::options().on_connect(move |conn: &Connection| {
        let (preparing, committing) = (Arc::clone(&preparing), Arc::clone(&committing));
        conn.authorizer(Some(move |_: AuthContext<'_>| {
            preparing.fetch_add(1, Ordering::SeqCst);
            Authorization::Allow
        }))?;
        conn.commit_hook(Some(move || {
            committing.fetch_add(1, Ordering::SeqCst);
            false
        }))
    });
    let outbox = options.open(&till.path).unwrap();
    let settings = Settings::new().poll(Duration::from_millis(1));
    let pump = outbox.pump(up).settings(settings).start().unwrap();
    put(&outbox, &Message::text("sales", "one")).unwrap();
    while outbox.unsent().unwrap() > 0 {
        nap(10);
    }
    nap(500);
    let seen = || {
        (
            prepared.load(Ordering::SeqCst),
            committed.load(Ordering::SeqCst),
        )
    };
    let before = seen();
    assert!(before.0 > 0 && before.1 > 0, "nothing is counted");
    nap(1_000);
    assert_eq!(seen(), before);
    pump.stop(Duration::from_secs(10)).unwrap();
}

/// Statements of the pump below.
#[cfg(unix)]
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// The file system is asked instead whether anybody wrote, which costs a tenth.
#[cfg(unix)]
#[test]
fn an_idle_pump_that_polls_every_millisecond_asks_sqlite_twice_a_second() {
    let till = Till::new();
    let options = Outbox::options().on_connect(|conn: &Connection| {
        let note = |_: TraceEvent<'_>| {
            ASKED.fetch_add(1, Ordering::SeqCst);
        };
        conn.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(note));
        Ok(())
    });
    let outbox = options.open(&till.path).unwrap();
    let settings = Settings::new().poll(Duration::from_millis(1));
    let pump = outbox.pump(up).settings(settings).start().unwrap();
    put(&outbox, &Message::text("sales", "one")).unwrap();
    while outbox.unsent().unwrap() > 0 {
        nap(10);
    }
    nap(500);
    let begun = std::time::Instant::now();
    let before = ASKED.load(Ordering::SeqCst);
    assert!(before > 0, "nothing is counted");
    nap(1_000);
    let asked = ASKED.load(Ordering::SeqCst) - before;
    // Twice a second, by one statement; the machine may be slow, and so is the nap then.
    let most = begun.elapsed().as_millis() as usize / 500 + 1;
    assert!(asked <= most, "{asked}, not {most}");
    pump.stop(Duration::from_secs(10)).unwrap();
}
