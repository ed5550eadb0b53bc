//! `outbox edit`: other content for a message that could not be delivered as it was.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use serde::Serialize;
use sqlite_outbox::{Edit, Entry, Status};

use super::Meant;
use crate::args::{self, Database, Exit, Format};
use crate::commands::enqueue::{read_payload, warn_of_type};
use crate::output::{Out, exact, now};

/// Give a dead or never attempted message other content
///
/// It keeps its place and what is not named, and gets a new message id and a fresh budget: to the
/// receiver it is another message. The former payload and message id are kept for the record.
/// Another channel or ordering key makes it another row, with another id.
#[derive(Debug, Args)]
#[command(
    override_usage = "outbox edit [OPTIONS] <DB> <WHICH> [PAYLOAD]",
    group(ArgGroup::new("change").required(true).multiple(true).args([
        "payload", "file", "header", "no_headers", "content_type", "available", "key",
        "event_type", "recipient", "principal", "new_message_id", "to_channel", "ordering_key",
    ])),
    after_help = "\
Examples:
  outbox edit till.db S-104522 --file mended.json --reason 'wrong article, ticket 4711'
  outbox edit till.db S-104522 --header 'X-Store: 17' --header 'X-Till: 4'
  outbox edit till.db S-104522 --available now
  outbox edit till.db id:17 --to-channel sales --reason 'typo'"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// An id, a dedupe key or a message id; id:17, key:17 or message:… says which
    which: String,
    /// The payload, or - for standard input
    #[arg(conflicts_with = "file")]
    payload: Option<String>,
    /// Take the payload from this file, - for standard input
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// A request header; those named take the place of all former ones
    #[arg(long, value_name = "NAME: VALUE", value_parser = args::header)]
    header: Vec<(String, String)>,
    /// No request headers of its own
    #[arg(long, conflicts_with = "header")]
    no_headers: bool,
    /// The payload's media type
    #[arg(long, value_name = "CT")]
    content_type: Option<String>,
    /// When it may be sent: now, or after a span like 10m. Alone it leaves the message what it is,
    /// with its message id, and is taken for messages that were attempted too
    #[arg(long, value_name = "now|D", value_parser = span)]
    available: Option<Duration>,
    /// Another dedupe key
    #[arg(long)]
    key: Option<String>,
    /// Another event type; '' for none
    #[arg(long, value_name = "T")]
    event_type: Option<String>,
    /// Another recipient; '' for none
    #[arg(long, value_name = "R")]
    recipient: Option<String>,
    /// Other credentials; '' for those of the route
    #[arg(long, value_name = "P")]
    principal: Option<String>,
    /// A new message id, as any other content gives it, and nothing else
    #[arg(long)]
    new_message_id: bool,
    /// Another channel. The message gets another id there, and stands at the end of its ordering key
    #[arg(long, value_name = "C")]
    to_channel: Option<String>,
    /// Another ordering key; '' for none. The message gets another id, and stands at its end
    #[arg(long, value_name = "O")]
    ordering_key: Option<String>,
    /// The channel, where a dedupe key stands in several
    #[arg(long)]
    channel: Option<String>,
    #[command(flatten)]
    meant: Meant,
    #[command(flatten)]
    format: Format,
}

/// What nobody can know before it is done is null in a dry run: ids that are given then, and the place
/// of what becomes another row or was dead.
#[derive(Serialize)]
struct Done<'a> {
    id: Option<i64>,
    dedupe_key: &'a str,
    message_id: Option<&'a str>,
    former_message_id: &'a str,
    status: Option<&'static str>,
    available_at: Option<i64>,
    dry_run: bool,
}

impl<'a> Done<'a> {
    fn new(before: &'a Entry, after: &'a Entry) -> Self {
        Self {
            id: Some(after.id),
            dedupe_key: &after.dedupe_key,
            message_id: Some(&after.message_id),
            former_message_id: &before.message_id,
            status: Some(after.status.as_str()),
            available_at: after.available_at,
            dry_run: false,
        }
    }

    /// What it would be, with this id.
    fn tried(before: &'a Entry, id: i64, edit: &Edit, arguments: &'a Arguments) -> Self {
        let stays = id == before.id;
        let done = Self::new(before, before);
        Self {
            id: done.id.filter(|_| stays),
            dedupe_key: arguments.key.as_deref().unwrap_or(done.dedupe_key),
            message_id: done.message_id.filter(|_| !edit.has_content()),
            status: done
                .status
                .filter(|_| stays && before.status != Status::Dead),
            available_at: match arguments.available {
                Some(Duration::ZERO) => None,
                Some(span) => {
                    Some(now().saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
                }
                None => done.available_at,
            },
            dry_run: true,
            ..done
        }
    }
}

/// How long from now.
fn span(text: &str) -> Result<Duration, String> {
    match text {
        "now" => Ok(Duration::ZERO),
        _ => args::delay(text),
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open()?;
    let before = outbox.find(&arguments.which, arguments.channel.as_deref())?;
    let operator = arguments.meant.operator(&outbox);
    let edit = edit(arguments, &before)?;
    let id = operator.edit(before.id, edit.clone())?;
    let after = outbox.get(id)?.unwrap_or_else(|| before.clone());
    let mut out = Out::new();
    if arguments.format.json {
        out.json(&match arguments.meant.dry_run {
            true => Done::tried(&before, id, &edit, arguments),
            false => Done::new(&before, &after),
        })?;
    } else {
        let name = super::name(&after);
        out.text(&match arguments.meant.dry_run {
            true => format!("{name} would be changed"),
            false if after.message_id == before.message_id => {
                let when = after.available_at.map(exact);
                let when = when.map_or("at once".into(), |it| format!("from {it} on"));
                format!("{name} is {} and may be sent {when}", after.status)
            }
            false => format!(
                "{name} is changed and {}; its message id is {} now",
                after.status, after.message_id
            ),
        })?;
    }
    out.flush()?;
    Ok(Exit::Done)
}

/// An empty text stands for none.
fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.into())
}

fn edit(arguments: &Arguments, before: &Entry) -> anyhow::Result<Edit> {
    let mut edit = Edit::new();
    if arguments.payload.is_some() || arguments.file.is_some() {
        let payload = read_payload(arguments.payload.clone(), arguments.file.as_deref())?;
        if before.content_type == "application/json" {
            warn_of_type(arguments.content_type.as_deref(), &payload);
        }
        edit = edit.payload(payload);
    }
    if arguments.no_headers {
        edit = edit.no_headers();
    }
    for (name, value) in &arguments.header {
        edit = edit.header(name, value);
    }
    if let Some(content_type) = &arguments.content_type {
        edit = edit.content_type(content_type);
    }
    if let Some(key) = &arguments.key {
        edit = edit.dedupe_key(key);
    }
    if let Some(channel) = &arguments.to_channel {
        edit = edit.channel(channel);
    }
    type Set = fn(Edit, Option<String>) -> Edit;
    let texts: [(_, Set); 4] = [
        (&arguments.event_type, Edit::event_type),
        (&arguments.recipient, Edit::recipient),
        (&arguments.principal, Edit::principal),
        (&arguments.ordering_key, Edit::ordering_key),
    ];
    for (text, set) in texts {
        if let Some(text) = text {
            edit = set(edit, some(text));
        }
    }
    if arguments.new_message_id {
        edit = edit.new_message_id();
    }
    edit = match arguments.available {
        Some(Duration::ZERO) => edit.no_schedule(),
        Some(span) => edit.delay(span),
        None => edit,
    };
    Ok(edit)
}
