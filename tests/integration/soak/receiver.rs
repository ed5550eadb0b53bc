//! A receiver of random moods that keeps a ledger of what it took.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;

use crate::fixture::{Rng, nap};
use crate::server::{Answer, Seen, Server, ok, respond};

/// How the receiver takes what comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    Ok,
    Busy,
    /// Nobody listens.
    Refuse,
    Slow,
    Unauthorised,
    /// Rejects whatever comes.
    Reject,
    /// Someone else answers: 200 and a page.
    Captive,
    /// Takes it, and the line breaks before the answer.
    Lost,
}

impl Mood {
    pub(super) fn bad(dice: &mut Rng) -> Self {
        match dice.below(7) {
            0 => Self::Busy,
            1 => Self::Refuse,
            2 => Self::Slow,
            3 => Self::Unauthorised,
            4 => Self::Reject,
            5 => Self::Captive,
            _ => Self::Lost,
        }
    }
}

/// What arrived, and what was said to it.
pub(super) struct Ledger {
    mood: Mood,
    dice: Rng,
    pub(super) moods: u64,
    pub(super) requests: u64,
    /// Sales that were taken, and how often.
    pub(super) taken: BTreeMap<u64, u64>,
    pub(super) rejected: BTreeSet<u64>,
    /// Of these, how often the sender does not know, or may not.
    unheard: BTreeMap<u64, u64>,
    /// What was taken last over each connection. Its answer has arrived for certain when the next request comes.
    last: BTreeMap<usize, u64>,
    /// Taken, and the line broken before the answer.
    pub(super) lost_answers: u64,
    /// How often the server went away under open connections.
    pub(super) hung_up: u64,
    /// Taken last over a line, or after that, when the server went away.
    pub(super) cut: u64,
    arrived: BTreeSet<u64>,
    newest: BTreeMap<String, u64>,
    /// Sales that first arrived after a later one of their key.
    pub(super) out_of_order: Vec<u64>,
}

impl Ledger {
    fn arrive(&mut self, sale: u64, key: Option<&str>) {
        self.requests += 1;
        let (true, Some(key)) = (self.arrived.insert(sale), key) else {
            return;
        };
        let newest = self.newest.entry(key.to_owned()).or_default();
        if *newest > sale {
            self.out_of_order.push(sale);
        }
        *newest = sale;
    }

    fn take(&mut self, sale: u64, connection: usize) {
        *self.taken.entry(sale).or_default() += 1;
        match self.mood {
            Mood::Lost => {
                self.lost_answers += 1;
                self.unheard_of(sale);
            }
            // The server is going away.
            Mood::Refuse => self.cut_off(sale),
            _ => drop(self.last.insert(connection, sale)),
        }
    }

    fn unheard_of(&mut self, sale: u64) {
        *self.unheard.entry(sale).or_default() += 1;
    }

    fn cut_off(&mut self, sale: u64) {
        self.cut += 1;
        self.unheard_of(sale);
    }

    fn turn(&mut self, mood: Mood) {
        self.mood = mood;
        self.moods += 1;
        if mood == Mood::Refuse {
            self.hung_up += 1;
            let last = std::mem::take(&mut self.last);
            last.into_values().for_each(|sale| self.cut_off(sale));
        }
    }

    /// Sales that came again more often than the sender had not heard of them.
    pub(super) fn repeated_for_nothing(&self) -> Vec<u64> {
        let unheard = |sale| self.unheard.get(sale).copied().unwrap_or_default();
        let taken = self.taken.iter();
        let repeated = taken.filter(|(sale, times)| **times - 1 > unheard(sale));
        repeated.map(|(sale, _)| *sale).collect()
    }

    fn reject(&mut self, sale: u64) -> Answer {
        self.rejected.insert(sale);
        respond(422, &[], "no such article")
    }
}

/// Serves, or does not, as its mood is.
pub(super) struct Erp {
    port: u16,
    ledger: Arc<Mutex<Ledger>>,
    server: Mutex<Option<Server>>,
}

impl Erp {
    pub(super) fn new(seed: u64) -> Self {
        let ledger = Ledger {
            mood: Mood::Ok,
            dice: Rng(!seed),
            moods: 0,
            requests: 0,
            taken: BTreeMap::new(),
            rejected: BTreeSet::new(),
            unheard: BTreeMap::new(),
            last: BTreeMap::new(),
            lost_answers: 0,
            hung_up: 0,
            cut: 0,
            arrived: BTreeSet::new(),
            newest: BTreeMap::new(),
            out_of_order: Vec::new(),
        };
        let erp = Self {
            port: quiet_port(),
            ledger: Arc::new(Mutex::new(ledger)),
            server: Mutex::default(),
        };
        erp.turn(Mood::Ok);
        erp
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/sales", self.port)
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    pub(super) fn turn(&self, mood: Mood) {
        self.ledger().turn(mood);
        let mut server = self.server.lock().unwrap();
        if mood == Mood::Refuse {
            server.take();
        } else if server.is_none() {
            let ledger = self.ledger.clone();
            *server = Some(Server::at(self.port, move |seen| answer(&ledger, seen)));
        }
    }
}

/// Changes the receiver's mood: bad and good by turns, bad ones shorter.
pub(super) struct Weather {
    dice: Rng,
    bad: bool,
    until: Duration,
    /// In an hour, moods last for 5 to 60 seconds; in a short run, down to a fortieth of that.
    share_of_hour: u64,
}

impl Weather {
    pub(super) fn new(seed: u64, seconds: u64) -> Self {
        Self {
            dice: Rng(seed),
            bad: false,
            until: Duration::ZERO,
            share_of_hour: seconds.clamp(90, 3600),
        }
    }

    pub(super) fn pass(&mut self, now: Duration, erp: &Erp) {
        if now < self.until {
            return;
        }
        self.bad = !self.bad;
        let (mood, seconds) = match self.bad {
            true => (Mood::bad(&mut self.dice), 5 + self.dice.below(15)),
            false => (Mood::Ok, 20 + self.dice.below(40)),
        };
        erp.turn(mood);
        let seconds = seconds.unsigned_abs();
        self.until = now + Duration::from_millis(seconds * 1000 * self.share_of_hour / 3600);
    }
}

/// A port that is not among those which the system gives to whoever asks for any: nobody else may answer
/// while this receiver refuses.
fn quiet_port() -> u16 {
    let from = 20_000 + (std::process::id() % 10_000) as u16;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (from..32_000).find(free).unwrap()
}

fn answer(ledger: &Mutex<Ledger>, seen: &Seen) -> Answer {
    let body: Value = serde_json::from_slice(&seen.body).unwrap();
    let sale = body["sale"].as_u64().unwrap();
    let mut ledger = ledger.lock().unwrap();
    ledger.arrive(sale, body["key"].as_str());
    ledger.last.remove(&seen.connection);
    match ledger.mood {
        Mood::Busy => respond(503, &[("Retry-After", "1")], "later"),
        Mood::Unauthorised => respond(401, &[], "who are you?"),
        Mood::Captive => respond(
            200,
            &[("Content-Type", "text/html")],
            "<html>Buy an hour</html>",
        ),
        Mood::Reject => ledger.reject(sale),
        _ if sale.is_multiple_of(499) => ledger.reject(sale),
        Mood::Lost => {
            ledger.take(sale, seen.connection);
            Answer::SendAndClose(Vec::new())
        }
        Mood::Slow => {
            ledger.take(sale, seen.connection);
            let span = 20 + ledger.dice.below(280).unsigned_abs();
            drop(ledger);
            nap(span);
            ok()
        }
        Mood::Ok | Mood::Refuse => {
            ledger.take(sale, seen.connection);
            ok()
        }
    }
}
