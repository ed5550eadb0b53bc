//! Ten thousand channels in one file: what is asked of it, and what is sent, costs little for those
//! that have nothing to do. Statements are counted, not time.

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Message, Outbox};

use crate::costs::{count, note_statements, ran};
use crate::fixture::Till;

const CHANNELS: usize = 2_000;

/// A message in each of many channels, put in an hour ago, and everything that runs is counted.
fn many() -> (Till, Outbox) {
    let till = Till::new();
    let options = Outbox::options().on_connect(|conn: &Connection| {
        note_statements(conn);
        Ok(())
    });
    let outbox = options.open(&till.path).unwrap();
    let messages: Vec<_> = (0..CHANNELS)
        .map(|it| Message::text(format!("channel {it:05}"), "x"))
        .collect();
    let answers = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
    assert!(answers.unwrap().iter().all(Result::is_ok));
    let hour = "UPDATE outbox SET created_at = created_at - 3600000";
    till.sql().execute(hour, []).unwrap();
    ran();
    (till, outbox)
}

fn statements() -> usize {
    count(&ran(), |sql| !sql.starts_with("--"))
}

#[test]
fn counting_takes_a_few_statements_however_many_channels_there_are() {
    let (till, outbox) = many();
    let stats = outbox.stats().unwrap();
    assert_eq!(stats.channels.len(), CHANNELS);
    assert_eq!(stats.total.pending, CHANNELS as u64);
    let ran = statements();
    assert!(ran < 20, "{ran} statements for {CHANNELS} channels");
    // One for each that has something settled, at most.
    let sent = "UPDATE outbox SET status = 'sent', settled_at = 1800000000000 WHERE id <= 100";
    till.sql().execute(sent, []).unwrap();
    assert_eq!(outbox.stats().unwrap().total.sent, 100);
    let ran = statements();
    assert!(ran < 120, "{ran} statements, 100 channels have sent");
}

#[test]
fn explaining_all_asks_a_few_questions_of_each_channel() {
    let (_till, outbox) = many();
    let groups = outbox.why_all().unwrap();
    assert_eq!(groups.len(), CHANNELS);
    assert_eq!(groups[0].why.reason.code(), "no_drain");
    let ran = statements();
    assert!(
        ran < 5 * CHANNELS,
        "{ran} statements for {CHANNELS} channels"
    );
}
