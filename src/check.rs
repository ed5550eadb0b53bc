//! Whether a file and its outbox are well: what is found, and what to do about it.

mod channel;
pub(crate) mod contract;
mod messages;
pub(crate) mod storage;
pub(crate) mod triggers;
mod unnoticed;

use std::collections::HashMap;

use crate::clock::FIRST_HONEST;
use crate::condition::{Finding, Severity};
use crate::error::{Error, Result, unless_damaged};
use crate::outbox::Outbox;
use crate::printable::printable_name;
use crate::stats::{Age, ChannelState, ChannelStats, Stats};
use crate::store::check::{self, Damages};
use crate::store::patience::Patience;
use crate::store::read::Name;
use crate::store::{census, read};

use Severity::{Fault, Warning};

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
        self.look(true)
    }

    /// As [`check`](Self::check), for whoever asks often: all but damage, and rows that break a rule of their
    /// table, which only a look at every page and row finds. It reads the indexes and every unsent message but
    /// for its payload, about a second for 300,000 of them, in steps that keep nobody waiting.
    pub fn check_quickly(&self) -> Result<Vec<Finding>> {
        self.look(false)
    }

    fn look(&self, whole: bool) -> Result<Vec<Finding>> {
        type Part = fn(&rusqlite::Connection, i64) -> Result<Vec<Finding>>;
        let conn = self.shared().opener().open()?;
        let now = self.shared().clock().wall();
        let info = self.shared().opener().info(&conn)?;
        let mut found = Vec::new();
        if whole {
            let patience = Patience::of(self.shared().opener(), &conn, self.shared().clock())?;
            found.extend(damages(&conn, patience.as_ref())?);
        }
        let rows = whole.then_some(messages::rows as Part);
        let parts: [Part; 10] = [
            |conn, _| contract::parts(conn),
            |conn, _| contract::writer(conn),
            |conn, _| contract::ids(conn),
            clock,
            messages::unsent,
            lanes,
            channels,
            counts,
            |conn, _| unnoticed::findings(conn),
            |conn, _| triggers::findings(conn),
        ];
        for part in rows.into_iter().chain(parts) {
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
        if let Some(hindrance) = storage::hindrance(&conn, self.path())? {
            found.insert(0, hindrance);
        }
        // Nobody can send: to start what sends would not help.
        if found
            .iter()
            .any(|it| matches!(it.code, "write_lock" | "denied" | "schema_too_new"))
        {
            found.retain(|it| it.code != UNATTENDED);
        }
        found.sort_by_key(Finding::rank);
        Ok(found)
    }

    /// What keeps the messages of the file from being sent, or this program from sending them, whatever
    /// the channels say: parts of the outbox that are missing, a newer program that forbids it, a write
    /// lock that somebody keeps, a file that this user may not write, or a log beside it that has other rights. Not a
    /// disk that is full, which this crate does not look at ([`Why::hindered`](crate::Why::hindered) takes that). Changes nothing; takes two seconds
    /// where the lock is kept, else a moment. [`check`](Self::check) has them too.
    pub fn obstacles(&self) -> Result<Vec<Finding>> {
        let conn = self.shared().opener().open()?;
        let mut found = contract::parts(&conn)?;
        found.extend(contract::writer(&conn)?);
        found.extend(storage::hindrance(&conn, self.path())?);
        found.sort_by_key(Finding::rank);
        Ok(found)
    }

    /// What went wrong without anybody being told: messages that nobody has sent although they have been due for a
    /// quarter of an hour, messages that expired at once, as their moment was
    /// written in another unit, and messages that were sent and answered by a web page, but for those
    /// that were [sent again](crate::Operator::send_again). Of each channel the newest 1000 are looked
    /// at, and where there are more than 20 channels, 20,000 in all, but 10 of each. [`check`](Self::check)
    /// has them too.
    pub fn unnoticed(&self) -> Result<Vec<Finding>> {
        let conn = self.shared().reader()?;
        let mut found = unnoticed::findings(&conn)?;
        // What cannot be read for damage is told by whoever reads it for itself.
        found.extend(unless_damaged(forgotten(&conn, self.shared().now()))?);
        Ok(found)
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
        "stop all programs and keep a copy of the file and its -wal; then move file, -wal and -shm away and put \
         a backup in place (a -wal that stays would be read into it; `outbox help backup` says more), or save \
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
        found.extend(unattended(conn, &name, channel, now)?);
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

/// Channels that nobody drains.
fn forgotten(conn: &rusqlite::Connection, now: i64) -> Result<Vec<Finding>> {
    let stats = crate::store::stats::stats(conn, now)?;
    let known: HashMap<&str, &ChannelStats> =
        stats.channels.iter().map(|it| (&*it.channel, it)).collect();
    let mut found = Vec::new();
    for name in read::channels(conn)? {
        if let Some(channel) = known.get(&*name.show()) {
            found.extend(unattended(conn, &name, channel, now)?);
        }
    }
    Ok(found)
}

/// Whether nobody sends what a channel has.
fn unattended(
    conn: &rusqlite::Connection,
    name: &Name,
    channel: &ChannelStats,
    now: i64,
) -> Result<Option<Finding>> {
    let goes = channel.state == ChannelState::Ok || channel::unprobed(channel, now);
    if !goes || !check::unattended(conn, name, now.saturating_sub(QUARTER), now)? {
        return Ok(None);
    }
    let text = format!(
        "{}: messages have been due for a quarter of an hour, and nobody sends them",
        printable_name(&channel.channel)
    );
    let remedy = "no program drains this channel: start the program that sends, \
                  or `outbox run`, with a route for it";
    let finding = Finding::new(Warning, UNATTENDED, text, remedy);
    Ok(Some(finding.channel(&channel.channel)))
}
