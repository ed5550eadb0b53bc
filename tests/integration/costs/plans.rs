//! What runs follows an index and leaves payloads alone, whatever it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::rusqlite::config::DbConfig;
use sqlite_outbox::rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use sqlite_outbox::testing::Inline;
use sqlite_outbox::{Delivery, Message, Outcome, Settings};

use super::{fill, ran, watched};
use crate::fixture::{Till, put};
use crate::vfs::Vfs;

/// A file, and what ran on it for enqueues and for a drain, in a game with lanes, retries, dead
/// letters and schedules.
fn game() -> (Till, [BTreeMap<String, usize>; 2]) {
    let (till, outbox) = watched(&Vfs::register());
    ran();
    fill(&outbox, 20, 300, None);
    for number in 0..20 {
        let message = Message::text("sales", "x").ordering_key(format!("lane-{}", number % 4));
        put(&outbox, &message.dedupe_key(format!("lane-{number}"))).unwrap();
    }
    let minute = Duration::from_secs(60);
    put(&outbox, &Message::text("later", "x").delay(minute)).unwrap();
    put(&outbox, &Message::text("late", "x").ttl(minute)).unwrap();
    put(&outbox, &Message::text("sales", "y").dedupe_key("S-1")).unwrap();
    let enqueued = ran();
    let moody = |delivery: &Delivery| {
        Ok(match (delivery.channel.as_str(), delivery.id % 5) {
            ("late", _) => Outcome::unreachable("no network"),
            (_, 1) => Outcome::rejected("never"),
            (_, 2) => Outcome::retry("not now"),
            _ => Outcome::delivered(),
        })
    };
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    for _ in 0..20 {
        drain.until_idle(&moody).unwrap();
        drain.wake();
    }
    (till, [enqueued, ran()])
}

/// Triggers included: nothing reads a whole table or index and nothing is sorted.
#[test]
fn no_statement_of_an_enqueue_or_a_drain_reads_a_whole_table() {
    let (till, ran) = game();
    let conn = till.sql();
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRIGGER_EQP, true)
        .unwrap();
    let mut looked = 0;
    for sql in ran.iter().flat_map(BTreeMap::keys) {
        let plan = plan(&conn, sql);
        looked += usize::from(!plan.is_empty());
        for step in &plan {
            assert!(
                good(step) || BOUNDED.iter().any(|it| sql.contains(it)),
                "{step}\n{sql}\n{plan:#?}"
            );
        }
    }
    assert!(looked > 30, "{looked} plans, {ran:#?}");
}

/// Neither a look nor a claim of others, nor what writes what became of a message.
#[test]
fn a_drain_reads_a_payload_where_it_takes_the_message_and_nowhere_else() {
    let (till, [_, drained]) = game();
    let conn = till.sql();
    let reading = drained.keys().filter(|sql| reads_payloads(&conn, sql));
    let reading: Vec<_> = reading.map(|sql| sql.trim_start()).collect();
    let takes = |sql: &&str| sql.starts_with("SELECT id, message_id");
    assert!(
        reading.len() == 1 && reading.iter().all(takes),
        "{reading:#?}"
    );
}

/// What scans or sorts and is bounded all the same.
const BOUNDED: &[&str] = &[
    // What is unsent, up to a few thousand.
    "SELECT d.n AS due",
    // One row from the end.
    "FROM outbox NOT INDEXED ORDER BY id DESC LIMIT 1",
    "FROM outbox_attempt NOT INDEXED ORDER BY rowid DESC LIMIT 1",
    // What people did, pruned to some 100,000 rows, once an hour.
    "FROM outbox_audit",
];

/// Whether a statement, or what it triggers, looks into payloads.
fn reads_payloads(conn: &Connection, sql: &str) -> bool {
    let found = Arc::new(AtomicBool::new(false));
    let finding = Arc::clone(&found);
    conn.authorizer(Some(move |context: AuthContext<'_>| {
        if let AuthAction::Read {
            table_name: "outbox",
            column_name: "payload",
        } = context.action
        {
            finding.store(true, Ordering::SeqCst);
        }
        Authorization::Allow
    }))
    .unwrap();
    let prepared = conn.prepare(sql).map(drop);
    conn.authorizer(None::<fn(AuthContext<'_>) -> Authorization>)
        .unwrap();
    prepared.unwrap();
    found.load(Ordering::SeqCst)
}

fn plan(conn: &Connection, sql: &str) -> Vec<String> {
    let begins = |word: &&str| sql.trim_start().starts_with(word);
    if !["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"]
        .iter()
        .any(begins)
    {
        return Vec::new();
    }
    let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let steps = statement.raw_query().mapped(|row| row.get("detail"));
    steps.collect::<Result<_, _>>().unwrap()
}

/// A step that does not depend on how much there is.
fn good(step: &str) -> bool {
    let scan = step.strip_prefix("SCAN ");
    // `m`: the messages of one statement; `used`: names of channels, a step each; `s`: three states.
    let short = |it: &str| {
        it.contains("CONSTANT ROW") || ["outbox_channel", "m", "used", "s"].contains(&it)
    };
    scan.is_none_or(short) && !step.contains("TEMP B-TREE")
}
