//! Reads the history of one life, and says which promise it breaks, and where.
//!
//! It follows the file by its journal, and the receiver by its requests, and knows nothing of what
//! the drains remember. What it demands is exact wherever the promise is: a repetition needs its
//! reason, a charge its delivery, a claim that is taken back a holder that is gone.

mod batch;
mod doubt;
mod end;
mod figures;
mod file;
mod wire;

use std::collections::{BTreeMap, BTreeSet, HashMap};

pub(super) use figures::Figures;

use super::history::{Change, Channel, Enqueue, Event, Heard, Row, Status, Told, What, Who};

/// What was set for this life.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) workers: usize,
    pub(super) prefetch: usize,
    pub(super) run_length: usize,
    pub(super) brake: i64,
    pub(super) max_attempts: i64,
    pub(super) min_dead_age: i64,
    /// Whether the application has a hook, without which deliveries are recorded together.
    pub(super) hook: bool,
}

/// A broken promise.
#[derive(Debug, Clone)]
pub(super) struct Violation {
    pub(super) promise: &'static str,
    pub(super) event: usize,
    pub(super) text: String,
}

type Checked = Result<(), Violation>;

/// A message, and what is to be remembered of it.
#[derive(Debug, Clone)]
struct Message {
    row: Row,
    /// Which life claimed it last, and in which event.
    holder: Option<usize>,
    batch: usize,
    /// When a person put it back last, in events.
    revived: usize,
    /// Budgets of attempts it had, and the wall time of the present one's first charge.
    budgets: i64,
    first_charge: Option<i64>,
}

/// A drain as it looks from outside.
#[derive(Debug, Clone, Default)]
struct Life {
    born: i64,
    /// When it last turned a cycle that could write, on the monotonic clock.
    turned: i64,
    /// A write failed, and none has succeeded since.
    failing: bool,
    ended: bool,
    /// What its calls were told and no commit has shown yet: the request.
    told: Vec<(usize, Told)>,
    watch: doubt::Watch,
    /// In which event it last wrote that a channel got into other trouble.
    closed: HashMap<String, usize>,
}

/// A request that the receiver took.
#[derive(Debug, Clone, Copy)]
struct Taken {
    life: usize,
    claims: i64,
    excused: bool,
}

type Lane = (String, String);

/// The model.
pub(super) struct Checker<'a> {
    rules: &'a Rules,
    history: &'a [Event],
    /// The event that is looked at.
    at: usize,
    messages: BTreeMap<i64, Message>,
    keys: HashMap<(String, String), i64>,
    /// Those of each lane that are neither sent, expired nor cancelled.
    lanes: HashMap<Lane, BTreeSet<i64>>,
    /// Those that must arrive before any later one of their lane: never taken, never taken out.
    unheard: HashMap<Lane, BTreeSet<i64>>,
    channels: HashMap<String, Channel>,
    /// Whether the last probe of a channel in trouble was a message that had been tried before.
    probes: HashMap<String, bool>,
    lives: Vec<Life>,
    /// What each life has claimed.
    held: HashMap<usize, BTreeSet<i64>>,
    /// Requests on the wire.
    open: BTreeMap<usize, i64>,
    told: HashMap<(i64, i64), Told>,
    /// The claims under which a receiver answered that it took a message, by its key.
    delivered: HashMap<(i64, String), Vec<i64>>,
    taken: HashMap<(i64, String), Vec<Taken>>,
    /// The wall clock went back at some time, in events.
    set_back: bool,
    last_wall: i64,
    figures: Figures,
}

impl<'a> Checker<'a> {
    pub(super) fn new(rules: &'a Rules, history: &'a [Event]) -> Self {
        Self {
            rules,
            history,
            at: 0,
            messages: BTreeMap::new(),
            keys: HashMap::new(),
            lanes: HashMap::new(),
            unheard: HashMap::new(),
            channels: HashMap::new(),
            probes: HashMap::new(),
            lives: Vec::new(),
            held: HashMap::new(),
            open: BTreeMap::new(),
            told: HashMap::new(),
            delivered: HashMap::new(),
            taken: HashMap::new(),
            set_back: false,
            last_wall: 0,
            figures: Figures::default(),
        }
    }

    /// Follows the history to its end.
    pub(super) fn follow(&mut self) -> Checked {
        let history = self.history;
        for (at, event) in history.iter().enumerate() {
            self.at = at;
            self.set_back |= event.at.wall < self.last_wall;
            self.last_wall = event.at.wall;
            self.see(event)?;
        }
        Ok(())
    }

    pub(super) fn figures(self) -> Figures {
        self.figures
    }

    fn broken<T>(&self, promise: &'static str, text: impl Into<String>) -> Result<T, Violation> {
        Err(Violation {
            promise,
            event: self.at,
            text: text.into(),
        })
    }

    fn demand(&self, holds: bool, promise: &'static str, text: impl FnOnce() -> String) -> Checked {
        match holds {
            true => Ok(()),
            false => self.broken(promise, text()),
        }
    }

    fn see(&mut self, event: &'a Event) -> Checked {
        match (&event.what, event.who) {
            (What::Born, _) => {
                self.lives.push(Life {
                    born: event.at.mono,
                    turned: event.at.mono,
                    watch: doubt::Watch::new(event.at),
                    ..Life::default()
                });
                Ok(())
            }
            (What::Cycle(wrote), Who::Life(life)) => {
                self.figures.count("cycles", 1);
                self.figures.count("commits failed", u64::from(!wrote));
                self.lives[life].watch.observe(event.at);
                let it = &mut self.lives[life];
                it.failing |= !wrote;
                // While it waits after a failed write, a cycle is no chance to renew a lease.
                if !it.failing {
                    it.turned = event.at.mono;
                }
                Ok(())
            }
            (What::Crashed, Who::Life(life)) => {
                self.figures.count("crashes", 1);
                self.end_life(life);
                Ok(())
            }
            (What::Stopped, Who::Life(life)) => {
                self.figures.count("stops", 1);
                let kept = self.claimed_by(life);
                self.end_life(life);
                self.demand(kept == 0, P1, || {
                    format!("life {life} stopped and kept {kept} claims")
                })
            }
            (What::Abandoned, Who::Life(life)) => {
                self.figures.count("calls abandoned", 1);
                self.nobody_hears(life);
                Ok(())
            }
            (What::Changed(changes), who) => self.changed(changes, who),
            (What::Enqueued(told, committed), _) => self.enqueued(told, *committed),
            (What::Sent(request), _) => self.sent(request),
            (What::Answered(request, told), _) => {
                self.answered(*request, *told);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// How much a life has claimed, but for what it lost to a call that ran on for too long, or when
    /// the clock went far back.
    fn claimed_by(&self, life: usize) -> usize {
        let now = self.history[self.at].at.now();
        let lease = |id: &i64| self.messages[id].row.due;
        let alive = |id: &&i64| {
            (now + 1..=now + file::HORIZON).contains(&lease(id))
                && !self.runs_on(life, &self.messages[*id].row)
        };
        let held = self.held.get(&life);
        held.map_or(0, |ids| ids.iter().filter(alive).count())
    }

    fn end_life(&mut self, life: usize) {
        self.nobody_hears(life);
        self.lives[life].ended = true;
        self.lives[life].told.clear();
        self.held.remove(&life);
    }

    /// What a life was told and has not recorded, or will be told, is lost with it.
    fn nobody_hears(&mut self, life: usize) {
        let history = self.history;
        self.open
            .retain(|request, _| match &history[*request].what {
                What::Sent(it) => it.life != life,
                _ => true,
            });
        for ((id, _), taken) in &mut self.taken {
            let recorded = self.messages[id].row.status == Status::Sent;
            for it in taken.iter_mut().filter(|it| it.life == life) {
                it.excused |= !recorded;
            }
        }
    }

    /// What the application was told is what is in the file.
    fn enqueued(&mut self, told: &[Enqueue], committed: bool) -> Checked {
        if !committed {
            self.figures.count("rolled back", told.len() as u64);
            let wrote = self.at > 0
                && matches!(
                    &self.history[self.at - 1],
                    Event {
                        who: Who::App,
                        what: What::Changed(_),
                        ..
                    }
                );
            return self.demand(!wrote, P1, || "a rolled back sale left something".into());
        }
        let mut new = 0;
        for (index, it) in told.iter().enumerate() {
            let name = (it.channel.to_owned(), it.key.clone());
            let holder = self.keys.get(&name).copied();
            self.demand(holder == Some(it.id), P1, || {
                format!("{it:?} was committed; its key belongs to {holder:?}")
            })?;
            new += u64::from(it.heard == Heard::New);
            // What the message held at that moment: the same transaction may have written it before,
            // and have replaced it since.
            let (before, after) = (&told[..index], &told[index + 1..]);
            let wrote = |other: &&Enqueue| {
                other.id == it.id && matches!(other.heard, Heard::New | Heard::Replaced)
            };
            let held = match before.iter().rfind(wrote) {
                Some(other) => Some(other.payload.as_bytes()),
                None if after.iter().any(|other| wrote(&other)) => None,
                None => Some(self.messages[&it.id].row.payload.as_slice()),
            };
            let row = &self.messages[&it.id].row;
            if wrote(&it) && !after.iter().any(|other| wrote(&other)) {
                let asked = it.times == [row.available, row.expires]
                    && it.envelope == row.envelope
                    && it.payload.as_bytes() == row.payload
                    && it.lane == row.lane
                    && (it.channel, &it.key) == (&row.channel, &row.key);
                self.demand(asked, P1, || format!("{it:?} was asked for: {row:?}"))?;
            }
            if it.heard == Heard::Same
                && let Some(held) = held
            {
                self.demand(held == it.payload.as_bytes(), P3, || {
                    format!("{it:?} has other content than message {}", it.id)
                })?;
            }
        }
        self.figures.count("enqueued", new);
        self.figures.count("duplicates", told.len() as u64 - new);
        Ok(())
    }

    fn changed(&mut self, changes: &'a [Change], who: Who) -> Checked {
        if let Who::Life(life) = who {
            self.lives[life].watch.observe(self.history[self.at].at);
        }
        let batch = self.apply(changes, who)?;
        if let Who::Life(life) = who {
            self.figures.count("commits", 1);
            self.lives[life].failing = false;
            let heard = self.judge_reports(life, changes, &batch)?;
            self.judge_claims(life, &batch, &heard)?;
        }
        for change in changes {
            if let Change::Channel(name, state) = change {
                self.closes(name, state, who);
                self.channels.insert(name.clone(), state.clone());
                if state.state == "ok" {
                    self.probes.remove(name);
                }
            }
        }
        self.judge_lanes(changes)
    }
}

/// Nothing committed is lost; nothing rolled back is sent; nothing is sent after its time.
const P1: &str = "P1";
/// No outage kills a message.
const P2: &str = "P2";
/// At least once, and recognisably so; exactly once without a reason for more.
const P3: &str = "P3";
/// Order per key.
const P4: &str = "P4";
/// Bounded.
const P6: &str = "P6";
