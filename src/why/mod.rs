//! Why a message has not arrived: what it waits for, whose fault that is, what to do next.

mod explain;
mod words;

use crate::entry::Status;

pub(crate) use explain::{why, why_all};

/// What a message waits for, or what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Its moment has not come.
    Scheduled,
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
            Self::Behind { .. } => "behind",
            Self::BackOff => "back_off",
            Self::Offline => "offline",
            Self::Unauthorised => "unauthorised",
            Self::Rejecting => "rejecting",
            Self::Holding => "holding",
            Self::Paused => "paused",
            Self::Claimed { .. } => "claimed",
            Self::NoDrain => "no_drain",
            Self::Unrouted => "unrouted",
            Self::NoOther => "no_other",
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
    /// How it is sent: address, credentials, settings, or a drain that does not run.
    Route,
    /// What lies between.
    Network,
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
            Self::Network => "network",
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
    /// Where it stands.
    pub status: Status,
    /// What it waits for.
    pub reason: Reason,
    /// Whose fault that is.
    pub fault: Fault,
    /// Since when, in milliseconds since 1970 UTC, where that is known.
    pub since: Option<i64>,
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
