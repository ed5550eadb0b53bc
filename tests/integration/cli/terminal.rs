//! A terminal to run the tool on, which can be closed.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::BOUND;

/// The side of the person in front of it. Dropped, it is closed, and no signal tells of that: it
/// is no process's own.
pub(crate) struct Terminal {
    pub(crate) hand: File,
}

impl Terminal {
    pub(crate) fn new(columns: u16, rows: u16) -> Self {
        let hand = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        // A child that had it as well would keep it open.
        fcntl_setfd(&hand, FdFlags::CLOEXEC).unwrap();
        grantpt(&hand).unwrap();
        unlockpt(&hand).unwrap();
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&hand, size).unwrap();
        Self { hand: hand.into() }
    }

    /// Starts a command on it.
    pub(crate) fn start(&self, mut command: Command) -> Child {
        let name = ptsname(&self.hand, Vec::new()).unwrap();
        let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let line = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            options
                .custom_flags(OFlags::NOCTTY.bits() as i32)
                .open(path)
        };
        command
            .stdin(line().unwrap())
            .stdout(line().unwrap())
            .stderr(line().unwrap())
            .env("TERM", "xterm-256color")
            .spawn()
            .unwrap()
    }

    /// Reads until this was shown.
    pub(crate) fn shows(&mut self, text: &str) {
        let (mut seen, mut part) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&seen).contains(text) {
            let read = self.hand.read(&mut part).unwrap();
            seen.extend_from_slice(&part[..read]);
        }
    }
}

/// How a process ended, which it must within the bound.
pub(crate) fn end(mut child: Child) -> ExitStatus {
    let until = Instant::now() + BOUND;
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status,
            None if Instant::now() > until => {
                child.kill().unwrap();
                panic!("it goes on for ever");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
