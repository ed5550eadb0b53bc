//! What a drain, and many changes by a person, leave of the write lock to an application that sells.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{
    Cancel, Clock, Error, Message, Outbox, Resolution, Selection, Settings, Status,
};

use crate::costs::{count, note_statements, ran};
use crate::desk::{Desk, START, Slow, up};
use crate::fixture::{Till, column, put};

/// So many messages, and an outbox whose statements are counted.
fn till(clock: Arc<dyn Clock>, messages: usize) -> (Till, Outbox, Vec<i64>) {
    let till = Till::new();
    let options = Outbox::options().clock(clock).on_connect(|conn| {
        note_statements(conn);
        Ok(())
    });
    let outbox = options.open(&till.path).unwrap();
    let ids = (0..messages)
        .map(|_| put(&outbox, &Message::text("sales", "x")).unwrap().id())
        .collect();
    ran();
    (till, outbox, ids)
}

fn commits() -> usize {
    count(&ran(), |sql| sql == "COMMIT")
}

#[test]
fn named_or_selected_many_are_changed_by_few_transactions() {
    let (_till, outbox, ids) = till(ManualClock::at(START).shared(), 600);
    let anna = outbox.operator("anna");
    let (done, ended) = anna.cancel_each(&ids);
    ended.unwrap();
    assert_eq!((done, commits()), (600, 3));
    let (done, ended) = anna.retry_each(&ids);
    ended.unwrap();
    assert_eq!((done, commits()), (600, 3));
}

#[test]
fn a_transaction_that_takes_long_is_ended_and_leaves_the_lock_four_times_as_long() {
    let clock = Arc::new(Slow(ManualClock::at(START), Duration::from_millis(5)));
    let (_till, outbox, ids) = till(clock, 8);
    let begun = Instant::now();
    let (done, ended) = outbox.operator("anna").cancel_each(&ids);
    ended.unwrap();
    // Two of them take the ten milliseconds; with the commit each transaction held the lock for 20.
    assert_eq!((done, commits()), (8, 4));
    assert!(begun.elapsed() >= Duration::from_millis(4 * 4 * 20));
    let begun = Instant::now();
    let anna = outbox.operator("anna");
    anna.transaction(|tx| anna.enqueue(tx, &Message::text("sales", "y")))
        .unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(4 * 5));
}

#[test]
fn those_before_one_that_refuses_are_done_and_it_leaves_no_trace() {
    let desk = Desk::new();
    let ids = ["S-1", "S-2", "S-3"].map(|key| {
        let id = desk.put(Message::text("sales", "one").dedupe_key(key));
        desk.put(Message::text("sales", "two").dedupe_key(key).keep_aside());
        id
    });
    desk.anna().cancel(ids[1]).unwrap();
    let (done, ended) = desk.anna().resolve_each(&[1, 2, 3], &Resolution::Replace);
    assert_eq!(done, [Some(ids[0])]);
    assert!(matches!(ended, Err(Error::Refused(_))), "{ended:?}");
    let actions = column(
        &desk.till.sql(),
        "SELECT action FROM outbox_audit ORDER BY id",
    );
    assert_eq!(actions, ["cancel", "conflict_replace"]);
    let left = desk.outbox.conflicts(None, 0, 10).unwrap();
    assert_eq!(left.iter().map(|it| it.id).collect::<Vec<_>>(), [2, 3]);
}

/// The span in which a transaction of the drain holds the lock is the one that the application's hook takes.
#[test]
fn a_drain_leaves_the_lock_free_four_fifths_of_the_time_or_as_it_was_told() {
    for (settings, pause) in [
        (Settings::default(), 200),
        (Settings::default().lock_share(0.5), 50),
        (Settings::default().lock_share(1.0), 0),
    ] {
        let till = Till::new();
        let clock = ManualClock::at(START);
        let hook = clock.clone();
        let options = Outbox::options()
            .clock(clock.shared())
            .on_delivered(move |_, _, _| {
                hook.advance(Duration::from_millis(50));
                Ok(())
            });
        let outbox = options.open(&till.path).unwrap();
        let mut drain = Inline::new(&outbox, settings).unwrap();
        put(&outbox, &Message::text("sales", "one")).unwrap();
        assert_eq!(drain.step(&up).unwrap().dispatched, 1);
        let recorded = drain.step(&up).unwrap();
        assert_eq!(outbox.unsent().unwrap(), 0);
        assert_eq!(recorded.wait, Duration::from_millis(pause));
        // However much there is to do meanwhile.
        put(&outbox, &Message::text("sales", "two")).unwrap();
        drain.wake();
        for _ in 0..pause {
            assert_eq!(drain.step(&up).unwrap().dispatched, 0);
            clock.advance(Duration::from_millis(1));
        }
        assert_eq!(drain.step(&up).unwrap().dispatched, 1);
    }
}

/// The switch is thrown within the second transaction of 256, which goes on to its end.
#[test]
fn what_is_done_to_many_is_stopped_between_two_transactions_and_says_how_many_were_done() {
    let till = Till::new();
    let switch = Cancel::new();
    let thrown = switch.clone();
    let options = Outbox::options().clock(ManualClock::at(START).shared());
    let options = options.on_connect(move |conn| {
        let thrown = thrown.clone();
        conn.update_hook(Some(move |_, _: &str, table: &str, id| {
            if (table, id) == ("outbox_audit", 300) {
                thrown.cancel();
            }
        }))?;
        Ok(())
    });
    let outbox = options.open(&till.path).unwrap();
    let puts = (0..600).map(|_| put(&outbox, &Message::text("sales", "x")).unwrap().id());
    let ids: Vec<_> = puts.collect();
    let interrupted = |ended, done| match ended {
        Err(Error::Interrupted { done: it }) => assert_eq!(it, done),
        other => panic!("{other:?}"),
    };
    let cancelled = || outbox.stats().unwrap().total.cancelled;
    let anna = outbox.operator("anna").unless(&switch);
    let pending = Selection::new().status(Status::Pending);
    interrupted(anna.cancel_all(&pending), 512);
    assert_eq!(cancelled(), 512);
    // From now on it stands.
    interrupted(anna.retry_each(&ids).1.map(|()| 0), 0);
    interrupted(
        anna.purge(Duration::ZERO),
        600 - outbox.stats().unwrap().total.pending - cancelled(),
    );
}
