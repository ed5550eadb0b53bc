//! Many at once are stored by other statements than one alone, and come out the same.

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Enqueued, Error, Message, OnDuplicate, Outbox, Result};

use crate::fixture::{Till, column, one};

type Answers = Result<Vec<Result<Enqueued>>>;

fn together(outbox: &Outbox, messages: &[Message]) -> Answers {
    let mut conn = outbox.connection()?;
    let tx = conn.transaction()?;
    let answers = outbox.enqueue_all(&tx, messages);
    tx.commit()?;
    answers
}

fn one_by_one(outbox: &Outbox, messages: &[Message]) -> Answers {
    let mut conn = outbox.connection()?;
    let tx = conn.transaction()?;
    let mut answers = Vec::new();
    for message in messages {
        match outbox.enqueue(&tx, message) {
            Err(error @ (Error::Sqlite(_) | Error::Refused(_))) => {
                tx.commit()?;
                return Err(error);
            }
            answer => answers.push(answer),
        }
    }
    tx.commit()?;
    Ok(answers)
}

fn stored(conn: &Connection) -> Vec<String> {
    column(
        conn,
        "SELECT id || '|' || channel || '|' || status || '|' || next_attempt_at || '|'
                || length(message_id) || '|' || iif(length(dedupe_key) = 32, 'random', dedupe_key)
                || '|' || coalesce(ordering_key, '-') || '|' || coalesce(event_type, '-')
                || '|' || coalesce(headers, '-') || '|' || coalesce(available_at, '-')
                || '|' || coalesce(expires_at, '-') || '|' || created_at
                || '|' || typeof(payload) || '|' || payload
           FROM outbox ORDER BY id",
    )
}

/// Both ways, in files of their own; what they answered and what is stored.
fn compare(script: &str, messages: &[Message]) -> (Answers, Till) {
    let tills = [Till::new(), Till::new()];
    let outboxes = [&tills[0], &tills[1]].map(|till| till.manual(1_800_000_000_000).1);
    for till in &tills {
        till.sql().execute_batch(script).unwrap();
    }
    let answers = together(&outboxes[0], messages);
    let others = one_by_one(&outboxes[1], messages);
    assert_eq!(format!("{answers:?}"), format!("{others:?}"));
    let conn = tills[0].sql();
    assert_eq!(stored(&conn), stored(&tills[1].sql()));
    let kept = "SELECT count(*) FROM outbox_conflict";
    assert_eq!(one(&conn, kept), "0", "the caller was told");
    let [till, _] = tills;
    (answers, till)
}

fn sale(number: usize) -> Message {
    Message::text("sales", "x".repeat(number % 40)).dedupe_key(format!("S-{number}"))
}

#[test]
fn many_at_once_are_what_they_are_one_by_one() {
    let mut messages = Vec::new();
    for number in 0..400 {
        let message = sale(number).event_type("sale");
        messages.push(match number % 97 {
            20 => sale(number - 3),
            21 => sale(number - 3).header("X-A", "other"),
            22 => sale(number - 4).on_duplicate(OnDuplicate::Fail),
            23 => sale(number - 10).on_duplicate(OnDuplicate::Replace),
            50 => Message::text("", "no channel"),
            60 => Message::bytes("sales", vec![7; 300_000]),
            61..=70 => message.ordering_key("a"),
            71 => message.delay(std::time::Duration::from_secs(60)),
            72 => message.expires_at(2_000_000_000_000).header("X-A", "1"),
            _ if number > 300 => message.ordering_key(format!("lane-{}", number % 5)),
            _ if number > 200 => Message::bytes("other", vec![1, 2, 3]),
            _ => message,
        });
    }
    let (answers, till) = compare("", &messages);
    let answers = answers.unwrap();
    let new = answers
        .iter()
        .filter(|it| matches!(it, Ok(Enqueued::New { .. })));
    assert_eq!(
        new.count().to_string(),
        one(&till.sql(), "SELECT count(*) FROM outbox")
    );
    assert!(answers.iter().filter(|it| it.is_err()).count() > 8);
}

#[test]
fn whatever_a_trigger_of_the_application_does_no_message_is_stored_twice() {
    let messages: Vec<_> = (0..64)
        .map(|number| Message::text("sales", number.to_string()))
        .collect();
    for raise in ["IGNORE", "FAIL, 'no'", "ABORT, 'no'"] {
        for when in ["BEFORE", "AFTER"] {
            let script = format!(
                "CREATE TRIGGER mine {when} INSERT ON outbox WHEN CAST(NEW.payload AS TEXT) = '41'
                 BEGIN SELECT RAISE({raise}); END"
            );
            let (answers, till) = compare(&script, &messages);
            // Ignored after it was stored, it is stored.
            let ignored = raise == "IGNORE" && when == "AFTER";
            assert_eq!(answers.is_ok(), ignored, "{raise} {when}: {answers:?}");
            let twice = "SELECT count(*) - count(DISTINCT payload) FROM outbox";
            assert_eq!(one(&till.sql(), twice), "0", "{raise} {when}");
        }
    }
}

#[test]
fn a_trigger_that_puts_messages_in_itself_mixes_no_ids_up() {
    let script = "CREATE TRIGGER mine AFTER INSERT ON outbox WHEN NEW.channel = 'sales'
                  BEGIN INSERT INTO outbox (channel, dedupe_key, payload, created_at)
                        VALUES ('copy', NEW.dedupe_key, NEW.payload, NEW.created_at); END";
    let messages: Vec<_> = (0..64).map(sale).collect();
    let (answers, till) = compare(script, &messages);
    for (number, answer) in answers.unwrap().into_iter().enumerate() {
        let id = answer.unwrap().id();
        let key = format!("SELECT channel || dedupe_key FROM outbox WHERE id = {id}");
        assert_eq!(one(&till.sql(), &key), format!("salesS-{number}"));
    }
}

#[test]
fn where_a_newer_program_forbids_it_none_of_many_is_stored() {
    let till = Till::new();
    let outbox = till.open();
    let newer = "UPDATE outbox_meta SET value = '99' WHERE key IN ('min_writer', 'schema_version')";
    till.sql().execute_batch(newer).unwrap();
    let messages: Vec<_> = (0..64).map(sale).collect();
    for put in [together, one_by_one] {
        let answer = put(&outbox, &messages).map(|it| it.into_iter().collect::<Result<Vec<_>>>());
        let error = answer.and_then(|it| it).unwrap_err();
        assert!(
            matches!(error, Error::SchemaTooNew { found: 99, .. }),
            "{error:?}"
        );
    }
    assert_eq!(one(&till.sql(), "SELECT count(*) FROM outbox"), "0");
}

#[test]
fn no_more_are_let_in_than_fit() {
    let till = Till::new();
    let outbox = Outbox::options().max_unsent(150).open(&till.path).unwrap();
    let messages: Vec<_> = (0..200).map(sale).collect();
    let answers = together(&outbox, &messages).unwrap();
    assert_eq!(answers.iter().filter(|it| it.is_ok()).count(), 150);
    let full = |it: &Result<Enqueued>| matches!(it, Err(Error::OutboxFull { limit: 150, .. }));
    assert!(answers[150..].iter().all(full));
}

#[test]
fn a_transaction_that_a_trigger_ended_is_told_and_nothing_is_left() {
    let till = Till::new();
    let outbox = till.open();
    till.sql()
        .execute_batch(
            "CREATE TRIGGER mine AFTER INSERT ON outbox WHEN NEW.id = 40
             BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        )
        .unwrap();
    let messages: Vec<_> = (0..64).map(sale).collect();
    let answers = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
    assert!(answers.is_err(), "{answers:?}");
    assert_eq!(outbox.unsent().unwrap(), 0);
}

/// The application's own statement may be under way, even one that writes.
#[test]
fn a_statement_that_has_not_ended_keeps_no_message_out() {
    let till = Till::with("CREATE TABLE sale (id INTEGER PRIMARY KEY)");
    let outbox = till.open();
    let messages: Vec<_> = (0..64).map(sale).collect();
    let mut conn = outbox.connection().unwrap();
    let tx = conn.transaction().unwrap();
    let mut insert = tx
        .prepare("INSERT INTO sale VALUES (1), (2), (3) RETURNING id")
        .unwrap();
    let mut rows = insert.query([]).unwrap();
    rows.next().unwrap();
    let answers = outbox.enqueue_all(&tx, &messages).unwrap();
    assert!(answers.iter().all(Result::is_ok));
    rows.next().unwrap();
    drop(rows);
    drop(insert);
    tx.commit().unwrap();
    assert_eq!(outbox.unsent().unwrap(), 64);
}
