//! What is done to the whole file, when a person asks for it.

#[cfg(feature = "backup")]
use std::path::Path;

use crate::condition::{Compacted, FileInfo, Lost, Salvage};
use crate::draining::Cancel;
use crate::entry::{Entry, Filter};
use crate::error::Result;
use crate::outbox::Outbox;
use crate::schema;
use crate::stats::Stats;
#[cfg(feature = "backup")]
use crate::store::patience::Patience;
use crate::store::{file, find, salvage, stats};

impl Outbox {
    /// Numbers about the file itself. Reads a few pages.
    pub fn file_info(&self) -> Result<FileInfo> {
        let reader = self.shared().reader()?;
        self.shared().opener().info(&reader)
    }

    /// As [`list`](Self::list), where that ends with [`Error::Damaged`](crate::Error::Damaged): goes
    /// along the ids, uses no index, and goes on behind what cannot be read.
    ///
    /// It is made for a damaged file: each page of it reads all rows up to its last message. Where much is
    /// lost in a row (4,000 ids and more), some messages beside it may be given up as well; they are told
    /// of as lost.
    pub fn list_salvaged(&self, filter: &Filter) -> Result<Salvage> {
        salvage::list(&*self.shared().reader()?, filter)
    }

    /// As [`find`](Self::find), where that ends with [`Error::Damaged`](crate::Error::Damaged): looks for
    /// a dedupe key or message id along the rows, without an index, about a second per million. Still
    /// [`Error::Damaged`](crate::Error::Damaged) when it is not found and some rows cannot be read.
    pub fn find_salvaged(&self, which: &str, channel: Option<&str>) -> Result<Entry> {
        find::find_salvaged(&*self.shared().reader()?, which, channel)
    }

    /// As [`stats`](Self::stats), where that ends with [`Error::Damaged`](crate::Error::Damaged): counts
    /// the rows that can be read, about a second per million, and says what is not in it.
    /// [`ChannelStats::next_due`](crate::ChannelStats::next_due) is nowhere known.
    pub fn stats_salvaged(&self) -> Result<(Stats, Vec<Lost>)> {
        let now = self.shared().now();
        stats::salvaged(&*self.shared().reader()?, now)
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
    /// moments at a time, and for about two seconds if they leave it no peace. The copy has the
    /// same identity ([`instance_id`](Self::instance_id)) and message ids: what both would send is
    /// recognised by the receiver as the same.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`](crate::Error::Exists) when there is something at `to`: nothing is ever
    /// overwritten. [`Error::Refused`](crate::Error::Refused) when the file is damaged, and where there is no
    /// write-ahead log and others write so often that they would have to wait longer. On any error nothing is left there.
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
        let clock = self.shared().clock();
        let patience = Patience::of(self.shared().opener(), &source, clock)?;
        let to = to.as_ref();
        file::backup(&source, self.path(), to, patience.as_ref(), cancel.switch())
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
