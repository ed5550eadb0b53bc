//! What is done to the whole file, when a person asks for it.

#[cfg(feature = "backup")]
use std::path::Path;

use crate::condition::{Compacted, FileInfo};
use crate::draining::Cancel;
use crate::error::Result;
use crate::outbox::Outbox;
use crate::schema;
use crate::store::file;

impl Outbox {
    /// Numbers about the file itself. Reads a few pages.
    pub fn file_info(&self) -> Result<FileInfo> {
        let reader = self.shared().reader()?;
        self.shared().opener().info(&reader)
    }

    /// The parts of the outbox's schema that the file lacks, without which messages go out all the
    /// same: some triggers, the views for people. [`Outbox::open`] puts them back.
    pub fn missing_parts(&self) -> Result<Vec<String>> {
        schema::missing(&*self.shared().reader()?)
    }

    /// Copies the whole file, the application's tables too, while it is in use. The copy is one
    /// moment of the file: every transaction is in it whole or not at all. It is checked before
    /// this returns.
    ///
    /// Writers go on meanwhile where the file has a write-ahead log; elsewhere they wait for
    /// moments at a time, and once for the whole copy if they leave it no peace. The copy has the
    /// same identity ([`instance_id`](Self::instance_id)) and message ids: what both would send is
    /// recognised by the receiver as the same.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`](crate::Error::Exists) when there is something at `to`: nothing is ever
    /// overwritten. On any error nothing is left there.
    ///
    /// The copy is written beside its place, as `to.XXXXXXXX.partial`, and gets its name at the end. What
    /// a process that was killed has left of one is removed by the next backup to the same place.
    #[cfg(feature = "backup")]
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<FileInfo> {
        self.backup_unless(to, &Cancel::new())
    }

    /// As [`backup`](Self::backup), broken off when the switch is thrown: it ends within moments with
    /// [`Error::Cancelled`](crate::Error::Cancelled), and nothing is left of it.
    #[cfg(feature = "backup")]
    pub fn backup_unless(&self, to: impl AsRef<Path>, cancel: &Cancel) -> Result<FileInfo> {
        let source = self.shared().opener().open()?;
        file::backup(&source, self.path(), to.as_ref(), cancel.switch())
    }

    /// Rewrites the whole file without its free pages (`VACUUM`).
    ///
    /// It holds the write lock for its whole time, about a second per 100 MB, and needs up to twice
    /// the file's size of free disk. Tables of the application without an `INTEGER PRIMARY KEY`
    /// may get other rowids. It fails with [`Error::Busy`](crate::Error::Busy) when the lock
    /// cannot be had within 5 s; nothing has changed then, nor when the process is killed or the
    /// power fails meanwhile: whoever opens the file next finds it as it was.
    pub fn compact(&self) -> Result<Compacted> {
        self.compact_unless(&Cancel::new())
    }

    /// As [`compact`](Self::compact), broken off when the switch is thrown: with
    /// [`Error::Cancelled`](crate::Error::Cancelled), and nothing has changed. Once the new file is
    /// made and being put in place it goes on to the end.
    pub fn compact_unless(&self, cancel: &Cancel) -> Result<Compacted> {
        let conn = self.shared().opener().open()?;
        let before = file::info(&conn, self.path())?;
        file::vacuum(&conn, cancel.switch())?;
        let after = file::info(&conn, self.path())?;
        Ok(Compacted { before, after })
    }
}
