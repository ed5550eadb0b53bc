//! Any content in any column of the outbox's tables, in a file that was made past all checks: the
//! library reads, explains, claims and settles it, or says what is wrong, and never panics.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sqlite_outbox::rusqlite::types::ToSqlOutput;
use sqlite_outbox::rusqlite::types::ValueRef;
use sqlite_outbox::rusqlite::{Connection, ToSql, params_from_iter};
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{Delivery, Failure, HttpDispatcher, Outbox, Outcome, Receipt, Route, Settings};

/// A value as a hostile hand may write it. Text need not be UTF-8.
#[derive(Arbitrary, Debug, Clone)]
enum Value {
    /// What the schema itself would put there.
    Usual,
    Null,
    Integer(i64),
    /// An instant around the present one.
    Instant(i32),
    Real(f64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
    Status(u8),
    Key(u8),
}

const NOW: i64 = 1_800_000_000_000;
const STATUS: [&str; 7] = [
    "pending",
    "waiting",
    "sending",
    "sent",
    "dead",
    "expired",
    "cancelled",
];
const KEYS: [&str; 4] = ["sales", "a", "b", "default"];

impl ToSql for Value {
    fn to_sql(&self) -> sqlite_outbox::rusqlite::Result<ToSqlOutput<'_>> {
        let value = match self {
            Self::Usual | Self::Null => ValueRef::Null,
            Self::Integer(it) => ValueRef::Integer(*it),
            Self::Instant(it) => ValueRef::Integer(NOW + i64::from(*it)),
            Self::Real(it) => ValueRef::Real(*it),
            Self::Text(it) => ValueRef::Text(it),
            Self::Blob(it) => ValueRef::Blob(it),
            Self::Status(it) => ValueRef::Text(STATUS[usize::from(*it) % STATUS.len()].as_bytes()),
            Self::Key(it) => ValueRef::Text(KEYS[usize::from(*it) % KEYS.len()].as_bytes()),
        };
        Ok(ToSqlOutput::Borrowed(value))
    }
}

#[derive(Arbitrary, Debug)]
struct Row {
    table: u8,
    values: Vec<Value>,
}

#[derive(Arbitrary, Debug)]
struct Input {
    /// Tables whose columns have no constraint at all, as a foreign program may have made them.
    loose: bool,
    rows: Vec<Row>,
    /// What the receiver answers, in turn.
    answers: Vec<u8>,
    act_on: Option<i64>,
}

const TABLES: [(&str, &[&str]); 6] = [
    (
        "outbox",
        &[
            "id",
            "channel",
            "status",
            "next_attempt_at",
            "claims",
            "attempts",
            "ordering_key",
            "message_id",
            "dedupe_key",
            "event_type",
            "recipient",
            "principal",
            "content_type",
            "available_at",
            "expires_at",
            "created_at",
            "last_attempt_at",
            "settled_at",
            "provider_id",
            "last_error",
            "headers",
            "answer",
            "payload",
        ],
    ),
    (
        "outbox_channel",
        &[
            "channel",
            "on_dead",
            "state",
            "since",
            "until",
            "reason_code",
            "reason",
            "failures",
            "evidence",
            "probe_turn",
            "rejections",
            "paused_at",
            "paused_by",
            "pause_reason",
            "clock_skew",
        ],
    ),
    (
        "outbox_attempt",
        &[
            "message",
            "at",
            "duration_ms",
            "outcome",
            "http_status",
            "charged",
            "error",
        ],
    ),
    (
        "outbox_audit",
        &[
            "at",
            "who",
            "action",
            "message",
            "channel",
            "reason",
            "former_message_id",
            "former_payload",
        ],
    ),
    (
        "outbox_conflict",
        &[
            "message",
            "message_ordering_key",
            "channel",
            "dedupe_key",
            "event_type",
            "recipient",
            "ordering_key",
            "principal",
            "content_type",
            "headers",
            "available_at",
            "expires_at",
            "payload",
        ],
    ),
    ("outbox_meta", &["key", "value"]),
];

/// Files without triggers, one with the real tables and one with loose ones. They stand in memory
/// where the system has such a folder.
struct Templates {
    folder: tempfile::TempDir,
}

static TEMPLATES: LazyLock<Templates> = LazyLock::new(|| {
    let memory = std::path::Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let templates = Templates {
        folder: folder.unwrap(),
    };
    for (name, loose) in [("strict.db", false), ("loose.db", true)] {
        let path = templates.folder.path().join(name);
        let conn = Connection::open(&path).unwrap();
        conn.execute_batch("PRAGMA journal_mode = MEMORY").unwrap();
        if loose {
            for (table, columns) in TABLES {
                let key = match table {
                    "outbox" | "outbox_channel" | "outbox_meta" => "",
                    _ => "id INTEGER PRIMARY KEY, ",
                };
                let columns = match table {
                    "outbox" => {
                        columns
                            .join(", ")
                            .replacen("id", "id INTEGER PRIMARY KEY AUTOINCREMENT", 1)
                    }
                    _ => columns.join(", "),
                };
                let table = format!("CREATE TABLE {table} ({key}{columns})");
                conn.execute_batch(&table).unwrap();
            }
            conn.execute_batch("CREATE UNIQUE INDEX loose ON outbox (channel, dedupe_key); CREATE UNIQUE INDEX loose_channel ON outbox_channel (channel); CREATE UNIQUE INDEX loose_meta ON outbox_meta (key)").unwrap();
        }
        conn.execute_batch(sqlite_outbox::SCHEMA).unwrap();
        let triggers = "SELECT group_concat('DROP TRIGGER ' || name, ';') FROM sqlite_master WHERE type = 'trigger'";
        let drop: String = conn.query_row(triggers, [], |row| row.get(0)).unwrap();
        conn.execute_batch(&drop).unwrap();
    }
    templates
});

fn write(input: &Input) -> PathBuf {
    let folder = TEMPLATES.folder.path();
    let path = folder.join("till.db");
    for end in ["", "-wal", "-shm", "-journal"] {
        let _ = std::fs::remove_file(folder.join(format!("till.db{end}")));
    }
    let template = if input.loose { "loose.db" } else { "strict.db" };
    std::fs::copy(folder.join(template), &path).unwrap();
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("PRAGMA synchronous = OFF; PRAGMA ignore_check_constraints = ON; BEGIN")
        .unwrap();
    for row in input.rows.iter().take(24) {
        let (table, columns) = TABLES[usize::from(row.table) % TABLES.len()];
        let mut chosen = Vec::new();
        let mut values: Vec<&dyn ToSql> = Vec::new();
        for (column, value) in columns.iter().zip(&row.values) {
            if !matches!(value, Value::Usual) {
                chosen.push(*column);
                values.push(value);
            }
        }
        if table == "outbox" {
            for (column, value) in [("channel", &"sales" as &dyn ToSql), ("payload", &"x")] {
                if !chosen.contains(&column) {
                    chosen.push(column);
                    values.push(value);
                }
            }
        }
        if chosen.is_empty() {
            continue;
        }
        let marks = vec!["?"; chosen.len()].join(", ");
        let sql = format!(
            "INSERT OR REPLACE INTO {table} ({}) VALUES ({marks})",
            chosen.join(", ")
        );
        let _ = conn.execute(&sql, params_from_iter(values));
    }
    conn.execute_batch("COMMIT").unwrap();
    path
}

fuzz_target!(|input: Input| {
    let path = write(&input);
    let clock = ManualClock::at(NOW);
    let options = Outbox::options()
        .clock(clock.shared())
        .on_connect(|conn| conn.execute_batch("PRAGMA journal_mode = MEMORY"));
    let Ok(outbox) = options.open(&path) else {
        return;
    };
    let ids: Vec<i64> = outbox
        .list(&Default::default())
        .unwrap_or_default()
        .iter()
        .map(|it| it.id)
        .collect();
    for id in ids
        .iter()
        .copied()
        .chain([1, 2, i64::MAX, i64::MIN])
        .take(12)
    {
        let _ = outbox.get(id);
        let _ = outbox.why(id).map(|it| it.to_string());
        let _ = outbox.attempts(id).map(|it| format!("{it:?}"));
        let _ = outbox.find(&id.to_string(), None);
    }
    let look = |outbox: &Outbox| {
        let _ = outbox.stats().map(|it| it.to_string());
        let _ = outbox.unsent();
        let _ = outbox.why_all().map(|it| format!("{it:?}"));
        let _ = outbox.dead_reasons();
        let _ = outbox.audit(None, 50).map(|it| format!("{it:?}"));
        let _ = outbox.check().map(|it| format!("{it:?}"));
        let _ = outbox.file_info();
    };
    look(&outbox);

    let http = HttpDispatcher::builder()
        .fallback(Route::post(
            "http://127.0.0.1:9/{channel}/{recipient}/{dedupe_key}",
        ))
        .build()
        .unwrap();
    let answers = std::sync::Mutex::new(input.answers.iter().copied());
    let receive = |it: &Delivery| {
        let _ = http.preview(it);
        let failure = || Failure::new("http", "no").status(500);
        Ok(match answers.lock().unwrap().next().unwrap_or(0) % 6 {
            0 | 1 => Outcome::Delivered(Receipt::with_id("1").answer(it.payload.clone())),
            2 => Outcome::Retry(failure().after(Duration::from_secs(3))),
            3 => Outcome::Rejected(failure()),
            4 => Outcome::unreachable("no network"),
            _ => anyhow::bail!("nobody knows"),
        })
    };
    if let Ok(mut drain) = Inline::new(&outbox, Settings::default()) {
        for _ in 0..6 {
            let _ = drain.step(&receive);
            clock.advance(Duration::from_secs(7));
        }
    }
    if let Some(id) = input.act_on {
        let id = ids
            .get(id.unsigned_abs() as usize % (ids.len() + 1))
            .copied()
            .unwrap_or(id);
        let anna = outbox.operator("anna");
        let _ = anna.retry(id);
        let _ = anna.edit(id, "new");
        let _ = anna.cancel(id);
        let _ = anna.pause("sales");
        let _ = anna.resume("sales");
        let _ = anna.retry_all(&Default::default());
        let _ = anna.purge(Duration::from_secs(1));
    }
    look(&outbox);
});
