//! `outbox show`: one message, with everything that is known of it.

use clap::Args;
use sqlite_outbox::{Attempt, Entry};

use super::entry::Row;
use crate::args::{Database, Exit, Format};
use crate::output::{Out, Tone, exact, scrub};

/// Payload bytes shown to a person.
const SHOWN: usize = 8 * 1024;

/// Show one message: its state, its payload and its failed attempts
#[derive(Debug, Args)]
#[command(after_help = "Example: why has this sale not arrived?\n  outbox show till.db S-104522")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// An id, a dedupe key or a message id
    which: String,
    /// The channel, where a dedupe key stands in several
    #[arg(long)]
    channel: Option<String>,
    #[command(flatten)]
    format: Format,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open()?;
    let entry = outbox.find(&arguments.which, arguments.channel.as_deref())?;
    let attempts = outbox.attempts(entry.id)?;
    let mut out = Out::new();
    match arguments.format.json {
        true => out.json(&Row::new(&entry).with_attempts(&attempts))?,
        false => {
            fields(&entry, &mut out)?;
            history(&attempts, &mut out)?;
            payload(&entry, &mut out)?;
        }
    }
    out.flush()?;
    Ok(Exit::Done)
}

fn fields(entry: &Entry, out: &mut Out) -> anyhow::Result<()> {
    let mut field = |name: &str, value: Option<String>| match value {
        Some(value) => {
            let name = out.paint(Tone::Head, &format!("{name:16}"));
            out.line(format!("{name} {}", scrub(&value)))
        }
        None => Ok(()),
    };
    let moment = |at: Option<i64>| at.map(exact);
    let next = match entry.next_attempt_at {
        0 => None,
        at => entry.status.is_unsent().then(|| exact(at)),
    };
    field("id", Some(entry.id.to_string()))?;
    field("channel", Some(entry.channel.clone()))?;
    field("status", Some(entry.status.to_string()))?;
    field("last error", entry.last_error.clone())?;
    field("dedupe key", Some(entry.dedupe_key.clone()))?;
    field("message id", Some(entry.message_id.clone()))?;
    field("event type", entry.event_type.clone())?;
    field("recipient", entry.recipient.clone())?;
    field("ordering key", entry.ordering_key.clone())?;
    field("principal", entry.principal.clone())?;
    field("content type", Some(entry.content_type.clone()))?;
    field("headers", entry.headers.clone())?;
    field("created", Some(exact(entry.created_at)))?;
    field("available", moment(entry.available_at))?;
    field("expires", moment(entry.expires_at))?;
    field("attempts", Some(entry.attempts.to_string()))?;
    field("last attempt", moment(entry.last_attempt_at))?;
    field("next attempt", next)?;
    field("settled", moment(entry.settled_at))?;
    field("provider id", entry.provider_id.clone())?;
    field("answer", entry.answer.clone())
}

fn history(attempts: &[Attempt], out: &mut Out) -> anyhow::Result<()> {
    if attempts.is_empty() {
        return Ok(());
    }
    out.line("")?;
    out.line(out.paint(Tone::Head, "failed attempts"))?;
    for attempt in attempts {
        let mut line = format!("  {}  {}", exact(attempt.at), scrub(&attempt.outcome));
        if attempt.charged.is_none() {
            line.push_str(" (not charged)");
        }
        if let Some(ms) = attempt.duration_ms {
            line.push_str(&format!(" after {ms} ms"));
        }
        if let Some(error) = &attempt.error {
            line.push_str(&format!(": {}", scrub(error)));
        }
        out.line(line)?;
    }
    Ok(())
}

fn payload(entry: &Entry, out: &mut Out) -> anyhow::Result<()> {
    let bytes = entry.payload.len();
    out.line("")?;
    out.line(out.paint(Tone::Head, &format!("payload, {bytes} bytes")))?;
    let Ok(text) = std::str::from_utf8(&entry.payload) else {
        return out.line("  not a text; --json prints it as base64");
    };
    let shown = (0..=SHOWN.min(bytes)).rev().find_map(|end| text.get(..end));
    let shown = shown.unwrap_or_default();
    for line in shown.lines() {
        out.line(format!("  {}", scrub(line)))?;
    }
    match shown.len() < bytes {
        true => out.line("  … cut here; --json prints all of it"),
        false => Ok(()),
    }
}
