//! The reason in plain sentences.

use std::fmt;

use crate::dispatch::{Failure, remedy};
use crate::entry::Status;
use crate::printable::{printable, printable_name};
use crate::stats::{Age, ChannelState, Lasting, Utc, is_ahead, other_unit};
use crate::why::{Fault, Reason, Why};

impl fmt::Display for Why {
    /// For example: `Message 7 of sales (key S-104522) waits: the receiver cannot be reached or fails,
    /// for 20 min now (connection refused); a drain that runs probes it again in 12 s. The fault lies with the network. Nothing is lost; it
    /// goes out by itself when the receiver answers.`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasting = |since| Lasting {
            since,
            now: self.now,
        };
        let ago = |at| Ago(lasting(at));
        let span = |at: Option<i64>| at.map(|at| Age(at.saturating_sub(self.now)));
        write!(
            f,
            "Message {} of {} (key {}) ",
            self.id,
            printable_name(&self.channel),
            printable_name(&self.dedupe_key)
        )?;
        match self.reason {
            Reason::Sent => write!(f, "was sent")?,
            Reason::Dead => write!(f, "is a dead letter")?,
            Reason::Expired if self.status == Status::Expired => write!(f, "has expired unsent")?,
            Reason::Expired => write!(f, "has passed its expiry and will not be sent")?,
            Reason::Cancelled => write!(f, "was cancelled")?,
            Reason::Scheduled => write!(f, "is scheduled")?,
            Reason::FarAhead => write!(f, "waits for a moment that is too far ahead")?,
            Reason::Behind { id, status } => {
                write!(f, "waits behind message {id}, which is {status}")?;
            }
            Reason::BackOff => write!(f, "failed and waits for its next attempt")?,
            Reason::Offline if self.cause.as_deref() == Some("reply_rule") => match self.fault {
                Fault::Network => write!(f, "waits: a web page answers in place of the receiver")?,
                _ => write!(
                    f,
                    "waits: the answer does not hold the `reply` rule of its route"
                )?,
            },
            Reason::Offline => write!(f, "waits: the receiver cannot be reached or fails")?,
            Reason::Unauthorised => write!(f, "waits: the credentials are not accepted")?,
            Reason::NoCredentials => write!(f, "waits: its credentials cannot be had here")?,
            Reason::Rejecting => write!(f, "waits: the receiver rejects everything")?,
            Reason::Holding => write!(f, "waits: the receiver asked for a pause")?,
            Reason::Paused => write!(f, "waits: its channel was paused")?,
            Reason::Claimed { stale: false, .. } => write!(f, "is being sent")?,
            Reason::Claimed { .. } => {
                write!(
                    f,
                    "was being sent when, it seems, the sending process ended"
                )?;
            }
            Reason::NoDrain => write!(f, "could be sent, but no drain has left a trace")?,
            Reason::Unrouted => write!(f, "waits: its channel has no route")?,
            Reason::NoOther => {
                write!(
                    f,
                    "keeps failing, and its channel has no other message to try"
                )?;
            }
            Reason::Invalid => write!(f, "cannot be sent as it is stored")?,
            Reason::Due => write!(f, "is due")?,
        }
        match (self.reason, self.since, self.detail.as_deref()) {
            (
                Reason::Scheduled
                | Reason::FarAhead
                | Reason::Behind { .. }
                | Reason::Claimed { .. },
                ..,
            ) => {}
            // It has hardly come.
            (Reason::Due, Some(at), None) if self.now.saturating_sub(at) < 1_000 => {}
            (Reason::Sent | Reason::Expired | Reason::Cancelled, Some(at), detail) => {
                match self.odd_moment().and_then(other_unit) {
                    Some(_) => write!(f, ", at {}", Utc(at))?,
                    None => write!(f, ", {}", ago(at))?,
                }
                if let Some(noticed) = self.noticed {
                    write!(f, " (noticed {})", ago(noticed))?;
                }
                if let (Fault::Network, Some(page)) = (self.fault, detail) {
                    write!(f, ", but {page}")?;
                }
            }
            (Reason::NoDrain | Reason::Due, Some(at), None) if self.obstacle.is_some() => {
                write!(f, ", {}", lasting(at))?;
                if lasting(at).is_known() {
                    f.write_str(" now")?;
                }
            }
            (Reason::NoDrain | Reason::Due, Some(at), Some(error)) => {
                write!(f, ", {}", lasting(at))?;
                if lasting(at).is_known() {
                    f.write_str(" now")?;
                }
                match self.attempted {
                    Some(at) => write!(f, "; its last attempt, {}, failed", ago(at))?,
                    None => write!(f, "; its channel is {}", self.channel_state)?,
                }
                write!(f, ": {}", printable(Failure::brief(error)))?;
            }
            (Reason::Paused, Some(at), Some(by)) => write!(f, " {} by {}", ago(at), printable(by))?,
            (_, Some(at), detail) => {
                write!(f, ", {}", lasting(at))?;
                if lasting(at).is_known() {
                    f.write_str(" now")?;
                }
                if let Some(detail) = detail {
                    write!(f, " ({})", printable(Failure::brief(detail)))?;
                }
            }
            (_, None, Some(detail)) => write!(f, " ({})", printable(Failure::brief(detail)))?,
            (_, None, None) => {}
        }
        match (self.reason, span(self.until)) {
            (Reason::Behind { .. } | Reason::Claimed { stale: true, .. }, _) => {}
            (reason, span) if reason.is_probed() && span.is_none_or(|it| it.0 < 1_000) => {
                f.write_str("; a drain that runs probes it now")?;
            }
            (_, None) => {}
            (Reason::Claimed { .. }, Some(span)) => write!(f, "; its lease ends in {span}")?,
            (Reason::Scheduled | Reason::FarAhead, Some(span)) => {
                let moment = Utc(self.until.unwrap_or_default());
                write!(f, ": its moment comes in {span}, at {moment}")?;
            }
            (Reason::BackOff, Some(span)) => {
                write!(f, "; its next attempt is in {span}")?;
                if self.channel_state != ChannelState::Ok {
                    write!(f, ", and its channel is {} meanwhile", self.channel_state)?;
                }
            }
            (Reason::Holding, Some(span))
                if self.since.is_some_and(|at| is_ahead(at, self.now)) =>
            {
                write!(f, "; a drain that begins tries it again after {span}")?;
            }
            (Reason::Holding, Some(span)) => write!(f, "; that ends in {span}")?,
            // Whether one runs is not in the file before a probe is overdue.
            (_, Some(span)) => write!(f, "; a drain that runs probes it again in {span}")?,
        }
        if let Some(obstacle) = &self.obstacle {
            let remedy = &obstacle.remedy;
            write!(f, ": {}. {}.", printable(&obstacle.text), Capital(remedy))?;
            f.write_str(match self.forbidden {
                true => " The fault lies with the program that should send.",
                false => " The fault lies on this machine, not with the receiver.",
            })?;
            return self.asides(f);
        }
        f.write_str(". ")?;
        if let Some(head) = &self.behind {
            return head.fmt(f);
        }
        write!(f, "{} ", self.blame())?;
        if let Some(unit) = self.odd_moment().and_then(other_unit) {
            write!(
                f,
                "That moment looks like {unit}: times are milliseconds since 1970 UTC. "
            )?;
        }
        f.write_str(self.advice())?;
        if let Some(id) = self.sent_as {
            write!(f, " That is message {id}.")?;
        }
        if self.stale && !matches!(self.reason, Reason::Claimed { .. }) {
            f.write_str(
                " The process that was sending it has ended, it seems: then the next drain takes it \
                 back and sends it again under the same message id.",
            )?;
        }
        if self.was_broken_off() {
            f.write_str(
                " Its last call was broken off by a stop and may have arrived; it goes again under the \
                 same message id, by which the receiver can tell.",
            )?;
        }
        if let Some(remedy) = self.remedy() {
            write!(f, " If it goes on: {remedy}.")?;
        }
        self.asides(f)
    }
}

impl Reason {
    /// Whether its channel is held until a probe says better.
    fn is_probed(self) -> bool {
        matches!(
            self,
            Self::Offline
                | Self::Unauthorised
                | Self::NoCredentials
                | Self::Rejecting
                | Self::Holding
                | Self::NoOther
        )
    }
}

impl Why {
    /// What comes last.
    fn asides(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(behind) = self.clock_behind {
            let behind = Age(behind);
            write!(
                f,
                " The clock is {behind} behind the moment of its enqueue: set it."
            )?;
        }
        let mut notes = self.notes.iter();
        notes.try_for_each(|it| write!(f, " Note: {}.", printable(&it.text)))
    }

    /// What a person can do about the failure that it waits after, when that goes on.
    pub fn remedy(&self) -> Option<&'static str> {
        let text = self.detail.as_deref().unwrap_or_default();
        match self.reason {
            Reason::Dead if self.fault == Fault::Route => remedy(self.cause.as_deref()?, text),
            // The address serves others.
            Reason::BackOff if self.fault == Fault::Message => None,
            Reason::BackOff | Reason::Offline | Reason::NoOther | Reason::NoDrain | Reason::Due => {
                remedy(self.cause.as_deref()?, text)
            }
            _ => None,
        }
    }

    /// Whether it is a dead letter whose content the receiver has rejected, so that a retry alone is
    /// rejected again.
    pub fn is_rejected(&self) -> bool {
        let answered = self
            .code
            .as_deref()
            .is_some_and(|it| it.starts_with("http_"));
        self.reason == Reason::Dead && self.fault == Fault::Message && answered
    }

    /// Whether an answer that asks for another request was given, and no other message shows whether
    /// that is its own fault.
    pub(super) fn is_undecided(&self) -> bool {
        let asks = self
            .cause
            .as_deref()
            .is_some_and(|it| it.starts_with("http_4"));
        let early = matches!(
            self.cause.as_deref(),
            Some("http_408" | "http_425" | "http_429")
        );
        self.reason == Reason::BackOff && asks && !early
    }

    /// Whether nobody knows if it has arrived, as a stop broke its last call off.
    fn was_broken_off(&self) -> bool {
        let waits = matches!(self.status, Status::Pending | Status::Waiting);
        waits && self.code.as_deref() == Some(Failure::INTERRUPTED)
    }

    /// The moment that is hardly what was meant.
    fn odd_moment(&self) -> Option<i64> {
        match self.reason {
            Reason::FarAhead => self.until,
            Reason::Expired => self.since,
            _ => None,
        }
    }

    /// What to do next, in a sentence or two.
    pub fn advice(&self) -> &'static str {
        match self.reason {
            Reason::Sent if self.sent_as.is_some() => "It was sent again since, under another key.",
            Reason::Sent if self.sent_again => {
                "It was sent again since, under another key: what was done to it says as which message."
            }
            Reason::Sent if self.fault == Fault::Network => {
                "A captive portal or a proxy may have taken it: ask the receiver, and if it is not \
                 there, send it again, which puts it in under another key. With a `reply` rule in its \
                 route such an answer does not count."
            }
            Reason::Sent => "Ask the receiver if it cannot be found there.",
            Reason::Dead if self.fault == Fault::Receiver => {
                "Let the receiver be mended; then `resume` the channel and retry all its dead letters."
            }
            Reason::Dead => match (self.code.as_deref(), self.ordered) {
                (Some(Failure::UNRECORDED), _) => {
                    "The receiver has it, and a retry would send it a second time, under the same \
                     message id. Mend the trigger or rule, then cancel it here: nothing goes out, and \
                     what stands behind it goes on."
                }
                (Some(Failure::ROW_REFUSES), true) => {
                    "Mend the trigger or rule, then retry it; until then it holds what stands behind \
                     it, unless its channel skips the dead."
                }
                (Some(Failure::ROW_REFUSES), false) => "Mend the trigger or rule, then retry it.",
                (Some(Failure::INVALID), true) => {
                    "Retrying cannot help: edit what is wrong with it, or cancel it; until then it \
                     holds what stands behind it, unless its channel skips the dead."
                }
                (Some(Failure::INVALID), false) => {
                    "Retrying cannot help: edit what is wrong with it, or cancel it."
                }
                (_, true) if self.is_rejected() => {
                    "A retry sends the same content: edit what is wrong with it, retry it if the \
                     receiver was mended, or cancel it; until then it holds what stands behind it, \
                     unless its channel skips the dead."
                }
                (_, false) if self.is_rejected() => {
                    "A retry sends the same content: edit what is wrong with it, retry it if the \
                     receiver was mended, or cancel it."
                }
                (_, true) => {
                    "Mend the cause and retry it, edit it, or cancel it; until then it holds what \
                     stands behind it, unless its channel skips the dead."
                }
                (_, false) => "Mend the cause and retry it, edit it, or cancel it.",
            },
            Reason::Expired if self.status == Status::Expired => "Retry it to send it after all.",
            Reason::Expired => {
                "The next drain marks it as expired; to send it after all, retry it then."
            }
            Reason::Cancelled => "Retry it if that was a mistake.",
            Reason::FarAhead if self.fault == Fault::Message => {
                "Give it the moment that was meant by an edit of its schedule, or cancel it."
            }
            Reason::FarAhead => {
                "It has no schedule, so a clock ran ahead, or the moment was written by hand: a drain \
                 that begins makes it due."
            }
            Reason::BackOff if self.channel_state == ChannelState::Holding => {
                "Nothing is lost; it is tried again by itself. To send it sooner takes both, an edit of its \
                 schedule and `resume`, as the receiver asked for a pause."
            }
            Reason::BackOff if self.fault == Fault::Message => {
                "It is tried again by itself, and others of its channel were delivered meanwhile: \
                 look at the error; when it cannot be accepted as it is, cancel it and enqueue it \
                 anew."
            }
            Reason::BackOff if matches!(self.fault, Fault::Route | Fault::Program) => {
                "Nothing is lost; once that is mended it goes out at its next attempt, or at once \
                 after an edit of its schedule."
            }
            Reason::BackOff if self.cause.is_some() => {
                "Nothing is lost; it is tried again by itself, or at once by `drain --now`."
            }
            Reason::Scheduled => {
                "Nothing needs to be done; an edit of its schedule sends it sooner."
            }
            Reason::BackOff => "Nothing needs to be done.",
            Reason::Behind { .. } => "See to that message first.",
            Reason::Offline if matches!(self.fault, Fault::Route | Fault::Program) => {
                "Nothing is lost; once that is mended it goes out at the next probe, or at once \
                 after `resume`."
            }
            Reason::Offline => "Nothing is lost; it goes out by itself when the receiver answers.",
            Reason::Unauthorised => {
                "Renew the credentials; it goes out by itself at the next probe, or at once after \
                 `resume`."
            }
            Reason::NoCredentials => {
                "Set the variable, or put the file or command in place, that is named above, for the \
                 user who runs that program; a variable needs a restart of it. Then it goes out at \
                 the next probe, or at once after `resume`."
            }
            Reason::Rejecting => {
                "No more messages die until one is delivered. Let the receiver be mended; then \
                 `resume` the channel and retry the dead."
            }
            Reason::Holding => "It goes out by itself afterwards; `resume` ends the pause sooner.",
            Reason::Paused => "Ask whoever paused it; then resume the channel.",
            Reason::Claimed { stale: false, .. } => {
                "Wait for the answer; where the process that claimed it is gone, the next drain takes \
                 it back when the lease has ended."
            }
            Reason::Claimed { .. } => {
                "The next drain takes it back and sends it again under the same message id."
            }
            Reason::NoDrain | Reason::Due if self.forbidden => {
                "Programs as old as this one may not send it: start a newer one."
            }
            Reason::NoDrain if self.cause.is_some() => {
                "But nobody has tried since, and that comes first: start the program that sends, as a \
                 user who may write the file and its folder."
            }
            Reason::NoDrain => {
                "Start the program that sends, as a user who may write the file and its folder."
            }
            Reason::Unrouted => "Give the channel a route, or cancel the message.",
            Reason::NoOther => {
                "It is never given up while nothing else could be tried: look at the error, then \
                 mend the receiver, or cancel it."
            }
            Reason::Invalid => {
                "Edit what is wrong with it, or cancel it; the next drain makes it a dead letter."
            }
            Reason::Due => "It goes out with the next drain, or when its turn comes.",
        }
    }
}

/// `14 min ago`
struct Ago(Lasting);

impl fmt::Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lasting { since, now } = self.0;
        match self.0.is_known() {
            true => write!(f, "{} ago", Age(now.saturating_sub(since))),
            false => f.write_str("at a time when the clock was wrong"),
        }
    }
}

/// A sentence that begins with what follows a colon elsewhere.
struct Capital<'a>(&'a str);

impl fmt::Display for Capital<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut letters = self.0.chars();
        for letter in letters.next().into_iter().flat_map(char::to_uppercase) {
            write!(f, "{letter}")?;
        }
        f.write_str(letters.as_str())
    }
}
