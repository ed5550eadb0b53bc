//! `outbox check`: what is wrong with a file, and what to do about it.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use sqlite_outbox::{
    Dispatcher, Entry, Error, FileInfo, Filter, Finding, Outbox, Receiver, Severity, Status,
};

use super::crowd;
use super::disk;
use super::shell::{self, last, option, quoted};
use crate::args::{Database, Exit, Format};
use crate::output::{Out, Tone, age, bytes, count, now, printable_name, unless_closed};
use crate::settings::{self, Faults, Loaded};
use crate::threads;

/// Look for all that is wrong with the file, outbox and settings
///
/// It reads the whole file and changes nothing. Without a write-ahead log that keeps the application from
/// committing: a table that it waits for two seconds is left, and named. With --config it also reads the settings, the
/// certificates and every secret (a secret's command is run), and names channels without a route;
/// --connect calls on their receivers.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  nothing needs a person
  4  something does

Example:
  outbox check till.db --config outbox.toml")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Check this settings file too
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Call on each receiver too, once: HEAD /, without credentials or messages
    #[arg(long, requires = "config")]
    connect: bool,
    /// Say also what is only for the record: the journal mode, and what a power loss may take
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Checked<'a> {
    needs_person: bool,
    findings: Vec<Found<'a>>,
    file: File<'a>,
}

#[derive(Serialize)]
pub(super) struct Found<'a> {
    severity: &'static str,
    code: &'static str,
    text: &'a str,
    remedy: &'a str,
    command: Option<String>,
    channel: Option<&'a str>,
    count: u64,
    message: Option<i64>,
}

impl<'a> Found<'a> {
    pub(super) fn new(finding: &'a Finding, db: &Path) -> Self {
        Self {
            severity: finding.severity.as_str(),
            code: finding.code,
            text: &finding.text,
            remedy: &finding.remedy,
            command: command(finding, db),
            channel: finding.channel.as_deref(),
            count: finding.count,
            message: finding.message,
        }
    }
}

#[derive(Serialize)]
pub(super) struct File<'a> {
    bytes: u64,
    wal_bytes: u64,
    page_size: u64,
    pages: u64,
    free_pages: u64,
    journal_mode: &'a str,
    schema_version: i64,
    sqlite: &'a str,
}

impl<'a> File<'a> {
    pub(super) fn new(info: &'a FileInfo) -> Self {
        Self {
            bytes: info.bytes,
            wal_bytes: info.wal_bytes,
            page_size: info.page_size,
            pages: info.pages,
            free_pages: info.free_pages,
            journal_mode: &info.journal_mode,
            schema_version: info.schema_version,
            sqlite: &info.sqlite,
        }
    }
}

/// The command that helps, ready to be pasted.
pub(super) fn command(finding: &Finding, db: &Path) -> Option<String> {
    let (name, rest) = finding.command.split_first()?;
    let rest = match rest {
        [one] => last(one),
        [before @ .., name, value] if name == "--channel" => {
            let mut words: Vec<_> = before.iter().map(|it| quoted(it)).collect();
            words.push(option(name, value));
            words.join(" ")
        }
        several => several
            .iter()
            .map(|it| quoted(it))
            .collect::<Vec<_>>()
            .join(" "),
    };
    Some(shell::command(name, db, &rest))
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open_to_read()?;
    let info = outbox.file_info()?;
    let mut findings = outbox.check()?;
    findings.extend(disk::room(&outbox, &info));
    findings.sort_by_key(Finding::rank);
    if let Some(path) = &arguments.config {
        match settings::load(path, None) {
            Ok(loaded) => {
                findings.extend(settings(&outbox, &loaded)?);
                if arguments.connect {
                    findings.extend(receivers(&loaded));
                }
            }
            Err(error) => findings.extend(faults(&error)),
        }
        // That is why nobody sends them.
        let unrouted: Vec<_> = findings.iter().filter(|it| it.code == "unrouted").collect();
        let unrouted: Vec<_> = unrouted.iter().map(|it| it.channel.clone()).collect();
        findings.retain(|it| it.code != "unattended" || !unrouted.contains(&it.channel));
        findings.sort_by_key(Finding::rank);
    }
    let needs_person = findings.iter().any(Finding::needs_person);
    let mut out = Out::new();
    let printed = match arguments.format.json {
        true => out.json(&Checked {
            needs_person,
            findings: findings
                .iter()
                .map(|it| Found::new(it, &arguments.database.db))
                .collect(),
            file: File::new(&info),
        }),
        false => {
            // What nobody has to do anything about is read once, and stands before nothing else.
            findings.retain(|it| arguments.verbose || !it.is_for_the_record());
            print(&findings, &info, &arguments.database.db, &mut out)
        }
    };
    unless_closed(printed.and_then(|()| out.flush()))?;
    Ok(match needs_person {
        true => Exit::Attention,
        false => Exit::Done,
    })
}

/// Each thing that is wrong with the settings.
pub(super) fn faults(error: &anyhow::Error) -> Vec<Finding> {
    let texts = match error.downcast_ref::<Faults>() {
        Some(faults) => faults.each().collect(),
        None => vec![format!("{error:#}")],
    };
    let remedy = "mend the settings; nothing can be sent with them";
    let finding = |text| Finding::new(Severity::Fault, "settings", text, remedy);
    texts.into_iter().map(finding).collect()
}

/// What the settings lack for this file.
pub(super) fn settings(outbox: &Outbox, loaded: &Loaded) -> anyhow::Result<Vec<Finding>> {
    let mut found = Vec::new();
    for (channel, error) in loaded.dispatcher.unreadable_secrets() {
        let text = format!("{channel}: a secret cannot be had or used: {error}");
        let remedy = "put it where the settings say, whole and readable for this user";
        found.push(Finding::new(Severity::Fault, "secret", text, remedy).channel(channel));
    }
    for (channel, header) in loaded.dispatcher.headers_like_secrets() {
        let text = format!(
            "{channel}: the header {header} stands in the settings as it is, and looks like a secret"
        );
        let remedy = format!(
            "write it as secret_headers = {{ {header} = {{ env = \"NAME\" }} }}, or with file or command: \
             then `outbox curl` does not show it"
        );
        found.push(Finding::new(Severity::Note, "plain_secret", text, remedy).channel(channel));
    }
    for (channel, name) in loaded.dispatcher.queries_like_secrets() {
        let text = format!(
            "{channel}: {name}=… in the URL looks like a secret, and URLs are written to logs on their way"
        );
        let remedy = "send it as bearer, basic or secret_headers, if the receiver takes it so";
        found.push(Finding::new(Severity::Note, "plain_secret", text, remedy).channel(channel));
    }
    for (channel, place) in loaded.dispatcher.credentials_in_plain_sight() {
        let text = format!(
            "{channel}: its credentials go to {place} over plain http: whoever is in between can read \
             and use them"
        );
        let remedy = "use https, with ca_file where the certificate is your own";
        let finding = Finding::new(Severity::Warning, "plain_http", text, remedy);
        found.push(finding.channel(channel));
    }
    for (channel, text) in loaded.refusals(outbox)? {
        let remedy = "until then, drain and run refuse to start with these settings";
        found.push(Finding::new(Severity::Fault, "on_dead", text, remedy).channel(channel));
    }
    let lax = loaded.dispatcher.without_reply_rule();
    if !lax.is_empty() {
        let text = format!(
            "{}: any 2xx counts as delivered, also the page of a captive portal",
            names(&lax)
        );
        let remedy = "where the receiver answers in JSON, say what a real answer has, for example \
                      reply = { require = \"/id\" }";
        let finding = Finding::new(Severity::Note, "no_reply_rule", text, remedy);
        found.push(match &*lax {
            [channel] => finding.channel(*channel),
            _ => finding,
        });
    }
    let channels = match outbox.stats() {
        Ok(stats) => stats.channels,
        // Said by the check of the file.
        Err(Error::Incomplete { .. }) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    for channel in channels {
        let unsent = channel.counts.unsent();
        let name = channel.channel;
        if unsent > 0 && !loaded.dispatcher.serves(&name) {
            let shown = printable_name(&name);
            let text =
                format!("{shown}: no section of the settings serves it; unsent messages: {unsent}");
            let mut remedy = format!(
                "write a section {}, or [channel.default]",
                settings::section(&name)
            );
            let mut finding = Finding::new(Severity::Warning, "unrouted", text, "");
            if let Some(meant) = loaded.meant(&name) {
                remedy.push_str(&format!(
                    "; where {meant} was meant, move each message there"
                ));
                finding = finding.command(moved(outbox, &name, meant)?);
            }
            finding.remedy = remedy;
            found.push(finding.channel(name));
        }
    }
    Ok(found)
}

/// What moves the first unsent message of a channel to another.
fn moved(outbox: &Outbox, channel: &str, to: &str) -> anyhow::Result<Vec<String>> {
    let unsent = [Status::Pending, Status::Waiting];
    let filter = unsent.into_iter().fold(Filter::new(), Filter::status);
    let first = outbox.list(&filter.channel(channel).limit(1))?;
    let words = |it: &Entry| {
        let words = ["edit", &format!("id:{}", it.id), "--to-channel", to];
        words.map(String::from).to_vec()
    };
    Ok(first.first().map(words).unwrap_or_default())
}

/// The first of some channels, and how many more there are.
fn names(channels: &[impl AsRef<str>]) -> String {
    const FIRST: usize = 8;
    let first: Vec<_> = channels.iter().take(FIRST).map(AsRef::as_ref).collect();
    let first = first.join(", ");
    match channels.len().saturating_sub(FIRST) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Who answers, and what stands in between. Channels that share a receiver are one finding.
fn receivers(loaded: &Loaded) -> Vec<Finding> {
    /// Beyond this a signature or a token may be refused.
    const SKEW: i64 = 60_000;
    let mut found = Vec::new();
    for call in threads::side_by_side(loaded.dispatcher.receivers(), Receiver::call) {
        let channel = names(&call.channels);
        let one = <[String; 1]>::try_from(call.channels).ok();
        let of = |finding: Finding| match &one {
            Some([channel]) => finding.channel(channel),
            None => finding,
        };
        let finding = match call.answer {
            Ok(status) => Finding::new(
                Severity::Note,
                "receiver",
                format!("{channel}: {} answers (HTTP {status})", call.url),
                "nothing; any status will do, as nothing was asked of it",
            ),
            Err(failure) => Finding::new(
                Severity::Warning,
                match &*failure.code {
                    "tls" => "receiver_tls",
                    "dns" => "receiver_dns",
                    "proxy" => "receiver_proxy",
                    "refused" => "receiver_refused",
                    "timeout" => "receiver_timeout",
                    _ => "receiver_unreachable",
                },
                format!("{channel}: {} cannot be called: {}", call.url, failure.text),
                failure
                    .remedy()
                    .unwrap_or("check the network, the address and the firewall"),
            ),
        };
        found.push(of(finding));
        let skew = call.server_time.map_or(0, |at| at.saturating_sub(now()));
        if skew.abs() > SKEW {
            let text = format!(
                "{channel}: its clock and this machine's differ by {}",
                age(skew.abs())
            );
            let remedy = "set this machine's clock by the network, or tell the receiver";
            let finding = Finding::new(Severity::Warning, "clock_skew", text, remedy);
            found.push(of(finding));
        }
    }
    found
}

fn print(findings: &[Finding], info: &FileInfo, db: &Path, out: &mut Out) -> anyhow::Result<()> {
    let (shown, alike) = crowd::alike(
        crowd::is_crowd(findings.len(), out),
        findings.iter().collect(),
        |it| it.code,
    );
    for finding in shown {
        let tone = match finding.severity {
            Severity::Fault => Tone::Bad,
            Severity::Warning => Tone::Wait,
            _ => Tone::Plain,
        };
        let word = format!("{:8} ", finding.severity.as_str());
        out.paragraph(&word, tone, &finding.text)?;
        out.paragraph("         -> ", Tone::Plain, &finding.remedy)?;
        if let Some(command) = command(finding, db) {
            out.command(12, &command)?;
        }
    }
    for (code, more) in alike {
        let number = count(more.len() as u64, "more finding", "more findings");
        let text = format!(
            "… and {number} of this kind: {code}. All are shown with --json, or into a pipe."
        );
        out.paragraph("", Tone::Plain, &text)?;
    }
    let file = format!(
        "{}, log {}, {} unused, journal {}, schema {}, SQLite {}",
        bytes(info.bytes),
        bytes(info.wal_bytes),
        bytes(info.free_bytes()),
        info.journal_mode,
        info.schema_version,
        info.sqlite
    );
    out.line("")?;
    out.paragraph("", Tone::Plain, &file)?;
    let (tone, text) = match findings.iter().filter(|it| it.needs_person()).count() {
        0 => (Tone::Good, "nothing needs a person".into()),
        number => {
            let finding = count(number as u64, "finding needs", "findings need");
            (Tone::Bad, format!("{finding} a person"))
        }
    };
    out.line(out.paint(tone, &text))
}
