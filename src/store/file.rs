//! The file as a whole: its numbers, a copy of it, a smaller one of it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;

use crate::condition::FileInfo;
use crate::error::{Error, Result, unless_damaged};
use crate::schema;

fn number(conn: &Connection, pragma: &str) -> Result<u64> {
    let number: i64 = conn.query_row(pragma, [], |row| row.get(0))?;
    Ok(number.unsigned_abs())
}

/// The numbers of the file. What is damaged counts as nothing.
pub(crate) fn info(conn: &Connection, path: &Path) -> Result<FileInfo> {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |it| it.len());
    Ok(FileInfo {
        bytes: bytes(path),
        wal_bytes: bytes(Path::new(&log)),
        page_size: unless_damaged(number(conn, "PRAGMA page_size"))?,
        pages: unless_damaged(number(conn, "PRAGMA page_count"))?,
        free_pages: unless_damaged(number(conn, "PRAGMA freelist_count"))?,
        journal_mode: unless_damaged(journal_mode(conn))?,
        schema_version: unless_damaged(schema::version(conn))?.unwrap_or(0),
        sqlite: rusqlite::version().into(),
    })
}

pub(super) fn journal_mode(conn: &Connection) -> Result<String> {
    Ok(conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?)
}

/// Lets whoever throws the switch break off what a connection is doing.
fn watched(conn: &Connection, stop: &Arc<AtomicBool>) {
    /// Operations of SQLite's machine between two looks: some milliseconds.
    const OPERATIONS: i32 = 100_000;
    let stop = stop.clone();
    let _ = conn.progress_handler(OPERATIONS, Some(move || stop.load(Ordering::Acquire)));
}

/// An error of something that was broken off.
fn unless_stopped(error: Error, stop: &AtomicBool) -> Error {
    match stop.load(Ordering::Acquire) {
        true => Error::Cancelled,
        false => error,
    }
}

pub(crate) fn vacuum(conn: &Connection, stop: &Arc<AtomicBool>) -> Result<()> {
    watched(conn, stop);
    // It builds the new file among the temporary ones: a large one must not have to fit in memory.
    conn.execute_batch("PRAGMA temp_store = FILE; VACUUM")
        .map_err(|error| unless_stopped(error.into(), stop))?;
    // With a write-ahead log the file itself shrinks only now. Someone who still reads keeps it
    // from doing so; then a later checkpoint does it.
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(())
}

#[cfg(feature = "backup")]
pub(crate) use copy::backup;

#[cfg(feature = "backup")]
mod copy {
    use std::fs::OpenOptions;
    use std::io::{Error as IoError, ErrorKind};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use rusqlite::backup::{Backup, StepResult};
    use rusqlite::{Connection, OpenFlags};

    use super::{info, unless_stopped, watched};
    use crate::condition::FileInfo;
    use crate::error::{Error, Result};
    use crate::store::check::on_one_line;
    use crate::store::connect::BUSY_TIMEOUT;
    use crate::store::partial::{self, Partial};
    use crate::store::patience::Patience;

    /// Pages copied under one read lock, where that lock keeps writers waiting.
    const STEP: i32 = 256;

    /// Pages copied between two looks at the switch, where the lock is held to the end.
    const LONG_STEP: i32 = 1024;

    /// How long writers are let in between.
    const PAUSE: Duration = Duration::from_millis(5);

    /// How often the copy starts anew before it holds the lock, as long as nobody waits for too long.
    const RESTARTS: u32 = 3;

    /// Copies the file to a place where nothing is. It gets its name when it is whole and checked.
    pub(crate) fn backup(
        source: &Connection,
        from: &Path,
        to: &Path,
        patience: Option<&Patience>,
        stop: &Arc<AtomicBool>,
    ) -> Result<FileInfo> {
        let to = std::path::absolute(to).map_err(|_| Error::NotAFile(to.into()))?;
        sweep(&to);
        let failed = |error| refused(error, &to);
        let partial = Partial::beside(&to).map_err(failed)?;
        let copied = fill(source, partial.path(), patience, stop)
            .map_err(|error| unless_stopped(error, stop))?;
        partial.publish().map_err(failed)?;
        // The rights of the original and no more; last, as they may not even let its owner write.
        let rights = std::fs::metadata(from).map(|it| it.permissions());
        let _ = rights.and_then(|it| std::fs::set_permissions(&to, it));
        Ok(copied)
    }

    fn refused(error: IoError, to: &Path) -> Error {
        match (error.kind(), to.parent()) {
            (ErrorKind::AlreadyExists, _) => Error::Exists(to.into()),
            (ErrorKind::NotFound, Some(folder)) => Error::MissingFolder(folder.into()),
            _ => Error::ReadOnly(to.into()),
        }
    }

    fn flags() -> OpenFlags {
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX
    }

    /// Removes what backups to this place have left that were killed. One that is under way has
    /// its copy locked.
    fn sweep(to: &Path) {
        for path in partial::others(to) {
            let locked = Connection::open_with_flags(&path, flags()).and_then(|conn| {
                conn.busy_timeout(Duration::ZERO)?;
                conn.execute_batch("BEGIN EXCLUSIVE")
            });
            let busy = |error: rusqlite::Error| matches!(Error::from(error), Error::Busy(_));
            if !locked.is_err_and(busy) {
                partial::remove(&path);
            }
        }
    }

    fn fill(
        source: &Connection,
        to: &Path,
        patience: Option<&Patience>,
        stop: &Arc<AtomicBool>,
    ) -> Result<FileInfo> {
        let mut copy = Connection::open_with_flags(to, flags())?;
        // Its lock, held from the first page on, says that somebody is at work here.
        copy.query_row("PRAGMA locking_mode = EXCLUSIVE", [], |_| Ok(()))?;
        // Its last step would wait for the disk, and the source is locked as long. It goes there at the end.
        copy.execute_batch("PRAGMA synchronous = OFF")?;
        run(source, &mut copy, patience, stop)?;
        watched(&copy, stop);
        let found: String = copy.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        if found != "ok" {
            return Err(Error::Refused(format!(
                "the file is damaged, and so would be its copy: {}",
                on_one_line(&found)
            )));
        }
        let copied = info(&copy, to)?;
        copy.close().map_err(|(_, error)| error)?;
        let synced = OpenOptions::new()
            .write(true)
            .open(to)
            .and_then(|it| it.sync_all());
        synced.map_err(|error| refused(error, to))?;
        Ok(FileInfo {
            bytes: std::fs::metadata(to).map_or(copied.bytes, |it| it.len()),
            wal_bytes: 0,
            ..copied
        })
    }

    /// Whatever is read until the connection goes is of this moment.
    fn hold(source: &Connection) -> Result<()> {
        Ok(source.execute_batch("BEGIN; SELECT 1 FROM sqlite_master LIMIT 1")?)
    }

    fn no_peace() -> Error {
        Error::Refused(
            "the file is written to so often, and has no write-ahead log, that its writers would have to \
             wait for the whole copy: close the application for as long as a backup takes, or let it set \
             journal_mode=WAL"
                .into(),
        )
    }

    fn run(
        source: &Connection,
        copy: &mut Connection,
        patience: Option<&Patience>,
        stop: &AtomicBool,
    ) -> Result<()> {
        // Where that keeps nobody waiting, one moment of it is read to the end.
        let mut held = patience.is_none();
        if held {
            hold(source)?;
        }
        let backup = Backup::new(source, copy)?;
        let mut left = i32::MAX;
        let mut restarts = 0;
        let mut waited = Duration::ZERO;
        loop {
            if stop.load(Ordering::Acquire) {
                return Err(Error::Cancelled);
            }
            match backup.step(if held { LONG_STEP } else { STEP })? {
                StepResult::Done => return Ok(()),
                StepResult::More if held && patience.is_some_and(Patience::is_over) => {
                    return Err(no_peace());
                }
                StepResult::More if held => continue,
                StepResult::More => {
                    // Someone wrote, so it had to start anew.
                    let remaining = backup.progress().remaining;
                    restarts += u32::from(remaining > left);
                    left = remaining;
                    if restarts >= RESTARTS {
                        hold(source)?;
                        held = true;
                        patience.inspect(|it| it.begin());
                    }
                }
                _ if waited < BUSY_TIMEOUT => waited += PAUSE,
                _ => {
                    return Err(Error::Busy(rusqlite::Error::SqliteFailure(
                        rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY),
                        None,
                    )));
                }
            }
            crate::clock::pause(PAUSE);
        }
    }
}
