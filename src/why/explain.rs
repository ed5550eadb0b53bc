//! From what the file says to the one reason.

use std::cell::OnceCell;

use rusqlite::Connection;

use crate::check::contract;
use crate::circuit::Channel;
use crate::clock::FIRST_HONEST;
use crate::condition::Finding;
use crate::dispatch::{Dispatcher, Failure};
use crate::entry::Status;
use crate::error::{Error, Result};
use crate::outbox::Outbox;
use crate::retry;
use crate::settings::MAX_LEASE;
use crate::stats::{ChannelState, far_ahead};
use crate::store::odd::is_page;
use crate::store::why::{self as evidence, Facts};
use crate::store::{again, settle};
use crate::why::blame::{blame, expiry_fault, is_address};
use crate::why::{Fault, Reason, Why, WhyGroup};

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

/// Explains one message of each kind in each channel.
pub(crate) fn why_all(
    outbox: &Outbox,
    dispatcher: Option<&dyn Dispatcher>,
) -> Result<Vec<WhyGroup>> {
    let conn = outbox.shared().reader()?;
    let whole = Whole::default();
    let asked = Asked::new(outbox, &conn, dispatcher, &whole);
    let mut groups = Vec::new();
    for (messages, id) in evidence::kinds(&conn, asked.now)? {
        // Else it was purged or deleted since.
        if let Some(why) = asked.why(id)? {
            add(&mut groups, messages, why);
        }
    }
    Ok(groups)
}

/// What holds a whole channel holds each kind of its messages, and these stand together.
pub(super) fn add(groups: &mut Vec<WhyGroup>, messages: u64, why: Why) {
    let own = groups.iter_mut().rev();
    let mut own = own.take_while(|it| it.why.channel == why.channel);
    match own.find(|it| it.why.reason == why.reason) {
        Some(group) => group.messages += messages,
        None => groups.push(WhyGroup { messages, why }),
    }
}

/// What holds for all messages alike, once it was looked for.
#[derive(Debug, Default)]
pub(super) struct Whole {
    /// When a drain last left a trace.
    last_drain: OnceCell<Option<i64>>,
    /// What keeps everything from being sent.
    obstacle: OnceCell<Option<Finding>>,
}

pub(super) struct Asked<'a> {
    outbox: &'a Outbox,
    conn: &'a Connection,
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

    fn obstacle(&self) -> Result<Option<Finding>> {
        let known = match self.whole.obstacle.get() {
            Some(known) => known,
            None => {
                let found = self.outbox.obstacles()?.into_iter().next();
                self.whole.obstacle.get_or_init(|| found)
            }
        };
        Ok(known.clone())
    }

    fn explain(&self, facts: Facts, with_head: bool) -> Result<Why> {
        let now = self.now;
        let late = facts.created_at.saturating_sub(now);
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
            forbidden: false,
            obstacle: None,
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
        let settled = match facts.status {
            Status::Sent => Some((Reason::Sent, Fault::Nobody)),
            Status::Dead if self.suspected(&facts, &state)? => {
                Some((Reason::Dead, Fault::Receiver))
            }
            Status::Dead
                if is_address(facts.code.as_deref()) && !self.others_arrived(&facts)? =>
            {
                why.cause.clone_from(&facts.code);
                Some((Reason::Dead, Fault::Route))
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
            }
            if reason == Reason::Expired {
                why.noticed = facts.settled_at;
                why.since = facts.expires_at.or(facts.settled_at);
                why.fault = expiry_fault(why.since);
            }
            return Ok(why);
        }
        if facts.status == Status::Sending {
            let until = facts.next_attempt_at;
            let horizon = now.saturating_add(crate::clock::millis(MAX_LEASE));
            why.stale = until <= now || until > horizon;
            why.reason = Reason::Claimed {
                until,
                stale: why.stale,
            };
            why.until = Some(until);
            // What is taken back goes no further while its channel stands still.
            if why.stale && !stopped(&mut why, &facts, &state) && state.state != ChannelState::Ok {
                self.troubled(&mut why, &facts, &state)?;
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
            why.since = Some(facts.created_at);
            why.detail = Some(broken);
            return Ok(());
        }
        if stopped(why, facts, state) {
            return Ok(());
        }
        // A span that began with a clock in 1970 begins anew once the clock is right.
        let honest = facts.created_at >= FIRST_HONEST && now >= FIRST_HONEST;
        if honest && facts.expires_at.is_some_and(|at| at <= now) {
            why.reason = Reason::Expired;
            why.since = facts.expires_at;
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
            why.since = Some(facts.created_at);
            if with_head {
                let head = self.explain(head, false)?;
                why.fault = head.fault;
                why.until = head.until;
                why.behind = Some(Box::new(head));
            }
            return Ok(());
        }
        if facts.available_at.is_some_and(|at| at > now) {
            why.reason = Reason::Scheduled;
            why.since = Some(facts.created_at);
            why.until = facts.available_at;
            if facts.available_at > Some(far_ahead(now)) {
                why.reason = Reason::FarAhead;
                why.fault = Fault::Message;
            }
            return Ok(());
        }
        // No probe takes a message before the end of a wait of its own.
        let due = retry::due_at(facts.next_attempt_at, facts.available_at, now);
        let next_try = state.next_try(now);
        let own = match facts.attempts {
            0 => retry::outlasts(due, next_try, now),
            _ => due > next_try.unwrap_or(now).max(now),
        };
        if state.state != ChannelState::Ok && !own && self.troubled(why, facts, state)? {
            return Ok(());
        }
        if due < facts.next_attempt_at {
            why.reason = Reason::FarAhead;
            why.fault = Fault::Machine;
            why.until = Some(facts.next_attempt_at);
            return Ok(());
        }
        if due > now {
            why.reason = Reason::BackOff;
            why.fault = blame(
                facts.code.as_deref(),
                facts.last_error.as_deref(),
                self.others_arrived(facts)?,
            );
            why.cause.clone_from(&facts.code);
            why.since = facts.last_attempt_at;
            why.until = Some(facts.next_attempt_at);
            why.detail.clone_from(&facts.last_error);
            return Ok(());
        }
        let since = facts.created_at.max(facts.next_attempt_at);
        self.due(why, facts, state, since)
    }

    /// Whether others of its channel were delivered after the message had first failed: then what
    /// failed is its own. A second charge was paid by one of them.
    fn others_arrived(&self, facts: &Facts) -> Result<bool> {
        if facts.attempts > 1 {
            return Ok(true);
        }
        let charged = match facts.attempts {
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
        let own = facts.code.as_deref().is_none_or(|it| it == "invalid");
        if state.state != ChannelState::Rejecting || own {
            return Ok(false);
        }
        let sent = evidence::last_sent(self.conn, &facts.channel, self.now)?;
        Ok(sent.is_none_or(|sent| facts.settled_at.is_some_and(|at| at >= sent)))
    }

    /// The channel's trouble. False: its next probe is so long overdue that there is no drain, or
    /// it is none.
    fn troubled(&self, why: &mut Why, facts: &Facts, state: &Channel) -> Result<bool> {
        let until = state.next_try(self.now).filter(|it| *it > self.now);
        if until.is_none() {
            let due = state.until.unwrap_or(self.now).min(self.now);
            let overdue = self.now.saturating_sub(due) > OVERDUE;
            if overdue && self.silent_since(due)? {
                self.due(why, facts, state, due)?;
                return Ok(true);
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
        let ambiguous = matches!(reason, Reason::Offline | Reason::Rejecting)
            && fault == Fault::Receiver
            && facts.last_attempt_at.is_some();
        if ambiguous && !evidence::has_other(self.conn, facts)? {
            why.reason = Reason::NoOther;
            why.detail = facts.last_error.clone().or(why.detail.take());
            why.cause = facts.code.clone().or(why.cause.take());
        }
        Ok(true)
    }

    fn due(&self, why: &mut Why, facts: &Facts, state: &Channel, since: i64) -> Result<()> {
        why.since = Some(since.min(self.now));
        let long = self.now.saturating_sub(since) > SILENCE;
        if long && self.silent_since(since)? {
            why.reason = Reason::NoDrain;
            // What was heard last may be why nobody tries any more.
            let own = facts.last_error.is_some();
            why.attempted = facts.last_attempt_at.filter(|_| own);
            why.detail = facts.last_error.clone().or_else(|| state.reason.clone());
            why.cause = match own {
                true => facts.code.clone(),
                false => state.reason_code.clone(),
            };
            let others = own && self.others_arrived(facts)?;
            why.fault = match blame(why.cause.as_deref(), why.detail.as_deref(), others) {
                Fault::Nobody => Fault::Route,
                known => known,
            };
        }
        let ban = contract::writer(self.conn)?.pop();
        why.forbidden = ban.is_some();
        why.obstacle = match ban {
            None if long => self.obstacle()?,
            ban => ban,
        };
        if why.obstacle.is_some() {
            why.fault = match why.forbidden {
                true => Fault::Route,
                false => Fault::Machine,
            };
            (why.attempted, why.cause, why.detail) = (None, None, None);
        }
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
        why.since = Some(facts.created_at);
    } else {
        return false;
    }
    why.until = None;
    true
}
