//! The receiver to rehearse with, as the tool's own drain sees it.

use serde_json::{Value, json};

use super::{Desk, Going};

fn sink(desk: &Desk, args: &[&str]) -> (Going, String) {
    let mut sink = desk.start(["sink", "--json"].iter().chain(args));
    let first: Value = serde_json::from_str(&sink.out()).unwrap();
    (sink, first["url"].as_str().unwrap().to_string())
}

fn got(sink: &mut Going) -> Value {
    serde_json::from_str(&sink.out()).unwrap()
}

fn drain(desk: &Desk, url: &str) -> super::Ran {
    desk.run(["drain", "till.db", "--json", "--url", url])
}

#[test]
fn it_takes_messages_and_prints_them_scrubbed() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "a\u{1b}[2Jb");
    let mut sink = desk.start(["sink"]);
    let line = sink.out();
    let url = line.strip_prefix("listening on ").unwrap().to_string();
    assert_eq!(drain(&desk, &url).code, 0);
    assert_eq!(sink.out(), "1 POST / -> 201, document 1");
    let mut lines = Vec::new();
    while lines.last().is_none_or(|it: &String| !it.contains("2J")) {
        lines.push(sink.out());
    }
    assert_eq!(lines.last().unwrap(), "  a\\u{1b}[2Jb");
    assert!(lines.iter().any(|it| it.starts_with("  idempotency-key: ")));
    let row = desk.json(["show", "till.db", "S-1", "--json"]);
    assert!(row["answer"].as_str().unwrap().contains("DOC-1"), "{row}");
}

/// As the help of `drain` has it, and as a captive portal answers.
#[test]
fn it_holds_the_reply_rule_of_the_help_and_a_portal_does_not() {
    for (mood, code) in [("ok", 0), ("captive", 3)] {
        let desk = Desk::new();
        desk.put("sales", "S-1", "text");
        let (_sink, url) = sink(&desk, &["--mood", mood]);
        desk.write(
            "outbox.toml",
            format!("[channel.sales]\nurl = \"{url}\"\nreply = {{ require = \"/id\" }}\n"),
        );
        let ran = desk.run(["drain", "till.db", "--config", "outbox.toml"]);
        assert_eq!(ran.code, code, "{mood}: {ran:?}");
        let why = desk.json(["why", "till.db", "S-1", "--json"]);
        match mood {
            "ok" => assert_eq!(
                desk.json(["show", "till.db", "S-1", "--json"])["provider_id"],
                "DOC-1"
            ),
            _ => {
                assert_eq!(
                    (&why["cause"], &why["fault"]),
                    (&json!("reply_rule"), &json!("network"))
                );
                assert!(
                    desk.run(["check", "till.db"])
                        .out
                        .contains("log in to the network")
                );
            }
        }
    }
}

#[test]
fn credentials_are_not_printed() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let (mut sink, url) = sink(&desk, &[]);
    desk.write("token", "t0ken");
    desk.write(
        "outbox.toml",
        format!("[channel.sales]\nurl = \"{url}\"\nbearer = {{ file = \"token\" }}\n"),
    );
    desk.run(["drain", "till.db", "--config", "outbox.toml"]);
    let got = got(&mut sink);
    assert_eq!(got["headers"]["authorization"], "Bearer …");
    assert_eq!(
        (&got["body"], &got["answered"]),
        (&json!("text"), &json!(201))
    );
}

#[test]
fn connections_are_kept() {
    let desk = Desk::new();
    desk.feed(
        "1\n2\n3\n",
        ["enqueue", "till.db", "--channel=a", "--lines=-"],
    );
    let (mut sink, url) = sink(&desk, &[]);
    let ran = desk.run(["drain", "till.db", "--json", "--workers=1", "--url", &url]);
    assert_eq!(ran.json()["sent"], 3);
    let documents: Vec<_> = (0..3).map(|_| got(&mut sink)["document"].clone()).collect();
    assert_eq!(documents, [1, 2, 3]);
}

#[test]
fn a_lost_answer_is_sent_again_and_makes_no_second_document() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let (mut sink, url) = sink(&desk, &["--mood", "lost-answer"]);
    let drain = ["drain", "till.db", "--json", "--now", "--url", &url];
    desk.run(drain);
    desk.run(drain);
    let (first, second) = (got(&mut sink), got(&mut sink));
    assert_eq!(
        (&first["answered"], &first["document"]),
        (&Value::Null, &json!(1))
    );
    assert_eq!(
        (&second["answered"], &second["document"]),
        (&json!(200), &json!(1))
    );
    assert_eq!(second["repeated"], true);
    let row = desk.json(["show", "till.db", "S-1", "--json"]);
    assert_eq!(row["status"], "sent");
}

#[test]
fn each_mood_is_what_it_says() {
    let cases = [
        ("refuse", 3, "offline"),
        ("401", 3, "unauthorised"),
        ("503", 3, "offline"),
        ("reject", 4, "ok"),
    ];
    for (mood, code, state) in cases {
        let desk = Desk::new();
        desk.put("sales", "S-1", "text");
        let (_sink, url) = sink(&desk, &["--mood", mood]);
        let ran = drain(&desk, &url);
        assert_eq!(ran.code, code, "{mood}: {ran:?}");
        let found = ran.json()["channels"][0]["state"].clone();
        let held = mood == "503" && found == "holding";
        assert!(found == state || held, "{mood}: {ran:?}");
    }
}

#[test]
fn a_captive_portal_is_seen_through_with_a_reply_rule() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let (_sink, url) = sink(&desk, &["--mood", "captive"]);
    desk.write(
        "outbox.toml",
        format!("[channel.sales]\nurl = \"{url}\"\nreply = {{ require = \"/data/name\" }}\n"),
    );
    let ran = desk.run(["drain", "till.db", "--config", "outbox.toml", "--json"]);
    assert_eq!(
        (ran.code, ran.json()["sent"].clone()),
        (3, json!(0)),
        "{ran:?}"
    );
}

#[test]
fn a_slow_one_answers_in_its_own_time() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let (_sink, url) = sink(&desk, &["--mood", "slow", "--delay", "300ms"]);
    let ran = drain(&desk, &url);
    assert_eq!(ran.code, 0);
    assert!(ran.json()["elapsed_ms"].as_u64().unwrap() >= 300, "{ran:?}");
}

#[test]
fn a_port_that_is_taken_is_one_line() {
    let desk = Desk::empty();
    let (_sink, url) = sink(&desk, &[]);
    let port = url.trim_end_matches('/').rsplit(':').next().unwrap();
    desk.run(["sink", "--port", port]).failed(1, port);
}

#[test]
fn a_broken_deployment_answers_400_and_only_the_brake_is_reached() {
    let desk = Desk::new();
    let lines: String = (1..=15).map(|it| format!("{it}\n")).collect();
    desk.feed(lines, ["enqueue", "till.db", "--channel=a", "--lines=-"]);
    let (_sink, url) = sink(&desk, &["--mood", "400"]);
    let ran = desk.run(["drain", "till.db", "--json", "--workers=1", "--url", &url]);
    assert_eq!(ran.json()["dead"], 10);
    // The receiver is suspected, so that is what is told, with the way out.
    let text = desk.done(["why", "till.db"]);
    let mut lines = text.lines().map(str::trim);
    assert!(lines.any(|it| it.starts_with("outbox resume ")), "{text}");
    assert!(
        text.contains("the fault is probably the receiver's"),
        "{text}"
    );
    let one = desk.json(["why", "till.db", "1", "--json"]);
    assert_eq!(
        (&one["fault"], &one["failure"]),
        (&json!("receiver"), &json!("http_400"))
    );
    assert_eq!(one["commands"].as_array().unwrap().len(), 2);
}

/// Somebody looks with a browser, or `check --connect` calls.
#[test]
fn a_look_at_it_is_no_message() {
    let desk = Desk::new();
    desk.put("sales", "S-1", "text");
    let (mut sink, url) = sink(&desk, &[]);
    let ask = |method: &str| {
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let request = format!("{method} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        answer
    };
    let head = ask("HEAD");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    assert!(ask("GET").ends_with("\r\n\r\n{\"status\":\"ok\"}"));
    assert_eq!(drain(&desk, &url).code, 0);
    let documents: Vec<_> = (0..3).map(|_| got(&mut sink)["document"].clone()).collect();
    assert_eq!(documents, [Value::Null, Value::Null, json!(1)]);
}

#[test]
fn a_body_in_chunks_is_taken_and_a_broken_one_is_refused_aloud() {
    use std::io::{Read, Write};
    let desk = Desk::new();
    let (mut sink, url) = sink(&desk, &[]);
    let place = url.strip_prefix("http://").unwrap().trim_end_matches('/');
    let ask = |head: &str, body: &str| {
        let mut stream = std::net::TcpStream::connect(place).unwrap();
        let text =
            format!("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let chunked = "Transfer-Encoding: chunked";
    let answer = ask(
        chunked,
        "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: 1\r\n\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    assert_eq!(got(&mut sink)["body"], "abcde");
    for (head, body, status) in [
        (chunked, "3\r\nab", "400"),
        (chunked, "zz\r\n", "400"),
        (chunked, "ffffffffffffffff\r\n", "413"),
        ("Transfer-Encoding: gzip, chunked", "", "501"),
        ("Content-Length: many", "", "400"),
        ("Content-Length: 99999999999", "", "413"),
    ] {
        let answer = ask(head, body);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{head}: {answer}"
        );
        sink.err(&format!("a request was refused: {status}"));
    }
}
