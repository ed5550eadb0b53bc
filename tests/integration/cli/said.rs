//! What is printed for a person who has nothing but `--help` and these words: it can be done as told.

use serde_json::json;

use super::Desk;
use crate::server::{Server, respond};

const SALES: &str = "[channel.sales]\nurl = \"http://127.0.0.1:9/\"\n";

/// Each name is one that bare TOML would take for something else, or not at all.
#[test]
fn the_section_that_an_unrouted_channel_needs_can_be_pasted() {
    for (channel, told) in [
        ("shop.sales", "[channel.\"shop.sales\"]"),
        ("sales ", "[channel.\"sales \"]"),
        ("Kasse 2", "[channel.\"Kasse 2\"]"),
        ("größe", "[channel.\"größe\"]"),
        ("whatsapp", "[channel.whatsapp]"),
    ] {
        let desk = Desk::new();
        desk.put(channel, "S-1", "text");
        desk.write("outbox.toml", SALES);
        let args = ["check", "till.db", "--config", "outbox.toml"];
        let ran = desk.run(args);
        assert!(ran.out.contains(told), "{told}: {ran:?}");
        let more = format!("{SALES}{told}\nurl = \"http://127.0.0.1:9/\"\n");
        desk.write("outbox.toml", &more);
        let ran = desk.run(args);
        assert!(!ran.out.contains("no section"), "{told}: {ran:?}");
    }
}

#[test]
fn a_channel_that_was_mistyped_is_told_with_the_edit_that_moves_its_message() {
    let desk = Desk::new();
    desk.put("sales ", "S-1", "text");
    desk.write("outbox.toml", SALES);
    for command in ["check", "why"] {
        let ran = desk.run([command, "till.db", "--config", "outbox.toml"]);
        let edit = "id:1 --to-channel sales";
        assert!(ran.out.contains(edit), "{ran:?}");
    }
    desk.done(["edit", "till.db", "id:1", "--to-channel", "sales"]);
    let ran = desk.run(["check", "till.db", "--config", "outbox.toml"]);
    assert!(!ran.out.contains("no section"), "{ran:?}");
}

#[test]
fn a_blank_at_the_end_of_a_name_is_seen() {
    let desk = Desk::new();
    desk.put("sales ", "S-1 ", "text");
    for command in ["status", "why", "list"] {
        let ran = desk.run([command, "till.db"]);
        assert!(ran.out.contains("\"sales \""), "{ran:?}");
    }
    let text = desk.done(["why", "till.db", "id:1"]);
    assert!(text.contains("of \"sales \" (key \"S-1 \")"), "{text}");
}

#[test]
fn a_command_that_is_suggested_carries_the_settings_that_were_given() {
    let desk = Desk::new();
    desk.put("mail", "M-1", "text");
    desk.write("outbox.toml", SALES);
    let ran = desk.run(["status", "till.db", "--config", "outbox.toml"]);
    assert!(
        ran.out.contains("outbox why till.db --config outbox.toml"),
        "{ran:?}"
    );
    assert!(!ran.out.contains("status and why know"), "{ran:?}");
    let rejects = Server::start(|_| respond(422, &[], ""));
    desk.put("sales", "S-1", "text");
    desk.write(
        "outbox.toml",
        format!("[channel.sales]\nurl = \"{}\"\n", rejects.url("/")),
    );
    let ran = desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    assert!(
        ran.out.contains("outbox why till.db --config outbox.toml`"),
        "{ran:?}"
    );
}

/// The address answers, and knows nothing of the kind: the message is not the cause.
#[test]
fn a_wrong_address_is_told_as_one() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let wrong = Server::start(|_| respond(404, &[], "not found"));
    desk.run(["drain", "till.db", "--url", &wrong.url("/api/slaes")]);
    let why = desk.json(["why", "till.db", "S-1", "--json"]);
    assert_eq!(
        (&why["reason_code"], &why["fault"]),
        (&json!("offline"), &json!("route"))
    );
    let text = desk.done(["why", "till.db", "S-1"]);
    assert!(text.contains("look at the URL and the method"), "{text}");
}
