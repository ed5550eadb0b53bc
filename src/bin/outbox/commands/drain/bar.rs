//! The progress bar of a drain.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use sqlite_outbox::Tally;

use crate::output::{age, error_width, per_second};

/// How far it is, on a terminal only.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(wanted: bool, unsent: impl FnOnce() -> sqlite_outbox::Result<u64>) -> Self {
        let target = match wanted {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(None, target);
        if bar.is_hidden() {
            return Self(bar);
        }
        bar.set_length(unsent().unwrap_or(0));
        if let Ok(style) = ProgressStyle::with_template(&template(error_width().unwrap_or(80))) {
            bar.set_style(style.with_key("pace", pace));
        }
        Self(bar)
    }

    pub(super) fn show(&self, tally: &Tally) {
        let settled = tally.sent + tally.dead + tally.expired;
        self.0.set_position(settled);
        if self.0.length().is_some_and(|length| settled > length) {
            self.0.set_length(settled);
        }
    }

    /// Says something without being in its way.
    pub(super) fn above(&self, say: impl FnOnce()) {
        self.0.suspend(say);
    }

    pub(super) fn stopping(&self) {
        self.0.set_message("stopping …");
    }

    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
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
