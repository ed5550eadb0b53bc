//! Standard error while messages are sent: written by a thread of its own, so that a reader who does
//! not read, such as a stuck log collector, stops neither the sending nor the stopping.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::threads;

/// Lines that may wait for their reader; further ones are counted.
const WAITING: usize = 1024;

/// How long the last lines may take to be written.
const LAST: Duration = Duration::from_secs(1);

static ASIDE: OnceLock<Arc<Aside>> = OnceLock::new();

#[derive(Debug, Default)]
struct Aside {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<String>,
    lost: u64,
    writing: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.lost == 0
    }

    /// What is written next: one line, or behind the last how many are missing.
    fn next(&mut self, missing: fn(u64) -> String) -> Option<String> {
        self.lines
            .pop_front()
            .or_else(|| match std::mem::take(&mut self.lost) {
                0 => None,
                lost => Some(missing(lost)),
            })
    }
}

impl Aside {
    // No panic happens under the lock, and nothing is written.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, missing: fn(u64) -> String) {
        let mut state = self.lock();
        loop {
            while let Some(line) = state.next(missing) {
                state.writing = true;
                drop(state);
                straight(&line);
                state = self.lock();
                state.writing = false;
            }
            self.changed.notify_all();
            let wait = self.changed.wait_while(state, |it| it.is_idle());
            state = wait.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// From now on no line on standard error waits for its reader. `missing` words the line that tells
/// how many are lost. Where no thread can be had, all stays as it was.
pub(crate) fn set_aside(missing: fn(u64) -> String) {
    let aside = Arc::new(Aside::default());
    let writer = aside.clone();
    if threads::start("outbox-aside", move || writer.write(missing)).is_ok() {
        let _ = ASIDE.set(aside);
    }
}

/// One line.
pub(super) fn line(line: &str) {
    let Some(aside) = ASIDE.get() else {
        return straight(line);
    };
    let mut state = aside.lock();
    match state.lines.len() < WAITING {
        true => state.lines.push_back(line.into()),
        false => state.lost += 1,
    }
    drop(state);
    aside.changed.notify_all();
}

/// Waits for the last lines, though not for ever. Comes before the process ends.
pub(crate) fn settle() {
    if let Some(aside) = ASIDE.get() {
        let left = |it: &mut State| it.writing || !it.is_idle();
        let _ = aside.changed.wait_timeout_while(aside.lock(), LAST, left);
    }
}

/// Not by eprintln!, which panics when stderr is closed.
fn straight(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_told_behind_what_was_not() {
        let mut state = State {
            lines: ["one".into(), "two".into()].into(),
            lost: 3,
            writing: false,
        };
        let missing = |lost: u64| format!("{lost} lost");
        let said: Vec<_> = std::iter::from_fn(|| state.next(missing)).collect();
        assert_eq!(said, ["one", "two", "3 lost"]);
        assert!(state.is_idle());
    }
}
