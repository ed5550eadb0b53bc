//! Connections for a look, also at a file that this user may not write. Nothing is changed.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::{Error, Result, unless_damaged};
use crate::store::beside::{beside, denied};
use crate::store::connect::{explain, vouch};

/// How a file is opened: with the application's hook.
type Dial<'a> = dyn Fn(&Path, OpenFlags) -> rusqlite::Result<Connection> + 'a;

/// Opens the file as well as can be: as usual, without the right to write, or as it lies. Answers
/// whether it came to the last.
pub(super) fn open(path: &Path, dial: &Dial<'_>) -> Result<(Connection, bool)> {
    // SQLite itself falls back to reading where the file may not be written.
    let usual = dial(path, flags() | OpenFlags::SQLITE_OPEN_READ_WRITE);
    let conn = usual.map_err(|error| match error.sqlite_error_code() {
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => Error::Unreadable(path.into()),
        _ => explain(path, error.into()),
    })?;
    // Opening a log anew would leave an index beside the file that is this user's, and that the
    // application may not be able to write.
    if conn.is_readonly("main")? && !beside(path, "-shm").exists() && has_log_mode(path) {
        drop(conn);
        return Ok((as_it_lies(path, dial)?, true));
    }
    match prepare(conn) {
        Ok(conn) => Ok((conn, false)),
        Err(error) if is_denied(&error) => Ok((as_it_lies(path, dial)?, true)),
        // There is no room for the index of its log.
        Err(full @ Error::DiskFull(_)) => match as_it_lies(path, dial) {
            Err(Error::NeedsWriting(_) | Error::Denied { .. }) => Err(full),
            read => Ok((read?, true)),
        },
        Err(error) => Err(explain(path, error)),
    }
}

fn flags() -> OpenFlags {
    OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE
}

fn prepare(conn: Connection) -> Result<Connection> {
    conn.execute_batch("PRAGMA query_only = 1")?;
    // Only a read shows whether the log can be read. What is damaged is met where it is read.
    let sql = "SELECT count(*) FROM sqlite_master";
    let read = vouch(&conn).and_then(|()| Ok(conn.query_row(sql, [], |_| Ok(()))?));
    unless_damaged(read)?;
    Ok(conn)
}

/// Reads the file alone, without locks: right only as long as there is nothing in a log and nobody
/// writes. So it is refused where there is a log.
fn as_it_lies(path: &Path, dial: &Dial<'_>) -> Result<Connection> {
    let full = |end| std::fs::metadata(beside(path, end)).is_ok_and(|it| it.len() > 0);
    if full("-wal") || full("-journal") {
        return Err(denied(path).unwrap_or_else(|| Error::NeedsWriting(path.into())));
    }
    let flags = flags() | OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let conn = dial(&immutable(path), flags).map_err(Error::from);
    conn.and_then(prepare).map_err(|error| explain(path, error))
}

/// Whether the cause may be that this user may not write the file or its folder.
fn is_denied(error: &Error) -> bool {
    let Error::Sqlite(cause) = error else {
        return false;
    };
    matches!(
        cause.sqlite_error_code(),
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied)
    )
}

/// Whether the header of a file that this process may not write asks for a write-ahead log.
///
/// Closing any handle of a file takes away the locks that this process has on it. Here there are
/// none yet but those of other readers, who may not write it either; who reads it as it lies has none.
pub(super) fn has_log_mode(path: &Path) -> bool {
    let mut header = [0; 20];
    let read = File::open(path).and_then(|mut it| it.read_exact(&mut header));
    read.is_ok() && matches!(header, [.., 2, 2])
}

/// The file's URI with the promise that it does not change.
fn immutable(path: &Path) -> PathBuf {
    let mut uri = String::from("file:");
    let name = path.to_string_lossy().replace('\\', "/");
    if !name.starts_with('/') {
        // A drive's letter.
        uri.push('/');
    }
    for it in name.bytes() {
        match it {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b':' => {
                uri.push(char::from(it));
            }
            it => uri.push_str(&format!("%{it:02x}")),
        }
    }
    uri.push_str("?immutable=1");
    uri.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_any_path() {
        let uri = immutable(Path::new("/till 1/a?b#c%/ü.db"));
        assert_eq!(
            uri,
            Path::new("file:/till%201/a%3fb%23c%25/%c3%bc.db?immutable=1")
        );
    }
}
