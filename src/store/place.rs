//! Whether the file that was opened is still what its path means.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::{Error, Result};

/// SQLite goes on with a file that has been removed or replaced: everything seems to work, and what is
/// written into it is seen by nobody who opens the path after that.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    /// Empty before the first connection, and where nobody can tell.
    opened: OnceLock<u64>,
}

impl Place {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.into(),
            opened: OnceLock::new(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What is there now is what was opened, unless something was before.
    pub(crate) fn take(&self) {
        if let Some(found) = std::fs::metadata(&self.path)
            .ok()
            .and_then(|it| number(&it))
        {
            self.opened.get_or_init(|| found);
        }
    }

    /// [`Error::Replaced`] when the file is gone or another one. What cannot be told is no error: a
    /// drive may be away for a while.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(opened) = self.opened.get() else {
            return Ok(());
        };
        let same = match std::fs::metadata(&self.path) {
            Ok(found) => number(&found).is_none_or(|it| it == *opened),
            Err(error) => error.kind() != ErrorKind::NotFound,
        };
        match same {
            true => Ok(()),
            false => Err(Error::Replaced(self.path.clone())),
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
