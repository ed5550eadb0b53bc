//! Retention: what leaves the file by itself, and what never does.

use std::time::Duration;

use sqlite_outbox::testing::Inline;
use sqlite_outbox::{Delivery, Enqueued, Message, Outcome, Receipt, Selection, Settings, Status};

use crate::desk::{DAY, Desk, HOUR, MINUTE, SECOND, START, status, up};
use crate::fixture::{Till, column, one, put};

fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 3600)
}

fn settings(keep_payload: u64, keep_sent: u64) -> Settings {
    Settings::default()
        .keep_payload(Some(days(keep_payload)))
        .keep_sent(Some(days(keep_sent)))
}

/// Lives on with hourly looks, and one sale in each of these hours.
fn sell_hourly(desk: &Desk, drain: &mut Inline, hours: i64) {
    for _ in 0..hours {
        desk.put(Message::text("sales", "x".repeat(300)));
        drain.until_idle(&up).unwrap();
        desk.pass(HOUR);
        drain.until_idle(&up).unwrap();
    }
}

fn answered(_: &Delivery) -> anyhow::Result<Outcome> {
    Ok(Outcome::Delivered(
        Receipt::with_id("INV-1").answer("thank you"),
    ))
}

#[test]
fn a_sent_message_loses_its_payload_first_and_its_row_later() {
    let desk = Desk::new();
    let text = desk.put(Message::text("sales", "12.50").dedupe_key("T"));
    let bytes = desk.put(Message::bytes("sales", [1, 2, 3]).dedupe_key("B"));
    let mut drain = desk.drain_with(settings(14, 30));
    drain.until_idle(&answered).unwrap();
    desk.doze(&mut drain, 14 * DAY - HOUR, &up);
    assert_eq!(desk.get(text).payload, b"12.50");
    desk.doze(&mut drain, 3 * HOUR, &up);
    for id in [text, bytes] {
        let it = desk.get(id);
        assert_eq!(
            (it.status, it.payload.len(), it.answer),
            (Status::Sent, 0, None)
        );
        assert_eq!(it.provider_id.as_deref(), Some("INV-1"), "the proof stays");
        assert_eq!(it.payload_is_text, id == text);
    }
    desk.doze(&mut drain, 15 * DAY, &up);
    assert_eq!(desk.states().len(), 2);
    desk.doze(&mut drain, 2 * DAY, &up);
    assert!(desk.states().is_empty());
}

#[test]
fn nothing_unsent_and_no_dead_letter_is_ever_removed() {
    let desk = Desk::new();
    let dead = desk.lane("customer", 3)[0];
    desk.sync(&|_: &Delivery| Ok(Outcome::Rejected(status(422))));
    let scheduled = desk.put(Message::text("sales", "later").available_at(START + 3_000 * DAY));
    let sending = desk.put(Message::text("other", "claimed"));
    desk.sql(&format!(
        "UPDATE outbox SET status = 'sending', claims = 1, next_attempt_at = {} WHERE id = {sending}",
        START + 5 * MINUTE
    ));
    let mut drain = desk.drain_with(settings(1, 2));
    let only_sales = |delivery: &Delivery| {
        assert_eq!(delivery.channel, "other", "the lane is held");
        Ok(Outcome::retry("later"))
    };
    for _ in 0..40 {
        desk.pass(10 * DAY);
        // As often as the clock needs to be believed.
        for _ in 0..30 {
            drain.until_idle(&only_sales).unwrap();
            desk.pass(20 * MINUTE);
        }
    }
    assert_eq!(
        desk.states(),
        ["dead", "waiting", "waiting", "pending", "pending"]
    );
    assert_eq!(desk.get(dead).payload, b"1");
    assert_eq!(desk.get(scheduled).payload, b"later");
    assert_eq!(desk.get(sending).payload, b"claimed");
    desk.anna().purge(Duration::ZERO).unwrap();
    assert_eq!(desk.states().len(), 5);
}

#[test]
fn expired_and_cancelled_messages_keep_their_payload_until_their_row_goes() {
    let desk = Desk::new();
    desk.put(Message::text("sales", "expired").ttl(Duration::from_secs(1)));
    let cancelled = desk.put(Message::text("sales", "cancelled").delay(days(1)));
    desk.anna().cancel(cancelled).unwrap();
    desk.pass(HOUR);
    let mut drain = desk.drain_with(settings(1, 10));
    desk.doze(&mut drain, 9 * DAY, &up);
    assert_eq!(desk.states(), ["expired", "cancelled"]);
    assert_eq!(desk.get(cancelled).payload, b"cancelled");
    desk.doze(&mut drain, 2 * DAY, &up);
    assert!(desk.states().is_empty());
}

/// The schema lets an application cancel by hand, which sets no moment.
#[test]
fn what_was_settled_by_hand_counts_from_when_it_is_noticed() {
    let desk = Desk::new();
    let by_hand = desk.put(Message::text("sales", "x"));
    let in_1970 = desk.put(Message::text("sales", "x"));
    let in_2100 = desk.put(Message::text("sales", "x"));
    desk.sql(&format!(
        "UPDATE outbox SET status = 'cancelled', created_at = 1800000000000 - 900 * 86400000;
         UPDATE outbox SET settled_at = 1000 WHERE id = {in_1970};
         UPDATE outbox SET settled_at = 4102444800000 WHERE id = {in_2100};"
    ));
    let mut drain = desk.drain_with(settings(1, 10));
    desk.doze(&mut drain, DAY, &up);
    for id in [by_hand, in_1970, in_2100] {
        let settled = desk.get(id).settled_at.unwrap();
        assert!((START..=START + DAY).contains(&settled), "{settled}");
    }
    desk.doze(&mut drain, 11 * DAY, &up);
    assert!(desk.states().is_empty());
}

/// Found by the simulation. A round was planned while a message bore a moment of 1970. Before it came
/// to remove anything, another process settled messages by a clock that stood there again; they went
/// as if they were 400 days old, and with them the memory of their keys.
#[test]
fn what_is_settled_by_a_wrong_clock_during_a_round_is_not_removed_by_it() {
    let desk = Desk::new();
    let early = desk.put(Message::text("sales", "x"));
    let late = desk.put(Message::text("sales", "x"));
    desk.sql("UPDATE outbox SET status = 'cancelled', settled_at = 1800000000000");
    let in_1970 = |id| {
        desk.sql(&format!(
            "UPDATE outbox SET settled_at = 1000 WHERE id = {id}"
        ))
    };
    in_1970(early);
    let mut drain = desk.drain_with(settings(1, 10));
    while desk.get(early).settled_at == Some(1000) {
        drain.step(&up).unwrap();
        desk.clock.advance(Duration::from_secs(30));
    }
    // It looks for more of that kind, and finds none.
    drain.step(&up).unwrap();
    in_1970(late);
    desk.doze(&mut drain, DAY, &up);
    assert!(desk.get(late).settled_at.unwrap() >= START);
}

#[test]
fn none_keeps_everything_for_ever() {
    let desk = Desk::new();
    desk.put(Message::text("sales", "x"));
    let mut drain = desk.drain_with(Settings::default().keep_payload(None).keep_sent(None));
    drain.until_idle(&answered).unwrap();
    desk.doze(&mut drain, 500 * DAY, &up);
    let it = desk.get(1);
    assert_eq!(
        (it.payload, it.answer.as_deref()),
        (b"x".to_vec(), Some("thank you"))
    );
}

#[test]
fn attempts_go_with_their_message() {
    let desk = Desk::new();
    desk.put(Message::text("sales", "x"));
    let mut drain = desk.drain_with(settings(1, 5));
    drain
        .until_idle(&|_: &Delivery| Ok(Outcome::retry("busy")))
        .unwrap();
    desk.doze(&mut drain, DAY, &up);
    let attempts = || one(&desk.till.sql(), "SELECT count(*) FROM outbox_attempt");
    assert_eq!(attempts(), "1");
    desk.doze(&mut drain, 6 * DAY, &up);
    assert_eq!((attempts(), desk.states().len()), ("0".into(), 0));
}

/// A year in the life of a till.
#[test]
fn a_year_of_sales_keeps_the_number_of_rows_and_the_file_bounded() {
    let desk = Desk::new();
    let dead = desk.put(Message::text("sales", "bad"));
    let mut drain = desk.drain_with(settings(7, 30));
    drain
        .until_idle(&|_: &Delivery| Ok(Outcome::Rejected(status(422))))
        .unwrap();
    let (mut most, mut sizes) = (0, Vec::new());
    for month in 0..12 {
        for _ in 0..30 {
            let sales: Vec<_> = (0..40)
                .map(|_| Message::text("sales", "x".repeat(300)))
                .collect();
            desk.outbox
                .transaction(|tx| desk.outbox.enqueue_all(tx, &sales))
                .map(drop)
                .unwrap();
            for _ in 0..8 {
                drain.until_idle(&up).unwrap();
                desk.pass(3 * HOUR);
            }
        }
        let rows: usize = one(&desk.till.sql(), "SELECT count(*) FROM outbox")
            .parse()
            .unwrap();
        most = most.max(rows);
        if month >= 2 {
            sizes.push(std::fs::metadata(&desk.till.path).unwrap().len());
        }
    }
    assert!(most <= 40 * 33 + 1, "{most} rows");
    let full = "SELECT count(*) FROM outbox WHERE status = 'sent' AND length(payload) > 0";
    let full: usize = one(&desk.till.sql(), full).parse().unwrap();
    assert!((40 * 6..=40 * 9).contains(&full), "{full} payloads");
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    assert!(
        last * 100 <= first * 105,
        "the file goes on growing: {sizes:?}"
    );
    assert_eq!(desk.get(dead).status, Status::Dead);
    assert_eq!(desk.outbox.stats().unwrap().total.unsent(), 0);
}

/// With 1,000 dead letters, 1,000 delivered and 100 pending messages, the clock goes ten years ahead.
#[test]
fn a_clock_that_jumps_ahead_removes_nothing_in_one_sweep() {
    let desk = Desk::new();
    let mut drain = desk.drain();
    let all: Vec<_> = (0..2_100)
        .map(|it| Message::text("sales", it.to_string()).ttl(days(700)))
        .collect();
    desk.outbox
        .transaction(|tx| desk.outbox.enqueue_all(tx, &all))
        .map(drop)
        .unwrap();
    desk.sql(
        "UPDATE outbox SET status = 'dead', settled_at = 1800000000000 WHERE id <= 1000;
         UPDATE outbox SET status = 'sent', settled_at = 1800000000000 + id * 300000, provider_id = 'p'
          WHERE id BETWEEN 1001 AND 2000;
         UPDATE outbox SET next_attempt_at = 1800000000000 + 86400000 WHERE id > 2000;",
    );
    let count = |what: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM outbox WHERE {what}");
        one(&desk.till.sql(), &sql).parse().unwrap()
    };
    let never =
        |_: &Delivery| -> anyhow::Result<Outcome> { Ok(Outcome::unreachable("no network")) };
    drain.until_idle(&never).unwrap();
    desk.clock.jump(3_650 * DAY);
    for _ in 0..5 {
        desk.pass(SECOND);
        drain.until_idle(&never).unwrap();
    }
    assert_eq!(
        (count("status = 'dead'"), count("status = 'sent'")),
        (1_000, 1_000)
    );
    assert_eq!(count("status = 'pending'"), 100, "and nothing expired");
    assert_eq!(count("length(payload) > 0"), 2_100);

    // Even a clock that stays wrong takes a day of history in an hour.
    for _ in 0..59 {
        desk.pass(MINUTE);
        drain.until_idle(&never).unwrap();
    }
    assert_eq!(
        (count("status = 'sent'"), count("length(payload) > 0")),
        (1_000, 2_100)
    );
    let (mut before, mut took) = (1_000, 0);
    for _ in 0..2 * 60 {
        desk.pass(MINUTE);
        drain.until_idle(&never).unwrap();
        // Processes that come and go are no quicker.
        desk.drain().until_idle(&never).unwrap();
        let now = count("status = 'sent'");
        took = took.max(before - now);
        before = now;
    }
    assert!(took <= 24 * 12 + 1, "{took} rows in one hour");
    assert!(before >= 1_000 - 3 * (24 * 12 + 1), "{before} left");
    assert_eq!(count("status = 'dead'"), 1_000);

    desk.clock.jump(-3_650 * DAY);
    let rest = count("status = 'sent'");
    for _ in 0..120 {
        desk.pass(MINUTE);
        drain.until_idle(&never).unwrap();
    }
    assert_eq!(
        (count("status = 'sent'"), count("status = 'dead'")),
        (rest, 1_000)
    );
}

#[test]
fn a_till_that_boots_in_1970_removes_nothing() {
    let desk = Desk::new();
    desk.put(Message::text("sales", "x"));
    desk.sync(&up);
    desk.clock.jump(-desk.clock.now());
    let mut drain = desk.drain_with(settings(0, 0));
    desk.doze(&mut drain, 3 * HOUR, &up);
    assert_eq!(desk.get(1).payload, b"x");
}

#[test]
fn an_idle_outbox_writes_nothing_when_there_is_nothing_to_remove() {
    let desk = Desk::new();
    let mut drain = desk.drain_with(settings(14, 400));
    sell_hourly(&desk, &mut drain, 30);
    let watcher = desk.till.sql();
    let version = || one(&watcher, "PRAGMA data_version");
    let before = version();
    desk.doze(&mut drain, 12 * DAY, &up);
    assert_eq!(version(), before, "nothing was due");
    desk.doze(&mut drain, 5 * DAY, &up);
    let emptied = version();
    assert_ne!(emptied, before);
    desk.doze(&mut drain, 300 * DAY, &up);
    assert_eq!(version(), emptied, "everything was emptied already");
    // Nor does a process that begins.
    desk.drain_with(settings(14, 400)).until_idle(&up).unwrap();
    assert_eq!(version(), emptied);
}

#[test]
fn drains_that_come_and_go_keep_the_file_bounded_too() {
    let desk = Desk::new();
    for _ in 0..60 * 24 {
        desk.put(Message::text("sales", "x"));
        desk.drain_with(settings(3, 10)).until_idle(&up).unwrap();
        desk.pass(HOUR);
    }
    let rows = desk.states().len();
    assert!((10 * 24..=12 * 24).contains(&rows), "{rows} rows");
    let full = "SELECT count(*) FROM outbox WHERE length(payload) > 0";
    let full: usize = one(&desk.till.sql(), full).parse().unwrap();
    assert!((3 * 24..=5 * 24).contains(&full), "{full} payloads");
}

/// One transaction removes 200 rows at most, and about a megabyte.
#[test]
fn each_transaction_removes_little() {
    let desk = Desk::new();
    desk.sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
         INSERT INTO outbox (channel, payload, status, settled_at)
         SELECT 'sales', 'x', 'sent', 1800000000000 FROM n;
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30)
         INSERT INTO outbox (channel, payload, status, settled_at)
         SELECT 'large', zeroblob(200000), 'sent', 1800000000000 FROM n;",
    );
    let mut drain = desk.drain_with(settings(400, 10));
    desk.pass(11 * DAY);
    let (mut left, mut steps) = (1_030, 0);
    for _ in 0..400 {
        let step = drain.step(&up).unwrap();
        desk.clock.advance(step.wait.max(Duration::from_millis(1)));
        let now: i64 = one(&desk.till.sql(), "SELECT count(*) FROM outbox")
            .parse()
            .unwrap();
        let large = "SELECT count(*) FROM outbox WHERE channel = 'large'";
        let large: i64 = one(&desk.till.sql(), large).parse().unwrap();
        assert!(left - now <= 200, "{} at once", left - now);
        if large > 0 && large < 30 {
            assert!(left - now <= 6, "{} large ones at once", left - now);
        }
        steps += i64::from(now < left);
        left = now;
    }
    assert_eq!(left, 0);
    assert!(steps >= 10, "{steps} steps");
}

#[test]
fn a_row_that_the_application_holds_fast_stays_and_keeps_nothing_else() {
    let desk = Desk::new();
    let held = desk.put(Message::text("sales", "held"));
    for _ in 0..300 {
        desk.put(Message::text("sales", "x"));
    }
    desk.sync(&up);
    desk.sql(&format!(
        "CREATE TRIGGER mine BEFORE DELETE ON outbox WHEN OLD.id = {held}
         BEGIN SELECT RAISE(ABORT, 'not this one'); END"
    ));
    let mut drain = desk.drain_with(settings(14, 30));
    desk.doze(&mut drain, 40 * DAY, &up);
    assert_eq!(
        column(&desk.till.sql(), "SELECT id FROM outbox"),
        [held.to_string()]
    );
    assert_eq!(desk.anna().purge(Duration::ZERO).unwrap(), 0);
    desk.sql("DROP TRIGGER mine");
    assert_eq!(desk.anna().purge(Duration::ZERO).unwrap(), 1);
}

#[test]
fn a_person_may_purge_and_it_is_recorded() {
    let desk = Desk::new();
    let sent = desk.put(Message::text("sales", "x").dedupe_key("S-1"));
    for channel in ["sales", "stock"] {
        for _ in 0..450 {
            desk.put(Message::text(channel, "x"));
        }
    }
    desk.sync(&up);
    desk.pass(DAY);
    let young = desk.put(Message::text("sales", "young"));
    desk.sync(&up);
    let waiting = desk.put(Message::text("sales", "waiting"));
    desk.sql("UPDATE outbox SET settled_at = NULL, created_at = 5 WHERE id = 2");
    let anna = desk.anna().reason("moving house");
    assert_eq!(anna.purge(days(1)).unwrap(), 901);
    assert_eq!(anna.purge(days(1)).unwrap(), 0);
    let ids = column(&desk.till.sql(), "SELECT id FROM outbox ORDER BY id");
    assert_eq!(ids, [young.to_string(), waiting.to_string()]);
    let audit = desk.outbox.audit(None, 10).unwrap();
    assert_eq!(audit.len(), 2, "one entry for each purge");
    assert_eq!(audit[1].action, "purge");
    assert_eq!(
        audit[1].reason.as_deref(),
        Some("removed 901 messages; moving house")
    );
    // Its key is free again.
    let again = put(&desk.outbox, &Message::text("sales", "y").dedupe_key("S-1")).unwrap();
    assert!(matches!(again, Enqueued::New { id } if id > sent));
}

#[test]
fn the_record_of_what_people_did_is_bounded() {
    let desk = Desk::new();
    let id = desk.put(Message::text("sales", "former"));
    desk.anna().edit(id, "secret of the former").unwrap();
    desk.anna().edit(id, "now").unwrap();
    let mut drain = desk.drain_with(settings(5, 20));
    let kept = || {
        let sql = "SELECT count(*) FROM outbox_audit WHERE former_payload IS NOT NULL";
        (
            one(&desk.till.sql(), sql),
            one(&desk.till.sql(), "SELECT count(*) FROM outbox_audit"),
        )
    };
    let refuse = |_: &Delivery| Ok(Outcome::Rejected(status(422)));
    desk.doze(&mut drain, 7 * DAY, &refuse);
    assert_eq!(
        kept(),
        ("2".into(), "2".into()),
        "its message waits for a person"
    );
    desk.anna().retry(id).unwrap();
    desk.doze(&mut drain, 7 * DAY, &up);
    assert_eq!(
        kept(),
        ("0".into(), "3".into()),
        "nor longer than the message's own"
    );
    desk.sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100500)
         INSERT INTO outbox_audit (at, who, action) SELECT 1801209600000, 'loop', 'retry' FROM n",
    );
    desk.doze(&mut drain, 3 * HOUR, &up);
    let rows: usize = kept().1.parse().unwrap();
    assert!((100_000..=100_001).contains(&rows), "{rows}");
    desk.doze(&mut drain, 30 * DAY, &up);
    assert_eq!(kept().1, "0");
}

/// The published table of answers, before and after retention.
#[test]
fn a_dedupe_key_is_taken_until_its_row_is_purged() {
    let desk = Desk::new();
    let same = |key: &str| Message::text("sales", "12.50").dedupe_key(key);
    let other = |key: &str| Message::text("sales", "99.00").dedupe_key(key);
    let id = desk.put(same("S-1"));
    let mut drain = desk.drain_with(settings(14, 30));
    let ask = |message: Message| put(&desk.outbox, &message).unwrap();
    drain.until_idle(&up).unwrap();
    assert_eq!(ask(same("S-1")), Enqueued::Duplicate { id });
    assert_eq!(ask(other("S-1")), Enqueued::Conflict { id });
    desk.doze(&mut drain, 16 * DAY, &up);
    assert!(desk.get(id).payload.is_empty());
    assert_eq!(ask(same("S-1")), Enqueued::Duplicate { id });
    assert_eq!(
        ask(other("S-1")),
        Enqueued::Duplicate { id },
        "nothing left to differ from"
    );
    desk.doze(&mut drain, 16 * DAY, &up);
    let new = ask(other("S-1"));
    assert!(
        matches!(new, Enqueued::New { id: later } if later > id),
        "{new:?}"
    );
}

#[test]
fn a_retry_of_many_cancelled_messages_meets_their_payloads_as_they_were() {
    let desk = Desk::new();
    for index in 0..300 {
        desk.put(Message::text("sales", index.to_string()));
    }
    let pending = Selection::new().status(Status::Pending);
    assert_eq!(desk.anna().cancel_all(&pending).unwrap(), 300);
    let mut drain = desk.drain_with(settings(1, 100));
    desk.doze(&mut drain, 50 * DAY, &up);
    let cancelled = Selection::new().status(Status::Cancelled);
    assert_eq!(desk.anna().retry_all(&cancelled).unwrap(), 300);
    let payloads = column(&desk.till.sql(), "SELECT payload FROM outbox ORDER BY id");
    assert!(
        payloads
            .iter()
            .enumerate()
            .all(|(at, it)| at.to_string() == *it)
    );
}

/// A till sells while years of history are removed.
#[test]
fn a_purge_lets_the_application_commit() {
    let till = Till::new();
    let outbox = till.open();
    till.sql()
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
             INSERT INTO outbox (channel, payload, status, settled_at)
             SELECT 'sales', zeroblob(300), 'sent', 1600000000000 + i FROM n;",
        )
        .unwrap();
    let mut waits = Vec::new();
    std::thread::scope(|scope| {
        let purge = scope.spawn(|| outbox.operator("anna").purge(days(1)));
        while !purge.is_finished() {
            let begun = std::time::Instant::now();
            put(&outbox, &Message::text("sales", "sold meanwhile")).unwrap();
            waits.push(begun.elapsed());
            crate::fixture::nap(5);
        }
        assert_eq!(purge.join().unwrap().unwrap(), 20_000);
    });
    waits.sort();
    let late = waits[waits.len() * 95 / 100];
    assert!(
        late < Duration::from_millis(200),
        "{late:?} of {}",
        waits.len()
    );
    assert_eq!(outbox.unsent().unwrap(), waits.len() as u64);
}

/// A sync button is not held up by years of history; the next ones take it on.
#[test]
fn a_drain_in_the_foreground_stays_for_a_moment_only() {
    let till = Till::new();
    let outbox = till.open();
    till.sql()
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
             INSERT INTO outbox (channel, payload, status, settled_at)
             SELECT 'sales', 'x', 'sent', 1768000000000 + i FROM n;
             INSERT INTO outbox_meta (key, value)
             SELECT 'retention_noted_at', max(created_at) - 7200000 FROM outbox;",
        )
        .unwrap();
    put(&outbox, &Message::text("sales", "x")).unwrap();
    let month = Some(Duration::from_secs(30 * 86_400));
    let begun = std::time::Instant::now();
    let drain = outbox
        .draining(&up)
        .settings(Settings::default().keep_payload(None).keep_sent(month));
    assert_eq!(drain.run().unwrap().sent, 1);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    let left: u64 = outbox.stats().unwrap().total.sent;
    assert!((1..100_000).contains(&left), "{left}");
}
