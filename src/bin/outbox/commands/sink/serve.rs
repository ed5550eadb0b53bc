//! The server of a sink: HTTP/1.1 with lengths or chunks, a thread for each connection.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::ledger::Ledger;
use super::{Got, Mood};
use crate::output::note;
use crate::threads;

const MAX_HEAD: u64 = 64 * 1024;
const MAX_BODY: u64 = 16 * 1024 * 1024;

/// How long a connection may be silent.
const IDLE: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(super) struct Sink {
    mood: Mood,
    delay: Duration,
    got: SyncSender<Got>,
    requests: AtomicU64,
    ledger: Mutex<Ledger>,
}

/// A request's head.
#[derive(Debug, Default)]
struct Head {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
}

impl Head {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// What goes back.
struct Answer {
    status: u16,
    extra: &'static str,
    content_type: &'static str,
    body: String,
}

impl Answer {
    fn json(status: u16, body: String) -> Self {
        Self {
            status,
            extra: "",
            content_type: "application/json",
            body,
        }
    }
}

impl Sink {
    pub(super) fn new(mood: Mood, delay: Duration, got: SyncSender<Got>) -> Self {
        Self {
            mood,
            delay,
            got,
            requests: AtomicU64::new(0),
            ledger: Mutex::default(),
        }
    }

    /// Serves until nobody prints any more.
    pub(super) fn listen(self, listener: &TcpListener) {
        let sink = Arc::new(self);
        for stream in listener.incoming() {
            // A client that gave up while it stood in the queue.
            let Ok(stream) = stream else { continue };
            if sink.mood == Mood::Refuse {
                continue;
            }
            let sink = sink.clone();
            let serve = move || {
                let _ = sink.converse(stream);
            };
            // Where no thread can be had the connection closes.
            let _ = threads::start("outbox-sink-connection", serve);
        }
    }

    /// Answers one request after the other until either side has enough.
    fn converse(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        loop {
            stream.get_ref().set_read_timeout(Some(IDLE))?;
            let Some(head) = head(&mut stream)? else {
                return Ok(());
            };
            let Some(body) = body(&head, &mut stream)? else {
                return Ok(());
            };
            if !self.answer(head, body, stream.get_mut())? {
                return Ok(());
            }
        }
    }

    /// False when the connection is to be closed.
    fn answer(&self, head: Head, body: Vec<u8>, stream: &mut TcpStream) -> io::Result<bool> {
        if self.mood == Mood::Slow && hung_up(stream, self.delay)? {
            return Ok(false);
        }
        let mut got = Got {
            number: self.requests.fetch_add(1, Ordering::Relaxed) + 1,
            method: head.method.clone(),
            target: head.target.clone(),
            body,
            answered: None,
            document: None,
            repeated: false,
            changed: false,
            headers: Vec::new(),
        };
        let bodiless = head.method == "HEAD";
        let answer = self.decide(&head, &mut got);
        got.answered = answer.as_ref().map(|it| it.status);
        got.headers = head.headers;
        // Printed first, so that a crash of the client does not hide what it sent.
        let printing = self.got.send(got).is_ok();
        let Some(answer) = answer else {
            return Ok(false);
        };
        let Answer {
            status,
            extra,
            content_type,
            body,
        } = answer;
        let length = body.len();
        let body = if bodiless { "" } else { &body };
        let text = format!(
            "HTTP/1.1 {status} {}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n{extra}\r\n{body}",
            phrase(status)
        );
        stream.write_all(text.as_bytes())?;
        stream.flush()?;
        Ok(printing)
    }

    fn decide(&self, head: &Head, got: &mut Got) -> Option<Answer> {
        let refusal = |status, code: &str, detail: &str| {
            let body = format!(r#"{{"error":"{code}","detail":"{detail}"}}"#);
            Some(Answer::json(status, body))
        };
        match self.mood {
            Mood::Captive => {
                return Some(Answer {
                    status: 200,
                    extra: "",
                    content_type: "text/html; charset=utf-8",
                    body: "<!doctype html><title>Welcome</title><p>Log in to use this network."
                        .into(),
                });
            }
            Mood::Unauthorised => {
                let answer = refusal(401, "unauthorised", "these credentials are not known")?;
                let extra = "WWW-Authenticate: Bearer\r\n";
                return Some(Answer { extra, ..answer });
            }
            Mood::Overloaded => {
                let answer = refusal(503, "overloaded", "come back later")?;
                let extra = "Retry-After: 2\r\n";
                return Some(Answer { extra, ..answer });
            }
            Mood::Reject => return refusal(422, "invalid", "this sink finds every message wrong"),
            Mood::BadRequest => {
                return refusal(400, "bad_request", "this sink understands nothing");
            }
            Mood::Refuse => return None,
            Mood::Ok | Mood::Slow | Mood::LostAnswer => {}
        }
        if matches!(head.method.as_str(), "GET" | "HEAD") {
            return Some(Answer::json(200, r#"{"status":"ok"}"#.into()));
        }
        let key = head.header("idempotency-key").or(head.header("webhook-id"));
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let booked = ledger.book(key, &got.body);
        drop(ledger);
        let document = booked.document;
        got.document = Some(document);
        got.repeated = booked.repeated;
        got.changed = booked.changed;
        if self.mood == Mood::LostAnswer && !booked.repeated {
            return None;
        }
        let status = if booked.repeated { 200 } else { 201 };
        let body = format!(
            r#"{{"id":"DOC-{document}","status":"ok","data":{{"name":"DOC-{document}"}}}}"#
        );
        Some(Answer::json(status, body))
    }
}

fn phrase(status: u16) -> &'static str {
    match status {
        201 => "Created",
        400 => "Bad Request",
        401 => "Unauthorized",
        422 => "Unprocessable Content",
        503 => "Service Unavailable",
        _ => "OK",
    }
}

/// Waits, unless the client goes away meanwhile.
fn hung_up(stream: &TcpStream, delay: Duration) -> io::Result<bool> {
    // Zero would mean without end.
    stream.set_read_timeout(Some(delay.max(Duration::from_millis(1))))?;
    match stream.peek(&mut [0]) {
        Ok(read) => Ok(read == 0),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn line(stream: &mut impl BufRead, left: &mut u64) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let read = stream.take(*left).read_until(b'\n', &mut line)?;
    *left = left.saturating_sub(read as u64);
    if !line.ends_with(b"\n") {
        return Ok(None);
    }
    Ok(Some(
        String::from_utf8_lossy(line.trim_ascii_end()).into_owned(),
    ))
}

fn head(stream: &mut impl BufRead) -> io::Result<Option<Head>> {
    let mut left = MAX_HEAD;
    let Some(first) = line(stream, &mut left)? else {
        return Ok(None);
    };
    let mut words = first.split(' ');
    let mut head = Head {
        method: words.next().unwrap_or_default().into(),
        target: words.next().unwrap_or_default().into(),
        headers: Vec::new(),
    };
    while let Some(line) = line(stream, &mut left)? {
        match line.split_once(':') {
            Some((name, value)) => head
                .headers
                .push((name.to_ascii_lowercase(), value.trim().into())),
            None if line.is_empty() => return Ok(Some(head)),
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// The payload of a request; `None` when it was refused, or broke off.
fn body(head: &Head, stream: &mut BufReader<TcpStream>) -> io::Result<Option<Vec<u8>>> {
    let length = head.header("content-length").map(str::parse);
    let refusal = match (head.header("transfer-encoding"), &length) {
        (Some(it), _) if it.eq_ignore_ascii_case("chunked") => None,
        (Some(_), _) => Some("501 Not Implemented"),
        (None, Some(Ok(length))) if *length > MAX_BODY => Some(TOO_LARGE),
        (None, Some(Err(_))) => Some("400 Bad Request"),
        (None, Some(Ok(_)) | None) => None,
    };
    if let Some(status) = refusal {
        return refuse(status, stream);
    }
    if head.header("expect").is_some() {
        stream
            .get_mut()
            .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    if head.header("transfer-encoding").is_some() {
        return match chunks(stream)? {
            Chunks::Whole(body) => Ok(Some(body)),
            Chunks::Broken => refuse("400 Bad Request", stream),
            Chunks::TooLarge => refuse(TOO_LARGE, stream),
        };
    }
    let length = length.and_then(Result::ok).unwrap_or(0);
    let mut body = Vec::new();
    stream.take(length).read_to_end(&mut body)?;
    Ok((body.len() as u64 == length).then_some(body))
}

const TOO_LARGE: &str = "413 Content Too Large";

/// Answers a request that is not read, and tells whoever wonders where it is.
fn refuse(status: &str, stream: &mut BufReader<TcpStream>) -> io::Result<Option<Vec<u8>>> {
    note(&format!("a request was refused: {status}"));
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.get_mut().write_all(text.as_bytes())?;
    Ok(None)
}

/// What came in chunks.
enum Chunks {
    Whole(Vec<u8>),
    Broken,
    TooLarge,
}

fn chunks(stream: &mut impl BufRead) -> io::Result<Chunks> {
    let mut body = Vec::new();
    loop {
        let mut left = MAX_HEAD;
        let size = line(stream, &mut left)?.unwrap_or_default();
        // Behind a semicolon come extensions, which mean nothing here.
        let size = size.split(';').next().unwrap_or_default().trim();
        let Ok(size) = u64::from_str_radix(size, 16) else {
            return Ok(Chunks::Broken);
        };
        if size == 0 {
            // Trailers, and the empty line after them.
            while line(stream, &mut left)?.is_some_and(|it| !it.is_empty()) {}
            return Ok(Chunks::Whole(body));
        }
        if size.saturating_add(body.len() as u64) > MAX_BODY {
            return Ok(Chunks::TooLarge);
        }
        let before = body.len() as u64;
        stream.take(size).read_to_end(&mut body)?;
        let whole = body.len() as u64 == before + size;
        if !whole || line(stream, &mut left)?.is_none_or(|it| !it.is_empty()) {
            return Ok(Chunks::Broken);
        }
    }
}
