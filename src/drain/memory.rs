//! What the drain remembers between cycles. It changes in [`Memory::apply`], after a commit, and
//! nowhere else but for wishes that come from outside.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::circuit::{Admission, Channel, MovedHold};
use crate::drain::flight::{ClaimedRun, Flight, Launch, Report};
use crate::drain::room::Room;
use crate::observer::Event;
use crate::retry::GIVE_BACK_MAX;
use crate::settings::Settings;
use crate::stats::ChannelState;
use crate::store::Raw;
use crate::store::claim::Stale;
use crate::store::upkeep::Place;

/// A stale claim must be seen twice, this far apart on our own monotonic clock, before it is taken:
/// an application that held the write lock, a clock that jumped or a laptop that woke up must not
/// make living claims look dead.
const STEAL_AFTER: Duration = Duration::from_secs(2);
/// Where others write one transaction after the other, for this long.
const EXCUSED_FOR: Duration = Duration::from_secs(30);

/// Runs a channel may have under way before anything was delivered.
const PACE_START: usize = 2;
/// And after trouble; each delivery then allows one more.
const PACE_TROUBLED: usize = 1;
/// A pace that limits nothing.
const PACE_FULL: usize = 4096;

/// What a channel with a rate may still send, and when that was counted.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Duration,
}

/// A claim of someone else that was seen stale, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) seen: Duration,
    pub(crate) channel: String,
    pub(crate) stale: Stale,
}

/// A wish to make messages due earlier: those due within a range of spans from now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pull {
    pub(crate) after: i64,
    pub(crate) until: i64,
    /// Whether a back-off is ignored too, and no mere delay only.
    pub(crate) earned: bool,
    /// Whether probes come forward too.
    pub(crate) probes: bool,
    /// When the holds of channels end by a clock that has gone back: what was left of them.
    pub(crate) holds: HashMap<String, MovedHold>,
    /// Where it goes on.
    pub(crate) cursor: PullCursor,
}

/// The channel after which a pull goes on, and the place within the next one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PullCursor {
    pub(crate) channel: Raw,
    pub(crate) due: Option<Place>,
}

impl Pull {
    /// What was given back with a short delay, and the probes.
    pub(crate) fn given_back() -> Self {
        Self {
            after: 0,
            until: GIVE_BACK_MAX,
            earned: false,
            probes: true,
            holds: HashMap::new(),
            cursor: PullCursor::default(),
        }
    }

    /// Whatever is in back-off, and the probes.
    pub(crate) fn everything() -> Self {
        Self {
            until: i64::MAX,
            earned: true,
            ..Self::given_back()
        }
    }

    /// Due times that no honest wait can have set: a clock that ran ahead did.
    pub(crate) fn beyond(longest_wait: i64) -> Self {
        Self {
            after: longest_wait,
            probes: false,
            ..Self::everything()
        }
    }

    /// The clock went back. What waits would wait that much longer, so back-off is ignored once.
    pub(crate) fn stepped_back(holds: HashMap<String, MovedHold>) -> Self {
        Self {
            holds,
            ..Self::everything()
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) flight: Flight,
    /// Messages in flight after the last claim: half of it is low water.
    pub(crate) level: usize,
    /// The image of `outbox_channel`, and whether someone else may have written it since.
    pub(crate) channels: HashMap<String, Channel>,
    pub(crate) channels_stale: bool,
    /// What is to be told of them.
    pub(crate) notices: Vec<Event>,
    pace: HashMap<String, usize>,
    buckets: HashMap<String, Bucket>,
    /// Channels whose last answer to this process was trouble.
    pub(crate) troubled: HashSet<String>,
    pub(crate) suspects: HashMap<i64, Suspect>,
    /// When the write lock was last not to be had.
    pub(crate) missed: Duration,
    pub(crate) pulls: Vec<Pull>,
    /// Channels without a route that were told of.
    pub(crate) unrouted: HashSet<String>,
    /// Rows that refuse every write; left alone until this process ends.
    pub(crate) untouchable: HashSet<i64>,
    /// Messages whose hook ended the transaction, and what it said.
    pub(crate) hookless: HashMap<i64, String>,
    pub(crate) next_run: u64,
    /// Messages may have been enqueued by a clock that stood before any honest time.
    pub(crate) rebase: bool,
}

/// What a committed transaction changes in memory.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// `(run, id)` of what was recorded.
    pub(crate) landed: Vec<(u64, i64)>,
    pub(crate) renewed: Vec<(u64, i64, Duration)>,
    pub(crate) lost: Vec<u64>,
    /// Launched runs in the order of `Effects::runs`.
    pub(crate) launched: Vec<Launch>,
    /// Channels as they were found, where someone else may have written them.
    pub(crate) reread: Vec<(String, Channel)>,
    pub(crate) changed: Vec<(String, Channel)>,
    pub(crate) delivered: HashMap<String, usize>,
    pub(crate) opened: Vec<String>,
    /// Channels whose receiver was in trouble when a message came back.
    pub(crate) troubled: Vec<String>,
    pub(crate) suspects: Option<HashMap<i64, Suspect>>,
    /// Where the first pull goes on; the inner `None` when it is done.
    pub(crate) pulled: Option<Option<PullCursor>>,
    pub(crate) untouchable: Vec<i64>,
    pub(crate) rebased: bool,
}

impl Memory {
    pub(crate) fn new(channels: HashMap<String, Channel>) -> Self {
        Self {
            channels,
            // Read before the first transaction: someone may write in between.
            channels_stale: true,
            rebase: true,
            ..Self::default()
        }
    }

    /// Adds a wish, unless the same one waits already.
    pub(crate) fn wish(&mut self, pull: Pull) {
        if !self.pulls.contains(&pull) {
            self.pulls.push(pull);
        }
    }

    /// When each hold ends by a clock that has gone back by `by` milliseconds.
    pub(crate) fn holds_after(&self, by: i64) -> HashMap<String, MovedHold> {
        let held = |(name, channel): (&String, &Channel)| {
            let known = channel
                .until
                .filter(|_| channel.state == ChannelState::Holding)?;
            let end = known.saturating_sub(by);
            Some((name.clone(), MovedHold { known, end }))
        };
        self.channels.iter().filter_map(held).collect()
    }

    /// Runs a channel may have under way at most: two until its first delivery, and few after
    /// trouble.
    pub(crate) fn pace(&self, channel: &str) -> usize {
        self.pace.get(channel).copied().unwrap_or(PACE_START)
    }

    /// Messages the channel may claim ahead at most, whoever else wants some.
    pub(crate) fn ceiling(&self, channel: &str, settings: &Settings) -> usize {
        let requests = settings.requests_of(channel);
        let requests = requests.saturating_sub(self.flight.hung(Some(channel)));
        // What waits for a worker goes out at once when there is one.
        let rate = settings.policy_of(channel).rate;
        let second = rate.map_or(usize::MAX, |rate| rate.max(1.0) as usize);
        (requests * settings.prefetch).min(requests.saturating_add(second))
    }

    /// Messages the channel's rate allows now; the last one counts when it is whole.
    pub(crate) fn allowance(&self, channel: &str, settings: &Settings, now: Duration) -> usize {
        self.tokens(channel, settings, now)
            .map_or(usize::MAX, |tokens| tokens as usize)
    }

    /// How long until the channel's rate allows another one.
    pub(crate) fn next_token(&self, channel: &str, settings: &Settings, now: Duration) -> Duration {
        let rate = settings.policy_of(channel).rate.unwrap_or(f64::INFINITY);
        let lacks = 1.0 - self.tokens(channel, settings, now).unwrap_or(1.0);
        Duration::try_from_secs_f64(lacks.max(0.0) / rate).unwrap_or_default()
    }

    /// At most a second's worth, at least one. A float in between, as time is.
    fn tokens(&self, channel: &str, settings: &Settings, now: Duration) -> Option<f64> {
        let rate = settings.policy_of(channel).rate?;
        let full = rate.max(1.0);
        Some(self.buckets.get(channel).map_or(full, |bucket| {
            let since = now.saturating_sub(bucket.at).as_secs_f64();
            (bucket.tokens + since * rate).min(full)
        }))
    }

    /// Whether one more message of the channel could be claimed.
    pub(crate) fn has_room(&self, channel: &str, room: &Room, settings: &Settings) -> bool {
        let (runs, messages) = self.flight.of(channel);
        let may = runs < self.pace(channel) && messages < self.ceiling(channel, settings);
        room.share(usize::from(may), messages == 0).is_some()
    }

    /// Whether a probe of the channel is due and could be claimed.
    pub(crate) fn may_probe(
        &self,
        channel: &str,
        room: &Room,
        settings: &Settings,
        now: i64,
    ) -> bool {
        let known = self.channels.get(channel);
        let due = known.is_some_and(|it| matches!(it.admission(now), Admission::Probe(_)));
        let alone = self.flight.of(channel).1 == 0;
        due && !self.holds_probe(channel, settings) && room.for_probe(alone).is_some()
    }

    /// Whether no probe may go: one is out, or nobody is left to send it.
    pub(crate) fn holds_probe(&self, channel: &str, settings: &Settings) -> bool {
        self.flight.probing(channel) || self.flight.is_stuck(channel, settings)
    }

    /// From when on a suspect may be taken, on the monotonic clock. While the write lock was not to be
    /// had its holder could not renew it either; but not for ever.
    pub(crate) fn ripe_at(&self, suspect: &Suspect) -> Duration {
        let free = self.missed.saturating_add(STEAL_AFTER);
        let seen = suspect.seen;
        free.min(seen.saturating_add(EXCUSED_FOR))
            .max(seen.saturating_add(STEAL_AFTER))
    }

    /// When the next suspect may be taken, on the monotonic clock. Those that may be taken already
    /// are found by the look, if nobody else took them.
    pub(crate) fn next_suspect(&self, now: Duration) -> Option<Duration> {
        self.suspects
            .values()
            .map(|suspect| self.ripe_at(suspect))
            .filter(|ripe| *ripe > now)
            .min()
    }

    /// Whether the channel's suspects are known and none is ripe.
    pub(crate) fn suspects_wait(&self, channel: &str, now: Duration) -> bool {
        let mut known = self
            .suspects
            .values()
            .filter(|suspect| suspect.channel == channel)
            .peekable();
        known.peek().is_some() && known.all(|suspect| now < self.ripe_at(suspect))
    }

    /// Takes in all that another process may have written.
    pub(crate) fn read_again(&mut self, channels: HashMap<String, Channel>) {
        for (name, channel) in &channels {
            self.heed(name, channel);
        }
        self.channels = channels;
    }

    /// What another process may have written of a channel. Where it found trouble, we start slowly too.
    fn heed(&mut self, name: &str, channel: &Channel) {
        if channel.state != ChannelState::Ok {
            self.pace.insert(name.to_owned(), PACE_TROUBLED);
        }
        self.notice(name, channel);
    }

    /// What a person, or another process, did to a channel.
    fn notice(&mut self, name: &str, now: &Channel) {
        let blank = Channel::default();
        let before = self.channels.get(name).unwrap_or(&blank);
        let channel = name.to_owned();
        match (&before.pause, &now.pause) {
            (None, Some(pause)) => self.notices.push(Event::Paused {
                channel,
                by: pause.by.clone(),
                reason: pause.reason.clone(),
            }),
            (Some(_), None) => self.notices.push(Event::Resumed { channel }),
            _ if before.state != ChannelState::Ok && now.state == ChannelState::Ok => {
                self.notices.push(Event::Channel {
                    channel,
                    state: ChannelState::Ok,
                    reason: None,
                });
            }
            _ => {}
        }
    }

    /// Takes what was claimed out of the channels' buckets.
    pub(crate) fn spend(&mut self, runs: &[ClaimedRun], settings: &Settings, now: Duration) {
        for run in runs {
            if let Some(tokens) = self.tokens(&run.channel, settings, now) {
                let tokens = tokens - run.deliveries.len() as f64;
                let bucket = Bucket { tokens, at: now };
                self.buckets.insert(run.channel.clone(), bucket);
            }
        }
    }

    /// Returns what is given back now, because the worker that it waited for does not return.
    pub(crate) fn miss_workers(&mut self, now: Duration) -> Vec<Report> {
        let mut given_back = Vec::new();
        for (id, channel, reports) in self.flight.miss(now) {
            self.notices.push(Event::Overrun { id, channel });
            given_back.extend(reports);
        }
        given_back
    }

    /// Returns what is given back now, because what it stood behind is lost.
    pub(crate) fn apply(&mut self, changes: Changes, runs: &[ClaimedRun]) -> Vec<Report> {
        for (run, id) in changes.landed {
            self.flight.land(run, id);
            self.hookless.remove(&id);
        }
        for (run, wall, monotonic) in changes.renewed {
            if let Some(flown) = self.flight.get(run) {
                flown.lease.extend(wall, monotonic);
            }
        }
        let mut given_back = Vec::new();
        for run in changes.lost {
            if let Some((id, channel)) = self.flight.sending(run) {
                self.notices.push(Event::Overrun { id, channel });
            }
            given_back.extend(self.flight.lose(run));
        }
        for (run, launch) in runs.iter().zip(changes.launched) {
            self.flight.launch(run, launch);
            self.next_run = self.next_run.max(run.number + 1);
        }
        self.level = self.flight.messages();
        for (name, channel) in changes.reread {
            self.heed(&name, &channel);
            self.channels.insert(name, channel);
        }
        self.channels.extend(changes.changed);
        self.troubled.extend(changes.troubled);
        for (channel, delivered) in changes.delivered {
            self.troubled.remove(&channel);
            let pace = self.pace.entry(channel).or_insert(PACE_FULL);
            *pace = pace.saturating_add(delivered).min(PACE_FULL);
        }
        for channel in changes.opened {
            self.pace.insert(channel, PACE_TROUBLED);
        }
        if let Some(suspects) = changes.suspects {
            self.suspects = suspects;
        }
        match (changes.pulled, self.pulls.first_mut()) {
            (Some(Some(cursor)), Some(pull)) => pull.cursor = cursor,
            (Some(None), Some(_)) => drop(self.pulls.remove(0)),
            _ => {}
        }
        self.untouchable.extend(changes.untouchable);
        self.rebase &= !changes.rebased;
        given_back
    }
}
