//! The command that is printed sends what the outbox would send.

use std::process::Command;

use super::Desk;
use crate::server::{Server, ok};

const CURL: [&str; 3] = ["curl", "till.db", "1"];

fn printed(desk: &Desk) -> String {
    desk.done(CURL.into_iter().chain(["--config", "outbox.toml"]))
}

/// Runs what was printed in a shell.
fn shell(desk: &Desk, script: &str) {
    desk.write("script", script);
    let output = Command::new("sh")
        .arg("script")
        .current_dir(desk.folder.path())
        .env("ERP_TOKEN", "t0ken \"quoted\" $HOME")
        .env("http_proxy", "http://127.0.0.1:9")
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}\n{output:?}");
}

#[cfg(unix)]
#[test]
fn any_payload_arrives_byte_for_byte_and_the_key_is_the_same() {
    let payloads: Vec<Vec<u8>> = vec![
        br#"{"it's":"$HOME `id` \\ \"x\" !"}"#.to_vec(),
        b"@/etc/passwd".to_vec(),
        b"two\nlines\n\n".to_vec(),
        b"".to_vec(),
        (0..=255).collect(),
        "\u{1b}[2J \u{202e}".into(),
        b"-d".to_vec(),
        "\u{e4}".repeat(100_000).into_bytes(),
    ];
    for payload in payloads {
        let desk = Desk::new();
        let server = Server::start(|_| ok());
        desk.sql()
            .execute(
                "INSERT INTO outbox (channel, dedupe_key, headers, content_type, payload)
                 VALUES ('sales', 'S 1[{}]', '{\"x-note\":\"it''s $5\"}', 'text/plain', ?1)",
                [&payload],
            )
            .unwrap();
        // White space around a secret is no part of it.
        desk.write("it's a secret", "\r\n\t f1le  a\r\n\n");
        desk.write(
            "outbox.toml",
            format!(
                "[channel.sales]\nurl = \"{}\"\nbearer = {{ env = \"ERP_TOKEN\" }}\n\
                 secret_headers = {{ x-shop = {{ file = \"it's a secret\" }} }}\n",
                server.url("/sales/{dedupe_key}?a=1&b={channel}")
            ),
        );
        let script = printed(&desk);
        assert!(
            !script.chars().any(|it| it.is_control() && it != '\n'),
            "{script:?}"
        );
        assert!(
            !script.contains("t0ken") && !script.contains("f1le"),
            "{script}"
        );
        shell(&desk, &script);
        desk.run(["drain", "till.db", "--config", "outbox.toml"]);
        let by_hand = server.seen().remove(0);
        assert_eq!(by_hand.body, payload);
        assert_eq!(by_hand.target, "/sales/S%201%5B%7B%7D%5D?a=1&b=sales");
        let header = |name| by_hand.header(name);
        assert_eq!(
            header("authorization"),
            Some("Bearer t0ken \"quoted\" $HOME")
        );
        assert_eq!(header("x-shop"), Some("f1le  a"));
        assert_eq!(header("x-note"), Some("it's $5"));
        assert_eq!(header("content-type"), Some("text/plain"));
        let row = desk.json(["show", "till.db", "1", "--json"]);
        assert_eq!(header("idempotency-key"), row["message_id"].as_str());
        assert_eq!(row["status"], "pending", "the outbox heard of it");
    }
}

#[cfg(unix)]
#[test]
fn a_login_is_made_in_the_shell() {
    let desk = Desk::new();
    let server = Server::start(|_| ok());
    desk.put("sales", "S-1", "text");
    desk.write(
        "outbox.toml",
        format!(
            "[channel.sales]\nurl = \"{}\"\nbasic = {{ user = \"till$7\\\"\", password = {{ file = \"pw\" }} }}\n",
            server.url("/")
        ),
    );
    let password = "p".repeat(100);
    // As editors leave it, those of Windows with a mark at its beginning.
    for stored in [
        format!("\n {password} \n"),
        format!("\u{feff}{password}\r\n"),
    ] {
        desk.write("pw", stored);
        shell(&desk, &printed(&desk));
    }
    desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    let seen = server.seen();
    for name in ["authorization", "user-agent"] {
        let sent = seen[2].header(name);
        assert!(sent.is_some() && seen[0].header(name) == sent, "{name}");
        assert_eq!(seen[1].header(name), sent, "{name}");
    }
}

#[test]
fn json_has_the_parts_and_the_command() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.write(
        "outbox.toml",
        "[channel.sales]\nurl = \"https://erp.example/sales\"\nmethod = \"PUT\"\nproxy = \"http://user:pw@proxy.example:3128\"\n\
         sign = { env = \"SECRET\" }\n",
    );
    let ran = desk.run(
        CURL.into_iter()
            .chain(["--config", "outbox.toml", "--json"]),
    );
    assert!(ran.err.contains("$SIGNATURE"), "{ran:?}");
    let shown = ran.json();
    assert_eq!(shown["method"], "PUT");
    assert_eq!(shown["headers"]["webhook-signature"], "$SIGNATURE");
    assert_eq!(shown["proxy"], "proxy.example:3128");
    let command = shown["command"].as_str().unwrap();
    assert!(
        command.starts_with("curl --request PUT")
            && !command.contains("pw@")
            && command.contains("--proxy-user \"$PROXY_LOGIN\""),
        "{command}"
    );
    assert!(ran.err.contains("$PROXY_LOGIN"), "{ran:?}");
}

#[test]
fn what_cannot_be_sent_is_one_line() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.put("other", "O-1", "text");
    desk.write(
        "outbox.toml",
        "[channel.sales]\nurl = \"https://erp.example/{recipient}\"\n",
    );
    let curl = |which| desk.run(["curl", "till.db", which, "--config", "outbox.toml"]);
    curl("S-1").failed(1, "no recipient");
    curl("O-1").failed(1, "no route for channel other");
    curl("S-9").failed(1, "S-9");
    desk.sql()
        .execute_batch("UPDATE outbox SET headers = 'text', recipient = 'r' WHERE id = 1")
        .unwrap();
    curl("S-1").failed(1, "no JSON object");
    // Its URL would have replacement characters.
    desk.sql()
        .execute_batch(
            "UPDATE outbox SET headers = NULL, recipient = CAST(x'ff41' AS TEXT) WHERE id = 1",
        )
        .unwrap();
    curl("S-1").failed(1, "recipient is not valid UTF-8");
}

#[test]
fn each_secret_without_a_name_is_to_be_filled_in_by_its_own() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.write(
        "outbox.toml",
        "[channel.sales]\nurl = \"https://erp.example/\"\nbearer = { command = [\"echo\", \"x\"] }\n\
         [channel.sales.secret_headers]\nx-a = { command = [\"echo\", \"a\"] }\n\
         x_a = { command = [\"echo\", \"b\"] }\nx-b = { env = \"SECRET_X_B\" }\n",
    );
    let ran = desk.run(["curl", "till.db", "S-1", "--config", "outbox.toml"]);
    assert!(
        ran.err
            .contains("fill in $SECRET, $SECRET_X_A, $SECRET_X__A\n"),
        "{ran:?}"
    );
    for header in [
        "\"authorization: Bearer $SECRET\"",
        "\"x-a: $SECRET_X_A\"",
        "\"x_a: $SECRET_X__A\"",
    ] {
        assert!(ran.out.contains(header), "{header}: {ran:?}");
    }
}

/// A drain refuses it, as no header can carry it: neither are its lines joined.
#[cfg(unix)]
#[test]
fn of_a_secret_of_several_lines_nothing_is_sent() {
    for secret in ["one\ntwo\n", "one\rtwo", "\u{feff}one\r\n\r\ntwo\r\n"] {
        let desk = Desk::new();
        let server = Server::start(|_| ok());
        desk.put("sales", "S-1", "text");
        desk.write("token", secret);
        desk.write(
            "outbox.toml",
            format!(
                "[channel.sales]\nurl = \"{}\"\nsecret_headers = {{ x-key = {{ file = \"token\" }} }}\n",
                server.url("/")
            ),
        );
        let drained = desk.run(["drain", "till.db", "--config", "outbox.toml"]);
        assert!(drained.out.contains("line break"), "{drained:?}");
        shell(&desk, &printed(&desk));
        let seen = server.seen();
        assert_eq!(
            (seen.len(), seen[0].header("x-key")),
            (1, None),
            "{secret:?}"
        );
    }
}

#[test]
fn it_shows_status_and_headers_of_the_answer_when_asked_to() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    desk.write(
        "outbox.toml",
        "[channel.sales]\nurl = \"https://erp.example/\"\n",
    );
    assert!(printed(&desk).starts_with("curl --request POST "));
    let args = ["curl", "till.db", "S-1", "--config", "outbox.toml"];
    let script = desk.done(args.into_iter().chain(["--include"]));
    assert!(
        script.starts_with("curl --include --request POST "),
        "{script}"
    );
}

#[test]
fn paths_mean_the_same_wherever_the_command_is_run() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    std::fs::create_dir(desk.path("etc")).unwrap();
    let tls = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/tls/ca.pem");
    std::fs::copy(tls, desk.path("etc/ca.pem")).unwrap();
    desk.write(
        "etc/outbox.toml",
        "[channel.sales]\nurl = \"https://erp.example/\"\nbearer = { file = \"token\" }\n\
         ca_file = \"ca.pem\"\n",
    );
    let args = ["curl", "till.db", "S-1", "--config", "etc/outbox.toml"];
    let script = desk.done(args);
    let folder = std::fs::canonicalize(desk.path("etc")).unwrap();
    let whole = |name: &str| std::fs::canonicalize(folder.join(name)).unwrap_or(folder.join(name));
    for name in ["token", "ca.pem"] {
        let named = script
            .split(['\'', ' ', '\n'])
            .find(|it| it.ends_with(name));
        let named = std::path::PathBuf::from(named.unwrap());
        assert!(named.is_absolute(), "{script}");
        let folder = std::fs::canonicalize(named.parent().unwrap()).unwrap();
        assert_eq!(
            folder.join(named.file_name().unwrap()),
            whole(name),
            "{script}"
        );
    }
}
