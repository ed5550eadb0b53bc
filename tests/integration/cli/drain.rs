//! Sending from the command line.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Desk, ended};
use crate::server::{Answer, Server, ok, respond};

fn drain(desk: &Desk, server: &Server) -> super::Ran {
    desk.run(["drain", "till.db", "--json", "--url", &server.url("/api")])
}

#[test]
fn a_row_that_was_inserted_by_plain_sql_arrives() {
    let desk = Desk::new();
    let server = Server::start(|_| ok());
    desk.sql()
        .execute_batch(
            "CREATE TABLE sale (id TEXT);
             BEGIN;
             INSERT INTO sale VALUES ('S-1');
             INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', '{\"total\":1250}')
               ON CONFLICT (channel, dedupe_key) DO NOTHING;
             COMMIT;
             BEGIN;
             INSERT INTO sale VALUES ('S-2');
             INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-2', '{}')
               ON CONFLICT (channel, dedupe_key) DO NOTHING;
             ROLLBACK;",
        )
        .unwrap();
    let ran = drain(&desk, &server);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let mut report = ran.json();
    let elapsed = report
        .as_object_mut()
        .unwrap()
        .remove("elapsed_ms")
        .unwrap();
    assert!(elapsed.as_u64().is_some());
    let expected = json!({
        "sent": 1, "retried": 0, "dead": 0, "expired": 0, "refused": 0, "unsent": 0,
        "channels": [
            {"channel": "sales", "sent": 1, "unsent": 0, "state": "ok", "reason": null},
        ],
    });
    assert_eq!(report, expected);
    let seen = server.seen();
    assert_eq!(seen.len(), 1, "the rolled back sale was sent");
    assert_eq!(seen[0].body, br#"{"total":1250}"#);
    let row = desk.json(["show", "till.db", "S-1", "--json"]);
    assert_eq!(row["status"], "sent");
    assert_eq!(
        row["message_id"].as_str(),
        seen[0].header("idempotency-key")
    );
    assert_eq!(drain(&desk, &server).json()["sent"], 0);
}

#[test]
fn an_unreachable_receiver_leaves_everything_unsent_and_is_named() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let closed = Server::start(|_| ok()).url("/");
    let ran = desk.run(["drain", "till.db", "--url", &closed]);
    assert_eq!((ran.code, ran.err.as_str()), (3, ""), "{ran:?}");
    assert!(ran.out.contains("1 still unsent"), "{ran:?}");
    assert!(ran.out.contains("offline"), "{ran:?}");
    let status = desk.json(["status", "till.db", "--json"]);
    let sales = &status["channels"][0];
    assert_eq!(sales["state"], "offline");
    assert_eq!(sales["max_attempts"], 0, "an outage was charged");
    assert!(sales["since"].is_i64());
    assert!(sales["reason"].as_str().unwrap().contains("refuses"));
    assert!(sales["reason_code"].is_string());
    let text = desk.run(["status", "till.db"]);
    assert_eq!(text.code, 0, "unsent messages are the drain's matter");
    assert!(text.out.contains("sales: offline"), "{text:?}");
}

#[test]
fn a_refused_message_is_a_dead_letter_and_exit_code_4() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let server = Server::start(|_| respond(422, &[], r#"{"detail":"no such article 4711"}"#));
    let ran = drain(&desk, &server);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert_eq!(ran.json()["dead"], 1);
    for args in [
        vec!["status", "till.db"],
        vec!["status", "till.db", "--json"],
    ] {
        assert_eq!(desk.run(args).code, 4);
    }
    let row = desk.json(["show", "till.db", "1", "--json"]);
    assert_eq!(row["status"], "dead");
    assert!(
        row["last_error"]
            .as_str()
            .unwrap()
            .contains("no such article 4711")
    );
    assert_eq!(row["failed_attempts"][0]["http_status"], 422);
    desk.put("sales", "S-2", "text");
    let status = desk.run(["status", "till.db"]);
    assert_eq!(
        status.code, 0,
        "something is unsent, so it is not a person's turn"
    );
    let status = desk.run(["status", "till.db", "--attention"]);
    assert_eq!(
        status.code, 4,
        "who watches over tills wants to know at once"
    );
}

#[test]
fn a_conflict_waits_for_a_person() {
    let desk = Desk::new();
    let server = Server::start(|_| ok());
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', '1');
             INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', '2')
               ON CONFLICT (channel, dedupe_key) DO NOTHING;",
        )
        .unwrap();
    assert_eq!(drain(&desk, &server).code, 4);
    let text = desk.run(["drain", "till.db", "--url", &server.url("/api")]);
    let told = "see `outbox conflicts till.db`";
    assert!(text.out.contains(told), "{text:?}");
    let status = desk.run(["status", "till.db", "--json"]);
    assert_eq!(status.code, 4);
    assert_eq!(status.json()["conflicts"], 1);
}

#[test]
fn channels_without_a_route_are_named_and_the_others_flow() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.put("whatsapp", "W-1", "text");
    let server = Server::start(|_| ok());
    desk.write(
        "outbox.toml",
        format!(
            "[channel.sales]\nurl = \"{}\"\nheaders = {{ X-Store = \"17\" }}\n",
            server.url("/sales/{dedupe_key}")
        ),
    );
    let args = ["drain", "till.db", "--config", "outbox.toml"];
    let ran = desk.run(args.into_iter().chain(["--json"]));
    assert_eq!(ran.code, 3);
    let report = ran.json();
    assert_eq!(report["sent"], 1);
    assert_eq!(report["unsent"], 1);
    let whatsapp = &report["channels"][1];
    assert_eq!(whatsapp["channel"], "whatsapp");
    assert_eq!(whatsapp["state"], "unrouted");
    let seen = server.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].target, "/sales/S-1");
    assert_eq!(seen[0].header("x-store"), Some("17"));
    let text = desk.run(args);
    assert!(text.out.contains("whatsapp"), "{text:?}");
    let serves = "no section of the settings serves it";
    assert!(text.out.contains(serves), "{text:?}");
    // Whoever lists has to know the settings to say so.
    assert!(!desk.done(["list", "till.db"]).contains(serves));
    let listed = desk.done(["list", "till.db", "--config", "outbox.toml"]);
    assert!(listed.contains(serves), "{listed}");
}

#[test]
fn the_default_section_serves_the_others() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.put("whatsapp", "W-1", "text");
    desk.write("token", "t0ken\n");
    let server = Server::start(|_| ok());
    desk.write(
        "outbox.toml",
        format!(
            "[channel.sales]\nurl = \"{}\"\nbearer = {{ file = \"token\" }}\n\
             [channel.default]\nurl = \"{}\"\nmethod = \"PUT\"\n",
            server.url("/sales"),
            server.url("/{channel}")
        ),
    );
    // The secret's path counts from the settings file, not from where the tool is started.
    let mut command = desk.command(["drain"]);
    command.arg(desk.path("till.db")).arg("--config");
    command
        .arg(desk.path("outbox.toml"))
        .current_dir(std::env::temp_dir());
    let ran: super::Ran = command.output().unwrap().into();
    assert_eq!(ran.code, 0, "{ran:?}");
    let mut seen = server.seen();
    seen.sort_by(|a, b| a.target.cmp(&b.target));
    assert_eq!(seen[0].header("authorization"), Some("Bearer t0ken"));
    assert_eq!(
        (seen[1].method.as_str(), seen[1].target.as_str()),
        ("PUT", "/whatsapp")
    );
}

#[test]
fn a_url_must_be_safe_or_allowed() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    for url in [
        "http://erp.example/",
        "ftp://erp.example/",
        "erp.example",
        "https://",
    ] {
        desk.run(["drain", "till.db", "--url", url])
            .failed(2, "--url: ");
    }
    // Allowed, and nobody is there.
    let ran = desk.run([
        "drain",
        "till.db",
        "--url",
        "http://outbox.invalid/",
        "--allow-http",
    ]);
    assert_eq!(ran.code, 3, "{ran:?}");
}

#[test]
fn now_ignores_back_off_but_not_schedules() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let delayed = ["enqueue", "till.db", "--channel=later", "--delay=1h", "{}"];
    desk.done(delayed);
    desk.sql()
        .execute_batch(
            "UPDATE outbox SET next_attempt_at = (unixepoch() + 600) * 1000, attempts = 1 WHERE id = 1",
        )
        .unwrap();
    let server = Server::start(|_| ok());
    let ran = drain(&desk, &server);
    assert_eq!((ran.code, ran.json()["sent"].clone()), (3, json!(0)));
    let ran = desk.run([
        "drain",
        "till.db",
        "--now",
        "--json",
        "--url",
        &server.url("/"),
    ]);
    assert_eq!((ran.code, ran.json()["sent"].clone()), (3, json!(1)));
    assert_eq!(ran.json()["unsent"], 1);
}

#[test]
fn a_deadline_ends_it_with_a_report() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let server = Server::start(|_| Answer::Hang);
    let started = Instant::now();
    let args = ["drain", "till.db", "--deadline", "300ms", "--json", "--url"];
    let ran = desk.run(args.into_iter().chain([server.url("/").as_str()]));
    assert_eq!(ran.code, 3, "{ran:?}");
    assert_eq!(ran.json()["unsent"], 1);
    assert!(started.elapsed() < Duration::from_secs(15));
}

#[cfg(unix)]
#[test]
fn a_signal_ends_it_with_a_report_and_gives_everything_back() {
    for signal in ["-INT", "-TERM"] {
        let desk = Desk::new();
        desk.put("sales", "S-1", "text");
        let server = Server::start(|_| Answer::Hang);
        let url = server.url("/");
        let child = desk
            .command(["drain", "till.db", "--json", "--url", &url])
            .spawn()
            .unwrap();
        server.wait();
        let pid = child.id().to_string();
        let kill = std::process::Command::new("kill")
            .args([signal, &pid])
            .status();
        assert!(kill.unwrap().success());
        let ran = ended(child);
        assert_eq!((ran.code, ran.err.as_str()), (3, ""), "{ran:?}");
        assert_eq!(ran.json()["unsent"], 1);
        let row = desk.json(["show", "till.db", "1", "--json"]);
        assert_eq!(
            (&row["status"], &row["attempts"]),
            (&json!("pending"), &json!(0))
        );
    }
}

#[test]
fn workers_send_side_by_side() {
    let desk = Desk::new();
    let lines = "{}\n".repeat(200);
    desk.feed(lines, ["enqueue", "till.db", "--channel=a", "--lines=-"]);
    let server = Server::start(|_| ok());
    let args = ["drain", "till.db", "--workers", "3", "--json", "--url"];
    let ran = desk.run(args.into_iter().chain([server.url("/").as_str()]));
    assert_eq!(ran.json()["sent"], 200);
    let mut keys: Vec<_> = server
        .seen()
        .iter()
        .map(|it| it.header("idempotency-key").map(str::to_string))
        .collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 200, "one was sent twice");
    assert_ne!(ran.json()["elapsed_ms"], Value::Null);
}

#[test]
fn what_is_left_in_a_channel_that_flows_has_its_true_reason() {
    let desk = Desk::new();
    let server = Server::start(|seen| match seen.body.as_slice() {
        b"bad" => respond(422, &[], ""),
        _ => ok(),
    });
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, ordering_key, payload) VALUES
               ('lane', 'k', 'bad'), ('lane', 'k', 'next'), ('lane', 'k', 'next'), ('lane', 'x', 'good');
             INSERT INTO outbox (channel, payload, available_at)
               VALUES ('later', 'x', (strftime('%s', 'now') + 7200) * 1000);
             INSERT INTO outbox (channel, payload) VALUES ('failed', 'x');
             INSERT INTO outbox (channel, ordering_key, payload)
               VALUES ('held', 'k', 'x'), ('held', 'k', 'y'), ('held', 'k', 'z');
             UPDATE outbox SET attempts = 1, next_attempt_at = (strftime('%s', 'now') + 600) * 1000
              WHERE channel IN ('failed', 'held') AND status = 'pending';",
        )
        .unwrap();
    let ran = drain(&desk, &server);
    assert_eq!(ran.code, 3, "{ran:?}");
    let report = ran.json();
    for (channel, code, says) in [
        ("lane", "behind", "2 behind dead letter 1"),
        ("later", "scheduled", "1 scheduled, due in "),
        ("failed", "back_off", "1 failed, not tried again for "),
        ("held", "back_off", "1 failed, not tried again for "),
    ] {
        let channels = report["channels"].as_array().unwrap();
        let found = channels.iter().find(|it| it["channel"] == channel);
        let found = found.unwrap();
        let reason = found["reason"].as_str().unwrap();
        assert!(reason.starts_with(says), "{found}");
        assert_eq!(found["left"][0]["reason_code"], code, "{found}");
        // One has failed, whatever stands behind it.
        assert_eq!(reason.ends_with(", and 2 behind"), channel == "held");
    }
    let text = desk.run(["drain", "till.db", "--url", &server.url("/")]);
    assert!(text.out.contains("2 behind dead letter 1"), "{text:?}");
}

#[test]
fn what_a_deadline_left_is_due() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let server = Server::start(|_| Answer::Hang);
    let args = ["drain", "till.db", "--deadline", "300ms", "--url"];
    let ran = desk.run(args.into_iter().chain([server.url("/").as_str()]));
    assert!(
        ran.out.contains("1 due, but the deadline passed"),
        "{ran:?}"
    );
}

#[test]
fn good_news_is_no_warning() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let drain = |url: &str| {
        let args = [
            "drain",
            "till.db",
            "-v",
            "--now",
            "--workers=1",
            "--url",
            url,
        ];
        desk.run(args).err
    };
    let bad = drain("http://127.0.0.1:9/");
    assert!(bad.contains("warning: sales is offline"), "{bad}");
    let good = drain(&Server::start(|_| ok()).url("/"));
    assert!(good.contains("info: sales is ok: messages flow"), "{good}");
    assert!(!good.contains("warning: "), "{good}");
}

/// A till that holds the write lock is told of when it lasts, and so is its end.
#[test]
fn a_file_that_can_be_written_again_is_told_of() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let server = Server::start(|_| ok());
    let till = desk.sql();
    till.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut drain = desk.start(["drain", "till.db", "-v", "--url", &server.url("/")]);
    let failed = drain.err("the outbox cannot write: ");
    assert_eq!(
        failed.matches("database is locked").count(),
        1,
        "SQLite's words come once: {failed}"
    );
    till.execute_batch("COMMIT").unwrap();
    let again = drain.err("the outbox writes again");
    assert!(again.starts_with("info: "), "{again}");
    assert_eq!(drain.end().code, 0);
}
