//! What a backlog costs: the time of a claim and of the counts, beside what they take with 1,000
//! messages pending.
//!
//! A claim of 50 is a step of [`Inline`], the same cycle a pump turns: it looks, begins, claims and
//! commits (`SettleSync::Normal`, so that it is not the disk that is measured) and hands 50
//! messages to a dispatcher that does nothing. What it claimed is settled by another step, with a
//! dispatcher that serves no channel, and 50 new messages take its place; neither is measured.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::testing::Inline;
use sqlite_outbox::{Delivery, Dispatcher, Outbox, Outcome, Settings, SettleSync};

use crate::Asked;
use crate::figure::{Figure, Target, median, millis};
use crate::file::{CHANNEL, Till, empty_log, payload};

pub const NAMES: &[&str] = &[
    "backlog_claim",
    "backlog_claim_100k",
    "backlog_claim_offline_channel",
    "backlog_claim_dead_head",
    "backlog_claim_lanes",
    "backlog_claim_history",
    "backlog_claim_lanes_flat",
    "backlog_stats",
    "backlog_stats_100k",
    "backlog_stats_offline_channel",
    "backlog_stats_dead_head",
    "backlog_stats_lanes",
    "backlog_stats_history",
    "backlog_unsent",
    "backlog_unsent_100k",
    "backlog_unsent_offline_channel",
    "backlog_unsent_dead_head",
    "backlog_unsent_lanes",
    "backlog_unsent_history",
    "backlog_unsent_ms",
];

const CLAIM: usize = 50;
/// What is pending where something else makes the backlog.
const BASE: usize = 1_000;
/// So many steps have looked at every lane once.
const LANES_IN_STEPS: usize = 1_000;
const OFFLINE: &str = "erp-offline";

/// One file with a backlog, a drain that is at home in it, and what was measured.
struct Backlog {
    _till: Till,
    outbox: Outbox,
    drain: Inline,
    /// The application's.
    conn: Connection,
    added: usize,
    claims: Vec<f64>,
    stats: Vec<f64>,
    unsent: Vec<f64>,
}

/// Serves some channels, and delivers but for the one that has no network.
struct Serving(&'static [&'static str]);

const ALL: Serving = Serving(&[CHANNEL, OFFLINE]);
/// A step with it settles and claims nothing.
const NONE: Serving = Serving(&[]);

impl Dispatcher for Serving {
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        Ok(match delivery.channel == OFFLINE {
            true => Outcome::unreachable("no network"),
            false => Outcome::delivered(),
        })
    }

    fn serves(&self, channel: &str) -> bool {
        self.0.contains(&channel)
    }
}

impl Backlog {
    /// `pending` messages to claim, beside what `script` makes of `more` rows.
    fn new(asked: &Asked, pending: usize, script: &str, more: usize) -> Result<Self> {
        let till = asked.till(pending, None)?;
        let conn = Connection::open(&till.path)?;
        conn.busy_timeout(Duration::from_secs(5))?;
        if !script.is_empty() {
            let rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                        INSERT INTO outbox (channel, dedupe_key, ordering_key, status, claims, settled_at, payload)
                        SELECT";
            conn.execute(
                &format!("{rows} {script}, ?2 FROM n"),
                (more as i64, payload()),
            )?;
        }
        empty_log(&conn)?;
        let outbox = till.open()?;
        let settings = Settings::new()
            .workers(2)
            .prefetch(CLAIM / 2)
            .lock_share(1.0)
            .settle_sync(SettleSync::Normal);
        let mut backlog = Self {
            drain: Inline::new(&outbox, settings)?,
            _till: till,
            outbox,
            conn,
            added: 0,
            claims: Vec::new(),
            stats: Vec::new(),
            unsent: Vec::new(),
        };
        // It finds out who is offline, and goes through the lanes once.
        backlog.drain.step(&Serving(&[OFFLINE]))?;
        for _ in 0..LANES_IN_STEPS {
            backlog.drain.step(&NONE)?;
        }
        backlog.top_up(1, false)?;
        // A channel starts slowly: each delivery allows one more at once.
        while backlog.claim(false)? < CLAIM {}
        backlog.claims.clear();
        Ok(backlog)
    }

    fn settle(&mut self) -> Result<()> {
        for _ in 0..2 {
            self.drain.step(&NONE)?;
        }
        Ok(())
    }

    /// Takes the place of what was sent: as many new messages of one kind.
    fn top_up(&mut self, count: usize, lanes: bool) -> Result<()> {
        let tx = self.conn.unchecked_transaction()?;
        for _ in 0..count {
            self.added += 1;
            let name = format!("more-{}", self.added);
            let lane = lanes.then_some(&name);
            tx.prepare_cached(
                "INSERT INTO outbox (channel, dedupe_key, ordering_key, payload) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute((CHANNEL, &name, lane, payload()))?;
        }
        Ok(tx.commit()?)
    }

    fn claim(&mut self, lanes: bool) -> Result<usize> {
        let begun = Instant::now();
        let step = self.drain.step(&ALL)?;
        self.claims.push(millis(begun.elapsed()));
        ensure!(step.dispatched > 0, "nothing claimed");
        self.settle()?;
        self.top_up(step.dispatched, lanes)?;
        Ok(step.dispatched)
    }

    fn count(&mut self) -> Result<()> {
        let begun = Instant::now();
        self.outbox.stats()?;
        self.stats.push(millis(begun.elapsed()));
        let begun = Instant::now();
        self.outbox.unsent()?;
        self.unsent.push(millis(begun.elapsed()));
        Ok(())
    }
}

/// Claim of 50, `stats` and `unsent` at 1 M and 100 k pending, beside 1 M messages of a channel that
/// is offline, 300 k behind one dead head, among 100 k lanes of one message, and beside 1 M sent ones
/// ÷ 1 k pending. `lanes_flat` is the claim among 100 k lanes ÷ among 1 k, and `unsent_ms` the
/// longest of all `unsent`.
pub fn backlog(asked: &Asked) -> Result<Vec<Figure>> {
    let million = asked.size(1_000_000).max(2 * BASE);
    let offline = format!("'{OFFLINE}', 'o' || i, NULL, 'pending', 0, NULL");
    let dead = format!(
        "'{CHANNEL}', 'd' || i, 'document-1', iif(i = 1, 'dead', 'waiting'), 1, iif(i = 1, 1800000000000, NULL)"
    );
    let lanes = format!("'{CHANNEL}', 'l' || i, 'lane-' || i, 'pending', 0, NULL");
    let history = format!(
        "'{CHANNEL}', 'h' || i, NULL, 'sent', 1, CAST(julianday('now') * 86400000 - 210866760000000 AS INTEGER)"
    );
    let mut files = [
        Backlog::new(asked, BASE, "", 0)?,
        Backlog::new(asked, million, "", 0)?,
        Backlog::new(asked, million / 10, "", 0)?,
        Backlog::new(asked, BASE, &offline, million)?,
        Backlog::new(asked, BASE, &dead, million * 3 / 10)?,
        Backlog::new(asked, 0, &lanes, million / 10)?,
        Backlog::new(asked, BASE, &history, million)?,
        Backlog::new(asked, 0, &lanes, BASE)?,
    ];
    for _ in 0..asked.rounds(7) {
        for (index, file) in files.iter_mut().enumerate() {
            for _ in 0..asked.rounds(8) {
                let claimed = file.claim(matches!(index, 5 | 7))?;
                ensure!(claimed.abs_diff(CLAIM) <= 1, "{claimed} claimed");
            }
            file.count()?;
        }
    }
    let medians = |part: fn(&Backlog) -> &[f64]| files.each_ref().map(|it| median(part(it)));
    let [base, claims @ .., few_lanes] = medians(|it| &it.claims);
    let [base_stats, stats @ .., _] = medians(|it| &it.stats);
    let [base_unsent, unsent @ .., _] = medians(|it| &it.unsent);
    let beside = |values: [f64; 6], base, target| values.map(|value| (value, base, target));
    let longest = unsent.into_iter().fold(0.0, f64::max);
    let figures = beside(claims, base, Target::Times(1.5))
        .into_iter()
        .chain([(claims[4], few_lanes, Target::None)])
        .chain(beside(stats, base_stats, Target::None))
        .chain(beside(unsent, base_unsent, Target::None))
        .chain([(longest, 5.0, Target::Limit)]);
    let named = NAMES.iter().zip(figures);
    Ok(named
        .map(|(name, (value, limit, target))| Figure::new(name, value, limit, "ms", target))
        .collect())
}

/// The median time of a claim of 50 with this much pending, for the plot.
pub fn claim_with(asked: &Asked, pending: usize) -> Result<f64> {
    let mut file = Backlog::new(asked, pending, "", 0)?;
    for _ in 0..50 {
        file.claim(false)?;
    }
    Ok(median(&file.claims))
}
