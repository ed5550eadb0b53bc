//! From what the file says to the one reason.

use std::cell::OnceCell;

use rusqlite::Connection;

use crate::check::{contract, storage, triggers};
use crate::circuit::Channel;
use crate::clock::FIRST_HONEST;
use crate::condition::Finding;
use crate::dispatch::{Dispatcher, Failure};
use crate::entry::Status;
use crate::error::{Error, Result};
use crate::outbox::Outbox;
use crate::stats::ChannelState;
use crate::store::odd::is_page;
use crate::store::why::{self as evidence, Facts};
use crate::store::{again, settle};
use crate::why::blame::{blame, expiry_fault, is_address, is_program};
use crate::why::stage::{Stage, is_stale};
use crate::why::{Fault, Reason, Why};

/// A drain that has left no trace for this long does not seem to run.
const SILENCE: i64 = 60 * 1000;
/// A probe that is overdue by this much neither.
const OVERDUE: i64 = 60 * 1000;
/// A clock this far behind a message's enqueue is worth a word.
const BEHIND: i64 = 5 * 60 * 1000;

/// Explains one message.
pub(crate) fn why(outbox: &Outbox, id: i64, dispatcher: Option<&dyn Dispatcher>) -> Result<Why> {
    let conn = outbox.shared().reader()?;
    let whole = Whole::default();
    let why = Asked::new(outbox, &conn, dispatcher, &whole).why(id)?;
    why.ok_or_else(|| Error::NotFound(id.to_string()))
}

/// Explains some messages.
pub(super) fn why_each(
    outbox: &Outbox,
    ids: &[i64],
    dispatcher: Option<&dyn Dispatcher>,
    whole: &Whole,
) -> Result<Vec<Why>> {
    let conn = outbox.shared().reader()?;
    let asked = Asked::new(outbox, &conn, dispatcher, whole);
    let each = ids.iter().map(|id| asked.why(*id).transpose());
    each.flatten().collect()
}

/// What holds for all messages alike, once it was looked for.
#[derive(Debug, Default)]
pub(super) struct Whole {
    /// When a drain last left a trace.
    last_drain: OnceCell<Option<i64>>,
    /// What keeps everything from being sent, or this user from writing.
    obstacles: OnceCell<Vec<Finding>>,
    /// Triggers of other hands that may keep something from being sent.
    triggers: OnceCell<Option<Finding>>,
}

pub(super) struct Asked<'a> {
    outbox: &'a Outbox,
    pub(super) conn: &'a Connection,
    dispatcher: Option<&'a dyn Dispatcher>,
    pub(super) now: i64,
    whole: &'a Whole,
}

impl<'a> Asked<'a> {
    pub(super) fn new(
        outbox: &'a Outbox,
        conn: &'a Connection,
        dispatcher: Option<&'a dyn Dispatcher>,
        whole: &'a Whole,
    ) -> Self {
        Self {
            outbox,
            conn,
            dispatcher,
            now: outbox.shared().now(),
            whole,
        }
    }

    pub(super) fn why(&self, id: i64) -> Result<Option<Why>> {
        let facts = evidence::facts(self.conn, id)?;
        facts.map(|facts| self.explain(facts, true)).transpose()
    }

    /// Whether what is due since then seems to have nobody who sends it.
    pub(super) fn is_forgotten(&self, since: i64) -> Result<bool> {
        Ok(self.now.saturating_sub(since) > SILENCE && self.silent_since(since)?)
    }

    /// Whether no drain has left a trace since then.
    fn silent_since(&self, since: i64) -> Result<bool> {
        let last = match self.whole.last_drain.get() {
            Some(last) => *last,
            None => {
                let last = evidence::last_drain(self.conn, self.now)?;
                *self.whole.last_drain.get_or_init(|| last)
            }
        };
        Ok(last.is_none_or(|it| it < since))
    }

    fn obstacles(&self) -> Result<&[Finding]> {
        Ok(match self.whole.obstacles.get() {
            Some(known) => known,
            None => {
                let found = self.outbox.obstacles()?;
                self.whole.obstacles.get_or_init(|| found)
            }
        })
    }

    fn triggers(&self) -> Result<Option<Finding>> {
        let known = match self.whole.triggers.get() {
            Some(known) => known,
            None => {
                let found = triggers::interfering(self.conn)?;
                self.whole.triggers.get_or_init(|| found)
            }
        };
        Ok(known.clone())
    }

    fn explain(&self, facts: Facts, with_head: bool) -> Result<Why> {
        let now = self.now;
        let late = facts.times.created_at.saturating_sub(now);
        let state = evidence::state(self.conn, &facts.channel)?;
        let mut why = Why {
            id: facts.id,
            channel: facts.channel.clone(),
            dedupe_key: facts.dedupe_key.clone(),
            status: facts.status,
            ordered: facts.ordering_key.is_some(),
            code: facts.code.clone(),
            cause: None,
            stale: false,
            sent_again: false,
            sent_as: None,
            forbidden: false,
            obstacle: None,
            notes: Vec::new(),
            channel_state: state.state,
            routed: self.dispatcher.map(|it| it.serves(&facts.channel)),
            noticed: None,
            attempted: None,
            reason: Reason::Due,
            fault: Fault::Nobody,
            since: None,
            until: None,
            detail: None,
            behind: None,
            now,
            clock_behind: (late > BEHIND).then_some(late),
        };
        let code = facts.code.as_deref();
        let settled = match facts.status {
            Status::Sent => Some((Reason::Sent, Fault::Nobody)),
            Status::Dead if self.suspected(&facts, &state)? => {
                Some((Reason::Dead, Fault::Receiver))
            }
            Status::Dead if is_address(code) && !self.others_arrived(&facts)? => {
                why.cause.clone_from(&facts.code);
                Some((Reason::Dead, Fault::Route))
            }
            Status::Dead if code.is_some_and(is_program) => Some((Reason::Dead, Fault::Program)),
            Status::Dead if matches!(code, Some(Failure::UNRECORDED | Failure::ROW_REFUSES)) => {
                Some((Reason::Dead, Fault::Machine))
            }
            Status::Dead => Some((Reason::Dead, Fault::Message)),
            Status::Expired => Some((Reason::Expired, Fault::Nobody)),
            Status::Cancelled => Some((Reason::Cancelled, Fault::Operator)),
            _ => None,
        };
        if let Some((reason, fault)) = settled {
            why.reason = reason;
            why.fault = fault;
            why.since = facts.settled_at;
            why.detail = facts.last_error;
            if facts.answer.as_deref().is_some_and(is_page) {
                why.fault = Fault::Network;
                why.detail = Some("a web page answered".into());
                why.sent_again = reason == Reason::Sent && again::is_done(self.conn, facts.id)?;
                if why.sent_again {
                    why.sent_as = again::latest(self.conn, facts.id)?;
                }
            }
            if reason == Reason::Expired {
                why.noticed = facts.settled_at;
                why.since = facts.times.expires_at.or(facts.settled_at);
                why.fault = expiry_fault(why.since);
            }
            return Ok(why);
        }
        if facts.status == Status::Sending {
            let until = facts.times.next_attempt_at;
            why.stale = is_stale(until, now);
            why.reason = Reason::Claimed {
                until,
                stale: why.stale,
            };
            why.until = Some(until);
            // What is taken back goes no further while its channel stands still.
            if why.stale && !stopped(&mut why, &facts, &state) {
                match state.state {
                    ChannelState::Ok => why.notes.extend(self.triggers()?),
                    _ => self.troubled(&mut why, &facts, &state)?,
                }
            }
            return Ok(why);
        }
        self.unsent(&mut why, &facts, &state, with_head)?;
        Ok(why)
    }

    /// From what stops everything to what concerns this message alone.
    fn unsent(&self, why: &mut Why, facts: &Facts, state: &Channel, with_head: bool) -> Result<()> {
        let now = self.now;
        if facts.status == Status::Pending
            && let Some(broken) = evidence::unsendable(self.conn, facts.id)?
        {
            why.reason = Reason::Invalid;
            why.fault = Fault::Message;
            why.since = Some(facts.times.created_at);
            why.detail = Some(broken);
            return Ok(());
        }
        if stopped(why, facts, state) {
            return Ok(());
        }
        let times = &facts.times;
        let stage = Stage::of(times, state, now);
        if stage == Stage::Expired {
            why.reason = Reason::Expired;
            why.since = times.expires_at;
            why.fault = expiry_fault(why.since);
            return Ok(());
        }
        if let Some(head) = evidence::blocker(self.conn, facts)?
            && let Some(head) = evidence::facts(self.conn, head)?
        {
            why.reason = Reason::Behind {
                id: head.id,
                status: head.status,
            };
            why.since = Some(times.created_at);
            if with_head {
                let head = self.explain(head, false)?;
                why.fault = head.fault;
                why.until = head.until;
                why.behind = Some(Box::new(head));
            }
            return Ok(());
        }
        match stage {
            Stage::Scheduled { far } => {
                why.reason = match far {
                    true => Reason::FarAhead,
                    false => Reason::Scheduled,
                };
                why.fault = match far {
                    true => Fault::Message,
                    false => Fault::Nobody,
                };
                why.since = Some(times.created_at);
                why.until = times.available_at;
            }
            Stage::Held => self.troubled(why, facts, state)?,
            Stage::Stamped => {
                why.reason = Reason::FarAhead;
                why.fault = Fault::Machine;
                why.until = Some(times.next_attempt_at);
            }
            Stage::BackOff => {
                why.reason = Reason::BackOff;
                why.fault = blame(
                    facts.code.as_deref(),
                    facts.last_error.as_deref(),
                    self.others_arrived(facts)?,
                );
                why.cause.clone_from(&facts.code);
                why.since = facts.last_attempt_at;
                why.until = Some(times.next_attempt_at);
                why.detail.clone_from(&facts.last_error);
            }
            Stage::Expired | Stage::Due => self.due(why, facts, state, times.due_since())?,
        }
        Ok(())
    }

    /// Whether others of its channel were delivered after the message had first failed: then what
    /// failed is its own. A second charge was paid by one of them.
    fn others_arrived(&self, facts: &Facts) -> Result<bool> {
        if facts.times.attempts > 1 {
            return Ok(true);
        }
        let charged = match facts.times.attempts {
            0 => None,
            _ => settle::first_charge(self.conn, facts.id, FIRST_HONEST)?,
        };
        let Some(failed) = charged.or(facts.last_attempt_at).or(facts.settled_at) else {
            return Ok(false);
        };
        let sent = evidence::last_sent(self.conn, &facts.channel, self.now)?;
        Ok(sent.is_some_and(|at| at > failed))
    }

    /// Whether a dead letter is one of those that a receiver which rejects everything has made: it
    /// died on the way to the brake, and nothing was delivered since.
    fn suspected(&self, facts: &Facts, state: &Channel) -> Result<bool> {
        let own = facts.code.as_deref().is_none_or(|it| {
            matches!(
                it,
                Failure::INVALID | Failure::UNRECORDED | Failure::ROW_REFUSES
            )
        });
        if state.state != ChannelState::Rejecting || own {
            return Ok(false);
        }
        let sent = evidence::last_sent(self.conn, &facts.channel, self.now)?;
        Ok(sent.is_none_or(|sent| facts.settled_at.is_some_and(|at| at >= sent)))
    }

    /// The channel's trouble, unless its next probe is so long overdue that there is no drain.
    fn troubled(&self, why: &mut Why, facts: &Facts, state: &Channel) -> Result<()> {
        let until = state.next_try(self.now).filter(|it| *it > self.now);
        if until.is_none() {
            let due = state.until.unwrap_or(self.now).min(self.now);
            let overdue = self.now.saturating_sub(due) > OVERDUE;
            if overdue && self.silent_since(due)? {
                return self.due(why, facts, state, due);
            }
        }
        let code = state.reason_code.as_deref();
        let (reason, fault) = match state.state {
            ChannelState::Unauthorised if code == Some(Failure::NO_CREDENTIALS) => {
                (Reason::NoCredentials, Fault::Route)
            }
            ChannelState::Unauthorised => (Reason::Unauthorised, Fault::Route),
            ChannelState::Holding => (Reason::Holding, Fault::Receiver),
            ChannelState::Rejecting => (Reason::Rejecting, Fault::Receiver),
            _ => {
                let fault = blame(code, state.reason.as_deref(), false);
                (Reason::Offline, fault)
            }
        };
        why.reason = reason;
        why.fault = fault;
        why.since = state.since;
        why.until = until;
        why.detail.clone_from(&state.reason);
        why.cause.clone_from(&state.reason_code);
        // Who does not agree on TLS has seen no message.
        let ambiguous = code != Some("tls")
            && matches!(reason, Reason::Offline | Reason::Rejecting)
            && fault == Fault::Receiver
            && facts.last_attempt_at.is_some();
        if ambiguous && !evidence::has_other(self.conn, facts)? {
            why.reason = Reason::NoOther;
            why.detail = facts.last_error.clone().or(why.detail.take());
            why.cause = facts.code.clone().or(why.cause.take());
        }
        Ok(())
    }

    fn due(&self, why: &mut Why, facts: &Facts, state: &Channel, since: i64) -> Result<()> {
        why.since = Some(since.min(self.now));
        let silent = self.is_forgotten(since)?;
        let own = facts.last_error.is_some();
        // What failed last is known at once, and may be why nobody tries any more.
        if silent || own {
            why.attempted = facts.last_attempt_at.filter(|_| own);
            why.detail = facts.last_error.clone().or_else(|| state.reason.clone());
            why.cause = match own {
                true => facts.code.clone(),
                false => state.reason_code.clone(),
            };
            let others = own && self.others_arrived(facts)?;
            why.fault = match blame(why.cause.as_deref(), why.detail.as_deref(), others) {
                Fault::Nobody if silent => Fault::Program,
                known => known,
            };
        }
        if silent {
            why.reason = Reason::NoDrain;
        }
        if let Some(ban) = contract::writer(self.conn)?.pop() {
            why.forbidden = true;
            why.stands_before(ban, Fault::Program);
        } else {
            // Whoever asks need not be who sends: that he may only look tells nothing of the cause.
            let own = |it: &&Finding| it.code == storage::NOT_WRITABLE;
            let found = self.obstacles()?;
            why.notes.extend(found.iter().filter(own).cloned());
            if let Some(found) = found.iter().find(|it| !own(it)) {
                why.stands_before(found.clone(), Fault::Machine);
            }
        }
        why.notes.extend(self.triggers()?);
        Ok(())
    }
}

/// Whether a person or the lack of a route keeps the whole channel.
fn stopped(why: &mut Why, facts: &Facts, state: &Channel) -> bool {
    if let Some(pause) = &state.pause {
        why.reason = Reason::Paused;
        why.fault = Fault::Operator;
        why.since = Some(pause.at);
        let by = pause.by.as_deref().unwrap_or("somebody");
        let reason = pause.reason.as_deref().map(|it| format!(": {it}"));
        why.detail = Some(format!("{by}{}", reason.unwrap_or_default()));
    } else if why.routed == Some(false) {
        why.reason = Reason::Unrouted;
        why.fault = Fault::Route;
        why.since = Some(facts.times.created_at);
    } else {
        return false;
    }
    why.until = None;
    true
}
