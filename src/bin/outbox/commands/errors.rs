//! An error in one line for a person: what failed, why, and what to do.

use sqlite_outbox::Error;

use super::operate::who;

/// All of it, nothing twice.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let mut parts = Vec::new();
    for cause in error.chain() {
        let Some(ours) = cause.downcast_ref::<Error>() else {
            parts.push(cause.to_string());
            continue;
        };
        parts.push(ours.chain());
        // It tells of its own causes.
        let text = parts.join(": ");
        return match remedy(ours) {
            Some(remedy) => format!("{text}; {remedy}"),
            None => text,
        };
    }
    parts.join(": ")
}

/// What a person at this tool can do, where the library's sentence cannot say it.
fn remedy(error: &Error) -> Option<String> {
    match error {
        Error::NotFound(_) => Some("`outbox list DB` shows those that are there".into()),
        Error::ReadOnly(_) => Some(format!(
            "you are {}: run it as the user whose program writes the file",
            who()
        )),
        Error::Busy(_) => Some("`lsof FILE` names the programs that have it open".into()),
        _ => None,
    }
}
