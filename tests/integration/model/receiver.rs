//! The receiver: it rolls dice for its answers, and checks whatever arrives.

use std::time::Duration;

use sqlite_outbox::{Delivery, Dispatcher, Failure, Outcome, Receipt};

use super::game::{Game, UNROUTED};
use super::rules::{self, Row};

/// A call of one of the two drains that has not returned.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) who: usize,
    pub(super) id: i64,
    pub(super) claims: i64,
}

/// Thrown through a drain: it ends there, with all that it knew.
pub(super) struct PowerCut;

/// What one drain sends to.
pub(super) struct Receiver<'a> {
    pub(super) game: &'a Game,
    pub(super) who: usize,
}

impl Dispatcher for Receiver<'_> {
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        let game = self.game;
        self.check(delivery);
        let call = Call {
            who: self.who,
            id: delivery.id,
            claims: i64::from(delivery.attempt),
        };
        game.state().wire.push(call);
        if game.roll(4) && !game.is_calm() {
            game.meanwhile();
        }
        if game.one_in(200) && !game.is_calm() {
            game.note(format!(
                "  power cut of {} at message {}",
                self.who, delivery.id
            ));
            std::panic::resume_unwind(Box::new(PowerCut));
        }
        let outcome = self.answer();
        let mut state = game.state();
        state.wire.pop();
        let delivered = matches!(outcome, Ok(Outcome::Delivered(_)));
        let what = if delivered { "delivered" } else { "failed" };
        state.note(format!(
            "  {} sent message {}: {what}",
            self.who, delivery.id
        ));
        state.run.push((self.who, delivery.id, delivered));
        if delivered {
            let claimed = state.claimed[self.who];
            let name = (delivery.id, delivery.message_id.clone());
            state.delivered.insert(name, (self.who, claimed));
            state.figures.delivered += 1;
            let channel = delivery.channel.clone();
            state.charges.entry(channel).or_default().0 += 1;
        } else {
            state.failed.insert(delivery.id);
        }
        outcome
    }

    fn serves(&self, channel: &str) -> bool {
        channel != UNROUTED
    }
}

impl Receiver<'_> {
    fn answer(&self) -> anyhow::Result<Outcome> {
        let game = self.game;
        let dice = match game.is_calm() {
            true => 0,
            false => game.state().rng.below(100),
        };
        let status = |code: u16| Failure::new("http", format!("status {code}")).status(code);
        Ok(match dice {
            0..64 => {
                let n = game.state().figures.delivered;
                Outcome::Delivered(Receipt::with_id(format!("INV-{n}")).answer("{}"))
            }
            64..75 => Outcome::Retry(status(500)),
            75..78 => Outcome::Retry(status(503).after(Duration::from_secs(5))),
            78..88 => Outcome::Rejected(status(422)),
            88..93 => Outcome::unreachable("no route to host"),
            93..96 => Outcome::unauthorised("who are you"),
            96..98 => Outcome::Blocked(Failure::new("portal", "log in to Wi-Fi")),
            _ => anyhow::bail!("nobody knows"),
        })
    }

    /// Everything that must be true of a message at the moment it arrives.
    fn check(&self, delivery: &Delivery) {
        let game = self.game;
        let (rows, holds, paused) = {
            let conn = game.sql();
            let channel = &delivery.channel;
            (
                rules::rows(&conn),
                rules::holds(&conn, channel),
                rules::paused(&conn, channel),
            )
        };
        let mut state = game.state();
        let claimed = state.claimed[self.who];
        let id = delivery.id;
        let claims = i64::from(delivery.attempt);
        let since = |ticks: Option<&u64>| ticks.is_some_and(|it| *it > claimed.tick);
        let what = format!("drain {}: {delivery:?}", self.who);
        state.figures.sent += 1;
        assert!(
            state.claims.insert((id, claims)),
            "one claim was sent twice; {what}"
        );
        assert!(delivery.channel != UNROUTED, "nobody serves it; {what}");
        if paused {
            assert!(
                since(state.paused.get(&delivery.channel)),
                "it is paused; {what}"
            );
        }
        let bytes = state.bytes.entry(delivery.message_id.clone());
        let bytes = bytes.or_insert_with(|| (id, delivery.payload.clone()));
        assert_eq!(
            *bytes,
            (id, delivery.payload.clone()),
            "other bytes; {what}"
        );

        // Whether its claim may have passed on meanwhile: a lease is 30 s.
        let lapsed = game.has_lapsed(&state, claimed);
        if let Some(row) = rows.get(&id) {
            assert!(row.claims >= claims, "the fence went back; {what}");
            let touched = since(state.touched.get(&id));
            let mine = row.claims == claims && row.status == "sending";
            assert!(
                mine || touched || lapsed,
                "it is not claimed: {row:?}; {what}"
            );
            if row.message_id == delivery.message_id {
                assert_eq!(row.payload, delivery.payload, "{what}");
            }
            if !touched {
                // Its time had come once; then the clock was set back.
                let again = claims > 1 && game.was_set_back(&state);
                let due = again || row.available.is_none_or(|it| it <= claimed.wall);
                assert!(due, "before its time {row:?}; {what}");
                let over = row.expires.is_some_and(|it| it <= claimed.wall);
                assert!(!over, "after its time {row:?}; {what}");
            }
        }
        let name = (id, delivery.message_id.clone());
        if let Some((who, former)) = state.delivered.get(&name).copied() {
            let excused = state.lives[who] > former.life
                || game.has_lapsed(&state, former)
                || state.put_back.get(&id).is_some_and(|it| *it > former.tick);
            assert!(excused, "it had arrived, and nobody crashed; {what}");
            state.figures.replays += 1;
        }
        if delivery.ordering_key.is_some() {
            let me = rows.get(&id).cloned();
            let me = me.unwrap_or_else(|| place(delivery));
            let first = !state.arrived.contains(&delivery.message_id);
            for (other, row) in rows.range(..id).filter(|(_, row)| row.same_lane(&me)) {
                if since(state.put_back.get(other)) || since(state.touched.get(other)) {
                    continue;
                }
                let before = match row.status.as_str() {
                    "sending" => state.run.contains(&(self.who, *other, true)),
                    "pending" | "waiting" => !first && lapsed,
                    "dead" => {
                        !holds || since(state.held.get(&delivery.channel)) || !first && lapsed
                    }
                    _ => true,
                };
                assert!(before, "it overtook {other} {row:?}; {what}");
            }
            for call in state.wire.iter().filter(|call| call.id != id) {
                let Some(row) = rows.get(&call.id).filter(|row| row.same_lane(&me)) else {
                    continue;
                };
                let theirs = row.status == "sending" && row.claims == call.claims;
                let over = game.has_lapsed(&state, state.claimed[call.who]);
                assert!(!theirs || over, "{call:?} is under way; {what}");
            }
        }
        state.arrived.insert(delivery.message_id.clone());
    }
}

/// Where a message stood whose row is gone.
fn place(delivery: &Delivery) -> Row {
    Row {
        channel: delivery.channel.clone(),
        status: "gone".into(),
        claims: 0,
        attempts: 0,
        lane: delivery.ordering_key.clone(),
        message_id: delivery.message_id.clone(),
        key: delivery.dedupe_key.clone(),
        available: None,
        expires: None,
        settled: None,
        payload: delivery.payload.clone(),
    }
}
