//! Commands that put in and look at: enqueue, list, show, status, schema.

use serde_json::{Value, json};
use sqlite_outbox::rusqlite::Connection;

use super::{Desk, Ran};

#[test]
fn a_message_has_everything_it_was_given() {
    let desk = Desk::new();
    let args = [
        "enqueue",
        "till.db",
        "--channel=sales",
        "--key=S-1",
        "--event-type=sale.completed",
        "--recipient=+4930",
        "--ordering-key=table-7",
        "--principal=cashier-3",
        "--ttl=24h",
        "--header=X-Store: 17",
        "--content-type=application/vnd.sale+json",
        "--json",
        r#"{"total":1250}"#,
    ];
    assert_eq!(desk.json(args), json!({"id": 1, "result": "new"}));
    let row = desk.json(["show", "till.db", "S-1", "--json"]);
    let expected = [
        ("channel", json!("sales")),
        ("dedupe_key", json!("S-1")),
        ("event_type", json!("sale.completed")),
        ("recipient", json!("+4930")),
        ("ordering_key", json!("table-7")),
        ("principal", json!("cashier-3")),
        ("headers", json!(r#"{"X-Store":"17"}"#)),
        ("content_type", json!("application/vnd.sale+json")),
        ("payload", json!(r#"{"total":1250}"#)),
        ("status", json!("pending")),
        ("attempts", json!(0)),
        ("available_at", Value::Null),
    ];
    for (column, value) in expected {
        assert_eq!(row[column], value, "{column}");
    }
    let life = row["expires_at"].as_i64().unwrap() - row["created_at"].as_i64().unwrap();
    assert_eq!(life, 24 * 3_600_000);
}

#[test]
fn every_column_is_in_the_json_by_its_name() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let row = desk.json(["show", "till.db", "1", "--json"]);
    let conn = desk.sql();
    let mut columns = conn
        .prepare("SELECT name FROM pragma_table_info('outbox')")
        .unwrap();
    let names = columns
        .query_map([], |row| row.get::<_, String>(0))
        .unwrap();
    for name in names {
        let name = name.unwrap();
        assert!(row.get(&name).is_some(), "{name} is missing in {row}");
    }
}

#[test]
fn a_message_is_found_by_id_key_and_message_id() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "one");
    desk.put("returns", "S-1", "two");
    let row = desk.json(["show", "till.db", "2", "--json"]);
    assert_eq!(row["payload"], "two");
    let message_id = row["message_id"].as_str().unwrap();
    assert_eq!(desk.json(["show", "till.db", message_id, "--json"]), row);
    let by_key = ["show", "till.db", "S-1", "--channel", "returns", "--json"];
    assert_eq!(desk.json(by_key), row);
    desk.run(["show", "till.db", "S-1"]).failed(
        1,
        "id:1 (pending in sales, key S-1), id:2 (pending in returns, key S-1)",
    );
    desk.run(["show", "till.db", "S-9"])
        .failed(1, "no message S-9");
}

#[test]
fn a_duplicate_is_ignored_refused_or_replaces_as_asked() {
    let desk = Desk::new();
    let put = |payload: &str, choice: &str| {
        desk.run([
            "enqueue",
            "till.db",
            "--channel",
            "sales",
            "--key",
            "S-1",
            "--json",
            "--on-duplicate",
            choice,
            payload,
        ])
    };
    assert_eq!(put("1", "ignore").json()["result"], "new");
    let same = put("1", "ignore");
    assert_eq!(
        same.json(),
        json!({"id": 1, "result": "duplicate", "status": "pending"})
    );
    assert_eq!(same.err, "");
    let other = put("2", "ignore");
    assert_eq!(other.code, 0);
    assert_eq!(other.json()["result"], "conflict");
    assert!(other.err.contains("OTHER content"), "{other:?}");
    put("2", "fail").failed(1, "message 1 already has this dedupe key");
    assert_eq!(put("2", "replace").json()["result"], "replaced");
    let row = desk.json(["show", "till.db", "1", "--json"]);
    assert_eq!(row["payload"], "2");
}

#[test]
fn a_payload_comes_from_the_line_a_file_or_standard_input() {
    let desk = Desk::new();
    desk.write("sale.json", "{\n  \"total\": 1\n}\n");
    desk.done([
        "enqueue",
        "till.db",
        "--channel",
        "a",
        "--file",
        "sale.json",
    ]);
    for args in [vec!["--file", "-"], vec!["-"]] {
        let all = ["enqueue", "till.db", "--channel", "a"]
            .into_iter()
            .chain(args);
        assert_eq!(desk.feed("[1]", all).code, 0);
    }
    let list = desk.run(["list", "till.db", "--json"]).lines();
    let payloads: Vec<_> = list
        .iter()
        .map(|it| it["payload"].as_str().unwrap())
        .collect();
    assert_eq!(payloads, ["{\n  \"total\": 1\n}\n", "[1]", "[1]"]);
    desk.run([
        "enqueue",
        "till.db",
        "--channel",
        "a",
        "--file",
        "none.json",
    ])
    .failed(1, "none.json cannot be read: No such file");
    desk.run(["enqueue", "till.db", "--channel", "a"]);
}

#[test]
fn bytes_that_are_no_text_are_shown_as_base64() {
    let desk = Desk::new();
    desk.write("receipt.bin", [0xff, 0x00, 0x1b]);
    let args = [
        "enqueue",
        "till.db",
        "--channel",
        "a",
        "--content-type",
        "image/png",
    ];
    desk.done(args.into_iter().chain(["--file", "receipt.bin"]));
    for command in [
        vec!["show", "till.db", "1", "--json"],
        vec!["list", "till.db", "--json"],
    ] {
        let row = desk.json(command);
        assert_eq!(row["payload_base64"], "/wAb");
        assert!(row.get("payload").is_none());
    }
    assert!(desk.done(["show", "till.db", "1"]).contains("not a text"));
}

#[test]
fn each_line_is_a_message_once() {
    let desk = Desk::new();
    let orders = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/northwind-orders.jsonl"
    );
    let args = [
        "enqueue",
        "till.db",
        "--channel=sales",
        "--key-from=/order_id",
        "--lines",
        orders,
    ];
    assert_eq!(desk.done(args), "830 messages enqueued\n");
    assert_eq!(desk.done(args), "0 messages enqueued, 830 there already\n");
    let row = desk.json(["show", "till.db", "10248", "--json"]);
    let first = std::fs::read_to_string(orders).unwrap();
    assert_eq!(row["payload"], first.lines().next().unwrap());
    let page = desk.run(["list", "till.db", "--json"]).lines();
    assert_eq!(page.len(), 830);
}

#[test]
fn what_stands_before_a_bad_line_is_enqueued_and_counted() {
    let desk = Desk::new();
    let lines = "\u{feff}{\"id\":1}\r\n\n{\"id\":2}\n{\"no\":3}\n{\"id\":4}\n";
    let args = [
        "enqueue",
        "till.db",
        "--channel=a",
        "--key-from=/id",
        "--lines=-",
    ];
    let ran = desk.feed(lines, args);
    ran.failed(
        1,
        "line 4: the payload has no text or number at /id; it ended there. Before it: 2 messages enqueued.",
    );
    let list = desk.run(["list", "till.db", "--json"]).lines();
    assert_eq!(list.len(), 2);
    assert_eq!(list[0]["payload"], r#"{"id":1}"#);
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let desk = Desk::new();
    let put = |args: &[&str]| {
        let all = ["enqueue", "till.db", "--channel", "a"].into_iter();
        desk.run(all.chain(args.iter().copied()))
    };
    put(&["--key", "a\nb", "{}"]).failed(1, "control character");
    put(&["--header", "Authorization: Bearer x", "{}"]).failed(1, "Authorization");
    put(&["--key-from", "/id", "{}"]).failed(1, "no text or number at /id");
    let large = "x".repeat(300_000);
    desk.write("large", &large);
    put(&["--file", "large"]).failed(1, "262144 bytes");
    for wrong in [
        &["--header", "no colon", "{}"] as &[&str],
        &["--delay", "10", "{}"],
        &["--on-duplicate", "maybe", "{}"],
        &["--file", "large", "{}"],
        &[],
    ] {
        let ran = put(wrong);
        assert_eq!(ran.code, 2, "{ran:?}");
    }
    assert_eq!(
        desk.json(["status", "till.db", "--json"])["total"]["unsent"],
        0
    );
}

#[test]
fn a_payload_that_is_not_json_is_noticed() {
    let desk = Desk::new();
    let ran = desk.run(["enqueue", "till.db", "--channel", "whatsapp", "Hello"]);
    assert_eq!(ran.code, 0);
    assert!(ran.err.contains("not JSON"), "{ran:?}");
}

#[test]
fn the_list_is_filtered_and_bounded() {
    let desk = Desk::new();
    for (channel, key) in [("a", "1-a"), ("b", "2-b"), ("a", "3-a")] {
        desk.put(channel, key, "text");
    }
    let keys = |args: &[&str]| {
        let all = ["list", "till.db", "--json"].into_iter();
        let list = desk.run(all.chain(args.iter().copied())).lines();
        let keys: Vec<_> = list.iter().map(|it| it["dedupe_key"].to_string()).collect();
        keys.join(" ")
    };
    assert_eq!(keys(&[]), r#""1-a" "2-b" "3-a""#);
    assert_eq!(keys(&["--channel", "a"]), r#""1-a" "3-a""#);
    assert_eq!(keys(&["--limit", "1"]), r#""1-a""#);
    assert_eq!(keys(&["--status", "dead"]), "");
    assert_eq!(
        desk.done(["list", "till.db", "--status", "dead"]),
        "no message\n"
    );
    assert_eq!(desk.run(["list", "till.db", "--status", "gone"]).code, 2);
    assert_eq!(desk.run(["list", "till.db", "--limit", "0"]).code, 2);
    let table = desk.done(["list", "till.db"]);
    assert!(table.starts_with("ID  CHANNEL"), "{table}");
    assert_eq!(table.lines().count(), 4);
}

#[test]
fn a_list_takes_several_statuses_in_any_letters_and_either_order() {
    let desk = Desk::new();
    let sql = desk.sql();
    for status in ["dead", "sent", "pending", "cancelled", "dead", "sending"] {
        sql.execute(
            "INSERT INTO outbox (channel, payload, status) VALUES ('a', 'x', ?1)",
            [status],
        )
        .unwrap();
    }
    let ids = |args: &[&str]| {
        let all = ["list", "till.db", "--json"].into_iter();
        let list = desk.run(all.chain(args.iter().copied())).lines();
        list.iter()
            .map(|it| it["id"].as_i64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&["--status", "dead,PENDING"]), [1, 3, 5]);
    assert_eq!(ids(&["--status", "Dead", "--status", "sent"]), [1, 2, 5]);
    assert_eq!(ids(&["--unsent"]), [3, 6]);
    assert_eq!(
        ids(&["--unsent", "--status=dead", "--newest"]),
        [6, 5, 3, 1]
    );
    assert_eq!(ids(&["--newest", "--limit", "2"]), [6, 5]);
    for wrong in ["gone", "dead,gone", "dead;sent"] {
        let ran = desk.run(["list", "till.db", "--status", wrong]);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(
            ran.err.contains("pending, waiting, sending, sent"),
            "{ran:?}"
        );
    }
    let exported = desk.run(["export", "till.db", "--status", "SENT,cancelled"]);
    assert_eq!(exported.lines().len(), 2);
    assert_eq!(desk.run(["export", "till.db", "--unsent"]).lines().len(), 2);
}

#[test]
fn a_long_list_says_that_it_was_cut() {
    let desk = Desk::new();
    let lines = "1\n".repeat(1_234);
    desk.feed(lines, ["enqueue", "till.db", "--channel=a", "--lines=-"]);
    desk.put("b", "B-1", "text");
    let list = |args: &[&str]| desk.run(["list", "till.db"].iter().chain(args));
    let lines = |ran: &Ran| ran.out.lines().count() - 1;
    // A program that reads gets all of it.
    let all = list(&[]);
    assert_eq!((lines(&all), all.err.as_str()), (1_235, ""));
    let first = list(&["--limit", "100"]);
    assert_eq!(lines(&first), 100);
    assert_eq!(
        first.err,
        "note: the first 100 of 1,235; --limit N shows more\n"
    );
    let last = list(&[
        "--limit=600",
        "--newest",
        "--channel=a",
        "--unsent",
        "--status=pending",
    ]);
    assert_eq!(lines(&last), 600);
    assert_eq!(
        last.err,
        "note: the last 600 of 1,234; --limit N shows more\n"
    );
    for whole in [
        &["--limit", "1235"] as &[_],
        &["--limit=1", "--channel=b"],
        &["--status=dead"],
    ] {
        assert_eq!(list(whole).err, "");
    }
    assert_eq!(
        list(&["--limit=3", "--json"]).err,
        "",
        "programs asked for three"
    );
}

#[test]
fn status_counts_by_channel() {
    let desk = Desk::new();
    let empty = desk.json(["status", "till.db", "--json"]);
    assert_eq!(empty["channels"], json!([]));
    assert_eq!(empty["total"]["oldest_unsent_ms"], Value::Null);
    assert_eq!(desk.done(["status", "till.db"]), "nothing waiting\n");
    desk.put("sales", "S-1", "text");
    desk.put("sales", "S-2", "text");
    let status = desk.json(["status", "till.db", "--json"]);
    let sales = &status["channels"][0];
    for counts in [&status["total"], sales] {
        let mut counts = counts.as_object().unwrap().clone();
        let age = counts.remove("oldest_unsent_ms").unwrap();
        assert!(age.as_i64().unwrap() >= 0);
        for channel in ["channel", "state", "since", "reason", "reason_code"] {
            counts.remove(channel);
        }
        let expected = json!({
            "pending": 2, "waiting": 0, "sending": 0, "sent": 0, "dead": 0, "expired": 0,
            "cancelled": 0, "unsent": 2, "max_attempts": 0,
        });
        assert_eq!(Value::Object(counts), expected);
    }
    assert_eq!(sales["channel"], "sales");
    assert_eq!(sales["state"], "ok");
    assert_eq!(sales["since"], Value::Null);
    let text = desk.done(["status", "till.db"]);
    let age = text.strip_prefix("2 messages waiting, oldest ").unwrap();
    let (seconds, _) = age.split_once(" s").expect(age);
    assert!(seconds.parse::<u64>().is_ok(), "{text}");
}

#[test]
fn the_schema_that_is_printed_makes_an_outbox() {
    let desk = Desk::empty();
    let sql = desk.done(["schema"]);
    let conn = Connection::open(desk.path("till.db")).unwrap();
    conn.execute_batch(&sql).unwrap();
    drop(conn);
    desk.put("sales", "S-1", "text");
    let printed = desk.json(["schema", "--json"]);
    assert_eq!(printed["sql"].as_str().unwrap().trim_end(), sql.trim_end());
}
