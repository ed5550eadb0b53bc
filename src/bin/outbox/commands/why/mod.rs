//! `outbox why`: what a message waits for, whose fault that is, and what to do next.

mod advice;
mod letters;
mod mend;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use sqlite_outbox::{DeadReason, Dispatcher, Entry, Outbox, Reason, Status, Why, WhyGroup};

use advice::Place;

use super::check::Found;
use super::crowd;
use super::damage::Damage;
use super::disk;
use super::findings;
use super::shell;
use super::status;
use crate::args::{Database, Exit, Format};
use crate::output::{Out, Tone, brief, count, printable_name};
use crate::settings;

/// Say why a message has not arrived, or what the file waits for
///
/// It ends with whose fault that is and what to do next. Its exit code is 0 whatever it says, and 1
/// where there is no such message; that of status and check differs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  outbox why till.db S-104522
  outbox why till.db --config outbox.toml")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// An id, a dedupe key or a message id; id:17, key:17 or message:… says which; without it, the
    /// whole file
    which: Option<String>,
    /// The channel, where a dedupe key stands in several
    #[arg(long, requires = "which")]
    channel: Option<String>,
    /// The settings file: to see channels without a route
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    format: Format,
}

const CONFLICTS: &str = "A key was taken by other content, and the later message is not sent. \
    Compare it with the key's holder; then enqueue it under another key, let it replace the holder, \
    where that was never tried, or drop it.";

#[derive(Serialize)]
struct One<'a> {
    id: i64,
    channel: &'a str,
    dedupe_key: &'a str,
    status: &'static str,
    reason_code: &'static str,
    fault: &'static str,
    since: Option<i64>,
    noticed: Option<i64>,
    until: Option<i64>,
    detail: Option<&'a str>,
    /// What its last failed attempt came to.
    failure: Option<&'a str>,
    /// What the failure came to that it waits after, its channel's or its own.
    cause: Option<&'a str>,
    /// `null`: not known without --config.
    routed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_stale: Option<bool>,
    clock_behind_ms: Option<i64>,
    behind: Option<Box<One<'a>>>,
    advice: &'static str,
    remedy: Option<&'static str>,
    commands: Vec<String>,
    /// What keeps all of the file from being sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    obstacle: Option<Found<'a>>,
    /// What may matter beside that, and is no cause as far as the file tells.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<Found<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conflicts: Option<Vec<i64>>,
    text: String,
}

impl<'a> One<'a> {
    fn new(why: &'a Why, place: &Place<'_>) -> Self {
        Self {
            id: why.id,
            channel: &why.channel,
            dedupe_key: &why.dedupe_key,
            status: why.status.as_str(),
            reason_code: why.reason.code(),
            fault: why.fault.as_str(),
            since: why.since,
            noticed: why.noticed,
            until: why.until,
            detail: why.detail.as_deref(),
            failure: why.code.as_deref(),
            cause: why.cause.as_deref(),
            routed: why.routed,
            lease_stale: (why.status == Status::Sending).then_some(why.stale),
            clock_behind_ms: why.clock_behind,
            behind: why
                .behind
                .as_deref()
                .map(|it| Box::new(Self::new(it, place))),
            advice: why.advice(),
            remedy: why.remedy(),
            commands: place.next(why),
            obstacle: why.obstacle.as_ref().map(|it| Found::new(it, place.db())),
            notes: why
                .notes
                .iter()
                .map(|it| Found::new(it, place.db()))
                .collect(),
            conflicts: None,
            text: why.to_string(),
        }
    }
}

/// A message of which nothing but its own row can be read.
#[derive(Serialize)]
struct Bare<'a> {
    id: i64,
    channel: &'a str,
    dedupe_key: &'a str,
    status: &'static str,
    detail: Option<&'a str>,
    text: String,
}

#[derive(Serialize)]
struct Whole<'a> {
    groups: Vec<Group<'a>>,
    dead: Vec<Dead<'a>>,
    conflicts: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    findings: Vec<Found<'a>>,
}

#[derive(Serialize)]
struct Group<'a> {
    messages: u64,
    why: One<'a>,
}

/// Dead letters that failed in the same way.
#[derive(Serialize)]
pub(super) struct Dead<'a> {
    channel: &'a str,
    code: &'a str,
    http_status: Option<i64>,
    count: u64,
    oldest: Option<i64>,
    newest: Option<i64>,
    sample: i64,
    text: Option<&'a str>,
    /// Whose fault the sample is.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'static str>,
}

impl<'a> Dead<'a> {
    pub(super) fn new(reason: &'a DeadReason) -> Self {
        Self {
            channel: &reason.channel,
            code: &reason.code,
            http_status: reason.http_status,
            count: reason.count,
            oldest: reason.oldest,
            newest: reason.newest,
            sample: reason.sample,
            text: reason.text.as_deref(),
            fault: None,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let loaded = match &arguments.config {
        Some(path) => Some(settings::load(path, None)?),
        None => None,
    };
    let dispatcher = loaded.as_ref().map(|it| &it.dispatcher);
    let outbox = arguments.database.open_to_read()?;
    let db = arguments.database.db.as_path();
    let place = Place::new(&outbox, db, arguments.config.as_deref(), loaded.as_ref());
    let json = arguments.format.json;
    let mut damage = Damage::default();
    let mut out = Out::new();
    let full = disk::full(&outbox)?;
    let hindered = |why: Why| match &full {
        Some(full) => why.hindered(full),
        None => why,
    };
    if let Some(which) = &arguments.which {
        let entry = damage.find(&outbox, which, arguments.channel.as_deref())?;
        let why = match dispatcher {
            Some(dispatcher) => outbox.why_routed(entry.id, dispatcher),
            None => outbox.why(entry.id),
        };
        match damage.part("what it waits for", why.map(Some))? {
            Some(why) => one(&outbox, &hindered(why), &place, json, &mut damage, &mut out)?,
            None => row(&entry, json, &mut out)?,
        }
    } else {
        let dispatcher = dispatcher.map(|it| it as &dyn Dispatcher);
        let mut groups = damage.why_all(&outbox, dispatcher)?;
        for group in &mut groups {
            group.why = hindered(group.why.clone());
        }
        whole(&outbox, &groups, &place, json, &mut damage, &mut out)?;
    }
    out.flush()?;
    damage.end(Exit::Done)
}

/// What the row of a message says, where the reason cannot be read.
fn row(entry: &Entry, json: bool, out: &mut Out) -> anyhow::Result<()> {
    let text = format!(
        "Message {} of {} (key {}) is {}.",
        entry.id,
        printable_name(&entry.channel),
        printable_name(&entry.dedupe_key),
        entry.status
    );
    if json {
        return out.json(&Bare {
            id: entry.id,
            channel: &entry.channel,
            dedupe_key: &entry.dedupe_key,
            status: entry.status.as_str(),
            detail: entry.last_error.as_deref(),
            text,
        });
    }
    out.paragraph("", Tone::Plain, &text)?;
    match &entry.last_error {
        Some(error) => out.paragraph(
            "",
            Tone::Plain,
            &format!("Its last error: {}", brief(error)),
        ),
        None => Ok(()),
    }
}

fn one(
    outbox: &Outbox,
    why: &Why,
    place: &Place<'_>,
    json: bool,
    damage: &mut Damage,
    out: &mut Out,
) -> anyhow::Result<()> {
    let conflicts = damage.part("its conflicts", outbox.conflicts_of(why.id))?;
    if json {
        let ids: Vec<_> = conflicts.iter().map(|it| it.id).collect();
        return out.json(&One {
            conflicts: Some(ids),
            ..One::new(why, place)
        });
    }
    explain(why, place, out)?;
    if !conflicts.is_empty() {
        let (key, channel) = (
            printable_name(&why.dedupe_key),
            printable_name(&why.channel),
        );
        let text = format!("Its key {key} of {channel} is contested. {CONFLICTS}");
        out.paragraph("", Tone::Bad, &text)?;
        command(&place.conflicts(&conflicts), out)?;
    }
    Ok(())
}

/// The sentences, and what to type next.
fn explain(why: &Why, place: &Place<'_>, out: &mut Out) -> anyhow::Result<()> {
    let mut text = why.to_string();
    if let Some(caveat) = place.caveat(why) {
        text.push(' ');
        text.push_str(caveat);
    }
    out.paragraph("", Tone::Plain, &text)?;
    let next = place.next(why);
    next.iter().try_for_each(|it| command(it, out))
}

fn command(text: &str, out: &mut Out) -> anyhow::Result<()> {
    out.command(2, text)
}

fn whole(
    outbox: &Outbox,
    groups: &[WhyGroup],
    place: &Place<'_>,
    json: bool,
    damage: &mut Damage,
    out: &mut Out,
) -> anyhow::Result<()> {
    let dead = damage.part("why letters are dead", outbox.dead_reasons())?;
    let stats = damage.stats(outbox)?;
    let conflicts = stats.conflicts;
    let found = findings::told_of(outbox, &stats);
    let found = damage.part("what else went wrong", found)?;
    let contested = match conflicts {
        0 => Vec::new(),
        _ => damage.part("whose key is contested", outbox.conflicts(None, 0, 1))?,
    };
    if json {
        return out.json(&Whole {
            groups: groups
                .iter()
                .map(|it| Group {
                    messages: it.messages,
                    why: One::new(&it.why, place),
                })
                .collect(),
            dead: letters::blamed(outbox, &dead),
            conflicts,
            findings: found.iter().map(|it| Found::new(it, place.db())).collect(),
        });
    }
    let mut first = true;
    let mut gap = |out: &mut Out| match std::mem::take(&mut first) {
        true => Ok(()),
        false => out.line(""),
    };
    if damage.is_met() {
        // What the reasons leave out is in the numbers.
        gap(out)?;
        let mut text = status::waiting(&stats);
        if let Some(more) = status::for_a_person(&stats) {
            text.push_str(&format!("; {more}"));
        }
        out.paragraph("", Tone::Plain, &text)?;
    }
    // The dead are told below, by their reasons.
    let waiting = groups.iter().filter(|it| it.why.reason != Reason::Dead);
    let waiting: Vec<_> = waiting.collect();
    let many = crowd::is_crowd(waiting.len(), out);
    let (waiting, alike) = crowd::alike(many, waiting, |it| it.why.reason.code());
    for group in waiting {
        gap(out)?;
        let channel = printable_name(&group.why.channel);
        let head = format!(
            "{channel}: {}",
            count(group.messages, "message", "messages like this one")
        );
        out.line(out.paint(Tone::Head, &head))?;
        let head = group.why.behind.as_deref();
        match head.is_some_and(|it| it.reason == Reason::Dead) {
            // What to type for a dead letter stands with the dead.
            true => out.paragraph("", Tone::Plain, &group.why.to_string())?,
            false => explain(&group.why, place, out)?,
        }
    }
    for (code, more) in alike {
        gap(out)?;
        let messages = more.iter().map(|it| it.messages).sum();
        let messages = count(messages, "message", "messages");
        crowd::more(
            more.len(),
            &format!(" with {messages} that wait so: {code}"),
            out,
        )?;
    }
    letters::tell(outbox, &dead, place, &mut gap, out)?;
    if conflicts > 0 {
        gap(out)?;
        let head = count(conflicts, "conflict waits", "conflicts wait");
        out.line(out.paint(Tone::Bad, &format!("{head} for a person")))?;
        if let Some(first) = contested.first() {
            let (key, channel) = (
                printable_name(&first.dedupe_key),
                printable_name(&first.channel),
            );
            let which = if conflicts > 1 { "The first: " } else { "" };
            out.paragraph("", Tone::Plain, &format!("{which}key {key} of {channel}."))?;
        }
        out.paragraph("", Tone::Plain, CONFLICTS)?;
        command(&place.conflicts(&[]), out)?;
    }
    for finding in found {
        let told = |it: &WhyGroup| {
            let mut known = it.why.obstacle.iter().chain(&it.why.notes);
            known.any(|it| it.code == finding.code)
        };
        // That nobody sends is the reason of those.
        if finding.code == findings::UNATTENDED || groups.iter().any(told) {
            continue;
        }
        gap(out)?;
        let tone = match finding.needs_person() {
            true => Tone::Bad,
            false => Tone::Plain,
        };
        out.paragraph("", tone, &finding.text)?;
        out.paragraph("", Tone::Plain, &finding.remedy)?;
        if !finding.command.is_empty() {
            command(&place.helps(&finding.command), out)?;
        }
    }
    match first {
        true => out.line("nothing is waiting"),
        false => Ok(()),
    }
}
