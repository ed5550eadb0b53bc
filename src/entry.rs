//! A stored message as it can be looked at: plain data.

use std::collections::BTreeMap;
use std::fmt;

/// Where a stored message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Waits for its time or a free worker.
    Pending,
    /// Behind an earlier message of its ordering key.
    Waiting,
    /// Claimed by a worker.
    Sending,
    /// Delivered.
    Sent,
    /// A dead letter: waits for a person.
    Dead,
    /// Too late to be sent.
    Expired,
    /// Taken back by a person or the application.
    Cancelled,
    /// A word that this version does not know.
    Unknown,
}

impl Status {
    /// Every status that a message can be given.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Waiting,
        Self::Sending,
        Self::Sent,
        Self::Dead,
        Self::Expired,
        Self::Cancelled,
    ];

    /// The stable word for this status, as stored and printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Waiting => "waiting",
            Self::Sending => "sending",
            Self::Sent => "sent",
            Self::Dead => "dead",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }

    /// The status a word stands for.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == word)
    }

    /// Whether it still has to be sent: pending, waiting or sending.
    pub fn is_unsent(self) -> bool {
        matches!(self, Self::Pending | Self::Waiting | Self::Sending)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One stored message.
///
/// Foreign hands may have written the row: text that is not UTF-8 shows replacement characters (and
/// stands in `broken` as it is), a value of a wrong type what it can be read as. All times are milliseconds since 1970 UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The row: enqueue order.
    pub id: i64,
    /// Which route it takes.
    pub channel: String,
    /// Where it stands.
    pub status: Status,
    /// When it may next be claimed, 0 for at once; while sending, the end of its lease.
    pub next_attempt_at: i64,
    /// Times claimed.
    pub claims: i64,
    /// Attempts charged to it.
    pub attempts: i64,
    /// Messages of the channel with the same key arrive in order.
    pub ordering_key: Option<String>,
    /// The identity the receiver sees.
    pub message_id: String,
    /// The application's own key.
    pub dedupe_key: String,
    /// What happened, e.g. `sale.completed`.
    pub event_type: Option<String>,
    /// Phone number, partner, or part of the URL.
    pub recipient: Option<String>,
    /// Whose credentials it goes out with.
    pub principal: Option<String>,
    /// The payload's media type.
    pub content_type: String,
    /// Not before this moment.
    pub available_at: Option<i64>,
    /// Not after this moment.
    pub expires_at: Option<i64>,
    /// When it was enqueued.
    pub created_at: i64,
    /// When it was last tried.
    pub last_attempt_at: Option<i64>,
    /// When it became sent, dead, expired or cancelled.
    pub settled_at: Option<i64>,
    /// What the receiver answered as its own id.
    pub provider_id: Option<String>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// Extra request headers, the JSON object as stored.
    pub headers: Option<String>,
    /// What the receiver answered, shortened.
    pub answer: Option<String>,
    /// The body, byte for byte.
    pub payload: Vec<u8>,
    /// Whether the payload is stored as text.
    pub payload_is_text: bool,
    /// The columns whose text is not UTF-8, byte for byte, by their names: their fields show
    /// replacement characters. Nearly always empty.
    pub broken: BTreeMap<&'static str, Vec<u8>>,
}

/// One failed attempt of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// When it ended, in milliseconds since 1970 UTC.
    pub at: i64,
    /// How long it took, in milliseconds.
    pub duration_ms: Option<i64>,
    /// What came of it, as a stable word.
    pub outcome: String,
    /// The HTTP status, where there was one.
    pub http_status: Option<i64>,
    /// The message's count of attempts after it, if it was charged to the message.
    pub charged: Option<i64>,
    /// Why.
    pub error: Option<String>,
}

/// Something a person, or the application for one, did to a message or a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// Its place in the record; rises with time.
    pub id: i64,
    /// When, in milliseconds since 1970 UTC.
    pub at: i64,
    /// Who, as given to [`Outbox::operator`](crate::Outbox::operator).
    pub who: String,
    /// What, as a stable word: `retry`, `cancel`, `edit`, `replace`, `pause`, `resume`,
    /// `on_dead_hold`, `on_dead_skip`, `purge`, `conflict_enqueue`, `conflict_replace`,
    /// `conflict_drop`, `send_again` or, of the message that stands for that one, `again_of`.
    pub action: String,
    /// The message, if it was done to one.
    pub message: Option<i64>,
    /// The channel.
    pub channel: Option<String>,
    /// Why, if that was given.
    pub reason: Option<String>,
    /// The message id before an edit.
    pub former_message_id: Option<String>,
    /// The payload before an edit, as long as it is kept.
    pub former_payload: Option<Vec<u8>>,
}

/// Dead letters of one channel that failed in the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadReason {
    /// Their channel.
    pub channel: String,
    /// What their last failed attempt came to, as a stable word; `unknown` where none is recorded.
    pub code: String,
    /// The HTTP status of that attempt, where there was one.
    pub http_status: Option<i64>,
    /// How many.
    pub count: u64,
    /// When the first of them died, in milliseconds since 1970 UTC.
    pub oldest: Option<i64>,
    /// When the last of them died.
    pub newest: Option<i64>,
    /// The last enqueued of them, as an example.
    pub sample: i64,
    /// The example's error. It is left out of all but a thousand groups: there may be very many.
    pub text: Option<String>,
}

/// Which messages to list. Default: all in the order of their enqueue, the first 100.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// Any of these; empty: all.
    pub(crate) statuses: Vec<Status>,
    pub(crate) channel: Option<String>,
    pub(crate) after: Option<i64>,
    pub(crate) newest_first: bool,
    pub(crate) limit: Option<usize>,
}

impl Filter {
    /// The most messages of one answer.
    pub const MAX_LIMIT: usize = 1_000;

    /// All messages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only those that stand there; when it is called again, those that stand at either.
    pub fn status(mut self, status: Status) -> Self {
        if !self.statuses.contains(&status) {
            self.statuses.push(status);
        }
        self
    }

    /// Only those of this channel.
    pub fn channel(mut self, channel: impl Into<String>) -> Self {
        self.channel = Some(channel.into());
        self
    }

    /// Only those that come after this row in the order of the list: pass the last id of an answer
    /// to get the next one.
    pub fn after(mut self, id: i64) -> Self {
        self.after = Some(id);
        self
    }

    /// The last one enqueued comes first.
    pub fn newest_first(mut self) -> Self {
        self.newest_first = true;
        self
    }

    /// At most this many, 1 to [`Filter::MAX_LIMIT`]. Default 100.
    pub fn limit(mut self, messages: usize) -> Self {
        self.limit = Some(messages);
        self
    }

    pub(crate) fn bound(&self) -> usize {
        self.limit.unwrap_or(100).clamp(1, Self::MAX_LIMIT)
    }
}
