//! What is found in a file and no channel's state tells.

use sqlite_outbox::{Error, Finding, Outbox, Stats};

use super::disk;
use crate::output::{Out, Tone};

/// That nobody sends.
pub(super) const UNATTENDED: &str = "unattended";

/// What no channel's state tells: what keeps everything from being sent, where something is unsent, and
/// what went wrong without anybody being told.
pub(super) fn told_of(outbox: &Outbox, stats: &Stats) -> sqlite_outbox::Result<Vec<Finding>> {
    let mut found = outbox.obstacles()?;
    found.extend(disk::room(outbox, &outbox.file_info()?));
    found.retain(|it| it.needs_person() || stats.total.unsent() > 0);
    let stuck = found.iter().any(Finding::needs_person);
    let unnoticed = outbox.unnoticed()?.into_iter();
    found.extend(unnoticed.filter(|it| !stuck || it.code != UNATTENDED));
    Ok(found)
}

/// All that needs a person, as `check` has it, but for what takes a look at the whole file.
pub(super) fn needs(outbox: &Outbox) -> sqlite_outbox::Result<Vec<Finding>> {
    let mut found = outbox.check_quickly()?;
    found.extend(disk::room(outbox, &outbox.file_info()?));
    found.retain(Finding::needs_person);
    found.sort_by_key(Finding::rank);
    Ok(found)
}

/// The same of a file that may be damaged: what can be told of it is told.
pub(super) fn of_damaged(outbox: &Outbox, stats: &Stats) -> sqlite_outbox::Result<Vec<Finding>> {
    match told_of(outbox, stats) {
        Err(Error::Damaged(_) | Error::Incomplete { .. }) => Ok(Vec::new()),
        found => found,
    }
}

/// A line for each.
pub(super) fn tell(findings: &[Finding], out: &mut Out) -> anyhow::Result<()> {
    let mut each = findings.iter();
    each.try_for_each(|it| out.paragraph("", Tone::Bad, &it.text))
}
