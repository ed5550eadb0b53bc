//! Putting messages in, beside bare inserts of the same rows.

use std::time::Instant;

use anyhow::Result;
use sqlite_outbox::{Message, Outbox};

use crate::Asked;
use crate::bare::{self, Row};
use crate::figure::{Figure, Target, in_turn, rate};
use crate::file::{Till, message};

const UNIT: &str = "messages/s";

/// One message in each durable transaction of [`Outbox::transaction`] ÷ a single-row INSERT and
/// COMMIT into a table with the same indexes, without triggers.
pub fn one(asked: &Asked) -> Result<Vec<Figure>> {
    let count = asked.size(2_000);
    let tills = [Till::new()?, Till::new()?];
    let outbox = Outbox::open(&tills[0].path)?;
    let conn = bare::table(&tills[1].path)?;
    let (mut number, mut row) = (0, 0);
    let [value, limit] = in_turn(
        asked.rounds(9),
        [
            &mut || {
                let messages: Vec<Message> = (number..number + count).map(message).collect();
                number += count;
                let begun = Instant::now();
                for message in &messages {
                    outbox.transaction(|tx| outbox.enqueue(tx, message))?;
                }
                Ok(rate(count, begun.elapsed()))
            },
            &mut || {
                let rows: Vec<Row> = (row..row + count).map(Row::new).collect();
                row += count;
                let begun = Instant::now();
                for row in &rows {
                    bare::insert(&conn, [row])?;
                }
                Ok(rate(count, begun.elapsed()))
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
