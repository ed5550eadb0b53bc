//! Which calls fail, and how.

use sqlite_outbox::rusqlite::ffi;

/// What SQLite asks of a VFS, as far as it can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Open,
    Delete,
    Read,
    Write,
    Sync,
    Truncate,
    Lock,
    /// Mapping shared memory.
    ShmMap,
    /// Locking shared memory: how connections to a write-ahead log wait for each other.
    ShmLock,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The disk answers with an error.
    Io,
    /// The disk is full. Half of a write gets through, as on a real one.
    Full,
    /// Someone else holds the lock.
    Busy,
}

/// The calls from the `first` one on fail, `times` of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) calls: &'static [Call],
    /// 1 is the next call.
    pub(crate) first: u64,
    pub(crate) times: u64,
    pub(crate) trouble: Trouble,
}

/// A plan under way.
#[derive(Default)]
pub(crate) struct Faults {
    plan: Option<Fault>,
    seen: u64,
    struck: u64,
}

impl Faults {
    pub(crate) fn new(plan: Fault) -> Self {
        Self {
            plan: Some(plan),
            ..Self::default()
        }
    }

    pub(crate) fn struck(&self) -> u64 {
        self.struck
    }

    /// Counts this call; the result code if it must fail.
    pub(crate) fn strike(&mut self, call: Call) -> Option<i32> {
        let plan = self.plan.filter(|it| it.calls.contains(&call))?;
        self.seen += 1;
        if self.seen < plan.first || self.seen - plan.first >= plan.times {
            return None;
        }
        self.struck += 1;
        Some(code(call, plan.trouble))
    }
}

fn code(call: Call, trouble: Trouble) -> i32 {
    match (trouble, call) {
        (Trouble::Full, _) => ffi::SQLITE_FULL,
        (Trouble::Busy, _) => ffi::SQLITE_BUSY,
        (Trouble::Io, Call::Open) => ffi::SQLITE_CANTOPEN,
        (Trouble::Io, Call::Delete) => ffi::SQLITE_IOERR_DELETE,
        (Trouble::Io, Call::Read) => ffi::SQLITE_IOERR_READ,
        (Trouble::Io, Call::Write) => ffi::SQLITE_IOERR_WRITE,
        (Trouble::Io, Call::Sync) => ffi::SQLITE_IOERR_FSYNC,
        (Trouble::Io, Call::Truncate) => ffi::SQLITE_IOERR_TRUNCATE,
        (Trouble::Io, Call::Lock) => ffi::SQLITE_IOERR_LOCK,
        (Trouble::Io, Call::ShmMap) => ffi::SQLITE_IOERR_SHMMAP,
        (Trouble::Io, Call::ShmLock) => ffi::SQLITE_IOERR_SHMLOCK,
    }
}
