//! A till that goes on selling without a network and catches up when it returns.
//!
//!     cargo run --release --example till [FOLDER]
//!
//! Makes `till.db` and `erp.db` in the folder, or in a temporary one. 830 real orders are sold
//! while the ERP is down, each sale committed together with its message. Then the ERP comes up,
//! the outbox is drained, and the two databases are compared.

mod erp;

use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{HttpDispatcher, Message, Outbox, Route};

const ORDERS: &str = include_str!("../../tests/data/northwind-orders.jsonl");

const SALE: &str = "
    CREATE TABLE sale (
      number INTEGER PRIMARY KEY,     -- the order in which sales were made
      order_id INTEGER NOT NULL UNIQUE,
      customer TEXT NOT NULL,
      document TEXT                   -- the ERP's own number, once it has answered
    )";

fn main() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let folder = match std::env::args_os().nth(1) {
        Some(folder) => PathBuf::from(folder),
        None => temporary.path().to_owned(),
    };
    std::fs::create_dir_all(&folder)?;
    let (till, ledger) = (folder.join("till.db"), folder.join("erp.db"));
    let fresh = !till.exists() && !ledger.exists();
    ensure!(
        fresh,
        "{0} has been used already: name another folder, or look at what is there (`sqlite3 {0}/till.db`); \
         what it left unsent, `outbox drain {0}/till.db` sends to an ERP of yours",
        folder.display()
    );

    // The hook writes in the transaction that records the delivery: no power cut can come between
    // "sent" and the ERP's document number.
    let outbox = Outbox::options()
        .on_delivered(|conn, delivery, receipt| {
            let changed = conn.execute(
                "UPDATE sale SET document = ?1 WHERE order_id = ?2",
                (&receipt.provider_id, &delivery.dedupe_key),
            )?;
            ensure!(changed == 1, "there is no sale {}", delivery.dedupe_key);
            Ok(())
        })
        .open(&till)?;
    outbox.connection()?.execute_batch(SALE)?;

    let address = erp::free_address()?;
    let route = Route::post(format!("http://{address}/sales")).provider_id("/document");
    let erp = HttpDispatcher::builder().channel("sales", route).build()?;

    println!("The ERP is down. Selling:");
    let sold = sell(&outbox)?;
    println!("  {sold} sales committed, each with its message");
    println!("  {}", outbox.stats()?);

    println!("Draining all the same:");
    let before = outbox.stats()?;
    let report = outbox.drain(&erp)?;
    let after = outbox.stats()?;
    for channel in &after.channels {
        let reason = channel.reason.as_deref().unwrap_or("no reason");
        println!(
            "  channel {}: {} ({reason})",
            channel.channel, channel.state
        );
    }
    println!(
        "  unsent {} before, {} after; sent {}, dead {}, attempts charged {}",
        before.total.unsent(),
        after.total.unsent(),
        report.sent,
        after.total.dead,
        after.total.max_attempts,
    );
    ensure!(after.total.unsent() == sold, "the outage lost a message");
    ensure!(after.total.dead == 0, "the outage killed a message");

    println!("The ERP is up. Draining:");
    erp::start(&address, &ledger)?;
    let report = outbox
        .draining(&erp)
        .now() // as when somebody presses "sync now"
        .progress(|so_far| bar(so_far.sent, sold))
        .run()?;
    println!(
        "  sent {}, unsent {}, in {:.2?}",
        report.sent, report.unsent, report.elapsed
    );

    compare(&till, &ledger)
}

/// Sells every order: the sale and its message in one transaction, so both are there or neither.
fn sell(outbox: &Outbox) -> Result<u64> {
    let mut sold = 0;
    for line in ORDERS.lines() {
        let order: Value = serde_json::from_str(line)?;
        let id = order.pointer("/order_id").and_then(Value::as_i64);
        let id = id.context("an order without a number")?;
        let customer = order
            .pointer("/customer/CustomerID")
            .and_then(Value::as_str);
        let customer = customer.context("an order without a customer")?;
        let message = Message::json("sales", &order)?
            .event_type("sale.completed")
            .dedupe_key(id.to_string())
            .ordering_key(customer);
        outbox.transaction(|tx| {
            tx.execute(
                "INSERT INTO sale (order_id, customer) VALUES (?1, ?2)",
                (id, customer),
            )?;
            outbox.enqueue(tx, &message)?;
            anyhow::Ok(())
        })?;
        sold += 1;
    }
    Ok(sold)
}

/// What was sold against what arrived, asked of the two files themselves.
fn compare(till: &Path, ledger: &Path) -> Result<()> {
    let db = Connection::open(till)?;
    db.execute("ATTACH ?1 AS erp", [ledger.to_string_lossy()])?;
    let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0));

    let sold = count("SELECT count(*) FROM sale")?;
    let arrived = count("SELECT count(*) FROM sale JOIN erp.document USING (order_id)")?;
    let unknown = count(
        "SELECT count(*) FROM erp.arrival WHERE order_id NOT IN (SELECT order_id FROM sale)",
    )?;
    let twice = count("SELECT count(*) - count(DISTINCT order_id) FROM erp.arrival")?;
    let overtaken = count(
        "SELECT count(*) FROM erp.arrival AS a JOIN sale AS s USING (order_id)
          WHERE EXISTS (SELECT 1 FROM erp.arrival AS b JOIN sale AS t USING (order_id)
                         WHERE t.customer = s.customer
                           AND t.number < s.number AND b.position > a.position)",
    )?;
    let agree = count(
        "SELECT count(*) FROM sale AS s JOIN erp.document AS d USING (order_id)
          WHERE s.document = 'SO-' || d.number",
    )?;
    println!("The till's sales against the ERP's ledger:");
    println!("  {arrived} of {sold} arrived, {unknown} unknown to the till");
    println!("  {twice} came twice");
    println!("  {overtaken} were overtaken by a later sale of their customer");
    println!("  {agree} of {sold} have the ERP's document number");
    ensure!(
        sold > 0 && (arrived, agree) == (sold, sold) && (unknown, twice, overtaken) == (0, 0, 0),
        "the two databases differ"
    );
    println!("{arrived} of {sold}, none twice, per customer in order, document numbers agree.");
    Ok(())
}

/// Draws a progress bar over itself; nothing when nobody watches.
fn bar(done: u64, all: u64) {
    if !stdout().is_terminal() {
        return;
    }
    let full = (done * 40 / all.max(1)).min(40) as usize;
    print!("\r  [{:<40}] {done}/{all}", "#".repeat(full));
    if done >= all {
        println!();
    }
    stdout().flush().ok();
}
