//! `outbox conflicts`: duplicates with other content, and what becomes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;
use clap::{ArgGroup, Args};
use serde::Serialize;
use sqlite_outbox::{Conflict, Entry, Error, Outbox, Resolution, Status};

use super::entry::{self, Body, as_base64, difference};
use super::operate::{early, operator};
use super::shell::{command, option};
use crate::args::{Database, Exit, Format, Usage};
use crate::output::{Column, Out, Table, Tone, age, count, exact, now};
use crate::signals::Signals;

/// Conflicts read at once; none is read while others are being printed.
const PAGE: usize = 100;

/// List messages whose key was taken, and decide about them
///
/// By plain SQL (INSERT … ON CONFLICT DO NOTHING) a second message with a key that is taken is not
/// enqueued. If its content is another, it is kept aside here, and not sent, until a person sends
/// it under another key, lets it replace the message that holds the key, or drops it. With a
/// number and nothing else, both contents are shown. With --json nothing is lost: what is not UTF-8
/// stands as payload_base64, channel_base64 and so on, as in an export.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("decision").args(["enqueue_as", "replace", "drop"])),
    after_help = "\
Examples:
  outbox conflicts till.db
  outbox conflicts till.db 3
  outbox conflicts till.db 3 --enqueue-as S-104522-b --reason 'two sales, one number'
  outbox conflicts till.db --all --channel sales --drop --dry-run"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Numbers of conflicts, as listed
    #[arg(value_name = "CONFLICT")]
    which: Vec<i64>,
    /// Only this channel
    #[arg(long, conflicts_with = "which")]
    channel: Option<String>,
    /// Decide about all of them, or all of the channel
    #[arg(long, conflicts_with_all = ["which", "enqueue_as"], requires = "decision")]
    all: bool,
    /// Send it after all, as a message of its own under this dedupe key
    #[arg(long, value_name = "KEY")]
    enqueue_as: Option<String>,
    /// Put it in the place of the message that holds the key, if that was never attempted; one of each
    /// key
    #[arg(long)]
    replace: bool,
    /// Do not send it; its payload is kept for the record
    #[arg(long)]
    drop: bool,
    /// Why, for the record
    #[arg(long, value_name = "TEXT", requires = "decision")]
    reason: Option<String>,
    /// Say what would be done, and change nothing
    #[arg(long, requires = "decision")]
    dry_run: bool,
    #[command(flatten)]
    format: Format,
}

/// A conflict as JSON; the texts that are no UTF-8 stand a second time as `<column>_base64`.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    id: i64,
    at: i64,
    holder: Option<i64>,
    holder_status: Option<&'static str>,
    channel: &'a str,
    dedupe_key: &'a str,
    event_type: Option<&'a str>,
    recipient: Option<&'a str>,
    ordering_key: Option<&'a str>,
    principal: Option<&'a str>,
    content_type: &'a str,
    headers: Option<&'a str>,
    available_at: Option<i64>,
    expires_at: Option<i64>,
    #[serde(flatten)]
    body: Body<'a>,
    #[serde(flatten)]
    broken: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    differs_in: Option<String>,
    /// The message that holds the key, unless the conflict is shown with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder_message: Option<Box<entry::Row<'a>>>,
}

impl<'a> Row<'a> {
    pub(super) fn new(conflict: &'a Conflict) -> Self {
        Self {
            id: conflict.id,
            at: conflict.at,
            holder: conflict.holder,
            holder_status: conflict.holder_status.map(|it| it.as_str()),
            channel: &conflict.channel,
            dedupe_key: &conflict.dedupe_key,
            event_type: conflict.event_type.as_deref(),
            recipient: conflict.recipient.as_deref(),
            ordering_key: conflict.ordering_key.as_deref(),
            principal: conflict.principal.as_deref(),
            content_type: &conflict.content_type,
            headers: conflict.headers.as_deref(),
            available_at: conflict.available_at,
            expires_at: conflict.expires_at,
            body: Body::of(&conflict.payload),
            broken: as_base64(&conflict.broken),
            differs_in: None,
            holder_message: None,
        }
    }

    fn beside(mut self, conflict: &Conflict, holder: Option<&'a Entry>) -> Self {
        self.differs_in = holder.map(|it| difference(conflict, it));
        self.holder_message = holder.map(|it| Box::new(entry::Row::new(it)));
        self
    }
}

#[derive(Serialize)]
struct Done {
    count: u64,
    dry_run: bool,
    resolved: Vec<Resolved>,
}

#[derive(Serialize)]
struct Resolved {
    conflict: i64,
    message: Option<i64>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let mut out = Out::new();
    match arguments.decision()? {
        Some(resolution) => decide(arguments, &resolution, &mut out)?,
        None => {
            let outbox = arguments.database.open_to_read()?;
            match (arguments.which.as_slice(), arguments.format.json) {
                ([], json) => list(&outbox, arguments, json, &mut out)?,
                (which, json) => which.iter().try_for_each(|id| {
                    show(&outbox, *id, &arguments.database.db, json, &mut out)
                })?,
            }
        }
    }
    out.flush()?;
    Ok(Exit::Done)
}

impl Arguments {
    fn decision(&self) -> anyhow::Result<Option<Resolution>> {
        let resolution = match (&self.enqueue_as, self.replace, self.drop) {
            (Some(key), ..) => Resolution::Enqueue(key.clone()),
            (None, true, _) => Resolution::Replace,
            (None, false, true) => Resolution::Drop,
            (None, false, false) => return Ok(None),
        };
        let wrong = match (self.which.as_slice(), &self.enqueue_as) {
            ([], _) if !self.all => "which conflict? give its number, or --all",
            ([_, _, ..], Some(_)) => "--enqueue-as takes one conflict: a key is for one message",
            _ => return Ok(Some(resolution)),
        };
        Err(Usage(wrong.into()).into())
    }
}

fn decide(arguments: &Arguments, resolution: &Resolution, out: &mut Out) -> anyhow::Result<()> {
    let outbox = arguments.database.open()?;
    let signals = Signals::listen()?;
    let mut operator = operator(&outbox, arguments.reason.as_deref()).unless(&signals.cancel());
    if arguments.dry_run {
        operator = operator.dry_run();
    }
    // Once each, in the order in which they were given.
    let mut named = BTreeSet::new();
    let mut which = arguments.which.clone();
    which.retain(|it| named.insert(*it));
    if arguments.all {
        each(&outbox, arguments.channel.as_deref(), |page| {
            which.extend(page.iter().map(|it| it.id));
            Ok(())
        })?;
    }
    let (done, ended) = operator.resolve_each(&which, resolution);
    if let Err(error @ Error::Interrupted { .. }) = ended {
        return Err(early(error, 0, |number| said(number, arguments.dry_run)));
    }
    if let (Err(error), Some(conflict)) = (ended, which.get(done.len())) {
        let before = match done.len() {
            0 if which.len() > 1 => ", and all others".into(),
            0 => String::new(),
            number => format!(
                ", and those after it; {} before it",
                said(number as u64, arguments.dry_run)
            ),
        };
        return Err(error).context(format!("conflict {conflict} stays{before}"));
    }
    // Whatever id it would get, it has none yet.
    let known = !arguments.dry_run || *resolution == Resolution::Replace;
    let resolved: Vec<_> = which
        .into_iter()
        .zip(done)
        .map(|(conflict, message)| Resolved {
            conflict,
            message: message.filter(|_| known),
        })
        .collect();
    if arguments.format.json {
        return out.json(&Done {
            count: resolved.len() as u64,
            dry_run: arguments.dry_run,
            resolved,
        });
    }
    let verb = if arguments.dry_run { "would be" } else { "is" };
    for Resolved { conflict, message } in &resolved {
        let id = message.map(|it| format!(" {it}")).unwrap_or_default();
        out.text(&match resolution {
            Resolution::Enqueue(key) => {
                format!("conflict {conflict} {verb} enqueued: message{id}, key {key}")
            }
            Resolution::Replace => {
                format!("conflict {conflict} {verb} put in the place of the content of message{id}")
            }
            _ => format!("conflict {conflict} {verb} dropped"),
        })?;
    }
    match resolved.is_empty() {
        true => out.line("no conflict"),
        false => Ok(()),
    }
}

fn said(number: u64, dry: bool) -> String {
    let conflicts = count(number, "conflict", "conflicts");
    match dry {
        true => format!("{conflicts} would be settled"),
        false => format!("{conflicts} settled"),
    }
}

/// Page by page, so that no read transaction is open while something is printed.
fn each(
    outbox: &Outbox,
    channel: Option<&str>,
    mut show: impl FnMut(&[Conflict]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut after = 0;
    loop {
        let page = outbox.conflicts(channel, after, PAGE)?;
        let Some(last) = page.last() else {
            return Ok(());
        };
        after = last.id;
        show(&page)?;
    }
}

fn list(outbox: &Outbox, arguments: &Arguments, json: bool, out: &mut Out) -> anyhow::Result<()> {
    let channel = arguments.channel.as_deref();
    if json {
        return each(outbox, channel, |page| {
            page.iter().try_for_each(|it| json_row(outbox, it, out))
        });
    }
    let mut table = Table::new([
        Column::number("CONFLICT"),
        Column::text("CHANNEL", 8).spare(1),
        Column::key("KEY", 14),
        Column::number("AGE").spare(0),
        Column::word("HOLDER"),
        Column::text("DIFFERS IN", 10).spare(2),
    ]);
    let now = now();
    let mut first = None;
    each(outbox, channel, |page| {
        first = first.or(page.first().map(|it| it.id));
        for conflict in page {
            table.row(cells(outbox, conflict, now)?);
        }
        table.print(out)
    })?;
    let Some(first) = first else {
        return out.line("no conflict");
    };
    out.line("\nNone of them is sent. Both contents, and what to do:")?;
    let rest = first.to_string();
    out.command(2, &command("conflicts", &arguments.database.db, &rest))
}

/// The message that holds the key now.
fn holder(outbox: &Outbox, conflict: &Conflict) -> sqlite_outbox::Result<Option<Entry>> {
    let holder = conflict.holder.map(|it| outbox.get(it)).transpose()?;
    Ok(holder.flatten())
}

fn json_row(outbox: &Outbox, conflict: &Conflict, out: &mut Out) -> anyhow::Result<()> {
    let holder = holder(outbox, conflict)?;
    out.json(&Row::new(conflict).beside(conflict, holder.as_ref()))
}

fn cells(outbox: &Outbox, conflict: &Conflict, now: i64) -> anyhow::Result<[(String, Tone); 6]> {
    let holder = holder(outbox, conflict)?;
    let differs = holder.as_ref().map(|it| difference(conflict, it));
    let holder = match (conflict.holder, conflict.holder_status) {
        (Some(id), Some(status)) => format!("message {id}, {status}"),
        _ => "gone".into(),
    };
    Ok([
        (conflict.id.to_string(), Tone::Plain),
        (conflict.channel.clone(), Tone::Plain),
        (conflict.dedupe_key.clone(), Tone::Plain),
        (age(now.saturating_sub(conflict.at)), Tone::Plain),
        (holder, Tone::Plain),
        (differs.unwrap_or_default(), Tone::Plain),
    ])
}

fn show(outbox: &Outbox, id: i64, db: &Path, json: bool, out: &mut Out) -> anyhow::Result<()> {
    let conflict = outbox.conflict(id)?.ok_or(Error::NoConflict(id))?;
    if json {
        return json_row(outbox, &conflict, out);
    }
    let holder = holder(outbox, &conflict)?;
    let state = match &holder {
        Some(it) => format!("message {}, which is {}", it.id, it.status),
        None => "no message any more".into(),
    };
    let differs = holder.as_ref().map(|it| difference(&conflict, it));
    let moment = |at: Option<i64>| at.map(exact);
    let fields = [
        ("conflict", Some(id.to_string())),
        ("channel", Some(conflict.channel.clone())),
        ("dedupe key", Some(conflict.dedupe_key.clone())),
        ("put in", Some(exact(conflict.at))),
        ("the key is of", Some(state)),
        ("differs in", differs),
        ("event type", conflict.event_type.clone()),
        ("recipient", conflict.recipient.clone()),
        ("ordering key", conflict.ordering_key.clone()),
        ("principal", conflict.principal.clone()),
        ("content type", Some(conflict.content_type.clone())),
        ("headers", conflict.headers.clone()),
        ("available", moment(conflict.available_at)),
        ("expires", moment(conflict.expires_at)),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            out.field(name, 14, &value)?;
        }
    }
    super::show::payload("payload that is kept aside", &conflict.payload, out)?;
    if let Some(it) = &holder {
        super::show::payload("payload of the key's holder", &it.payload, out)?;
    }
    out.line("\nWhat to do, one of:")?;
    // What was tried may have arrived.
    let open = holder.as_ref().is_some_and(|it| {
        matches!(it.status, Status::Pending | Status::Waiting)
            && it.last_attempt_at.is_none()
            && it.ordering_key == conflict.ordering_key
    });
    let anew = free_key(outbox, &conflict)?;
    let anew = anew.map_or("--enqueue-as".into(), |it| option("--enqueue-as", &it));
    for (possible, choice, what) in [
        (true, &*anew, "send it too, under another key"),
        (open, "--replace", "send it in the holder's place"),
        (true, "--drop", "forget it"),
    ] {
        if possible {
            let rest = format!("{id} {choice}   # {what}");
            out.command(2, &command("conflicts", db, &rest))?;
        }
    }
    Ok(())
}

/// The taken key with a number behind it, under which there is no message yet.
fn free_key(outbox: &Outbox, conflict: &Conflict) -> sqlite_outbox::Result<Option<String>> {
    const TRIES: u32 = 100;
    for number in 2..TRIES {
        let key = format!("{}-{number}", conflict.dedupe_key);
        match outbox.find(&format!("key:{key}"), Some(&conflict.channel)) {
            Err(Error::NotFound(_)) => return Ok(Some(key)),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
    Ok(None)
}
