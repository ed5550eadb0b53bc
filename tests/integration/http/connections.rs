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
    let dispatcher = over(Route::post(server.url("/")).timeout(Duration::from_secs(1)));
    delivered(send(&dispatcher, &sale()));
    let failure = unreachable(send(&dispatcher, &sale()));
    assert_eq!(failure.code, "timeout");
    assert_eq!(server.seen().len(), 2);
}

#[test]
fn headers_that_drip_end_with_the_timeout() {
    let server = Server::start(|_| Answer::Drip(b"HTTP/1.1 200 OK\r\nX-Slow: ".to_vec(), b'a'));
    let started = Instant::now();
    let dispatcher = over(Route::post(server.url("/")).timeout(Duration::from_secs(1)));
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
        let route = || Route::post(server.url("/")).timeout(Duration::from_secs(1));
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

    let server = Server::start(|_| Answer::SendAndClose(b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec()));
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

/// Somebody takes the connection, and no word of TLS comes: a port of another kind, or a firewall. Over
/// plain HTTP the same is an answer that does not come.
#[test]
fn a_handshake_that_times_out_is_told_as_that() {
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = mute.local_addr().unwrap().port();
    let ca = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/tls/ca.pem");
    let route = |scheme: &str| Route::post(format!("{scheme}://127.0.0.1:{port}/"));
    let short = Duration::from_millis(300);
    for route in [
        route("https").ca_file(ca).connect_timeout(short),
        route("https").ca_file(ca).timeout(short),
    ] {
        let failure = unreachable(send(&over(route), &sale()));
        assert_eq!(failure.code, "tls", "{failure:?}");
        assert!(
            failure.text.contains("answers, but not with TLS"),
            "{failure:?}"
        );
        assert!(
            failure.remedy().unwrap().contains("scheme and port"),
            "{failure:?}"
        );
    }
    let failure = unreachable(send(&over(route("http").timeout(short)), &sale()));
    assert_eq!(failure.code, "timeout", "{failure:?}");
    assert!(failure.text.contains("did not answer"), "{failure:?}");
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

/// Head and body went out one after the other, which is two packets, and for the receiver two
/// reads, for every small message.
#[test]
fn a_small_request_arrives_in_one_piece() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut pieces = Vec::new();
        for _ in 0..3 {
            let mut piece = vec![0; 64 * 1024];
            let read = stream.read(&mut piece).unwrap();
            piece.truncate(read);
            pieces.push(String::from_utf8(piece).unwrap());
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer).unwrap();
        }
        pieces
    });
    let dispatcher = over(Route::post(url));
    for _ in 0..3 {
        delivered(send(&dispatcher, &sale()));
    }
    for piece in receiver.join().unwrap() {
        assert!(piece.starts_with("POST / HTTP/1.1\r\n"), "{piece}");
        let body = String::from_utf8(sale().payload).unwrap();
        assert!(piece.ends_with(&body), "{piece}");
    }
}

/// What a server says after its answer would pass for the answer to the next message.
#[test]
fn a_connection_on_which_more_came_than_an_answer_is_not_used_again() {
    let fine = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    let server = Server::start(move |seen| match seen.turn {
        1 => Answer::Send(format!("{fine}{fine}").into_bytes()),
        _ => ok(),
    });
    let dispatcher = to(&server);
    for _ in 0..3 {
        delivered(send(&dispatcher, &sale()));
    }
    let seen = server.seen();
    assert!(seen.iter().all(|it| it.turn == 1), "{seen:?}");
}
