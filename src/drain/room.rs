//! What this process may still claim: messages, bytes and probes, whoever they are for.

use crate::dispatch::Delivery;
use crate::drain::flight::Flight;
use crate::settings::{EXTRA, Settings};

/// Payload bytes this process holds at most, beyond one message for each of [`EXTRA`] channels.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// What is free, of the process and in one transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    /// Channels with nothing under way that may have one message beyond.
    extra: usize,
    /// However many receivers hang, half of the workers are left to the others.
    pub(crate) probes: usize,
}

/// What one channel may take of it.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    /// One message, beyond what all have together.
    pub(crate) beyond: bool,
}

impl Room {
    /// Once the messages that `landed`, of these runs, are recorded.
    pub(crate) fn of(
        flight: &Flight,
        settings: &Settings,
        landed: impl Iterator<Item = (u64, i64)>,
        batch: usize,
    ) -> Self {
        let (mut inside, mut beyond) = flight.inside_and_beyond();
        // A worker that hangs is none, and a thread beyond them that hangs is none either.
        let hung = flight.hung(None);
        let capacity = settings.workers.saturating_sub(hung) * settings.prefetch;
        beyond += hung.saturating_sub(settings.workers);
        let mut probes = flight.probes();
        for (run, id) in landed {
            let run = flight.get(run);
            let Some(run) = run.filter(|it| it.open.iter().any(|(open, _)| *open == id)) else {
                continue;
            };
            match run.beyond {
                true => beyond = beyond.saturating_sub(1),
                false => inside = inside.saturating_sub(1),
            }
            probes = probes.saturating_sub(usize::from(run.probe));
        }
        Self {
            messages: capacity.saturating_sub(inside).min(batch),
            bytes: MAX_BYTES.saturating_sub(flight.bytes_inside()),
            extra: EXTRA.saturating_sub(beyond),
            probes: (EXTRA + settings.workers / 2).saturating_sub(probes),
        }
    }

    /// Channels that get a message each.
    pub(crate) fn channels(&self) -> usize {
        self.extra + if self.bytes > 0 { self.messages } else { 0 }
    }

    /// Up to `part` of it; for a channel with nothing under way, which is not kept waiting by the
    /// others, one beyond.
    pub(crate) fn share(&self, part: usize, alone: bool) -> Option<Share> {
        let messages = part.min(self.messages);
        if messages > 0 && self.bytes > 0 {
            return Some(Share {
                messages,
                bytes: self.bytes,
                beyond: false,
            });
        }
        (alone && self.extra > 0).then_some(Share {
            messages: 1,
            bytes: 1,
            beyond: true,
        })
    }

    pub(crate) fn for_probe(&self, alone: bool) -> Option<Share> {
        self.share(1, alone).filter(|_| self.probes > 0)
    }

    /// What was `before`, and is left, of a share.
    pub(crate) fn took(&mut self, before: usize, left: &Share) {
        let messages = before.saturating_sub(left.messages);
        if left.beyond {
            self.extra = self.extra.saturating_sub(messages);
        } else {
            self.messages = self.messages.saturating_sub(messages);
            self.bytes = left.bytes;
        }
    }
}

impl Share {
    pub(crate) fn spend(&mut self, delivery: &Delivery) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(delivery.payload.len());
    }
}
