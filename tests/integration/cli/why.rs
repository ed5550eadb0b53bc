//! Why a message has not arrived, in words and for programs.

use serde_json::json;

use super::Desk;
use crate::server::{Server, ok, respond};

#[test]
fn a_message_is_explained_with_fault_and_advice() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let closed = Server::start(|_| respond(200, &[], "")).url("/");
    desk.run(["drain", "till.db", "--url", &closed]);
    let why = desk.json(["why", "till.db", "S-1", "--json"]);
    assert_eq!(
        (&why["reason_code"], &why["status"]),
        (&json!("offline"), &json!("pending"))
    );
    assert_eq!(why["fault"], "network");
    assert!(
        why["until"].is_i64() && why["detail"].as_str().unwrap().contains("refuses"),
        "{why}"
    );
    let text = desk.done(["why", "till.db", "S-1"]);
    assert!(text.contains("Nothing is lost"), "{text}");
    assert_eq!(text.trim_end(), why["text"].as_str().unwrap());
    desk.run(["why", "till.db", "S-2"]).failed(1, "S-2");
    desk.run(["why", "till.db", "S-1", "--channel=other"])
        .failed(1, "S-1");
}

#[test]
fn the_head_of_its_lane_is_named() {
    let desk = Desk::new();
    for key in ["1", "2"] {
        let lane = [
            "enqueue",
            "till.db",
            "--channel=a",
            "--ordering-key=k",
            "--key",
        ];
        desk.done(lane.into_iter().chain([key, "{}"]));
    }
    desk.done(["pause", "till.db", "a"]);
    let why = desk.json(["why", "till.db", "2", "--json"]);
    assert_eq!(why["reason_code"], "paused");
    desk.done(["resume", "till.db", "a"]);
    let why = desk.json(["why", "till.db", "2", "--json"]);
    assert_eq!(
        (&why["reason_code"], &why["behind"]["id"]),
        (&json!("behind"), &json!(1))
    );
}

#[test]
fn the_whole_file_is_explained_by_groups() {
    let desk = Desk::new();
    assert_eq!(desk.done(["why", "till.db"]), "nothing is waiting\n");
    let empty = desk.json(["why", "till.db", "--json"]);
    assert_eq!(empty, json!({"groups": [], "dead": [], "conflicts": 0}));
    for key in ["S-1", "S-2", "S-3"] {
        desk.put("sales", key, "text");
    }
    let server = Server::start(|_| respond(422, &[], r#"{"detail":"no \u001b[2J article"}"#));
    desk.run(["drain", "till.db", "--url", &server.url("/")]);
    desk.put("later", "L-1", "text");
    let whole = desk.json(["why", "till.db", "--json"]);
    let dead = &whole["dead"][0];
    assert_eq!(
        (&dead["count"], &dead["code"]),
        (&json!(3), &json!("http_422"))
    );
    let groups = whole["groups"].as_array().unwrap();
    assert!(
        groups
            .iter()
            .any(|it| it["why"]["channel"] == "later" && it["messages"] == 1)
    );
    let text = desk.done(["why", "till.db"]);
    assert!(text.contains("sales: 3 dead letters, http_422"), "{text}");
    assert!(
        text.contains("till.db --all --channel sales --code http_422"),
        "{text}"
    );
    assert!(
        text.contains("later: 1 message\n") && !text.contains('\u{1b}'),
        "{text}"
    );
}

#[test]
fn what_waits_for_a_person_is_not_nothing() {
    let desk = Desk::new();
    desk.contested();
    desk.done(["cancel", "till.db", "S-1"]);
    let text = desk.done(["why", "till.db"]);
    assert!(text.starts_with("1 conflict waits for a person"), "{text}");
    assert!(!text.contains("nothing is waiting"), "{text}");
    assert_eq!(desk.json(["why", "till.db", "--json"])["conflicts"], 1);
}

#[test]
fn a_message_that_a_web_page_answered_is_named_with_where_to_look() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let portal = Server::start(|_| respond(200, &[], "<!doctype html><title>Log in"));
    desk.run(["drain", "till.db", "--url", &portal.url("/")]);
    let why = desk.json(["why", "till.db", "S-1", "--json"]);
    assert_eq!(
        (&why["reason_code"], &why["fault"]),
        (&json!("sent"), &json!("network"))
    );
    let show = why["commands"][0].as_str().unwrap();
    assert!(
        show.starts_with("outbox show ") && show.ends_with(" id:1"),
        "{show}"
    );
}

#[test]
fn a_status_counts_no_days_from_1970() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql()
        .execute_batch(
            "UPDATE outbox SET created_at = 5000;
             INSERT INTO outbox_channel (channel, state, since, reason_code, reason)
             VALUES ('sales', 'offline', 6000, 'refused', 'refused')
             ON CONFLICT (channel) DO UPDATE SET state = 'offline', since = 6000",
        )
        .unwrap();
    let text = desk.done(["status", "till.db"]);
    assert!(
        text.contains("the oldest from a time when the clock was wrong"),
        "{text}"
    );
    assert!(
        text.contains("sales: offline since a time when the clock was wrong"),
        "{text}"
    );
    assert!(!text.contains("days"), "{text}");
    assert_eq!(
        desk.json(["status", "till.db", "--json"])["clock_wrong"],
        false
    );
}

#[test]
fn a_schedule_is_told_in_one_span() {
    let desk = Desk::new();
    desk.done(["enqueue", "till.db", "--channel=a", "--delay=2h", "{}"]);
    let text = desk.done(["why", "till.db", "1"]);
    assert!(
        text.contains(" is scheduled: its moment comes in ") && text.contains(" UTC. "),
        "{text}"
    );
    let (sentence, command) = text.split_once('\n').unwrap();
    assert!(!sentence.contains(" now"), "{text}");
    assert!(command.contains("id:1 --available now"), "{text}");
    // What sends it after all.
    let why = desk.json(["why", "till.db", "1", "--json"]);
    let edit = why["commands"][0].as_str().unwrap();
    assert!(edit.contains(" id:1 --available now"), "{edit}");
    desk.done(["edit", "till.db", "id:1", "--available", "now"]);
    let why = desk.json(["why", "till.db", "1", "--json"]);
    assert_eq!(why["reason_code"], "due");
}

#[test]
fn with_settings_a_channel_without_a_route_is_seen() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.write(
        "outbox.toml",
        "[channel.other]\nurl = \"https://erp.example/\"\n",
    );
    let args = ["why", "till.db", "S-1", "--config", "outbox.toml", "--json"];
    assert_eq!(desk.json(args)["reason_code"], "unrouted");
    let whole = desk.json(["why", "till.db", "--config", "outbox.toml", "--json"]);
    assert_eq!(whole["groups"][0]["why"]["reason_code"], "unrouted");
}

#[test]
fn whether_there_is_a_route_is_left_open_where_nobody_was_asked() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let caveat = "Whether its channel has a route is known only with --config.";
    for args in [&["why", "till.db"][..], &["why", "till.db", "S-1"]] {
        let text = desk.done(args);
        assert!(text.contains(caveat), "{text}");
    }
    let why = desk.json(["why", "till.db", "S-1", "--json"]);
    assert_eq!(why["routed"], serde_json::Value::Null);
    desk.write(
        "outbox.toml",
        "[channel.sales]\nurl = \"https://erp.example/\"\n",
    );
    let args = ["why", "till.db", "S-1", "--config", "outbox.toml"];
    assert!(!desk.done(args).contains(caveat));
    assert_eq!(
        desk.json(args.into_iter().chain(["--json"]))["routed"],
        true
    );
}

/// A drain whose settings lack the channel runs beside it, and leaves no trace but elsewhere.
#[test]
fn a_message_that_a_drain_has_left_is_told_apart() {
    let desk = Desk::new();
    desk.put("wa", "W-1", "text");
    desk.sql()
        .execute_batch("UPDATE outbox SET created_at = created_at - 600000")
        .unwrap();
    desk.put("sales", "S-1", "text");
    let server = Server::start(|_| ok());
    let url = server.url("/");
    desk.write("outbox.toml", format!("[channel.sales]\nurl = \"{url}\"\n"));
    assert_eq!(
        desk.run(["drain", "till.db", "--config", "outbox.toml"])
            .code,
        3
    );
    let text = desk.done(["why", "till.db", "W-1"]);
    assert!(text.contains("A drain has run since and left it"), "{text}");
}

#[test]
fn a_variable_that_is_not_set_is_named_as_what_to_set() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let server = Server::start(|_| ok());
    desk.write(
        "outbox.toml",
        format!(
            "[channel.sales]\nurl = \"{}\"\nbearer = {{ env = \"OUTBOX_TEST_NOT_SET\" }}\n",
            server.url("/")
        ),
    );
    desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    assert_eq!(server.accepted(), 0);
    let why = desk.json(["why", "till.db", "S-1", "--json"]);
    assert_eq!(
        (&why["reason_code"], &why["fault"]),
        (&json!("no_credentials"), &json!("route"))
    );
    let text = why["text"].as_str().unwrap();
    assert!(
        text.contains("OUTBOX_TEST_NOT_SET is not set") && text.contains("Set the variable"),
        "{text}"
    );
    let ran = desk.run(["check", "till.db", "--json"]);
    assert!(ran.out.contains("\"no_credentials\""), "{ran:?}");
}

#[test]
fn the_command_that_helps_is_told_for_the_message_that_holds_the_others() {
    let desk = Desk::new();
    for key in ["S-1", "S-2"] {
        let lane = [
            "enqueue",
            "till.db",
            "--channel=a b",
            "--ordering-key=o",
            "--key",
            key,
        ];
        desk.done(lane.into_iter().chain(["{}"]));
    }
    let server = Server::start(|_| respond(422, &[], ""));
    desk.run(["drain", "till.db", "--url", &server.url("/")]);
    let why = desk.json(["why", "till.db", "S-2", "--json"]);
    let text = why["text"].as_str().unwrap();
    assert!(
        text.contains("Message 1 of a b (key S-1) is a dead letter"),
        "{text}"
    );
    let retry = "outbox retry till.db id:1";
    let edit = "outbox edit till.db id:1 --file mended.json";
    let commands = why["commands"].as_array().unwrap();
    let told: Vec<_> = commands.iter().map(|it| it.as_str().unwrap()).collect();
    assert!(told[0].starts_with(edit), "{told:?}");
    assert!(
        told[1].starts_with(retry) && told[1].ends_with("# sends the same content"),
        "{told:?}"
    );
    let text = desk.done(["why", "till.db", "S-2"]);
    assert!(text.ends_with(&format!("\n  {}\n", told[1])), "{text}");
    let whole = desk.done(["why", "till.db"]);
    assert_eq!(whole.matches("outbox retry").count(), 1, "{whole}");
    desk.done(["pause", "till.db", "a b"]);
    let why = desk.json(["why", "till.db", "S-2", "--json"]);
    let resume = "outbox resume till.db 'a b'";
    assert_eq!(why["commands"], json!([resume]));
}

#[test]
fn an_answer_that_says_a_thing_twice_is_told_once() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let answer = r#"{"detail":"the price list is being computed"}"#;
    let server = Server::start(move |_| respond(500, &[], answer));
    desk.run(["drain", "till.db", "--url", &server.url("/")]);
    desk.put("mail", "M-1", "text");
    desk.sql()
        .execute_batch("UPDATE outbox SET status = 'dead', settled_at = 1, last_error = (SELECT reason FROM outbox_channel) WHERE channel = 'mail'")
        .unwrap();
    for args in [
        &["why", "till.db"][..],
        &["why", "till.db", "S-1"],
        &["check", "till.db"],
    ] {
        let out = desk.run(args).out;
        for line in out.lines() {
            let told = line.matches("the price list is being computed").count();
            assert!(told <= 1, "{line}");
        }
        assert!(out.contains("the price list is being computed"), "{out}");
    }
}

/// The drain has ended, and nothing in the file says that another one runs.
#[test]
fn a_probe_is_told_as_what_a_drain_does_that_runs() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let closed = Server::start(|_| ok()).url("/");
    desk.run(["drain", "till.db", "--url", &closed]);
    let probe = |ahead: i64| {
        let now = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap()
            .as_millis();
        let at = i64::try_from(now).unwrap() + ahead;
        desk.sql()
            .execute("UPDATE outbox_channel SET until = ?1", [at])
            .unwrap();
        desk.sql()
            .execute("UPDATE outbox SET next_attempt_at = min(next_attempt_at, ?1), last_attempt_at = ?1", [at])
            .unwrap();
        desk.sql()
            .execute("UPDATE outbox_attempt SET at = min(at, ?1 - 1)", [at])
            .unwrap();
        desk.done(["why", "till.db", "S-1"])
    };
    let text = probe(30_000);
    assert!(
        text.contains("; a drain that runs probes it again in 2"),
        "{text}"
    );
    let text = probe(-5_000);
    assert!(
        text.contains("; a drain that runs probes it now."),
        "{text}"
    );
    let text = probe(-70_000);
    assert!(
        text.contains("no drain has left a trace, for 1 min now"),
        "{text}"
    );
    let ran = desk.run(["status", "till.db"]);
    assert!(ran.out.contains(", a probe due for 1 min"), "{ran:?}");
}

#[test]
fn a_channel_without_a_route_is_told_by_those_who_know_the_settings() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.put("mail", "M-1", "text");
    desk.write(
        "outbox.toml",
        "[channel.sales]\nurl = \"http://localhost:9/\"\n",
    );
    let args = ["status", "till.db", "--config", "outbox.toml"];
    let ran = desk.run(args);
    assert!(
        ran.out.contains("mail: unrouted") && ran.out.contains("no section"),
        "{ran:?}"
    );
    assert!(!ran.out.contains("sales: unrouted"), "{ran:?}");
    let status = desk.json(args.into_iter().chain(["--json"]));
    let states = status["channels"].as_array().unwrap().iter();
    let states: Vec<_> = states.map(|it| it["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["unrouted", "ok"]);
    let ran = desk.run(["status", "till.db"]);
    assert!(
        ran.out
            .contains("With --config outbox.toml, status and why know"),
        "{ran:?}"
    );
}
