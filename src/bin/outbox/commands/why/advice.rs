//! The commands that go with an explanation, ready to be pasted.

use std::borrow::Cow;
use std::path::Path;

use sqlite_outbox::{ChannelState, Conflict, Fault, Outbox, Reason, Status, Why};

use super::mend;
use super::shell::{self, last, option, quoted_path};
use crate::output::printable;
use crate::settings::Loaded;

/// The file as it was named, and the settings that go with it.
pub(super) struct Place<'a> {
    outbox: &'a Outbox,
    db: &'a Path,
    config: Option<Cow<'a, Path>>,
    loaded: Option<&'a Loaded>,
}

impl<'a> Place<'a> {
    pub(super) fn new(
        outbox: &'a Outbox,
        db: &'a Path,
        config: Option<&'a Path>,
        loaded: Option<&'a Loaded>,
    ) -> Self {
        Self {
            outbox,
            db,
            config: shell::settings(config, db),
            loaded,
        }
    }

    pub(super) fn db(&self) -> &'a Path {
        self.db
    }

    fn command(&self, name: &str, rest: &str) -> String {
        shell::command(name, self.db, rest)
    }

    /// A command that takes the settings; `None` where they are not known.
    fn with_settings(&self, name: &str, rest: &str) -> Option<String> {
        let path = quoted_path(self.config.as_deref()?);
        let gap = if rest.is_empty() { "" } else { " " };
        Some(self.command(name, &format!("{rest}{gap}--config {path}")))
    }

    /// Without settings it looks at the file only.
    fn check(&self) -> String {
        let whole = self.with_settings("check", "");
        whole.unwrap_or_else(|| self.command("check", ""))
    }

    /// What to type next for a message; for one behind another, what to type for that one.
    pub(super) fn next(&self, why: &Why) -> Vec<String> {
        if let Some(head) = &why.behind {
            return self.next(head);
        }
        if let Some(obstacle) = &why.obstacle {
            let helps = self.helps(&obstacle.command);
            return (!helps.is_empty()).then_some(helps).into_iter().collect();
        }
        let message = format!("id:{}", why.id);
        let channel = last(&why.channel);
        match why.reason {
            Reason::Dead if why.fault == Fault::Receiver => vec![
                self.command("resume", &channel),
                self.command(
                    "retry",
                    &format!("--all {}", option("--channel", &why.channel)),
                ),
            ],
            Reason::Dead if why.code.as_deref() == Some("unrecorded") => vec![
                self.check(),
                self.command("cancel", &message) + "   # the receiver has it",
            ],
            Reason::Dead if why.code.as_deref() == Some("row_refuses") => {
                vec![self.check(), self.command("retry", &message)]
            }
            Reason::Dead if why.code.as_deref() == Some("invalid") => {
                vec![self.edit(why.id, why.detail.as_deref())]
            }
            Reason::Invalid => vec![self.edit(why.id, why.detail.as_deref())],
            Reason::Dead if why.fault == Fault::Route => {
                vec![self.check(), self.command("retry", &message)]
            }
            Reason::Dead if why.is_rejected() => vec![
                self.mended(why.id),
                self.command("retry", &message) + "   # sends the same content",
            ],
            Reason::Dead | Reason::Cancelled => vec![self.command("retry", &message)],
            Reason::Expired if why.status == Status::Expired => {
                vec![self.command("retry", &message)]
            }
            Reason::Expired => {
                vec![self.command("retry", &message) + "   # once a drain has marked it expired"]
            }
            Reason::Paused
            | Reason::Unauthorised
            | Reason::NoCredentials
            | Reason::Rejecting
            | Reason::Holding => vec![self.command("resume", &channel)],
            Reason::Offline if why.fault == Fault::Program => {
                vec![self.command("resume", &channel)]
            }
            Reason::Scheduled => {
                let rest = format!("{message} --available now");
                vec![self.command("edit", &rest) + "   # where it should not wait"]
            }
            Reason::Offline if why.fault == Fault::Route => {
                vec![self.check(), self.command("resume", &channel)]
            }
            // The receiver's own wish comes before a message's moment.
            Reason::BackOff if why.channel_state == ChannelState::Holding => vec![
                self.command("edit", &format!("{message} --available now")),
                self.command("resume", &channel) + "   # where they should not wait",
            ],
            Reason::BackOff if why.fault == Fault::Route => vec![
                self.check(),
                self.command("edit", &format!("{message} --available now")),
            ],
            Reason::BackOff => {
                let rest = format!("{message} --available now");
                vec![self.command("edit", &rest) + "   # where it should not wait"]
            }
            Reason::FarAhead => {
                vec![self.command("edit", &format!("{message} --available now"))]
            }
            Reason::Sent if why.sent_again => {
                let latest = why
                    .sent_as
                    .map(|id| self.command("why", &format!("id:{id}")));
                let show = self.command("show", &message);
                [Some(show), latest].into_iter().flatten().collect()
            }
            Reason::Sent if why.fault == Fault::Network => vec![
                self.command("show", &message),
                self.command("send-again", &message) + "   # where the receiver has not got it",
            ],
            Reason::NoDrain if !why.forbidden => {
                self.with_settings("run", "").into_iter().collect()
            }
            Reason::Unrouted => {
                let meant = self.loaded.and_then(|it| it.meant(&why.channel));
                let edit = meant.map(|it| {
                    let rest = format!("{message} {}", option("--to-channel", it));
                    let remark = format!("   # where {} was meant", printable(it));
                    self.command("edit", &rest) + &remark
                });
                let check = self.check();
                [check].into_iter().chain(edit).collect()
            }
            Reason::NoOther => self.with_settings("curl", &message).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// For a message that cannot be sent as it is: the edit that reaches what is wrong.
    pub(super) fn edit(&self, id: i64, reason: Option<&str>) -> String {
        let stored = || self.outbox.get(id).ok().flatten()?.headers;
        let (name, rest) = mend::change(reason, stored);
        self.command(name, &format!("id:{id}{rest}"))
    }

    /// For a message whose content was rejected: another one.
    pub(super) fn mended(&self, id: i64) -> String {
        let edit = self.command("edit", &format!("id:{id} --file mended.json"));
        edit + "   # with what is wrong put right in mended.json"
    }

    /// For all dead letters of one kind, of one channel or of all.
    pub(super) fn retry_group(&self, channel: Option<&str>, code: &str) -> String {
        self.group("retry", channel, code)
    }

    fn group(&self, name: &str, channel: Option<&str>, code: &str) -> String {
        let channel = channel.map_or(String::new(), |it| option("--channel", it) + " ");
        let code = option("--code", code);
        self.command(name, &format!("--all {channel}{code}"))
    }

    /// For all dead letters that the receiver has taken, of one channel or of all.
    pub(super) fn cancel_group(&self, channel: Option<&str>, code: &str) -> String {
        self.group("cancel", channel, code)
    }

    /// The command of a finding.
    pub(super) fn helps(&self, words: &[String]) -> String {
        match words.split_first() {
            Some((name, rest)) => self.command(name, &rest.join(" ")),
            None => String::new(),
        }
    }

    pub(super) fn resume(&self, channel: &str) -> String {
        self.command("resume", &last(channel))
    }

    /// Where a conflict is settled: of the whole file, or of one message.
    pub(super) fn conflicts(&self, of: &[Conflict]) -> String {
        let ids: Vec<_> = of.iter().map(|it| it.id.to_string()).collect();
        self.command("conflicts", &ids.join(" "))
    }

    /// What cannot be known from the file alone, where the answer hangs on it.
    pub(super) fn caveat(&self, why: &Why) -> Option<&'static str> {
        /// A drain that runs takes what is due within seconds, unless very much is.
        const LONG: i64 = 60_000;
        let why = why.behind.as_deref().unwrap_or(why);
        let due = why.since.map_or(0, |at| why.now.saturating_sub(at));
        match why.reason {
            _ if why.routed.is_some() || why.obstacle.is_some() => None,
            Reason::Due if due > LONG => Some(
                "A drain has run since and left it: its turn has not come, or its channel has no \
                 route there, which is known only with --config.",
            ),
            Reason::Due | Reason::NoDrain => {
                Some("Whether its channel has a route is known only with --config.")
            }
            _ => None,
        }
    }
}
