//! Simulated weeks on a manual clock: whose fault was it.
//!
//! Goal: no outage kills a message, whatever its kind and length, and a message that is really at
//! fault still dies. Method: the production drain, stepped inline against a receiver whose answers
//! follow a script of time and dice. Every failure prints its seed. `OUTBOX_LONG=1` runs the long
//! form: more seeds, longer outages, 100,000 messages in a month.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{
    ChannelState, Counts, Delivery, Dispatcher, Event, Failure, Message, Outbox, Outcome, Settings,
};
use tempfile::TempDir;

use crate::fixture::{self, Rng, long};

const START: i64 = 1_800_000_000_000;
const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// A receiver that answers by time and message.
struct World<F> {
    clock: ManualClock,
    answer: Mutex<F>,
}

impl<F: FnMut(i64, &Delivery) -> Outcome + Send> Dispatcher for World<F> {
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        let mut answer = self.answer.lock().unwrap();
        Ok(answer(self.clock.now(), delivery))
    }
}

/// One till with its own file and clock.
struct Till {
    _dir: TempDir,
    clock: ManualClock,
    outbox: Outbox,
    drain: Inline,
    sold: usize,
    charges: usize,
    delivered_at: Vec<i64>,
}

fn settings() -> Settings {
    // Nobody else writes here: a simulated day need not look 25 ms by 25 ms.
    Settings::default().poll(Duration::from_secs(60))
}

impl Till {
    fn new() -> Self {
        let dir = fixture::folder_in_memory();
        let clock = ManualClock::at(START);
        let outbox = Outbox::options()
            .clock(clock.shared())
            .open(dir.path().join("till.db"))
            .unwrap();
        let drain = Inline::new(&outbox, settings()).unwrap();
        Self {
            _dir: dir,
            clock,
            outbox,
            drain,
            sold: 0,
            charges: 0,
            delivered_at: Vec::new(),
        }
    }

    fn sell(&mut self, count: usize) {
        let sold = self.sold;
        let message =
            |i: usize| Message::text("sales", format!("sale {i}")).dedupe_key(format!("S-{i}"));
        self.outbox
            .transaction(|tx| {
                for i in sold..sold + count {
                    self.outbox.enqueue(tx, &message(i))?;
                }
                anyhow::Ok(())
            })
            .unwrap();
        self.sold += count;
    }

    /// Lets `span` milliseconds pass with a sale every `every` milliseconds.
    fn live(&mut self, span: i64, every: i64, world: &dyn Dispatcher) {
        let end = self.clock.now() + span;
        let mut next_sale = self.clock.now() + every;
        while self.clock.now() < end {
            let step = self.drain.step(world).unwrap();
            for event in &step.events {
                match event {
                    Event::Retried { charged: true, .. } => self.charges += 1,
                    Event::Delivered { .. } => self.delivered_at.push(self.clock.now()),
                    _ => {}
                }
            }
            if step.dispatched > 0 || step.wait.is_zero() {
                continue;
            }
            let now = self.clock.now();
            let wait = step
                .wait
                .min(Duration::from_millis((next_sale - now).unsigned_abs()))
                .min(Duration::from_millis((end - now).unsigned_abs()));
            self.clock.advance(wait.max(Duration::from_millis(1)));
            if self.clock.now() >= next_sale {
                self.sell(1);
                next_sale += every;
            }
        }
    }

    fn quiet(&mut self, span: i64, world: &dyn Dispatcher) {
        self.live(span, i64::MAX / 4, world);
    }

    fn world<F: FnMut(i64, &Delivery) -> Outcome + Send>(&self, answer: F) -> World<F> {
        World {
            clock: self.clock.clone(),
            answer: Mutex::new(answer),
        }
    }

    fn counts(&self) -> Counts {
        self.outbox.stats().unwrap().total
    }

    /// As after a crash or a reboot: all memory is lost.
    fn restart(&mut self) {
        self.drain = Inline::new(&self.outbox, settings()).unwrap();
    }
}

fn delivered(_: i64, _: &Delivery) -> Outcome {
    Outcome::delivered()
}

fn status(code: u16) -> Failure {
    Failure::new(format!("http_{code}"), format!("status {code}")).status(code)
}

type Trouble = (&'static str, fn() -> Outcome);

/// Every way a destination can be down.
fn outages() -> Vec<Trouble> {
    vec![
        ("refused", || {
            Outcome::Unreachable(Failure::new("refused", "refused"))
        }),
        ("dns", || {
            Outcome::Unreachable(Failure::new("dns", "no such host"))
        }),
        ("tls", || {
            Outcome::Unreachable(Failure::new("tls", "unknown issuer"))
        }),
        ("timeout", || {
            Outcome::Unreachable(Failure::new("timeout", "60 s"))
        }),
        ("500", || Outcome::Retry(status(500))),
        ("502", || Outcome::Retry(status(502))),
        ("503", || {
            Outcome::Retry(status(503).after(Duration::from_secs(120)))
        }),
        ("429", || {
            Outcome::Retry(status(429).after(Duration::from_secs(30)))
        }),
        ("401", || Outcome::unauthorised("expired")),
        ("403", || Outcome::Retry(status(403))),
        ("404", || Outcome::Retry(status(404))),
        ("portal", || {
            Outcome::Blocked(Failure::new("portal", "log in to Wi-Fi"))
        }),
    ]
}

#[test]
fn no_outage_of_any_kind_kills_a_message_and_each_charges_at_most_one() {
    for (kind, answer) in outages() {
        let mut till = Till::new();
        let up = till.world(delivered);
        till.live(HOUR, 5 * MINUTE, &up);
        let down = till.world(move |_, _| answer());
        till.live(if long() { 21 * DAY } else { 2 * DAY }, HOUR, &down);
        let counts = till.counts();
        assert_eq!(counts.dead, 0, "{kind}: a message died");
        assert!(till.charges <= 1, "{kind}: {} charges", till.charges);
        assert!(counts.max_attempts <= 1, "{kind}");
        let back = till.clock.now();
        till.delivered_at.clear();
        till.quiet(5 * MINUTE, &up);
        let first = till.delivered_at.first().copied().unwrap_or(i64::MAX);
        assert!(
            first - back <= 121 * SECOND,
            "{kind}: flows after {} ms",
            first - back
        );
        let counts = till.counts();
        assert_eq!((counts.unsent(), counts.dead), (0, 0), "{kind}: {counts:?}");
        assert_eq!(counts.sent, till.sold as u64);
    }
}

#[test]
fn a_brown_out_of_any_depth_kills_no_good_message() {
    for seed in 0..if long() { 8 } else { 1 } {
        for failing in [50, 70, 90] {
            let mut till = Till::new();
            let mut rng = Rng(seed);
            let brown = till.world(move |_, _| match rng.percent(failing) {
                true => Outcome::Retry(status(503)),
                false => Outcome::delivered(),
            });
            till.live(12 * HOUR, if long() { 15 } else { 60 } * SECOND, &brown);
            let counts = till.counts();
            assert_eq!(
                counts.dead, 0,
                "seed {seed}, {failing} % failing: {counts:?}"
            );
            let up = till.world(delivered);
            till.quiet(DAY, &up);
            assert_eq!(till.counts().unsent(), 0, "seed {seed}, {failing} %");
        }
    }
}

#[test]
fn a_poison_message_among_good_ones_dies_of_its_own_budget_and_hinders_nobody() {
    let poisons: [Trouble; 2] = [
        ("500", || Outcome::Retry(status(500))),
        ("timeout", || {
            Outcome::Unreachable(Failure::new("timeout", "60 s"))
        }),
    ];
    for (kind, poison) in poisons {
        let mut till = Till::new();
        let world = till.world(move |_, delivery| match delivery.dedupe_key.as_str() {
            "S-5" => poison(),
            _ => Outcome::delivered(),
        });
        till.live(6 * DAY, if long() { 1 } else { 10 } * MINUTE, &world);
        till.quiet(MINUTE, &world);
        let counts = till.counts();
        assert_eq!((counts.dead, counts.unsent()), (1, 0), "{kind}: {counts:?}");
        let dead = till.outbox.get_by_key("sales", "S-5").unwrap().unwrap();
        assert_eq!(dead.attempts, 20, "{kind}");
        assert!(dead.settled_at.unwrap() - START > DAY, "{kind}: too soon");
    }
}

#[test]
fn a_rejected_message_dies_at_once_and_hinders_nobody() {
    let mut till = Till::new();
    till.sell(10);
    let world = till.world(|_, delivery| match delivery.dedupe_key.as_str() {
        "S-5" => Outcome::Rejected(status(400)),
        _ => Outcome::delivered(),
    });
    till.quiet(SECOND, &world);
    let counts = till.counts();
    assert_eq!((counts.dead, counts.sent), (1, 9));
}

/// An earlier plan sent retries first: the message that failed last was due again at every probe,
/// and one poison message alone in its channel stopped all that came after it.
#[test]
fn a_poison_message_alone_in_its_channel_does_not_stop_later_good_ones() {
    let mut till = Till::new();
    till.sell(1);
    let world = till.world(|_, delivery| match delivery.dedupe_key.as_str() {
        "S-0" => Outcome::Retry(status(500)),
        _ => Outcome::delivered(),
    });
    till.quiet(DAY, &world);
    assert_eq!(till.counts().unsent(), 1);
    till.live(DAY, 30 * SECOND, &world);
    till.quiet(2 * MINUTE, &world);
    let counts = till.counts();
    assert_eq!(counts.unsent() + counts.dead, 1, "{counts:?}");
}

#[test]
fn a_burst_whose_first_messages_are_poison_is_delivered_all_the_same() {
    let mut till = Till::new();
    till.sell(500);
    let world = till.world(|_, delivery| match delivery.dedupe_key.as_str() {
        "S-0" | "S-1" | "S-2" | "S-3" => Outcome::Retry(status(500)),
        _ => Outcome::delivered(),
    });
    till.quiet(HOUR, &world);
    assert_eq!(till.counts().sent, 496);
}

#[test]
fn a_server_that_rejects_everything_kills_ten_messages_not_the_day() {
    let mut till = Till::new();
    let broken = till.world(|_, _| Outcome::Rejected(status(400)));
    till.live(DAY, MINUTE, &broken);
    let counts = till.counts();
    assert_eq!(counts.dead, 10);
    let stats = till.outbox.stats().unwrap();
    assert_eq!(stats.channels[0].state, ChannelState::Rejecting);
    let mended = till.world(delivered);
    till.quiet(5 * MINUTE, &mended);
    let counts = till.counts();
    assert_eq!((counts.dead, counts.unsent()), (10, 0), "{counts:?}");
}

/// With the brake on, the same rejected row used to be probed for ever.
#[test]
fn a_thousand_bad_messages_do_not_keep_good_ones_behind_them_waiting() {
    let mut till = Till::new();
    till.sell(1_000);
    let bad: HashSet<String> = (0..1_000).map(|i| format!("S-{i}")).collect();
    let world = till.world(
        move |_, delivery| match bad.contains(&delivery.dedupe_key) {
            true => Outcome::Rejected(status(422)),
            false => Outcome::delivered(),
        },
    );
    till.quiet(HOUR, &world);
    till.sell(100);
    till.quiet(2 * DAY, &world);
    assert_eq!(till.counts().sent, 100, "{:?}", till.counts());
}

#[test]
fn one_shot_drains_and_restarts_judge_as_one_long_life_does() {
    let mut till = Till::new();
    let up = till.world(delivered);
    till.live(HOUR, MINUTE, &up);
    let down = till.world(|_, _| Outcome::Unreachable(Failure::new("refused", "refused")));
    for _ in 0..500 {
        till.sell(1);
        till.quiet(20 * SECOND, &down);
        till.restart();
        till.clock.advance(Duration::from_secs(600));
    }
    let counts = till.counts();
    assert_eq!(counts.dead, 0);
    assert!(till.charges <= 1, "{} charges", till.charges);
    till.quiet(5 * MINUTE, &up);
    assert_eq!(till.counts().unsent(), 0);
}

/// Others lost the first hours of a long outage, or removed what had been tried three times.
#[test]
fn after_four_days_offline_nothing_is_missing_and_nothing_arrives_twice() {
    let mut till = Till::new();
    let sales = if long() { 20_000 } else { 3_000 };
    let down = till.world(|_, _| Outcome::Unreachable(Failure::new("refused", "refused")));
    till.live(4 * DAY, 4 * DAY / sales, &down);
    let arrived = Mutex::new(Vec::new());
    let up = till.world(|_, delivery: &Delivery| {
        arrived.lock().unwrap().push(delivery.id);
        Outcome::delivered()
    });
    till.quiet(10 * MINUTE, &up);
    let counts = till.counts();
    assert_eq!((counts.unsent(), counts.dead), (0, 0), "{counts:?}");
    let arrived = arrived.into_inner().unwrap();
    assert_eq!(arrived.len(), till.sold);
    assert_eq!(arrived.iter().collect::<HashSet<_>>().len(), till.sold);
}

/// A month of a shop with everything that can happen to its network.
#[test]
fn a_month_of_random_outages_delivers_everything_that_was_not_refused_on_its_own_merits() {
    let (seeds, sales) = if long() { (5, 100_000) } else { (1, 10_000) };
    for seed in 0..seeds {
        let started = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let mut till = Till::new();
        let mut dice = Rng(seed);
        let mut trouble: Option<fn() -> Outcome> = None;
        let mut until = START;
        let kinds = outages();
        let world = till.world(move |now, delivery| {
            while now >= until {
                let down = dice.percent(40);
                let longest = if dice.percent(10) { 2 * DAY } else { 3 * HOUR };
                let span = dice.below(longest);
                trouble = down.then(|| kinds[dice.below(kinds.len() as i64) as usize].1);
                until += span + 1;
            }
            if delivery.dedupe_key.ends_with("777") {
                return Outcome::Rejected(status(422));
            }
            match trouble {
                Some(answer) => answer(),
                None if dice.percent(2) => Outcome::Retry(status(500)),
                None => Outcome::delivered(),
            }
        });
        till.live(30 * DAY, 30 * DAY / sales, &world);
        let calm =
            till.world(
                |_, delivery: &Delivery| match delivery.dedupe_key.ends_with("777") {
                    true => Outcome::Rejected(status(422)),
                    false => Outcome::delivered(),
                },
            );
        till.quiet(DAY, &calm);
        let bad = (0..till.sold)
            .filter(|i| format!("S-{i}").ends_with("777"))
            .count();
        let counts = till.counts();
        let took = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap() - started;
        println!(
            "seed {seed}: {} sold, {} sent, {} dead, {} charges, {took:.1?}",
            till.sold, counts.sent, counts.dead, till.charges
        );
        assert_eq!(counts.unsent(), 0, "seed {seed}: {counts:?}");
        assert_eq!(counts.dead as usize, bad, "seed {seed}: {counts:?}");
        assert_eq!(counts.sent as usize + bad, till.sold, "seed {seed}");
    }
}
