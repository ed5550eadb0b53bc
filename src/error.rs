//! What can go wrong, one variant for each thing a caller would branch on.

use std::fmt;
use std::path::PathBuf;

use rusqlite::ErrorCode;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The result, or nothing where the file is damaged or lacks a part: for those who read what can be
/// read.
pub(crate) fn unless_damaged<T: Default>(result: Result<T>) -> Result<T> {
    match result {
        Err(Error::Damaged(_) | Error::Incomplete { .. }) => Ok(T::default()),
        result => result,
    }
}

/// Why a call failed. `Display` is one sentence of its own; the cause is in `source()`.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no file at this path, and this call does not create one.
    Missing(PathBuf),
    /// The folder that should hold the file does not exist.
    MissingFolder(PathBuf),
    /// The path cannot hold an outbox: a directory, an in-memory name, a `file:` URI.
    NotAFile(PathBuf),
    /// There is something at this path already, and this call overwrites nothing.
    Exists(PathBuf),
    /// The file is no SQLite database, an encrypted one, or one whose first page was overwritten.
    NotADatabase(PathBuf),
    /// SQLite came upon something damaged; its own words are often misleading and are no `source()`.
    /// [`Outbox::check`](crate::Outbox::check) of an outbox that was opened to read says where, and
    /// what to do.
    Damaged(rusqlite::Error),
    /// The file was removed, or another took its place, while it was open: whatever is written to the one that
    /// was opened is seen by nobody who opens the path now. Every program that has it open must end.
    Replaced(PathBuf),
    /// The file or its folder cannot be written.
    ReadOnly(PathBuf),
    /// A file beside the database, such as its `-wal`, has other rights than the database, so that those who may
    /// write this may not write that. Nothing can be written then, and mostly not even read.
    Denied {
        /// The file beside it.
        path: PathBuf,
        /// The rights and owners of both.
        rights: String,
    },
    /// The file may not be read.
    Unreadable(PathBuf),
    /// Even a look at the file needs the right to write: something stands in its log or journal that
    /// can be read only together with an index that cannot be made.
    NeedsWriting(PathBuf),
    /// The database has no outbox tables, and this call does not create them.
    NoOutbox(PathBuf),
    /// Somebody removed tables, indexes, triggers or rows that the outbox cannot do without.
    /// `Outbox::open` or `outbox upgrade` puts them back; messages stay as they are.
    Incomplete {
        /// Their names.
        missing: Vec<String>,
    },
    /// A table or view of that name is there and is not ours.
    ForeignTable(String),
    /// A newer program wrote this file and forbids writers as old as this one.
    SchemaTooNew {
        /// The schema version of the file.
        found: i64,
        /// The schema version of this program.
        supported: i64,
    },
    /// An older program wrote this file; `Outbox::open` or `outbox upgrade` brings it up to date.
    SchemaTooOld {
        /// The schema version of the file.
        found: i64,
        /// The schema version of this program.
        supported: i64,
    },
    /// The linked SQLite is too old.
    SqliteTooOld(String),
    /// A pragma did not take: the file is on storage that cannot do it, or a transaction is open.
    Pragma {
        /// The pragma.
        name: &'static str,
        /// What was asked for.
        wanted: String,
        /// What SQLite answered.
        found: String,
    },
    /// A field of the message cannot be sent; the transaction is still usable.
    InvalidMessage {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The payload is larger than the limit; the transaction is still usable.
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// `enqueue_on` was called outside a transaction.
    NoTransaction,
    /// SQLite has already rolled this transaction back (disk full, I/O error): begin anew.
    TransactionGone,
    /// The transaction read first and another connection has written since: restart all of it,
    /// with `BEGIN IMMEDIATE`. Waiting cannot help.
    RestartTransaction(rusqlite::Error),
    /// The key is taken and the message asked for an error in that case.
    Duplicate {
        /// The message that holds the key.
        id: i64,
    },
    /// The outbox holds as much as the application allowed it to; the transaction is still usable.
    OutboxFull {
        /// What there is.
        unsent: u64,
        /// The limit.
        limit: u64,
    },
    /// No message answers to this.
    NotFound(String),
    /// More than one message answers to this.
    Ambiguous {
        /// What was asked for.
        which: String,
        /// Each message (eight at most), first the form that means it alone: `id:17 (sent in sales, key 4711)`.
        candidates: Vec<String>,
    },
    /// There is no conflict with this number, perhaps no longer.
    NoConflict(i64),
    /// What was asked makes no sense in the message's state.
    Refused(String),
    /// A setting cannot work.
    InvalidSetting(String),
    /// The write lock could not be had in time.
    Busy(rusqlite::Error),
    /// The disk is full.
    DiskFull(rusqlite::Error),
    /// It was broken off by its [`Cancel`](crate::Cancel), and nothing of it is left.
    Cancelled,
    /// It was stopped by its [`Cancel`](crate::Cancel) between two of its transactions.
    Interrupted {
        /// How many were done before, and stay done.
        done: u64,
    },
    /// This process was forked off after the outbox was opened: it must open its own.
    Forked,
    /// No connection could be had from the pool.
    Pool(String),
    /// Not a single worker thread could be started, so nothing can be sent.
    NoThread(std::io::Error),
    /// The pump has ended; its error, if it had one.
    Stopped(String),
    /// Anything else SQLite reports.
    Sqlite(rusqlite::Error),
}

impl Error {
    /// What SQLite does not notice by itself.
    pub(crate) fn damaged(what: &str) -> Self {
        let corrupt = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        Self::Damaged(rusqlite::Error::SqliteFailure(corrupt, Some(what.into())))
    }

    /// Whether the same call may well succeed a little later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Busy(_) | Self::DiskFull(_) | Self::Pool(_) | Self::NoThread(_)
        ) || matches!(self, Self::Sqlite(error) if matches!(
            error.sqlite_error_code(),
            Some(
                ErrorCode::SystemIoFailure
                    | ErrorCode::CannotOpen
                    | ErrorCode::SchemaChanged
                    | ErrorCode::FileLockingProtocolFailed
            )
        ))
    }

    /// The sentence with every cause that says more, for a log, a stored reason or a person.
    /// SQLite's causes repeat each other with a number before them.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut last = text.clone();
        let mut cause = match self {
            // Its words say it all, and SQLite's call it an I/O error at times.
            Self::DiskFull(_) => None,
            error => std::error::Error::source(error),
        };
        while let Some(error) = cause {
            let next = error.to_string();
            // What comes after `Error code 14: `.
            let said = match next.strip_prefix("Error code ") {
                Some(coded) => coded.split_once(": ").map_or(coded, |it| it.1),
                None => &next,
            };
            if !next.ends_with(&last) && !text.contains(said) {
                text.push_str(": ");
                text.push_str(&next);
                last = next;
            }
            cause = error.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(path) => write!(f, "there is no file {}", path.display()),
            Self::MissingFolder(path) => write!(f, "there is no folder {}", path.display()),
            Self::NotAFile(path) => write!(f, "{} cannot hold an outbox: it is no file", path.display()),
            Self::Exists(path) => write!(f, "{} is there already; nothing is overwritten", path.display()),
            Self::NotADatabase(path) => write!(f, "{} is not a SQLite database", path.display()),
            Self::Damaged(_) => f.write_str(
                "the file is damaged: keep a copy of it and its -wal; `outbox check` says where, and \
                 what to do",
            ),
            Self::Replaced(path) => write!(
                f,
                "{} was removed or replaced while it was open, and what is written to it is lost: end every \
                 program that has it open, see that the right file is in its place, and start again",
                path.display()
            ),
            Self::ReadOnly(path) => write!(
                f,
                "{} cannot be written by this user, who needs the right to write it, its folder and \
                 the -wal, -shm or -journal beside it",
                path.display()
            ),
            Self::Denied { path, rights } => write!(
                f,
                "{} has other rights than the file ({rights}), so the file cannot be used: give it the owner and \
                 the rights of the file (`chown`, `chmod`), and run every program as one user",
                path.display()
            ),
            Self::Unreadable(path) => write!(f, "{} may not be read by this user", path.display()),
            Self::NeedsWriting(path) => write!(
                f,
                "{} has a log that cannot be read without the right to write beside it: look at it as \
                 the user who owns it, or at a copy of the file together with its -wal or -journal",
                path.display()
            ),
            Self::NoOutbox(path) => write!(
                f,
                "{} has no outbox; `outbox init` or Outbox::open makes one",
                path.display()
            ),
            Self::Incomplete { missing } => incomplete(missing, f),
            Self::ForeignTable(name) => {
                write!(f, "`{name}` is already there and belongs to something else")
            }
            Self::SchemaTooNew { found, supported } => write!(
                f,
                "the outbox has schema {found}, this program knows {supported}: use a newer program"
            ),
            Self::SchemaTooOld { found, supported } => write!(
                f,
                "the outbox has schema {found}, this program needs {supported}: run `outbox upgrade`"
            ),
            Self::SqliteTooOld(version) => {
                write!(f, "SQLite {version} is too old, 3.35 or newer is needed")
            }
            Self::Pragma { name, wanted, found } => write!(
                f,
                "the pragma {name} was set to {wanted} and reads {found}: the storage may not support it"
            ),
            Self::InvalidMessage { field, reason } => write!(f, "the message's {field} {reason}"),
            Self::TooLarge { bytes, limit } => {
                write!(f, "the payload has {bytes} bytes, the limit is {limit}")
            }
            Self::NoTransaction => {
                f.write_str("enqueue needs an open transaction, so that both commit or neither")
            }
            Self::TransactionGone => f.write_str(
                "SQLite has already rolled this transaction back; begin a new one",
            ),
            Self::RestartTransaction(_) => f.write_str(
                "another connection wrote since this transaction read: restart it with BEGIN IMMEDIATE",
            ),
            Self::Duplicate { id } => write!(f, "message {id} already has this dedupe key"),
            Self::OutboxFull { unsent, limit } => {
                write!(f, "the outbox is full: {unsent} unsent, the limit is {limit}")
            }
            Self::NotFound(which) => write!(f, "there is no message {which}"),
            Self::Ambiguous { which, candidates } => {
                write!(f, "more than one message answers to {which}: {}", candidates.join(", "))
            }
            Self::NoConflict(id) => write!(
                f,
                "there is no conflict {id}; it may be settled already, `outbox conflicts` lists those \
                 that are open"
            ),
            Self::Refused(why) | Self::InvalidSetting(why) => f.write_str(why),
            Self::Busy(_) => f.write_str(
                "another connection held the write lock for too long: it writes much, or has left a \
                 transaction open; try again, and if it stays so, end that transaction",
            ),
            Self::DiskFull(_) => f.write_str(
                "the disk is full: make room; until then nothing can be written to the file",
            ),
            Self::Cancelled => f.write_str("it was broken off, and nothing of it is left"),
            Self::Interrupted { done } => write!(f, "it was stopped early; {done} were done and stay so"),
            Self::Forked => f.write_str("this process was forked after the outbox was opened; open it again here"),
            Self::Pool(why) => write!(f, "no connection could be had: {why}"),
            Self::NoThread(why) => write!(
                f,
                "no thread could be started ({why}), so nothing is sent: raise the limit of threads or processes"
            ),
            Self::Stopped(why) => write!(f, "the pump has stopped: {why}"),
            Self::Sqlite(error) if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) => f.write_str(
                "the file or its -wal could not be read or written: look at the disk; where somebody deleted or \
                 moved the -wal while programs ran, end all of them (they save what they have as they close) \
                 and start again",
            ),
            Self::Sqlite(_) => f.write_str("SQLite failed"),
        }
    }
}

fn incomplete(missing: &[String], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const NAMED: usize = 4;
    if missing.iter().any(|it| it == "outbox") {
        return f.write_str(
            "the table outbox is missing, and the messages with it: unless this is another file than \
             meant, restore a backup; `outbox upgrade` or Outbox::open begins anew with none",
        );
    }
    let (named, more) = missing.split_at(missing.len().min(NAMED));
    write!(f, "parts of the outbox are missing: {}", named.join(", "))?;
    if !more.is_empty() {
        write!(f, " and {} more", more.len())?;
    }
    f.write_str(
        "; its messages are there: `outbox upgrade` or Outbox::open puts back what it lacks",
    )
}

/// The table or index of ours that SQLite did not find.
fn not_found(error: &rusqlite::Error) -> Option<String> {
    let said = error.to_string();
    let (_, rest) = said
        .split_once("no such index: ")
        .or_else(|| said.split_once("no such table: "))?;
    let rest = rest.strip_prefix("main.").unwrap_or(rest);
    let end = rest.find(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    let name = rest.get(..end.unwrap_or(rest.len()))?;
    (name == "outbox" || name.starts_with("outbox_")).then(|| name.into())
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::RestartTransaction(error)
            | Self::Busy(error)
            | Self::DiskFull(error)
            | Self::Sqlite(error) => Some(error),
            _ => None,
        }
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        let extended = error.sqlite_error().map(|it| it.extended_code);
        match error.sqlite_error_code() {
            _ if extended == Some(rusqlite::ffi::SQLITE_BUSY_SNAPSHOT) => {
                Self::RestartTransaction(error)
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy(error),
            Some(ErrorCode::DiskFull) => Self::DiskFull(error),
            // The index of the log finds no room.
            _ if extended == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) => Self::DiskFull(error),
            Some(ErrorCode::DatabaseCorrupt) => Self::Damaged(error),
            _ => match not_found(&error) {
                Some(name) => Self::Incomplete {
                    missing: vec![name],
                },
                None => Self::Sqlite(error),
            },
        }
    }
}
