//! Which channels a transaction turns to, and the wishes that make their messages due.

use crate::circuit::{Admission, Channel};
use crate::drain::memory::PullCursor;
use crate::drain::transact::{Channels, Effects, Transact, Trouble};
use crate::drain::{CHANNELS, CHANNELS_PASSED};
use crate::store::{Raw, claim, upkeep};

/// Due times looked at per transaction and channel.
const PULL_STEP: usize = 256;

impl Transact<'_> {
    /// The next round of channels that have something unsent and a route.
    pub(crate) fn channel_names(&self, effects: &mut Effects) -> rusqlite::Result<Vec<String>> {
        let start = &self.memory.cursor;
        let (mut names, mut last) = self.channels_after(start, CHANNELS)?;
        if last.is_none() && *start != Raw::default() {
            let room = CHANNELS.saturating_sub(names.len()).max(1);
            let (wrapped, end) = self.channels_after(&Raw::default(), room)?;
            let again = |it: &String| Raw::text(it.as_str()) <= *start;
            names.extend(wrapped.into_iter().filter(again));
            last = end.filter(|end| *end < *start);
        }
        effects.whole = last.is_none();
        // Where one round takes in all, the next begins after its first: each is first in turn.
        let first = names.first().map(|it| Raw::text(it.as_str()));
        effects.changes.cursor = last.or(first);
        Ok(names)
    }

    /// Up to `limit` channels after a name that are served and may send, with those passed over on
    /// the way that may not: their abandoned claims are still taken back. And where to go on if
    /// there may be more.
    fn channels_after(
        &self,
        after: &Raw,
        limit: usize,
    ) -> rusqlite::Result<(Vec<String>, Option<Raw>)> {
        let mut names = Vec::new();
        let mut cursor = after.clone();
        let mut admitted = 0;
        for _ in 0..CHANNELS_PASSED {
            match claim::next_channel(self.conn, &cursor)? {
                Some(name) if cursor.leads_to(&name) => cursor = name,
                _ => return Ok((names, None)),
            }
            if let Some(name) = cursor.as_str().filter(|it| self.dispatcher.serves(it)) {
                let known = self.memory.channels.get(name);
                let closed =
                    |it: &Channel| matches!(it.admission(self.at.wall), Admission::Closed(_));
                admitted += usize::from(!known.is_some_and(closed));
                names.push(name.to_owned());
            }
            if admitted >= limit {
                break;
            }
        }
        Ok((names, Some(cursor)))
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
        let until = now.saturating_add(pull.until);
        let PullCursor {
            mut channel,
            mut due,
        } = pull.cursor.clone();
        let (names, rest) = self.channels_after(&channel, CHANNELS)?;
        for name in names {
            let after = due.take().unwrap_or(now.saturating_add(pull.after));
            let range = (after, until);
            let go_on =
                self.tolerated(|| upkeep::bring_forward(self.conn, &name, now, range, PULL_STEP))?;
            if let Some(Some(due)) = go_on {
                let due = Some(due);
                effects.changes.pulled = Some(Some(PullCursor { channel, due }));
                return Ok(());
            }
            if pull.probes {
                let hold_end = pull.holds.get(&name).copied();
                channels.get(&name).bring_forward(now, hold_end);
            }
            channel = Raw::text(name);
        }
        let go_on = |channel| PullCursor { channel, due: None };
        effects.changes.pulled = Some(rest.map(go_on));
        Ok(())
    }
}
