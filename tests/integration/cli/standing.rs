//! What stands still is told with what is true of it, and with the command that moves it.

use std::time::Duration;

use super::Desk;
use crate::server::{Server, respond};

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.unwrap_or(Duration::ZERO).as_millis()).unwrap()
}

/// The channel is offline and its probe overdue, but its only message waits for hours by itself.
#[test]
fn a_probe_that_waits_for_a_message_is_told_with_the_message() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql()
        .execute_batch(&format!(
            "INSERT INTO outbox_channel (channel, state, since, until, reason_code, reason, failures)
             VALUES ('sales', 'offline', {since}, {until}, 'http_503', 'down for maintenance', 14)
             ON CONFLICT (channel) DO UPDATE SET state = 'offline', since = {since}, until = {until},
               reason_code = 'http_503', reason = 'down for maintenance';
             UPDATE outbox SET attempts = 9, last_attempt_at = {since}, last_error = 'down for maintenance',
               next_attempt_at = {due};
             INSERT INTO outbox_attempt (message, at, outcome, charged) VALUES (1, {since}, 'http_503', 9);",
            since = now() - 7_200_000,
            until = now() - 600_000,
            due = now() + 4 * 3_600_000 + 60_000,
        ))
        .unwrap();
    let edit = " id:1 --available now";
    let status = desk.done(["status", "till.db"]);
    assert!(
        status.contains("the next probe waits for message 1, due in 4 h"),
        "{status}"
    );
    assert!(
        status.contains(edit) && !status.contains("a probe due"),
        "{status}"
    );
    let check = desk.run(["check", "till.db"]).out;
    assert!(
        check.contains("the next probe waits for message 1, due in 4 h"),
        "{check}"
    );
    assert!(
        check.contains(edit) && !check.contains("again and again"),
        "{check}"
    );
    let why = desk.done(["why", "till.db"]);
    assert!(
        why.contains("its next attempt is in 4 h") && why.contains(edit),
        "{why}"
    );
    let resume = desk.done(["resume", "till.db", "sales"]);
    assert!(
        resume.contains("nothing is tried before message 1 is due, in 4 h")
            && resume.contains(edit),
        "{resume}"
    );
    desk.done(["edit", "till.db", "id:1", "--available", "now"]);
    let resume = desk.done(["resume", "till.db", "sales"]);
    assert!(!resume.contains("nothing is tried"), "{resume}");
}

/// No drain believes a probe in ten years, and no command says so.
#[test]
fn an_impossible_moment_of_a_channel_is_told_alike() {
    for state in ["offline", "holding"] {
        let desk = Desk::new();
        desk.put("sales", "S-1", "text");
        let (since, until) = (now() - 7_200_000, now() + 10 * 365 * 86_400_000);
        desk.sql()
            .execute_batch(&format!(
                "INSERT INTO outbox_channel (channel, state, since, until, reason_code, reason)
                 VALUES ('sales', '{state}', {since}, {until}, 'http_503', 'down')"
            ))
            .unwrap();
        let why = desk.done(["why", "till.db", "S-1"]);
        assert!(why.contains("a drain that runs probes it now"), "{why}");
        let status = desk.done(["status", "till.db"]);
        assert!(
            status.contains(" now") && !status.contains(" days"),
            "{status}"
        );
    }
}

/// Expired the moment it was put in: nobody had been told.
#[test]
fn a_moment_in_seconds_that_dropped_messages_is_told() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(&format!(
            "INSERT INTO outbox (channel, dedupe_key, payload, expires_at)
             VALUES ('sales', 'S-1', '1', {0}), ('sales', 'S-2', '2', {0})",
            now() / 1_000 + 86_400
        ))
        .unwrap();
    let server = Server::start(|_| respond(200, &[], "{}"));
    desk.run(["drain", "till.db", "--url", &server.url("/")]);
    for command in ["why", "check"] {
        let text = desk.run([command, "till.db"]).out;
        assert!(
            text.contains(
                "sales: 2 messages expired at once, as the moment looks like another unit"
            ),
            "{text}"
        );
        assert!(text.contains("outbox retry "), "{text}");
    }
}

/// Sent, as far as anybody could see.
#[test]
fn messages_that_a_web_page_took_are_told_of_the_whole_file() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.put("mail", "M-1", "text");
    let portal = Server::start(|_| respond(200, &[], "<!doctype html><title>Log in"));
    desk.run(["drain", "till.db", "--url", &portal.url("/")]);
    for command in ["why", "check"] {
        let ran = desk.run([command, "till.db"]);
        assert!(
            ran.out
                .contains("sales: message 1 counted as sent, and a web page answered"),
            "{ran:?}"
        );
    }
    assert_eq!(desk.run(["check", "till.db"]).code, 4);
}

/// A process was killed while it held the message.
#[test]
fn a_drain_says_which_claim_it_may_wait_for() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql()
        .execute_batch(&format!(
            "UPDATE outbox SET status = 'sending', claims = 1, next_attempt_at = {}",
            now() + 540_000
        ))
        .unwrap();
    let ran = desk.run([
        "drain",
        "till.db",
        "--url=http://127.0.0.1:9/",
        "--deadline=100ms",
    ]);
    assert!(
        ran.err
            .contains("message 1 was claimed by another process, which sends it or is gone"),
        "{ran:?}"
    );
    let why = desk.done(["why", "till.db", "id:1"]);
    assert!(
        why.contains("where the process that claimed it is gone"),
        "{why}"
    );
}

#[test]
fn a_message_without_the_recipient_of_its_url_is_told_to_be_given_one() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.write(
        "outbox.toml",
        "[channel.sales]\nurl = \"http://127.0.0.1:9/{recipient}\"\n",
    );
    desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    for which in [&["why", "till.db"][..], &["why", "till.db", "id:1"]] {
        let text = desk.done(which.iter().copied());
        assert!(text.contains("id:1 --recipient   # "), "{text}");
    }
}

#[test]
fn a_pause_that_lasts_while_messages_wait_needs_a_person() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.done(["pause", "till.db", "sales"]);
    assert_eq!(desk.run(["check", "till.db"]).code, 0);
    let long = format!(
        "UPDATE outbox_channel SET paused_at = {}",
        now() - 20 * 86_400_000
    );
    desk.sql().execute_batch(&long).unwrap();
    let ran = desk.run(["check", "till.db", "-v"]);
    assert_eq!(ran.code, 4);
    assert!(ran.out.contains("only when a person resumes it"), "{ran:?}");
    let last = ran.out.lines().filter(|it| it.starts_with("note"));
    let last: Vec<_> = last.collect();
    assert!(last.last().unwrap().contains("for the record"), "{ran:?}");
    let brief = desk.run(["check", "till.db"]);
    assert!(!brief.out.contains("for the record"), "{brief:?}");
}

#[test]
fn a_conflict_ends_with_what_can_be_done_about_it() {
    let desk = Desk::new();
    desk.contested();
    let text = desk.done(["conflicts", "till.db", "1"]);
    for choice in ["1 --enqueue-as S-1-2   #", "1 --replace", "1 --drop"] {
        assert!(text.contains(choice), "{text}");
    }
    let server = Server::start(|_| respond(200, &[], "{}"));
    desk.run(["drain", "till.db", "--url", &server.url("/")]);
    let text = desk.done(["conflicts", "till.db", "1"]);
    assert!(
        !text.contains("--replace") && text.contains("--drop"),
        "{text}"
    );
}
