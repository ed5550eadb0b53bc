//! The one transaction of a cycle, from top to bottom. It reads memory and changes none of it:
//! everything it did is in its [`Effects`], which count once it is committed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use crate::circuit::Channel;
use crate::clock::{Dice, Instant, millis};
use crate::dispatch::{DeliveredHook, Dispatcher, Failure};
use crate::drain::flight::{ClaimedRun, Report};
use crate::drain::memory::{Changes, Memory, STEAL_AFTER, Suspect};
use crate::drain::watch::FIRST_HONEST;
use crate::observer::Event;
use crate::settings::{MAX_LEASE, Settings};
use crate::stats::ChannelState;
use crate::store::settle::{self, Claim};
use crate::store::{channel, claim, upkeep};

/// Overdue messages marked per transaction.
const EXPIRE_STEP: usize = 64;
/// Due times moved per transaction and channel.
const PULL_STEP: usize = 256;
/// Stale claims looked at per channel.
const STALE_STEP: usize = 64;
/// A message that was lost with its process this often is charged like a failure.
const LOSSES_FORGIVEN: u32 = 3;

/// Why the transaction has to be given up.
#[derive(Debug)]
pub(crate) enum Trouble {
    Sqlite(rusqlite::Error),
    /// The application's hook committed or rolled back what was not its own.
    HookEndedTransaction {
        id: i64,
        error: String,
    },
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// What the transaction did.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Reports that are recorded, from the front.
    pub(crate) recorded: usize,
    pub(crate) runs: Vec<ClaimedRun>,
    pub(crate) events: Vec<Event>,
    pub(crate) lanes_mended: usize,
    pub(crate) changes: Changes,
}

impl Effects {
    /// Whether the transaction found nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        let changes = &self.changes;
        self.recorded == 0
            && self.runs.is_empty()
            && self.events.is_empty()
            && self.lanes_mended == 0
            && changes.renewed.is_empty()
            && changes.lost.is_empty()
            && changes.pulled.is_none()
            && changes.changed.is_empty()
            && changes.suspects.as_ref().is_none_or(HashMap::is_empty)
    }
}

/// Everything the transaction may look at.
pub(crate) struct Transact<'a> {
    pub(crate) conn: &'a Connection,
    pub(crate) at: Instant,
    pub(crate) dispatcher: &'a dyn Dispatcher,
    pub(crate) settings: &'a Settings,
    pub(crate) hook: Option<&'a DeliveredHook>,
    pub(crate) instance: &'a Arc<str>,
    pub(crate) memory: &'a Memory,
    /// Whether the clock may make something expire.
    pub(crate) trusted: bool,
    pub(crate) claiming: bool,
    /// Rows to settle and rows to claim, at most.
    pub(crate) batch: usize,
    /// Row by row under savepoints, to find the row that fails.
    pub(crate) careful: bool,
    pub(crate) broken_lanes: &'a [upkeep::Lane],
}

/// Channels as this transaction sees and changes them.
pub(crate) struct Channels<'a> {
    before: Cow<'a, HashMap<String, Channel>>,
    after: HashMap<String, Channel>,
}

impl Channels<'_> {
    pub(crate) fn get(&mut self, name: &str) -> &mut Channel {
        let before = &self.before;
        self.after
            .entry(name.to_owned())
            .or_insert_with(|| before.get(name).cloned().unwrap_or_default())
    }
}

impl Transact<'_> {
    pub(crate) fn run(&self, reports: &[Report], dice: &mut Dice) -> Result<Effects, Trouble> {
        let mut effects = Effects::default();
        let mut channels = Channels {
            before: match self.memory.channels_stale {
                true => Cow::Owned(channel::load_all(self.conn)?),
                false => Cow::Borrowed(&self.memory.channels),
            },
            after: HashMap::new(),
        };
        self.settle(reports, &mut channels, dice, &mut effects)?;
        self.renew(&mut effects)?;
        if self.trusted {
            upkeep::rebase(self.conn, self.at.wall, FIRST_HONEST, EXPIRE_STEP)?;
            let messages = upkeep::expire(self.conn, self.at.wall, EXPIRE_STEP)?;
            if messages > 0 {
                effects.events.push(Event::Expired { messages });
            }
        }
        for (channel, key) in self.broken_lanes.iter().take(EXPIRE_STEP) {
            upkeep::normalise(self.conn, channel, key)?;
            effects.lanes_mended += 1;
        }
        if self.claiming {
            let names = self.channel_names(&mut effects)?;
            self.pull(&mut channels, &mut effects)?;
            self.take_back(&names, &mut effects)?;
            self.claim(&names, &mut channels, dice, &mut effects)?;
        }
        self.save(channels, &mut effects)?;
        Ok(effects)
    }

    /// Renews before anything is claimed: a process that is late must not take from one that lives.
    fn renew(&self, effects: &mut Effects) -> Result<(), Trouble> {
        let flight = &self.memory.flight;
        let (renew, mut lost) = flight.leases_at(self.at, self.settings.lease);
        let (wall, monotonic) = self.lease();
        for number in renew {
            let Some(run) = flight.get(number) else {
                continue;
            };
            let mut held = true;
            for (id, claims) in &run.open {
                // A row that this transaction has settled is no longer ours to renew.
                if !effects.changes.landed.contains(&(number, *id)) {
                    let claim = Claim {
                        id: *id,
                        claims: *claims,
                    };
                    held &= settle::renew(self.conn, claim, wall)?;
                }
            }
            if held {
                effects.changes.renewed.push((number, wall, monotonic));
            } else {
                lost.push(number);
            }
        }
        effects.changes.lost = lost;
        Ok(())
    }

    /// When a lease that begins now ends, on both clocks.
    pub(crate) fn lease(&self) -> (i64, Duration) {
        let lease = self.settings.lease;
        (
            self.at.wall.saturating_add(millis(lease)).max(1),
            self.at.monotonic.saturating_add(lease),
        )
    }

    /// The next round of channels that have something unsent and a route.
    fn channel_names(&self, effects: &mut Effects) -> rusqlite::Result<Vec<String>> {
        let start = &self.memory.cursor;
        let (mut names, mut last) = self.channels_after(start, super::CHANNELS)?;
        if last.is_none() && !start.is_empty() {
            let (wrapped, end) = self.channels_after(&[], super::CHANNELS - names.len())?;
            names.extend(
                wrapped
                    .into_iter()
                    .filter(|it| it.as_bytes() <= start.as_slice()),
            );
            last = end;
        }
        // Where one round takes in all, the next begins after its first: each is first in turn.
        let first = names.first().map(|it| it.clone().into_bytes());
        effects.changes.cursor = last.or(first);
        Ok(names)
    }

    /// Up to `limit` channels after a name, and where to go on if there may be more.
    fn channels_after(
        &self,
        after: &[u8],
        limit: usize,
    ) -> rusqlite::Result<(Vec<String>, Option<Vec<u8>>)> {
        let mut names = Vec::new();
        let mut cursor = after.to_vec();
        for _ in 0..limit {
            match claim::next_channel(self.conn, &cursor)? {
                Some(name) => cursor = name,
                None => return Ok((names, None)),
            }
            if let Ok(name) = std::str::from_utf8(&cursor)
                && self.dispatcher.serves(name)
            {
                names.push(name.to_owned());
            }
        }
        Ok((names, Some(cursor)))
    }

    /// Makes messages due that the oldest wish or repair asks for, some channels at a time.
    fn pull(&self, channels: &mut Channels<'_>, effects: &mut Effects) -> rusqlite::Result<()> {
        let Some(pull) = self.memory.pulls.first() else {
            return Ok(());
        };
        let now = self.at.wall;
        let after = now.saturating_add(pull.after);
        let until = now.saturating_add(pull.until);
        let (names, rest) = self.channels_after(&pull.cursor, super::CHANNELS)?;
        let mut cursor = pull.cursor.clone();
        let mut budget = PULL_STEP;
        for name in &names {
            let moved = upkeep::bring_forward(self.conn, name, now, after, until, budget)?;
            budget = budget.saturating_sub(moved);
            if budget == 0 {
                effects.changes.pulled = Some(Some(cursor));
                return Ok(());
            }
            if pull.probes {
                channels.get(name).bring_forward(now, pull.stepped_back);
            }
            cursor = name.clone().into_bytes();
        }
        effects.changes.pulled = Some(rest);
        Ok(())
    }

    /// Takes back claims whose holder is gone, once they have been seen stale long enough.
    fn take_back(&self, names: &[String], effects: &mut Effects) -> Result<(), Trouble> {
        let horizon = self.at.wall.saturating_add(millis(MAX_LEASE));
        let mut suspects = HashMap::new();
        for name in names {
            for stale in claim::stale(self.conn, name, self.at.wall, horizon, STALE_STEP)? {
                if self.memory.flight.holds(stale.id, stale.claims)
                    || self.memory.untouchable.contains(&stale.id)
                {
                    continue;
                }
                let known = self.memory.suspects.get(&stale.id);
                let suspect = match known.filter(|known| known.stale == stale) {
                    Some(known) => known.clone(),
                    None => Suspect {
                        seen: self.at.monotonic,
                        channel: name.clone(),
                        stale,
                    },
                };
                let ripe = self.at.monotonic.saturating_sub(suspect.seen) >= STEAL_AFTER;
                if ripe {
                    self.take_back_one(name, &suspect, effects)?;
                } else {
                    suspects.insert(suspect.stale.id, suspect);
                }
            }
        }
        effects.changes.suspects = Some(suspects);
        Ok(())
    }

    fn take_back_one(
        &self,
        channel: &str,
        suspect: &Suspect,
        effects: &mut Effects,
    ) -> Result<(), Trouble> {
        let stale = &suspect.stale;
        let claim = Claim {
            id: stale.id,
            claims: stale.claims,
        };
        let lane = stale.ordering_key.as_deref().map(|key| (channel, key));
        let failure = Failure::new("lost", "the process that was sending it ended");
        let taken = self.guarded(stale.id, effects, |_| {
            settle::take_back(self.conn, claim, lane)
        })?;
        for id in taken.unwrap_or_default() {
            let losses = settle::losses(self.conn, id)?.saturating_add(1);
            settle::log_attempt(self.conn, id, &failure, 0, 0, self.at.wall)?;
            // A message that ends its process each time must not do so in a tight loop.
            if losses > LOSSES_FORGIVEN {
                let policy = self.settings.policy_of(channel);
                let doublings = losses.saturating_sub(LOSSES_FORGIVEN);
                let wait = policy.delay_after(doublings, &mut Dice::seeded(id.unsigned_abs()));
                settle::postpone(self.conn, id, self.at.wall.saturating_add(wait))?;
            }
        }
        Ok(())
    }

    /// Does something to one row; when careful, under a savepoint, so that a row which refuses it
    /// is quarantined instead of stopping everyone. `None`: it was.
    pub(crate) fn guarded<T>(
        &self,
        id: i64,
        effects: &mut Effects,
        act: impl FnOnce(&mut Effects) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Trouble> {
        if !self.careful {
            return Ok(Some(act(effects)?));
        }
        self.conn.execute_batch("SAVEPOINT outbox_row")?;
        let refusal = match act(effects) {
            Ok(done) => {
                self.conn.execute_batch("RELEASE outbox_row")?;
                return Ok(Some(done));
            }
            Err(error) if super::is_constraint(&error) => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        self.conn.execute_batch("ROLLBACK TO outbox_row")?;
        match settle::quarantine(self.conn, id, &refusal, self.at.wall) {
            Ok(_) => {}
            Err(error) if super::is_constraint(&error) => {
                self.conn.execute_batch("ROLLBACK TO outbox_row")?;
                effects.changes.untouchable.push(id);
            }
            Err(error) => return Err(error.into()),
        }
        self.conn.execute_batch("RELEASE outbox_row")?;
        effects.events.push(Event::Dead {
            id,
            channel: String::new(),
            error: refusal,
        });
        Ok(None)
    }

    /// Writes the channels that changed, and remembers what that means for their pace.
    fn save(&self, channels: Channels<'_>, effects: &mut Effects) -> Result<(), Trouble> {
        let Channels { before, after } = channels;
        let blank = Channel::default();
        for (name, state) in after {
            let known = before.get(&name).unwrap_or(&blank);
            if *known == state {
                continue;
            }
            channel::save(self.conn, &name, &state)?;
            if known.state != state.state {
                if state.state != ChannelState::Ok {
                    effects.changes.opened.push(name.clone());
                }
                effects.events.push(Event::Channel {
                    channel: name.clone(),
                    state: state.state,
                    reason: state.reason.clone(),
                });
            }
            effects.changes.changed.push((name, state));
        }
        if let Cow::Owned(read) = before {
            effects.changes.reread = Some(read);
        }
        Ok(())
    }
}
