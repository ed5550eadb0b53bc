//! The service form: signals, reload, and what it says meanwhile.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::json;
use sqlite_outbox::rusqlite::Connection;

use super::{Desk, ended};
use crate::server::{Answer, Server, ok, respond};

fn settings(desk: &Desk, url: &str) {
    desk.write("outbox.toml", format!("[channel.sales]\nurl = \"{url}\"\n"));
}

const RUN: [&str; 5] = ["run", "till.db", "--config", "outbox.toml", "--json"];

/// Waits until a message stands there: the file itself is what tells.
fn becomes(desk: &Desk, key: &str, status: &str) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let row = desk.json(["show", "till.db", key, "--json"]);
        if row["status"] == status {
            return;
        }
        assert!(std::time::Instant::now() < until, "{key} is {row}");
        std::thread::yield_now();
    }
}

/// Waits until the sale with this key is sent; another channel may have the key too.
fn sent(desk: &Desk, key: &str) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let show = ["show", "till.db", key, "--channel=sales", "--json"];
    while desk.json(show)["status"] != "sent" {
        assert!(std::time::Instant::now() < until, "{key}");
        std::thread::yield_now();
    }
}

#[cfg(unix)]
#[test]
fn it_sends_what_comes_and_stops_when_asked_to() {
    for signal in ["-TERM", "-INT"] {
        let desk = Desk::new();
        let server = Server::start(|_| ok());
        settings(&desk, &server.url("/sales"));
        let mut service = desk.start(RUN);
        let started = service.event("started");
        assert!(started["at"].is_i64());
        desk.put("sales", "S-1", "text");
        server.wait();
        becomes(&desk, "S-1", "sent");
        service.signal(signal);
        service.event("stopping");
        service.event("stopped");
        let ran = service.end();
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    }
}

#[cfg(unix)]
#[test]
fn what_is_under_way_has_the_grace_period_and_is_then_given_back() {
    let desk = Desk::new();
    let server = Server::start(|_| Answer::Hang);
    settings(&desk, &server.url("/sales"));
    desk.put("sales", "S-1", "text");
    let mut service = desk.start(RUN.into_iter().chain(["--grace", "200ms"]));
    server.wait();
    service.signal("-TERM");
    service.event("stopped");
    assert_eq!(service.end().code, 0);
    let row = desk.json(["show", "till.db", "1", "--json"]);
    assert_eq!(
        (&row["status"], &row["attempts"]),
        (&json!("pending"), &json!(0))
    );
    // The call was under way for as long as the grace, and the receiver may have it.
    let call = desk.sql().query_row(
        "SELECT outcome, duration_ms FROM outbox_attempt",
        [],
        |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)),
    );
    let (outcome, lasted) = call.unwrap();
    assert_eq!(outcome, "interrupted");
    assert!(lasted >= 150, "{lasted} ms");
    let why = desk.done(["why", "till.db", "1"]);
    assert!(
        why.contains("broken off by a stop and may have arrived"),
        "{why}"
    );
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_it_at_once() {
    let desk = Desk::new();
    let server = Server::start(|_| Answer::Hang);
    settings(&desk, &server.url("/sales"));
    desk.put("sales", "S-1", "text");
    let mut service = desk.start(RUN.into_iter().chain(["--grace", "1h"]));
    server.wait();
    service.signal("-TERM");
    service.event("stopping");
    service.signal("-TERM");
    assert_eq!(service.end().code, -1, "it waited for its grace period");
}

#[cfg(unix)]
#[test]
fn a_hangup_puts_new_settings_in_force_and_loses_nothing_under_way() {
    let desk = Desk::new();
    let (free, held) = crossbeam_channel::bounded::<()>(0);
    let old = Server::start(move |_| {
        let _ = held.recv();
        ok()
    });
    let new = Server::start(|_| ok());
    settings(&desk, &old.url("/old"));
    desk.put("sales", "S-1", "text");
    let mut service = desk.start(RUN);
    old.wait();
    settings(&desk, &new.url("/new"));
    service.signal("-HUP");
    service.event("reloaded");
    desk.put("sales", "S-2", "text");
    new.wait();
    becomes(&desk, "S-2", "sent");
    drop(free);
    becomes(&desk, "S-1", "sent");
    service.signal("-TERM");
    service.event("stopped");
    assert_eq!(service.end().code, 0);
    assert_eq!((old.seen().len(), new.seen().len()), (1, 1));
}

#[cfg(unix)]
#[test]
fn a_broken_settings_file_keeps_the_former_ones_and_is_told() {
    let desk = Desk::new();
    let server = Server::start(|_| ok());
    settings(&desk, &server.url("/sales"));
    let mut service = desk.start(["run", "till.db", "--config", "outbox.toml"]);
    service.err("started");
    desk.write(
        "outbox.toml",
        "[channel.sales]\nurll = \"http://localhost:9/\"\n",
    );
    service.signal("-HUP");
    let line = service.err("former settings stay in force");
    assert!(
        line.contains("line 2") && line.contains("did you mean url"),
        "{line}"
    );
    desk.put("sales", "S-1", "text");
    server.wait();
    becomes(&desk, "S-1", "sent");
    service.signal("-TERM");
    service.err("stopped");
    assert_eq!(service.end().code, 0);
}

/// A pipe may never answer, and whoever reads it hears no signal.
#[cfg(unix)]
#[test]
fn settings_that_became_a_pipe_are_not_read_and_a_secret_that_is_one_is_told() {
    let desk = Desk::new();
    settings(&desk, "http://127.0.0.1:9/");
    let mut service = desk.start(["run", "till.db", "--config", "outbox.toml"]);
    service.err("started");
    let pipe = desk.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    std::fs::remove_file(desk.path("outbox.toml")).unwrap();
    std::os::unix::fs::symlink(&pipe, desk.path("outbox.toml")).unwrap();
    service.signal("-HUP");
    let line = service.err("former settings stay in force");
    assert!(line.contains("are no file"), "{line}");
    service.signal("-TERM");
    service.err("stopped");
    assert_eq!(service.end().code, 0);

    desk.put("sales", "S-1", "text");
    desk.write(
        "secret.toml",
        "[channel.sales]\nurl = \"http://127.0.0.1:9/\"\nbearer = { file = \"pipe\" }\n",
    );
    for command in ["drain", "check"] {
        let ran = desk.run([command, "till.db", "--config", "secret.toml"]);
        assert!(
            ran.out.contains("pipe cannot be read: it is no file"),
            "{ran:?}"
        );
    }
}

#[cfg(unix)]
#[test]
fn troubles_are_lines() {
    let desk = Desk::new();
    let server = Server::start(|seen| match seen.number {
        1 => respond(422, &[], r#"{"detail":"no such article \u001b[2J4711"}"#),
        2 => respond(401, &[], ""),
        _ => ok(),
    });
    settings(&desk, &server.url("/sales"));
    desk.put("whatsapp", "W-1", "text");
    let mut service = desk.start(["run", "till.db", "--config", "outbox.toml"]);
    let line = service.err("no section of the settings serves it");
    assert!(line.contains("whatsapp"), "{line}");
    desk.put("sales", "S-1", "text");
    let line = service.err("message 2 is a dead letter");
    assert!(
        line.contains("no such article") && !line.contains('\u{1b}'),
        "{line}"
    );
    desk.put("sales", "S-2", "text");
    service.err("sales: unauthorised");
    service.err("sales: messages flow");
    service.signal("-TERM");
    service.err("stopped");
    assert_eq!(service.end().code, 0);
}

#[cfg(unix)]
#[test]
fn a_channel_without_a_route_is_named_once_whenever_it_appears() {
    let desk = Desk::new();
    let server = Server::start(|_| ok());
    settings(&desk, &server.url("/sales"));
    desk.put("early", "E-1", "text");
    let mut service = desk.start(RUN);
    assert_eq!(service.event("unrouted")["channel"], "early");
    desk.put("late", "L-1", "text");
    assert_eq!(service.event("unrouted")["channel"], "late");
    for key in ["L-2", "L-3"] {
        desk.put("late", key, "text");
        desk.put("sales", key, "text");
        sent(&desk, key);
    }
    service.signal("-HUP");
    let again = [service.event("unrouted"), service.event("unrouted")];
    assert_eq!(
        again.map(|it| it["channel"].clone()),
        [json!("early"), json!("late")],
        "new settings may serve them, so they are told anew"
    );
    service.signal("-TERM");
    let ran = service.end();
    assert!(!ran.out.contains("unrouted"), "{ran:?}");
}

#[cfg(unix)]
#[test]
fn quiet_says_only_errors_and_verbose_says_each_attempt() {
    let desk = Desk::new();
    let server = Server::start(|seen| match seen.number {
        1 => respond(503, &[("Retry-After", "1")], ""),
        _ => ok(),
    });
    settings(&desk, &server.url("/sales"));
    desk.put("sales", "S-1", "text");
    let run = ["run", "till.db", "--config", "outbox.toml"];
    let mut service = desk.start(run.into_iter().chain(["-v"]));
    let line = service.err("message 1 failed");
    assert!(line.contains("info: "), "{line}");
    becomes(&desk, "S-1", "sent");
    service.signal("-TERM");
    assert_eq!(service.end().code, 0);
    let service = desk.start(run.into_iter().chain(["-q"]));
    desk.put("sales", "S-2", "text");
    becomes(&desk, "S-2", "sent");
    service.signal("-TERM");
    let ran = service.end();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
}

/// A log collector that hangs: what fills its pipe must stop neither the sending nor the stopping.
#[cfg(unix)]
#[test]
fn a_reader_who_does_not_read_stops_nothing() {
    let server = Server::start(|_| respond(422, &[], &"x".repeat(900)));
    for loudness in [&["--json"][..], &[], &["-v"], &["-vv"]] {
        let desk = unread_desk(&server);
        let run = ["run", "till.db", "--config", "outbox.toml"];
        let mut child = desk.command(run.iter().chain(loudness)).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while desk.json(["status", "till.db", "--json"])["total"]["unsent"] != 0 {
            assert!(Instant::now() < until, "{loudness:?}: it sends no more");
        }
        let kill = Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        assert_eq!(end_unread(&mut child), Some(0), "{loudness:?}");
        let said = ended(child);
        let (full, other) = match loudness {
            ["--json"] => (said.out, said.err),
            _ => (said.err, said.out),
        };
        assert!(full.len() > 60_000, "{loudness:?}: {}", full.len());
        assert!(other.is_empty(), "{loudness:?}: {other}");
    }
}

#[cfg(unix)]
#[test]
fn a_drain_whose_log_nobody_reads_ends_all_the_same() {
    let server = Server::start(|_| respond(422, &[], &"x".repeat(900)));
    let desk = unread_desk(&server);
    let drain = ["drain", "till.db", "--config", "outbox.toml", "-vv"];
    let mut child = desk.command(drain).spawn().unwrap();
    assert_eq!(end_unread(&mut child), Some(4));
    let said = ended(child);
    assert!(said.err.len() > 60_000 && said.out.contains("dead letter"));
}

/// Each message becomes a dead letter, and so a line; together they are more than a pipe holds.
#[cfg(unix)]
fn unread_desk(server: &Server) -> Desk {
    let desk = Desk::new();
    let url = server.url("/sales");
    let settings = format!("[channel.sales]\nurl = \"{url}\"\nbrake = 10000\n");
    desk.write("outbox.toml", settings);
    let many = "\"text\"\n".repeat(300);
    desk.feed(
        &many,
        ["enqueue", "till.db", "--channel=sales", "--lines=-"],
    );
    desk
}

/// Waits for the end of a process whose pipes nobody reads.
#[cfg(unix)]
fn end_unread(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_used_any_more_is_told_and_ends_in_an_error() {
    let desk = Desk::new();
    let server = Server::start(|_| ok());
    settings(&desk, &server.url("/sales"));
    let mut service = desk.start(RUN);
    service.event("started");
    let conn: Connection = desk.sql();
    conn.execute_batch(
        "INSERT INTO outbox (channel, payload) VALUES ('sales', 'x');
         ALTER TABLE outbox_channel RENAME TO hidden",
    )
    .unwrap();
    let line = service.event("store_failed");
    assert!(
        line["error"].as_str().unwrap().contains("outbox_channel"),
        "{line}"
    );
    conn.execute_batch("ALTER TABLE hidden RENAME TO outbox_channel")
        .unwrap();
    service.event("store_works");
    service.signal("-TERM");
    service.event("stopped");
    assert_eq!(service.end().code, 0);
}

#[test]
fn settings_and_file_must_be_good_before_it_starts() {
    let desk = Desk::new();
    desk.run(RUN).failed(1, "cannot be read");
    settings(&desk, "ftp://erp.example/");
    desk.run(RUN).failed(1, "line 2");
    settings(&desk, "http://localhost:9/");
    desk.run(["run", "no.db", "--config", "outbox.toml"])
        .failed(1, "there is no file");
    assert_eq!(desk.run(["run", "till.db"]).code, 2);
}

#[test]
fn a_drain_says_what_it_is_asked_to_say_and_no_secret() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.write("token", "t0ken-of-the-shop");
    let server = Server::start(|_| respond(503, &[], "busy"));
    desk.write(
        "outbox.toml",
        format!(
            "[channel.sales]\nurl = \"{}\"\nbearer = {{ file = \"token\" }}\n",
            server.url("/")
        ),
    );
    let drain = ["drain", "till.db", "--config", "outbox.toml"];
    let ran = desk.run(drain.into_iter().chain(["-vvvv"]));
    assert_eq!(ran.code, 3);
    assert!(ran.err.contains("warning: sales is offline"), "{ran:?}");
    assert!(ran.err.contains("info: sales: message 1 failed"), "{ran:?}");
    assert!(
        !ran.err.contains("t0ken") && !ran.out.contains("t0ken"),
        "{ran:?}"
    );
    let both = ["drain", "till.db", "--url=http://localhost:9/", "-v", "-q"];
    assert_eq!(desk.run(both).code, 2);
}

#[test]
fn it_tells_of_a_pause_and_of_its_end() {
    let desk = Desk::new();
    let server = Server::start(|_| ok());
    settings(&desk, &server.url("/sales"));
    desk.put("sales", "S-1", "text");
    let mut service = desk.start(RUN);
    service.event("started");
    sent(&desk, "S-1");
    desk.done(["pause", "till.db", "sales", "--reason", "stocktaking"]);
    let paused = service.event("paused");
    assert_eq!(
        (&paused["channel"], &paused["reason"]),
        (&json!("sales"), &json!("stocktaking"))
    );
    desk.done(["resume", "till.db", "sales"]);
    assert_eq!(service.event("resumed")["channel"], "sales");
}

/// Whoever starts it again after a holiday sees at once what a person stopped before it.
#[cfg(unix)]
#[test]
fn channels_that_stand_still_already_are_named_at_the_start() {
    let desk = Desk::new();
    settings(&desk, "http://127.0.0.1:9/");
    desk.put("sales", "S-1", "text");
    desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    desk.put("stock", "T-1", "text");
    desk.done(["pause", "till.db", "stock", "--reason", "stocktaking"]);
    let mut service = desk.start(RUN);
    service.event("started");
    let offline = service.event("channel");
    assert_eq!(
        (&offline["channel"], &offline["state"]),
        (&json!("sales"), &json!("offline"))
    );
    let paused = service.event("paused");
    assert_eq!(
        (&paused["channel"], &paused["reason"]),
        (&json!("stock"), &json!("stocktaking"))
    );
    service.signal("-TERM");
    assert_eq!(service.end().code, 0);
}

/// SQLite goes on with a removed file, and what the till puts into its new one is never seen.
#[cfg(unix)]
#[test]
fn it_ends_when_its_file_is_gone_or_another_one() {
    let desk = Desk::new();
    settings(&desk, "http://127.0.0.1:9/");
    for other in [false, true] {
        let mut service = desk.start(RUN);
        service.event("started");
        std::fs::rename(desk.path("till.db"), desk.path("old.db")).unwrap();
        if other {
            std::fs::copy(desk.path("old.db"), desk.path("till.db")).unwrap();
        }
        let ran = service.end();
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.err.contains("was removed or replaced"), "{ran:?}");
        std::fs::rename(desk.path("old.db"), desk.path("till.db")).unwrap();
    }
}
