//! A till's life by dice: what applications, people, networks and clocks do to it.

use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Enqueued, Error, Message, OnDuplicate, Policy, Selection, Settings};

use super::checker::Rules;
use super::history::{Enqueue, Envelope, Heard, What, Who};
use super::till::{START, Till};
use super::world::POISON;
use crate::fixture::Rng;

const SECOND: i64 = 1_000;
pub(super) const CHANNELS: [&str; 3] = ["sales", "orders", "stock"];
/// Moves of one life before everything becomes calm.
const MOVES: usize = 110;

/// A life under way.
pub(super) struct Life {
    pub(super) till: Till,
    wal: bool,
    pub(super) dice: Rng,
    channels: usize,
    lanes: i64,
    pub(super) sold: usize,
    keys: i64,
    /// Sales still to come that have more messages than any transaction of a drain may touch.
    rushes: usize,
}

impl Life {
    pub(super) fn new(seed: u64) -> (Self, Rules) {
        let mut dice = Rng(seed);
        let pick = |dice: &mut Rng, of: &[usize]| of[dice.below(of.len() as i64) as usize];
        let rush = dice.percent(4);
        let rules = Rules {
            workers: if rush {
                16
            } else {
                pick(&mut dice, &[1, 2, 4])
            },
            prefetch: if rush {
                32
            } else {
                pick(&mut dice, &[1, 4, 12])
            },
            run_length: pick(&mut dice, &[1, 2, 3, 16]),
            brake: [3, 10][dice.below(2) as usize],
            max_attempts: [2, 3, 20][dice.below(3) as usize],
            min_dead_age: [0, 60, 24 * 3600][dice.below(3) as usize] * SECOND,
            hook: dice.percent(50),
        };
        let policy = Policy::default()
            .run_length(rules.run_length)
            .max_attempts(u32::try_from(rules.max_attempts).unwrap())
            .min_dead_age(Duration::from_millis(rules.min_dead_age.unsigned_abs()))
            .brake(u32::try_from(rules.brake).unwrap());
        let policy = match dice.percent(70) {
            true => policy.backoff(Duration::from_secs(1), Duration::from_secs(60)),
            false => policy,
        };
        let settings = Settings::default()
            .workers(rules.workers)
            .prefetch(rules.prefetch)
            .poll(Duration::from_secs(1 + dice.below(59).unsigned_abs()))
            .default_policy(policy);
        let wal = dice.percent(75);
        let channels = pick(&mut dice, &[1, 1, 2, 3]);
        let lanes = 1 + dice.below(5);
        let till = Till::new(&mut dice, wal, settings, &rules);
        let life = Self {
            till,
            wal,
            dice,
            channels,
            lanes,
            sold: 0,
            keys: 0,
            rushes: if rush { 2 } else { 0 },
        };
        (life, rules)
    }

    /// From the first sale to the day when everything works.
    pub(super) fn live(&mut self) {
        for _ in 0..MOVES {
            self.play();
        }
        self.come_to_rest();
    }

    fn below(&mut self, n: i64) -> i64 {
        self.dice.below(n)
    }

    fn any_process(&mut self) -> usize {
        let count = self.till.processes.len() as i64;
        self.below(count) as usize
    }

    pub(super) fn any_channel(&mut self) -> &'static str {
        let count = self.channels as i64;
        CHANNELS[self.below(count) as usize]
    }

    fn play(&mut self) {
        match self.below(100) {
            0..28 if self.rushes > 0 && self.below(6) == 0 => self.rush(),
            0..28 => self.sell(),
            28..62 => self.work(),
            62..82 => self.pass(),
            82..87 => self.person(),
            87..91 => self.weather(),
            91..93 => self.disturb_the_clock(),
            93..95 => self.crash(),
            95 => {
                let process = self.any_process();
                self.till.stop(process);
            }
            96 if self.below(2) == 0 => {
                let process = self.any_process();
                self.till.wake(process);
            }
            96..99 => self.hang(),
            _ => self.hold_the_file(),
        }
    }

    /// A message and its key, which is sometimes an old one with the same or other content.
    fn any_message(&mut self) -> (Message, Enqueue) {
        let channel = self.any_channel();
        let new = self.keys == 0 || self.below(100) < 92;
        let number = match new {
            true => self.keys,
            false => self.below(self.keys),
        };
        self.keys += i64::from(new);
        let now = self.till.clock.now();
        let kind = POISON[[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2][(number % 15) as usize]];
        let other = !new && self.below(3) == 0;
        let payload = format!("{kind} {channel} {number}{}", if other { "!" } else { "" });
        let key = format!("S-{number}");
        let mut message = Message::text(channel, payload.clone()).dedupe_key(key.clone());
        // All that belongs to a key follows from its number, so that a repetition is the same.
        let trait_of = |n: i64| Rng(number.unsigned_abs()).below(n);
        let (wrapped, envelope) = wrap(message, number);
        message = wrapped;
        let laned = trait_of(3) > 0;
        let lane = laned.then(|| format!("lane {}", trait_of(97) % self.lanes));
        if let Some(lane) = &lane {
            message = message.ordering_key(lane);
        }
        let mut times = [None; 2];
        if new && self.below(12) == 0 {
            let at = now - 60 * SECOND + self.below(600 * SECOND);
            times[0] = Some(at.max(1));
        }
        if new && self.below(14) == 0 {
            let at = now + self.below(900 * SECOND);
            times[1] = Some(at.max(1));
        }
        if let Some(at) = times[0] {
            message = message.available_at(at);
        }
        if let Some(at) = times[1] {
            message = message.expires_at(at);
        }
        if !new && self.below(4) == 0 {
            message = message.on_duplicate(OnDuplicate::Replace);
        }
        let told = Enqueue {
            channel,
            key,
            payload,
            lane,
            id: 0,
            heard: Heard::New,
            times,
            envelope,
        };
        (message, told)
    }

    /// Hundreds of messages at once, of which most will not be sent in time.
    fn rush(&mut self) {
        self.rushes -= 1;
        let count = 250 + self.below(150);
        let mut sale: Vec<_> = (0..count).map(|_| self.any_message()).collect();
        for (message, told) in &mut sale {
            if told.times == [None; 2] && self.dice.percent(80) {
                let at = self.till.clock.now().max(0) + 1 + self.dice.below(5 * SECOND);
                told.times[1] = Some(at);
                *message = message.clone().expires_at(at);
            }
        }
        self.sold += self.transact(&sale, true);
    }

    /// One transaction of the application: committed, rolled back, or ended by a crash before or
    /// after its commit, after which the application repeats it.
    fn sell(&mut self) {
        let count = 1 + self.below(8);
        let sale: Vec<_> = (0..count).map(|_| self.any_message()).collect();
        let end = self.below(100);
        let rolled_back = end < 10;
        let told = self.transact(&sale, !rolled_back);
        // It never learned that it was committed, so the cashier tries again.
        if (10..16).contains(&end) {
            self.transact(&sale, true);
        }
        self.sold += usize::from(!rolled_back) * told;
    }

    fn transact(&mut self, sale: &[(Message, Enqueue)], commit: bool) -> usize {
        let shop = &self.till.shop;
        let mut told = Vec::new();
        let done = shop.transaction(|tx| {
            for (message, told_of) in sale {
                let (heard, id) = match shop.enqueue(tx, message)? {
                    Enqueued::New { id } => (Heard::New, id),
                    Enqueued::Duplicate { id } => (Heard::Same, id),
                    Enqueued::Conflict { id } => (Heard::Other, id),
                    Enqueued::Replaced { id } => (Heard::Replaced, id),
                };
                if heard == Heard::New {
                    let sql = "INSERT INTO sale (message, payload) VALUES (?1, ?2)";
                    tx.execute(sql, (id, &told_of.payload))?;
                }
                told.push(Enqueue {
                    id,
                    heard,
                    ..told_of.clone()
                });
            }
            match commit {
                true => Ok(()),
                false => Err(Error::Refused("the sale is cancelled".into())),
            }
        });
        assert!(done.is_ok() == commit, "{done:?}");
        let count = told.len();
        self.till.read_on(Who::App);
        self.till.note(Who::App, What::Enqueued(told, commit));
        count
    }

    /// Processes take turns at every boundary of a step.
    fn work(&mut self) {
        for _ in 0..=self.below(60) {
            let process = self.any_process();
            if self.till.hangs(process) {
                continue;
            }
            let dice = &mut self.dice;
            match dice.below(10) {
                0..2 => self.till.cycle(process, None, dice),
                2..6 => drop(self.till.begin(process, dice)),
                _ => drop(self.till.end(process, dice)),
            }
        }
    }

    fn pass(&mut self) {
        let most = [20, 400, 3 * SECOND, 40 * SECOND, 400 * SECOND];
        let most = most[self.below(5) as usize];
        let span = 1 + self.below(most);
        self.till.pass(span, &mut self.dice);
    }

    fn weather(&mut self) {
        let channel = self.any_channel();
        let now = self.till.mono();
        let mood = self.till.world.turn(channel, now, &mut self.dice);
        self.till
            .note(Who::World, What::Note(format!("{channel}: {mood}")));
    }

    /// Before its next commit, between `BEGIN` and `COMMIT`, right after the commit, or later.
    fn crash(&mut self) {
        let process = self.any_process();
        match self.below(4) {
            0 => self.till.crash(process, &mut self.dice),
            _ => {
                let fuse = 1 + self.below(12);
                self.till.cycle(process, Some(fuse), &mut self.dice);
            }
        }
    }

    /// One process is not scheduled for a while, holding what it holds.
    fn hang(&mut self) {
        let process = self.any_process();
        let span = [1, 5, 50, 200][self.below(4) as usize] * SECOND;
        self.till.processes[process].hangs_until = self.till.mono() + span;
        let who = Who::Life(self.till.processes[process].life);
        self.till
            .note(who, What::Note(format!("hangs for {span} ms")));
    }

    fn disturb_the_clock(&mut self) {
        let (what, by) = match self.below(12) {
            0 => (
                "set back by",
                -[5, 90, 600, 7200][self.below(4) as usize] * SECOND,
            ),
            1 => (
                "set ahead by",
                [5, 90, 7200, 48 * 3600][self.below(4) as usize] * SECOND,
            ),
            2 => (
                "asleep for",
                [5, 90, 7200, 48 * 3600][self.below(4) as usize] * SECOND,
            ),
            3 if self.till.clock.now() > START / 2 => ("in 1970", 1 - self.till.clock.now()),
            4 | 5 => {
                self.till.pace = [0, 50, 90, 101, 150][self.below(5) as usize];
                let pace = self.till.pace;
                self.till.note(
                    Who::World,
                    What::Note(format!("the clock runs at {pace} percent")),
                );
                return;
            }
            // Whoever finds it wrong sets it right.
            _ => {
                self.till.pace = 100;
                let right = START + self.till.mono();
                ("set right by", (right - self.till.clock.now()).max(0))
            }
        };
        self.till.clock.jump(by);
        self.till.note(
            Who::World,
            What::Note(format!("the clock is {what} {by} ms")),
        );
    }

    /// Someone reads while a drain wants to commit. Only without a write-ahead log are they in
    /// each other's way.
    fn hold_the_file(&mut self) {
        if self.wal {
            return;
        }
        let reader = Connection::open(self.till.shop.path()).unwrap();
        reader
            .execute_batch("BEGIN; SELECT count(*) FROM outbox_meta")
            .unwrap();
        let process = self.any_process();
        self.till.cycle(process, None, &mut self.dice);
        reader.execute_batch("ROLLBACK").unwrap();
    }

    /// Everything works again, and everything goes out.
    fn come_to_rest(&mut self) {
        self.till.begin_calm();
        let right = START + self.till.mono() - self.till.clock.now();
        self.till.clock.jump(right.max(0));
        let revive = self.below(2) == 0;
        for channel in &CHANNELS[..self.channels] {
            let anna = self.till.shop.operator("anna");
            anna.resume(channel).unwrap();
            if revive {
                anna.retry_all(&Selection::new().channel(*channel)).unwrap();
            }
            self.till
                .note(Who::Operator, What::Note(format!("mends {channel}")));
            self.till.read_on(Who::Operator);
        }
        for round in 0..2_000 {
            // While nothing is under way nothing can happen between two looks.
            let span = if round < 40 { 5 } else { 600 } * SECOND;
            match self.till.is_busy() || round < 40 {
                true => self.till.pass(5 * SECOND, &mut self.dice),
                false => self.till.leap(span, &mut self.dice),
            }
            if !self.till.is_busy() && self.is_finished() {
                return;
            }
        }
    }

    /// Whether nothing is unsent but what a dead letter holds back.
    fn is_finished(&self) -> bool {
        let sql = "SELECT NOT EXISTS (SELECT 1 FROM outbox WHERE status IN ('pending', 'sending'))";
        let conn: &Connection = &self.till.sql;
        conn.prepare_cached(sql)
            .unwrap()
            .query_row([], |row| row.get(0))
            .unwrap()
    }
}

/// Every third message has all that can go out with its bytes.
fn wrap(message: Message, number: i64) -> (Message, Envelope) {
    let mut envelope = Envelope {
        event_type: None,
        recipient: None,
        principal: None,
        content_type: "text/plain".into(),
        headers: Vec::new(),
    };
    if number % 3 != 0 {
        return (message.content_type(&envelope.content_type), envelope);
    }
    let name = |what: &str| format!("{what}-{number}");
    envelope.event_type = Some(name("event"));
    envelope.recipient = Some(name("recipient"));
    envelope.principal = Some(name("principal"));
    envelope.content_type = name("application/x");
    envelope.headers = vec![("x-till".into(), name("header"))];
    let message = message
        .event_type(name("event"))
        .recipient(name("recipient"))
        .principal(name("principal"))
        .content_type(name("application/x"))
        .header("x-till", name("header"));
    (message, envelope)
}
