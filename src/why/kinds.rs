//! What the whole file waits for: every unsent message told apart by its reason.

use crate::circuit::Channel;
use crate::dispatch::Dispatcher;
use crate::entry::Status;
use crate::error::Result;
use crate::outbox::Outbox;
use crate::store::why::{self as evidence, Row};
use crate::why::explain::{Asked, Whole};
use crate::why::stage::{Stage, is_stale};
use crate::why::{Why, WhyGroup};

/// All that tells the reason of one message from that of another in its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Claimed {
        stale: bool,
    },
    Unsendable,
    Waits {
        stage: Stage,
        behind: bool,
        /// It is due, and nobody seems to send it.
        forgotten: bool,
    },
}

/// Explains one message of each reason in each channel.
pub(super) fn why_all(
    outbox: &Outbox,
    dispatcher: Option<&dyn Dispatcher>,
) -> Result<Vec<WhyGroup>> {
    let conn = outbox.shared().reader()?;
    let whole = Whole::default();
    let asked = Asked::new(outbox, &conn, dispatcher, &whole);
    let mut groups = Vec::new();
    for group in evidence::groups(&conn)? {
        for (messages, id) in kinds(&asked, &group)? {
            // Else it was purged or deleted since.
            let Some(why) = asked.why(id)? else {
                continue;
            };
            add(&mut groups, messages, why);
        }
    }
    Ok(groups)
}

/// What holds a whole channel holds each kind of its messages, and these stand together.
pub(super) fn add(groups: &mut Vec<WhyGroup>, messages: u64, why: Why) {
    let own = groups.iter_mut().rev();
    let mut own = own.take_while(|it| it.why.channel == why.channel);
    match own.find(|it| it.why.reason.code() == why.reason.code()) {
        Some(group) => group.messages += messages,
        None => groups.push(WhyGroup { messages, why }),
    }
}

/// How many of a group are of one kind, and the first of them.
fn kinds(asked: &Asked<'_>, group: &evidence::Group) -> Result<Vec<evidence::Kind>> {
    if group.is("dead") {
        return Ok(vec![(group.count, group.last)]);
    }
    // Of one there is nothing to be told apart.
    if group.count == 1 {
        return Ok(vec![(1, group.first)]);
    }
    let mut kinds: Vec<(Kind, u64, i64)> = Vec::new();
    let state = evidence::state(asked.conn, &group.channel.show())?;
    evidence::each(asked.conn, group, |row| {
        let kind = kind(asked, &row, &state)?;
        match kinds.iter_mut().find(|(known, ..)| *known == kind) {
            Some((_, messages, _)) => *messages += 1,
            None => kinds.push((kind, 1, row.id)),
        }
        Ok(())
    })?;
    Ok(kinds
        .into_iter()
        .map(|(_, messages, id)| (messages, id))
        .collect())
}

fn kind(asked: &Asked<'_>, row: &Row, state: &Channel) -> Result<Kind> {
    let times = &row.times;
    if row.status == Status::Sending {
        let stale = is_stale(times.next_attempt_at, asked.now);
        return Ok(Kind::Claimed { stale });
    }
    if row.unsendable {
        return Ok(Kind::Unsendable);
    }
    let stage = Stage::of(times, state, asked.now);
    Ok(Kind::Waits {
        stage,
        behind: row.behind,
        forgotten: stage == Stage::Due && asked.is_forgotten(times.due_since())?,
    })
}
