//! What a person does to messages and channels. Each is recorded with who, when and why.

mod again;
mod bulk;
mod channel;
mod edit;
mod purge;

use std::path::Path;

use anyhow::anyhow;
use clap::Args;
use sqlite_outbox::{Entry, Error, Operator, Outbox};

use crate::output::{Out, note, printable, printable_name};

pub(super) use again::{Arguments as Again, run as again};
pub(super) use bulk::{Arguments as Bulk, Deed, run as bulk};
pub(super) use channel::{Arguments as OfChannel, Change, run as channel, unknown};
pub(super) use edit::{Arguments as Edit, run as edit};
pub(super) use purge::{Arguments as Purge, run as purge};

/// Who is at the keyboard, as `user@host`.
pub(crate) fn who() -> String {
    let first = |names: &[&str]| {
        let values = names.iter().filter_map(|it| std::env::var(it).ok());
        values
            .map(|it| it.trim().to_string())
            .find(|it| !it.is_empty())
    };
    // Behind sudo it is the person that counts.
    let user = first(&["SUDO_USER", "USER", "LOGNAME", "USERNAME"]).or_else(owner);
    let file = |path: &str| std::fs::read_to_string(Path::new(path)).ok();
    let host = file("/proc/sys/kernel/hostname")
        .or_else(|| file("/etc/hostname"))
        .map(|it| it.trim().to_string())
        .filter(|it| !it.is_empty())
        .or_else(|| first(&["HOSTNAME", "COMPUTERNAME"]));
    let or_unknown = |it: Option<String>| it.unwrap_or_else(|| "unknown".into());
    format!("{}@{}", or_unknown(user), or_unknown(host))
}

/// Whose process this is, where no variable says so: under cron, in a container.
#[cfg(unix)]
fn owner() -> Option<String> {
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").ok()?);
    let uid = uid.to_string();
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut lines = known.lines().map(|it| it.split(':'));
    let name = lines.find_map(|mut it| {
        let name = it.next()?;
        (it.nth(1) == Some(&uid)).then(|| name.to_string())
    });
    Some(name.unwrap_or(format!("uid-{uid}")))
}

#[cfg(not(unix))]
fn owner() -> Option<String> {
    None
}

/// Tells of a channel that no message was ever in, where nothing was found.
pub(super) fn remark(outbox: &Outbox, channel: &str) -> sqlite_outbox::Result<()> {
    if let Some(text) = unknown(channel, &outbox.stats()?.channels) {
        note(&text);
    }
    Ok(())
}

/// An operator of this name, with a reason if one was given.
pub(super) fn operator<'a>(outbox: &'a Outbox, reason: Option<&str>) -> Operator<'a> {
    let operator = outbox.operator(who());
    match reason {
        Some(reason) => operator.reason(reason),
        None => operator,
    }
}

/// What a change takes whatever it is.
#[derive(Debug, Args)]
struct Meant {
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Say what would be done, name the first that it concerns, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Meant {
    fn operator<'a>(&self, outbox: &'a Outbox) -> Operator<'a> {
        let operator = operator(outbox, self.reason.as_deref());
        match self.dry_run {
            true => operator.dry_run(),
            false => operator,
        }
    }
}

/// Where it ended before all was done: with what was done, and stays done, before.
pub(super) fn early(error: Error, before: u64, said: impl Fn(u64) -> String) -> anyhow::Error {
    match error {
        Error::Interrupted { done } => anyhow!("stopped early, {}", said(before + done)),
        error => anyhow::Error::new(error).context(format!("stopped early, {}", said(before))),
    }
}

/// As [`early`], of those that were named: `done` of them were.
pub(super) fn each_of(
    (done, ended): (usize, sqlite_outbox::Result<()>),
    said: impl Fn(u64) -> String,
) -> anyhow::Result<()> {
    ended.map_err(|error| match error {
        Error::Interrupted { .. } => early(error, 0, said),
        error => early(error, done as u64, said),
    })
}

/// A message as people know it: its id and its key.
pub(super) fn name(entry: &Entry) -> String {
    format!("message {} (key {})", entry.id, entry.dedupe_key)
}

/// Of the messages that a bulk command concerns, so many are named.
const FIRST: usize = 10;

/// The messages with these ids that are still there.
fn entries(outbox: &Outbox, ids: &[i64]) -> anyhow::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for id in ids {
        entries.extend(outbox.get(*id)?);
    }
    Ok(entries)
}

/// Names the first of the messages that something is done to.
fn first(entries: &[Entry], of: u64, out: &mut Out) -> anyhow::Result<()> {
    for entry in entries.iter().take(FIRST) {
        out.line(format!(
            "  {}: {}",
            printable_name(&entry.channel),
            printable(&name(entry))
        ))?;
    }
    let named = entries.len().min(FIRST);
    match of.saturating_sub(named as u64) {
        more if named > 0 && more > 0 => out.line(format!("  and {more} more")),
        _ => Ok(()),
    }
}
