//! What an engine does, as lines of a log.

use crate::observer::Event;
use crate::printable::printable_name;
use crate::stats::ChannelState;

/// The log target of events, so that a program which shows them by its own observer can leave
/// these lines out.
pub(super) const EVENTS: &str = "sqlite_outbox::event";

/// That of what happens to each message, which an observer rarely shows.
const MESSAGES: &str = "sqlite_outbox::message";

/// What is worth reading in a log: losses and changes, not every delivery.
pub(super) fn log_event(event: &Event) {
    match event {
        Event::Delivered { id, channel, .. } => {
            let channel = printable_name(channel);
            log::debug!(target: MESSAGES, "{channel}: message {id} delivered")
        }
        Event::Retried {
            id,
            channel,
            charged,
            error,
            ..
        } => {
            let channel = printable_name(channel);
            let charge = if *charged { "charged" } else { "not charged" };
            log::info!(target: MESSAGES, "{channel}: message {id} failed ({charge}): {error}");
        }
        Event::Dead { id, channel, error } => {
            let channel = printable_name(channel);
            log::warn!(target: EVENTS, "{channel}: message {id} is a dead letter: {error}");
        }
        Event::Channel {
            channel,
            state,
            reason,
        } => {
            let channel = printable_name(channel);
            let level = match state {
                ChannelState::Ok => log::Level::Info,
                _ => log::Level::Warn,
            };
            let reason = reason.as_deref().unwrap_or("messages flow again");
            log::log!(target: EVENTS, level, "{channel} is {state}: {reason}");
        }
        Event::Paused {
            channel,
            by,
            reason,
        } => {
            let channel = printable_name(channel);
            let by = by.as_deref().unwrap_or("somebody");
            let reason = reason.as_deref().unwrap_or("no reason given");
            log::warn!(target: EVENTS, "{channel} was paused by {by}: {reason}");
        }
        Event::Resumed { channel } => {
            log::info!(target: EVENTS, "{} was resumed", printable_name(channel));
        }
        Event::Unrouted { channel } => {
            let channel = printable_name(channel);
            log::warn!(target: EVENTS, "{channel}: messages wait and there is no route");
        }
        Event::Expired { messages } => {
            log::warn!(target: EVENTS, "{messages} messages expired unsent")
        }
        Event::HookFailed { id, error } => {
            log::error!(target: EVENTS, "message {id} was delivered, but on_delivered failed: {error}");
        }
        Event::Refused { id, error } => {
            log::error!(target: EVENTS, "message {id} refuses every change and is left alone: {error}");
        }
        Event::Overrun { id, channel } => {
            let channel = printable_name(channel);
            log::warn!(target: EVENTS, "{channel}: message {id} is still being sent although its claim has passed on");
        }
        Event::Late { id, delivered } => {
            log::info!(target: MESSAGES, "message {id}: an answer came late (delivered: {delivered})");
        }
        Event::StoreFailed { error } => {
            log::error!(target: EVENTS, "the outbox cannot write: {error}")
        }
        Event::Stopped { error: Some(error) } => {
            log::error!(target: EVENTS, "the pump ended: {error}")
        }
        Event::Stopped { error: None } => log::debug!(target: EVENTS, "the pump ended"),
    }
}
