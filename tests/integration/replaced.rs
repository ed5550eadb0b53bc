//! A file that is removed, or that another one takes the place of, under programs that have it open. SQLite goes on
//! with the one it has, and nobody would ever see what is put into that.
#![cfg(unix)]

use std::sync::mpsc;
use std::time::Duration;

use sqlite_outbox::{Delivery, Error, Event, Message, Outbox, Outcome, Pump};

use crate::fixture::{Till, one, put};

/// A backup put over the file while the program sells, as by `mv backup.db till.db`.
fn replace(till: &Till) {
    let copy = till.folder.path().join("copy.db");
    till.sql()
        .execute("VACUUM INTO ?1", [copy.to_str().unwrap()])
        .unwrap();
    std::fs::rename(copy, &till.path).unwrap();
}

fn remove(till: &Till) {
    std::fs::rename(&till.path, till.folder.path().join("moved.db")).unwrap();
}

#[test]
fn no_sale_is_confirmed_that_goes_into_a_file_which_was_taken_away() {
    for takes_away in [replace, remove] {
        let till = Till::new();
        let outbox = till.open();
        put(&outbox, &Message::text("sales", "before")).unwrap();
        // Lent before, as a program keeps one for all its life.
        let mut own = till.sql();
        let mut lent = outbox.connection().unwrap();
        takes_away(&till);

        let message = Message::text("sales", "after");
        let replaced = |error: &Error| matches!(error, Error::Replaced(path) if *path == till.path);
        let error = put(&outbox, &message).unwrap_err();
        assert!(replaced(&error), "{error}");
        assert!(!error.is_transient());
        for conn in [&mut own, &mut *lent] {
            let tx = conn.transaction().unwrap();
            let error = outbox.enqueue(&tx, &message).unwrap_err();
            assert!(replaced(&error), "{error}");
        }
        assert!(replaced(&outbox.connection().unwrap_err()));
        assert!(replaced(&outbox.unsent().unwrap_err()));
        let silent = |_: &Delivery| Ok(Outcome::delivered());
        assert!(replaced(&outbox.drain(&silent).unwrap_err()));
    }
}

/// It was committed in the meantime, and whoever sold it is told that it may be lost.
#[test]
fn a_sale_that_was_under_way_meanwhile_is_not_confirmed() {
    let till = Till::new();
    let outbox = till.open();
    let sold: sqlite_outbox::Result<()> = outbox.transaction(|tx| {
        outbox.enqueue(tx, &Message::text("sales", "x"))?;
        remove(&till);
        Ok(())
    });
    assert!(matches!(sold, Err(Error::Replaced(_))), "{sold:?}");
}

#[test]
fn a_pump_ends_and_says_why_when_its_file_is_another_one() {
    for takes_away in [replace, remove] {
        let till = Till::new();
        let (tell, told) = mpsc::channel();
        let observer = move |event: &Event| {
            if let Event::Stopped { error } = event {
                let _ = tell.send(error.clone());
            }
        };
        let outbox = Outbox::options()
            .observer(observer)
            .open(&till.path)
            .unwrap();
        let pump: Pump = outbox
            .pump(|_: &Delivery| Ok(Outcome::delivered()))
            .start()
            .unwrap();
        takes_away(&till);
        // It looks twice a second; the bound catches what never ends.
        let error = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(error.unwrap().contains("was removed or replaced"));
        let stopped = pump.stop(Duration::ZERO);
        assert!(matches!(stopped, Err(Error::Replaced(_))), "{stopped:?}");
    }
}

/// A log that the former file has left is not read into the file that stands there now.
#[test]
fn a_program_that_goes_on_does_the_new_file_no_harm() {
    let till = Till::new();
    let outbox = till.open();
    let kept = till.sql();
    one(&kept, "SELECT count(*) FROM outbox");
    put(&outbox, &Message::text("sales", "x")).unwrap();
    replace(&till);
    for end in ["-wal", "-shm"] {
        let name = format!("till.db{end}");
        let _ = std::fs::rename(
            till.folder.path().join(&name),
            till.folder.path().join("old"),
        );
    }
    for _ in 0..20 {
        put(&outbox, &Message::text("sales", "y")).unwrap_err();
    }
    let fresh = till.open();
    assert_eq!(fresh.unsent().unwrap(), 1);
    assert!(fresh.check().unwrap().iter().all(|it| it.code != "damaged"));
}
