//! Any bytes as the answer to a request, over a real socket: they become an outcome, within the
//! route's time and memory, and nothing panics. Half of the inputs are well-formed answers with odd
//! headers, so that Retry-After, Date and reply rules are reached.
#![no_main]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sqlite_outbox::{Delivery, Dispatcher, HttpDispatcher, Otherwise, ReplyRule, Route};

#[derive(Arbitrary, Debug)]
enum Answer {
    Raw(Vec<u8>),
    Formed {
        status: u16,
        headers: Vec<(Header, Text)>,
        body: Body,
        cut: Option<u8>,
    },
}

#[derive(Arbitrary, Debug)]
enum Header {
    RetryAfter,
    Date,
    ContentType,
    Location,
    TransferEncoding,
    ContentEncoding,
    ContentLength,
    Other(String),
}

#[derive(Arbitrary, Debug)]
enum Text {
    Number(i64),
    Date {
        day: u8,
        month: u8,
        year: u16,
        hour: u8,
        minute: u8,
        zone: u8,
    },
    Free(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
enum Body {
    Bytes(Vec<u8>),
    Problem { key: u8, value: String },
    Deep(u16),
}

const MONTHS: [&str; 13] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Xyz",
];
const KEYS: [&str; 6] = ["id", "detail", "message", "error", "status", "exception"];

impl Text {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Number(n) => n.to_string().into(),
            Self::Date {
                day,
                month,
                year,
                hour,
                minute,
                zone,
            } => {
                let month = MONTHS[usize::from(*month) % MONTHS.len()];
                let zone = if *zone < 200 { "GMT" } else { "+0200" };
                format!("Sun, {day:02} {month} {year} {hour:02}:{minute:02}:00 {zone}").into()
            }
            Self::Free(bytes) => bytes.clone(),
        }
    }
}

impl Body {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Problem { key, value } => {
                let key = KEYS[usize::from(*key) % KEYS.len()];
                format!(
                    "{{\"{key}\": {value:?}, \"error\": {{\"data\": {{\"message\": {value:?}}}}}}}"
                )
                .into()
            }
            Self::Deep(depth) => "[".repeat(usize::from(*depth)).into(),
        }
    }
}

impl Answer {
    fn bytes(&self) -> Vec<u8> {
        let (status, headers, body, cut) = match self {
            Self::Raw(bytes) => return bytes.clone(),
            Self::Formed {
                status,
                headers,
                body,
                cut,
            } => (status, headers, body.bytes(), cut),
        };
        let mut bytes = format!("HTTP/1.1 {} Odd\r\n", status % 1000).into_bytes();
        let mut sized = false;
        for (name, value) in headers {
            let name = match name {
                Header::RetryAfter => "Retry-After",
                Header::Date => "Date",
                Header::ContentType => "Content-Type",
                Header::Location => "Location",
                Header::TransferEncoding => "Transfer-Encoding",
                Header::ContentEncoding => "Content-Encoding",
                Header::ContentLength => "Content-Length",
                Header::Other(name) => name,
            };
            sized |= matches!(name, "Transfer-Encoding" | "Content-Length");
            bytes.extend(name.as_bytes());
            bytes.extend(b": ");
            bytes.extend(value.bytes());
            bytes.extend(b"\r\n");
        }
        if !sized {
            bytes.extend(format!("Content-Length: {}\r\n", body.len()).into_bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(body);
        if let Some(cut) = cut {
            bytes.truncate(bytes.len().saturating_sub(usize::from(*cut)));
        }
        bytes
    }
}

/// A server that answers each connection with the bytes it was given, and closes it.
struct Server {
    address: SocketAddr,
    next: Mutex<Sender<Vec<u8>>>,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (next, answers) = channel::<Vec<u8>>();
    std::thread::spawn(move || {
        let mut answer = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            // A repeated request of the same input gets the same answer.
            while let Ok(next) = answers.try_recv() {
                answer = next;
            }
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(&answer);
        }
    });
    Server {
        address,
        next: Mutex::new(next),
    }
});

#[derive(Arbitrary, Debug)]
struct Input {
    answer: Answer,
    rule: u8,
}

static DISPATCHERS: LazyLock<Vec<HttpDispatcher>> = LazyLock::new(|| {
    let url = format!("http://{}/x", SERVER.address);
    let route = || Route::post(&url).timeout(Duration::from_secs(2)).direct();
    let rules = [
        route(),
        route().reply(ReplyRule::new().require("/id").forbid("/error")),
        route().reply(
            ReplyRule::new()
                .equals("/status", "ok")
                .otherwise(Otherwise::Reject),
        ),
        route()
            .delivered_on([409, 302])
            .rejected_on([417])
            .provider_id("/id"),
    ];
    let build = |route| HttpDispatcher::builder().fallback(route).build().unwrap();
    rules.into_iter().map(build).collect()
});

fuzz_target!(|input: Input| {
    SERVER
        .next
        .lock()
        .unwrap()
        .send(input.answer.bytes())
        .unwrap();
    let http = &DISPATCHERS[usize::from(input.rule) % DISPATCHERS.len()];
    let started = Instant::now();
    let outcome = http.dispatch(&Delivery::new("sales", b"{}".to_vec()));
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "it hung for {took:?}");
    if let Ok(outcome) = &outcome {
        let text = format!("{outcome:?}");
        assert!(text.len() < 64 * 1024, "an outcome of {} bytes", text.len());
    }
});
