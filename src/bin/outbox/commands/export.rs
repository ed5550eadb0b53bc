//! `outbox export`: messages as JSON lines, with nothing left out.

use clap::Args;

use super::damage::Damage;
use super::enqueue::exported::MAX_LINE;
use super::entry::Row;
use super::list::{Chosen, each_page};
use crate::args::{Database, Exit};
use crate::output::{Out, bytes, note};

/// Print messages as JSON lines, for another outbox to take
///
/// All columns are there, byte for byte. A payload that is not UTF-8, or that JSON would make much
/// longer, stands as payload_base64 in place of payload; another text that is not UTF-8 stands a
/// second time, as channel_base64 and so on. `enqueue --exported` takes the lines back, with the
/// same message ids, whatever plain SQL has put into them. What waits in a conflict is no message yet
/// and is not among them: `conflicts --json` has it, with its payload. A line that is too long for it is named
/// on stderr, and the exit code is 1.
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
    let mut exit = Exit::Done;
    let mut damage = Damage::default();
    let filter = arguments.chosen.filter();
    each_page(&outbox, filter, usize::MAX, &mut damage, |page, _| {
        for entry in page {
            let size = out.json_sized(&Row::new(entry))?;
            if size > MAX_LINE {
                exit = Exit::Error;
                note(&format!(
                    "message {} makes a line of {}, and `enqueue --exported` takes {} at most",
                    entry.id,
                    bytes(size as u64),
                    bytes(MAX_LINE as u64)
                ));
            }
        }
        Ok(())
    })?;
    out.flush()?;
    let remark = arguments.chosen.remark(&outbox, &damage);
    damage.part("whether the channel is mistyped", remark)?;
    let conflicts = outbox.conflicts(arguments.chosen.channel(), 0, 1);
    let conflicts = damage.part("whether there are conflicts", conflicts)?;
    if !conflicts.is_empty() {
        note(
            "messages whose key was taken by other content are not among them; `outbox conflicts --json` \
             has all of them",
        );
    }
    damage.end(exit)
}
