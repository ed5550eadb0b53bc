//! The settings file: what is wrong in it is named with its line.

use super::Desk;

fn refused(text: &str, says: &str) {
    let desk = Desk::new();
    desk.write("outbox.toml", text);
    let ran = desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    ran.failed(1, &format!("outbox.toml, {says}"));
}

/// A section that works, of two lines, and one line more.
fn with(line: &str) -> String {
    format!("[channel.sales]\nurl = \"https://erp.example/api\"\n{line}\n")
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_one() {
    refused(
        "\n[drain]\nworker = 4\n",
        "line 3: drain.worker is no key; did you mean workers?",
    );
    refused(
        "[chanel.sales]\nurl = \"https://erp.example/\"\n",
        "line 1: chanel is no key; did you mean channel?",
    );
    refused(
        &with("time_out = \"3s\""),
        "line 3: channel.sales.time_out is no key; did you mean timeout?",
    );
    refused(
        &with("retry = { max_atempts = 3 }"),
        "line 3: channel.sales.retry.max_atempts is no key; did you mean max_attempts?",
    );
    refused(
        &with("[channel.sales.reply]\nrequires = \"/id\""),
        "line 4: channel.sales.reply.requires is no key; did you mean require?",
    );
    refused(
        "[drain]\nzzzzzzzz = 1\n",
        "line 2: drain.zzzzzzzz is no key; there are workers",
    );
}

#[test]
fn an_impossible_value_is_named_with_its_line() {
    for (line, says) in [
        ("workers = 0", "drain.workers must be 1 to 1024, not 0"),
        (
            "workers = \"four\"",
            "drain.workers is a text, not a whole number",
        ),
        ("lease = \"0s\"", "drain.lease must be 1s to 10m"),
        ("lease = 30", "drain.lease is integer `30`, not a duration"),
        (
            "lease = \"30\"",
            "drain.lease is wrong: the unit is missing",
        ),
        (
            "lock_share = 0",
            "drain.lock_share must be 0.01 to 1, not 0",
        ),
        (
            "lock_share = 1.5",
            "drain.lock_share must be 0.01 to 1, not 1.5",
        ),
        (
            "settle_sync = \"off\"",
            "drain.settle_sync is \"off\", not \"full\" or \"normal\"",
        ),
    ] {
        refused(&format!("[drain]\n{line}\n"), &format!("line 2: {says}"));
    }
    for (line, says) in [
        ("max_in_flight = 0", "max_in_flight must be 1 to"),
        ("run_length = 0", "run_length must be 1 to"),
        ("brake = 0", "brake must be 1 to"),
        (
            "retry = { max_attempts = 0 }",
            "retry.max_attempts must be 1 to",
        ),
        (
            "retry = { base = \"1h\", cap = \"1m\" }",
            "retry has a cap below its base",
        ),
        ("method = \"GET\"", "method is wrong: "),
        ("headers = { \"X Y\" = \"1\" }", "headers is wrong: "),
        ("timeout = \"0s\"", "timeout is wrong: "),
        (
            "ca_file = \"none.pem\"",
            "ca_file is wrong: none.pem cannot be read",
        ),
        ("status = { delivered = [99] }", "status is wrong: "),
        ("reply = { require = \"id\" }", "reply is wrong: "),
        (
            "reply = { otherwise = \"ignore\" }",
            "reply.otherwise is \"ignore\"",
        ),
        ("retry_after = \"never\"", "retry_after is \"never\""),
        ("idempotency_key = \"{key}\"", "idempotency_key is wrong: "),
        (
            "allow_http = \"yes\"",
            "allow_http is a text, not true or false",
        ),
    ] {
        refused(&with(line), &format!("line 3: channel.sales.{says}"));
    }
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let desk = Desk::new();
    desk.write(
        "outbox.toml",
        "[drain]\nworker = 4\nlease = \"0s\"\nlock_share = 2\n\n\
         [channel.sales]\nurl = \"ftp://erp.example\"\nmethod = \"GET\"\ntime_out = \"3s\"\n\
         ca_file = \"none.pem\"\nretry = { base = \"0s\", max_atempts = 3 }\nbearer = \"hunter2\"\n\n\
         [channel.mail]\nmethod = \"PUT\"\nreply = { require = \"id\" }\n\n\
         [channel.default]\nurl = \"https://erp.example/\"\nbasic = { user = \"anna\" }\non_dead = \"skip\"\n\
         status = { delivered = [409, \"410\"] }\n\n[chanel.x]\nurl = \"https://erp.example/\"\n",
    );
    let wanted = [
        (2, "drain.worker is no key; did you mean workers?"),
        (3, "drain.lease must be 1s to 10m"),
        (4, "drain.lock_share must be 0.01 to 1, not 2"),
        (7, "channel.sales.url is wrong: "),
        (8, "channel.sales.method is wrong: "),
        (9, "channel.sales.time_out is no key; did you mean timeout?"),
        (10, "channel.sales.ca_file is wrong: "),
        (
            11,
            "channel.sales.retry.max_atempts is no key; did you mean max_attempts?",
        ),
        (11, "channel.sales.retry has a base of 0"),
        (
            12,
            "channel.sales.bearer is wrong: a secret does not stand in the settings",
        ),
        (14, "channel.mail has no url"),
        (16, "channel.mail.reply is wrong: "),
        (20, "channel.default.basic has no password"),
        (
            21,
            "channel.default.on_dead is kept in the file for each channel",
        ),
        (
            22,
            "channel.default.status.delivered is a text, not a whole number",
        ),
        (24, "chanel is no key; did you mean channel?"),
    ];
    for command in ["drain", "run", "why", "check"] {
        let ran = desk.run([command, "till.db", "--config", "outbox.toml"]);
        let said = if command == "check" {
            &ran.out
        } else {
            &ran.err
        };
        let said: Vec<_> = said
            .lines()
            .filter(|it| it.contains("outbox.toml, line"))
            .collect();
        assert_eq!(said.len(), wanted.len(), "{said:#?}");
        for (line, (number, text)) in said.iter().zip(wanted) {
            assert!(
                line.contains(&format!("outbox.toml, line {number}: {text}")),
                "{line}"
            );
        }
        assert!(
            !ran.err.contains("hunter2") && !ran.out.contains("hunter2"),
            "{ran:?}"
        );
    }
    let ran = desk.run(["drain", "till.db", "--config", "outbox.toml", "--json"]);
    ran.failed(1, "line 24: chanel is no key");
    let checked = desk.json(["check", "till.db", "--config", "outbox.toml", "--json"]);
    let found = checked["findings"].as_array().unwrap();
    assert_eq!(
        found.iter().filter(|it| it["code"] == "settings").count(),
        wanted.len()
    );
}

#[test]
fn every_line_that_is_no_toml_is_told() {
    let desk = Desk::new();
    desk.write(
        "outbox.toml",
        "[drain]\nworkers = = 4\n[channel.sales]\nurl = x y\n",
    );
    let ran = desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    for line in ["line 2: ", "line 4: "] {
        assert!(ran.err.contains(line), "{ran:?}");
    }
}

#[test]
fn a_channel_needs_a_url_that_can_be_used() {
    refused("[drain]\nworkers = 1\n", "line 3: there is no channel");
    refused("[channel.sales]\n", "line 1: channel.sales has no url");
    let plain = "[channel.sales]\nmethod = \"PUT\"\nurl = \"http://erp.example/\"\n";
    refused(
        plain,
        "line 3: channel.sales.url is wrong: the URL is plain http",
    );
}

#[test]
fn a_secret_in_the_file_is_refused_and_not_repeated() {
    for line in [
        "bearer = \"hunter2\"",
        "sign = \"hunter2\"",
        "basic = \"user:hunter2\"",
        "basic = { user = \"user\", password = \"hunter2\" }",
        "secret_headers = { X-Api-Key = \"hunter2\" }",
        "bearer = { env = \"A\", file = \"B\" }",
        "bearer = {}",
        "headers = { Authorization = \"Bearer hunter2\" }",
    ] {
        let desk = Desk::new();
        desk.write("outbox.toml", with(line));
        let ran = desk.run(["drain", "till.db", "--config", "outbox.toml"]);
        ran.failed(1, "line 3: channel.sales.");
        assert!(!ran.err.contains("hunter2"), "{ran:?}");
    }
}

/// All that a settings file is refused with, line by line.
fn faults(text: &str) -> Vec<String> {
    let desk = Desk::new();
    desk.write("outbox.toml", text);
    let ran = desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    assert_eq!(ran.code, 1);
    let told = ran.err.lines();
    told.map(|it| it.trim_start_matches("error: outbox.toml, ").into())
        .collect()
}

#[test]
fn what_is_written_twice_is_named_once() {
    let section = "[channel.sales]\nurl = \"https://erp.example/\"\n";
    assert_eq!(
        faults(&format!("{section}{section}timeout = \"3s\"\n")),
        ["line 3: the section [channel.sales] is written twice: put all of it into one"]
    );
    assert_eq!(
        faults(&with("timeout = \"3s\"\ntimeout = \"4s\"")),
        ["line 4: channel.sales.timeout is written twice"]
    );
    let twice = format!("[drain]\nworkers = 1\n{section}[drain]\nworkers = 2\n");
    assert_eq!(
        faults(&twice),
        ["line 5: the section [drain] is written twice: put all of it into one"]
    );
}

#[test]
fn a_slip_within_a_value_is_named_with_what_was_meant_and_before_what_comes_of_it() {
    assert_eq!(
        faults(&with("bearer = { evn = \"X\" }")),
        ["line 3: channel.sales.bearer has no key evn; did you mean env?"]
    );
    let slips = faults(&with("client_cert = { chian = \"a\", key = \"b\" }"));
    let first = "line 3: channel.sales.client_cert.chian is no key; did you mean chain?";
    assert_eq!(slips[0], first);
    assert_eq!(
        faults("[channel.\"\"]\nurl = \"https://erp.example/\"\nmethod = \"PUT\"\n"),
        ["line 1: channel.\"\" has no name: write [channel.NAME]"]
    );
}

#[test]
fn a_file_that_is_no_toml_or_not_there_is_one_line() {
    refused("[drain\n", "line 1: ");
    refused("[channel.sales]\nurl = \"x\n", "line 2: ");
    let desk = Desk::new();
    desk.run(["drain", "till.db", "--config", "none.toml"])
        .failed(1, "the settings none.toml cannot be read");
}

const MANUAL: &str = include_str!("../../../docs/outbox.toml");

/// The manual's example, with what is commented out there switched on.
fn whole_manual() -> String {
    let switched = MANUAL.lines().map(|it| match it.strip_prefix('#') {
        Some(key) if !key.starts_with(' ') => key,
        _ => it,
    });
    switched.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_whole_file_of_the_manual_is_understood() {
    let desk = Desk::new();
    for name in ["ca.pem", "client.pem", "client.key"] {
        let tls = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/tls/");
        std::fs::copy(format!("{tls}{name}"), desk.path(name)).unwrap();
    }
    for text in [MANUAL, &whole_manual()] {
        desk.write("outbox.toml", text);
        let out = desk.done(["drain", "till.db", "--config", "outbox.toml"]);
        assert!(out.starts_with("0 sent"), "{out}");
    }
}

#[test]
fn the_manual_has_every_key_and_no_other() {
    let model = include_str!("../../../src/bin/outbox/settings/model.rs");
    let fields = model
        .lines()
        .filter_map(|it| it.trim().strip_prefix("pub(super) "));
    let keys = fields.filter_map(|it| it.split_once(": ").map(|(name, _)| name));
    let keys: Vec<_> = keys.collect();
    assert!(keys.len() > 40, "{keys:?}");
    let manual = include_str!("../../../docs/settings.md");
    let text = whole_manual();
    for key in keys {
        assert!(
            manual.contains(&format!("`{key}`"))
                || manual.contains(&format!("`[{key}"))
                || manual.contains(&format!("{key} = "))
                || manual.contains(&format!(", {key}")),
            "docs/settings.md lacks {key}"
        );
        assert!(
            text.contains(&format!("{key} = ")) || text.contains(&format!("[{key}")),
            "docs/outbox.toml lacks {key}"
        );
    }
}

#[test]
fn the_defaults_of_the_manual_are_the_defaults() {
    // Said in the table, and shown in the example.
    let settings = sqlite_outbox::Settings::default();
    let policy = sqlite_outbox::Policy::default();
    let said = format!("{settings:?} {policy:?}");
    for part in [
        "workers: 4,",
        "prefetch: 16,",
        "lease: 30s,",
        "lock_share: 0.2,",
        "settle_sync: Full,",
        "keep_payload: Some(1209600s)",
        "keep_sent: Some(34560000s)",
        "base: 30s, cap: 21600s, max_attempts: 20, min_dead_age: 86400s",
        "max_in_flight: None, rate: None, run_length: 16, brake: 10, hold: Channel, keep_answer: 4096",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}

#[test]
fn the_example_of_the_help_is_understood() {
    for command in ["drain", "run"] {
        let desk = Desk::new();
        let help = desk.done([command, "--help"]);
        let (_, rest) = help.split_once("A settings file, outbox.toml:\n").unwrap();
        let (example, _) = rest.split_once("Every key").unwrap();
        desk.write("outbox.toml", example);
        desk.done(["drain", "till.db", "--config", "outbox.toml"]);
        assert!(desk.done(["man", command]).contains("channel.sales"));
    }
}

#[test]
fn a_section_that_no_channel_can_have_is_a_fault() {
    let desk = Desk::new();
    desk.write(
        "outbox.toml",
        "[channel.\"a:b\"]\nurl = \"https://erp.example/\"\n",
    );
    let ran = desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    ran.failed(1, "no channel has a colon");
    assert!(ran.err.contains("line 1"), "{ran:?}");
}
