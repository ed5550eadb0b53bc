//! `outbox list`: messages, a line each.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use sqlite_outbox::{
    ChannelStats, Counts, Entry, Explainer, Fault, Filter, Outbox, Reason, Status, Why,
};

use super::damage::Damage;
use super::entry::Row;
use super::operate::remark;
use super::reasons;
use crate::args::{self, Database, Exit, Format};
use crate::output::{Column, Out, Table, Tone, age, brief, note, now, printable_name, thousands};
use crate::settings;

/// How many are shown to a person who did not say.
const SHOWN: usize = 100;

/// Conflicts that are looked for beside the messages.
const CONTESTED: usize = 1_000;

/// Messages read at once; none is read while others are being printed.
const PAGE: usize = 500;

/// List messages in the order they were enqueued, a line each
///
/// On a terminal a row is one line, cut to its width, and the list ends after 100. Where a program
/// reads, nothing is cut and all are listed. CHARGED are the failed attempts that count towards the
/// end as a dead letter; those for which the channel or the network was at fault do not.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  outbox list till.db --unsent
  outbox list till.db --status dead,expired --channel sales
  outbox list till.db --newest --limit 10")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    chosen: Chosen,
    /// The last one enqueued comes first
    #[arg(long)]
    newest: bool,
    /// At most so many [default: 100 on a terminal, else all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// The settings file: to see channels without a route
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    format: Format,
}

/// Which messages.
#[derive(Debug, Args)]
pub(super) struct Chosen {
    /// Only those that stand there; several with commas, or --status again
    #[arg(long, value_delimiter = ',', ignore_case = true, value_parser = args::status())]
    status: Vec<Status>,
    /// Only pending, waiting and sending ones
    #[arg(long)]
    unsent: bool,
    /// Only this channel
    #[arg(long)]
    channel: Option<String>,
}

impl Chosen {
    /// Empty: all.
    fn statuses(&self) -> Vec<Status> {
        let unsent = Status::ALL.into_iter().filter(|it| it.is_unsent());
        let unsent = unsent.filter(|_| self.unsent);
        self.status.iter().copied().chain(unsent).collect()
    }

    pub(super) fn filter(&self) -> Filter {
        let all = Filter::new();
        let filter = self.statuses().into_iter().fold(all, Filter::status);
        match &self.channel {
            Some(channel) => filter.channel(channel),
            None => filter,
        }
    }

    pub(super) fn channel(&self) -> Option<&str> {
        self.channel.as_deref()
    }

    /// Where nothing was found, the channel may be mistyped.
    pub(super) fn remark(&self, outbox: &Outbox, damage: &Damage) -> sqlite_outbox::Result<()> {
        match &self.channel {
            // What was said of the damage is enough.
            _ if damage.is_met() => Ok(()),
            Some(channel) if outbox.list(&self.filter().limit(1))?.is_empty() => {
                remark(outbox, channel)
            }
            _ => Ok(()),
        }
    }

    /// How many there are.
    fn count(&self, outbox: &Outbox, damage: &mut Damage) -> sqlite_outbox::Result<u64> {
        let mut statuses = self.statuses();
        statuses.sort_by_key(|it| it.as_str());
        statuses.dedup();
        if statuses.is_empty() {
            statuses = Status::ALL.into();
        }
        let stats = damage.stats(outbox)?;
        let wanted =
            |it: &&ChannelStats| self.channel.as_ref().is_none_or(|name| it.channel == *name);
        let channels = stats.channels.iter().filter(wanted);
        Ok(channels
            .flat_map(|it| statuses.iter().map(|status| number(&it.counts, *status)))
            .sum())
    }
}

fn number(counts: &Counts, status: Status) -> u64 {
    match status {
        Status::Pending => counts.pending,
        Status::Waiting => counts.waiting,
        Status::Sending => counts.sending,
        Status::Sent => counts.sent,
        Status::Dead => counts.dead,
        Status::Expired => counts.expired,
        Status::Cancelled => counts.cancelled,
        _ => 0,
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let loaded = match &arguments.config {
        Some(path) => Some(settings::load(path, None)?),
        None => None,
    };
    let outbox = arguments.database.open_to_read()?;
    let mut filter = arguments.chosen.filter();
    if arguments.newest {
        filter = filter.newest_first();
    }
    let mut out = Out::new();
    let json = arguments.format.json;
    let all = json || out.room().is_none();
    let limit = match arguments.limit {
        Some(limit) => usize::try_from(limit).unwrap_or(usize::MAX),
        None if all => usize::MAX,
        None => SHOWN,
    };
    let mut damage = Damage::default();
    let cut = match json {
        true => each_page(&outbox, filter, limit, &mut damage, |page, _| {
            page.iter().try_for_each(|entry| out.json(&Row::new(entry)))
        })?,
        false => {
            let explainer = match &loaded {
                Some(loaded) => outbox.explainer().routed(&loaded.dispatcher),
                None => outbox.explainer(),
            };
            as_table(&outbox, filter, limit, &explainer, &mut damage, &mut out)?
        }
    };
    out.flush()?;
    if cut && !json {
        let all = arguments.chosen.count(&outbox, &mut damage)?;
        let end = if arguments.newest { "last" } else { "first" };
        note(&format!(
            "the {end} {} of {}; --limit N shows more",
            thousands(limit as u64),
            thousands(all)
        ));
    }
    let remark = arguments.chosen.remark(&outbox, &damage);
    damage.part("whether the channel is mistyped", remark)?;
    damage.end(Exit::Done)
}

pub(super) fn as_table(
    outbox: &Outbox,
    filter: Filter,
    limit: usize,
    explainer: &Explainer<'_>,
    damage: &mut Damage,
    out: &mut Out,
) -> anyhow::Result<bool> {
    let mut table = Table::new([
        Column::number("ID"),
        Column::text("CHANNEL", 8).spare(2),
        Column::word("STATUS"),
        Column::key("KEY", 12),
        Column::number("AGE").spare(1),
        Column::number("CHARGED").spare(0),
        Column::text("WHY", 16),
    ]);
    let now = now();
    let contested = damage.part("which keys are contested", contested(outbox))?;
    let mut any = false;
    let cut = each_page(outbox, filter, limit, damage, |page, damage| {
        any = true;
        let asked = page.iter().filter(|it| it.status.is_unsent() || is_odd(it));
        let asked: Vec<_> = asked.map(|it| it.id).collect();
        let whys = damage.why_each(explainer, &asked)?;
        let whys: BTreeMap<_, _> = whys.iter().map(|it| (it.id, it)).collect();
        for entry in page {
            let why = why(entry, whys.get(&entry.id).copied());
            table.row(cells(entry, contested.get(&entry.id), why, now));
        }
        table.print(out)
    })?;
    match any {
        true => table.end(out)?,
        // Who knows.
        false if damage.is_met() => {}
        false => out.line("no message")?,
    }
    Ok(cut)
}

/// Reads page by page, and prints each after it was read: while a pager holds the output up, no
/// read transaction keeps the application's log from being cleaned. True when there are more.
pub(super) fn each_page(
    outbox: &Outbox,
    filter: Filter,
    limit: usize,
    damage: &mut Damage,
    mut show: impl FnMut(&[Entry], &mut Damage) -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let mut left = limit;
    let mut next = filter;
    loop {
        let (page, last) = damage.list(outbox, &next.clone().limit(left.clamp(1, PAGE)))?;
        if page.is_empty() || left == 0 {
            return Ok(!page.is_empty());
        }
        show(&page, damage)?;
        left = left.saturating_sub(page.len());
        let Some(last) = last else {
            return Ok(false);
        };
        next = next.after(last);
    }
}

/// The messages whose key other content was put in under, each with the first such conflict. Of
/// very many conflicts, the first.
fn contested(outbox: &Outbox) -> sqlite_outbox::Result<BTreeMap<i64, i64>> {
    let conflicts = outbox.conflicts(None, 0, CONTESTED)?;
    let holders = conflicts.iter().rev();
    Ok(holders.filter_map(|it| Some((it.holder?, it.id))).collect())
}

fn cells(entry: &Entry, conflict: Option<&i64>, why: String, now: i64) -> [(String, Tone); 7] {
    let tone = match entry.status {
        Status::Dead => Tone::Bad,
        Status::Sent => Tone::Good,
        _ => Tone::Plain,
    };
    [
        (entry.id.to_string(), Tone::Plain),
        (printable_name(&entry.channel).into_owned(), Tone::Plain),
        (entry.status.to_string(), tone),
        (printable_name(&entry.dedupe_key).into_owned(), Tone::Plain),
        (age(now.saturating_sub(entry.created_at)), Tone::Plain),
        (entry.attempts.to_string(), Tone::Plain),
        (
            match conflict {
                None => why,
                Some(id) if why.is_empty() => format!("conflict {id}"),
                Some(id) => format!("conflict {id}; {why}"),
            },
            Tone::Plain,
        ),
    ]
}

/// Whether it was sent and answered by nothing that a receiver of ours says: a page, maybe.
fn is_odd(entry: &Entry) -> bool {
    let answer = entry.answer.as_deref().unwrap_or_default();
    entry.status == Status::Sent && answer.contains('<')
}

/// What holds a message up, or what became of it.
fn why(entry: &Entry, why: Option<&Why>) -> String {
    match entry.status {
        Status::Sent => match &entry.provider_id {
            Some(id) => format!("as {id}"),
            None => match why.and_then(|it| Some((it.detail.as_deref()?, it))) {
                Some((page, it)) if it.fault == Fault::Network && it.sent_again => {
                    format!("{page}; sent again since")
                }
                Some((page, it)) if it.fault == Fault::Network => page.into(),
                _ => String::new(),
            },
        },
        // It may have been settled since the page was read.
        _ => match why.filter(|it| it.status.is_unsent()) {
            // It goes out by itself.
            Some(why)
                if why.reason == Reason::Due && why.obstacle.is_none() && why.detail.is_none() =>
            {
                String::new()
            }
            Some(why) => reasons::few(why),
            None if entry.status == Status::Expired && entry.last_error.is_none() => {
                "its time was over before it was sent".into()
            }
            None => brief(entry.last_error.as_deref().unwrap_or_default()).into(),
        },
    }
}
