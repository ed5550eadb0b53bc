//! What makes it fast and does not depend on the machine: commits, syncs, statements, bytes and
//! plans. The bench `limits` measures the time.

mod idle;
mod plans;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use sqlite_outbox::rusqlite::trace::{TraceEvent, TraceEventCodes};
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{Delivery, Filter, Message, Outbox, Outcome, Settings, Status};

use super::fixture::{Till, put};
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

impl Cost {
    /// Statements, without what triggers do.
    fn statements(&self) -> usize {
        count(&self.ran, |sql| !sql.starts_with("--"))
    }

    fn triggers(&self) -> usize {
        count(&self.ran, |sql| sql.starts_with("--"))
    }

    fn updates(&self) -> usize {
        count(&self.ran, |sql| sql.starts_with("UPDATE"))
    }
}

/// What 1,280 messages cost more than 640 before them: twenty full cycles of 64, or eighty runs of a
/// lane, and nothing of what a drain does once, or while it starts slowly.
fn steady(bytes: usize, ordering_key: Option<&str>) -> Cost {
    let vfs = Vfs::register();
    let [less, more] = [640, 1_920].map(|messages| drained(&vfs, messages, bytes, ordering_key));
    let mut ran = more.ran;
    for (sql, times) in less.ran {
        *ran.get_mut(&sql).unwrap() -= times;
    }
    ran.retain(|_, times| *times > 0);
    Cost {
        commits: more.commits - less.commits,
        syncs: more.syncs - less.syncs,
        bytes: more.bytes - less.bytes,
        ran,
    }
}

#[test]
fn sixty_four_messages_share_a_commit_and_its_sync() {
    let cost = steady(300, None);
    assert_eq!((cost.commits, cost.syncs), (20, 20));
    // A slow start takes a few more, and the last ones are only settled.
    let whole = drained(&Vfs::register(), 1_280, 300, None);
    assert!(whole.commits <= 20 + 3, "{} commits", whole.commits);
}

#[test]
fn a_cycle_reads_each_message_once_and_runs_twelve_statements_beside() {
    let cost = steady(300, None);
    let Cost { commits, ran, .. } = &cost;
    let reads = count(ran, |sql| sql.starts_with("SELECT id, message_id"));
    assert_eq!(reads, 1_280, "{ran:#?}");
    assert!(cost.statements() <= reads + 12 * commits, "{ran:#?}");
    // One claims, one settles.
    assert_eq!(cost.updates(), 2 * commits, "{ran:#?}");
    // Two triggers watch either change of a row, and the settled one counts less in the census.
    assert!(cost.triggers() <= 5 * 1_280, "{ran:#?}");
}

#[test]
fn a_run_of_a_lane_is_a_commit_and_fourteen_statements_beside_its_reads() {
    let cost = steady(300, Some("customer-7"));
    let Cost { commits, ran, .. } = &cost;
    assert_eq!((*commits, cost.syncs), (80, 80));
    assert!(cost.statements() <= 1_280 + 14 * commits, "{ran:#?}");
    assert_eq!(cost.updates(), 2 * commits, "{ran:#?}");
    // What is settled promotes the next.
    assert!(cost.triggers() <= 9 * 1_280 + commits, "{ran:#?}");
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
fn a_message_that_is_sent_costs_the_log_seventeen_hundred_bytes_at_most() {
    let each = steady(300, None).bytes / 1_280;
    assert!(each <= 1_700, "{each} bytes for each message");
}

/// A row's columns lie in one record with its payload, and SQLite writes a record that changes anew:
/// once when it is claimed and once when it is settled, whole pages each time.
#[test]
fn a_large_message_that_is_sent_goes_through_the_log_twice() {
    let payload = 20_000;
    let cost = drained(&Vfs::register(), 320, payload, None);
    let times = cost.bytes as f64 / (320 * payload) as f64;
    assert!((2.0..2.2).contains(&times), "{times} times its payload");
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
    // Two triggers look at it, and do nothing.
    assert!(count(&ran, |sql| sql.starts_with("--")) <= 2, "{ran:#?}");
}

#[test]
fn sixteen_messages_that_are_enqueued_together_are_one_statement() {
    for ordering_key in [None, Some("customer-7")] {
        let (till, outbox) = watched(&Vfs::register());
        put(&outbox, &Message::text("sales", "the first")).unwrap();
        ran();
        let bytes = log_bytes(&till);
        fill(&outbox, 1_600, 300, ordering_key);
        let (ran, bytes) = (ran(), log_bytes(&till) - bytes);
        let inserts = |sql: &str| sql.starts_with("WITH m") && sql.contains("INSERT INTO outbox");
        assert_eq!(count(&ran, inserts), 100, "{ran:#?}");
        // Each under a savepoint.
        let statements = count(&ran, |sql| !sql.starts_with("--"));
        assert!(statements <= 3 * 100 + 4, "{ran:#?}");
        assert!(bytes <= 1_600 * 570, "{bytes} bytes");
    }
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
