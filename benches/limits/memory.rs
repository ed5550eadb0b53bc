//! The most memory of a process that opens a file and drains it with 8 workers.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;
use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Dispatcher, Outbox, Settings};

use crate::Asked;
use crate::child;
use crate::drain::{http, noop_dispatcher};
use crate::figure::{Figure, Target};
use crate::file::{CHANNEL, Till, empty_log};
use crate::idle::peak_memory;
use crate::wire::Sink;

/// 1,000,000 messages of 300 bytes, to a dispatcher that does nothing: over HTTP it would take long.
pub fn small(asked: &Asked) -> Result<Vec<Figure>> {
    let till = asked.till(asked.size(1_000_000), None)?;
    measure("memory_small_mb", &till, "", 25.0)
}

/// 1,000 messages of 1 MiB, over HTTP.
pub fn large(asked: &Asked) -> Result<Vec<Figure>> {
    let till = asked.till(0, None)?;
    let conn = Connection::open(&till.path)?;
    for _ in 0..asked.size(1_000) {
        conn.prepare_cached(
            "INSERT INTO outbox (channel, payload) VALUES (?1, zeroblob(1048576))",
        )?
        .execute([CHANNEL])?;
    }
    empty_log(&conn)?;
    drop(conn);
    let sink = Sink::start(0)?;
    measure("memory_large_mb", &till, &sink.url, 64.0)
}

fn measure(name: &str, till: &Till, url: &str, limit: f64) -> Result<Vec<Figure>> {
    let said = child::run(&["drain", &till.path.to_string_lossy(), url])?;
    ensure!(said["unsent"] == 0, "not all was sent: {said}");
    Ok(vec![Figure {
        name: name.into(),
        value: said["mb"].as_f64(),
        limit,
        unit: "MB",
        target: Target::Limit,
    }])
}

/// The child: drains the file, to nowhere without a URL, and says how much memory that took.
pub fn child(path: &Path, url: &str) -> Result<()> {
    let outbox = Outbox::open_existing(path)?;
    let dispatcher: Box<dyn Dispatcher> = match url {
        "" => Box::new(noop_dispatcher),
        url => Box::new(http(url)?),
    };
    let settings = Settings::new().workers(8).lock_share(1.0);
    let report = outbox.draining(&*dispatcher).settings(settings).run()?;
    println!("{}", json!({"mb": peak_memory(), "unsent": report.unsent}));
    Ok(())
}
