//! From one file to another: `export`, and `enqueue --exported`.

use serde_json::{Value, json};
use sqlite_outbox::rusqlite::Connection;

use super::{Desk, Ran};
use crate::fixture::column;

const TEXTS: [&str; 8] = [
    "channel",
    "message_id",
    "dedupe_key",
    "event_type",
    "recipient",
    "ordering_key",
    "principal",
    "content_type",
];

fn import(desk: &Desk, lines: impl AsRef<[u8]>, more: &[&str]) -> Ran {
    let args = ["enqueue", "new.db", "--lines=-", "--exported"];
    desk.feed(lines, args.into_iter().chain(more.iter().copied()))
}

/// Everything that is to be sent, as bytes.
fn bytes(conn: &Connection) -> Vec<String> {
    let mut columns = TEXTS.to_vec();
    columns.extend(["headers", "payload"]);
    let columns = columns
        .iter()
        .map(|it| format!("quote(CAST({it} AS BLOB))"));
    let columns: Vec<_> = columns.collect();
    let columns = columns.join(" || ' ' || ");
    let sql = format!("SELECT {columns} || available_at || expires_at FROM outbox ORDER BY id");
    column(conn, &sql)
}

/// A column that was no UTF-8 came out with U+FFFD in it; control characters, and keys that are
/// longer than the library takes, could not be put in again.
#[test]
fn whatever_plain_sql_has_stored_makes_the_way_byte_for_byte() {
    let texts = [
        ("bytes", "CAST(x'61ff00fe' AS TEXT)"),
        ("half a character", "CAST(x'e282' AS TEXT)"),
        ("zero", "'a' || char(0) || 'b'"),
        ("controls", "char(1, 9, 10, 13, 27, 127, 155)"),
        ("unseen", "char(8203, 8238, 8294, 65279, 917569)"),
        ("long", "printf('%.600c', 'k')"),
        ("the character for what is none", "char(65533)"),
        ("quotes", "'\"\\''{}\\u0000'"),
    ];
    let desk = Desk::new();
    let conn = desk.sql();
    let mut count = 0;
    let mut put = |values: &[(&str, &str)]| {
        count += 1;
        let key = format!("'row {count}'");
        let mut row = vec![
            ("channel", "'sales'"),
            ("dedupe_key", &key),
            ("payload", "'x'"),
        ];
        row.extend([("available_at", "1"), ("expires_at", "9000000000000")]);
        row.retain(|it| values.iter().all(|(column, _)| column != &it.0));
        row.extend(values);
        let (names, values): (Vec<_>, Vec<_>) = row.into_iter().unzip();
        let (names, values) = (names.join(", "), values.join(", "));
        let sql = format!("INSERT INTO outbox ({names}) VALUES ({values})");
        conn.execute_batch(&sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    };
    for (_, value) in texts {
        for column in TEXTS.into_iter().chain(["headers", "payload"]) {
            // The checks want no colon.
            put(&[(column, value)]);
        }
        put(&[
            ("channel", value),
            ("ordering_key", value),
            ("headers", value),
        ]);
    }
    for payload in [
        "''",
        "x''",
        "x'00ff'",
        "zeroblob(5000)",
        "CAST(zeroblob(5000) AS TEXT)",
    ] {
        put(&[("payload", payload)]);
    }
    // More than the library lets in.
    put(&[("payload", "printf('%.400000c', 'p')")]);
    put(&[("payload", "CAST(printf('%.400000c', 'p') AS BLOB)")]);
    let all: Vec<String> = TEXTS.iter().map(|_| "CAST(x'ff' AS TEXT)".into()).collect();
    put(&TEXTS
        .iter()
        .zip(&all)
        .map(|(name, value)| (*name, value.as_str()))
        .collect::<Vec<_>>());

    desk.done(["init", "new.db"]);
    let exported = desk.done(["export", "till.db"]);
    assert_eq!(exported.lines().count(), count);
    let most = 3 * 400_000;
    assert!(
        exported.lines().all(|it| it.len() < most),
        "a control character takes six bytes"
    );
    let zeros = exported.lines().filter(|it| it.contains("AAAAAAAA"));
    assert!(zeros.clone().count() == 2 && zeros.into_iter().all(|it| it.len() < 9_000));
    let ran = import(&desk, &exported, &[]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    assert_eq!(ran.out, format!("{count} messages enqueued\n"));
    let new = Connection::open(desk.path("new.db")).unwrap();
    assert_eq!(bytes(&new), bytes(&conn));
    // Once more changes nothing, and there is nothing to decide.
    let ran = import(&desk, &exported, &[]);
    assert_eq!(
        ran.out,
        format!("0 messages enqueued, {count} there already\n")
    );
    assert_eq!(bytes(&new), bytes(&conn));
    assert_eq!(desk.json(["status", "new.db", "--json"])["conflicts"], 0);
    let again = desk.done(["export", "new.db"]);
    for (line, other) in exported.lines().zip(again.lines()) {
        let [mut line, mut other] =
            [line, other].map(|it| serde_json::from_str::<Value>(it).unwrap());
        for it in [&mut line, &mut other] {
            it["created_at"] = Value::Null;
        }
        assert_eq!(line, other);
    }
}

fn line(key: &str, payload: &str) -> String {
    let line = json!({
        "channel": "a", "message_id": format!("m-{key}"), "dedupe_key": key, "content_type": "text/plain",
        "payload": payload, "status": "pending",
    });
    format!("{line}\n")
}

/// A line that was too long ended the import, with `--skip-bad` too.
#[test]
fn a_line_that_is_too_long_is_told_and_passed_over() {
    let desk = Desk::new();
    desk.done(["init", "new.db"]);
    let long = line("long", &"x".repeat(64 * 1024 * 1024));
    let lines = [line("K-1", "one"), long, line("K-3", "three")].concat();
    let told = "line 2: it has more than the 67108864 bytes a line may have";
    import(&desk, &lines, &[]).failed(1, told);
    let ran = import(&desk, &lines, &["--skip-bad"]);
    assert_eq!(ran.code, 1);
    assert_eq!(ran.err, format!("note: skipped: {told}\n"));
    assert_eq!(
        ran.out,
        "1 message enqueued, 1 there already, 1 refused and skipped\n"
    );
    // A payload is a line of its own without --exported.
    let lines = ["\"short\"\n", &"9".repeat(300_000), "\n\"last\""].concat();
    let args = [
        "enqueue",
        "till.db",
        "--channel=a",
        "--lines=-",
        "--skip-bad",
    ];
    let ran = desk.feed(&lines, args);
    assert_eq!(ran.code, 1);
    assert!(
        ran.err
            .contains("line 2: it has more than the 262144 bytes"),
        "{ran:?}"
    );
    assert_eq!(ran.out, "2 messages enqueued, 1 refused and skipped\n");
}

#[test]
fn what_is_too_long_for_an_import_is_told_at_the_export() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, payload) VALUES ('a', 'x'), ('a', zeroblob(50500000)), ('a', 'y')",
        )
        .unwrap();
    let ran = desk.run(["export", "till.db"]);
    assert_eq!(ran.code, 1);
    assert_eq!(ran.out.lines().count(), 3, "it is printed all the same");
    assert!(
        ran.err
            .starts_with("note: message 2 makes a line of 67.3 MB"),
        "{}",
        ran.err
    );
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
}

/// It said to take the same lines again also where that could not go well.
#[test]
fn an_import_that_ends_early_says_what_is_done_and_how_to_go_on() {
    const TWICE: &str = "those that are there are not taken twice";
    const REFUSED: &str = "those before it are there, and would be refused";
    const SECOND: &str = "those before it would be taken a second time";
    let bad = [
        line("K-1", "1"),
        line("K-2", "2"),
        "{}\n".into(),
        line("K-4", "4"),
    ]
    .concat();
    let plain = "{\"id\":1}\n{\"id\":2}\n{\"no\":3}\n{\"id\":4}\n";
    for (args, lines, says) in [
        (&["--exported"][..], bad.as_str(), TWICE),
        (&["--exported", "--on-duplicate=replace"], &bad, TWICE),
        (&["--exported", "--on-duplicate=fail"], &bad, REFUSED),
        (&["--channel=a", "--key-from=/id"], plain, TWICE),
        (
            &["--channel=a", "--key-from=/id", "--on-duplicate=fail"],
            plain,
            REFUSED,
        ),
    ] {
        let desk = Desk::new();
        let all = ["enqueue", "till.db", "--lines=-"]
            .into_iter()
            .chain(args.iter().copied());
        let ran = desk.feed(lines, all.clone());
        ran.failed(1, "line 3");
        let told = "it ended there. Before it: 2 messages enqueued.";
        assert!(
            ran.err.contains(told) && ran.err.contains(says),
            "{args:?} {ran:?}"
        );
        // And so it is.
        let again = desk.feed(lines, all);
        let expected = match says {
            TWICE => "line 3",
            _ => "line 1",
        };
        again.failed(1, expected);
        let rest: String = lines.lines().skip(3).map(|it| format!("{it}\n")).collect();
        let rest = desk.feed(
            rest,
            ["enqueue", "till.db", "--lines=-"]
                .into_iter()
                .chain(args.iter().copied()),
        );
        assert_eq!(
            (rest.code, rest.out.as_str()),
            (0, "1 message enqueued\n"),
            "{rest:?}"
        );
        assert_eq!(
            desk.json(["status", "till.db", "--json"])["total"]["pending"],
            3
        );
    }
    let desk = Desk::new();
    let args = [
        "enqueue",
        "till.db",
        "--channel=a",
        "--lines=-",
        "--content-type=text/plain",
    ];
    let ran = desk.feed("1\n2\n".to_string() + &"x".repeat(300_000), args);
    ran.failed(1, "line 3: ");
    assert!(ran.err.contains(SECOND), "{ran:?}");
}

#[test]
fn what_replaces_a_message_leaves_a_record_of_it() {
    let desk = Desk::new();
    let put = |channel: &str, payload: &str| {
        let args = [
            "enqueue",
            "till.db",
            "--channel",
            channel,
            "--key=S-1",
            "--on-duplicate=replace",
        ];
        desk.run(args.into_iter().chain([payload]))
    };
    let deeds = |key: &str| desk.json(["show", "till.db", key, "--json"])["audit"].clone();
    for payload in ["1", "1"] {
        assert_eq!(put("sales", payload).code, 0);
        assert_eq!(deeds("S-1"), json!([]), "nothing was replaced");
    }
    assert!(put("sales", "2").out.contains("has the new content"));
    let deed = &deeds("S-1")[0];
    assert_eq!(
        (&deed["action"], &deed["former_payload"]),
        (&json!("replace"), &json!("1"))
    );
    assert!(deed["who"].as_str().unwrap().contains('@'), "{deed}");
    // So does an import, and the lines of a file.
    let mut row = desk.json(["show", "till.db", "S-1", "--json"]);
    row["payload"] = json!("3");
    let args = ["enqueue", "till.db", "--lines=-", "--on-duplicate=replace"];
    let ran = desk.feed(row.to_string(), args.into_iter().chain(["--exported"]));
    assert_eq!(ran.out, "0 messages enqueued, 1 replaced\n", "{ran:?}");
    assert_eq!(deeds("S-1")[1]["former_payload"], "2");
    // What was attempted is kept, and so is the record.
    desk.sql()
        .execute_batch("UPDATE outbox SET claims = 1")
        .unwrap();
    assert!(put("sales", "4").err.contains("OTHER content"));
    assert_eq!(deeds("S-1").as_array().unwrap().len(), 2);
}
