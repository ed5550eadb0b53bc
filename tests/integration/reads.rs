//! Looking: what is where, for how long, and why, whatever stands in the rows.

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{ChannelState, Delivery, Error, Filter, Message, Outbox, Outcome, Status};

use crate::fixture::{Till, column, put};

/// Stores what no well-behaved program could.
fn by_force(till: &Till, script: &str) {
    let conn = till.sql();
    conn.execute_batch("PRAGMA ignore_check_constraints = 1; DROP TRIGGER outbox_guard")
        .unwrap();
    conn.execute_batch(script).unwrap();
}

fn ids(outbox: &Outbox, filter: Filter) -> Vec<i64> {
    outbox
        .list(&filter)
        .unwrap()
        .iter()
        .map(|it| it.id)
        .collect()
}

fn set(conn: &Connection, id: i64, change: &str) {
    let sql = format!("UPDATE outbox SET {change} WHERE id = {id}");
    assert_eq!(conn.execute(&sql, []).unwrap(), 1);
}

#[test]
fn an_empty_outbox_has_nothing_waiting() {
    let till = Till::new();
    let outbox = till.open();
    let stats = outbox.stats().unwrap();
    assert_eq!(stats.to_string(), "nothing waiting");
    assert!(stats.channels.is_empty());
    assert_eq!(outbox.unsent().unwrap(), 0);
    assert!(outbox.list(&Filter::new()).unwrap().is_empty());
    assert!(outbox.attempts(1).unwrap().is_empty());
    assert!(outbox.get(1).unwrap().is_none());
    assert!(matches!(outbox.find("1", None), Err(Error::NotFound(which)) if which == "1"));
}

#[test]
fn every_status_of_every_channel_is_counted() {
    let till = Till::new();
    let outbox = till.open();
    let conn = till.sql();
    for channel in ["a", "b", "c"] {
        for (index, status) in Status::ALL.into_iter().enumerate() {
            for copy in 0..=index {
                let key = format!("{status}{copy}");
                let id = put(&outbox, &Message::text(channel, "x").ordering_key(key))
                    .unwrap()
                    .id();
                if status == Status::Waiting {
                    // A lane of its own: the first becomes the one that holds it.
                    let key = format!("{status}{copy}");
                    put(&outbox, &Message::text(channel, "x").ordering_key(key)).unwrap();
                    set(&conn, id, "status = 'dead', created_at = 1");
                } else {
                    let at = 1_000 * id;
                    let change = format!(
                        "status = '{status}', settled_at = {at}, attempts = {copy}, created_at = {at}"
                    );
                    set(&conn, id, &change);
                }
            }
        }
    }
    let stats = outbox.stats().unwrap();
    let names: Vec<_> = stats
        .channels
        .iter()
        .map(|it| it.channel.as_str())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
    for channel in &stats.channels {
        let counts = channel.counts;
        assert_eq!((counts.pending, counts.waiting, counts.sending), (1, 2, 3));
        assert_eq!((counts.sent, counts.expired, counts.cancelled), (4, 6, 7));
        assert_eq!(counts.dead, 5 + 2);
        assert_eq!(counts.max_attempts, 2, "of those unsent");
        assert_eq!(channel.state, ChannelState::Ok);
    }
    assert_eq!(stats.total.unsent(), 18);
    assert_eq!(stats.total.sent, 12);
    assert_eq!(outbox.unsent().unwrap(), 18);
    assert_eq!(stats.total.oldest_unsent_at, Some(1_000));
    for status in Status::ALL {
        let all = outbox.list(&Filter::new().status(status)).unwrap();
        assert!(all.iter().all(|it| it.status == status));
        assert!(all.is_sorted_by_key(|it| it.id));
        let of_b = outbox
            .list(&Filter::new().status(status).channel("b"))
            .unwrap();
        assert!(of_b.iter().all(|it| it.channel == "b"));
        assert_eq!(of_b.len() * 3, all.len(), "{status}");
    }
}

#[test]
fn a_long_history_is_counted_to_the_last_message() {
    let till = Till::new();
    let outbox = till.open();
    by_force(
        &till,
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
         INSERT INTO outbox (channel, payload, status, settled_at)
         SELECT 'sales', '', 'sent', CASE WHEN i < 52000 THEN 5 WHEN i < 52010 THEN NULL ELSE i END FROM n",
    );
    assert_eq!(outbox.stats().unwrap().total.sent, 60_000);
}

#[test]
fn a_channel_shows_its_trouble_and_a_pause_before_it() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &Message::text("sales", "x")).unwrap();
    let conn = till.sql();
    conn.execute_batch(
        "INSERT INTO outbox_channel (channel, state, since, until, reason_code, reason, clock_skew)
         VALUES ('sales', 'offline', 1000, 2000, 'refused', 'connection refused', 90000),
                ('idle', 'unauthorised', 1000, NULL, 'unauthorised', 'bad token', NULL)",
    )
    .unwrap();
    let stats = outbox.stats().unwrap();
    let [idle, sales] = stats.channels.as_slice() else {
        panic!("{stats:?}")
    };
    assert_eq!(idle.state, ChannelState::Unauthorised);
    assert_eq!(sales.state, ChannelState::Offline);
    assert_eq!((sales.since, sales.until), (Some(1000), Some(2000)));
    assert_eq!(sales.reason_code.as_deref(), Some("refused"));
    assert_eq!(sales.reason.as_deref(), Some("connection refused"));
    assert_eq!(sales.clock_skew, Some(90_000));
    let since = "sales offline since a time when the clock was wrong";
    assert!(stats.to_string().contains(since), "{stats}");
    conn.execute_batch("UPDATE outbox_channel SET since = 1767225600000")
        .unwrap();
    let stats = outbox.stats().unwrap();
    assert!(stats.to_string().contains("sales offline for"), "{stats}");

    conn.execute_batch(
        "UPDATE outbox_channel SET paused_at = 3000, paused_by = 'anna@till-7', pause_reason = 'stocktaking'
          WHERE channel = 'sales'",
    )
    .unwrap();
    let stats = outbox.stats().unwrap();
    let sales = &stats.channels[1];
    assert_eq!(sales.state, ChannelState::Paused);
    assert_eq!((sales.since, sales.until), (Some(3000), None));
    assert_eq!(sales.paused_by.as_deref(), Some("anna@till-7"));
    assert_eq!(sales.reason.as_deref(), Some("stocktaking"));
}

#[test]
fn a_list_is_paged_by_id() {
    let till = Till::new();
    let outbox = till.open();
    for index in 0..25 {
        let channel = if index % 5 == 0 { "rare" } else { "sales" };
        put(&outbox, &Message::text(channel, "x")).unwrap();
    }
    // A gap wider than any slice.
    till.sql()
        .execute_batch(
            "INSERT INTO outbox (id, channel, payload) VALUES (1000000, 'rare', 'x'), (2000000, 'rare', 'x')",
        )
        .unwrap();
    let pages = |filter: &Filter| {
        let (mut pages, mut next) = (Vec::new(), filter.clone().limit(10));
        loop {
            let page = ids(&outbox, next.clone());
            let Some(last) = page.last() else {
                return pages;
            };
            next = next.after(*last);
            pages.push(page);
        }
    };
    for filter in [
        Filter::new(),
        Filter::new().status(Status::Pending),
        Filter::new().status(Status::Pending).status(Status::Sent),
        Filter::new().status(Status::Dead).status(Status::Pending),
    ] {
        let oldest_first = pages(&filter);
        let lengths: Vec<_> = oldest_first.iter().map(Vec::len).collect();
        assert_eq!(lengths, [10, 10, 7]);
        let mut all = oldest_first.concat();
        assert!(all.is_sorted());
        all.reverse();
        assert_eq!(pages(&filter.clone().newest_first()).concat(), all);
        let rare = ids(&outbox, filter.clone().channel("rare"));
        assert_eq!(rare, [1, 6, 11, 16, 21, 1_000_000, 2_000_000]);
        assert!(ids(&outbox, filter.channel("none")).is_empty());
    }
    assert_eq!(ids(&outbox, Filter::new().limit(0)).len(), 1);
}

/// Along the ids while they are near, and by the indexes where they are not: of both, and of the way
/// from one to the other, nothing is left out and nothing comes twice.
#[test]
fn a_list_is_paged_alike_however_the_messages_lie() {
    let till = Till::new();
    let outbox = till.open();
    till.sql()
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
             INSERT INTO outbox (channel, ordering_key, payload, status, next_attempt_at, settled_at)
             SELECT CASE WHEN i % 3 THEN 'a' ELSE 'b' END, 'lane ' || (i % 7), 'x',
                    CASE WHEN i BETWEEN 500 AND 900 AND i % 50 THEN 'sent'
                         WHEN i BETWEEN 901 AND 1200 THEN 'cancelled'
                         WHEN i BETWEEN 1201 AND 1500 THEN 'dead'
                         WHEN i BETWEEN 1501 AND 2500 AND i % 100 THEN 'expired'
                         ELSE 'pending' END,
                    i * 7919 % 11, 3000 - i
               FROM n;
             DELETE FROM outbox WHERE id BETWEEN 2600 AND 2700",
        )
        .unwrap();
    let cases = [
        &[Status::Pending][..],
        &[Status::Waiting],
        &[Status::Dead],
        &[Status::Expired],
        &[Status::Cancelled],
        &[Status::Pending, Status::Waiting, Status::Sending],
        &[Status::Dead, Status::Cancelled],
    ];
    for statuses in cases {
        for channel in [None, Some("a"), Some("b")] {
            for newest in [false, true] {
                let words: Vec<_> = statuses.iter().map(|it| format!("'{it}'")).collect();
                let order = if newest { "DESC" } else { "ASC" };
                let wanted = column(
                    &till.sql(),
                    &format!(
                        "SELECT id FROM outbox WHERE status IN ({}) AND {} ORDER BY id {order}",
                        words.join(", "),
                        channel.map_or("1".into(), |it| format!("channel = '{it}'"))
                    ),
                );
                assert!(!wanted.is_empty(), "{statuses:?}");
                let mut filter = Filter::new().limit(7);
                filter = statuses
                    .iter()
                    .fold(filter, |filter, it| filter.status(*it));
                filter = channel.into_iter().fold(filter, Filter::channel);
                if newest {
                    filter = filter.newest_first();
                }
                let mut found = Vec::new();
                while let page = ids(&outbox, filter.clone())
                    && let Some(last) = page.last()
                {
                    filter = filter.after(*last);
                    found.extend(page.iter().map(ToString::to_string));
                }
                assert_eq!(found, wanted, "{statuses:?} {channel:?} {newest}");
            }
        }
    }
}

#[test]
fn a_list_of_several_statuses_has_each_of_them() {
    let till = Till::new();
    let outbox = till.open();
    for status in ["dead", "sent", "pending", "cancelled", "dead"] {
        till.sql()
            .execute(
                "INSERT INTO outbox (channel, payload, status) VALUES ('a', 'x', ?1)",
                [status],
            )
            .unwrap();
    }
    let of = |statuses: &[Status]| {
        let filter = statuses
            .iter()
            .fold(Filter::new(), |filter, it| filter.status(*it));
        ids(&outbox, filter)
    };
    assert_eq!(of(&[Status::Dead, Status::Pending]), [1, 3, 5]);
    assert_eq!(of(&[Status::Dead, Status::Sent]), [1, 2, 5]);
    assert_eq!(of(&[Status::Cancelled, Status::Cancelled]), [4]);
    assert_eq!(of(&[Status::Sent]), [2]);
    assert_eq!(of(&[]), [1, 2, 3, 4, 5]);
}

#[test]
fn a_list_of_large_payloads_ends_early() {
    let till = Till::new();
    let outbox = Outbox::options()
        .max_payload(usize::MAX)
        .open(&till.path)
        .unwrap();
    for _ in 0..5 {
        put(&outbox, &Message::bytes("sales", vec![0; 3 << 20])).unwrap();
    }
    assert_eq!(ids(&outbox, Filter::new()), [1, 2, 3]);
    assert_eq!(ids(&outbox, Filter::new().after(3)), [4, 5]);
    assert_eq!(
        ids(&outbox, Filter::new().status(Status::Pending)),
        [1, 2, 3]
    );
}

#[test]
fn a_message_is_found_by_what_people_call_it() {
    let till = Till::new();
    let outbox = till.open();
    let both = |channel| Message::text(channel, "x").dedupe_key("both");
    put(&outbox, &Message::text("sales", "x").dedupe_key("S-1")).unwrap();
    put(&outbox, &both("sales")).unwrap();
    put(&outbox, &both("stock")).unwrap();
    put(&outbox, &Message::text("sales", "x").dedupe_key("3")).unwrap();
    put(&outbox, &Message::text("sales", "x").dedupe_key("77")).unwrap();
    let find = |which: &str, channel| outbox.find(which, channel).map(|it| it.id);

    assert_eq!(find("S-1", None).unwrap(), 1);
    assert_eq!(find("2", None).unwrap(), 2);
    assert_eq!(find("77", None).unwrap(), 5, "a key that looks like an id");
    for id in 1..=5 {
        let message_id = outbox.get(id).unwrap().unwrap().message_id;
        assert_eq!(find(&message_id, None).unwrap(), id);
    }
    assert!(matches!(find("both", None), Err(Error::Ambiguous { .. })));
    assert_eq!(find("both", Some("stock")).unwrap(), 3);
    assert!(
        matches!(find("3", None), Err(Error::Ambiguous { .. })),
        "an id and another's key"
    );
    assert_eq!(find("3", Some("sales")).unwrap(), 4);
    assert_eq!(find("3", Some("stock")).unwrap(), 3);
    for which in ["", "no", "99", "-1", "99999999999999999999"] {
        assert!(
            matches!(find(which, None), Err(Error::NotFound(_))),
            "{which}"
        );
    }
    let message_id = outbox.get(1).unwrap().unwrap().message_id;
    assert!(matches!(
        find(&message_id, Some("stock")),
        Err(Error::NotFound(_))
    ));
}

#[test]
fn the_failed_attempts_of_a_message_are_listed() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &Message::text("sales", "x")).unwrap();
    till.sql()
        .execute_batch(
            "INSERT INTO outbox_attempt (message, at, duration_ms, outcome, http_status, charged, error)
             VALUES (1, 10, 5, 'http_503', 503, 0, 'busy'), (1, 20, NULL, 'refused', NULL, 1, NULL),
                    (2, 30, 1, 'refused', NULL, 1, NULL)",
        )
        .unwrap();
    let attempts = outbox.attempts(1).unwrap();
    assert_eq!(attempts.len(), 2);
    assert_eq!(attempts[0].http_status, Some(503));
    assert_eq!(attempts[0].charged, None);
    assert_eq!(attempts[1].outcome, "refused");
    assert_eq!(attempts[1].charged, Some(1));
}

#[test]
fn hostile_rows_are_shown_and_break_nothing() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &Message::text("sales", "x").dedupe_key("k")).unwrap();
    by_force(
        &till,
        "INSERT INTO outbox (channel, payload, dedupe_key, message_id, headers, recipient, attempts, claims, next_attempt_at, created_at, status)
         VALUES (CAST(x'fffe' AS TEXT), CAST(x'ff00' AS TEXT), CAST(x'80' AS TEXT), x'00', '{not json', x'ff', 9223372036854775807, -1, 9223372036854775807, -9223372036854775808, 'pending'),
                ('sales', 3.5, 'null', 'm', 17, 1.5, 'many', 1e300, 'soon', 'once', 'pending'),
                ('sales', 12, 'strange', 'm', NULL, NULL, 0, 0, 0, 0, 'teleported'),
                ('sales', 'x', 'old', 'm', NULL, NULL, 9223372036854775807, 0, 1, 1, 'sending'),
                ('a:b', 'x', 'colon', 'm', NULL, NULL, 0, 0, 0, 0, 'dead')",
    );
    let all = outbox.list(&Filter::new()).unwrap();
    assert_eq!(all.len(), 6);
    assert_eq!(all[1].channel, "\u{fffd}\u{fffd}");
    assert_eq!(all[1].payload, [0xff, 0]);
    assert!(all[2].payload.is_empty());
    assert_eq!(all[3].status, Status::Unknown);
    assert!(outbox.find("k", None).is_ok());
    assert!(outbox.find("m", None).is_ok());
    let stats = outbox.stats().unwrap();
    assert_eq!(stats.total.pending, 3, "{stats:?}");
    assert_eq!(stats.total.max_attempts, u32::MAX);
    assert_eq!(outbox.unsent().unwrap(), 4);
    let _ = stats.to_string();
    for status in Status::ALL {
        outbox.list(&Filter::new().status(status)).unwrap();
    }
    // And the key of a row with odd content can still be compared with.
    let again = Message::text("sales", "x").dedupe_key("null");
    assert_eq!(put(&outbox, &again).unwrap().id(), 3);
}

#[test]
fn a_clock_from_the_future_gives_no_negative_age() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &Message::text("sales", "x")).unwrap();
    set(&till.sql(), 1, "created_at = 9000000000000");
    let stats = outbox.stats().unwrap();
    assert_eq!(stats.total.oldest_unsent_ms(stats.now), Some(0));
}

#[test]
fn an_outbox_opened_for_a_look_reads_and_writes_nothing() {
    let till = Till::new();
    put(&till.open(), &Message::text("sales", "x").dedupe_key("S-1")).unwrap();
    let look = Outbox::open_to_read(&till.path).unwrap();
    assert_eq!(look.unsent().unwrap(), 1);
    assert!(
        !look.reads_unlocked(),
        "it may be written, so locks are kept"
    );
    let read_only = |error: &Error| matches!(error, Error::ReadOnly(_));
    let anna = look.operator("anna@till-7");
    assert!(anna.cancel(1).is_err_and(|it| read_only(&it)));
    assert!(anna.pause("sales").is_err_and(|it| read_only(&it)));
    let work = |_: &sqlite_outbox::rusqlite::Transaction<'_>| Ok::<_, Error>(());
    assert!(look.transaction(work).is_err_and(|it| read_only(&it)));
    let receiver = |_: &Delivery| Ok(Outcome::delivered());
    assert!(look.drain(&receiver).is_err_and(|it| read_only(&it)));
    assert!(look.pump(receiver).start().is_err_and(|it| read_only(&it)));
    let conn = look.connection().unwrap();
    assert!(conn.execute("DELETE FROM outbox", []).is_err());
    assert_eq!(till.open().unsent().unwrap(), 1);
    assert!(matches!(
        Outbox::open_to_read(till.path.with_extension("missing")),
        Err(Error::Missing(_))
    ));
}
