//! When the file is tidied: while there is nothing else to do, one small transaction at a time, and
//! only by a clock that can be believed.

use std::time::Duration;

use crate::clock::{Instant, millis};
use crate::drain::Drainer;
use crate::error::{Error, Result};
use crate::observer::logged;
use crate::store::census;
use crate::store::round::{Cutoffs, Marks, Round, Stepped};

/// How often it is looked for something to do.
const EVERY: Duration = Duration::from_secs(300);
/// When someone else held the write lock.
const AFTER_BUSY: Duration = Duration::from_secs(5);
/// A drain that would end keeps on for this long at most.
const DETAINS: Duration = Duration::from_secs(1);

/// Where retention stands.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    round: Option<Round>,
    /// Nothing is to be removed; blocks that the census lacks are counted.
    counting: bool,
    marks: Option<Marks>,
    next: Duration,
    begun: Option<Duration>,
}

impl Retention {
    /// Whether it is time for another step.
    fn is_due(&self, now: Duration) -> bool {
        self.is_under_way() || now >= self.next
    }

    /// Whether it wants another step at once.
    pub(crate) fn is_under_way(&self) -> bool {
        self.round.is_some() || self.counting
    }

    /// Whether a drain that has nothing else to do should go on because of it.
    pub(crate) fn detains(&self, now: Duration) -> bool {
        let recent = |begun: Duration| now < begun.saturating_add(DETAINS);
        self.round.is_some() && self.begun.is_some_and(recent)
    }
}

impl Drainer {
    /// Takes the next step of retention, if it is time for one. It is never worth a failed cycle.
    pub(crate) fn tidy(&mut self, at: Instant) -> bool {
        if !self.retention.is_due(at.monotonic) || !self.watch.trusted() || self.stopping {
            return false;
        }
        if let Err(error) = self.tidy_step(at) {
            let busy = matches!(error, Error::Busy(_));
            if !busy {
                let error = error.chain();
                logged(|| log::warn!("what is due to be removed stays for now: {error}"));
            }
            let wait = if busy { AFTER_BUSY } else { EVERY };
            self.retention.round = None;
            self.retention.counting = false;
            self.retention.next = at.monotonic.saturating_add(wait);
        }
        true
    }

    fn tidy_step(&mut self, at: Instant) -> Result<()> {
        let begun = self.clock.monotonic();
        let retention = &mut self.retention;
        if retention.counting {
            retention.counting = census::fill(&self.conn)?;
            if retention.counting {
                let held = self.clock.monotonic().saturating_sub(begun);
                self.mind_manners(held, held);
            }
            return Ok(());
        }
        let Some(round) = &mut retention.round else {
            let marks = match retention.marks {
                Some(marks) => marks,
                None => Marks::load(&self.conn)?,
            };
            let before = |span: Duration| at.wall.saturating_sub(millis(span));
            let cutoffs = Cutoffs {
                now: at.wall,
                payloads: self.settings.keep_payload.map(before),
                rows: self.settings.keep_sent.map(before),
            };
            retention.marks = Some(marks);
            retention.round = Round::plan(&self.conn, cutoffs, marks)?;
            retention.counting = retention.round.is_none();
            retention.next = at.monotonic.saturating_add(EVERY);
            retention.begun.get_or_insert(at.monotonic);
            return Ok(());
        };
        match round.step(&self.conn)? {
            Stepped::Looked => {}
            Stepped::Wrote => {
                let held = self.clock.monotonic().saturating_sub(begun);
                self.mind_manners(held, held);
            }
            Stepped::NotYet => retention.round = None,
            Stepped::Finished { wrote, more } => {
                retention.marks = Some(round.marks());
                retention.round = None;
                if more && !wrote {
                    retention.next = at.monotonic;
                }
            }
        }
        Ok(())
    }
}
