//! A receiver that repeats what it got must not make us keep what is secret of it.

use super::*;

/// Answers with all headers, and the target, as they came.
fn echo(status: u16) -> Server {
    Server::start(move |seen| {
        let body = format!(
            "{{\"id\":\"7\",\"detail\":\"{} {:?}\"}}",
            seen.target, seen.headers
        );
        respond(
            status,
            &[],
            &body
                .replace("(\"", "(")
                .replace("\")", ")")
                .replace("\", \"", ", "),
        )
    })
}

fn kept(outcome: &Outcome) -> String {
    let answer = match outcome {
        Outcome::Delivered(it) => &it.answer,
        Outcome::Rejected(it)
        | Outcome::Retry(it)
        | Outcome::Unreachable(it)
        | Outcome::Blocked(it) => &it.answer,
        other => panic!("{other:?}"),
    };
    let answer =
        String::from_utf8(answer.clone().unwrap_or_else(|| panic!("{outcome:?}"))).unwrap();
    format!("{outcome:?} {answer}")
}

#[test]
fn values_of_headers_and_of_the_query_are_blanked_in_every_outcome() {
    for status in [200, 401, 404, 422, 503] {
        let server = echo(status);
        let route = Route::post(server.url("/sales?key=q5ecret&tenant=muster-q5ecret"))
            .header("X-Api-Key", "5ecret")
            .header("X-Tenant", "muster-5ecret-gmbh")
            .header("X-Auth", "Token 0123-5ecret")
            .header("X-Store", "17")
            .header("Accept", "application/json")
            .header("User-Agent", "till-software/7.1");
        let mut message = sale();
        message.dedupe_key = "S-104522".into();
        message.headers = vec![
            ("x-cashier".into(), "anna-5ecret".into()),
            ("x-note".into(), "a long 5ecret/note".into()),
            ("x-document".into(), "S-104522".into()),
        ];
        let outcome = send(&over(route), &message);
        let text = kept(&outcome);
        assert!(!text.contains("5ecret"), "{status}: {text}");
        for harmless in [
            "17",
            "application/json",
            "till-software/7.1",
            "S-104522",
            "***",
        ] {
            assert!(text.contains(harmless), "{status} {harmless}: {text}");
        }
    }
}

#[test]
fn what_is_no_secret_stays_as_it_came() {
    let server = Server::start(|_| respond(422, &[], r#"{"detail":"till 17 of main is closed"}"#));
    let route = Route::post(server.url("/"))
        .header("X-Store", "17")
        .header("X-Shop", "main");
    let failure = rejected(send(&over(route), &sale()));
    assert!(
        failure.text.starts_with("till 17 of main is closed;"),
        "{}",
        failure.text
    );
}

#[test]
fn a_rule_of_ones_own_sees_and_keeps_no_secret() {
    let server = Server::start(|_| {
        respond(
            200,
            &[("x-echo", "5ecret-of-the-route")],
            "5ecret-of-the-route",
        )
    });
    let route = Route::post(server.url("/"))
        .header("X-Tenant", "5ecret-of-the-route")
        .reply_with(|reply: &Reply| {
            assert_eq!(reply.body(), b"***");
            let echo = reply.header("x-echo").unwrap_or_default();
            let mut failure = Failure::new("own", echo);
            failure.answer = Some(echo.into());
            Some(Outcome::Retry(failure))
        });
    let outcome = send(&over(route), &sale());
    assert!(!kept(&outcome).contains("5ecret"), "{outcome:?}");
    assert_eq!(retry(outcome).text, "***");
}
