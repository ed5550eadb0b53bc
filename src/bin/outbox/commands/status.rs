//! `outbox status`: what is waiting, for how long, and why.

use clap::Args;
use serde::Serialize;
use sqlite_outbox::{ChannelState, ChannelStats, Counts, Stats};

use crate::args::{Database, Exit, Format};
use crate::output::{Column, Out, Table, Tone, age, ago, count, scrub, unless_closed};

/// Show what is waiting, for how long, and why
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 4: nothing is unsent, but dead letters or conflicts wait for a person.

Example:
  outbox status till.db")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
pub(super) struct Status<'a> {
    total: Numbers,
    conflicts: u64,
    channels: Vec<Channel<'a>>,
}

#[derive(Serialize)]
struct Channel<'a> {
    channel: &'a str,
    state: &'static str,
    since: Option<i64>,
    reason: Option<&'a str>,
    reason_code: Option<&'a str>,
    #[serde(flatten)]
    numbers: Numbers,
}

#[derive(Serialize)]
struct Numbers {
    pending: u64,
    waiting: u64,
    sending: u64,
    sent: u64,
    dead: u64,
    expired: u64,
    cancelled: u64,
    unsent: u64,
    oldest_unsent_ms: Option<i64>,
    max_attempts: u32,
}

impl Numbers {
    fn new(counts: &Counts, now: i64) -> Self {
        Self {
            pending: counts.pending,
            waiting: counts.waiting,
            sending: counts.sending,
            sent: counts.sent,
            dead: counts.dead,
            expired: counts.expired,
            cancelled: counts.cancelled,
            unsent: counts.unsent(),
            oldest_unsent_ms: counts.oldest_unsent_ms(now),
            max_attempts: counts.max_attempts,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let stats = arguments.database.open()?.stats()?;
    let mut out = Out::new();
    let printed = match arguments.format.json {
        true => out.json(&as_json(&stats)),
        false => print(&stats, &mut out),
    };
    unless_closed(printed.and_then(|()| out.flush()))?;
    Ok(match attention(&stats) {
        true => Exit::Attention,
        false => Exit::Done,
    })
}

/// Whether nothing but a person can go on.
pub(super) fn attention(stats: &Stats) -> bool {
    stats.total.unsent() == 0 && (stats.total.dead > 0 || stats.conflicts > 0)
}

pub(super) fn as_json(stats: &Stats) -> Status<'_> {
    let channel = |it| {
        let it: &ChannelStats = it;
        Channel {
            channel: &it.channel,
            state: it.state.as_str(),
            since: it.since,
            reason: it.reason.as_deref(),
            reason_code: it.reason_code.as_deref(),
            numbers: Numbers::new(&it.counts, stats.now),
        }
    };
    Status {
        total: Numbers::new(&stats.total, stats.now),
        conflicts: stats.conflicts,
        channels: stats.channels.iter().map(channel).collect(),
    }
}

fn print(stats: &Stats, out: &mut Out) -> anyhow::Result<()> {
    out.text(&stats.to_string())?;
    if stats.channels.is_empty() {
        return Ok(());
    }
    out.line("")?;
    let mut table = Table::new([
        Column::text("CHANNEL", 8),
        Column::word("STATE"),
        Column::number("UNSENT"),
        Column::number("OLDEST"),
        Column::number("DEAD"),
        Column::number("EXPIRED"),
        Column::number("CANCELLED"),
        Column::number("SENT"),
    ]);
    for channel in &stats.channels {
        let counts = &channel.counts;
        let oldest = counts.oldest_unsent_ms(stats.now).map(age);
        let grave = match counts.dead {
            0 => Tone::Plain,
            _ => Tone::Bad,
        };
        let plain = |number: u64| (number.to_string(), Tone::Plain);
        table.row([
            (channel.channel.clone(), Tone::Plain),
            (channel.state.to_string(), tone(channel.state)),
            plain(counts.unsent()),
            (oldest.unwrap_or_else(|| "-".into()), Tone::Plain),
            (counts.dead.to_string(), grave),
            plain(counts.expired),
            plain(counts.cancelled),
            plain(counts.sent),
        ]);
    }
    table.print(out)?;
    let troubled = |it: &&ChannelStats| it.state != ChannelState::Ok;
    for channel in stats.channels.iter().filter(troubled) {
        out.line("")?;
        out.line(trouble(channel, stats.now))?;
    }
    if stats.conflicts > 0 {
        out.line("")?;
        let text = count(stats.conflicts, "message is", "messages are");
        let text = format!("{text} kept in outbox_conflict: same dedupe key, other content");
        out.line(out.paint(Tone::Bad, &text))?;
    }
    Ok(())
}

pub(super) fn tone(state: ChannelState) -> Tone {
    match state {
        ChannelState::Ok => Tone::Good,
        ChannelState::Holding | ChannelState::Paused => Tone::Plain,
        _ => Tone::Bad,
    }
}

/// `sales: offline since 20 min ago, next probe in 12 s: connection refused`
fn trouble(channel: &ChannelStats, now: i64) -> String {
    let mut line = format!("{}: {}", scrub(&channel.channel), channel.state);
    if let Some(by) = &channel.paused_by {
        line.push_str(&format!(" by {}", scrub(by)));
    }
    if let Some(since) = channel.since {
        line.push_str(&format!(", since {}", ago(since, now)));
    }
    if let Some(until) = channel.until.filter(|it| *it > now) {
        let what = match channel.state {
            ChannelState::Holding => "until",
            _ => "next probe",
        };
        line.push_str(&format!(", {what} {}", ago(until, now)));
    }
    if let Some(reason) = &channel.reason {
        line.push_str(&format!(": {}", scrub(reason)));
    }
    line
}
