//! The condition of a file: plain data.

/// Numbers about the file itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FileInfo {
    /// Bytes of the database file.
    pub bytes: u64,
    /// Bytes of its write-ahead log; 0 where there is none.
    pub wal_bytes: u64,
    /// Bytes of a page.
    pub page_size: u64,
    /// Pages of the database.
    pub pages: u64,
    /// Pages that hold nothing and will be used again.
    pub free_pages: u64,
    /// `wal`, `delete` and so on: what the file has, not what a connection chose for itself.
    pub journal_mode: String,
    /// The schema version of its outbox.
    pub schema_version: i64,
    /// The SQLite this program uses.
    pub sqlite: String,
}

impl FileInfo {
    /// Bytes that hold nothing and will be used again.
    pub fn free_bytes(&self) -> u64 {
        self.free_pages.saturating_mul(self.page_size)
    }
}

/// What a [`compact`](crate::Outbox::compact) came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Compacted {
    /// The file before.
    pub before: FileInfo,
    /// The file after.
    pub after: FileInfo,
}
