//! What a person changes in a stored message: plain data.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Result;
use crate::message::{self, Moment};

/// Other content or another moment for a message; what is not named stays. See
/// [`Operator::edit`](crate::Operator::edit). Bytes and texts are edits of the payload alone.
///
/// ```
/// # use sqlite_outbox::Edit;
/// let mended = Edit::new().header("X-Store", "17").content_type("application/json");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Edit {
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Option<BTreeMap<String, String>>,
    pub(crate) content_type: Option<String>,
    pub(crate) dedupe_key: Option<String>,
    /// `Some(None)`: none any more. So with the next two.
    pub(crate) event_type: Option<Option<String>>,
    pub(crate) recipient: Option<Option<String>>,
    pub(crate) principal: Option<Option<String>>,
    pub(crate) new_message_id: bool,
    pub(crate) channel: Option<String>,
    /// `Some(None)`: no order.
    pub(crate) ordering_key: Option<Option<String>>,
    /// `Some(None)`: at once.
    pub(crate) available: Option<Option<Moment>>,
}

impl<T: AsRef<[u8]>> From<T> for Edit {
    fn from(payload: T) -> Self {
        Self::new().payload(payload)
    }
}

impl Edit {
    /// An edit that changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Another body, byte for byte.
    pub fn payload(mut self, payload: impl AsRef<[u8]>) -> Self {
        self.payload = Some(payload.as_ref().to_vec());
        self
    }

    /// No extra headers but those that [`header`](Self::header) adds.
    pub fn no_headers(mut self) -> Self {
        self.headers = Some(BTreeMap::new());
        self
    }

    /// An extra request header. The headers that are named take the place of all former ones.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let headers = self.headers.get_or_insert_default();
        headers.insert(name.into(), value.into());
        self
    }

    /// Another media type of the payload.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Another dedupe key, as where the former one cannot be sent. [`Error::Duplicate`](crate::Error::Duplicate) when a message
    /// of the channel has it.
    pub fn dedupe_key(mut self, key: impl Into<String>) -> Self {
        self.dedupe_key = Some(key.into());
        self
    }

    /// Another event type, or none.
    pub fn event_type(mut self, event_type: Option<String>) -> Self {
        self.event_type = Some(event_type);
        self
    }

    /// Another recipient, or none.
    pub fn recipient(mut self, recipient: Option<String>) -> Self {
        self.recipient = Some(recipient);
        self
    }

    /// Another principal, or none.
    pub fn principal(mut self, principal: Option<String>) -> Self {
        self.principal = Some(principal);
        self
    }

    /// A new message id, as every edit of the content gives it, and nothing else: to the receiver it
    /// is another message.
    pub fn new_message_id(mut self) -> Self {
        self.new_message_id = true;
        self
    }

    /// Another channel. The message becomes another row there, at the end of its ordering key.
    /// [`Error::Duplicate`](crate::Error::Duplicate) when its dedupe key is taken there.
    pub fn channel(mut self, channel: impl Into<String>) -> Self {
        self.channel = Some(channel.into());
        self
    }

    /// Another ordering key, or none. The message becomes another row, at the end of that key; those
    /// behind it under the former key go on.
    pub fn ordering_key(mut self, key: Option<String>) -> Self {
        self.ordering_key = Some(key);
        self
    }

    /// Not before this moment, in milliseconds since 1970 UTC.
    pub fn available_at(mut self, at: i64) -> Self {
        self.available = Some(Some(Moment::At(at)));
        self
    }

    /// Not before this span has passed, counted from the edit.
    pub fn delay(mut self, span: Duration) -> Self {
        self.available = Some(Some(Moment::In(span)));
        self
    }

    /// No moment to wait for: it may be sent at once.
    pub fn no_schedule(mut self) -> Self {
        self.available = Some(None);
        self
    }

    /// As at enqueue.
    pub(crate) fn validate(&self) -> Result<()> {
        self.headers.as_ref().map_or(Ok(()), message::headers)?;
        let content_type = self.content_type.as_deref();
        content_type.map_or(Ok(()), message::content_type)?;
        let named = [
            ("dedupe key", self.dedupe_key.as_ref()),
            ("event type", self.event_type.iter().flatten().next()),
            ("recipient", self.recipient.iter().flatten().next()),
            ("principal", self.principal.iter().flatten().next()),
            ("ordering key", self.ordering_key.iter().flatten().next()),
        ];
        for (field, value) in named {
            value.map_or(Ok(()), |value| message::name(field, value))?;
        }
        self.channel.as_deref().map_or(Ok(()), message::channel)?;
        let moment = self.available.flatten();
        moment.map_or(Ok(()), |it| message::moment("available_at", it))
    }

    /// What is changed beside the payload, for the record.
    pub(crate) fn changed(&self) -> Option<String> {
        let parts = [
            (self.headers.is_some(), "headers"),
            (self.content_type.is_some(), "content type"),
            (self.dedupe_key.is_some(), "dedupe key"),
            (self.event_type.is_some(), "event type"),
            (self.recipient.is_some(), "recipient"),
            (self.principal.is_some(), "principal"),
            (self.channel.is_some(), "channel"),
            (self.ordering_key.is_some(), "ordering key"),
            (self.available.is_some(), "schedule"),
        ];
        let named = parts.into_iter().filter(|it| it.0);
        let named: Vec<_> = named.map(|it| it.1).collect();
        (!named.is_empty()).then(|| named.join(" and "))
    }

    /// Whether the receiver gets another message, with a new message id, and not the same one at another
    /// time.
    pub fn has_content(&self) -> bool {
        self.payload.is_some()
            || self.headers.is_some()
            || self.content_type.is_some()
            || self.dedupe_key.is_some()
            || self.event_type.is_some()
            || self.recipient.is_some()
            || self.principal.is_some()
            || self.new_message_id
            || self.moves()
    }

    /// Whether it becomes another row.
    pub(crate) fn moves(&self) -> bool {
        self.channel.is_some() || self.ordering_key.is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_content() && self.available.is_none()
    }
}
