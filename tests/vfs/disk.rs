//! What a disk holds after the power was cut.
//!
//! A file's content is certain as of its last sync. Of what was written since, each write, or each
//! sector of it, is there or is not, in any combination; so are changes of the file's length. That
//! a file was made is certain with its first sync; that one was deleted, when its folder was synced:
//! SQLite does that with the first sync of a journal or log, and with a deletion where it was asked
//! to. Shared memory is gone.
//!
//! What is assumed of the disk: a sync that returned is true, a sector is written whole or not at
//! all, and a write touches no byte beside its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const SECTOR: usize = 512;

/// One thing that happened. Files go by a number, as a deleted one may be followed by another of
/// the same name.
#[derive(Debug)]
pub(crate) enum Op {
    Create(PathBuf, usize),
    Write(usize, usize, Vec<u8>),
    Truncate(usize, usize),
    Sync(usize),
    /// And whether the folder was synced.
    Delete(PathBuf, bool),
    /// Something outside the disk, such as a commit that was acknowledged.
    Mark(usize),
}

/// A moment in the record, between two of its ops.
pub(crate) type Cut = usize;

/// What becomes of that which was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survival {
    Nothing,
    Everything,
    /// Each write is there, not there, or there in some of its sectors.
    Some,
}

/// A record of all that was written, in order. It is exact when one thread at a time writes.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) ops: Vec<Op>,
    names: BTreeMap<PathBuf, usize>,
    files: usize,
}

impl Disk {
    pub(super) fn push(&mut self, op: Op) {
        if let Op::Delete(path, _) = &op {
            self.names.remove(path);
        }
        self.ops.push(op);
    }

    pub(super) fn opened(&mut self, path: PathBuf) -> usize {
        if let Some(number) = self.names.get(&path) {
            return *number;
        }
        let number = self.files;
        self.files += 1;
        self.names.insert(path.clone(), number);
        self.ops.push(Op::Create(path, number));
        number
    }

    /// Before and after every sync and every deletion.
    pub(crate) fn boundaries(&self) -> Vec<Cut> {
        let durable = |op: &Op| matches!(op, Op::Sync(_) | Op::Delete(..));
        let found = self.ops.iter().enumerate().filter(|(_, op)| durable(op));
        let mut cuts: Vec<Cut> = found.flat_map(|(at, _)| [at, at + 1]).collect();
        cuts.dedup();
        cuts
    }

    /// The marks up to this moment.
    pub(crate) fn marks(&self, cut: Cut) -> impl Iterator<Item = usize> {
        self.ops.iter().take(cut).filter_map(|op| match op {
            Op::Mark(number) => Some(*number),
            _ => None,
        })
    }

    /// Where the last mark before this moment stands that counts.
    pub(crate) fn last_mark(&self, cut: Cut, counts: impl Fn(usize) -> bool) -> Option<usize> {
        self.ops
            .iter()
            .take(cut)
            .rposition(|op| matches!(op, Op::Mark(number) if counts(*number)))
    }

    /// Writes into `folder` what the disk holds after a cut at this moment. The dice give any
    /// number; they are thrown for [`Survival::Some`] only.
    pub(crate) fn after(
        &self,
        cut: Cut,
        survival: Survival,
        dice: &mut dyn FnMut() -> u64,
        folder: &Path,
    ) -> std::io::Result<()> {
        let mut platter = Platter::default();
        for op in self.ops.iter().take(cut) {
            platter.apply(op);
        }
        for (path, content) in platter.power_off(survival, dice) {
            let name = path.file_name().unwrap_or(path.as_os_str());
            std::fs::write(folder.join(name), content)?;
        }
        Ok(())
    }
}

/// A change of a file's content that no sync has confirmed.
enum Change<'a> {
    Write(usize, &'a [u8]),
    Truncate(usize),
}

#[derive(Default)]
struct Content<'a> {
    durable: Vec<u8>,
    unsynced: Vec<Change<'a>>,
}

/// Which file a name stands for: the certain answer, then those that no sync has confirmed.
#[derive(Default)]
struct Name {
    durable: Option<usize>,
    unsynced: Vec<Option<usize>>,
}

impl Name {
    fn settle(&mut self) {
        if let Some(last) = self.unsynced.pop() {
            self.durable = last;
            self.unsynced.clear();
        }
    }
}

#[derive(Default)]
struct Platter<'a> {
    names: BTreeMap<&'a Path, Name>,
    files: BTreeMap<usize, Content<'a>>,
}

impl<'a> Platter<'a> {
    fn apply(&mut self, op: &'a Op) {
        match op {
            Op::Create(path, file) => {
                let name = self.names.entry(path).or_default();
                name.unsynced.push(Some(*file));
            }
            Op::Write(file, at, bytes) => {
                let content = self.files.entry(*file).or_default();
                content.unsynced.push(Change::Write(*at, bytes));
            }
            Op::Truncate(file, size) => {
                let content = self.files.entry(*file).or_default();
                content.unsynced.push(Change::Truncate(*size));
            }
            Op::Sync(file) => {
                let content = self.files.entry(*file).or_default();
                for change in std::mem::take(&mut content.unsynced) {
                    write_through(&mut content.durable, &change, &mut |_| true);
                }
                self.name_synced(*file);
            }
            Op::Delete(path, synced) => {
                let name = self.names.entry(path).or_default();
                name.unsynced.push(None);
                if *synced {
                    self.names.values_mut().for_each(Name::settle);
                }
            }
            Op::Mark(_) => {}
        }
    }

    /// The first sync of a file makes its name certain. With that of a journal or log SQLite syncs
    /// the folder, and with it every name.
    fn name_synced(&mut self, file: usize) {
        let is_new = |(_, name): &(&&Path, &mut Name)| name.unsynced.last() == Some(&Some(file));
        let Some((path, name)) = self.names.iter_mut().find(is_new) else {
            return;
        };
        let path = path.to_string_lossy();
        match path.ends_with("-journal") || path.ends_with("-wal") {
            true => self.names.values_mut().for_each(Name::settle),
            false => name.settle(),
        }
    }

    fn power_off(
        mut self,
        survival: Survival,
        dice: &mut dyn FnMut() -> u64,
    ) -> Vec<(&'a Path, Vec<u8>)> {
        let mut left = Vec::new();
        for (path, name) in &self.names {
            let confirmed = match survival {
                Survival::Nothing => 0,
                Survival::Everything => name.unsynced.len(),
                Survival::Some => below(dice, name.unsynced.len() + 1),
            };
            let file = match confirmed.checked_sub(1) {
                Some(last) => name.unsynced[last],
                None => name.durable,
            };
            if let Some(file) = file {
                let content = self.files.remove(&file).unwrap_or_default();
                left.push((*path, content.power_off(survival, dice)));
            }
        }
        left
    }
}

impl Content<'_> {
    fn power_off(mut self, survival: Survival, dice: &mut dyn FnMut() -> u64) -> Vec<u8> {
        for change in &self.unsynced {
            // 0: not there, 1: whole, 2: in some sectors.
            let fate = match survival {
                Survival::Nothing => 0,
                Survival::Everything => 1,
                Survival::Some => below(dice, 3),
            };
            match fate {
                0 => {}
                1 => write_through(&mut self.durable, change, &mut |_| true),
                _ => write_through(&mut self.durable, change, &mut |_| below(dice, 2) == 0),
            }
        }
        self.durable
    }
}

fn below(dice: &mut dyn FnMut() -> u64, n: usize) -> usize {
    usize::try_from(dice() % n as u64).unwrap_or(0)
}

/// Carries a change out, sector by sector where `there` says so. What a file gains in length
/// without a write is zero.
fn write_through(content: &mut Vec<u8>, change: &Change, there: &mut dyn FnMut(usize) -> bool) {
    match change {
        Change::Truncate(size) => {
            if there(0) {
                content.resize(*size, 0);
            }
        }
        Change::Write(at, bytes) => {
            let end = at + bytes.len();
            let mut from = *at;
            while from < end {
                let to = ((from / SECTOR + 1) * SECTOR).min(end);
                if there(from / SECTOR) {
                    if content.len() < to {
                        content.resize(to, 0);
                    }
                    content[from..to].copy_from_slice(&bytes[from - at..to - at]);
                }
                from = to;
            }
        }
    }
}
