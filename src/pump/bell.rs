//! What wakes a pump, and what it is told. Each is a flag: a thousand commits are one look.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Rung by workers, by commits and by whoever holds the pump; listened to by its own thread. A
/// condition variable, and no channel: those look around for a while before they sleep, which is a
/// fifth of what a pump without work would cost.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    inner: Mutex<Inner>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// Since the pump last listened.
    heard: Option<Heard>,
    closed: bool,
}

/// What a pump was told. By itself: there is something to look at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// Connectivity may be back.
    pub(crate) wake: bool,
    /// Stop, and give calls under way so long.
    pub(crate) stop: Option<Duration>,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False when nobody listens any more.
    fn tell(&self, what: impl FnOnce(&mut Heard)) -> bool {
        let mut inner = self.lock();
        what(inner.heard.get_or_insert_default());
        let open = !inner.closed;
        drop(inner);
        self.rung.notify_one();
        open
    }

    /// A report came, or something was committed.
    pub(crate) fn look(&self) -> bool {
        self.tell(|_| {})
    }

    pub(crate) fn wake(&self) -> bool {
        self.tell(|heard| heard.wake = true)
    }

    /// Who is in the greater hurry prevails.
    pub(crate) fn stop(&self, grace: Duration) -> bool {
        self.tell(|heard| heard.stop = Some(heard.stop.map_or(grace, |it| it.min(grace))))
    }

    /// What was told since this was last asked; waits for it no longer than `span`.
    pub(crate) fn listen(&self, span: Duration) -> Option<Heard> {
        let waited = self
            .rung
            .wait_timeout_while(self.lock(), span, |inner| inner.heard.is_none());
        waited
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .heard
            .take()
    }

    /// Nobody listens any more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    #[test]
    fn what_was_told_is_heard_once_and_together() {
        let bell = Bell::default();
        assert_eq!(bell.listen(MOMENT), None);
        assert!(bell.look() && bell.look());
        assert_eq!(bell.listen(MOMENT), Some(Heard::default()));
        assert_eq!(bell.listen(MOMENT), None);
        let patient = Duration::from_secs(9);
        assert!(bell.stop(patient) && bell.wake() && bell.stop(MOMENT) && bell.stop(patient));
        let all = Heard {
            wake: true,
            stop: Some(MOMENT),
        };
        assert_eq!(bell.listen(Duration::MAX), Some(all));
    }

    #[test]
    fn who_rings_a_closed_bell_is_told_so() {
        let bell = Bell::default();
        bell.close();
        assert!(!bell.look() && !bell.wake() && !bell.stop(MOMENT));
    }

    #[test]
    fn who_sleeps_is_woken() {
        let bell = Bell::default();
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| bell.listen(Duration::from_secs(60)));
            bell.wake();
            assert!(heard.join().unwrap().unwrap().wake);
        });
    }
}
