//! Too many channels for a person to read: a terminal shows those that come first and says how many
//! more there are. Into a pipe, and with `--json`, all go.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;

use sqlite_outbox::{ChannelState, ChannelStats};

use crate::output::{Out, Tone, count};

/// As many fit a few screens.
const SHOWN: usize = 40;

/// Of one kind, a few say it all.
const ALIKE: usize = 5;

/// Whether these are too many for a terminal.
pub(super) fn is_crowd(number: usize, out: &Out) -> bool {
    number > SHOWN && out.room().is_some()
}

/// Where a person is needed, one looks first; then where nothing moves.
pub(super) fn calm(channel: &ChannelStats) -> u8 {
    match channel.state {
        _ if channel.counts.dead > 0 => 0,
        ChannelState::Unauthorised | ChannelState::Rejecting | ChannelState::Unrouted => 0,
        ChannelState::Ok => 2,
        _ => 1,
    }
}

/// All of them by name; of a crowd those that need attention most, then the busiest.
pub(super) fn foremost<'a>(channels: &'a [ChannelStats], out: &Out) -> Vec<&'a ChannelStats> {
    let mut shown: Vec<_> = channels.iter().collect();
    if is_crowd(shown.len(), out) {
        shown.sort_by_key(|it| (calm(it), Reverse(it.counts.unsent())));
        shown.truncate(SHOWN);
    }
    shown
}

/// Of a crowd the first few of each kind, and how many more there are of it.
pub(super) fn alike<T, K: Hash + Eq + Copy>(
    crowd: bool,
    items: Vec<T>,
    kind: impl Fn(&T) -> K,
) -> (Vec<T>, Vec<(K, Vec<T>)>) {
    if !crowd {
        return (items, Vec::new());
    }
    let mut seen: HashMap<K, usize> = HashMap::new();
    let (mut first, mut more): (Vec<T>, Vec<(K, Vec<T>)>) = Default::default();
    for item in items {
        let kind = kind(&item);
        let number = seen.entry(kind).or_default();
        *number += 1;
        if *number <= ALIKE {
            first.push(item);
            continue;
        }
        match more.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, others)) => others.push(item),
            None => more.push((kind, vec![item])),
        }
    }
    (first, more)
}

/// `… and 9,960 more channels: 60 unsent. All are shown with --json, or in a pipe.`
pub(super) fn more(number: usize, what: &str, out: &mut Out) -> anyhow::Result<()> {
    let channels = count(number as u64, "more channel", "more channels");
    let text = format!("… and {channels}{what}. All are shown with --json, or into a pipe.");
    out.paragraph("", Tone::Plain, &text)
}
