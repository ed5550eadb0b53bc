//! What happened: the server's side, the file's side, and what was done to both.
//!
//! The file tells its own history. The application has triggers on the outbox (it is its file) that
//! note every change in a journal, so the journal holds what was committed and nothing else, also
//! when the process that wrote it died right after.

use std::collections::BTreeMap;
use std::fmt;

use sqlite_outbox::rusqlite::{Connection, Row as Read};

/// One moment on both clocks of the machine, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct At {
    pub(super) wall: i64,
    pub(super) mono: i64,
}

impl At {
    /// The wall time that drains go by: before 1970 it counts from their start.
    pub(super) fn now(self) -> i64 {
        match self.wall {
            ..0 => self.mono,
            wall => wall,
        }
    }
}

/// Who did something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    App,
    Operator,
    /// A drain, from its start to its end: no memory outlives it.
    Life(usize),
    World,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Pending,
    Waiting,
    Sending,
    Sent,
    Dead,
    Expired,
    Cancelled,
}

impl Status {
    fn parse(word: &str) -> Self {
        match word {
            "pending" => Self::Pending,
            "waiting" => Self::Waiting,
            "sending" => Self::Sending,
            "sent" => Self::Sent,
            "dead" => Self::Dead,
            "expired" => Self::Expired,
            "cancelled" => Self::Cancelled,
            _ => panic!("status {word}"),
        }
    }

    pub(super) fn is_unsent(self) -> bool {
        matches!(self, Self::Pending | Self::Waiting | Self::Sending)
    }
}

/// A message as the file holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) channel: String,
    pub(super) key: String,
    pub(super) lane: Option<String>,
    pub(super) message_id: String,
    pub(super) payload: Vec<u8>,
    pub(super) status: Status,
    pub(super) claims: i64,
    pub(super) attempts: i64,
    pub(super) due: i64,
    pub(super) available: Option<i64>,
    pub(super) expires: Option<i64>,
    pub(super) settled: Option<i64>,
    pub(super) envelope: Envelope,
    /// What the receiver answered: its own id, and the body.
    pub(super) receipt: [Option<String>; 2],
}

/// What goes out with the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) event_type: Option<String>,
    pub(super) recipient: Option<String>,
    pub(super) principal: Option<String>,
    pub(super) content_type: String,
    pub(super) headers: Vec<(String, String)>,
}

/// A channel as the file holds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Channel {
    pub(super) state: String,
    pub(super) until: Option<i64>,
    pub(super) evidence: bool,
    pub(super) rejections: i64,
    pub(super) paused: bool,
    pub(super) skip: bool,
}

/// One committed change of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    New(Row),
    Row(Row),
    Gone(i64),
    /// A failed attempt: its code, and its number within the budget if it was charged.
    Attempt(i64, String, i64),
    Channel(String, Channel),
}

/// What a caller of the receiver was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Delivered,
    Rejected,
    /// With the receiver's own delay in seconds.
    Retry(Option<u64>),
    Unreachable,
    Unauthorised,
    Portal,
    /// No outcome but an error.
    Unknown,
}

/// One message put on the wire.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) life: usize,
    pub(super) id: i64,
    pub(super) claims: i64,
    pub(super) channel: String,
    pub(super) lane: Option<String>,
    /// The idempotency key, and the bytes.
    pub(super) message_id: String,
    pub(super) payload: Vec<u8>,
    pub(super) envelope: Envelope,
    /// Whether it got as far as the receiver, and whether the receiver took it.
    pub(super) reached: bool,
    pub(super) accepted: bool,
}

/// What the application heard at its enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    New,
    Same,
    Other,
    Replaced,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    /// The application's transaction is over; these answers count when it was committed.
    Enqueued(Vec<Enqueue>, bool),
    Born,
    /// A cycle has ended; not when it could not write.
    Cycle(bool),
    Crashed,
    /// The grace of a stop is over: nobody hears what comes back.
    Abandoned,
    Stopped,
    Changed(Vec<Change>),
    Sent(Box<Request>),
    Answered(usize, Told),
    /// Something that only the reader of a story needs to know.
    Note(String),
}

/// One message of a transaction, and what its enqueue was told.
#[derive(Debug, Clone)]
pub(super) struct Enqueue {
    pub(super) channel: &'static str,
    pub(super) key: String,
    pub(super) payload: String,
    pub(super) lane: Option<String>,
    pub(super) id: i64,
    pub(super) heard: Heard,
    /// Not before, and not after.
    pub(super) times: [Option<i64>; 2],
    pub(super) envelope: Envelope,
}

/// The receiver's own id for a request, and its answer's body: no two have the same.
pub(super) fn receipt(id: i64, claims: i64) -> [Option<String>; 2] {
    let answers = [
        format!("INV-{id}-{claims}"),
        format!("{{\"took\":{id},\"of\":{claims}}}"),
    ];
    answers.map(Some)
}

#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) at: At,
    pub(super) who: Who,
    pub(super) what: What,
}

/// The application's own tables: what it sold, and what its hook was told.
pub(super) const SALES: &str = "
CREATE TABLE sale (message INTEGER PRIMARY KEY, payload TEXT NOT NULL);
CREATE TABLE ledger (message INTEGER NOT NULL);
";

/// The journal.
pub(super) const JOURNAL: &str = "
CREATE TABLE journal (
  seq INTEGER PRIMARY KEY, kind INTEGER NOT NULL, id INTEGER, channel TEXT, key TEXT, lane TEXT,
  message_id TEXT, payload BLOB, status TEXT, claims INTEGER, attempts INTEGER, due INTEGER,
  available INTEGER, expires INTEGER, settled INTEGER, event_type TEXT, recipient TEXT,
  principal TEXT, content_type TEXT, headers TEXT, provider_id TEXT, answer TEXT);
CREATE TRIGGER journal_new AFTER INSERT ON outbox BEGIN
  INSERT INTO journal SELECT NULL, 0, NEW.id, NEW.channel, NEW.dedupe_key, NEW.ordering_key,
    NEW.message_id, CAST(NEW.payload AS BLOB), NEW.status, NEW.claims, NEW.attempts,
    NEW.next_attempt_at, NEW.available_at, NEW.expires_at, NEW.settled_at, NEW.event_type,
    NEW.recipient, NEW.principal, NEW.content_type, NEW.headers, NEW.provider_id, NEW.answer; END;
CREATE TRIGGER journal_row AFTER UPDATE ON outbox BEGIN
  INSERT INTO journal SELECT NULL, 1, NEW.id, NEW.channel, NEW.dedupe_key, NEW.ordering_key,
    NEW.message_id, CAST(NEW.payload AS BLOB), NEW.status, NEW.claims, NEW.attempts,
    NEW.next_attempt_at, NEW.available_at, NEW.expires_at, NEW.settled_at, NEW.event_type,
    NEW.recipient, NEW.principal, NEW.content_type, NEW.headers, NEW.provider_id, NEW.answer; END;
CREATE TRIGGER journal_gone AFTER DELETE ON outbox BEGIN
  INSERT INTO journal (kind, id) VALUES (2, OLD.id); END;
CREATE TRIGGER journal_attempt AFTER INSERT ON outbox_attempt BEGIN
  INSERT INTO journal (kind, id, status, attempts) VALUES (3, NEW.message, NEW.outcome, NEW.charged);
END;
CREATE TRIGGER journal_channel AFTER INSERT ON outbox_channel BEGIN
  INSERT INTO journal (kind, id, channel, status, due, claims, attempts, available, expires)
  VALUES (4, 0, NEW.channel, NEW.state, NEW.until, NEW.evidence, NEW.rejections,
          NEW.paused_at IS NOT NULL, NEW.on_dead = 'skip'); END;
CREATE TRIGGER journal_channel_row AFTER UPDATE ON outbox_channel BEGIN
  INSERT INTO journal (kind, id, channel, status, due, claims, attempts, available, expires)
  VALUES (4, 0, NEW.channel, NEW.state, NEW.until, NEW.evidence, NEW.rejections,
          NEW.paused_at IS NOT NULL, NEW.on_dead = 'skip'); END;
";

/// What was committed since the last look, which was up to `seen`. Changes of different messages
/// have no order among each other that could be relied on; those of one message do.
pub(super) fn read_on(conn: &Connection, seen: &mut i64) -> Vec<Change> {
    let sql = "SELECT * FROM journal WHERE seq > ?1 ORDER BY id, channel, seq";
    let mut statement = conn.prepare_cached(sql).unwrap();
    let mut rows = statement.query([*seen]).unwrap();
    let mut changes = Vec::new();
    let mut last = *seen;
    while let Some(row) = rows.next().unwrap() {
        last = last.max(row.get(0).unwrap());
        changes.push(decode(row));
    }
    *seen = last;
    changes
}

fn decode(read: &Read<'_>) -> Change {
    let id: i64 = read.get("id").unwrap();
    let number = |name: &str| read.get::<_, Option<i64>>(name).unwrap();
    let text = |name: &str| read.get::<_, String>(name).unwrap();
    let maybe = |name: &str| read.get::<_, Option<String>>(name).unwrap();
    let count = |name: &str| number(name).unwrap_or(0);
    let row = || Row {
        id,
        channel: text("channel"),
        key: text("key"),
        lane: read.get("lane").unwrap(),
        message_id: text("message_id"),
        payload: read.get("payload").unwrap(),
        status: Status::parse(&text("status")),
        claims: count("claims"),
        attempts: count("attempts"),
        due: count("due"),
        available: number("available"),
        expires: number("expires"),
        settled: number("settled"),
        envelope: Envelope {
            event_type: maybe("event_type"),
            recipient: maybe("recipient"),
            principal: maybe("principal"),
            content_type: text("content_type"),
            headers: maybe("headers").map_or_else(Vec::new, |it| {
                let headers: BTreeMap<_, _> = serde_json::from_str(&it).unwrap();
                headers.into_iter().collect()
            }),
        },
        receipt: ["provider_id", "answer"].map(maybe),
    };
    match count("kind") {
        0 => Change::New(row()),
        1 => Change::Row(row()),
        2 => Change::Gone(id),
        3 => Change::Attempt(id, text("status"), count("attempts")),
        _ => Change::Channel(
            text("channel"),
            Channel {
                state: text("status"),
                until: number("due"),
                evidence: count("claims") == 1,
                rejections: count("attempts"),
                paused: count("available") == 1,
                skip: count("expires") == 1,
            },
        ),
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New(row) | Self::Row(row) => {
                let lane = row.lane.as_deref().unwrap_or("-");
                let (id, status, claims) = (row.id, row.status, row.claims);
                write!(f, "{id}/{lane} {status:?} c{claims} a{}", row.attempts)?;
                write!(f, " due {}", row.due)?;
                row.settled.map_or(Ok(()), |at| write!(f, " settled {at}"))
            }
            Self::Gone(id) => write!(f, "{id} gone"),
            Self::Attempt(id, code, nth) => write!(f, "{id} failed: {code}, charge {nth}"),
            Self::Channel(name, it) => write!(f, "{name} {it:?}"),
        }
    }
}

/// One line, without what differs from run to run: message ids are random.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At { wall, mono } = self.at;
        write!(f, "{wall} {mono:>9} {:?}: ", self.who)?;
        match &self.what {
            What::Changed(changes) => {
                let lines: Vec<_> = changes.iter().map(ToString::to_string).collect();
                write!(f, "committed {}", lines.join("; "))
            }
            What::Sent(it) => {
                let (id, claims, lane) = (it.id, it.claims, it.lane.as_deref().unwrap_or("-"));
                let (reached, accepted) = (it.reached, it.accepted);
                write!(f, "sends {id}/{lane} c{claims} of {}", it.channel)?;
                write!(f, " (reached {reached}, accepted {accepted})")
            }
            What::Note(text) => f.write_str(text),
            other => write!(f, "{other:?}"),
        }
    }
}
