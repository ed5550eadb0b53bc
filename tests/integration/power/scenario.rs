//! A shop's day on a disk that is recorded: sales in lanes, two drains, people, retention.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use sqlite_outbox::rusqlite::{Connection, OpenFlags, TransactionBehavior};
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{
    Delivery, Failure, Filter, Message, Outbox, Outcome, Policy, Receipt, Selection, Settings,
    SettleSync, Status,
};

use crate::fixture::{Rng, folder_in_memory, one};
use crate::vfs::{Disk, Vfs};

pub(super) const START: i64 = 1_800_000_000_000;
/// Steps of a drain after closing time, five minutes apart.
const QUIET: usize = 24;
const LANES: [Option<&str>; 4] = [None, Some("a"), Some("b"), Some("c")];

/// How the file is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mode {
    pub(super) journal: &'static str,
    /// What the application sets on a connection of its own; without, it borrows the outbox's.
    pub(super) synchronous: Option<&'static str>,
    pub(super) settle_sync: SettleSync,
}

/// What happened outside the disk. Its place in the list is its mark in the record.
#[derive(Debug, Clone)]
pub(super) enum Note {
    /// What was asked for and committed until now: by the application or a person, or by a drain.
    Done {
        by_drain: bool,
    },
    Arrived(Arrival),
}

/// What the receiver saw.
#[derive(Debug, Clone)]
pub(super) struct Arrival {
    pub(super) lane: Option<String>,
    pub(super) key: String,
    pub(super) message_id: String,
    pub(super) payload: Vec<u8>,
}

impl Arrival {
    pub(super) fn of(delivery: &Delivery) -> Self {
        Self {
            lane: delivery.ordering_key.clone(),
            key: delivery.dedupe_key.clone(),
            message_id: delivery.message_id.clone(),
            payload: delivery.payload.clone(),
        }
    }
}

/// All that is known of one day.
pub(super) struct Record {
    pub(super) disk: Disk,
    pub(super) notes: Vec<Note>,
    /// Sales whose messages a person cancelled or edited, at any time.
    pub(super) cancelled: BTreeSet<String>,
    pub(super) edited: BTreeSet<String>,
    /// Messages that retention emptied or removed.
    pub(super) tidied: u64,
    pub(super) closing_time: i64,
    /// The file itself, as the day left it.
    pub(super) file: Vec<u8>,
}

/// The number of a sale's key.
pub(super) fn number(key: &str) -> u64 {
    key.trim_start_matches("S-").parse().unwrap()
}

pub(super) fn settings(mode: Mode) -> Settings {
    let policy = Policy::default()
        .run_length(4)
        .backoff(Duration::from_secs(1), Duration::from_secs(20));
    Settings::default()
        .default_policy(policy)
        .settle_sync(mode.settle_sync)
        .keep_payload(Some(Duration::from_secs(600)))
        .keep_sent(Some(Duration::from_secs(3600)))
}

/// The outbox as this shop opens it: `on_delivered` stores the receiver's number.
pub(super) fn open(path: &Path, mode: Mode, clock: &ManualClock, vfs: Option<&Vfs>) -> Outbox {
    let mut options = Outbox::options()
        .clock(clock.shared())
        .on_connect(move |conn| {
            // Each connection chooses this one for itself; the file knows of the log only.
            if mode.journal == "TRUNCATE" {
                conn.execute_batch("PRAGMA journal_mode = TRUNCATE")?;
            }
            // Small, so that the log is carried over into the file now and then.
            conn.pragma_update(None, "wal_autocheckpoint", 40)
        })
        .on_delivered(|tx, delivery, receipt| {
            let invoice = (&delivery.dedupe_key, &receipt.provider_id);
            tx.execute("UPDATE sale SET invoice = ?2 WHERE id = ?1", invoice)?;
            Ok(())
        });
    if let Some(vfs) = vfs {
        options = options.vfs(vfs.name());
    }
    options.open(path).unwrap()
}

struct Shop {
    vfs: Vfs,
    mode: Mode,
    clock: ManualClock,
    outbox: Outbox,
    rng: Mutex<Rng>,
    notes: Mutex<Vec<Note>>,
    sales: u64,
    cancelled: BTreeSet<String>,
    edited: BTreeSet<String>,
}

/// Plays a day of so many moves and returns what was recorded.
pub(super) fn play(mode: Mode, seed: u64, moves: usize) -> Record {
    let folder = folder_in_memory();
    let path = folder.path().join("till.db");
    let vfs = Vfs::register();
    vfs.record();
    let clock = ManualClock::at(START);
    if mode.journal != "WAL" {
        let conn = connect(&path, &vfs);
        conn.execute_batch("CREATE TABLE shop (n)").unwrap();
    }
    let outbox = open(&path, mode, &clock, Some(&vfs));
    let mut shop = Shop {
        vfs,
        mode,
        clock,
        outbox,
        rng: Mutex::new(Rng(seed)),
        notes: Mutex::default(),
        sales: 0,
        cancelled: BTreeSet::new(),
        edited: BTreeSet::new(),
    };
    let table = "CREATE TABLE sale (id TEXT PRIMARY KEY, lane TEXT, invoice TEXT)";
    shop.transact(|tx| tx.execute_batch(table).unwrap(), true);
    shop.note(Note::Done { by_drain: false });
    let mut drains = [shop.drain(), shop.drain()];
    let watch = connect(&path, &shop.vfs);
    let version = || one(&watch, "PRAGMA data_version");
    // In the end two quiet hours, in which retention gets its turn.
    for nth in 0..moves + QUIET {
        let before = version();
        let by_drain = match nth < moves {
            true => shop.play(&mut drains),
            false => shop.rest(&mut drains[0]),
        };
        if version() != before {
            shop.note(Note::Done { by_drain });
        }
    }
    let tidied = one(
        &watch,
        "SELECT (SELECT count(*) FROM sale) - (SELECT count(*) FROM outbox WHERE payload <> '')",
    );
    drop((drains, watch));
    let Shop {
        vfs,
        clock,
        outbox,
        notes,
        cancelled,
        edited,
        ..
    } = shop;
    drop(outbox);
    Record {
        disk: vfs.recorded(),
        notes: notes.into_inner().unwrap(),
        cancelled,
        edited,
        tidied: tidied.parse().unwrap(),
        closing_time: clock.now(),
        file: std::fs::read(&path).unwrap(),
    }
}

fn connect(path: &Path, vfs: &Vfs) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    Connection::open_with_flags_and_vfs(path, flags, vfs.name()).unwrap()
}

impl Shop {
    fn note(&self, note: Note) {
        let mut notes = self.notes.lock().unwrap();
        self.vfs.mark(notes.len());
        notes.push(note);
    }

    fn below(&self, n: i64) -> i64 {
        self.rng.lock().unwrap().below(n)
    }

    fn drain(&self) -> Inline {
        let seed = self.rng.lock().unwrap().next();
        let drain = Inline::new(&self.outbox, settings(self.mode)).unwrap();
        drain.seeded(seed)
    }

    /// A transaction of the application, on a connection as it has one.
    fn transact(&self, work: impl FnOnce(&Connection), commit: bool) {
        let in_it = |conn: &mut Connection| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate);
            let tx = tx.unwrap();
            work(&tx);
            match commit {
                true => tx.commit().unwrap(),
                false => tx.rollback().unwrap(),
            }
        };
        match self.mode.synchronous {
            None => in_it(&mut self.outbox.connection().unwrap()),
            Some(level) => {
                let mut conn = connect(self.outbox.path(), &self.vfs);
                conn.pragma_update(None, "synchronous", level).unwrap();
                in_it(&mut conn);
            }
        }
    }

    /// One move. Returns whether it was a drain's.
    fn play(&mut self, drains: &mut [Inline; 2]) -> bool {
        let which = usize::try_from(self.below(2)).unwrap();
        match self.below(100) {
            0..30 => self.sell(true),
            30..34 => self.sell(false),
            34..46 => self.act(),
            46..54 => self
                .clock
                .advance(Duration::from_secs(self.below(40).unsigned_abs())),
            54..60 => self.clock.advance(Duration::from_secs(1800)),
            60..63 => {
                drains[which] = self.drain();
            }
            63..66 => self.checkpoint(),
            _ => {
                drains[which]
                    .step(&|it: &Delivery| self.receive(it))
                    .unwrap();
                return true;
            }
        }
        false
    }

    fn rest(&self, drain: &mut Inline) -> bool {
        self.clock.advance(Duration::from_secs(300));
        drain.step(&|it: &Delivery| self.receive(it)).unwrap();
        true
    }

    /// One to three sales, each with its message.
    fn sell(&mut self, commit: bool) {
        let first = self.sales;
        self.sales += self.below(3).unsigned_abs() + 1;
        let sell = |tx: &Connection| {
            for n in first..self.sales {
                let id = format!("S-{n}");
                let lane = LANES[usize::try_from(self.below(4)).unwrap()];
                let size = usize::try_from(self.below(3) * self.below(3000)).unwrap();
                let mut message = Message::text("sales", format!("{id} {}", "x".repeat(size)));
                message = message.dedupe_key(&id);
                if let Some(lane) = lane {
                    message = message.ordering_key(lane);
                }
                let sale = "INSERT INTO sale (id, lane) VALUES (?1, ?2)";
                tx.execute(sale, (&id, lane)).unwrap();
                self.outbox.enqueue_on(tx, &message).unwrap();
            }
        };
        self.transact(sell, commit);
    }

    /// What a person does.
    fn act(&mut self) {
        let anna = self.outbox.operator("anna");
        let pending = Filter::new().status(Status::Pending).limit(20);
        let mut pending = self.outbox.list(&pending).unwrap();
        let n = i64::try_from(pending.len()).unwrap().max(1);
        let some = pending
            .drain(..)
            .nth(usize::try_from(self.below(n)).unwrap());
        match (self.below(7), some) {
            (0, _) => anna.pause("sales").unwrap(),
            (1 | 2, _) => anna.resume("sales").unwrap(),
            (3, _) => drop(anna.retry_all(&Selection::new()).unwrap()),
            (4, Some(it)) if anna.cancel(it.id).is_ok() => {
                self.cancelled.insert(it.dedupe_key);
            }
            (5 | 6, Some(it)) if anna.edit(it.id, "edited").is_ok() => {
                self.edited.insert(it.dedupe_key);
            }
            _ => {}
        }
    }

    fn checkpoint(&self) {
        let conn = self.outbox.connection().unwrap();
        let word = ["PASSIVE", "RESTART", "TRUNCATE"][usize::try_from(self.below(3)).unwrap()];
        let script = format!("PRAGMA wal_checkpoint({word})");
        conn.query_row(&script, [], |_| Ok(())).unwrap();
    }

    fn receive(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        let dice = self.below(100);
        if dice >= 94 {
            return Ok(Outcome::unreachable("no route to host"));
        }
        self.note(Note::Arrived(Arrival::of(delivery)));
        let failure = |code: u16| Failure::new("http", "no").status(code);
        Ok(match dice {
            0..76 => Outcome::Delivered(Receipt::with_id(format!("INV-{}", delivery.dedupe_key))),
            76..84 => Outcome::Retry(failure(500)),
            84..90 => Outcome::Rejected(failure(422)),
            _ => anyhow::bail!("the answer was lost"),
        })
    }
}
