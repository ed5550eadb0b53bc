//! What lies beside the file, with rights that keep those out who may write the file.
#![cfg(unix)]

use std::fs::{Permissions, metadata, set_permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use super::Desk;

/// A user that is not root, who is asked for no rights.
const OTHER: u32 = 65_534;

/// A till that belongs to a user, and the connection of a program that keeps its log there.
struct Till {
    desk: Desk,
    root: bool,
    _held: sqlite_outbox::rusqlite::Connection,
}

impl Till {
    fn new() -> Self {
        let desk = Desk::new();
        let root = metadata(desk.path("till.db")).unwrap().uid() == 0;
        let folder = desk.path(".");
        if root {
            set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
            chown(desk.path("till.db"), Some(OTHER), Some(OTHER)).unwrap();
        }
        let held = desk.sql();
        held.execute_batch(
            "INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', '1')",
        )
        .unwrap();
        Self {
            desk,
            root,
            _held: held,
        }
    }

    fn set(&self, end: &str, mode: u32, owner: u32) {
        let path = self.desk.path(&format!("till.db{end}"));
        if self.root {
            chown(&path, Some(owner), Some(owner)).unwrap();
        }
        set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// Runs the tool as the user to whom the file belongs; `None` where that cannot be.
    fn run(&self, arguments: &[&str]) -> Option<(i32, String)> {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_outbox"));
        tool.args(arguments).current_dir(self.desk.path("."));
        if self.root {
            tool.uid(OTHER).gid(OTHER);
        }
        let Output {
            status,
            stdout,
            stderr,
        } = tool.output().ok()?;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Some((status.code().unwrap(), text(stdout) + &text(stderr)))
    }
}

const DRAIN: [&str; 4] = ["drain", "till.db", "--url", "http://127.0.0.1:9/"];

#[test]
fn a_log_with_other_rights_is_named_by_all_who_look_and_all_who_write() {
    for end in ["-wal", "-shm"] {
        for (mode, owner) in [(0o444, OTHER), (0o600, 0)] {
            let till = Till::new();
            if owner == 0 && !till.root {
                continue;
            }
            till.set(end, mode, owner);
            let name = format!("till.db{end} has other rights than the file");
            for (arguments, code) in [
                (&["why", "till.db"][..], 0),
                (&["status", "till.db"], 0),
                (&["status", "till.db", "--attention"], 4),
                (&["check", "till.db"], 4),
                (&DRAIN, 1),
                (&["pause", "till.db", "sales"], 1),
            ] {
                let Some((ended, said)) = till.run(arguments) else {
                    eprintln!("SKIPPED: the tool cannot be run as another user here");
                    return;
                };
                assert!(said.contains(&name), "{end} {mode:o} {arguments:?}: {said}");
                assert!(
                    !said.contains("Nobody is at fault"),
                    "{arguments:?}: {said}"
                );
                // What may not even be read ends with an error.
                let looks = code != 1;
                assert!(
                    ended == code || (looks && mode == 0o600 && ended == 1),
                    "{ended}: {said}"
                );
            }
        }
    }
}

/// The program that has it open goes on; those who come are told what to do.
#[test]
fn a_log_that_was_deleted_under_a_program_has_a_remedy() {
    let till = Till::new();
    std::fs::remove_file(till.desk.path("till.db-wal")).unwrap();
    for arguments in [
        &["status", "till.db"][..],
        &["why", "till.db"],
        &["check", "till.db"],
    ] {
        let ran = till.desk.run(arguments);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.err.contains("end all of them"), "{ran:?}");
    }
    drop(till._held);
    let ran = till.desk.run(["status", "till.db"]);
    assert!(ran.out.contains("1 message waiting"), "{ran:?}");
}
