//! How much a drain does at once: rows in a transaction, bytes in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::rusqlite::hooks::Action;
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{Delivery, Message, Outbox, Outcome, Settings};

use crate::exact::warm;
use crate::fixture::{Till, one, put};

const NOW: i64 = 1_800_000_000_000;

fn up(_: &Delivery) -> anyhow::Result<Outcome> {
    Ok(Outcome::delivered())
}

/// Messages that changed in the transaction under way, and how many did in each that was committed.
#[derive(Debug, Default)]
struct Commits {
    now: BTreeSet<i64>,
    sizes: Vec<usize>,
}

struct Watched {
    till: Till,
    clock: ManualClock,
    outbox: Outbox,
    commits: Arc<Mutex<Commits>>,
}

impl Watched {
    fn new() -> Self {
        let till = Till::new();
        let clock = ManualClock::at(NOW);
        let commits = Arc::<Mutex<Commits>>::default();
        let watched = Arc::clone(&commits);
        let options = Outbox::options()
            .clock(clock.shared())
            .max_payload(2 * 1024 * 1024)
            .on_connect(move |conn: &Connection| {
                let (changing, committing) = (Arc::clone(&watched), Arc::clone(&watched));
                conn.update_hook(Some(move |_: Action, _: &str, table: &str, id: i64| {
                    if table == "outbox" {
                        changing.lock().unwrap().now.insert(id);
                    }
                }))?;
                conn.commit_hook(Some(move || {
                    let mut commits = committing.lock().unwrap();
                    let size = std::mem::take(&mut commits.now).len();
                    commits.sizes.push(size);
                    false
                }))
            });
        let outbox = options.open(&till.path).unwrap();
        Self {
            till,
            clock,
            outbox,
            commits,
        }
    }

    fn fill(&self, messages: usize, message: &Message) {
        let messages = vec![message.clone(); messages];
        let outbox = &self.outbox;
        let answers = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
        assert!(answers.unwrap().iter().all(Result::is_ok));
        self.commits.lock().unwrap().sizes.clear();
    }

    /// The largest transaction since the last question.
    fn largest(&self) -> usize {
        let sizes = std::mem::take(&mut self.commits.lock().unwrap().sizes);
        sizes.into_iter().max().unwrap_or_default()
    }
}

/// More would hold the write lock for as long as the application waits for it.
#[test]
fn a_transaction_of_a_drain_settles_and_claims_sixty_four_messages_at_most() {
    for (share, rows) in [(0.2, 64), (1.0, 256)] {
        let watched = Watched::new();
        let settings = Settings::default().workers(64).lock_share(share);
        let mut drain = Inline::new(&watched.outbox, settings).unwrap();
        warm(&watched.outbox, &mut drain);
        // The pace of a channel grows with what it has delivered.
        watched.fill(1_500, &Message::text("sales", "x"));
        drain.until_idle(&up).unwrap();
        watched.fill(1_500, &Message::text("sales", "x"));
        let mut claimed = 0;
        while claimed < 1_024 {
            let more = drain.cycle(&up).unwrap().dispatched;
            assert!((1..=rows).contains(&more), "{more} claimed");
            claimed += more;
        }
        assert_eq!(watched.largest(), rows, "claimed");
        // All of them are sent, and come back together.
        drain.step(&up).unwrap();
        drain.until_idle(&up).unwrap();
        let most = watched.largest();
        assert!(
            (rows..=2 * rows).contains(&most),
            "{most} settled or claimed"
        );
        assert_eq!(watched.outbox.unsent().unwrap(), 0);
    }
}

/// 64 whose time ended first, and as many as stand in the way of what it claims.
#[test]
fn a_transaction_of_a_drain_expires_twice_sixty_four_messages_at_most() {
    let watched = Watched::new();
    let overdue = Message::text("sales", "x").ttl(Duration::from_secs(60));
    watched.fill(500, &overdue);
    let mut drain = Inline::new(&watched.outbox, Settings::default()).unwrap();
    watched.clock.advance(Duration::from_secs(61));
    while watched.outbox.unsent().unwrap() > 0 {
        drain.until_idle(&up).unwrap();
        watched.clock.advance(Duration::from_millis(100));
    }
    assert_eq!(watched.outbox.stats().unwrap().total.expired, 500);
    assert_eq!(watched.largest(), 128);
}

#[test]
fn sixteen_megabytes_of_payloads_are_claimed_ahead_and_one_message_for_each_channel() {
    let watched = Watched::new();
    let outbox = &watched.outbox;
    let mut drain = Inline::new(outbox, Settings::default().workers(64)).unwrap();
    warm(outbox, &mut drain);
    let large = |channel: &str| Message::bytes(channel, vec![b'x'; 1024 * 1024]);
    watched.fill(40, &large("sales"));
    let claimed = |drain: &mut Inline| {
        for _ in 0..5 {
            watched.clock.advance(Duration::from_millis(200));
            drain.cycle(&up).unwrap();
        }
        outbox.stats().unwrap().total.sending
    };
    assert_eq!(claimed(&mut drain), 16);
    for channel in ["invoices", "stock", "tills"] {
        put(outbox, &large(channel)).unwrap();
        put(outbox, &large(channel)).unwrap();
    }
    assert_eq!(claimed(&mut drain), 16 + 3);
    // What has gone makes room.
    for _ in 0..4 {
        let call = drain.begin().unwrap();
        drain.end(call, Ok(Outcome::delivered()));
    }
    let sending = claimed(&mut drain);
    assert!((15..=19).contains(&sending), "{sending} at once");
    drain.until_idle(&up).unwrap();
    assert_eq!(outbox.unsent().unwrap(), 0);
}

/// Channels in trouble that are due for a probe, each with one message.
fn troubled(watched: &Watched, channels: usize, bytes: usize) {
    let fill = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                INSERT INTO outbox (channel, payload) SELECT printf('shop %05d', i), zeroblob(?2) FROM n";
    let hold = "INSERT INTO outbox_channel (channel, state, since, until, failures)
                SELECT channel, 'offline', ?1 - 100000, ?1 - 1000, 5 FROM outbox";
    let conn = watched.till.sql();
    conn.execute(fill, [channels as i64, bytes as i64]).unwrap();
    conn.execute(hold, [NOW]).unwrap();
}

fn sending(watched: &Watched, channels: &str) -> i64 {
    let sql = "SELECT count(*) FROM outbox WHERE status = 'sending' AND channel LIKE ?1";
    let conn = watched.till.sql();
    conn.query_row(sql, [channels], |row| row.get(0)).unwrap()
}

/// Each had a message beyond all bounds: a night without network, and a thousand receivers that
/// hang in the morning, were as many claims and requests.
#[test]
fn probes_take_their_messages_out_of_the_same_room_and_leave_some_to_others() {
    let watched = Watched::new();
    troubled(&watched, 300, 1);
    let mut drain = Inline::new(&watched.outbox, Settings::default()).unwrap();
    let mut calls = Vec::new();
    for round in 0..20 {
        drain.cycle(&up).unwrap();
        calls.extend(std::iter::from_fn(|| drain.begin()));
        let all = calls.len();
        match round {
            // One for each of 32 channels, and for half of the workers.
            0..5 => assert_eq!(all, 34, "probes at once"),
            // A hint of a person lets others go beside those that have taken long.
            _ => assert!((35..=64 + 32).contains(&all), "{all} at once"),
        }
        if round >= 4 {
            watched.clock.advance(Duration::from_secs(3));
            drain.wake();
        }
    }
    assert_eq!(calls.len(), 64 + 32);
    // The last hint comes to all channels.
    for _ in 0..10 {
        drain.cycle(&up).unwrap();
    }
    let looks = watched.commits.lock().unwrap().sizes.len();
    for _ in 0..20 {
        drain.cycle(&up).unwrap();
    }
    let more = watched.commits.lock().unwrap().sizes.len() - looks;
    assert_eq!(more, 0, "transactions without room");
}

#[test]
fn probes_hold_no_healthy_channel_up() {
    let watched = Watched::new();
    troubled(&watched, 300, 1);
    let mut drain = Inline::new(&watched.outbox, Settings::default()).unwrap();
    drain.cycle(&up).unwrap();
    let hanging: Vec<_> = std::iter::from_fn(|| drain.begin()).collect();
    watched.fill(500, &Message::text("sales", "x"));
    for _ in 0..1_000 {
        watched.clock.advance(Duration::from_millis(10));
        drain.cycle(&up).unwrap();
        while let Some(call) = drain.begin() {
            drain.end(call, Ok(Outcome::delivered()));
        }
    }
    assert_eq!(hanging.len(), 34);
    assert_eq!(watched.outbox.unsent().unwrap(), 300);
}

#[test]
fn sixteen_megabytes_bound_probes_too() {
    let watched = Watched::new();
    troubled(&watched, 60, 1024 * 1024);
    let settings = Settings::default().workers(64);
    let mut drain = Inline::new(&watched.outbox, settings).unwrap();
    for _ in 0..5 {
        drain.cycle(&up).unwrap();
    }
    assert_eq!(sending(&watched, "shop%"), 16 + 32);
}

/// As many as fit into whole looks, so that whoever is passed over is passed over each time.
#[test]
fn each_of_many_channels_in_trouble_is_probed_in_its_turn() {
    let watched = Watched::new();
    let channels = 1_024;
    troubled(&watched, channels, 1);
    let mut drain = Inline::new(&watched.outbox, Settings::default()).unwrap();
    let mut tries = BTreeMap::<String, usize>::new();
    while tries.len() < channels {
        for _ in 0..3 {
            drain.cycle(&up).unwrap();
        }
        let calls: Vec<_> = std::iter::from_fn(|| drain.begin()).collect();
        assert!(!calls.is_empty(), "{} were tried", tries.len());
        watched.clock.advance(Duration::from_secs(10));
        for call in calls {
            let channel = call.delivery.channel.clone();
            *tries.entry(channel).or_default() += 1;
            drain.end(call, Ok(Outcome::unreachable("no answer")));
        }
        assert!(tries.values().all(|it| *it <= 2), "{tries:?}");
    }
}

/// A thousand claims of messages that are sent by none, in lanes or not, with a pause between the
/// transactions that claim.
fn thousand_claims(watched: &Watched, lanes: bool, pause: Duration) -> Inline {
    let settings = Settings::default().workers(64);
    let mut drain = Inline::new(&watched.outbox, settings).unwrap();
    warm(&watched.outbox, &mut drain);
    watched.fill(1_500, &Message::text("sales", "x"));
    drain.until_idle(&up).unwrap();
    for number in 0..1_024 {
        let message = Message::text("sales", "x");
        put(
            &watched.outbox,
            &match lanes {
                true => message.ordering_key(format!("lane {}", number % 64)),
                false => message,
            },
        )
        .unwrap();
    }
    while sending(watched, "sales") < 1_024 {
        watched.clock.advance(pause);
        drain.cycle(&up).unwrap();
    }
    watched.largest();
    drain
}

#[test]
fn a_transaction_of_a_drain_renews_sixty_four_claims_at_most_and_those_that_end_first() {
    for lanes in [false, true] {
        let watched = Watched::new();
        let mut drain = thousand_claims(&watched, lanes, Duration::from_millis(50));
        watched.clock.advance(Duration::from_secs(16));
        let conn = watched.till.sql();
        let first = "SELECT min(next_attempt_at) FROM outbox WHERE status = 'sending'";
        let end = watched.clock.now() + 30_000;
        let mut before: i64 = one(&conn, first).parse().unwrap();
        for _ in 0..16 {
            assert!(before < end);
            drain.cycle(&up).unwrap();
            let after = one(&conn, first).parse().unwrap();
            assert!(after > before, "those that end first are renewed first");
            before = after;
        }
        assert_eq!(before, end);
        assert_eq!(watched.commits.lock().unwrap().sizes, [64; 16]);
    }
}

/// With many claims and short leases it claimed on while others took over what it had not renewed.
#[test]
fn who_is_behind_with_its_renewals_claims_no_more() {
    let watched = Watched::new();
    let mut drain = thousand_claims(&watched, false, Duration::ZERO);
    watched.clock.advance(Duration::from_secs(16));
    put(&watched.outbox, &Message::text("stock", "x")).unwrap();
    for _ in 0..15 {
        assert_eq!(drain.cycle(&up).unwrap().dispatched, 0);
    }
    assert_eq!(drain.cycle(&up).unwrap().dispatched, 1);
}

#[test]
fn a_transaction_of_a_drain_makes_sixty_four_messages_due_at_most() {
    for channels in [1, 100] {
        let watched = Watched::new();
        let conn = watched.till.sql();
        let fill = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2999)
                    INSERT INTO outbox (channel, payload, next_attempt_at)
                    SELECT 'shop ' || i % ?1, 'x', ?2 + i FROM n";
        conn.execute(fill, [channels, NOW + 3_600_000]).unwrap();
        let pause = "INSERT INTO outbox_channel (channel, paused_at)
                     SELECT DISTINCT channel, 1 FROM outbox";
        conn.execute(pause, []).unwrap();
        let mut drain = Inline::new(&watched.outbox, Settings::default()).unwrap();
        drain.until_idle(&up).unwrap();
        watched.clock.jump(-600_000);
        for _ in 0..200 {
            drain.cycle(&up).unwrap();
        }
        let later = "SELECT count(*) FROM outbox WHERE next_attempt_at > 1800000000000";
        assert_eq!(one(&conn, later), "0");
        assert_eq!(watched.largest(), 64);
    }
}

/// Each of a run's claims counted as one, and took the whole run with it.
#[test]
fn a_transaction_of_a_drain_takes_back_sixty_four_claims_and_a_run_at_most() {
    let watched = Watched::new();
    // All end at the same moment, so what is found first is of many runs.
    drop(thousand_claims(&watched, true, Duration::ZERO));
    watched.clock.advance(Duration::from_secs(60));
    let settings = Settings::default().prefetch(1);
    let mut drain = Inline::new(&watched.outbox, settings).unwrap();
    drain.cycle(&up).unwrap();
    watched.clock.advance(Duration::from_millis(2_100));
    for _ in 0..100 {
        drain.cycle(&up).unwrap();
    }
    let left = sending(&watched, "sales");
    assert!(left <= 4, "{left} are claimed still");
    let most = watched.largest();
    assert!((16..=64 + 16 + 4).contains(&most), "{most} taken back");
}

/// Else a thousand dead letters that are brought back would keep today's sales waiting.
#[test]
fn what_is_due_again_leaves_half_of_the_room_to_what_is_new() {
    let watched = Watched::new();
    let mut drain = Inline::new(&watched.outbox, Settings::default()).unwrap();
    warm(&watched.outbox, &mut drain);
    watched.fill(100, &Message::text("sales", "tried"));
    let tried = "UPDATE outbox SET next_attempt_at = 1 WHERE status = 'pending'";
    watched.till.sql().execute(tried, []).unwrap();
    watched.fill(100, &Message::text("sales", "new"));
    drain.cycle(&up).unwrap();
    let claimed = |payload: &str| {
        let sql = "SELECT count(*) FROM outbox WHERE status = 'sending' AND payload = ";
        one(&watched.till.sql(), &format!("{sql}'{payload}'"))
    };
    assert_eq!(
        (claimed("tried"), claimed("new")),
        ("32".into(), "32".into())
    );
}
