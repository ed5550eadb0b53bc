//! What a person, or the application for one, does to messages after they were enqueued.

mod steps;

use std::time::Duration;

use rusqlite::Transaction;

use crate::circuit::OnDead;
use crate::conflict::Resolution;
use crate::draining::Cancel;
use crate::edit::Edit;
use crate::entry::Status;
use crate::error::{Error, Result};
use crate::message::{Enqueued, Message, OnDuplicate};
use crate::outbox::Outbox;
use crate::selection::{Selection, SentAgain};
use crate::store::operate::{self, Action, Deed};
use crate::store::{again, conflict, retention, select, transfer, upkeep};
use crate::transfer::Transfer;

/// Someone who retries, cancels, edits, pauses and resumes; see
/// [`Outbox::operator`](crate::Outbox::operator).
///
/// Everything done here is recorded with who, when and why; [`Outbox::audit`] shows it. Each call
/// has transactions of its own, of at most 256 messages and about 10 ms, and waits up to 5 s for the
/// write lock ([`Error::Busy`]); after one of several the lock is left free for four times as long as it was
/// held. Do not call it while the same thread has a transaction open on the file.
///
/// | action | takes | otherwise |
/// |---|---|---|
/// | retry | dead, expired, cancelled | [`Error::Refused`] |
/// | cancel | pending, waiting, dead | [`Error::Refused`] |
/// | send again | sent | [`Error::Refused`] |
/// | edit | dead; pending and waiting that were never claimed, of others of these the schedule | [`Error::Refused`] |
///
/// A message that is being sent is never changed. A message that does not exist is
/// [`Error::NotFound`].
///
/// ```no_run
/// # use sqlite_outbox::{Outbox, Selection};
/// # fn main() -> sqlite_outbox::Result<()> {
/// # let outbox = Outbox::open("till.db")?;
/// let anna = outbox.operator("anna@till-7").reason("ERP mended, ticket 4711");
/// let all = Selection::new().channel("sales").http_status(400);
/// println!("{} of {} are tried again", anna.retry_all(&all)?, anna.count(&all)?);
/// anna.resume("sales")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "an operator does nothing by itself"]
pub struct Operator<'a> {
    outbox: &'a Outbox,
    who: String,
    reason: Option<String>,
    dry_run: bool,
    cancel: Cancel,
}

impl<'a> Operator<'a> {
    pub(crate) fn new(outbox: &'a Outbox, who: String) -> Self {
        Self {
            outbox,
            who,
            reason: None,
            dry_run: false,
            cancel: Cancel::new(),
        }
    }

    /// Why, for the record and, when pausing, for everyone to see. At most 1,000 characters are
    /// kept.
    pub fn reason(mut self, text: impl Into<String>) -> Self {
        self.reason = Some(text.into());
        self
    }

    /// Does everything as asked and then takes it back: whatever would be refused is refused, and
    /// nothing is changed or recorded. It takes the write lock all the same.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// Stops what is done to many once the switch is thrown, before its next transaction, with
    /// [`Error::Interrupted`]: what was done stays done. One transaction is never stopped.
    pub fn unless(mut self, cancel: &Cancel) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Sends a dead, expired or cancelled message after all: due now, with a fresh budget of
    /// attempts, in its place in its lane, the same message id and the same bytes. An expiry that has passed is
    /// lifted; a schedule that lies ahead stays. What went on without it (behind a cancelled
    /// message, or past a dead one that was skipped) has gone before it.
    pub fn retry(&self, id: i64) -> Result<()> {
        self.write(|conn, deed| operate::act(conn, id, Action::Retry, deed))
    }

    /// Takes a message back that was not sent yet. Those behind it in its lane go on.
    ///
    /// One that was attempted may have arrived all the same, when its answer was lost.
    pub fn cancel(&self, id: i64) -> Result<()> {
        self.write(|conn, deed| operate::act(conn, id, Action::Cancel, deed))
    }

    /// [Retries](Self::retry) these messages in their order, in steps, up to the first that cannot be;
    /// answers how many, and how it ended. What was done before it stays done.
    pub fn retry_each(&self, ids: &[i64]) -> (usize, Result<()>) {
        self.act_on_each(ids, Action::Retry)
    }

    /// [Cancels](Self::cancel) these messages, as [`retry_each`](Self::retry_each) does.
    pub fn cancel_each(&self, ids: &[i64]) -> (usize, Result<()>) {
        self.act_on_each(ids, Action::Cancel)
    }

    /// Gives a dead message, or one that was never claimed, other content: in its place, with a
    /// new message id and a fresh budget of attempts. A text or bytes are another payload; an
    /// [`Edit`] changes other columns too. What the edit does not name stays. The former payload and
    /// message id are kept in the audit.
    ///
    /// Answers its id, which is another one where the edit names a channel or an ordering key: the
    /// place of a row never changes, so the message becomes a new row at the end of its new lane,
    /// and its attempts and its record go with it.
    ///
    /// An edit of the schedule alone leaves the message what it is, with its message id: it is due
    /// at the new moment, and its back-off is over. A dead one is [retried](Self::retry) then. A
    /// moment after its expiry is refused.
    ///
    /// The payload is stored as text when the former one was and it is UTF-8; sent are the same
    /// bytes either way. [`Error::TooLarge`] and [`Error::InvalidMessage`] as at
    /// [`Outbox::enqueue`]; [`Error::Duplicate`] when another message has the dedupe key;
    /// [`Error::Refused`] for an edit of nothing.
    pub fn edit(&self, id: i64, edit: impl Into<Edit>) -> Result<i64> {
        let edit = edit.into();
        if edit.is_empty() {
            return Err(Error::Refused("the edit changes nothing".into()));
        }
        let bytes = edit.payload.as_ref().map_or(0, Vec::len);
        self.outbox.shared().check_size(bytes)?;
        edit.validate()?;
        self.write(|conn, deed| operate::edit(conn, id, &edit, deed))
    }

    /// As [`Outbox::enqueue`], by someone: where the message takes the place of another one
    /// ([`OnDuplicate::Replace`]), the former message id and payload are kept in the audit.
    pub fn enqueue(&self, tx: &Transaction<'_>, message: &Message) -> Result<Enqueued> {
        let key = message.dedupe_key.as_deref();
        let replaces = message.on_duplicate == OnDuplicate::Replace && !tx.is_autocommit();
        let noted = match key.filter(|_| replaces) {
            Some(key) => transfer::note_replaced(tx, &message.channel, key, self.deed())?,
            None => None,
        };
        let answer = self.outbox.enqueue(tx, message);
        match (noted, &answer) {
            (None, _) | (_, Ok(Enqueued::Replaced { .. })) => {}
            (Some(_), _) if tx.is_autocommit() => {}
            (Some(entry), _) => transfer::forget(tx, entry)?,
        }
        answer
    }

    /// Takes in a message that another outbox has, within the caller's transaction, which should be
    /// an immediate one: byte for byte, with its message id, pending, due now or at its own moment,
    /// with a fresh budget. What is not unsent there is the caller's to leave out.
    ///
    /// Only what the table refuses is refused, with [`Error::InvalidMessage`]: an empty channel, key
    /// or id, a colon in the channel. The limits of [`Outbox::enqueue`] are not asked: what plain SQL
    /// has put into the other file comes along, and becomes a dead letter here too if it cannot be
    /// sent. Where the key is taken by other content, it is kept aside as a
    /// [`Conflict`](crate::Conflict), or as `choice` says; a message that is replaced is kept in the
    /// audit.
    pub fn import(
        &self,
        tx: &Transaction<'_>,
        transfer: &Transfer,
        choice: OnDuplicate,
    ) -> Result<Enqueued> {
        match tx.is_autocommit() {
            true => Err(Error::TransactionGone),
            false => transfer::import(tx, transfer, choice, self.deed()),
        }
    }

    /// Decides about a duplicate with other content that was kept aside: see [`Resolution`].
    /// Answers the message that has the content now, and `None` when it was dropped.
    ///
    /// [`Error::NoConflict`] when there is none with this number, [`Error::Duplicate`] when the
    /// new key is taken as well, [`Error::Refused`] when the key's holder may not be replaced.
    pub fn resolve(&self, conflict: i64, resolution: &Resolution) -> Result<Option<i64>> {
        self.write(|conn, deed| conflict::resolve(conn, conflict, resolution, deed))
    }

    /// [Decides](Self::resolve) about these conflicts in their order, in steps, up to the first of which that
    /// cannot be; answers the message of each that was decided, and how it ended. What was done before it
    /// stays done.
    ///
    /// [`Error::Refused`] before anything is done where several of the same key would
    /// [replace](Resolution::Replace) its holder: the last would be left.
    pub fn resolve_each(
        &self,
        conflicts: &[i64],
        resolution: &Resolution,
    ) -> (Vec<Option<i64>>, Result<()>) {
        let alone = match resolution {
            Resolution::Replace => {
                let reader = self.outbox.shared().reader();
                reader.and_then(|it| conflict::one_of_each_key(&it, conflicts))
            }
            _ => Ok(()),
        };
        match alone {
            Ok(()) => self.each(conflicts, |conn, id, deed| {
                conflict::resolve(conn, id, resolution, deed)
            }),
            Err(error) => (Vec::new(), Err(error)),
        }
    }

    /// Stops a channel: nothing more of it is claimed, by any process, until
    /// [`resume`](Self::resume). What is claimed already is sent. Of a channel that is paused already,
    /// the new name, moment and reason are shown; the former ones are in the audit.
    pub fn pause(&self, channel: &str) -> Result<()> {
        check_channel(channel)?;
        self.write(|conn, deed| operate::pause(conn, channel, deed))
    }

    /// Lets a channel go on, whatever stopped it: a pause, its receiver being offline or asking
    /// for a delay, refused credentials, too many rejections. The next ten rejections
    /// ([`Policy::brake`](crate::Policy::brake)) are believed again.
    ///
    /// What waited for the channel's next try is due at once, in steps; a back-off that lasts more than a
    /// minute longer stays.
    pub fn resume(&self, channel: &str) -> Result<()> {
        check_channel(channel)?;
        let now = self.outbox.shared().now();
        let waited = self.write(|conn, deed| operate::resume(conn, channel, deed))?;
        let mut after = waited.map(|until| ((now, i64::MAX), until));
        while let Some((place, until)) = after {
            let next = self.step(|conn, _| {
                let (_, next) =
                    upkeep::bring_forward(conn, channel, now, (place, until), true, steps::STEP)?;
                Ok(next)
            })?;
            after = next.map(|place| (place, until));
        }
        Ok(())
    }

    /// Chooses what dead letters of a channel do to the messages behind them in their ordering key.
    /// Stored in the file, for every process.
    ///
    /// The lanes with dead letters are then put in order, in steps. When that is interrupted,
    /// calling it again finishes it.
    pub fn on_dead(&self, channel: &str, choice: OnDead) -> Result<()> {
        check_channel(channel)?;
        self.write(|conn, deed| operate::on_dead(conn, channel, choice, deed))?;
        let mut after = Some(0);
        while let Some(last) = after {
            after = self.step(|conn, deed| {
                operate::mend_lanes(conn, channel, (last, steps::STEP), deed.now)
            })?;
        }
        Ok(())
    }

    /// Retries all selected messages, in steps; returns how many. When it fails half way, those
    /// done stay done, and calling it again goes on with the others.
    ///
    /// [`Error::Refused`] for a selection of messages that cannot be retried.
    pub fn retry_all(&self, selection: &Selection) -> Result<u64> {
        self.all(selection, Action::Retry)
    }

    /// Cancels all selected messages, in steps; returns how many. A message that becomes pending
    /// because one before it was cancelled is not among them.
    ///
    /// [`Error::Refused`] for a selection of messages that cannot be cancelled.
    pub fn cancel_all(&self, selection: &Selection) -> Result<u64> {
        self.all(selection, Action::Cancel)
    }

    /// Sends a message that was sent once more, as where something else has answered in place of the
    /// receiver: as a new one at the end of its lane, due now, with the same payload, headers and
    /// other content, without moment and expiry. It stands under `key`, or else under its own with
    /// `-again` behind it, and the former one stays as it is.
    ///
    /// The message id is the same, so a receiver that has the message after all recognises it, as
    /// long as it goes by that.
    ///
    /// [`Error::Refused`] for a message that is not sent, whose payload retention has emptied, or
    /// that was sent again already where no key is given; [`Error::Duplicate`] when the key is taken,
    /// [`Error::InvalidMessage`] when it is none.
    pub fn send_again(&self, id: i64, key: Option<&str>) -> Result<SentAgain> {
        self.write(|conn, deed| again::send(conn, id, key, deed))
    }

    /// [Sends again](Self::send_again) what is selected of the sent messages, in steps; returns how
    /// many. Left out are those that cannot be sent again or were already, and those that are repetitions
    /// themselves, unless a web page answered them too; so calling it again goes on where it failed, and
    /// sends nothing twice.
    ///
    /// [`Error::Refused`] for a selection of messages that are not sent.
    pub fn send_all_again(&self, selection: &Selection) -> Result<u64> {
        let ids = self.selected_again(selection)?;
        let (sent, ended) = self.each(&ids, again::send_if);
        counted(&sent, ended)
    }

    /// [Sends again](Self::send_again) these messages in their order, each under its own key with
    /// `-again` behind it, in steps, up to the first of which that cannot be; answers what was put in, and
    /// how it ended. What was done before it stays done.
    pub fn send_each_again(&self, ids: &[i64]) -> (Vec<SentAgain>, Result<()>) {
        self.each(ids, |conn, id, deed| again::send(conn, id, None, deed))
    }

    /// The ids of the selected messages that [`send_all_again`](Self::send_all_again) would take, but for
    /// those whose payload or key is in the way, in order; 8 bytes for each. Changes nothing.
    ///
    /// [`Error::Refused`] for a selection of messages that are not sent.
    pub fn selected_again(&self, selection: &Selection) -> Result<Vec<i64>> {
        if selection.status != Status::Sent {
            return Err(Error::Refused(format!(
                "the {} messages were selected; only sent ones can be sent again",
                selection.status
            )));
        }
        let conn = self.outbox.shared().reader()?;
        let left_out = again::left_out(&conn)?;
        let mut ids = select::matching(&conn, selection)?;
        ids.retain(|id| !left_out.contains(id));
        Ok(ids)
    }

    /// The highest id that was ever given in this file, 0 where none was: what is enqueued from now on
    /// gets a higher one. See [`Selection::up_to`].
    pub fn highest_id(&self) -> Result<i64> {
        select::highest(&*self.outbox.shared().reader()?)
    }

    /// How many messages are selected at this moment. Changes nothing.
    pub fn count(&self, selection: &Selection) -> Result<u64> {
        Ok(self.selected(selection)?.len() as u64)
    }

    /// The ids of the messages that are selected at this moment, in order; 8 bytes for each.
    /// Changes nothing.
    pub fn selected(&self, selection: &Selection) -> Result<Vec<i64>> {
        select::matching(&*self.outbox.shared().reader()?, selection)
    }

    /// Removes what was sent, expired or cancelled at least this long ago, with its attempts;
    /// returns how many messages. Nothing unsent and no dead letter is ever removed, nor a message
    /// whose key is in an open [`Conflict`](crate::Conflict), nor what was enqueued after it began.
    ///
    /// Removed messages free their dedupe keys. The file does not shrink by itself; the space is
    /// used again.
    pub fn purge(&self, older_than: Duration) -> Result<u64> {
        self.remove(older_than, None)
    }

    /// As [`purge`](Self::purge), of one channel.
    pub fn purge_channel(&self, channel: &str, older_than: Duration) -> Result<u64> {
        self.remove(older_than, Some(channel))
    }

    /// The ids of the messages that a [`purge`](Self::purge), of one channel or of all, would
    /// remove at this moment; 8 bytes for each. Changes nothing.
    pub fn purgeable(&self, older_than: Duration, channel: Option<&str>) -> Result<Vec<i64>> {
        let conn = self.outbox.shared().reader()?;
        retention::Purge::new(&conn, self.before(older_than), channel)?.find(&conn)
    }

    /// How many messages [`purge`](Self::purge) would remove at this moment. Changes nothing.
    pub fn count_purge(&self, older_than: Duration) -> Result<u64> {
        Ok(self.purgeable(older_than, None)?.len() as u64)
    }

    fn remove(&self, older_than: Duration, channel: Option<&str>) -> Result<u64> {
        let until = self.before(older_than);
        let mut purge = retention::Purge::new(&*self.outbox.shared().reader()?, until, channel)?;
        while self.step(|conn, deed| purge.step(conn, deed))? {
            if self.cancel.is_cancelled() {
                let done = purge.removed();
                return Err(Error::Interrupted { done });
            }
        }
        Ok(purge.removed())
    }

    fn before(&self, span: Duration) -> i64 {
        let now = self.outbox.shared().now();
        now.saturating_sub(crate::clock::millis(span))
    }

    fn all(&self, selection: &Selection, action: Action) -> Result<u64> {
        let status = selection.status;
        if !action.takes(status) || status == Status::Unknown {
            return Err(Error::Refused(format!(
                "the {status} messages were selected; {}",
                action.rule()
            )));
        }
        let ids = select::matching(&*self.outbox.shared().reader()?, selection)?;
        let (changed, ended) = self.each(&ids, |conn, id, deed| {
            operate::act_if(conn, id, status, action, deed)
        });
        counted(&changed, ended)
    }

    fn act_on_each(&self, ids: &[i64], action: Action) -> (usize, Result<()>) {
        let (done, ended) = self.each(ids, |conn, id, deed| operate::act(conn, id, action, deed));
        (done.len(), ended)
    }

    fn deed(&self) -> Deed<'_> {
        Deed {
            who: &self.who,
            reason: self.reason.as_deref(),
            now: self.outbox.shared().now(),
        }
    }
}

/// How many were changed, and not passed over; until it was stopped, where it was.
fn counted(changed: &[bool], ended: Result<()>) -> Result<u64> {
    let done = changed.iter().filter(|it| **it).count() as u64;
    match ended {
        Ok(()) => Ok(done),
        Err(Error::Interrupted { .. }) => Err(Error::Interrupted { done }),
        Err(error) => Err(error),
    }
}

fn check_channel(name: &str) -> Result<()> {
    match name.is_empty() || name.contains(':') {
        true => Err(Error::Refused(format!(
            "{name:?} cannot be a channel: its name is not empty and has no colon"
        ))),
        false => Ok(()),
    }
}
