//! Whether anyone may have committed, as the file system tells it. SQLite is asked when it says so,
//! and twice a second in any case: to ask SQLite costs as much as to wake up.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rusqlite::Connection;

/// Two writes closer together may leave the same time behind: file systems stamp in steps.
const TICK: Duration = Duration::from_millis(20);

/// The write-ahead log as it was last seen.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// None where it tells nothing: Windows stamps a file when it is closed.
    path: Option<PathBuf>,
    seen: Option<(u64, SystemTime)>,
    /// When it was first seen so.
    since: Duration,
    /// It has been looked at since a further write would show.
    settled: bool,
}

impl Log {
    pub(crate) fn of(conn: &Connection, is_wal: bool) -> Self {
        let name = conn.path().filter(|_| is_wal && cfg!(unix));
        Self {
            path: name.map(|it| format!("{it}-wal").into()),
            ..Self::default()
        }
    }

    /// Whether nothing was written since this last said that something may have been.
    pub(crate) fn is_silent(&mut self, now: Duration) -> bool {
        let Some(found) = self.path.as_ref().and_then(|it| it.metadata().ok()) else {
            return false;
        };
        let seen = found.modified().ok().map(|at| (found.len(), at));
        if seen.is_none() || seen != self.seen {
            self.seen = seen;
            self.since = now;
            self.settled = false;
            return false;
        }
        let settled = self.settled;
        self.settled |= now.saturating_sub(self.since) >= TICK;
        settled
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_silent_once_a_further_write_would_show() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("till.db-wal");
        let mut log = Log {
            path: Some(path.clone()),
            ..Log::default()
        };
        let at = |ms| Duration::from_millis(ms);
        assert!(!log.is_silent(at(0)), "there is none");
        std::fs::write(&path, "a").unwrap();
        assert!(!log.is_silent(at(100)), "it is new");
        assert!(
            !log.is_silent(at(110)),
            "a second write may bear the same time"
        );
        assert!(!log.is_silent(at(120)), "which this look would find");
        assert!(log.is_silent(at(121)));
        assert!(log.is_silent(at(9_000)));
        std::fs::write(&path, "ab").unwrap();
        assert!(!log.is_silent(at(9_001)));
        assert!(!log.is_silent(at(9_030)));
        assert!(log.is_silent(at(9_031)));
    }

    /// After a checkpoint the log is written from its beginning, and is as long as before.
    #[test]
    fn a_log_that_is_overwritten_at_the_same_length_is_not_silent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("till.db-wal");
        let mut log = Log {
            path: Some(path.clone()),
            ..Log::default()
        };
        let write = |text, seconds| {
            std::fs::write(&path, text).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            let stamp = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            file.set_modified(stamp).unwrap();
        };
        let at = |ms| Duration::from_millis(ms);
        write("one", 1_800_000_000);
        assert!(!log.is_silent(at(0)), "it is new");
        assert!(!log.is_silent(at(100)));
        assert!(log.is_silent(at(101)));
        write("two", 1_800_000_001);
        assert!(!log.is_silent(at(102)), "as long, and written since");
        // A clock that was set back stamps an earlier time.
        assert!(!log.is_silent(at(200)));
        assert!(log.is_silent(at(201)));
        write("six", 1_700_000_000);
        assert!(!log.is_silent(at(202)));
    }
}
