//! What is printed to be copied: it does what is meant, names the file as it was typed, and is
//! refused where a person has to fill something in.

use super::Desk;
use super::text::words;
use crate::server::{Server, ok};

fn enqueue(desk: &Desk, sql: &str) {
    desk.sql().execute_batch(sql).unwrap();
}

/// The command among the lines that begins so, as a shell reads it.
fn command(text: &str, begins: &str) -> Vec<String> {
    let mut lines = text.lines().map(str::trim);
    let line = lines.find(|it| it.starts_with(begins));
    words(line.unwrap_or_else(|| panic!("{begins:?} is not in {text}")))
}

/// `--header 'NAME: VALUE'` sent the sale with that very header.
#[test]
fn headers_that_stand_in_a_row_in_another_form_are_filled_in() {
    let desk = Desk::new();
    enqueue(
        &desk,
        "INSERT INTO outbox (channel, payload, headers) VALUES ('sales', '{}', 'X-Store: 17')",
    );
    let server = Server::start(|_| ok());
    let drain = ["drain", "till.db", "--url", &server.url("/")];
    assert_eq!(desk.run(drain).code, 4);
    let why = desk.done(["why", "till.db"]);
    assert!(!why.contains("expected value at line"), "{why}");
    desk.done(command(&why, "outbox edit"));
    assert_eq!(desk.run(drain).code, 0);
    assert_eq!(server.seen()[0].header("x-store"), Some("17"));
}

/// `--enqueue-as KEY` sent it under the key KEY.
#[test]
fn a_conflict_is_offered_a_key_that_is_free() {
    let desk = Desk::new();
    enqueue(
        &desk,
        "INSERT INTO outbox (channel, dedupe_key, payload)
         VALUES ('sales', 'S-1', '1'), ('sales', 'S-1-2', '1'), ('stock', 'S-1-3', '1');
         INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', '2')
           ON CONFLICT (channel, dedupe_key) DO NOTHING;",
    );
    let list = desk.done(["conflicts", "till.db"]);
    let shown = desk.done(command(&list, "outbox conflicts"));
    let done = desk.done(command(&shown, "outbox conflicts till.db 1 --enqueue-as"));
    assert!(done.contains("key S-1-3"), "{done}");
}

#[test]
fn settings_are_named_where_they_are_known_and_no_command_has_a_gap() {
    let desk = Desk::new();
    enqueue(
        &desk,
        "INSERT INTO outbox (channel, dedupe_key, payload, created_at)
         VALUES ('sales', 'S-1', '1', strftime('%s', 'now', '-2 hours') * 1000)",
    );
    let why = desk.done(["why", "till.db"]);
    assert!(
        !why.contains("outbox run") && !why.contains("FILE"),
        "{why}"
    );
    desk.write(
        "outbox.toml",
        "[channel.sales]\nurl = \"http://127.0.0.1:9/\"\n",
    );
    let run = "outbox run till.db --config outbox.toml";
    for args in [&["why", "till.db"][..], &["why", "till.db", "S-1"]] {
        let why = desk.done(args);
        assert!(why.lines().any(|it| it.trim() == run), "{why}");
    }
    let status = desk.done(["status", "till.db"]);
    command(&status, "outbox why till.db --config outbox.toml");
}

#[test]
fn the_file_is_named_as_it_was_typed() {
    let desk = Desk::new();
    enqueue(
        &desk,
        "INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', '1');
         INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', '2')
           ON CONFLICT (channel, dedupe_key) DO NOTHING;",
    );
    for args in [
        &["why", "till.db"][..],
        &["why", "till.db", "S-1"],
        &["show", "till.db", "S-1"],
        &["check", "till.db"],
        &["conflicts", "till.db", "1"],
    ] {
        let text = desk.run(args).out;
        assert!(text.contains("outbox conflicts till.db"), "{text}");
        assert!(!text.contains("/till.db"), "{text}");
    }
    let missing = desk.run(["show", "till.db", "S-9"]);
    missing.failed(1, "`outbox list till.db` shows those that are there");
}

#[test]
fn a_slip_in_the_order_or_the_name_of_a_command_is_told_with_what_was_meant() {
    let desk = Desk::new();
    desk.put("sales", "S 1", "text");
    desk.run(["why", "S 1", "till.db"])
        .failed(1, "the file comes first: `outbox why till.db 'S 1'`");
    desk.run(["retry", "S 1", "none.db"])
        .failed(1, "there is no file");
    for (words, told) in [
        (&["wyh", "till.db"][..], "tip: why may be meant"),
        (&["till.db"], "before the file: outbox status till.db"),
    ] {
        let slip = desk.run(words);
        assert!(slip.code == 2 && slip.err.contains(told), "{slip:?}");
    }
    let far = desk.run(["frobnicate"]);
    assert!(far.code == 2 && !far.err.contains("meant"), "{far:?}");
    // Either way of writing a span.
    for span in ["1h30m", "2 days", "10min"] {
        desk.done(["edit", "till.db", "S 1", "--available", span, "--dry-run"]);
    }
}

#[test]
fn help_has_the_commands_by_what_they_are_for_and_the_units_of_a_span() {
    let desk = Desk::new();
    let help = desk.done(["--help"]);
    let look = help.find("\nLook:\n  status ").unwrap();
    let decide = help.find("\nDecide:\n  retry ").unwrap();
    assert!(look < decide, "{help}");
    let drain = desk.done(["drain", "--help"]);
    let drain = drain.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        drain.contains("D is a span like 30s, 10m, 1h30m or 7d"),
        "{drain}"
    );
}
