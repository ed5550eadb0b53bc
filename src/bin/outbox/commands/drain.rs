//! `outbox drain`: send what can be sent now, and say what is left and why.

mod bar;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{ArgGroup, Args};
use serde::Serialize;
use sqlite_outbox::{
    Cancel, ChannelReport, ChannelState, DrainReport, Ended, Event, Filter, Outbox, Reason, Status,
    Why, WhyGroup,
};

use bar::Bar;

use super::crowd;
use super::findings;
use super::reasons;
use super::shell::{command, quoted_path};
use super::status;
use crate::args::{self, Database, Exit, Format, Usage};
use crate::logger::{self, Loudness, Role};
use crate::output::{
    Column, Out, Table, Tone, ago, brief, count, exact, note, now, printable_name, thousands,
    unless_closed,
};
use crate::settings::{self, Loaded};
use crate::signals::Signals;

/// Send what can be sent now, and say what is left and why
///
/// Ends when nothing is due and nothing is under way. Does not wait for back-off, schedules or a
/// receiver that is down: their messages stay, and the next drain finds them. What another process has
/// claimed is waited for: after a crash until its lease ends, 30 s where the settings say nothing else.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("target").required(true).args(["config", "url"])),
    after_help = concat!("\
Exit codes:
  0  all is sent
  3  unsent messages remain
  4  none remain, but dead letters or conflicts wait for a
     person

", settings::example!(), "
Examples:
  outbox drain till.db --config outbox.toml
  outbox drain till.db --url http://localhost:8080/sales")
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// The settings file: where each channel goes, and how
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Send every channel to this URL by POST; http:// only to this machine
    #[arg(long)]
    url: Option<String>,
    /// Allow http:// to other machines, where whoever is in between reads and changes everything
    #[arg(long, requires = "url")]
    allow_http: bool,
    /// Requests under way at once [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Begin nothing more after this span; what is under way then has a few seconds to end
    #[arg(long, value_name = "D", value_parser = args::duration)]
    deadline: Option<Duration>,
    /// Ignore back-off once; schedules stay in force
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    loudness: Loudness,
    #[command(flatten)]
    format: Format,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let loaded = load(arguments)?;
    let options = Outbox::options().observer(observer(arguments.loudness));
    let outbox = arguments.database.open_with(options)?;
    loaded.apply(&outbox)?;
    logger::start(arguments.loudness, Role::Reports);
    let signal = Signals::listen()?;
    let plain = arguments.loudness.is_plain() && !arguments.format.json;
    let bar = Bar::new(plain, || outbox.unsent());
    if let Some(text) = claimed(&outbox)?.filter(|_| !arguments.loudness.quiet) {
        note(&text);
    }
    let cancel = Cancel::new();
    let mut draining = outbox
        .draining(&loaded.dispatcher)
        .settings(loaded.settings)
        .cancel(&cancel)
        .progress(|tally| {
            bar.show(tally);
            if signal.came() {
                bar.stopping();
                cancel.cancel();
            }
        });
    if let Some(span) = arguments.deadline {
        draining = draining.deadline(span);
    }
    if arguments.now {
        draining = draining.now();
    }
    let report = draining.run();
    bar.clear();
    let report = report?;
    let left = match report.unsent {
        0 => Vec::new(),
        _ => outbox.why_all_routed(&loaded.dispatcher)?,
    };
    let mut out = Out::new();
    let printed = match arguments.format.json {
        true => out.json(&as_json(&report, &left)),
        false => print(&report, &left, &place(arguments), &mut out).and_then(|()| {
            let mut found = findings::of_damaged(&outbox, &report.stats)?;
            // Somebody just did.
            found.retain(|it| it.code != findings::UNATTENDED);
            findings::tell(&found, &mut out)
        }),
    };
    unless_closed(printed.and_then(|()| out.flush()))?;
    Ok(if report.unsent > 0 {
        Exit::Unsent
    } else if status::attention(&report.stats) {
        Exit::Attention
    } else {
        Exit::Done
    })
}

/// Of the messages that others have claimed, the one that may keep the drain waiting longest: whoever
/// claimed it may be gone.
fn claimed(outbox: &Outbox) -> anyhow::Result<Option<String>> {
    const LOOKED_AT: usize = 1_000;
    let filter = Filter::new().status(Status::Sending).limit(LOOKED_AT);
    let sending = outbox.list(&filter)?;
    let last = sending.iter().max_by_key(|it| it.next_attempt_at);
    let now = now();
    Ok(last.filter(|it| it.next_attempt_at > now).map(|it| {
        format!(
            "message {} was claimed by another process, which sends it or is gone; its lease ends {} \
             ({}), and this drain may wait for that",
            it.id,
            ago(it.next_attempt_at, now),
            exact(it.next_attempt_at)
        )
    }))
}

/// Says once that the file cannot be written: until it can, nothing goes out, and it may last. And once
/// that a row refuses to be.
fn observer(loudness: Loudness) -> impl Fn(&Event) + Send + Sync {
    let failed = AtomicBool::new(loudness.quiet);
    let refused = AtomicBool::new(loudness.quiet);
    move |event| match event {
        Event::StoreFailed { error } if !failed.swap(true, Ordering::Relaxed) => note(&format!(
            "the file cannot be used: {error}; nothing more is sent until it can. It is tried for half a minute, \
             or for five where there are answers to record; then this drain ends"
        )),
        Event::Refused { id, error } if !refused.swap(true, Ordering::Relaxed) => note(&format!(
            "message {id} is left alone, and so is any other like it: {error}; `check` names triggers \
             that may do that"
        )),
        _ => {}
    }
}

fn load(arguments: &Arguments) -> anyhow::Result<Loaded> {
    let workers = arguments.workers.map(usize::from);
    match (&arguments.config, &arguments.url) {
        (Some(path), _) => settings::load(path, workers),
        (None, url) => {
            let url = url.as_deref().unwrap_or_default();
            settings::one_url(url, arguments.allow_http, workers).map_err(|error| {
                // It knows the name that the settings have for it.
                let error = error.to_string().replace("allow_http", "--allow-http");
                Usage(format!("--url: {error}")).into()
            })
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    sent: u64,
    retried: u64,
    dead: u64,
    expired: u64,
    refused: u64,
    unsent: u64,
    elapsed_ms: u64,
    channels: Vec<Channel<'a>>,
}

#[derive(Serialize)]
struct Channel<'a> {
    channel: &'a str,
    sent: u64,
    unsent: u64,
    state: &'static str,
    reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left: Vec<Left>,
}

/// Unsent messages that wait for one reason, and one of them.
#[derive(Serialize)]
struct Left {
    reason_code: &'static str,
    messages: u64,
    message: i64,
}

fn as_json<'a>(report: &'a DrainReport, left: &[WhyGroup]) -> Report<'a> {
    let left = Reasons::new(left);
    Report {
        sent: report.sent,
        retried: report.retried,
        dead: report.dead,
        expired: report.expired,
        refused: report.refused,
        unsent: report.unsent,
        elapsed_ms: u64::try_from(report.elapsed.as_millis()).unwrap_or(u64::MAX),
        channels: report
            .channels
            .iter()
            .map(|it| Channel {
                channel: &it.channel,
                sent: it.sent,
                unsent: it.unsent,
                state: it.state.as_str(),
                reason: why(it, &left, report),
                left: left
                    .of(it)
                    .map(|it| Left {
                        reason_code: it.why.reason.code(),
                        messages: it.messages,
                        message: it.why.id,
                    })
                    .collect(),
            })
            .collect(),
    }
}

fn print(
    report: &DrainReport,
    groups: &[WhyGroup],
    place: &(&Path, String),
    out: &mut Out,
) -> anyhow::Result<()> {
    let mut line = format!(
        "{} sent in {:.1} s",
        thousands(report.sent),
        report.elapsed.as_secs_f64()
    );
    for (number, text) in [
        (
            report.retried,
            count(report.retried, "failed attempt", "failed attempts"),
        ),
        (
            report.dead,
            count(report.dead, "new dead letter", "new dead letters"),
        ),
        (
            report.expired,
            format!("{} expired", thousands(report.expired)),
        ),
        (
            report.refused,
            count(report.refused, "row refused", "rows refused") + " every change",
        ),
        (
            report.unsent,
            format!("{} still unsent", thousands(report.unsent)),
        ),
    ] {
        if number > 0 {
            line.push_str(", ");
            line.push_str(&text);
        }
    }
    match report.ended {
        Ended::Deadline => line.push_str("; the deadline passed"),
        Ended::Cancelled => line.push_str("; stopped"),
        _ => {}
    }
    out.line(line)?;
    let mut table = Table::new([
        Column::text("CHANNEL", 8),
        Column::number("SENT"),
        Column::number("UNSENT"),
        Column::word("STATE"),
        Column::prose("WHY", 16),
    ]);
    let reasons = Reasons::new(groups);
    let left: Vec<_> = report.channels.iter().filter(|it| it.unsent > 0).collect();
    let (left, alike) = crowd::alike(crowd::is_crowd(left.len(), out), left, |it| {
        it.state.as_str()
    });
    if left.is_empty() {
        return attention(report, place, out);
    }
    for channel in left {
        table.row([
            (printable_name(&channel.channel).into_owned(), Tone::Plain),
            (channel.sent.to_string(), Tone::Plain),
            (channel.unsent.to_string(), Tone::Plain),
            (channel.state.to_string(), status::tone(channel.state)),
            (
                why(channel, &reasons, report).unwrap_or_default(),
                Tone::Plain,
            ),
        ]);
    }
    out.line("")?;
    table.print(out)?;
    for (state, more) in alike {
        let unsent = more.iter().map(|it| it.unsent).sum();
        let unsent = count(unsent, "message", "messages");
        crowd::more(more.len(), &format!(" ({state}) with {unsent} unsent"), out)?;
    }
    attention(report, place, out)
}

/// The reasons of unsent messages, by channel.
struct Reasons<'a>(HashMap<&'a str, Vec<&'a WhyGroup>>);

impl<'a> Reasons<'a> {
    fn new(groups: &'a [WhyGroup]) -> Self {
        let mut reasons: HashMap<&str, Vec<_>> = HashMap::new();
        for group in groups.iter().filter(|it| it.why.reason != Reason::Dead) {
            reasons.entry(&group.why.channel).or_default().push(group);
        }
        Self(reasons)
    }

    fn of(&self, channel: &ChannelReport) -> impl Iterator<Item = &'a WhyGroup> {
        let own = self.0.get(&*channel.channel);
        own.into_iter().flatten().copied()
    }
}

/// Why messages of a channel are left.
fn why(channel: &ChannelReport, reasons: &Reasons<'_>, report: &DrainReport) -> Option<String> {
    if channel.state == ChannelState::Unrouted {
        return Some("no section of the settings serves it".into());
    }
    let mut told: Vec<reasons::Told> = Vec::new();
    for group in reasons.of(channel) {
        // What stands behind another waits for what that waits for.
        let head = group.why.behind.as_deref();
        let head = head.filter(|it| it.reason != Reason::Dead);
        let words = few(head.unwrap_or(&group.why), report);
        let at = match told.iter().position(|it| it.words == words) {
            Some(known) => known,
            None => {
                told.push(reasons::Told {
                    words,
                    own: 0,
                    behind: 0,
                });
                told.len() - 1
            }
        };
        if let Some(told) = told.get_mut(at) {
            match head {
                Some(_) => told.behind += group.messages,
                None => told.own += group.messages,
            }
        }
    }
    match (&*told, channel.state) {
        ([], ChannelState::Ok) if channel.unsent > 0 => Some("see `outbox why`".into()),
        ([], _) => channel.reason.as_deref().map(|it| brief(it).into()),
        // It concerns the channel.
        ([only], state) if state != ChannelState::Ok => Some(only.words.clone()),
        _ => {
            let each = told.iter().map(ToString::to_string);
            Some(each.collect::<Vec<_>>().join("; "))
        }
    }
}

/// The reason in a few words, at the end of a drain.
fn few(why: &Why, report: &DrainReport) -> String {
    match (why.reason, &report.ended) {
        _ if why.obstacle.is_some() => reasons::few(why),
        (Reason::Due | Reason::NoDrain, Ended::Deadline) => "due, but the deadline passed".into(),
        (Reason::Due | Reason::NoDrain, Ended::Cancelled) => {
            "due, but the drain was stopped".into()
        }
        (Reason::Due | Reason::NoDrain, _) if report.refused > 0 => {
            "due, but rows refuse every change".into()
        }
        (Reason::Due | Reason::NoDrain, _) => "became due at its end; drain again".into(),
        _ => reasons::few(why),
    }
}

/// The file, and the settings as an option of `why`.
fn place(arguments: &Arguments) -> (&Path, String) {
    let db = arguments.database.db.as_path();
    let config = arguments.config.as_deref();
    let with = config.map(|it| format!("--config {}", quoted_path(it)));
    (db, with.unwrap_or_default())
}

fn attention(
    report: &DrainReport,
    (db, with): &(&Path, String),
    out: &mut Out,
) -> anyhow::Result<()> {
    let (dead, conflicts) = (report.stats.total.dead, report.stats.conflicts);
    if dead > 0 {
        let text = count(dead, "dead letter waits", "dead letters wait");
        let text = format!("{text} for a person: see `{}`", command("why", db, with));
        out.paragraph("", Tone::Bad, &text)?;
    }
    if conflicts > 0 {
        let text = count(conflicts, "conflict waits", "conflicts wait");
        let text = format!(
            "{text} for a person: see `{}`",
            command("conflicts", db, "")
        );
        out.paragraph("", Tone::Bad, &text)?;
    }
    Ok(())
}
