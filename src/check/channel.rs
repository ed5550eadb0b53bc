//! What a channel's state means for a person.

use Severity::{Note, Warning};

use super::{DAY, HOUR};
use crate::condition::{Finding, Severity};
use crate::dispatch::{self, Failure};
use crate::printable::printable_name;
use crate::stats::{Age, ChannelState, ChannelStats, Lasting};

/// Whether a channel is to be probed, and has been for longer than a drain that runs lets it wait.
pub(super) fn unprobed(channel: &ChannelStats, now: i64) -> bool {
    const OVERDUE: i64 = 5 * 60_000;
    let probed = matches!(
        channel.state,
        ChannelState::Offline | ChannelState::Unauthorised | ChannelState::Rejecting
    );
    probed
        && channel
            .until
            .is_some_and(|at| now.saturating_sub(at) > OVERDUE)
        && channel.waits_for(now).is_none()
}

pub(super) fn state(channel: &ChannelStats, now: i64) -> Option<Finding> {
    let cause = channel.reason_code.as_deref().unwrap_or_default();
    let secret = cause == Failure::NO_CREDENTIALS;
    let long = channel.since.is_some_and(|at| now.saturating_sub(at) > DAY);
    let forgotten = long && channel.counts.unsent() > 0;
    // It changes between the two with every probe, so only what waits tells since when.
    let oldest = channel.counts.oldest_unsent_at;
    let put_off = oldest.is_some_and(|at| now.saturating_sub(at) > DAY);
    let (severity, code, remedy) = match channel.state {
        ChannelState::Unauthorised if secret => (
            Warning,
            "no_credentials",
            "put the secret where the settings look for it, for the user who runs the sending \
             program, and restart that for a variable; then resume, or wait for the next probe",
        ),
        ChannelState::Unauthorised => (
            Warning,
            "unauthorised",
            "renew the credentials of its route; then resume, or wait for the next probe",
        ),
        ChannelState::Rejecting => (
            Warning,
            "rejecting",
            "the receiver refuses everything: look at the last error with its operator; then resume",
        ),
        ChannelState::Offline => match cause {
            "reply_rule" => (
                Warning,
                "reply_rule",
                "the answer does not hold the `reply` rule of its route; nothing is lost",
            ),
            // Probing alone mends none of these.
            "redirected"
            | "tls"
            | "portal"
            | "http_404"
            | "http_405"
            | "http_410"
            | Failure::PANIC
            | Failure::UNSAID
            | Failure::UNTAKEN => (Warning, "offline", "nothing is lost"),
            // No night and no closing day lasts so long without anybody who should know.
            _ if forgotten => (
                Warning,
                "offline",
                "nothing is lost; a drain that runs probes it again and again, and yet it has lasted for more \
                 than a day while messages wait: ask whoever runs the receiver or the network",
            ),
            _ => (
                Note,
                "offline",
                "nothing is lost; a drain that runs probes it again and again",
            ),
        },
        ChannelState::Holding if put_off => (
            Warning,
            "holding",
            "the receiver asks again and again to be left alone, and messages have waited for more than a day: \
             ask whoever runs it",
        ),
        ChannelState::Holding => (
            Note,
            "holding",
            "the receiver asked for it; it goes on by itself",
        ),
        ChannelState::Paused if forgotten => (
            Warning,
            "paused",
            "messages wait, and it goes on only when a person resumes it: ask whoever paused it",
        ),
        ChannelState::Paused => (Note, "paused", "it goes on when it is resumed"),
        _ => return None,
    };
    let waits = channel.waits_for(now);
    // The receiver may be back long before.
    let severity = match waits {
        Some((_, at)) if at.saturating_sub(now) > HOUR => severity.max(Warning),
        _ => severity,
    };
    let offline = channel.state == ChannelState::Offline;
    let remedy = match waits {
        Some((id, at)) => format!(
            "{}; the next probe waits for message {id}, due in {}: `drain --now`, or an edit of its \
             schedule, brings it forward",
            if offline { "nothing is lost" } else { remedy },
            Age(at.saturating_sub(now))
        ),
        None => remedy.into(),
    };
    let remedy = match dispatch::remedy(cause, channel.reason.as_deref().unwrap_or_default()) {
        Some(more) if offline => format!("{remedy}; {more}"),
        _ => remedy,
    };
    let helps = severity > Note || channel.state == ChannelState::Paused;
    let mut text = format!("{}: {}", printable_name(&channel.channel), channel.state);
    if let Some(since) = channel.since {
        text.push_str(&format!(" {}", Lasting { since, now }));
    }
    if let Some(reason) = &channel.reason {
        text.push_str(&format!(": {}", Failure::brief(reason)));
    }
    let finding = Finding::new(severity, code, text, remedy).channel(&channel.channel);
    Some(match waits {
        Some((id, _)) if offline => {
            finding.command(["edit", &format!("id:{id}"), "--available", "now"])
        }
        _ if helps => finding.command(["resume", &channel.channel]),
        _ => finding,
    })
}
