//! The support file, the completions and the manual.

use serde_json::Value;

use super::Desk;
use crate::server::{Server, ok, respond};

#[test]
fn a_support_file_tells_what_happened_and_nothing_private() {
    let desk = Desk::new();
    desk.done([
        "enqueue",
        "till.db",
        "--channel=sales",
        "--key=PRIVATE-key",
        "--recipient=PRIVATE-phone",
        "--principal=PRIVATE-anna",
        "--header=X-A: PRIVATE-header",
        "{\"PRIVATE\":\"payload\"}",
    ]);
    let server = Server::start(|_| respond(422, &[], r#"{"detail":"no article"}"#));
    desk.write("token", "PRIVATE-token");
    let url = server.url("/sales?key=PRIVATE-query");
    desk.write(
        "outbox.toml",
        format!(
            "[channel.sales]\nurl = \"{url}\"\nbearer = {{ file = \"token\" }}\n\
             headers = {{ X-B = \"PRIVATE-value\" }}\n"
        ),
    );
    desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    desk.done(["pause", "till.db", "sales", "--reason", "wait \u{1b}[2J"]);
    desk.done([
        "bundle",
        "till.db",
        "support.json",
        "--config",
        "outbox.toml",
    ]);
    let text = std::fs::read_to_string(desk.path("support.json")).unwrap();
    assert!(!text.contains("PRIVATE"), "{text}");
    assert!(!text.chars().any(|it| it.is_control() && it != '\n'));
    let bundle: Value = serde_json::from_str(&text).unwrap();
    let message = &bundle["messages"][0];
    assert_eq!(message["status"], "dead");
    assert!(
        message["last_error"]
            .as_str()
            .unwrap()
            .contains("no article")
    );
    assert_eq!(message["failed_attempts"][0]["http_status"], 422);
    assert_eq!(message["payload_bytes"], 21);
    assert_eq!(bundle["audit"][0]["action"], "pause");
    assert_eq!(bundle["status"]["channels"][0]["state"], "paused");
    assert_eq!(bundle["dead"][0]["code"], "http_422");
    assert!(bundle["file"]["sqlite"].is_string() && bundle["tool"].is_string());
    let codes = bundle["findings"].as_array().unwrap();
    assert!(codes.iter().any(|it| it["code"] == "dead_letters"));
    let url = bundle["settings"]["channel"]["sales"]["url"]
        .as_str()
        .unwrap();
    assert!(url.ends_with("/sales?…"), "{url}");
}

#[test]
fn a_support_file_overwrites_nothing_and_names_broken_settings() {
    let desk = Desk::new();
    desk.write("there.json", "notes");
    desk.run(["bundle", "till.db", "there.json"])
        .failed(1, "nothing is overwritten");
    desk.run(["bundle", "till.db", "no/folder/b.json"])
        .failed(1, "cannot be written");
    assert_eq!(std::fs::read(desk.path("there.json")).unwrap(), b"notes");
    desk.write(
        "outbox.toml",
        "[channel.a]\nurl = \"https://u:PRIVATE@erp.example/\"\nbearer = \"PRIVATE\"\n",
    );
    let done = desk.json([
        "bundle",
        "till.db",
        "b.json",
        "--config",
        "outbox.toml",
        "--json",
    ]);
    let text = std::fs::read_to_string(desk.path("b.json")).unwrap();
    assert_eq!(done["bytes"], text.len());
    assert!(!text.contains("PRIVATE"), "{text}");
    let bundle: Value = serde_json::from_str(&text).unwrap();
    assert!(
        bundle["settings_error"]
            .as_str()
            .unwrap()
            .contains("line 3")
    );
    assert_eq!(bundle["settings"], Value::Null);
}

#[test]
fn a_support_file_goes_to_standard_output_for_a_dash() {
    let desk = Desk::new();
    desk.put("sales", "PRIVATE-key", "PRIVATE");
    let text = desk.done(["bundle", "till.db", "-"]);
    let bundle: Value = serde_json::from_str(&text).unwrap();
    assert!(
        bundle["why"][0]
            .as_str()
            .unwrap()
            .contains("Message 1 of sales (key …)")
    );
    assert!(!text.contains("PRIVATE"), "{text}");
    // For programs all of it is one line, as with every command.
    let ran = desk.run(["bundle", "till.db", "-", "--json"]);
    assert_eq!(ran.out.lines().count(), 1, "{ran:?}");
    assert_eq!(ran.json()["why"], bundle["why"]);
    assert!(!desk.path("-").exists());
}

#[test]
fn a_receiver_that_repeats_everything_gets_nothing_private_into_it() {
    let desk = Desk::new();
    let server = Server::start(|seen| {
        let body = String::from_utf8_lossy(&seen.body).into_owned();
        let text = format!("bad: {body} {:?} {}", seen.headers, seen.target);
        let answer = serde_json::json!({"detail": text, "all": text}).to_string();
        respond(422, &[], &answer)
    });
    let url = server.url("/sales?key=PRIVATE-query");
    desk.write(
        "outbox.toml",
        format!(
            "[channel.default]\nurl = \"{url}\"\nheaders = {{ X-Api-Key = \"PRIVATE\", X-B = \"PRIVATE-value\" }}\n"
        ),
    );
    for payload in [
        r#"{"name":"PRIVATE anna","list":[{"total":471100}]}"#,
        "PRIVATE line\nPRIVATE other",
    ] {
        desk.done([
            "enqueue",
            "till.db",
            "--channel=sales",
            "--content-type=text/plain",
            "--header=X-A: PRIVATE-header",
            "--recipient=PRIVATE-phone",
            payload,
        ]);
    }
    desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    // As rows were that older versions wrote.
    desk.sql()
        .execute_batch(
            "UPDATE outbox SET last_error = last_error || ' PRIVATE-header PRIVATE-value';
             UPDATE outbox_channel SET state = 'offline', reason = 'HTTP 500 Oops: PRIVATE anna';",
        )
        .unwrap();
    let text = desk.done(["bundle", "till.db", "-", "--config", "outbox.toml"]);
    assert!(
        !text.contains("PRIVATE") && !text.contains("471100"),
        "{text}"
    );
    let bundle: Value = serde_json::from_str(&text).unwrap();
    let error = bundle["messages"][0]["last_error"].as_str().unwrap();
    assert!(
        error.contains("HTTP 422 Said so: …") || error.contains("HTTP 422 Unprocessable Entity: …"),
        "{error}"
    );
}

/// The key stands in the URL, so "not found" repeats it escaped; others shout, or quote what was quoted.
#[test]
fn a_key_is_left_out_however_a_receiver_spells_it() {
    type Spell = fn(&str, &str, &str) -> String;
    let desk = Desk::new();
    let key = "Köln \"Meier\"/4711 & <Co>";
    let escaped = serde_json::to_string(key).unwrap();
    let spellings: [(&str, Spell); 8] = [
        ("url", |_, path, _| path.to_owned()),
        ("small", |_, path, _| path.to_lowercase()),
        ("form", |_, path, _| path.replace("%20", "+")),
        ("shouted", |key, _, _| key.to_uppercase()),
        ("json", |_, _, escaped| escaped.to_owned()),
        ("twice", |_, _, escaped| {
            serde_json::to_string(escaped).unwrap()
        }),
        ("ascii", |_, _, escaped| escaped.replace('ö', "\\u00f6")),
        ("html", |_, _, _| {
            "Köln &quot;Meier&quot;/4711 &amp; &lt;Co&gt;".to_owned()
        }),
    ];
    let server = Server::start(move |seen| {
        let (channel, path) = seen.target[1..].split_once('/').unwrap();
        let (_, spell) = spellings.iter().find(|it| it.0 == channel).unwrap();
        let text = format!("not found: {}, sorry", spell(key, path, &escaped));
        respond(422, &[], &serde_json::json!({"message": text}).to_string())
    });
    let url = server.url("/{channel}/{dedupe_key}");
    desk.write(
        "outbox.toml",
        format!("[channel.default]\nurl = \"{url}\"\n"),
    );
    for (channel, _) in &spellings {
        desk.put(channel, key, "{}");
    }
    desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    let text = desk.done(["bundle", "till.db", "-"]).to_lowercase();
    for part in ["meier", "4711", "c3%b6", "u00f6"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
    let bundle: Value = serde_json::from_str(&text).unwrap();
    let messages = bundle["messages"].as_array().unwrap();
    assert_eq!(messages.len(), spellings.len());
    for message in messages {
        let error = message["last_error"].as_str().unwrap();
        let told = error.split(';').next().unwrap().replace(['"', '\\'], "");
        assert_eq!(told, "not found: …, sorry", "{message}");
    }
}

/// Nobody forbids people to name a customer in the record.
#[test]
fn reasons_of_people_are_told_without_keys_and_payloads_of_what_they_are_about() {
    let desk = Desk::new();
    let put = |key: &str, more: &[&str]| {
        let args = ["enqueue", "till.db", "--channel=sales", "--key", key];
        desk.done(args.iter().chain(more));
    };
    put(
        "PRIVATE-1/a",
        &["--recipient=PRIVATE-phone", r#"{"name":"PRIVATE Meier"}"#],
    );
    put("PRIVATE-2/b", &[r#"{"name":"PRIVATE Schmidt"}"#]);
    put("PRIVATE-3/c", &["3"]);
    let why = "--reason=Mr private meier called from PRIVATE-phone: private-1%2Fa, not his";
    desk.done(["cancel", "till.db", "id:1", why]);
    let why = "--reason=was Private Schmidt";
    desk.done(["edit", "till.db", "id:2", r#"{"name":"other"}"#, why]);
    desk.done([
        "pause",
        "till.db",
        "sales",
        "--reason=until PRIVATE-3/c is clear",
    ]);
    let server = Server::start(|_| ok());
    desk.put("other", "PRIVATE-4", "x");
    desk.run(["drain", "till.db", "--url", &server.url("/")]);
    desk.done([
        "send-again",
        "till.db",
        "PRIVATE-4",
        "--key=PRIVATE-5",
        "--reason=lost",
    ]);
    let text = desk.done(["bundle", "till.db", "-"]);
    assert!(!text.to_lowercase().contains("private"), "{text}");
    let bundle: Value = serde_json::from_str(&text).unwrap();
    let reasons = bundle["audit"].as_array().unwrap().iter();
    let reasons: Vec<_> = reasons.map(|it| it["reason"].as_str().unwrap()).collect();
    assert_eq!(
        reasons,
        [
            "it is message 4, key …; lost",
            "as message 5, key …; lost",
            "until … is clear",
            "was …",
            "Mr … called from …: …, not his",
        ]
    );
    let channels = bundle["status"]["channels"].as_array().unwrap();
    let paused = channels.iter().find(|it| it["channel"] == "sales").unwrap();
    assert!(
        paused["reason"]
            .as_str()
            .unwrap()
            .contains("until … is clear"),
        "{paused}"
    );
}

/// That is when it is needed most.
#[test]
fn of_a_damaged_file_it_has_what_can_be_read_and_says_what_is_missing() {
    let desk = Desk::new();
    desk.sql()
        .execute_batch(
            "INSERT INTO outbox (channel, payload, status, last_error, settled_at)
             SELECT 'sales', randomblob(3000), 'dead', 'no article', 1
               FROM (WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300) SELECT i FROM n);
             INSERT INTO outbox_audit (at, who, action) VALUES (1, 'anna', 'pause');
             PRAGMA wal_checkpoint(TRUNCATE);",
        )
        .unwrap();
    let whole = std::fs::read(desk.path("till.db")).unwrap();
    let pages = whole.len() / 4096;
    let (mut some, mut told) = (0, 0);
    for at in (1..pages).step_by(pages / 40) {
        let mut bytes = whole.clone();
        bytes[at * 4096..(at + 1) * 4096].fill(0xa5);
        desk.write("damaged.db", &bytes);
        let ran = desk.run(["bundle", "damaged.db", "-"]);
        assert_eq!(ran.code, 0, "page {at}: {ran:?}");
        let bundle: Value = serde_json::from_str(&ran.out).unwrap();
        let damaged = bundle["findings"].as_array().unwrap();
        let damaged = damaged.iter().any(|it| it["code"] == "damaged");
        let missing = !bundle["missing"].as_array().unwrap().is_empty();
        assert_eq!(
            missing,
            ran.err.contains("could not be read"),
            "page {at}: {ran:?}"
        );
        assert!(damaged || missing, "page {at}: {bundle:#}");
        some += usize::from(!bundle["messages"].as_array().unwrap().is_empty());
        told += usize::from(missing);
        assert!(bundle["file"]["bytes"].as_u64().unwrap() > 0);
    }
    assert!(
        some > 10 && told > 0,
        "{some} with messages, {told} lack something"
    );
}

/// The commands that the page of the tool refers to.
fn page_names(page: &str) -> impl Iterator<Item = String> {
    let names = page
        .lines()
        .filter_map(|it| it.strip_prefix("outbox\\-")?.strip_suffix("(1)"));
    let names = names.filter(|it| *it != "help");
    names.map(|it| it.replace("\\-", "-"))
}

#[test]
fn shells_know_the_values_of_a_status() {
    let desk = Desk::empty();
    for shell in ["bash", "zsh", "fish"] {
        let text = desk.done(["completions", shell]);
        for status in [
            "pending",
            "waiting",
            "sending",
            "dead",
            "expired",
            "cancelled",
        ] {
            assert!(text.contains(status), "{shell} {status}");
        }
    }
}

#[test]
fn shells_and_man_get_what_they_want() {
    let desk = Desk::empty();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let text = desk.done(["completions", shell]);
        // The last two know no values.
        let known = match shell {
            "powershell" | "elvish" => "mood",
            _ => "lost-answer",
        };
        assert!(text.contains("outbox") && text.contains(known), "{shell}");
    }
    assert_eq!(desk.run(["completions", "tcsh"]).code, 2);
    let page = desk.done(["man"]);
    assert!(
        page.contains(".TH outbox 1") && page.contains("outbox\\-drain"),
        "{page}"
    );
    let page = desk.done(["man", "drain"]);
    assert!(
        page.contains(".TH outbox-drain 1") && page.contains("deadline"),
        "{page}"
    );
    let synopsis = page.lines().find(|it| it.starts_with("\\fBoutbox drain"));
    for option in [
        r"[\fB\-\-deadline\fR \fID\fR]",
        r"<\fB\-\-config\fR \fIFILE\fR|\fB\-\-url\fR \fIURL\fR>",
        r"[\fB\-\-now\fR]",
    ] {
        assert!(synopsis.unwrap().contains(option), "{synopsis:?}");
    }
    desk.run(["man", "dance"]).failed(2, "dance");
    let settings = desk.done(["man", "outbox.toml"]);
    assert_eq!(settings, include_str!("../../../docs/outbox.toml"));
    // Every command has a page and a help, with sections of their own and nothing left over.
    let commands = Vec::from_iter(page_names(&desk.done(["man"])));
    assert!(commands.len() > 20, "{commands:?}");
    for command in &commands {
        let page = desk.done(["man", command]);
        for part in [".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH EXAMPLES"] {
            assert!(page.contains(part), "{command} {part}: {page}");
        }
        assert!(!page.contains(".SH EXTRA"), "{page}");
        let help = desk.done(["help", command]);
        assert_eq!(help, desk.done([command, "--help"]));
    }
    assert!(
        desk.done(["man", "drain"])
            .contains(".SH EXIT STATUS\n.nf\n  0  all is sent\n")
    );
    assert_eq!(desk.done(["help"]), desk.done(["--help"]));
    assert_eq!(desk.run(["help", "dance"]).code, 2);
}

#[test]
fn a_support_file_is_made_without_settings_that_cannot_be_read_and_says_so() {
    let desk = Desk::new();
    desk.write("broken.toml", "[channel.sales\n");
    desk.write("wrong.toml", "[channel.sales]\nurl = \"x\"\n");
    for (number, config) in [".", "broken.toml", "wrong.toml"].iter().enumerate() {
        let to = format!("b{number}.json");
        let drain = desk.run(["drain", "till.db", "--config", config]);
        let ran = desk.run(["bundle", "till.db", &to, "--config", config]);
        // As every other command with these settings.
        assert_eq!((ran.code, &ran.err), (1, &drain.err), "{config}");
        let text = std::fs::read_to_string(desk.path(&to)).unwrap();
        let bundle: Value = serde_json::from_str(&text).unwrap();
        assert!(bundle["settings_error"].is_string(), "{config}: {bundle}");
        let ran = desk.run(["bundle", "till.db", "-", "--config", config]);
        assert_eq!((ran.code, &ran.err), (1, &drain.err), "{config}");
        assert!(ran.out.contains("settings_error"), "{config}");
    }
    // A name that is mistyped is no state of the shop: the same command goes through once it is right.
    let ran = desk.run(["bundle", "till.db", "b.json", "--config", "none.toml"]);
    ran.failed(1, "the settings none.toml cannot be read");
    assert!(!desk.path("b.json").exists());
}
