//! The loop that turns cycles: the same for a pump in the background and a drain in the foreground.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::clock::{Clock, pause};
use crate::dispatch::Dispatcher;
use crate::drain::{ClaimedRun, Cycle, Drainer, Follow, Report, panic_text};
use crate::error::{Error, Result};
use crate::observer::{Event, Observer, logged};
use crate::pump::bell::{Bell, Heard};
use crate::pump::told::{EVENTS, log_event};
use crate::pump::work::Work;
use crate::pump::worker::Shop;
use crate::settings::Settings;
use crate::stats::ChannelState;

/// After the grace period, calls that were interrupted get this long to return.
const AFTER_INTERRUPT: Duration = Duration::from_millis(500);
/// And what is known then, this long to be recorded.
const LAST_TRIES: Duration = Duration::from_millis(500);
/// Calls under way at a drain's deadline get this long to finish.
const AFTER_DEADLINE: Duration = Duration::from_secs(2);
/// A lock held by someone else for this long is worth a word.
const BUSY_IS_NEWS: Duration = Duration::from_secs(1);
/// How often a drain looks whether it was cancelled.
const ATTENTION: Duration = Duration::from_millis(100);
/// A drain gives up on a file that cannot be written for this long.
const PATIENCE: Duration = Duration::from_secs(30);
/// And for this long when there are answers that would be lost, and the messages sent again.
const PATIENCE_WITH_ANSWERS: Duration = Duration::from_secs(300);

/// How the engine is used.
pub(crate) struct Engine<'a> {
    pub(crate) drainer: Drainer,
    pub(crate) dispatcher: &'a dyn Dispatcher,
    pub(crate) settings: &'a Settings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) bell: Arc<Bell>,
    /// Ends when nothing more can be done now.
    pub(crate) until_idle: bool,
    /// Monotonic.
    pub(crate) deadline: Option<Duration>,
}

/// A stop under way.
#[derive(Debug, Clone, Copy)]
enum Stopping {
    No,
    /// Waiting for calls under way until then.
    Grace(Duration),
    /// Calls were interrupted; waiting for them until then.
    Interrupted(Duration),
}

/// Lets the workers end, however the engine does: also when code of the application panics in it.
struct Closing<'a>(&'a Shop);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.work.close();
        self.0.bell.close();
    }
}

impl Engine<'_> {
    /// Runs until idle, stopped or, for a drain, unable to write. `spawn` starts a thread that runs
    /// the given shop; `seen` hears of every cycle.
    pub(crate) fn run(
        mut self,
        spawn: &mut dyn FnMut(Shop) -> std::io::Result<()>,
        seen: &mut dyn FnMut(&Cycle, usize) -> bool,
    ) -> Result<()> {
        if self.until_idle {
            self.drainer.try_once();
        }
        let capacity = self.settings.capacity();
        // Each side holds all there can be in flight, so neither can block the other for long.
        let (report_sender, reports) = bounded(capacity + 1024);
        let shop = Shop {
            work: Arc::new(Work::default()),
            reports: report_sender,
            bell: Arc::clone(&self.bell),
            low_water: Arc::new(AtomicUsize::new(1)),
            unheard: Arc::default(),
            interrupted: Arc::new(AtomicBool::new(false)),
            clock: Arc::clone(&self.clock),
            workers: self.settings.workers,
        };
        let result = {
            let _closing = Closing(&shop);
            catch_unwind(AssertUnwindSafe(|| self.turn(&shop, &reports, spawn, seen)))
        };
        let error = match &result {
            Ok(ended) => ended.as_ref().err().map(Error::chain),
            Err(panic) => Some(format!("it panicked: {}", panic_text(panic.as_ref()))),
        };
        self.tell(&Event::Stopped { error });
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn turn(
        &mut self,
        shop: &Shop,
        reports: &Receiver<Report>,
        spawn: &mut dyn FnMut(Shop) -> std::io::Result<()>,
        seen: &mut dyn FnMut(&Cycle, usize) -> bool,
    ) -> Result<()> {
        let mut stopping = Stopping::No;
        let mut failing_since = None;
        let mut told = false;
        let mut failure = None;
        loop {
            let now = self.clock.monotonic();
            // Before listening: a report that comes now rings again.
            shop.unheard.store(0, Ordering::Release);
            let mut cycle = self.drainer.cycle(self.dispatcher, reports.try_iter());
            self.restrain(&cycle, shop);
            self.staff(&mut cycle, shop, spawn);
            // Code of the application, which may take its time.
            let go_on = seen(&cycle, self.drainer.in_flight());
            self.hand_out(&mut cycle, shop, spawn);
            failing_since = cycle.failing.then(|| failing_since.unwrap_or(now));
            told = self.tell_failure(&cycle, failing_since, told);
            failure = cause(&mut cycle, failure);
            // A full disk may have room in some minutes; what is damaged stays so.
            let hopeful = failure.as_ref().is_none_or(Error::is_transient);
            let bound = match hopeful && !self.drainer.is_empty() {
                true => PATIENCE_WITH_ANSWERS,
                false => PATIENCE,
            };
            let patience = |since: Duration| now.saturating_sub(since) > bound;
            // Rights do not come by themselves.
            let denied = matches!(failure, Some(Error::ReadOnly(_) | Error::Denied { .. }));
            let lost = failing_since.is_some_and(patience) || (denied && self.drainer.is_empty());
            let lost = self.until_idle && lost;
            // A newer program took the file over, or another file its place: nothing of ours may be written
            // any more.
            let over = matches!(
                failure,
                Some(Error::SchemaTooNew { .. } | Error::Replaced(_))
            );
            if let Some(error) = failure.take_if(|_| lost || over) {
                return Err(error);
            }
            match stopping {
                Stopping::No => {
                    if self.until_idle && cycle.idle {
                        return Ok(());
                    }
                    let late = self.deadline.is_some_and(|deadline| now >= deadline);
                    if late || !go_on {
                        stopping = self.stop_within(shop, now.saturating_add(AFTER_DEADLINE));
                    }
                }
                _ if self.drainer.is_empty() => return Ok(()),
                Stopping::Grace(until) if now >= until => {
                    shop.interrupted.store(true, Ordering::Release);
                    self.dispatcher.interrupt();
                    stopping = Stopping::Interrupted(now.saturating_add(AFTER_INTERRUPT));
                }
                // A drain in the foreground has to wait for its threads anyway, and for their answers, as
                // long as there is hope that they can be recorded.
                Stopping::Interrupted(until) if now >= until && !(self.until_idle && hopeful) => {
                    return self.give_up(reports, failure, until.saturating_add(LAST_TRIES));
                }
                _ => {}
            }
            // A drain answers to cancel and deadline; a pump is told.
            cycle.wait = match self.until_idle {
                true => cycle.wait.min(ATTENTION),
                false => cycle.wait,
            };
            let wait = match stopping {
                Stopping::No => match self.deadline {
                    Some(deadline) => cycle.wait.min(deadline.saturating_sub(now)),
                    None => cycle.wait,
                },
                // Then a drain goes on waiting for what it could not record.
                Stopping::Interrupted(until) if now >= until => cycle.wait,
                Stopping::Grace(until) | Stopping::Interrupted(until) => {
                    cycle.wait.min(until.saturating_sub(now))
                }
            };
            let heard = self.listen(wait);
            if heard.wake {
                self.drainer.wake(false);
            }
            if let Some(grace) = heard.stop {
                // Some time has passed since the cycle began.
                let until = self.clock.monotonic().saturating_add(grace);
                stopping = self.stop_within(shop, until);
            }
        }
    }

    /// Waits, until it is told something, or somebody else commits.
    fn listen(&mut self, mut wait: Duration) -> Heard {
        loop {
            let poll = wait.min(self.settings.poll);
            if let Some(heard) = self.bell.listen(poll) {
                return heard;
            }
            wait = wait.saturating_sub(poll);
            if wait.is_zero() || self.drainer.is_disturbed() {
                return Heard::default();
            }
        }
    }

    /// Gives everything back and records what is still to be recorded, as long as there is time;
    /// what remains then, for this reason or for the last one, passes on with its lease.
    fn give_up(
        &mut self,
        reports: &Receiver<Report>,
        mut failure: Option<Error>,
        until: Duration,
    ) -> Result<()> {
        // What has come back is known, and not given back.
        for report in reports.try_iter() {
            self.drainer.take_in(report);
        }
        self.drainer.abandon();
        loop {
            let mut cycle = self.drainer.cycle(self.dispatcher, reports.try_iter());
            for event in &cycle.events {
                self.tell(event);
            }
            failure = cause(&mut cycle, failure);
            if self.drainer.is_empty() {
                return Ok(());
            }
            let left = until.saturating_sub(self.clock.monotonic());
            if left.is_zero() {
                let late = || Error::Stopped("not all results could be recorded in time".into());
                return Err(failure.unwrap_or_else(late));
            }
            pause(cycle.wait.min(left).min(ATTENTION));
        }
    }

    /// Holds the workers while nothing can be recorded, and takes back what is not to go out now.
    fn restrain(&mut self, cycle: &Cycle, shop: &Shop) {
        shop.work.hold(cycle.failing);
        for event in &cycle.events {
            // Not one by one into a wall, a lock-out or a receiver that asked for peace.
            if let Event::Channel { channel, state, .. } = event
                && *state != ChannelState::Ok
            {
                self.release(shop.work.withdraw(channel));
                self.drainer.recall(channel);
            }
        }
    }

    /// Without a single worker nothing is claimed: others can send it. Each cycle tries to start one.
    fn staff(
        &mut self,
        cycle: &mut Cycle,
        shop: &Shop,
        spawn: &mut dyn FnMut(Shop) -> std::io::Result<()>,
    ) {
        if self.drainer.is_staffed() {
            return;
        }
        shop.work.hire();
        match start(shop, spawn) {
            Ok(()) => self.drainer.staffed(true),
            Err(error) => {
                cycle.error.get_or_insert(Error::NoThread(error));
                (cycle.failing, cycle.idle) = (true, false);
            }
        }
    }

    /// Hands out runs and tells the observer.
    fn hand_out(
        &mut self,
        cycle: &mut Cycle,
        shop: &Shop,
        spawn: &mut dyn FnMut(Shop) -> std::io::Result<()>,
    ) {
        let mut runs = Vec::new();
        for run in cycle.runs.drain(..) {
            match run.fall_in() {
                Follow::Waits => {}
                Follow::Goes(run) => {
                    let most = self.settings.requests_of(&run.channel);
                    runs.push((run, most));
                }
                Follow::GoesBack(run) => self.release(vec![run]),
            }
        }
        // Also where there is nothing new: a channel may have lost its thread to another, and
        // threads that could not be started, or have gone, are missing still.
        let wanted = shop.work.push(runs, self.settings.workers);
        let failed = (0..wanted).filter_map(|_| start(shop, spawn).err()).last();
        if let Some(error) = failed {
            logged(|| log::error!("no thread could be started: {error}"));
            if shop.work.is_unstaffed() {
                self.drainer.staffed(false);
                self.release(shop.work.withdraw_all());
            }
        }
        // It goes to whoever is well.
        for channel in self.drainer.stuck() {
            self.release(shop.work.withdraw(&channel));
        }
        shop.low_water
            .store(self.drainer.reports_to_low_water(), Ordering::Release);
        for event in cycle.events.drain(..) {
            self.tell(&event);
        }
    }

    fn stop_within(&mut self, shop: &Shop, until: Duration) -> Stopping {
        self.drainer.stop();
        self.release(shop.work.stop());
        Stopping::Grace(until)
    }

    /// Gives back what was claimed and not sent.
    fn release(&mut self, runs: Vec<ClaimedRun>) {
        for report in runs.into_iter().flat_map(ClaimedRun::give_back) {
            self.drainer.take_in(report);
        }
    }

    /// Says once per failure that the file cannot be written. A lock that someone else holds is
    /// daily life, unless it lasts. Returns whether it was said.
    fn tell_failure(&self, cycle: &Cycle, since: Option<Duration>, told: bool) -> bool {
        let Some(since) = since else {
            if told {
                logged(|| log::info!(target: EVENTS, "the outbox writes again"));
            }
            return false;
        };
        let Some(error) = &cycle.error else {
            return told;
        };
        let lasting = self.clock.monotonic().saturating_sub(since) >= BUSY_IS_NEWS;
        if !told && (lasting || !matches!(error, Error::Busy(_))) {
            self.tell(&Event::StoreFailed {
                error: error.chain(),
            });
            return true;
        }
        told
    }

    fn tell(&self, event: &Event) {
        logged(|| log_event(event));
        if let Some(observer) = &self.observer {
            let told = catch_unwind(AssertUnwindSafe(|| observer.event(event)));
            if told.is_err() {
                logged(|| log::error!("the observer panicked at {event:?}"));
            }
        }
    }
}

/// Why the file cannot be written, if it cannot: what failed just now, or the last time.
fn cause(cycle: &mut Cycle, before: Option<Error>) -> Option<Error> {
    match cycle.failing {
        true => cycle.error.take().or(before),
        false => None,
    }
}

/// Starts the thread that the work has counted already.
fn start(shop: &Shop, spawn: &mut dyn FnMut(Shop) -> std::io::Result<()>) -> std::io::Result<()> {
    spawn(shop.clone()).inspect_err(|_| shop.work.thread_gone())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::dispatch::{Delivery, Outcome};
    use crate::message::Message;
    use crate::outbox::Outbox;

    /// What it had claimed stayed claimed, and was renewed, for as long as it lived.
    #[test]
    fn without_a_single_thread_nothing_stays_claimed_and_it_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("till.db");
        let outbox = Outbox::open(&path).unwrap();
        let put = |text: &str| {
            let message = Message::text("sales", text).ordering_key("one");
            let put = outbox.transaction(|tx| outbox.enqueue(tx, &message));
            put.unwrap();
        };
        (0..9).for_each(|n| put(&n.to_string()));
        let (settings, up) = (Settings::new(), |_: &Delivery| Ok(Outcome::delivered()));
        let (tell, told) = bounded(1024);
        let tell = move |event: &Event| drop(tell.send(event.clone()));
        let bell = Arc::new(Bell::default());
        let engine = Engine {
            drainer: outbox.shared().drainer(&settings).unwrap(),
            dispatcher: &up,
            settings: &settings,
            clock: outbox.shared().clock(),
            observer: Some(Arc::new(tell)),
            bell: Arc::clone(&bell),
            until_idle: false,
            deadline: None,
        };
        let allowed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut spawn = |shop: Shop| match allowed.load(Ordering::SeqCst) {
                true => {
                    scope.spawn(move || shop.work(&up));
                    Ok(())
                }
                false => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            };
            let running = scope.spawn(move || engine.run(&mut spawn, &mut |_, _| true));
            let failed = |event| match event {
                Event::StoreFailed { error } => Some(error),
                _ => None,
            };
            let error = told.iter().find_map(failed).unwrap();
            assert!(error.starts_with("no thread could be started"), "{error}");
            let beside = Outbox::open(&path).unwrap();
            assert_eq!(beside.drain(&up).unwrap().sent, 9);

            allowed.store(true, Ordering::SeqCst);
            put("10");
            told.iter()
                .find(|it| matches!(it, Event::Delivered { .. }))
                .unwrap();
            bell.stop(Duration::from_secs(9));
            running.join().unwrap().unwrap();
        });
    }
}
