//! The drain decides: what is claimed, what became of it, when to look again. It owns the store's
//! connection, the circuits and the dice, and starts no threads.
//!
//! One cycle is one transaction (see [`Drainer::cycle`]). Memory changes only after its commit.

mod chain;
mod claiming;
mod connection;
mod flight;
mod guard;
mod lease;
mod log;
mod look;
mod memory;
mod retention;
mod room;
mod rounds;
mod settling;
mod survey;
mod transact;
mod watch;
mod write;

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use crate::clock::{Clock, Dice, Instant, millis};
use crate::dispatch::{DeliveredHook, Dispatcher};
use crate::error::{Error, Result};
use crate::observer::Event;
use crate::settings::Settings;
use crate::store::place::Place;
use crate::store::{channel, upkeep};

pub(crate) use chain::{Chain, Follow};
use connection::Manners;
pub(crate) use flight::{ClaimedRun, Report, Told};
pub(crate) use lease::Lease;
use log::Log;
use look::Seen;
use memory::{Memory, Pull};
use retention::Retention;
pub(crate) use settling::panic_text;
use survey::Survey;
use watch::{ClockWatch, Repair};

/// A cycle waits this long after the first report for others to come.
const LINGER: Duration = Duration::from_millis(5);
/// After a failed write; busy is no failure and tried again after [`LINGER`].
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// A look whose finds could not be taken is not repeated sooner.
const BARREN: Duration = Duration::from_millis(100);
/// How often everything is looked at, the clock and leases too, while nothing seems to happen.
const WATCH: Duration = Duration::from_millis(500);
/// How long a delivery may stay unsynced with `SettleSync::Normal`.
const SYNC_WITHIN: Duration = Duration::from_secs(1);
/// Channels looked at per cycle.
const CHANNELS: usize = 256;
/// When someone wrote while more channels than that were looked at, it begins again after this.
const AGAIN: Duration = Duration::from_millis(100);
/// Rows per transaction, most and least.
const BATCH: usize = 64;
const BATCH_MIN: usize = 16;
/// What a transaction should not hold the lock for longer than.
const HOLD: Duration = Duration::from_millis(2);

/// What one cycle did.
#[derive(Debug, Default)]
pub(crate) struct Cycle {
    /// To be handed to workers.
    pub(crate) runs: Vec<ClaimedRun>,
    pub(crate) events: Vec<Event>,
    /// How long nothing needs to be done, unless a report comes or somebody commits.
    pub(crate) wait: Duration,
    /// Nothing is due, under way, or claimed by anyone that could be served now.
    pub(crate) idle: bool,
    /// What failed, if something did just now. What was to be written is kept.
    pub(crate) error: Option<Error>,
    /// The file could not be used the last time, and has not been since.
    pub(crate) failing: bool,
}

/// What a drain does, cycle by cycle.
pub(crate) struct Drainer {
    /// Never lent out, so that `data_version` tells of every other connection.
    conn: Connection,
    place: Arc<Place>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    hook: Option<Arc<DeliveredHook>>,
    instance: Arc<str>,
    dice: Dice,
    memory: Memory,
    watch: ClockWatch,
    /// Reports that are not recorded yet, and since when the first one waits.
    reports: Vec<Report>,
    first_report: Option<Duration>,
    /// The write lock is left to others until then.
    not_before: Duration,
    batch: usize,
    data_version: i64,
    log: Log,
    /// As of when no newer program had forbidden this one to write.
    writer_checked: Option<i64>,
    survey: Survey,
    /// When to look even if nobody wrote.
    look_at: Duration,
    /// No look before: the last one found something due that could not be taken.
    barren_until: Duration,
    /// The last write failed, and none has succeeded since.
    failing: bool,
    /// Since when something is committed that is not synced yet; only with `SettleSync::Normal`.
    unsynced: Option<Duration>,
    lazy_sync: bool,
    sweep: Option<upkeep::LaneCursor>,
    sweep_at: Duration,
    broken_lanes: Vec<upkeep::Lane>,
    /// What a look found worth telling.
    notices: Vec<Event>,
    retention: Retention,
    /// See [`Drainer::try_once`].
    once: bool,
    /// Whether there is anyone to send what is claimed.
    staffed: bool,
    stopping: bool,
}

impl std::fmt::Debug for Drainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drainer")
            .field("memory", &self.memory)
            .field("reports", &self.reports.len())
            .finish_non_exhaustive()
    }
}

impl Drainer {
    /// `conn` must be a connection of the drain's own.
    pub(crate) fn new(
        conn: Connection,
        place: Arc<Place>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        hook: Option<Arc<DeliveredHook>>,
        instance: Arc<str>,
    ) -> Result<Self> {
        let Manners { is_wal, lazy_sync } = connection::prepare(&conn, settings.settle_sync)?;
        let at = Instant::read(clock.as_ref());
        let channels = channel::load_all(&conn)?;
        // One that lies more than a year ahead was stamped by a clock that has been mended since.
        let plausible = at.wall.saturating_add(365 * 24 * 3600 * 1000);
        let since = channels.values().filter_map(|it| it.since);
        let changed = since.filter(|since| *since < plausible).max();
        let stamped = upkeep::newest_stamp(&conn)?;
        Ok(Self {
            watch: ClockWatch::new(at, changed.max(stamped)),
            memory: Memory::new(channels),
            data_version: data_version(&conn)?,
            log: Log::of(&conn, is_wal),
            conn,
            place,
            clock,
            settings,
            hook,
            instance,
            dice: Dice::random(),
            reports: Vec::new(),
            first_report: None,
            not_before: Duration::ZERO,
            batch: BATCH,
            writer_checked: None,
            survey: Survey::default(),
            look_at: Duration::ZERO,
            barren_until: Duration::ZERO,
            failing: false,
            unsynced: None,
            lazy_sync,
            sweep: Some(upkeep::LaneCursor::default()),
            sweep_at: at.monotonic,
            broken_lanes: Vec::new(),
            notices: Vec::new(),
            retention: Retention::default(),
            once: false,
            staffed: true,
            stopping: false,
        })
    }

    /// Lets its dice fall in a way that can be repeated.
    pub(crate) fn seed(&mut self, seed: u64) {
        self.dice = Dice::seeded(seed);
    }

    /// Brings probes forward, and messages that were given back with a short delay: connectivity
    /// may be back. With `all`, back-off is ignored once as well; schedules never are.
    pub(crate) fn wake(&mut self, all: bool) {
        let now = self.clock.monotonic();
        self.memory.flight.release_probes(now);
        self.memory.wish(match all {
            true => Pull::everything(),
            false => Pull::given_back(),
        });
        self.look_at = Duration::ZERO;
        self.survey.begin_anew();
    }

    /// Sends nothing more of what is claimed in this channel, but for what is on the wire.
    pub(crate) fn recall(&self, channel: &str) {
        self.memory.flight.recall(channel);
    }

    /// A receiver that was in trouble is tried again only as long as there is something else to do.
    /// With thousands of channels the first may be tried again before the last was.
    pub(crate) fn try_once(&mut self) {
        self.once = true;
    }

    /// Claims nothing more.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }

    pub(crate) fn is_staffed(&self) -> bool {
        self.staffed
    }

    /// Without workers nothing is claimed.
    pub(crate) fn staffed(&mut self, staffed: bool) {
        self.staffed = staffed;
        self.look_at = Duration::ZERO;
    }

    fn is_claiming(&self) -> bool {
        self.staffed && !self.stopping
    }

    /// Whether somebody may have committed since the last cycle. Asked at every poll.
    pub(crate) fn is_disturbed(&mut self) -> bool {
        !self.log.is_silent(self.clock.monotonic())
    }

    /// Takes in a report that no worker sends.
    pub(crate) fn take_in(&mut self, report: Report) {
        self.reports.push(report);
        self.first_report = Some(Duration::ZERO);
    }

    /// How many more reports make the next cycle worth its commit.
    pub(crate) fn reports_to_low_water(&self) -> usize {
        let outstanding = self.outstanding();
        outstanding.saturating_sub(self.memory.level / 2).max(1)
    }

    fn outstanding(&self) -> usize {
        self.memory
            .flight
            .messages()
            .saturating_sub(self.reports.len())
    }

    /// Gives back everything that is still out. Its workers may go on; what they report is late.
    pub(crate) fn abandon(&mut self) {
        let known: Vec<i64> = self.reports.iter().map(|report| report.id).collect();
        let open = self.memory.flight.give_back(self.clock.monotonic());
        self.reports.extend(
            open.into_iter()
                .filter(|report| !known.contains(&report.id)),
        );
        self.first_report = Some(Duration::ZERO);
        self.not_before = Duration::ZERO;
    }

    /// Whether nothing is claimed and nothing waits to be recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.memory.flight.messages() == 0 && self.reports.is_empty()
    }

    /// Channels in which what waits would wait for calls that hang.
    pub(crate) fn stuck(&self) -> Vec<String> {
        self.memory.flight.stuck(&self.settings)
    }

    /// Messages under way or waiting to be recorded.
    pub(crate) fn in_flight(&self) -> usize {
        self.memory.flight.messages()
    }

    /// One cycle: read the clock once, look whether there is anything to write, and if so write
    /// verdicts, renewals and claims in one transaction. Reports that cannot be written are kept.
    pub(crate) fn cycle(
        &mut self,
        dispatcher: &dyn Dispatcher,
        reports: impl IntoIterator<Item = Report>,
    ) -> Cycle {
        let at = Instant::read(self.clock.as_ref());
        self.watch.observe(at);
        self.reports.extend(reports);
        self.reports.extend(self.memory.miss_workers(at.monotonic));
        if self.first_report.is_none() && !self.reports.is_empty() {
            self.first_report = Some(at.monotonic);
        }
        for repair in self.watch.repairs() {
            self.memory.rebase = true;
            self.memory.wish(match repair {
                Repair::Horizon => Pull::beyond(self.settings.longest_wait()),
                Repair::WasAhead => Pull::everything(),
                Repair::SteppedBack(by) => Pull::stepped_back(self.memory.holds_after(by)),
            });
        }
        let outcome = self.step(dispatcher, at);
        let mut cycle = outcome.unwrap_or_else(|error| self.after_failure(error, at));
        cycle.failing = self.failing;
        cycle.events.append(&mut self.notices);
        cycle.events.append(&mut self.memory.notices);
        cycle
    }

    fn step(&mut self, dispatcher: &dyn Dispatcher, at: Instant) -> Result<Cycle> {
        self.place.check()?;
        // A lease that is half spent does not wait for manners.
        let renewal = self.memory.flight.next_renewal(at, self.settings.lease) == Some(0);
        if at.monotonic < self.not_before && (self.failing || !renewal) {
            return Ok(self.pause(at, None));
        }
        self.sync_if_due(at)?;
        let own_work = renewal || self.own_work(at);
        if !own_work && self.may_rest(at)? {
            let tidied = self.tidy(at);
            let mut cycle = self.pause(at, None);
            if tidied {
                self.look_at = Duration::ZERO;
                cycle.wait = self.not_before.saturating_sub(at.monotonic);
            }
            return Ok(cycle);
        }
        if !own_work && !self.stopping {
            self.sweep_lanes(at)?;
        }
        let mut look = self.look(dispatcher, at)?;
        if !own_work && !look.due {
            self.failing &= !self.is_empty();
            return Ok(self.rest(at, look.whole));
        }
        let effects = self.write(dispatcher, at, &look)?;
        if own_work || !effects.is_empty() {
            return Ok(self.apply(effects, at));
        }
        for report in self.memory.apply(effects.changes, &[]) {
            self.take_in(report);
        }
        match &mut look.whole {
            Some(seen) => seen.barren = true,
            // What is due may be further on.
            None => self.survey.seen.barren = true,
        }
        Ok(self.rest(at, look.whole))
    }

    /// There is nothing to write for what was seen; `None` when more is to be looked at.
    fn rest(&mut self, at: Instant, seen: Option<Seen>) -> Cycle {
        let Some(mut seen) = seen else {
            let wait = self.not_before.saturating_sub(at.monotonic);
            return Cycle {
                wait,
                ..Cycle::default()
            };
        };
        if seen.barren {
            self.barren_until = at.monotonic.saturating_add(BARREN);
        }
        if seen.overtaken {
            seen.is_due(at.wall.saturating_add(millis(AGAIN)), at.wall);
        }
        self.tidy(at);
        let done = self.is_empty() && !seen.foreign && !seen.paced && self.sweep.is_none();
        let idle = done && self.memory.pulls.is_empty() && !self.retention.detains(at.monotonic);
        let mut cycle = self.pause(at, seen.next);
        // Who stops begins nothing more, and waits for its calls.
        if !self.stopping && (self.retention.is_under_way() || self.sweep.is_some()) {
            cycle.wait = self.not_before.saturating_sub(at.monotonic);
        }
        Cycle { idle, ..cycle }
    }

    /// Whether there is something of ours to write: enough reports, a lease to renew, a wish.
    fn own_work(&self, at: Instant) -> bool {
        let low_water = self.outstanding() <= self.memory.level / 2;
        let lingered = |since: Duration| at.monotonic >= since.saturating_add(LINGER);
        let settle = !self.reports.is_empty()
            && (low_water || self.stopping || self.first_report.is_some_and(lingered));
        let pulls = !self.memory.pulls.is_empty() && self.is_claiming();
        settle || pulls || !self.broken_lanes.is_empty() || self.is_held()
    }

    /// Whether workers are kept from sending what is claimed, and nothing is to be recorded that
    /// would show whether they have to be.
    fn is_held(&self) -> bool {
        self.failing && self.reports.is_empty() && !self.is_empty()
    }

    /// Nothing to write now. `next` is the next due time in wall time, if the file was looked at.
    fn pause(&mut self, at: Instant, next: Option<i64>) -> Cycle {
        let span =
            |due: i64| Duration::from_millis(due.saturating_sub(at.wall).max(0).unsigned_abs());
        let ceiling = Duration::from_secs(60);
        if at.monotonic >= self.not_before {
            let rest = next.map_or(ceiling, span).min(ceiling);
            if next.is_some() || at.monotonic >= self.look_at {
                self.look_at = at.monotonic.saturating_add(rest);
            }
        }
        let watch = match self.is_empty() {
            true => WATCH.max(self.settings.poll),
            // A clock that jumps must not find a lease unwatched for long.
            false => WATCH,
        };
        let mut until = self
            .look_at
            .max(self.barren_until)
            .min(at.monotonic.saturating_add(watch));
        if let Some(left) = self.memory.flight.next_renewal(at, self.settings.lease) {
            until = until.min(
                at.monotonic
                    .saturating_add(Duration::from_millis(left.unsigned_abs())),
            );
        }
        if let Some(since) = self.first_report {
            until = until.min(since.saturating_add(LINGER));
        }
        if let Some(suspect) = self.memory.next_suspect(at.monotonic) {
            until = until.min(suspect);
            self.look_at = self.look_at.min(suspect);
        }
        let wait = until.max(self.not_before).saturating_sub(at.monotonic);
        Cycle {
            wait,
            ..Cycle::default()
        }
    }
}

fn data_version(conn: &Connection) -> Result<i64> {
    Ok(conn
        .prepare_cached("PRAGMA data_version")?
        .query_row([], |row| row.get(0))?)
}
