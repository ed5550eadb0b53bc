use sqlite_outbox::{Enqueued, Filter, Message, Outbox, Result};

#[test]
fn a_committed_message_is_there_and_a_rolled_back_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(folder.path().join("till.db")).unwrap();
    let mut conn = outbox.connection().unwrap();
    let tx = conn.transaction().unwrap();
    let message = Message::text("sales", "first").dedupe_key("S-1");
    assert_eq!(
        outbox.enqueue(&tx, &message).unwrap(),
        Enqueued::New { id: 1 }
    );
    tx.commit().unwrap();
    let tx = conn.transaction().unwrap();
    outbox
        .enqueue(&tx, &Message::text("sales", "second"))
        .unwrap();
    tx.rollback().unwrap();
    let stored = outbox.list(&Filter::new()).unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].payload, b"first");
    assert_eq!(outbox.get(1).unwrap().as_ref(), stored.first());
    assert_eq!(outbox.find("S-1", None).unwrap(), stored[0]);
    assert_eq!(outbox.unsent().unwrap(), 1);
    let stats = outbox.stats().unwrap();
    assert_eq!(stats.total.pending, 1);
    let again: Result<_> = outbox.transaction(|tx| outbox.enqueue(tx, &message));
    assert_eq!(again.unwrap(), Enqueued::Duplicate { id: 1 });
}
