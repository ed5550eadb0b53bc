//! What is wrong with a file is named, with its remedy.

use serde_json::Value;

use super::{Desk, Ran};
use crate::server::{Server, respond};

fn check(desk: &Desk) -> Ran {
    desk.run(["check", "till.db", "--json"])
}

/// The codes of what needs a person.
fn codes(ran: &Ran) -> Vec<String> {
    let report = ran.json();
    let all = report["findings"].as_array().unwrap().iter();
    let grave = all.filter(|it| it["severity"] != "note");
    grave
        .map(|it| it["code"].as_str().unwrap().into())
        .collect()
}

fn finding(ran: &Ran, code: &str) -> Value {
    let report = ran.json();
    let mut all = report["findings"].as_array().unwrap().iter();
    let found = all.find(|it| it["code"] == code);
    found
        .unwrap_or_else(|| panic!("no {code} in {report}"))
        .clone()
}

/// After this SQL the check finds exactly this.
fn finds(sql: &str, code: &str) -> Value {
    let desk = Desk::new();
    desk.lane(&["S-1", "S-2", "S-3"]);
    desk.sql().execute_batch(sql).unwrap();
    let ran = check(&desk);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert_eq!(codes(&ran), [code], "{ran:?}");
    finding(&ran, code)
}

#[test]
fn a_sound_file_needs_nobody() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let before = std::fs::read(desk.path("till.db")).unwrap();
    let ran = check(&desk);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let report = ran.json();
    assert_eq!(report["needs_person"], false);
    assert_eq!(report["file"]["journal_mode"], "wal");
    assert!(
        finding(&ran, "journal_mode")["text"]
            .as_str()
            .unwrap()
            .contains("power cut")
    );
    assert_eq!(std::fs::read(desk.path("till.db")).unwrap(), before);
    let text = desk.done(["check", "till.db"]);
    assert!(
        text.contains("nothing needs a person") && text.contains("SQLite 3."),
        "{text}"
    );
}

#[test]
fn broken_lanes_are_found() {
    let off = "PRAGMA writable_schema = 0; DROP TRIGGER outbox_status_changed; DROP TRIGGER outbox_deleted;";
    let back = include_str!("../../../schema.sql");
    let headless = finds(
        &format!("{off} UPDATE outbox SET status = 'waiting' WHERE id = 1; {back}"),
        "headless_lane",
    );
    assert_eq!(headless["count"], 1);
    let many = finds(
        &format!("{off} UPDATE outbox SET status = 'pending'; {back}"),
        "many_headed_lane",
    );
    assert_eq!(
        (&many["count"], &many["severity"]),
        (&1.into(), &"fault".into())
    );
}

#[test]
fn marks_of_wrong_clocks_are_found() {
    let far = 4_000_000_000_000_i64;
    let lease = finds(
        &format!(
            "UPDATE outbox SET status = 'sending', claims = 1, next_attempt_at = {far} WHERE id = 1"
        ),
        "lease_in_future",
    );
    assert_eq!(lease["message"], 1);
    finds(
        &format!("UPDATE outbox SET next_attempt_at = {far}, attempts = 1 WHERE id = 1"),
        "due_in_future",
    );
    finds(
        &format!("UPDATE outbox SET created_at = {far} WHERE id = 2"),
        "enqueued_in_future",
    );
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql()
        .execute_batch(&format!("UPDATE outbox SET created_at = {far}"))
        .unwrap();
    let ran = check(&desk);
    assert_eq!(codes(&ran), ["clock", "enqueued_in_future"]);
    assert!(
        finding(&ran, "clock")["remedy"]
            .as_str()
            .unwrap()
            .contains("set the clock")
    );
}

#[test]
fn a_scheduled_message_is_not_odd() {
    let desk = Desk::new();
    desk.done([
        "enqueue",
        "till.db",
        "--channel=later",
        "--delay=300d",
        "{}",
    ]);
    assert_eq!(codes(&check(&desk)), Vec::<String>::new());
}

#[test]
fn rows_past_the_checks_are_found() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql()
        .execute_batch(
            "PRAGMA ignore_check_constraints = 1;
             UPDATE outbox SET attempts = -1 WHERE id = 1;
             DELETE FROM outbox_attempt;
             INSERT INTO outbox_attempt (message, at, outcome) VALUES (77, 1, 'timeout');",
        )
        .unwrap();
    let ran = check(&desk);
    assert_eq!(ran.code, 4);
    assert_eq!(codes(&ran), ["impossible_row", "broken_rule"], "{ran:?}");
    assert_eq!(finding(&ran, "impossible_row")["message"], 1);
    assert_eq!(finding(&ran, "orphan_attempts")["message"], 77);
}

#[test]
fn what_was_settled_by_hand_is_a_note() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql()
        .execute_batch("UPDATE outbox SET status = 'cancelled' WHERE id = 1")
        .unwrap();
    let ran = check(&desk);
    assert_eq!(ran.code, 0);
    assert_eq!(finding(&ran, "settled_without_date")["count"], 1);
}

#[test]
fn missing_parts_of_the_schema_are_named() {
    let found = finds(
        "DROP TRIGGER outbox_guard; DROP INDEX outbox_expiry",
        "schema_incomplete",
    );
    let text = found["text"].as_str().unwrap();
    assert!(
        text.contains("outbox_guard") && text.contains("outbox_expiry"),
        "{text}"
    );
    assert!(
        found["command"]
            .as_str()
            .unwrap()
            .starts_with("outbox upgrade ")
    );
}

#[test]
fn a_damaged_page_is_found_and_the_rest_is_told_all_the_same() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "CREATE TABLE sale (id INTEGER PRIMARY KEY, text);
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
             INSERT INTO sale (text) SELECT hex(randomblob(500)) FROM n;
             INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', '1'), ('sales', 'S-2', '1');
             INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', 'other')
               ON CONFLICT (channel, dedupe_key) DO NOTHING;
             PRAGMA wal_checkpoint(TRUNCATE);",
        )
        .unwrap();
    let mut bytes = std::fs::read(desk.path("till.db")).unwrap();
    let middle = (bytes.len() * 3 / 4) / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0xa5);
    desk.write("till.db", &bytes);
    let ran = check(&desk);
    assert_eq!(ran.code, 4, "{ran:?}");
    let damage = finding(&ran, "damaged");
    assert!(
        damage["text"].as_str().unwrap().contains("sale"),
        "{damage}"
    );
    assert_eq!(finding(&ran, "conflicts")["count"], 1);
}

/// A disk has spoilt the only page of one small table, or the end of the list of tables; the first
/// page is sound. That is no foreign file, and whatever can be read is told.
#[test]
fn a_file_with_a_spoilt_page_is_damaged_and_not_foreign() {
    for table in [
        "outbox_meta",
        "outbox_audit",
        "outbox_conflict",
        "outbox",
        "sqlite_master",
    ] {
        let desk = Desk::new();
        desk.put("sales", "S-1", "text");
        let conn = desk.sql();
        conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
            .unwrap();
        let page: u32 = match table {
            // The root is the first page; this is one of those below it.
            "sqlite_master" => 2,
            table => {
                let sql = "SELECT rootpage FROM sqlite_master WHERE name = ?1";
                conn.query_row(sql, [table], |row| row.get(0)).unwrap()
            }
        };
        conn.close().unwrap();
        let mut bytes = std::fs::read(desk.path("till.db")).unwrap();
        let end = page as usize * 4096;
        bytes[end - 4096..end].fill(0xff);
        desk.write("till.db", &bytes);

        let ran = check(&desk);
        assert_eq!(ran.code, 4, "{table}: {ran:?}");
        let damage = finding(&ran, "damaged");
        assert!(damage["remedy"].as_str().unwrap().contains(".recover"));
        let ran = desk.run(["check", "till.db"]);
        assert_eq!((ran.code, ran.err.as_str()), (4, ""), "{table}: {ran:?}");
        // What meets the page says so, once, and where to look.
        for command in ["status", "why", "pause"] {
            let rest = (command == "pause").then_some("sales");
            let ran = desk.run([command, "till.db"].into_iter().chain(rest));
            if ran.code != 0 {
                let errors = ran.err.lines().filter(|it| it.starts_with("error: "));
                let errors: Vec<_> = errors.collect();
                assert_eq!((ran.code, errors.len()), (1, 1), "{table}: {ran:?}");
                assert!(
                    errors[0].starts_with("error: the file is damaged"),
                    "{table}: {ran:?}"
                );
                assert!(errors[0].contains("`outbox check`"), "{table}: {ran:?}");
                assert!(!ran.err.contains("Error code"), "{table}: {ran:?}");
            }
        }
        if matches!(table, "outbox" | "sqlite_master") {
            desk.run(["status", "till.db"]).failed(1, "damaged");
        }
    }
}

#[test]
fn dead_letters_and_channels_that_need_a_person_are_told() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.put("other", "O-1", "text");
    let server = Server::start(|seen| match seen.target.as_str() {
        "/sales" => respond(422, &[], r#"{"detail":"no \u001b[2J article"}"#),
        _ => respond(401, &[], ""),
    });
    let url = server.url("/{channel}");
    desk.run(["drain", "till.db", "--url", &url]);
    let ran = check(&desk);
    let mut found = codes(&ran);
    found.sort();
    assert_eq!(found, ["dead_letters", "unauthorised"]);
    assert_eq!(finding(&ran, "dead_letters")["channel"], "sales");
    let text = desk.run(["check", "till.db"]);
    assert_eq!(text.code, 4);
    // Ready to be pasted, on a line of its own.
    for command in [
        "outbox list till.db --status dead --channel sales",
        "outbox resume till.db other",
    ] {
        let mut lines = text.out.lines().map(str::trim);
        assert!(lines.any(|it| it == command), "{command} {text:?}");
    }
    assert!(!text.out.contains('\u{1b}'));
}

#[test]
fn messages_that_nobody_sends_are_told() {
    let long_ago = "(unixepoch() - 1000) * 1000";
    for set in [
        format!("created_at = {long_ago}"),
        // By a process that is gone.
        format!("status = 'sending', claims = 1, next_attempt_at = {long_ago}"),
    ] {
        let sql = format!("UPDATE outbox SET {set}");
        assert_eq!(finds(&sql, "unattended")["channel"], "sales", "{set}");
    }
}

#[test]
fn a_file_without_a_write_ahead_log_is_explained() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch("PRAGMA journal_mode = DELETE")
        .unwrap();
    let ran = check(&desk);
    assert_eq!(ran.code, 0);
    let text = finding(&ran, "journal_mode")["text"]
        .as_str()
        .unwrap()
        .to_string();
    assert!(text.contains("journal_mode=delete"), "{text}");
}

#[test]
fn settings_are_checked_with_their_secrets_and_channels() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.put("whatsapp", "W-1", "text");
    let with = |text: &str| {
        desk.write("outbox.toml", text);
        desk.run(["check", "till.db", "--config", "outbox.toml", "--json"])
    };
    let ran =
        with("[channel.sales]\nurl = \"https://erp.example/\"\nbearer = { file = \"none\" }\n");
    assert_eq!(ran.code, 4);
    assert_eq!(codes(&ran), ["secret", "unrouted"]);
    assert!(
        finding(&ran, "secret")["text"]
            .as_str()
            .unwrap()
            .contains("none cannot be read")
    );
    assert_eq!(finding(&ran, "unrouted")["channel"], "whatsapp");
    let ran = with("[channel.sales]\nurl = \"http://erp.example/\"\n");
    assert_eq!(codes(&ran), ["settings"]);
    assert!(
        finding(&ran, "settings")["text"]
            .as_str()
            .unwrap()
            .contains("line 2")
    );
    desk.write("token", "t0ken");
    let ran =
        with("[channel.default]\nurl = \"https://erp.example/\"\nbearer = { file = \"token\" }\n");
    assert_eq!((ran.code, codes(&ran)), (0, Vec::new()));
    assert!(!ran.out.contains("t0ken"));
    // Which answers count is worth a word where every one does.
    let lax = finding(&ran, "no_reply_rule");
    let text = lax["text"].as_str().unwrap();
    assert!(text.starts_with("default: any 2xx"), "{text}");
    let ran =
        with("[channel.default]\nurl = \"https://erp.example/\"\nreply = { require = \"/id\" }\n");
    assert!(!ran.out.contains("no_reply_rule"), "{ran:?}");
}

#[test]
fn it_waits_for_nobody_and_keeps_nobody_waiting() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let conn = desk.sql();
    conn.execute_batch("BEGIN IMMEDIATE; INSERT INTO outbox (channel, payload) VALUES ('a', 'x')")
        .unwrap();
    let ran = check(&desk);
    assert_eq!((ran.code, codes(&ran)), (4, vec!["write_lock".to_string()]));
    conn.execute_batch("COMMIT").unwrap();
    let ran = check(&desk);
    assert_eq!((ran.code, codes(&ran)), (0, Vec::new()));
}

/// Nor does a program that writes again and again look like one that keeps the lock.
#[test]
fn a_busy_writer_is_no_lock_that_is_kept() {
    let desk = Desk::new();
    let conn = desk.sql();
    conn.busy_timeout(std::time::Duration::from_secs(20))
        .unwrap();
    let going = desk.start(["check", "till.db", "--json"]);
    let mut longest = std::time::Duration::ZERO;
    for _ in 0..500 {
        let started = std::time::Instant::now();
        conn.execute_batch("INSERT INTO outbox (channel, payload) VALUES ('a', 'x')")
            .unwrap();
        longest = longest.max(started.elapsed());
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
    let ran = going.end();
    assert!(!ran.out.contains("write_lock"), "{ran:?}");
    // It is a matter of moments; the bound only tells a lock that was kept.
    assert!(longest < std::time::Duration::from_secs(2), "{longest:?}");
}

#[test]
fn asked_to_it_calls_on_each_receiver_and_says_what_stands_in_between() {
    let desk = Desk::new();
    let there = Server::start(|_| respond(404, &[("Date", "Wed, 01 Jan 2020 00:00:00 GMT")], ""));
    let closed = Server::start(|_| respond(200, &[], "")).url("/");
    let tls = Server::start(|_| respond(200, &[], ""));
    desk.write("token", "t0ken");
    desk.write(
        "outbox.toml",
        format!(
            "[channel.a]\nurl = \"{}\"\nbearer = {{ file = \"token\" }}\n[channel.b]\nurl = \"{closed}\"\n\
             [channel.c]\nurl = \"https://127.0.0.1:{}/\"\n",
            there.url("/sales?token=x"),
            tls.port()
        ),
    );
    let args = ["check", "till.db", "--config", "outbox.toml", "--json"];
    let quiet = desk.run(args);
    assert_eq!(
        (quiet.code, there.seen().len()),
        (0, 0),
        "it called without being asked to"
    );
    let ran = desk.run(args.into_iter().chain(["--connect"]));
    assert_eq!(ran.code, 4);
    let seen = there.seen();
    assert_eq!(
        (seen[0].method.as_str(), seen[0].target.as_str()),
        ("HEAD", "/")
    );
    assert_eq!(seen[0].header("authorization"), None);
    assert!(
        finding(&ran, "receiver")["text"]
            .as_str()
            .unwrap()
            .contains("HTTP 404")
    );
    assert_eq!(finding(&ran, "receiver_refused")["channel"], "b");
    assert_eq!(finding(&ran, "clock_skew")["channel"], "a");
    let codes = codes(&ran);
    assert_eq!(codes.len(), 3, "{codes:?}: the third is no TLS");
    assert_eq!(desk.run(["check", "till.db", "--connect"]).code, 2);
}

#[test]
fn a_receiver_of_several_channels_is_called_once() {
    let desk = Desk::new();
    let there = Server::start(|_| respond(204, &[], ""));
    let [sales, stock] = ["/sales", "/stock"].map(|it| there.url(it));
    desk.write(
        "outbox.toml",
        format!("[channel.sales]\nurl = \"{sales}\"\n[channel.stock]\nurl = \"{stock}\"\n"),
    );
    let args = ["check", "till.db", "--config", "outbox.toml", "--connect"];
    let ran = desk.run(args.into_iter().chain(["--json"]));
    assert_eq!(there.seen().len(), 1);
    let found = finding(&ran, "receiver");
    assert!(
        found["text"]
            .as_str()
            .unwrap()
            .starts_with("sales, stock: ")
    );
    assert_eq!(found["channel"], Value::Null);
}

#[test]
fn a_secret_among_the_plain_headers_is_pointed_at_and_not_shown() {
    let desk = Desk::new();
    desk.write(
        "outbox.toml",
        "[channel.sales]\nurl = \"https://erp.example/\"\nreply = { require = \"/id\" }\n\
         headers = { X-Api-Key = \"hunter2\", X-Store = \"17\" }\n",
    );
    let ran = desk.run(["check", "till.db", "--config", "outbox.toml", "--json"]);
    assert_eq!((ran.code, codes(&ran)), (0, Vec::new()));
    let told = finding(&ran, "plain_secret");
    assert_eq!(told["channel"], "sales");
    assert!(
        told["text"].as_str().unwrap().contains("x-api-key"),
        "{told}"
    );
    assert!(
        !ran.out.contains("hunter2") && !ran.out.contains("x-store"),
        "{ran:?}"
    );
}

/// As an import of a foreign row may leave it: every later sale fails, with its own transaction.
#[test]
fn an_id_at_the_end_of_all_ids_is_found_and_its_remedy_helps() {
    let desk = Desk::new();
    let conn = desk.sql();
    let put = "INSERT INTO outbox (channel, payload) VALUES ('sales', 'x')";
    let last = "INSERT INTO outbox (id, channel, payload, status, settled_at)
                VALUES (9007199254740991, 'sales', 'x', 'cancelled', 1)";
    conn.execute_batch(put).unwrap();
    conn.execute_batch(last).unwrap();
    assert!(conn.execute_batch(put).is_err());
    let ran = check(&desk);
    assert_eq!(ran.code, 4, "{ran:?}");
    let remedy = finding(&ran, "ids_used_up")["remedy"].to_string();
    let (_, sql) = remedy.trim_matches('"').split_once("in sqlite3: ").unwrap();
    conn.execute_batch(sql).unwrap();
    conn.execute_batch(put).unwrap();
    assert_eq!(
        desk.json(["status", "till.db", "--json"])["total"]["unsent"],
        2
    );
    assert!(!codes(&check(&desk)).contains(&"ids_used_up".into()));
}
