//! `outbox list`: messages, a line each.

use clap::Args;
use sqlite_outbox::{Entry, Filter, Outbox, Status};

use super::entry::Row;
use crate::args::{self, Database, Exit, Format};
use crate::output::{Column, Out, Table, Tone, age, ago, now};

/// How many are shown to a person who did not say.
const SHOWN: usize = 100;

/// Messages read at once; none is read while others are being printed.
const PAGE: usize = 500;

/// List messages in the order they were enqueued
#[derive(Debug, Args)]
#[command(after_help = "Example: the dead letters of one channel\n  \
    outbox list till.db --status dead --channel sales")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Only these: pending, waiting, sending, sent, dead, expired or cancelled
    #[arg(long, value_parser = args::status)]
    status: Option<Status>,
    /// Only this channel
    #[arg(long)]
    channel: Option<String>,
    /// At most so many [default: 100; with --json all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    format: Format,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open()?;
    let mut filter = Filter::new();
    if let Some(status) = arguments.status {
        filter = filter.status(status);
    }
    if let Some(channel) = arguments.channel {
        filter = filter.channel(channel);
    }
    let limit = arguments
        .limit
        .map(|it| usize::try_from(it).unwrap_or(usize::MAX));
    let mut out = Out::new();
    let json = arguments.format.json;
    let limit = limit.unwrap_or(if json { usize::MAX } else { SHOWN });
    let more = match json {
        true => as_json(&outbox, filter, limit, &mut out)?,
        false => as_table(&outbox, filter, limit, &mut out)?,
    };
    if more && arguments.limit.is_none() {
        let text = format!("There are more than {limit}; --limit N shows them.");
        out.line(out.paint(Tone::Dim, &text))?;
    }
    out.flush()?;
    Ok(Exit::Done)
}

fn as_json(outbox: &Outbox, filter: Filter, limit: usize, out: &mut Out) -> anyhow::Result<bool> {
    each_page(outbox, filter, limit, |page| {
        page.iter().try_for_each(|entry| out.json(&Row::new(entry)))
    })
}

fn as_table(outbox: &Outbox, filter: Filter, limit: usize, out: &mut Out) -> anyhow::Result<bool> {
    let mut table = Table::new([
        Column::number("ID"),
        Column::text("CHANNEL", 16),
        Column::word("STATUS"),
        Column::text("KEY", 14),
        Column::number("AGE"),
        Column::number("TRIES"),
        Column::text("WHY", 12),
    ]);
    let now = now();
    let mut any = false;
    let more = each_page(outbox, filter, limit, |page| {
        any = true;
        for entry in page {
            table.row(cells(entry, now));
        }
        table.print(out)
    })?;
    if !any {
        out.line("no message")?;
    }
    Ok(more)
}

/// Reads page by page, and prints each after it was read: while a pager holds the output up, no
/// read transaction keeps the application's log from being cleaned. True when there are more.
pub(super) fn each_page(
    outbox: &Outbox,
    filter: Filter,
    limit: usize,
    mut show: impl FnMut(&[Entry]) -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let mut left = limit;
    let mut after = 0;
    loop {
        let page = filter.clone().after(after).limit(left.clamp(1, PAGE));
        let page = outbox.list(&page)?;
        let Some(last) = page.last() else {
            return Ok(false);
        };
        if left == 0 {
            return Ok(true);
        }
        after = last.id;
        show(&page)?;
        left = left.saturating_sub(page.len());
    }
}

fn cells(entry: &Entry, now: i64) -> [(String, Tone); 7] {
    let tone = match entry.status {
        Status::Dead => Tone::Bad,
        Status::Sent => Tone::Good,
        Status::Expired | Status::Cancelled => Tone::Dim,
        _ => Tone::Plain,
    };
    [
        (entry.id.to_string(), Tone::Plain),
        (entry.channel.clone(), Tone::Plain),
        (entry.status.to_string(), tone),
        (entry.dedupe_key.clone(), Tone::Plain),
        (age(now.saturating_sub(entry.created_at)), Tone::Plain),
        (entry.attempts.to_string(), Tone::Plain),
        (why(entry, now), Tone::Plain),
    ]
}

/// What holds a message up, or what became of it.
fn why(entry: &Entry, now: i64) -> String {
    let error = entry.last_error.as_deref().unwrap_or_default();
    match entry.status {
        Status::Waiting => "behind an earlier one of its ordering key".into(),
        Status::Pending if entry.next_attempt_at > now => {
            let due = ago(entry.next_attempt_at, now);
            match error {
                "" => format!("due {due}"),
                error => format!("due {due}; {error}"),
            }
        }
        Status::Sent => match &entry.provider_id {
            Some(id) => format!("as {id}"),
            None => String::new(),
        },
        _ => error.into(),
    }
}
