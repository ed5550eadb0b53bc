//! The moves: what applications, drains, people and clocks do, each by its dice.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use sqlite_outbox::rusqlite::{Connection, Transaction, TransactionBehavior};
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{
    Enqueued, Error, Event, Message, OnDead, OnDuplicate, Outbox, Policy, Result, Selection,
    Settings, Status,
};
use tempfile::TempDir;

use super::receiver::{Call, PowerCut, Receiver};
use super::rules::{self, Row, Rows};
use crate::fixture::{self, Rng};

const START: i64 = 1_800_000_000_000;
const SECOND: i64 = 1_000;
const LEASE: i64 = 30 * SECOND;
/// A channel that nobody sends.
pub(super) const UNROUTED: &str = "unrouted";
const CHANNELS: [&str; 3] = ["sales", "orders", UNROUTED];
const LANES: [Option<&str>; 5] = [None, None, Some("a"), Some("b"), Some("c")];
/// Moves that a failure shows.
const TRACE: usize = 60;

/// When a drain claimed what it sends now.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Claimed {
    pub(super) tick: u64,
    pub(super) wall: i64,
    /// How often the clock had been set back.
    set_back: u64,
    /// Which life of its drain it was.
    pub(super) life: u64,
}

/// What happened, so that a test can see that it did.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    pub(super) steps: u64,
    pub(super) sent: u64,
    pub(super) delivered: u64,
    pub(super) replays: u64,
    pub(super) crashes: u64,
    pub(super) taken_back: u64,
    pub(super) died: u64,
    pub(super) expired: u64,
    pub(super) purged: u64,
    pub(super) conflicts: u64,
}

impl Figures {
    pub(super) fn all(self) -> [(&'static str, u64); 10] {
        [
            ("steps", self.steps),
            ("sent", self.sent),
            ("delivered", self.delivered),
            ("replays", self.replays),
            ("crashes", self.crashes),
            ("taken_back", self.taken_back),
            ("died", self.died),
            ("expired", self.expired),
            ("purged", self.purged),
            ("conflicts", self.conflicts),
        ]
    }

    pub(super) fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.sent += other.sent;
        self.delivered += other.delivered;
        self.replays += other.replays;
        self.crashes += other.crashes;
        self.taken_back += other.taken_back;
        self.died += other.died;
        self.expired += other.expired;
        self.purged += other.purged;
        self.conflicts += other.conflicts;
    }
}

/// A committed message, by what it must keep.
#[derive(Debug, Clone)]
struct Known {
    channel: String,
    key: String,
    lane: Option<String>,
    payload: Vec<u8>,
    message_id: String,
}

/// The model, and what the checks need to know.
pub(super) struct State {
    pub(super) rng: Rng,
    pub(super) figures: Figures,
    calm: bool,
    tick: u64,
    set_back: u64,
    known: BTreeMap<i64, Known>,
    highest: i64,
    /// As it was when last checked.
    before: Rows,
    /// A drain stepped since; these were cancelled, put back, or changed since.
    drained: bool,
    cancelled: HashSet<i64>,
    revived: HashSet<i64>,
    /// By OR REPLACE, of which no delete trigger hears.
    replaced: HashSet<i64>,
    latest_wall: i64,
    /// Deliveries and charges by channel.
    pub(super) charges: HashMap<String, (u64, u64)>,
    /// Claims that were sent; messages that arrived, were delivered, failed; bytes by message id.
    pub(super) claims: HashSet<(i64, i64)>,
    pub(super) arrived: HashSet<String>,
    pub(super) delivered: HashMap<(i64, String), (usize, Claimed)>,
    pub(super) failed: HashSet<i64>,
    pub(super) bytes: HashMap<String, (i64, Vec<u8>)>,
    pub(super) wire: Vec<Call>,
    /// What was sent in the present step of each drain.
    pub(super) run: Vec<(usize, i64, bool)>,
    pub(super) claimed: [Claimed; 2],
    pub(super) lives: [u64; 2],
    /// When a person did something last, in ticks.
    pub(super) put_back: HashMap<i64, u64>,
    pub(super) touched: HashMap<i64, u64>,
    pub(super) paused: HashMap<String, u64>,
    pub(super) held: HashMap<String, u64>,
    trace: VecDeque<String>,
}

impl State {
    pub(super) fn note(&mut self, what: String) {
        if self.trace.len() == TRACE {
            self.trace.pop_front();
        }
        self.trace.push_back(what);
    }

    fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    fn touch(&mut self, id: i64) {
        let tick = self.tick();
        self.touched.insert(id, tick);
    }

    fn revive(&mut self, id: i64) {
        let tick = self.tick();
        self.put_back.insert(id, tick);
        self.revived.insert(id);
    }
}

/// One file, two drains, an application and some people.
pub(super) struct Game {
    _folder: TempDir,
    clock: ManualClock,
    outbox: Outbox,
    sql: Mutex<Connection>,
    settings: Settings,
    drains: [Mutex<Option<Inline>>; 2],
    state: Mutex<State>,
}

impl Game {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let folder = fixture::folder_in_memory();
        let path = folder.path().join("till.db");
        let clock = ManualClock::at(START);
        let outbox = Outbox::options().clock(clock.shared()).open(&path).unwrap();
        let sql = Connection::open(&path).unwrap();
        // So that the game crosses the border of a block of the census.
        sql.execute_batch("INSERT INTO sqlite_sequence (name, seq) VALUES ('outbox', 1000)")
            .unwrap();
        let policy = Policy::default()
            .run_length([1, 3, 16][rng.below(3) as usize])
            .max_attempts(3)
            .min_dead_age(Duration::ZERO)
            .backoff(Duration::from_secs(1), Duration::from_secs(60))
            .brake(5);
        let settings = Settings::default()
            .default_policy(policy)
            .keep_payload(None)
            .keep_sent(None);
        let game = Self {
            _folder: folder,
            clock,
            sql: Mutex::new(sql),
            drains: [Mutex::new(None), Mutex::new(None)],
            settings,
            state: Mutex::new(State {
                rng,
                figures: Figures::default(),
                calm: false,
                tick: 0,
                set_back: 0,
                known: BTreeMap::new(),
                highest: 0,
                before: Rows::new(),
                drained: false,
                cancelled: HashSet::new(),
                revived: HashSet::new(),
                replaced: HashSet::new(),
                latest_wall: START,
                charges: HashMap::new(),
                claims: HashSet::new(),
                arrived: HashSet::new(),
                delivered: HashMap::new(),
                failed: HashSet::new(),
                bytes: HashMap::new(),
                wire: Vec::new(),
                run: Vec::new(),
                claimed: [Claimed::default(); 2],
                lives: [0; 2],
                put_back: HashMap::new(),
                touched: HashMap::new(),
                paused: HashMap::new(),
                held: HashMap::new(),
                trace: VecDeque::new(),
            }),
            outbox,
        };
        for who in 0..2 {
            game.start(who);
        }
        game
    }

    /// Free for the one thread there is, whatever was thrown through it.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|it| it.into_inner())
    }

    pub(super) fn sql(&self) -> MutexGuard<'_, Connection> {
        self.sql.lock().unwrap_or_else(|it| it.into_inner())
    }

    pub(super) fn is_calm(&self) -> bool {
        self.state().calm
    }

    pub(super) fn note(&self, what: String) {
        self.state().note(what);
    }

    pub(super) fn figures(&self) -> Figures {
        self.state().figures
    }

    pub(super) fn trace(&self) -> String {
        let lines: Vec<String> = self.state().trace.iter().cloned().collect();
        lines.join("\n")
    }

    fn below(&self, n: i64) -> i64 {
        self.state().rng.below(n)
    }

    pub(super) fn roll(&self, percent: i64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn one_in(&self, n: i64) -> bool {
        self.below(n) == 0
    }

    /// Whether a claim may have been taken by another since.
    pub(super) fn has_lapsed(&self, state: &State, claimed: Claimed) -> bool {
        state.set_back > claimed.set_back || self.clock.now() - claimed.wall >= LEASE
    }

    pub(super) fn was_set_back(&self, state: &State) -> bool {
        state.set_back > 0
    }

    fn rows(&self) -> Rows {
        rules::rows(&self.sql())
    }

    /// One move, and whether everything is still true.
    pub(super) fn play(&self) {
        match self.below(100) {
            0..14 => self.enqueue(),
            14..24 => self.insert(),
            24..27 => self.roll_back(),
            27..60 => self.step(self.below(2) as usize),
            60..62 => self.crash(),
            62..76 => self.person(),
            76..82 => self.by_hand(),
            82..94 => self.pass_time(),
            94..96 => self.wake(),
            96 => self.purge(),
            97 => self.hold_the_lock(),
            _ => self.ask(),
        }
        self.state().figures.steps += 1;
        self.verify();
    }

    /// What others do while a message is on the wire.
    pub(super) fn meanwhile(&self) {
        self.note("  meanwhile".into());
        match self.below(6) {
            0 | 1 => self.step(self.below(2) as usize),
            2 => self.person(),
            3 => self.by_hand(),
            4 => self.pass_time(),
            _ => self.enqueue(),
        }
        self.note("  back".into());
    }

    fn any_channel(&self) -> &'static str {
        CHANNELS[[0, 0, 0, 1, 1, 1, 1, 2][self.below(8) as usize]]
    }

    /// A key of few, so that many are duplicates.
    fn any_key(&self) -> String {
        format!("k{}", self.below(60))
    }

    fn any_moment(&self, percent: i64, low: i64, high: i64) -> Option<i64> {
        let at = self.clock.now() + low + self.below(high - low);
        self.roll(percent).then_some(at)
    }

    fn any_message(&self) -> Message {
        let lane = LANES[self.below(5) as usize];
        let mut message = Message::text(self.any_channel(), format!("p{}", self.below(4)));
        if self.roll(80) {
            message = message.dedupe_key(self.any_key());
        }
        if let Some(lane) = lane {
            message = message.ordering_key(lane);
        }
        if let Some(at) = self.any_moment(10, -60 * SECOND, 300 * SECOND) {
            message = message.available_at(at);
        }
        if let Some(at) = self.any_moment(8, SECOND, 600 * SECOND) {
            message = message.expires_at(at);
        }
        let choice = [OnDuplicate::Keep, OnDuplicate::Replace, OnDuplicate::Fail];
        message.on_duplicate(choice[self.below(3) as usize])
    }

    fn enqueue(&self) {
        let messages: Vec<Message> = (0..=self.below(3)).map(|_| self.any_message()).collect();
        let answers = self.outbox.transaction(|tx| {
            let answers = messages.iter().map(|message| {
                let before = rules::rows(tx);
                (before, self.outbox.enqueue(tx, message))
            });
            Ok::<_, Error>(answers.collect::<Vec<_>>())
        });
        let rows = self.rows();
        for (message, (before, answer)) in messages.iter().zip(answers.unwrap()) {
            self.note(format!("enqueue {message:?}: {answer:?}"));
            self.enqueued(&before, &rows, answer);
        }
    }

    /// Whether the answer is the one of the published table.
    fn enqueued(&self, before: &Rows, rows: &Rows, answer: Result<Enqueued>) {
        match answer {
            Ok(Enqueued::New { id }) => {
                assert!(!before.contains_key(&id));
                self.learn(id, &rows[&id]);
            }
            Ok(Enqueued::Replaced { id }) => {
                let row = &before[&id];
                assert!(
                    row.claims == 0 && row.is(&["pending", "waiting"]),
                    "{row:?}"
                );
                assert_eq!(rows[&id].message_id, row.message_id);
                let mut state = self.state();
                state.touch(id);
                drop(state);
                self.learn(id, &rows[&id]);
            }
            Ok(Enqueued::Duplicate { id }) => assert!(before.contains_key(&id)),
            Ok(Enqueued::Conflict { id }) => {
                self.state().figures.conflicts += 1;
                assert!(before.contains_key(&id));
            }
            Err(Error::Duplicate { id }) => assert!(before.contains_key(&id)),
            Err(error) => panic!("{error}"),
        }
    }

    /// The model takes over a message that was committed, or changed by one who may.
    fn learn(&self, id: i64, row: &Row) {
        let known = Known {
            channel: row.channel.clone(),
            key: row.key.clone(),
            lane: row.lane.clone(),
            payload: row.payload.clone(),
            message_id: row.message_id.clone(),
        };
        let mut state = self.state();
        if !state.known.contains_key(&id) {
            assert!(id > state.highest, "id {id} was given before");
            state.highest = id;
        }
        state.known.insert(id, known);
    }

    /// An insert in plain SQL; what it did, unless it was refused.
    fn insert_on(&self, conn: &Connection) -> Option<i64> {
        let verb = [
            ("INSERT INTO", ""),
            (
                "INSERT INTO",
                "ON CONFLICT (channel, dedupe_key) DO NOTHING",
            ),
            ("INSERT OR IGNORE INTO", ""),
            ("INSERT OR REPLACE INTO", ""),
        ];
        let (verb, end) = verb[self.below(4) as usize];
        let (channel, key) = (self.any_channel(), self.any_key());
        let lane = LANES[self.below(5) as usize];
        let payload = format!("p{}", self.below(4));
        let available = self.any_moment(8, -60 * SECOND, 300 * SECOND);
        let expires = self.any_moment(6, SECOND, 600 * SECOND);
        let sql = format!(
            "{verb} outbox (channel, dedupe_key, ordering_key, payload, available_at, expires_at,
                            created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) {end}"
        );
        let now = self.clock.now();
        let values = (channel, &key, lane, payload, available, expires, now);
        let done = conn.execute(&sql, values);
        self.note(format!("{verb} {channel} {key} {lane:?} {end}: {done:?}"));
        (done.unwrap_or(0) > 0).then(|| conn.last_insert_rowid())
    }

    fn insert(&self) {
        let before = self.rows();
        let (id, rows) = {
            let conn = self.sql();
            (self.insert_on(&conn), rules::rows(&conn))
        };
        let Some(id) = id else {
            assert!(
                before.keys().eq(rows.keys()),
                "a refused insert changed something"
            );
            return;
        };
        // What OR REPLACE has replaced.
        let gone: Vec<i64> = before
            .keys()
            .filter(|it| !rows.contains_key(it))
            .copied()
            .collect();
        for it in &gone {
            let same =
                |one: &Row, other: &Row| one.channel == other.channel && one.key == other.key;
            assert!(same(&before[it], &rows[&id]), "{it} is gone");
            let mut state = self.state();
            state.known.remove(it);
            state.replaced.insert(*it);
        }
        let inserted = rows.keys().filter(|it| !before.contains_key(it)).count();
        assert_eq!(inserted, 1);
        self.learn(id, &rows[&id]);
    }

    fn roll_back(&self) {
        let before = self.rows();
        if self.roll(50) {
            let conn = self.sql();
            let tx = Transaction::new_unchecked(&conn, TransactionBehavior::Immediate).unwrap();
            for _ in 0..3 {
                self.insert_on(&tx);
            }
            self.note("rollback".into());
            tx.rollback().unwrap();
        } else {
            let never: std::result::Result<(), anyhow::Error> = self.outbox.transaction(|tx| {
                for _ in 0..3 {
                    let message = self.any_message();
                    self.note(format!("enqueue and roll back {message:?}"));
                    let _ = self.outbox.enqueue(tx, &message);
                }
                anyhow::bail!("the sale was cancelled")
            });
            assert!(never.is_err());
        }
        assert_eq!(before, self.rows());
    }

    fn start(&self, who: usize) {
        let seed = self.state().rng.next();
        let drain = Inline::new(&self.outbox, self.settings.clone()).unwrap();
        *self.drain(who) = Some(drain.seeded(seed));
        self.state().lives[who] += 1;
    }

    fn drain(&self, who: usize) -> MutexGuard<'_, Option<Inline>> {
        self.drains[who].lock().unwrap_or_else(|it| it.into_inner())
    }

    /// A cycle of one of the drains, unless it is under way.
    fn step(&self, who: usize) {
        let Some(mut drain) = self.drain(who).take() else {
            return;
        };
        {
            let mut state = self.state();
            state.note(format!("drain {who} at {}", self.clock.now() - START));
            let tick = state.tick();
            state.drained = true;
            state.run.retain(|it| it.0 != who);
            state.claimed[who] = Claimed {
                tick,
                wall: self.clock.now(),
                set_back: state.set_back,
                life: state.lives[who],
            };
        }
        let receiver = Receiver { game: self, who };
        match catch_unwind(AssertUnwindSafe(|| drain.step(&receiver))) {
            Ok(Ok(step)) => {
                self.heard(&step.events);
                *self.drain(who) = Some(drain);
            }
            Ok(Err(Error::Busy(_))) => *self.drain(who) = Some(drain),
            Ok(Err(error)) => panic!("{error:?}"),
            Err(thrown) if thrown.is::<PowerCut>() => {
                drop(drain);
                let mut state = self.state();
                state.figures.crashes += 1;
                state.wire.retain(|call| call.who != who);
                drop(state);
                self.start(who);
            }
            Err(thrown) => resume_unwind(thrown),
        }
    }

    /// One delivery pays for one charge.
    fn heard(&self, events: &[Event]) {
        let mut state = self.state();
        for event in events {
            match event {
                Event::Retried {
                    channel,
                    charged: true,
                    ..
                } => {
                    let (delivered, charged) = state.charges.entry(channel.clone()).or_default();
                    *charged += 1;
                    assert!(*charged <= *delivered, "{charged} charges in {channel}");
                }
                Event::StoreFailed { .. } | Event::HookFailed { .. } => panic!("{event:?}"),
                _ => {}
            }
        }
    }

    fn crash(&self) {
        let who = self.below(2) as usize;
        if self.drain(who).take().is_some() {
            self.note(format!("crash of {who}"));
            self.state().figures.crashes += 1;
            self.start(who);
        }
    }

    fn wake(&self) {
        let who = self.below(2) as usize;
        if let Some(drain) = self.drain(who).as_mut() {
            self.note(format!("wake {who}"));
            drain.wake();
        }
    }

    fn any_of(&self, rows: &Rows, statuses: &[&str]) -> Option<i64> {
        let ids: Vec<i64> = rows
            .iter()
            .filter(|(_, row)| row.is(statuses))
            .map(|it| *it.0)
            .collect();
        (!ids.is_empty()).then(|| ids[self.below(ids.len() as i64) as usize])
    }

    /// Someone with the tool.
    fn person(&self) {
        let anna = self.outbox.operator("anna").reason("why not");
        let rows = self.rows();
        let all = [
            "pending",
            "waiting",
            "sending",
            "sent",
            "dead",
            "expired",
            "cancelled",
        ];
        let channel = self.any_channel();
        let what = self.below(18);
        match what {
            0..5 => {
                let takes = ["dead", "expired", "cancelled"];
                let from: &[&str] = if self.roll(80) { &takes } else { &all };
                let Some(id) = self.any_of(&rows, from) else {
                    return;
                };
                let done = anna.retry(id);
                self.note(format!("retry {id}: {done:?}"));
                self.allowed(done, rows[&id].is(&takes));
                if rows[&id].is(&takes) {
                    self.state().revive(id);
                }
            }
            5..8 => {
                let takes = ["pending", "waiting", "dead"];
                let from: &[&str] = if self.roll(80) { &takes } else { &all };
                let Some(id) = self.any_of(&rows, from) else {
                    return;
                };
                let done = anna.cancel(id);
                self.note(format!("cancel {id}: {done:?}"));
                self.allowed(done, rows[&id].is(&takes));
                self.state().cancelled.insert(id);
                self.state().touch(id);
            }
            8..10 => {
                let from: &[&str] = if self.roll(60) { &["dead"] } else { &all };
                let Some(id) = self.any_of(&rows, from) else {
                    return;
                };
                let row = &rows[&id];
                let may = row.is(&["dead"]) || row.claims == 0 && row.is(&["pending", "waiting"]);
                let done = anna.edit(id, format!("edited {}", self.below(1000)));
                self.note(format!("edit {id}: {done:?}"));
                self.allowed(done.map(|_| ()), may);
                if may {
                    let new = self.rows();
                    assert_ne!(new[&id].message_id, row.message_id);
                    self.learn(id, &new[&id]);
                    let mut state = self.state();
                    state.revive(id);
                    state.touch(id);
                }
            }
            10 | 11 => {
                self.note(format!("pause {channel}"));
                anna.pause(channel).unwrap();
                let mut state = self.state();
                let tick = state.tick();
                state.paused.insert(channel.into(), tick);
            }
            12..15 => {
                self.note(format!("resume {channel}"));
                anna.resume(channel).unwrap();
            }
            15 => self.on_dead(
                channel,
                [OnDead::Hold, OnDead::Skip][self.below(2) as usize],
            ),
            16 => self.retry_all(channel),
            _ => {
                let some = Selection::new().status(Status::Waiting).channel(channel);
                let count = anna.cancel_all(&some).unwrap();
                self.note(format!("cancel all waiting of {channel}: {count}"));
                let mut state = self.state();
                for (id, row) in &rows {
                    if row.channel == channel && row.is(&["pending", "waiting"]) {
                        state.cancelled.insert(*id);
                        state.touch(*id);
                    }
                }
            }
        }
    }

    fn allowed(&self, done: Result<()>, may: bool) {
        match done {
            Ok(()) => assert!(may, "this should have been refused"),
            Err(Error::Refused(why)) => assert!(!may, "{why}"),
            Err(error) => panic!("{error:?}"),
        }
    }

    fn on_dead(&self, channel: &str, choice: OnDead) {
        self.note(format!("{channel}: {choice:?} on dead"));
        self.outbox
            .operator("anna")
            .on_dead(channel, choice)
            .unwrap();
        let mut state = self.state();
        let tick = state.tick();
        state.held.insert(channel.into(), tick);
    }

    fn retry_all(&self, channel: &str) {
        let rows = self.rows();
        let all = Selection::new().channel(channel);
        let count = self.outbox.operator("anna").retry_all(&all).unwrap();
        self.note(format!("retry all of {channel}: {count}"));
        let dead = |row: &Row| row.channel == channel && row.is(&["dead"]);
        let ids: Vec<i64> = rows
            .iter()
            .filter(|it| dead(it.1))
            .map(|it| *it.0)
            .collect();
        assert_eq!(count, ids.len() as u64);
        for id in ids {
            self.state().revive(id);
        }
    }

    /// Someone with plain SQL.
    fn by_hand(&self) {
        let rows = self.rows();
        let Some(id) = self.any_of(
            &rows,
            &[
                "pending",
                "waiting",
                "sending",
                "dead",
                "sent",
                "expired",
                "cancelled",
            ],
        ) else {
            return;
        };
        let now = self.clock.now();
        let what = self.below(4);
        {
            let conn = self.sql();
            let done = match what {
                0 => conn.execute("DELETE FROM outbox WHERE id = ?1", [id]),
                1 => conn.execute(
                    "UPDATE outbox SET status = 'cancelled', settled_at = ?2
                      WHERE id = ?1 AND status IN ('pending', 'waiting')",
                    (id, now),
                ),
                2 => conn.execute(
                    "UPDATE outbox SET status = 'cancelled' WHERE id = ?1 AND status = 'sending'",
                    [id],
                ),
                _ => conn.execute(
                    "UPDATE outbox SET available_at = ?2
                      WHERE id = ?1 AND claims = 0 AND status IN ('pending', 'waiting')",
                    (id, now + 30 * SECOND),
                ),
            };
            let what = ["delete", "cancel", "cancel while sending", "put off"][what as usize];
            self.note(format!(
                "{what} {id} ({}) by hand: {done:?}",
                rows[&id].status
            ));
            done.unwrap();
        }
        let mut state = self.state();
        state.touch(id);
        match what {
            0 => {
                state.known.remove(&id);
            }
            1 | 2 => {
                state.cancelled.insert(id);
            }
            _ => {}
        }
    }

    fn pass_time(&self) {
        let dice = self.below(100);
        if dice < 3 {
            let back = [5, 600, 7200][self.below(3) as usize] * SECOND;
            self.note(format!("the clock is set back by {back}"));
            self.clock.jump(-back);
            self.state().set_back += 1;
        } else if dice < 6 {
            let by = [90, 7200, 48 * 3600][self.below(3) as usize] * SECOND;
            self.note(format!("the clock is set ahead by {by}"));
            self.clock.jump(by);
        } else {
            let most = if dice < 70 { 3 * SECOND } else { 60 * SECOND };
            let span = self.below(most) + 1;
            self.note(format!("{span} ms pass"));
            self.clock
                .advance(Duration::from_millis(span.unsigned_abs()));
        }
        let mut state = self.state();
        state.latest_wall = state.latest_wall.max(self.clock.now());
    }

    fn purge(&self) {
        let age = self.below(120 * SECOND);
        let until = self.clock.now() - age;
        let goes = |row: &Row| {
            row.is(&["sent", "expired", "cancelled"]) && row.settled.is_none_or(|it| it <= until)
        };
        // Settled without a moment: the enqueue counts, which is not followed here.
        let rows = self.rows();
        let conflicts = self.outbox.conflicts(None, 0, 1_000).unwrap();
        let contested: Vec<_> = conflicts.iter().filter_map(|it| it.holder).collect();
        let span = Duration::from_millis(age.unsigned_abs());
        let count = self.outbox.operator("anna").purge(span).unwrap();
        self.note(format!("purge: {count}"));
        let left = self.rows();
        let mut gone = 0;
        for (id, row) in rows.iter().filter(|(id, _)| !left.contains_key(id)) {
            assert!(goes(row), "purged {id}: {row:?}");
            assert!(
                !contested.contains(id),
                "purged {id}, whose key is contested"
            );
            self.state().known.remove(id);
            gone += 1;
        }
        let forgotten =
            |(id, row): (&i64, &Row)| goes(row) && row.settled.is_some() && !contested.contains(id);
        assert!(!left.iter().any(forgotten), "something was not purged");
        assert_eq!(count, gone);
        self.state().figures.purged += gone;
    }

    /// The application is in a transaction of its own, for longer than a drain waits.
    fn hold_the_lock(&self) {
        if !self.roll(10) {
            return;
        }
        let other = Connection::open(self.outbox.path()).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        self.note("the application holds the lock".into());
        let calls = self.state().figures.sent;
        self.step(self.below(2) as usize);
        assert_eq!(self.state().figures.sent, calls, "nothing can be claimed");
        other.execute_batch("ROLLBACK").unwrap();
    }

    /// Whatever is asked has an answer.
    fn ask(&self) {
        let Some(id) = self.any_of(&self.rows(), &["pending", "waiting", "dead", "sending"]) else {
            return;
        };
        self.outbox.why(id).unwrap();
        self.outbox.why_all().unwrap();
    }

    /// Compares the file with the model and with what it was.
    fn verify(&self) {
        let conn = self.sql();
        let rows = rules::rows(&conn);
        rules::lanes_are_in_order(&conn, &rows);
        rules::counts_are_true(&self.outbox, &rows);
        rules::census_is_true(&conn);
        let mut state = self.state();
        let state = &mut *state;
        assert!(
            state.known.keys().eq(rows.keys()),
            "lost or added: {:?}, {:?}",
            state
                .known
                .keys()
                .filter(|it| !rows.contains_key(it))
                .collect::<Vec<_>>(),
            rows.keys()
                .filter(|it| !state.known.contains_key(it))
                .collect::<Vec<_>>()
        );
        for (id, row) in &rows {
            let known = &state.known[id];
            let kept = (
                &row.channel,
                &row.key,
                &row.lane,
                &row.payload,
                &row.message_id,
            ) == (
                &known.channel,
                &known.key,
                &known.lane,
                &known.payload,
                &known.message_id,
            );
            assert!(kept, "message {id} was {known:?} and is {row:?}");
            let blank = Row {
                status: "pending".into(),
                claims: 0,
                attempts: 0,
                ..row.clone()
            };
            let old = state.before.get(id).unwrap_or(&blank);
            let what = format!("message {id} was {old:?} and is {row:?}");
            assert!(row.claims >= old.claims, "the fence went back: {what}");
            if !state.drained {
                assert_eq!(row.claims, old.claims, "{what}");
                let kept = row.attempts == old.attempts || state.revived.contains(id);
                assert!(kept, "{what}");
            }
            let unsent = |it: &Row| it.is(&["pending", "waiting", "sending"]);
            let may = match row.status.as_str() {
                now if now == old.status => true,
                "pending" | "waiting" => {
                    let lined_up = old.is(&["pending", "waiting"]);
                    let given_back = unsent(old) && state.drained;
                    lined_up || given_back || state.revived.contains(id)
                }
                "sending" => state.drained && (unsent(old) || state.revived.contains(id)),
                "sent" => {
                    let name = (*id, row.message_id.clone());
                    state.drained && state.delivered.contains_key(&name)
                }
                "dead" => {
                    let back = unsent(old) || state.revived.contains(id);
                    state.drained && state.failed.contains(id) && back
                }
                "expired" => {
                    let over = row.expires.is_some_and(|it| it <= state.latest_wall);
                    state.drained && over && (unsent(old) || state.revived.contains(id))
                }
                "cancelled" => state.cancelled.contains(id),
                _ => false,
            };
            assert!(may, "{what}");
            assert!(old.status != "sent" || row.status == "sent", "{what}");
            if row.status != old.status {
                match row.status.as_str() {
                    "dead" => state.figures.died += 1,
                    "expired" => state.figures.expired += 1,
                    "pending" | "waiting" if old.status == "sending" => {
                        state.figures.taken_back += 1;
                    }
                    _ => {}
                }
            }
        }
        state.before = rows;
        state.drained = false;
        state.cancelled.clear();
        state.revived.clear();
    }

    /// When everything works again, everything goes out, and then everything can go.
    pub(super) fn come_to_rest(&self) {
        self.note("everything works again".into());
        self.state().calm = true;
        let anna = self.outbox.operator("anna");
        for channel in CHANNELS {
            anna.resume(channel).unwrap();
            self.on_dead(channel, OnDead::Skip);
            self.verify();
        }
        self.until_nothing_is_left();
        for channel in CHANNELS {
            self.on_dead(channel, OnDead::Hold);
            self.retry_all(channel);
            self.verify();
        }
        self.until_nothing_is_left();
        rules::no_attempt_is_left_behind(&self.sql(), &self.state().replaced);
        for (id, row) in self.rows() {
            let over = row.is(&["sent", "expired", "cancelled"]) || row.channel == UNROUTED;
            assert!(over, "message {id}: {row:?}");
        }
    }

    fn until_nothing_is_left(&self) {
        for round in 0..400 {
            for who in [0, 1, 0, 1] {
                self.step(who);
            }
            self.verify();
            let unsent =
                |row: &Row| row.channel != UNROUTED && row.is(&["pending", "waiting", "sending"]);
            if !self.rows().values().any(unsent) {
                return;
            }
            // Schedules lie ahead where the clock was set back.
            let span = if round < 100 { 7 } else { 600 };
            self.clock.advance(Duration::from_secs(span));
            let now = self.clock.now();
            let mut state = self.state();
            state.latest_wall = state.latest_wall.max(now);
        }
        let rows = self.rows();
        let left: Vec<_> = rows
            .iter()
            .filter(|it| it.1.is(&["pending", "waiting", "sending"]))
            .collect();
        panic!("these never go out: {left:#?}");
    }
}
