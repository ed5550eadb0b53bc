//! `outbox bundle`: what support needs to know, and nothing that is not theirs to know.

mod redact;

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use sqlite_outbox::{
    Attempt, AuditEntry, Entry, Error, Filter, Outbox, SCHEMA_VERSION, Status, Why,
};

use redact::Private;

use super::check::{self, File, Found};
use super::entry::Failed;
use super::status;
use super::why::Dead;
use crate::args::{Database, Exit, Format};
use crate::output::{Out, count, exact, json_line, json_text, note, now};
use crate::partial::{self, Partial};
use crate::settings;
use crate::signals::Signals;

/// Messages of each kind that are told.
const MOST: usize = 200;

/// Write a support file, without payloads or secrets
///
/// One JSON text. Left out are payloads, answers, headers, recipients, principals and keys, also
/// where an error repeats them, in capitals or escaped for JSON, a URL or HTML, if they have four
/// characters or more; of the settings, header values, logins and what follows ? in a URL. Of an answer
/// the error keeps only what the receiver calls its message. Who did what, and the reasons that people
/// gave (--reason), are in it, without what the messages at hand say: look it through before you send it. Of a damaged file it has what can be read, and says what is missing.
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
    /// What of a damaged file could not be read.
    missing: Vec<Missing>,
    file: File<'a>,
    status: Option<status::Status<'a>>,
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
    // Faults of settings go into the support file; a name that is mistyped does not.
    if let Some(path) = arguments.config.as_deref().filter(|it| absent(it)) {
        settings::load(path, None)?;
    }
    if arguments.to.as_os_str() == "-" {
        let form = |it: &Bundle<'_>| match arguments.format.json {
            true => Ok(json_line(it)?),
            false => json_text(it),
        };
        let gathered = gather(&outbox, arguments.config.as_deref(), form)?;
        let mut out = Out::new();
        out.line(gathered.text.trim_end())?;
        out.flush()?;
        return gathered.end();
    }
    // Before the work of minutes, and again when it is written.
    if arguments.to.symlink_metadata().is_ok() {
        return Err(Error::Exists(arguments.to.clone()).into());
    }
    let gathered = gather(&outbox, arguments.config.as_deref(), |it| json_text(it))?;
    let text = &gathered.text;
    write(&arguments.to, text)?;
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
    gathered.end()
}

fn absent(path: &Path) -> bool {
    path.metadata()
        .is_err_and(|it| it.kind() == ErrorKind::NotFound)
}

/// A support file, and what it lacks.
struct Gathered {
    text: String,
    /// Parts of the file that could not be read.
    missing: usize,
    /// What is wrong with the settings.
    fault: Option<anyhow::Error>,
}

impl Gathered {
    /// It is made all the same; what it lacks is told.
    fn end(self) -> anyhow::Result<Exit> {
        if self.missing > 0 {
            let parts = count(self.missing as u64, "part", "parts");
            note(&format!(
                "{parts} of the file could not be read, and \"missing\" in the support \
                 file says which"
            ));
        }
        self.fault.map_or(Ok(Exit::Done), Err)
    }
}

/// What could not be read of a file, and why; its other parts are there.
#[derive(Serialize)]
struct Missing {
    part: &'static str,
    error: String,
}

/// Reads part by part: of a damaged file, what can be read.
#[derive(Default)]
struct Reader {
    missing: Vec<Missing>,
    /// Of all messages that were come upon.
    private: Private,
}

impl Reader {
    fn lacks(&mut self, part: &'static str, error: &Error) {
        let error = error.chain();
        self.missing.push(Missing { part, error });
    }

    fn part<T: Default>(&mut self, part: &'static str, read: Result<T, Error>) -> T {
        read.unwrap_or_else(|error| {
            self.lacks(part, &error);
            T::default()
        })
    }

    /// The messages that have something to say, with their attempts.
    fn troubled(&mut self, outbox: &Outbox) -> Vec<Told> {
        let mut found = Vec::new();
        for status in [
            Status::Dead,
            Status::Sending,
            Status::Pending,
            Status::Waiting,
        ] {
            for entry in self.page(outbox, &Filter::new().status(status)) {
                self.private.names(&entry);
                if entry.last_error.is_some() || status == Status::Sending {
                    let attempts = outbox.attempts(entry.id);
                    let attempts = self.part("failed attempts of a message", attempts);
                    let told = Told::new(entry, attempts);
                    self.private.also(&told.private);
                    found.push(told);
                }
            }
        }
        found
    }

    /// What was done, and by whom. People name in their reasons what they did it to.
    fn audit(&mut self, outbox: &Outbox) -> Vec<AuditEntry> {
        let audit = self.part("audit", outbox.audit(None, MOST));
        for audited in &audit {
            self.private.recorded(audited);
            if let Some(id) = audited.message {
                let entry = self.part("a message of the audit", outbox.get(id));
                let private = entry.as_ref().map(Private::of);
                private.iter().for_each(|it| self.private.also(it));
            }
        }
        audit
    }

    /// The first messages; those before the first that cannot be read where one cannot.
    fn page(&mut self, outbox: &Outbox, filter: &Filter) -> Vec<Entry> {
        let limits = std::iter::successors(Some(MOST), |it| (*it > 1).then_some(it / 2));
        let mut failed = None;
        for limit in limits {
            match outbox.list(&filter.clone().limit(limit)) {
                Ok(page) => {
                    failed.iter().for_each(|it| self.lacks("messages", it));
                    return page;
                }
                Err(error) => {
                    let damaged = matches!(error, Error::Damaged(_));
                    failed = Some(error);
                    if !damaged {
                        break;
                    }
                }
            }
        }
        failed.iter().for_each(|it| self.lacks("messages", it));
        Vec::new()
    }
}

/// A message with its attempts, without what is private.
struct Told {
    entry: Entry,
    attempts: Vec<Attempt>,
    private: Private,
    payload_bytes: usize,
}

impl Told {
    fn new(mut entry: Entry, mut attempts: Vec<Attempt>) -> Self {
        let private = Private::of(&entry);
        private.leave(&mut entry.last_error);
        attempts
            .iter_mut()
            .for_each(|it| private.leave(&mut it.error));
        // Only its length is told.
        let payload_bytes = std::mem::take(&mut entry.payload).len();
        Self {
            entry,
            attempts,
            private,
            payload_bytes,
        }
    }
}

/// Reads all that goes into the support file.
fn gather(
    outbox: &Outbox,
    config: Option<&Path>,
    form: impl FnOnce(&Bundle<'_>) -> anyhow::Result<String>,
) -> anyhow::Result<Gathered> {
    let mut reader = Reader::default();
    let info = reader.part("file", outbox.file_info());
    let mut stats = reader.part("status", outbox.stats().map(Some));
    let mut findings = reader.part("findings", outbox.check());
    let messages = reader.troubled(outbox);
    let mut audit = reader.audit(outbox);
    // What stands in texts about several messages may be of any of them.
    let mut private = std::mem::take(&mut reader.private);
    let (mut settings, mut fault) = (None, None);
    if let Some(path) = config {
        match settings::load(path, None) {
            Ok(loaded) => {
                let more = check::settings(outbox, &loaded);
                findings.extend(more.unwrap_or_default());
                let (told, secrets) = redact::settings(path)?;
                private.add(secrets);
                settings = Some(told);
            }
            Err(error) => fault = Some(error),
        }
    }
    let mut why = reader.part("why", outbox.why_all());
    let mut dead = reader.part("dead letters", outbox.dead_reasons());
    let channels = stats.iter_mut().flat_map(|it| &mut it.channels);
    channels.for_each(|it| private.leave(&mut it.reason));
    findings
        .iter_mut()
        .for_each(|it| it.text = private.out_of(&it.text));
    why.iter_mut()
        .for_each(|it| without_private(&mut it.why, &private));
    dead.iter_mut().for_each(|it| private.leave(&mut it.text));
    audit
        .iter_mut()
        .for_each(|it| private.leave(&mut it.reason));
    let missing = reader.missing.len();
    let text = form(&Bundle {
        made_at: exact(now()),
        tool: env!("CARGO_PKG_VERSION"),
        schema_version: SCHEMA_VERSION,
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        instance_id: outbox.instance_id(),
        missing: reader.missing,
        file: File::new(&info),
        status: stats.as_ref().map(status::as_json),
        findings: findings
            .iter()
            .map(|it| Found::new(it, Path::new("FILE")))
            .collect(),
        why: why
            .iter()
            .map(|it| format!("{}: {}", it.messages, it.why))
            .collect(),
        dead: dead.iter().map(Dead::new).collect(),
        messages: messages.iter().map(message).collect(),
        audit: audit.iter().map(audited).collect(),
        settings,
        settings_error: fault.as_ref().map(|it| format!("{it:#}")),
    })?;
    Ok(Gathered {
        text,
        missing,
        fault,
    })
}

/// The same reason; a key may be a person's name.
fn without_private(why: &mut Why, private: &Private) {
    why.dedupe_key = "…".into();
    private.leave(&mut why.detail);
    if let Some(head) = &mut why.behind {
        without_private(head, private);
    }
}

fn message(told: &Told) -> Message<'_> {
    let entry = &told.entry;
    Message {
        id: entry.id,
        channel: &entry.channel,
        message_id: &entry.message_id,
        event_type: entry.event_type.as_deref(),
        ordered: entry.ordering_key.is_some(),
        status: entry.status.as_str(),
        payload_bytes: told.payload_bytes,
        available_at: entry.available_at,
        expires_at: entry.expires_at,
        next_attempt_at: entry.next_attempt_at,
        claims: entry.claims,
        attempts: entry.attempts,
        created_at: entry.created_at,
        last_attempt_at: entry.last_attempt_at,
        settled_at: entry.settled_at,
        last_error: entry.last_error.as_deref(),
        failed_attempts: told.attempts.iter().map(Failed::new).collect(),
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
    /// Far longer than it takes: what is older was left by one that was killed.
    const WRITTEN: Duration = Duration::from_secs(600);
    let ended = UNIX_EPOCH + Duration::from_millis(now().unsigned_abs());
    let left = |path: &&PathBuf| {
        let changed = path.metadata().and_then(|it| it.modified());
        changed.is_ok_and(|it| ended.duration_since(it).is_ok_and(|span| span > WRITTEN))
    };
    let others = partial::others(to);
    others
        .iter()
        .filter(left)
        .for_each(|it| partial::remove(it));
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::AlreadyExists => Error::Exists(to.into()).into(),
        _ => anyhow::Error::new(error).context(format!("{} cannot be written", to.display())),
    };
    // It is done in a moment, and removed if not.
    let _signals = Signals::listen()?;
    let partial = Partial::beside(to).map_err(failed)?;
    let whole = || {
        let mut file = OpenOptions::new().write(true).open(partial.path())?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    whole().and_then(|()| partial.publish()).map_err(failed)
}
