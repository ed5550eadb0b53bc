//! What a drain would refuse, could not use or should not do is known beforehand, by `check`.

use std::net::TcpListener;

use serde_json::Value;

use super::Desk;

/// Severity, channel and text of the findings with this code.
fn found(desk: &Desk, code: &str, more: &[&str]) -> Vec<(String, String, String)> {
    let args = ["check", "till.db", "--config", "outbox.toml", "--json"];
    let report = desk.run(args.iter().chain(more)).json();
    let all = report["findings"].as_array().unwrap().iter();
    let text = |it: &Value| it.as_str().unwrap_or_default().to_string();
    all.filter(|it| it["code"] == code)
        .map(|it| {
            (
                text(&it["severity"]),
                text(&it["channel"]),
                text(&it["text"]),
            )
        })
        .collect()
}

#[test]
fn a_secret_of_the_wrong_form_is_found_before_a_message_needs_it() {
    let desk = Desk::new();
    desk.write("good", "whsec_aGVsbG8gd29ybGQ=");
    desk.write("bad", "no base64, b4d");
    desk.write(
        "outbox.toml",
        "[channel.a]\nurl = \"https://erp.example/\"\nsign = { file = \"good\" }\n\
         [channel.b]\nurl = \"https://erp.example/\"\nsign = { file = \"bad\" }\n\
         [channel.c]\nurl = \"https://erp.example/\"\nbearer = { file = \"none\" }\n",
    );
    let told = found(&desk, "secret", &[]);
    let channels: Vec<_> = told.iter().map(|it| it.1.as_str()).collect();
    assert_eq!(channels, ["b", "c"], "{told:?}");
    assert!(told[0].2.contains("is not whsec_ and base64"), "{told:?}");
    assert!(told[0].2.contains("bad"), "it names the place: {told:?}");
    assert!(told[1].2.contains("none cannot be read"), "{told:?}");
    assert!(!told[0].2.contains("b4d"), "{told:?}");
}

#[test]
fn an_on_dead_that_a_drain_would_refuse_is_found() {
    let desk = Desk::new();
    desk.lane(&["1", "2"]);
    desk.write(
        "outbox.toml",
        "[channel.sales]\nurl = \"https://erp.example/\"\non_dead = \"skip\"\n",
    );
    let told = found(&desk, "on_dead", &[]);
    let drain = desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    assert_eq!(drain.code, 1);
    assert_eq!(told.len(), 1);
    assert_eq!((&*told[0].0, &*told[0].1), ("fault", "sales"));
    // The same sentence in both places.
    assert!(drain.err.contains(&told[0].2), "{drain:?} {told:?}");
}

#[test]
fn credentials_over_plain_http_are_a_warning_where_others_can_listen() {
    let desk = Desk::new();
    desk.write("token", "t0ken");
    let route = |name: &str, url: &str, more: &str| {
        format!(
            "[channel.{name}]\nurl = \"{url}\"\nallow_http = true\nreply = {{ require = \"/id\" }}\n{more}\n"
        )
    };
    let bearer = "bearer = { file = \"token\" }";
    let text = [
        route("bearer", "http://erp.example:81/", bearer),
        route(
            "basic",
            "http://erp.example/",
            "basic = { user = \"x\", password = { file = \"token\" } }",
        ),
        route(
            "secret",
            "http://erp.example/",
            "secret_headers = { X-A = { file = \"token\" } }",
        ),
        route(
            "header",
            "http://erp.example/",
            "headers = { X-Api-Key = \"17\" }",
        ),
        route("query", "http://erp.example/?token=hunter2", ""),
        route(
            "nothing",
            "http://erp.example/?store=17&key={dedupe_key}",
            "",
        ),
        route("here", "http://127.0.0.1:81/", bearer),
        route("https", "https://erp.example/", bearer),
    ];
    desk.write("outbox.toml", text.concat());
    let told = found(&desk, "plain_http", &[]);
    let channels: Vec<_> = told.iter().map(|it| it.1.as_str()).collect();
    assert_eq!(channels, ["basic", "bearer", "header", "query", "secret"]);
    assert!(told.iter().all(|it| it.0 == "warning"), "{told:?}");
    assert!(told[1].2.contains("erp.example:81"), "{told:?}");
    let told = found(&desk, "plain_secret", &[]);
    let query: Vec<_> = told.iter().filter(|it| it.1 == "query").collect();
    assert_eq!(query.len(), 1, "{told:?}");
    assert!(
        query[0].2.contains("token=…") && !query[0].2.contains("hunter2"),
        "{told:?}"
    );
    assert!(told.iter().all(|it| it.1 != "nothing"), "{told:?}");
}

/// The system takes the connection, and nobody ever says a word of TLS.
#[test]
fn a_port_that_takes_connections_and_speaks_no_tls_is_told_apart_and_waited_for_once() {
    let desk = Desk::new();
    let mute: Vec<_> = (0..12)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let routes = mute.iter().enumerate().map(|(number, it)| {
        let port = it.local_addr().unwrap().port();
        format!("[channel.c{number:02}]\nurl = \"https://127.0.0.1:{port}/\"\nconnect_timeout = \"3s\"\n")
    });
    desk.write("outbox.toml", routes.collect::<String>());
    let started = std::time::Instant::now();
    let told = found(&desk, "receiver_tls", &["--connect"]);
    // One after the other they take 36 seconds.
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    let channels: Vec<_> = told.iter().map(|it| it.1.clone()).collect();
    let all: Vec<_> = (0..12).map(|it| format!("c{it:02}")).collect();
    assert_eq!(channels, all, "in the order of the settings");
    assert!(told[0].2.contains("answers, but not with TLS"), "{told:?}");
}

/// Else it would be called no HTTP of the receiver, which never saw it.
#[test]
fn a_secret_that_no_header_can_carry_is_a_fault_beforehand_and_the_settings_fault_afterwards() {
    let desk = Desk::new();
    desk.done(["enqueue", "till.db", "--channel=sales", "--key=S-1", "{}"]);
    desk.write("token", "t0ken\u{e9}");
    desk.write(
        "outbox.toml",
        "[channel.sales]\nurl = \"http://127.0.0.1:9/\"\nbearer = { file = \"token\" }\n",
    );
    let told = found(&desk, "secret", &[]);
    assert_eq!((told.len(), &*told[0].0), (1, "fault"), "{told:?}");
    assert!(
        told[0].2.contains("character 6 of the secret is not ASCII"),
        "{told:?}"
    );
    desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    let why = desk.done(["why", "till.db", "S-1"]);
    assert!(
        why.contains("character 6 of the secret is not ASCII"),
        "{why}"
    );
    assert!(why.contains("lies with the settings"), "{why}");
    let status = desk.run(["status", "till.db", "--json"]).json();
    assert_eq!(status["channels"][0]["reason_code"], "no_credentials");
}
