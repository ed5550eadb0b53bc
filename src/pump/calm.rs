//! A dispatcher as the drain asks it: a panic in the application's code is caught where it is called,
//! so that it takes neither the drain with it nor what is still to be recorded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::dispatch::{Delivery, Dispatcher, Outcome, Run, TIME_LIMIT};
use crate::drain::panic_text;
use crate::observer::logged;

/// A channel about which it panics is not served this time, a limit that cannot be had is the
/// default one, and calls that cannot be interrupted are waited for as those that do not heed it.
pub(crate) struct Calm<'a> {
    dispatcher: &'a dyn Dispatcher,
    serves: Word,
    time_limit: Word,
    interrupt: Word,
}

/// Whether it was said in the log, where once is enough.
#[derive(Default)]
struct Word(AtomicBool);

impl Word {
    fn caught<T>(&self, what: &str, call: impl FnOnce() -> T) -> Option<T> {
        let said = catch_unwind(AssertUnwindSafe(call));
        if let Err(panic) = &said
            && !self.0.swap(true, Ordering::Relaxed)
        {
            let text = panic_text(panic.as_ref());
            logged(|| log::error!("a dispatcher panicked in `{what}`: {text}"));
        }
        said.ok()
    }
}

impl<'a> Calm<'a> {
    pub(crate) fn new(dispatcher: &'a dyn Dispatcher) -> Self {
        Self {
            dispatcher,
            serves: Word::default(),
            time_limit: Word::default(),
            interrupt: Word::default(),
        }
    }
}

impl Dispatcher for Calm<'_> {
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        self.dispatcher.dispatch(delivery)
    }

    fn dispatch_run(&self, run: &mut Run<'_>) {
        self.dispatcher.dispatch_run(run);
    }

    fn serves(&self, channel: &str) -> bool {
        let asked = || self.dispatcher.serves(channel);
        self.serves.caught("serves", asked).unwrap_or(false)
    }

    fn time_limit(&self, channel: &str) -> Duration {
        let asked = || self.dispatcher.time_limit(channel);
        self.time_limit
            .caught("time_limit", asked)
            .unwrap_or(TIME_LIMIT)
    }

    fn interrupt(&self) {
        self.interrupt
            .caught("interrupt", || self.dispatcher.interrupt());
    }
}
