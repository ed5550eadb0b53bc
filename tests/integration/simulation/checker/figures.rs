//! What happened, so that a test can see that it did.

use std::collections::BTreeMap;

const ALL: [&str; 20] = [
    "cycles",
    "commits",
    "enqueued",
    "duplicates",
    "rolled back",
    "sent",
    "accepted",
    "repeated",
    "answers lost",
    "late answers",
    "taken back",
    "charged",
    "died",
    "expired",
    "cancelled",
    "revived",
    "crashes",
    "stops",
    "calls abandoned",
    "commits failed",
];

/// Counts by name.
#[derive(Debug, Clone)]
pub(in crate::simulation) struct Figures(BTreeMap<&'static str, u64>);

impl Default for Figures {
    fn default() -> Self {
        Self(ALL.into_iter().map(|it| (it, 0)).collect())
    }
}

impl Figures {
    pub(super) fn count(&mut self, what: &str, times: u64) {
        *self.0.get_mut(what).unwrap() += times;
    }

    pub(in crate::simulation) fn of(&self, what: &str) -> u64 {
        self.0[what]
    }

    pub(in crate::simulation) fn add(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            self.count(what, *times);
        }
    }

    /// What never happened.
    pub(in crate::simulation) fn missing(&self) -> Vec<&'static str> {
        let never = self.0.iter().filter(|it| *it.1 == 0);
        never.map(|it| *it.0).collect()
    }
}
