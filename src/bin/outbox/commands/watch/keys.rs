//! What is typed, heard in a thread of its own: who reads a terminal that is gone never comes back.

use std::io::Result;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, bail};
use ratatui::crossterm::event::{self, Event};

use crate::threads;

#[derive(Debug)]
pub(super) struct Keys {
    heard: Receiver<Result<Event>>,
}

impl Keys {
    /// Listens until the process ends.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let (tell, heard) = channel();
        let listen = move || while tell.send(event::read()).is_ok() {};
        threads::start("outbox-keys", listen).context("no thread can be started")?;
        Ok(Self { heard })
    }

    /// The next one, if it comes within this time.
    pub(super) fn next(&self, within: Duration) -> anyhow::Result<Option<Event>> {
        match self.heard.recv_timeout(within) {
            Ok(event) => event.map(Some).context("the terminal cannot be read"),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the terminal is not read any more"),
        }
    }
}
