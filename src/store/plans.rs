//! Every statement that may meet a million rows follows an index and sorts nothing.

use rusqlite::Connection;

use crate::schema::SCHEMA;
use crate::store::{claim, operate, retention, round, select, upkeep, why};

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

#[test]
fn hot_statements_follow_their_index_and_sort_nothing() {
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch(SCHEMA).unwrap();
    let due = [
        claim::NEXT_CHANNEL,
        claim::FRESH,
        claim::NEWEST,
        claim::RETRIES,
        claim::FIRST_PENDING,
        claim::LEASES,
        claim::STALE,
        upkeep::DUE_LATER,
        why::OTHER,
        why::CLAIMED,
        why::KINDS[0],
        why::KINDS[1],
        why::KINDS[2],
    ];
    let lane = [
        claim::FOLLOWERS,
        upkeep::NEXT_LANE,
        upkeep::NEXT_LANE_CHANNEL,
        upkeep::HEADLESS,
        why::BLOCKER,
        why::KINDS[3],
    ];
    let expiry = [upkeep::EXPIRED, upkeep::NEXT_EXPIRY];
    let settled = [
        retention::FIRST,
        retention::NEXT,
        retention::UNDATED,
        round::ODD[0],
        round::ODD[1],
        round::ODD[2],
    ];
    let dead = [
        operate::DEAD_LANES,
        select::DEAD,
        select::DEAD_EDGE,
        select::DEAD_WITH_REASON,
        why::KINDS[4],
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
            let plan = plan(&conn, sql);
            assert!(plan.contains(index), "{sql}\n{plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{sql}\n{plan}");
            let scans = plan
                .lines()
                .filter(|it| it.contains("SCAN outbox") || it.contains("SCAN o "));
            assert!(
                scans.clone().all(|it| it.contains("COVERING INDEX")),
                "{sql}\n{plan}"
            );
        }
    }
    let by_id = plan(&conn, select::OTHERS);
    assert!(
        by_id.contains("USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        "{by_id}"
    );
    assert!(!by_id.contains("TEMP B-TREE"), "{by_id}");
}
