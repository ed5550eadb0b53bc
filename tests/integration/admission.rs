//! What is refused at the door, and what becomes of the rest.

use sqlite_outbox::{Enqueued, Error, Filter, Message, OnDuplicate, Outbox, Result};

use crate::fixture::{Till, put};

fn sale(key: &str) -> Message {
    Message::text("sales", "12.50").dedupe_key(key)
}

#[test]
fn many_at_once_have_the_same_answers_in_their_order() {
    let till = Till::new();
    let outbox = till.open();
    put(&outbox, &sale("taken")).unwrap();
    let messages = [
        sale("a"),
        sale("a"),
        Message::text("sales", "other").dedupe_key("a"),
        sale("taken"),
        Message::text("", "no channel"),
        sale("b").on_duplicate(OnDuplicate::Fail),
        sale("b").on_duplicate(OnDuplicate::Fail),
        sale("c"),
    ];
    let answers: Result<_> = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
    let answers = answers.unwrap();
    let good = |index: usize| *answers[index].as_ref().unwrap();
    assert_eq!(answers.len(), messages.len());
    assert_eq!(good(0), Enqueued::New { id: 2 });
    assert_eq!(good(1), Enqueued::Duplicate { id: 2 });
    assert_eq!(good(2), Enqueued::Conflict { id: 2 });
    assert_eq!(good(3), Enqueued::Duplicate { id: 1 });
    assert!(matches!(
        answers[4],
        Err(Error::InvalidMessage {
            field: "channel",
            ..
        })
    ));
    assert_eq!(good(5), Enqueued::New { id: 3 });
    assert!(matches!(answers[6], Err(Error::Duplicate { id: 3 })));
    assert_eq!(good(7), Enqueued::New { id: 4 });
    assert_eq!(outbox.unsent().unwrap(), 4);
}

#[test]
fn a_failure_of_sqlite_ends_the_whole_batch() {
    let till = Till::new();
    let outbox = till.open();
    till.sql()
        .execute_batch(
            "CREATE TRIGGER no_more BEFORE INSERT ON outbox WHEN NEW.dedupe_key = 'b'
             BEGIN SELECT RAISE(ABORT, 'not this one'); END",
        )
        .unwrap();
    let messages = [sale("a"), sale("b"), sale("c")];
    let error: Error = outbox
        .transaction(|tx| outbox.enqueue_all(tx, &messages))
        .unwrap_err();
    assert!(matches!(error, Error::Sqlite(_)), "{error:?}");
    assert_eq!(outbox.unsent().unwrap(), 0);
}

#[test]
fn a_refused_message_leaves_the_transaction_usable() {
    let till = Till::new();
    let outbox = Outbox::options().max_payload(10).open(&till.path).unwrap();
    let bad = [
        Message::text("", "x"),
        Message::text("a:b", "x"),
        sale("line\nbreak"),
        sale(""),
        sale("a").recipient("x".repeat(513)),
        sale("a").header("Authorization", "Bearer s3cret"),
        sale("a").header("x-api-key", "s3cret"),
        sale("a").header("Cookie", "s3cret"),
        sale("a").header("X-A", "a\r\nX-B: b"),
        sale("a").header("X A", "a"),
        sale("a").header("", "a"),
        sale("a").header("X-A", "ü"),
        sale("a").header("X-A", "a".repeat(20_000)),
        sale("a").content_type("text/plain\r\n"),
        sale("a").available_at(-1),
    ];
    let mut conn = outbox.connection().unwrap();
    let tx = conn.transaction().unwrap();
    for message in bad {
        let error = outbox.enqueue(&tx, &message).unwrap_err();
        assert!(
            matches!(error, Error::InvalidMessage { .. }),
            "{message:?}: {error:?}"
        );
        assert!(!error.to_string().contains("s3cret"));
    }
    let error = outbox
        .enqueue(&tx, &Message::text("sales", "x".repeat(11)))
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::TooLarge {
                bytes: 11,
                limit: 10
            }
        ),
        "{error:?}"
    );
    outbox.enqueue(&tx, &sale("good")).unwrap();
    tx.commit().unwrap();
    assert_eq!(outbox.list(&Filter::new()).unwrap().len(), 1);
    drop(conn);
    drop(outbox);
    let bytes = std::fs::read(&till.path).unwrap();
    assert!(!bytes.windows(6).any(|it| it == b"s3cret"));
}

#[test]
fn a_full_outbox_takes_duplicates_but_nothing_new() {
    let till = Till::new();
    let outbox = Outbox::options().max_unsent(50).open(&till.path).unwrap();
    let all: Vec<_> = (0..60).map(|it| sale(&it.to_string())).collect();
    let answers: Result<_> = outbox.transaction(|tx| outbox.enqueue_all(tx, &all));
    let full = |it: &Result<Enqueued>| {
        matches!(
            it,
            Err(Error::OutboxFull {
                unsent: 50,
                limit: 50
            })
        )
    };
    let answers = answers.unwrap();
    assert!(answers[..50].iter().all(Result::is_ok));
    assert!(answers[50..].iter().all(full));
    assert_eq!(
        put(&outbox, &sale("7")).unwrap(),
        Enqueued::Duplicate { id: 8 }
    );
    let sent = "UPDATE outbox SET status = 'sent' WHERE id = 8";
    till.sql().execute_batch(sent).unwrap();
    put(&outbox, &sale("50")).unwrap();
    assert!(full(&put(&outbox, &sale("51"))));
    assert_eq!(outbox.unsent().unwrap(), 50);
}

#[test]
fn a_rolled_back_batch_does_not_use_up_the_room() {
    let till = Till::new();
    let outbox = Outbox::options().max_unsent(20).open(&till.path).unwrap();
    for _ in 0..5 {
        let answer: std::result::Result<(), Error> = outbox.transaction(|tx| {
            for key in 0..15 {
                outbox.enqueue(tx, &sale(&key.to_string()))?;
            }
            Err(Error::Refused("the sale was cancelled".into()))
        });
        assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
    }
    for key in 0..20 {
        put(&outbox, &sale(&key.to_string())).unwrap();
    }
    assert!(matches!(
        put(&outbox, &sale("20")),
        Err(Error::OutboxFull { .. })
    ));
}

/// Each process counts now and then only, and trusts an eighth of what was free meanwhile.
#[test]
fn two_processes_exceed_the_limit_by_an_eighth_of_what_was_free_at_most() {
    let till = Till::new();
    let open = || Outbox::options().max_unsent(100).open(&till.path).unwrap();
    let (one, other) = (open(), open());
    let mut taken = 0;
    let mut until_full = |outbox: &Outbox| {
        while put(outbox, &Message::text("sales", "x")).is_ok() {
            taken += 1;
        }
        taken
    };
    put(&one, &Message::text("sales", "counted")).unwrap();
    assert_eq!(until_full(&other), 99);
    let exceeded = until_full(&one) - 99;
    assert!((1..=99 / 8).contains(&exceeded), "by {exceeded}");
}
