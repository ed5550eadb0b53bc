//! `outbox init`: the only command that creates a file.

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use sqlite_outbox::{Error, Outbox, SCHEMA_VERSION};

use crate::args::{Database, Exit, Format, unreadable};
use crate::output::Out;

/// Make the outbox tables in a SQLite file, and a missing file
///
/// Whatever else is in the file stays as it is. Where there is an outbox already, nothing changes.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  outbox init till.db")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Made<'a> {
    path: &'a str,
    created: bool,
    instance_id: &'a str,
    schema_version: i64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let path = &arguments.database.db;
    // Looks first: `open` would also bring an older outbox up to date, which is not ours to do.
    let (outbox, created) = match Outbox::open_existing(path) {
        Ok(outbox) => (outbox, false),
        Err(Error::Missing(_) | Error::NoOutbox(_)) => {
            let outbox = Outbox::open(path).context("no outbox was made")?;
            (outbox, true)
        }
        Err(error) => return Err(unreadable(path, error).into()),
    };
    let shown = outbox.path().to_string_lossy();
    let mut out = Out::new();
    if arguments.format.json {
        out.json(&Made {
            path: &shown,
            created,
            instance_id: outbox.instance_id(),
            schema_version: SCHEMA_VERSION,
        })?;
    } else {
        let what = match created {
            true => "the outbox is made",
            false => "there is an outbox already",
        };
        out.text(&format!("{}: {what}", path.display()))?;
    }
    out.flush()?;
    Ok(Exit::Done)
}
