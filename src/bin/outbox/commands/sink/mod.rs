//! `outbox sink`: a receiver to rehearse with.

mod ledger;
mod serve;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::args::{self, Exit, Format};
use crate::output::{Out, Tone, printable};
use crate::threads;

use serve::Sink;

/// Requests that were answered and not yet printed; then the answers wait.
const WAITING: usize = 256;

/// Run a receiver to rehearse with, which fails as you like
///
/// It listens on this machine only, prints its URL first, and answers with a document number. A
/// message that comes again gets the number it had. GET and HEAD are answered and are no messages.
/// Ctrl-C ends it.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: what becomes of the queue when answers get lost?
  outbox sink --mood lost-answer --port 8080
and in another terminal, twice: what comes again gets the
number whose answer was lost
  outbox drain till.db --url http://localhost:8080/sales --now")]
pub(crate) struct Arguments {
    /// How it behaves
    #[arg(long, value_name = "MOOD", default_value = "ok")]
    mood: Mood,
    /// The port [default: any that is free]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// How long it takes in the mood slow
    #[arg(long, value_name = "D", default_value = "10s", value_parser = args::duration)]
    delay: Duration,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mood {
    /// Takes everything and answers with a document number
    Ok,
    /// A captive portal: 200 and a page to log in
    Captive,
    /// Hangs up on everyone
    Refuse,
    /// Does not know the credentials
    #[value(name = "401")]
    Unauthorised,
    /// Is overloaded, and asks to wait two seconds
    #[value(name = "503")]
    Overloaded,
    /// Takes everything, late
    Slow,
    /// Takes everything, and the first answer to each message gets lost
    LostAnswer,
    /// Finds every message wrong (422)
    Reject,
    /// A broken deployment: answers 400 to everything
    #[value(name = "400")]
    BadRequest,
}

/// A request as it arrived, and what was answered.
#[derive(Debug)]
struct Got {
    number: u64,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// `None`: the connection was closed instead.
    answered: Option<u16>,
    document: Option<u64>,
    /// It came before, with this key.
    repeated: bool,
    /// It came before with this key and other bytes.
    changed: bool,
}

#[derive(Serialize)]
struct Listening<'a> {
    url: &'a str,
}

#[derive(Serialize)]
struct Request<'a> {
    number: u64,
    method: &'a str,
    target: &'a str,
    headers: BTreeMap<&'a str, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    answered: Option<u16>,
    document: Option<u64>,
    repeated: bool,
    changed: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, arguments.port))
        .with_context(|| format!("port {} cannot be had", arguments.port))?;
    let url = format!("http://{}/", listener.local_addr()?);
    let mut out = Out::new();
    match arguments.format.json {
        true => out.json(&Listening { url: &url })?,
        false => out.line(format!("listening on {url}"))?,
    }
    out.flush()?;
    let (got, inbox) = sync_channel(WAITING);
    let sink = Sink::new(arguments.mood, arguments.delay, got);
    threads::start("outbox-sink", move || sink.listen(&listener))
        .context("no thread could be started")?;
    for got in inbox {
        match arguments.format.json {
            true => out.json(&as_json(&got))?,
            false => print(&got, &mut out)?,
        }
        out.flush()?;
    }
    Ok(Exit::Done)
}

/// The header's value, unless it is a credential.
pub(super) fn shown(name: &str, value: &str) -> String {
    let secret = [
        "authorization",
        "cookie",
        "token",
        "secret",
        "password",
        "api-key",
        "apikey",
    ];
    if !secret.iter().any(|it| name.contains(it)) {
        return value.into();
    }
    match value.split_once(' ') {
        Some((scheme, _)) if name.ends_with("authorization") => format!("{scheme} …"),
        _ => "…".into(),
    }
}

fn as_json(got: &Got) -> Request<'_> {
    let body = std::str::from_utf8(&got.body).ok();
    let headers = got.headers.iter();
    Request {
        number: got.number,
        method: &got.method,
        target: &got.target,
        headers: headers
            .map(|(name, value)| (name.as_str(), shown(name, value)))
            .collect(),
        body,
        body_base64: body.is_none().then(|| BASE64_STANDARD.encode(&got.body)),
        answered: got.answered,
        document: got.document,
        repeated: got.repeated,
        changed: got.changed,
    }
}

fn print(got: &Got, out: &mut Out) -> anyhow::Result<()> {
    let head = format!(
        "{} {} {}",
        got.number,
        printable(&got.method),
        printable(&got.target)
    );
    let answer = match (got.answered, got.document) {
        (Some(status), Some(document)) => format!("{status}, document {document}"),
        (Some(status), None) => status.to_string(),
        (None, Some(document)) => format!("document {document}, and no answer"),
        (None, None) => "no answer".into(),
    };
    let again = match (got.repeated, got.changed) {
        (_, true) => " (its key came before with OTHER content)",
        (true, _) => " (came before)",
        _ => "",
    };
    out.line(format!(
        "{} -> {answer}{again}",
        out.paint(Tone::Head, &head)
    ))?;
    for (name, value) in &got.headers {
        out.line(format!(
            "  {}: {}",
            printable(name),
            printable(&shown(name, value))
        ))?;
    }
    match std::str::from_utf8(&got.body) {
        Ok(text) => text
            .lines()
            .try_for_each(|line| out.line(format!("  {}", printable(line)))),
        Err(_) => out.line(format!("  {} bytes that are no text", got.body.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        assert_eq!(shown("authorization", "Bearer t0ken"), "Bearer …");
        assert_eq!(shown("x-api-key", "t0 ken"), "…");
        assert_eq!(shown("cookie", "a=b"), "…");
        assert_eq!(shown("idempotency-key", "S-1"), "S-1");
    }
}
