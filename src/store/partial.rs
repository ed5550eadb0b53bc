//! A file that appears under its name whole or not at all.
//!
//! It knows nothing else of this crate: the tool compiles it too.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// How the name of a file in the making ends.
const END: &str = ".partial";

/// Characters between the name that it will have and that end.
const DIGITS: usize = 8;

/// A file in the making, beside its place. Dropped before it is published, it is removed.
#[derive(Debug)]
pub(crate) struct Partial {
    path: PathBuf,
    to: PathBuf,
}

impl Partial {
    /// An empty file that nobody but its owner may read. `AlreadyExists` when there is something at
    /// `to`.
    pub(crate) fn beside(to: &Path) -> io::Result<Self> {
        if to.symlink_metadata().is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let random = RandomState::new().build_hasher().finish() >> 32;
        let mut name = to.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{random:0DIGITS$x}{END}"));
        let path = to.with_file_name(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&path)?;
        let to = to.into();
        Ok(Self { path, to })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name, once its bytes are on the disk. `AlreadyExists` when somebody else has
    /// taken the name.
    pub(crate) fn publish(self) -> io::Result<()> {
        match fs::hard_link(&self.path, &self.to) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(error),
            // Not every disk has links. Then there is a moment in which the name may be taken.
            Err(_) if self.to.symlink_metadata().is_ok() => {
                return Err(ErrorKind::AlreadyExists.into());
            }
            Err(_) => fs::rename(&self.path, &self.to)?,
            Ok(()) => {}
        }
        let folder = self.to.parent().map(Path::to_path_buf);
        drop(self);
        // So that a power cut does not take the name away again. Not every system has this.
        if let Some(folder) = folder.and_then(|it| File::open(it).ok()) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// What writers that were killed have left beside `to`, and what others are writing there now.
pub(crate) fn others(to: &Path) -> Vec<PathBuf> {
    let folder = match to.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut start = to.file_name().unwrap_or_default().to_owned();
    start.push(".");
    let ours = |name: &OsString| {
        let rest = name
            .as_encoded_bytes()
            .strip_prefix(start.as_encoded_bytes());
        let digits = rest.and_then(|it| it.strip_suffix(END.as_bytes()));
        digits.is_some_and(|it| it.len() == DIGITS && it.iter().all(u8::is_ascii_hexdigit))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|it| it.file_name()).filter(ours);
    names.map(|it| folder.join(it)).collect()
}

/// Removes a file in the making, and what SQLite may have put beside it.
pub(crate) fn remove(path: &Path) {
    for end in ["", "-journal", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        let _ = fs::remove_file(name);
    }
}
