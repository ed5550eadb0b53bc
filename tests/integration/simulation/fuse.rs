//! How a process ends in the middle of what it does.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlite_outbox::testing::ManualClock;
use sqlite_outbox::{Clock, Delivery, Dispatcher, Outcome};

/// The longest a call may take.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// Ends a process in the middle of what it does: after so many more times that it asks the
/// outside world for something, which it also does between `BEGIN` and `COMMIT`, and right after.
#[derive(Debug, Clone, Default)]
pub(super) struct Fuse(Arc<AtomicI64>);

/// Thrown where it ends.
pub(super) struct Cut;

impl Fuse {
    pub(super) fn light(&self, steps: i64) {
        self.0.store(steps, Ordering::Relaxed);
    }

    fn burn(&self) {
        if self.0.load(Ordering::Relaxed) > 0 && self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            resume_unwind(Box::new(Cut));
        }
    }
}

/// The machine's clock as one process reads it.
#[derive(Debug)]
pub(super) struct Hands {
    pub(super) clock: ManualClock,
    pub(super) fuse: Fuse,
}

impl Clock for Hands {
    fn wall(&self) -> i64 {
        self.fuse.burn();
        self.clock.wall()
    }

    fn monotonic(&self) -> Duration {
        self.fuse.burn();
        self.clock.monotonic()
    }
}

/// What a drain asks while it decides.
pub(super) struct Routes(pub(super) Fuse);

impl Dispatcher for Routes {
    fn dispatch(&self, _: &Delivery) -> anyhow::Result<Outcome> {
        anyhow::bail!("messages are sent call by call")
    }

    fn serves(&self, _: &str) -> bool {
        self.0.burn();
        true
    }

    fn time_limit(&self, _: &str) -> Duration {
        self.0.burn();
        LIMIT
    }
}
