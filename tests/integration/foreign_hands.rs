//! Rows, triggers, hooks and neighbours that do what they should not: each stops itself, nobody else.

use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::rusqlite::config::DbConfig;
use sqlite_outbox::testing::{Inline, Script};
use sqlite_outbox::{Delivery, Error, Message, Outbox, Outcome, Policy, Settings, Status};

use crate::desk::{Desk, HOUR, START, up};
use crate::fixture::{Till, one, put};

const NOW: i64 = 1_800_000_000_000;

fn delivered(_: &Delivery) -> anyhow::Result<Outcome> {
    Ok(Outcome::delivered())
}

/// The obvious repair in `sqlite3` left `settled_at` behind, which passed for an earlier holder's
/// delivery: the message was marked as sent after its next failure.
#[test]
fn a_dead_letter_that_is_set_pending_by_hand_is_not_taken_for_sent() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &Message::text("sales", "one")).unwrap();
    outbox
        .drain(&|_: &Delivery| Ok(Outcome::rejected("400")))
        .unwrap();
    assert_eq!(outbox.get(1).unwrap().unwrap().status, Status::Dead);
    till.sql()
        .execute_batch("UPDATE outbox SET status = 'pending' WHERE status = 'dead'")
        .unwrap();
    let down = |_: &Delivery| Ok(Outcome::unreachable("still down"));
    outbox.draining(&down).now().run().unwrap();
    assert_eq!(outbox.get(1).unwrap().unwrap().status, Status::Pending);
    assert_eq!(outbox.drain(&delivered).unwrap().sent, 1);
}

/// A connection that has turned triggers off moves nobody up, and no commit tells of it.
#[test]
fn a_lane_whose_head_was_settled_without_triggers_goes_on() {
    let desk = Desk::new();
    let ids = desk.lane("customer", 3);
    let hand = desk.till.sql();
    hand.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)
        .unwrap();
    let settle = "UPDATE outbox SET status = 'sent', settled_at = ?1 WHERE id = ?2";
    hand.execute(settle, [START, ids[0]]).unwrap();
    assert_eq!(desk.states(), ["sent", "waiting", "waiting"]);
    let mut drain = desk.drain();
    desk.live(&mut drain, HOUR, &up);
    assert_eq!(desk.states(), ["sent"; 3]);
}

/// A run used to take every waiting member behind its head, past a dead one that holds them.
#[test]
fn a_run_ends_before_a_dead_member_of_its_lane() {
    let till = Till::new();
    let outbox = till.open();
    for i in 1..=5 {
        let message = Message::text("sales", i.to_string()).ordering_key("customer");
        put(&outbox, &message).unwrap();
    }
    till.sql()
        .execute_batch(
            "UPDATE outbox SET status = 'expired', settled_at = 1 WHERE id = 1;
             UPDATE outbox SET status = 'dead', settled_at = 1 WHERE id = 2;",
        )
        .unwrap();
    outbox.operator("anna").retry(1).unwrap();
    let script = Script::default();
    outbox.drain(&script).unwrap();
    let arrived: Vec<i64> = script.seen().iter().map(|it| it.id).collect();
    assert_eq!(arrived, [1], "3, 4 and 5 stand behind 2, which is dead");
    outbox.operator("anna").retry(2).unwrap();
    outbox.drain(&script).unwrap();
    let arrived: Vec<i64> = script.seen().iter().map(|it| it.id).collect();
    assert_eq!(arrived, [1, 2, 3, 4, 5]);
}

/// A note of a claim that had passed on meanwhile kept a due time in the past: the cycle never
/// rested again.
#[test]
fn a_suspect_that_another_process_took_back_keeps_nobody_awake() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    put(&outbox, &Message::text("sales", "one")).unwrap();
    let mut crashed = Inline::new(&outbox, Settings::default()).unwrap();
    crashed.step(&Script::default()).unwrap();
    drop(crashed);
    let mut b = Inline::new(&outbox, Settings::default()).unwrap();
    let mut c = Inline::new(&outbox, Settings::default()).unwrap();
    clock.advance(Duration::from_secs(31));
    let script = Script::default();
    b.step(&script).unwrap();
    c.step(&script).unwrap();
    clock.advance(Duration::from_millis(2_001));
    c.step(&script).unwrap();
    let waits: Vec<Duration> = (0..20).map(|_| b.step(&script).unwrap().wait).collect();
    assert!(waits.iter().any(|wait| !wait.is_zero()), "{waits:?}");
    c.until_idle(&script).unwrap();
    assert_eq!(script.seen().len(), 1);
}

#[test]
fn an_ordering_key_that_is_no_text_stops_no_other() {
    let till = Till::new();
    let outbox = till.open();
    till.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, payload, ordering_key) VALUES ('sales', 'x', CAST(x'ff' AS TEXT));
             INSERT INTO outbox (channel, payload, ordering_key) VALUES ('sales', 'y', CAST(x'ff' AS TEXT));
             INSERT INTO outbox (channel, payload) VALUES (CAST(x'fe' AS TEXT), 'z');",
        )
        .unwrap();
    for i in 0..5 {
        put(
            &outbox,
            &Message::text("sales", i.to_string()).ordering_key("good"),
        )
        .unwrap();
    }
    assert_eq!(outbox.drain(&delivered).unwrap().sent, 5);
    assert_eq!(outbox.drain(&delivered).unwrap().sent, 0);
}

/// In a file of another encoding a channel that is no text is read as other bytes than are stored, so
/// nothing was found under its name; and the walk over the channels ended there, before the others.
#[test]
fn a_channel_that_is_no_text_stops_no_other_in_any_encoding() {
    for (encoding, broken) in [
        ("UTF-8", ["ff", "61c3"]),
        ("UTF-16le", ["00d8", "6100ffdf"]),
        ("UTF-16be", ["d800", "0061dfff"]),
    ] {
        let till = Till::new();
        let conn = Connection::open(&till.path).unwrap();
        conn.pragma_update(None, "encoding", encoding).unwrap();
        conn.execute_batch("CREATE TABLE sale (id)").unwrap();
        let outbox = till.open();
        conn.execute_batch("BEGIN").unwrap();
        for bytes in broken {
            for _ in 0..100 {
                conn.execute_batch(&format!(
                    "INSERT INTO outbox (channel, payload) VALUES (CAST(x'{bytes}' AS TEXT), 'x')"
                ))
                .unwrap();
            }
        }
        conn.execute_batch("COMMIT").unwrap();
        for channel in ["a", "sales", "zales", "ä"] {
            put(&outbox, &Message::text(channel, "x")).unwrap();
        }
        let report = outbox.drain(&delivered).unwrap();
        assert_eq!(
            (report.sent, report.dead, report.unsent),
            (4, 200, 0),
            "{encoding}"
        );
        assert_eq!(outbox.stats().unwrap().total.dead, 200, "{encoding}");
        for id in [1, 200] {
            let why = outbox.why(id).unwrap();
            let told = (why.code.as_deref(), why.detail.as_deref());
            let expected = (Some("invalid"), Some("channel is not valid UTF-8"));
            assert_eq!(told, expected, "{encoding}");
        }
    }
}

/// They were taken as not being there.
#[test]
fn who_paused_a_channel_and_why_is_told_as_well_as_it_can_be_read() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &Message::text("sales", "x")).unwrap();
    outbox.operator("anna").reason("x").pause("sales").unwrap();
    till.sql()
        .execute_batch(
            "UPDATE outbox_channel SET paused_by = CAST(x'616e6eff' AS TEXT),
                                       pause_reason = CAST(x'74696ce9' AS TEXT)",
        )
        .unwrap();
    let why = outbox.why(1).unwrap().to_string();
    assert!(why.contains("by ann\u{fffd}: til\u{fffd}"), "{why}");
    assert_eq!(outbox.drain(&delivered).unwrap().sent, 0);
}

#[test]
fn times_at_the_ends_of_the_number_line_stop_no_other() {
    let till = Till::new();
    let outbox = till.open();
    till.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, payload, created_at, expires_at)
               VALUES ('sales', 'x', -9223372036854775807 - 1, 1);
             INSERT INTO outbox (channel, payload, created_at, expires_at)
               VALUES ('sales', 'x', 9223372036854775807, 9223372036854775807);
             INSERT INTO outbox (channel, payload, available_at, expires_at)
               VALUES ('sales', 'x', -9223372036854775807 - 1, 9223372036854775807);
             INSERT INTO outbox (channel, payload, next_attempt_at) VALUES ('sales', 'x', 9223372036854775807);",
        )
        .unwrap();
    for i in 0..5 {
        put(&outbox, &Message::text("sales", i.to_string())).unwrap();
    }
    let report = outbox
        .draining(&delivered)
        .deadline(Duration::from_secs(20))
        .run()
        .unwrap();
    assert!(report.sent >= 5, "{report:?}");
    outbox.stats().unwrap();
}

/// One such row, and nothing in the file was sent any more.
#[test]
fn a_time_that_is_no_number_stops_no_other() {
    for column in [
        "next_attempt_at",
        "expires_at",
        "available_at",
        "created_at",
    ] {
        for value in ["'soon'", "x'00ff'", "1e308", "NULL"] {
            let till = Till::new();
            let outbox = till.open();
            for _ in 0..5 {
                put(&outbox, &Message::text("sales", "x")).unwrap();
            }
            let conn = till.sql();
            let spoil = format!(
                "PRAGMA ignore_check_constraints = ON;
                 DROP TRIGGER outbox_place; DROP TRIGGER outbox_status_changed;
                 DROP TRIGGER outbox_rewritten; DROP TRIGGER outbox_rescheduled;
                 UPDATE OR IGNORE outbox SET {column} = {value} WHERE id = 5"
            );
            conn.execute_batch(&spoil).unwrap();
            drop((conn, outbox));
            let report = till.open().drain(&delivered).unwrap();
            assert!(report.sent >= 4, "{column} = {value}: {report:?}");
        }
    }
}

#[test]
fn a_row_whose_expiry_is_refused_stops_no_other() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    for key in ["bad", "late"] {
        let message = Message::text("sales", key)
            .dedupe_key(key)
            .ttl(Duration::from_secs(60));
        put(&outbox, &message).unwrap();
    }
    till.sql()
        .execute_batch(
            "CREATE TRIGGER mine BEFORE UPDATE ON outbox WHEN OLD.dedupe_key = 'bad'
             BEGIN SELECT RAISE(ABORT, 'hands off'); END;",
        )
        .unwrap();
    clock.advance(Duration::from_secs(120));
    put(&outbox, &Message::text("sales", "good")).unwrap();
    let script = Script::default();
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    for _ in 0..10 {
        drain.step(&script).unwrap();
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(script.seen().len(), 1);
    let late = outbox.get_by_key("sales", "late").unwrap().unwrap();
    assert_eq!(late.status, Status::Expired);
}

/// It shows at the commit only, which then failed every half second, for ever.
#[test]
fn a_hook_that_violates_a_deferred_foreign_key_loses_its_own_writes_only() {
    let till = Till::new();
    let outbox = Outbox::options()
        .on_connect(|conn| conn.execute_batch("PRAGMA foreign_keys = ON"))
        .on_delivered(|tx, delivery, _| {
            let parent = match delivery.dedupe_key.as_str() {
                "S-3" => 99,
                _ => 1,
            };
            tx.execute("INSERT INTO child (parent) VALUES (?1)", [parent])?;
            Ok(())
        })
        .open(&till.path)
        .unwrap();
    till.sql()
        .execute_batch(
            "CREATE TABLE parent (id INTEGER PRIMARY KEY);
             INSERT INTO parent VALUES (1);
             CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED);",
        )
        .unwrap();
    for i in 0..8 {
        put(
            &outbox,
            &Message::text("sales", "x").dedupe_key(format!("S-{i}")),
        )
        .unwrap();
    }
    let report = outbox.drain(&delivered).unwrap();
    assert_eq!((report.sent, report.unsent), (8, 0));
    assert_eq!(one(&till.sql(), "SELECT count(*) FROM child"), "7");
    let failed = outbox.get_by_key("sales", "S-3").unwrap().unwrap();
    assert!(failed.last_error.unwrap().contains("impossible to commit"));
}

#[test]
fn a_hook_that_asks_for_another_connection_is_refused_at_once() {
    let till = Till::new();
    let place = std::sync::Arc::new(std::sync::OnceLock::<Outbox>::new());
    let inner = place.clone();
    let outbox = Outbox::options()
        .on_delivered(move |_, _, _| {
            let outbox = inner.get().unwrap();
            outbox.connection()?;
            Ok(())
        })
        .open(&till.path)
        .unwrap();
    place.set(outbox.clone()).unwrap();
    put(&outbox, &Message::text("sales", "one")).unwrap();
    assert_eq!(outbox.drain(&delivered).unwrap().sent, 1);
    let error = outbox.get(1).unwrap().unwrap().last_error.unwrap();
    assert!(error.contains("connection it is given"), "{error}");
    outbox.connection().unwrap();
}

#[test]
fn crashed_claims_are_taken_back_however_many_channels_there_are() {
    let till = Till::new();
    let (clock, outbox) = till.manual(NOW);
    let channels = 700;
    outbox
        .transaction(|tx| {
            for i in 0..channels {
                outbox.enqueue(tx, &Message::text(format!("channel {i:04}"), "x"))?;
            }
            anyhow::Ok(())
        })
        .unwrap();
    let mut crashed = Inline::new(&outbox, Settings::default().workers(64)).unwrap();
    for _ in 0..3 {
        crashed.step(&Script::default()).unwrap();
    }
    drop(crashed);
    assert!(outbox.stats().unwrap().total.sending > 0);
    let script = Script::default();
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    for _ in 0..400 {
        clock.advance(Duration::from_secs(1));
        drain.step(&script).unwrap();
    }
    assert_eq!(outbox.unsent().unwrap(), 0);
}

#[test]
fn a_drain_stops_when_a_newer_program_forbids_older_writers() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &Message::text("sales", "one")).unwrap();
    till.sql()
        .execute_batch(
            "UPDATE outbox_meta SET value = '99' WHERE key IN ('min_writer', 'schema_version')",
        )
        .unwrap();
    let nobody = |_: &Delivery| -> anyhow::Result<Outcome> { panic!("sent") };
    let error = outbox.drain(&nobody).unwrap_err();
    assert!(
        matches!(error, Error::SchemaTooNew { found: 99, .. }),
        "{error:?}"
    );
    assert_eq!(one(&till.sql(), "SELECT claims FROM outbox"), "0");
}

/// The workers were never told to end, and the scope waited for them for ever.
#[test]
fn a_panicking_progress_callback_ends_the_drain_instead_of_hanging_it() {
    let till = Till::new();
    let outbox = till.open();
    for i in 0..50 {
        put(&outbox, &Message::text("sales", i.to_string())).unwrap();
    }
    let (done, ended) = crossbeam_channel::bounded(1);
    std::thread::spawn(move || {
        let drain = std::panic::AssertUnwindSafe(|| {
            outbox
                .draining(&delivered)
                .progress(|tally| assert!(tally.sent < 5, "enough"))
                .run()
        });
        done.send(std::panic::catch_unwind(drain).is_err()).unwrap();
    });
    assert!(ended.recv_timeout(Duration::from_secs(20)).unwrap());
}

#[test]
fn nobody_dies_by_retries_while_the_channel_rejects_everything() {
    let till = Till::new();
    let outbox = till.open();
    for i in 0..12 {
        put(&outbox, &Message::text("sales", i.to_string())).unwrap();
    }
    let policy = Policy::default()
        .max_attempts(1)
        .min_dead_age(Duration::ZERO);
    let settings = Settings::default().workers(1).default_policy(policy);
    put(
        &outbox,
        &Message::text("sales", "first").dedupe_key("first"),
    )
    .unwrap();
    outbox
        .draining(&|it: &Delivery| match it.dedupe_key.as_str() {
            "first" => Ok(Outcome::delivered()),
            _ => Ok(Outcome::rejected("400")),
        })
        .settings(settings.clone())
        .run()
        .unwrap();
    let before = outbox.stats().unwrap().total.dead;
    outbox
        .draining(&|_: &Delivery| Ok(Outcome::retry("500")))
        .settings(settings)
        .now()
        .run()
        .unwrap();
    assert_eq!(outbox.stats().unwrap().total.dead, before);
}
