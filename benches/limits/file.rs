//! Databases to measure on, on a real disk: beside the build, not in a folder that may be memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Message, Outbox};
use tempfile::TempDir;

/// The channel of what is measured.
pub const CHANNEL: &str = "sales";

/// A database that goes with its value.
#[derive(Debug)]
pub struct Till {
    _folder: TempDir,
    pub path: PathBuf,
}

impl Till {
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let path = folder.path().join("till.db");
        Ok(Self {
            _folder: folder,
            path,
        })
    }

    pub fn open(&self) -> Result<Outbox> {
        Ok(Outbox::open_existing(&self.path)?)
    }
}

/// Files that were filled before: filling takes longer than copying.
#[derive(Debug, Default)]
pub struct Templates {
    known: RefCell<HashMap<(usize, Option<&'static str>), Till>>,
}

impl Templates {
    /// A new file with this many messages to send, of no lane or all of one.
    pub fn till(&self, messages: usize, ordering_key: Option<&'static str>) -> Result<Till> {
        let till = Till::new()?;
        let mut known = self.known.borrow_mut();
        let template = match known.entry((messages, ordering_key)) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => {
                let template = Till::new()?;
                Outbox::open(&template.path)?;
                fill(&template.path, messages, ordering_key)?;
                place.insert(template)
            }
        };
        // Nobody has it open, and its log is empty.
        std::fs::copy(&template.path, &till.path)?;
        // What was copied is not to be written while something is measured.
        File::options().write(true).open(&till.path)?.sync_all()?;
        Ok(till)
    }
}

/// A sale of 300 bytes.
pub fn payload() -> String {
    format!(r#"{{"id":"S-104522","total":1250,"lines":"{:x<258}"}}"#, "")
}

/// A message as a till enqueues it.
pub fn message(number: usize) -> Message {
    Message::text(CHANNEL, payload())
        .content_type("application/json")
        .dedupe_key(format!("S-{number}"))
}

/// By plain SQL, as any program would, and the log emptied, so that every run starts alike.
fn fill(path: &Path, messages: usize, ordering_key: Option<&str>) -> Result<()> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(Duration::from_secs(5))?;
    conn.execute(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
         INSERT INTO outbox (channel, dedupe_key, ordering_key, payload)
         SELECT ?1, 'S-' || i, ?3, ?4 FROM n WHERE i <= ?2",
        (CHANNEL, messages as i64, ordering_key, payload()),
    )?;
    empty_log(&conn)
}

pub fn empty_log(conn: &Connection) -> Result<()> {
    Ok(conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?)
}

/// How long the disk takes to write one page durably, by the call that SQLite makes.
pub fn sync_time() -> Result<Duration> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let mut file = File::create(folder.path().join("page"))?;
    let mut times = Vec::new();
    for _ in 0..200 {
        file.rewind()?;
        file.write_all(&[1; 4096])?;
        let begun = Instant::now();
        file.sync_all()?;
        times.push(begun.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}
