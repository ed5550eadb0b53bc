//! `outbox edit`: other content for a message that could not be delivered as it was.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use serde::Serialize;
use sqlite_outbox::Edit;

use super::operator;
use crate::args::{self, Database, Exit, Format};
use crate::commands::enqueue::read_payload;
use crate::output::{Out, exact};

/// Give a dead or never attempted message other content
///
/// It keeps its place, its keys and what is not named, and gets a new message id and a fresh
/// budget: to the receiver it is another message. The former bytes and id are kept for the record.
#[derive(Debug, Args)]
#[command(
    override_usage = "outbox edit [OPTIONS] <DB> <WHICH> [PAYLOAD]",
    group(ArgGroup::new("change").required(true).multiple(true).args([
        "payload", "file", "header", "no_headers", "content_type", "available",
    ])),
    after_help = "\
Examples:
  outbox edit till.db S-104522 --file mended.json --reason 'wrong article, ticket 4711'
  outbox edit till.db S-104522 --header 'X-Store: 17' --header 'X-Till: 4'
  outbox edit till.db S-104522 --available now"
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
    /// The channel, where a dedupe key stands in several
    #[arg(long)]
    channel: Option<String>,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Say whether it could be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Done<'a> {
    id: i64,
    dedupe_key: &'a str,
    message_id: &'a str,
    former_message_id: &'a str,
    status: &'static str,
    available_at: Option<i64>,
    dry_run: bool,
}

/// How long from now.
fn span(text: &str) -> Result<Duration, String> {
    match text {
        "now" => Ok(Duration::ZERO),
        _ => args::duration(text),
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open()?;
    let before = outbox.find(&arguments.which, arguments.channel.as_deref())?;
    let mut operator = operator(&outbox, arguments.reason.as_deref());
    if arguments.dry_run {
        operator = operator.dry_run();
    }
    operator.edit(before.id, edit(arguments)?)?;
    let after = outbox.get(before.id)?.unwrap_or_else(|| before.clone());
    let mut out = Out::new();
    if arguments.format.json {
        out.json(&Done {
            id: after.id,
            dedupe_key: &after.dedupe_key,
            message_id: &after.message_id,
            former_message_id: &before.message_id,
            status: after.status.as_str(),
            available_at: after.available_at,
            dry_run: arguments.dry_run,
        })?;
    } else {
        let name = super::name(&after);
        out.text(&match arguments.dry_run {
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

fn edit(arguments: &Arguments) -> anyhow::Result<Edit> {
    let mut edit = Edit::new();
    if arguments.payload.is_some() || arguments.file.is_some() {
        edit = edit.payload(read_payload(
            arguments.payload.clone(),
            arguments.file.as_deref(),
        )?);
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
    edit = match arguments.available {
        Some(Duration::ZERO) => edit.no_schedule(),
        Some(span) => edit.delay(span),
        None => edit,
    };
    Ok(edit)
}
