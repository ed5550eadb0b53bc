//! Duplicates with other content that were kept aside: plain data.

use std::collections::BTreeMap;

use crate::entry::Status;

/// A later message whose dedupe key was taken by other content. An `INSERT … ON CONFLICT DO NOTHING`
/// would have lost it; it is kept aside, and not sent, until a person decides. The library's own
/// `enqueue` tells its caller, and keeps those aside that ask for it
/// ([`Message::keep_aside`](crate::Message::keep_aside)).
///
/// All times are milliseconds since 1970 UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conflict {
    /// The row in `outbox_conflict`.
    pub id: i64,
    /// When it was put in.
    pub at: i64,
    /// The message that holds the key now; `None` when it is gone.
    pub holder: Option<i64>,
    /// Where that message stands.
    pub holder_status: Option<Status>,
    /// Which route it would take.
    pub channel: String,
    /// The key that was taken.
    pub dedupe_key: String,
    /// What happened, e.g. `sale.completed`.
    pub event_type: Option<String>,
    /// Phone number, partner, or part of the URL.
    pub recipient: Option<String>,
    /// Messages of the channel with the same key arrive in order.
    pub ordering_key: Option<String>,
    /// Whose credentials it would go out with.
    pub principal: Option<String>,
    /// The payload's media type.
    pub content_type: String,
    /// Extra request headers, the JSON object as stored.
    pub headers: Option<String>,
    /// Not before this moment.
    pub available_at: Option<i64>,
    /// Not after this moment.
    pub expires_at: Option<i64>,
    /// The body, byte for byte.
    pub payload: Vec<u8>,
    /// The columns whose text is not UTF-8, byte for byte, by their names: their fields show
    /// replacement characters. Nearly always empty.
    pub broken: BTreeMap<&'static str, Vec<u8>>,
}

/// What becomes of a [`Conflict`]; see
/// [`Operator::resolve`](crate::Operator::resolve).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolution {
    /// It is sent after all: as a message of its own under this dedupe key, at the end of its lane.
    /// An expiry that has passed is lifted.
    Enqueue(String),
    /// It takes the place of the key's holder, which must never have been claimed and be of the
    /// same ordering key. The message id stays; the former payload is kept in the audit.
    Replace,
    /// It is not sent. Its payload is kept in the audit.
    Drop,
}
