//! The tool on the same files.

use std::process::{Command, Stdio};
use std::time::Instant;

use super::corpus::{self, Broken};
use super::{HANG, run_on_good, write};
use crate::fixture::{folder_in_memory, long};

const COMMANDS: [&[&str]; 18] = [
    &["status", "till.db"],
    &["status", "till.db", "--json"],
    &["list", "till.db"],
    &["show", "till.db", "1"],
    &["show", "till.db", "free-3"],
    &["why", "till.db"],
    &["why", "till.db", "3"],
    &["check", "till.db"],
    &["export", "till.db"],
    &["bundle", "till.db", "bundle.json"],
    &[
        "drain",
        "till.db",
        "--url",
        "http://127.0.0.1:9/x",
        "--deadline",
        "1s",
    ],
    &[
        "enqueue",
        "till.db",
        "--channel",
        "sales",
        "--key",
        "new",
        "{}",
    ],
    &["retry", "till.db", "--all"],
    &["cancel", "till.db", "4"],
    &["purge", "till.db", "--older-than", "1d"],
    &["backup", "till.db", "copy.db"],
    &["upgrade", "till.db"],
    &["compact", "till.db"],
];

/// Runs every command in this folder.
fn run_all(folder: &std::path::Path, name: &str) {
    for args in COMMANDS {
        let started = Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        command.args(args).current_dir(folder).stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let what = format!("{args:?} on {name}: {said}");
        assert!(started.elapsed() < HANG, "{what}");
        // By a signal there is no code, by a panic it is 101.
        assert!(
            matches!(output.status.code(), Some(0..=4)),
            "{what}: {}",
            output.status
        );
        if args.contains(&"--json") {
            continue;
        }
        let errors = said
            .lines()
            .filter(|line| line.starts_with("error: "))
            .count();
        let expected = usize::from(output.status.code() == Some(1));
        assert_eq!(errors, expected, "{what}");
        let shown = [&output.stdout, &output.stderr];
        let controls = shown
            .iter()
            .any(|it| it.iter().any(|byte| *byte < 32 && *byte != b'\n'));
        assert!(!controls, "control characters come through: {what}");
    }
}

#[test]
fn every_command_answers_in_one_line_whatever_the_file_is() {
    let folder = folder_in_memory();
    let good = corpus::good(folder.path());
    let every = if long() { 1 } else { 40 };
    let mut tried = 0;
    let mut files: Vec<Broken> = corpus::damaged(&good);
    files.truncate(if long() { 400 } else { usize::MAX });
    for broken in files.iter().step_by(every) {
        let folder = folder_in_memory();
        write(broken, folder.path());
        run_all(folder.path(), &broken.name);
        tried += 1;
    }
    for script in corpus::statements().iter().step_by(every).map(|it| &it.sql) {
        if let Some((folder, _)) = run_on_good(&good, script) {
            run_all(folder.path(), script);
            tried += 1;
        }
    }
    println!("{tried} files, {} commands each", COMMANDS.len());
    assert!(tried > 10);
}
