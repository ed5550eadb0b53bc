//! The read-only look before a write: nothing to do means no write transaction, and an idle outbox
//! writes no byte.

use std::time::Duration;

use crate::circuit::Admission;
use crate::clock::{Instant, millis};
use crate::dispatch::Dispatcher;
use crate::drain::flight::horizon;
use crate::drain::{CHANNELS, Drainer, data_version};
use crate::error::Result;
use crate::observer::Event;
use crate::store::{Raw, channel, claim, upkeep};

/// How often lanes without a head are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(300);
/// Lanes looked at per cycle.
const SWEEP_STEP: usize = 200;

/// What a look at the file found, without writing.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Something can be claimed, taken back or expired now.
    pub(crate) due: bool,
    /// Someone else holds claims in a channel that could be served.
    pub(crate) foreign: bool,
    /// Something due waits for its channel's rate only.
    pub(crate) paced: bool,
    /// The next moment something becomes due, in wall time.
    pub(crate) next: Option<i64>,
}

impl Look {
    fn at(&mut self, due: i64, now: i64) {
        if due <= now {
            self.due = true;
        } else {
            self.next = Some(self.next.map_or(due, |next| next.min(due)));
        }
    }
}

impl Drainer {
    /// Whether nothing can have changed since the last look.
    pub(crate) fn may_rest(&mut self, at: Instant) -> Result<bool> {
        // What looked due last time could not be taken: do not ask again at every foreign commit.
        if at.monotonic < self.barren_until {
            return Ok(true);
        }
        let version = data_version(&self.conn)?;
        let changed = version != self.data_version;
        self.data_version = version;
        self.memory.channels_stale |= changed;
        let sweeping = self.sweep.is_some() || at.monotonic >= self.sweep_at;
        Ok(!changed && !sweeping && at.monotonic < self.look_at)
    }

    /// Reads, without a transaction of ours, whether a write would find anything to do.
    pub(crate) fn look(&mut self, dispatcher: &dyn Dispatcher, at: Instant) -> Result<Look> {
        self.sweep_lanes(at)?;
        if self.memory.channels_stale {
            let channels = channel::load_all(&self.conn)?;
            self.memory.read_again(channels);
        }
        let mut look = Look {
            due: !self.broken_lanes.is_empty(),
            ..Look::default()
        };
        if self.watch.trusted()
            && !self.stopping
            && let Some(expiry) = upkeep::next_expiry(&self.conn)?
        {
            look.at(expiry, at.wall);
        }
        self.nameless.clear();
        let mut cursor = Raw::default();
        let mut seen = 0;
        while let Some(name) = claim::next_channel(&self.conn, &cursor)? {
            seen += 1;
            if !cursor.leads_to(&name) || (look.due && seen > CHANNELS) {
                break;
            }
            cursor = name;
            if self.stopping {
                continue;
            }
            let Some(name) = cursor.as_str() else {
                // No route can have it, so no attempt would ever say what is wrong.
                look.due = true;
                self.nameless.push(cursor.clone());
                continue;
            };
            if !dispatcher.serves(name) {
                if self.memory.unrouted.insert(name.to_owned()) {
                    let channel = name.to_owned();
                    self.notices.push(Event::Unrouted { channel });
                }
                continue;
            }
            let admission = self
                .memory
                .channels
                .get(name)
                .map_or(Admission::Open, |it| it.admission(at.wall));
            let leases = claim::leases(&self.conn, name)?;
            if let Some((first, last)) = leases {
                let odd = last > horizon(at.wall);
                if !self.memory.suspects_wait(name, at.monotonic) {
                    look.at(if odd { at.wall } else { first }, at.wall);
                }
                look.foreign |= !matches!(admission, Admission::Closed(_));
            }
            match admission {
                Admission::Closed(until) => {
                    // Whether anything is due by then is looked at again when the time comes.
                    if let Some(until) = until {
                        look.next = Some(look.next.map_or(until, |next| next.min(until)));
                    }
                }
                Admission::Probe(_) if self.memory.flight.probing(name) => {}
                Admission::Probe(_) => {
                    if let Some(due) = claim::first_pending(&self.conn, name)? {
                        look.at(due, at.wall);
                    }
                }
                Admission::Open => {
                    let now = at.monotonic;
                    let token = self.memory.next_token(name, &self.settings, now);
                    if let Some(due) = claim::first_pending(&self.conn, name)?
                        && (due > at.wall || self.memory.has_room(name, &self.settings))
                    {
                        look.paced |= due <= at.wall && !token.is_zero();
                        let token = millis(token) + i64::from(!token.is_zero());
                        look.at(due.max(at.wall.saturating_add(token)), at.wall);
                    }
                }
            }
        }
        Ok(look)
    }

    fn sweep_lanes(&mut self, at: Instant) -> Result<()> {
        if self.sweep.is_none() && at.monotonic >= self.sweep_at {
            self.sweep = Some(upkeep::LaneCursor::default());
        }
        if let Some(cursor) = self.sweep.take() {
            let (found, rest) = upkeep::headless_lanes(&self.conn, cursor, SWEEP_STEP)?;
            self.broken_lanes.extend(found);
            self.sweep = rest;
            self.sweep_at = at.monotonic.saturating_add(SWEEP_EVERY);
        }
        Ok(())
    }
}
