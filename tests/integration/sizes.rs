//! How much a drain does at once: rows in a transaction, bytes in memory.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::rusqlite::hooks::Action;
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{Delivery, Message, Outbox, Outcome, Settings};

use crate::exact::warm;
use crate::fixture::{Till, put};

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
    _till: Till,
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
            _till: till,
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
