//! The support file, the completions and the manual.

use serde_json::Value;

use super::Desk;
use crate::server::{Server, respond};

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
    assert!(!desk.path("-").exists());
}

/// The commands that the page of the tool refers to.
fn page_names(page: &str) -> impl Iterator<Item = String> {
    let names = page
        .lines()
        .filter_map(|it| it.strip_prefix("outbox\\-")?.strip_suffix("(1)"));
    names.filter(|it| *it != "help").map(String::from)
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
