//! `outbox export`: messages as JSON lines, with nothing left out.

use clap::Args;

use super::entry::Row;
use super::list::{Chosen, each_page};
use crate::args::{Database, Exit};
use crate::output::{Out, note};

/// Print messages as JSON lines, for another outbox to take
///
/// All columns are there, the payload byte for byte. A payload that is not UTF-8 stands as payload_base64 in place of payload. `enqueue --exported`
/// takes the lines back, with the same message ids.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  outbox export till.db --status dead > dead.jsonl
  outbox export old.db | outbox enqueue new.db --lines - --exported")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    chosen: Chosen,
    /// Say it if you like: it is always JSON
    #[arg(long, hide = true)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let outbox = arguments.database.open_to_read()?;
    let mut out = Out::new();
    each_page(&outbox, arguments.chosen.filter(), usize::MAX, |page| {
        page.iter().try_for_each(|entry| out.json(&Row::new(entry)))
    })?;
    out.flush()?;
    arguments.chosen.remark(&outbox)?;
    let conflicts = outbox.conflicts(arguments.chosen.channel(), 0, 1)?;
    if !conflicts.is_empty() {
        note(
            "messages whose key was taken by other content are not among them: see `outbox conflicts`",
        );
    }
    Ok(Exit::Done)
}
