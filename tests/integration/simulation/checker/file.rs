//! What may become of a row, and by whom.

use std::collections::{BTreeMap, HashSet};

use super::{Checked, Checker, Message, P1, P2, P3, P4, Violation};
use crate::simulation::fuse::LIMIT;
use crate::simulation::history::{Change, Row, Status, Who, receipt};

/// A lease, and the furthest any lease may reach.
const LEASE: i64 = 30_000;
pub(super) const HORIZON: i64 = 1_200_000;
/// No honest clock reads less: 2026-01-01.
pub(super) const HONEST: i64 = 1_767_225_600_000;
/// A stale claim must be seen twice, so far apart, before it is taken back.
const SEEN_TWICE: i64 = 2_000;

/// What one transaction did to messages.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// As they were before.
    pub(super) before: BTreeMap<i64, Message>,
    pub(super) claimed: Vec<i64>,
    /// Codes and charges of attempts that failed.
    pub(super) failed: BTreeMap<i64, (String, i64)>,
    pub(super) settled: usize,
    pub(super) expired: usize,
    pub(super) renewed: usize,
    /// Made due earlier.
    pub(super) pulled: usize,
    pub(super) taken_back: usize,
}

impl<'a> Checker<'a> {
    /// Takes the changes of a transaction into the model.
    pub(super) fn apply(&mut self, changes: &'a [Change], who: Who) -> Result<Batch, Violation> {
        let mut batch = Batch::default();
        let mut lost = HashSet::new();
        for change in changes {
            if let Change::Attempt(id, code, nth) = change {
                match code.as_str() {
                    "lost" => drop(lost.insert(*id)),
                    "interrupted" => {}
                    _ => drop(batch.failed.insert(*id, (code.clone(), *nth))),
                }
            }
        }
        for change in changes {
            match change {
                Change::New(row) => self.arrives(row, who)?,
                Change::Row(row) => {
                    let Some(old) = self.messages.get(&row.id).cloned() else {
                        return self.broken(P1, format!("message {} is not known", row.id));
                    };
                    batch.before.entry(row.id).or_insert_with(|| old.clone());
                    self.becomes(&old, row, who, lost.contains(&row.id), &mut batch)?;
                }
                Change::Gone(id) => {
                    return self.broken(P1, format!("message {id} is gone"));
                }
                Change::Attempt(..) | Change::Channel(..) => {}
            }
        }
        Ok(batch)
    }

    fn arrives(&mut self, row: &Row, who: Who) -> Checked {
        self.demand(who == Who::App, P1, || format!("{who:?} enqueued {row:?}"))?;
        let name = (row.channel.clone(), row.key.clone());
        if let Some(holder) = self.keys.insert(name, row.id) {
            return self.broken(P3, format!("the key of {} belongs to {holder}", row.id));
        }
        if let Some(lane) = lane(row) {
            self.lanes.entry(lane.clone()).or_default().insert(row.id);
            self.unheard.entry(lane).or_default().insert(row.id);
        }
        let message = Message {
            row: row.clone(),
            holder: None,
            batch: 0,
            revived: 0,
            budgets: 0,
            first_charge: None,
        };
        self.messages.insert(row.id, message);
        Ok(())
    }

    fn becomes(
        &mut self,
        old: &Message,
        row: &Row,
        who: Who,
        lost: bool,
        batch: &mut Batch,
    ) -> Checked {
        use Status::{Cancelled, Dead, Expired, Pending, Sending, Sent, Waiting};
        let was = &old.row;
        let what = || format!("{who:?} made {was:?} {row:?}");
        self.identity_stays(was, row, who)?;
        let wall = self.history[self.at].at.now();
        let drain = matches!(who, Who::Life(_));
        let mine = drain && who == old.holder.map_or(Who::World, Who::Life);
        let name = (row.id, row.message_id.clone());
        let known = self.delivered.contains_key(&name);
        match (was.status, row.status) {
            (Pending | Waiting, Sending) => {
                self.demand(drain && row.claims == was.claims + 1, P3, what)?;
                let early = row.available.is_some_and(|it| it > wall) && !self.set_back;
                self.demand(!early, P1, || format!("before its time: {}", what()))?;
                let over = row.expires.is_some_and(|it| it <= wall);
                self.demand(!over, P1, || format!("after its time: {}", what()))?;
                self.demand(row.due <= wall + LEASE, P3, || format!("lease: {}", what()))?;
                self.demand(was.due <= wall, P2, || format!("not due: {}", what()))?;
                batch.claimed.push(row.id);
            }
            (Sending, Sending) => {
                let noted = was.settled.is_none() && row.settled.is_some() && known;
                self.demand(mine || noted, P3, what)?;
                batch.renewed += usize::from(row.due != was.due);
            }
            (Sending, Pending | Waiting) => {
                match lost {
                    true => self.taken_back(old, who, batch, what)?,
                    false => self.demand(mine, P3, || format!("not its claim: {}", what()))?,
                }
                batch.settled += usize::from(!lost);
            }
            (Sending, Sent) => {
                self.demand(known, P1, || format!("nobody took it: {}", what()))?;
                // Whoever took the claim back found that an earlier holder had delivered it.
                if !mine && was.lane.is_some() {
                    self.demand(was.settled.is_some(), P4, || {
                        format!("its lane: {}", what())
                    })?;
                    self.taken_back(old, who, batch, what)?;
                }
                self.figures.count("late answers", u64::from(!mine));
                batch.settled += 1;
            }
            (_, Sent) if was.status != Sent => {
                self.figures.count("late answers", 1);
                self.demand(drain && known, P1, || format!("nobody took it: {}", what()))?;
            }
            (Sending, Dead) => {
                self.demand(mine, P3, || format!("not its claim: {}", what()))?;
                self.figures.count("died", 1);
                batch.settled += 1;
            }
            (Pending | Waiting, Expired) => {
                let over = row.expires.is_some_and(|it| it <= wall);
                self.demand(drain && over, P1, what)?;
                let doubts = matches!(who, Who::Life(it) if self.lives[it].watch.doubts());
                self.demand(!doubts, P1, || format!("by a clock in doubt: {}", what()))?;
                self.figures.count("expired", 1);
                batch.expired += 1;
            }
            (Pending | Waiting | Dead, Cancelled) => {
                self.demand(who == Who::Operator, P1, what)?;
                self.figures.count("cancelled", 1);
            }
            (Dead | Expired | Cancelled, Pending | Waiting) => {
                self.demand(who == Who::Operator, P1, what)?;
                self.figures.count("revived", 1);
            }
            (Pending | Waiting, Pending | Waiting) => {
                batch.pulled += usize::from(drain && row.due < was.due);
            }
            (now, then) if now == then => {}
            _ => return self.broken(P1, what()),
        }
        if row.status == Status::Sent {
            let claims = self.delivered.get(&name).map_or(&[][..], Vec::as_slice);
            let told = claims.iter().any(|it| receipt(row.id, *it) == row.receipt);
            self.demand(told, P3, || format!("no receiver answered so: {}", what()))?;
        }
        self.attempts_are_charged(old, row, who, batch)?;
        self.remember(old, row, who);
        Ok(())
    }

    /// The same key and the same bytes, whatever happens, but for what a person or the application
    /// changed before anybody can have seen it.
    fn identity_stays(&self, was: &Row, row: &Row, who: Who) -> Checked {
        let what = || format!("{who:?} made {was:?} {row:?}");
        let place = |it: &Row| (it.channel.clone(), it.key.clone(), it.lane.clone());
        self.demand(place(was) == place(row), P4, what)?;
        let claims = row.claims == was.claims
            || row.claims == was.claims + 1 && row.status == Status::Sending;
        self.demand(claims, P3, || format!("the fence: {}", what()))?;
        if was.message_id != row.message_id {
            self.demand(who == Who::Operator, P3, || {
                format!("its identity: {}", what())
            })?;
        } else if was.payload != row.payload {
            let unseen = who == Who::App && was.claims == 0;
            self.demand(unseen, P3, || format!("its bytes: {}", what()))?;
        }
        self.demand(was.envelope == row.envelope, P3, || {
            format!("its headers: {}", what())
        })?;
        self.times_stay(was, row, who)
    }

    /// Nobody changes when a message may be sent but a person, or the application before anybody has
    /// claimed it. A drain gives what was enqueued in 1970 its span anew.
    fn times_stay(&self, was: &Row, row: &Row, who: Who) -> Checked {
        let told = match who {
            Who::Operator => true,
            Who::App => was.claims == 0,
            _ => false,
        };
        let dated = was.expires.is_some_and(|it| it < HONEST) && row.expires.is_some();
        let same = was.available == row.available && (was.expires == row.expires || dated);
        self.demand(told || same, P1, || {
            format!("its times: {who:?} made {was:?} {row:?}")
        })
    }

    /// Whether a call of the holder has run on for too long. Also one whose answer has come and is not
    /// recorded yet: its lease was over before.
    pub(super) fn runs_on(&self, holder: usize, row: &Row) -> bool {
        let came = self.lives[holder].told.iter().map(|(request, _)| *request);
        self.open.keys().copied().chain(came).any(|request| {
            let limit = i64::try_from(LIMIT.as_millis()).unwrap();
            let spent = self.history[self.at].at.mono - self.history[request].at.mono;
            self.is_of_run(request, holder, row) && spent >= limit
        })
    }

    /// Only from who is gone, hangs, or lets a call run on for too long.
    fn taken_back(
        &mut self,
        old: &Message,
        who: Who,
        batch: &mut Batch,
        what: impl Fn() -> String,
    ) -> Checked {
        batch.taken_back += 1;
        let (Who::Life(taker), Some(holder)) = (who, old.holder) else {
            return self.broken(P3, what());
        };
        self.figures.count("taken back", 1);
        let now = self.history[self.at].at;
        let wall = now.now();
        let due = old.row.due;
        let stale = due <= wall || due > wall + HORIZON;
        self.demand(stale, P3, || format!("a living lease is taken: {}", what()))?;
        let from = &self.lives[holder];
        let overdue = self.runs_on(holder, &old.row);
        let gone = from.ended || now.mono - from.turned >= SEEN_TWICE;
        self.demand(gone || overdue, P3, || {
            format!("its holder {holder} lives: {}", what())
        })?;
        let seen = now.mono - self.lives[taker].born >= SEEN_TWICE;
        self.demand(seen, P3, || format!("seen stale once: {}", what()))?;
        let name = (old.row.id, old.row.message_id.clone());
        for it in self.taken.get_mut(&name).into_iter().flatten() {
            it.excused |= it.claims == old.row.claims;
        }
        Ok(())
    }

    /// One charge for one failed attempt, and by nothing else.
    fn attempts_are_charged(
        &mut self,
        old: &Message,
        row: &Row,
        who: Who,
        batch: &Batch,
    ) -> Checked {
        let was = &old.row;
        let what = || format!("{who:?} made {was:?} {row:?}");
        if row.attempts == was.attempts {
            return Ok(());
        }
        if who == Who::Operator {
            return self.demand(row.attempts == 0, P2, what);
        }
        let charged = batch.failed.get(&row.id).map(|(_, nth)| *nth);
        let one_more = row.attempts == was.attempts + 1 && charged == Some(row.attempts);
        self.demand(one_more && was.status == Status::Sending, P2, || {
            format!("charged without an attempt: {}", what())
        })?;
        self.figures.count("charged", 1);
        Ok(())
    }

    fn remember(&mut self, old: &Message, row: &Row, who: Who) {
        let at = self.at;
        let wall = self.history[at].at.now();
        let was = &old.row;
        let lives = &self.lives;
        if let Some(holder) = old
            .holder
            .filter(|it| was.status == Status::Sending && !lives[*it].ended)
            && row.status != Status::Sending
        {
            self.held.entry(holder).or_default().remove(&row.id);
        }
        let Some(message) = self.messages.get_mut(&row.id) else {
            return;
        };
        message.row = row.clone();
        if let (Who::Life(life), true) = (who, row.claims > was.claims) {
            message.holder = Some(life);
            message.batch = at;
            self.held.entry(life).or_default().insert(row.id);
        }
        let settled = |it: Status| !it.is_unsent();
        if who == Who::Operator && settled(was.status) && row.status.is_unsent()
            || row.message_id != was.message_id
        {
            message.revived = at;
            message.budgets += 1;
            message.first_charge = None;
        }
        if row.attempts > was.attempts && wall >= HONEST {
            let first = message.first_charge.unwrap_or(wall);
            message.first_charge = Some(first.min(wall));
        }
        let Some(lane) = lane(row) else { return };
        let members = self.lanes.entry(lane.clone()).or_default();
        match row.status {
            Status::Sent | Status::Expired | Status::Cancelled => members.remove(&row.id),
            _ => members.insert(row.id),
        };
        if settled(row.status) {
            self.unheard.entry(lane).or_default().remove(&row.id);
        }
    }
}

pub(super) fn lane(row: &Row) -> Option<super::Lane> {
    Some((row.channel.clone(), row.lane.clone()?))
}
