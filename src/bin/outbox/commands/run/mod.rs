//! `outbox run`: the service form of `drain`.

mod lines;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use sqlite_outbox::{Event, Outbox, Pump};

use super::told;
use crate::args::{self, Database, Exit, Format};
use crate::logger::{self, Loudness, Role};
use crate::settings::{self, Loaded};
use crate::signals::Signals;
use crate::threads;

use lines::{Line, Printer, Teller, Told};

/// How often signals and the pump's health are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Send messages as they come, until SIGINT or SIGTERM
///
/// The service form of `drain`. It says on stderr what changes: channels that stop and go on, dead
/// letters, failures to write the file; with --json on stdout, an object a line. SIGHUP makes it read
/// its settings again. When the file is removed or another takes its place, it ends.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Exit codes:
  0  it was asked to stop, and what it knew is recorded
  1  it could not do its work
A second signal ends it at once: nothing is lost, what was
under way may be sent again.

", settings::example!(), "
Example:
  outbox run till.db --config outbox.toml"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// The settings file: where each channel goes, and how
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Requests under way at once [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// How long requests under way may take once it is asked to stop
    #[arg(long, value_name = "D", default_value = "10s", value_parser = args::duration)]
    grace: Duration,
    #[command(flatten)]
    loudness: Loudness,
    #[command(flatten)]
    format: Format,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let loaded = arguments.load()?;
    logger::start(arguments.loudness, Role::Tells);
    let signals = Signals::listen()?.with_reload()?;
    let (printer, teller) = Printer::start(arguments.format.json, arguments.loudness.quiet)?;
    let failing = Arc::new(AtomicBool::new(false));
    let observer = observer(teller.clone(), failing.clone());
    let options = Outbox::options().observer(observer);
    let outbox = arguments.database.open_with(options)?;
    loaded.apply(&outbox)?;
    let stats = outbox.stats()?;
    let pump = start(&outbox, loaded)?;
    // A hint only: without it the probes find the network again within a minute.
    #[cfg(feature = "netwatch")]
    let _watch = sqlite_outbox::netwatch::watch(&outbox)
        .inspect_err(|error| log::warn!(target: "outbox", "{error}"));
    teller.say(Line::Started);
    for line in stats.channels.iter().filter_map(Line::standing) {
        teller.say(line);
    }
    let mut service = Service {
        arguments,
        outbox,
        pump,
        retired: None,
        teller,
        failing,
    };
    let ended = service.serve(&signals);
    let stopped = service.stop();
    let printed = printer.finish();
    ended.and(stopped).and(printed)?;
    Ok(Exit::Done)
}

impl Arguments {
    fn load(&self) -> anyhow::Result<Loaded> {
        settings::load(&self.config, self.workers.map(usize::from))
    }
}

fn start(outbox: &Outbox, loaded: Loaded) -> sqlite_outbox::Result<Pump> {
    let pump = outbox.pump(loaded.dispatcher);
    pump.settings(loaded.settings).start()
}

/// Tells events as lines. Runs on the pump's thread, so it never waits for the output.
fn observer(teller: Teller, failing: Arc<AtomicBool>) -> impl Fn(&Event) + Send + Sync {
    let main = std::thread::current();
    let told = Mutex::new(Told::default());
    move |event| match event {
        event if told.lock().is_ok_and(|mut it| it.knows(event)) => {}
        // One line for a disk that is full for an hour.
        Event::StoreFailed { error } => {
            if !failing.swap(true, Ordering::AcqRel) {
                teller.say(Line::StoreFailed {
                    error: error.clone(),
                });
            }
        }
        Event::Stopped { .. } => main.unpark(),
        event => {
            if let Some(line) = Line::of(event) {
                teller.say(line);
            }
        }
    }
}

struct Service<'a> {
    arguments: &'a Arguments,
    outbox: Outbox,
    pump: Pump,
    /// A pump with former settings that finishes what it has under way.
    retired: Option<JoinHandle<()>>,
    teller: Teller,
    failing: Arc<AtomicBool>,
}

impl Service<'_> {
    /// Until a signal asks for the end, or the pump ends by itself.
    fn serve(&mut self, signals: &Signals) -> anyhow::Result<()> {
        while !signals.came() {
            let health = self.pump.health();
            if !health.running {
                let cause = health.error.unwrap_or_else(|| "it ended".into());
                bail!("nothing can be sent any more: {cause}");
            }
            if health.error.is_none() && self.failing.swap(false, Ordering::AcqRel) {
                self.teller.say(Line::StoreWorks);
            }
            if signals.reload() {
                self.reload();
            }
            std::thread::park_timeout(TICK);
        }
        self.teller.say(Line::Stopping);
        Ok(())
    }

    /// Starts a pump with the new settings, and lets the old one finish what it has under way.
    fn reload(&mut self) {
        let workers = self.arguments.workers.map(usize::from);
        let loaded = settings::reload(&self.arguments.config, workers);
        let loaded = loaded.and_then(|it| it.apply(&self.outbox).map(|()| it));
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => return self.kept(&error),
        };
        match start(&self.outbox, loaded) {
            Ok(fresh) => {
                let old = std::mem::replace(&mut self.pump, fresh);
                self.retire(old);
                self.teller.say(Line::Reloaded);
            }
            Err(error) => self.kept(&error.into()),
        }
    }

    fn kept(&self, error: &anyhow::Error) {
        self.teller.say(Line::ReloadFailed { error: told(error) });
    }

    // Not on this thread, which has to hear signals meanwhile.
    fn retire(&mut self, pump: Pump) {
        if let Some(former) = self.retired.take_if(|it| it.is_finished()) {
            let _ = former.join();
        }
        let (grace, teller) = (self.arguments.grace, self.teller.clone());
        let stop = move || {
            if let Err(error) = pump.stop(grace) {
                let error = error.chain();
                teller.say(Line::StoreFailed { error });
            }
        };
        // Where no thread can be had, the pump is dropped, which stops it without waiting.
        let thread = threads::start("outbox-retired", stop).ok();
        self.retired = thread.or(self.retired.take());
    }

    fn stop(self) -> anyhow::Result<()> {
        let stopped = self.pump.stop(self.arguments.grace);
        // Its grace began before ours.
        if let Some(thread) = self.retired {
            let _ = thread.join();
        }
        stopped.context("what was under way could not be recorded and may be sent again")?;
        self.teller.say(Line::Stopped);
        Ok(())
    }
}
