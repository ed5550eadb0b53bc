//! A drain without threads: the caller decides what happens next.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Instant, millis};
use crate::dispatch::{Delivery, Dispatcher, Outcome, Queue, Run};
use crate::drain::{Chain, ClaimedRun, Drainer, Follow, Lease, Report, Told};
use crate::error::Result;
use crate::observer::Event;
use crate::outbox::Outbox;
use crate::settings::Settings;
use crate::stats::ChannelState;

/// A drain in the calling thread, by the same code as every other. Dropping it is a crash: what it
/// had claimed waits for its lease to end.
///
/// [`step`](Self::step) and [`until_idle`](Self::until_idle) send what they claim at once. A test
/// that wants to do something in between takes the parts of a step one by one:
/// [`cycle`](Self::cycle) records and claims, [`begin`](Self::begin) takes a message as a free
/// worker would, and [`end`](Self::end) says what came back.
#[derive(Debug)]
pub struct Inline {
    drainer: Drainer,
    clock: Arc<dyn Clock>,
    reports: Vec<Report>,
    runs: VecDeque<Held>,
    /// Runs of which all is told, and whose worker has not returned.
    late: Vec<Held>,
    failing: bool,
    stopping: bool,
}

/// A claimed run that no worker has finished.
#[derive(Debug)]
struct Held {
    number: u64,
    channel: String,
    lease: Arc<Lease>,
    queue: Queue,
    chain: Arc<Chain>,
    /// So far, all that was sent of it.
    all_delivered: bool,
    /// Monotonic, of the call under way.
    begun: Duration,
}

/// What became of a run that a worker had.
enum Rest {
    /// This much is left.
    Some(Held),
    Over(Held),
}

/// A message on the wire, from [`Inline::begin`] to [`Inline::end`]. Dropping it is a call that
/// never returns.
#[derive(Debug)]
#[non_exhaustive]
pub struct Call {
    /// What is sent.
    pub delivery: Delivery,
    run: u64,
}

/// What one step did.
#[derive(Debug)]
#[non_exhaustive]
pub struct Step {
    /// What happened, in order.
    pub events: Vec<Event>,
    /// Messages that were sent in this step, or only claimed by [`Inline::cycle`]; their outcome is
    /// recorded by a later one.
    pub dispatched: usize,
    /// How long nothing more needs to be done.
    pub wait: Duration,
    /// Nothing is due, under way, or claimed by anyone else.
    pub idle: bool,
}

impl Inline {
    /// A drain with its own connection, as in a process of its own.
    pub fn new(outbox: &Outbox, settings: Settings) -> Result<Self> {
        let shared = outbox.shared();
        Ok(Self {
            drainer: shared.drainer(&settings)?,
            clock: shared.clock(),
            reports: Vec::new(),
            runs: VecDeque::new(),
            late: Vec::new(),
            failing: false,
            stopping: false,
        })
    }

    /// Draws its delays and their jitter from this seed on, so that a run of a test can be replayed.
    pub fn seeded(mut self, seed: u64) -> Self {
        self.drainer.seed(seed);
        self
    }

    /// As [`Pump::wake`](crate::Pump::wake).
    pub fn wake(&mut self) {
        self.drainer.wake(false);
    }

    /// One cycle: records what the last step sent, claims, and sends what it claimed.
    pub fn step(&mut self, dispatcher: &dyn Dispatcher) -> Result<Step> {
        let step = self.cycle(dispatcher)?;
        while let Some(held) = self.runs.pop_front() {
            let rest = held.go_on(&self.clock, &mut self.reports, |run| {
                dispatcher.dispatch_run(run);
                Queue::default()
            });
            self.keep(rest);
        }
        Ok(step)
    }

    /// Steps until nothing more can be done at this moment of the clock. Returns what happened.
    pub fn until_idle(&mut self, dispatcher: &dyn Dispatcher) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        loop {
            let step = self.step(dispatcher)?;
            events.extend(step.events);
            if step.dispatched == 0 && self.drainer.is_empty() && !step.wait.is_zero() {
                return Ok(events);
            }
        }
    }

    /// One cycle without sending: records what came back, renews leases and claims. What it claimed
    /// waits for [`begin`](Self::begin), or is given back when its channel is in trouble.
    pub fn cycle(&mut self, dispatcher: &dyn Dispatcher) -> Result<Step> {
        let cycle = self.drainer.cycle(dispatcher, self.reports.drain(..));
        self.failing = cycle.failing;
        if let Some(error) = cycle.error {
            return Err(error);
        }
        for event in &cycle.events {
            if let Event::Channel { channel, state, .. } = event
                && *state != ChannelState::Ok
            {
                self.give_back(|held| held.channel == *channel);
                self.drainer.recall(channel);
            }
        }
        let mut dispatched = 0;
        for run in cycle.runs {
            dispatched += run.deliveries.len();
            match run.fall_in() {
                Follow::Waits => {}
                Follow::Goes(run) => self.runs.push_back(Held::from(run)),
                Follow::GoesBack(run) => self.reports.extend(run.give_back()),
            }
        }
        for channel in self.drainer.stuck() {
            self.give_back(|held| held.channel == channel);
        }
        Ok(Step {
            events: cycle.events,
            dispatched,
            wait: cycle.wait,
            idle: cycle.idle,
        })
    }

    /// Puts the next message on the wire, of the run that was claimed first among those that have
    /// none there. `None`: there is none, its claim is too old, or nothing could be recorded.
    pub fn begin(&mut self) -> Option<Call> {
        if self.failing && !self.stopping {
            return None;
        }
        while let Some(turn) = self.runs.iter().position(|held| held.queue.is_home()) {
            let held = self.runs.remove(turn)?;
            let (run, mut delivery) = (held.number, None);
            let stopping = self.stopping;
            let rest = held.go_on(&self.clock, &mut self.reports, |run| {
                if stopping {
                    run.give_back();
                    return Queue::default();
                }
                delivery = run.next().cloned();
                run.pause()
            });
            match rest {
                Rest::Some(rest) => self.runs.push_back(rest),
                Rest::Over(run) => self.over(run),
            }
            if let Some(delivery) = delivery {
                return Some(Call { delivery, run });
            }
        }
        None
    }

    /// What came back of a message on the wire. Recorded by the next cycle.
    pub fn end(&mut self, call: Call, outcome: anyhow::Result<Outcome>) {
        if let Some(rest) = self.told(&call, outcome) {
            self.keep(rest);
        }
    }

    /// The same, of a worker that does not return after the last message of its run before
    /// [`finish`](Self::finish): until then nothing follows in its lane.
    pub fn settle(&mut self, call: Call, outcome: anyhow::Result<Outcome>) {
        match self.told(&call, outcome) {
            Some(Rest::Over(run)) => self.late.push(run),
            Some(rest) => self.keep(rest),
            None => {}
        }
    }

    /// Workers return. Says how many had something to return from.
    pub fn finish(&mut self) -> usize {
        let late = std::mem::take(&mut self.late);
        let workers = late.len();
        late.into_iter().for_each(|run| self.over(run));
        workers
    }

    fn told(&mut self, call: &Call, outcome: anyhow::Result<Outcome>) -> Option<Rest> {
        let turn = self.runs.iter().position(|held| held.number == call.run);
        let held = self.runs.remove(turn?)?;
        Some(held.go_on(&self.clock, &mut self.reports, |run| {
            run.settle(outcome);
            run.pause()
        }))
    }

    /// What is left goes before others, as a worker keeps its run.
    fn keep(&mut self, rest: Rest) {
        match rest {
            Rest::Some(rest) => self.runs.push_front(rest),
            Rest::Over(run) => self.over(run),
        }
    }

    /// The run that follows in its lane goes behind the others, or back.
    fn over(&mut self, run: Held) {
        let next = run.chain.end(run.all_delivered);
        run.lease.returned();
        match next {
            Some(next) if run.all_delivered => self.runs.push_back(Held::from(next)),
            Some(next) => self.reports.extend(next.give_back()),
            None => {}
        }
    }

    /// Claims nothing more and gives back what is not on the wire, as a pump that is told to stop.
    pub fn stop(&mut self) {
        self.stopping = true;
        self.drainer.stop();
        self.give_back(|_| true);
    }

    /// Gives back what is still on the wire too, as a pump whose grace period is over. What comes
    /// back of it nobody hears.
    pub fn abandon(&mut self) {
        self.runs.clear();
        self.late.clear();
        for report in self.reports.drain(..) {
            self.drainer.take_in(report);
        }
        self.drainer.abandon();
    }

    /// Whether nothing is claimed and nothing waits to be recorded.
    pub fn is_empty(&self) -> bool {
        self.drainer.is_empty() && self.reports.is_empty()
    }

    /// Gives back whole runs that are not on the wire; of the others, what is not sent yet is left
    /// to [`begin`](Self::begin).
    fn give_back(&mut self, which: impl Fn(&Held) -> bool) {
        let chosen = |held: &Held| held.queue.is_home() && which(held);
        let (back, stay): (Vec<_>, _) = self.runs.drain(..).partition(chosen);
        self.runs = stay.into();
        for held in back {
            let rest = held.go_on(&self.clock, &mut self.reports, |run| {
                run.give_back();
                Queue::default()
            });
            self.keep(rest);
        }
    }
}

impl From<ClaimedRun> for Held {
    fn from(run: ClaimedRun) -> Self {
        Self {
            number: run.number,
            channel: run.channel,
            lease: run.lease,
            queue: Queue::new(run.deliveries),
            chain: run.chain,
            all_delivered: true,
            begun: Duration::ZERO,
        }
    }
}

impl Held {
    /// Lets a worker have it until it returns what is left. What it neither settles nor returns is
    /// given back.
    fn go_on(
        mut self,
        clock: &Arc<dyn Clock>,
        reports: &mut Vec<Report>,
        work: impl FnOnce(&mut Run<'_>) -> Queue,
    ) -> Rest {
        let (number, lease) = (self.number, Arc::clone(&self.lease));
        let begun = std::cell::Cell::new(self.begun);
        let mut may_send = |delivery: &Delivery| {
            let at = Instant::read(clock.as_ref());
            begun.set(at.monotonic);
            lease.heard(at.monotonic);
            lease.allows(delivery, at)
        };
        let mut report = |delivery: Delivery, outcome: Option<Outcome>| {
            lease.heard(clock.monotonic());
            self.all_delivered &= matches!(outcome, Some(Outcome::Delivered(_)));
            let elapsed = clock.monotonic().saturating_sub(begun.get());
            reports.push(Report {
                run: number,
                id: delivery.id,
                claims: i64::from(delivery.attempt),
                elapsed_ms: outcome.as_ref().map_or(0, |_| millis(elapsed)),
                told: match outcome {
                    Some(outcome) => Told::Outcome(Box::new(delivery), outcome),
                    None => Told::Released,
                },
            });
        };
        lease.heard(clock.monotonic());
        let mut run = Run::go_on(self.queue, &mut may_send, &mut report);
        let rest = work(&mut run);
        drop(run);
        self.queue = rest;
        self.begun = begun.get();
        match self.queue.is_empty() {
            true => Rest::Over(self),
            false => Rest::Some(self),
        }
    }
}
