//! What the receivers see.

use super::file::lane;
use super::{Checked, Checker, P1, P2, P3, P4, Taken};
use crate::simulation::history::{Request, Row, Status, Told, What};

impl Checker<'_> {
    /// Whether a request belongs to the run in which this life claimed the message.
    pub(super) fn is_of_run(&self, request: usize, life: usize, row: &Row) -> bool {
        match &self.history[request].what {
            What::Sent(it) => {
                let lane = it.lane.is_some() && it.lane == row.lane && it.channel == row.channel;
                it.life == life && (it.id == row.id || lane)
            }
            _ => false,
        }
    }

    /// Everything that must be true of a message at the moment it goes out.
    pub(super) fn sent(&mut self, request: &Request) -> Checked {
        let at = self.history[self.at].at;
        let what = || format!("message {} of claim {}", request.id, request.claims);
        self.figures.count("sent", 1);
        let Some(message) = self.messages.get(&request.id) else {
            return self.broken(P1, format!("never committed: {}", what()));
        };
        let row = &message.row;
        let mine = row.status == Status::Sending
            && row.claims == request.claims
            && message.holder == Some(request.life);
        // An earlier holder's success may have come late, while this copy waited for its worker. And a
        // clock that was set back makes a claim that has passed on look alive.
        let late = row.status == Status::Sent && row.claims == request.claims;
        self.demand(mine || late || self.set_back, P3, || {
            format!("not claimed: {}", what())
        })?;
        let over = mine && row.expires.is_some_and(|it| it <= at.now());
        self.demand(!over, P1, || format!("after its time: {}", what()))?;
        let known = mine || row.message_id == request.message_id;
        let same = row.message_id == request.message_id
            && row.payload == request.payload
            && row.envelope == request.envelope;
        self.demand(!known || same, P3, || {
            format!("other key, bytes or headers: {}", what())
        })?;
        let closed = self.lives[request.life].closed.get(&request.channel);
        let recalled = closed.is_some_and(|it| mine && message.batch < *it);
        self.demand(!recalled, P2, || {
            format!("its channel got into trouble since: {}", what())
        })?;
        if mine && let Some(lane) = lane(row) {
            self.is_in_order(request, message, &lane)?;
        }
        self.open.insert(self.at, at.mono);
        if request.reached {
            self.arrived(request, mine)?;
        }
        Ok(())
    }

    /// Whoever is before it in its lane has been delivered, and nobody else of it is on the wire.
    fn is_in_order(
        &self,
        request: &Request,
        message: &super::Message,
        lane: &super::Lane,
    ) -> Checked {
        let batch = message.batch;
        for other in self.lanes[lane].range(..request.id) {
            let before = &self.messages[other];
            let row = &before.row;
            let fine = match row.status {
                Status::Sending => {
                    let told = self.told.get(&(*other, row.claims));
                    before.holder == message.holder && told == Some(&Told::Delivered)
                }
                // It was skipped then.
                Status::Dead => before.batch < batch,
                _ => before.revived > batch,
            };
            self.demand(fine, P4, || {
                format!("message {} goes out before {row:?}", request.id)
            })?;
        }
        for open in self.open.keys() {
            let What::Sent(other) = &self.history[*open].what else {
                continue;
            };
            if other.channel != request.channel || other.lane != request.lane {
                continue;
            }
            let there = &self.messages[&other.id];
            let held = there.row.status == Status::Sending
                && there.row.claims == other.claims
                && there.holder == Some(other.life);
            self.demand(!held, P4, || {
                format!(
                    "{} and {} of one lane are on the wire",
                    other.id, request.id
                )
            })?;
        }
        Ok(())
    }

    /// The receiver's view: first arrivals in enqueue order, and nothing twice without a reason.
    fn arrived(&mut self, request: &Request, mine: bool) -> Checked {
        let name = (request.id, request.message_id.clone());
        if let Some(lane) = lane(&self.messages[&request.id].row) {
            let unheard = self.unheard.entry(lane).or_default();
            let first = unheard.first().copied().unwrap_or(request.id);
            if unheard.contains(&request.id) && first < request.id {
                let id = request.id;
                return self.broken(P4, format!("{id} arrives before {first} ever did"));
            }
            if request.accepted {
                unheard.remove(&request.id);
            }
        }
        if !request.accepted {
            return Ok(());
        }
        self.figures.count("accepted", 1);
        let misled = !mine && self.set_back;
        let taken = self.taken.entry(name).or_default();
        self.figures.count("repeated", u64::from(!taken.is_empty()));
        let settled = |it: &Taken| !it.excused && it.life != request.life;
        let again = taken
            .iter()
            .any(|it| settled(it) || it.claims == request.claims);
        taken.push(Taken {
            life: request.life,
            claims: request.claims,
            excused: misled,
        });
        self.demand(!again || misled, P3, || {
            format!(
                "message {} was taken already, and its answer not lost",
                request.id
            )
        })
    }

    pub(super) fn answered(&mut self, at: usize, told: Told) {
        self.open.remove(&at);
        let What::Sent(request) = &self.history[at].what else {
            return;
        };
        self.told.insert((request.id, request.claims), told);
        self.lives[request.life].told.push((at, told));
        let name = (request.id, request.message_id.clone());
        if told == Told::Delivered {
            self.delivered.entry(name).or_default().push(request.claims);
        } else if request.accepted {
            self.figures.count("answers lost", 1);
            for it in self.taken.get_mut(&name).into_iter().flatten() {
                it.excused |= it.claims == request.claims;
            }
        }
    }
}
