//! Claimed runs on their way to workers, fair among channels.
//!
//! One first-in-first-out queue would let the claimed messages of a hanging server stand before
//! everyone else's, so each channel has its own and the one with the fewest requests under way goes
//! next. Bounded by what the drain claims.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::drain::ClaimedRun;
use crate::settings::EXTRA;

#[derive(Debug, Default)]
pub(crate) struct Work {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    queues: Vec<Queue>,
    threads: usize,
    idle: usize,
    held: bool,
    stopping: bool,
    closed: bool,
}

#[derive(Debug)]
struct Queue {
    channel: String,
    runs: VecDeque<ClaimedRun>,
    running: usize,
    most: usize,
}

impl Queue {
    /// Nothing of the channel is under way, and something waits.
    fn is_alone(&self) -> bool {
        self.running == 0 && !self.runs.is_empty()
    }

    fn is_over(&self) -> bool {
        self.running == 0 && self.runs.is_empty()
    }
}

/// What a worker has just done.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) channel: String,
    pub(crate) follows: Option<ClaimedRun>,
}

impl Inner {
    fn queue(&mut self, run: ClaimedRun, most: usize) {
        let known = self.queues.iter().position(|it| it.channel == run.channel);
        let at = known.unwrap_or_else(|| {
            self.queues.push(Queue {
                channel: run.channel.clone(),
                runs: VecDeque::new(),
                running: 0,
                most,
            });
            self.queues.len() - 1
        });
        if let Some(queue) = self.queues.get_mut(at) {
            queue.runs.push_back(run);
        }
    }

    /// How many more threads should be started, which are then counted.
    fn wanted(&mut self, workers: usize) -> usize {
        let waiting: usize = self.queues.iter().map(|it| it.runs.len()).sum();
        let waiting = waiting.saturating_sub(self.idle);
        let regular = workers.saturating_sub(self.threads).min(waiting);
        let alone = self.queues.iter().filter(|it| it.is_alone()).count();
        let alone = alone.saturating_sub(self.idle + regular);
        let extra = (workers + EXTRA).saturating_sub(self.threads + regular);
        let wanted = regular + extra.min(alone);
        self.threads += wanted;
        wanted
    }

    /// The run to be sent next: of the channel that has the fewest under way. While `workers` are
    /// busy, of one that has none.
    fn take(&mut self, workers: usize) -> Option<ClaimedRun> {
        let busy: usize = self.queues.iter().map(|it| it.running).sum();
        let free = |it: &&mut Queue| {
            !it.runs.is_empty() && it.running < it.most && (it.running == 0 || busy < workers)
        };
        let queue = self
            .queues
            .iter_mut()
            .filter(free)
            .min_by_key(|it| it.running)?;
        queue.running += 1;
        queue.runs.pop_front()
    }
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues runs, each with what its channel may have under way at once. Returns how many more
    /// threads should be started: there are fewer than `workers`, or a channel has nothing under way
    /// and every thread is busy with others.
    pub(crate) fn push(&self, runs: Vec<(ClaimedRun, usize)>, workers: usize) -> usize {
        let mut inner = self.lock();
        // All at once, then whoever sleeps is woken: one by one, each would wake for a single run.
        let woken = inner.idle.min(runs.len());
        for (run, most) in runs {
            inner.queue(run, most);
        }
        let wanted = inner.wanted(workers);
        drop(inner);
        for _ in 0..woken {
            self.changed.notify_one();
        }
        wanted
    }

    /// Counts one more thread, which is to be started.
    pub(crate) fn hire(&self) {
        self.lock().threads += 1;
    }

    /// Whether nobody is there to take anything.
    pub(crate) fn is_unstaffed(&self) -> bool {
        self.lock().threads == 0
    }

    /// A thread that was asked for could not be started, or has ended.
    pub(crate) fn thread_gone(&self) {
        let mut inner = self.lock();
        inner.threads = inner.threads.saturating_sub(1);
    }

    /// The next run for a worker that has just finished one, with the run of the same lane that
    /// `follows`: it takes its turn after others that wait. `None`: the worker ends, because the
    /// work is closed or because there are more threads than `workers`.
    pub(crate) fn next(&self, done: Option<Done>, workers: usize) -> Option<ClaimedRun> {
        let mut inner = self.lock();
        if let Some(Done { channel, follows }) = done
            && let Some(at) = inner.queues.iter().position(|it| it.channel == channel)
            && let Some(queue) = inner.queues.get_mut(at)
        {
            queue.running = queue.running.saturating_sub(1);
            queue.runs.extend(follows);
            // Else there would be one for every channel there ever was.
            if queue.is_over() {
                inner.queues.remove(at);
            }
        }
        loop {
            if let Some(run) = inner.take(workers) {
                return Some(run);
            }
            if inner.closed || inner.threads > workers {
                inner.threads = inner.threads.saturating_sub(1);
                return None;
            }
            inner.idle += 1;
            inner = self
                .changed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
            inner.idle = inner.idle.saturating_sub(1);
        }
    }

    /// While held, workers send nothing more: what cannot be recorded must not be sent.
    pub(crate) fn hold(&self, held: bool) {
        let mut inner = self.lock();
        if inner.held != held {
            inner.held = held;
            self.changed.notify_all();
        }
    }

    /// Waits while the work is held. False when the outbox is stopping.
    pub(crate) fn may_go_on(&self) -> bool {
        let mut inner = self.lock();
        while inner.held && !inner.stopping && !inner.closed {
            inner = self
                .changed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
        !inner.stopping && !inner.closed
    }

    /// Returns what no worker has taken yet of a channel that is in trouble now.
    pub(crate) fn withdraw(&self, channel: &str) -> Vec<ClaimedRun> {
        let mut inner = self.lock();
        let queue = inner.queues.iter_mut().find(|it| it.channel == channel);
        let withdrawn = queue.map_or_else(Vec::new, |queue| queue.runs.drain(..).collect());
        inner.queues.retain(|it| !it.is_over());
        withdrawn
    }

    /// Returns what no worker has taken yet.
    pub(crate) fn withdraw_all(&self) -> Vec<ClaimedRun> {
        let mut inner = self.lock();
        let queues = inner.queues.iter_mut();
        let withdrawn = queues.flat_map(|queue| queue.runs.drain(..)).collect();
        inner.queues.retain(|it| !it.is_over());
        withdrawn
    }

    /// Nothing more is sent; returns what no worker has taken yet.
    pub(crate) fn stop(&self) -> Vec<ClaimedRun> {
        self.lock().stopping = true;
        self.changed.notify_all();
        self.withdraw_all()
    }

    /// Workers end when they have finished what they do.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}
