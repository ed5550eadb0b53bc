//! The look at every channel: some at a time and around again, so that a cycle takes no longer
//! however many there are.

use std::collections::{HashMap, HashSet, VecDeque};

use rusqlite::Connection;

use crate::circuit::{Admission, Channel};
use crate::clock::{Instant, millis};
use crate::dispatch::Dispatcher;
use crate::drain::CHANNELS;
use crate::drain::lease::horizon;
use crate::drain::look::{Look, Seen};
use crate::drain::memory::Memory;
use crate::drain::room::Room;
use crate::error::Result;
use crate::observer::Event;
use crate::settings::Settings;
use crate::store::Raw;
use crate::store::claim::{self, Standing};

/// How far it has come.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) round: Round,
    /// What was seen in this round.
    pub(crate) seen: Seen,
    pub(crate) states: States,
    pub(crate) line: Line,
}

/// Channels that are to be probed, in the order in which they came: however many receivers hang,
/// each gets its turn when others have answered, or have taken too long.
#[derive(Debug, Default)]
pub(crate) struct Line {
    order: VecDeque<String>,
    members: HashSet<String>,
}

impl Line {
    fn join(&mut self, name: &str) {
        if self.members.insert(name.to_owned()) {
            self.order.push_back(name.to_owned());
        }
    }

    fn next(&mut self) -> Option<String> {
        let name = self.order.pop_front()?;
        self.members.remove(&name);
        Some(name)
    }
}

/// How far the states of channels are read again.
#[derive(Debug, Default)]
pub(crate) struct States {
    pub(crate) at: Raw,
    pub(crate) found: HashMap<String, Channel>,
    /// Someone wrote meanwhile.
    pub(crate) overtaken: bool,
}

impl Survey {
    /// Whether there is more to look at before the next rest.
    pub(crate) fn is_under_way(&self) -> bool {
        self.round.first.is_some()
    }

    /// Someone wrote: what was seen in this round may have changed.
    pub(crate) fn overtaken(&mut self) {
        self.seen.overtaken = self.is_under_way();
        self.states.overtaken = self.states.at != Raw::default();
    }

    /// What was seen holds no more, because something was done. The next round begins here.
    pub(crate) fn begin_anew(&mut self) {
        self.seen = Seen::default();
        self.round.begin();
    }

    /// The round is over. The next one begins after the first channel of this one: each is first in
    /// turn.
    pub(crate) fn end(&mut self) -> Seen {
        if let Some(first) = self.round.first.take() {
            self.round.at = first;
        }
        self.round.begin();
        std::mem::take(&mut self.seen)
    }
}

/// A walk over the names of channels, from where the last one ended and once around.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// The last channel that was visited.
    at: Raw,
    /// The first one: when it comes again, every one was.
    first: Option<Raw>,
    /// It went on from the beginning of all names.
    turned: bool,
}

impl Round {
    fn begin(&mut self) {
        self.first = None;
        self.turned = false;
    }

    /// Visits some channels more, [`CHANNELS`] at most, as long as `visit` wants another. True when
    /// that was the last one of the round.
    pub(crate) fn go_on(
        &mut self,
        conn: &Connection,
        mut visit: impl FnMut(&Raw, Standing) -> bool,
    ) -> Result<bool> {
        let mut left = CHANNELS;
        loop {
            let from_the_beginning =
                self.turned || (self.first.is_none() && self.at == Raw::default());
            let mut around = false;
            let ended = claim::standings(conn, &self.at.clone(), |name, standing| {
                around = self.first.as_ref() == Some(name);
                if around || left == 0 {
                    return false;
                }
                left -= 1;
                self.first.get_or_insert_with(|| name.clone());
                self.at = name.clone();
                visit(name, standing)
            })?;
            if around || (ended && from_the_beginning) {
                return Ok(true);
            }
            if !ended {
                return Ok(false);
            }
            self.turned = true;
            self.at = Raw::default();
        }
    }
}

/// A look into channels, one after the other.
pub(crate) struct Visit<'a> {
    pub(crate) dispatcher: &'a dyn Dispatcher,
    pub(crate) at: Instant,
    pub(crate) settings: &'a Settings,
    /// What is free when what came back is settled. To name more channels would pass them over.
    pub(crate) room: Room,
    /// A channel in trouble is waited for no more once it was tried.
    pub(crate) once: bool,
    pub(crate) line: &'a mut Line,
    /// Channels that were tried and are tried again if something else is due.
    pub(crate) again: Vec<String>,
    pub(crate) memory: &'a mut Memory,
    pub(crate) notices: &'a mut Vec<Event>,
    pub(crate) seen: &'a mut Seen,
    pub(crate) look: Look,
}

impl Visit<'_> {
    /// Whether there would be room for what another channel has.
    pub(crate) fn channel(&mut self, name: &str, standing: Standing) -> bool {
        if !self.dispatcher.serves(name) {
            if !self.memory.unrouted.contains(name) {
                self.memory.unrouted.insert(name.to_owned());
                let channel = name.to_owned();
                self.notices.push(Event::Unrouted { channel });
            }
            return true;
        }
        let (now, known) = (self.at.wall, self.memory.channels.get(name));
        let admission = known.map_or(Admission::Open, |it| it.admission(now));
        if let Some((first, last)) = standing.leases {
            let odd = last > horizon(now);
            let ends = if odd { now } else { first };
            if !self.memory.suspects_wait(name, self.at.monotonic) && self.seen.is_due(ends, now) {
                self.look.stale.push(name.to_owned());
            }
            self.seen.foreign |= !matches!(admission, Admission::Closed(_));
        }
        if self.is_due(name, admission, standing.due) {
            match admission {
                Admission::Probe(_) if self.once && self.memory.troubled.contains(name) => {
                    self.again.push(name.to_owned());
                }
                // Named already, by the line.
                Admission::Probe(_) if self.look.names.iter().any(|it| it == name) => {}
                Admission::Probe(_) => self.line.join(name),
                _ => {
                    self.look.due = true;
                    self.look.names.push(name.to_owned());
                }
            }
        }
        self.look.names.len() < self.room.channels().max(1)
    }

    /// Names channels that are to be probed, who waits longest first, as many as there is room for.
    pub(crate) fn probes(&mut self) {
        while self.has_room_for_probes()
            && let Some(name) = self.line.next()
        {
            self.look.due |= self.name_probe(name);
        }
    }

    /// The same of those that alone would be no reason to go on: their own answers would keep such a
    /// drain going.
    pub(crate) fn probes_again(&mut self) {
        for name in std::mem::take(&mut self.again) {
            if self.look.due && self.has_room_for_probes() {
                self.name_probe(name);
            }
        }
    }

    fn has_room_for_probes(&self) -> bool {
        self.room.probes > 0 && self.look.names.len() < self.room.channels()
    }

    fn name_probe(&mut self, name: String) -> bool {
        let may = self
            .memory
            .may_probe(&name, &self.room, self.settings, self.at.wall);
        if may {
            self.room.probes -= 1;
            self.look.names.push(name);
        }
        may
    }

    fn is_due(&mut self, name: &str, admission: Admission, due: Option<i64>) -> bool {
        let now = self.at.wall;
        let known = self.memory.channels.get(name);
        match (admission, due) {
            // To be mended.
            (Admission::Closed(_), Some(due))
                if known.is_some_and(|it| it.holds_from_ahead(now)) =>
            {
                self.seen.is_due(due, now)
            }
            // Whether anything is due by then is looked at again when the time comes.
            (Admission::Closed(Some(until)), _) => {
                self.seen.is_due(until, now);
                false
            }
            (Admission::Probe(_), Some(due)) if !self.memory.holds_probe(name, self.settings) => {
                self.seen.is_due(due, now)
            }
            (Admission::Open, Some(due))
                if due > now || self.memory.has_room(name, &self.room, self.settings) =>
            {
                let token = self
                    .memory
                    .next_token(name, self.settings, self.at.monotonic);
                self.seen.paced |= due <= now && !token.is_zero();
                let token = millis(token) + i64::from(!token.is_zero());
                self.seen.is_due(due.max(now.saturating_add(token)), now)
            }
            _ => false,
        }
    }
}
