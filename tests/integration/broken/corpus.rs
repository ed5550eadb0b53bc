//! Files that should not be: damaged, foreign, or written past all checks.

use std::path::Path;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{Delivery, Message, Outbox, Outcome};

use super::NOW;
use crate::fixture::{Rng, long};

/// Messages outside lanes, and as many of one lane. Nothing stands in their way.
const BESIDE: usize = 20;

/// All of these but [`ODD_ONE`].
pub(super) const OTHERS: usize = 2 * BESIDE - 1;

/// The dedupe key of the message that foreign hands change.
pub(super) const ODD_ONE: &str = "free-0";

/// A file by name, made in a folder.
pub(super) struct Broken {
    pub(super) name: String,
    pub(super) file: Vec<u8>,
    /// What stands beside it, by the end of its name.
    pub(super) beside: Vec<(&'static str, Vec<u8>)>,
}

impl Broken {
    fn of(name: impl Into<String>, file: Vec<u8>) -> Self {
        Self {
            name: name.into(),
            file,
            beside: Vec::new(),
        }
    }
}

/// A good file with messages of every kind, without a write-ahead log.
pub(super) fn good(folder: &Path) -> Vec<u8> {
    encoded(folder, "UTF-8")
}

/// The same in one of SQLite's encodings.
pub(super) fn encoded(folder: &Path, encoding: &str) -> Vec<u8> {
    let path = folder.join("good.db");
    let conn = Connection::open(&path).unwrap();
    conn.pragma_update(None, "encoding", encoding).unwrap();
    conn.execute_batch("CREATE TABLE sale (id TEXT PRIMARY KEY)")
        .unwrap();
    let clock = ManualClock::at(NOW);
    let outbox = Outbox::options().clock(clock.shared()).open(&path).unwrap();
    let put = |key: &str, lane: Option<&str>, size: usize| {
        let message = Message::text("sales", "x".repeat(size)).dedupe_key(key);
        let message = message.header("X-Store", "17").recipient("+49");
        let message = match lane {
            Some(lane) => message.ordering_key(lane),
            None => message,
        };
        outbox
            .transaction(|tx| outbox.enqueue(tx, &message))
            .unwrap();
    };
    put("sent", None, 20_000);
    let mut drain = Inline::new(&outbox, Default::default()).unwrap();
    drain
        .until_idle(&|_: &Delivery| Ok(Outcome::delivered()))
        .unwrap();
    put("dead", Some("a"), 10);
    drain
        .until_idle(&|_: &Delivery| Ok(Outcome::rejected("no")))
        .unwrap();
    put("behind", Some("a"), 10);
    for n in 0..BESIDE {
        put(&format!("free-{n}"), None, 300);
        put(&format!("lane-{n}"), Some("b"), 300);
    }
    outbox.operator("anna").pause("other").unwrap();
    conn.execute_batch(
        "INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'free-1', 'other')
           ON CONFLICT (channel, dedupe_key) DO NOTHING",
    )
    .unwrap();
    drop((drain, outbox, conn));
    std::fs::read(path).unwrap()
}

/// Cut off, zeroed, garbled, with an impossible header, with a neighbour that is not its own.
pub(super) fn damaged(good: &[u8]) -> Vec<Broken> {
    let mut all = Vec::new();
    let step = if long() { 512 } else { 512 * 19 };
    let cuts = (0..good.len())
        .step_by(step)
        .chain([1, 15, 16, 99, 100, 512, 1024, 4095, 4096]);
    for length in cuts {
        all.push(Broken::of(
            format!("cut at {length}"),
            good[..length].to_vec(),
        ));
    }
    let pages = good.len() / 4096;
    for page in (0..pages).step_by(if long() { 1 } else { 5 }) {
        for (what, byte) in [("zeroed", 0), ("filled", 0xff)] {
            let mut file = good.to_vec();
            file[page * 4096..(page + 1) * 4096].fill(byte);
            all.push(Broken::of(format!("page {page} {what}"), file));
        }
    }
    // Offset, bytes: the fields of the header.
    let fields: [(usize, &[u8]); 16] = [
        (0, b"SQLITE FORMAT 9\0"),
        (16, &[0, 0]),
        (16, &[0, 1]),
        (16, &[0xff, 0xff]),
        (18, &[9, 9]),
        (20, &[255]),
        (21, &[0, 0, 0]),
        (28, &[0xff; 4]),
        (28, &[0x7f, 0xff, 0xff, 0xff]),
        (28, &[0; 4]),
        (32, &[0xff; 8]),
        (36, &[0, 0, 0xff, 0]),
        (40, &[0xff; 4]),
        (44, &[0, 0, 0, 9]),
        (52, &[0, 0, 0, 3]),
        (56, &[0, 0, 0, 7]),
    ];
    for (at, bytes) in fields {
        let mut file = good.to_vec();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        all.push(Broken::of(format!("header {at} {bytes:?}"), file));
    }
    for seed in 0..if long() { 2_000 } else { 60 } {
        let mut rng = Rng(seed);
        let mut file = good.to_vec();
        for _ in 0..1 + rng.below(20) {
            let at = usize::try_from(rng.below(file.len() as i64)).unwrap();
            file[at] = rng.next() as u8;
        }
        all.push(Broken::of(format!("bytes of seed {seed}"), file));
    }
    for (what, file) in [
        ("text", b"S-104522;12,50\n".repeat(999)),
        ("a zip", b"PK\x03\x04".repeat(999)),
        ("nothing", Vec::new()),
        ("zeros", vec![0; 40_960]),
        ("a magic word alone", b"SQLite format 3\0".to_vec()),
    ] {
        all.push(Broken::of(what, file));
    }
    for end in ["-wal", "-journal", "-shm"] {
        for (what, bytes) in [
            ("garbage", Rng(3).next().to_be_bytes().repeat(5_000)),
            ("zeros", vec![0; 40_000]),
            ("the file itself", good.to_vec()),
            (
                "a magic word",
                vec![0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7],
            ),
        ] {
            let mut broken = Broken::of(format!("{end} of {what}"), good.to_vec());
            if end != "-journal" {
                // In WAL mode, so that it is looked at.
                broken.file[18..20].copy_from_slice(&[2, 2]);
            }
            broken.beside.push((end, bytes));
            all.push(broken);
        }
    }
    all
}

/// Triggers that would stand in the way.
const UNGUARDED: &str = "DROP TRIGGER outbox_place; DROP TRIGGER outbox_status_changed; \
    DROP TRIGGER outbox_rewritten; DROP TRIGGER outbox_rescheduled;";

const ODD: [&str; 12] = [
    "NULL",
    "''",
    "x''",
    "x'00ff'",
    "CAST(x'fffe80' AS TEXT)",
    "'a' || char(0) || 'b'",
    "char(10) || char(27) || '[2J' || char(8238)",
    "9223372036854775807",
    "-9223372036854775808",
    "1e308",
    "-1",
    "hex(zeroblob(40000))",
];

/// What a foreign hand runs on a good file. The checks are off.
pub(super) struct Statement {
    pub(super) sql: String,
    /// It changes [`ODD_ONE`] and nothing else.
    pub(super) one_row: bool,
}

pub(super) fn statements() -> Vec<Statement> {
    let all = |sql| Statement {
        sql,
        one_row: false,
    };
    let one = |sql| Statement { sql, one_row: true };
    let of_all = of_the_whole_file().into_iter().map(all);
    of_all.chain(of_one_row().into_iter().map(one)).collect()
}

fn of_the_whole_file() -> Vec<String> {
    let mut all: Vec<String> = [
        // Foreign tables of our names.
        "DROP TABLE outbox; CREATE TABLE outbox (id INTEGER PRIMARY KEY, body TEXT)",
        "DROP TABLE outbox; CREATE TABLE outbox (a, b, c)",
        "DROP TABLE outbox_meta; CREATE TABLE outbox_meta (a)",
        "DROP TABLE outbox_channel; CREATE TABLE outbox_channel (channel)",
        "DROP TABLE outbox; DROP TABLE outbox_meta; CREATE TABLE outbox (id, channel)",
        "DROP TABLE outbox",
        "DROP TABLE outbox_meta",
        "DROP TABLE outbox_attempt; DROP TABLE outbox_audit; DROP TABLE outbox_conflict",
        // Views in place of tables, and the reverse.
        "ALTER TABLE outbox RENAME TO kept; CREATE VIEW outbox AS SELECT * FROM kept",
        "ALTER TABLE outbox_meta RENAME TO kept; CREATE VIEW outbox_meta AS SELECT * FROM kept",
        "DROP VIEW outbox_status; CREATE TABLE outbox_status (a)",
        "DROP VIEW outbox_lane_procedure; CREATE TABLE outbox_lane_procedure (channel, ordering_key)",
        "CREATE TABLE outbox_new (a)",
        "DROP VIEW outbox_status; CREATE VIEW outbox_status AS SELECT * FROM nowhere",
        "DROP VIEW outbox_dead; CREATE VIEW outbox_dead AS SELECT * FROM outbox_dead",
        // Columns that are gone, renamed or generated.
        "ALTER TABLE outbox RENAME COLUMN payload TO body",
        "ALTER TABLE outbox_channel RENAME COLUMN until TO til",
        "ALTER TABLE outbox_attempt DROP COLUMN error",
        "ALTER TABLE outbox_audit DROP COLUMN who",
        "ALTER TABLE outbox ADD COLUMN extra TEXT DEFAULT 'x'",
        // Indexes and triggers that are gone or others.
        "DROP INDEX outbox_due; DROP INDEX outbox_lane",
        "DROP INDEX outbox_due; CREATE INDEX outbox_due ON sale (id)",
        "CREATE TRIGGER t1 BEFORE UPDATE ON outbox BEGIN SELECT RAISE(ABORT, 'no'); END",
        "CREATE TRIGGER t1 BEFORE UPDATE ON outbox BEGIN SELECT RAISE(IGNORE); END",
        "CREATE TRIGGER t1 AFTER UPDATE ON outbox BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        "CREATE TRIGGER t1 AFTER UPDATE OF status ON outbox BEGIN UPDATE outbox SET status = 'pending' WHERE id = NEW.id; END",
        "CREATE TRIGGER t1 AFTER UPDATE ON outbox BEGIN DELETE FROM outbox WHERE id = NEW.id; END",
        "CREATE TRIGGER t1 AFTER UPDATE ON outbox BEGIN INSERT INTO outbox (channel, payload) VALUES ('sales', 'more'); END",
        "CREATE TRIGGER t1 BEFORE INSERT ON outbox_channel BEGIN SELECT RAISE(FAIL, 'no'); END",
        "CREATE TRIGGER t1 BEFORE INSERT ON outbox_audit BEGIN SELECT RAISE(ABORT, 'no'); END",
        "CREATE TRIGGER t1 BEFORE INSERT ON outbox_attempt BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        "CREATE TRIGGER t1 BEFORE DELETE ON outbox BEGIN SELECT RAISE(ABORT, 'no'); END",
        "CREATE TRIGGER t1 AFTER INSERT ON outbox BEGIN SELECT nowhere FROM nothing; END",
        // What a person may do by hand.
        "UPDATE outbox SET status = 'sending', next_attempt_at = 0",
        "UPDATE outbox SET status = 'waiting'",
        "UPDATE outbox SET status = 'pending', settled_at = 1",
        "UPDATE outbox SET status = 'sent'",
        "DELETE FROM sqlite_sequence",
        "UPDATE sqlite_sequence SET seq = 9223372036854775807",
        "UPDATE sqlite_sequence SET seq = 'many'",
        "UPDATE outbox SET id = 9223372036854775807 WHERE id = (SELECT max(id) FROM outbox)",
        "UPDATE outbox SET id = -9223372036854775808 WHERE id = (SELECT max(id) FROM outbox)",
        "PRAGMA user_version = -1; PRAGMA application_id = 7",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'garbage' WHERE name = 'outbox_due'",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = NULL WHERE name = 'outbox_guard'",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 999999 WHERE name = 'outbox'",
        "PRAGMA writable_schema = ON; DELETE FROM sqlite_master WHERE name = 'outbox_due'",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET type = x'ff' WHERE name = 'outbox_status'",
    ]
    .map(str::to_string)
    .into();
    for (key, values) in [
        (
            "schema_version",
            &[
                "NULL",
                "''",
                "'x'",
                "x'ff'",
                "99",
                "-9223372036854775808",
                "1.5",
            ][..],
        ),
        (
            "min_writer",
            &[
                "NULL",
                "'x'",
                "2",
                "9223372036854775807",
                "'99999999999999999999'",
            ],
        ),
        (
            "instance_id",
            &["NULL", "''", "x'ff00'", "12", "CAST(x'ff' AS TEXT)"],
        ),
    ] {
        for value in values {
            all.push(format!(
                "UPDATE outbox_meta SET value = {value} WHERE key = '{key}'"
            ));
        }
        all.push(format!("DELETE FROM outbox_meta WHERE key = '{key}'"));
    }
    let columns = [
        (
            "outbox_channel",
            "channel on_dead state since until reason_code reason failures evidence probe_turn rejections paused_at paused_by pause_reason clock_skew",
        ),
        (
            "outbox_attempt",
            "message at duration_ms outcome http_status charged error",
        ),
        (
            "outbox_audit",
            "at who action message channel reason former_message_id former_payload",
        ),
        (
            "outbox_conflict",
            "at message channel dedupe_key content_type headers payload",
        ),
    ];
    for (table, columns) in columns {
        for column in columns.split(' ') {
            for value in ODD {
                all.push(format!(
                    "{UNGUARDED} UPDATE OR IGNORE {table} SET {column} = {value}"
                ));
            }
        }
    }
    for headers in [
        "'{'",
        "'[]'",
        "'{\"a\": 1}'",
        "'{\"Host\": \"x\"}'",
        "'{\"a b\": \"c\"}'",
        "'null'",
    ] {
        all.push(format!("UPDATE outbox SET headers = {headers}"));
    }
    all
}

fn of_one_row() -> Vec<String> {
    let columns = "channel status next_attempt_at claims attempts ordering_key message_id dedupe_key event_type recipient principal content_type available_at expires_at created_at last_attempt_at settled_at provider_id last_error headers answer payload";
    let with_each_value = |column| {
        ODD.map(|value| {
            format!(
                "{UNGUARDED} UPDATE OR IGNORE outbox SET {column} = {value} WHERE dedupe_key = '{ODD_ONE}'"
            )
        })
    };
    columns.split(' ').flat_map(with_each_value).collect()
}
