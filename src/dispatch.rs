//! The seam to the outside world: what a transport gets and what it answers.

mod brief;
mod remedy;
mod run;

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "http")]
pub(crate) use remedy::NO_TLS;
pub(crate) use remedy::{Certificate, remedy};
pub(crate) use run::Queue;
pub use run::Run;

/// One message on its way out, as a [`Dispatcher`] sees it.
///
/// Everything here is the same in every attempt of the message, except `attempt`.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Delivery {
    /// The row's number in this file: enqueue order, no identity beyond it.
    pub id: i64,
    /// The identity the receiver should see; the default idempotency key.
    pub message_id: String,
    /// A random name of this file, for receivers that hear several tills.
    pub instance: Arc<str>,
    /// Which route the message takes.
    pub channel: String,
    /// The application's own key.
    pub dedupe_key: String,
    /// What happened, e.g. `sale.completed`.
    pub event_type: Option<String>,
    /// Phone number, partner, or part of the URL.
    pub recipient: Option<String>,
    /// The document or customer whose messages keep their order.
    pub ordering_key: Option<String>,
    /// Whose credentials the message goes out with.
    pub principal: Option<String>,
    /// The payload's media type.
    pub content_type: String,
    /// Extra request headers; never credentials.
    pub headers: Vec<(String, String)>,
    /// The body, byte for byte.
    pub payload: Vec<u8>,
    /// Which sending of this message this is, from 1; crashes included.
    pub attempt: u32,
    /// Attempts charged to the message so far.
    pub charged: u32,
    /// When it was enqueued, in milliseconds since 1970 UTC.
    pub created_at: i64,
    /// Not to be sent after this moment, in milliseconds since 1970 UTC.
    pub expires_at: Option<i64>,
}

/// Runs within the transaction that records a delivery.
pub(crate) type DeliveredHook =
    dyn Fn(&rusqlite::Connection, &Delivery, &Receipt) -> anyhow::Result<()> + Send + Sync;

impl Delivery {
    /// A first delivery of a JSON payload, to try a dispatcher without an outbox: `id`, keys and
    /// `attempt` are set to something, every other field is empty. Set what the test needs.
    pub fn new(channel: impl Into<String>, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            id: 1,
            message_id: "message-1".into(),
            instance: "instance-1".into(),
            channel: channel.into(),
            dedupe_key: "key-1".into(),
            content_type: "application/json".into(),
            payload: payload.into(),
            attempt: 1,
            ..Self::default()
        }
    }
}

/// Of a dispatcher that sets none.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A transport. Implemented for closures `Fn(&Delivery) -> anyhow::Result<Outcome>`.
///
/// `Ok` says what happened. `Err` means "I do not know": the message is tried again and
/// the error's whole chain is kept as text. A panic counts as such an error; the worker lives on.
/// In `serves` it counts as no, in `time_limit` as the default, in `interrupt` as nothing; the
/// first of each is logged.
pub trait Dispatcher: Send + Sync {
    /// Sends one message, blocking. Runs on a worker thread, never inside a transaction.
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome>;

    /// Whether this dispatcher has a route for the channel. Messages of other channels stay unsent.
    ///
    /// Asked often, and, as [`time_limit`](Self::time_limit) is, within a transaction too: it answers from memory, at once.
    fn serves(&self, _channel: &str) -> bool {
        true
    }

    /// The longest one `dispatch` of this channel may take. The claim is renewed while the call
    /// is within it; past it the message may be handed to another worker. Default: 2 minutes.
    ///
    /// In a [`dispatch_run`](Self::dispatch_run) of its own it is the longest that may pass until
    /// messages are taken, between then and an answer, between two answers, and from the last one
    /// until it returns.
    fn time_limit(&self, _channel: &str) -> Duration {
        TIME_LIMIT
    }

    /// Sends a run: messages of one ordering key, in order, or a single message.
    ///
    /// The default sends them one by one. A transport that can put several messages into one
    /// request overrides this, takes them by [`Run::next_batch`] and settles each of them. One that
    /// takes none, without being told that the run may not go on, has failed: the first message is
    /// tried again after some seconds, uncharged.
    fn dispatch_run(&self, run: &mut Run<'_>) {
        while let Some(delivery) = run.next() {
            let outcome = self.dispatch(delivery);
            run.settle(outcome);
        }
    }

    /// Makes calls in flight return soon with whatever error: the outbox is stopping.
    fn interrupt(&self) {}
}

impl<F> Dispatcher for F
where
    F: Fn(&Delivery) -> anyhow::Result<Outcome> + Send + Sync,
{
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        self(delivery)
    }
}

/// What happened to one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The receiver has it.
    Delivered(Receipt),
    /// The receiver refuses this message; asking again cannot help. It becomes a dead letter.
    Rejected(Failure),
    /// The receiver answered, but not now.
    Retry(Failure),
    /// Nobody of ours answered.
    Unreachable(Failure),
    /// The route is at fault: credentials, a redirect, a login page. Never the message's charge.
    Blocked(Failure),
}

/// Characters of what a person reads, and of a receiver's id, that are kept.
const MAX_TEXT: usize = 1_000;
/// Of a code.
const MAX_CODE: usize = 100;

impl Outcome {
    /// Whether only the receiver can have said it, whatever was done to the call meanwhile: that it has the
    /// message, or when it wants to be asked again.
    pub(crate) fn is_the_receivers(&self) -> bool {
        match self {
            Self::Delivered(_) => true,
            Self::Rejected(it) | Self::Retry(it) | Self::Unreachable(it) | Self::Blocked(it) => {
                it.retry_after.is_some()
            }
        }
    }

    /// The same, with texts as long as they are kept: a channel and each attempt store them.
    pub(crate) fn bounded(&self) -> Self {
        let mut outcome = self.clone();
        match &mut outcome {
            Self::Delivered(receipt) => {
                if let Some(id) = &mut receipt.provider_id {
                    cut(id, MAX_TEXT);
                }
            }
            Self::Rejected(it) | Self::Retry(it) | Self::Unreachable(it) | Self::Blocked(it) => {
                cut(&mut it.text, MAX_TEXT);
                if it.code.len() > MAX_CODE {
                    cut(it.code.to_mut(), MAX_CODE);
                }
            }
        }
        outcome
    }

    /// Delivered, with nothing to remember of the answer.
    pub fn delivered() -> Self {
        Self::Delivered(Receipt::default())
    }

    /// Refused for good, with the reason a person will read.
    pub fn rejected(reason: impl Into<String>) -> Self {
        Self::Rejected(Failure::new("rejected", reason))
    }

    /// To be tried again, with the reason.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::Retry(Failure::new("retry", reason))
    }

    /// Nobody answered, with the reason.
    pub fn unreachable(reason: impl Into<String>) -> Self {
        Self::Unreachable(Failure::new("unreachable", reason))
    }

    /// The credentials were not accepted: the channel waits until they are.
    pub fn unauthorised(reason: impl Into<String>) -> Self {
        Self::Blocked(Failure::new(Failure::UNAUTHORISED, reason))
    }
}

/// What a receiver said when it took a message. Of a longer `provider_id` the first 1,000 characters
/// count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The receiver's own id, e.g. an invoice number.
    pub provider_id: Option<String>,
    /// The answer itself; stored up to the channel's bound.
    pub answer: Option<Vec<u8>>,
    /// The receiver's clock, in milliseconds since 1970 UTC, if it told.
    pub server_time: Option<i64>,
}

impl Receipt {
    /// A receipt that carries the receiver's own id.
    pub fn with_id(provider_id: impl Into<String>) -> Self {
        Self {
            provider_id: Some(provider_id.into()),
            ..Self::default()
        }
    }

    /// The same receipt with the answer's bytes.
    pub fn answer(mut self, answer: impl Into<Vec<u8>>) -> Self {
        self.answer = Some(answer.into());
        self
    }
}

/// Why an attempt did not deliver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// A stable, English-free code such as `refused`, `timeout` or `http_503`; its first 100
    /// characters count.
    pub code: Cow<'static, str>,
    /// What a person reads, innermost cause included. Never a credential. Its first 1,000 characters
    /// count.
    pub text: String,
    /// The HTTP status, where there was one.
    pub status: Option<u16>,
    /// How long the receiver asked to be left alone.
    pub retry_after: Option<Duration>,
    /// The start of the answer, kept as evidence of a dead letter.
    pub answer: Option<Vec<u8>>,
    /// The receiver's clock, in milliseconds since 1970 UTC, if it told.
    pub server_time: Option<i64>,
    /// The fault was found on this side (a header that cannot be sent, say): no evidence
    /// about the receiver.
    pub local: bool,
}

impl Failure {
    /// The code of an [`Outcome::Blocked`] that shows the channel as `unauthorised`.
    pub const UNAUTHORISED: &'static str = "unauthorised";

    /// The code of an [`Outcome::Blocked`] whose credentials could not be had on this side: nobody
    /// was asked. The channel is shown as `unauthorised` as well.
    pub const NO_CREDENTIALS: &'static str = "no_credentials";

    /// The code of an [`Outcome::Unreachable`] that [`Dispatcher::interrupt`] brought about:
    /// nobody knows whether the message arrived, and nobody is charged.
    pub const INTERRUPTED: &'static str = "interrupted";

    /// The code of a message that a [`Dispatcher::dispatch_run`] was given and did not take.
    pub(crate) const UNTAKEN: &'static str = "untaken";

    /// The code of a message that was taken out of a run, and of which nothing was said then.
    pub(crate) const UNSAID: &'static str = "unsaid";

    /// The code of a message whose dispatcher panicked.
    pub(crate) const PANIC: &'static str = "panic";

    /// The code of a message that cannot be sent as it is stored, or not over its route.
    pub(crate) const INVALID: &'static str = "invalid";

    /// The code of a message that was delivered, and whose row refuses to say so.
    pub(crate) const UNRECORDED: &'static str = "unrecorded";

    /// The code of a message whose row refuses another change. It was not delivered.
    pub(crate) const ROW_REFUSES: &'static str = "row_refuses";

    /// A failure with its stable code and its text.
    pub fn new(code: impl Into<Cow<'static, str>>, text: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            text: text.into(),
            status: None,
            retry_after: None,
            answer: None,
            server_time: None,
            local: false,
        }
    }

    /// The same failure with the delay the receiver asked for.
    pub fn after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// The same failure with the HTTP status.
    pub fn status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// The same failure, found on this side of the wire.
    pub fn local(mut self) -> Self {
        self.local = true;
        self
    }
}

/// Leaves the first characters of a text.
fn cut(text: &mut String, most: usize) {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
    }
}

/// Sends each channel to a dispatcher of its own.
#[derive(Default)]
pub struct Router {
    routes: Vec<(String, Box<dyn Dispatcher>)>,
    fallback: Option<Box<dyn Dispatcher>>,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let channels = self.routes.iter().map(|(channel, _)| channel);
        f.debug_list().entries(channels).finish()
    }
}

impl Router {
    /// A router without routes: it serves no channel.
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves `channel` by `dispatcher`. The last one given for a channel holds.
    pub fn route(
        mut self,
        channel: impl Into<String>,
        dispatcher: impl Dispatcher + 'static,
    ) -> Self {
        let channel = channel.into();
        self.routes.retain(|(known, _)| *known != channel);
        self.routes.push((channel, Box::new(dispatcher)));
        self
    }

    /// Serves every channel that has no route of its own.
    pub fn otherwise(mut self, dispatcher: impl Dispatcher + 'static) -> Self {
        self.fallback = Some(Box::new(dispatcher));
        self
    }

    fn find(&self, channel: &str) -> Option<&dyn Dispatcher> {
        self.routes
            .iter()
            .find(|(known, _)| known == channel)
            .map(|(_, dispatcher)| dispatcher.as_ref())
            .or(self.fallback.as_deref())
    }
}

impl Dispatcher for Router {
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        match self.find(&delivery.channel) {
            Some(dispatcher) => dispatcher.dispatch(delivery),
            None => anyhow::bail!("no route for channel {}", delivery.channel),
        }
    }

    fn serves(&self, channel: &str) -> bool {
        self.find(channel).is_some_and(|it| it.serves(channel))
    }

    fn time_limit(&self, channel: &str) -> Duration {
        self.find(channel)
            .map_or(TIME_LIMIT, |it| it.time_limit(channel))
    }

    fn dispatch_run(&self, run: &mut Run<'_>) {
        if let Some(dispatcher) = run.channel().and_then(|it| self.find(it)) {
            dispatcher.dispatch_run(run);
        }
    }

    fn interrupt(&self) {
        let routed = self.routes.iter().map(|(_, dispatcher)| dispatcher);
        // One that panics keeps no other from hearing.
        let mut panic = None;
        for dispatcher in routed.chain(&self.fallback) {
            let told = catch_unwind(AssertUnwindSafe(|| dispatcher.interrupt()));
            panic = panic.or(told.err());
        }
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}
