//! What a person does to messages and channels, and that it is recorded.

use serde_json::json;

use super::Desk;
use crate::server::{Server, ok, respond};

fn status_of(desk: &Desk, key: &str) -> String {
    let row = desk.json(["show", "till.db", key, "--json"]);
    row["status"].as_str().unwrap().into()
}

/// A file with a dead letter D-1 (422), a sent message S-1 and two that wait, W-1 and W-2.
fn shop() -> Desk {
    let desk = Desk::new();
    desk.put("sales", "D-1", "bad");
    desk.put("sales", "S-1", "good");
    let server = Server::start(|seen| match &seen.body[..] {
        b"bad" => respond(422, &[], r#"{"detail":"no such article"}"#),
        _ => ok(),
    });
    desk.run(["drain", "till.db", "--workers=1", "--url", &server.url("/")]);
    desk.put("sales", "W-1", "good");
    desk.put("other", "W-2", "good");
    desk
}

/// Action, message, channel, reason of what was recorded, oldest first.
fn record(desk: &Desk) -> Vec<String> {
    desk.sql()
        .prepare("SELECT action || ' ' || coalesce(message, '') || ' ' || coalesce(reason, '') FROM outbox_audit ORDER BY id")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(|it| it.unwrap())
        .collect()
}

#[test]
fn a_dead_letter_is_retried_with_its_identity_and_arrives() {
    let desk = shop();
    let before = desk.json(["show", "till.db", "D-1", "--json"]);
    let dry = desk.json(["retry", "till.db", "D-1", "--dry-run", "--json"]);
    assert_eq!(
        dry,
        json!({"count": 1, "dry_run": true, "ids": [1], "keys": ["D-1"]})
    );
    assert_eq!(status_of(&desk, "D-1"), "dead");
    let done = desk.done(["retry", "till.db", "D-1", "--reason", "article added"]);
    assert_eq!(done, "1 message retried\n  sales: message 1 (key D-1)\n");
    let server = Server::start(|_| ok());
    assert_eq!(
        desk.run(["drain", "till.db", "--url", &server.url("/")])
            .code,
        0
    );
    let mut keys = server.seen().into_iter();
    assert!(keys.any(|it| it.header("idempotency-key") == before["message_id"].as_str()));
    assert_eq!(record(&desk), ["retry 1 article added"]);
    let who: String = desk
        .sql()
        .query_row("SELECT who FROM outbox_audit", [], |row| row.get(0))
        .unwrap();
    let (user, host) = who.split_once('@').unwrap();
    assert!(
        !user.is_empty() && !host.is_empty() && who != "unknown@unknown",
        "{who}"
    );
}

#[test]
fn what_makes_no_sense_is_refused_and_nothing_is_done() {
    let desk = shop();
    let refused = |args: &[&str], says: &str| desk.run(args).failed(1, says);
    refused(&["retry", "till.db", "S-1"], "is sent");
    refused(&["retry", "till.db", "W-1"], "is pending");
    refused(&["retry", "till.db", "D-1", "W-1"], "is pending");
    refused(&["retry", "till.db", "D-1", "--channel", "other"], "D-1");
    refused(&["retry", "till.db", "1", "--channel", "other"], "1");
    refused(&["retry", "till.db", "X-9", "--dry-run"], "X-9");
    refused(&["cancel", "till.db", "S-1"], "is sent");
    refused(&["edit", "till.db", "S-1", "{}"], "can be edited");
    for usage in [
        &["retry", "till.db"][..],
        &["retry", "till.db", "1", "--all"],
        &["retry", "till.db", "--all", "--status", "sent"],
        &["retry", "till.db", "1", "--status", "dead"],
        &["cancel", "till.db", "--all", "--status", "sending"],
        &["purge", "till.db"],
        &["edit", "till.db", "1"],
    ] {
        assert_eq!(desk.run(usage).code, 2, "{usage:?}");
    }
    assert_eq!(status_of(&desk, "D-1"), "dead");
    assert_eq!(record(&desk), Vec::<String>::new());
}

#[test]
fn all_means_the_dead_for_retry_and_the_unsent_and_dead_for_cancel() {
    let desk = shop();
    let count = |args: &[&str]| desk.json(args)["count"].clone();
    assert_eq!(
        count(&["retry", "till.db", "--all", "--dry-run", "--json"]),
        1
    );
    assert_eq!(
        count(&["retry", "till.db", "--all", "--channel=other", "--json"]),
        0
    );
    assert_eq!(
        count(&["retry", "till.db", "--all", "--code=timeout", "--json"]),
        0
    );
    assert_eq!(
        count(&["cancel", "till.db", "--all", "--dry-run", "--json"]),
        3
    );
    let args = [
        "cancel",
        "till.db",
        "--all",
        "--channel=other",
        "--reason=test data",
    ];
    assert_eq!(desk.done(args), "1 message cancelled\n");
    assert_eq!(
        (status_of(&desk, "W-2"), status_of(&desk, "W-1")),
        ("cancelled".into(), "pending".into())
    );
    assert_eq!(
        count(&["retry", "till.db", "--all", "--code=http_422", "--json"]),
        1
    );
    assert_eq!(
        count(&["retry", "till.db", "--all", "--status=cancelled", "--json"]),
        1
    );
    assert_eq!(status_of(&desk, "W-2"), "pending");
}

#[test]
fn a_whole_lane_is_cancelled_at_once() {
    let desk = Desk::new();
    desk.lane(&["1", "2", "3"]);
    let dry = desk.json(["cancel", "till.db", "--all", "--dry-run", "--json"]);
    let done = desk.json(["cancel", "till.db", "--all", "--json"]);
    assert_eq!((&dry["count"], &done["count"]), (&json!(3), &json!(3)));
    assert_eq!(
        desk.json(["status", "till.db", "--json"])["total"]["unsent"],
        0
    );
}

#[test]
fn an_edited_message_is_another_one_in_the_same_place() {
    let desk = shop();
    let before = desk.json(["show", "till.db", "D-1", "--json"]);
    desk.write("mended.json", "{\"mended\":true}");
    let args = ["edit", "till.db", "D-1", "--file", "mended.json", "--json"];
    let done = desk.json(args.into_iter().chain(["--reason", "wrong article"]));
    assert_eq!(done["former_message_id"], before["message_id"]);
    assert_ne!(done["message_id"], before["message_id"]);
    let after = desk.json(["show", "till.db", "D-1", "--json"]);
    assert_eq!(
        (&after["id"], &after["status"]),
        (&json!(1), &json!("pending"))
    );
    assert_eq!(after["payload"], "{\"mended\":true}");
    assert_eq!(record(&desk), ["edit 1 wrong article"]);
    let ran = desk.feed("from stdin", ["edit", "till.db", "W-1", "-"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(
        desk.json(["show", "till.db", "W-1", "--json"])["payload"],
        "from stdin"
    );
}

#[test]
fn a_paused_channel_sends_nothing_until_it_is_resumed() {
    let desk = shop();
    let paused = desk.json([
        "pause",
        "till.db",
        "sales",
        "--reason",
        "ERP \u{1b}[2J down",
        "--json",
    ]);
    assert_eq!(
        (&paused["state"], &paused["unsent"]),
        (&json!("paused"), &json!(1))
    );
    let server = Server::start(|_| ok());
    let drain = ["drain", "till.db", "--json", "--url", &server.url("/")];
    let report = desk.run(drain).json();
    assert_eq!((&report["sent"], &report["unsent"]), (&json!(1), &json!(1)));
    let text = desk.run(["status", "till.db"]).out;
    assert!(
        text.contains("sales: paused by ") && !text.contains('\u{1b}'),
        "{text}"
    );
    assert!(
        desk.done(["resume", "till.db", "sales"])
            .contains("goes on")
    );
    assert_eq!(desk.run(drain).json()["sent"], 1);
    assert_eq!(record(&desk).len(), 2);
    let refused = "no message was ever in a channel \"slaes\"; there are sales, other";
    for command in ["pause", "resume"] {
        desk.run([command, "till.db", "slaes"]).failed(1, refused);
    }
    assert_eq!(record(&desk).len(), 2);
    desk.done(["pause", "till.db", "slaes", "--force"]);
    desk.run(["pause", "till.db", ""]).failed(1, "channel");
}

#[test]
fn a_purge_removes_what_is_over_and_nothing_else() {
    let desk = shop();
    assert_eq!(
        desk.json(["purge", "till.db", "--older-than=1d", "--json"])["count"],
        0
    );
    desk.sql()
        .execute_batch("UPDATE outbox SET settled_at = settled_at - 200000000 WHERE status IN ('sent', 'dead')")
        .unwrap();
    assert_eq!(
        desk.done(["purge", "till.db", "--older-than=1d", "--dry-run"]),
        "1 message would be removed\n  sales: message 2 (key S-1)\n"
    );
    let dry = ["purge", "till.db", "--older-than=1d", "--dry-run", "--json"];
    assert_eq!(desk.json(dry)["count"], 1, "the first one removed it");
    assert_eq!(
        desk.done(["purge", "till.db", "--older-than", "1d"]),
        "1 message removed\n"
    );
    let rows = desk.run(["list", "till.db", "--json"]).lines();
    let left: Vec<_> = rows
        .iter()
        .map(|it| it["status"].as_str().unwrap())
        .collect();
    assert_eq!(left, ["dead", "pending", "pending"]);
}

#[test]
fn settings_say_what_dead_letters_do_unless_messages_are_waiting() {
    let desk = Desk::new();
    let server = Server::start(|seen| match &seen.body[..] {
        b"bad" => respond(422, &[], ""),
        _ => ok(),
    });
    let with = |choice: &str| {
        let url = server.url("/");
        desk.write(
            "outbox.toml",
            format!("[channel.sales]\nurl = \"{url}\"\non_dead = \"{choice}\"\n"),
        );
        desk.run(["drain", "till.db", "--config", "outbox.toml", "--json"])
    };
    let put = |key: &str, payload: &str| {
        let lane = [
            "enqueue",
            "till.db",
            "--channel=sales",
            "--ordering-key=lane",
            "--content-type=text/plain",
            "--key",
        ];
        desk.done(lane.into_iter().chain([key, payload]));
    };
    assert_eq!(with("skip").code, 0);
    put("1", "bad");
    put("2", "good");
    let ran = with("hold");
    ran.failed(
        1,
        "channel.sales.on_dead is \"hold\", the file says \"skip\"",
    );
    assert_eq!(server.seen().len(), 0, "it sent before it refused");
    assert_eq!(with("skip").json()["sent"], 1);
    assert_eq!(with("hold").code, 4);
    put("3", "good");
    assert_eq!(with("hold").json()["unsent"], 1);
    desk.write(
        "outbox.toml",
        "[channel.default]\nurl = \"http://localhost:9/\"\non_dead = \"skip\"\n",
    );
    desk.run(["drain", "till.db", "--config", "outbox.toml"])
        .failed(1, "line 3");
}

#[test]
fn settings_say_how_long_what_was_sent_is_kept() {
    let desk = Desk::new();
    let with = |keep: &str| {
        desk.write(
            "outbox.toml",
            format!("[drain]\n{keep}\n[channel.default]\nurl = \"http://localhost:9/\"\n"),
        );
        desk.run(["drain", "till.db", "--config", "outbox.toml"])
    };
    assert_eq!(
        with("keep_payload = \"1d\"\nkeep_sent = \"forever\"").code,
        0
    );
    with("keep_payload = \"long\"").failed(1, "line 2");
    with("keep_sent = 3").failed(1, "forever");
}

#[test]
fn retry_and_cancel_take_several_states_as_list_does() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, ordering_key, payload, status, settled_at)
             VALUES ('a', NULL, 'x', 'dead', 1), ('a', NULL, 'x', 'expired', 1), ('a', NULL, 'x', 'cancelled', 1),
                    ('a', NULL, 'x', 'sent', 1), ('a', 'lane', 'x', 'pending', NULL), ('a', 'lane', 'x', 'waiting', NULL)",
        )
        .unwrap();
    let count = |command: &str, statuses: &[&str]| {
        let args = [command, "till.db", "--all", "--dry-run", "--json"];
        let ran = desk.run(args.iter().chain(statuses));
        assert_eq!(ran.code, 0, "{statuses:?} {ran:?}");
        ran.json()["count"].as_u64().unwrap()
    };
    for (command, statuses, wanted) in [
        ("retry", &[][..], 1),
        ("retry", &["--status=dead,expired"], 2),
        ("retry", &["--status=cancelled,Dead,expired,dead"], 3),
        ("retry", &["--status=expired", "--status=cancelled"], 2),
        ("cancel", &[], 3),
        ("cancel", &["--status=waiting,pending"], 2),
    ] {
        assert_eq!(count(command, statuses), wanted, "{command} {statuses:?}");
    }
    for (command, statuses) in [("retry", "dead,sent"), ("cancel", "pending,sending")] {
        let args = [command, "till.db", "--all", "--status", statuses];
        desk.run(args).failed(2, "messages can be");
    }
    let cancelled = desk.json([
        "cancel",
        "till.db",
        "--all",
        "--status=pending,waiting",
        "--json",
    ]);
    assert_eq!(
        cancelled["count"], 2,
        "the head does not go before its follower"
    );
    let retried = desk.done(["retry", "till.db", "--all", "--status=dead,expired"]);
    assert_eq!(retried, "2 messages retried\n");
}

/// The transactions that the log of a file holds.
fn transactions(desk: &Desk) -> usize {
    let log = std::fs::read(desk.path("till.db-wal")).unwrap();
    let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    let frame = 24 + number(8) as usize;
    // A frame of the present log repeats its salt, and the last one of a commit has the file's size.
    let frames = (32..log.len() + 1 - frame).step_by(frame);
    frames
        .filter(|at| log[at + 8..at + 16] == log[16..24] && number(at + 4) != 0)
        .count()
}

#[test]
fn what_is_done_to_many_is_done_in_few_transactions() {
    const MANY: usize = 200;
    let desk = Desk::new();
    let sql = desk.sql();
    let fill = "WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 200)
                INSERT INTO outbox (channel, dedupe_key, payload) SELECT 'sales', 'S-' || n, ";
    sql.execute_batch(&format!("{fill} 'one' FROM n")).unwrap();
    let named: Vec<_> = (1..=MANY).map(|it| format!("id:{it}")).collect();
    let named: Vec<_> = named.iter().map(String::as_str).collect();
    let few = |args: &[&str]| {
        sql.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .unwrap();
        let done = desk.json(args.iter().chain(&["--json"]));
        assert_eq!(done["count"], MANY, "{args:?}");
        let transactions = transactions(&desk);
        assert!(
            (1..MANY / 2).contains(&transactions),
            "{transactions} of {}",
            args[0]
        );
    };
    few(&[&["cancel", "till.db"], named.as_slice()].concat());
    few(&[&["retry", "till.db"], named.as_slice()].concat());
    sql.execute_batch("UPDATE outbox SET status = 'sent', settled_at = 1")
        .unwrap();
    few(&[&["send-again", "till.db"], named.as_slice()].concat());
    sql.execute_batch(&format!(
        "{fill} 'two' FROM n WHERE true ON CONFLICT DO NOTHING"
    ))
    .unwrap();
    few(&["conflicts", "till.db", "--all", "--drop"]);
}

/// It is done in steps, and whoever stops it is told how far it came.
#[cfg(unix)]
#[test]
fn what_is_done_to_many_says_after_ctrl_c_how_many_were_done() {
    let desk = Desk::new();
    let sql = desk.sql();
    let fill = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 5000)
                INSERT INTO outbox (channel, dedupe_key, payload)
                SELECT 'sales', n, 'one' FROM n WHERE true ON CONFLICT DO NOTHING";
    sql.execute_batch(fill).unwrap();
    sql.execute_batch(&fill.replace("'one'", "'two'")).unwrap();
    let record = || -> i64 {
        let count = "SELECT count(*) FROM outbox_audit";
        sql.query_row(count, [], |row| row.get(0)).unwrap()
    };
    let put = |status: &str| {
        let at = "strftime('%s', 'now') * 1000";
        let all = format!("UPDATE outbox SET settled_at = {at}, status = ?1");
        sql.execute(&all, [status]).unwrap();
    };
    // Of each message so many rows go into the record.
    let stopped = |args: &[&str], signal: &str, what: &str, rows: i64| {
        let before = record();
        let going = desk.start(args);
        while record() == before {
            std::thread::yield_now();
        }
        going.signal(signal);
        let ran = going.end();
        let done = (record() - before) / rows;
        let told = ran.err.replace(',', "");
        let says = format!("stopped early {done} {what}");
        assert!(done < 5000 && told.contains(&says), "{done}: {ran:?}");
        ran.failed(1, "stopped early, ");
    };
    stopped(&["cancel", "till.db", "--all"], "-INT", "message", 1);
    put("cancelled");
    let retry = ["retry", "till.db", "--all", "--status=cancelled", "--json"];
    stopped(&retry, "-TERM", "message", 1);
    put("sent");
    let again = [
        "send-again",
        "till.db",
        "--all",
        "--channel=sales",
        "--since=1h",
    ];
    stopped(&again, "-INT", "message", 2);
    let drop = ["conflicts", "till.db", "--all", "--drop"];
    stopped(&drop, "-TERM", "conflict", 1);
}
