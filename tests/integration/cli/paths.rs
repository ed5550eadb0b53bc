//! Only `init` creates a file; on anything else that is no outbox a command fails and changes
//! nothing.

use super::Desk;
use sqlite_outbox::rusqlite::Connection;

/// Every command that works on a file, with all it needs.
const COMMANDS: [&[&str]; 26] = [
    &["conflicts", "PATH"],
    &["conflicts", "PATH", "1", "--drop"],
    &["watch", "PATH"],
    &["list", "PATH"],
    &["why", "PATH"],
    &["why", "PATH", "1", "--json"],
    &["retry", "PATH", "1"],
    &["cancel", "PATH", "--all"],
    &["edit", "PATH", "1", "{}"],
    &["pause", "PATH", "sales"],
    &["resume", "PATH", "sales"],
    &["purge", "PATH", "--older-than", "1d"],
    &["bundle", "PATH", "support.json"],
    &["check", "PATH"],
    &["curl", "PATH", "1", "--config", "outbox.toml"],
    &["export", "PATH"],
    &["backup", "PATH", "copy.db"],
    &["compact", "PATH"],
    &["upgrade", "PATH"],
    &["run", "PATH", "--config", "outbox.toml"],
    &["enqueue", "PATH", "--channel", "sales", "{}"],
    &["drain", "PATH", "--url", "http://localhost:9/"],
    &["drain", "PATH", "--url", "http://localhost:9/", "--json"],
    &["status", "PATH"],
    &["list", "PATH", "--json"],
    &["show", "PATH", "1"],
];

fn all_fail(desk: &Desk, path: &str, says: &str) {
    all_fail_but(&[], desk, path, says);
}

fn all_fail_but(others: &[&str], desk: &Desk, path: &str, says: &str) {
    let settings = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        &settings,
        "[channel.default]\nurl = \"http://localhost:9/\"\n",
    )
    .unwrap();
    let settings = settings.path().to_str().unwrap();
    let commands = COMMANDS.iter();
    for command in commands.filter(|it| !it.iter().any(|word| others.contains(word))) {
        let args = command.iter().map(|it| match *it {
            "PATH" => path,
            "outbox.toml" => settings,
            it => it,
        });
        desk.run(args).failed(1, says);
    }
}

fn files(desk: &Desk) -> Vec<String> {
    let names = std::fs::read_dir(desk.folder.path()).unwrap();
    let mut names: Vec<_> = names
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_missing_file_is_named_and_not_created() {
    let desk = Desk::empty();
    all_fail(&desk, "till.db", "there is no file");
    all_fail(&desk, "no/folder/till.db", "there is no file");
    assert!(files(&desk).is_empty());
}

#[test]
fn a_directory_is_refused() {
    let desk = Desk::empty();
    std::fs::create_dir(desk.path("till.db")).unwrap();
    all_fail(&desk, "till.db", "it is no file");
    desk.run(["init", "till.db"]).failed(1, "it is no file");
}

#[test]
fn an_empty_file_stays_empty() {
    let desk = Desk::empty();
    desk.write("till.db", "");
    all_fail(&desk, "till.db", "has no outbox");
    assert_eq!(std::fs::read(desk.path("till.db")).unwrap(), b"");
    assert_eq!(files(&desk), ["till.db"]);
}

#[test]
fn a_file_that_is_no_database_stays_as_it_is() {
    let desk = Desk::empty();
    let text = "these are the notes of the shop, and no database at all\n".repeat(100);
    desk.write("till.db", &text);
    all_fail(&desk, "till.db", "is not a SQLite database");
    desk.run(["init", "till.db"])
        .failed(1, "is not a SQLite database");
    assert_eq!(
        std::fs::read(desk.path("till.db")).unwrap(),
        text.as_bytes()
    );
    assert_eq!(files(&desk), ["till.db"]);
}

#[test]
fn a_database_without_an_outbox_stays_as_it_is() {
    let desk = Desk::empty();
    let conn = Connection::open(desk.path("till.db")).unwrap();
    conn.execute_batch("CREATE TABLE sale (id TEXT)").unwrap();
    drop(conn);
    let before = std::fs::read(desk.path("till.db")).unwrap();
    all_fail(&desk, "till.db", "has no outbox");
    assert_eq!(std::fs::read(desk.path("till.db")).unwrap(), before);
    assert_eq!(files(&desk), ["till.db"]);
}

#[test]
fn a_corrupt_database_is_one_line_and_check_says_where() {
    let desk = Desk::new();
    let mut bytes = std::fs::read(desk.path("till.db")).unwrap();
    bytes[100..4096].fill(0xa5);
    desk.write("till.db", &bytes);
    // `watch` has got as far as asking for a terminal.
    all_fail_but(
        &["check", "watch", "bundle"],
        &desk,
        "till.db",
        "the file is damaged",
    );
    let ran = desk.run(["bundle", "till.db", "-", "--json"]);
    assert!(ran.code == 0 && ran.out.contains("\"missing\""), "{ran:?}");
    let ran = desk.run(["check", "till.db"]);
    assert_eq!((ran.code, ran.err.as_str()), (4, ""), "{ran:?}");
    assert!(
        ran.out.starts_with("fault    the file is damaged: "),
        "{ran:?}"
    );
    assert_eq!(std::fs::read(desk.path("till.db")).unwrap(), bytes);
}

#[test]
fn init_creates_the_file_once_and_keeps_what_is_there() {
    let desk = Desk::empty();
    let made = desk.json(["init", "till.db", "--json"]);
    assert_eq!(made["created"], true);
    assert_eq!(made["schema_version"], 1);
    let again = desk.json(["init", "till.db", "--json"]);
    assert_eq!(again["created"], false);
    assert_eq!(again["instance_id"], made["instance_id"]);

    let conn = Connection::open(desk.path("shop.db")).unwrap();
    conn.execute_batch("CREATE TABLE sale (id TEXT); INSERT INTO sale VALUES ('S-1')")
        .unwrap();
    assert!(desk.done(["init", "shop.db"]).contains("is made"));
    assert!(desk.done(["init", "shop.db"]).contains("already"));
    let sales: i64 = conn
        .query_row("SELECT count(*) FROM sale", [], |row| row.get(0))
        .unwrap();
    assert_eq!(sales, 1);
    desk.run(["init", "no/folder/till.db"]).failed(1, "folder");
}

#[test]
fn a_newer_schema_is_refused_by_name() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "UPDATE outbox_meta SET value = '9' WHERE key IN ('schema_version', 'min_writer')",
        )
        .unwrap();
    let ran = desk.run(["enqueue", "till.db", "--channel", "sales", "{}"]);
    ran.failed(1, "schema 9");
    desk.run(["pause", "till.db", "sales", "--force"])
        .failed(1, "this program knows 1");
    // A look is none of a writer's business.
    for look in [
        &["status", "till.db"][..],
        &["why", "till.db"],
        &["list", "till.db"],
    ] {
        assert_eq!(desk.run(look).code, 0, "{look:?}");
    }
}
