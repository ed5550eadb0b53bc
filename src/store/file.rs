//! The file as a whole: its numbers, a copy of it, a smaller one of it.

use std::path::Path;

use rusqlite::Connection;

use crate::condition::FileInfo;
use crate::error::{Result, unless_damaged};
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

fn journal_mode(conn: &Connection) -> Result<String> {
    Ok(conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?)
}

pub(crate) fn vacuum(conn: &Connection) -> Result<()> {
    // It builds the new file among the temporary ones: a large one must not have to fit in memory.
    conn.execute_batch("PRAGMA temp_store = FILE; VACUUM")?;
    // With a write-ahead log the file itself shrinks only now. Someone who still reads keeps it
    // from doing so; then a later checkpoint does it.
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(())
}

#[cfg(feature = "backup")]
pub(crate) use copy::backup;

#[cfg(feature = "backup")]
mod copy {
    use std::fs::{File, OpenOptions};
    use std::io::ErrorKind;
    use std::path::Path;
    use std::time::Duration;

    use rusqlite::backup::{Backup, StepResult};
    use rusqlite::{Connection, OpenFlags};

    use super::info;
    use crate::condition::FileInfo;
    use crate::error::{Error, Result};
    use crate::store::check::on_one_line;
    use crate::store::connect::BUSY_TIMEOUT;

    /// Pages copied under one read lock, where that lock keeps writers waiting.
    const STEP: i32 = 256;

    /// How long writers are let in between.
    const PAUSE: Duration = Duration::from_millis(5);

    /// How often the copy starts anew before it holds the lock to the end.
    const PATIENCE: u32 = 3;

    /// Copies the file to a place where nothing is.
    pub(crate) fn backup(source: &Connection, from: &Path, to: &Path) -> Result<FileInfo> {
        let to = std::path::absolute(to).map_err(|_| Error::NotAFile(to.into()))?;
        claim(from, &to)?;
        let copied = fill(source, &to);
        if copied.is_err() {
            for end in ["", "-journal", "-wal", "-shm"] {
                let mut name = to.as_os_str().to_owned();
                name.push(end);
                let _ = std::fs::remove_file(name);
            }
        }
        copied
    }

    /// Makes the empty file, with the rights of the original and no more.
    fn claim(from: &Path, to: &Path) -> Result<()> {
        match OpenOptions::new().write(true).create_new(true).open(to) {
            Ok(file) => {
                let rights = std::fs::metadata(from).map(|it| it.permissions());
                let _ = rights.and_then(|it| file.set_permissions(it));
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Error::Exists(to.into())),
            Err(error) => Err(match (error.kind(), to.parent()) {
                (ErrorKind::NotFound, Some(folder)) => Error::MissingFolder(folder.into()),
                _ => Error::ReadOnly(to.into()),
            }),
        }
    }

    fn fill(source: &Connection, to: &Path) -> Result<FileInfo> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut copy = Connection::open_with_flags(to, flags)?;
        run(source, &mut copy)?;
        let found: String = copy.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        if found != "ok" {
            return Err(Error::Refused(format!(
                "the file is damaged, and so would be its copy: {}",
                on_one_line(&found)
            )));
        }
        let copied = info(&copy, to)?;
        copy.close().map_err(|(_, error)| error)?;
        // So that a power cut does not take the name away again.
        if let Some(folder) = to.parent()
            && let Ok(folder) = File::open(folder)
        {
            let _ = folder.sync_all();
        }
        Ok(FileInfo {
            bytes: std::fs::metadata(to).map_or(copied.bytes, |it| it.len()),
            wal_bytes: 0,
            ..copied
        })
    }

    fn run(source: &Connection, copy: &mut Connection) -> Result<()> {
        let mode: String = source.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
        let backup = Backup::new(source, copy)?;
        // Readers of a write-ahead log keep nobody waiting.
        let mut step = if mode == "wal" { -1 } else { STEP };
        let mut left = i32::MAX;
        let mut restarts = 0;
        let mut waited = Duration::ZERO;
        loop {
            match backup.step(step)? {
                StepResult::Done => return Ok(()),
                StepResult::More => {
                    // Someone wrote, so it had to start anew.
                    let remaining = backup.progress().remaining;
                    restarts += u32::from(remaining > left);
                    left = remaining;
                    if restarts >= PATIENCE {
                        step = -1;
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
