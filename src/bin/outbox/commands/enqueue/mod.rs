//! `outbox enqueue`: one message, or one for each line of a file.

pub(super) mod exported;
mod lines;
mod source;

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;
use sqlite_outbox::{
    DEFAULT_MAX_PAYLOAD, Enqueued, Entry, Filter, Message, OnDuplicate, Outbox, Status,
};

use super::operate::{name, operator};
use super::shell::command;

use crate::args::{self, Database, Exit, Format, Usage};
use crate::nearest::meant;
use crate::output::{Out, ago, note, now};

/// Put a message into the outbox, or one for each line of a file
///
/// When the key is taken by a message with the same content, there is nothing to do. Other content
/// is never lost: it is kept aside and not sent until a person decides (`outbox conflicts`), and
/// the exit code is 0. With --on-duplicate fail it is refused.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  outbox enqueue till.db --channel sales --key S-104522 '{\"total\": 1250}'
  outbox enqueue till.db --channel sales --lines orders.jsonl --key-from /order_id
  outbox init new.db
  outbox export old.db | outbox enqueue new.db --lines - --exported")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// The route the message takes
    #[arg(long, required_unless_present = "exported")]
    channel: Option<String>,
    /// The dedupe key: a second message with it is not enqueued [default: random]
    #[arg(long, conflicts_with = "lines")]
    key: Option<String>,
    /// Take the dedupe key from this place in the JSON payload, e.g. /order_id
    #[arg(long, value_name = "POINTER", conflicts_with = "key")]
    key_from: Option<String>,
    /// What happened, e.g. sale.completed
    #[arg(long, value_name = "T")]
    event_type: Option<String>,
    /// Phone number, partner, or part of the URL
    #[arg(long, value_name = "R")]
    recipient: Option<String>,
    /// Messages with the same one arrive in order, one at a time
    #[arg(long, value_name = "O")]
    ordering_key: Option<String>,
    /// Whose credentials it goes out with
    #[arg(long, value_name = "P")]
    principal: Option<String>,
    /// Not before this span has passed, e.g. 10m
    #[arg(long, value_name = "D", value_parser = args::delay)]
    delay: Option<Duration>,
    /// Not later than this span from now, e.g. 24h
    #[arg(long, value_name = "D", value_parser = args::duration)]
    ttl: Option<Duration>,
    /// A further request header; never credentials
    #[arg(long, value_name = "NAME: VALUE", value_parser = args::header)]
    header: Vec<(String, String)>,
    /// The payload's media type [default: application/json]
    #[arg(long, value_name = "CT")]
    content_type: Option<String>,
    /// What to do when the key is taken
    #[arg(long, value_name = "WHAT", default_value = "ignore")]
    on_duplicate: Choice,
    /// The payload, or - for standard input
    #[arg(required_unless_present_any = ["file", "lines"], conflicts_with_all = ["file", "lines"])]
    payload: Option<String>,
    /// Take the payload from this file, - for standard input
    #[arg(long, value_name = "PATH", conflicts_with = "lines")]
    file: Option<PathBuf>,
    /// Make a message of each line that is not empty, - for standard input. It ends at the first that
    /// is refused; those before it are enqueued
    #[arg(long, value_name = "PATH")]
    lines: Option<PathBuf>,
    /// The lines come from `outbox export`: take channel, keys, message id and all else that is to be
    /// sent from them. They are enqueued now, due now or at their own moment, with a fresh budget:
    /// dead letters too. Left out are those that are sent, expired or cancelled; the state of a
    /// channel, such as a pause, does not come along
    #[arg(long, requires = "lines", conflicts_with_all = [
        "payload", "file", "key", "channel", "key_from", "event_type", "recipient", "ordering_key", "principal", "delay",
        "ttl", "header", "content_type",
    ])]
    exported: bool,
    /// Go on after a line that is refused; each is named on stderr, with --json on stdout too, and the
    /// exit code is 1
    #[arg(long, requires = "lines")]
    skip_bad: bool,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Choice {
    /// Keep the message that is there; other content is kept aside, see `outbox conflicts`
    Ignore,
    /// End with an error
    Fail,
    /// Latest wins, and the former payload is kept for the record; if it was attempted already, as
    /// ignore
    Replace,
}

impl From<Choice> for OnDuplicate {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::Ignore => Self::Keep,
            Choice::Fail => Self::Fail,
            Choice::Replace => Self::Replace,
        }
    }
}

/// What became of one message.
#[derive(Serialize)]
struct Done<'a> {
    /// Which line of the input it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    id: i64,
    result: &'static str,
    /// Where the message stands that has the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
}

impl From<Enqueued> for Done<'_> {
    fn from(enqueued: Enqueued) -> Self {
        let result = match enqueued {
            Enqueued::New { .. } => "new",
            Enqueued::Replaced { .. } => "replaced",
            Enqueued::Duplicate { .. } => "duplicate",
            Enqueued::Conflict { .. } => "conflict",
        };
        Self {
            line: None,
            id: enqueued.id(),
            result,
            status: None,
        }
    }
}

pub(crate) fn run(mut arguments: Arguments) -> anyhow::Result<Exit> {
    if let (Some(delay), Some(ttl)) = (arguments.delay, arguments.ttl)
        && delay >= ttl
    {
        let text =
            "--delay is not shorter than --ttl: the message would expire before it may be sent";
        return Err(Usage(text.into()).into());
    }
    let outbox = arguments.database.open()?;
    let mut out = Out::new();
    let mut exit = Exit::Done;
    match (arguments.lines.take(), arguments.file.take()) {
        (Some(path), _) => exit = lines::run(&outbox, &arguments, &path, &mut out)?,
        (None, file) => {
            let payload = read_payload(arguments.payload.take(), file.as_deref())?;
            one(&outbox, &arguments, payload, &mut out)?;
        }
    }
    out.flush()?;
    Ok(exit)
}

fn one(
    outbox: &Outbox,
    arguments: &Arguments,
    payload: Vec<u8>,
    out: &mut Out,
) -> anyhow::Result<()> {
    warn_of_type(arguments.content_type.as_deref(), &payload);
    let message = message(arguments, payload)?;
    let operator = operator(outbox, None);
    let enqueued = outbox.transaction(|tx| operator.enqueue(tx, &message))?;
    let id = enqueued.id();
    let Some(entry) = outbox.get(id)? else {
        anyhow::bail!(
            "message {id} was enqueued, and is gone already: a trigger on the outbox may delete it, \
             which `{}` names, or another program did",
            command("check", &arguments.database.db, "")
        );
    };
    let taken = matches!(
        enqueued,
        Enqueued::Duplicate { .. } | Enqueued::Conflict { .. }
    );
    if matches!(enqueued, Enqueued::Conflict { .. }) {
        note(&format!(
            "message {id} has this key and OTHER content; the new one is kept aside and not sent: \
             `{}` shows both and decides",
            command("conflicts", &arguments.database.db, "")
        ));
    }
    if matches!(enqueued, Enqueued::New { .. }) {
        note_first(outbox, &entry)?;
    }
    if arguments.format.json {
        return out.json(&Done {
            status: taken.then_some(entry.status.as_str()),
            ..Done::from(enqueued)
        });
    }
    let name = name(&entry);
    let state = state(&entry, &arguments.database.db);
    out.text(&match enqueued {
        Enqueued::New { .. } => format!("{name} is enqueued"),
        Enqueued::Replaced { .. } => format!("{name} has the new content"),
        Enqueued::Duplicate { .. } => {
            format!("{name} is there already, with this content: {state}")
        }
        Enqueued::Conflict { .. } => format!("{name} is kept as it was: {state}"),
    })
}

/// Tells of a message that is the first in its channel, where the name may be mistyped.
fn note_first(outbox: &Outbox, entry: &Entry) -> anyhow::Result<()> {
    let own = Filter::new().channel(&entry.channel).limit(2);
    if outbox.list(&own)?.len() != 1 {
        return Ok(());
    }
    let channels = outbox.stats()?.channels;
    let names = channels.iter().map(|it| it.channel.as_str());
    let others: Vec<_> = names.filter(|it| *it != entry.channel).collect();
    // So few letters are near to any others.
    let long = entry.channel.chars().count() > 3;
    if let Some(meant) = meant(&entry.channel, &others).filter(|_| long) {
        note(&format!(
            "no message was ever in a channel {:?} before; there is {meant}",
            entry.channel
        ));
    }
    Ok(())
}

/// Where the holder of a key stands, and what brings it on its way if nothing does.
fn state(holder: &Entry, db: &Path) -> String {
    let when = holder.settled_at.map(|at| ago(at, now()));
    let when = when.map(|it| format!(" {it}")).unwrap_or_default();
    let retry = format!(
        "`{}` sends it after all",
        command("retry", db, &format!("id:{}", holder.id))
    );
    match holder.status {
        Status::Sent => format!("it was sent{when}"),
        Status::Dead => format!("it is a dead letter; {retry}"),
        Status::Expired => format!("it expired unsent{when}; {retry}"),
        Status::Cancelled => format!("it was cancelled{when} and is not sent; {retry}"),
        status => format!("it is {status}"),
    }
}

fn message(arguments: &Arguments, payload: Vec<u8>) -> anyhow::Result<Message> {
    let key = match &arguments.key_from {
        Some(pointer) => Some(key_at(&payload, pointer)?),
        None => arguments.key.clone(),
    };
    let mut message = body(arguments.channel.as_deref().unwrap_or_default(), payload);
    let content_type = arguments.content_type.as_deref();
    message = message.content_type(content_type.unwrap_or("application/json"));
    message = with(message, &key, Message::dedupe_key);
    message = with(message, &arguments.event_type, Message::event_type);
    message = with(message, &arguments.recipient, Message::recipient);
    message = with(message, &arguments.ordering_key, Message::ordering_key);
    message = with(message, &arguments.principal, Message::principal);
    for (name, value) in &arguments.header {
        message = message.header(name, value);
    }
    if let Some(span) = arguments.delay {
        message = message.delay(span);
    }
    if let Some(span) = arguments.ttl {
        message = message.ttl(span);
    }
    Ok(message.on_duplicate(arguments.on_duplicate.into()))
}

/// A message with text where it is text: people read it with `sqlite3`.
fn body(channel: &str, payload: Vec<u8>) -> Message {
    let message = match String::from_utf8(payload) {
        // A zero byte in a text hides what follows from programs in C.
        Ok(text) if !text.contains('\0') => Message::text(channel, text),
        Ok(text) => Message::bytes(channel, text),
        Err(other) => Message::bytes(channel, other.into_bytes()),
    };
    // A script does not read what it is told.
    message.keep_aside()
}

fn with(message: Message, value: &Option<String>, set: fn(Message, String) -> Message) -> Message {
    match value {
        Some(value) => set(message, value.clone()),
        None => message,
    }
}

/// The text or number at a JSON pointer of the payload.
fn key_at(payload: &[u8], pointer: &str) -> anyhow::Result<String> {
    let value: Value = serde_json::from_slice(payload).context("the payload is not JSON")?;
    match value.pointer(pointer) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        _ => bail!("the payload has no text or number at {pointer}"),
    }
}

/// True when the payload would go out under a false name.
pub(super) fn warn_of_type(content_type: Option<&str>, payload: &[u8]) -> bool {
    let wrong =
        content_type.is_none() && serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_err();
    if wrong {
        note("the payload is not JSON, but is labelled application/json; see --content-type");
    }
    wrong
}

/// The payload of the command line, of a file, or of standard input for `-`.
pub(super) fn read_payload(
    payload: Option<String>,
    file: Option<&Path>,
) -> anyhow::Result<Vec<u8>> {
    match (file, payload.unwrap_or_default()) {
        (Some(path), _) => whole(open(path)?, &path.to_string_lossy()),
        (None, dash) if dash == "-" => whole(open(Path::new("-"))?, "-"),
        (None, text) => Ok(text.into_bytes()),
    }
}

fn open(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    if path.as_os_str() == "-" {
        if std::io::stdin().is_terminal() {
            note("reading standard input; end it with Ctrl-D");
        }
        return Ok(Box::new(std::io::stdin()));
    }
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(Box::new(file))
}

/// Everything there is, unless it is too much to be a payload.
fn whole(source: impl Read, name: &str) -> anyhow::Result<Vec<u8>> {
    let mut payload = Vec::new();
    source
        .take(DEFAULT_MAX_PAYLOAD as u64 + 1)
        .read_to_end(&mut payload)
        .with_context(|| format!("{name} cannot be read"))?;
    if payload.len() > DEFAULT_MAX_PAYLOAD {
        bail!("{name} has more than the {DEFAULT_MAX_PAYLOAD} bytes a payload may have");
    }
    Ok(payload)
}
