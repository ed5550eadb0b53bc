//! The second half of the transaction: what goes out next, fair among channels.

use std::collections::HashMap;
use std::sync::Arc;

use crate::circuit::{Admission, Turn};
use crate::dispatch::{Delivery, Failure};
use crate::drain::chain::Chain;
use crate::drain::flight::{ClaimedRun, Launch};
use crate::drain::lease::Lease;
use crate::drain::room::{Room, Share};
use crate::drain::transact::{Channels, EXPIRE_STEP, Effects, Transact, Trouble};
use crate::observer::Event;
use crate::store::claim::{self, Candidate, Range};
use crate::store::decode;
use crate::store::settle;
use crate::store::untold::Untold;

impl Transact<'_> {
    pub(crate) fn claim(
        &self,
        channels: &mut Channels<'_>,
        effects: &mut Effects,
    ) -> Result<(), Trouble> {
        let landed = effects.changes.landed.iter().copied();
        let mut room = Room::of(&self.memory.flight, self.settings, landed, self.batch);
        let settled = self.settled(effects);
        let under_way = |name: &str| {
            let (runs, messages) = self.memory.flight.of(name);
            let (ended, landed) = settled.get(name).copied().unwrap_or_default();
            (runs.saturating_sub(ended), messages.saturating_sub(landed))
        };
        let mut open = Vec::new();
        for name in self.turns(effects)? {
            let state = channels.get(&name)?;
            state.mend_hold(self.at.wall);
            match state.admission(self.at.wall) {
                Admission::Closed(_) => {}
                Admission::Probe(_) if self.memory.holds_probe(&name, self.settings) => {}
                Admission::Probe(turn) => {
                    if let Some(mut share) = room.for_probe(under_way(&name).1 == 0) {
                        let before = share.messages;
                        self.probe(&name, turn, &mut share, channels, effects)?;
                        room.took(before, &share);
                        room.probes -= before.saturating_sub(share.messages).min(room.probes);
                    }
                }
                Admission::Open => open.push(name),
            }
        }
        let most = (self.settings.capacity() / open.len().max(1)).max(1);
        for (turn, name) in open.iter().enumerate() {
            // None takes what those behind it have waited for.
            let part = room.messages.div_ceil(open.len() - turn);
            let (runs, messages) = under_way(name);
            let ceiling = self.memory.ceiling(name, self.settings).min(most);
            let part = ceiling.saturating_sub(messages).min(part);
            let Some(mut share) = room.share(part, messages == 0) else {
                continue;
            };
            let rate = self
                .memory
                .allowance(name, self.settings, self.at.monotonic);
            share.messages = share.messages.min(rate);
            let runs = self.memory.pace(name).saturating_sub(runs);
            let before = share.messages;
            self.fill(name, runs, &mut share, effects)?;
            if runs > 0 {
                self.follow(name, &mut share, effects)?;
            }
            room.took(before, &share);
        }
        Ok(())
    }

    /// Runs and messages of each channel that were settled just now.
    fn settled(&self, effects: &Effects) -> HashMap<&str, (usize, usize)> {
        let mut settled: HashMap<_, (usize, usize)> = HashMap::new();
        for (number, landed) in landed_by_run(&effects.changes.landed) {
            if let Some(run) = self.memory.flight.get(number) {
                let of = settled.entry(&*run.channel).or_default();
                of.0 += usize::from(landed >= run.open.len());
                of.1 += landed;
            }
        }
        settled
    }

    /// One message, so that nothing else is risked: the turn's choice, or the other one's.
    fn probe(
        &self,
        name: &str,
        turn: Turn,
        share: &mut Share,
        channels: &mut Channels<'_>,
        effects: &mut Effects,
    ) -> Result<(), Trouble> {
        let order = match turn {
            Turn::Fresh => [(Turn::Fresh, Range::Newest), (Turn::Retry, Range::Retries)],
            Turn::Retry => [(Turn::Retry, Range::Retries), (Turn::Fresh, Range::Newest)],
        };
        for (took, range) in order {
            for head in self.candidates(range, name, 4, effects)? {
                let before = effects.runs.len();
                if self.launch(name, head, true, share, effects)? {
                    self.mark(effects.runs.get(before..).unwrap_or_default())?;
                    channels.get(name)?.take_probe(took, self.at.wall);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Due retries in at most half of the room, then fresh ones, then what retries there are left.
    fn fill(
        &self,
        name: &str,
        mut runs: usize,
        room: &mut Share,
        effects: &mut Effects,
    ) -> Result<(), Trouble> {
        let steps = [
            (Range::Retries, room.messages.div_ceil(2)),
            (Range::Fresh, usize::MAX),
            (Range::Retries, usize::MAX),
        ];
        for (range, share) in steps {
            let limit = share.min(room.messages).min(runs);
            if limit == 0 || room.bytes == 0 {
                continue;
            }
            let before = effects.runs.len();
            for head in self.candidates(range, name, limit, effects)? {
                if room.messages == 0 || room.bytes == 0 || runs == 0 {
                    break;
                }
                if self.launch(name, head, false, room, effects)? {
                    runs -= 1;
                }
            }
            self.mark(effects.runs.get(before..).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Messages that may be claimed, without those that refuse it. What is overdue and stands in their
    /// way is marked so, up to a bound: to step over it at every claim would take the longer the more
    /// there is.
    fn candidates(
        &self,
        range: Range,
        name: &str,
        limit: usize,
        effects: &mut Effects,
    ) -> Result<Vec<Candidate>, Trouble> {
        let untouchable = &self.memory.untouchable;
        let more = limit.saturating_add(untouchable.len());
        let now = self.at.wall;
        loop {
            let expiring = effects.expired.is_some();
            let mut found = claim::candidates(self.conn, range, name, now, more, expiring)?;
            found.retain(|it| !untouchable.contains(&it.id));
            let mut marked = false;
            for late in found.extract_if(.., |it| it.overdue) {
                let most = EXPIRE_STEP + self.batch;
                if effects.expired.is_some_and(|it| it < most) {
                    marked |= self.mark_overdue(late.id, effects)?;
                }
            }
            if !marked || !found.is_empty() {
                found.truncate(limit);
                return Ok(found);
            }
        }
    }

    /// Makes one run of a message and the followers of its ordering key; [`mark`](Self::mark) claims
    /// it.
    fn launch(
        &self,
        name: &str,
        head: Candidate,
        probe: bool,
        room: &mut Share,
        effects: &mut Effects,
    ) -> Result<bool, Trouble> {
        let Some(first) = self.take(head.id, effects)? else {
            return Ok(false);
        };
        room.spend(&first);
        let mut deliveries = vec![first];
        if let Some(key) = head.leads.filter(|_| !probe) {
            let more = self.settings.policy_of(name).run_length.saturating_sub(1);
            deliveries.extend(self.members(name, &key, head.id, more, room, effects)?);
        }
        let launch = self.launched(name, probe, room.beyond);
        self.add(name, deliveries, None, launch, effects);
        Ok(true)
    }

    /// With the room that is left, the next run of lanes that are being sent.
    fn follow(&self, name: &str, room: &mut Share, effects: &mut Effects) -> Result<(), Trouble> {
        let most = self.settings.policy_of(name).run_length;
        // Who wants one message at a time wants none claimed ahead.
        if most <= 1 {
            return Ok(());
        }
        let before = effects.runs.len();
        let lost = &effects.changes.lost;
        for lane in self.memory.flight.lanes_to_follow(name, lost) {
            if room.messages == 0 || room.bytes == 0 {
                break;
            }
            let key = &lane.ordering_key;
            if claim::goes_on(self.conn, name, key, lane.last)? {
                let members = self.members(name, key, lane.last, most, room, effects)?;
                if !members.is_empty() {
                    let behind = Some(Arc::clone(&lane.chain));
                    let launch = self.launched(name, false, room.beyond);
                    self.add(name, members, behind, launch, effects);
                }
            }
        }
        self.mark(effects.runs.get(before..).unwrap_or_default())
    }

    /// The messages of a lane right behind `last`, up to one that cannot go.
    fn members(
        &self,
        name: &str,
        key: &str,
        last: i64,
        most: usize,
        room: &mut Share,
        effects: &mut Effects,
    ) -> Result<Vec<Delivery>, Trouble> {
        let limit = most.min(room.messages);
        let mut members = Vec::new();
        for id in claim::followers(self.conn, name, key, last, self.at.wall, limit)? {
            if room.bytes == 0 {
                break;
            }
            // A broken follower ends the run; the lane goes on after it next time.
            let Some(next) = self.take(id, effects)? else {
                break;
            };
            room.spend(&next);
            members.push(next);
        }
        Ok(members)
    }

    fn launched(&self, name: &str, probe: bool, beyond: bool) -> Launch {
        Launch {
            probe,
            beyond,
            limit: self.dispatcher.time_limit(name),
        }
    }

    fn add(
        &self,
        name: &str,
        deliveries: Vec<Delivery>,
        behind: Option<Arc<Chain>>,
        launch: Launch,
        effects: &mut Effects,
    ) {
        let (wall, monotonic) = self.lease();
        let number = self.memory.next_run + effects.runs.len() as u64;
        effects.changes.launched.push(launch);
        effects.runs.push(ClaimedRun {
            number,
            channel: name.to_owned(),
            lease: Arc::new(Lease::new(wall, monotonic)),
            deliveries,
            chain: Arc::default(),
            behind,
        });
    }

    /// Reads a row that is to be claimed, and when careful claims it. One that cannot be sent
    /// becomes a dead letter with the reason.
    fn take(&self, id: i64, effects: &mut Effects) -> Result<Option<Delivery>, Trouble> {
        let lease = self.lease().0;
        let read = self.guarded(id, effects, |_| {
            let read = decode::read(self.conn, id, self.instance)?;
            let refused = self.careful
                && matches!(read, Some(Ok(_)))
                && claim::take(self.conn, &[id], lease)? == 0;
            Ok(read.filter(|_| !refused))
        })?;
        match read.flatten() {
            Some(Ok(delivery)) => Ok(Some(delivery)),
            Some(Err(reason)) => {
                self.refuse(id, reason, effects)?;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Makes a dead letter of a message that cannot be sent as it is stored.
    fn refuse(&self, id: i64, error: String, effects: &mut Effects) -> Result<(), Trouble> {
        let failure = Failure::new(Failure::INVALID, &*error);
        let quarantined = self.guarded(id, effects, |_| {
            settle::quarantine(self.conn, id, &failure, Untold::Nothing, self.at.wall)
        })?;
        if let Some(channel) = quarantined.flatten() {
            effects.events.push(Event::Dead { id, channel, error });
        }
        Ok(())
    }

    /// The same for channels that no route can have, some messages at a time.
    pub(crate) fn refuse_nameless(&self, effects: &mut Effects) -> Result<(), Trouble> {
        let mut room = self.batch;
        for name in &self.found.nameless {
            if room == 0 {
                break;
            }
            for id in claim::nameless(self.conn, name, room)? {
                self.refuse(id, decode::not_utf8("channel"), effects)?;
                room -= 1;
            }
        }
        Ok(())
    }

    /// Claims the rows of these runs together, unless that was done one by one.
    fn mark(&self, runs: &[ClaimedRun]) -> Result<(), Trouble> {
        if self.careful {
            return Ok(());
        }
        let deliveries = runs.iter().flat_map(|run| &run.deliveries);
        let mut ids: Vec<i64> = deliveries.map(|it| it.id).collect();
        ids.sort_unstable();
        match claim::take(self.conn, &ids, self.lease().0)? == ids.len() {
            true => Ok(()),
            false => Err(Trouble::Uneven),
        }
    }
}

fn landed_by_run(landed: &[(u64, i64)]) -> HashMap<u64, usize> {
    let mut groups = HashMap::new();
    for (run, _) in landed {
        *groups.entry(*run).or_default() += 1;
    }
    groups
}
