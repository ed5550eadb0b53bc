//! Why a message waits, in the few words that fit into a line: the same in every list.

use std::fmt;

use sqlite_outbox::{Reason, Status, Why};

use crate::output::{age, brief, thousands};

/// What holds it up. Where its whole channel is in trouble, what was last heard of that.
pub(super) fn few(why: &Why) -> String {
    let heard = |words: &str| match why.detail.as_deref().map(brief) {
        Some(heard) if !heard.is_empty() => heard.to_owned(),
        _ => words.to_owned(),
    };
    let after = |words: String| match why.detail.as_deref().map(brief) {
        Some(heard) if !heard.is_empty() => format!("{words}; {heard}"),
        _ => words,
    };
    if let Some(obstacle) = &why.obstacle {
        return obstacle.text.clone();
    }
    match why.reason {
        Reason::Behind { id, status } => match status {
            Status::Dead => format!("behind dead letter {id}"),
            _ => format!("behind message {id}, which is {status}"),
        },
        Reason::Scheduled => format!("scheduled, due in {}", until(why)),
        Reason::BackOff => after(format!("failed, not tried again for {}", until(why))),
        Reason::Claimed { stale: false, .. } => {
            format!("being sent; its lease ends in {}", until(why))
        }
        Reason::Claimed { .. } => "claimed by a process that seems to have ended".into(),
        Reason::Expired => "expired; the next drain marks it so".into(),
        Reason::Due => after("due".into()),
        Reason::NoDrain => after("due, and no drain runs".into()),
        Reason::Invalid => "cannot be sent as stored".into(),
        Reason::FarAhead => "scheduled too far ahead to be meant".into(),
        Reason::NoOther => heard("failing, and its channel has no other to try"),
        Reason::Offline => heard("the receiver cannot be reached or fails"),
        Reason::Unauthorised => heard("the credentials are not accepted"),
        Reason::NoCredentials => heard("the credentials cannot be had here"),
        Reason::Rejecting => heard("the receiver rejects everything"),
        Reason::Holding => {
            let heard = heard("the receiver asked for a pause");
            match why.until {
                Some(_) => format!("{heard}; goes on in {}", until(why)),
                None => heard,
            }
        }
        Reason::Paused => format!("paused by {}", heard("somebody")),
        Reason::Unrouted => "no section of the settings serves it".into(),
        // What is settled is not left.
        reason => reason.code().replace('_', " "),
    }
}

/// How many wait for something, and how many stand behind these.
pub(super) struct Told {
    pub(super) words: String,
    pub(super) own: u64,
    pub(super) behind: u64,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (own, behind) = (thousands(self.own), thousands(self.behind));
        match (self.own, self.behind) {
            (_, 0) => write!(f, "{own} {}", self.words),
            (0, _) => write!(f, "{behind} behind: {}", self.words),
            _ => write!(f, "{own} {}, and {behind} behind", self.words),
        }
    }
}

fn until(why: &Why) -> String {
    let left = why.until.map_or(0, |it| it.saturating_sub(why.now));
    age(left.max(0))
}
