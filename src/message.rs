//! What an application puts into the outbox, and what is refused at the door.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::error::{Error, Result};

/// The default limit of a payload: claims and settles rewrite the whole row, so a large one costs
/// its size three times over in the journal.
pub const DEFAULT_MAX_PAYLOAD: usize = 256 * 1024;

/// The longest channel, key, recipient, event type or content type, in bytes.
pub const MAX_NAME: usize = 512;

/// The most bytes all extra headers of a message may have.
pub const MAX_HEADERS: usize = 16 * 1024;

/// A message to be enqueued.
///
/// Only the channel and the payload are needed; everything else has a default.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a message is sent only after Outbox::enqueue"]
pub struct Message {
    pub(crate) channel: String,
    pub(crate) payload: Payload,
    pub(crate) message_id: Option<String>,
    pub(crate) dedupe_key: Option<String>,
    pub(crate) event_type: Option<String>,
    pub(crate) recipient: Option<String>,
    pub(crate) ordering_key: Option<String>,
    pub(crate) principal: Option<String>,
    pub(crate) content_type: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) available: Option<Moment>,
    pub(crate) expires: Option<Moment>,
    pub(crate) on_duplicate: OnDuplicate,
    pub(crate) kept_aside: bool,
}

/// The body as it is stored: text stays readable for people with only `sqlite3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Payload {
    Text(String),
    Bytes(Vec<u8>),
}

impl Payload {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// A moment that is fixed already, or counted from the enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    At(i64),
    In(Duration),
}

impl Moment {
    pub(crate) fn resolve(self, now: i64) -> i64 {
        match self {
            Self::At(at) => at,
            Self::In(span) => now.saturating_add(crate::clock::millis(span)),
        }
    }
}

/// What to do when the dedupe key is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDuplicate {
    /// Keep the message that is there; the answer tells whether the content differs.
    #[default]
    Keep,
    /// Latest wins: replace a message that was never attempted, in its place. One that was
    /// attempted or is settled is kept, as with `Keep`.
    Replace,
    /// Answer [`Error::Duplicate`].
    Fail,
}

/// What [`enqueue`](crate::Outbox::enqueue) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// A new message.
    New {
        /// Its row.
        id: i64,
    },
    /// The message of this key had never been attempted and now has the new content.
    Replaced {
        /// Its row.
        id: i64,
    },
    /// The key is taken by a message with the same content: nothing to do.
    Duplicate {
        /// The row that has it.
        id: i64,
    },
    /// The key is taken by a message with *other* content, which was kept. The new one is stored
    /// nowhere, or as a [`Conflict`](crate::Conflict) if it asked to be [kept
    /// aside](Message::keep_aside).
    Conflict {
        /// The row that has it.
        id: i64,
    },
}

impl Enqueued {
    /// The row that now stands for the key.
    pub fn id(self) -> i64 {
        match self {
            Self::New { id }
            | Self::Replaced { id }
            | Self::Duplicate { id }
            | Self::Conflict { id } => id,
        }
    }
}

impl Message {
    fn new(channel: impl Into<String>, payload: Payload, content_type: &str) -> Self {
        Self {
            channel: channel.into(),
            payload,
            message_id: None,
            dedupe_key: None,
            event_type: None,
            recipient: None,
            ordering_key: None,
            principal: None,
            content_type: content_type.into(),
            headers: BTreeMap::new(),
            available: None,
            expires: None,
            on_duplicate: OnDuplicate::Keep,
            kept_aside: false,
        }
    }

    /// A JSON document. Fails when `body` cannot be written as JSON.
    pub fn json(channel: impl Into<String>, body: &impl Serialize) -> Result<Self> {
        let text = serde_json::to_string(body).map_err(|error| Error::InvalidMessage {
            field: "payload",
            reason: format!("cannot be written as JSON: {error}"),
        })?;
        Ok(Self::new(channel, Payload::Text(text), "application/json"))
    }

    /// Text as it is, `text/plain; charset=utf-8` unless told otherwise.
    pub fn text(channel: impl Into<String>, body: impl Into<String>) -> Self {
        Self::new(
            channel,
            Payload::Text(body.into()),
            "text/plain; charset=utf-8",
        )
    }

    /// Bytes as they are, `application/octet-stream` unless told otherwise.
    pub fn bytes(channel: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self::new(
            channel,
            Payload::Bytes(body.into()),
            "application/octet-stream",
        )
    }

    /// The application's own key: a second message with it in this channel is not enqueued.
    /// Default: random.
    pub fn dedupe_key(mut self, key: impl Into<String>) -> Self {
        self.dedupe_key = Some(key.into());
        self
    }

    /// The identity the receiver sees, kept from another file that the message comes from, so that
    /// a receiver which had it already recognises it. No other message may have it. Default: random.
    pub fn message_id(mut self, id: impl Into<String>) -> Self {
        self.message_id = Some(id.into());
        self
    }

    /// Messages of this channel with the same ordering key arrive in enqueue order, one at a time.
    /// Take a document or a customer, not a whole till: a held key holds all its messages.
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// What happened, e.g. `sale.completed`.
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// Phone number, partner, or part of the URL.
    pub fn recipient(mut self, recipient: impl Into<String>) -> Self {
        self.recipient = Some(recipient.into());
        self
    }

    /// Whose credentials the message goes out with; handed to the credential source.
    pub fn principal(mut self, principal: impl Into<String>) -> Self {
        self.principal = Some(principal.into());
        self
    }

    /// The payload's media type.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = content_type.into();
        self
    }

    /// An extra request header. Credentials belong to the route, not here, and are refused.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Not before this moment, in milliseconds since 1970 UTC.
    pub fn available_at(mut self, at: i64) -> Self {
        self.available = Some(Moment::At(at));
        self
    }

    /// Not before this span has passed since the enqueue.
    pub fn delay(mut self, span: Duration) -> Self {
        self.available = Some(Moment::In(span));
        self
    }

    /// Never after this moment, in milliseconds since 1970 UTC.
    pub fn expires_at(mut self, at: i64) -> Self {
        self.expires = Some(Moment::At(at));
        self
    }

    /// Never later than this span after the enqueue.
    pub fn ttl(mut self, span: Duration) -> Self {
        self.expires = Some(Moment::In(span));
        self
    }

    /// What to do when the dedupe key is taken. Default: keep what is there and say so.
    pub fn on_duplicate(mut self, choice: OnDuplicate) -> Self {
        self.on_duplicate = choice;
        self
    }

    /// Where the answer is [`Enqueued::Conflict`], keep this message aside as plain SQL does: a
    /// [`Conflict`](crate::Conflict), once for each content, about which a person decides. For a
    /// caller that cannot decide itself. Default: the caller is told, and nothing of it is stored.
    pub fn keep_aside(mut self) -> Self {
        self.kept_aside = true;
        self
    }

    /// The extra headers as stored, or nothing.
    pub(crate) fn headers_json(&self) -> Option<String> {
        (!self.headers.is_empty()).then(|| as_json(&self.headers))
    }

    /// Everything that could make the message impossible to store or to send.
    pub(crate) fn validate(&self, max_payload: usize) -> Result<()> {
        let bytes = self.payload.as_bytes().len();
        if bytes > max_payload {
            return Err(Error::TooLarge {
                bytes,
                limit: max_payload,
            });
        }
        channel(&self.channel)?;
        let optional = [
            ("message id", &self.message_id),
            ("dedupe key", &self.dedupe_key),
            ("ordering key", &self.ordering_key),
            ("event type", &self.event_type),
            ("recipient", &self.recipient),
            ("principal", &self.principal),
        ];
        for (field, value) in optional {
            value.as_ref().map_or(Ok(()), |value| name(field, value))?;
        }
        content_type(&self.content_type)?;
        let times = [
            ("available_at", self.available),
            ("expires_at", self.expires),
        ];
        for (field, it) in times {
            it.map_or(Ok(()), |it| moment(field, it))?;
        }
        headers(&self.headers)
    }
}

fn invalid(field: &'static str, reason: impl Into<String>) -> Error {
    Error::InvalidMessage {
        field,
        reason: reason.into(),
    }
}

/// Headers as they are stored.
pub(crate) fn as_json(headers: &BTreeMap<String, String>) -> String {
    serde_json::to_string(headers).unwrap_or_default()
}

pub(crate) fn moment(field: &'static str, moment: Moment) -> Result<()> {
    match moment {
        Moment::At(at) if at < 0 => Err(invalid(field, "lies before 1970")),
        _ => Ok(()),
    }
}

pub(crate) fn content_type(value: &str) -> Result<()> {
    name("content type", value)?;
    header_value("content type", value)
}

pub(crate) fn channel(value: &str) -> Result<()> {
    name("channel", value)?;
    match value.contains(':') {
        true => Err(invalid("channel", "must not contain a colon")),
        false => Ok(()),
    }
}

pub(crate) fn name(field: &'static str, value: &str) -> Result<()> {
    if value.is_empty() {
        Err(invalid(field, "is empty"))
    } else if value.len() > MAX_NAME {
        Err(invalid(
            field,
            format!("has {} bytes, the limit is {MAX_NAME}", value.len()),
        ))
    } else if value.chars().any(char::is_control) {
        Err(invalid(field, "contains a control character"))
    } else {
        Ok(())
    }
}

fn header_value(field: &'static str, value: &str) -> Result<()> {
    if value
        .bytes()
        .all(|it| it == b'\t' || (0x20..0x7f).contains(&it))
    {
        Ok(())
    } else {
        Err(invalid(field, "is not printable ASCII"))
    }
}

/// Headers that belong to the transport or carry credentials: a message may not set them.
const RESERVED: [&str; 20] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "api-key",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
    "x-api-key",
    "x-auth-token",
];

/// Parts of header names that speak of credentials, whatever else stands around them.
const SECRETIVE: [&str; 9] = [
    "apikey",
    "api-key",
    "access-key",
    "subscription-key",
    "cookie",
    "password",
    "secret",
    "token",
    "authorization",
];

fn is_reserved(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    RESERVED.contains(&name.as_str())
        || SECRETIVE.iter().any(|part| name.contains(part))
        || name.ends_with("auth")
}

/// Checks extra headers: also used for rows that foreign hands wrote.
pub(crate) fn headers(headers: &BTreeMap<String, String>) -> Result<()> {
    let mut size = 0;
    for (key, value) in headers {
        size += key.len() + value.len();
        let token = |it: u8| it.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&it);
        if key.is_empty() || !key.bytes().all(token) {
            return Err(invalid("header name", format!("{key:?} is not a token")));
        }
        if is_reserved(key) {
            return Err(invalid(
                "header",
                format!("{key} belongs to the route, not to a message"),
            ));
        }
        header_value("header value", value)?;
    }
    if size > MAX_HEADERS {
        return Err(invalid(
            "headers",
            format!("have {size} bytes, the limit is {MAX_HEADERS}"),
        ));
    }
    Ok(())
}
