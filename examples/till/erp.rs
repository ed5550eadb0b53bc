//! The ERP: a small HTTP server that books each sale once and keeps a ledger of its own.
//!
//! It stands in for a receiver that respects the idempotency key. Every request is noted as an
//! arrival, so that a sale which comes twice would be seen.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use sqlite_outbox::rusqlite::Connection;

const LEDGER: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE arrival (
      position INTEGER PRIMARY KEY,   -- the order in which requests came in
      idempotency_key TEXT NOT NULL,
      order_id INTEGER NOT NULL
    );
    CREATE TABLE document (
      number INTEGER PRIMARY KEY,     -- given once for each idempotency key
      idempotency_key TEXT NOT NULL UNIQUE,
      order_id INTEGER NOT NULL
    );";

/// An address on this machine at which nobody listens.
pub(crate) fn free_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.to_string())
}

/// Brings the server up. It serves until the process ends.
#[allow(clippy::disallowed_methods)] // threads: this is a server
pub(crate) fn start(address: &str, ledger: &Path) -> Result<()> {
    let ledger_file = Connection::open(ledger)?;
    ledger_file.execute_batch(LEDGER)?;
    let ledger = Arc::new(Mutex::new(ledger_file));
    let listener = TcpListener::bind(address)?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let ledger = ledger.clone();
            std::thread::spawn(move || {
                if let Err(error) = serve(stream, &ledger) {
                    eprintln!("the ERP gave up a connection: {error:#}");
                }
            });
        }
    });
    Ok(())
}

/// Answers the requests of one connection until the client closes it.
fn serve(stream: TcpStream, ledger: &Mutex<Connection>) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut output = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    while let Some((key, body)) = read_request(&mut input)? {
        let booked = {
            let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
            book(&mut ledger, &key, &body)
        };
        let (status, answer) = match booked {
            Ok(number) => ("201 Created", format!(r#"{{"document":"SO-{number}"}}"#)),
            Err(error) => ("500 Internal Server Error", format!("{error:#}")),
        };
        let length = answer.len();
        write!(
            output,
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{answer}"
        )?;
    }
    Ok(())
}

/// The idempotency key and the body of the next request; `None` when the client has closed.
fn read_request(input: &mut impl BufRead) -> Result<Option<(String, Vec<u8>)>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let (mut key, mut length) = (None, 0);
    loop {
        line.clear();
        input.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break; // the empty line that ends the headers
        };
        match name.to_ascii_lowercase().as_str() {
            "idempotency-key" => key = Some(value.trim().to_owned()),
            "content-length" => length = value.trim().parse()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    let key = key.context("a request has no idempotency key")?;
    Ok(Some((key, body)))
}

/// Notes the arrival, and books the sale unless its idempotency key was seen before.
fn book(ledger: &mut Connection, key: &str, body: &[u8]) -> Result<i64> {
    let order: serde_json::Value = serde_json::from_slice(body)?;
    let id = order.pointer("/order_id").and_then(|it| it.as_i64());
    let id = id.context("the body has no order id")?;
    let tx = ledger.transaction()?;
    tx.execute(
        "INSERT INTO arrival (idempotency_key, order_id) VALUES (?1, ?2)",
        (key, id),
    )?;
    tx.execute(
        "INSERT INTO document (idempotency_key, order_id) VALUES (?1, ?2)
         ON CONFLICT (idempotency_key) DO NOTHING",
        (key, id),
    )?;
    let number = tx.query_row(
        "SELECT number FROM document WHERE idempotency_key = ?1",
        [key],
        |row| row.get(0),
    )?;
    tx.commit()?;
    Ok(number)
}
