use super::*;

#[test]
fn any_2xx_is_a_delivery_whatever_the_body_looks_like() {
    for body in ["", "<html>Welcome</html>", "{", "null", "\u{0}"] {
        for status in [200, 201, 202] {
            let server = Server::start(move |_| respond(status, &[], body));
            delivered(send(&to(&server), &sale()));
        }
    }
    let server = Server::start(|_| Answer::Send(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()));
    delivered(send(&to(&server), &sale()));
    assert_eq!(delivered(send(&to(&server), &sale())).answer, None);
}

#[test]
fn a_receipt_has_the_receivers_id_answer_and_clock() {
    let server = Server::start(|_| {
        let date = [("Date", "Tue, 14 Nov 2023 22:13:20 GMT")];
        respond(201, &date, r#"{"messages":[{"id":"wamid.7"}]}"#)
    });
    let dispatcher = over(Route::post(server.url("/")).provider_id("/messages/0/id"));
    let receipt = delivered(send(&dispatcher, &sale()));
    assert_eq!(receipt.provider_id.as_deref(), Some("wamid.7"));
    assert_eq!(receipt.server_time, Some(1_700_000_000_000));
    assert_eq!(
        receipt.answer.unwrap(),
        br#"{"messages":[{"id":"wamid.7"}]}"#
    );
}

#[test]
fn a_rejection_keeps_the_evidence() {
    let body = format!(
        r#"{{"detail":"Unknown item","pad":"{}"}}"#,
        "x".repeat(9000)
    );
    let answer = respond(422, &[], &body);
    let server = Server::start(move |_| answer.clone());
    let failure = rejected(send(&to(&server), &sale()));
    assert!(
        failure.text.starts_with("Unknown item; HTTP 422"),
        "{}",
        failure.text
    );
    assert_eq!(failure.answer.unwrap(), body.as_bytes()[..4096]);
    assert_eq!((failure.status, failure.local), (Some(422), false));
}

#[test]
fn a_redirect_is_never_followed() {
    let target = Server::start(|_| ok());
    for status in [301, 302, 303, 307, 308] {
        let place = target.url("/login");
        let server = Server::start(move |_| respond(status, &[("Location", &place)], ""));
        let route =
            Route::post(server.url("/")).secret_header("X-Api-Key", Secret::value("s3cr3t"));
        let failure = blocked(send(&over(route), &sale()));
        assert_eq!(failure.code, "redirected");
        assert_eq!(failure.status, Some(status));
        assert!(
            failure.text.contains(&target.url("/login")),
            "{}",
            failure.text
        );
    }
    assert_eq!(target.accepted(), 0);
}

#[test]
fn a_captive_portal_delivers_nothing_when_the_route_requires_a_reply() {
    let page = "<html><body>Please log in to Hotel WiFi</body></html>";
    let answers = [
        respond(200, &[("Content-Type", "text/html")], page),
        respond(200, &[], r#"{"login":"required"}"#),
    ];
    for answer in answers {
        let server = Server::start(move |_| answer.clone());
        let rule = ReplyRule::new().require("/data/name");
        let failure = retry(send(
            &over(Route::post(server.url("/")).reply(rule)),
            &sale(),
        ));
        assert_eq!(failure.code, "reply_rule");
        assert!(failure.text.contains("the answer"), "{}", failure.text);
    }
    let server = Server::start(|_| respond(511, &[], ""));
    assert_eq!(blocked(send(&to(&server), &sale())).code, "portal");
}

#[test]
fn a_reply_rule_decides_over_200() {
    let server = Server::start(|seen| match seen.number % 3 {
        1 => respond(
            200,
            &[],
            r#"{"jsonrpc":"2.0","error":{"code":200,"message":"Odoo Server Error","data":{"message":"On hold"}}}"#,
        ),
        2 => respond(200, &[], r#"{"status":"ok","routed":false}"#),
        _ => respond(200, &[], r#"{"status":"ok","routed":true,"id":7}"#),
    });
    let rule = ReplyRule::new()
        .require("/id")
        .forbid("/error")
        .equals("/routed", true);
    let dispatcher = over(Route::post(server.url("/")).reply(rule.clone()));
    let failure = retry(send(&dispatcher, &sale()));
    assert!(
        failure
            .text
            .starts_with("On hold; the answer has /error; HTTP 200"),
        "{}",
        failure.text
    );
    retry(send(&dispatcher, &sale()));
    let receipt = delivered(send(&dispatcher, &sale()));
    assert_eq!(receipt.provider_id.as_deref(), Some("7"));
    let strict = rule.otherwise(Otherwise::Reject);
    let failure = rejected(send(
        &over(Route::post(server.url("/")).reply(strict)),
        &sale(),
    ));
    assert!(!failure.local);
}

#[test]
fn a_closure_sees_the_whole_answer_and_may_leave_it_to_the_table() {
    let server = Server::start(|seen| match seen.number {
        1 => respond(200, &[("X-Kind", "soft")], r#"{"ok":false}"#),
        _ => respond(503, &[], ""),
    });
    let judge = |reply: &Reply| {
        let failed = reply.json()?.get("ok")? == false;
        assert_eq!(reply.header("x-kind"), Some("soft"));
        assert!(reply.is_whole() && reply.status() == 200);
        failed.then(|| Outcome::rejected("not ok"))
    };
    let dispatcher = over(Route::post(server.url("/")).reply_with(judge));
    assert_eq!(rejected(send(&dispatcher, &sale())).text, "not ok");
    assert_eq!(retry(send(&dispatcher, &sale())).status, Some(503));
}

#[test]
fn a_route_may_judge_a_status_otherwise() {
    let status = Arc::new(AtomicUsize::new(409));
    let next = status.clone();
    let server = Server::start(move |_| {
        respond(u16::try_from(next.load(Ordering::SeqCst)).unwrap(), &[], "")
    });
    let route = Route::post(server.url("/"))
        .delivered_on([409])
        .rejected_on([417, 202])
        .retried_on([400, 207]);
    let dispatcher = over(route);
    delivered(send(&dispatcher, &sale()));
    for refused in [417, 202] {
        status.store(refused, Ordering::SeqCst);
        rejected(send(&dispatcher, &sale()));
    }
    for put_off in [400, 207] {
        status.store(put_off, Ordering::SeqCst);
        retry(send(&dispatcher, &sale()));
    }
}

#[test]
fn a_receivers_wish_for_rest_is_taken_from_429_and_503() {
    let server = Server::start(|seen| match seen.number {
        1 => respond(429, &[("Retry-After", "5")], ""),
        2 => respond(
            503,
            &[
                ("Date", "Tue, 14 Nov 2023 22:13:20 GMT"),
                ("Retry-After", "Tue, 14 Nov 2023 22:13:23 GMT"),
            ],
            "",
        ),
        3 => respond(503, &[("Retry-After", "in a while")], ""),
        _ => respond(500, &[("Retry-After", "5")], ""),
    });
    let dispatcher = to(&server);
    let wishes: Vec<_> = (0..4)
        .map(|_| retry(send(&dispatcher, &sale())).retry_after)
        .collect();
    assert_eq!(
        wishes,
        [
            Some(Duration::from_secs(5)),
            Some(Duration::from_secs(3)),
            None,
            None
        ]
    );
}

#[test]
fn an_interim_answer_is_not_the_answer() {
    let server = Server::start(|_| {
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n";
        Answer::Send(format!("{hints}HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n").into())
    });
    assert_eq!(retry(send(&to(&server), &sale())).status, Some(503));
}

#[test]
fn no_garbage_is_a_delivery_or_a_refusal_or_a_panic() {
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X-A: 1\r\n".repeat(500));
    let long = format!("HTTP/1.1 200 OK\r\nX-A: {}\r\n\r\n", "a".repeat(1 << 20));
    let answers = [
        "",
        "\r\n\r\n",
        "\u{0}\u{1}\u{2}",
        "HTTP/1.1\r\n\r\n",
        "HTTP/1.1 2OO OK\r\n\r\n",
        "HTTP/1.1 99 Low\r\n\r\n",
        "HTTP/1.1 000 Zero\r\n\r\n",
        "HTTP/1.1 1000 High\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX-A: \u{1}\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "HTTP/1.1 200",
        "HTTP/1.1 200 OK\r\nX-A: cut",
        &many,
        &long,
    ];
    for answer in answers {
        let bytes = answer.as_bytes().to_vec();
        let server = Server::start(move |_| Answer::SendAndClose(bytes.clone()));
        let start: String = answer.chars().take(60).collect();
        match send(&to(&server), &sale()) {
            Outcome::Unreachable(_) | Outcome::Retry(_) => {}
            other => panic!("{start:?}: {other:?}"),
        }
    }
    // The status is there; only the body is broken.
    for body in [
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        "Content-Length: 5\r\n\r\nab",
        "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab",
    ] {
        let bytes = format!("HTTP/1.1 200 OK\r\n{body}").into_bytes();
        let server = Server::start(move |_| Answer::SendAndClose(bytes.clone()));
        delivered(send(&to(&server), &sale()));
        let rule = ReplyRule::new().require("/data");
        retry(send(
            &over(Route::post(server.url("/")).reply(rule)),
            &sale(),
        ));
    }
}
