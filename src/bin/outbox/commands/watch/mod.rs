//! `outbox watch`: a live view of the file, and a hand on it.

mod draw;
mod keys;
mod model;
mod reader;
mod rows;
mod sheet;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use sqlite_outbox::{Clock, SystemClock};

use super::operate::who;
use crate::args::{self, Database, Exit};
use crate::output::{colours, dumb};
use crate::settings::{self, Loaded};
use crate::signals::Signals;
use crate::threads;

use keys::Keys;
use model::{Action, Effect, Model};
use reader::{Ask, Reader, Told};
use sheet::Theme;

/// How long a signal or an answer may lie there before it is noticed; keys are noticed at once.
const TICK: Duration = Duration::from_millis(50);

/// Watch the file live, with keys to pause, resume, retry, cancel
///
/// It shows channels with state and reason, depth over time, rate, what is in flight and what failed
/// last, what needs a person first.
///
/// Keys: arrows or j and k choose a channel or a failed message, Tab goes to the other list;
/// p pauses the channel, r resumes it, R sends its dead letters (or the chosen one) again,
/// c cancels the chosen message; each asks first. q ends. Between two readings nothing in the
/// file is locked.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  outbox watch till.db --every 5s")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Read the file this often
    #[arg(long, value_name = "D", default_value = "1s", value_parser = every)]
    every: Duration,
    /// The settings file: to see channels without a route
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

fn every(text: &str) -> Result<Duration, String> {
    let span = args::duration(text)?;
    match span < Duration::from_millis(100) {
        true => Err("more often than every 100ms is work for nothing".into()),
        false => Ok(span),
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    // What is wrong from the start is an error, and not a line in a view.
    drop(arguments.database.open_to_read()?);
    let path = &arguments.database.db;
    if !is_there() || dumb() {
        bail!("watch needs a terminal to draw on; `outbox status` prints the same once");
    }
    let config = arguments.config.as_deref();
    let loaded = config.map(|it| settings::load(it, None)).transpose()?;
    let signals = Signals::listen()?.with_hangup()?;
    let mut link = Link::start(path, loaded)?;
    let mut screen = Screen::open()?;
    let mut model = Model::new(&path.to_string_lossy());
    let ended = watch(
        &mut screen.terminal,
        &mut model,
        &mut link,
        &signals,
        arguments,
    );
    match is_there() {
        true => drop(screen),
        // Nothing is left to be given back, and a complaint of that would find no stderr either.
        false => std::mem::forget(screen),
    }
    link.end();
    match ended {
        // A view without a terminal is a view that was closed.
        Err(error) if is_there() => Err(error),
        _ => Ok(Exit::Done),
    }
}

/// Whether there is a terminal; it may be closed, and nobody need be told by a signal.
fn is_there() -> bool {
    stdout().is_terminal()
}

fn watch(
    terminal: &mut DefaultTerminal,
    model: &mut Model,
    link: &mut Link,
    signals: &Signals,
    arguments: &Arguments,
) -> anyhow::Result<()> {
    let clock = SystemClock::default();
    let keys = Keys::listen()?;
    let theme = Theme { colour: colours() };
    let mut due = Duration::ZERO;
    let mut stale = true;
    while !signals.came() && is_there() {
        let now = clock.monotonic();
        while let Some(told) = link.hear()? {
            stale = true;
            match told {
                Told::Seen(look) => model.seen(*look, now),
                Told::Unseen(error) => model.unseen(&error),
                Told::Done(result) => {
                    model.done(result);
                    due = now;
                }
            }
        }
        if now >= due && link.look(now)? {
            due = now.saturating_add(arguments.every);
        }
        let waiting = link.waiting(now);
        stale |= waiting != model.waiting;
        model.waiting = waiting;
        if stale {
            terminal
                .draw(|frame| draw::all(frame, model, theme))
                .context("the terminal cannot be drawn on")?;
            stale = false;
        }
        match keys.next(TICK)? {
            Some(Event::Key(key)) if key.is_press() || key.is_repeat() => {
                stale = true;
                match effect(model, key) {
                    Effect::Nothing => {}
                    Effect::Quit => break,
                    Effect::Act(action) => link.act(action)?,
                }
            }
            Some(Event::Resize(..)) => stale = true,
            _ => {}
        }
    }
    Ok(())
}

fn effect(model: &mut Model, key: KeyEvent) -> Effect {
    match key.modifiers.contains(KeyModifiers::CONTROL) {
        true if key.code == KeyCode::Char('c') => Effect::Quit,
        true => Effect::Nothing,
        false => model.press(key.code),
    }
}

/// The terminal while it is ours. Given back when this is dropped, and on a panic.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    fn open() -> anyhow::Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                let _ = ratatui::try_restore();
                Err(error).context("the terminal cannot be drawn on")
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// The line to the reader.
struct Link {
    ask: Sender<Ask>,
    told: Receiver<Told>,
    thread: JoinHandle<()>,
    looking: Option<Duration>,
    acting: bool,
}

impl Link {
    fn start(path: &Path, loaded: Option<Loaded>) -> anyhow::Result<Self> {
        let reader = Reader::new(path, who(), loaded);
        let (ask, asks) = channel();
        let (tell, told) = channel();
        let thread = threads::start("outbox-watch", move || reader.serve(&asks, &tell))
            .context("no thread can be started")?;
        Ok(Self {
            ask,
            told,
            thread,
            looking: None,
            acting: false,
        })
    }

    fn act(&mut self, action: Action) -> anyhow::Result<()> {
        self.acting = true;
        self.ask(Ask::Act(action))
    }

    /// Asks for a reading, unless one is awaited.
    fn look(&mut self, now: Duration) -> anyhow::Result<bool> {
        if self.looking.is_some() {
            return Ok(false);
        }
        self.looking = Some(now);
        self.ask(Ask::Look).map(|()| true)
    }

    fn ask(&self, ask: Ask) -> anyhow::Result<()> {
        self.ask.send(ask).ok().context("the reader has ended")
    }

    /// Seconds since a reading was asked for, when that is long ago.
    fn waiting(&self, now: Duration) -> Option<u64> {
        let span = now.saturating_sub(self.looking?).as_secs();
        Some(span).filter(|it| *it >= 2)
    }

    fn hear(&mut self) -> anyhow::Result<Option<Told>> {
        match self.told.try_recv() {
            Ok(told) => {
                match told {
                    Told::Done(_) => self.acting = false,
                    _ => self.looking = None,
                }
                Ok(Some(told))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => bail!("the reader has ended"),
        }
    }

    /// What was confirmed is still done.
    fn end(self) {
        drop((self.ask, self.told));
        if self.acting {
            let _ = self.thread.join();
        }
    }
}
