//! What a person changes in a stored message: plain data.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::message;

/// Other content for a message; what is not named stays. See
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

    /// As at enqueue.
    pub(crate) fn validate(&self) -> Result<()> {
        self.headers.as_ref().map_or(Ok(()), message::headers)?;
        let content_type = self.content_type.as_deref();
        content_type.map_or(Ok(()), message::content_type)
    }

    /// What is changed beside the payload, for the record.
    pub(crate) fn changed(&self) -> Option<&'static str> {
        match (&self.headers, &self.content_type) {
            (Some(_), Some(_)) => Some("headers and content type"),
            (Some(_), None) => Some("headers"),
            (None, Some(_)) => Some("content type"),
            (None, None) => None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.payload.is_none() && self.changed().is_none()
    }
}
