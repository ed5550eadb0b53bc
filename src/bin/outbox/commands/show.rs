//! `outbox show`: one message, with everything that is known of it.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use sqlite_outbox::{Attempt, AuditEntry, Conflict, Entry, Status, Why};

use super::damage::Damage;
use super::entry::Row;
use super::reasons;
use super::shell::command;
use super::sink::shown;
use crate::args::{Database, Exit, Format};
use crate::output::{Out, Tone, ago, brief, count, exact, now, printable_name, stamped_wrong};

/// Payload bytes shown to a person.
const SHOWN: usize = 8 * 1024;

/// Of what people did to it, the last so many are shown.
const DEEDS: usize = 100;

/// Show all of one message: its payload, attempts, what people did
///
/// `claimed` is how often a drain took it in hand; `charged`, how many of its failed attempts count
/// towards its end as a dead letter: those for which its channel or the network was at fault do not.
/// `settled` is when it was sent, expired, was cancelled or died. All times are UTC.
#[derive(Debug, Args)]
#[command(after_help = "Example: why has this sale not arrived?\n  outbox show till.db S-104522")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// An id, a dedupe key or a message id; id:17, key:17 or message:… says which
    which: String,
    /// The channel, where a dedupe key stands in several
    #[arg(long)]
    channel: Option<String>,
    #[command(flatten)]
    format: Format,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open_to_read()?;
    let mut damage = Damage::default();
    let entry = damage.find(&outbox, &arguments.which, arguments.channel.as_deref())?;
    let mut audit = damage.part("what people did", outbox.audit(Some(entry.id), DEEDS))?;
    audit.reverse();
    let unsent = Some(entry.id).filter(|_| entry.status.is_unsent());
    let why = damage.part("what it waits for", outbox.why_each(unsent.as_slice()))?;
    let known = Known {
        why: why.first(),
        attempts: &damage.part("the failed attempts", outbox.attempts(entry.id))?,
        audit: &audit,
        conflicts: &damage.part("its conflicts", outbox.conflicts_of(entry.id))?,
    };
    let mut out = Out::new();
    match arguments.format.json {
        true => out.json(&Row::new(&entry).with(&known))?,
        false => print(&entry, &known, &arguments.database.db, &mut out)?,
    }
    out.flush()?;
    damage.end(Exit::Done)
}

/// What is known of a message beside its row.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known<'a> {
    /// What it waits for, if it is unsent.
    pub(super) why: Option<&'a Why>,
    pub(super) attempts: &'a [Attempt],
    pub(super) audit: &'a [AuditEntry],
    pub(super) conflicts: &'a [Conflict],
}

pub(super) fn print(
    entry: &Entry,
    known: &Known<'_>,
    db: &Path,
    out: &mut Out,
) -> anyhow::Result<()> {
    fields(entry, known.why, now(), out)?;
    if !known.conflicts.is_empty() {
        let ids: Vec<_> = known.conflicts.iter().map(|it| it.id.to_string()).collect();
        let see = command("conflicts", db, &ids.join(" "));
        let text = format!("{}; see `{see}`", ids.join(", "));
        out.field("conflicts", 14, &text)?;
    }
    history(known.attempts, entry, out)?;
    deeds(known.audit, out)?;
    payload("payload", &entry.payload, out)
}

fn fields(entry: &Entry, why: Option<&Why>, now: i64, out: &mut Out) -> anyhow::Result<()> {
    let mut field = |name: &str, value: Option<String>| match value {
        Some(value) => out.field(name, 14, &value),
        None => Ok(()),
    };
    let moment = |at: Option<i64>| at.map(|at| format!("{}, {}", exact(at), ago(at, now)));
    // What has happened cannot lie ahead.
    let past = |at: Option<i64>| match at {
        Some(at) if stamped_wrong(at, now) => {
            Some(format!("{}, by a clock that was wrong", exact(at)))
        }
        at => moment(at),
    };
    let next = match entry.next_attempt_at {
        0 => None,
        at => Some(at).filter(|_| entry.status.is_unsent()),
    };
    let next_name = match entry.status {
        Status::Sending => "lease ends",
        _ => "next attempt",
    };
    // What the answer says stands below.
    let error = entry.last_error.as_deref();
    let error = error.map(|it| {
        if entry.answer.is_some() {
            brief(it)
        } else {
            it
        }
    });
    field("id", Some(entry.id.to_string()))?;
    field("channel", Some(printable_name(&entry.channel).into_owned()))?;
    field("status", Some(entry.status.to_string()))?;
    field("waits for", why.map(reasons::few))?;
    field("last error", error.map(String::from))?;
    field("dedupe key", Some(entry.dedupe_key.clone()))?;
    field("message id", Some(entry.message_id.clone()))?;
    field("event type", entry.event_type.clone())?;
    field("recipient", entry.recipient.clone())?;
    field("ordering key", entry.ordering_key.clone())?;
    field("principal", entry.principal.clone())?;
    field("content type", Some(entry.content_type.clone()))?;
    field("headers", entry.headers.as_deref().map(without_credentials))?;
    field("created", past(Some(entry.created_at)))?;
    field("available", moment(entry.available_at))?;
    field("expires", moment(entry.expires_at))?;
    field("claimed", Some(times(entry.claims)))?;
    field("charged", Some(times(entry.attempts)))?;
    field("last attempt", past(entry.last_attempt_at))?;
    field(next_name, moment(next))?;
    field("settled", past(entry.settled_at))?;
    field("provider id", entry.provider_id.clone())?;
    field("answer", entry.answer.clone())
}

/// Headers as they are stored, but for the values of those that speak of credentials: foreign
/// hands may have put some there.
fn without_credentials(stored: &str) -> String {
    let Ok(mut headers) = serde_json::from_str::<BTreeMap<String, String>>(stored) else {
        return stored.into();
    };
    for (name, value) in &mut headers {
        *value = shown(&name.to_ascii_lowercase(), value);
    }
    serde_json::to_string(&headers).unwrap_or_default()
}

/// An error stands where it is first seen, not at every attempt that failed in the same way.
fn history(attempts: &[Attempt], entry: &Entry, out: &mut Out) -> anyhow::Result<()> {
    if attempts.is_empty() {
        return Ok(());
    }
    out.line("")?;
    out.line(out.paint(Tone::Head, "failed attempts"))?;
    let mut told = entry.last_error.as_deref();
    for attempt in attempts {
        let mut line = format!("{}  {}", exact(attempt.at), attempt.outcome);
        if let Some(ms) = attempt.duration_ms {
            line.push_str(&format!(" after {ms} ms"));
        }
        if attempt.charged.is_none() {
            line.push_str(", not charged");
        }
        out.paragraph("  ", Tone::Plain, &line)?;
        let error = attempt.error.as_deref();
        if let Some(error) = error.filter(|_| error != told) {
            out.paragraph("      ", Tone::Plain, brief(error))?;
            told = Some(error);
        }
    }
    Ok(())
}

/// What people did to it.
fn deeds(audit: &[AuditEntry], out: &mut Out) -> anyhow::Result<()> {
    if audit.is_empty() {
        return Ok(());
    }
    out.line("")?;
    out.line(out.paint(Tone::Head, "what people did"))?;
    for deed in audit {
        let mut line = format!("{}  {} by {}", exact(deed.at), deed.action, deed.who);
        if let Some(reason) = &deed.reason {
            line.push_str(&format!(": {reason}"));
        }
        out.paragraph("  ", Tone::Plain, &line)?;
        if let Some(id) = &deed.former_message_id {
            out.paragraph("      ", Tone::Plain, &format!("its message id was {id}"))?;
        }
        if let Some(payload) = &deed.former_payload {
            let bytes = count(payload.len() as u64, "byte", "bytes");
            let line = format!("--json prints the payload that it had, {bytes}");
            out.paragraph("      ", Tone::Plain, &line)?;
        }
    }
    Ok(())
}

pub(super) fn payload(name: &str, payload: &[u8], out: &mut Out) -> anyhow::Result<()> {
    let bytes = payload.len();
    out.line("")?;
    let head = format!("{name}, {}", count(bytes as u64, "byte", "bytes"));
    out.line(out.paint(Tone::Head, &head))?;
    let Ok(text) = std::str::from_utf8(payload) else {
        return out.line("  not a text; --json prints it as base64");
    };
    let shown = (0..=SHOWN.min(bytes)).rev().find_map(|end| text.get(..end));
    let shown = shown.unwrap_or_default();
    for line in shown.lines() {
        out.paragraph("  ", Tone::Plain, line)?;
    }
    match shown.len() < bytes {
        true => out.line("  … cut here; --json prints all of it"),
        false => Ok(()),
    }
}

fn times(number: i64) -> String {
    count(number.unsigned_abs(), "time", "times")
}
