//! A sale and its message are committed together; then the outbox is drained.

use serde_json::json;
use sqlite_outbox::{HttpDispatcher, Message, Outbox, Route};
use std::env::args;

fn main() -> anyhow::Result<()> {
    let outbox = Outbox::open("till.db")?; // makes the file and the tables where they are missing

    outbox.transaction(|tx| {
        tx.execute_batch("CREATE TABLE IF NOT EXISTS sale (id TEXT PRIMARY KEY, total INTEGER)")?;
        tx.execute("INSERT OR IGNORE INTO sale VALUES ('S-104522', 1250)", [])?;
        let sale = Message::json("sales", &json!({"id": "S-104522", "total": 1250}))?;
        outbox.enqueue(tx, &sale.dedupe_key("S-104522").ordering_key("customer-7"))?;
        anyhow::Ok(())
    })?; // both are committed, or neither

    let url = args().nth(1).unwrap_or("http://127.0.0.1:8000/erp".into());
    let erp = HttpDispatcher::builder()
        .channel("sales", Route::post(url))
        .build()?;
    let report = outbox.drain(&erp)?; // sends until nothing more can be done now
    println!("{} sent, {}", report.sent, report.stats);
    Ok(())
}
