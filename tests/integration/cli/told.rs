//! What is said on standard error, and what happens when nothing can be said.

use serde_json::Value;

use super::{Desk, Ran};
use crate::server::{Server, respond};

/// Every line on standard error is a JSON object.
fn objects(ran: &Ran) -> Vec<Value> {
    let lines = ran.err.lines();
    let object = |it: &str| match serde_json::from_str::<Value>(it) {
        Ok(value) if value.is_object() => value,
        other => panic!("{other:?}: {ran:?}"),
    };
    lines.map(object).collect()
}

#[test]
fn a_program_that_asked_for_json_reads_json_on_standard_error_too() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql()
        .execute_batch("UPDATE outbox SET status = 'sent', settled_at = 1, payload = ''")
        .unwrap();
    desk.put("sales", "S-2", "text");
    let server = Server::start(|_| respond(500, &[], "{}"));
    desk.write(
        "outbox.toml",
        format!("[channel.default]\nurl = \"{}\"\n", server.url("/")),
    );
    desk.write(
        "wrong.toml",
        "[channel.default]\nulr = 1\nmethod = \"GET\"\n",
    );
    for (args, key) in [
        // Notes.
        ("list till.db --channel slaes --json", "note"),
        ("retry till.db --all --channel slaes --json", "note"),
        ("enqueue till.db --channel a --json no-json", "note"),
        ("curl till.db 1 --config outbox.toml --json", "note"),
        (
            "enqueue till.db --channel sales --key S-2 --content-type text/plain --json other",
            "note",
        ),
        // The log.
        ("drain till.db --config outbox.toml --now --json -v", "log"),
        ("drain till.db --config outbox.toml --now --json -vv", "log"),
        // Errors.
        ("show till.db S-9 --json", "error"),
        ("show none.db S-9 --json", "error"),
        ("drain till.db --config wrong.toml --json", "error"),
        ("run till.db --config wrong.toml --json", "error"),
        // Usage.
        ("status till.db --json=1", "error"),
        ("status till.db --json=true --jsno", "error"),
        ("status --json", "error"),
        ("statsu till.db --json", "error"),
        ("--json", "error"),
        ("list till.db --limit none --json", "error"),
        ("man drain --json", "error"),
        ("watch till.db --json", "error"),
    ] {
        let ran = desk.run(args.split(' '));
        let said = objects(&ran);
        assert!(said.iter().any(|it| it[key].is_string()), "{args}: {ran:?}");
        if key == "error" {
            assert_eq!(said.len(), 1, "{args}: {ran:?}");
            assert_eq!(said[0]["exit"], ran.code, "{args}: {ran:?}");
        }
    }
}

/// A device that takes nothing, as a full disk.
#[cfg(target_os = "linux")]
#[test]
fn an_output_that_cannot_be_written_is_an_error_of_every_command() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.write(
        "outbox.toml",
        "[channel.default]\nurl = \"http://localhost:9/\"\n",
    );
    for args in [
        "--help",
        "--version",
        "help",
        "help drain",
        "drain --help",
        "init shop.db",
        "enqueue till.db --channel a --content-type text/plain more",
        "edit till.db 1 text --dry-run",
        "drain till.db --config outbox.toml",
        "status till.db",
        "list till.db",
        "show till.db 1",
        "why till.db",
        "why till.db 1",
        "retry till.db --all --dry-run",
        "cancel till.db 1 --dry-run",
        "conflicts till.db",
        "pause till.db sales",
        "resume till.db sales",
        "export till.db",
        "backup till.db copy.db",
        "purge till.db --older-than 1d --dry-run",
        "compact till.db --dry-run",
        "check till.db",
        "curl till.db 1 --config outbox.toml",
        "bundle till.db -",
        "bundle till.db support.json",
        "upgrade till.db",
        "schema",
        "completions bash",
        "man",
    ] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let mut command = desk.command(args.split(' '));
        let ran: Ran = command.stdout(full).output().unwrap().into();
        ran.failed(
            1,
            "the output could not be written: No space left on device",
        );
    }
}

/// The service goes on, and says at its end that it was not heard.
#[cfg(target_os = "linux")]
#[test]
fn a_service_whose_lines_cannot_be_written_ends_with_an_error() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let server = Server::start(|_| respond(200, &[], "{}"));
    desk.write(
        "outbox.toml",
        format!("[channel.default]\nurl = \"{}\"\n", server.url("/")),
    );
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let args = ["run", "till.db", "--config", "outbox.toml", "--json"];
    let child = desk.command(args).stdout(full).spawn().unwrap();
    let started = std::time::Instant::now();
    while desk.json(["status", "till.db", "--json"])["total"]["sent"] != 1 {
        assert!(started.elapsed() < std::time::Duration::from_secs(60));
    }
    let pid = child.id().to_string();
    std::process::Command::new("kill")
        .arg(pid)
        .status()
        .unwrap();
    let ran: Ran = super::ended(child);
    ran.failed(1, "the output could not be written");
}

/// A name that begins with a dash, and one whose bytes are no text.
#[cfg(target_os = "linux")]
#[test]
fn a_command_to_copy_means_the_file_whatever_it_is_called() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql()
        .execute_batch(
            "UPDATE outbox SET status = 'dead', settled_at = 1; PRAGMA wal_checkpoint(TRUNCATE)",
        )
        .unwrap();
    for name in [&b"-x.db"[..], b"a\xff b'.db"] {
        let name = OsStr::from_bytes(name);
        std::fs::copy(desk.path("till.db"), desk.path("").join(name)).unwrap();
        for command in ["status", "why"] {
            let ran = desk.run([OsStr::new(command), OsStr::new("--"), name]);
            let command = ran.out.lines().find(|it| it.starts_with("  outbox "));
            let command = command
                .unwrap_or_else(|| panic!("{ran:?}"))
                .trim()
                .replace("outbox ", &format!("{} ", env!("CARGO_BIN_EXE_outbox")));
            let ran = std::process::Command::new("bash")
                .args(["-c", &command])
                .current_dir(desk.path(""))
                .output()
                .unwrap();
            assert!(ran.status.success(), "{command}: {ran:?}");
        }
    }
}
