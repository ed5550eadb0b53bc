//! The application's own row and the outbox agree, whatever ends the process, and whenever.
//!
//! Goal: `sale.invoice` is set exactly when the message is sent. Method: a child process sells and
//! drains with an `on_delivered` hook that stores the receiver's number, and is killed after as many
//! deliveries and as much of a moment as dice say; then the file is looked at. `OUTBOX_LONG=1` kills 200 times.

use std::io::BufRead;
use std::time::Duration;

use sqlite_outbox::rusqlite::TransactionBehavior;
use sqlite_outbox::{Delivery, Message, Outbox, Outcome, Receipt, Settings};

use crate::fixture::{Process, Rng, Till, argument, child, column, long, nap, one};

const DISAGREE: &str = "
SELECT sale.id || ' ' || coalesce(sale.invoice, 'no invoice') || ' ' || coalesce(o.status, 'no message')
  FROM sale LEFT JOIN outbox AS o ON o.channel = 'sales' AND o.dedupe_key = sale.id
 WHERE o.id IS NULL OR (o.status = 'sent') <> (sale.invoice IS NOT NULL)
    OR sale.invoice IS NOT o.provider_id";

fn open(path: &std::path::Path) -> Outbox {
    Outbox::options()
        .on_delivered(|tx, delivery, receipt| {
            tx.execute(
                "UPDATE sale SET invoice = ?2 WHERE id = ?1",
                (&delivery.dedupe_key, &receipt.provider_id),
            )?;
            Ok(())
        })
        .open(path)
        .unwrap()
}

/// The end of the test waits for the claims of the last process that was killed.
fn settings() -> Settings {
    Settings::default().lease(Duration::from_secs(5))
}

/// What a child prints when a message arrives.
const RECEIVED: &str = "received";

fn erp(delivery: &Delivery) -> anyhow::Result<Outcome> {
    println!("\n{RECEIVED}");
    let number = format!("INV-{}", delivery.dedupe_key);
    Ok(Outcome::Delivered(Receipt::with_id(number)))
}

fn sent(till: &Till) -> i64 {
    let sent = "SELECT count(*) FROM outbox WHERE status = 'sent'";
    one(&till.sql(), sent).parse().unwrap()
}

#[test]
fn a_sale_has_its_invoice_exactly_when_its_message_is_sent_whenever_the_power_goes() {
    let till = Till::with("CREATE TABLE sale (id TEXT PRIMARY KEY, invoice TEXT)");
    let mut dice = Rng(7);
    let rounds = if long() { 200 } else { 10 };
    for round in 0..rounds {
        let mut process = child("settled::child_sells_and_drains", &till.path);
        let mut process = Process(process.spawn().unwrap());
        let lines = std::io::BufReader::new(process.0.stdout.take().unwrap()).lines();
        let received = lines.map_while(Result::ok).filter(|line| line == RECEIVED);
        let wanted = 20 + usize::try_from(dice.below(60)).unwrap();
        assert_eq!(received.take(wanted).count(), wanted, "round {round}");
        std::thread::sleep(Duration::from_micros(dice.below(20_000).unsigned_abs()));
        process.kill();
        let conn = till.sql();
        let disagree = column(&conn, DISAGREE);
        assert!(disagree.is_empty(), "round {round}: {disagree:?}");
    }
    let sent = sent(&till);
    let sold = one(&till.sql(), "SELECT count(*) FROM sale");
    println!("{rounds} kills, {sold} sales, {sent} sent with their invoice, no disagreement");
    // At most what is in flight had arrived and is not recorded.
    assert!(sent > 10 * rounds, "only {sent} sent");
    let outbox = open(&till.path);
    outbox.draining(&erp).settings(settings()).run().unwrap();
    let conn = till.sql();
    assert_eq!(column(&conn, DISAGREE), Vec::<String>::new());
    assert_eq!(
        one(&conn, "SELECT count(*) FROM sale WHERE invoice IS NULL"),
        "0"
    );
    assert_eq!(one(&conn, "PRAGMA integrity_check"), "ok");
}

#[test]
fn child_sells_and_drains() {
    let Some(path) = argument() else { return };
    let outbox = open(&path);
    let pump = outbox.pump(erp).settings(settings()).start().unwrap();
    loop {
        let mut conn = outbox.connection().unwrap();
        let tx = conn
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .unwrap();
        for _ in 0..5 {
            let id = one(&tx, "SELECT 'S-' || count(*) FROM sale");
            tx.execute("INSERT INTO sale (id) VALUES (?1)", [&id])
                .unwrap();
            outbox
                .enqueue(&tx, &Message::text("sales", "{}").dedupe_key(id))
                .unwrap();
        }
        tx.commit().unwrap();
        pump.wake();
        nap(20);
    }
}
