//! Duplicates with other content: seen everywhere, and settled by a person.

use serde_json::json;

use super::Desk;
use crate::server::{Server, ok};

/// The sale S-1, and another sale that plain SQL put in under the same number.
fn till() -> Desk {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', 'one');
             INSERT INTO outbox (channel, dedupe_key, payload, headers)
             VALUES ('sales', 'S-1', 'two', '{\"X-Till\":\"4\"}')
             ON CONFLICT (channel, dedupe_key) DO NOTHING",
        )
        .unwrap();
    desk
}

fn send(desk: &Desk) -> Vec<String> {
    let server = Server::start(|_| ok());
    desk.run(["drain", "till.db", "--workers=1", "--url", &server.url("/")]);
    let seen = server.seen().into_iter();
    seen.map(|it| String::from_utf8(it.body).unwrap()).collect()
}

fn record(desk: &Desk) -> Vec<String> {
    let sql = "SELECT action || ' ' || coalesce(message, '') || ': ' || coalesce(reason, '')
                 || coalesce(' ' || CAST(former_payload AS TEXT), '')
               FROM outbox_audit ORDER BY id";
    let conn = desk.sql();
    let mut statement = conn.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(|it| it.unwrap()).collect()
}

#[test]
fn a_conflict_is_listed_shown_and_named_wherever_its_message_is() {
    let desk = till();
    let listed = desk.run(["conflicts", "till.db"]).out;
    assert!(
        listed.contains("message 1, pending") && listed.contains("payload, headers"),
        "{listed}"
    );
    let row = desk.json(["conflicts", "till.db", "1", "--json"]);
    assert_eq!(
        (&row["holder"], &row["holder_status"], &row["payload"]),
        (&json!(1), &json!("pending"), &json!("two"))
    );
    let held = &row["holder_message"];
    assert_eq!(
        (&held["payload"], &held["headers"], &row["differs_in"]),
        (&json!("one"), &json!(null), &json!("payload, headers"))
    );
    assert_eq!(desk.json(["conflicts", "till.db", "--json"]), row);
    let shown = desk.done(["conflicts", "till.db", "1"]);
    assert!(
        shown.contains("  one") && shown.contains("  two"),
        "{shown}"
    );
    assert_eq!(
        desk.done(["conflicts", "till.db", "--channel", "other"]),
        "no conflict\n"
    );

    assert!(
        desk.done(["show", "till.db", "S-1"])
            .contains("conflicts     1; see")
    );
    let list = desk.done(["list", "till.db"]);
    assert!(list.trim_end().ends_with("  conflict 1"), "{list}");
    let message = desk.json(["show", "till.db", "S-1", "--json"]);
    assert_eq!(message["conflicts"][0]["payload"], "two");
    let why = desk.json(["why", "till.db", "S-1", "--json"]);
    assert_eq!(why["conflicts"], json!([1]));
    for args in [&["why", "till.db", "S-1"][..], &["why", "till.db"]] {
        let text = desk.done(args);
        assert!(text.contains("\n  outbox conflicts "), "{text}");
    }
    assert!(
        desk.run(["export", "till.db"])
            .err
            .contains("outbox conflicts"),
    );
}

#[test]
fn what_is_kept_aside_is_sent_under_another_key() {
    let desk = till();
    let decide = [
        "conflicts",
        "till.db",
        "1",
        "--enqueue-as",
        "S-1-b",
        "--json",
    ];
    let dry = desk.json(decide.into_iter().chain(["--dry-run"]));
    assert_eq!(
        (&dry["count"], &dry["resolved"][0]["message"]),
        (&json!(1), &json!(null))
    );
    assert_eq!(record(&desk), Vec::<String>::new());
    let done = desk.json(decide.into_iter().chain(["--reason", "two sales"]));
    let id = done["resolved"][0]["message"].as_i64().unwrap();
    let row = desk.json(["show", "till.db", "S-1-b", "--json"]);
    assert_eq!(
        (&row["id"], &row["payload"], &row["headers"]),
        (&json!(id), &json!("two"), &json!("{\"X-Till\":\"4\"}"))
    );
    assert_eq!(
        record(&desk),
        [format!(
            "conflict_enqueue {id}: it was in conflict over S-1; two sales"
        )]
    );
    assert_eq!(send(&desk), ["one", "two"]);
    desk.run(["conflicts", "till.db", "1", "--drop"])
        .failed(1, "`outbox conflicts` lists those that are open");
}

#[test]
fn a_key_that_is_taken_or_impossible_leaves_the_conflict_as_it_is() {
    let desk = till();
    let decide = |key: &str| desk.run(["conflicts", "till.db", "1", "--enqueue-as", key]);
    decide("S-1").failed(1, "message 1 already has this dedupe key");
    decide("S\n1").failed(1, "control character");
    assert_eq!(desk.run(["conflicts", "till.db", "--drop"]).code, 2);
    let two = desk.run(["conflicts", "till.db", "1", "2", "--enqueue-as", "x"]);
    assert_eq!(two.code, 2);
    assert_eq!(
        desk.json(["status", "till.db", "--json"])["total"]["pending"],
        1
    );
    assert_eq!(desk.json(["why", "till.db", "--json"])["conflicts"], 1);
    assert_eq!(record(&desk), Vec::<String>::new());
}

#[test]
fn a_message_never_attempted_is_replaced_and_one_that_was_sent_is_not() {
    let desk = till();
    let before = desk.json(["show", "till.db", "S-1", "--json"]);
    desk.done(["conflicts", "till.db", "1", "--replace"]);
    let after = desk.json(["show", "till.db", "S-1", "--json"]);
    assert_eq!(after["message_id"], before["message_id"]);
    assert_eq!(after["payload"], "two");
    assert_eq!(after["audit"][0]["action"], "conflict_replace");
    assert_eq!(after["audit"][0]["former_payload"], "one");
    assert_eq!(send(&desk), ["two"]);

    let desk = till();
    send(&desk);
    desk.run(["conflicts", "till.db", "1", "--replace"])
        .failed(1, "conflict 1 stays: message 1 is sent");
    assert_eq!(desk.json(["why", "till.db", "--json"])["conflicts"], 1);
    assert_eq!(record(&desk), Vec::<String>::new(), "a refusal is no deed");
}

#[test]
fn what_is_dropped_is_not_sent_and_kept_for_the_record() {
    let desk = till();
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', 'three')
             ON CONFLICT (channel, dedupe_key) DO NOTHING",
        )
        .unwrap();
    let all = ["conflicts", "till.db", "--all", "--drop", "--json"];
    let dry = desk.json(all.into_iter().chain(["--dry-run"]));
    assert_eq!(dry["count"], 2);
    assert_eq!(desk.json(all)["count"], 2);
    assert_eq!(
        record(&desk),
        ["conflict_drop 1:  two", "conflict_drop 1:  three"]
    );
    assert_eq!(desk.done(["conflicts", "till.db"]), "no conflict\n");
    assert_eq!(send(&desk), ["one"]);
}

/// Its key would be free, and the conflict would have nothing to be compared with.
#[test]
fn a_purge_leaves_the_holder_of_a_contested_key() {
    let desk = till();
    desk.put("sales", "S-2", "other");
    send(&desk);
    desk.sql()
        .execute_batch("UPDATE outbox SET settled_at = settled_at - 200000000")
        .unwrap();
    let purge = ["purge", "till.db", "--older-than=1d", "--json"];
    let dry = desk.json(purge.into_iter().chain(["--dry-run"]));
    assert_eq!((&dry["count"], &dry["keys"]), (&json!(1), &json!(["S-2"])));
    assert_eq!(desk.json(purge)["count"], 1);
    assert_eq!(desk.json(["show", "till.db", "S-1", "--json"])["id"], 1);
    desk.done(["conflicts", "till.db", "1", "--drop"]);
    assert_eq!(desk.json(purge)["count"], 1);
}

#[test]
fn a_conflict_outlives_its_holder_and_its_own_expiry() {
    let desk = till();
    desk.sql()
        .execute_batch("DELETE FROM outbox; UPDATE outbox_conflict SET expires_at = 1")
        .unwrap();
    assert!(desk.run(["conflicts", "till.db"]).out.contains("gone"));
    desk.run(["conflicts", "till.db", "1", "--replace"])
        .failed(1, "no message holds the key S-1 any more");
    desk.done(["conflicts", "till.db", "1", "--enqueue-as", "S-1"]);
    let row = desk.json(["show", "till.db", "S-1", "--json"]);
    assert_eq!(
        (&row["payload"], &row["expires_at"], &row["conflicts"]),
        (&json!("two"), &json!(null), &json!([]))
    );
    assert_eq!(send(&desk), ["two"]);
}

/// Another ordering key is another lane, and a message never changes its lane.
#[test]
fn a_conflict_of_another_lane_replaces_nothing() {
    let desk = till();
    desk.sql()
        .execute_batch("UPDATE outbox_conflict SET ordering_key = 'customer-7'")
        .unwrap();
    desk.run(["conflicts", "till.db", "1", "--replace"])
        .failed(1, "of the same ordering key");
    desk.done(["conflicts", "till.db", "1", "--enqueue-as", "S-1-b"]);
    let row = desk.json(["show", "till.db", "S-1-b", "--json"]);
    assert_eq!(row["ordering_key"], "customer-7");
}

/// A script that numbers two sales alike reads no notes, and loses none of them.
#[test]
fn what_the_tool_enqueues_under_a_taken_key_is_kept_aside_as_plain_sql_does() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "one");
    let again = |payload: &str, choice: &str| {
        let args = ["enqueue", "till.db", "--channel=sales", "--key=S-1"];
        let ran = desk.run(args.into_iter().chain([
            "--content-type=text/plain",
            "--on-duplicate",
            choice,
            payload,
        ]));
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.err
    };
    for _ in 0..2 {
        let told = again("two", "ignore");
        assert!(told.contains("`outbox conflicts till.db`"), "{told}");
    }
    assert_eq!(again("one", "ignore"), "");
    assert_eq!(send(&desk), ["one"]);
    again("three", "replace");
    let lines = "{\"no\":\"S-1\",\"total\":4}\n";
    desk.write("orders.jsonl", lines);
    let args = ["enqueue", "till.db", "--channel=sales", "--key-from=/no"];
    let ran = desk.run(args.into_iter().chain(["--lines", "orders.jsonl"]));
    assert_eq!(ran.out, "0 messages enqueued, 1 kept aside\n");
    assert!(ran.err.contains("1 line has a key"), "{ran:?}");

    let kept = desk.run(["conflicts", "till.db", "--json"]).lines();
    let kept: Vec<_> = kept.iter().map(|it| &it["payload"]).collect();
    assert_eq!(kept, ["two", "three", "{\"no\":\"S-1\",\"total\":4}"]);
    desk.done(["conflicts", "till.db", "1", "--enqueue-as", "S-1-b"]);
    assert_eq!(send(&desk), ["two"]);
}

/// As an export has it.
#[test]
fn nothing_of_a_conflict_is_lost_for_programs() {
    let desk = till();
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, dedupe_key, payload, recipient, event_type)
             VALUES ('sales', 'S-1', x'ff00', CAST(x'61ff' AS TEXT), 'sale')
             ON CONFLICT (channel, dedupe_key) DO NOTHING",
        )
        .unwrap();
    let listed = desk.run(["conflicts", "till.db", "--json"]).lines();
    let [whole, broken] = &listed[..] else {
        panic!("{listed:?}");
    };
    assert!(whole.get("recipient_base64").is_none(), "{whole}");
    assert_eq!(broken["payload_base64"], "/wA=");
    assert_eq!(broken["recipient_base64"], "Yf8=");
    assert_eq!(broken["event_type"], "sale");
    let shown = desk.json(["conflicts", "till.db", "2", "--json"]);
    assert_eq!(&shown, broken);
    // Whoever takes it for an export is told the way.
    desk.write("lines", broken.to_string());
    desk.run(["enqueue", "till.db", "--lines", "lines", "--exported"])
        .failed(1, "outbox conflicts DB NUMBER --enqueue-as KEY");
}

#[test]
fn a_conflict_that_is_named_twice_is_decided_once_dry_or_not() {
    let desk = till();
    for args in [&["--dry-run"][..], &[]] {
        let args = ["conflicts", "till.db", "1", "1", "--drop", "--json"]
            .iter()
            .chain(args);
        let done = desk.json(args);
        assert_eq!(done["count"], 1);
        assert_eq!(done["resolved"].as_array().unwrap().len(), 1);
    }
}

/// Each would take the place of the one before it, and the last would be left.
#[test]
fn of_several_contents_of_one_key_one_has_to_be_chosen_to_replace_it() {
    let desk = till();
    let aside = |key: &str, payload: &str| {
        let sql = "INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', ?1, ?2)
                   ON CONFLICT (channel, dedupe_key) DO NOTHING";
        desk.sql().execute(sql, [key, payload]).unwrap();
    };
    aside("S-2", "one");
    aside("S-1", "three");
    aside("S-2", "two");
    aside("S-1", "four");
    let before = desk.done(["conflicts", "till.db"]);
    for chosen in [
        &["--all"][..],
        &["4", "3", "2"],
        &["4", "2", "3", "--dry-run"],
    ] {
        let args = ["conflicts", "till.db", "--replace"].iter().chain(chosen);
        let ran = desk.run(args);
        let all = if chosen[0] == "--all" {
            "1, 2 and 4"
        } else {
            "2 and 4"
        };
        let says = format!("the conflicts {all} have the same key");
        assert!(ran.err.contains("choose one of them"), "{ran:?}");
        assert!(ran.err.contains(", and all others: "), "{ran:?}");
        ran.failed(1, &says);
        assert_eq!(desk.done(["conflicts", "till.db"]), before, "{chosen:?}");
        assert!(record(&desk).is_empty());
    }
    // Nor do they get one key, which is another way of losing all but one.
    desk.run(["conflicts", "till.db", "1", "2", "--enqueue-as=S-3"])
        .failed(2, "a key is for one message");
    desk.done(["conflicts", "till.db", "2", "3", "2", "--replace"]);
    desk.done(["conflicts", "till.db", "1", "4", "--drop"]);
    assert_eq!(send(&desk), ["three", "two"]);
}
