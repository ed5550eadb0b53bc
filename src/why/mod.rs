//! Why a message has not arrived: what it waits for, whose fault that is, what to do next.

mod blame;
mod explain;
mod kinds;
mod salvaged;
mod stage;
mod words;

use std::fmt;

use crate::condition::{Finding, Lost};
use crate::dispatch::Dispatcher;
use crate::entry::Status;
use crate::error::Result;
use crate::outbox::Outbox;
use crate::stats::ChannelState;

impl Outbox {
    /// Why the message has not arrived: what it waits for, whose fault that is, what to do next.
    /// Its `Display` says so in plain sentences. [`Error::NotFound`](crate::Error::NotFound) when there is none.
    ///
    /// It is read from the file alone, so it is the same in every process; what this process's
    /// pump has to say about itself is in [`Pump::health`](crate::Pump::health).
    pub fn why(&self, id: i64) -> Result<Why> {
        explain::why(self, id, None)
    }

    /// As [`why`](Self::why), by someone who knows the routes: a channel that the dispatcher does
    /// not serve is [`Reason::Unrouted`](crate::Reason::Unrouted).
    pub fn why_routed(&self, id: i64, dispatcher: &dyn Dispatcher) -> Result<Why> {
        explain::why(self, id, Some(dispatcher))
    }

    /// The same for some messages; those that are not there are left out.
    pub fn why_each(&self, ids: &[i64]) -> Result<Vec<Why>> {
        self.explainer().each(ids)
    }

    /// For many messages, a page at a time.
    pub fn explainer(&self) -> Explainer<'_> {
        Explainer {
            outbox: self,
            dispatcher: None,
            whole: explain::Whole::default(),
        }
    }

    /// What the whole file is waiting for: for each channel, the reasons with the number of
    /// messages and one of them explained. Nothing is waiting and nothing is dead when it is empty.
    ///
    /// One group for each channel and reason. Those of a group wait for the same, and may have failed
    /// differently; its fault is that of the one that is explained. Every unsent message is looked at,
    /// but for its payload: about a second for 300,000 of them.
    pub fn why_all(&self) -> Result<Vec<WhyGroup>> {
        kinds::why_all(self, None)
    }

    /// As [`why_all`](Self::why_all), by someone who knows the routes.
    pub fn why_all_routed(&self, dispatcher: &dyn Dispatcher) -> Result<Vec<WhyGroup>> {
        kinds::why_all(self, Some(dispatcher))
    }

    /// As [`why_all`](Self::why_all), or [`why_all_routed`](Self::why_all_routed), where that ends with
    /// [`Error::Damaged`](crate::Error::Damaged): looks through the rows that can be read, about a second
    /// per million, and says what is not in it.
    pub fn why_all_salvaged(
        &self,
        dispatcher: Option<&dyn Dispatcher>,
    ) -> Result<(Vec<WhyGroup>, Vec<Lost>)> {
        salvaged::all(self, dispatcher)
    }
}

/// Explains many messages, a page at a time; from [`Outbox::explainer`].
///
/// What concerns all of them alike is looked for once, at the first that it may matter to: when a
/// drain last ran, and what keeps everything from being sent, which may take two seconds.
pub struct Explainer<'a> {
    outbox: &'a Outbox,
    dispatcher: Option<&'a dyn Dispatcher>,
    whole: explain::Whole,
}

impl fmt::Debug for Explainer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explainer").finish_non_exhaustive()
    }
}

impl<'a> Explainer<'a> {
    /// Asks someone who knows the routes, as [`Outbox::why_routed`] does.
    #[must_use]
    pub fn routed(mut self, dispatcher: &'a dyn Dispatcher) -> Self {
        self.dispatcher = Some(dispatcher);
        self
    }

    /// Why each has not arrived; those that are not there are left out.
    pub fn each(&self, ids: &[i64]) -> Result<Vec<Why>> {
        explain::why_each(self.outbox, ids, self.dispatcher, &self.whole)
    }

    /// As [`each`](Self::each), where that ends with [`Error::Damaged`](crate::Error::Damaged): those that
    /// can be explained, and whether there are others.
    pub fn each_salvaged(&self, ids: &[i64]) -> Result<(Vec<Why>, Vec<Lost>)> {
        salvaged::each(self.outbox, ids, self.dispatcher, &self.whole)
    }
}

/// What a message waits for, or what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Its moment has not come.
    Scheduled,
    /// Its moment is more than ten years ahead, as one that was written in another unit than
    /// milliseconds; or it has no schedule, and is due later than any back-off reaches.
    FarAhead,
    /// An earlier message of its ordering key has to go first.
    Behind {
        /// That message.
        id: i64,
        /// Where it stands.
        status: Status,
    },
    /// It failed and waits for its next attempt.
    BackOff,
    /// Its channel's receiver does not answer, or answers with failures.
    Offline,
    /// Its channel's credentials are not accepted.
    Unauthorised,
    /// Its channel's credentials cannot be had on this side: a variable that is not set, a file
    /// that cannot be read. The receiver was not asked.
    NoCredentials,
    /// Its channel's receiver rejects everything.
    Rejecting,
    /// Its channel's receiver asked to be left alone.
    Holding,
    /// Its channel was stopped by a person.
    Paused,
    /// A worker has it.
    Claimed {
        /// The end of the lease, in milliseconds since 1970 UTC.
        until: i64,
        /// The lease is over or impossible: the worker's process may have ended.
        stale: bool,
    },
    /// It could go out, and no drain has left a trace since.
    NoDrain,
    /// The dispatcher has no route for its channel.
    Unrouted,
    /// It is the only message of its channel and keeps failing: nothing else can be tried, so
    /// nobody knows whether the fault is the receiver's or its own.
    NoOther,
    /// It cannot be sent as it is stored, by foreign hands: the next drain makes it a dead letter.
    Invalid,
    /// Nothing: it goes out with the next drain, or when its turn comes.
    Due,
    /// It is a dead letter.
    Dead,
    /// It was too late to be sent.
    Expired,
    /// It was taken back.
    Cancelled,
    /// It was delivered.
    Sent,
}

impl Reason {
    /// The stable word for it, as printed with `--json`.
    pub fn code(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::FarAhead => "far_ahead",
            Self::Behind { .. } => "behind",
            Self::BackOff => "back_off",
            Self::Offline => "offline",
            Self::Unauthorised => "unauthorised",
            Self::NoCredentials => "no_credentials",
            Self::Rejecting => "rejecting",
            Self::Holding => "holding",
            Self::Paused => "paused",
            Self::Claimed { .. } => "claimed",
            Self::NoDrain => "no_drain",
            Self::Unrouted => "unrouted",
            Self::NoOther => "no_other",
            Self::Invalid => "invalid",
            Self::Due => "due",
            Self::Dead => "dead",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Sent => "sent",
        }
    }
}

/// Who has to do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The message itself: its content is not accepted.
    Message,
    /// The system that should take it.
    Receiver,
    /// How it is sent: address, credentials, settings.
    Route,
    /// The program that sends: none runs, or it is too old, or its own
    /// [`Dispatcher`](crate::Dispatcher) panicked or did not say what happened.
    Program,
    /// What lies between.
    Network,
    /// This machine: its clock, or the file, which cannot be used as it should.
    Machine,
    /// A person who decided so.
    Operator,
    /// Nobody: it takes its course.
    Nobody,
}

impl Fault {
    /// The stable word for it, as printed with `--json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Receiver => "receiver",
            Self::Route => "route",
            Self::Program => "program",
            Self::Network => "network",
            Self::Machine => "machine",
            Self::Operator => "operator",
            Self::Nobody => "nobody",
        }
    }
}

/// Why one message has not arrived; see [`Outbox::why`](crate::Outbox::why). Its `Display` is two
/// or three sentences for a person, and some more when it stands behind another message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Why {
    /// The message.
    pub id: i64,
    /// Its channel.
    pub channel: String,
    /// Its key.
    pub dedupe_key: String,
    /// Where it stands.
    pub status: Status,
    /// Whether it has an ordering key, so that others may stand behind it.
    pub ordered: bool,
    /// What its last failed attempt came to, as a stable word.
    pub code: Option<String>,
    /// What came to the failure that it waits after, its channel's or its own, as a stable word.
    pub cause: Option<String>,
    /// How its channel stands, pauses apart.
    pub channel_state: ChannelState,
    /// Whether its channel has a route; `None` when nobody was asked who knows the routes.
    pub routed: Option<bool>,
    /// Whether it is claimed by somebody whose lease is over or impossible, so that the next drain
    /// takes it back.
    pub stale: bool,
    /// Whether it was [sent again](crate::Operator::send_again) since, under another key.
    pub sent_again: bool,
    /// The message that it was sent again as, the last if there are several; `None` where that is gone.
    pub sent_as: Option<i64>,
    /// Whether it is due, and only a program newer than this one may send it.
    pub forbidden: bool,
    /// What keeps it from being sent though it is due, of what [`Outbox::obstacles`] knows, or
    /// [was told](Self::hindered).
    ///
    /// [`Outbox::obstacles`]: crate::Outbox::obstacles
    pub obstacle: Option<Finding>,
    /// What may matter beside that, and is neither its cause nor anybody's fault as far as the file
    /// tells: that whoever asks may not write the file, or triggers of other hands on the outbox.
    pub notes: Vec<Finding>,
    /// What it waits for.
    pub reason: Reason,
    /// Whose fault that is.
    pub fault: Fault,
    /// Since when, in milliseconds since 1970 UTC, where that is known.
    pub since: Option<i64>,
    /// When its expiry was noticed, in milliseconds since 1970 UTC; `since` is when its time was over.
    pub noticed: Option<i64>,
    /// When it was last tried, in milliseconds since 1970 UTC, where no drain seems to run since and
    /// `detail` is what that came to.
    pub attempted: Option<i64>,
    /// Until when: the moment, the next attempt, probe or lease end; `None` when a person has to
    /// do something, or it is due.
    pub until: Option<i64>,
    /// What was last heard about it: an error, or who paused the channel and why.
    pub detail: Option<String>,
    /// Why the message has not arrived that this one is [`Behind`](Reason::Behind).
    pub behind: Option<Box<Why>>,
    /// When this was read, in milliseconds since 1970 UTC.
    pub now: i64,
    /// By how much the clock is behind the message's enqueue, in milliseconds, if it is.
    pub clock_behind: Option<i64>,
}

impl Why {
    /// The same, where whoever asks knows of something that keeps everything from being sent and that is not in
    /// the file, such as a disk that is full: a message that is due waits for that, and so does what stands behind
    /// it. The others wait for something else first, and stay as they are.
    #[must_use]
    pub fn hindered(mut self, by: &Finding) -> Self {
        if let Some(head) = self.behind.take() {
            let head = head.hindered(by);
            self.fault = head.fault;
            self.behind = Some(Box::new(head));
        } else if matches!(self.reason, Reason::Due | Reason::NoDrain) && self.obstacle.is_none() {
            self.stands_before(by.clone(), Fault::Machine);
        }
        self
    }

    /// Comes before all that was heard of the message.
    pub(super) fn stands_before(&mut self, obstacle: Finding, fault: Fault) {
        self.obstacle = Some(obstacle);
        self.fault = fault;
        (self.attempted, self.cause, self.detail) = (None, None, None);
    }
}

/// Messages of one channel that have not arrived for like reasons; see
/// [`Outbox::why_all`](crate::Outbox::why_all).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WhyGroup {
    /// How many.
    pub messages: u64,
    /// One of them, explained.
    pub why: Why,
}
