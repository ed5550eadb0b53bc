//! The files beside a database: a log that one user made keeps another one from the whole file.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// What SQLite keeps beside a file while it is in use, and after a crash.
const ENDS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// The file of that name beside a database.
pub(crate) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// [`Error::Denied`] for a file beside this one that whoever may write this one cannot use, by its rights. Only
/// its rights are looked at: closing a file takes away the locks that this process has on it.
pub(crate) fn denied(path: &Path) -> Option<Error> {
    let file = std::fs::metadata(path).ok()?;
    ENDS.iter().find_map(|end| {
        let path = beside(path, end);
        let found = std::fs::metadata(&path).ok()?;
        rights::differ(&found, &file).map(|rights| Error::Denied { path, rights })
    })
}

#[cfg(unix)]
mod rights {
    use std::fs::Metadata;
    use std::os::unix::fs::MetadataExt;

    /// Whether nobody may write it, or the owner of the file beside which it lies may not, and what its rights are.
    pub(super) fn differ(found: &Metadata, file: &Metadata) -> Option<String> {
        let mode = found.mode();
        let both = match (found.uid() == file.uid(), found.gid() == file.gid()) {
            (true, _) => 0o600,
            (false, true) => 0o060,
            (false, false) => 0o006,
        };
        // Root is asked for no rights.
        let root = file.uid() == 0 && mode & 0o222 != 0;
        let writes = file.mode() & 0o600 == 0o600;
        (writes && mode & both != both && !root).then(|| {
            format!(
                "{} of user {}, the file {} of user {}",
                letters(mode),
                found.uid(),
                letters(file.mode()),
                file.uid()
            )
        })
    }

    /// As `ls -l` has them.
    fn letters(mode: u32) -> String {
        let letter = |(at, letter)| match mode >> (8 - at) & 1 {
            0 => '-',
            _ => letter,
        };
        "rwxrwxrwx".chars().enumerate().map(letter).collect()
    }
}

#[cfg(not(unix))]
mod rights {
    use std::fs::Metadata;

    pub(super) fn differ(found: &Metadata, file: &Metadata) -> Option<String> {
        let readonly = found.permissions().readonly() && !file.permissions().readonly();
        readonly.then(|| "read-only, the file is not".into())
    }
}
