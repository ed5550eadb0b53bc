//! What a service says: a line for each change, written by a thread of its own, so that a reader
//! who does not read stops neither the sending nor the stopping.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use sqlite_outbox::{ChannelState, ChannelStats, Event};

use crate::output::{Out, brief, exact, lines_lost, now, printable, say, unless_closed};
use crate::threads;

/// Lines that may wait for their reader; further ones are counted.
const WAITING: usize = 1024;

/// How long the last lines may take to be written.
const LAST: Duration = Duration::from_secs(1);

/// Something that changed.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Line {
    Started,
    Channel {
        channel: String,
        state: &'static str,
        reason: Option<String>,
    },
    Paused {
        channel: String,
        by: Option<String>,
        reason: Option<String>,
    },
    Resumed {
        channel: String,
    },
    Unrouted {
        channel: String,
    },
    Dead {
        id: i64,
        channel: String,
        error: String,
    },
    Expired {
        messages: usize,
    },
    HookFailed {
        id: i64,
        error: String,
    },
    Refused {
        id: i64,
        error: String,
    },
    StoreFailed {
        error: String,
    },
    StoreWorks,
    Reloaded,
    ReloadFailed {
        error: String,
    },
    LinesLost {
        lines: u64,
    },
    Stopping,
    Stopped,
}

impl Line {
    /// The line of an event, if it is worth one.
    pub(super) fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::Channel {
                channel,
                state,
                reason,
            } => Self::Channel {
                channel: channel.clone(),
                state: state.as_str(),
                reason: reason.clone(),
            },
            Event::Paused {
                channel,
                by,
                reason,
            } => Self::Paused {
                channel: channel.clone(),
                by: by.clone(),
                reason: reason.clone(),
            },
            Event::Resumed { channel } => Self::Resumed {
                channel: channel.clone(),
            },
            Event::Unrouted { channel } => Self::Unrouted {
                channel: channel.clone(),
            },
            Event::Dead { id, channel, error } => Self::Dead {
                id: *id,
                channel: channel.clone(),
                error: error.clone(),
            },
            Event::Expired { messages } => Self::Expired {
                messages: *messages,
            },
            Event::HookFailed { id, error } => Self::HookFailed {
                id: *id,
                error: error.clone(),
            },
            Event::Refused { id, error } => Self::Refused {
                id: *id,
                error: error.clone(),
            },
            _ => return None,
        })
    }

    /// The line of a channel that stands still already.
    pub(super) fn standing(channel: &ChannelStats) -> Option<Self> {
        let name = || channel.channel.clone();
        Some(match channel.state {
            ChannelState::Ok => return None,
            ChannelState::Paused => Self::Paused {
                channel: name(),
                by: channel.paused_by.clone(),
                reason: channel.reason.clone(),
            },
            state => Self::Channel {
                channel: name(),
                state: state.as_str(),
                reason: channel.reason.clone(),
            },
        })
    }

    /// Whether it is told to someone who wants to hear of errors only.
    fn is_error(&self) -> bool {
        matches!(
            self,
            Self::HookFailed { .. }
                | Self::Refused { .. }
                | Self::StoreFailed { .. }
                | Self::ReloadFailed { .. }
        )
    }

    fn text(&self) -> String {
        match self {
            Self::Started => "started".into(),
            Self::Channel { channel, state, .. } if *state == ChannelState::Ok.as_str() => {
                format!("{channel}: messages flow")
            }
            Self::Channel {
                channel,
                state,
                reason,
            } => match reason {
                Some(reason) => format!("{channel}: {state}: {}", brief(reason)),
                None => format!("{channel}: {state}"),
            },
            Self::Paused {
                channel,
                by,
                reason,
            } => {
                let by = by.as_deref().unwrap_or("somebody");
                let reason = reason.as_ref().map(|it| format!(": {it}"));
                format!("{channel}: paused by {by}{}", reason.unwrap_or_default())
            }
            Self::Resumed { channel } => format!("{channel}: resumed"),
            Self::Unrouted { channel } => {
                format!("{channel}: messages wait, and no section of the settings serves it")
            }
            Self::Dead { id, channel, error } => {
                format!("{channel}: message {id} is a dead letter: {}", brief(error))
            }
            Self::Expired { messages } => format!("expired unsent: {messages}"),
            Self::HookFailed { id, error } => {
                format!("message {id} was delivered, but its hook failed: {error}")
            }
            Self::Refused { id, error } => {
                format!("message {id} refuses every change and is left alone: {error}")
            }
            Self::StoreFailed { error } => format!("the file cannot be used: {error}"),
            Self::StoreWorks => "the file can be used again".into(),
            Self::Reloaded => "the new settings are in force".into(),
            Self::ReloadFailed { error } => format!("the former settings stay in force: {error}"),
            Self::LinesLost { lines } => lines_lost(*lines),
            Self::Stopping => "stopping".into(),
            Self::Stopped => "stopped".into(),
        }
    }
}

/// The holds that were told of, by channel, each with its reason. A probe that finds the receiver as it
/// was is no change that anybody has to hear of, whatever its channel is called meanwhile.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<String, Option<String>>);

impl Told {
    /// Whether it says no more than what was told.
    pub(super) fn knows(&mut self, event: &Event) -> bool {
        let (channel, state, reason) = match event {
            Event::Channel {
                channel,
                state,
                reason,
            } => (channel, *state, reason),
            Event::Resumed { channel } => (channel, ChannelState::Ok, &None),
            _ => return false,
        };
        let same = self.0.get(channel) == Some(reason);
        match state {
            // As which it goes out as a probe.
            ChannelState::Offline if same => true,
            ChannelState::Holding => {
                self.0.insert(channel.clone(), reason.clone());
                same
            }
            _ => {
                self.0.remove(channel);
                false
            }
        }
    }
}

#[derive(Serialize)]
struct Stamped<'a> {
    at: i64,
    #[serde(flatten)]
    line: &'a Line,
}

/// Hands lines over without waiting; clones share everything.
#[derive(Debug, Clone)]
pub(super) struct Teller {
    lines: SyncSender<(i64, Line)>,
    lost: Arc<AtomicU64>,
}

impl Teller {
    pub(super) fn say(&self, line: Line) {
        if self.lines.try_send((now(), line)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The thread that writes.
#[derive(Debug)]
pub(super) struct Printer {
    done: Receiver<anyhow::Result<()>>,
    end: SyncSender<(i64, Line)>,
}

impl Printer {
    pub(super) fn start(json: bool, quiet: bool) -> anyhow::Result<(Self, Teller)> {
        let (lines, inbox) = sync_channel(WAITING);
        let (ending, done) = sync_channel(1);
        let lost = Arc::new(AtomicU64::new(0));
        let teller = Teller {
            lines: lines.clone(),
            lost: lost.clone(),
        };
        threads::start("outbox-lines", move || {
            let printed = print(&inbox, &lost, json, quiet);
            let _ = ending.try_send(printed);
        })
        .context("no thread could be started")?;
        Ok((Self { done, end: lines }, teller))
    }

    /// Waits for the last lines, though not for ever: the reader may be stuck. The first error of
    /// the output.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        drop(self.end);
        self.done.recv_timeout(LAST).unwrap_or(Ok(()))
    }
}

fn print(
    inbox: &Receiver<(i64, Line)>,
    lost: &AtomicU64,
    json: bool,
    quiet: bool,
) -> anyhow::Result<()> {
    let mut out = json.then(Out::new);
    let mut printed = Ok(());
    let mut write = |at: i64, line: &Line| match &mut out {
        // Whoever read it may have gone, its disk may be full; the service goes on.
        Some(out) => {
            let wrote = out.json(&Stamped { at, line }).and_then(|()| out.flush());
            if let (Ok(()), Err(error)) = (&printed, unless_closed(wrote)) {
                printed = Err(error);
            }
        }
        None if quiet && !line.is_error() => {}
        None => {
            let text = line.text();
            say(&format!("{} {}", exact(at), printable(&text)));
        }
    };
    for (at, line) in inbox {
        write(at, &line);
        let lines = lost.swap(0, Ordering::Relaxed);
        if lines > 0 {
            write(now(), &Line::LinesLost { lines });
        }
        if matches!(line, Line::Stopped) {
            break;
        }
    }
    printed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(state: ChannelState, reason: &str) -> Event {
        Event::Channel {
            channel: "sales".into(),
            state,
            reason: Some(reason.into()),
        }
    }

    #[test]
    fn a_hold_is_told_once_however_often_it_is_probed() {
        let mut told = Told::default();
        let holding = event(ChannelState::Holding, "HTTP 503");
        let probed = event(ChannelState::Offline, "HTTP 503");
        assert!(!told.knows(&holding));
        for _ in 0..3 {
            assert!(told.knows(&probed) && told.knows(&holding));
        }
        assert!(told.knows(&probed));
        assert!(!told.knows(&event(ChannelState::Offline, "refused")));
        assert!(!told.knows(&holding), "it is another one");
        let channel = "sales".into();
        assert!(!told.knows(&Event::Resumed { channel }));
        assert!(!told.knows(&probed));
        assert!(!told.knows(&holding));
        assert!(!told.knows(&event(ChannelState::Ok, "")));
        assert!(!told.knows(&holding));
    }
}
