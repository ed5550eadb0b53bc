//! The commands that go with an explanation, ready to be pasted.

use std::path::Path;

use sqlite_outbox::{Conflict, Fault, Outbox, Reason, Status, Why};

use super::shell::{last, option, quoted_path};
use crate::output::printable;
use crate::settings::Loaded;

/// The file, and the settings if they were given.
pub(super) struct Place<'a> {
    outbox: &'a Outbox,
    config: Option<&'a Path>,
    loaded: Option<&'a Loaded>,
}

impl<'a> Place<'a> {
    pub(super) fn new(
        outbox: &'a Outbox,
        config: Option<&'a Path>,
        loaded: Option<&'a Loaded>,
    ) -> Self {
        Self {
            outbox,
            config,
            loaded,
        }
    }

    fn command(&self, name: &str, rest: &str) -> String {
        let db = quoted_path(self.outbox.path());
        let gap = if rest.is_empty() { "" } else { " " };
        format!("outbox {name} {db}{gap}{rest}")
    }

    fn config(&self) -> String {
        let path = self.config.map(quoted_path);
        format!("--config {}", path.as_deref().unwrap_or("FILE"))
    }

    /// What to type next for a message; for one behind another, what to type for that one.
    pub(super) fn next(&self, why: &Why) -> Vec<String> {
        if let Some(head) = &why.behind {
            return self.next(head);
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
            Reason::Dead if why.code.as_deref() == Some("invalid") => {
                vec![self.edit(why.id, why.detail.as_deref())]
            }
            Reason::Invalid => vec![self.edit(why.id, why.detail.as_deref())],
            Reason::Dead if why.fault == Fault::Route => vec![
                self.command("check", &self.config()),
                self.command("retry", &message),
            ],
            Reason::Dead | Reason::Cancelled => vec![self.command("retry", &message)],
            Reason::Expired if why.status == Status::Expired => {
                vec![self.command("retry", &message)]
            }
            Reason::Paused
            | Reason::Unauthorised
            | Reason::NoCredentials
            | Reason::Rejecting
            | Reason::Holding => vec![self.command("resume", &channel)],
            Reason::Scheduled => {
                let rest = format!("{message} --available now");
                vec![self.command("edit", &rest) + "   # where it should not wait"]
            }
            Reason::Offline if why.fault == Fault::Route => vec![
                self.command("check", &self.config()),
                self.command("resume", &channel),
            ],
            Reason::BackOff if why.fault == Fault::Route => vec![
                self.command("check", &self.config()),
                self.command("edit", &format!("{message} --available now")),
            ],
            Reason::BackOff => {
                let rest = format!("{message} --available now");
                vec![self.command("edit", &rest) + "   # where it should not wait"]
            }
            Reason::FarAhead => {
                vec![self.command("edit", &format!("{message} --available now"))]
            }
            Reason::Sent if why.sent_again => vec![self.command("show", &message)],
            Reason::Sent if why.fault == Fault::Network => vec![
                self.command("show", &message),
                self.command("send-again", &message) + "   # where the receiver has not got it",
            ],
            Reason::NoDrain if !why.forbidden => vec![self.command("run", &self.config())],
            Reason::Unrouted => {
                let meant = self.loaded.and_then(|it| it.meant(&why.channel));
                let edit = meant.map(|it| {
                    let rest = format!("{message} {}", option("--to-channel", it));
                    let remark = format!("   # where {} was meant", printable(it));
                    self.command("edit", &rest) + &remark
                });
                let check = self.command("check", &self.config());
                [check].into_iter().chain(edit).collect()
            }
            Reason::NoOther => {
                let rest = format!("{message} {}", self.config());
                vec![self.command("curl", &rest)]
            }
            _ => Vec::new(),
        }
    }

    /// For a message that cannot be sent as it is: the edit that reaches what is wrong, which the
    /// reason begins with.
    pub(super) fn edit(&self, id: i64, reason: Option<&str>) -> String {
        // What its route wants of it is at the end, what its row has at the beginning.
        let lacks = |it: &'static str| reason.and_then(move |reason| reason.split(it).nth(1));
        let rest = lacks("the message has no ").or(reason);
        let column = rest.and_then(|it| it.split_whitespace().next());
        let column = column.map(|it| it.trim_matches([',', '.', ';', ':']));
        if column == Some("claims") {
            return self.command("cancel", &format!("id:{id}"));
        }
        let (change, remark) = match column.unwrap_or_default() {
            "channel" => ("--to-channel CHANNEL", ""),
            "ordering_key" => ("--ordering-key KEY", "or '' for none"),
            "dedupe_key" => ("--key KEY", ""),
            "message_id" => ("--new-message-id", ""),
            "event_type" => ("--event-type TYPE", "or '' for none"),
            "recipient" => ("--recipient RECIPIENT", "or '' for none"),
            "principal" => ("--principal PRINCIPAL", "or '' for none"),
            "content_type" => ("--content-type TYPE", ""),
            _ => (
                "--header 'NAME: VALUE'",
                "or --no-headers, --content-type, another payload",
            ),
        };
        let remark = match remark {
            "" => String::new(),
            remark => format!("   # {remark}"),
        };
        self.command("edit", &format!("id:{id} {change}")) + &remark
    }

    /// For all dead letters of one kind, of one channel or of all.
    pub(super) fn retry_group(&self, channel: Option<&str>, code: &str) -> String {
        let channel = channel.map_or(String::new(), |it| option("--channel", it) + " ");
        let code = option("--code", code);
        self.command("retry", &format!("--all {channel}{code}"))
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
            _ if why.routed.is_some() => None,
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
