//! A message on its way from one file to another: plain data.

use crate::entry::Entry;
use crate::error::{Error, Result};

/// A message as another outbox has it, for [`Operator::import`](crate::Operator::import): the bytes
/// of its columns, whatever they are. What became of it there is not part of it.
///
/// ```
/// # use sqlite_outbox::{Message, OnDuplicate, Outbox, Transfer};
/// # fn main() -> sqlite_outbox::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let old = Outbox::open(folder.path().join("old.db"))?;
/// # let new = Outbox::open(folder.path().join("new.db"))?;
/// # old.transaction(|tx| old.enqueue(tx, &Message::text("sales", "one").dedupe_key("S-1")))?;
/// let sale = old.get_by_key("sales", "S-1")?.unwrap();
/// new.transaction(|tx| {
///     let anna = new.operator("anna@till-7");
///     anna.import(tx, &Transfer::from(&sale), OnDuplicate::Keep)
/// })?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transfer {
    /// Which route it takes.
    pub channel: Vec<u8>,
    /// The identity the receiver sees: it stays the same.
    pub message_id: Vec<u8>,
    /// The application's own key.
    pub dedupe_key: Vec<u8>,
    /// What happened.
    pub event_type: Option<Vec<u8>>,
    /// Phone number, partner, or part of the URL.
    pub recipient: Option<Vec<u8>>,
    /// Messages of the channel with the same key arrive in order.
    pub ordering_key: Option<Vec<u8>>,
    /// Whose credentials it goes out with.
    pub principal: Option<Vec<u8>>,
    /// The payload's media type.
    pub content_type: Vec<u8>,
    /// Extra request headers, the JSON object as stored.
    pub headers: Option<Vec<u8>>,
    /// The body.
    pub payload: Vec<u8>,
    /// Not before this moment, in milliseconds since 1970 UTC.
    pub available_at: Option<i64>,
    /// Not after this moment, in milliseconds since 1970 UTC.
    pub expires_at: Option<i64>,
}

impl From<&Entry> for Transfer {
    fn from(entry: &Entry) -> Self {
        let bytes = |column: &str, text: &str| match entry.broken.get(column) {
            Some(bytes) => bytes.clone(),
            None => text.into(),
        };
        let some =
            |column: &str, text: &Option<String>| text.as_deref().map(|text| bytes(column, text));
        Self {
            channel: bytes("channel", &entry.channel),
            message_id: bytes("message_id", &entry.message_id),
            dedupe_key: bytes("dedupe_key", &entry.dedupe_key),
            event_type: some("event_type", &entry.event_type),
            recipient: some("recipient", &entry.recipient),
            ordering_key: some("ordering_key", &entry.ordering_key),
            principal: some("principal", &entry.principal),
            content_type: bytes("content_type", &entry.content_type),
            headers: some("headers", &entry.headers),
            payload: entry.payload.clone(),
            available_at: entry.available_at,
            expires_at: entry.expires_at,
        }
    }
}

impl Transfer {
    /// What the table would refuse; whether it can be sent is found out by a drain.
    pub(crate) fn validate(&self) -> Result<()> {
        let wrong = |field, reason: &str| {
            let reason = reason.into();
            Err(Error::InvalidMessage { field, reason })
        };
        let named = [
            ("channel", Some(&self.channel)),
            ("message id", Some(&self.message_id)),
            ("dedupe key", Some(&self.dedupe_key)),
            ("ordering key", self.ordering_key.as_ref()),
        ];
        for (field, value) in named {
            if value.is_some_and(Vec::is_empty) {
                return wrong(field, "is empty");
            }
        }
        match self.channel.contains(&b':') {
            true => wrong("channel", "must not contain a colon"),
            false => Ok(()),
        }
    }

    /// The columns of text with their names, but for channel and dedupe key.
    pub(crate) fn texts(&self) -> [(&'static str, Option<&[u8]>); 5] {
        [
            ("event_type", self.event_type.as_deref()),
            ("recipient", self.recipient.as_deref()),
            ("principal", self.principal.as_deref()),
            ("content_type", Some(&self.content_type)),
            ("ordering_key", self.ordering_key.as_deref()),
        ]
    }
}
