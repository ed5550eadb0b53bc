//! Connections for a look, also at a file that this user may not write. Nothing is changed.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::{Error, Result};
use crate::store::connect::{explain, vouch};

/// How a file is opened: with the application's hook.
type Dial<'a> = dyn Fn(&Path, OpenFlags) -> rusqlite::Result<Connection> + 'a;

/// Opens the file as well as can be: as usual, else without the right to write, else as it lies.
///
/// The last is for a file with a write-ahead log whose index (`-shm`) can be neither made nor
/// opened. SQLite then takes no lock and reads the file alone, which is right only as long as
/// there is nothing in a log and nobody writes; so it is tried only without a log. Answers whether
/// it came to that.
pub(super) fn open(path: &Path, dial: &Dial<'_>) -> Result<(Connection, bool)> {
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE;
    // SQLite itself falls back to reading where the file may not be written.
    let usual = connect(path, flags | OpenFlags::SQLITE_OPEN_READ_WRITE, dial);
    let error = match usual {
        Ok(conn) => return Ok((conn, false)),
        Err(error) if is_denied(&error) => error,
        Err(error) => return Err(explain(path, error)),
    };
    let reading = flags | OpenFlags::SQLITE_OPEN_READ_ONLY;
    if let Ok(conn) = connect(path, reading, dial) {
        return Ok((conn, false));
    }
    if let Err(denied) = std::fs::File::open(path)
        && denied.kind() == std::io::ErrorKind::PermissionDenied
    {
        return Err(Error::Unreadable(path.into()));
    }
    match has_log(path) {
        true => Err(Error::NeedsWriting(path.into())),
        false => connect(
            &as_it_lies(path),
            reading | OpenFlags::SQLITE_OPEN_URI,
            dial,
        )
        .map(|conn| (conn, true))
        .map_err(|_| explain(path, error)),
    }
}

fn connect(path: &Path, flags: OpenFlags, dial: &Dial<'_>) -> Result<Connection> {
    let conn = dial(path, flags)?;
    conn.execute_batch("PRAGMA query_only = 1")?;
    vouch(&conn)?;
    // Only a read shows whether the log can be read.
    conn.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
    Ok(conn)
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

/// Whether something stands in a log or journal beside the file that is not yet in it.
fn has_log(path: &Path) -> bool {
    ["-wal", "-journal"].iter().any(|end| {
        let mut log = path.as_os_str().to_owned();
        log.push(end);
        std::fs::metadata(log).is_ok_and(|it| it.len() > 0)
    })
}

/// The file's URI with the promise that it does not change.
fn as_it_lies(path: &Path) -> PathBuf {
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
        let uri = as_it_lies(Path::new("/till 1/a?b#c%/ü.db"));
        assert_eq!(
            uri,
            Path::new("file:/till%201/a%3fb%23c%25/%c3%bc.db?immutable=1")
        );
    }
}
