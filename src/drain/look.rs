//! The read-only look before a write: nothing to do means no write transaction, and an idle outbox
//! writes no byte.

use std::time::Duration;

use crate::clock::Instant;
use crate::dispatch::Dispatcher;
use crate::drain::room::Room;
use crate::drain::survey::{States, Visit};
use crate::drain::{CHANNELS, Drainer, data_version};
use crate::error::Result;
use crate::store::{Raw, channel, upkeep};

/// How often lanes without a head are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(300);
/// Lanes looked at per cycle.
const SWEEP_STEP: usize = 200;

/// What a look at the file found, without writing.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Something can be claimed, taken back or expired now.
    pub(crate) due: bool,
    /// Channels that have something due, those whose turn it is first. Alone they may not be worth
    /// a transaction.
    pub(crate) names: Vec<String>,
    /// Channels whose claims may have been abandoned.
    pub(crate) stale: Vec<String>,
    /// Names that are no text: no route can have them.
    pub(crate) nameless: Vec<Raw>,
    /// What all channels said since something was last done; else, more are to be looked at.
    pub(crate) whole: Option<Seen>,
}

/// What channels said that have nothing to do now.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Someone else holds claims in a channel that could be served.
    pub(crate) foreign: bool,
    /// Something due waits for its channel's rate only.
    pub(crate) paced: bool,
    /// Something due could not be taken.
    pub(crate) barren: bool,
    /// Someone wrote meanwhile, perhaps where it had been looked already.
    pub(crate) overtaken: bool,
    /// The next moment something becomes due, in wall time.
    pub(crate) next: Option<i64>,
}

impl Seen {
    /// Whether that is due now; else it is remembered.
    pub(crate) fn is_due(&mut self, due: i64, now: i64) -> bool {
        if due > now {
            self.next = Some(self.next.map_or(due, |next| next.min(due)));
        }
        due <= now
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
        if changed {
            self.data_version = version;
            self.memory.channels_stale = true;
            self.survey.overtaken();
        }
        let looking = self.sweep.is_some() || self.survey.is_under_way();
        Ok(!changed && !looking && at.monotonic < self.look_at.min(self.sweep_at))
    }

    /// Reads, without a transaction of ours, what a write would find to do. Of many channels it takes
    /// some at a time; who is stopping begins nothing more.
    pub(crate) fn look(&mut self, dispatcher: &dyn Dispatcher, at: Instant) -> Result<Look> {
        if !self.is_claiming() {
            return Ok(Look {
                whole: Some(Seen::default()),
                ..Look::default()
            });
        }
        self.read_states()?;
        let Self {
            conn,
            memory,
            settings,
            notices,
            survey,
            ..
        } = self;
        let landed = self.reports.iter().take(self.batch);
        let landed = landed.map(|report| (report.run, report.id));
        let mut visit = Visit {
            dispatcher,
            at,
            settings,
            room: Room::of(&memory.flight, settings, landed, self.batch),
            once: self.once,
            line: &mut survey.line,
            again: Vec::new(),
            memory,
            notices,
            seen: &mut survey.seen,
            look: Look::default(),
        };
        visit.look.due = !self.broken_lanes.is_empty();
        if self.watch.trusted()
            && let Some(expiry) = upkeep::next_expiry(conn)?
        {
            visit.look.due |= visit.seen.is_due(expiry, at.wall);
        }
        // Before others: there are fewer of them than there is room.
        visit.probes();
        let around = survey
            .round
            .go_on(conn, |name, standing| match name.as_str() {
                Some(name) => visit.channel(name, standing),
                // No attempt would ever say what is wrong.
                None => {
                    visit.look.nameless.push(name.clone());
                    true
                }
            })?;
        visit.probes();
        visit.probes_again();
        let mut look = visit.look;
        look.due |= !look.stale.is_empty() || !look.nameless.is_empty();
        if around {
            look.whole = Some(survey.end());
        }
        Ok(look)
    }

    /// Reads what others may have written of the channels, some at a time. What is not read yet is
    /// read under the lock before it counts.
    fn read_states(&mut self) -> Result<()> {
        if !self.memory.channels_stale {
            return Ok(());
        }
        let states = &mut self.survey.states;
        let States { at, found, .. } = states;
        match channel::load_after(&self.conn, at, CHANNELS, found)? {
            Some(last) => states.at = last,
            None => {
                let States {
                    found, overtaken, ..
                } = std::mem::take(states);
                self.memory.read_again(found);
                self.memory.channels_stale = overtaken;
            }
        }
        Ok(())
    }

    pub(crate) fn sweep_lanes(&mut self, at: Instant) -> Result<()> {
        if self.sweep.is_none() && at.monotonic >= self.sweep_at {
            self.sweep = Some(upkeep::LaneCursor::default());
        }
        if let Some(cursor) = self.sweep.take() {
            let (found, rest) = upkeep::headless_lanes(&self.conn, cursor, at.wall, SWEEP_STEP)?;
            self.broken_lanes.extend(found);
            self.sweep = rest;
            self.sweep_at = at.monotonic.saturating_add(SWEEP_EVERY);
        }
        Ok(())
    }
}
