//! What several modules need.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::testing::ManualClock;
use sqlite_outbox::{Enqueued, Message, Outbox, Result};
use tempfile::TempDir;

/// A folder of its own for one database.
pub(crate) struct Till {
    pub(crate) folder: TempDir,
    pub(crate) path: PathBuf,
}

impl Till {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("till.db");
        Self { folder, path }
    }

    /// A database that an application made with this script.
    pub(crate) fn with(script: &str) -> Self {
        let till = Self::new();
        till.sql().execute_batch(script).unwrap();
        till
    }

    pub(crate) fn open(&self) -> Outbox {
        Outbox::open(&self.path).unwrap()
    }

    /// The outbox on a clock that is set by hand.
    pub(crate) fn manual(&self, now: i64) -> (ManualClock, Outbox) {
        let clock = ManualClock::at(now);
        let options = Outbox::options().clock(clock.shared());
        (clock, options.open(&self.path).unwrap())
    }

    /// A connection as an application has it, which knows nothing of the outbox.
    pub(crate) fn sql(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> = names
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// Enqueues in a transaction of its own.
pub(crate) fn put(outbox: &Outbox, message: &Message) -> Result<Enqueued> {
    outbox.transaction(|tx| outbox.enqueue(tx, message))
}

/// Numbers, texts and nulls of a query's first column, as text.
pub(crate) fn column(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(sql).unwrap();
    let values = statement.query_map([], |row| {
        Ok(match row.get_ref(0)? {
            sqlite_outbox::rusqlite::types::ValueRef::Null => "null".into(),
            sqlite_outbox::rusqlite::types::ValueRef::Integer(it) => it.to_string(),
            sqlite_outbox::rusqlite::types::ValueRef::Real(it) => it.to_string(),
            other => String::from_utf8_lossy(other.as_bytes().unwrap()).into_owned(),
        })
    });
    values.unwrap().map(|it| it.unwrap()).collect()
}

pub(crate) fn one(conn: &Connection, sql: &str) -> String {
    let mut values = column(conn, sql);
    assert_eq!(values.len(), 1, "{sql}: {values:?}");
    values.remove(0)
}

/// Time for another thread or process to get on.
pub(crate) fn nap(milliseconds: u64) {
    std::thread::sleep(std::time::Duration::from_millis(milliseconds));
}

const CHILD: &str = "OUTBOX_TEST_CHILD";

/// Another process that runs the test `name`, which finds `argument` by [`argument`].
pub(crate) fn child(name: &str, argument: &std::path::Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, argument)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A child that no failing test leaves behind.
pub(crate) struct Process(pub(crate) std::process::Child);

impl Process {
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What the parent process gave, if this is a child.
pub(crate) fn argument() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// Waits for a child and shows what it said if it failed.
pub(crate) fn succeeded(child: std::process::Child) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{error}");
    assert!(said.contains("1 passed"), "no such test: {said}");
}

/// Whether the long forms are wanted.
pub(crate) fn long() -> bool {
    std::env::var_os("OUTBOX_LONG").is_some()
}

/// SplitMix64, so that a seed replays everywhere.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: i64) -> i64 {
        (self.next() % n.unsigned_abs()) as i64
    }

    pub(crate) fn percent(&mut self, p: i64) -> bool {
        self.below(100) < p
    }
}

/// Syncs cost nothing in memory: for tests that are not about them.
pub(crate) fn folder_in_memory() -> TempDir {
    let memory = std::path::Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}
