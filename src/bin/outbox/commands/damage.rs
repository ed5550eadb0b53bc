//! A file that may be damaged: what can be read of it is shown, what cannot is told on stderr, and the
//! command ends with the error.

use std::fmt::Display;

use sqlite_outbox::{
    Dispatcher, Entry, Error, Explainer, Filter, Lost, Outbox, Result, Stats, Why, WhyGroup,
};

use crate::args::Exit;
use crate::output::note;

const ONE_BY_ONE: &str =
    "what helps to find messages cannot be read: they are looked through one by one";

/// The damage that a command has met so far.
#[derive(Debug, Default)]
pub(super) struct Damage {
    met: Option<Error>,
    /// What is to be said of it, each once.
    notes: Vec<String>,
}

impl Damage {
    /// A part of an answer: nothing where that is damaged.
    pub(super) fn part<T: Default>(&mut self, what: &str, read: Result<T>) -> Result<T> {
        match read {
            Err(error @ Error::Damaged(_)) => {
                self.meet(error);
                self.lacks(what);
                Ok(T::default())
            }
            read => read,
        }
    }

    /// As [`Outbox::find`].
    pub(super) fn find(
        &mut self,
        outbox: &Outbox,
        which: &str,
        channel: Option<&str>,
    ) -> Result<Entry> {
        match outbox.find(which, channel) {
            Err(error @ Error::Damaged(_)) => {
                let found = outbox.find_salvaged(which, channel);
                if !matches!(found, Err(Error::Damaged(_))) {
                    self.goes_on(error, &[]);
                }
                // That is the end.
                if found.is_err() {
                    self.tell();
                }
                found
            }
            found => found,
        }
    }

    /// As [`Outbox::list`], and what comes [after](Filter::after) it: nothing at the end.
    pub(super) fn list(
        &mut self,
        outbox: &Outbox,
        filter: &Filter,
    ) -> Result<(Vec<Entry>, Option<i64>)> {
        match outbox.list(filter) {
            Err(error @ Error::Damaged(_)) => {
                let found = outbox.list_salvaged(filter)?;
                self.meet(error);
                found.lost.iter().for_each(|it| self.lacks(it));
                Ok((found.entries, found.next))
            }
            page => {
                let page = page?;
                let last = page.last().map(|it| it.id);
                Ok((page, last))
            }
        }
    }

    /// As [`Outbox::stats`].
    pub(super) fn stats(&mut self, outbox: &Outbox) -> Result<Stats> {
        match outbox.stats() {
            Err(error @ Error::Damaged(_)) => {
                let (stats, lost) = outbox.stats_salvaged()?;
                // Nothing waiting: that would be said of a file of which nothing is known.
                if stats.channels.is_empty() {
                    return Err(error);
                }
                self.goes_on(error, &lost);
                Ok(stats)
            }
            stats => stats,
        }
    }

    /// As [`Explainer::each`].
    pub(super) fn why_each(&mut self, explainer: &Explainer<'_>, ids: &[i64]) -> Result<Vec<Why>> {
        match explainer.each(ids) {
            Err(error @ Error::Damaged(_)) => {
                let (whys, lost) = explainer.each_salvaged(ids)?;
                self.goes_on(error, &lost);
                Ok(whys)
            }
            whys => whys,
        }
    }

    /// As [`Outbox::why_all`], by someone who may know the routes.
    pub(super) fn why_all(
        &mut self,
        outbox: &Outbox,
        dispatcher: Option<&dyn Dispatcher>,
    ) -> Result<Vec<WhyGroup>> {
        let groups = match dispatcher {
            Some(dispatcher) => outbox.why_all_routed(dispatcher),
            None => outbox.why_all(),
        };
        match groups {
            Err(error @ Error::Damaged(_)) => {
                let (groups, lost) = outbox.why_all_salvaged(dispatcher)?;
                self.goes_on(error, &lost);
                Ok(groups)
            }
            groups => groups,
        }
    }

    pub(super) fn is_met(&self) -> bool {
        self.met.is_some()
    }

    /// The end of a command that has shown what there is.
    pub(super) fn end(mut self, exit: Exit) -> anyhow::Result<Exit> {
        if self.is_met() && self.notes.is_empty() {
            self.note(ONE_BY_ONE.into());
        }
        self.tell();
        self.met.map_or(Ok(exit), |error| Err(error.into()))
    }

    /// Without what is lost, or without what only helps to find messages.
    fn goes_on(&mut self, error: Error, lost: &[Lost]) {
        self.meet(error);
        match lost {
            [] => self.note(ONE_BY_ONE.into()),
            lost => lost.iter().for_each(|it| self.lacks(it)),
        }
    }

    fn meet(&mut self, error: Error) {
        self.met.get_or_insert(error);
    }

    fn lacks(&mut self, what: impl Display) {
        self.note(format!("left out, as the file is damaged: {what}"));
    }

    fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    fn tell(&self) {
        self.notes.iter().for_each(|it| note(it));
    }
}
