use super::*;

/// So many that the map which holds them would panic.
fn with_headers(count: usize) -> Route {
    let route = Route::post("https://erp.example/");
    (0..count).fold(route, |route, i| route.header(format!("x{i}"), ""))
}

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
        (route().header("X-A", "1\r\nX-B: 2"), "control character"),
        (
            route().header("X-A", "1".repeat(40_000)),
            "longer than 31 KiB",
        ),
        (with_headers(30_000), "headers are longer than 31 KiB"),
        (
            Route::post(format!("https://erp.example/{}", "a".repeat(40_000))),
            "longer than 31 KiB",
        ),
        (Route::post("https://10.0.0.300/"), "neither an address nor"),
        (
            Route::post("https://erp_.-x.example/"),
            "neither an address nor",
        ),
        (route().header("Content-Length", "1"), "not set by hand"),
        (
            route().header("Authorization", "Bearer s3cr3t"),
            "use bearer, basic or secret_headers",
        ),
        (route().header("Idempotency-Key", "1"), "not set by hand"),
        (route().idempotency_header("Host"), "cannot carry"),
        (route().idempotency_header("Id Key"), "header name"),
        (route().idempotency_key("{recipient}"), "no placeholder"),
        (route().idempotency_key(""), "empty"),
        (route().bearer(Secret::value("s3cr3t\n2")), "line break"),
        (route().bearer(Secret::value("")), "empty"),
        (route().bearer(Secret::value("s3cr3té")), "is not ASCII"),
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
        (route().sign(Secret::value("s3cr3t")), "whsec_"),
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

#[test]
fn a_preview_shows_the_request_and_no_secret() {
    let route = Route::post("https://erp.example/sales/{dedupe_key}")
        .direct()
        .header("X-Store", "17")
        .bearer(Secret::env("ERP_TOKEN"))
        .secret_header("X-Api-Key", Secret::value("s3cr3t"))
        .sign(Secret::value("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
    let preview = over(route).preview(&sale()).unwrap();
    assert_eq!(preview.method, "POST");
    assert_eq!(preview.url, "https://erp.example/sales/key-1");
    let wanted = [
        ("authorization", "Bearer $ERP_TOKEN"),
        ("content-type", "application/json"),
        ("idempotency-key", "message-1"),
        (
            "user-agent",
            concat!("sqlite-outbox/", env!("CARGO_PKG_VERSION")),
        ),
        ("webhook-id", "message-1"),
        ("webhook-signature", "$SIGNATURE"),
        ("webhook-timestamp", "$TIMESTAMP"),
        ("x-api-key", "$SECRET_X_API_KEY"),
        ("x-store", "17"),
    ];
    let mut headers = preview.headers;
    headers.sort();
    let found: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(found, wanted);
    let error = over(Route::post("https://erp.example/{recipient}"))
        .preview(&sale())
        .unwrap_err();
    assert!(error.to_string().contains("no recipient"), "{error}");
}
