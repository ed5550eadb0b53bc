//! Every statement that may meet a million rows follows an index and sorts nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use crate::entry::Status;
use crate::schema::SCHEMA;
use crate::store::{
    SET, bulk, census, channel, claim, conflict, decode, enqueue, operate, read, retention, round,
    select, settle, stats, upkeep, why,
};

/// The plan of a statement, one step a line.
fn plan(conn: &Connection, sql: &str) -> String {
    let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    for index in 1..=statement.parameter_count() {
        statement.raw_bind_parameter(index, 1).unwrap();
    }
    let mut rows = statement.raw_query();
    let mut steps = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        steps.push(row.get::<_, String>("detail").unwrap());
    }
    steps.join("\n")
}

/// What of a plan is more than a range of an index that has all that is asked for, and a key of the
/// small table of channels: it reads rows, or a whole index.
fn beyond_the_index(plan: &str) -> Vec<&str> {
    let reads = |step: &&str| {
        let scans = step.starts_with("SCAN ");
        step.contains(" USING ")
            && (scans || !step.contains(" USING COVERING INDEX "))
            && !step.starts_with("SEARCH outbox_channel USING PRIMARY KEY (channel=?)")
    };
    plan.lines().filter(reads).collect()
}

/// Whether a statement, or what it triggers, looks into payloads.
fn reads_payloads(conn: &Connection, sql: &str) -> bool {
    let found = Arc::new(AtomicBool::new(false));
    let finding = Arc::clone(&found);
    let watch = move |context: AuthContext<'_>| {
        if let AuthAction::Read {
            table_name: "outbox",
            column_name: "payload",
        } = context.action
        {
            finding.store(true, Ordering::SeqCst);
        }
        Authorization::Allow
    };
    conn.authorizer(Some(watch)).unwrap();
    conn.prepare(sql).unwrap();
    conn.authorizer(None::<fn(AuthContext<'_>) -> Authorization>)
        .unwrap();
    found.load(Ordering::SeqCst)
}

/// A file without statistics, and one whose statistics tell of the morning it was nearly empty.
fn files() -> [Connection; 2] {
    let [fresh, analysed] = [(); 2].map(|()| Connection::open_in_memory().unwrap());
    fresh.execute_batch(SCHEMA).unwrap();
    analysed.execute_batch(SCHEMA).unwrap();
    let few = "
        INSERT INTO outbox (channel, ordering_key, status, settled_at, payload)
        VALUES ('sales', 'till-1', 'dead', 1, ''), ('sales', 'till-1', 'waiting', NULL, ''),
               ('sales', NULL, 'pending', NULL, ''), ('sales', NULL, 'sending', NULL, ''),
               ('sales', NULL, 'sent', 1, '');
        ANALYZE";
    analysed.execute_batch(few).unwrap();
    [fresh, analysed]
}

#[test]
fn hot_statements_follow_their_index_and_sort_nothing() {
    files().iter().for_each(hot_statements);
}

/// Statements that need more than their index has, and what they read. `DUE`, `WAITING` and
/// `NEXT_DUE` read a row for each channel.
const READ_ROWS: &[(&str, &[&str])] = &[
    (
        claim::EACH,
        &["SCAN outbox USING COVERING INDEX outbox_due"],
    ),
    (
        upkeep::BELATED,
        &["SEARCH outbox USING INDEX outbox_lane (channel=? AND ordering_key=? AND status=?)"],
    ),
    (
        claim::FRESH,
        &["SEARCH outbox USING INDEX outbox_due (channel=? AND status=? AND next_attempt_at=?)"],
    ),
    (
        claim::NEWEST,
        &["SEARCH outbox USING INDEX outbox_due (channel=? AND status=? AND next_attempt_at=?)"],
    ),
    (claim::RETRIES, &[LATER]),
    (
        claim::STALE,
        &[
            "SEARCH outbox USING INDEX outbox_due (channel=? AND status=? AND next_attempt_at<?)",
            "SEARCH outbox USING INDEX outbox_due (channel=? AND status=? AND next_attempt_at>?)",
        ],
    ),
    (
        claim::FOLLOWERS,
        &[
            "SEARCH outbox USING INDEX outbox_lane (channel=? AND ordering_key=? AND status=? AND id>? AND id<?)",
        ],
    ),
    (upkeep::DUE_LATER, &[LATER]),
    (why::PENDING_ROWS, WALK),
    (why::SENDING_ROWS, WALK),
    (
        why::WAITING_ROWS,
        &[
            "SEARCH outbox USING INDEX outbox_lane (channel=? AND ordering_key>?)",
            "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
            "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
        ],
    ),
    (
        upkeep::EXPIRED,
        &["SEARCH outbox USING INDEX outbox_expiry (expires_at<?)"],
    ),
    (
        upkeep::NEXT_EXPIRY,
        &["SEARCH outbox USING INDEX outbox_expiry (expires_at>?)"],
    ),
    (stats::DUE, &[ONE]),
    (stats::WAITING, &[ONE]),
    (stats::NEXT_DUE, &[ONE]),
    (
        retention::NEXT,
        &[
            "SEARCH outbox USING INDEX outbox_settled (channel=? AND status=? AND settled_at>? AND settled_at<?)",
        ],
    ),
    (
        retention::UNDATED,
        &[
            "SEARCH outbox USING INDEX outbox_settled (channel=? AND status=? AND settled_at=? AND rowid>?)",
        ],
    ),
    (
        operate::DEAD_LANES,
        &["SEARCH outbox USING INDEX outbox_dead_rows (channel=? AND status=? AND id>?)"],
    ),
    (
        select::DEAD,
        &[
            "SEARCH o USING INDEX outbox_dead_rows (channel=? AND status=? AND id>? AND id<?)",
            "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
            "SEARCH a USING INDEX outbox_attempt_message (message=?)",
            "SEARCH a USING INDEX outbox_attempt_message (message=?)",
        ],
    ),
    (
        select::DEAD_EDGE,
        &["SEARCH c USING INTEGER PRIMARY KEY (rowid=?)"],
    ),
    (
        select::DEAD_WITH_REASON,
        &[
            "SEARCH o USING INDEX outbox_dead_rows (channel=? AND status=? AND id>?)",
            "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
            "SEARCH a USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
        ],
    ),
];

const LATER: &str = "SEARCH outbox USING INDEX outbox_due (channel=? AND status=? AND next_attempt_at>? AND next_attempt_at<?)";
/// Of the rows of a status, which `why` tells apart one by one.
const WALK: &[&str] = &[
    "SEARCH outbox USING INDEX outbox_due (channel=? AND status=? AND next_attempt_at>?)",
    "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
];
const ONE: &str = "SEARCH o USING INTEGER PRIMARY KEY (rowid=?)";

/// How long a payload is, which goes with its message, or of what kind.
const WEIGH: [&str; 5] = [
    retention::NEXT,
    retention::UNDATED,
    why::PENDING_ROWS,
    why::SENDING_ROWS,
    why::WAITING_ROWS,
];

fn hot_statements(conn: &Connection) {
    let due = [
        claim::ANY,
        claim::STANDINGS,
        claim::EACH,
        claim::FRESH,
        claim::NEWEST,
        claim::RETRIES,
        claim::FIRST_PENDING,
        claim::STALE,
        upkeep::DUE_LATER,
        why::OTHER,
        why::PENDING_ROWS,
        why::SENDING_ROWS,
        why::LAST_DRAIN,
        stats::DUE,
        stats::NEXT_DUE,
    ];
    let lane = [
        claim::FOLLOWERS,
        claim::GOES_ON,
        upkeep::NEXT_LANE,
        upkeep::NEXT_LANE_CHANNEL,
        upkeep::HEADLESS,
        upkeep::BELATED,
        why::BLOCKER,
        why::WAITING_ROWS,
        stats::WAITING,
    ];
    let expiry = [upkeep::EXPIRED, upkeep::NEXT_EXPIRY];
    let settled = [
        round::SHELVES,
        retention::NEXT,
        retention::UNDATED,
        round::ODD[0],
        round::ODD[1],
        round::ODD[2],
        why::LAST_DRAIN,
        stats::SETTLED,
    ];
    let dead = [
        operate::DEAD_LANES,
        select::DEAD,
        select::DEAD_EDGE,
        select::DEAD_WITH_REASON,
        stats::DEAD,
    ];
    let groups: [(&str, &[&str]); 5] = [
        ("outbox_due", &due),
        ("outbox_lane", &lane),
        ("outbox_expiry", &expiry),
        ("outbox_settled", &settled),
        ("outbox_dead_rows", &dead),
    ];
    for (index, statements) in groups {
        for sql in statements {
            let plan = plan(conn, sql);
            assert!(plan.contains(index), "{sql}\n{plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{sql}\n{plan}");
            let rows = READ_ROWS.iter().find(|(it, _)| it == sql);
            let rows = rows.map_or(&[][..], |(_, rows)| rows);
            assert_eq!(beyond_the_index(&plan), rows, "{sql}\n{plan}");
            let reads = reads_payloads(conn, sql);
            assert_eq!(reads, WEIGH.contains(sql), "{sql}: payloads");
        }
    }
    for turned in [false, true] {
        for status in [Status::Pending, Status::Dead] {
            // The first is of those that were never tried: whatever their number, a page of them is
            // a range of their index.
            let sql = read::ids_of(status, turned).remove(0);
            let plan = plan(conn, &sql);
            assert!(plan.starts_with("SEARCH outbox USING "), "{sql}\n{plan}");
            assert!(
                plan.contains("AND rowid") || plan.contains("AND id"),
                "{sql}\n{plan}"
            );
            assert!(!plan.contains("TEMP B-TREE"), "{sql}\n{plan}");
        }
    }
    let by_id = plan(conn, select::OTHERS);
    assert!(
        by_id.contains("USING INTEGER PRIMARY KEY (rowid>?"),
        "{by_id}"
    );
    assert!(!by_id.contains("TEMP B-TREE"), "{by_id}");
}

/// One message, one lane, one channel: whatever the drain or an enqueue writes, it finds by a key.
#[test]
fn what_is_settled_or_enqueued_is_found_by_a_key() {
    files().iter().for_each(what_is_settled);
}

fn what_is_settled(conn: &Connection) {
    let by_id = [
        decode::READ,
        settle::SENT,
        settle::CONFIRM,
        settle::AGAIN,
        settle::RELEASE,
        settle::DEAD,
        settle::RENEW,
        settle::IS_OURS,
        settle::WAS_RECORDED,
        settle::LATE_SENT,
        settle::LATE_NOTED,
        settle::TAKE_BACK,
        settle::POSTPONE,
        settle::QUARANTINE,
        upkeep::EXPIRE,
        upkeep::REBASE,
        enqueue::REPLACE,
        retention::DELETE,
        round::STAMP,
        round::EMPTY,
    ];
    let attempts = [settle::PRUNE_ATTEMPTS, settle::FIRST_CHARGE, settle::LOSSES];
    let state = format!("{} WHERE channel = ?1", channel::LOAD);
    let groups: [(&str, &[&str]); 9] = [
        ("USING INTEGER PRIMARY KEY (rowid=?)", &by_id),
        ("outbox_lane ", &[settle::TAKE_BACK_RUN, settle::RUN_CLAIMS]),
        ("outbox_lane ", &[&enqueue::INSERT, &bulk::INSERT]),
        ("outbox_attempt_message", &attempts),
        (
            "(channel=? AND dedupe_key=?)",
            &[enqueue::HOLDER, conflict::FIRST_OF_KEY],
        ),
        (
            "outbox_due (channel=? AND status=?",
            &[stats::MOST_ATTEMPTS],
        ),
        ("outbox_expiry", &[upkeep::DATED_BEFORE]),
        (
            "INTEGER PRIMARY KEY (rowid>?)",
            &[census::COUNT, census::FILL],
        ),
        ("PRIMARY KEY (channel=?)", &[&state]),
    ];
    // Either by each id, or between the first and the last, never further.
    for sets in [&claim::TAKE, &settle::SENT_SET] {
        let (sql, _) = sets.of(SET);
        let plan = plan(conn, sql);
        assert!(
            plan.starts_with("SEARCH outbox USING INTEGER PRIMARY KEY (rowid"),
            "{sql}\n{plan}"
        );
        assert!(!reads_payloads(conn, sql), "{sql}: payloads");
    }
    // The message itself, and what may end a conflict over its content.
    let content = [decode::READ, upkeep::REBASE, enqueue::REPLACE, round::EMPTY];
    for sql in by_id {
        let reads = reads_payloads(conn, sql);
        assert_eq!(reads, content.contains(&sql), "{sql}: payloads");
    }
    for (index, statements) in groups {
        for sql in statements {
            let plan = plan(conn, sql);
            assert!(plan.contains(index), "{sql}\n{plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{sql}\n{plan}");
            assert!(!plan.contains("SCAN outbox"), "{sql}\n{plan}");
        }
    }
    // From the end, and no further than one row.
    assert_eq!(plan(conn, upkeep::NEWEST_ENQUEUE), "SCAN outbox");
    assert_eq!(plan(conn, upkeep::NEWEST_FAILURE), "SCAN outbox_attempt");
    // These write one row; the triggers that follow are measured below.
    for sql in [settle::LOG_ATTEMPT, upkeep::NORMALISE, channel::SAVE] {
        assert!(!plan(conn, sql).contains("SCAN"), "{sql}");
    }
}

/// 30,000 messages behind one dead head and 10,000 lanes in one channel (300,000 and 100,000 in
/// the long form) cost no claim and no enqueue a step per row, in another channel or their own.
#[test]
fn a_claim_steps_over_no_backlog() {
    let long = std::env::var_os("OUTBOX_LONG").is_some();
    let scale = if long { 10 } else { 1 };
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch(SCHEMA).unwrap();
    let fill = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                INSERT INTO outbox (channel, ordering_key, status, payload)";
    conn.execute_batch(
        "BEGIN; INSERT INTO outbox (channel, ordering_key, status, payload)
                VALUES ('bulk', 'held', 'dead', 'x'), ('sales', 'a', 'pending', 'x'),
                       ('sales', 'a', 'waiting', 'x'), ('sales', NULL, 'pending', 'x')",
    )
    .unwrap();
    let held = format!("{fill} SELECT 'bulk', 'held', 'waiting', 'x' FROM n");
    conn.execute(&held, [30_000 * scale]).unwrap();
    let lanes = format!("{fill} SELECT 'bulk', 'lane ' || i, 'pending', 'x' FROM n");
    conn.execute(&lanes, [10_000 * scale]).unwrap();
    let late = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                INSERT INTO outbox (channel, expires_at, payload) SELECT 'late', 1700000000000, 'x' FROM n";
    conn.execute(late, [10_000 * scale]).unwrap();
    conn.execute_batch("COMMIT").unwrap();
    let now = 1_800_000_000_000_i64;
    // The work of a claim that takes up to 64, in steps of SQLite's machine.
    let work = |channel: &str, lane: &str| -> i32 {
        let statements: [(&str, Vec<&dyn rusqlite::ToSql>); 9] = [
            (claim::STANDINGS, vec![&""]),
            (claim::FRESH, vec![&channel, &now, &64, &true]),
            (claim::NEWEST, vec![&channel, &now, &4, &true]),
            (claim::RETRIES, vec![&channel, &now, &32, &true]),
            (claim::FOLLOWERS, vec![&channel, &lane, &2, &15]),
            (claim::GOES_ON, vec![&channel, &lane, &2]),
            (claim::FIRST_PENDING, vec![&channel]),
            (upkeep::HEADLESS, vec![&channel, &lane]),
            (upkeep::BELATED, vec![&channel, &lane, &now]),
        ];
        let steps = statements.map(|(sql, params)| {
            let mut statement = conn.prepare(sql).unwrap();
            let mut rows = statement.query(params.as_slice()).unwrap();
            while rows.next().unwrap().is_some() {}
            drop(rows);
            let scanned = statement.get_status(rusqlite::StatementStatus::FullscanStep);
            assert_eq!(scanned, 0, "{sql}");
            assert_eq!(
                statement.get_status(rusqlite::StatementStatus::Sort),
                0,
                "{sql}"
            );
            statement.get_status(rusqlite::StatementStatus::VmStep)
        });
        steps.iter().sum()
    };
    let (others, own) = (work("sales", "a"), work("bulk", "held"));
    let overdue = work("late", "none");
    let enqueue =
        "INSERT INTO outbox (channel, ordering_key, payload) VALUES ('bulk', 'held', 'x')";
    let mut statement = conn.prepare(enqueue).unwrap();
    statement.execute([]).unwrap();
    let enqueued = statement.get_status(rusqlite::StatementStatus::VmStep);
    assert!(
        enqueued < 1_000,
        "{enqueued} steps to stand behind the backlog"
    );
    // How many a version of SQLite takes is its own affair; a step for each row would be 30,000.
    assert!(others < 900, "{others} steps beside the backlog");
    assert!(own < 2_900, "{own} steps for 64 out of the backlog");
    assert!(overdue < 2_600, "{overdue} steps for 64 that are overdue");
}
