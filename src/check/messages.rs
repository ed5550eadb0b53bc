//! What is odd about messages, one by one.

use Severity::{Fault, Note, Warning};

use super::{DAY, HOUR};
use crate::clock::{FIRST_HONEST, millis};
use crate::condition::{Finding, Severity};
use crate::entry::Status;
use crate::error::Result;
use crate::printable::printable_name;
use crate::retry::LONGEST_WAIT;
use crate::settings::MAX_LEASE;
use crate::stats::{Age, far_ahead};
use crate::store::check::{self, Seen};
use crate::store::{settle, why};

/// A message that others stand behind, and that has failed for so long, is looked at by a person: they
/// wait for two and a half days else, until it is dead.
const HELD: i64 = HOUR;

/// Only a look at every row finds these.
pub(super) fn rows(conn: &rusqlite::Connection, _: i64) -> Result<Vec<Finding>> {
    let odd = check::odd(conn)?;
    let impossible = finding(
        odd.impossible,
        Fault,
        "impossible_row",
        "impossible: it breaks a rule of the table",
        "somebody wrote them past the checks; look at the first, and find out who",
    );
    let impossible = impossible.map(|it| match odd.impossible.first {
        Some(id) => it.command(["show".into(), format!("id:{id}")]),
        None => it,
    });
    let undated = finding(
        odd.undated,
        Note,
        "settled_without_date",
        "settled or dead without a date",
        "their status was set by hand without settled_at; a purge leaves them",
    );
    let orphans = finding(
        check::orphans(conn)?,
        Note,
        "orphan_attempts",
        "gone, but a record of failed attempts is left",
        "harmless; they were deleted with triggers off",
    );
    Ok([impossible, undated, orphans]
        .into_iter()
        .flatten()
        .collect())
}

/// What is odd about the moments of what is unsent.
#[derive(Debug, Default)]
struct Moments {
    /// Claimed for longer than any lease.
    leased: Seen,
    /// Due later than any back-off, without a schedule.
    distant: Seen,
    /// Enqueued in the future.
    future: Seen,
    /// Scheduled for a moment that hardly anyone means.
    far: Seen,
    /// It was charged and may hold others up.
    charged: Vec<i64>,
}

impl Moments {
    fn of(conn: &rusqlite::Connection, now: i64) -> Result<Self> {
        let lease = now.saturating_add(2 * millis(MAX_LEASE));
        let backoff = now.saturating_add(LONGEST_WAIT);
        let schedule = far_ahead(now);
        let mut odd = Self::default();
        for group in why::groups(conn)?.iter().filter(|it| !it.is("dead")) {
            why::each(conn, group, |row| {
                let times = &row.times;
                let due = times.next_attempt_at;
                let available = times.available_at.unwrap_or_default();
                let sending = row.status == Status::Sending;
                odd.leased.note(row.id, sending && due > lease);
                odd.distant
                    .note(row.id, !sending && due > backoff && due > available);
                odd.far.note(row.id, !sending && available > schedule);
                let created = times.created_at;
                odd.future.note(row.id, created > now.saturating_add(DAY));
                if row.status == Status::Pending && times.attempts > 0 && row.keyed && !row.behind {
                    odd.charged.push(row.id);
                }
                Ok(())
            })?;
        }
        Ok(odd)
    }
}

/// Messages that wait for what no clock will bring, and those that wait behind one that fails.
pub(super) fn unsent(conn: &rusqlite::Connection, now: i64) -> Result<Vec<Finding>> {
    let odd = Moments::of(conn, now)?;
    let paused = match odd.leased.first {
        Some(id) => paused(conn, id)?,
        None => None,
    };
    let leased = finding(
        odd.leased,
        Warning,
        "lease_in_future",
        "claimed until a moment that no lease reaches",
        match paused {
            None => {
                "a clock was wrong when they were claimed; the next drain or run takes them back"
            }
            Some(_) => {
                "resume their channel, which is paused; the next drain or run then takes them \
                 back. A clock was wrong when they were claimed"
            }
        },
    );
    let leased = leased.map(|it| match &paused {
        Some(channel) => it.command(["resume", channel]).channel(channel),
        None => it,
    });
    let distant = finding(
        odd.distant,
        Warning,
        "due_in_future",
        "due later than any back-off reaches, and not scheduled",
        "a clock was wrong when they failed, or the moment was written in another unit than \
         milliseconds; `drain --now` makes them due",
    );
    let far = finding(
        odd.far,
        Warning,
        "scheduled_far_ahead",
        "scheduled more than ten years ahead",
        "the moment looks like another unit: times are milliseconds since 1970 UTC; give \
         each the moment that was meant, or cancel it",
    );
    let far = far.map(|it| match odd.far.first {
        Some(id) => it.command([
            "edit".into(),
            format!("id:{id}"),
            "--available".into(),
            "now".into(),
        ]),
        None => it,
    });
    let future = finding(
        odd.future,
        Warning,
        "enqueued_in_future",
        "enqueued more than a day in the future",
        "a clock was or is wrong: compare this machine's with the right time. They go out all the same, and \
         this is over when they are sent",
    );
    let held = held(conn, &odd.charged, now)?;
    Ok([leased, distant, far, future, held]
        .into_iter()
        .flatten()
        .collect())
}

/// Ordering keys whose first message has failed for long while others of its channel arrived.
fn held(conn: &rusqlite::Connection, charged: &[i64], now: i64) -> Result<Option<Finding>> {
    let mut holders = Vec::new();
    for id in charged {
        let since = settle::first_charge(conn, *id, FIRST_HONEST)?;
        let Some(since) = since.filter(|at| now.saturating_sub(*at) >= HELD) else {
            continue;
        };
        let behind = check::behind(conn, *id)?;
        if behind > 0 {
            holders.push((*id, since, behind));
        }
    }
    let Some((id, since, behind)) = holders.iter().copied().max_by_key(|it| it.2) else {
        return Ok(None);
    };
    let channel = why::facts(conn, id)?
        .map(|it| it.channel)
        .unwrap_or_default();
    let others = match holders.len() - 1 {
        0 => String::new(),
        more => format!("; {more} more ordering keys are held up so"),
    };
    let text = format!(
        "{}: message {id} has failed for {}, and {behind} of its ordering key wait behind it{others}",
        printable_name(&channel),
        Age(now.saturating_sub(since))
    );
    let remedy = "others of its channel arrive: look at its error, mend what is wrong with it, or cancel it; then \
                  those behind it go on";
    let finding = Finding::new(Warning, "held_lane", text, remedy);
    let finding = finding.of(holders.len() as u64, Some(id));
    Ok(Some(
        finding
            .command(["why".into(), format!("id:{id}")])
            .channel(channel),
    ))
}

fn finding(
    seen: Seen,
    severity: Severity,
    code: &'static str,
    what: &str,
    remedy: &str,
) -> Option<Finding> {
    let text = match (seen.count, seen.first) {
        (0, _) => return None,
        (1, Some(id)) => format!("message {id} is {what}"),
        (count, Some(id)) => format!("{count} messages are {what}, the first is {id}"),
        (count, None) => format!("{count} messages are {what}"),
    };
    Some(Finding::new(severity, code, text, remedy).of(seen.count, seen.first))
}

/// The channel of a message, if a person has paused it.
fn paused(conn: &rusqlite::Connection, id: i64) -> Result<Option<String>> {
    let Some(facts) = why::facts(conn, id)? else {
        return Ok(None);
    };
    let state = why::state(conn, &facts.channel)?;
    Ok(state.pause.map(|_| facts.channel))
}
