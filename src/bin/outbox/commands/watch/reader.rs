//! The side of the view that touches the file, in a thread of its own: a locked file stops no key.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};

use sqlite_outbox::{Error, Filter, Outbox, Result, Selection, Stats, Status};

use super::model::{Action, Letter, Look};
use crate::commands::{findings, status};
use crate::output::count;
use crate::settings::Loaded;

/// Failed messages that are shown, at most.
const FAILED: usize = 100;

/// Of those that are tried again, only the first are looked through: a list reads payloads too.
const TRIED: usize = 32;

const SENDING: usize = 16;

#[derive(Debug)]
pub(super) enum Ask {
    Look,
    Act(Action),
}

#[derive(Debug)]
pub(super) enum Told {
    Seen(Box<Look>),
    Unseen(String),
    Done(std::result::Result<String, String>),
}

/// Which file it is, where that can be told.
type Identity = (u64, u64);

#[derive(Debug)]
pub(super) struct Reader {
    path: PathBuf,
    who: String,
    /// Who knows the routes, if anybody was named.
    loaded: Option<Loaded>,
    open: Option<(Identity, Outbox)>,
    /// What was found, and when.
    found: Vec<String>,
    found_at: i64,
}

impl Reader {
    pub(super) fn new(path: &Path, who: String, loaded: Option<Loaded>) -> Self {
        Self {
            path: path.into(),
            who,
            loaded,
            open: None,
            found: Vec::new(),
            found_at: 0,
        }
    }

    /// Answers until nobody asks or listens.
    pub(super) fn serve(mut self, asks: &Receiver<Ask>, tell: &Sender<Told>) {
        for ask in asks {
            let told = match ask {
                Ask::Look => match self.look() {
                    Ok(look) => Told::Seen(Box::new(look)),
                    Err(error) => Told::Unseen(self.failed(error)),
                },
                Ask::Act(action) => {
                    let done = self.act(&action);
                    Told::Done(done.map_err(|error| self.failed(error)))
                }
            };
            if tell.send(told).is_err() {
                return;
            }
        }
    }

    fn failed(&mut self, error: Error) -> String {
        if !error.is_transient() {
            self.open = None;
        }
        match error {
            Error::Busy(_) => "another program keeps the file locked".into(),
            error => format!("{:#}", anyhow::Error::from(error)),
        }
    }

    /// The outbox that is at the path now: the file may have been removed or replaced meanwhile.
    fn outbox(&mut self) -> Result<Outbox> {
        let Ok(identity) = identity(&self.path) else {
            return Err(Error::Missing(self.path.clone()));
        };
        match &self.open {
            Some((known, outbox)) if *known == identity => Ok(outbox.clone()),
            _ => {
                // Who may not write may look, and is told when a key is pressed that would.
                let outbox = match Outbox::open_existing(&self.path) {
                    Err(Error::SchemaTooNew { .. } | Error::ReadOnly(_)) => {
                        Outbox::open_to_read(&self.path)?
                    }
                    opened => opened?,
                };
                self.open = Some((identity, outbox.clone()));
                Ok(outbox)
            }
        }
    }

    fn look(&mut self) -> Result<Look> {
        let outbox = self.outbox()?;
        let mut stats = outbox.stats()?;
        if let Some(loaded) = &self.loaded {
            status::unrouted(&mut stats, loaded);
        }
        let list = |status, number: u64, filter: Filter| match number {
            0 => Ok(Vec::new()),
            _ => outbox.list(&filter.status(status)),
        };
        let first = |most| Filter::new().limit(most);
        let total = &stats.total;
        let sending = list(Status::Sending, total.sending, first(SENDING))?;
        let failed = list(Status::Dead, total.dead, first(FAILED).newest_first())?;
        let mut tried = list(Status::Pending, total.pending, first(TRIED))?;
        tried.retain(|it| it.last_error.is_some());
        let mut failed: Vec<_> = failed.into_iter().chain(tried).map(Letter::from).collect();
        // The dead wait for a person; the others go on by themselves.
        failed.sort_by_key(|it| std::cmp::Reverse((it.dead, it.at, it.id)));
        failed.truncate(FAILED);
        self.find(&outbox, &stats)?;
        Ok(Look {
            stats,
            findings: self.found.clone(),
            sending: sending.into_iter().map(Letter::from).collect(),
            failed,
        })
    }

    /// Looks now and then for what no channel's state tells.
    fn find(&mut self, outbox: &Outbox, stats: &Stats) -> Result<()> {
        const EVERY: i64 = 30_000;
        if !(self.found_at..self.found_at.saturating_add(EVERY)).contains(&stats.now) {
            let found = findings::of_damaged(outbox, stats)?;
            self.found = found.into_iter().map(|it| it.text).collect();
            self.found_at = stats.now;
        }
        Ok(())
    }

    fn act(&mut self, action: &Action) -> Result<String> {
        let outbox = self.outbox()?;
        let person = outbox.operator(&self.who);
        Ok(match action {
            Action::Pause(channel) => {
                person.pause(channel)?;
                format!("{channel} is paused")
            }
            Action::Resume(channel) => {
                person.resume(channel)?;
                format!("{channel} goes on")
            }
            Action::RetryDead(channel) => {
                let all = Selection::new().channel(channel);
                let number = count(person.retry_all(&all)?, "message is", "messages are");
                format!("{channel}: {number} tried again")
            }
            Action::Retry(id) => {
                person.retry(*id)?;
                format!("#{id} is tried again")
            }
            Action::Cancel(id) => {
                person.cancel(*id)?;
                format!("#{id} is cancelled")
            }
        })
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> io::Result<Identity> {
    std::fs::metadata(path).map(|_| (0, 0))
}
