//! Whose turn it is in a transaction, and the wishes that make messages due.

use std::collections::{BTreeSet, HashSet};

use crate::drain::CHANNELS;
use crate::drain::memory::PullCursor;
use crate::drain::transact::{Channels, Effects, Transact, Trouble};
use crate::stats::ChannelState;
use crate::store::{claim, upkeep};

impl Transact<'_> {
    /// Channels that may have something to claim: those that the look found, then those of what
    /// came back just now, and of lanes that are being sent.
    pub(crate) fn turns(&self, effects: &Effects) -> rusqlite::Result<Vec<String>> {
        let (flight, lost) = (&self.memory.flight, &effects.changes.lost);
        let landed = effects.changes.landed.iter();
        let landed = landed.filter_map(|(run, _)| flight.get(*run));
        let landed: BTreeSet<&str> = landed.map(|run| run.channel.as_str()).collect();
        let found: HashSet<&str> = self.found.names.iter().map(String::as_str).collect();
        let mut turns = self.found.names.clone();
        let more = flight.channels().filter(|it| !found.contains(it));
        // The look asks this of the others; a route may have gone since its messages were claimed.
        for name in more.filter(|it| self.dispatcher.serves(it)) {
            let due = match landed.contains(name) {
                true => claim::first_pending(self.conn, name)?,
                false => None,
            };
            let due = due.is_some_and(|due| due <= self.at.wall);
            if due || !flight.lanes_to_follow(name, lost).is_empty() {
                turns.push(name.to_owned());
            }
        }
        Ok(turns)
    }

    /// Makes messages due that the oldest wish or repair asks for, some at a time.
    pub(crate) fn pull(
        &self,
        channels: &mut Channels<'_>,
        effects: &mut Effects,
    ) -> Result<(), Trouble> {
        let Some(pull) = self.memory.pulls.first() else {
            return Ok(());
        };
        let now = self.at.wall;
        let from = (now.saturating_add(pull.after), i64::MAX);
        let until = now.saturating_add(pull.until);
        let PullCursor {
            mut channel,
            mut due,
        } = pull.cursor.clone();
        let mut next = Vec::new();
        let ended = claim::standings(self.conn, &channel, |name, standing| {
            next.push((name.clone(), standing));
            next.len() < CHANNELS
        })?;
        let bring = |channel: &str, range, limit| {
            upkeep::bring_forward(self.conn, channel, now, range, pull.earned, limit)
        };
        let mut left = self.batch;
        for (name, standing) in next {
            if left == 0 {
                let due = None;
                effects.changes.pulled = Some(Some(PullCursor { channel, due }));
                return Ok(());
            }
            let after = due.take().unwrap_or(from);
            if let Some(served) = name.as_str().filter(|it| self.dispatcher.serves(it)) {
                if standing.last_due.is_some_and(|it| (it, i64::MAX) > after) {
                    let range = (after, until);
                    let brought = self.tolerated(|| bring(served, range, left))?;
                    let (rows, due) = brought.unwrap_or_default();
                    if due.is_some() {
                        effects.changes.pulled = Some(Some(PullCursor { channel, due }));
                        return Ok(());
                    }
                    left = left.saturating_sub(rows);
                }
                if pull.probes && channels.may_be_troubled(served) {
                    let moved = pull.holds.get(served).copied();
                    channels.get(served)?.bring_forward(now, moved);
                    left = left.saturating_sub(1);
                }
            }
            channel = name;
        }
        let go_on = PullCursor { channel, due: None };
        effects.changes.pulled = Some((!ended).then_some(go_on));
        Ok(())
    }
}

impl Channels<'_> {
    /// False only where it is certain that nothing keeps the channel.
    fn may_be_troubled(&self, name: &str) -> bool {
        self.stale
            || self
                .known
                .get(name)
                .is_some_and(|it| it.state != ChannelState::Ok)
    }
}
