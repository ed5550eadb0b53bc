//! Putting messages in, beside bare inserts of the same rows.

use std::time::{Duration, Instant};

use anyhow::Result;
use sqlite_outbox::{Message, Outbox};

use crate::Asked;
use crate::bare::{self, Row};
use crate::figure::{Figure, Target, in_turn, rate};
use crate::file::{Till, message};

const UNIT: &str = "messages/s";

/// One message in each durable transaction of [`Outbox::transaction`] ÷ a single-row INSERT and
/// COMMIT into a table with the same indexes, without triggers.
///
/// Each round has a connection of its own: where two are open, SQLite as it is bundled has one
/// cache for both, and one of them may read every page anew.
pub fn one(asked: &Asked) -> Result<Vec<Figure>> {
    let span = Duration::from_millis(asked.size(500) as u64);
    let tills = [Till::new()?, Till::new()?];
    drop(Outbox::open(&tills[0].path)?);
    drop(bare::table(&tills[1].path)?);
    let (mut ours, mut limit) = (0.., 0..);
    let [value, limit] = in_turn(
        asked.rounds(15),
        [
            &mut || {
                let outbox = tills[0].open()?;
                commits(span, || {
                    let message = message(ours.next().unwrap_or_default());
                    let begun = Instant::now();
                    outbox.transaction(|tx| outbox.enqueue(tx, &message))?;
                    Ok(begun.elapsed())
                })
            },
            &mut || {
                let conn = bare::connection(&tills[1].path)?;
                commits(span, || {
                    let row = Row::new(limit.next().unwrap_or_default());
                    let begun = Instant::now();
                    bare::insert(&conn, [&row])?;
                    Ok(begun.elapsed())
                })
            },
        ],
    )?;
    Ok(vec![Figure::new(
        "enqueue_one",
        value,
        limit,
        UNIT,
        Target::Ratio(0.9),
    )])
}

/// Commits again and again, until that took so long in all. The first few open the file and prepare
/// statements, and do not count.
fn commits(span: Duration, mut commit: impl FnMut() -> Result<Duration>) -> Result<f64> {
    for _ in 0..5 {
        commit()?;
    }
    let (mut count, mut took) = (0, Duration::ZERO);
    while took < span {
        took += commit()?;
        count += 1;
    }
    Ok(rate(count, took))
}

/// 100,000 messages without ordering key in one transaction ÷ the same rows by bare INSERT.
pub fn bulk(asked: &Asked) -> Result<Vec<Figure>> {
    let count = asked.size(100_000);
    let messages: Vec<Message> = (0..count).map(message).collect();
    let rows: Vec<Row> = (0..count).map(Row::new).collect();
    compare(asked, "enqueue_bulk", &messages, &rows, 0.8)
}

/// The same with 1,000 ordering keys.
pub fn bulk_keyed(asked: &Asked) -> Result<Vec<Figure>> {
    let count = asked.size(100_000);
    let lanes = (count / 100).max(1);
    let key = |number: usize| format!("customer-{}", number % lanes);
    let messages: Vec<Message> = (0..count)
        .map(|number| message(number).ordering_key(key(number)))
        .collect();
    let rows: Vec<Row> = (0..count)
        .map(|number| Row {
            ordering_key: Some(key(number)),
            status: if number < lanes { "pending" } else { "waiting" },
            ..Row::new(number)
        })
        .collect();
    compare(asked, "enqueue_bulk_keyed", &messages, &rows, 0.4)
}

fn compare(
    asked: &Asked,
    name: &str,
    messages: &[Message],
    rows: &[Row],
    target: f64,
) -> Result<Vec<Figure>> {
    let count = messages.len();
    let [value, limit] = in_turn(
        asked.rounds(5),
        [
            &mut || {
                let till = Till::new()?;
                let outbox = Outbox::open(&till.path)?;
                let begun = Instant::now();
                outbox.transaction(|tx| outbox.enqueue_all(tx, messages).map(drop))?;
                Ok(rate(count, begun.elapsed()))
            },
            &mut || {
                let till = Till::new()?;
                let conn = bare::table(&till.path)?;
                let begun = Instant::now();
                bare::insert(&conn, rows)?;
                Ok(rate(count, begun.elapsed()))
            },
        ],
    )?;
    Ok(vec![Figure::new(
        name,
        value,
        limit,
        UNIT,
        Target::Ratio(target),
    )])
}
