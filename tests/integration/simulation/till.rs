//! One machine: a file, a clock, and the processes that drain it, stepped by hand.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::testing::{Call, Inline, ManualClock};
use sqlite_outbox::{Clock, Error, Outbox, Settings};
use tempfile::TempDir;

use super::checker::Rules;
use super::fuse::{Cut, Fuse, Hands, Routes};
use super::history::{self, At, Envelope, Event, JOURNAL, Request, SALES, What, Who};
use super::world::{Plan, World, outcome};
use crate::fixture::{Rng, folder_in_memory};

pub(super) const START: i64 = 1_800_000_000_000;
/// A pump looks at least this often while something is under way.
const WATCH: i64 = 500;
/// A process that is told to stop waits this long for its calls.
const GRACE: i64 = 5_000;

/// A message on the wire.
struct Open {
    call: Call,
    request: usize,
    plan: Plan,
    done: i64,
}

/// A process that drains.
pub(super) struct Process {
    pub(super) life: usize,
    fuse: Fuse,
    drain: Inline,
    open: Vec<Open>,
    /// Monotonic: when its next cycle is due; until when it hangs, and when its grace is over.
    due: i64,
    pub(super) hangs_until: i64,
    /// Workers that have told all of a run return no sooner.
    returns_at: i64,
    grace: Option<i64>,
}

/// The machine.
pub(super) struct Till {
    _folder: TempDir,
    path: PathBuf,
    pub(super) clock: ManualClock,
    /// How the wall clock goes, in percent of the monotonic one.
    pub(super) pace: i64,
    pub(super) sql: Connection,
    pub(super) shop: Outbox,
    pub(super) processes: Vec<Process>,
    lives: usize,
    pub(super) settings: Settings,
    workers: usize,
    hook: bool,
    pub(super) world: World,
    pub(super) history: Vec<Event>,
    seen: i64,
}

/// An empty till, made once.
fn template(wal: bool) -> &'static [u8] {
    static FILES: [OnceLock<Vec<u8>>; 2] = [OnceLock::new(), OnceLock::new()];
    FILES[usize::from(wal)].get_or_init(|| {
        let folder = folder_in_memory();
        let path = folder.path().join("till.db");
        let mode = if wal { "WAL" } else { "DELETE" };
        let conn = Connection::open(&path).unwrap();
        conn.pragma_update(None, "journal_mode", mode).unwrap();
        // The file is the application's, so it keeps its mode.
        conn.execute_batch(SALES).unwrap();
        drop(Outbox::open(&path).unwrap());
        conn.execute_batch(JOURNAL).unwrap();
        drop(conn);
        std::fs::read(&path).unwrap()
    })
}

fn open(path: &Path, clock: Arc<dyn Clock>, hook: bool) -> Outbox {
    let options = Outbox::options().clock(clock);
    let options = match hook {
        true => options.on_delivered(|conn, it, _| {
            let sql = "INSERT INTO ledger (message) VALUES (?1)";
            conn.prepare_cached(sql)?.execute([it.id])?;
            Ok(())
        }),
        false => options,
    };
    options.open(path).unwrap()
}

impl Till {
    pub(super) fn new(dice: &mut Rng, wal: bool, settings: Settings, rules: &Rules) -> Self {
        let folder = folder_in_memory();
        let path = folder.path().join("till.db");
        std::fs::write(&path, template(wal)).unwrap();
        let clock = ManualClock::at(START);
        let sql = Connection::open(&path).unwrap();
        let mut till = Self {
            shop: open(&path, clock.shared(), rules.hook),
            _folder: folder,
            path,
            clock,
            pace: 100,
            sql,
            processes: Vec::new(),
            lives: 0,
            settings,
            workers: rules.workers,
            hook: rules.hook,
            world: World::new(),
            history: Vec::new(),
            seen: 0,
        };
        for _ in 0..=dice.below(3) {
            till.start(dice);
        }
        till
    }

    pub(super) fn mono(&self) -> i64 {
        i64::try_from(self.clock.monotonic().as_millis()).unwrap()
    }

    pub(super) fn note(&mut self, who: Who, what: What) {
        let at = At {
            wall: self.clock.now(),
            mono: self.mono(),
        };
        self.history.push(Event { at, who, what });
    }

    /// Notes what was committed since, which `who` must have done.
    pub(super) fn read_on(&mut self, who: Who) {
        let changes = history::read_on(&self.sql, &mut self.seen);
        if !changes.is_empty() {
            self.note(who, What::Changed(changes));
        }
    }

    pub(super) fn start(&mut self, dice: &mut Rng) {
        let fuse = Fuse::default();
        let hands = Hands {
            clock: self.clock.clone(),
            fuse: fuse.clone(),
        };
        let outbox = open(&self.path, Arc::new(hands), self.hook);
        let drain = Inline::new(&outbox, self.settings.clone()).unwrap();
        let life = self.lives;
        self.lives += 1;
        self.processes.push(Process {
            life,
            fuse,
            drain: drain.seeded(dice.next()),
            open: Vec::new(),
            due: self.mono(),
            hangs_until: 0,
            returns_at: 0,
            grace: None,
        });
        self.note(Who::Life(life), What::Born);
    }

    /// It ends there, with all that it knew; another takes its place.
    pub(super) fn crash(&mut self, process: usize, dice: &mut Rng) {
        let life = self.processes.swap_remove(process).life;
        self.note(Who::Life(life), What::Crashed);
        self.start(dice);
    }

    pub(super) fn stop(&mut self, process: usize) {
        let until = self.mono() + GRACE;
        let process = &mut self.processes[process];
        if process.grace.is_none() {
            process.drain.stop();
            process.grace = Some(until);
            process.due = until - GRACE;
            let who = Who::Life(process.life);
            self.note(who, What::Note("is told to stop".into()));
        }
    }

    pub(super) fn wake(&mut self, process: usize) {
        self.processes[process].drain.wake();
        self.processes[process].due = self.mono();
        let who = Who::Life(self.processes[process].life);
        self.note(who, What::Note("is woken".into()));
    }

    /// One cycle of a process, which a lit fuse ends before its end.
    pub(super) fn cycle(&mut self, process: usize, fuse: Option<i64>, dice: &mut Rng) {
        let now = self.mono();
        let it = &mut self.processes[process];
        let who = Who::Life(it.life);
        let routes = Routes(it.fuse.clone());
        it.fuse.light(fuse.unwrap_or(0));
        let done = catch_unwind(AssertUnwindSafe(|| it.drain.cycle(&routes)));
        it.fuse.light(0);
        let cycle = match done {
            Ok(Ok(step)) => {
                let wait = i64::try_from(step.wait.as_millis()).unwrap().max(1);
                it.due = now + wait;
                Some(true)
            }
            Ok(Err(Error::Busy(_))) => {
                it.due = now + 20;
                Some(false)
            }
            Ok(Err(error)) => panic!("{error:?}"),
            Err(thrown) if thrown.is::<Cut>() => None,
            Err(thrown) => resume_unwind(thrown),
        };
        let over = it.grace.is_some() && it.drain.is_empty();
        if let Some(wrote) = cycle {
            self.note(who, What::Cycle(wrote));
        }
        self.read_on(who);
        if cycle.is_none() {
            self.crash(process, dice);
        } else if over {
            self.processes.swap_remove(process);
            self.note(who, What::Stopped);
            self.start(dice);
        }
    }

    pub(super) fn hangs(&self, process: usize) -> bool {
        self.processes[process].hangs_until > self.mono()
    }

    /// A free worker takes the next message; false when there is none or no worker.
    pub(super) fn begin(&mut self, process: usize, dice: &mut Rng) -> bool {
        let now = self.mono();
        let it = &mut self.processes[process];
        if it.open.len() >= self.workers {
            return false;
        }
        let Some(call) = it.drain.begin() else {
            return false;
        };
        let sent = &call.delivery;
        let plan = self.world.receive(&sent.channel, &sent.payload, now, dice);
        let request = Request {
            life: it.life,
            id: sent.id,
            claims: i64::from(sent.attempt),
            channel: sent.channel.clone(),
            lane: sent.ordering_key.clone(),
            message_id: sent.message_id.clone(),
            payload: sent.payload.clone(),
            envelope: Envelope {
                event_type: sent.event_type.clone(),
                recipient: sent.recipient.clone(),
                principal: sent.principal.clone(),
                content_type: sent.content_type.clone(),
                headers: sent.headers.clone(),
            },
            reached: plan.reached,
            accepted: plan.accepted,
        };
        let who = Who::Life(it.life);
        it.open.push(Open {
            call,
            request: self.history.len(),
            plan,
            done: now + plan.lasts,
        });
        self.note(who, What::Sent(Box::new(request)));
        true
    }

    /// A call that has taken its time returns; false when there is none.
    pub(super) fn end(&mut self, process: usize, dice: &mut Rng) -> bool {
        let now = self.mono();
        let it = &mut self.processes[process];
        let over: Vec<usize> = (0..it.open.len())
            .filter(|at| it.open[*at].done <= now)
            .collect();
        if over.is_empty() {
            // Often after a cycle or two.
            return it.returns_at <= now && dice.percent(25) && it.drain.finish() > 0;
        }
        let open = it
            .open
            .swap_remove(over[dice.below(over.len() as i64) as usize]);
        let sent = &open.call.delivery;
        let answer = outcome(open.plan.told, sent.id, i64::from(sent.attempt));
        match dice.below(2) {
            0 => {
                it.drain.settle(open.call, answer);
                if dice.percent(2) {
                    it.returns_at = now + dice.below(600_000);
                }
            }
            _ => it.drain.end(open.call, answer),
        }
        // The first report rings, and a few milliseconds later the pump has heard the others.
        it.due = it.due.min(now + 5);
        let who = Who::Life(it.life);
        self.note(who, What::Answered(open.request, open.plan.told));
        true
    }

    /// All that the workers of a process can do at this moment.
    fn work_off(&mut self, process: usize, dice: &mut Rng) {
        while self.end(process, dice) || self.begin(process, dice) {}
    }

    /// Both clocks go on.
    fn advance(&mut self, span: i64) {
        self.clock
            .advance(Duration::from_millis(span.unsigned_abs()));
        self.clock.jump(span * (self.pace - 100) / 100);
    }

    /// Time passes, and every process that does not hang does what is due in it.
    pub(super) fn pass(&mut self, span: i64, dice: &mut Rng) {
        let end = self.mono() + span;
        loop {
            let now = self.mono();
            for process in 0..self.processes.len() {
                if self.hangs(process) {
                    continue;
                }
                self.work_off(process, dice);
                if self.processes[process].grace.is_some_and(|it| it <= now) {
                    self.give_up(process);
                }
                if self.processes[process].due <= now {
                    self.cycle(process, None, dice);
                }
            }
            if now >= end {
                return;
            }
            let next = self.processes.iter().map(|it| it.next(now)).min();
            let next = next.unwrap_or(end).clamp(now + 1, end);
            self.advance(next - now);
        }
    }

    /// Time passes at once, while nothing is under way.
    pub(super) fn leap(&mut self, span: i64, dice: &mut Rng) {
        self.advance(span);
        self.pass(1, dice);
    }

    /// The grace of a stop is over: what is on the wire is given back.
    fn give_up(&mut self, process: usize) {
        let it = &mut self.processes[process];
        if !it.open.is_empty() {
            it.open.clear();
            it.drain.abandon();
            let who = Who::Life(it.life);
            self.note(who, What::Abandoned);
        }
    }

    /// Everything that is claimed by anyone.
    pub(super) fn is_busy(&self) -> bool {
        self.processes.iter().any(|it| !it.drain.is_empty())
    }

    pub(super) fn begin_calm(&mut self) {
        self.world.calm();
        self.pace = 100;
        for it in &mut self.processes {
            (it.hangs_until, it.returns_at) = (0, 0);
        }
        self.note(
            Who::World,
            What::Note("everything works from now on".into()),
        );
    }
}

impl Process {
    /// When it next does something, on the monotonic clock.
    fn next(&self, now: i64) -> i64 {
        if self.hangs_until > now {
            return self.hangs_until;
        }
        let watch = match self.drain.is_empty() {
            true => i64::MAX,
            false => now + WATCH,
        };
        let calls = self.open.iter().map(|it| it.done.max(now + 1));
        calls
            .fold(self.due.min(watch), i64::min)
            .min(self.grace.unwrap_or(i64::MAX).max(now + 1))
    }
}
