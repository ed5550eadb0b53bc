//! Which messages a person means, when it is not one: plain data.

use crate::entry::Status;

/// Messages to act on together, for [`Operator::retry_all`](crate::Operator::retry_all),
/// [`Operator::cancel_all`](crate::Operator::cancel_all),
/// [`Operator::send_all_again`](crate::Operator::send_all_again) and
/// [`Operator::count`](crate::Operator::count). Default: all dead letters. Each condition narrows
/// the choice. What is enqueued after a call began is never chosen by it.
///
/// ```
/// # use sqlite_outbox::Selection;
/// let broken_deployment = Selection::new().channel("sales").http_status(400);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    pub(crate) status: Status,
    pub(crate) channel: Option<String>,
    pub(crate) code: Option<String>,
    pub(crate) http_status: Option<u16>,
    pub(crate) error: Option<String>,
    pub(crate) since: Option<i64>,
    pub(crate) before: Option<i64>,
    pub(crate) up_to: Option<i64>,
    pub(crate) web_page: bool,
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            status: Status::Dead,
            channel: None,
            code: None,
            http_status: None,
            error: None,
            since: None,
            before: None,
            up_to: None,
            web_page: false,
        }
    }
}

impl Selection {
    /// All dead letters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Messages that stand there instead of the dead ones.
    pub fn status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    /// Only those of this channel.
    pub fn channel(mut self, channel: impl Into<String>) -> Self {
        self.channel = Some(channel.into());
        self
    }

    /// Only those whose last failed attempt has this code, such as `timeout` or `http_400`:
    /// [`Attempt::outcome`](crate::Attempt::outcome).
    pub fn reason_code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// Only those whose last failed attempt was answered with this HTTP status.
    pub fn http_status(mut self, status: u16) -> Self {
        self.http_status = Some(status);
        self
    }

    /// Only those whose last error contains this text; small and capital ASCII letters are the
    /// same.
    pub fn error_contains(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// Only those that came into their status at this moment or later, in milliseconds since 1970
    /// UTC. What is still unsent counts from its enqueue.
    pub fn since(mut self, at: i64) -> Self {
        self.since = Some(at);
        self
    }

    /// Only those that came into their status before this moment, in milliseconds since 1970 UTC.
    /// What is still unsent counts from its enqueue.
    pub fn before(mut self, at: i64) -> Self {
        self.before = Some(at);
        self
    }

    /// Only those with this id or a lower one, so those that were enqueued until then: with
    /// [`Operator::highest_id`](crate::Operator::highest_id), what is there when several calls begin.
    pub fn up_to(mut self, id: i64) -> Self {
        self.up_to = Some(id);
        self
    }

    /// Only those whose answer begins as a web page does, as a captive portal sends it.
    pub fn web_page(mut self) -> Self {
        self.web_page = true;
        self
    }
}

/// What stands for a message that was [sent again](crate::Operator::send_again).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SentAgain {
    /// The new message.
    pub id: i64,
    /// Its key.
    pub dedupe_key: String,
}
