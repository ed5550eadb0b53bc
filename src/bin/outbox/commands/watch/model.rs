//! What the view knows: readings and keys come in, an action or rows come out. No terminal, no
//! file, no clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use ratatui::crossterm::event::KeyCode;
use sqlite_outbox::{ChannelState, ChannelStats, Entry, Stats, Status};

use crate::commands::crowd;
use crate::output::{Tone, ago, count, exact, printable, printable_name};

/// Readings remembered: more than any terminal is wide.
const REMEMBERED: usize = 600;

/// Channels that are listed at most: nobody scrolls further, and each has a course of time.
const LISTED: usize = 200;

/// The rate of a channel is that of its last minute.
const MINUTE: Duration = Duration::from_secs(60);

/// One reading of the file.
#[derive(Debug, Clone, Default)]
pub(super) struct Look {
    pub(super) stats: Stats,
    /// What no channel's state tells.
    pub(super) findings: Vec<String>,
    /// Under way.
    pub(super) sending: Vec<Letter>,
    /// First the dead, then those that are tried again; the newest failure first.
    pub(super) failed: Vec<Letter>,
}

/// A message as far as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Letter {
    pub(super) id: i64,
    pub(super) channel: String,
    pub(super) key: String,
    pub(super) dead: bool,
    pub(super) attempts: i64,
    /// When it failed.
    pub(super) at: i64,
    /// When it is tried again.
    pub(super) due: i64,
    pub(super) error: String,
}

impl From<Entry> for Letter {
    fn from(entry: Entry) -> Self {
        let at = entry.last_attempt_at.max(entry.settled_at);
        Self {
            id: entry.id,
            channel: entry.channel,
            key: entry.dedupe_key,
            dead: entry.status == Status::Dead,
            attempts: entry.attempts,
            at: at.unwrap_or(entry.created_at),
            due: entry.next_attempt_at,
            error: entry.last_error.unwrap_or_default(),
        }
    }
}

/// What a person decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Pause(String),
    Resume(String),
    RetryDead(String),
    Retry(i64),
    Cancel(i64),
}

/// What a key leads to, outside of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    Nothing,
    Quit,
    Act(Action),
}

/// Where the cursor is: by name, so that it stays with what it was put on when rows move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Chosen {
    Channel(String),
    Letter(i64),
}

/// What one channel, or all together, did since the view began.
#[derive(Debug, Clone, Default)]
pub(super) struct Track {
    depths: VecDeque<u64>,
    /// When, and how many had been sent in this view by then.
    sent: VecDeque<(Duration, u64)>,
    stored: Option<u64>,
}

impl Track {
    fn add(&mut self, at: Duration, depth: u64, stored: u64) {
        let before = self.sent.back().map_or(0, |(_, sent)| *sent);
        // Retention takes some of them away: that is no delivery undone.
        let new = self.stored.map_or(0, |it| stored.saturating_sub(it));
        self.stored = Some(stored);
        self.sent.push_back((at, before.saturating_add(new)));
        self.depths.push_back(depth);
        while self.depths.len() > REMEMBERED {
            self.depths.pop_front();
            self.sent.pop_front();
        }
    }

    pub(super) fn depths(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.depths.iter().copied()
    }

    /// Sent in this view.
    pub(super) fn sent(&self) -> u64 {
        self.sent.back().map_or(0, |(_, sent)| *sent)
    }

    /// Time between the first of the last `readings` and the last one.
    pub(super) fn span(&self, readings: usize) -> Duration {
        let before = self.sent.len().saturating_sub(readings.max(1));
        match (self.sent.get(before), self.sent.back()) {
            (Some((first, _)), Some((last, _))) => last.saturating_sub(*first),
            _ => Duration::ZERO,
        }
    }

    /// Messages a second, during the last minute.
    pub(super) fn rate(&self) -> f64 {
        let Some((now, all)) = self.sent.back() else {
            return 0.0;
        };
        let from = now.saturating_sub(MINUTE);
        let Some((then, before)) = self.sent.iter().find(|(at, _)| *at >= from) else {
            return 0.0;
        };
        pace(all.saturating_sub(*before), now.saturating_sub(*then))
    }
}

/// Nobody can tell such numbers from their neighbours.
#[allow(clippy::cast_precision_loss)]
pub(super) fn pace(sent: u64, span: Duration) -> f64 {
    match span.is_zero() {
        true => 0.0,
        false => sent as f64 / span.as_secs_f64(),
    }
}

/// All that is known.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) path: String,
    pub(super) look: Option<Look>,
    /// Why the last reading failed.
    pub(super) trouble: Option<String>,
    /// Seconds since a reading was asked for, when it is long ago.
    pub(super) waiting: Option<u64>,
    pub(super) total: Track,
    pub(super) tracks: BTreeMap<String, Track>,
    /// Channels that are not listed, because there are so many.
    pub(super) others: usize,
    pub(super) chosen: Option<Chosen>,
    /// Waits for y or n.
    pub(super) asking: Option<(Action, String)>,
    /// An action is under way.
    pub(super) working: bool,
    pub(super) note: Option<(Tone, String)>,
    /// The keys are shown in place of the lists.
    pub(super) help: bool,
}

impl Model {
    pub(super) fn new(path: &str) -> Self {
        Self {
            path: printable(path).into_owned(),
            ..Self::default()
        }
    }

    /// A reading, and when it was on the monotonic clock.
    pub(super) fn seen(&mut self, mut look: Look, at: Duration) {
        look.stats.channels.sort_by_key(crowd::calm);
        let others = look.stats.channels.len().saturating_sub(LISTED);
        if others > 0 {
            let busiest = |it: &ChannelStats| (crowd::calm(it), Reverse(it.counts.unsent()));
            look.stats.channels.sort_by_key(busiest);
            look.stats.channels.truncate(LISTED);
        }
        self.others = others;
        let place = self.place();
        let total = &look.stats.total;
        self.total.add(at, total.unsent(), total.sent);
        let stats = &look.stats.channels;
        let listed: HashSet<&str> = stats.iter().map(|it| &*it.channel).collect();
        self.tracks.retain(|name, _| listed.contains(&**name));
        for it in stats {
            let track = self.tracks.entry(it.channel.clone()).or_default();
            track.add(at, it.counts.unsent(), it.counts.sent);
        }
        self.trouble = None;
        self.look = Some(look);
        // What was chosen may be gone; then its neighbour is meant.
        if self.place().is_none() {
            let places = self.places();
            let last = places.len().saturating_sub(1);
            self.chosen = places.get(place.unwrap_or(0).min(last)).cloned();
        }
    }

    /// A reading that failed. What was seen before stays.
    pub(super) fn unseen(&mut self, error: &str) {
        let text = printable(error);
        self.trouble = Some(match &self.look {
            Some(look) => format!("{text}; below is {}", time(look.stats.now)),
            None => text.into_owned(),
        });
    }

    /// An action has ended.
    pub(super) fn done(&mut self, result: Result<String, String>) {
        self.working = false;
        self.note = Some(match result {
            Ok(text) => (Tone::Good, printable(&text).into_owned()),
            Err(text) => (Tone::Bad, printable(&text).into_owned()),
        });
    }

    pub(super) fn channels(&self) -> &[ChannelStats] {
        self.look.as_ref().map_or(&[], |it| &it.stats.channels)
    }

    pub(super) fn failed(&self) -> &[Letter] {
        self.look.as_ref().map_or(&[], |it| &it.failed)
    }

    pub(super) fn now(&self) -> i64 {
        self.look.as_ref().map_or(0, |it| it.stats.now)
    }

    /// The message under the cursor.
    pub(super) fn letter(&self) -> Option<&Letter> {
        match &self.chosen {
            Some(Chosen::Letter(id)) => self.failed().iter().find(|it| it.id == *id),
            _ => None,
        }
    }

    /// The channel under the cursor, or that of the message there.
    fn channel(&self) -> Option<&ChannelStats> {
        let name = match (&self.chosen, self.letter()) {
            (Some(Chosen::Channel(name)), _) => name,
            (_, Some(letter)) => &letter.channel,
            _ => return None,
        };
        self.channels().iter().find(|it| it.channel == *name)
    }

    fn places(&self) -> Vec<Chosen> {
        let channels = self.channels().iter();
        let channels = channels.map(|it| Chosen::Channel(it.channel.clone()));
        let letters = self.failed().iter().map(|it| Chosen::Letter(it.id));
        channels.chain(letters).collect()
    }

    fn place(&self) -> Option<usize> {
        let chosen = self.chosen.as_ref()?;
        self.places().iter().position(|it| it == chosen)
    }

    fn go(&mut self, to: impl FnOnce(usize) -> usize) {
        let places = self.places();
        let place = self.place().unwrap_or(0);
        let last = places.len().saturating_sub(1);
        self.chosen = places.get(to(place).min(last)).cloned();
    }

    /// A key was pressed.
    pub(super) fn press(&mut self, key: KeyCode) -> Effect {
        if let Some((action, _)) = self.asking.clone() {
            match key {
                KeyCode::Char('y' | 'Y') => {
                    self.asking = None;
                    self.working = true;
                    return Effect::Act(action);
                }
                KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => {
                    self.asking = None;
                    self.note = Some((Tone::Plain, "nothing was changed".into()));
                }
                _ => {}
            }
            return Effect::Nothing;
        }
        self.note = None;
        if std::mem::take(&mut self.help) && key != KeyCode::Char('q') {
            return Effect::Nothing;
        }
        let channels = self.channels().len();
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Effect::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Up | KeyCode::Char('k') => self.go(|it| it.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.go(|it| it + 1),
            KeyCode::PageUp => self.go(|it| it.saturating_sub(10)),
            KeyCode::PageDown => self.go(|it| it + 10),
            KeyCode::Home => self.go(|_| 0),
            KeyCode::End => self.go(|_| usize::MAX),
            KeyCode::Tab | KeyCode::BackTab => self.go(|it| match it < channels {
                true => channels,
                false => 0,
            }),
            KeyCode::Char(letter @ ('p' | 'r' | 'R' | 'c')) => self.ask(letter),
            _ => {}
        }
        Effect::Nothing
    }

    /// Asks whether to do it, or says why it makes no sense.
    fn ask(&mut self, letter: char) {
        match self.question(letter) {
            _ if self.working => {
                self.note = Some((Tone::Plain, "one thing after the other …".into()))
            }
            Ok(asking) => self.asking = Some(asking),
            Err(text) => self.note = Some((Tone::Plain, text)),
        }
    }

    fn question(&self, letter: char) -> Result<(Action, String), String> {
        let channel = self.channel().ok_or("there is nothing to choose yet")?;
        let name = printable_name(&channel.channel).into_owned();
        let owned = channel.channel.clone();
        let message = |it: &Letter| format!("#{} {}", it.id, printable(&it.key));
        let (action, text) = match (letter, self.letter()) {
            ('p', _) if channel.state == ChannelState::Paused => {
                return Err(format!("{name} is paused already"));
            }
            ('p', _) => (Action::Pause(owned), format!("Pause {name}?")),
            ('r', _) if channel.state == ChannelState::Ok => {
                return Err(format!("{name} is not stopped"));
            }
            ('r', _) => {
                let text = format!("Resume {name}, which is {}?", channel.state);
                (Action::Resume(owned), text)
            }
            ('R', Some(it)) if it.dead => {
                let text = format!("Send {} again?", message(it));
                (Action::Retry(it.id), text)
            }
            ('R', Some(it)) => {
                let due = ago(it.due, self.now());
                return Err(format!("#{} is not dead: it is tried again {due}", it.id));
            }
            ('R', None) => match channel.counts.dead {
                0 => return Err(format!("{name} has no dead letters")),
                dead => {
                    let dead = count(dead, "dead letter", "dead letters");
                    let text = format!("Send {dead} of {name} again?");
                    (Action::RetryDead(owned), text)
                }
            },
            (_, Some(it)) => {
                let text = format!("Cancel {}, so that it is not sent?", message(it));
                (Action::Cancel(it.id), text)
            }
            (_, None) => return Err("choose a message below to cancel it".into()),
        };
        Ok((action, text))
    }
}

/// `14:05:07Z`
pub(super) fn time(at: i64) -> String {
    let text = exact(at);
    match (text.get(11..19), text.ends_with('Z')) {
        (Some(time), true) => format!("{time}Z"),
        _ => text,
    }
}
