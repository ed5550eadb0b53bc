//! The commands that say what is wrong say the same, and say it first.

use std::time::Duration;

use super::Desk;
use crate::server::{Server, ok, respond};

const HOUR: i64 = 3_600_000;

pub(super) fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.unwrap_or(Duration::ZERO).as_millis()).unwrap()
}

/// In one line, as a terminal may break it anywhere.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The channel's next probe was written for the same moment as the message's own next attempt, hours
/// ahead, as no probe of ours is: the message's moment counts, for all who tell of it.
#[test]
fn a_message_that_is_not_due_is_not_said_to_be_probed_now() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql()
        .execute_batch(&format!(
            "INSERT INTO outbox_channel (channel, state, since, until, reason_code, reason)
             VALUES ('sales', 'offline', {since}, {due}, 'refused', 'erp.example refuses the connection');
             UPDATE outbox SET attempts = 1, last_attempt_at = {since}, next_attempt_at = {due},
               last_error = 'erp.example refuses the connection';
             INSERT INTO outbox_attempt (message, at, outcome, charged) VALUES (1, {since}, 'refused', 1);",
            since = now() - 2 * HOUR,
            due = now() + 3 * HOUR + 60_000,
        ))
        .unwrap();
    let edit = " id:1 --available now";
    for args in [&["why", "till.db"][..], &["why", "till.db", "S-1"]] {
        let why = flat(&desk.done(args));
        assert!(!why.contains("probes it now"), "{why}");
        assert!(why.contains("its next attempt is in 3 h"), "{why}");
        assert!(why.contains("`drain --now`") && why.contains(edit), "{why}");
    }
    let status = flat(&desk.done(["status", "till.db"]));
    assert!(
        status.contains("waits for message 1, due in 3 h") && status.contains(edit),
        "{status}"
    );
    let check = desk.run(["check", "till.db"]);
    assert_eq!(check.code, 4, "a person can send it before: {check:?}");
    assert!(check.out.contains(edit), "{check:?}");
    let server = Server::start(|_| ok());
    let drain = ["drain", "till.db", "--url", &server.url("/")];
    let ran = desk.run(drain);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(
        flat(&ran.out).contains("not tried again for 3 h"),
        "{ran:?}"
    );
    assert_eq!(desk.run(drain.into_iter().chain(["--now"])).code, 0);
}

/// The receiver asked for a minute, and the clock ran two years ahead.
#[test]
fn a_pause_that_a_clock_ahead_has_stamped_is_not_said_to_last_for_years() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.sql()
        .execute_batch(&format!(
            "INSERT INTO outbox_channel (channel, state, since, until, reason_code, reason)
             VALUES ('sales', 'holding', {then}, {then} + 60000, 'http_503', 'come back later');
             UPDATE outbox SET attempts = 1, last_attempt_at = {then}, next_attempt_at = {then} + 60000,
               last_error = 'come back later';",
            then = now() + 700 * 24 * HOUR,
        ))
        .unwrap();
    for args in [
        &["why", "till.db"][..],
        &["status", "till.db"],
        &["list", "till.db"],
    ] {
        let told = flat(&desk.done(args));
        assert!(
            !told.contains("days") && !told.contains("for 0 s"),
            "{told}"
        );
        assert!(told.contains("come back later"), "{told}");
    }
    let why = flat(&desk.done(["why", "till.db"]));
    assert!(
        why.contains("since a time when the clock was wrong")
            && why.contains("a drain that begins tries it again after 1 min"),
        "{why}"
    );
    let show = flat(&desk.done(["show", "till.db", "S-1"]));
    assert!(show.contains("by a clock that was wrong"), "{show}");
    let resume = desk.done(["resume", "till.db", "sales"]);
    assert!(!resume.contains("nothing is tried"), "{resume}");
    let server = Server::start(|_| ok());
    let ran = desk.run(["drain", "till.db", "--url", &server.url("/")]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn the_end_of_a_hold_stands_in_the_list_and_a_spoiled_edit_is_noted() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "{}");
    let busy = Server::start(|_| respond(503, &[("Retry-After", "600")], "come back later"));
    let ran = desk.run(["drain", "till.db", "--url", &busy.url("/")]);
    for told in [ran.out, desk.done(["list", "till.db"])] {
        assert!(told.contains("; goes on in "), "{told}");
    }
    desk.done(["enqueue", "till.db", "--channel=stock", "--key=B-1", "{}"]);
    let ran = desk.run(["edit", "till.db", "B-1", "{\"x\":"]);
    assert!(ran.err.contains("the payload is not JSON"), "{ran:?}");
    let typed = ["edit", "till.db", "B-1", "x", "--content-type=text/plain"];
    assert!(!desk.run(typed).err.contains("not JSON"));
}

/// `check` and `status --attention` agree on channels.
#[test]
fn a_channel_that_only_a_person_sets_going_is_told_by_the_exit_code() {
    let desk = Desk::new();
    desk.put("sales ", "S-1", "text");
    let show = desk.done(["show", "till.db", "S-1"]);
    assert!(show.contains("\"sales \""), "{show}");
    desk.write(
        "outbox.toml",
        "[channel.stock]\nurl = \"http://127.0.0.1:9/\"\n",
    );
    let attention = ["status", "till.db", "--attention"];
    assert_eq!(desk.run(attention).code, 0);
    let routed = [&attention[..], &["--config", "outbox.toml"]].concat();
    assert_eq!(desk.run(routed).code, 4);
    desk.done(["pause", "till.db", "sales "]);
    assert_eq!(desk.run(attention).code, 0, "he knows");
    let days = now() - 20 * 86_400_000;
    desk.sql()
        .execute("UPDATE outbox_channel SET paused_at = ?1", [days])
        .unwrap();
    assert_eq!(desk.run(["check", "till.db"]).code, 4);
    assert_eq!(desk.run(attention).code, 4);
}

/// Nothing is unsent, and yet something has not arrived.
#[test]
fn a_lost_message_does_not_pass_as_nothing_waiting() {
    let desk = Desk::new();
    let server = Server::start(|_| ok());
    desk.sql()
        .execute_batch(&format!(
            "INSERT INTO outbox (channel, dedupe_key, payload, expires_at)
             VALUES ('sales', 'S-1', '1', {})",
            now() / 1_000 + 86_400
        ))
        .unwrap();
    let drain = ["drain", "till.db", "--url", &server.url("/")];
    let lost = "message 1 expired at once";
    for _ in 0..2 {
        let ran = desk.run(drain);
        assert!(ran.code == 0 && ran.out.contains(lost), "{ran:?}");
    }
    let status = desk.done(["status", "till.db"]);
    assert!(
        status.contains(lost) && status.contains("outbox why till.db"),
        "{status}"
    );
    let list = desk.done(["list", "till.db"]);
    assert!(list.contains("its time was over"), "{list}");
    let json = desk.json(["status", "till.db", "--json"]);
    assert_eq!(json["findings"][0]["code"], "expired_unit");
    assert_eq!(desk.run(["status", "till.db", "--attention"]).code, 4);

    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let portal = Server::start(|_| respond(200, &[], "<!doctype html><title>Log in"));
    let ran = desk.run(["drain", "till.db", "--url", &portal.url("/")]);
    assert!(ran.out.contains("a web page answered"), "{ran:?}");
    let status = desk.done(["status", "till.db"]);
    assert!(status.contains("a web page answered"), "{status}");
}

#[test]
fn a_held_write_lock_is_what_a_message_waits_for() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let conn = desk.sql();
    let hour_ago = "UPDATE outbox SET created_at = created_at - 7200000; BEGIN IMMEDIATE";
    conn.execute_batch(hour_ago).unwrap();
    for args in [
        &["why", "till.db"][..],
        &["why", "till.db", "S-1"],
        &["status", "till.db"],
        &["check", "till.db"],
    ] {
        let told = flat(&desk.run(args).out);
        assert!(told.contains("the write lock was held"), "{args:?} {told}");
        assert!(
            !told.contains("outbox run") && !told.contains("nobody sends them"),
            "{args:?} {told}"
        );
    }
    let why = desk.json(["why", "till.db", "S-1", "--json"]);
    assert_eq!(
        (&why["reason_code"], &why["fault"], &why["obstacle"]["code"]),
        (&"no_drain".into(), &"machine".into(), &"write_lock".into())
    );
    drop(conn);
    let why = desk.done(["why", "till.db"]);
    assert!(!why.contains("write lock"), "{why}");
}

/// Without its triggers a lane has no head: none stands before the message that waits.
#[test]
fn parts_that_are_missing_are_told_by_everyone_who_looks() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "DROP TRIGGER outbox_status_changed; DROP TRIGGER outbox_deleted;
             INSERT INTO outbox (channel, ordering_key, payload) VALUES ('sales', 'k', '1'), ('sales', 'k', '2');
             UPDATE outbox SET created_at = created_at - 7200000;
             DELETE FROM outbox WHERE id = 1;",
        )
        .unwrap();
    for args in [
        &["why", "till.db"][..],
        &["status", "till.db"],
        &["check", "till.db"],
    ] {
        let told = desk.run(args).out;
        assert!(
            told.contains("outbox_status_changed") && told.contains("outbox upgrade "),
            "{told}"
        );
    }
    let list = desk.done(["list", "till.db"]);
    assert!(!list.contains("behind"), "{list}");
    let server = Server::start(|_| ok());
    let ran = desk.run(["drain", "till.db", "--url", &server.url("/")]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("outbox_status_changed"), "{ran:?}");
    desk.run(["upgrade", "till.db"]);
    let status = desk.done(["status", "till.db"]);
    assert!(!status.contains("missing"), "{status}");
}

#[test]
fn a_list_says_of_each_message_what_why_says() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.put("mail", "M-1", "text");
    desk.put("stock", "B-1", "text");
    desk.sql()
        .execute_batch(&format!(
            "UPDATE outbox SET status = 'sending', claims = 1, next_attempt_at = {lease} WHERE channel = 'mail';
             INSERT INTO outbox_channel (channel, state, since, until, reason_code, reason)
             VALUES ('stock', 'offline', {since}, {since} + 30000, 'refused', 'erp.example refuses');",
            lease = now() + 25_000,
            since = now() - 5_000,
        ))
        .unwrap();
    desk.done(["pause", "till.db", "sales", "--reason", "stocktaking"]);
    let list = desk.done(["list", "till.db"]);
    for (key, says) in [
        ("S-1", ": stocktaking"),
        ("M-1", "being sent; its lease ends in "),
        ("B-1", "erp.example refuses"),
    ] {
        let line = list.lines().find(|it| it.contains(key)).unwrap();
        assert!(line.contains(says), "{line}");
    }
    let server = Server::start(|_| ok());
    let ran = desk.run([
        "drain",
        "till.db",
        "--deadline=1s",
        "--url",
        &server.url("/"),
    ]);
    assert!(ran.out.contains(": stocktaking"), "{ran:?}");
}

#[test]
fn a_channel_that_may_be_mistyped_is_told_when_it_is_first_used() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let put = |channel: &str| desk.run(["enqueue", "till.db", "--channel", channel, "{}"]);
    let ran = put("saels");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("there is sales"), "{ran:?}");
    assert_eq!(put("saels").err, "", "once");
    assert_eq!(put("whatsapp").err, "");
}
