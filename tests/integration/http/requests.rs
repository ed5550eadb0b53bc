use super::*;

#[test]
fn a_request_carries_the_message_byte_for_byte() {
    let server = Server::start(|_| ok());
    let route = Route::new(
        "put",
        server.url("/sales/{dedupe_key}?e={event_type}&r={recipient}"),
    )
    .header("X-Store", "17")
    .header("X-Lane", "route");
    let payload = [0, 159, 146, 150, b'\r', b'\n', 255];
    let mut message = Delivery::new("sales", payload);
    message.dedupe_key = "S/1 ä".into();
    message.event_type = Some("sale.completed".into());
    message.recipient = Some("+41 79".into());
    message.content_type = "application/x-odd".into();
    message.headers = vec![
        ("X-Trace".into(), "abc".into()),
        ("x-lane".into(), "own".into()),
    ];
    delivered(send(&over(route), &message));
    let seen = server.seen().remove(0);
    assert_eq!(seen.method, "PUT");
    assert_eq!(
        seen.target,
        "/sales/S%2F1%20%C3%A4?e=sale.completed&r=%2B41%2079"
    );
    assert_eq!(seen.body, payload);
    let wanted = [
        ("content-type", "application/x-odd"),
        ("idempotency-key", "message-1"),
        ("x-store", "17"),
        ("x-lane", "own"),
        ("x-trace", "abc"),
        (
            "user-agent",
            concat!("sqlite-outbox/", env!("CARGO_PKG_VERSION")),
        ),
    ];
    for (name, value) in wanted {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
    assert_eq!(seen.header("expect"), None);
    assert_eq!(seen.header("accept-encoding"), None);
}

#[test]
fn an_empty_payload_is_an_empty_body() {
    let server = Server::start(|_| ok());
    delivered(send(&to(&server), &Delivery::new("sales", "")));
    let seen = server.seen().remove(0);
    assert_eq!(seen.header("content-length"), Some("0"));
}

#[test]
fn the_idempotency_key_is_the_same_in_every_attempt_and_made_as_the_route_says() {
    let server = Server::start(|seen| match seen.number {
        1 => respond(503, &[], ""),
        _ => ok(),
    });
    let route = Route::post(server.url("/"))
        .idempotency_header("X-Request-Id")
        .idempotency_key("{instance}:{channel}:{dedupe_key}");
    let dispatcher = over(route);
    let mut message = sale();
    message.dedupe_key = "Käse".into();
    retry(send(&dispatcher, &message));
    message.attempt = 2;
    delivered(send(&dispatcher, &message));
    let keys: Vec<_> = server.seen();
    for seen in &keys {
        assert_eq!(
            seen.header("x-request-id"),
            Some("instance-1:sales:K%C3%A4se")
        );
        assert_eq!(seen.header("idempotency-key"), None);
        assert_eq!(seen.body, message.payload);
    }
    assert_eq!(keys.len(), 2);
}

#[test]
fn a_message_that_cannot_be_sent_is_rejected_here_and_nothing_goes_out() {
    let server = Server::start(|_| ok());
    let route = Route::post(server.url("/{recipient}/{dedupe_key}"))
        .idempotency_header("X-Request-Id")
        .secret_header("X-Shop-Key", Secret::value("s3cr3t"));
    let dispatcher = over(route);
    let good = || {
        let mut message = sale();
        message.recipient = Some("anna".into());
        message
    };
    let with = |name: &str, value: &str| {
        let mut message = good();
        message.headers = vec![(name.into(), value.into())];
        message
    };
    let mut cases = vec![
        (with("X-A", "1\r\nX-B: 2"), "printable"),
        (with("X-A", "1\n2"), "printable"),
        (with("X-A", "a\0b"), "printable"),
        (with("X-A", "ä"), "printable"),
        (with("X A", "1"), "token"),
        (with("", "1"), "token"),
        (with("X-A\r\nX-B", "1"), "token"),
        (with("X-A", &"a".repeat(1 << 20)), "limit"),
        (with("Authorization", "Bearer x"), "belongs to the route"),
        (with("Content-Length", "3"), "belongs to the route"),
        (with("Host", "evil.example"), "belongs to the route"),
        (with("webhook-signature", "v1,x"), "belongs to the route"),
        (with("x-request-id", "other"), "belongs to the route"),
        (with("x-shop-key", "other"), "belongs to the route"),
    ];
    let mut message = good();
    message.recipient = None;
    cases.push((message, "no recipient"));
    let mut message = good();
    message.dedupe_key = "../../admin".into();
    cases.push((message, "climb"));
    let mut message = good();
    message.content_type = "text/plain\r\nX-B: 2".into();
    cases.push((message, "content-type"));
    // More than one line of ureq's buffer, which it would call no HTTP of the receiver.
    let mut message = good();
    message.content_type = "a".repeat(40_000);
    cases.push((message, "content-type is longer"));
    let mut message = good();
    message.message_id = "a".repeat(40_000);
    cases.push((message, "x-request-id is longer"));
    let mut message = good();
    message.recipient = Some("a".repeat(40_000));
    cases.push((message, "URL is longer"));
    for (message, reason) in cases {
        let failure = rejected(send(&dispatcher, &message));
        assert!(failure.text.contains(reason), "{}", failure.text);
        assert_eq!((failure.code.as_ref(), failure.local), ("invalid", true));
    }
    assert_eq!(server.accepted(), 0);
    delivered(send(&dispatcher, &good()));
}

#[test]
fn a_large_body_asks_first_so_that_an_early_413_is_seen() {
    let large = Delivery::new("sales", vec![b'x'; 8 << 20]);
    let server = Server::early(|seen| {
        assert_eq!(seen.header("expect"), Some("100-continue"));
        let text = "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        Some(Answer::SendAndClose(text.into()))
    });
    let failure = rejected(send(&to(&server), &large));
    assert_eq!(failure.status, Some(413));
    // A server that wants it gets it whole.
    let server = Server::start(|_| ok());
    delivered(send(&to(&server), &large));
    assert_eq!(server.seen()[0].body.len(), 8 << 20);
}

/// A gateway that answered 200 to the head alone passed for a receiver that had it all.
#[test]
fn a_server_that_refuses_expect_or_takes_the_head_for_all_gets_the_body_without() {
    for status in ["417 Expectation Failed", "200 OK"] {
        let server = Server::early(move |seen| {
            let asks = seen.header("expect").is_some();
            let text =
                format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            asks.then(|| Answer::SendAndClose(text.into()))
        });
        let large = Delivery::new("sales", vec![b'x'; 200_000]);
        delivered(send(&to(&server), &large));
        let seen = server.seen();
        assert_eq!((seen.len(), seen[1].body.len()), (2, 200_000));
    }
}

#[test]
fn a_signed_request_follows_the_webhook_specification() {
    let server = Server::start(|_| ok());
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let dispatcher = over(Route::post(server.url("/")).sign(Secret::value(secret)));
    delivered(send(&dispatcher, &sale()));
    let seen = server.seen().remove(0);
    assert_eq!(seen.header("webhook-id"), Some("message-1"));
    assert!(seen.header("webhook-signature").unwrap().starts_with("v1,"));
    let at: i64 = seen.header("webhook-timestamp").unwrap().parse().unwrap();
    assert!(at > 1_600_000_000, "{at}");
    // The specification's own code agrees, and to no other bytes.
    let theirs = standardwebhooks::Webhook::new(secret).unwrap();
    let headers: http::HeaderMap = seen
        .headers
        .iter()
        .map(|(name, value)| {
            let name = http::HeaderName::try_from(name.as_str()).unwrap();
            (name, value.parse().unwrap())
        })
        .collect();
    theirs.verify(&seen.body, &headers).unwrap();
    assert!(theirs.verify(b"other", &headers).is_err());
}
