//! `outbox compact`: give the disk back what the file does not use.

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::args::{Database, Exit, Format};
use crate::output::{Out, bytes, note};
use crate::signals::Signals;

/// Rewrite the whole file without its unused pages (VACUUM)
///
/// Nobody else can write meanwhile, about a second per 100 MB, and the disk needs room for up to
/// two further copies. Tables of the application without an INTEGER PRIMARY KEY may get other
/// rowids. Free pages are used again anyway: this is for a file that will stay small.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: what would it gain?
  outbox compact till.db --dry-run")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Say what it would do, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Done {
    bytes_before: u64,
    free_bytes: u64,
    bytes_after: Option<u64>,
    gained: Option<i64>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open()?;
    let info = outbox.file_info()?;
    let before = info.pages.saturating_mul(info.page_size);
    let plan = format!(
        "{} of {} are unused and would go to the disk",
        bytes(info.free_bytes()),
        bytes(before)
    );
    let mut out = Out::new();
    let mut done = Done {
        bytes_before: before,
        free_bytes: info.free_bytes(),
        bytes_after: None,
        gained: None,
    };
    if arguments.dry_run {
        match arguments.format.json {
            true => out.json(&done)?,
            false => out.line(plan)?,
        }
        out.flush()?;
        return Ok(Exit::Done);
    }
    if !arguments.format.json {
        note(&format!("{plan}; nobody else can write until it is done"));
    }
    let signals = Signals::listen()?;
    let after = outbox
        .compact_unless(&signals.cancel())
        .context("nothing has changed")?
        .after;
    let after = after.pages.saturating_mul(after.page_size);
    let gained = i64::try_from(before).unwrap_or(i64::MAX) - i64::try_from(after).unwrap_or(0);
    done.bytes_after = Some(after);
    done.gained = Some(gained);
    match arguments.format.json {
        true => out.json(&done)?,
        false => out.line(format!(
            "{} before, {} after, {} gained",
            bytes(before),
            bytes(after),
            bytes(gained.max(0).unsigned_abs())
        ))?,
    }
    out.flush()?;
    Ok(Exit::Done)
}
