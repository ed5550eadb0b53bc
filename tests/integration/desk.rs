//! A till whose time is set by hand, and a person who looks after it.

use std::time::Duration;

use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{
    Clock, Delivery, Dispatcher, Entry, Event, Failure, Message, Operator, Outbox, Outcome,
    Settings,
};

use crate::fixture::{Till, column, put};

/// A slow machine, or disk: whoever looks at the clock finds that so much time has passed.
#[derive(Debug)]
pub(crate) struct Slow(pub(crate) ManualClock, pub(crate) Duration);

impl Clock for Slow {
    fn wall(&self) -> i64 {
        self.0.wall()
    }

    fn monotonic(&self) -> Duration {
        self.0.advance(self.1);
        self.0.monotonic()
    }
}

pub(crate) const START: i64 = 1_800_000_000_000;
pub(crate) const SECOND: i64 = 1_000;
pub(crate) const MINUTE: i64 = 60 * SECOND;
pub(crate) const HOUR: i64 = 60 * MINUTE;
pub(crate) const DAY: i64 = 24 * HOUR;

pub(crate) struct Desk {
    pub(crate) till: Till,
    pub(crate) clock: ManualClock,
    pub(crate) outbox: Outbox,
}

impl Desk {
    pub(crate) fn new() -> Self {
        // Syncs cost nothing in memory, and these are no tests of them.
        let memory = std::path::Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => tempfile::tempdir_in(memory).unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        let path = folder.path().join("till.db");
        let till = Till { folder, path };
        let clock = ManualClock::at(START);
        let outbox = Outbox::options()
            .clock(clock.shared())
            .open(&till.path)
            .unwrap();
        Self {
            till,
            clock,
            outbox,
        }
    }

    pub(crate) fn anna(&self) -> Operator<'_> {
        self.outbox.operator("anna@till-7")
    }

    pub(crate) fn put(&self, message: Message) -> i64 {
        put(&self.outbox, &message).unwrap().id()
    }

    /// Enqueues `count` messages of one ordering key, with payloads 1, 2, 3…
    pub(crate) fn lane(&self, key: &str, count: i64) -> Vec<i64> {
        (1..=count)
            .map(|it| self.put(Message::text("sales", it.to_string()).ordering_key(key)))
            .collect()
    }

    pub(crate) fn get(&self, id: i64) -> Entry {
        self.outbox.get(id).unwrap().unwrap()
    }

    pub(crate) fn sql(&self, script: &str) {
        self.till.sql().execute_batch(script).unwrap();
    }

    /// The stored states, in order.
    pub(crate) fn states(&self) -> Vec<String> {
        let sql = "SELECT status FROM outbox ORDER BY id";
        column(&self.till.sql(), sql)
    }

    pub(crate) fn drain(&self) -> Inline {
        self.drain_with(Settings::default())
    }

    pub(crate) fn drain_with(&self, settings: Settings) -> Inline {
        let settings = settings.poll(Duration::from_secs(60));
        Inline::new(&self.outbox, settings).unwrap()
    }

    /// Drains with a fresh drain, as another process would.
    pub(crate) fn sync(&self, receiver: &dyn Dispatcher) -> Vec<Event> {
        let events = self.drain().until_idle(receiver).unwrap();
        // Back-off of what was given back is over.
        self.pass(10 * SECOND);
        events
    }

    pub(crate) fn pass(&self, span: i64) {
        self.clock
            .advance(Duration::from_millis(span.unsigned_abs()));
    }

    /// Lives on for a while: cycles, and waits as long as each says.
    pub(crate) fn live(&self, drain: &mut Inline, span: i64, receiver: &dyn Dispatcher) {
        let end = self.clock.now() + span;
        while self.clock.now() < end {
            let step = drain.step(receiver).unwrap();
            if step.dispatched == 0 {
                let left = Duration::from_millis((end - self.clock.now()).unsigned_abs());
                self.clock
                    .advance(step.wait.clamp(Duration::from_millis(1), left));
            }
        }
    }

    /// Lives on for long, with a look every half hour.
    pub(crate) fn doze(&self, drain: &mut Inline, span: i64, receiver: &dyn Dispatcher) {
        let end = self.clock.now() + span;
        while self.clock.now() < end {
            drain.until_idle(receiver).unwrap();
            self.pass((end - self.clock.now()).min(HOUR / 2));
        }
        drain.until_idle(receiver).unwrap();
    }

    /// Checks the lane rule over the whole file.
    pub(crate) fn lanes_are_in_order(&self) {
        let bad = "
            SELECT o.id FROM outbox AS o
             WHERE o.ordering_key IS NOT NULL AND o.status = 'pending'
               AND EXISTS (SELECT 1 FROM outbox AS b
                            WHERE b.channel = o.channel AND b.ordering_key = o.ordering_key
                              AND b.id <> o.id
                              AND (b.status = 'sending' OR b.id < o.id AND b.status IN ('pending', 'waiting')
                                   OR b.id < o.id AND b.status = 'dead'
                                      AND NOT EXISTS (SELECT 1 FROM outbox_channel AS c
                                                       WHERE c.channel = o.channel AND c.on_dead = 'skip')))
            UNION ALL
            SELECT o.id FROM outbox AS o
             WHERE o.status = 'waiting'
               AND NOT EXISTS (SELECT 1 FROM outbox AS b
                                WHERE b.channel = o.channel AND b.ordering_key = o.ordering_key
                                  AND (b.status IN ('pending', 'sending')
                                       OR b.status = 'waiting' AND b.id < o.id
                                       OR b.status = 'dead' AND b.id < o.id
                                          AND NOT EXISTS (SELECT 1 FROM outbox_channel AS c
                                                           WHERE c.channel = o.channel AND c.on_dead = 'skip')))";
        let bad = column(&self.till.sql(), bad);
        assert!(bad.is_empty(), "out of order: {bad:?}, {:?}", self.states());
    }
}

pub(crate) fn status(code: u16) -> Failure {
    Failure::new(format!("http_{code}"), format!("status {code}")).status(code)
}

pub(crate) fn up(_: &Delivery) -> anyhow::Result<Outcome> {
    Ok(Outcome::delivered())
}

pub(crate) fn down(_: &Delivery) -> anyhow::Result<Outcome> {
    Ok(Outcome::Unreachable(Failure::new(
        "refused",
        "erp.example refuses the connection",
    )))
}

/// Rejects messages with this payload and takes the others.
pub(crate) fn rejects(payload: &'static str) -> impl Fn(&Delivery) -> anyhow::Result<Outcome> {
    move |delivery| {
        Ok(match delivery.payload == payload.as_bytes() {
            true => Outcome::Rejected(status(422)),
            false => Outcome::delivered(),
        })
    }
}
