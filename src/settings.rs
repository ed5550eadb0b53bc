//! How a drain works: numbers with defaults, limits and nothing else.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::millis;
use crate::retry::{HOLD_MAX, Policy};

/// The settings of a drain or pump. Setters clamp what makes no sense.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub(crate) workers: usize,
    pub(crate) prefetch: usize,
    pub(crate) lease: Duration,
    pub(crate) lock_share: f64,
    pub(crate) settle_sync: SettleSync,
    pub(crate) poll: Duration,
    pub(crate) keep_payload: Option<Duration>,
    pub(crate) keep_sent: Option<Duration>,
    pub(crate) policies: HashMap<String, Policy>,
    pub(crate) default_policy: Policy,
}

/// How durable the transaction is that records a delivery. A claim or verdict lost in a power cut
/// costs a repetition under the same key, never a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SettleSync {
    /// On disk before anything else happens.
    #[default]
    Full,
    /// In WAL mode, on disk within about a second: for disks whose sync takes long.
    Normal,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: 4,
            prefetch: 16,
            lease: Duration::from_secs(30),
            lock_share: 0.2,
            settle_sync: SettleSync::Full,
            poll: Duration::from_millis(25),
            keep_payload: Some(Duration::from_secs(14 * 24 * 3600)),
            keep_sent: Some(Duration::from_secs(400 * 24 * 3600)),
            policies: HashMap::new(),
            default_policy: Policy::default(),
        }
    }
}

impl Settings {
    /// The defaults: 4 workers, a lease of 30 s, a fifth of the write lock.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests under way at once. A channel that has none gets one more thread, up to 32 of them,
    /// so a hanging server of another channel cannot keep it waiting. Default 4, 1 to 1,024.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.clamp(1, 1024);
        self
    }

    /// Messages claimed ahead for each worker. More saves commits on a fast receiver; a crash
    /// leaves that many to wait for their lease. Default 16, 1 to 256.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages.clamp(1, 256);
        self
    }

    /// How long a claim outlives a crashed process. A living one renews it. Default 30 s,
    /// 1 s to 10 min.
    ///
    /// What a process had claimed when it died is sent by nobody before that; a process that dies again and
    /// again, within a second of its start, sends what it had claimed only once in a lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(Duration::from_secs(1), MAX_LEASE);
        self
    }

    /// The share of time in which the drain may hold the write lock, so that the application's own
    /// commits wait milliseconds. Default 0.2; 1 when nobody sells; not below 0.01.
    pub fn lock_share(mut self, share: f64) -> Self {
        self.lock_share = if share.is_finite() {
            share.clamp(0.01, 1.0)
        } else {
            0.2
        };
        self
    }

    /// How durable the recording of a delivery is. Default [`SettleSync::Full`].
    pub fn settle_sync(mut self, sync: SettleSync) -> Self {
        self.settle_sync = sync;
        self
    }

    /// How often commits of other connections are looked for. Default 25 ms, 1 ms to 1 min.
    pub fn poll(mut self, every: Duration) -> Self {
        self.poll = every.clamp(Duration::from_millis(1), Duration::from_secs(60));
        self
    }

    /// How long a sent message keeps its payload and the receiver's answer. Afterwards they are
    /// emptied; the row stays as proof and as memory of its dedupe key. Default 14 days; `None`:
    /// as long as the row.
    ///
    /// What is due goes in small transactions while the drain has nothing else to do, a day of
    /// history in an hour at most, and never while the clock is in doubt.
    pub fn keep_payload(mut self, span: Option<Duration>) -> Self {
        self.keep_payload = span;
        self
    }

    /// How long a sent, expired or cancelled message is remembered, and what operators did. The
    /// row is then removed with its attempts, which frees its dedupe key. Nothing unsent and no
    /// dead letter is ever removed. Default 400 days; `None`: for ever.
    ///
    /// The pace is that of [`keep_payload`](Self::keep_payload).
    pub fn keep_sent(mut self, span: Option<Duration>) -> Self {
        self.keep_sent = span;
        self
    }

    /// The rules of one channel.
    pub fn policy(mut self, channel: impl Into<String>, policy: Policy) -> Self {
        self.policies.insert(channel.into(), policy);
        self
    }

    /// The rules of channels without rules of their own.
    pub fn default_policy(mut self, policy: Policy) -> Self {
        self.default_policy = policy;
        self
    }

    pub(crate) fn policy_of(&self, channel: &str) -> &Policy {
        self.policies.get(channel).unwrap_or(&self.default_policy)
    }

    /// The longest honest wait of a message that is not scheduled, in milliseconds.
    pub(crate) fn longest_wait(&self) -> i64 {
        let policies = self.policies.values().chain([&self.default_policy]);
        let longest = policies.map(|policy| policy.cap).max().unwrap_or_default();
        millis(longest).max(HOLD_MAX).saturating_mul(2)
    }

    /// Requests of the channel under way at once, at most.
    pub(crate) fn requests_of(&self, channel: &str) -> usize {
        let most = self.policy_of(channel).max_in_flight;
        most.unwrap_or(self.workers).min(self.workers)
    }

    /// Messages claimed and not yet settled, at most.
    pub(crate) fn capacity(&self) -> usize {
        self.workers * self.prefetch
    }
}

/// No lease of any process reaches further than this; one that does was stamped by a wrong clock.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(600);

/// Messages and threads beyond the capacity that channels with nothing under way may have, one
/// each: a hanging receiver must not keep the others waiting.
pub(crate) const EXTRA: usize = 32;
