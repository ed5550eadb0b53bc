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
        assert_eq!(
            failure.code,
            Failure::NO_CREDENTIALS,
            "the receiver was not asked"
        );
        assert!(
            failure.text.contains("OUTBOX_TEST_NOT_SET"),
            "{}",
            failure.text
        );
    }
    assert_eq!(server.accepted(), 0);
}

#[test]
fn a_signing_secret_is_read_again_after_401() {
    let server = Server::start(|seen| match seen.number {
        1 => respond(401, &[], ""),
        _ => ok(),
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "whsec_b2xk").unwrap();
    let dispatcher = over(Route::post(server.url("/")).sign(Secret::file(file.path())));
    // The secret has not changed: asking again would be answered the same.
    blocked(send(&dispatcher, &sale()));
    std::fs::write(file.path(), "whsec_bmV3").unwrap();
    delivered(send(&dispatcher, &sale()));
    let signatures: Vec<_> = server.seen();
    assert_eq!(signatures.len(), 2);
}

#[test]
fn a_source_cannot_take_over_the_transports_headers() {
    let server = Server::start(|_| ok());
    for name in ["Host", "Content-Length", "idempotency-key", "x y"] {
        let dispatcher = over(Route::post(server.url("/")).credentials(
            move |_: &CredentialRequest<'_>| {
                Ok(Credential::Header {
                    name: name.into(),
                    value: "1".into(),
                })
            },
        ));
        assert_eq!(
            blocked(send(&dispatcher, &sale())).code,
            Failure::NO_CREDENTIALS
        );
    }
    assert_eq!(server.accepted(), 0);
}

/// Counts what any library in this process logs, and keeps the lines with a secret.
struct Sink(AtomicUsize, Mutex<Vec<String>>);

impl log::Log for Sink {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        // This one dumps every byte at trace; the documentation of `Secret` warns of it.
        if record.target().starts_with("ureq_proto") && record.level() == log::Level::Trace {
            return;
        }
        let line = format!("{}: {}", record.target(), record.args());
        if line.contains("log-5ecret") || line.contains("YW5uYTpsb2ctNWVjcmV0LTE=") {
            self.1.lock().unwrap().push(line);
        }
    }

    fn flush(&self) {}
}

static SINK: Sink = Sink(AtomicUsize::new(0), Mutex::new(Vec::new()));

#[test]
fn no_log_shows_a_secret_except_the_wire_dump_at_trace() {
    log::set_logger(&SINK).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let server = Server::start(|_| respond(401, &[], "{}"));
    let route = Route::post(server.url("/"))
        .basic("anna", Secret::value("log-5ecret-1"))
        .secret_header("X-Api-Key", Secret::value("log-5ecret-2"));
    blocked(send(&over(route), &sale()));
    log::set_max_level(log::LevelFilter::Off);
    assert!(SINK.0.load(Ordering::SeqCst) > 0);
    let lines: Vec<_> = std::mem::take(&mut *SINK.1.lock().unwrap());
    assert!(lines.is_empty(), "{lines:#?}");
}

/// PHP's JSON escapes slashes; other servers put what they got into a URL or a page.
#[test]
fn a_secret_that_a_receiver_repeats_is_blanked_however_it_is_escaped() {
    let token = "abc/def&s3cr3t+\"XY";
    for echo in [
        r#"{"error":"bad token abc\/def&s3cr3t+\"XY"}"#,
        r#"{"error":"bad token abc/def&s3cr3t+\"XY"}"#,
        "see /login?token=abc%2Fdef%26s3cr3t%2B%22XY",
        "<p>abc/def&amp;s3cr3t+&quot;XY</p>",
        "abc/def&s3cr3t+\"XY",
    ] {
        let server = Server::start(move |_| respond(422, &[], echo));
        let route = Route::post(server.url("/")).bearer(Secret::value(token));
        let Outcome::Rejected(failure) = send(&over(route), &sale()) else {
            panic!("not rejected");
        };
        let kept = String::from_utf8(failure.answer.unwrap()).unwrap();
        assert!(!failure.text.contains("s3cr3t"), "{}", failure.text);
        assert!(!kept.contains("s3cr3t"), "{kept}");
    }
}

/// ureq refuses these before it sends anything, and calls it no HTTP of the receiver.
#[test]
fn what_no_header_can_carry_is_the_fault_of_where_it_comes_from() {
    let server = Server::start(|_| ok());
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        Secret::file(path)
    };
    let route = || Route::post(server.url("/"));
    let own = [
        (
            route().bearer(file("umlaut", "s3cr3té".as_bytes())),
            "umlaut: character 7 of the secret is not ASCII",
        ),
        (
            route().bearer(file("inside", "s3\u{a0}cr3t".as_bytes())),
            "inside: character 3",
        ),
        (
            route().secret_header("Authorization", file("key", "s3cr3té".as_bytes())),
            "key: character 7",
        ),
        (
            route().secret_header("X-Api-Key", file("lines", b"s3cr3t\nmore")),
            "lines: the secret contains a line break",
        ),
        (
            route().basic("anna", file("empty", b"\xef\xbb\xbf \r\n")),
            "empty: the secret is empty",
        ),
        (
            route().bearer(file("wide", b"\xff\xfes\x003\x00c\x00")),
            "wide: the secret is written as UTF-16: save it as UTF-8",
        ),
        (
            route().bearer(file("latin", b"s3cr3t\xe9")),
            "latin: the secret is not UTF-8",
        ),
        (
            route().bearer(file("long", "s3cr3t".repeat(8_000).as_bytes())),
            "long: the header authorization is longer than 31 KiB",
        ),
        (
            route().sign(file("signing", b"s3cr3t")),
            "signing: the signing secret is not whsec_ and base64",
        ),
    ];
    let from = |credential: Credential| {
        route().credentials(move |_: &CredentialRequest<'_>| Ok(credential.clone()))
    };
    let sources = [
        (
            from(Credential::Bearer("s3cr3té".into())),
            "a credential source: character 7",
        ),
        (
            from(Credential::Bearer("s3cr3t\tmore".into())),
            "line break or another control character",
        ),
        (
            from(Credential::Header {
                name: "authorization".into(),
                value: "s3cr3té".into(),
            }),
            "character 7",
        ),
        (
            from(Credential::Basic {
                user: "a:b".into(),
                password: "s3cr3t".into(),
            }),
            "contains a colon",
        ),
    ];
    let known_beforehand = own.len();
    for (at, (route, wanted)) in own.into_iter().chain(sources).enumerate() {
        let dispatcher = over(route);
        let failure = blocked(send(&dispatcher, &sale()));
        assert_eq!(failure.code, Failure::NO_CREDENTIALS, "{failure:?}");
        let told = dispatcher.unreadable_secrets();
        assert_eq!(told.len(), usize::from(at < known_beforehand), "{told:?}");
        for text in told.iter().map(|it| &it.1).chain([&failure.text]) {
            assert!(text.contains(wanted), "{text}");
            assert!(!text.contains("s3"), "{text}");
        }
    }
    assert_eq!(server.accepted(), 0, "the receiver was not asked");
}

#[test]
fn a_byte_order_mark_of_an_editor_is_no_part_of_a_secret_and_other_headers_carry_more_than_ascii() {
    let server = guarded("Bearer t0ken");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "\u{feff}t0ken\r\n").unwrap();
    let route = Route::post(server.url("/"))
        .bearer(Secret::file(file.path()))
        .secret_header("X-Api-Key", Secret::value("\u{feff}clé"));
    let dispatcher = over(route);
    assert!(dispatcher.unreadable_secrets().is_empty());
    delivered(send(&dispatcher, &sale()));
}

/// So a call takes twice its time limit at most, whatever the receiver thinks of next.
#[test]
fn nothing_is_repeated_once_the_time_of_the_route_is_over() {
    let server = Server::start(|seen| match seen.number {
        1 => respond(401, &[], ""),
        2 => respond(417, &[], ""),
        _ => ok(),
    });
    let limit = Duration::from_secs(1);
    let route = Route::post(server.url("/")).timeout(limit).credentials(
        move |request: &CredentialRequest<'_>| {
            let token = match request.rejected {
                true => {
                    std::thread::sleep(limit);
                    "fresh"
                }
                false => "old",
            };
            Ok(Credential::Bearer(token.into()))
        },
    );
    let mut large = sale();
    large.payload = vec![b'1'; 200 * 1024];
    retry(send(&over(route), &large));
    assert_eq!(server.seen().len(), 2);
}
