//! A slip of the fingers is told with what was probably meant, in one line of a bearable length; and
//! what is suggested can be pasted, whatever is in a name.

use super::Desk;

/// A file with 2,000 channels.
fn crowd() -> Desk {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1999)
             INSERT INTO outbox (channel, payload) SELECT printf('ch%04d', i), 'x' FROM n",
        )
        .unwrap();
    desk
}

#[test]
fn a_mistyped_channel_is_told_with_the_nearest_of_many() {
    let desk = crowd();
    let told = "there are 2,000, the nearest are ch1999, ";
    desk.run(["pause", "till.db", "ch19999"]).failed(1, told);
    for args in [
        &["list", "till.db"][..],
        &["export", "till.db"],
        &["retry", "till.db", "--all"],
        &["cancel", "till.db", "--all"],
        &["purge", "till.db", "--older-than=1d"],
        &["purge", "till.db", "--older-than=1d", "--dry-run"],
    ] {
        let ran = desk.run(args.iter().chain(&["--channel=ch19999"]));
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        assert!(ran.err.contains(told), "{args:?}: {ran:?}");
        assert!(ran.err.len() < 200, "{args:?}: {ran:?}");
    }
}

#[test]
fn a_mistyped_code_is_told_with_those_that_are_there() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (id, channel, payload, status, settled_at, last_error) VALUES
                 (1, 'sales', 'x', 'dead', 1, 'late'), (2, 'sales', 'y', 'dead', 1, 'wrong');
             INSERT INTO outbox_attempt (message, at, outcome) VALUES
                 (1, 1, 'timeout'), (2, 1, 'http_400')",
        )
        .unwrap();
    let mut args = vec!["retry", "till.db", "--all", "--dry-run", "--code", "timout"];
    let ran = desk.run(&args);
    assert_eq!(ran.out, "0 messages would be retried\n");
    let told =
        "note: none of these messages has the code \"timout\"; there are timeout, http_400\n";
    assert_eq!((ran.code, &*ran.err), (0, told));
    args[0] = "cancel";
    assert_eq!(desk.run(&args).err, told);
    args[5] = "timeout";
    assert_eq!(desk.run(&args).err, "");
    args.extend(["--status", "pending"]);
    let none = "note: none of these messages has failed, so none has a code\n";
    assert_eq!(desk.run(&args).err, none);
}

#[test]
fn a_suggested_command_names_a_channel_whatever_is_in_its_name() {
    let desk = Desk::new();
    let conn = desk.sql();
    for (name, word) in [
        ("sa\tles", r"$'sa\x09les'"),
        ("\u{1b}[2J", r"$'\x1b[2J'"),
        ("-sales", "-- -sales"),
        ("it's", r"'it'\''s'"),
    ] {
        conn.execute_batch("DELETE FROM outbox; DELETE FROM outbox_channel")
            .unwrap();
        conn.execute(
            "INSERT INTO outbox (channel, payload) VALUES (?1, 'x')",
            [name],
        )
        .unwrap();
        conn.execute(
            "INSERT INTO outbox_channel (channel, paused_at, paused_by) VALUES (?1, 1, 'anna')",
            [name],
        )
        .unwrap();
        let why = desk.json(["why", "till.db", "--json"]);
        let command = why["groups"][0]["why"]["commands"][0].as_str().unwrap();
        assert!(command.ends_with(&format!("till.db {word}")), "{command}");
        let printed = desk.done(["why", "till.db"]);
        assert!(printed.contains(command), "{printed}");
        let args = ["resume", "till.db", "--", name];
        assert_eq!(desk.run(args).code, 0, "{name:?}");
    }
}

#[test]
fn a_backup_goes_to_no_stream() {
    let desk = Desk::new();
    desk.run(["backup", "till.db", "-"])
        .failed(2, "name the file, or ./- for one of that name");
    assert!(!desk.path("-").exists());
    assert_eq!(desk.run(["backup", "till.db", "./-"]).code, 0);
    assert!(desk.path("-").exists());
}

#[test]
fn a_wait_that_would_be_called_odd_afterwards_is_not_taken() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let enqueue = |span| {
        let delay = ["--delay", span, "1"];
        desk.run(
            ["enqueue", "till.db", "--channel=sales"]
                .into_iter()
                .chain(delay),
        )
    };
    let edit = |span| desk.run(["edit", "till.db", "S-1", "--available", span]);
    for ran in [enqueue("200000w"), edit("200000w")] {
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.err.contains("more than ten years"), "{ran:?}");
    }
    for ran in [enqueue("3650d"), edit("3650d")] {
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let ran = desk.run(["check", "till.db", "--json"]);
    assert!(!ran.out.contains("scheduled_far_ahead"), "{ran:?}");
}

#[test]
fn a_drain_says_in_words_that_a_schedule_is_too_far_ahead() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, payload, available_at) VALUES ('sales', 'x', 9000000000000)",
        )
        .unwrap();
    let ran = desk.run(["drain", "till.db", "--url", "http://127.0.0.1:1/"]);
    assert!(ran.out.contains("1 scheduled too far ahead"), "{ran:?}");
    assert!(!ran.out.contains("far_ahead"), "{ran:?}");
}

#[test]
fn what_check_suggests_works_for_a_channel_that_begins_like_an_option() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, payload, status, settled_at) VALUES ('-ch', 'x', 'dead', 1)",
        )
        .unwrap();
    let told = desk.run(["check", "till.db"]).out;
    let command = "outbox list till.db --status dead --channel=-ch";
    assert!(told.contains(command), "{told}");
    desk.done(command.split(' ').skip(1));
}

#[test]
fn plain_http_is_told_with_the_option_of_the_command_line() {
    let desk = Desk::new();
    let url = "--url=http://erp.example/";
    desk.run(["drain", "till.db", url])
        .failed(2, "use https, or --allow-http");
}

#[cfg(unix)]
#[test]
fn an_argument_that_is_no_text_is_named_with_what_takes_any_bytes() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let desk = Desk::new();
    let odd = OsStr::from_bytes(b"a\xff");
    let enqueue = ["enqueue", "till.db", "--channel=sales"].map(OsStr::new);
    let ran = desk.run(enqueue.iter().chain([&odd]));
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.contains(r"no text is $'a\xff'; `--file PATH`"),
        "{ran:?}"
    );
    let ran = desk.run([OsStr::new("watch"), OsStr::new("--json"), odd]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("watch is for people"), "{ran:?}");
}
