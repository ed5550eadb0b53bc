//! Text that is none, or that cannot be seen: what becomes of it, how it is told, what mends it.

use serde_json::Value;

use super::Desk;
use crate::fixture::{column, one};
use crate::server::{Server, ok};

fn drain(desk: &Desk, server: &Server) -> super::Ran {
    let url = server.url("/");
    desk.run(["drain", "till.db", "--workers=1", "--url", &url])
}

/// A message of which one column is these bytes, whatever they are.
fn put(desk: &Desk, column: &str, value: &str) {
    let named = [
        ("channel", "'sales'"),
        ("dedupe_key", "'S-1'"),
        ("message_id", "'m-1'"),
        ("content_type", "'text/plain'"),
        ("payload", "'x'"),
    ];
    let mut columns: Vec<_> = named.into_iter().filter(|it| it.0 != column).collect();
    columns.push((column, value));
    let (names, values): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let (names, values) = (names.join(", "), values.join(", "));
    let sql = format!("INSERT INTO outbox ({names}) VALUES ({values})");
    desk.sql().execute_batch(&sql).unwrap();
}

/// The words of a command that `why` printed, as a shell reads them.
pub(super) fn words(command: &str) -> Vec<String> {
    let command = command.split("   #").next().unwrap();
    let mut words = vec![String::new()];
    let mut quoted = false;
    for it in command.trim().chars() {
        match it {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            it => words.last_mut().unwrap().push(it),
        }
    }
    assert_eq!(words.remove(0), "outbox");
    words
}

/// A row whose channel was no UTF-8 was never sent, and nobody said so: `why` called it due. And the
/// remedy for most columns was an edit that could not reach them.
#[test]
fn text_that_is_none_makes_a_dead_letter_and_what_why_says_then_mends_it() {
    for (column, good) in [
        ("channel", "sales"),
        ("ordering_key", "table-7"),
        ("dedupe_key", "S-2"),
        ("message_id", ""),
        ("event_type", "sale.completed"),
        ("recipient", "+49"),
        ("principal", "anna"),
        ("content_type", "text/csv"),
        ("headers", "X-Store: 17"),
    ] {
        let desk = Desk::new();
        put(&desk, column, "CAST(x'61ff62' AS TEXT)");
        let reason = format!("{column} is not valid UTF-8");
        let before = desk.json(["why", "till.db", "id:1", "--json"]);
        assert_eq!(before["reason_code"], "invalid", "{before}");
        assert_eq!(before["detail"], *reason, "{before}");

        let server = Server::start(|_| ok());
        let drained = drain(&desk, &server);
        assert_eq!(drained.code, 4, "{column}: {drained:?}");
        assert!(drained.out.contains("1 new dead letter"), "{drained:?}");
        let status = desk.run(["status", "till.db", "--json"]);
        assert_eq!(status.code, 4, "{status:?}");
        let total = &status.json()["total"];
        assert_eq!((&total["dead"], &total["unsent"]), (&1.into(), &0.into()));
        let check = desk.run(["check", "till.db", "--json"]);
        assert_eq!(check.code, 4, "{column}");
        // Nobody can type the name of such a channel.
        let list = match column {
            "channel" => "list till.db --status dead\"",
            _ => "list till.db --status dead --channel sales\"",
        };
        let folder = desk.path("");
        let told = check.out.replace(&*folder.to_string_lossy(), "");
        assert!(told.contains(list), "{told}");

        let why = desk.json(["why", "till.db", "id:1", "--json"]);
        assert_eq!(
            (&why["status"], &why["failure"]),
            (&"dead".into(), &"invalid".into())
        );
        assert_eq!(why["commands"], before["commands"], "{column}");
        let command = why["commands"][0].as_str().unwrap();
        for args in [&["why", "till.db"][..], &["why", "till.db", "id:1"]] {
            let text = desk.done(args);
            assert!(text.contains(&reason) && text.contains(command), "{text}");
        }
        let mut filled = words(command);
        if !good.is_empty() {
            // As it is printed, it waits for a person and changes nothing.
            let copied = desk.run(&filled);
            assert_eq!(copied.code, 2, "{command}: {copied:?}");
            filled.push(good.to_string());
        }
        let dry = desk.done(filled.iter().map(String::as_str).chain(["--dry-run"]));
        assert!(dry.contains("would be changed"), "{dry}");
        assert_eq!(
            desk.json(["why", "till.db", "id:1", "--json"])["status"],
            "dead"
        );
        let mended = desk.run(&filled);
        assert_eq!(
            (mended.code, mended.err.as_str()),
            (0, ""),
            "{filled:?} {mended:?}"
        );

        assert_eq!(drain(&desk, &server).code, 0, "{column}");
        let seen = server.seen();
        assert_eq!(seen.len(), 1, "{column}");
        assert_eq!(seen[0].body, b"x");
        assert_ne!(seen[0].header("idempotency-key"), Some("m-1"), "{column}");
        let row = desk.run(["list", "till.db", "--json"]).lines().remove(0);
        assert_eq!(row["status"], "sent");
        assert_eq!(row[format!("{column}_base64")], Value::Null, "{row}");
        if !good.is_empty() && column != "headers" {
            assert_eq!(row[column], good, "{row}");
        }
        // Who did it, and what the message was before.
        let row = desk.json(["show", "till.db", &format!("id:{}", row["id"]), "--json"]);
        let deed = row["audit"].as_array().unwrap().last().unwrap();
        assert_eq!(deed["former_payload"], "x", "{row}");
    }
}

#[test]
fn an_optional_text_that_is_none_may_be_taken_away() {
    for (column, option) in [
        ("event_type", "--event-type"),
        ("recipient", "--recipient"),
        ("principal", "--principal"),
        ("ordering_key", "--ordering-key"),
        ("headers", "--no-headers"),
    ] {
        let desk = Desk::new();
        put(&desk, column, "CAST(x'ff' AS TEXT)");
        let none = [""].into_iter().filter(|_| column != "headers");
        desk.done(["edit", "till.db", "S-1", option].into_iter().chain(none));
        let row = desk.json(["show", "till.db", "S-1", "--json"]);
        assert_eq!(row[column], Value::Null, "{row}");
        assert_eq!(drain(&desk, &Server::start(|_| ok())).code, 0, "{column}");
    }
}

/// Their channel has more of them than a transaction takes, and others are sent meanwhile.
#[test]
fn a_channel_that_no_route_can_have_holds_nobody_else() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
             INSERT INTO outbox (channel, ordering_key, payload)
             SELECT CAST(x'ff' AS TEXT), CASE WHEN i % 2 THEN 'lane ' || i END, 'x' FROM n;
             UPDATE outbox SET status = 'sending', claims = 1 WHERE id = 7;
             INSERT INTO outbox (channel, payload) VALUES ('sales', 'x'), (CAST(x'fe' AS TEXT), 'x');",
        )
        .unwrap();
    let server = Server::start(|_| ok());
    let drained = drain(&desk, &server);
    assert_eq!(drained.code, 4, "{drained:?}");
    assert!(drained.out.starts_with("1 sent"), "{drained:?}");
    assert!(drained.out.contains("201 dead letters wait"), "{drained:?}");
    assert_eq!(server.seen().len(), 1);
}

/// The head was looked for under a name that was mended for people, and so was not found.
#[test]
fn who_stands_behind_a_broken_ordering_key_is_told_so() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, ordering_key, payload)
             VALUES ('sales', CAST(x'ff' AS TEXT), '1'), ('sales', CAST(x'ff' AS TEXT), '2')",
        )
        .unwrap();
    drain(&desk, &Server::start(|_| ok()));
    let why = desk.json(["why", "till.db", "id:2", "--json"]);
    assert_eq!(why["reason_code"], "behind", "{why}");
    assert_eq!(why["behind"]["failure"], "invalid", "{why}");
    desk.done(["edit", "till.db", "id:1", "--ordering-key", "table-7"]);
    let row = desk.json(["show", "till.db", "id:2", "--json"]);
    assert_eq!(row["status"], "pending", "nobody is before it any more");
}

#[test]
fn a_move_is_refused_where_its_key_is_taken_and_changes_nothing_then() {
    let desk = Desk::new();
    desk.put("slaes", "S-1", "one");
    let put = ["enqueue", "till.db", "--channel=sales", "--key=S-1"];
    let ran = desk.run(put.into_iter().chain(["--content-type=text/plain", "two"]));
    assert_eq!(ran.code, 0, "{ran:?}");
    let all = || desk.done(["list", "till.db", "--json"]);
    let before = all();
    let to_sales = ["edit", "till.db", "id:1", "--to-channel", "sales"];
    desk.run(to_sales.into_iter().chain(["--content-type", "text/csv"]))
        .failed(1, "message 2 already has this dedupe key");
    desk.run(["edit", "till.db", "id:1", "--to-channel", "a:b"])
        .failed(1, "colon");
    desk.run(["edit", "till.db", "id:2", "--key", "a\nb"])
        .failed(1, "control character");
    assert_eq!(all(), before);
    desk.done(
        to_sales
            .into_iter()
            .chain(["--key", "S-2", "--ordering-key", "till-7"]),
    );
    let row = desk.json(["show", "till.db", "S-2", "--json"]);
    let expected = [
        ("channel", "sales"),
        ("ordering_key", "till-7"),
        ("payload", "one"),
    ];
    for (column, value) in expected {
        assert_eq!(row[column], value, "{row}");
    }
    assert_eq!(one(&desk.sql(), "SELECT count(*) FROM outbox"), "2");
    let reasons = column(&desk.sql(), "SELECT action FROM outbox_audit ORDER BY id");
    assert_eq!(reasons, ["edit"]);
    desk.run(["edit", "till.db", "id:2", "--key", "S-2"])
        .failed(1, "already has this dedupe key");
    assert_eq!(drain(&desk, &Server::start(|_| ok())).code, 0);
    desk.run(["edit", "till.db", "id:2", "--to-channel", "other"])
        .failed(1, "was sent already");
}

/// What cannot be seen could make one key look like another, or a row like a different one; `why`
/// wrote a blank where `list` wrote a number.
#[test]
fn what_cannot_be_seen_is_written_out_in_the_same_way_everywhere() {
    let unseen = [
        '\u{1b}',
        '\u{7f}',
        '\u{9b}',
        '\u{ad}',
        '\u{200b}',
        '\u{200d}',
        '\u{200e}',
        '\u{202e}',
        '\u{2028}',
        '\u{2066}',
        '\u{2069}',
        '\u{2800}',
        '\u{3164}',
        '\u{feff}',
        '\u{fe0f}',
        '\u{e0041}',
    ];
    let evil: String = unseen.iter().collect();
    let clean: String = unseen
        .iter()
        .map(|it| it.escape_unicode().to_string())
        .collect();
    let desk = Desk::new();
    desk.sql()
        .execute_batch(&format!(
            "INSERT INTO outbox (channel, dedupe_key, ordering_key, recipient, payload, status, settled_at,
                                 last_error)
             VALUES ('c{evil}', 'k{evil}', 'o{evil}', 'r{evil}', 'p{evil}', 'dead', 1, 'e{evil}');
             INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('c{evil}', 'k{evil}', 'other')
               ON CONFLICT DO NOTHING;
             INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('c{evil}', 'm{evil}', 'x');
             INSERT INTO outbox_channel (channel, state, since, reason)
             VALUES ('c{evil}', 'rejecting', 1, 'w{evil}');"
        ))
        .unwrap();
    let (key, other) = (format!("key:k{evil}"), format!("key:m{evil}"));
    for (command, shown) in [
        (vec!["list", "till.db"], "cke"),
        (vec!["show", "till.db", &key], "ckorpe"),
        (vec!["why", "till.db", &key], "cke"),
        (vec!["why", "till.db", &other], "cmw"),
        (vec!["why", "till.db"], "cew"),
        (vec!["status", "till.db"], "cw"),
        (vec!["conflicts", "till.db"], "ck"),
        (vec!["conflicts", "till.db", "1"], "ckp"),
        (vec!["check", "till.db"], "cw"),
        (vec!["retry", "till.db", "--all", "--dry-run"], "ck"),
        (vec!["bundle", "till.db", "-"], ""),
    ] {
        for json in [false, true] {
            let ran = desk.run(
                command
                    .iter()
                    .copied()
                    .chain(["--json"].into_iter().filter(|_| json)),
            );
            assert!(matches!(ran.code, 0 | 4), "{command:?} {ran:?}");
            let raw = |it: char| it != '\n' && unseen.contains(&it);
            assert!(
                !ran.out.contains(raw) && !ran.err.contains(raw),
                "{command:?} {ran:?}"
            );
            for which in shown.chars().filter(|_| !json) {
                assert!(
                    ran.out.contains(&format!("{which}{clean}")),
                    "{which} {command:?} {ran:?}"
                );
            }
        }
    }
    let row = desk.json(["show", "till.db", &key, "--json"]);
    assert_eq!(
        row["dedupe_key"],
        format!("k{evil}"),
        "a program gets what is stored"
    );
}
