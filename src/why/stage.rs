//! How far an unsent message has come, by the moments in its row and the state of its channel.

use crate::circuit::Channel;
use crate::clock::{FIRST_HONEST, millis};
use crate::retry;
use crate::settings::MAX_LEASE;
use crate::stats::{ChannelState, far_ahead};
use crate::store::why::Times;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Too late to be sent, whether or not it is marked so.
    Expired,
    /// Its moment has not come.
    Scheduled {
        far: bool,
    },
    /// It goes no further than its channel.
    Held,
    /// Due at a moment that no wait reaches.
    Stamped,
    /// It waits for its own next attempt.
    BackOff,
    Due,
}

impl Stage {
    pub(super) fn of(times: &Times, state: &Channel, now: i64) -> Self {
        // A span that began with a clock in 1970 begins anew once the clock is right.
        let honest = times.created_at >= FIRST_HONEST && now >= FIRST_HONEST;
        if honest && times.expires_at.is_some_and(|at| at <= now) {
            return Self::Expired;
        }
        if let Some(at) = times.available_at.filter(|at| *at > now) {
            let far = at > far_ahead(now);
            return Self::Scheduled { far };
        }
        // No probe takes a message before the end of a wait of its own.
        let due = retry::due_at(times.next_attempt_at, times.available_at, now);
        let next_try = state.next_try(now);
        let own = match times.attempts {
            0 => retry::outlasts(due, next_try, now),
            _ => due > next_try.unwrap_or(now).max(now),
        };
        if state.state != ChannelState::Ok && !own {
            Self::Held
        } else if due < times.next_attempt_at {
            Self::Stamped
        } else if due > now {
            Self::BackOff
        } else {
            Self::Due
        }
    }
}

/// Whether a lease is over, or reaches further than any.
pub(super) fn is_stale(until: i64, now: i64) -> bool {
    until <= now || until > now.saturating_add(millis(MAX_LEASE))
}
