//! The side of the view that touches the file, in a thread of its own: a locked file stops no key.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};

use sqlite_outbox::{Error, Filter, Outbox, Result, Selection, Status};

use super::model::{Action, Letter, Look};
use crate::output::count;

/// Failed messages that are shown, at most.
const FAILED: usize = 100;

/// Of those that are tried again, only the first are looked through: a list reads payloads too.
const TRIED: usize = 32;

const SENDING: usize = 16;

/// Dead letters read at once, and how often in one reading, on the way to the last ones.
const PAGE: usize = 500;
const PAGES: usize = 8;

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
    open: Option<(Identity, Outbox)>,
    /// All dead letters up to this row are known not to be among the last ones.
    passed: i64,
}

impl Reader {
    pub(super) fn new(path: &Path, who: String) -> Self {
        Self {
            path: path.into(),
            who,
            open: None,
            passed: 0,
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
                let outbox = Outbox::open_existing(&self.path)?;
                self.open = Some((identity, outbox.clone()));
                self.passed = 0;
                Ok(outbox)
            }
        }
    }

    fn look(&mut self) -> Result<Look> {
        let outbox = self.outbox()?;
        let stats = outbox.stats()?;
        let list = |status, number: u64, most| match number {
            0 => Ok(Vec::new()),
            _ => outbox.list(&Filter::new().status(status).limit(most)),
        };
        let sending = list(Status::Sending, stats.total.sending, SENDING)?;
        let mut failed = match stats.total.dead {
            0 => Vec::new(),
            _ => self.last_dead(&outbox)?,
        };
        let pending = list(Status::Pending, stats.total.pending, TRIED)?;
        let tried = pending.into_iter().filter(|it| it.last_error.is_some());
        failed.extend(tried.map(Letter::from));
        failed.sort_by_key(|it| std::cmp::Reverse((it.at, it.id)));
        failed.truncate(FAILED);
        Ok(Look {
            stats,
            sending: sending.into_iter().map(Letter::from).collect(),
            failed,
        })
    }

    /// The dead letters enqueued last. When there are many, it takes some readings to get there.
    fn last_dead(&mut self, outbox: &Outbox) -> Result<Vec<Letter>> {
        let mut last: Vec<Letter> = Vec::new();
        let mut after = self.passed;
        for _ in 0..PAGES {
            let page = Filter::new().status(Status::Dead).after(after).limit(PAGE);
            let page = outbox.list(&page)?;
            let Some(end) = page.last() else {
                break;
            };
            after = end.id;
            last.extend(page.into_iter().map(Letter::from));
            let surplus = last.len().saturating_sub(FAILED);
            if let Some(it) = last.drain(..surplus).next_back() {
                self.passed = it.id;
            }
        }
        // The last ones were retried or cancelled: those before them are the last now.
        if last.len() < FAILED {
            self.passed = 0;
        }
        Ok(last)
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
