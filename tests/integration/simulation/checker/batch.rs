//! What one transaction of a drain may do: verdicts, claims, and what it leaves of the lanes.

use std::collections::{BTreeSet, HashMap};

use super::file::{Batch, lane};
use super::{Checked, Checker, P1, P2, P4, P6, Violation};
use crate::simulation::history::{Change, Channel, Row, Status, Told, What};
use crate::simulation::life::CHANNELS;

/// Rows of each kind in one transaction.
const ROWS: usize = 64;
/// The longest hold that is honoured.
const HOLD: i64 = 24 * 3600 * 1000;

impl<'a> Checker<'a> {
    /// What its calls were told, in that order: who is charged, who dies, and what that does to
    /// their channels, which are returned.
    pub(super) fn judge_reports(
        &mut self,
        life: usize,
        changes: &'a [Change],
        batch: &Batch,
    ) -> Result<BTreeSet<String>, Violation> {
        let mut channels: HashMap<&str, Channel> = HashMap::new();
        let mut unsure: BTreeSet<&str> = BTreeSet::new();
        let reports = std::mem::take(&mut self.lives[life].told);
        let mut judged = 0;
        let mut peace: HashMap<&str, i64> = HashMap::new();
        let mut explained = BTreeSet::new();
        // Taken under an earlier claim, as an answer says that was heard just now.
        let mut late = BTreeSet::new();
        for (request, told) in &reports {
            let What::Sent(sent) = &self.history[*request].what else {
                continue;
            };
            let name = sent.channel.as_str();
            let state = channels
                .entry(name)
                .or_insert_with(|| self.channels.get(name).cloned().unwrap_or_default());
            let before = batch.before.get(&sent.id);
            let ours = |row: &Row| row.status == Status::Sending && row.claims == sent.claims;
            let held = match before {
                Some(it) => ours(&it.row) && it.holder == Some(life),
                None => {
                    let now = &self.messages[&sent.id];
                    // Still claimed: this report waits for another transaction.
                    if ours(&now.row) && now.holder == Some(life) {
                        break;
                    }
                    false
                }
            };
            judged += 1;
            let failure = batch.failed.get(&sent.id);
            let noted =
                before.is_some_and(|it| it.row.settled.is_some()) || late.contains(&sent.id);
            match told {
                Told::Delivered => {
                    state.evidence = true;
                    state.rejections = 0;
                    let row = &self.messages[&sent.id].row;
                    if !held {
                        unsure.insert(name);
                        if row.message_id == sent.message_id {
                            late.insert(sent.id);
                        }
                    }
                    // By now, or noted for whoever holds the claim.
                    let stands = row.status == Status::Sent
                        || row.status == Status::Sending && row.settled.is_some()
                        || row.message_id != sent.message_id;
                    self.demand(stands || batch.settled >= ROWS, P1, || {
                        format!("it was taken, and said so: {row:?}")
                    })?;
                }
                _ if !held => {}
                // An earlier holder delivered it; what this one heard is judged all the same.
                _ if noted => drop(unsure.insert(name)),
                _ => {
                    if let Told::Retry(Some(seconds)) = told {
                        let span = i64::try_from(*seconds).unwrap() * 1000;
                        let longest = peace.entry(name).or_default();
                        *longest = span.max(*longest);
                    }
                    let Some((_, nth)) = failure else {
                        return self.broken(P2, format!("{told:?} for {} left no trace", sent.id));
                    };
                    explained.insert(sent.id);
                    let row = &self.messages[&sent.id].row;
                    let died = matches!(self.fate(sent.id, batch, changes), Status::Dead);
                    let what = format!("{told:?} for {row:?}, charge {nth}, channel {state:?}");
                    let charge = match told {
                        Told::Rejected => {
                            let suspected = state.rejections >= self.rules.brake;
                            state.rejections += 1;
                            self.demand(died != suspected, P2, || format!("brake: {what}"))?;
                            false
                        }
                        Told::Unauthorised | Told::Portal => {
                            self.demand(!died, P2, || format!("the route's fault: {what}"))?;
                            false
                        }
                        _ => {
                            let braked = state.rejections >= self.rules.brake;
                            let charge = std::mem::take(&mut state.evidence);
                            if died {
                                self.demand(!braked, P2, || format!("brake: {what}"))?;
                                self.budget_is_spent(sent.id, *nth, &what)?;
                            }
                            charge
                        }
                    };
                    self.demand(charge == (*nth > 0), P2, || format!("evidence: {what}"))?;
                }
            }
        }
        if let Some(id) = batch.failed.keys().find(|id| !explained.contains(id)) {
            return self.broken(P2, format!("message {id} failed, and no call of it did"));
        }
        self.lives[life].told = reports[judged..].to_vec();
        let heard = channels.keys().map(|it| (*it).to_owned()).collect();
        for (name, state) in channels {
            if unsure.contains(name) {
                continue;
            }
            let known = self.channels.get(name).cloned().unwrap_or_default();
            let new = changes.iter().rev().find_map(|it| match it {
                Change::Channel(it, state) if it == name => Some(state.clone()),
                _ => None,
            });
            let new = new.unwrap_or(known);
            self.peace_is_kept(name, &new, peace.get(name).copied().unwrap_or(0))?;
            let same = new.evidence == state.evidence && new.rejections == state.rejections;
            self.demand(same, P2, || {
                format!("{name} should be {state:?} and is {new:?}")
            })?;
        }
        Ok(heard)
    }

    /// A receiver that asked to be left alone is, for no less than it asked for.
    fn peace_is_kept(&self, name: &str, state: &Channel, span: i64) -> Checked {
        let until = self.history[self.at].at.now() + span.min(HOLD);
        let kept = state.state == "holding" && state.until.is_some_and(|it| it >= until);
        self.demand(kept || span == 0 || self.set_back, P2, || {
            format!("{name} asked for {span} ms of peace, until {until}: {state:?}")
        })
    }

    /// What its verdict made of a message, whatever came after in the same transaction.
    fn fate(&self, id: i64, batch: &Batch, changes: &[Change]) -> Status {
        let first = changes.iter().find_map(|it| match it {
            Change::Row(row) if row.id == id && row.status != Status::Sending => Some(row.status),
            _ => None,
        });
        first.unwrap_or_else(|| batch.before[&id].row.status)
    }

    fn budget_is_spent(&self, id: i64, nth: i64, what: &str) -> Checked {
        let wall = self.history[self.at].at.now();
        let first = self.messages[&id].first_charge.unwrap_or(wall);
        let spent = nth >= self.rules.max_attempts;
        self.demand(spent, P2, || format!("too few attempts: {what}"))?;
        let age = self.rules.min_dead_age;
        let old = age == 0 || wall - first >= age;
        self.demand(old, P2, || format!("too young: {what}"))
    }

    /// What it claimed: as much as it may, from channels that may be sent to, in order.
    pub(super) fn judge_claims(
        &mut self,
        life: usize,
        batch: &Batch,
        heard: &BTreeSet<String>,
    ) -> Checked {
        // One for each channel that has nothing under way, be it a probe.
        let extra = CHANNELS.len();
        let capacity = self.rules.workers * self.rules.prefetch + extra;
        let held = self.claimed_by(life);
        self.demand(held <= capacity, P6, || {
            format!("life {life} holds {held}, may hold {capacity}")
        })?;
        // A run is taken back whole, for whose rows there may have been room for one.
        let bounds = [
            ("claimed", batch.claimed.len(), ROWS + extra),
            ("settled", batch.settled, ROWS),
            // Those in the way of a claim come on top.
            ("expired", batch.expired, 2 * ROWS),
            ("renewed", batch.renewed, ROWS),
            ("pulled", batch.pulled, ROWS),
            ("taken back", batch.taken_back, ROWS + self.rules.run_length),
        ];
        for (what, rows, most) in bounds {
            self.demand(rows <= most, P6, || {
                format!("{rows} rows {what} in one transaction")
            })?;
        }
        let mut runs: HashMap<_, usize> = HashMap::new();
        let mut by_channel: HashMap<String, Vec<i64>> = HashMap::new();
        for id in &batch.claimed {
            let message = &self.messages[id];
            by_channel
                .entry(message.row.channel.clone())
                .or_default()
                .push(*id);
            let Some(lane) = lane(&message.row) else {
                continue;
            };
            let run = runs.entry(lane.clone()).or_default();
            *run += 1;
            let length = *run;
            self.demand(length <= self.rules.run_length, P6, || {
                format!("a run of {length}")
            })?;
            self.nobody_is_before(life, *id, &lane)?;
        }
        for (name, ids) in by_channel {
            self.channel_may(&name, &ids, batch, heard.contains(&name))?;
        }
        Ok(())
    }

    /// Whoever is before a claimed message in its lane is claimed with it, or held by the same life,
    /// which sends one run after the other.
    fn nobody_is_before(&self, life: usize, id: i64, lane: &super::Lane) -> Checked {
        let skips = self.channels.get(&lane.0).is_some_and(|it| it.skip);
        for other in self.lanes[lane].range(..id) {
            let other = &self.messages[other];
            let ours = other.batch == self.at || other.holder == Some(life);
            let with_it = other.row.status == Status::Sending && ours;
            let skipped = other.row.status == Status::Dead && skips;
            self.demand(with_it || skipped, P4, || {
                format!("message {id} is claimed past {:?}", other.row)
            })?;
        }
        Ok(())
    }

    fn channel_may(&mut self, name: &str, ids: &[i64], batch: &Batch, heard: bool) -> Checked {
        let now = self.history[self.at].at.now();
        let state = self.channels.get(name).cloned().unwrap_or_default();
        self.demand(!state.paused, P2, || {
            format!("{name} is paused, and {ids:?} are claimed")
        })?;
        // What came back in the same transaction may have changed its state.
        if heard || matches!(state.state.as_str(), "" | "ok") {
            self.probes.remove(name);
            return Ok(());
        }
        let rest = state.until.unwrap_or(0) - now;
        let holds = state.state == "holding" && (1..=HOLD).contains(&rest) && !self.set_back;
        self.demand(!holds, P2, || {
            format!("{name} holds for {rest} ms, and {ids:?} are claimed")
        })?;
        self.demand(ids.len() == 1, P2, || {
            format!("{name} is in trouble, and {ids:?} are claimed together")
        })?;
        let retried = |row: &Row| row.due > 0;
        let was = &batch.before[&ids[0]].row;
        if was.status == Status::Sending {
            // Taken back a moment before, so it was of neither kind.
            self.probes.remove(name);
            return Ok(());
        }
        let again = self.probes.insert(name.to_owned(), retried(was));
        if again != Some(retried(was)) {
            return Ok(());
        }
        // Those of the other kind that could have been taken: they were there before and after.
        let other = self.messages.values().find(|it| {
            let row = &it.row;
            row.channel == name
                && row.status == Status::Pending
                && !batch.before.contains_key(&row.id)
                && retried(row) != retried(was)
                && row.due <= now
                && row.expires.is_none_or(|it| it > now)
        });
        self.demand(other.is_none(), P2, || {
            format!(
                "{} holds the door of {name} for {:?}",
                ids[0],
                other.map(|it| &it.row)
            )
        })
    }

    /// Of each lane only the lowest is pending, none while one is on its way; a dead head holds, and
    /// nothing else does.
    pub(super) fn judge_lanes(&self, changes: &[Change]) -> Checked {
        let mut lanes = BTreeSet::new();
        for change in changes {
            if let Change::New(row) | Change::Row(row) = change {
                lanes.extend(lane(row));
            }
        }
        for lane in lanes {
            let members = &self.lanes[&lane];
            let status = |id: &i64| self.messages[id].row.status;
            let of = |wanted| members.iter().copied().find(|id| status(id) == wanted);
            let pending = members
                .iter()
                .filter(|id| status(id) == Status::Pending)
                .count();
            let sending = of(Status::Sending).is_some();
            let skips = self.channels.get(&lane.0).is_some_and(|it| it.skip);
            let dead = of(Status::Dead).filter(|_| !skips);
            let waiting = of(Status::Waiting);
            let what = || {
                let all: Vec<_> = members.iter().map(|id| (*id, status(id))).collect();
                format!("lane {lane:?}: {all:?}")
            };
            self.demand(pending <= 1, P4, || {
                format!("two are pending in {}", what())
            })?;
            if let Some(head) = of(Status::Pending) {
                let alone = !sending
                    && waiting.is_none_or(|it| it > head)
                    && dead.is_none_or(|it| it > head);
                self.demand(alone, P4, || {
                    format!("{head} may not be pending in {}", what())
                })?;
            } else if let Some(waiting) = waiting {
                let behind = sending || dead.is_some_and(|it| it < waiting);
                self.demand(behind, P4, || {
                    format!("nobody is before {waiting} in {}", what())
                })?;
            }
        }
        Ok(())
    }
}
