//! Whether a file and its outbox are well: what is found, and what to do about it.

mod channel;
pub(crate) mod contract;
pub(crate) mod storage;
pub(crate) mod triggers;
mod unnoticed;

use std::collections::HashMap;

use crate::clock::{FIRST_HONEST, millis};
use crate::condition::{Finding, Severity};
use crate::error::{Error, Result};
use crate::outbox::Outbox;
use crate::printable::printable_name;
use crate::retry::LONGEST_WAIT;
use crate::settings::MAX_LEASE;
use crate::stats::{Age, ChannelState, ChannelStats, Stats, far_ahead};
use crate::store::check::{self, Damages, Horizon, Seen};
use crate::store::patience::Patience;
use crate::store::{census, read, why};

use Severity::{Fault, Note, Warning};

const QUARTER: i64 = 15 * 60_000;
const HOUR: i64 = 4 * QUARTER;
const DAY: i64 = 24 * HOUR;

const DAMAGED: &str = "damaged";

const UNATTENDED: &str = "unattended";

impl Outbox {
    /// Looks for everything that is wrong with the file and its outbox, the gravest first, and says
    /// what to do about it. Changes nothing.
    ///
    /// It reads the whole file, table by table, about a second per 100 MB. In a file without a
    /// write-ahead log the application's commits wait meanwhile: whoever has waited for two seconds breaks off
    /// the look at that table, and a finding (`not_checked`) names it.
    pub fn check(&self) -> Result<Vec<Finding>> {
        let conn = self.shared().opener().open()?;
        let now = self.shared().clock().wall();
        let info = self.shared().opener().info(&conn)?;
        let patience = Patience::of(self.shared().opener(), &conn, self.shared().clock())?;
        let mut found = damages(&conn, patience.as_ref())?;
        let parts = [
            (|conn, _| contract::parts(conn))
                as fn(&rusqlite::Connection, i64) -> Result<Vec<Finding>>,
            |conn, _| contract::writer(conn),
            |conn, _| contract::ids(conn),
            clock,
            messages,
            lanes,
            channels,
            counts,
            |conn, _| unnoticed::findings(conn),
            |conn, _| triggers::findings(conn),
        ];
        for part in parts {
            match part(&conn, now) {
                Ok(more) => found.extend(more),
                // Found by its part.
                Err(Error::Incomplete { .. }) => {}
                // What is damaged cannot be read; mostly that is said already.
                Err(Error::Damaged(cause)) => {
                    if !found.iter().any(|it| it.code == DAMAGED) {
                        found.push(damage(&cause.to_string()));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        found.extend(storage::findings(&info, rusqlite::version_number()));
        if let Some(hindrance) = storage::hindrance(&conn)? {
            found.insert(0, hindrance);
        }
        // Nobody can send: to start what sends would not help.
        if found
            .iter()
            .any(|it| matches!(it.code, "write_lock" | "schema_too_new"))
        {
            found.retain(|it| it.code != UNATTENDED);
        }
        found.sort_by_key(Finding::rank);
        Ok(found)
    }

    /// What keeps the messages of the file from being sent, or this program from sending them, whatever
    /// the channels say: parts of the outbox that are missing, a newer program that forbids it, a write
    /// lock that somebody keeps, a file that this user may not write. Changes nothing; takes two seconds
    /// where the lock is kept, else a moment. [`check`](Self::check) has them too.
    pub fn obstacles(&self) -> Result<Vec<Finding>> {
        let conn = self.shared().opener().open()?;
        let mut found = contract::parts(&conn)?;
        found.extend(contract::writer(&conn)?);
        found.extend(storage::hindrance(&conn)?);
        found.sort_by_key(Finding::rank);
        Ok(found)
    }

    /// What went wrong without anybody being told: messages that expired at once, as their moment was
    /// written in another unit, and messages that were sent and answered by a web page, but for those
    /// that were [sent again](crate::Operator::send_again). Of each channel the newest 1000 are looked
    /// at, and where there are more than 20 channels, 20,000 in all, but 10 of each. [`check`](Self::check)
    /// has them too.
    pub fn unnoticed(&self) -> Result<Vec<Finding>> {
        unnoticed::findings(&*self.shared().reader()?)
    }
}

impl ChannelStats {
    /// Whether its state asks for a person, as [`Outbox::check`] has it: probing alone mends nothing, or a
    /// pause is long forgotten.
    pub fn needs_person(&self, now: i64) -> bool {
        channel::state(self, now).is_some_and(|it| it.needs_person())
    }
}

fn damages(conn: &rusqlite::Connection, patience: Option<&Patience>) -> Result<Vec<Finding>> {
    let Damages { said, left } = match check::damages(conn, patience) {
        Ok(found) => found,
        Err(Error::Damaged(cause)) => Damages {
            said: vec![cause.to_string()],
            left: Vec::new(),
        },
        Err(error) => return Err(error),
    };
    let damages = said.into_iter().map(|word| {
        // A row that breaks a rule is no damage of the file: somebody switched the checks off.
        if word.contains("constraint failed") || word.contains("NULL value in") {
            return Finding::new(
                Warning,
                "broken_rule",
                format!("a row breaks a rule of its table: {word}"),
                "some program wrote past the checks: find out which, and mend the row",
            );
        }
        damage(&word)
    });
    Ok(damages.chain(not_checked(&left)).collect())
}

fn not_checked(tables: &[String]) -> Option<Finding> {
    /// Tables that are named.
    const NAMED: usize = 5;
    let named: Vec<_> = tables
        .iter()
        .take(NAMED)
        .map(|it| printable_name(it))
        .collect();
    let named = named.join(", ");
    let text = match tables.len().saturating_sub(NAMED) {
        _ if tables.is_empty() => return None,
        0 => format!("for damage, this was not looked at to the end: {named}"),
        more => format!("for damage, this was not looked at to the end: {named} and {more} more"),
    };
    let remedy = "without a write-ahead log a look keeps the application from committing, and it has waited \
                  for two seconds: look while it is closed, or at a copy that `outbox backup` makes";
    let finding = Finding::new(Warning, "not_checked", text, remedy);
    Some(finding.of(tables.len() as u64, None))
}

fn damage(word: &str) -> Finding {
    Finding::new(
        Fault,
        DAMAGED,
        format!("the file is damaged: {word}"),
        "stop all programs, keep a copy of the file and its -wal, and restore a backup, or save \
         what can be read with `sqlite3 FILE .recover`",
    )
}

fn counts(conn: &rusqlite::Connection, _: i64) -> Result<Vec<Finding>> {
    let wrong = census::wrong(conn)?;
    if wrong == 0 {
        return Ok(Vec::new());
    }
    let finding = Finding::new(
        Warning,
        "wrong_count",
        "the number of unsent messages is told wrongly",
        format!(
            "`{}` in sqlite3 is harmless and has them counted anew; some program changed messages \
             with triggers off: find out which",
            census::FORGET
        ),
    );
    Ok(vec![finding.of(wrong, None)])
}

fn clock(conn: &rusqlite::Connection, now: i64) -> Result<Vec<Finding>> {
    let newest = check::newest(conn)?;
    let behind = newest.map_or(0, |newest| newest.saturating_sub(now));
    let text = if now < FIRST_HONEST {
        "this machine's clock stands before 2026".to_string()
    } else if behind > DAY {
        format!(
            "this machine's clock stands {} before the newest message",
            Age(behind)
        )
    } else {
        return Ok(Vec::new());
    };
    let remedy = "set the clock; until then nothing expires and no schedule is kept";
    Ok(vec![Finding::new(Fault, "clock", text, remedy)])
}

fn messages(conn: &rusqlite::Connection, now: i64) -> Result<Vec<Finding>> {
    let horizon = Horizon {
        lease: now.saturating_add(2 * millis(MAX_LEASE)),
        backoff: now.saturating_add(LONGEST_WAIT),
        enqueue: now.saturating_add(DAY),
        schedule: far_ahead(now),
    };
    let odd = check::odd(conn, horizon)?;
    let orphans = check::orphans(conn)?;
    let paused = match odd.leased.first {
        Some(id) => paused(conn, id)?,
        None => None,
    };
    let cases = [
        (
            odd.impossible,
            Fault,
            "impossible_row",
            "impossible: it breaks a rule of the table",
            "somebody wrote them past the checks; look at the first, and find out who",
        ),
        (
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
        ),
        (
            odd.distant,
            Warning,
            "due_in_future",
            "due later than any back-off reaches, and not scheduled",
            "a clock was wrong when they failed, or the moment was written in another unit than \
             milliseconds; `drain --now` makes them due",
        ),
        (
            odd.far,
            Warning,
            "scheduled_far_ahead",
            "scheduled more than ten years ahead",
            "the moment looks like another unit: times are milliseconds since 1970 UTC; give \
             each the moment that was meant, or cancel it",
        ),
        (
            odd.future,
            Warning,
            "enqueued_in_future",
            "enqueued more than a day in the future",
            "a clock was or is wrong; compare this machine's with the right time",
        ),
        (
            odd.undated,
            Note,
            "settled_without_date",
            "settled or dead without a date",
            "their status was set by hand without settled_at; a purge leaves them",
        ),
        (
            orphans,
            Note,
            "orphan_attempts",
            "gone, but a record of failed attempts is left",
            "harmless; they were deleted with triggers off",
        ),
    ];
    let finding = |(seen, severity, code, what, remedy): (Seen, Severity, _, &str, &str)| {
        let text = match (seen.count, seen.first) {
            (1, Some(id)) => format!("message {id} is {what}"),
            (count, Some(id)) => format!("{count} messages are {what}, the first is {id}"),
            (count, None) => format!("{count} messages are {what}"),
        };
        (seen.count > 0)
            .then(|| Finding::new(severity, code, text, remedy).of(seen.count, seen.first))
            .map(|it| match (code, seen.first) {
                ("impossible_row", Some(id)) => it.command(["show".into(), format!("id:{id}")]),
                ("scheduled_far_ahead", Some(id)) => it.command([
                    "edit".into(),
                    format!("id:{id}"),
                    "--available".into(),
                    "now".into(),
                ]),
                ("lease_in_future", _) => match &paused {
                    Some(channel) => it.command(["resume", channel]).channel(channel),
                    None => it,
                },
                _ => it,
            })
    };
    Ok(cases.into_iter().filter_map(finding).collect())
}

/// The channel of a message, if a person has paused it.
fn paused(conn: &rusqlite::Connection, id: i64) -> Result<Option<String>> {
    let Some(facts) = why::facts(conn, id)? else {
        return Ok(None);
    };
    let state = why::state(conn, &facts.channel)?;
    Ok(state.pause.map(|_| facts.channel))
}

fn lanes(conn: &rusqlite::Connection, _: i64) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    let headless = check::headless(conn)?;
    if headless > 0 {
        let keys = match headless {
            1 => "an ordering key".into(),
            many => format!("{many} ordering keys"),
        };
        let text = format!("messages of {keys} wait, and nothing is before them");
        let remedy = "the next drain or run mends it; INSERT OR REPLACE or \
                      triggers that were off leave such lanes";
        found.push(Finding::new(Warning, "headless_lane", text, remedy).of(headless, None));
    }
    let mut many = 0;
    for channel in read::channels(conn)? {
        many += check::many_headed(conn, &channel)?;
    }
    if many > 0 {
        let text = match many {
            1 => "an ordering key has more than one message that may be sent now".into(),
            _ => format!("{many} ordering keys have more than one message that may be sent now"),
        };
        let remedy = "their order is not kept; insert channel and ordering key into the view \
                      outbox_lane_procedure, and find out who wrote with triggers off";
        found.push(Finding::new(Fault, "many_headed_lane", text, remedy).of(many, None));
    }
    Ok(found)
}

fn channels(conn: &rusqlite::Connection, now: i64) -> Result<Vec<Finding>> {
    let stats: Stats = crate::store::stats::stats(conn, now)?;
    let known: HashMap<&str, &ChannelStats> =
        stats.channels.iter().map(|it| (&*it.channel, it)).collect();
    let mut found = Vec::new();
    for name in read::channels(conn)? {
        let shown = name.show();
        let told = printable_name(&shown);
        let Some(channel) = known.get(&*shown) else {
            continue;
        };
        found.extend(channel::state(channel, now));
        let dead = channel.counts.dead;
        if dead > 0 {
            let text = format!("{told}: dead letters wait for a person: {dead}");
            let remedy = "look at them, mend the cause, then retry or cancel them";
            // Nobody can type a name that is no text.
            let list = ["list", "--status", "dead", "--channel", &shown];
            let list = if name.is_text() {
                &list[..]
            } else {
                &["list", "--status", "dead"]
            };
            found.push(
                Finding::new(Warning, "dead_letters", text, remedy)
                    .command(list.iter().copied())
                    .of(dead, None)
                    .channel(&shown),
            );
        }
        if let Some(skew) = channel.clock_skew {
            let by = Age(skew.saturating_abs());
            let text = format!("{told}: the receiver's clock and this machine's differ by {by}");
            let remedy = "set this machine's clock by the network, or tell the receiver";
            found.push(Finding::new(Warning, "clock_skew", text, remedy).channel(&shown));
        }
        if (channel.state == ChannelState::Ok || channel::unprobed(channel, now))
            && check::unattended(conn, &name, now.saturating_sub(QUARTER), now)?
        {
            let text = format!(
                "{told}: messages have been due for a quarter of an hour, and nobody sends them"
            );
            let remedy = "no program drains this channel: start the program that sends, \
                          or `outbox run`, with a route for it";
            found.push(Finding::new(Warning, UNATTENDED, text, remedy).channel(&shown));
        }
    }
    if stats.conflicts > 0 {
        let count = stats.conflicts;
        let text = format!("messages with a key that was taken by other content: {count}");
        let remedy = "they are not sent; compare each with the key's holder, then enqueue it under \
                      another key, let it replace the holder, or drop it";
        let finding = Finding::new(Warning, "conflicts", text, remedy).command(["conflicts"]);
        found.push(finding.of(count, None));
    }
    Ok(found)
}
