//! The file as it lies on its disk: journal, log, unused space, and the SQLite that reads it.

use std::path::Path;

use rusqlite::Connection;

use crate::condition::{FileInfo, Finding, Severity};
use crate::error::{Error, Result};
use crate::store::beside;
use crate::store::check::{self, WriteLock};

use Severity::{Note, Warning};

/// A write-ahead log that was not cleaned for long.
const LARGE_LOG: u64 = 64 * 1024 * 1024;

/// One that is so large beside its file goes on growing, or was left by a single large transaction.
const ODD_LOG: u64 = 16 * 1024 * 1024;
const ODD_SHARE: u64 = 8;

/// Whoever asks may only look. That is no news of those who send.
pub(crate) const NOT_WRITABLE: &str = "not_writable";

/// Unused space that is worth a word.
const MUCH_FREE: u64 = 10 * 1024 * 1024;

/// The versions of SQLite that may lose the write-ahead log's last commits when it is reset by one
/// connection while another writes.
const WAL_RESET: std::ops::RangeInclusive<i32> = 3_007_000..=3_051_002;

pub(super) fn findings(info: &FileInfo, sqlite: i32) -> Vec<Finding> {
    let wal = info.journal_mode == "wal";
    let mut found = vec![match wal {
        true => Finding::new(
            Note,
            "journal_mode",
            "for the record: the file has a write-ahead log; a power cut undoes no commit of the outbox",
            "the application should set synchronous=FULL as well: with NORMAL a power cut takes back its \
             last commits, the sale and its message together",
        ),
        false => Finding::new(
            Note,
            "journal_mode",
            format!(
                "for the record: the file has no write-ahead log (journal_mode={}): readers and writers wait for each other",
                info.journal_mode
            ),
            "on a local disk, `PRAGMA journal_mode = WAL` makes both quicker; it is the \
             application's decision. Without it, see that the application sets synchronous=EXTRA: \
             with FULL a power cut may take back its last commit, the sale and its message together",
        ),
    }];
    if wal && WAL_RESET.contains(&sqlite) {
        found.push(Finding::new(
            Warning,
            "sqlite_version",
            format!(
                "this program uses SQLite {}, which in rare cases loses commits when two connections \
                 use a write-ahead log",
                info.sqlite
            ),
            "use SQLite 3.51.3 or newer in every program that opens the file",
        ));
    }
    let beside = info.bytes.saturating_mul(ODD_SHARE).max(ODD_LOG);
    if info.wal_bytes > LARGE_LOG.min(beside) {
        let megabytes = info.wal_bytes / 1_000_000;
        found.push(Finding::new(
            Warning,
            "large_wal",
            format!("the write-ahead log has {megabytes} MB"),
            "a connection that keeps a read transaction open pins it: a query never read to its end or \
             not closed, a BEGIN without COMMIT, a report or backup under way. `lsof` or `fuser` on \
             the file's -shm names the programs that have it open; let that one end its transaction, and \
             `PRAGMA wal_checkpoint(TRUNCATE)` then empties the log",
        ));
    }
    let free = info.free_bytes();
    if free > MUCH_FREE && free > info.pages.saturating_mul(info.page_size) / 4 {
        let megabytes = free / 1_000_000;
        let finding = Finding::new(
            Note,
            "free_pages",
            format!("{megabytes} MB of the file are unused"),
            "they are used again; compact gives them to the disk",
        );
        found.push(finding.command(["compact"]));
    }
    found
}

/// What keeps this program from writing, or whoever may write the file.
pub(super) fn hindrance(conn: &Connection, path: &Path) -> Result<Option<Finding>> {
    if let Some(Error::Denied { path, rights }) = beside::denied(path) {
        let text = format!(
            "{} has other rights than the file ({rights}): who may write the file cannot use it, and neither sales \
             nor deliveries can be recorded",
            path.display()
        );
        return Ok(Some(Finding::new(
            Severity::Fault,
            "denied",
            text,
            LIKE_THE_FILE,
        )));
    }
    if !check::is_writable(conn)? {
        return Ok(Some(Finding::new(
            Note,
            NOT_WRITABLE,
            "this user may not write the file; what is told is what can be read",
            "to look needs no more; a program that enqueues or sends has to run as a user who may write the file, its \
             folder and the -wal, -shm or -journal beside it: `ls -l` shows whose they are, `chown` \
             gives them to that user",
        )));
    }
    Ok(match check::write_lock(conn)? {
        WriteLock::Free => None,
        WriteLock::Held => Some(locked()),
        WriteLock::Denied => Some(Finding::new(
            Severity::Fault,
            "denied",
            "the file may be written by this user, and its -wal or -shm may not: neither sales nor deliveries can be \
             recorded",
            LIKE_THE_FILE,
        )),
    })
}

const LIKE_THE_FILE: &str = "give what lies beside the file its owner and rights (`ls -l`, `chown`, `chmod`), and \
     run every program that opens it as one user";

/// Somebody keeps the write lock.
fn locked() -> Finding {
    Finding::new(
        Warning,
        "write_lock",
        "the write lock was held whenever it was looked at, for two seconds: neither sales nor \
         deliveries can be recorded meanwhile",
        "`lsof` or `fuser` on the file names the programs that have it open: one of them writes much, \
         or has left a transaction open, and should end it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_large_beside_its_file_is_told() {
        let told = |bytes, wal_bytes| {
            let info = FileInfo {
                bytes,
                wal_bytes,
                journal_mode: "wal".into(),
                ..FileInfo::default()
            };
            let found = findings(&info, 3_053_000);
            found.iter().any(|it| it.code == "large_wal")
        };
        assert!(told(102_000, 60_900_000) && told(1 << 30, LARGE_LOG + 1));
        assert!(!told(102_000, ODD_LOG) && !told(1 << 24, 60_900_000));
    }

    #[test]
    fn a_sqlite_that_may_lose_commits_of_a_log_is_named() {
        let told = |mode: &str, sqlite| {
            let info = FileInfo {
                journal_mode: mode.into(),
                ..FileInfo::default()
            };
            let found = findings(&info, sqlite);
            found.iter().any(|it| it.code == "sqlite_version")
        };
        assert!(told("wal", 3_040_001) && told("wal", 3_051_002));
        assert!(!told("wal", 3_051_003) && !told("delete", 3_040_001));
        #[cfg(feature = "bundled")]
        assert!(!told("wal", rusqlite::version_number()), "what we ship");
    }
}
