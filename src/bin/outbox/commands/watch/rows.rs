//! From the model to what stands on the screen: texts that can be shown.

use std::borrow::Cow;
use std::time::Duration;

use sqlite_outbox::{ChannelState, ChannelStats};

use super::model::{Chosen, Letter, Model, Track, pace};
use crate::commands::status;
use crate::output::{Tone, age, ago, brief, count, per_second, printable, printable_name};

/// One channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Channel {
    pub(super) chosen: bool,
    pub(super) name: String,
    pub(super) state: &'static str,
    pub(super) tone: Tone,
    pub(super) unsent: u64,
    pub(super) sending: u64,
    pub(super) oldest: String,
    pub(super) dead: u64,
    pub(super) expired: u64,
    pub(super) rate: String,
    pub(super) depths: Vec<u64>,
    /// What needs a person, and what stops it; empty while messages flow.
    pub(super) why: String,
}

/// One message that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) chosen: bool,
    pub(super) ago: String,
    pub(super) channel: String,
    pub(super) id: String,
    pub(super) key: String,
    pub(super) charged: String,
    /// `dead`, when it is tried again, or that it waits for its channel.
    pub(super) next: String,
    pub(super) tone: Tone,
    pub(super) why: String,
}

pub(super) fn channels(model: &Model) -> Vec<Channel> {
    let none = Track::default();
    let row = |it: &ChannelStats| {
        let track = model.tracks.get(&it.channel).unwrap_or(&none);
        Channel {
            chosen: matches!(&model.chosen, Some(Chosen::Channel(name)) if *name == it.channel),
            name: printable_name(&it.channel).into_owned(),
            state: it.state.as_str(),
            tone: status::tone(it.state),
            unsent: it.counts.unsent(),
            sending: it.counts.sending,
            oldest: match it.counts.oldest_unsent_ms(model.now()) {
                Some(span) => age(span),
                None => "-".into(),
            },
            dead: it.counts.dead,
            expired: it.counts.expired,
            rate: per_second(track.rate()),
            depths: track.depths().collect(),
            why: why(it, model),
        }
    };
    model.channels().iter().map(row).collect()
}

fn why(channel: &ChannelStats, model: &Model) -> String {
    let mut parts = Vec::new();
    if channel.counts.dead > 0 {
        let dead = count(channel.counts.dead, "dead letter", "dead letters");
        let last = |it: &&Letter| it.dead && it.channel == channel.channel;
        parts.push(match model.failed().iter().find(last) {
            Some(it) => format!("{dead}: {}", printable(brief(&it.error))),
            None => dead,
        });
    }
    if channel.state != ChannelState::Ok {
        let span = status::span(channel, model.now());
        let span = printable(&span);
        // First what says most: the rest may be cut.
        match &channel.reason {
            Some(reason) => parts.extend([printable(brief(reason)), span].map(Cow::into_owned)),
            None => parts.push(format!("{} {span}", channel.state)),
        }
    }
    parts.retain(|it| !it.is_empty());
    parts.join("; ")
}

pub(super) fn failures(model: &Model) -> Vec<Failure> {
    let now = model.now();
    let held = |name: &str| {
        let channel = model.channels().iter().find(|it| it.channel == name);
        channel.is_some_and(|it| it.state != ChannelState::Ok)
    };
    let row = |it: &Letter| Failure {
        chosen: model.chosen == Some(Chosen::Letter(it.id)),
        ago: match now.saturating_sub(it.at) {
            // By a clock that was wrong: nobody knows when.
            ..0 => "-".into(),
            past => age(past),
        },
        channel: printable_name(&it.channel).into_owned(),
        id: it.id.to_string(),
        key: printable(&it.key).into_owned(),
        charged: it.attempts.to_string(),
        next: match it.dead {
            true => "dead".into(),
            false if it.due <= now && held(&it.channel) => "waits".into(),
            false => ago(it.due.max(now), now),
        },
        tone: if it.dead { Tone::Bad } else { Tone::Plain },
        why: printable(brief(&it.error)).into_owned(),
    };
    model.failed().iter().map(row).collect()
}

/// The whole reason of the message under the cursor.
pub(super) fn detail(model: &Model) -> Option<String> {
    let it = model.letter()?;
    let charged = count(
        it.attempts.unsigned_abs(),
        "charged attempt",
        "charged attempts",
    );
    Some(format!(
        "#{} {}, {charged}: {}",
        it.id,
        printable(&it.key),
        printable(brief(&it.error))
    ))
}

/// What is under way: `3 sending: S-1045 (sales), …`
pub(super) fn sending(model: &Model) -> String {
    let Some(look) = &model.look else {
        return String::new();
    };
    let number = look.stats.total.sending;
    if number == 0 {
        return "none in flight".into();
    }
    let several = look.stats.channels.len() > 1;
    let name = |it: &Letter| match several {
        true => format!("{} ({})", printable(&it.key), printable_name(&it.channel)),
        false => printable(&it.key).into_owned(),
    };
    let names: Vec<_> = look.sending.iter().map(name).collect();
    format!("{number} in flight: {}", names.join(", "))
}

/// What went out since the view began, and how long the rest takes.
pub(super) fn progress(model: &Model) -> String {
    let track = &model.total;
    let span = track.span(usize::MAX);
    let millis = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    let mut text = format!("{} sent here in {}", track.sent(), age(millis));
    if track.sent() > 0 {
        text.push_str(&format!(", {}", per_second(pace(track.sent(), span))));
    }
    if let Some(left) = left(model) {
        let left = i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
        text.push_str(&format!(", about {} left", age(left)));
    }
    text
}

/// How long the slowest channel takes; nobody knows while one with messages stands still.
fn left(model: &Model) -> Option<Duration> {
    let waiting = model.channels().iter().filter(|it| it.counts.unsent() > 0);
    let spans = waiting.map(|it| {
        let rate = model.tracks.get(&it.channel).map_or(0.0, Track::rate);
        let span = Duration::try_from_secs_f64(number(it.counts.unsent()) / rate);
        span.ok().filter(|_| it.state == ChannelState::Ok)
    });
    spans.collect::<Option<Vec<_>>>()?.into_iter().max()
}

#[allow(clippy::cast_precision_loss)]
fn number(number: u64) -> f64 {
    number as f64
}

/// The last depths as bars of so many rows, the newest at the right; from the top.
pub(super) fn bars(
    depths: impl DoubleEndedIterator<Item = u64>,
    width: usize,
    rows: usize,
) -> Vec<String> {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mut last: Vec<u64> = depths.rev().take(width).collect();
    last.reverse();
    let most = u128::from(last.iter().copied().max().unwrap_or(0).max(1));
    // The top stays free, so that one row can be told from the next.
    let steps = rows.saturating_mul(8).saturating_sub(1);
    // Rounded up: as long as something waits, a bar is there.
    let height = |depth: u64| (u128::from(depth) * steps as u128).div_ceil(most);
    let bar = |depth: u64, row: usize| {
        let below = (rows - row - 1) * 8;
        let full = usize::try_from(height(depth)).unwrap_or(steps);
        let step = full.saturating_sub(below).min(8);
        BARS.get(step).copied().unwrap_or('█')
    };
    let blank = " ".repeat(width.saturating_sub(last.len()));
    let line = |row: usize| {
        let bars = last.iter().map(|depth| bar(*depth, row));
        blank.chars().chain(bars).collect()
    };
    (0..rows).map(line).collect()
}
