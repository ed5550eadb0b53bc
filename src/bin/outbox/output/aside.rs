//! Standard error while messages are sent: written by a thread of its own, so that a reader who does
//! not read, such as a stuck log collector, stops neither the sending nor the stopping.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::threads;

/// Wipes the line out on which the cursor stands, and goes to its beginning.
pub(crate) const WIPED: &str = "\r\x1b[2K";

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
    lines: VecDeque<Said>,
    lost: u64,
    writing: bool,
}

/// What waits to be written.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Line(String),
    /// How the last line of a terminal looks now. Of several that wait, the last is enough.
    Frame(String),
}

impl State {
    fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.lost == 0
    }

    /// What is written next: one line, or behind the last how many are missing.
    fn next(&mut self, missing: fn(u64) -> String) -> Option<Said> {
        self.lines
            .pop_front()
            .or_else(|| match std::mem::take(&mut self.lost) {
                0 => None,
                lost => Some(Said::Line(missing(lost))),
            })
    }

    fn add(&mut self, said: Said) {
        if let (Said::Frame(_), Some(Said::Frame(_))) = (&said, self.lines.back()) {
            self.lines.pop_back();
        }
        match self.lines.len() < WAITING {
            true => self.lines.push_back(said),
            false => self.lost += u64::from(matches!(said, Said::Line(_))),
        }
    }
}

impl Aside {
    // No panic happens under the lock, and nothing is written.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, missing: fn(u64) -> String) {
        let mut bar = String::new();
        let mut state = self.lock();
        loop {
            while let Some(said) = state.next(missing) {
                state.writing = true;
                drop(state);
                straight(&shown(said, &mut bar));
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
    say(Said::Line(line.into()));
}

/// What the last line of the terminal becomes, with the signs that wipe out what it was.
pub(crate) fn frame(frame: String) {
    say(Said::Frame(frame));
}

fn say(said: Said) {
    let Some(aside) = ASIDE.get() else {
        return straight(&shown(said, &mut String::new()));
    };
    aside.lock().add(said);
    aside.changed.notify_all();
}

/// Waits for the last lines, though not for ever. Comes before the process ends.
pub(crate) fn settle() {
    if let Some(aside) = ASIDE.get() {
        let left = |it: &mut State| it.writing || !it.is_idle();
        let _ = aside.changed.wait_timeout_while(aside.lock(), LAST, left);
    }
}

/// What is written, beside what the last line of the terminal shows: a line takes its place, and it
/// comes again below.
fn shown(said: Said, bar: &mut String) -> String {
    match said {
        Said::Line(line) if bar.is_empty() => format!("{line}\n"),
        Said::Line(line) => format!("{WIPED}{line}\n{bar}"),
        Said::Frame(frame) => {
            frame.trim_start_matches(WIPED).clone_into(bar);
            format!("{WIPED}{bar}")
        }
    }
}

/// Not by eprintln!, which panics when stderr is closed.
fn straight(text: &str) {
    let mut stderr = io::stderr();
    let _ = stderr
        .write_all(text.as_bytes())
        .and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Said {
        Said::Line(text.into())
    }

    fn frame(text: &str) -> Said {
        Said::Frame(text.into())
    }

    fn all(state: &mut State) -> Vec<Said> {
        let missing = |lost: u64| format!("{lost} lost");
        std::iter::from_fn(|| state.next(missing)).collect()
    }

    #[test]
    fn what_was_lost_is_told_behind_what_was_not() {
        let mut state = State::default();
        let lines: Vec<_> = (0..WAITING + 3).map(|it| it.to_string()).collect();
        lines.iter().for_each(|it| state.add(line(it)));
        state.add(frame("bar"));
        let said = all(&mut state);
        assert_eq!(said.len(), WAITING + 1);
        assert_eq!(said.last(), Some(&line("3 lost")));
        assert!(state.is_idle());
    }

    #[test]
    fn a_line_is_said_above_the_bar_whoever_says_it() {
        let mut bar = String::new();
        let mut said = |it| shown(it, &mut bar);
        assert_eq!(said(line("one")), "one\n");
        assert_eq!(said(frame("▆ 1 of 3")), "\r\x1b[2K▆ 1 of 3");
        assert_eq!(said(line("two")), "\r\x1b[2Ktwo\n▆ 1 of 3");
        assert_eq!(said(frame("\r\x1b[2K▆ 2 of 3")), "\r\x1b[2K▆ 2 of 3");
        assert_eq!(said(frame("\r\x1b[2K")), "\r\x1b[2K");
        assert_eq!(said(line("three")), "three\n");
    }

    /// A terminal that is held up by Ctrl-S: the bar goes on.
    #[test]
    fn of_frames_that_wait_the_last_is_kept_in_its_place_among_the_lines() {
        let mut state = State::default();
        (0..1_000_000).for_each(|_| state.add(frame("one")));
        state.add(line("a note"));
        state.add(frame("two"));
        state.add(frame("three"));
        assert_eq!(
            all(&mut state),
            [frame("one"), line("a note"), frame("three")]
        );
    }
}
