//! A SQLite VFS for tests and benches: real SQLite on real files, through the system's own VFS,
//! with a slow disk, calls that fail, and a record of everything written, from which the disk
//! after a power cut is made.
//!
//! `#[path = "../vfs/mod.rs"] mod vfs;`, then `Outbox::options().vfs(vfs.name())`, or
//! `Connection::open_with_flags_and_vfs(path, flags, vfs.name())`.

// A test or a bench takes what it needs of it.
#![allow(dead_code, unused_imports)]

mod disk;
mod faults;
mod file;
mod shim;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) use disk::{Cut, Disk, Op, Survival};
pub(crate) use faults::{Call, Fault, Trouble};

use faults::Faults;

/// A registered VFS. It stays registered for the life of the process, as SQLite may use it as long.
#[derive(Clone)]
pub(crate) struct Vfs {
    name: String,
    state: Arc<State>,
}

/// What all files of one VFS have in common.
#[derive(Default)]
struct State {
    sync_micros: AtomicU64,
    syncs: AtomicU64,
    faults: Mutex<Faults>,
    disk: Mutex<Option<Disk>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Vfs {
    /// Registers a VFS with a name that no other has.
    pub(crate) fn register() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let name = format!("outbox-test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let state = Arc::new(State::default());
        shim::register(&name, Arc::clone(&state));
        Self { name, state }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// How much longer every sync takes from now on. Default: no longer.
    pub(crate) fn sync_takes(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.state.sync_micros.store(micros, Ordering::Relaxed);
    }

    /// Syncs of all files so far.
    pub(crate) fn syncs(&self) -> u64 {
        self.state.syncs.load(Ordering::Relaxed)
    }

    /// From now on calls fail as this says; a former plan is forgotten.
    pub(crate) fn fail(&self, fault: Fault) {
        *locked(&self.state.faults) = Faults::new(fault);
    }

    /// Nothing fails any more. Returns how many calls did.
    pub(crate) fn heal(&self) -> u64 {
        std::mem::take(&mut *locked(&self.state.faults)).struck()
    }

    /// Begins to record what is written. The files must not be there yet.
    pub(crate) fn record(&self) {
        *locked(&self.state.disk) = Some(Disk::default());
    }

    /// Notes in the record that something happened at this moment, outside the disk.
    pub(crate) fn mark(&self, number: usize) {
        self.state.note(|| Op::Mark(number));
    }

    /// What was recorded.
    pub(crate) fn recorded(&self) -> Disk {
        locked(&self.state.disk).take().unwrap_or_default()
    }
}

impl State {
    /// The result code with which this call is to fail, if it is.
    fn trouble(&self, call: Call) -> Option<i32> {
        locked(&self.faults).strike(call)
    }

    fn note(&self, op: impl FnOnce() -> Op) {
        if let Some(disk) = locked(&self.disk).as_mut() {
            disk.push(op());
        }
    }

    /// The number of the file at this path, for the record; made there if it is new.
    fn opened(&self, path: &std::path::Path) -> Option<usize> {
        let mut disk = locked(&self.disk);
        disk.as_mut().map(|disk| disk.opened(PathBuf::from(path)))
    }

    fn synced(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        match self.sync_micros.load(Ordering::Relaxed) {
            0 => {}
            micros => std::thread::sleep(Duration::from_micros(micros)),
        }
    }
}
