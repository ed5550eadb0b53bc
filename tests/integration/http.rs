//! The HTTP dispatcher against a server that behaves in every way servers do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlite_outbox::{
    Credential, CredentialRequest, Delivery, Dispatcher, Failure, HttpDispatcher, Otherwise,
    Outcome, Receipt, Reply, ReplyRule, Route, Secret,
};

use crate::server::{Answer, Server, ok, respond};

fn over(route: Route) -> HttpDispatcher {
    HttpDispatcher::builder()
        .channel("sales", route)
        .build()
        .unwrap()
}

fn to(server: &Server) -> HttpDispatcher {
    over(Route::post(server.url("/")))
}

fn sale() -> Delivery {
    Delivery::new("sales", r#"{"total":1250}"#)
}

fn send(dispatcher: &HttpDispatcher, delivery: &Delivery) -> Outcome {
    dispatcher.dispatch(delivery).unwrap()
}

#[track_caller]
fn delivered(outcome: Outcome) -> Receipt {
    match outcome {
        Outcome::Delivered(receipt) => receipt,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn rejected(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Rejected(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn retry(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Retry(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn blocked(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Blocked(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn unreachable(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Unreachable(failure) => failure,
        other => panic!("{other:?}"),
    }
}

/// The sentence of a route that cannot be built.
#[track_caller]
fn refused(route: Route) -> String {
    let built = HttpDispatcher::builder().channel("sales", route).build();
    let error = built.expect_err("a route that cannot be built");
    assert!(
        matches!(error, sqlite_outbox::Error::InvalidSetting(_)),
        "{error:?}"
    );
    error.to_string()
}

mod requests {
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

    #[test]
    fn a_server_that_refuses_expect_gets_the_body_without() {
        let server = Server::early(|seen| {
            let asks = seen.header("expect").is_some();
            let text =
                "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            asks.then(|| Answer::SendAndClose(text.into()))
        });
        let large = Delivery::new("sales", vec![b'x'; 200_000]);
        delivered(send(&to(&server), &large));
        assert_eq!(server.seen().len(), 2);
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
    }
}

mod answers {
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
            .rejected_on([417])
            .retried_on([400]);
        let dispatcher = over(route);
        delivered(send(&dispatcher, &sale()));
        status.store(417, Ordering::SeqCst);
        rejected(send(&dispatcher, &sale()));
        status.store(400, Ordering::SeqCst);
        retry(send(&dispatcher, &sale()));
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
}

mod credentials {
    use super::*;

    fn guarded(good: &'static str) -> Server {
        Server::start(move |seen| match seen.header("authorization") {
            Some(it) if it == good => ok(),
            other => respond(
                401,
                &[],
                &format!("{{\"message\":\"bad {}\"}}", other.unwrap_or_default()),
            ),
        })
    }

    #[test]
    fn a_fresh_token_is_asked_for_once_after_401_and_the_request_repeated() {
        let server = guarded("Bearer t2");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let dispatcher = over(Route::post(server.url("/")).credentials(
            move |request: &CredentialRequest<'_>| {
                let mut log = log.lock().unwrap();
                log.push((
                    request.channel.to_string(),
                    request.principal.map(str::to_string),
                    request.rejected,
                ));
                Ok(Credential::Bearer(format!("t{}", log.len())))
            },
        ));
        let mut message = sale();
        message.principal = Some("anna".into());
        delivered(send(&dispatcher, &message));
        delivered(send(&dispatcher, &message));
        let anna = || ("sales".to_string(), Some("anna".to_string()));
        let wanted = [(anna().0, anna().1, false), (anna().0, anna().1, true)];
        assert_eq!(*asked.lock().unwrap(), wanted);
        let bodies: Vec<_> = server.seen().into_iter().map(|it| it.body).collect();
        assert_eq!(bodies, vec![message.payload; 3]);
    }

    #[test]
    fn a_token_that_stays_refused_blocks_the_channel_and_shows_no_token() {
        let server = guarded("Bearer other");
        let count = AtomicUsize::new(0);
        let dispatcher = over(Route::post(server.url("/")).credentials(
            move |_: &CredentialRequest<'_>| {
                Ok(Credential::Bearer(format!(
                    "s3cr3t-{}",
                    count.fetch_add(1, Ordering::SeqCst)
                )))
            },
        ));
        let outcome = send(&dispatcher, &sale());
        assert!(
            !format!("{outcome:?}{dispatcher:?}").contains("s3cr3t"),
            "{outcome:?}"
        );
        let failure = blocked(outcome);
        assert_eq!(failure.code, Failure::UNAUTHORISED);
        assert!(
            failure.text.starts_with("bad Bearer ***"),
            "{}",
            failure.text
        );
        assert!(
            !String::from_utf8(failure.answer.unwrap())
                .unwrap()
                .contains("s3cr3t")
        );
        assert_eq!(server.seen().len(), 2);
        // The next message asks anew.
        blocked(send(&dispatcher, &sale()));
        let last = server.seen().pop().unwrap();
        assert_eq!(last.header("authorization"), Some("Bearer s3cr3t-3"));
    }

    #[test]
    fn a_rotated_token_file_is_read_again_after_401() {
        let server = guarded("Bearer new");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "old\n").unwrap();
        let dispatcher = over(Route::post(server.url("/")).bearer(Secret::file(file.path())));
        blocked(send(&dispatcher, &sale()));
        // The same token again would be answered the same.
        assert_eq!(server.seen().len(), 1);
        std::fs::write(file.path(), "new\n").unwrap();
        delivered(send(&dispatcher, &sale()));
    }

    #[test]
    fn basic_and_header_secrets_are_sent_and_never_shown() {
        let server = Server::start(|seen| {
            let echo = format!("{:?}", seen.headers);
            match seen.number {
                1 => respond(200, &[], &echo),
                _ => respond(422, &[], &echo),
            }
        });
        let route = Route::post(server.url("/?token=q-s3cr3t"))
            .basic("anna", Secret::value("p-s3cr3t"))
            .secret_header("X-Api-Key", Secret::value("k-s3cr3t"));
        let shown = format!("{route:?}");
        let dispatcher = over(route);
        let outcomes = [send(&dispatcher, &sale()), send(&dispatcher, &sale())];
        let bytes = match &outcomes {
            [Outcome::Delivered(receipt), Outcome::Rejected(failure)] => {
                let both = [receipt.answer.clone(), failure.answer.clone()];
                both.map(|it| String::from_utf8(it.unwrap()).unwrap())
                    .concat()
            }
            other => panic!("{other:?}"),
        };
        let all = format!("{shown}{dispatcher:?}{outcomes:?}{bytes}");
        for secret in ["s3cr3t", "YW5uYTpwLXMzY3IzdA=="] {
            assert!(!all.contains(secret), "{all}");
        }
        let seen = server.seen().remove(0);
        assert_eq!(
            seen.header("authorization"),
            Some("Basic YW5uYTpwLXMzY3IzdA==")
        );
        assert_eq!(seen.header("x-api-key"), Some("k-s3cr3t"));
    }

    #[test]
    fn a_credential_that_cannot_be_had_blocks_the_channel_and_says_why() {
        let server = Server::start(|_| ok());
        let routes = [
            Route::post(server.url("/")).bearer(Secret::env("OUTBOX_TEST_NOT_SET")),
            Route::post(server.url("/")).credentials(
                |_: &CredentialRequest<'_>| -> anyhow::Result<Credential> {
                    anyhow::bail!("OUTBOX_TEST_NOT_SET: login failed")
                },
            ),
        ];
        for route in routes {
            let failure = blocked(send(&over(route), &sale()));
            assert_eq!(failure.code, Failure::UNAUTHORISED);
            assert!(
                failure.text.contains("OUTBOX_TEST_NOT_SET"),
                "{}",
                failure.text
            );
        }
        assert_eq!(server.accepted(), 0);
    }
}

mod connections {
    use super::*;

    #[test]
    fn one_connection_serves_two_hundred_messages_failures_included() {
        let server = Server::start(|seen| {
            let status = if seen.number > 100 { 500 } else { 200 };
            respond(status, &[], "a body of some bytes")
        });
        let dispatcher = to(&server);
        for number in 1..=200 {
            let outcome = send(&dispatcher, &sale());
            assert_eq!(matches!(outcome, Outcome::Delivered(_)), number <= 100);
        }
        assert_eq!((server.seen().len(), server.accepted()), (200, 1));
    }

    #[test]
    fn a_connection_the_server_closed_while_idle_costs_nothing() {
        let server = Server::start(|_| ok());
        let dispatcher = to(&server);
        delivered(send(&dispatcher, &sale()));
        server.hang_up();
        delivered(send(&dispatcher, &sale()));
        assert_eq!(server.seen().len(), 2);
    }

    #[test]
    fn a_kept_connection_that_ends_without_an_answer_is_repeated_once_on_a_new_one() {
        let server = Server::start(|seen| match seen.turn {
            1 => ok(),
            _ => Answer::SendAndClose(Vec::new()),
        });
        let dispatcher = to(&server);
        delivered(send(&dispatcher, &sale()));
        delivered(send(&dispatcher, &sale()));
        let seen = server.seen();
        let connections: Vec<_> = seen.iter().map(|it| it.connection).collect();
        assert_eq!(connections, [1, 1, 2]);
        assert_eq!(seen[1].body, seen[2].body);
        assert_eq!(
            seen[1].header("idempotency-key"),
            seen[2].header("idempotency-key")
        );
    }

    #[test]
    fn a_repeat_takes_no_other_idle_connection() {
        let (together, meet) = crossbeam_channel::bounded::<()>(0);
        let both = Mutex::new(Some(together));
        let server = Server::start(move |seen| {
            // Both first requests are answered only when both are there, so there are two
            // connections; afterwards every kept connection dies on use.
            match (seen.turn, seen.number) {
                (1, 1) => drop(meet.recv()),
                (1, 2) => drop(both.lock().unwrap().take()),
                (1, _) => {}
                _ => return Answer::SendAndClose(Vec::new()),
            }
            ok()
        });
        let dispatcher = to(&server);
        std::thread::scope(|scope| {
            scope.spawn(|| delivered(send(&dispatcher, &sale())));
            scope.spawn(|| delivered(send(&dispatcher, &sale())));
        });
        delivered(send(&dispatcher, &sale()));
        assert_eq!((server.seen().len(), server.accepted()), (4, 3));
    }

    #[test]
    fn a_new_connection_that_ends_without_an_answer_is_not_repeated() {
        let server = Server::start(|_| Answer::SendAndClose(Vec::new()));
        let failure = unreachable(send(&to(&server), &sale()));
        assert_eq!(failure.code, "reset");
        assert_eq!(server.seen().len(), 1);
    }

    #[test]
    fn a_timeout_is_not_repeated() {
        let server = Server::start(|seen| match seen.turn {
            1 => ok(),
            _ => Answer::Hang,
        });
        let dispatcher = over(Route::post(server.url("/")).timeout(Duration::from_millis(300)));
        delivered(send(&dispatcher, &sale()));
        let failure = unreachable(send(&dispatcher, &sale()));
        assert_eq!(failure.code, "timeout");
        assert_eq!(server.seen().len(), 2);
    }

    #[test]
    fn headers_that_drip_end_with_the_timeout() {
        let server = Server::start(|_| Answer::Drip(b"HTTP/1.1 200 OK\r\nX-Slow: ".to_vec(), b'a'));
        let started = Instant::now();
        let dispatcher = over(Route::post(server.url("/")).timeout(Duration::from_millis(300)));
        assert_eq!(unreachable(send(&dispatcher, &sale())).code, "timeout");
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "{:?}",
            started.elapsed()
        );
    }

    #[test]
    fn a_body_that_drips_or_never_ends_is_bounded_and_the_status_counts() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n";
        for answer in [
            Answer::Drip(head.to_vec(), b'x'),
            Answer::Flood(head.to_vec()),
        ] {
            let server = Server::start(move |_| answer.clone());
            let started = Instant::now();
            let route = || Route::post(server.url("/")).timeout(Duration::from_millis(300));
            delivered(send(&over(route()), &sale()));
            let rule = ReplyRule::new().require("/data/name");
            let failure = retry(send(&over(route().reply(rule)), &sale()));
            assert!(failure.text.contains("not whole"), "{}", failure.text);
            assert!(
                started.elapsed() < Duration::from_secs(5),
                "{:?}",
                started.elapsed()
            );
        }
    }

    #[test]
    fn a_body_cut_short_is_still_an_answer() {
        let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort";
        let server = Server::start(|_| Answer::SendAndClose(cut.to_vec()));
        delivered(send(&to(&server), &sale()));
    }

    #[test]
    fn what_keeps_an_answer_from_coming_is_named() {
        let refused = {
            let gone = Server::start(|_| ok());
            gone.url("/")
        };
        let failure = unreachable(send(&over(Route::post(&refused)), &sale()));
        assert_eq!(failure.code, "refused");
        assert!(failure.text.contains("127.0.0.1"), "{}", failure.text);

        let route = Route::post("https://nosuch.invalid/x?token=s3cr3t").direct();
        let failure = unreachable(send(&over(route), &sale()));
        assert_eq!(failure.code, "dns");
        assert!(
            failure.text.contains("nosuch.invalid cannot be found"),
            "{}",
            failure.text
        );
        assert!(!failure.text.contains("s3cr3t"));

        let server =
            Server::start(|_| Answer::SendAndClose(b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec()));
        assert_eq!(unreachable(send(&to(&server), &sale())).code, "garbage");

        // Plain HTTP where TLS is expected.
        let plain =
            Server::start(|_| Answer::SendAndClose(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()));
        let ca = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/tls/ca.pem");
        let url = format!("https://127.0.0.1:{}/", plain.port());
        let failure = unreachable(send(&over(Route::post(url).ca_file(ca)), &sale()));
        assert!(
            matches!(failure.code.as_ref(), "tls" | "reset"),
            "{failure:?}"
        );
    }

    #[test]
    fn an_interrupt_ends_the_call_in_flight_and_the_dispatcher_goes_on() {
        let server = Server::start(|seen| match seen.number {
            2 => Answer::Hang,
            _ => ok(),
        });
        let dispatcher = to(&server);
        delivered(send(&dispatcher, &sale()));
        server.wait();
        let failure = std::thread::scope(|scope| {
            let call = scope.spawn(|| unreachable(send(&dispatcher, &sale())));
            server.wait();
            dispatcher.interrupt();
            call.join().unwrap()
        });
        assert_eq!(failure.code, "interrupted");
        // Not repeated, although the connection was a kept one.
        assert_eq!(server.seen().len(), 2);
        delivered(send(&dispatcher, &sale()));
    }

    #[test]
    fn a_proxy_of_the_route_is_used_and_its_refusal_is_its_own() {
        let server = Server::start(|_| ok());
        let asks = Server::start(|_| respond(407, &[], ""));
        let route = |proxy: String| Route::post(server.url("/")).proxy(proxy);
        let login = format!("http://anna:s3cr3t@127.0.0.1:{}", asks.port());
        let outcome = send(&over(route(login)), &sale());
        assert!(!format!("{outcome:?}").contains("s3cr3t"), "{outcome:?}");
        assert_eq!(blocked(outcome).code, Failure::UNAUTHORISED);
        assert_eq!(asks.seen()[0].method, "CONNECT");

        let broken = Server::start(|_| respond(502, &[], ""));
        let failure = unreachable(send(&over(route(broken.url(""))), &sale()));
        assert_eq!(failure.code, "proxy");
        let gone = {
            let gone = Server::start(|_| ok());
            gone.url("")
        };
        assert_eq!(unreachable(send(&over(route(gone)), &sale())).code, "proxy");
        assert_eq!(server.accepted(), 0);
    }
}

mod tls {
    use super::*;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    /// Certificates of a made-up authority, good for 127.0.0.1 from 2020 to 2120.
    fn path(name: &str) -> String {
        format!(
            "{}/tests/integration/tls/{name}",
            env!("CARGO_MANIFEST_DIR")
        )
    }

    fn certificate(name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(path(name)).unwrap()
    }

    fn server(wants_client: bool) -> Server {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if wants_client {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(certificate("ca.pem")).unwrap();
            let verifier =
                rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::from_pem_file(path("server.key")).unwrap();
        Server::tls(
            builder
                .with_single_cert(vec![certificate("server.pem")], key)
                .unwrap(),
        )
    }

    #[test]
    fn a_private_authority_is_trusted_when_the_route_names_it() {
        let server = server(false);
        let dispatcher = over(Route::post(server.url("/")).ca_file(path("ca.pem")));
        for _ in 0..3 {
            delivered(send(&dispatcher, &sale()));
        }
        assert_eq!(server.accepted(), 1);
    }

    #[test]
    fn an_unknown_authority_is_the_routes_fault_and_is_named() {
        let server = server(false);
        // The client's certificate is no authority of the server's.
        let dispatcher = over(Route::post(server.url("/")).ca_file(path("client.pem")));
        let failure = unreachable(send(&dispatcher, &sale()));
        assert_eq!(failure.code, "tls");
        assert!(failure.text.contains("certificate"), "{}", failure.text);
    }

    #[test]
    fn an_authority_that_is_mended_is_seen_without_a_restart() {
        let server = server(false);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::copy(path("client.pem"), file.path()).unwrap();
        let dispatcher = over(Route::post(server.url("/")).ca_file(file.path()));
        std::fs::copy(path("ca.pem"), file.path()).unwrap();
        assert_eq!(unreachable(send(&dispatcher, &sale())).code, "tls");
        delivered(send(&dispatcher, &sale()));
    }

    #[test]
    fn a_client_certificate_is_shown() {
        let server = server(true);
        let route = || Route::post(server.url("/")).ca_file(path("ca.pem"));
        let with = route().client_cert(path("client.pem"), path("client.key"));
        delivered(send(&over(with), &sale()));
        // The refusal may be overtaken by the end of the connection.
        let failure = unreachable(send(&over(route()), &sale()));
        assert!(
            matches!(failure.code.as_ref(), "tls" | "reset"),
            "{failure:?}"
        );
    }

    #[test]
    fn certificate_files_are_checked_when_the_dispatcher_is_built() {
        let route = || Route::post("https://erp.example/");
        let cases = [
            (route().ca_file(path("none.pem")), "cannot be read"),
            (route().ca_file(path("ca.key.none")), "cannot be read"),
            (route().ca_file(path("server.key")), "no certificate"),
            (
                route().client_cert(path("client.pem"), path("server.key")),
                "cannot be used together",
            ),
            (
                route().client_cert(path("client.pem"), path("client.pem")),
                "no usable private key",
            ),
        ];
        for (route, reason) in cases {
            let error = refused(route);
            assert!(error.contains(reason), "{error}");
        }
    }
}

mod settings {
    use super::*;

    #[test]
    fn a_route_that_cannot_work_is_refused_with_one_sentence() {
        let route = || Route::post("https://erp.example/");
        let cases = [
            (Route::post("https://erp.example:99999/"), "port"),
            (Route::post("https://u:s3cr3t@erp.example/"), "login"),
            (
                Route::post("https://erp.example/{nothing}"),
                "no placeholder",
            ),
            (Route::post("http://erp.example/"), "plain http"),
            (Route::post("http://127.0.0.1.erp.example/"), "plain http"),
            (Route::new("GET", "https://erp.example/"), "method"),
            (route().header("X A", "1"), "header name"),
            (route().header("X-A", "1\r\nX-B: 2"), "printable"),
            (route().header("Content-Length", "1"), "not set by hand"),
            (
                route().header("Authorization", "Bearer s3cr3t"),
                "use bearer",
            ),
            (route().header("Idempotency-Key", "1"), "not set by hand"),
            (route().idempotency_header("Host"), "cannot carry"),
            (route().idempotency_header("Id Key"), "header name"),
            (route().idempotency_key("{recipient}"), "no placeholder"),
            (route().idempotency_key(""), "empty"),
            (route().bearer(Secret::value("s3cr3t\n2")), "line break"),
            (route().bearer(Secret::value("")), "empty"),
            (
                route()
                    .bearer(Secret::value("a"))
                    .basic("u", Secret::value("b")),
                "more than one",
            ),
            (route().basic("a:b", Secret::value("c")), "colon"),
            (
                route().secret_header("Host", Secret::value("c")),
                "cannot carry",
            ),
            (route().timeout(Duration::ZERO), "timeout"),
            (
                route().connect_timeout(Duration::from_secs(9999)),
                "connect_timeout",
            ),
            (route().reply(ReplyRule::new().require("data")), "pointer"),
            (route().provider_id("data"), "pointer"),
            (route().delivered_on([409]).rejected_on([409]), "two ways"),
            (route().retried_on([42]), "no final HTTP status"),
            (route().proxy("socks5://px.example"), "socks5"),
            (route().proxy("http://u:s3cr3t@:1"), "host and port"),
        ];
        for (route, reason) in cases {
            let error = refused(route);
            assert!(error.starts_with("channel sales: "), "{error}");
            assert!(error.contains(reason) && !error.contains('\n'), "{error}");
            assert!(!error.contains("s3cr3t"), "{error}");
        }
        assert!(HttpDispatcher::builder().build().is_err());
        over(Route::post("http://erp.example/").allow_http(true));
    }

    #[test]
    fn channels_take_their_own_route_or_the_fallback() {
        let server = Server::start(|_| ok());
        let own = HttpDispatcher::builder().channel("sales", Route::post(server.url("/own")));
        let only = own.clone().build().unwrap();
        assert!(only.serves("sales") && !only.serves("stock"));
        assert!(only.dispatch(&Delivery::new("stock", "")).is_err());
        let both = own
            .fallback(Route::post(server.url("/any/{channel}")))
            .build()
            .unwrap();
        assert!(both.serves("stock"));
        delivered(send(&both, &sale()));
        delivered(send(&both, &Delivery::new("stock", "{}")));
        let targets: Vec<_> = server.seen().into_iter().map(|it| it.target).collect();
        assert_eq!(targets, ["/own", "/any/stock"]);
        // Routes with the same connection settings share their connections.
        assert_eq!(server.accepted(), 1);
    }

    #[test]
    fn the_time_limit_covers_the_timeout_and_one_repeat() {
        let route = Route::post("https://erp.example/").timeout(Duration::from_secs(7));
        let limit = over(route).time_limit("sales");
        assert!(
            limit >= Duration::from_secs(14) && limit < Duration::from_secs(30),
            "{limit:?}"
        );
    }
}
