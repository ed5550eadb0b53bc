//! A real filesystem that is really full: needs Linux and the right to mount one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sqlite_outbox::{Delivery, Error, Message, Outbox, Result, Settings};
use tempfile::TempDir;

use super::pump::{Counter, wait_until};
use crate::fixture::one;

/// Mounted as long as it lives.
struct Tiny {
    folder: TempDir,
}

impl Tiny {
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().ok()?;
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o"])
            .arg(format!("size={size}"));
        mount.arg("tmpfs").arg(folder.path());
        mount.stdout(Stdio::null()).stderr(Stdio::null());
        let mounted = mount.status().is_ok_and(|it| it.success());
        mounted.then_some(Self { folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.folder.path()).status();
    }
}

fn sell(outbox: &Outbox, n: usize) -> Result<()> {
    let key = format!("S-{n}");
    let message = Message::text("sales", "x".repeat(2_000)).dedupe_key(&key);
    outbox.transaction(|tx| {
        tx.execute("INSERT INTO sale VALUES (?1)", [&key])?;
        outbox.enqueue(tx, &message).map(drop)
    })
}

/// Takes all that is left, in pieces that get smaller.
fn stuff(path: &Path) {
    let mut size = 65_536;
    let mut content = Vec::new();
    while size > 0 {
        content.resize(content.len() + size, 0);
        if std::fs::write(path, &content).is_err() {
            content.truncate(content.len() - size);
            std::fs::write(path, &content).unwrap();
            size /= 2;
        }
    }
}

/// A shop calls: nothing works, and no program is up that has the file open. What looks must say why.
#[cfg(feature = "cli")]
#[test]
fn on_a_full_filesystem_the_tool_says_what_is_wrong_with_nobody_else_there() {
    let Some(tiny) = Tiny::mount("1500k") else {
        eprintln!("SKIPPED: no filesystem can be mounted here (Linux and root only)");
        return;
    };
    let path = tiny.path("till.db");
    let outbox = Outbox::open(&path).unwrap();
    let sale = "CREATE TABLE sale (id TEXT PRIMARY KEY)";
    outbox.connection().unwrap().execute_batch(sale).unwrap();
    sell(&outbox, 1).unwrap();
    drop(outbox);
    stuff(&tiny.path("ballast"));
    let run = |args: &[&str]| {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_outbox"));
        let ran = tool
            .arg(args[0])
            .arg(&path)
            .args(&args[1..])
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            ran.status.code().unwrap(),
            text(ran.stdout) + &text(ran.stderr),
        )
    };
    let (code, said) = run(&["check"]);
    assert!(
        code == 4 && said.contains("the disk of the file has 0 B left"),
        "{said}"
    );
    for look in [&["status"][..], &["why", "S-1"], &["bundle", "-"]] {
        let (code, said) = run(look);
        assert!(code == 0 && said.contains("sales"), "{look:?}: {said}");
    }
    for look in [&["status"][..], &["why"], &["why", "S-1"]] {
        let (_, said) = run(look);
        let full = "the disk of the file has 0 B left: neither sales";
        assert!(said.contains(full), "{look:?}: {said}");
        assert!(!said.contains("Nobody is at fault"), "{look:?}: {said}");
    }
    assert_eq!(run(&["status", "--attention"]).0, 4);
    for write in [
        &["enqueue", "--channel=sales", "1"][..],
        &["pause", "sales"],
        &["drain", "--url", "http://127.0.0.1:1/a"],
    ] {
        let (code, said) = run(write);
        assert!(
            code == 1 && said.contains("the disk is full: make room"),
            "{write:?}: {said}"
        );
        assert!(!said.contains("I/O"), "{said}");
    }
    std::fs::remove_file(tiny.path("ballast")).unwrap();
    assert_eq!(run(&["enqueue", "--channel=sales", "1"]).0, 0);
}

#[test]
fn on_a_full_filesystem_everyone_is_told_and_all_goes_on_when_there_is_space() {
    let Some(tiny) = Tiny::mount("1500k") else {
        eprintln!("SKIPPED: no filesystem can be mounted here (Linux and root only)");
        return;
    };
    let path = tiny.path("till.db");
    let outbox = Outbox::open(&path).unwrap();
    let conn = outbox.connection().unwrap();
    conn.execute_batch("CREATE TABLE sale (id TEXT PRIMARY KEY)")
        .unwrap();
    drop(conn);
    for n in 0..20 {
        sell(&outbox, n).unwrap();
    }
    let ballast = tiny.path("ballast");
    stuff(&ballast);
    // Somewhere in here the log cannot grow any more.
    let mut sold = 20;
    let error = loop {
        match sell(&outbox, sold) {
            Ok(()) => sold += 1,
            Err(error) => break error,
        }
        assert!(sold < 500, "the disk is never full");
    };
    assert!(matches!(error, Error::DiskFull(_)), "{error:?}");
    let unsent = usize::try_from(outbox.unsent().unwrap()).unwrap();
    assert_eq!(unsent, sold, "reading goes on");

    let failed = outbox.compact().unwrap_err();
    assert!(matches!(failed, Error::DiskFull(_)), "{failed:?}");
    #[cfg(feature = "backup")]
    {
        let copy = tiny.path("copy.db");
        let failed = outbox.backup(&copy).unwrap_err();
        assert!(failed.is_transient(), "{failed:?}");
        assert!(!copy.exists(), "a half copy is left");
    }
    let failed = Outbox::open(tiny.path("other.db")).unwrap_err();
    assert!(failed.is_transient(), "{failed:?}");
    let _ = std::fs::remove_file(tiny.path("other.db"));
    stuff(&ballast);

    let counter = Counter::default();
    let receiver = counter.clone();
    let pump = outbox.pump(move |it: &Delivery| receiver.take(it));
    let settings = Settings::default().workers(1).prefetch(4);
    let pump = pump.settings(settings).start().unwrap();
    wait_until("an error", || pump.health().error.is_some());
    assert!(
        counter.calls() <= 8,
        "{} sent without record",
        counter.calls()
    );

    std::fs::remove_file(&ballast).unwrap();
    wait_until("all sent", || outbox.unsent().is_ok_and(|it| it == 0));
    assert_eq!(
        (counter.keys(), counter.calls() as usize),
        (sold, sold),
        "once each"
    );
    pump.stop(std::time::Duration::from_secs(30)).unwrap();
    sell(&outbox, sold).unwrap();
    let conn = outbox.connection().unwrap();
    let alone = "SELECT count(*) FROM sale LEFT JOIN outbox ON dedupe_key = sale.id WHERE outbox.id IS NULL";
    assert_eq!(one(&conn, alone), "0");
    assert_eq!(one(&conn, "PRAGMA integrity_check"), "ok");
}
