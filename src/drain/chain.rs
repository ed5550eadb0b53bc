//! Runs of one lane that follow each other. The next one is claimed while the first is still being
//! sent, so that a lane does not wait for a commit after every run; it is sent only when all of the
//! first was delivered.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::drain::flight::ClaimedRun;

/// Where the next run of a lane waits for the one before it. Shared with the worker.
#[derive(Debug, Default)]
pub(crate) struct Chain(Mutex<Link>);

#[derive(Debug, Default)]
enum Link {
    /// The run is not over, and nothing waits behind it.
    #[default]
    Open,
    Next(Box<ClaimedRun>),
    /// All of the run was delivered.
    Delivered,
    /// Some of it was not: nothing may overtake that.
    Broken,
}

/// What is to be done with a run that was claimed to follow another.
#[derive(Debug)]
pub(crate) enum Follow {
    /// Nothing: it goes when the other was delivered.
    Waits,
    /// The other was delivered meanwhile.
    Goes(ClaimedRun),
    /// The other failed meanwhile: give it back.
    GoesBack(ClaimedRun),
}

impl Chain {
    fn lock(&self) -> MutexGuard<'_, Link> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a further run may be claimed behind this one.
    pub(crate) fn is_open(&self) -> bool {
        matches!(*self.lock(), Link::Open)
    }

    /// Whether the run has come to its end.
    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.lock(), Link::Delivered | Link::Broken)
    }

    /// Puts a run behind this one.
    pub(crate) fn follow(&self, run: ClaimedRun) -> Follow {
        let mut link = self.lock();
        match *link {
            Link::Open => {
                *link = Link::Next(Box::new(run));
                Follow::Waits
            }
            Link::Delivered => Follow::Goes(run),
            Link::Next(_) | Link::Broken => Follow::GoesBack(run),
        }
    }

    /// The run is over. Returns the one behind it: to be sent if all was delivered, else to be
    /// given back.
    pub(crate) fn end(&self, delivered: bool) -> Option<ClaimedRun> {
        let over = match delivered {
            true => Link::Delivered,
            false => Link::Broken,
        };
        match std::mem::replace(&mut *self.lock(), over) {
            Link::Next(run) => Some(*run),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::dispatch::Delivery;
    use crate::drain::lease::Lease;

    fn run(number: u64) -> ClaimedRun {
        ClaimedRun {
            number,
            channel: "sales".into(),
            lease: Arc::new(Lease::new(0, Duration::ZERO)),
            deliveries: vec![Delivery::new("sales", "one")],
            chain: Arc::default(),
            behind: None,
        }
    }

    #[test]
    fn what_waits_behind_a_run_comes_out_at_its_end_and_once() {
        for delivered in [true, false] {
            let chain = Chain::default();
            assert!(chain.is_open() && !chain.is_over());
            assert!(matches!(chain.follow(run(7)), Follow::Waits));
            assert!(!chain.is_open() && !chain.is_over());
            let second = chain.follow(run(8));
            assert!(matches!(second, Follow::GoesBack(it) if it.number == 8));
            assert_eq!(chain.end(delivered).map(|it| it.number), Some(7));
            assert!(chain.is_over() && !chain.is_open());
            assert!(chain.end(delivered).is_none());
        }
    }

    /// Between its claim and its place in the chain, the run before it may end.
    #[test]
    fn who_comes_after_the_end_goes_on_only_when_all_was_delivered() {
        let delivered = Chain::default();
        assert!(delivered.end(true).is_none());
        assert!(matches!(delivered.follow(run(7)), Follow::Goes(it) if it.number == 7));
        let broken = Chain::default();
        assert!(broken.end(false).is_none());
        assert!(broken.is_over() && !broken.is_open());
        assert!(matches!(broken.follow(run(7)), Follow::GoesBack(it) if it.number == 7));
    }
}
