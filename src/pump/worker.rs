//! A worker does the blocking calls and decides nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::clock::{Clock, Instant, millis};
use crate::dispatch::{Dispatcher, Failure, Outcome, Run};
use crate::drain::{ClaimedRun, Lease, Report, Told, panic_text};
use crate::observer::logged;
use crate::pump::bell::Bell;
use crate::pump::work::{Done, Work};

/// Marks the run as one that a worker has, until this is dropped.
struct Out<'a>(&'a Lease);

impl<'a> Out<'a> {
    fn with(lease: &'a Lease, now: Duration) -> Self {
        lease.heard(now);
        Self(lease)
    }
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        self.0.returned();
    }
}

/// What every worker shares with the pump.
#[derive(Debug, Clone)]
pub(crate) struct Shop {
    pub(crate) work: Arc<Work>,
    pub(crate) reports: Sender<Report>,
    /// Rung at the first report and at low water, so that the pump sleeps meanwhile.
    pub(crate) bell: Arc<Bell>,
    pub(crate) low_water: Arc<AtomicUsize>,
    /// Reports since the pump last listened.
    pub(crate) unheard: Arc<AtomicUsize>,
    pub(crate) interrupted: Arc<AtomicBool>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) workers: usize,
}

impl Shop {
    /// Works until there is no more work for this thread.
    pub(crate) fn work(&self, dispatcher: &dyn Dispatcher) {
        let mut done = None;
        while let Some(run) = self.work.next(done, self.workers) {
            let (channel, chain) = (run.channel.clone(), Arc::clone(&run.chain));
            let sent = catch_unwind(AssertUnwindSafe(|| self.send(run, dispatcher)));
            let follows = sent.unwrap_or_else(|panic| {
                // What it carries may panic again where it is dropped.
                std::mem::forget(panic);
                self.give_back(chain.end(false)?);
                None
            });
            done = Some(Done { channel, follows });
        }
    }

    /// Returns the run that may follow now.
    fn send(&self, run: ClaimedRun, dispatcher: &dyn Dispatcher) -> Option<ClaimedRun> {
        let ClaimedRun {
            number,
            lease,
            deliveries,
            chain,
            ..
        } = run;
        let out = Out::with(&lease, self.clock.monotonic());
        let total = deliveries.len();
        let delivered = std::cell::Cell::new(0);
        let started = std::cell::Cell::new(self.clock.monotonic());
        let panic = std::cell::RefCell::new(None::<String>);
        let mut may_send = |delivery: &crate::dispatch::Delivery| {
            lease.held();
            let may_go_on = self.work.may_go_on();
            let at = Instant::read(self.clock.as_ref());
            started.set(at.monotonic);
            lease.heard(at.monotonic);
            may_go_on && lease.allows(delivery, at)
        };
        let mut report = |delivery: crate::dispatch::Delivery, outcome: Option<Outcome>| {
            let (id, claims) = (delivery.id, i64::from(delivery.attempt));
            let elapsed = self.clock.monotonic().saturating_sub(started.get());
            let broken_off = self.interrupted.load(Ordering::Acquire);
            let told = match outcome {
                None => Told::Released,
                Some(Outcome::Unreachable(failure)) if failure.code == Failure::INTERRUPTED => {
                    Told::Interrupted
                }
                Some(outcome) if broken_off && !outcome.is_the_receivers() => Told::Interrupted,
                Some(outcome) => {
                    let outcome = match panic.borrow_mut().take() {
                        Some(text) => Outcome::Retry(Failure::new(Failure::PANIC, text)),
                        None => outcome,
                    };
                    Told::Outcome(Box::new(delivery), outcome)
                }
            };
            let arrived = matches!(&told, Told::Outcome(_, Outcome::Delivered(_)));
            delivered.set(delivered.get() + usize::from(arrived));
            let elapsed_ms = millis(elapsed);
            lease.heard(self.clock.monotonic());
            self.tell(Report {
                run: number,
                id,
                claims,
                elapsed_ms,
                told,
            });
        };
        let mut run = Run::new(deliveries, &mut may_send, &mut report);
        let said = catch_unwind(AssertUnwindSafe(|| dispatcher.dispatch_run(&mut run)));
        if let Err(payload) = said {
            let text = panic_text(payload.as_ref());
            logged(|| log::error!("a dispatcher panicked: {text}"));
            *panic.borrow_mut() = Some(format!("the dispatcher panicked: {text}"));
        }
        // Settles what was handed out and gives back the rest.
        drop(run);
        // Counted: what nobody heard of was not delivered, and nothing may overtake it.
        let all_delivered = delivered.get() == total;
        let follows = chain.end(all_delivered);
        drop(out);
        let follows = follows?;
        if all_delivered {
            return Some(follows);
        }
        self.give_back(follows);
        None
    }

    fn give_back(&self, run: ClaimedRun) {
        for report in run.give_back() {
            self.tell(report);
        }
    }

    fn tell(&self, report: Report) {
        // The pump outlives its workers but for those it gave up; nobody hears them.
        let _ = self.reports.send(report);
        let before = self.unheard.fetch_add(1, Ordering::AcqRel);
        if before == 0 || before + 1 >= self.low_water.load(Ordering::Acquire) {
            self.bell.look();
        }
    }
}
