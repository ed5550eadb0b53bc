//! A till that goes on selling while a person is at work on its file.

use serde_json::json;

use super::Desk;

/// Whenever a message comes to this status, or is removed, the application sells something: as it does in
/// the middle of a command that takes a while.
fn sells(desk: &Desk, on: &str, status: &str, settled_at: &str) {
    desk.sql()
        .execute_batch(&format!(
            "CREATE TRIGGER sale AFTER {on} BEGIN
               INSERT INTO outbox (channel, payload, status, settled_at)
               VALUES ('app', 'a sale', '{status}', {settled_at});
             END"
        ))
        .unwrap();
}

fn statuses(desk: &Desk, channel: &str) -> Vec<String> {
    let sql = "SELECT status FROM outbox WHERE channel = ?1 ORDER BY id";
    let conn = desk.sql();
    let mut statement = conn.prepare(sql).unwrap();
    let rows = statement.query_map([channel], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn what_is_sold_while_all_are_cancelled_is_not_cancelled() {
    let desk = Desk::new();
    desk.lane(&["1", "2", "3"]);
    sells(
        &desk,
        "UPDATE OF status ON outbox WHEN NEW.status = 'cancelled'",
        "pending",
        "NULL",
    );
    let dry = desk.json(["cancel", "till.db", "--all", "--dry-run", "--json"]);
    let done = desk.json(["cancel", "till.db", "--all", "--json"]);
    assert_eq!((&dry["count"], &done["count"]), (&json!(3), &json!(3)));
    assert_eq!(statuses(&desk, "sales"), ["cancelled"; 3]);
    assert_eq!(statuses(&desk, "app"), ["pending"; 3]);
}

#[test]
fn what_dies_while_all_are_retried_and_was_put_in_since_stays_dead() {
    let desk = Desk::new();
    desk.lane(&["1", "2"]);
    desk.sql()
        .execute_batch(
            "UPDATE outbox SET status = 'dead', settled_at = 1 WHERE id = 1;
             UPDATE outbox SET status = 'expired', settled_at = 1 WHERE id = 2;",
        )
        .unwrap();
    sells(
        &desk,
        "UPDATE OF status ON outbox WHEN NEW.status <> OLD.status",
        "expired",
        "1",
    );
    let all = ["retry", "till.db", "--all", "--status=dead,expired"];
    let done = desk.json(all.iter().chain(&["--json"]));
    assert_eq!(done["count"], 2);
    assert!(statuses(&desk, "app").iter().all(|it| it == "expired"));
}

#[test]
fn what_was_put_in_since_a_purge_began_is_not_removed() {
    let desk = Desk::new();
    desk.lane(&["1", "2"]);
    desk.sql()
        .execute_batch("UPDATE outbox SET status = 'sent', settled_at = 1")
        .unwrap();
    // By a clock that was set back.
    sells(&desk, "DELETE ON outbox", "sent", "1");
    let done = desk.json(["purge", "till.db", "--older-than=1d", "--json"]);
    assert_eq!(done["count"], 2);
    assert_eq!(statuses(&desk, "app"), ["sent"; 2]);
}
