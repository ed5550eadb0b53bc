//! The room on the disk of the file, which the library does not look at.

use std::path::Path;

use sqlite_outbox::{FileInfo, Finding, Outbox, Result, Severity};

use crate::output::bytes;

/// Below this it is full: SQLite writes whole pages, and several for each commit.
const FULL: u64 = 64 * 1024;

/// Whether the disk has room for what is yet to come. Silent where the system does not say.
pub(super) fn room(outbox: &Outbox, info: &FileInfo) -> Option<Finding> {
    let path = outbox.path();
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let free = fs4::available_space(folder.unwrap_or(Path::new("."))).ok()?;
    let has = format!("the disk of the file has {} left", bytes(free));
    let (severity, text) = match free {
        ..FULL => (
            Severity::Fault,
            format!("{has}: neither sales nor deliveries can be recorded"),
        ),
        _ if free < enough(info.wal_bytes) => (Severity::Warning, has),
        _ => return None,
    };
    let remedy = "make room: on a full disk neither sales nor messages can be committed";
    Some(Finding::new(severity, "disk_space", text, remedy))
}

/// What keeps everything from being sent: a disk that is full.
pub(super) fn full(outbox: &Outbox) -> Result<Option<Finding>> {
    let found = room(outbox, &outbox.file_info()?);
    Ok(found.filter(|it| it.severity == Severity::Fault))
}

/// Below this a disk is nearly full: a checkpoint of the log may let the file grow by its size.
fn enough(wal_bytes: u64) -> u64 {
    const LITTLE: u64 = 100 * 1024 * 1024;
    wal_bytes.saturating_mul(2).max(LITTLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_log_needs_room_for_itself() {
        assert_eq!(enough(0), 104_857_600);
        assert_eq!(enough(200_000_000), 400_000_000);
        assert_eq!(enough(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_disk_is_asked_for_its_room() {
        let folder = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(folder.path().join("till.db")).unwrap();
        let mut info = outbox.file_info().unwrap();
        // No disk has room for this.
        info.wal_bytes = u64::MAX;
        assert_eq!(room(&outbox, &info).unwrap().code, "disk_space");
    }
}
