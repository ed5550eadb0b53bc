//! `outbox upgrade`: the only command that changes an older schema.

use clap::Args;
use serde::Serialize;
use sqlite_outbox::{Error, Outbox, SCHEMA_VERSION};

use crate::args::{Database, Exit, Format, unreadable};
use crate::output::Out;

/// Bring an older outbox up to date, and mend what it lacks
///
/// Everything is added in one transaction, or nothing is. Programs with the older version go on
/// working as far as the new one allows it. Messages and other tables stay as they are.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  outbox backup till.db before.db && outbox upgrade till.db")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Upgraded {
    from: i64,
    to: i64,
    /// What was missing and is there again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mended: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let path = &arguments.database.db;
    let mut mended = Vec::new();
    let from = match Outbox::open_existing(path) {
        Ok(outbox) => {
            let version = outbox.file_info()?.schema_version;
            // A newer one is not this program's to complete.
            if version <= SCHEMA_VERSION {
                mended = outbox.missing_parts()?;
            }
            version
        }
        Err(Error::SchemaTooOld { found, .. }) => found,
        Err(Error::Incomplete { missing }) => {
            mended = missing;
            SCHEMA_VERSION
        }
        Err(error) => return Err(unreadable(path, error).into()),
    };
    let to = Outbox::open(path)?.file_info()?.schema_version;
    let mut out = Out::new();
    if arguments.format.json {
        out.json(&Upgraded { from, to, mended })?;
    } else if !mended.is_empty() {
        out.text(&format!(
            "what was missing is there again: {}",
            mended.join(", ")
        ))?;
    } else if from < to {
        out.line(format!("the outbox had schema {from} and has {to} now"))?;
    } else if from > SCHEMA_VERSION {
        out.line(format!(
            "the outbox has schema {from}, newer than this program's {SCHEMA_VERSION}"
        ))?;
    } else {
        out.line(format!("the outbox has schema {to} and is complete"))?;
    }
    out.flush()?;
    Ok(Exit::Done)
}
