//! `outbox why`: what a message waits for, whose fault that is, and what to do next.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use sqlite_outbox::{DeadReason, Outbox, Reason, Why, WhyGroup};

use super::curl::quoted;
use crate::args::{Database, Exit, Format};
use crate::output::{Out, Tone, count, scrub};
use crate::settings;

/// Say why a message has not arrived, or what the file waits for
///
/// It ends with whose fault that is and what to do next.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  outbox why till.db S-104522
  outbox why till.db --config outbox.toml")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// An id, a dedupe key or a message id; without it, the whole file
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

const CONFLICTS: &str = "A key was taken by other content, and the later message is not sent. It \
    is in the table outbox_conflict: compare it with the key's holder, enqueue what is missing \
    under another key, delete the rest.";

#[derive(Serialize)]
struct One<'a> {
    id: i64,
    channel: &'a str,
    status: &'static str,
    reason_code: &'static str,
    fault: &'static str,
    since: Option<i64>,
    until: Option<i64>,
    detail: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_stale: Option<bool>,
    clock_behind_ms: Option<i64>,
    behind: Option<Box<One<'a>>>,
    advice: &'static str,
    text: String,
}

impl<'a> One<'a> {
    fn new(why: &'a Why) -> Self {
        Self {
            id: why.id,
            channel: &why.channel,
            status: why.status.as_str(),
            reason_code: why.reason.code(),
            fault: why.fault.as_str(),
            since: why.since,
            until: why.until,
            detail: why.detail.as_deref(),
            lease_stale: match why.reason {
                Reason::Claimed { stale, .. } => Some(stale),
                _ => None,
            },
            clock_behind_ms: why.clock_behind,
            behind: why.behind.as_deref().map(|it| Box::new(Self::new(it))),
            advice: why.advice(),
            text: why.to_string(),
        }
    }
}

#[derive(Serialize)]
struct Whole<'a> {
    groups: Vec<Group<'a>>,
    dead: Vec<Dead<'a>>,
    conflicts: u64,
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
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let loaded = match &arguments.config {
        Some(path) => Some(settings::load(path, None)?),
        None => None,
    };
    let dispatcher = loaded.as_ref().map(|it| &it.dispatcher);
    let outbox = arguments.database.open()?;
    let mut out = Out::new();
    if let Some(which) = &arguments.which {
        let id = outbox.find(which, arguments.channel.as_deref())?.id;
        let why = match dispatcher {
            Some(dispatcher) => outbox.why_routed(id, dispatcher)?,
            None => outbox.why(id)?,
        };
        match arguments.format.json {
            true => out.json(&One::new(&why))?,
            false => out.paragraph("", Tone::Plain, &why.to_string())?,
        }
    } else {
        let groups = match dispatcher {
            Some(dispatcher) => outbox.why_all_routed(dispatcher)?,
            None => outbox.why_all()?,
        };
        whole(&outbox, &groups, arguments.format.json, &mut out)?;
    }
    out.flush()?;
    Ok(Exit::Done)
}

fn whole(outbox: &Outbox, groups: &[WhyGroup], json: bool, out: &mut Out) -> anyhow::Result<()> {
    let dead = outbox.dead_reasons()?;
    let conflicts = outbox.stats()?.conflicts;
    if json {
        return out.json(&Whole {
            groups: groups
                .iter()
                .map(|it| Group {
                    messages: it.messages,
                    why: One::new(&it.why),
                })
                .collect(),
            dead: dead.iter().map(Dead::new).collect(),
            conflicts,
        });
    }
    let mut first = true;
    // The dead are told below, by their reasons.
    let waiting = groups.iter().filter(|it| it.why.reason != Reason::Dead);
    for group in waiting {
        if !std::mem::take(&mut first) {
            out.line("")?;
        }
        let channel = scrub(&group.why.channel);
        let head = format!(
            "{channel}: {}",
            count(group.messages, "message", "messages like this one")
        );
        out.line(out.paint(Tone::Head, &head))?;
        out.paragraph("", Tone::Plain, &group.why.to_string())?;
    }
    for reason in &dead {
        if !std::mem::take(&mut first) {
            out.line("")?;
        }
        let letters = count(reason.count, "dead letter", "dead letters");
        let head = format!(
            "{}: {letters}, {}",
            scrub(&reason.channel),
            scrub(&reason.code)
        );
        out.line(out.paint(Tone::Bad, &head))?;
        let text = reason
            .text
            .as_deref()
            .unwrap_or("nothing is recorded of why");
        out.paragraph(
            "",
            Tone::Plain,
            &format!("For example message {}: {text}", reason.sample),
        )?;
        let path = outbox.path().to_string_lossy();
        let command = format!(
            "outbox retry {} --all --channel {} --code {}",
            quoted(&path),
            quoted(&reason.channel),
            quoted(&reason.code)
        );
        out.line(format!("Mend the cause, then: {}", scrub(&command)))?;
    }
    if conflicts > 0 {
        if !std::mem::take(&mut first) {
            out.line("")?;
        }
        let head = count(conflicts, "conflict waits", "conflicts wait");
        out.line(out.paint(Tone::Bad, &format!("{head} for a person")))?;
        out.paragraph("", Tone::Plain, CONFLICTS)?;
    }
    match first {
        true => out.line("nothing is waiting"),
        false => Ok(()),
    }
}
