//! The condition of a file: plain data.

use std::fmt;
use std::ops::RangeInclusive;

use crate::entry::Entry;

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
    /// The schema version of its outbox; 0 where it cannot be read.
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

/// What of a damaged file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// What stands under these ids, whether or not there was a message under each.
    Messages(RangeInclusive<i64>),
    /// How the channels stand, pauses included.
    States,
    /// How many conflicts there are.
    Conflicts,
    /// What some of the messages wait for.
    Reasons,
}

impl fmt::Display for Lost {
    /// For example `messages 1480 to 1519`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Messages(ids) if ids.start() == ids.end() => write!(f, "message {}", ids.start()),
            Self::Messages(ids) => write!(f, "messages {} to {}", ids.start(), ids.end()),
            Self::States => f.write_str("the states of the channels"),
            Self::Conflicts => f.write_str("the number of conflicts"),
            Self::Reasons => f.write_str("what some messages wait for"),
        }
    }
}

/// Messages of a damaged file; see [`Outbox::list_salvaged`](crate::Outbox::list_salvaged).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Salvage {
    /// Those that can be read.
    pub entries: Vec<Entry>,
    /// What cannot, from where the page begins to its last message.
    pub lost: Vec<Lost>,
    /// What to give to [`Filter::after`](crate::Filter::after) for more; `None`: that is the end.
    pub next: Option<i64>,
}

/// How grave a [`Finding`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know.
    Note,
    /// Somebody should look at it.
    Warning,
    /// Something is broken.
    Fault,
}

impl Severity {
    /// The stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fault => "fault",
        }
    }
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Something that [`Outbox::check`](crate::Outbox::check) found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How grave it is.
    pub severity: Severity,
    /// What it is, as a stable word.
    pub code: &'static str,
    /// What it is, for a person.
    pub text: String,
    /// What to do about it, for a person.
    pub remedy: String,
    /// The tool's command that helps, and its arguments behind the file: `["resume", "sales"]`.
    /// Empty where none does, or where a person has to do something first.
    pub command: Vec<String>,
    /// The channel, if it is about one.
    pub channel: Option<String>,
    /// How many of them there are.
    pub count: u64,
    /// One of the messages, if it is about messages.
    pub message: Option<i64>,
}

impl Finding {
    /// A finding about the file as a whole.
    pub fn new(
        severity: Severity,
        code: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            code,
            text: text.into(),
            remedy: remedy.into(),
            command: Vec::new(),
            channel: None,
            count: 1,
            message: None,
        }
    }

    pub(crate) fn of(mut self, count: u64, message: Option<i64>) -> Self {
        self.count = count;
        self.message = message;
        self
    }

    /// The gravest first; what is only for the record last, so that nobody takes it for a cause.
    pub fn rank(&self) -> impl Ord + use<> {
        (std::cmp::Reverse(self.severity), self.is_for_the_record())
    }

    /// Whether it tells how the file is kept, and there is nothing to do about it.
    pub fn is_for_the_record(&self) -> bool {
        self.code == "journal_mode" && !self.needs_person()
    }

    /// With the tool's command that helps.
    pub fn command<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.command = words.into_iter().map(Into::into).collect();
        self
    }

    /// About this channel.
    pub fn channel(mut self, channel: impl Into<String>) -> Self {
        self.channel = Some(channel.into());
        self
    }

    /// Whether somebody should do something.
    pub fn needs_person(&self) -> bool {
        self.severity > Severity::Note
    }
}
