//! Of a damaged file, commands that only look show what can be read, say what cannot, and end with 1.

use std::collections::BTreeSet;

use sqlite_outbox::rusqlite::Connection;

use super::{Desk, Ran};

const PAGE: usize = 4096;

/// The file as it is on the disk.
fn bytes(desk: &Desk) -> Vec<u8> {
    let sql = desk.sql();
    sql.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    std::fs::read(desk.path("till.db")).unwrap()
}

/// The first page of a table or an index.
fn root(desk: &Desk, name: &str) -> usize {
    let sql = "SELECT rootpage FROM sqlite_master WHERE name = ?1";
    let page: u32 = desk.sql().query_row(sql, [name], |row| row.get(0)).unwrap();
    page as usize - 1
}

/// Puts `damaged.db` beside it, with nothing but zeros on these pages.
fn damage(desk: &Desk, pages: &[usize]) {
    let mut damaged = bytes(desk);
    for page in pages {
        damaged[page * PAGE..(page + 1) * PAGE].fill(0);
    }
    desk.write("damaged.db", &damaged);
}

/// Three messages of a paused channel, the first tried and contested, the second dead.
fn small() -> Desk {
    let desk = Desk::new();
    for key in ["K1", "K2", "K3"] {
        desk.put("sales", key, "{}");
    }
    desk.done(["pause", "till.db", "sales", "--reason", "stocktaking"]);
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'K1', 'other')
               ON CONFLICT (channel, dedupe_key) DO NOTHING;
             UPDATE outbox SET attempts = 1, last_error = 'it was full' WHERE id = 1;
             INSERT INTO outbox_attempt (message, at, outcome, charged) VALUES (1, 1, 'http_503', 1);
             UPDATE outbox SET status = 'dead', settled_at = 1 WHERE id = 2;",
        )
        .unwrap();
    desk
}

/// The commands, and what they show whichever of the parts is damaged.
const COMMANDS: [(&str, &[&str]); 9] = [
    ("list", &["K1", "K2", "K3"]),
    ("list --json", &["K1", "K2", "K3"]),
    ("list --unsent --channel=sales", &["K1", "K3"]),
    ("export", &["K1", "K2", "K3"]),
    (
        "show K1",
        &["dedupe key    K1", "it was full", "payload, 2 bytes"],
    ),
    (
        "show id:2 --json",
        &[r#""dedupe_key":"K2""#, "failed_attempts"],
    ),
    ("why K1", &["Message 1 of sales (key K1)"]),
    ("why", &["sales"]),
    ("status", &["2 messages waiting", "1 dead letter", "sales"]),
];

const WAITS: &str = "what it waits for";
const THEY_WAIT: &str = "what some messages wait for";
const LETTERS: &str = "why letters are dead";
const DEEDS: &str = "what people did";
const ATTEMPTS: &str = "the failed attempts";
const STATES: &str = "the states of the channels";
const ELSE: &str = "what else went wrong";
const KEYS: &str = "which keys are contested";
const CONFLICTS: &str = "its conflicts";
const ANY: &str = "whether there are conflicts";
const WHOSE: &str = "whose key is contested";
const NUMBER: &str = "the number of conflicts";
const ONE_BY_ONE: &str = "they are looked through one by one";

type Met = &'static [(&'static str, &'static [&'static str])];

/// A part that is damaged, and the commands that need it, with what each of them says of it. The
/// others do not notice.
const PARTS: [(&str, Met); 11] = [
    (
        "outbox_conflict",
        &[
            ("list", &[KEYS]),
            ("list --unsent --channel=sales", &[KEYS]),
            ("export", &[ANY]),
            ("show K1", &[CONFLICTS]),
            ("why K1", &[CONFLICTS]),
            ("why", &[WHOSE]),
        ],
    ),
    (
        "outbox_conflict_key",
        &[
            ("show K1", &[CONFLICTS]),
            ("show id:2 --json", &[CONFLICTS]),
            ("why K1", &[CONFLICTS]),
            ("why", &[NUMBER]),
            ("status", &[NUMBER]),
        ],
    ),
    (
        "outbox_audit",
        &[("show K1", &[DEEDS]), ("show id:2 --json", &[DEEDS])],
    ),
    (
        "outbox_attempt",
        &[
            ("list", &[THEY_WAIT]),
            ("list --unsent --channel=sales", &[THEY_WAIT]),
            ("show K1", &[WAITS, ATTEMPTS]),
            ("why K1", &[WAITS]),
            ("why", &[THEY_WAIT]),
        ],
    ),
    (
        "outbox_attempt_message",
        &[
            ("list", &[THEY_WAIT]),
            ("list --unsent --channel=sales", &[THEY_WAIT]),
            ("show K1", &[WAITS, ATTEMPTS]),
            ("show id:2 --json", &[ATTEMPTS]),
            ("why K1", &[WAITS]),
            ("why", &[THEY_WAIT, LETTERS]),
        ],
    ),
    (
        "outbox_channel",
        &[
            ("list", &[THEY_WAIT]),
            ("list --unsent --channel=sales", &[THEY_WAIT]),
            ("show K1", &[WAITS]),
            ("why K1", &[WAITS]),
            ("why", &[THEY_WAIT, STATES, ELSE]),
            ("status", &[STATES, ELSE]),
        ],
    ),
    (
        "outbox_due",
        &[("why", &[ONE_BY_ONE]), ("status", &[ONE_BY_ONE])],
    ),
    (
        "outbox_lane",
        &[("why", &[ONE_BY_ONE]), ("status", &[ONE_BY_ONE])],
    ),
    (
        "outbox_settled",
        &[
            ("why", &[ONE_BY_ONE, ELSE]),
            ("status", &[ONE_BY_ONE, ELSE]),
        ],
    ),
    (
        "outbox_dead_rows",
        &[("why", &[LETTERS, ONE_BY_ONE]), ("status", &[ONE_BY_ONE])],
    ),
    (
        "sqlite_autoindex_outbox_1",
        &[
            ("list", &[KEYS]),
            ("list --unsent --channel=sales", &[KEYS]),
            ("export", &[ANY]),
            ("show K1", &[ONE_BY_ONE, CONFLICTS]),
            ("why K1", &[ONE_BY_ONE, CONFLICTS]),
            ("why", &[ONE_BY_ONE, ELSE, WHOSE]),
            ("status", &[ONE_BY_ONE, ELSE]),
        ],
    ),
];

fn run(desk: &Desk, command: &str) -> Ran {
    let mut words = command.split(' ');
    let name = words.next().unwrap();
    desk.run([name, "damaged.db"].into_iter().chain(words))
}

/// What a command says of each thing that it leaves out.
fn left_out(ran: &Ran) -> Vec<&str> {
    let lines = ran.err.lines().filter_map(|it| {
        let (_, what) = it.split_once("left out, as the file is damaged: ")?;
        Some(what.trim_end_matches("\"}"))
    });
    lines.collect()
}

#[test]
fn a_damaged_part_costs_what_it_adds_and_is_told() {
    let desk = small();
    for (part, met) in PARTS {
        damage(&desk, &[root(&desk, part)]);
        for (command, shown) in COMMANDS {
            let ran = run(&desk, command);
            let what = format!("{part}, {command}: {ran:#?}");
            for shown in shown {
                assert!(ran.out.contains(shown), "{shown}, {what}");
            }
            let told = met.iter().find(|it| it.0 == command);
            let told = told.map_or(&[][..], |it| it.1);
            let mut said = left_out(&ran);
            if ran.err.contains(ONE_BY_ONE) {
                said.push(ONE_BY_ONE);
            }
            let sets = [&said, told].map(|it| it.iter().collect::<BTreeSet<_>>());
            assert_eq!(sets[0], sets[1], "{what}");
            // All of it, and the one error at the end.
            assert_eq!(ran.code, i32::from(!told.is_empty()), "{what}");
            let ends = ran.err.contains("the file is damaged: keep a copy of it");
            assert_eq!(ends, ran.code == 1, "{what}");
        }
    }
}

/// Three thousand messages of two channels, each with its id in the payload.
fn large() -> Desk {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
             INSERT INTO outbox (channel, dedupe_key, payload)
             SELECT iif(i % 2, 'sales', 'stock'), 'K' || i, printf('needle-%06d', i) FROM n",
        )
        .unwrap();
    desk
}

/// The pages on which these messages stand.
fn pages_of(desk: &Desk, ids: &[i64]) -> Vec<usize> {
    let whole = bytes(desk);
    let letter = |it: &u8| if it.is_ascii() { char::from(*it) } else { ' ' };
    let whole: String = whole.iter().map(letter).collect();
    let page = |id: &i64| whole.find(&format!("needle-{id:06}")).unwrap() / PAGE;
    ids.iter().map(page).collect()
}

/// Those that cannot be had when they are asked for one by one.
fn lost(desk: &Desk) -> BTreeSet<i64> {
    let sql = Connection::open(desk.path("damaged.db")).unwrap();
    let mut one = sql
        .prepare("SELECT length(payload) FROM outbox WHERE id = ?1")
        .unwrap();
    let mut read = |id: &i64| one.query_row([id], |row| row.get::<_, i64>(0)).is_ok();
    (1..=3_000).filter(|id| !read(id)).collect()
}

/// The ids that a command says it leaves out.
fn told(ran: &Ran) -> BTreeSet<i64> {
    let mut told = BTreeSet::new();
    for what in left_out(ran) {
        let ids = what
            .strip_prefix("messages ")
            .or(what.strip_prefix("message "));
        let ids = ids.unwrap_or_else(|| panic!("{what}"));
        let (low, high) = ids.split_once(" to ").unwrap_or((ids, ids));
        told.extend(low.parse::<i64>().unwrap()..=high.parse().unwrap());
    }
    told
}

/// Damaged pages at the beginning, two side by side, one, and the last.
const SPOILT: [i64; 5] = [1, 1_500, 1_530, 2_000, 3_000];

#[test]
fn a_key_that_is_not_there_is_told_of_with_the_damage() {
    let desk = small();
    damage(&desk, &[root(&desk, "sqlite_autoindex_outbox_1")]);
    let ran = run(&desk, "show K9");
    assert_eq!((ran.code, &*ran.out), (1, ""), "{ran:?}");
    assert!(ran.err.contains("error: there is no message K9"), "{ran:?}");
    assert!(ran.err.contains(ONE_BY_ONE), "{ran:?}");
}

#[test]
fn behind_damaged_pages_a_list_and_an_export_go_on_and_name_what_is_lost() {
    let desk = large();
    damage(&desk, &pages_of(&desk, &SPOILT));
    let lost = lost(&desk);
    assert!(lost.len() > 50 && lost.len() < 400, "{lost:?}");
    assert!(SPOILT.iter().all(|id| lost.contains(id)));
    let wanted: Vec<i64> = (1..=3_000).filter(|it| !lost.contains(it)).collect();
    let odd: Vec<i64> = wanted.iter().copied().filter(|it| it % 2 == 1).collect();
    let turned: Vec<i64> = wanted.iter().rev().copied().collect();
    for (command, wanted) in [
        ("export", &wanted),
        ("list --json", &wanted),
        ("list --json --unsent", &wanted),
        ("list --json --newest", &turned),
        ("export --channel=sales", &odd),
    ] {
        let ran = run(&desk, command);
        let ids = ran.lines();
        let ids: Vec<_> = ids.iter().map(|it| it["id"].as_i64().unwrap()).collect();
        assert!(
            ids == *wanted,
            "{command}: {} of {}",
            ids.len(),
            wanted.len()
        );
        assert_eq!(ran.code, 1, "{command}: {}", ran.err);
        assert_eq!(told(&ran), lost, "{command}: {}", ran.err);
        assert!(!ran.err.contains(ONE_BY_ONE), "{command}: {}", ran.err);
    }
    let ran = run(&desk, "list");
    assert_eq!(ran.out.lines().count(), wanted.len() + 1, "{}", ran.err);
    // What is counted is what can be read.
    let ran = run(&desk, "status --json");
    assert_eq!(ran.json()["total"]["unsent"], wanted.len());
    assert_eq!(told(&ran), lost, "{}", ran.err);
    // A message of which nothing can be read, and one that may be among them.
    for which in ["id:1500", "K1500", "nobody"] {
        let ran = run(&desk, &format!("show {which}"));
        ran.failed(1, "the file is damaged");
    }
    let ran = run(&desk, "show id:1000");
    assert_eq!((ran.code, &*ran.err), (0, ""), "{ran:?}");
    assert!(ran.out.contains("needle-001000"), "{ran:?}");
}

#[test]
fn a_page_of_a_list_goes_on_behind_the_damage_and_says_what_it_passed() {
    let desk = large();
    damage(&desk, &pages_of(&desk, &[1_500]));
    let lost = lost(&desk);
    let first = *lost.first().unwrap();
    for (limit, met) in [(first - 2, false), (first + 10, true)] {
        let ran = run(&desk, &format!("list --json --limit {limit}"));
        assert_eq!(ran.lines().len() as i64, limit, "{}", ran.err);
        assert_eq!(ran.code, i32::from(met), "{}", ran.err);
        assert_eq!(told(&ran), if met { lost.clone() } else { BTreeSet::new() });
    }
}

/// The first page of the table is lost, and with it the way to all of them.
#[test]
fn where_no_message_can_be_read_no_command_says_that_there_is_none() {
    let desk = large();
    damage(&desk, &[root(&desk, "outbox")]);
    for command in [
        "list",
        "export",
        "status",
        "why",
        "show K7",
        "show id:7",
        "why K7",
    ] {
        let ran = run(&desk, command);
        assert_eq!((ran.code, &*ran.out), (1, ""), "{command}: {ran:?}");
        let lost = match command {
            "list" | "export" => &["messages 1 to 3000"][..],
            _ => &[],
        };
        assert_eq!(left_out(&ran), lost, "{command}");
    }
}

/// The highest id that was given is what foreign hands have left there.
#[test]
fn a_search_in_what_is_lost_ends_however_much_that_is() {
    let desk = large();
    desk.sql()
        .execute_batch("UPDATE sqlite_sequence SET seq = 9007199254740991 WHERE name = 'outbox'")
        .unwrap();
    damage(&desk, &[root(&desk, "outbox")]);
    let ran = run(&desk, "export");
    assert_eq!(left_out(&ran), ["messages 1 to 9007199254740991"]);
    // The last page alone: what stands before it is all there.
    damage(&desk, &pages_of(&desk, &[3_000]));
    let ran = run(&desk, "list --json");
    let ids = ran.lines();
    let last = ids.last().unwrap()["id"].as_i64().unwrap();
    assert!(
        (2_900..3_000).contains(&last) && ids.len() as i64 == last,
        "{last}"
    );
    let rest = format!("messages {} to 9007199254740991", last + 1);
    assert_eq!(left_out(&ran), [rest]);
}
