//! `outbox schema`: what to put into an application's own migration.

use clap::Args;
use serde::Serialize;
use sqlite_outbox::{SCHEMA, SCHEMA_VERSION};

use crate::args::{Exit, Format};
use crate::output::Out;

/// Print the SQL that makes the outbox tables
///
/// It can be run in an application's own migration, as often as you like.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  outbox schema | sqlite3 till.db")]
pub(crate) struct Arguments {
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Schema {
    schema_version: i64,
    sql: &'static str,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let mut out = Out::new();
    if arguments.format.json {
        out.json(&Schema {
            schema_version: SCHEMA_VERSION,
            sql: SCHEMA,
        })?;
    } else {
        out.line(SCHEMA.trim_end())?;
    }
    out.flush()?;
    Ok(Exit::Done)
}
