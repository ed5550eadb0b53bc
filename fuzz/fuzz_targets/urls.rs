//! URL and key templates, header names and values of a route, filled from any message: a route is
//! refused when it is built, a message when its request is, and nothing panics.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sqlite_outbox::{Delivery, HttpDispatcher, Route};

#[derive(Arbitrary, Debug)]
struct Input {
    method: Option<String>,
    url: String,
    key: Option<String>,
    key_header: Option<String>,
    header: Option<(String, String)>,
    proxy: Option<String>,
    allow_http: bool,
    channel: String,
    dedupe_key: String,
    message_id: String,
    recipient: Option<String>,
    event_type: Option<String>,
    headers: Option<(String, String)>,
    content_type: Option<String>,
    id: i64,
}

fuzz_target!(|input: Input| {
    let mut route = Route::new(input.method.as_deref().unwrap_or("POST"), input.url)
        .allow_http(input.allow_http);
    if let Some(key) = input.key {
        route = route.idempotency_key(key);
    }
    if let Some(name) = input.key_header {
        route = route.idempotency_header(name);
    }
    if let Some((name, value)) = input.header {
        route = route.header(name, value);
    }
    if let Some(proxy) = input.proxy {
        route = route.proxy(proxy);
    }
    let Ok(http) = HttpDispatcher::builder().fallback(route).build() else {
        return;
    };
    let mut delivery = Delivery::new(input.channel, b"x".to_vec());
    delivery.id = input.id;
    delivery.dedupe_key = input.dedupe_key;
    delivery.message_id = input.message_id;
    delivery.recipient = input.recipient;
    delivery.event_type = input.event_type;
    if let Some(content_type) = input.content_type {
        delivery.content_type = content_type;
    }
    delivery.headers = input.headers.into_iter().collect();
    let _ = http.preview(&delivery);
});
