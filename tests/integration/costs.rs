//! What makes it fast and does not depend on the machine: commits, syncs, statements, bytes and
//! plans. The bench `limits` measures the time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::rusqlite::config::DbConfig;
use sqlite_outbox::rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use sqlite_outbox::rusqlite::trace::{TraceEvent, TraceEventCodes};
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{Delivery, Filter, Message, Outbox, Outcome, Settings, Status};

use super::fixture::{Till, nap, put};
use super::vfs::Vfs;

thread_local! {
    /// How often each statement ran on this thread.
    static RAN: RefCell<BTreeMap<String, usize>> = const { RefCell::new(BTreeMap::new()) };
}

fn note(event: TraceEvent<'_>) {
    if let TraceEvent::Stmt(statement, text) = event {
        // A trigger that runs shows as a comment with its name.
        let sql = if text.starts_with("--") {
            text.into()
        } else {
            statement.sql().into_owned()
        };
        RAN.with_borrow_mut(|ran| *ran.entry(sql).or_default() += 1);
    }
}

/// Counts what this connection runs.
pub(crate) fn note_statements(conn: &Connection) {
    conn.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(note));
}

/// What ran on this thread since the last call.
pub(crate) fn ran() -> BTreeMap<String, usize> {
    RAN.take()
}

pub(crate) fn count(ran: &BTreeMap<String, usize>, wanted: impl Fn(&str) -> bool) -> usize {
    let wanted = ran.iter().filter(|(sql, _)| wanted(sql.trim_start()));
    wanted.map(|(_, count)| count).sum()
}

/// A file whose syncs are counted, and statements too; the log is never written back, so that a
/// sync is a commit and the size of the log all that was written.
fn watched(vfs: &Vfs) -> (Till, Outbox) {
    let till = Till::new();
    let clock = ManualClock::at(1_800_000_000_000).shared();
    let options = Outbox::options()
        .clock(clock)
        .vfs(vfs.name())
        .on_connect(|conn: &Connection| {
            conn.pragma_update(None, "wal_autocheckpoint", 0)?;
            note_statements(conn);
            Ok(())
        });
    let outbox = options.open(&till.path).unwrap();
    (till, outbox)
}

fn fill(outbox: &Outbox, messages: usize, bytes: usize, ordering_key: Option<&str>) {
    let message = |number: usize| {
        let message = Message::bytes("sales", vec![b'x'; bytes]).dedupe_key(format!("S-{number}"));
        match ordering_key {
            Some(key) => message.ordering_key(key),
            None => message,
        }
    };
    let messages: Vec<_> = (0..messages).map(message).collect();
    let answers = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
    assert!(answers.unwrap().iter().all(Result::is_ok));
}

fn up(_: &Delivery) -> anyhow::Result<Outcome> {
    Ok(Outcome::delivered())
}

fn log_bytes(till: &Till) -> u64 {
    std::fs::metadata(till.folder.path().join("till.db-wal"))
        .unwrap()
        .len()
}

/// All that is due, with this many messages claimed at once; what ran, and how much was written.
fn drained(vfs: &Vfs, messages: usize, bytes: usize, ordering_key: Option<&str>) -> Cost {
    let (till, outbox) = watched(vfs);
    fill(&outbox, messages, bytes, ordering_key);
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    ran();
    let (bytes, syncs) = (log_bytes(&till), vfs.syncs());
    let events = drain.until_idle(&up).unwrap();
    assert_eq!(events.len(), messages);
    let ran = ran();
    Cost {
        commits: count(&ran, |sql| sql.starts_with("COMMIT")),
        syncs: vfs.syncs() - syncs,
        bytes: log_bytes(&till) - bytes,
        ran,
    }
}

struct Cost {
    commits: usize,
    syncs: u64,
    bytes: u64,
    ran: BTreeMap<String, usize>,
}

#[test]
fn sixty_four_messages_share_a_commit_and_its_sync() {
    let cost = drained(&Vfs::register(), 1_280, 300, None);
    // A slow start doubles from two, and the last ones are only settled.
    let most = 1_280 / 64 + 10;
    assert!(cost.commits <= most, "{} commits", cost.commits);
    let syncs = cost.syncs;
    assert!(
        syncs <= cost.commits as u64,
        "{syncs} syncs, {} commits",
        cost.commits
    );
}

/// The application would carry the log over into the file at 1,000 pages, in one of its own commits.
#[test]
fn a_drain_carries_the_log_over_before_the_application_must() {
    let log_of = |pages: i64| {
        let till = Till::new();
        let outbox = Outbox::options()
            .on_connect(move |conn: &Connection| {
                conn.pragma_update(None, "wal_autocheckpoint", pages)
            })
            .open(&till.path)
            .unwrap();
        fill(&outbox, 3_000, 300, None);
        let conn = till.sql();
        let truncate = "PRAGMA wal_checkpoint(TRUNCATE)";
        conn.query_row(truncate, [], |_| Ok(())).unwrap();
        let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
        drain.until_idle(&up).unwrap();
        log_bytes(&till) / 4_120
    };
    let pages = log_of(1_000);
    assert!((500..700).contains(&pages), "{pages} pages");
    let pages = log_of(0);
    assert!(pages > 1_000, "{pages} pages where nobody wants it");
}

#[test]
fn a_message_that_is_sent_costs_the_log_two_kilobytes_at_most() {
    let cost = drained(&Vfs::register(), 1_280, 300, None);
    let each = cost.bytes / 1_280;
    assert!(each <= 2_048, "{each} bytes for each message");
}

/// A row's columns lie in one record with its payload, and SQLite writes a record that changes anew:
/// once when it is claimed and once when it is settled, whole pages each time.
#[test]
fn a_large_message_that_is_sent_goes_through_the_log_twice() {
    let payload = 20_000;
    let cost = drained(&Vfs::register(), 320, payload, None);
    let times = cost.bytes as f64 / (320 * payload) as f64;
    assert!((2.0..2.5).contains(&times), "{times} times its payload");
}

/// Neither for another limit nor for another number of rows: whatever ran once stays prepared.
#[test]
fn a_drain_prepares_each_statement_once() {
    let till = Till::new();
    let prepared = Arc::new(AtomicUsize::new(0));
    let preparing = Arc::clone(&prepared);
    let options = Outbox::options()
        .clock(ManualClock::at(1_800_000_000_000).shared())
        .on_connect(move |conn: &Connection| {
            let preparing = Arc::clone(&preparing);
            conn.authorizer(Some(move |context: AuthContext<'_>| {
                // Transactions are no statements to keep.
                let read = matches!(context.action, AuthAction::Read { .. });
                preparing.fetch_add(usize::from(read), Ordering::SeqCst);
                Authorization::Allow
            }))
        });
    let outbox = options.open(&till.path).unwrap();
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    let mut seen = Vec::new();
    for round in 0..3 {
        for messages in [1, 3, 9, 200] {
            let message = Message::text("sales", format!("round {round}"));
            let batch = vec![message; messages];
            let answers = outbox.transaction(|tx| outbox.enqueue_all(tx, &batch));
            assert!(answers.unwrap().iter().all(Result::is_ok));
            let before = prepared.load(Ordering::SeqCst);
            // So that there is room for one more, or for nine, beside those on the wire.
            drain.cycle(&up).unwrap();
            let calls: Vec<_> = (0..messages % 7).filter_map(|_| drain.begin()).collect();
            for call in calls {
                drain.end(call, Ok(Outcome::delivered()));
                drain.cycle(&up).unwrap();
            }
            drain.until_idle(&up).unwrap();
            seen.push(prepared.load(Ordering::SeqCst) - before);
        }
    }
    assert!(seen[0] > 0, "nothing is counted");
    assert_eq!(seen[4..], [0; 8], "{seen:?}");
}

#[test]
fn a_cycle_reads_each_message_once_and_writes_them_by_a_few_statements() {
    let cost = drained(&Vfs::register(), 1_280, 300, None);
    let statements = count(&cost.ran, |sql| !sql.starts_with("--"));
    let most = 1_280 + 20 * cost.commits;
    assert!(statements <= most, "{statements}, {:#?}", cost.ran);
    let updates = count(&cost.ran, |sql| sql.starts_with("UPDATE"));
    assert!(updates <= 4 * cost.commits, "{updates}, {:#?}", cost.ran);
}

#[test]
fn a_lane_costs_a_commit_for_each_run() {
    let cost = drained(&Vfs::register(), 640, 300, Some("customer-7"));
    let most = 640 / 16 + 2;
    assert!(cost.commits <= most, "{} commits", cost.commits);
}

#[test]
fn an_enqueue_is_one_commit_with_one_sync_and_a_few_pages() {
    let vfs = Vfs::register();
    let (till, outbox) = watched(&vfs);
    fill(&outbox, 100, 300, None);
    ran();
    let (bytes, syncs) = (log_bytes(&till), vfs.syncs());
    put(&outbox, &Message::text("sales", "x").dedupe_key("one more")).unwrap();
    let (ran, bytes, syncs) = (ran(), log_bytes(&till) - bytes, vfs.syncs() - syncs);
    assert_eq!(
        (count(&ran, |sql| sql.starts_with("COMMIT")), syncs),
        (1, 1)
    );
    // Of the table, its key, what is due, and the sequence.
    assert!(bytes <= 6 * (4096 + 24), "{bytes} bytes");
    let statements = count(&ran, |sql| !sql.starts_with("--"));
    assert!(statements <= 5, "{ran:#?}");
}

/// What takes CPU in an idle pump is a look at `data_version`; it prepares no statement for it and
/// begins no transaction.
#[test]
fn an_idle_pump_prepares_nothing_and_commits_nothing() {
    let till = Till::new();
    let (prepared, committed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (preparing, committing) = (Arc::clone(&prepared), Arc::clone(&committed));
    let options = Outbox::options().on_connect(move |conn: &Connection| {
        let (preparing, committing) = (Arc::clone(&preparing), Arc::clone(&committing));
        conn.authorizer(Some(move |_: AuthContext<'_>| {
            preparing.fetch_add(1, Ordering::SeqCst);
            Authorization::Allow
        }))?;
        conn.commit_hook(Some(move || {
            committing.fetch_add(1, Ordering::SeqCst);
            false
        }))
    });
    let outbox = options.open(&till.path).unwrap();
    let settings = Settings::new().poll(Duration::from_millis(1));
    let pump = outbox.pump(up).settings(settings).start().unwrap();
    put(&outbox, &Message::text("sales", "one")).unwrap();
    while outbox.unsent().unwrap() > 0 {
        nap(10);
    }
    nap(500);
    let seen = || {
        (
            prepared.load(Ordering::SeqCst),
            committed.load(Ordering::SeqCst),
        )
    };
    let before = seen();
    assert!(before.0 > 0 && before.1 > 0, "nothing is counted");
    nap(1_000);
    assert_eq!(seen(), before);
    pump.stop(Duration::from_secs(10)).unwrap();
}

/// Statements of the pump below.
#[cfg(unix)]
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// The file system is asked instead whether anybody wrote, which costs a tenth.
#[cfg(unix)]
#[test]
fn an_idle_pump_that_polls_every_millisecond_asks_sqlite_a_few_times_a_second() {
    let till = Till::new();
    let options = Outbox::options().on_connect(|conn: &Connection| {
        let note = |_: TraceEvent<'_>| {
            ASKED.fetch_add(1, Ordering::SeqCst);
        };
        conn.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(note));
        Ok(())
    });
    let outbox = options.open(&till.path).unwrap();
    let settings = Settings::new().poll(Duration::from_millis(1));
    let pump = outbox.pump(up).settings(settings).start().unwrap();
    put(&outbox, &Message::text("sales", "one")).unwrap();
    while outbox.unsent().unwrap() > 0 {
        nap(10);
    }
    nap(500);
    let begun = std::time::Instant::now();
    let before = ASKED.load(Ordering::SeqCst);
    assert!(before > 0, "nothing is counted");
    nap(1_000);
    let asked = ASKED.load(Ordering::SeqCst) - before;
    // Twice a second, a few statements each; the machine may be slow, and so is the nap then.
    let halves = begun.elapsed().as_millis() as usize / 500 + 1;
    assert!(asked <= 8 * halves, "{asked} in {halves} half seconds");
    pump.stop(Duration::from_secs(10)).unwrap();
}

/// Steps of SQLite's machine, in hundreds, for all pages of a list of so many unsent messages: new
/// ones, some that were tried, members of lanes.
fn pages_of(messages: usize) -> usize {
    let till = Till::new();
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&steps);
    let options = Outbox::options().on_connect(move |conn: &Connection| {
        let counted = Arc::clone(&counted);
        let count = move || counted.fetch_add(1, Ordering::SeqCst) == usize::MAX;
        conn.progress_handler(100, Some(count))
    });
    let outbox = options.open(&till.path).unwrap();
    let sql = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
               INSERT INTO outbox (channel, ordering_key, status, next_attempt_at, payload)
               SELECT 'sales', CASE WHEN i % 4 = 0 THEN 'lane' END,
                      CASE WHEN i % 4 = 0 AND i > 4 THEN 'waiting' ELSE 'pending' END,
                      CASE WHEN i % 4 = 1 THEN 1 + i * 7919 % 1000 ELSE 0 END, 'x'
                 FROM n";
    till.sql().execute(sql, [messages as i64]).unwrap();
    let unsent = [Status::Pending, Status::Waiting, Status::Sending];
    let mut filter = unsent.into_iter().fold(Filter::new(), Filter::status);
    let (before, mut found) = (steps.load(Ordering::SeqCst), 0);
    while let page = outbox.list(&filter.clone().limit(50)).unwrap()
        && let Some(last) = page.last()
    {
        found += page.len();
        filter = filter.after(last.id);
    }
    assert_eq!(found, messages);
    steps.load(Ordering::SeqCst) - before
}

/// Each page sorted what its channel had, so a list of four times as many took sixteen times as long.
#[test]
fn all_pages_of_a_list_of_four_times_as_many_cost_four_times_as_much() {
    let (few, many) = (pages_of(1_000), pages_of(4_000));
    assert!(few > 100, "{few}: nothing is counted");
    assert!(many < 5 * few, "{few} for 1,000, {many} for 4,000");
}

/// Whatever a drain and an enqueue run, triggers included, in a game with lanes, retries, dead
/// letters and schedules: nothing reads a whole table or index and nothing is sorted.
#[test]
fn no_statement_of_an_enqueue_or_a_drain_reads_a_whole_table() {
    let vfs = Vfs::register();
    let (till, outbox) = watched(&vfs);
    ran();
    fill(&outbox, 20, 300, None);
    for number in 0..20 {
        let message = Message::text("sales", "x").ordering_key(format!("lane-{}", number % 4));
        put(&outbox, &message.dedupe_key(format!("lane-{number}"))).unwrap();
    }
    put(
        &outbox,
        &Message::text("later", "x").delay(Duration::from_secs(60)),
    )
    .unwrap();
    put(
        &outbox,
        &Message::text("late", "x").ttl(Duration::from_secs(60)),
    )
    .unwrap();
    put(&outbox, &Message::text("sales", "y").dedupe_key("S-1")).unwrap();
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
    let (ran, conn) = (ran(), till.sql());
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRIGGER_EQP, true)
        .unwrap();
    let mut looked = 0;
    for sql in ran.keys() {
        let plan = plan(&conn, sql);
        looked += usize::from(!plan.is_empty());
        for step in &plan {
            assert!(
                good(step) || BOUNDED.iter().any(|it| sql.contains(it)),
                "{step}\n{sql}\n{plan:#?}"
            );
        }
    }
    assert!(looked > 15, "{looked} plans, {ran:#?}");
}

/// What scans or sorts and is bounded all the same.
const BOUNDED: &[&str] = &[
    // What is unsent, up to a few thousand.
    "SELECT d.n AS due",
    // Names of channels, a step each.
    "WITH RECURSIVE used (channel)",
    // One row from the end.
    "FROM outbox NOT INDEXED ORDER BY id DESC LIMIT 1",
    // What people did, pruned to some 100,000 rows, once an hour.
    "FROM outbox_audit",
];

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
    // `m`: the messages of one statement.
    let short = |it: &str| it.contains("CONSTANT ROW") || ["outbox_channel", "m"].contains(&it);
    scan.is_none_or(short) && !step.contains("TEMP B-TREE")
}
