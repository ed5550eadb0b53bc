//! What is found after a power cut, and what must be true of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::rusqlite::types::Value;
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{Delivery, Outcome, Receipt, Selection, Severity};
use tempfile::TempDir;

use super::scenario::{self, Arrival, Mode, Note, Record};
use crate::fixture::{Rng, column, folder_in_memory, one};
use crate::vfs::{Cut, Survival};

/// A day, and the states that its file went through.
pub(super) struct Inquest<'a> {
    record: &'a Record,
    mode: Mode,
    /// What a file held whose program was killed at this moment, and no power was cut.
    states: BTreeMap<Cut, u64>,
    /// The mornings that were seen already: state of the file, and how much had arrived.
    seen: BTreeSet<(u64, usize)>,
    dice: Rng,
    pub(super) findings: Findings,
}

#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) cuts: u64,
    /// Cuts that took back something that had been acknowledged.
    pub(super) taken_back: u64,
    /// Of these, by the application or a person.
    pub(super) commits_taken_back: u64,
    /// Sales taken back that the receiver had seen already.
    pub(super) sent_and_taken_back: u64,
    /// Different files from which the shop went on.
    pub(super) mornings: u64,
    pub(super) cancelled: usize,
    pub(super) edited: usize,
    /// Messages that retention had emptied or removed by closing time.
    pub(super) tidied: u64,
}

impl Findings {
    pub(super) fn add(&mut self, other: Self) {
        self.cuts += other.cuts;
        self.taken_back += other.taken_back;
        self.commits_taken_back += other.commits_taken_back;
        self.sent_and_taken_back += other.sent_and_taken_back;
        self.mornings += other.mornings;
        self.cancelled += other.cancelled;
        self.edited += other.edited;
        self.tidied += other.tidied;
    }
}

impl<'a> Inquest<'a> {
    pub(super) fn new(record: &'a Record, mode: Mode, seed: u64) -> Self {
        Self {
            record,
            mode,
            states: BTreeMap::new(),
            seen: BTreeSet::new(),
            dice: Rng(seed),
            findings: Findings {
                cancelled: record.cancelled.len(),
                edited: record.edited.len(),
                tidied: record.tidied,
                ..Findings::default()
            },
        }
    }

    /// The disk after a cut, in a folder of its own.
    fn image(&mut self, cut: Cut, survival: Survival) -> TempDir {
        let folder = folder_in_memory();
        let dice = &mut self.dice;
        let disk = &self.record.disk;
        disk.after(cut, survival, &mut || dice.next(), folder.path())
            .unwrap();
        folder
    }

    /// With everything that was written, the disk has the very file that the day left.
    pub(super) fn the_record_is_true(&mut self) {
        let folder = self.image(self.record.disk.ops.len(), Survival::Everything);
        let file = std::fs::read(folder.path().join("till.db")).unwrap();
        assert!(
            file == self.record.file,
            "the record is not what was written"
        );
    }

    fn state(&mut self, cut: Cut) -> u64 {
        if let Some(state) = self.states.get(&cut) {
            return *state;
        }
        let folder = self.image(cut, Survival::Everything);
        let state = state(&folder.path().join("till.db"));
        self.states.insert(cut, state);
        state
    }

    /// The last moment before `cut` at which something returned that `counts`.
    fn last(&self, cut: Cut, counts: impl Fn(&Note) -> bool) -> Cut {
        let notes = &self.record.notes;
        let at = self.record.disk.last_mark(cut, |mark| counts(&notes[mark]));
        at.map_or(0, |at| at + 1)
    }

    /// Cuts the power and looks at everything.
    ///
    /// What is found must be a state that the file went through, no earlier than what is promised
    /// to be `kept`. What was cut off is a suffix, then, and never a hole.
    pub(super) fn cut(&mut self, cut: Cut, survival: Survival, kept: impl Fn(&Note) -> bool) {
        self.findings.cuts += 1;
        let folder = self.image(cut, survival);
        let path = folder.path().join("till.db");
        let what = format!("{:?}, cut at {cut}, {survival:?} survives", self.mode);
        let found = state(&path);
        let acknowledged = self.last(cut, |note| matches!(note, Note::Done { .. }));
        let commits = self.last(cut, |note| matches!(note, Note::Done { by_drain: false }));
        let floor = self.last(cut, kept);
        // The likely ones first: a state costs a file.
        let mut moments = [floor, cut].into_iter().chain((floor..cut).rev());
        let Some(moment) = moments.find(|at| self.state(*at) == found) else {
            let earlier = (0..floor).rev().find(|at| self.state(*at) == found);
            panic!("{what}: a state that is not after {floor}, but that of {earlier:?}");
        };
        let holds = |at: Cut, this: &mut Self| moment >= at || this.state(at) == found;
        self.findings.taken_back += u64::from(!holds(acknowledged, self));
        self.findings.commits_taken_back += u64::from(!holds(commits, self));
        let arrivals = self.arrivals(cut);
        if self.seen.insert((found, arrivals.len())) {
            self.go_on(&path, arrivals, &what);
        }
    }

    fn arrivals(&self, cut: Cut) -> Vec<Arrival> {
        let notes = &self.record.notes;
        let marks = self.record.disk.marks(cut);
        marks
            .filter_map(|mark| match &notes[mark] {
                Note::Arrived(it) => Some(it.clone()),
                Note::Done { .. } => None,
            })
            .collect()
    }

    /// The shop opens the next morning.
    fn go_on(&mut self, path: &Path, arrivals: Vec<Arrival>, what: &str) {
        self.findings.mornings += 1;
        let record = self.record;
        let clock = ManualClock::at(record.closing_time + 3_600_000);
        let outbox = scenario::open(path, self.mode, &clock, None);
        let faults = outbox.check().unwrap();
        let faults: Vec<_> = faults
            .iter()
            .filter(|it| it.severity == Severity::Fault)
            .collect();
        assert!(faults.is_empty(), "{what}: {faults:?}");
        let conn = Connection::open(path).unwrap();
        let sales = one(
            &conn,
            "SELECT count(*) FROM sqlite_master WHERE name = 'sale'",
        );
        if sales == "0" {
            return;
        }
        let orphans = column(
            &conn,
            "SELECT id FROM outbox WHERE dedupe_key NOT IN (SELECT id FROM sale)",
        );
        assert!(
            orphans.is_empty(),
            "{what}: messages without sale {orphans:?}"
        );
        let mut silent = column(
            &conn,
            "SELECT id FROM sale WHERE invoice IS NULL
                AND id NOT IN (SELECT dedupe_key FROM outbox WHERE status <> 'sent')
             UNION SELECT sale.id FROM sale JOIN outbox ON dedupe_key = sale.id
              WHERE status <> 'sent' AND invoice IS NOT NULL",
        );
        silent.retain(|id| !record.cancelled.contains(id));
        assert!(
            silent.is_empty(),
            "{what}: sale and message disagree {silent:?}"
        );

        let known: BTreeSet<String> = column(&conn, "SELECT id FROM sale").into_iter().collect();
        let seen: BTreeSet<&String> = arrivals.iter().map(|it| &it.key).collect();
        let vanished = seen.iter().filter(|key| !known.contains(**key)).count();
        self.findings.sent_and_taken_back += u64::try_from(vanished).unwrap();

        let arrivals = Mutex::new(arrivals);
        let receive = |it: &Delivery| {
            arrivals.lock().unwrap().push(Arrival::of(it));
            let number = format!("INV-{}", it.dedupe_key);
            Ok(Outcome::Delivered(Receipt::with_id(number)))
        };
        let anna = outbox.operator("anna");
        anna.resume("sales").unwrap();
        anna.retry_all(&Selection::new()).unwrap();
        let mut drain = Inline::new(&outbox, scenario::settings(self.mode)).unwrap();
        for _ in 0..40 {
            drain.until_idle(&receive).unwrap();
            if outbox.unsent().unwrap() == 0 {
                break;
            }
            clock.advance(Duration::from_secs(5));
        }
        let unsent = outbox.unsent().unwrap();
        assert_eq!(unsent, 0, "{what}: {:?}", outbox.why_all());
        self.check_arrivals(&arrivals.into_inner().unwrap(), &known, what);
        assert_eq!(one(&conn, "PRAGMA integrity_check"), "ok", "{what}");
    }

    /// Everything arrived, in order, with the same key and bytes at each attempt.
    fn check_arrivals(&self, arrivals: &[Arrival], known: &BTreeSet<String>, what: &str) {
        let record = self.record;
        let mut latest: BTreeMap<&str, u64> = BTreeMap::new();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut bytes: BTreeMap<&str, &[u8]> = BTreeMap::new();
        let mut ids: BTreeMap<&str, &str> = BTreeMap::new();
        for it in arrivals {
            let same = bytes.entry(&it.message_id).or_insert(&it.payload);
            assert_eq!(*same, it.payload, "{what}: other bytes of {}", it.key);
            let id = ids.entry(&it.key).or_insert(&it.message_id);
            let same = *id == it.message_id || record.edited.contains(&it.key);
            assert!(same, "{what}: {} came with another id", it.key);
            if let (Some(lane), true) = (&it.lane, seen.insert(&it.key)) {
                let number = scenario::number(&it.key);
                let former = latest.insert(lane, number);
                let ordered = former.is_none_or(|former| former < number);
                assert!(ordered, "{what}: {} after {former:?} in {lane}", it.key);
            } else {
                seen.insert(&it.key);
            }
        }
        let missing = known.iter().filter(|id| !seen.contains(id.as_str()));
        let missing: Vec<_> = missing
            .filter(|id| !record.cancelled.contains(*id))
            .collect();
        assert!(missing.is_empty(), "{what}: never arrived {missing:?}");
    }
}

/// All that stands in the file, as a number; fails if it is damaged.
fn state(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    text(path).hash(&mut hasher);
    hasher.finish()
}

fn text(path: &Path) -> String {
    let mut text = String::new();
    if !path.exists() {
        return text;
    }
    let conn = Connection::open(path).unwrap();
    assert_eq!(one(&conn, "PRAGMA integrity_check"), "ok");
    let tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name";
    for table in column(&conn, tables) {
        let mut statement = conn.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| {
            let values = (0..columns).map(|column| row.get::<_, Value>(column));
            values.collect::<Result<Vec<_>, _>>()
        });
        let mut rows: Vec<_> = rows
            .unwrap()
            .map(|row| format!("{:?}", row.unwrap()))
            .collect();
        rows.sort();
        writeln!(text, "{table}\n{}", rows.join("\n")).unwrap();
    }
    let schema = "SELECT coalesce(sql, name) FROM sqlite_master ORDER BY name";
    text + &column(&conn, schema).join("\n")
}
