//! What is waiting, for how long, and why: plain data to show.

use std::fmt;
use std::time::Duration;

use crate::circuit::OnDead;
use crate::clock::{FIRST_HONEST, millis};
use crate::entry::Status;
use crate::retry;

/// A channel's state as a person sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum ChannelState {
    /// Messages flow.
    #[default]
    Ok,
    /// Nobody of ours answers, or answers are failures; probed now and then.
    Offline,
    /// The credentials are not accepted.
    Unauthorised,
    /// The receiver rejects everything; no further message dies until one is delivered.
    Rejecting,
    /// The receiver asked to be left alone for a while.
    Holding,
    /// Stopped by a person.
    Paused,
    /// No dispatcher has a route for it.
    Unrouted,
    /// The file is damaged, and its row cannot be read. Only
    /// [`stats_salvaged`](crate::Outbox::stats_salvaged) says so.
    Unknown,
}

impl ChannelState {
    /// The stable word for this state, as stored and printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Offline => "offline",
            Self::Unauthorised => "unauthorised",
            Self::Rejecting => "rejecting",
            Self::Holding => "holding",
            Self::Paused => "paused",
            Self::Unrouted => "unrouted",
            Self::Unknown => "unknown",
        }
    }

    /// The state a stored word stands for; `Ok` for a word from a newer version.
    pub(crate) fn parse(word: &str) -> Self {
        match word {
            "offline" => Self::Offline,
            "unauthorised" => Self::Unauthorised,
            "rejecting" => Self::Rejecting,
            "holding" => Self::Holding,
            _ => Self::Ok,
        }
    }
}

impl fmt::Display for ChannelState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Messages counted by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Waiting for their time or a free worker.
    pub pending: u64,
    /// Behind an earlier message of their ordering key.
    pub waiting: u64,
    /// Claimed by a worker.
    pub sending: u64,
    /// Delivered and still remembered.
    pub sent: u64,
    /// Dead letters.
    pub dead: u64,
    /// Too late to be sent.
    pub expired: u64,
    /// Taken back by a person or the application.
    pub cancelled: u64,
    /// When the oldest unsent message was enqueued, in milliseconds since 1970 UTC.
    pub oldest_unsent_at: Option<i64>,
    /// The most attempts charged to one unsent message.
    pub max_attempts: u32,
}

impl Counts {
    /// Pending, waiting and sending together; dead letters are counted apart.
    pub fn unsent(&self) -> u64 {
        self.pending + self.waiting + self.sending
    }

    /// Age of the oldest unsent message in milliseconds; 0 when the clock went back.
    pub fn oldest_unsent_ms(&self, now: i64) -> Option<i64> {
        self.oldest_unsent_at
            .map(|at| now.saturating_sub(at).max(0))
    }

    /// The number of those with this status.
    pub(crate) fn of(&mut self, status: Status) -> Option<&mut u64> {
        Some(match status {
            Status::Pending => &mut self.pending,
            Status::Waiting => &mut self.waiting,
            Status::Sending => &mut self.sending,
            Status::Sent => &mut self.sent,
            Status::Dead => &mut self.dead,
            Status::Expired => &mut self.expired,
            Status::Cancelled => &mut self.cancelled,
            Status::Unknown => return None,
        })
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.pending += other.pending;
        self.waiting += other.waiting;
        self.sending += other.sending;
        self.sent += other.sent;
        self.dead += other.dead;
        self.expired += other.expired;
        self.cancelled += other.cancelled;
        self.max_attempts = self.max_attempts.max(other.max_attempts);
        self.oldest_unsent_at = match (self.oldest_unsent_at, other.oldest_unsent_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

/// One channel: its counts and the state every process agrees on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ChannelStats {
    /// The channel.
    pub channel: String,
    /// Its messages.
    pub counts: Counts,
    /// Its state.
    pub state: ChannelState,
    /// Since when, in milliseconds since 1970 UTC.
    pub since: Option<i64>,
    /// The next probe or the end of a hold, in milliseconds since 1970 UTC.
    pub until: Option<i64>,
    /// The pending message that may be tried first, and when, in milliseconds since 1970 UTC.
    pub next_due: Option<(i64, i64)>,
    /// Why, as a stable code.
    pub reason_code: Option<String>,
    /// Why, for a person.
    pub reason: Option<String>,
    /// What a dead letter does to those behind it.
    pub on_dead: OnDead,
    /// Who paused it.
    pub paused_by: Option<String>,
    /// The receiver's clock minus ours in milliseconds, when last heard and more than a minute.
    pub clock_skew: Option<i64>,
}

impl ChannelStats {
    /// The message that the next probe waits for, and until when: each of the channel's has a back-off
    /// or a moment of its own that lasts longer, by a minute or more, than the channel's wait.
    pub fn waits_for(&self, now: i64) -> Option<(i64, i64)> {
        let probed = matches!(
            self.state,
            ChannelState::Offline | ChannelState::Unauthorised | ChannelState::Rejecting
        );
        self.next_due
            .filter(|(_, at)| probed && retry::outlasts(*at, self.until, now))
    }
}

/// The whole file at one moment. Its `Display` is one line for the cashier.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// All channels together.
    pub total: Counts,
    /// Each channel that has messages or a state, by name.
    pub channels: Vec<ChannelStats>,
    /// Duplicates with other content, kept aside for a person.
    pub conflicts: u64,
    /// When this was read, in milliseconds since 1970 UTC.
    pub now: i64,
}

impl fmt::Display for Stats {
    /// For example `12 messages waiting, oldest 14 min, sales offline for 20 min; 1 needs attention`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.total.unsent() {
            0 => write!(f, "nothing waiting")?,
            1 => write!(f, "1 message waiting")?,
            n => write!(f, "{n} messages waiting")?,
        }
        if let Some(since) = self.total.oldest_unsent_at {
            let now = self.now;
            let lasting = Lasting { since, now };
            match lasting.is_known() {
                true => write!(f, ", oldest {}", Age(now.saturating_sub(since)))?,
                false => f.write_str(", the oldest from a time when the clock was wrong")?,
            }
        }
        let troubled = |it: &&ChannelStats| it.state != ChannelState::Ok && it.counts.unsent() > 0;
        for channel in self.channels.iter().filter(troubled) {
            write!(f, ", {} {}", channel.channel, channel.state)?;
            if let Some(since) = channel.since {
                write!(
                    f,
                    " {}",
                    Lasting {
                        since,
                        now: self.now
                    }
                )?;
            }
        }
        match self.total.dead + self.conflicts {
            0 => Ok(()),
            1 => write!(f, "; 1 needs attention"),
            n => write!(f, "; {n} need attention"),
        }
    }
}

/// A span in milliseconds as people say it: the largest unit only.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Age(pub(crate) i64);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.max(0) / 1000;
        match seconds {
            0..60 => write!(f, "{seconds} s"),
            60..3_600 => write!(f, "{} min", seconds / 60),
            3_600..172_800 => write!(f, "{} h", seconds / 3_600),
            _ => write!(f, "{} days", seconds / 86_400),
        }
    }
}

/// How long something lasts, as people say it: `for 14 min`. What began by a clock that stood in
/// 1970, and is looked at by a right one, has no length that means anything, nor has what began by one
/// that ran ahead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lasting {
    pub(crate) since: i64,
    pub(crate) now: i64,
}

impl Lasting {
    pub(crate) fn is_known(self) -> bool {
        let begun = self.since >= FIRST_HONEST || self.now < FIRST_HONEST;
        begun && !is_ahead(self.since, self.now)
    }
}

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_known() {
            true => write!(f, "for {}", Age(self.now.saturating_sub(self.since))),
            false => f.write_str("since a time when the clock was wrong"),
        }
    }
}

/// Whether a moment that has come lies ahead: a clock was wrong then, or is now.
pub(crate) fn is_ahead(at: i64, now: i64) -> bool {
    at > now.saturating_add(60_000)
}

/// Ten years: nobody means a schedule that is further ahead. `why` and `check` say so of one that is
/// stored, and the tool takes none.
pub const FAR_AHEAD: Duration = Duration::from_secs(3_650 * 86_400);

/// A schedule beyond this is no honest one: ten years from now, or from when clocks can be right.
pub(crate) fn far_ahead(now: i64) -> i64 {
    now.max(FIRST_HONEST).saturating_add(millis(FAR_AHEAD))
}

/// The unit other than milliseconds in which a number would be a moment of our times.
pub(crate) fn other_unit(at: i64) -> Option<&'static str> {
    /// Up to the year 2100.
    const OURS: std::ops::Range<i64> = FIRST_HONEST..4_102_444_800_000;
    let readings = [
        (at.saturating_mul(1_000), "seconds"),
        (at / 1_000, "microseconds"),
        (at / 1_000_000, "nanoseconds"),
    ];
    let found = readings.into_iter().find(|(at, _)| OURS.contains(at));
    found.map(|(_, unit)| unit).filter(|_| !OURS.contains(&at))
}

/// A moment in milliseconds since 1970 as `2026-11-29 14:05:07 UTC`; the bare number where the
/// calendar of four-digit years does not reach.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Utc(pub(crate) i64);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The last second of the year 9999.
        const END: i64 = 253_402_300_799;
        let seconds = self.0.div_euclid(1000);
        if !(0..=END).contains(&seconds) {
            return write!(f, "{} ms", self.0);
        }
        let (day, second) = (seconds / 86_400, seconds % 86_400);
        // Years begin in March here, so that the leap day ends one; eras have 400 of them.
        let shifted = day + 719_468;
        let (era, of_era) = (shifted / 146_097, shifted % 146_097);
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let date = of_year - (153 * month + 2) / 5 + 1;
        let (month, carry) = match month < 10 {
            true => (month + 3, 0),
            false => (month - 9, 1),
        };
        let year = era * 400 + year + carry;
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(
            f,
            "{year:04}-{month:02}-{date:02} {hour:02}:{minute:02}:{second:02} UTC"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_in_another_unit_is_known() {
        for (at, unit) in [
            (1_795_989_511, Some("seconds")),
            (1_795_989_511_000, None),
            (1_795_989_511_000_000, Some("microseconds")),
            (1_795_989_511_000_000_000, Some("nanoseconds")),
            (0, None),
            (i64::MAX, None),
            (i64::MIN, None),
        ] {
            assert_eq!(other_unit(at), unit, "{at}");
        }
    }

    #[test]
    fn what_began_by_a_wrong_clock_has_no_length() {
        let now = FIRST_HONEST + 840_000;
        let lasting = |since, now| Lasting { since, now }.to_string();
        assert_eq!(lasting(FIRST_HONEST, now), "for 14 min");
        assert_eq!(lasting(3_000, now), "since a time when the clock was wrong");
        assert_eq!(lasting(3_000, 5_000), "for 2 s", "while it is wrong");
        assert_eq!(
            lasting(now + 86_400_000, now),
            "since a time when the clock was wrong"
        );
    }

    #[test]
    fn a_moment_has_its_date() {
        for (at, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400_000, "2000-02-29 00:00:00 UTC"),
            (1_795_961_107_250, "2026-11-29 14:05:07 UTC"),
            (4_107_542_400_000, "2100-03-01 00:00:00 UTC"),
            (253_402_300_799_999, "9999-12-31 23:59:59 UTC"),
            (-1, "-1 ms"),
            (i64::MAX, "9223372036854775807 ms"),
        ] {
            assert_eq!(Utc(at).to_string(), text);
        }
    }
}
