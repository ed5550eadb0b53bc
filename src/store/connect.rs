//! Opening connections: what is checked before a file is touched, and what every connection of
//! ours has set.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use r2d2::ManageConnection;
use r2d2_sqlite::SqliteConnectionManager;
use rusqlite::ffi::SQLITE_READONLY_DBMOVED;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use crate::condition::FileInfo;
use crate::error::{Error, Result, unless_damaged};
use crate::schema;
use crate::store::place::Place;
use crate::store::{beside, file, look};

/// The application's part in every new connection of ours.
pub(crate) type ConnectHook = dyn Fn(&Connection) -> rusqlite::Result<()> + Send + Sync;

/// How long a connection waits for the write lock.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// `RETURNING` came with this version.
const OLDEST_SQLITE: i32 = 3_035_000;

/// Makes connections to one file, all alike.
pub(crate) struct Opener {
    path: PathBuf,
    place: Arc<Place>,
    manager: SqliteConnectionManager,
    hook: Option<Arc<ConnectHook>>,
    vfs: Option<String>,
    process: u32,
    access: Access,
    /// A connection was opened without locks.
    unlocked: AtomicBool,
}

/// What connections are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// To read and to write.
    Full,
    /// To look, also where this user may not write.
    Look,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Opener").field(&self.path).finish()
    }
}

impl Opener {
    /// Checks that `path` can name a file. A relative path is fixed now, so that a program which
    /// changes its directory later goes on with the same file.
    pub(crate) fn new(
        path: &Path,
        hook: Option<Arc<ConnectHook>>,
        vfs: Option<String>,
        access: Access,
    ) -> Result<Self> {
        supported(rusqlite::version_number(), rusqlite::version())?;
        let name = path.as_os_str().as_encoded_bytes();
        // SQLite takes `file:…` for a URI, whatever flags it is opened with.
        if name.is_empty() || name == b":memory:" || name.starts_with(b"file:") {
            return Err(Error::NotAFile(path.into()));
        }
        let path = std::path::absolute(path).map_err(|_| Error::NotAFile(path.into()))?;
        let first = hook.clone();
        let manager = SqliteConnectionManager::file(&path)
            .with_flags(flags())
            .with_init(move |conn| begin(conn, first.as_deref()));
        Ok(Self {
            place: Arc::new(Place::new(&path)),
            path,
            manager,
            hook,
            vfs,
            process: std::process::id(),
            access,
            unlocked: AtomicBool::new(false),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still means the file that was opened.
    pub(crate) fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Refuses to write through connections that are for a look.
    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.access {
            Access::Full => Ok(()),
            Access::Look => Err(Error::ReadOnly(self.path.clone())),
        }
    }

    /// Whether a connection reads the file as it lies.
    pub(crate) fn unlocked(&self) -> bool {
        self.unlocked.load(Ordering::Relaxed)
    }

    /// Refuses to work in a child process: SQLite's locks do not survive a fork.
    pub(crate) fn check_process(&self) -> Result<()> {
        match std::process::id() == self.process {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    /// What is promised of every connection, each time it is handed out.
    pub(crate) fn vouch(&self, conn: &Connection) -> Result<()> {
        match self.access {
            // Only the application's hook may have given it more patience, so it need not be asked.
            Access::Full if self.hook.is_none() => {
                conn.busy_timeout(BUSY_TIMEOUT)?;
                sync_commits(conn)
            }
            Access::Full => vouch(conn),
            Access::Look => unless_damaged(vouch(conn)),
        }
    }

    /// The numbers of the file.
    pub(crate) fn info(&self, conn: &Connection) -> Result<FileInfo> {
        let mut info = file::info(conn, &self.path)?;
        // A connection that reads it as it lies knows of no log.
        if self.unlocked() && look::has_log_mode(&self.path) {
            info.journal_mode = "wal".into();
        }
        Ok(info)
    }

    /// The random name of this file; a look does without it where it cannot be read.
    pub(crate) fn instance_id(&self, conn: &Connection) -> Result<String> {
        match self.access {
            Access::Full => schema::instance_id(conn),
            Access::Look => unless_damaged(schema::instance_id(conn)),
        }
    }

    /// A further connection to the file.
    pub(crate) fn open(&self) -> Result<Connection> {
        self.check_process()?;
        // A log that the former file has left would be read into another one.
        self.place.check()?;
        let exists = self.exists()?;
        if !exists {
            return Err(Error::Missing(self.path.clone()));
        }
        if self.access == Access::Look {
            let (conn, unlocked) = look::open(&self.path, &|path, flags| self.dial(path, flags))?;
            self.unlocked.fetch_or(unlocked, Ordering::Relaxed);
            return Ok(conn);
        }
        let conn = match &self.vfs {
            None => self.manager.connect(),
            Some(_) => self.dial(&self.path, flags()),
        };
        conn.map_err(Error::from)
            .and_then(prepare)
            .map_err(|error| self.explain(error))
    }

    /// A connection by ways that the pool's manager does not know.
    fn dial(&self, path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
        let conn = match &self.vfs {
            None => Connection::open_with_flags(path, flags),
            Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs.as_str()),
        }?;
        begin(&conn, self.hook.as_deref())?;
        Ok(conn)
    }

    /// The first connection. With `create` it makes the file and the tables where they are
    /// missing; without, it changes nothing.
    pub(crate) fn establish(&self, create: bool) -> Result<Connection> {
        let conn = self.first(create)?;
        self.place.take();
        Ok(conn)
    }

    fn first(&self, create: bool) -> Result<Connection> {
        if self.exists()? {
            let mut conn = self.open()?;
            self.furnish(&mut conn, create)
                .map_err(|error| self.explain(error))?;
            return Ok(conn);
        }
        if !create {
            return Err(Error::Missing(self.path.clone()));
        }
        match self.path.parent() {
            Some(folder) if !folder.is_dir() => return Err(Error::MissingFolder(folder.into())),
            _ => {}
        }
        let flags = flags() | OpenFlags::SQLITE_OPEN_CREATE;
        let conn =
            self.dial(&self.path, flags)
                .map_err(|error| match error.sqlite_error_code() {
                    Some(ErrorCode::CannotOpen) => Error::ReadOnly(self.path.clone()),
                    _ => Error::from(error),
                })?;
        prepare(conn)
            .and_then(|mut conn| self.furnish(&mut conn, true).map(|()| conn))
            .map_err(|error| self.explain(error))
    }

    fn furnish(&self, conn: &mut Connection, create: bool) -> Result<()> {
        if self.access == Access::Look {
            return unless_damaged(schema::check_readable(conn, &self.path));
        }
        if create {
            write_ahead(conn)?;
        }
        schema::install(conn, &self.path, create)
    }

    /// Whether there is a file. Anything else at this path is an error: opening a pipe would hang.
    fn exists(&self) -> Result<bool> {
        match std::fs::metadata(&self.path) {
            Ok(found) if found.is_file() => Ok(true),
            Ok(_) => Err(Error::NotAFile(self.path.clone())),
            Err(error) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory => Ok(false),
                ErrorKind::PermissionDenied => Err(Error::Unreadable(self.path.clone())),
                _ => Err(Error::NotAFile(self.path.clone())),
            },
        }
    }

    /// Says it in terms of the file where SQLite's answer means that.
    pub(crate) fn explain(&self, error: impl Into<Error>) -> Error {
        explain(&self.path, error.into())
    }
}

/// See [`Opener::explain`].
pub(crate) fn explain(path: &Path, error: Error) -> Error {
    let denied = || beside::denied(path).unwrap_or_else(|| Error::ReadOnly(path.into()));
    match error {
        Error::Sqlite(cause) => match cause.sqlite_error().map(|it| (it.code, it.extended_code)) {
            Some((_, SQLITE_READONLY_DBMOVED)) => Error::Replaced(path.into()),
            Some((ErrorCode::NotADatabase, _)) => Error::NotADatabase(path.into()),
            Some((ErrorCode::ReadOnly, _)) => denied(),
            Some((ErrorCode::CannotOpen, _)) => {
                beside::denied(path).unwrap_or(Error::Sqlite(cause))
            }
            _ => Error::Sqlite(cause),
        },
        Error::ReadOnly(_) => denied(),
        error => error,
    }
}

fn supported(number: i32, name: &str) -> Result<()> {
    match number >= OLDEST_SQLITE {
        true => Ok(()),
        false => Err(Error::SqliteTooOld(name.into())),
    }
}

/// No creating, no URI, no cache shared with the application (it has other locks).
fn flags() -> OpenFlags {
    OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE
}

/// What comes before anything is read. The application's part is second and has the last word.
///
/// What SQLite sets aside to be able to undo a statement stays in memory: in a large transaction it
/// would go to a file and cost several writes for every message. Nothing of it lasts, and a SQLite
/// built to know better goes its own way.
fn begin(conn: &Connection, hook: Option<&ConnectHook>) -> rusqlite::Result<()> {
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    hook.map_or(Ok(()), |hook| hook(conn))
}

/// What all connections of ours have in common. Changes nothing in the file.
fn prepare(conn: Connection) -> Result<Connection> {
    if conn.is_readonly("main")? || number(&conn, "PRAGMA query_only")? != 0 {
        return Err(Error::ReadOnly(PathBuf::new()));
    }
    vouch(&conn)?;
    Ok(conn)
}

/// See [`Opener::vouch`].
pub(super) fn vouch(conn: &Connection) -> Result<()> {
    let wanted = crate::clock::millis(BUSY_TIMEOUT);
    if number(conn, "PRAGMA busy_timeout")? < wanted {
        conn.busy_timeout(BUSY_TIMEOUT)?;
        let found = number(conn, "PRAGMA busy_timeout")?;
        taken("busy_timeout", wanted, found, found == wanted)?;
    }
    sync_commits(conn)
}

/// Makes every commit wait for the disk. 3 is EXTRA. With a write-ahead log that is FULL; with a
/// rollback journal FULL alone does not sync the deletion of the journal, and a power cut just after
/// a commit takes it back.
fn sync_commits(conn: &Connection) -> Result<()> {
    if number(conn, "PRAGMA synchronous")? < 3 {
        conn.execute_batch("PRAGMA synchronous = EXTRA")?;
        let found = number(conn, "PRAGMA synchronous")?;
        taken("synchronous", 3, found, found == 3)?;
    }
    Ok(())
}

fn number(conn: &Connection, pragma: &str) -> Result<i64> {
    Ok(conn.query_row(pragma, [], |row| row.get(0))?)
}

fn taken(
    name: &'static str,
    wanted: impl ToString,
    found: impl ToString,
    good: bool,
) -> Result<()> {
    match good {
        true => Ok(()),
        false => Err(Error::Pragma {
            name,
            wanted: wanted.to_string(),
            found: found.to_string(),
        }),
    }
}

/// Gives a database that nobody has put anything into the write-ahead log. Any other is left as it
/// is, also one that somebody else begins at this moment: who begins a file is settled under its lock.
///
/// While another connection is at work, SQLite refuses the change at once instead of waiting.
fn write_ahead(conn: &Connection) -> Result<()> {
    const STEP: Duration = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
    while is_blank(conn)? {
        let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
        let ours = is_blank(&tx)?;
        // Writes the first page, so that whoever comes now finds a file that was begun.
        tx.commit()?;
        if !ours {
            break;
        }
        let mode = conn.query_row("PRAGMA journal_mode = WAL", [], |row| {
            row.get::<_, String>(0)
        });
        match mode.map_err(Error::from) {
            Ok(mode) => return taken("journal_mode", "wal", &mode, mode == "wal"),
            Err(Error::Busy(_)) if waited < BUSY_TIMEOUT => crate::clock::pause(STEP),
            Err(error) => return Err(error),
        }
        waited += STEP;
    }
    Ok(())
}

/// Whether there never was a table in it, nor a version of the application's.
fn is_blank(conn: &Connection) -> Result<bool> {
    Ok(number(conn, "PRAGMA schema_version")? == 0 && number(conn, "PRAGMA user_version")? == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_sqlite_is_refused_by_name() {
        assert!(supported(3_035_000, "3.35.0").is_ok());
        let error = supported(3_034_001, "3.34.1").unwrap_err();
        assert!(matches!(error, Error::SqliteTooOld(version) if version == "3.34.1"));
    }

    #[test]
    fn another_process_may_not_use_the_connections() {
        let mut opener = Opener::new(Path::new("till.db"), None, None, Access::Full).unwrap();
        assert!(opener.check_process().is_ok());
        opener.process = opener.process.wrapping_add(1);
        assert!(matches!(opener.check_process(), Err(Error::Forked)));
        assert!(matches!(opener.open(), Err(Error::Forked)));
    }
}
