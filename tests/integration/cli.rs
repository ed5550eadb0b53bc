//! The tool `outbox`, run as a process.

mod again;
mod attention;
mod beforehand;
mod bundle;
mod check;
mod conflicts;
mod copied;
mod curl;
mod damaged;
mod drain;
mod failures;
mod files;
mod hostile;
mod lacking;
mod letters;
mod look;
mod mend;
mod operate;
mod output;
mod partial;
mod paths;
mod rights;
mod run;
mod said;
mod selling;
mod settings;
mod sink;
mod slips;
mod standing;
mod store;
#[cfg(unix)]
mod terminal;
mod text;
mod told;
mod transfer;
mod triggers;
mod truths;
mod watch;
mod why;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;
use sqlite_outbox::rusqlite::Connection;
use tempfile::TempDir;

/// A folder with a till's file, and the tool beside it.
pub(crate) struct Desk {
    folder: TempDir,
}

/// How the tool ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Desk {
    /// An empty folder.
    pub(crate) fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    /// With an outbox in `till.db`.
    pub(crate) fn new() -> Self {
        let desk = Self::empty();
        desk.done(["init", "till.db"]);
        desk
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn sql(&self) -> Connection {
        Connection::open(self.path("till.db")).unwrap()
    }

    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        command
            .args(args)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        self.command(args).output().unwrap().into()
    }

    /// Starts it, and leaves it going.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Going {
        let mut child = self.command(args).spawn().unwrap();
        let out = lines(child.stdout.take().unwrap());
        let err = lines(child.stderr.take().unwrap());
        Going { child, out, err }
    }

    /// Runs it with this on its standard input.
    pub(crate) fn feed<S: AsRef<OsStr>>(
        &self,
        input: impl AsRef<[u8]>,
        args: impl IntoIterator<Item = S>,
    ) -> Ran {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_ref()).unwrap();
        drop(stdin);
        ended(child)
    }

    /// Runs it, and it must succeed without a word on stderr.
    pub(crate) fn done<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let ran = self.run(args);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
        ran.out
    }

    /// Enqueues one message.
    pub(crate) fn put(&self, channel: &str, key: &str, payload: &str) {
        self.done([
            "enqueue",
            "till.db",
            "--channel",
            channel,
            "--key",
            key,
            "--content-type",
            "text/plain",
            payload,
        ]);
    }

    /// Enqueues messages of one ordering key, a dedupe key each.
    pub(crate) fn lane(&self, keys: &[&str]) {
        for key in keys {
            let args = [
                "enqueue",
                "till.db",
                "--channel=sales",
                "--ordering-key=lane",
            ];
            self.done(args.iter().chain(&["--key", key, "1"]));
        }
    }

    /// Two sales that plain SQL put in under one key, S-1: the second is kept aside.
    pub(crate) fn contested(&self) {
        self.sql()
            .execute_batch(
                "INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', '1');
                 INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', '2')
                   ON CONFLICT (channel, dedupe_key) DO NOTHING;",
            )
            .unwrap();
    }

    /// The one JSON object it prints.
    pub(crate) fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Value {
        self.run(args).json()
    }
}

/// A process that goes on, ended with the test.
pub(crate) struct Going {
    child: Child,
    out: Receiver<String>,
    err: Receiver<String>,
}

/// Longer than anything takes: it only keeps a test from hanging.
const BOUND: Duration = Duration::from_secs(120);

/// Lines as they come, until the end of the stream.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (told, lines) = channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        lines.try_for_each(|it| told.send(it))
    });
    lines
}

/// The next line; `None` at the end.
fn next(lines: &Receiver<String>) -> Option<String> {
    match lines.recv_timeout(BOUND) {
        Ok(line) => Some(line),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => panic!("it has said nothing for {BOUND:?}"),
    }
}

impl Going {
    /// The next line on its standard output.
    pub(crate) fn out(&mut self) -> String {
        next(&self.out).expect("a line on stdout")
    }

    /// The first line on its standard error that contains this.
    pub(crate) fn err(&mut self, part: &str) -> String {
        let mut seen = Vec::new();
        while let Some(line) = next(&self.err) {
            if line.contains(part) {
                return line;
            }
            seen.push(line);
        }
        panic!("{part:?} is not in {seen:#?}");
    }

    /// The first JSON line on its standard output with this event.
    pub(crate) fn event(&mut self, name: &str) -> Value {
        loop {
            let line: Value = serde_json::from_str(&self.out()).unwrap();
            if line["event"] == name {
                return line;
            }
        }
    }

    #[cfg(unix)]
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let kill = Command::new("kill").args([signal, &pid]).status();
        assert!(kill.unwrap().success());
    }

    /// Waits for its end: the exit code, -1 after a signal, and what it said since.
    pub(crate) fn end(mut self) -> Ran {
        // Both are closed when it has ended, so the wait for its code is short.
        let rest = |lines| {
            std::iter::from_fn(|| next(lines))
                .map(|it| it + "\n")
                .collect()
        };
        let (out, err) = (rest(&self.out), rest(&self.err));
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        Ran { code, out, err }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn ended(child: Child) -> Ran {
    child.wait_with_output().unwrap().into()
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// It failed with this code and one line that says so.
    pub(crate) fn failed(&self, code: i32, says: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.out, "");
        assert_eq!(self.err.matches('\n').count(), 1, "{self:?}");
        // A program that asked for JSON gets an object.
        let error = match self.err.strip_prefix("error: ") {
            Some(text) => text.to_string(),
            None => {
                let error: Value = serde_json::from_str(&self.err).unwrap();
                assert_eq!(error["exit"], code, "{self:?}");
                error["error"].as_str().unwrap().to_string()
            }
        };
        assert!(error.contains(says), "{says:?} is not in {self:?}");
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.out.matches('\n').count(), 1, "{self:?}");
        serde_json::from_str(&self.out).unwrap()
    }

    /// One JSON object a line.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let lines = self.out.lines();
        lines.map(|it| serde_json::from_str(it).unwrap()).collect()
    }
}
