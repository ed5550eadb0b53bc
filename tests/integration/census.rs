//! The number of unsent messages is exact, whoever changed what, and quick however many there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::testing::{Inline, Script};
use sqlite_outbox::{Message, Outbox, Settings};

use crate::fixture::{Rng, Till, column, long, one};

/// Blocks whose number is wrong.
pub(crate) const WRONG: &str = "
    SELECT block || ': ' || unsent FROM outbox_census
     WHERE unsent <> (SELECT count(*) FROM outbox
                       WHERE (id - 1) / 1024 = block AND status IN ('pending', 'waiting', 'sending'))";

const TRUE: &str = "SELECT count(*) FROM outbox WHERE status IN ('pending', 'waiting', 'sending')";

fn check(outbox: &Outbox, conn: &Connection, what: &str) {
    assert_eq!(column(conn, WRONG), Vec::<String>::new(), "after {what}");
    let unsent = outbox.unsent().unwrap().to_string();
    assert_eq!(unsent, one(conn, TRUE), "after {what}");
}

fn fill(outbox: &Outbox, messages: usize) {
    let message = |i: usize| Message::text("sales", "x").dedupe_key(format!("S-{i}"));
    let messages: Vec<_> = (0..messages).map(message).collect();
    let answers = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
    assert!(answers.unwrap().iter().all(Result::is_ok));
}

/// One deed of a foreign hand, around the borders of the first four blocks.
fn deed(dice: &mut Rng) -> String {
    let id = 1024 * (1 + dice.below(4)) + dice.below(9) - 4;
    let key = dice.below(40);
    let lane = ["NULL", "'a'", "'b'"][dice.below(3) as usize];
    let statuses = ["pending", "sending", "sent", "dead", "expired", "cancelled"];
    let status = statuses[dice.below(6) as usize];
    let verb = ["INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE"][dice.below(3) as usize];
    let update = ["UPDATE", "UPDATE OR IGNORE", "UPDATE OR REPLACE"][dice.below(3) as usize];
    match dice.below(14) {
        0..=2 => format!(
            "{verb} INTO outbox (channel, dedupe_key, ordering_key, status, payload)
             VALUES ('sales', 'k{key}', {lane}, '{status}', '{key}')"
        ),
        3..=4 => format!(
            "{verb} INTO outbox (id, channel, dedupe_key, ordering_key, status, payload)
             VALUES ({id}, 'sales', 'k{key}', {lane}, '{status}', 'x')"
        ),
        5 => format!(
            "{verb} INTO outbox (id, channel, dedupe_key, ordering_key, status, payload)
             SELECT id, channel, dedupe_key, ordering_key, '{status}', 'other' FROM outbox
              WHERE dedupe_key = 'k{key}'"
        ),
        6 => format!(
            "INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'k{key}', '{id}')
             ON CONFLICT (channel, dedupe_key) DO NOTHING"
        ),
        7 => format!(
            "INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'k{key}', '{id}')
             ON CONFLICT (channel, dedupe_key) DO UPDATE SET status = '{status}'"
        ),
        8 => format!("UPDATE outbox SET status = '{status}' WHERE dedupe_key = 'k{key}'"),
        9 => format!(
            "UPDATE outbox SET status = '{status}' WHERE id % 5 = {}",
            id % 5
        ),
        10 => format!("{update} outbox SET dedupe_key = 'k{key}' WHERE id = {id}"),
        11 => format!("DELETE FROM outbox WHERE id % 7 = {}", id % 7),
        12 => format!("UPDATE sqlite_sequence SET seq = {id} WHERE name = 'outbox'"),
        _ => format!(
            "INSERT INTO outbox (id, channel, payload) VALUES ({}, 'sales', 'x')",
            1024 * (1 + id / 1024)
        ),
    }
}

/// By plain SQL of every kind, in transactions and savepoints that may be taken back, with a
/// trigger of the application and both settings of `recursive_triggers`.
#[test]
fn whatever_foreign_hands_do_the_census_is_right() {
    let (seeds, moves) = if long() { (60, 2_000) } else { (6, 400) };
    let mut counted = 0;
    for seed in 1..=seeds {
        let till = Till::new();
        let outbox = till.open();
        let conn = till.sql();
        let mut dice = Rng(seed);
        conn.execute_batch(&format!(
            "PRAGMA synchronous = OFF; PRAGMA recursive_triggers = {};
             CREATE TRIGGER mine AFTER INSERT ON outbox WHEN NEW.payload = '7'
             BEGIN DELETE FROM outbox WHERE dedupe_key = 'k8';
                   INSERT OR IGNORE INTO outbox (channel, payload) VALUES ('copy', 'x'); END;",
            seed % 2
        ))
        .unwrap();
        for _ in 0..moves {
            let mut done = deed(&mut dice);
            let taken_back = dice.below(4);
            if taken_back == 0 {
                let more = [deed(&mut dice), deed(&mut dice)];
                done = format!(
                    "SAVEPOINT a; {done}; SAVEPOINT b; {}; ROLLBACK TO b; {}; RELEASE a",
                    more[0], more[1]
                );
            } else if taken_back == 1 {
                done = format!("BEGIN; {done}; {}; ROLLBACK", deed(&mut dice));
            }
            // Some are refused; then nothing may have happened.
            let refused = conn.execute_batch(&done).is_err();
            if !conn.is_autocommit() {
                conn.execute_batch("ROLLBACK").unwrap();
            }
            check(
                &outbox,
                &conn,
                &format!("seed {seed}: {done} (refused: {refused})"),
            );
            counted += one(&conn, "SELECT count(*) FROM outbox_census")
                .parse::<usize>()
                .unwrap();
        }
    }
    assert!(counted > 1_000, "hardly anything was counted: {counted}");
}

/// Small enough to be run by a drain, large enough for the census to be asked.
/// No trigger hears of the row that it removes, in another block than its own.
#[test]
fn a_message_whose_key_is_given_to_another_is_counted_no_more() {
    let till = Till::new();
    let outbox = till.open();
    fill(&outbox, 3_000);
    let conn = till.sql();
    conn.execute_batch(
        "UPDATE OR REPLACE outbox SET dedupe_key = 'S-5' WHERE dedupe_key = 'S-2500'",
    )
    .unwrap();
    assert_eq!(one(&conn, TRUE), "2999");
    check(&outbox, &conn, "a key that another took");
}

#[test]
fn a_backlog_is_counted_exactly_while_it_is_sent_and_without_looking_at_each() {
    let till = Till::new();
    let outbox = till.open();
    fill(&outbox, 6_000);
    let conn = till.sql();
    assert_eq!(
        one(
            &conn,
            "SELECT count(*) || ' ' || sum(unsent) FROM outbox_census"
        ),
        "5 5120"
    );
    check(&outbox, &conn, "enqueuing");
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    let script = Script::default();
    for step in 0..60 {
        drain.step(&script).unwrap();
        check(&outbox, &conn, &format!("step {step}"));
    }
    assert!(script.seen().len() > 60);
    conn.execute_batch("UPDATE outbox SET status = 'cancelled' WHERE id % 11 = 0")
        .unwrap();
    check(&outbox, &conn, "cancelling");
    conn.execute_batch("DELETE FROM outbox WHERE id BETWEEN 1500 AND 4000")
        .unwrap();
    check(&outbox, &conn, "deleting");
}

/// A block that lost its number is counted again by a drain with nothing else to do, which then
/// writes nothing more.
#[test]
fn a_drain_that_rests_completes_the_census() {
    let till = Till::new();
    let (clock, outbox) = till.manual(1_800_000_000_000);
    fill(&outbox, 6_000);
    let conn = till.sql();
    conn.execute_batch(
        "DELETE FROM outbox_census WHERE block IN (0, 3);
         INSERT INTO outbox_channel (channel, paused_at) VALUES ('sales', 1);",
    )
    .unwrap();
    check(&outbox, &conn, "forgetting");
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    let changes = || one(&conn, "PRAGMA data_version");
    let step = |drain: &mut Inline| {
        clock.advance(std::time::Duration::from_secs(1));
        drain.step(&Script::default()).unwrap();
    };
    (0..20).for_each(|_| step(&mut drain));
    assert_eq!(one(&conn, "SELECT count(*) FROM outbox_census"), "5");
    check(&outbox, &conn, "resting");
    let before = changes();
    (0..20).for_each(|_| step(&mut drain));
    assert_eq!(
        changes(),
        before,
        "nothing is written when nothing is missing"
    );
}

#[test]
fn a_wrong_number_is_found_by_check_and_mended_by_its_remedy() {
    let till = Till::new();
    let outbox = till.open();
    fill(&outbox, 6_000);
    let wrong = |outbox: &Outbox| {
        let found = outbox.check().unwrap();
        found.into_iter().find(|it| it.code == "wrong_count")
    };
    assert!(wrong(&outbox).is_none());
    let conn = till.sql();
    conn.execute_batch("UPDATE outbox_census SET unsent = 7 WHERE block = 2")
        .unwrap();
    let finding = wrong(&outbox).unwrap();
    assert!(
        finding.remedy.contains("DELETE FROM outbox_census"),
        "{finding:?}"
    );
    conn.execute_batch("DELETE FROM outbox_census").unwrap();
    assert!(wrong(&outbox).is_none());
    check(&outbox, &conn, "the remedy");
}

/// In steps of SQLite's machine, which do not depend on the load of this one.
#[test]
fn three_times_as_many_take_no_longer_to_count() {
    let till = Till::new();
    let steps = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&steps);
    let outbox = Outbox::options()
        .on_connect(move |conn| {
            let count = Arc::clone(&count);
            conn.progress_handler(
                100,
                Some(move || {
                    count.fetch_add(1, Ordering::Relaxed);
                    false
                }),
            )
        })
        .open(&till.path)
        .unwrap();
    let taken = |messages: usize| {
        outbox
            .transaction(|tx| {
                for _ in 0..messages / 1_000 {
                    let message = Message::text("sales", "x");
                    outbox.enqueue_all(tx, std::iter::repeat_n(&message, 1_000))?;
                }
                anyhow::Ok(())
            })
            .unwrap();
        let before = steps.load(Ordering::Relaxed);
        outbox.unsent().unwrap();
        steps.load(Ordering::Relaxed) - before
    };
    let (few, many) = (taken(8_000), taken(24_000));
    assert_eq!(outbox.unsent().unwrap(), 32_000);
    assert!(few > 10 && many < few * 3 / 2, "{few}, then {many}");
}
