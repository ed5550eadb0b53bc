//! The progress bar of a drain.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};
use sqlite_outbox::Tally;

use crate::output::{WIPED, age, error_width, frame, per_second, settle};

/// Frames a second, at most.
const RATE: u8 = 20;

/// How far it is, on a terminal only.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(wanted: bool, unsent: impl FnOnce() -> sqlite_outbox::Result<u64>) -> Self {
        if !wanted || !io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let target = ProgressDrawTarget::term_like_with_hz(Box::<Beside>::default(), RATE);
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template(&template(error_width().unwrap_or(80))) {
            bar.set_style(style.with_key("pace", pace));
        }
        // Shows it, in its style.
        bar.set_length(unsent().unwrap_or(0));
        Self(bar)
    }

    pub(super) fn show(&self, tally: &Tally) {
        let settled = tally.sent + tally.dead + tally.expired;
        self.0.set_position(settled);
        if self.0.length().is_some_and(|length| settled > length) {
            self.0.set_length(settled);
        }
    }

    pub(super) fn stopping(&self) {
        self.0.set_message("stopping …");
    }

    /// What comes next may be on the same terminal, so it is gone then.
    pub(super) fn clear(&self) {
        if !self.0.is_hidden() {
            self.0.finish_and_clear();
            settle();
        }
    }
}

/// The terminal behind standard error, written to aside: one that is held up by Ctrl-S holds no
/// drain up, and whatever is said meanwhile stands above it. The bar has one line.
#[derive(Debug, Default)]
struct Beside(Mutex<String>);

impl Beside {
    fn add(&self, text: &str) -> io::Result<()> {
        let mut frame = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        frame.push_str(text);
        Ok(())
    }

    fn moved(&self, places: usize, direction: char) -> io::Result<()> {
        match places {
            0 => Ok(()),
            places => self.add(&format!("\x1b[{places}{direction}")),
        }
    }
}

impl TermLike for Beside {
    fn width(&self) -> u16 {
        u16::try_from(error_width().unwrap_or(80)).unwrap_or(u16::MAX)
    }

    fn move_cursor_up(&self, places: usize) -> io::Result<()> {
        self.moved(places, 'A')
    }

    fn move_cursor_down(&self, places: usize) -> io::Result<()> {
        self.moved(places, 'B')
    }

    fn move_cursor_right(&self, places: usize) -> io::Result<()> {
        self.moved(places, 'C')
    }

    fn move_cursor_left(&self, places: usize) -> io::Result<()> {
        self.moved(places, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.add(text).and_then(|()| self.add("\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.add(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.add(WIPED)
    }

    fn flush(&self) -> io::Result<()> {
        let mut drawn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::take(&mut *drawn) {
            it if it.is_empty() => {}
            it => frame(it),
        }
        Ok(())
    }
}

/// One line on any terminal: where there is no room for all of it, the bar gives way.
fn template(width: usize) -> String {
    let numbers = "{human_pos} of {human_len}{pace}  {msg}";
    match width.saturating_sub(56) {
        0..8 => numbers.into(),
        room => format!("{{bar:{}}} {numbers}", room.min(24)),
    }
}

/// `  1,244/s, 12 s left`, once something has gone out.
fn pace(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    let rate = state.per_sec();
    if state.pos() > 0 && rate > 0.0 {
        let left = i64::try_from(state.eta().as_millis()).unwrap_or(i64::MAX);
        let _ = write!(out, "  {}, {} left", per_second(rate), age(left));
    }
}
