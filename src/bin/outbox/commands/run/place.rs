//! Whether the file that was opened is still what its path means.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::bail;

/// SQLite goes on with a file that has been removed: everything seems to work, and nothing that the
/// application writes into a new one is ever seen.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    opened: Option<u64>,
}

impl Place {
    pub(super) fn of(path: &Path) -> Self {
        Self {
            path: path.into(),
            opened: std::fs::metadata(path).ok().and_then(|it| number(&it)),
        }
    }

    /// An error when the file is gone or another one. What cannot be told is no error: a network
    /// drive may be away for a while.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let path = self.path.display();
        match std::fs::metadata(&self.path) {
            Ok(now) if self.opened.is_some() && number(&now) != self.opened => bail!(
                "{path} is another file than the one that was opened: start again to send what is \
                 in it"
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => bail!(
                "{path} is gone: what the application enqueues is not seen; put it back, or start \
                 again when it has a new one"
            ),
            _ => Ok(()),
        }
    }
}

/// The number of the file on its disk.
#[cfg(unix)]
fn number(file: &Metadata) -> Option<u64> {
    Some(std::os::unix::fs::MetadataExt::ino(file))
}

/// Where an open file can be neither removed nor replaced.
#[cfg(not(unix))]
fn number(_: &Metadata) -> Option<u64> {
    None
}
