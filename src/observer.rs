//! What the outbox tells a program while it works.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::stats::ChannelState;

/// Something that happened, told after the transaction that recorded it was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A message arrived.
    Delivered {
        /// The row.
        id: i64,
        /// Its channel.
        channel: String,
        /// The receiver's own id, if it gave one.
        provider_id: Option<String>,
    },
    /// An attempt failed; the message will be tried again.
    Retried {
        /// The row.
        id: i64,
        /// Its channel.
        channel: String,
        /// Whether the attempt used up some of the message's budget.
        charged: bool,
        /// When it may next be tried, in milliseconds since 1970 UTC.
        next_attempt_at: i64,
        /// Why.
        error: String,
    },
    /// A message became a dead letter.
    Dead {
        /// The row.
        id: i64,
        /// Its channel.
        channel: String,
        /// Why.
        error: String,
    },
    /// Messages passed their `expires_at` unsent.
    Expired {
        /// How many, in this step.
        messages: usize,
    },
    /// A channel's state changed.
    Channel {
        /// The channel.
        channel: String,
        /// Its state now.
        state: ChannelState,
        /// What was last heard, for a person.
        reason: Option<String>,
    },
    /// A person stopped a channel, here or in another process.
    Paused {
        /// The channel.
        channel: String,
        /// Who.
        by: Option<String>,
        /// Why.
        reason: Option<String>,
    },
    /// A channel that was paused goes on.
    Resumed {
        /// The channel.
        channel: String,
    },
    /// Messages wait in a channel that the dispatcher does not serve. Told once for each channel.
    Unrouted {
        /// The channel.
        channel: String,
    },
    /// The `on_delivered` hook failed; the delivery stays recorded, the hook's own writes do not.
    HookFailed {
        /// The row.
        id: i64,
        /// Why.
        error: String,
    },
    /// A claim has passed on while a worker had its message: the call took too long, or the process
    /// stood still. Another may send it. Or the call did not return after its last answer. The worker
    /// counts as gone until it does.
    Overrun {
        /// The row, of the last answer where all was told.
        id: i64,
        /// Its channel.
        channel: String,
    },
    /// A row refuses every change, as by a trigger of the application: its message is left alone until
    /// this drain or pump ends. Told once for each.
    Refused {
        /// The row.
        id: i64,
        /// What it said, and what its last attempt came to where that could not be recorded.
        error: String,
    },
    /// An answer came for a claim that had passed on to someone else.
    Late {
        /// The row.
        id: i64,
        /// Whether it was a success, which counts, or a failure, which does not.
        delivered: bool,
    },
    /// The outbox could not write its file, or not start a single thread; what is known is kept and
    /// written later.
    StoreFailed {
        /// Why.
        error: String,
    },
    /// The pump has ended.
    Stopped {
        /// The error that ended it, if it was not asked to stop.
        error: Option<String>,
    },
}

/// Writes a line of the log. The logger is code of the application as well: a panic in it, as where it
/// prints into a pipe that nobody reads, ends nothing of ours.
pub(crate) fn logged(line: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(line));
}

/// Hears events. Implemented for closures `Fn(&Event)`.
///
/// Called on the pump's thread between transactions: be brief, hand on what takes time.
/// A panic in it is caught and logged.
pub trait Observer: Send + Sync {
    /// Hears one event.
    fn event(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> Observer for F {
    fn event(&self, event: &Event) {
        self(event);
    }
}
