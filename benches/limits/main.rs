//! How near the outbox comes to the disk and the wire, each figure beside its limit, measured in
//! one run on one machine: ours and the limit take turns, and medians are compared.
//!
//! ```text
//! cargo bench --bench limits                       # the table
//! cargo bench --bench limits -- --json             # one object: name → {value, limit, ratio, unit}
//! cargo bench --bench limits -- drain_http         # only what has this in its name
//! cargo bench --bench limits -- --quick            # seconds: does it still run at all?
//! cargo bench --bench limits -- --plot docs        # the plots of PERFORMANCE.md instead
//! ```
//!
//! What each figure is stands at the function that measures it.

// These guard the library; a bench reads the time, starts threads and stops when something fails.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    unreachable_pub
)]

mod app;
mod backlog;
mod bare;
mod child;
mod drain;
mod enqueue;
mod figure;
mod file;
mod idle;
mod memory;
mod plot;
#[path = "../../tests/vfs/mod.rs"]
mod vfs;
mod wake;
mod wire;

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};

use figure::{Figure, Report};
use file::{Templates, Till};

/// What was asked for on the command line.
#[derive(Debug, Default)]
pub struct Asked {
    filter: Option<String>,
    json: bool,
    /// A smoke test: everything runs, nothing is measured worth the name.
    pub quick: bool,
    plot: Option<PathBuf>,
    templates: Templates,
}

impl Asked {
    /// A new file with this many messages to send, of no lane or all of one.
    pub fn till(&self, messages: usize, ordering_key: Option<&'static str>) -> Result<Till> {
        self.templates.till(messages, ordering_key)
    }

    /// How often ours and the limit take turns.
    pub fn rounds(&self, full: usize) -> usize {
        if self.quick { 1 } else { full }
    }

    /// A number of messages, samples or milliseconds.
    pub fn size(&self, full: usize) -> usize {
        if self.quick {
            (full / 100).clamp(8, 400)
        } else {
            full
        }
    }
}

/// A part of the bench: the names it answers for, and what measures them.
type Case = (&'static [&'static str], fn(&Asked) -> Result<Vec<Figure>>);

const CASES: &[Case] = &[
    (&["enqueue_one"], enqueue::one),
    (&["enqueue_bulk"], enqueue::bulk),
    (&["enqueue_bulk_keyed"], enqueue::bulk_keyed),
    (
        &["drain_noop", "drain_noop_share", "drain_noop_sets"],
        drain::noop,
    ),
    (&["drain_http_0", "drain_http_0_share"], drain::http_0),
    (
        &["drain_http_20ms_8", "drain_http_20ms_8_share"],
        drain::http_20ms_8,
    ),
    (
        &["drain_http_20ms_64", "drain_http_20ms_64_share"],
        drain::http_20ms_64,
    ),
    (&["drain_lane", "drain_lane_share"], drain::lane),
    (app::NAMES, app::commits),
    (app::SLOW_NAMES, app::slow_commits),
    (backlog::NAMES, backlog::backlog),
    (
        &["idle_cpu_s_per_min", "idle_cpu_beside_sleep", "idle_bytes"],
        idle::idle,
    ),
    (wake::NAMES, wake::wake),
    (&["memory_small_mb"], memory::small),
    (&["memory_large_mb"], memory::large),
];

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|it| it == child::FLAG).is_some() {
        return child::play(&arguments.collect::<Vec<_>>());
    }
    let asked = read(arguments)?;
    if let Some(folder) = &asked.plot {
        return plot::plot(&asked, folder);
    }
    let mut report = Report::new(asked.json, asked.quick);
    let mut failed: Vec<&str> = Vec::new();
    for (names, run) in CASES {
        let wanted = |it: &&str| {
            asked
                .filter
                .as_ref()
                .is_none_or(|filter| it.contains(filter))
        };
        if names.iter().any(wanted) {
            match run(&asked) {
                Ok(figures) => figures.into_iter().for_each(|it| report.add(it)),
                // The others count all the same.
                Err(error) => {
                    eprintln!("{}: {error:#}", names.join(", "));
                    failed.extend(names.iter().copied());
                }
            }
        }
    }
    report.end()?;
    ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(())
}

fn read(arguments: impl Iterator<Item = String>) -> Result<Asked> {
    let mut asked = Asked::default();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // Cargo says so to every bench.
            "--bench" => {}
            "--json" => asked.json = true,
            "--quick" => asked.quick = true,
            "--plot" => match arguments.next() {
                Some(folder) => asked.plot = Some(folder.into()),
                None => bail!("--plot needs a folder"),
            },
            flag if flag.starts_with('-') => bail!("there is no {flag}"),
            filter => asked.filter = Some(filter.into()),
        }
    }
    Ok(asked)
}
