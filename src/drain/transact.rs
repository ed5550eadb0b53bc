//! The one transaction of a cycle, from top to bottom. It reads memory and changes none of it:
//! everything it did is in its [`Effects`], which count once it is committed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use crate::circuit::Channel;
use crate::clock::FIRST_HONEST;
use crate::clock::{Dice, Instant, millis};
use crate::dispatch::{DeliveredHook, Dispatcher, Failure};
use crate::drain::flight::{ClaimedRun, Report};
use crate::drain::lease::horizon;
use crate::drain::look::Look;
use crate::drain::memory::{Changes, Memory, Suspect};
use crate::observer::Event;
use crate::settings::Settings;
use crate::stats::ChannelState;
use crate::store::settle::{self, Claim};
use crate::store::{channel, claim, upkeep};

/// Overdue messages marked per transaction, beside those that stand in the way of a claim.
pub(crate) const EXPIRE_STEP: usize = 64;
/// Stale claims looked at per channel: all that any process can have left, or nearly so, since each
/// of them has to be seen twice.
const STALE_STEP: usize = 8192;
/// A stale claim that was not looked at again for so long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// A message that was lost with its process more often than this waits a little.
const LOSSES_FORGIVEN: u32 = 10;
/// And how long it then waits at most, in milliseconds: power cuts are not its fault.
const LOSS_DELAY: i64 = 60_000;

/// Why the transaction has to be given up.
#[derive(Debug)]
pub(crate) enum Trouble {
    Sqlite(rusqlite::Error),
    /// Of many rows changed by one statement, some did not change: one by one will tell which.
    Uneven,
    /// The application's hook committed or rolled back what was not its own.
    HookEndedTransaction {
        id: i64,
        error: String,
    },
    /// A trigger of the application rolled everything back because of this row.
    RowEndedTransaction {
        id: i64,
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
    pub(crate) taken_back: usize,
    /// Messages of 1970 that got their time.
    pub(crate) rebased: usize,
    /// Overdue messages that were marked; `None` while the clock may not make anything expire.
    pub(crate) expired: Option<usize>,
    pub(crate) changes: Changes,
}

impl Effects {
    /// Whether the transaction found nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        let changes = &self.changes;
        self.recorded == 0
            && self.taken_back == 0
            && self.runs.is_empty()
            && self.events.is_empty()
            && self.lanes_mended == 0
            && self.rebased == 0
            && changes.renewed.is_empty()
            && changes.lost.is_empty()
            && changes.pulled.is_none()
            && changes.changed.is_empty()
            && changes.untouchable.is_empty()
            && changes.suspects.is_none()
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
    /// Whether the file can be written is to be found out: every lease is renewed.
    pub(crate) proving: bool,
    /// Rows to settle and rows to claim, at most.
    pub(crate) batch: usize,
    /// Row by row under savepoints, to find the row that fails.
    pub(crate) careful: bool,
    pub(crate) broken_lanes: &'a [upkeep::Lane],
    /// What the look before it found.
    pub(crate) found: &'a Look,
}

/// Channels as this transaction sees and changes them. Where someone else may have written them,
/// each is read again once it counts.
pub(crate) struct Channels<'a> {
    pub(crate) conn: &'a Connection,
    pub(crate) known: &'a HashMap<String, Channel>,
    pub(crate) stale: bool,
    touched: BTreeMap<String, Touched>,
}

struct Touched {
    before: Channel,
    now: Channel,
}

impl Channels<'_> {
    pub(crate) fn get(&mut self, name: &str) -> rusqlite::Result<&mut Channel> {
        let touched = match self.touched.entry(name.to_owned()) {
            Entry::Occupied(touched) => touched.into_mut(),
            Entry::Vacant(place) => {
                let before = match self.stale {
                    true => channel::load(self.conn, name)?,
                    false => self.known.get(name).cloned().unwrap_or_default(),
                };
                let now = before.clone();
                place.insert(Touched { before, now })
            }
        };
        Ok(&mut touched.now)
    }
}

impl Transact<'_> {
    pub(crate) fn run(&self, reports: &[Report], dice: &mut Dice) -> Result<Effects, Trouble> {
        let mut effects = Effects::default();
        let mut channels = Channels {
            conn: self.conn,
            known: &self.memory.channels,
            stale: self.memory.channels_stale,
            touched: BTreeMap::new(),
        };
        self.settle(reports, &mut channels, dice, &mut effects)?;
        let caught_up = self.renew(&mut effects)?;
        self.expire(&mut effects)?;
        for lane in self.broken_lanes.iter().take(EXPIRE_STEP) {
            self.tolerated(|| upkeep::normalise(self.conn, lane, self.at.wall))?;
            effects.lanes_mended += 1;
        }
        if self.claiming {
            self.refuse_nameless(&mut effects)?;
            self.pull(&mut channels, &mut effects)?;
            self.take_back(&mut effects)?;
            if caught_up {
                self.claim(&mut channels, &mut effects)?;
            }
        }
        self.save(channels, &mut effects)?;
        if let Some(messages @ 1..) = effects.expired {
            effects.events.push(Event::Expired { messages });
        }
        Ok(effects)
    }

    /// Marks what is overdue, if the clock can be believed; before that, what was enqueued by a
    /// clock that stood in 1970 gets its time.
    fn expire(&self, effects: &mut Effects) -> Result<(), Trouble> {
        if !self.trusted {
            return Ok(());
        }
        let now = self.at.wall;
        if self.memory.rebase {
            let rebased =
                self.tolerated(|| upkeep::rebase(self.conn, now, FIRST_HONEST, EXPIRE_STEP))?;
            effects.rebased = rebased.unwrap_or(0);
            effects.changes.rebased = effects.rebased < EXPIRE_STEP;
            // Others of 1970 look overdue still.
            if !effects.changes.rebased {
                return Ok(());
            }
        }
        effects.expired = Some(0);
        for id in upkeep::overdue(self.conn, now, EXPIRE_STEP)? {
            self.mark_overdue(id, effects)?;
        }
        Ok(())
    }

    /// False when it was not to be had.
    pub(crate) fn mark_overdue(&self, id: i64, effects: &mut Effects) -> Result<bool, Trouble> {
        let now = self.at.wall;
        let done = self.guarded(id, effects, |_| upkeep::expire(self.conn, id, now))?;
        let marked = done == Some(true);
        effects.expired = effects.expired.map(|it| it + usize::from(marked));
        Ok(marked)
    }

    /// Renews before anything is claimed: a process that is late must not take from one that lives.
    /// What is too much for one transaction is renewed by the next, and what ends first comes first.
    /// False while something of it is left: who cannot keep what it has claims no more.
    fn renew(&self, effects: &mut Effects) -> Result<bool, Trouble> {
        let flight = &self.memory.flight;
        let half_spent = match self.proving {
            true => self.settings.lease * 2,
            false => self.settings.lease,
        };
        let (renew, mut lost) = flight.leases_at(self.at, half_spent);
        let (wall, monotonic) = self.lease();
        let (mut rows, mut caught_up) = (0, true);
        for number in renew {
            let Some(run) = flight.get(number) else {
                continue;
            };
            rows += run.open.len();
            // The first run goes whatever its length, which a transaction has claimed.
            if rows > self.batch && rows > run.open.len() {
                caught_up = false;
                break;
            }
            let mut held = true;
            for &(id, claims) in &run.open {
                // A row that this transaction has settled is no longer ours to renew.
                if !effects.changes.landed.contains(&(number, id)) {
                    let claim = Claim { id, claims };
                    let renewed =
                        self.guarded(id, effects, |_| settle::renew(self.conn, claim, wall))?;
                    held &= renewed == Some(true);
                }
            }
            if held {
                effects.changes.renewed.push((number, wall, monotonic));
            } else {
                lost.push(number);
            }
        }
        effects.changes.lost.extend(lost);
        Ok(caught_up)
    }

    /// When a lease that begins now ends, on both clocks.
    pub(crate) fn lease(&self) -> (i64, Duration) {
        let lease = self.settings.lease;
        (
            self.at.wall.saturating_add(millis(lease)).max(1),
            self.at.monotonic.saturating_add(lease),
        )
    }

    /// Takes back claims whose holder is gone, once they have been seen stale long enough.
    fn take_back(&self, effects: &mut Effects) -> Result<(), Trouble> {
        let horizon = horizon(self.at.wall);
        let names: BTreeSet<&str> = self.found.stale.iter().map(String::as_str).collect();
        // Those of channels that are not looked at now keep the moment they were first seen. What is
        // still there long after it might have been taken was settled by someone else.
        let elsewhere = |it: &(&i64, &Suspect)| {
            let (_, suspect) = it;
            !names.contains(&*suspect.channel)
                && self.at.monotonic.saturating_sub(suspect.seen) < FORGET_AFTER
        };
        let known = self.memory.suspects.iter().filter(elsewhere);
        let mut suspects: HashMap<i64, Suspect> = known.map(|(id, it)| (*id, it.clone())).collect();
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
                        channel: name.to_owned(),
                        stale,
                    },
                };
                let ripe = self.at.monotonic >= self.memory.ripe_at(&suspect);
                if ripe && effects.taken_back < self.batch {
                    let rows = self.take_back_one(name, &suspect, effects)?;
                    effects.taken_back += rows.max(1);
                } else {
                    suspects.insert(suspect.stale.id, suspect);
                }
            }
        }
        effects.changes.suspects = (suspects != self.memory.suspects).then_some(suspects);
        Ok(())
    }

    fn take_back_one(
        &self,
        channel: &str,
        suspect: &Suspect,
        effects: &mut Effects,
    ) -> Result<usize, Trouble> {
        let stale = &suspect.stale;
        let claim = Claim {
            id: stale.id,
            claims: stale.claims,
        };
        let key = stale.ordering_key.as_deref();
        let run = key.map(|key| (channel, key, stale.lease));
        let rows = self.guarded(stale.id, effects, |_| {
            let lost = settle::take_back(self.conn, claim, run)?;
            for id in &lost {
                self.note_loss(*id)?;
            }
            Ok(lost.len())
        })?;
        Ok(rows.unwrap_or_default())
    }

    /// A message that ends its process each time must not do so in a tight loop.
    fn note_loss(&self, id: i64) -> rusqlite::Result<()> {
        let failure = Failure::new("lost", "the process that was sending it ended");
        let losses = settle::losses(self.conn, id)?.saturating_add(1);
        settle::log_attempt(self.conn, id, &failure, 0, 0, self.at.wall)?;
        if losses > LOSSES_FORGIVEN {
            let wait = Dice::seeded(id.unsigned_abs()).between(LOSS_DELAY / 2, LOSS_DELAY);
            settle::postpone(self.conn, id, self.at.wall.saturating_add(wait))?;
        }
        Ok(())
    }

    /// Writes the channels that changed, and remembers what that means for their pace.
    fn save(&self, channels: Channels<'_>, effects: &mut Effects) -> Result<(), Trouble> {
        for (
            name,
            Touched {
                before: known,
                now: state,
            },
        ) in channels.touched
        {
            if channels.stale {
                let read = (name.clone(), known.clone());
                effects.changes.reread.push(read);
            }
            if known == state {
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
        Ok(())
    }
}
