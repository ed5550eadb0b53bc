//! `outbox status`: what is waiting, for how long, and why.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use sqlite_outbox::{
    ChannelState, ChannelStats, Counts, Dispatcher, Error, FIRST_HONEST, Finding, Stats,
};

use super::check::{self, Found};
use super::crowd;
use super::damage::Damage;
use super::findings;
use super::shell::{command, quoted_path, settings};
use crate::args::{Database, Exit, Format};
use crate::output::{
    Column, Out, Table, Tone, age, ago, brief, count, exact, printable_name, stamped_wrong,
    unless_closed,
};
use crate::settings::{Loaded, load};

/// Show what is waiting, for how long, and why
///
/// While a channel is held, a drain that runs sends one message now and then, the probe; once one is
/// delivered, the others follow.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  nothing needs a person, or something is unsent
  4  nothing is unsent, but dead letters or conflicts wait
     for a person; with --attention, whenever something
     does: all that check counts, but for damage and broken
     rows, which take reading the whole file, and settings

Example:
  outbox status till.db")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// The settings file: to see channels without a route
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// End with 4 whenever something needs a person, also while something is unsent, and say what
    #[arg(long)]
    attention: bool,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
pub(super) struct Status<'a> {
    total: Numbers,
    conflicts: u64,
    /// This machine's clock cannot be right.
    clock_wrong: bool,
    channels: Vec<Channel<'a>>,
    /// What keeps everything from being sent, and what went wrong without anybody being told.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) findings: Vec<Found<'a>>,
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
    let loaded = match &arguments.config {
        Some(path) => Some(load(path, None)?),
        None => None,
    };
    let outbox = arguments.database.open_to_read()?;
    let mut damage = Damage::default();
    let mut stats = damage.stats(&outbox)?;
    let found = match arguments.attention {
        true => findings::needs(&outbox),
        false => findings::told_of(&outbox, &stats),
    };
    let mut findings = match found {
        Err(Error::Incomplete { .. }) => Vec::new(),
        found => damage.part("what else went wrong", found)?,
    };
    if let Some(loaded) = &loaded {
        unrouted(&mut stats, loaded);
        // That is why nobody sends them.
        let served = |it: &Finding| {
            let channel = it.channel.as_deref();
            channel.is_none_or(|it| loaded.dispatcher.serves(it))
        };
        findings.retain(|it| it.code != findings::UNATTENDED || served(it));
    }
    let mut out = Out::new();
    let printed = match arguments.format.json {
        true => out.json(&Status {
            findings: findings
                .iter()
                .map(|it| Found::new(it, &arguments.database.db))
                .collect(),
            ..as_json(&stats)
        }),
        false => print(
            &stats,
            &findings,
            &arguments.database.db,
            arguments.config.as_deref(),
            &mut out,
        ),
    };
    unless_closed(printed.and_then(|()| out.flush()))?;
    let stands = |it: &ChannelStats| it.state == ChannelState::Unrouted;
    let needed = findings.iter().any(Finding::needs_person) || stats.channels.iter().any(stands);
    damage.end(match attention(&stats) || (arguments.attention && needed) {
        true => Exit::Attention,
        false => Exit::Done,
    })
}

/// Says which channels no section of the settings serves: that is not in the file.
pub(super) fn unrouted(stats: &mut Stats, loaded: &Loaded) {
    for channel in &mut stats.channels {
        let flows = channel.state == ChannelState::Ok && channel.counts.unsent() > 0;
        if flows && !loaded.dispatcher.serves(&channel.channel) {
            channel.state = ChannelState::Unrouted;
            channel.reason = Some("no section of the settings serves it".into());
            channel.reason_code = Some("unrouted".into());
        }
    }
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
        clock_wrong: stats.now < FIRST_HONEST,
        channels: stats.channels.iter().map(channel).collect(),
        findings: Vec::new(),
    }
}

pub(super) fn print(
    stats: &Stats,
    findings: &[Finding],
    path: &Path,
    config: Option<&Path>,
    out: &mut Out,
) -> anyhow::Result<()> {
    out.paragraph("", Tone::Plain, &waiting(stats))?;
    if let Some(text) = wrong_clock(stats.now) {
        out.paragraph("", Tone::Bad, &text)?;
    }
    if let Some(text) = for_a_person(stats) {
        out.paragraph("", Tone::Bad, &text)?;
    }
    findings::tell(findings, out)?;
    if stats.channels.is_empty() {
        return next(stats, findings, path, config, false, out);
    }
    out.line("")?;
    let shown = crowd::foremost(&stats.channels, out);
    let mut table = table(stats, &shown);
    table.print(out)?;
    table.end(out)?;
    let others = stats.channels.len() - shown.len();
    if others > 0 {
        let unsent = shown.iter().map(|it| it.counts.unsent()).sum();
        let unsent = count(
            stats.total.unsent().saturating_sub(unsent),
            "message",
            "messages",
        );
        crowd::more(others, &format!(" with {unsent} unsent"), out)?;
    }
    let troubled = shown.into_iter().filter(|it| it.state != ChannelState::Ok);
    let (troubled, alike) = crowd::alike(others > 0, troubled.collect(), |it| it.state.as_str());
    let mut blank = true;
    for channel in troubled {
        if std::mem::take(&mut blank) {
            out.line("")?;
        }
        let (name, state) = (printable_name(&channel.channel), channel.state);
        let head = format!("{name}: {state} {}", span(channel, stats.now));
        out.paragraph("", tone(state), head.trim_end())?;
        if let Some(reason) = &channel.reason {
            out.paragraph("    ", Tone::Plain, brief(reason))?;
        }
        if let Some((message, _)) = channel.waits_for(stats.now) {
            let now = format!("id:{message} --available now   # tries it now");
            out.command(4, &command("edit", path, &now))?;
        }
    }
    for (state, more) in alike {
        let number = count(more.len() as u64, "more channel", "more channels");
        out.line(format!("… and {number} above: {state}"))?;
    }
    if stats.conflicts > 0 {
        out.line("")?;
        let text = count(stats.conflicts, "conflict", "conflicts");
        let text = format!("{text}: a dedupe key was used again with other content");
        out.paragraph("", Tone::Bad, &text)?;
    }
    next(stats, findings, path, config, !blank, out)
}

/// What to type next.
fn next(
    stats: &Stats,
    findings: &[Finding],
    path: &Path,
    config: Option<&Path>,
    troubled: bool,
    out: &mut Out,
) -> anyhow::Result<()> {
    // Whatever waits or does not move has a reason.
    let waits = stats.total.unsent() > 0 || stats.total.dead > 0 || troubled;
    // Those that lie there are offered; only those that were given were read.
    let known = settings(config, path);
    let with = known.map(|it| format!("--config {}", quoted_path(&it)));
    let why = waits || !findings.is_empty();
    let why = why.then(|| command("why", path, with.as_deref().unwrap_or_default()));
    let conflicts = (stats.conflicts > 0).then(|| command("conflicts", path, ""));
    let mended = findings.iter().filter_map(|it| check::command(it, path));
    let mut commands = mended.chain(why).chain(conflicts).peekable();
    if commands.peek().is_none() {
        return Ok(());
    }
    out.line("\nWhat to do:")?;
    for command in commands {
        out.command(2, &command)?;
    }
    match waits && config.is_none() {
        true => {
            let with = with
                .as_deref()
                .unwrap_or("--config and their settings file");
            let text = format!("With {with}, status and why know which channels have no route.");
            out.paragraph("", Tone::Plain, &text)
        }
        false => Ok(()),
    }
}

/// `12 messages waiting, oldest 14 min`
pub(super) fn waiting(stats: &Stats) -> String {
    let mut text = match stats.total.unsent() {
        0 => "nothing waiting".into(),
        unsent => count(unsent, "message waiting", "messages waiting"),
    };
    match (
        stats.total.oldest_unsent_at,
        stats.total.oldest_unsent_ms(stats.now),
    ) {
        (Some(at), _) if stamped_wrong(at, stats.now) => {
            text.push_str(", the oldest from a time when the clock was wrong");
        }
        (_, Some(span)) => text.push_str(&format!(", oldest {}", age(span))),
        (_, None) => {}
    }
    text
}

/// What to do about a clock that cannot be right.
fn wrong_clock(now: i64) -> Option<String> {
    let text = || {
        let moment = exact(now);
        format!(
            "this machine's clock stands at {moment}: set it; until then nothing expires and no \
             schedule is kept"
        )
    };
    (now < FIRST_HONEST).then(text)
}

/// `4 dead letters and 1 conflict need a person`
pub(super) fn for_a_person(stats: &Stats) -> Option<String> {
    let parts = [
        (stats.total.dead, "dead letter", "dead letters"),
        (stats.conflicts, "conflict", "conflicts"),
    ];
    let told = parts.into_iter().filter(|(number, ..)| *number > 0);
    let told: Vec<_> = told
        .map(|(number, one, many)| count(number, one, many))
        .collect();
    let verb = match stats.total.dead.saturating_add(stats.conflicts) {
        0 => return None,
        1 => "needs",
        _ => "need",
    };
    Some(format!("{} {verb} a person", told.join(" and ")))
}

fn table(stats: &Stats, shown: &[&ChannelStats]) -> Table {
    let mut table = Table::new([
        Column::text("CHANNEL", 12),
        Column::word("STATE"),
        Column::number("UNSENT"),
        Column::number("OLDEST").spare(3),
        Column::number("DEAD"),
        Column::number("EXPIRED").spare(2),
        Column::number("CANCELLED").spare(0),
        Column::number("SENT").spare(1),
    ]);
    for channel in shown {
        let counts = &channel.counts;
        let oldest = match counts.oldest_unsent_at {
            Some(at) if stamped_wrong(at, stats.now) => Some("unknown".into()),
            _ => counts.oldest_unsent_ms(stats.now).map(age),
        };
        let grave = match counts.dead {
            0 => Tone::Plain,
            _ => Tone::Bad,
        };
        let plain = |number: u64| (number.to_string(), Tone::Plain);
        table.row([
            (printable_name(&channel.channel).into_owned(), Tone::Plain),
            (channel.state.to_string(), tone(channel.state)),
            plain(counts.unsent()),
            (oldest.unwrap_or_else(|| "-".into()), Tone::Plain),
            (counts.dead.to_string(), grave),
            plain(counts.expired),
            plain(counts.cancelled),
            plain(counts.sent),
        ]);
    }
    table
}

pub(super) fn tone(state: ChannelState) -> Tone {
    match state {
        ChannelState::Ok => Tone::Good,
        ChannelState::Offline | ChannelState::Holding | ChannelState::Paused => Tone::Wait,
        _ => Tone::Bad,
    }
}

/// `for 20 min, next probe in 12 s`, `by anna@till-7 for 3 h`
pub(super) fn span(channel: &ChannelStats, now: i64) -> String {
    let by = channel.paused_by.as_ref().map(|by| format!("by {by}"));
    let since = |at| match stamped_wrong(at, now) {
        true => "since a time when the clock was wrong".into(),
        false => format!("for {}", age(now.saturating_sub(at))),
    };
    let parts = [by, channel.since.map(since)];
    let mut text = parts.into_iter().flatten().collect::<Vec<_>>().join(" ");
    if let Some((message, at)) = channel.waits_for(now) {
        let due = ago(at, now);
        text.push_str(&format!(
            ", the next probe waits for message {message}, due {due}"
        ));
    } else if let Some(until) = channel.until {
        let what = match channel.state {
            ChannelState::Holding => "goes on",
            _ => "next probe",
        };
        match now.saturating_sub(until) {
            ..=0 => text.push_str(&format!(", {what} {}", ago(until, now))),
            // A drain that runs makes it within moments, if a message is due.
            over @ 60_000.. if channel.counts.unsent() > 0 => {
                text.push_str(&format!(", a probe due for {}", age(over)));
            }
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_stands_in_1970_is_told_of() {
        let text = wrong_clock(65_000).unwrap();
        assert!(
            text.contains("stands at 1970-01-01T00:01:05.000Z: set it"),
            "{text}"
        );
        assert_eq!(wrong_clock(FIRST_HONEST), None);
    }
}
