//! Whether the outbox is whole, this program's to write, and has ids left.

use rusqlite::Connection;

use crate::condition::Finding;
use crate::condition::Severity::Fault;
use crate::error::{Error, Result};
use crate::schema;
use crate::store::{check, select};

pub(super) fn parts(conn: &Connection) -> Result<Vec<Finding>> {
    let missing = schema::missing(conn)?;
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let remedy = match missing.iter().any(|it| it == "outbox") {
        true => {
            "the messages were in what is missing: restore a backup; to put the parts back begins \
             anew with no messages"
        }
        false => "put them back, and find out what removed them; the messages are there",
    };
    let finding = Finding::new(
        Fault,
        "schema_incomplete",
        format!("parts of the outbox are missing: {}", missing.join(", ")),
        remedy,
    );
    let finding = finding.command(["upgrade"]);
    Ok(vec![finding.of(missing.len() as u64, None)])
}

pub(crate) fn writer(conn: &Connection) -> Result<Vec<Finding>> {
    let Err(error @ Error::SchemaTooNew { .. }) = schema::check_writer(conn) else {
        return Ok(Vec::new());
    };
    Ok(vec![Finding::new(
        Fault,
        "schema_too_new",
        error.to_string(),
        concat!(
            "a newer program has forbidden older ones to write here, and this one, version ",
            env!("CARGO_PKG_VERSION"),
            ", can only look: use the `outbox` that comes with the program which writes the file"
        ),
    )])
}

/// One row with a huge id, written by hand, leaves none for those that come after it.
pub(super) fn ids(conn: &Connection) -> Result<Vec<Finding>> {
    let highest = select::highest(conn)?;
    if highest < check::FAR {
        return Ok(Vec::new());
    }
    Ok(vec![Finding::new(
        Fault,
        "ids_used_up",
        format!(
            "the highest message id is {highest}; behind 9007199254740991 no message can be enqueued"
        ),
        format!(
            "some program gave an id by hand: find out which. Let those messages arrive, or cancel \
             them; then stop all programs, and in sqlite3: {}",
            check::TAKE_BACK_IDS
        ),
    )])
}
