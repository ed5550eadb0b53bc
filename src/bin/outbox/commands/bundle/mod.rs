//! `outbox bundle`: what support needs to know, and nothing that is not theirs to know.

mod redact;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use sqlite_outbox::{
    Attempt, AuditEntry, Entry, Error, Filter, Outbox, SCHEMA_VERSION, Status, Why,
};

use super::check::{self, File, Found};
use super::entry::Failed;
use super::status;
use super::why::Dead;
use crate::args::{Database, Exit, Format};
use crate::output::{Out, exact, json_text, now};
use crate::settings;

/// Messages of each kind that are told.
const MOST: usize = 200;

/// Write a support file, without payloads or secrets
///
/// One JSON text. Left out are payloads, answers, headers, recipients, principals and dedupe keys;
/// of the settings, header values, logins and what follows ? in a URL. Errors are in it as the
/// receiver said them: look it through before you send it.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  outbox bundle till.db support.json --config outbox.toml")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Where it goes, - for standard output; nothing is overwritten
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Put in what this settings file says, without secrets
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Bundle<'a> {
    made_at: String,
    tool: &'static str,
    schema_version: i64,
    system: String,
    instance_id: &'a str,
    file: File<'a>,
    status: status::Status<'a>,
    findings: Vec<Found<'a>>,
    why: Vec<String>,
    dead: Vec<Dead<'a>>,
    messages: Vec<Message<'a>>,
    audit: Vec<Audited<'a>>,
    settings: Option<Value>,
    settings_error: Option<String>,
}

/// A message without what it says and to whom.
#[derive(Serialize)]
struct Message<'a> {
    id: i64,
    channel: &'a str,
    message_id: &'a str,
    event_type: Option<&'a str>,
    ordered: bool,
    status: &'static str,
    payload_bytes: usize,
    available_at: Option<i64>,
    expires_at: Option<i64>,
    next_attempt_at: i64,
    claims: i64,
    attempts: i64,
    created_at: i64,
    last_attempt_at: Option<i64>,
    settled_at: Option<i64>,
    last_error: Option<&'a str>,
    failed_attempts: Vec<Failed<'a>>,
}

#[derive(Serialize)]
struct Audited<'a> {
    at: i64,
    who: &'a str,
    action: &'a str,
    message: Option<i64>,
    channel: Option<&'a str>,
    reason: Option<&'a str>,
}

#[derive(Serialize)]
struct Done<'a> {
    path: &'a str,
    bytes: usize,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open_to_read()?;
    if arguments.to.as_os_str() == "-" {
        let text = gather(&outbox, arguments.config.as_deref())?;
        let mut out = Out::new();
        out.line(text.trim_end())?;
        out.flush()?;
        return Ok(Exit::Done);
    }
    // Before the work of minutes, and again when it is written.
    if arguments.to.symlink_metadata().is_ok() {
        return Err(Error::Exists(arguments.to.clone()).into());
    }
    let text = gather(&outbox, arguments.config.as_deref())?;
    write(&arguments.to, &text)?;
    let path = arguments.to.to_string_lossy();
    let mut out = Out::new();
    match arguments.format.json {
        true => out.json(&Done {
            path: &path,
            bytes: text.len(),
        })?,
        false => out.text(&format!(
            "{path}: {} bytes; look it through before you send it",
            text.len()
        ))?,
    }
    out.flush()?;
    Ok(Exit::Done)
}

fn gather(outbox: &Outbox, config: Option<&Path>) -> anyhow::Result<String> {
    let stats = outbox.stats()?;
    let info = outbox.file_info()?;
    let mut findings = outbox.check()?;
    let (mut settings, mut settings_error) = (None, None);
    if let Some(path) = config {
        match settings::load(path, None) {
            Ok(loaded) => {
                findings.extend(check::settings(outbox, &loaded)?);
                settings = Some(redact::settings(path)?);
            }
            Err(error) => settings_error = Some(format!("{error:#}")),
        }
    }
    let why = outbox.why_all()?;
    let dead = outbox.dead_reasons()?;
    let entries = troubled(outbox)?;
    let audit = outbox.audit(None, MOST)?;
    json_text(&Bundle {
        made_at: exact(now()),
        tool: env!("CARGO_PKG_VERSION"),
        schema_version: SCHEMA_VERSION,
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        instance_id: outbox.instance_id(),
        file: File::new(&info),
        status: status::as_json(&stats),
        findings: findings
            .iter()
            .map(|it| Found::new(it, Path::new("FILE")))
            .collect(),
        why: why
            .iter()
            .map(|it| format!("{}: {}", it.messages, without_keys(it.why.clone())))
            .collect(),
        dead: dead.iter().map(Dead::new).collect(),
        messages: entries
            .iter()
            .map(|(entry, all)| message(entry, all))
            .collect(),
        audit: audit.iter().map(audited).collect(),
        settings,
        settings_error,
    })
}

/// The same reason; a key may be a person's name.
fn without_keys(mut why: Why) -> Why {
    why.dedupe_key = "…".into();
    why.behind = why.behind.map(|it| Box::new(without_keys(*it)));
    why
}

/// The messages that have something to say, with their attempts.
fn troubled(outbox: &Outbox) -> anyhow::Result<Vec<(Entry, Vec<Attempt>)>> {
    let mut found = Vec::new();
    for status in [
        Status::Dead,
        Status::Sending,
        Status::Pending,
        Status::Waiting,
    ] {
        let page = outbox.list(&Filter::new().status(status).limit(MOST))?;
        for mut entry in page {
            let bytes = entry.payload.len();
            if entry.last_error.is_some() || status == Status::Sending {
                let attempts = outbox.attempts(entry.id)?;
                // Only its length is told.
                entry.payload = vec![0; bytes];
                found.push((entry, attempts));
            }
        }
    }
    Ok(found)
}

fn message<'a>(entry: &'a Entry, attempts: &'a [Attempt]) -> Message<'a> {
    Message {
        id: entry.id,
        channel: &entry.channel,
        message_id: &entry.message_id,
        event_type: entry.event_type.as_deref(),
        ordered: entry.ordering_key.is_some(),
        status: entry.status.as_str(),
        payload_bytes: entry.payload.len(),
        available_at: entry.available_at,
        expires_at: entry.expires_at,
        next_attempt_at: entry.next_attempt_at,
        claims: entry.claims,
        attempts: entry.attempts,
        created_at: entry.created_at,
        last_attempt_at: entry.last_attempt_at,
        settled_at: entry.settled_at,
        last_error: entry.last_error.as_deref(),
        failed_attempts: attempts.iter().map(Failed::new).collect(),
    }
}

fn audited(entry: &AuditEntry) -> Audited<'_> {
    Audited {
        at: entry.at,
        who: &entry.who,
        action: &entry.action,
        message: entry.message,
        channel: entry.channel.as_deref(),
        reason: entry.reason.as_deref(),
    }
}

/// For the eyes of whoever made it, until they hand it on.
fn write(to: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let shown = || format!("{} cannot be written", to.display());
    let mut file = match options.open(to) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(Error::Exists(to.into()).into());
        }
        opened => opened.with_context(shown)?,
    };
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = std::fs::remove_file(to);
    }
    written.with_context(shown)
}
