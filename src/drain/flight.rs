//! What this process has claimed and not yet recorded.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Instant, millis};
use crate::dispatch::{Delivery, Outcome};
use crate::drain::chain::{Chain, Follow};
use crate::drain::lease::Lease;
use crate::settings::{EXTRA, Settings};

/// A wake lets another probe go when the one that is out has been for longer.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// Messages claimed together for one worker, to be sent in this order.
#[derive(Debug)]
pub(crate) struct ClaimedRun {
    pub(crate) number: u64,
    pub(crate) channel: String,
    pub(crate) lease: Arc<Lease>,
    pub(crate) deliveries: Vec<Delivery>,
    /// Where the next run of its lane will wait.
    pub(crate) chain: Arc<Chain>,
    /// That of the run of its lane which it follows.
    pub(crate) behind: Option<Arc<Chain>>,
}

impl ClaimedRun {
    /// Puts it behind the run that it follows, if it follows one.
    pub(crate) fn fall_in(mut self) -> Follow {
        match self.behind.take() {
            Some(before) => before.follow(self),
            None => Follow::Goes(self),
        }
    }

    /// Gives back what is not sent, with what stands behind it.
    pub(crate) fn give_back(self) -> Vec<Report> {
        let mut reports = Vec::new();
        let mut run = Some(self);
        while let Some(ClaimedRun {
            number,
            deliveries,
            chain,
            ..
        }) = run
        {
            reports.extend(deliveries.iter().map(|delivery| Report {
                run: number,
                id: delivery.id,
                claims: i64::from(delivery.attempt),
                elapsed_ms: 0,
                told: Told::Released,
            }));
            run = chain.end(false);
        }
        reports
    }
}

/// What is known of one message of a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) run: u64,
    pub(crate) id: i64,
    pub(crate) claims: i64,
    pub(crate) elapsed_ms: i64,
    pub(crate) told: Told,
}

/// What a worker says about one message.
#[derive(Debug)]
pub(crate) enum Told {
    /// It was sent, and this came back.
    Outcome(Box<Delivery>, Outcome),
    /// It was not sent.
    Released,
    /// The call was broken off by a stop: nobody knows, and nobody is charged.
    Interrupted,
}

/// How a run is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch {
    pub(crate) probe: bool,
    /// It is one message beyond the room that all have together.
    pub(crate) beyond: bool,
    /// What a call may take.
    pub(crate) limit: Duration,
}

/// A run as the drain remembers it.
#[derive(Debug)]
pub(crate) struct Flown {
    pub(crate) channel: String,
    pub(crate) probe: bool,
    /// See [`Launch::beyond`].
    pub(crate) beyond: bool,
    pub(crate) lease: Arc<Lease>,
    pub(crate) limit: Duration,
    /// `(id, claims)` of what is not recorded yet.
    pub(crate) open: Vec<(i64, i64)>,
    pub(crate) bytes: usize,
    lane: Option<Lane>,
}

/// The lane of a run.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) ordering_key: String,
    /// The last message of the run.
    pub(crate) last: i64,
    pub(crate) chain: Arc<Chain>,
    behind: Option<Arc<Chain>>,
}

/// All runs under way, by number, and what of them each channel has.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    runs: HashMap<u64, Flown>,
    channels: BTreeMap<String, Load>,
    messages: usize,
    beyond: usize,
    /// But for what is beyond.
    bytes: usize,
    /// Whose messages are all recorded, and whose worker has not returned yet.
    leaving: Vec<(i64, Flown)>,
    /// Workers that are not back in time, by channel, although their claim has passed on or nothing
    /// of it is left.
    hung: Vec<(String, Arc<Lease>)>,
}

/// What a channel has under way.
#[derive(Debug, Default)]
struct Load {
    runs: Vec<u64>,
    messages: usize,
}

impl Flight {
    pub(crate) fn launch(&mut self, run: &ClaimedRun, launch: Launch) {
        let flown = Flown {
            channel: run.channel.clone(),
            probe: launch.probe,
            beyond: launch.beyond,
            lease: Arc::clone(&run.lease),
            limit: launch.limit,
            open: run
                .deliveries
                .iter()
                .map(|it| (it.id, i64::from(it.attempt)))
                .collect(),
            bytes: run.deliveries.iter().map(|it| it.payload.len()).sum(),
            lane: run.deliveries.last().and_then(|last| {
                Some(Lane {
                    ordering_key: last.ordering_key.clone()?,
                    last: last.id,
                    chain: Arc::clone(&run.chain),
                    behind: run.behind.clone(),
                })
            }),
        };
        let load = self.channels.entry(run.channel.clone()).or_default();
        load.runs.push(run.number);
        load.messages += flown.open.len();
        self.messages += flown.open.len();
        match flown.beyond {
            true => self.beyond += 1,
            false => self.bytes += flown.bytes,
        }
        self.runs.insert(run.number, flown);
    }

    /// Forgets a message that was recorded, and its run with the last one.
    pub(crate) fn land(&mut self, run: u64, id: i64) {
        let Some(flown) = self.runs.get_mut(&run) else {
            return;
        };
        let before = flown.open.len();
        flown.open.retain(|(open, _)| *open != id);
        let landed = before - flown.open.len();
        self.messages -= landed;
        if let Some(load) = self.channels.get_mut(&flown.channel) {
            load.messages -= landed;
        }
        if flown.open.is_empty()
            && let Some(flown) = self.remove(run)
            && flown.lease.is_out()
        {
            self.leaving.push((id, flown));
        }
    }

    fn remove(&mut self, run: u64) -> Option<Flown> {
        let flown = self.runs.remove(&run)?;
        self.messages -= flown.open.len();
        match flown.beyond {
            true => self.beyond -= 1,
            false => self.bytes -= flown.bytes,
        }
        if let Some(load) = self.channels.get_mut(&flown.channel) {
            load.messages -= flown.open.len();
            load.runs.retain(|it| *it != run);
            if load.runs.is_empty() {
                self.channels.remove(&flown.channel);
            }
        }
        Some(flown)
    }

    /// Forgets a run whose claim has passed on; its worker sends nothing more of it. Returns what
    /// stood behind it, to be given back: else a call that hangs would hold the rest of its lane.
    pub(crate) fn lose(&mut self, run: u64) -> Vec<Report> {
        let Some(flown) = self.remove(run) else {
            return Vec::new();
        };
        flown.lease.void();
        self.part_from(flown)
    }

    /// Counts the worker of a run that is ours no more as hung until it returns.
    fn part_from(&mut self, flown: Flown) -> Vec<Report> {
        self.hung.retain(|(_, lease)| lease.is_out());
        if flown.lease.is_out() {
            self.hung.push((flown.channel, flown.lease));
        }
        let next = flown.lane.and_then(|lane| lane.chain.end(false));
        next.map_or_else(Vec::new, ClaimedRun::give_back)
    }

    /// Looks for workers that told the last of a run and have not returned in time. Returns that
    /// message and its channel, with what stood behind the run, to be given back.
    pub(crate) fn miss(&mut self, now: Duration) -> Vec<(i64, String, Vec<Report>)> {
        self.leaving.retain(|(_, run)| run.lease.is_out());
        let overdue = |it: &mut (i64, Flown)| it.1.lease.overdue(now, it.1.limit);
        let missed: Vec<_> = self.leaving.extract_if(.., overdue).collect();
        let part = |(id, run): (i64, Flown)| (id, run.channel.clone(), self.part_from(run));
        missed.into_iter().map(part).collect()
    }

    /// The message that a worker has of a run, and its channel.
    pub(crate) fn sending(&self, run: u64) -> Option<(i64, String)> {
        let flown = self.runs.get(&run).filter(|it| it.lease.is_out())?;
        let (id, _) = flown.open.first()?;
        Some((*id, flown.channel.clone()))
    }

    /// Everything not recorded yet, as broken off.
    pub(crate) fn give_back(&self, now: Duration) -> Vec<Report> {
        let open = |(number, run): (&u64, &Flown)| {
            let number = *number;
            let elapsed_ms = run.lease.silent_for(now);
            run.open
                .clone()
                .into_iter()
                .map(move |(id, claims)| Report {
                    run: number,
                    id,
                    claims,
                    elapsed_ms,
                    told: Told::Interrupted,
                })
        };
        self.runs.iter().flat_map(open).collect()
    }

    /// Keeps what is left of the channel's runs from being sent, but for its probe.
    pub(crate) fn recall(&self, channel: &str) {
        for (_, run) in self.runs_of(channel).filter(|(_, run)| !run.probe) {
            run.lease.recall();
        }
    }

    /// A probe that has been out for a while holds the door no longer: another may go.
    pub(crate) fn release_probes(&mut self, now: Duration) {
        for run in self.runs.values_mut() {
            run.probe &= !run.lease.overdue(now, PROBE_PATIENCE);
        }
    }

    pub(crate) fn get(&self, run: u64) -> Option<&Flown> {
        self.runs.get(&run)
    }

    pub(crate) fn holds(&self, id: i64, claims: i64) -> bool {
        self.runs
            .values()
            .any(|run| run.open.contains(&(id, claims)))
    }

    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    /// Messages within the room that all have together, and beyond it, each a run of its own.
    pub(crate) fn inside_and_beyond(&self) -> (usize, usize) {
        (self.messages.saturating_sub(self.beyond), self.beyond)
    }

    pub(crate) fn bytes_inside(&self) -> usize {
        self.bytes
    }

    pub(crate) fn probes(&self) -> usize {
        self.runs.values().filter(|run| run.probe).count()
    }

    /// Channels that have something under way.
    pub(crate) fn channels(&self) -> impl Iterator<Item = &str> {
        self.channels.keys().map(String::as_str)
    }

    /// Runs and messages of one channel. A call that hangs counts as one until it returns.
    pub(crate) fn of(&self, channel: &str) -> (usize, usize) {
        let hung = self.hung(Some(channel));
        let load = self.channels.get(channel);
        load.map_or((hung, hung), |load| {
            (load.runs.len() + hung, load.messages + hung)
        })
    }

    /// Workers that are kept by calls which hang: of a channel, or of all.
    pub(crate) fn hung(&self, channel: Option<&str>) -> usize {
        let of = |name: &str| channel.is_none_or(|it| it == name);
        let hung = self.hung.iter();
        hung.filter(|(name, lease)| of(name) && lease.is_out())
            .count()
    }

    /// Whether what waits in the channel waits for calls that hang: they keep all workers that it
    /// could have.
    pub(crate) fn is_stuck(&self, channel: &str, settings: &Settings) -> bool {
        let (own, all) = (self.hung(Some(channel)), self.hung(None));
        own >= settings.requests_of(channel)
            || (all >= settings.workers && own > 0)
            || all >= settings.workers + EXTRA
    }

    /// All channels of which that is so.
    pub(crate) fn stuck(&self, settings: &Settings) -> Vec<String> {
        if self.hung(None) == 0 {
            return Vec::new();
        }
        let stuck = self.channels().filter(|name| self.is_stuck(name, settings));
        stuck.map(String::from).collect()
    }

    fn runs_of(&self, channel: &str) -> impl Iterator<Item = (u64, &Flown)> {
        let load = self.channels.get(channel);
        let numbers = load.into_iter().flat_map(|load| &load.runs);
        numbers.filter_map(|number| Some((*number, self.runs.get(number)?)))
    }

    /// Lanes of the channel whose next run may be claimed while one is being sent: at most one
    /// waits behind it, and none behind one of those that this transaction found `lost`.
    pub(crate) fn lanes_to_follow(&self, channel: &str, lost: &[u64]) -> Vec<&Lane> {
        let over = |before: &Arc<Chain>| before.is_over();
        let ours = |(number, run): &(u64, &Flown)| !run.probe && !lost.contains(number);
        let runs = self.runs_of(channel).filter(ours);
        let lanes = runs.filter_map(|(_, run)| run.lane.as_ref());
        let mut lanes: Vec<&Lane> = lanes
            .filter(|lane| lane.chain.is_open() && lane.behind.as_ref().is_none_or(over))
            .collect();
        lanes.sort_unstable_by_key(|lane| lane.last);
        lanes
    }

    pub(crate) fn probing(&self, channel: &str) -> bool {
        self.runs_of(channel).any(|(_, run)| run.probe)
    }

    /// Runs whose lease is half spent, the one that ends first before others, and those whose lease
    /// has ended because their worker was silent for too long: these are not ours any more.
    pub(crate) fn leases_at(&self, at: Instant, lease: Duration) -> (Vec<u64>, Vec<u64>) {
        let mut renew = Vec::new();
        let mut lost = Vec::new();
        for (number, run) in &self.runs {
            if run.lease.overdue(at.monotonic, run.limit) {
                if run.lease.left(at) <= 0 {
                    lost.push(*number);
                }
            } else if run.lease.is_worn(at, lease) {
                renew.push(*number);
            }
        }
        renew.sort_by_key(|number| self.runs.get(number).map(|run| run.lease.left(at)));
        (renew, lost)
    }

    /// Milliseconds until the first lease is half spent.
    pub(crate) fn next_renewal(&self, at: Instant, lease: Duration) -> Option<i64> {
        self.runs
            .values()
            .map(|run| {
                let left = run.lease.left(at);
                if run.lease.overdue(at.monotonic, run.limit) {
                    left.max(0)
                } else if run.lease.is_worn(at, lease) {
                    0
                } else {
                    left - millis(lease) / 2
                }
            })
            .min()
    }
}
