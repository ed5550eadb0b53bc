//! `outbox backup`: a copy of the file while it is in use.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::args::{Database, Exit, Format, Usage};
use crate::output::{Out, bytes};
use crate::signals::Signals;

/// Copy the whole file while everything runs, and check the copy
///
/// The copy is one moment of the file, with all tables in it. It gets its name when it is whole and
/// checked; until then it is TO.XXXXXXXX.partial, and what a killed backup has left of one is removed by
/// the next to the same place. Do not let two programs send from
/// both: what is unsent in the copy would be sent twice, though with the same message ids.
///
/// To go back to a copy: end every program that has the file open; move till.db away, together with till.db-wal,
/// till.db-shm and till.db-journal (a -wal that stays would be read into the copy and damage it); put the copy
/// in place as till.db, for the same user; run `outbox check`; then start the programs. What was unsent in the copy
/// is sent again, under the same message ids, by which the receiver recognises it; what was enqueued since is
/// not in it.
///
/// Without a write-ahead log it is refused where the application writes so often that it would have to wait
/// for more than about two seconds.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  outbox backup till.db till-backup.db")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Where the copy goes; nothing is overwritten
    #[arg(value_name = "TO")]
    to: PathBuf,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Copied<'a> {
    path: &'a str,
    bytes: u64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    if arguments.to.as_os_str() == "-" {
        let text = "a copy is made in a file, not on standard output: name the file, or ./- for one of \
                    that name";
        return Err(Usage(text.into()).into());
    }
    // The source is only read.
    let outbox = arguments.database.open_to_read()?;
    let signals = Signals::listen()?;
    let copy = outbox
        .backup_unless(&arguments.to, &signals.cancel())
        .context("no copy was made")?;
    let path = arguments.to.to_string_lossy();
    let mut out = Out::new();
    match arguments.format.json {
        true => out.json(&Copied {
            path: &path,
            bytes: copy.bytes,
        })?,
        false => out.text(&format!("{path}: {}, checked", bytes(copy.bytes)))?,
    }
    out.flush()?;
    Ok(Exit::Done)
}
