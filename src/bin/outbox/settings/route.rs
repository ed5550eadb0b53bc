//! The route of one channel.

use std::path::{Path, PathBuf};

use sqlite_outbox::{HttpDispatcher, Otherwise, ReplyRule, Route, Secret};

use super::fault::{Fault, Source};
use super::model::{self, Channel};
use super::values::Place;

type Change = Box<dyn FnOnce(Route) -> Route>;

/// Stands for a URL that is not there or cannot be used, while the other keys are looked at.
pub(super) const PLACEHOLDER: &str = "https://settings.invalid/";

/// A route in the making: each key with what it does, so that a fault can be put to its key.
struct Parts {
    route: Route,
    steps: Vec<(&'static str, Change)>,
}

impl Parts {
    fn new(channel: &Channel, url: &str, folder: &Path) -> Self {
        let method = channel.method.as_deref().unwrap_or("POST");
        let start = Route::post(url).allow_http(channel.allow_http);
        let mut parts = Self {
            route: start,
            steps: Vec::new(),
        };
        let from = |path: &PathBuf| folder.join(path);
        let place = |place: &Place| match place {
            Place::Env(name) => Secret::env(name),
            Place::File(path) => Secret::file(from(path)),
            Place::Command(command) => Secret::command(command),
        };
        let (url, verb, plain) = (url.to_string(), method.to_string(), channel.allow_http);
        parts.step("method", move |_| Route::new(verb, url).allow_http(plain));
        for (name, value) in channel.headers.clone() {
            parts.step("headers", |route| route.header(name, value));
        }
        parts.option("bearer", channel.bearer.as_ref().map(place), Route::bearer);
        let basic = channel.basic.as_ref();
        let basic = basic.map(|it| (it.user.clone(), place(&it.password)));
        parts.option("basic", basic, |route, (user, secret)| {
            route.basic(user, secret)
        });
        for (name, secret) in &channel.secret_headers {
            let (name, secret) = (name.clone(), place(secret));
            parts.step("secret_headers", |route| route.secret_header(name, secret));
        }
        parts.option("timeout", channel.timeout, |route, it| route.timeout(it.0));
        parts.option("connect_timeout", channel.connect_timeout, |route, it| {
            route.connect_timeout(it.0)
        });
        let ca_file = channel.ca_file.as_ref().map(from);
        parts.option("ca_file", ca_file, Route::ca_file);
        let cert = channel.client_cert.as_ref();
        let cert = cert.map(|it| (from(&it.chain), from(&it.key)));
        parts.option("client_cert", cert, |route, (chain, key)| {
            route.client_cert(chain, key)
        });
        parts.option("proxy", channel.proxy.clone(), Route::proxy);
        let header = channel.idempotency_header.clone();
        parts.option("idempotency_header", header, Route::idempotency_header);
        let key = channel.idempotency_key.clone();
        parts.option("idempotency_key", key, Route::idempotency_key);
        parts.option("reply", channel.reply.as_ref().map(reply), Route::reply);
        parts.option(
            "provider_id",
            channel.provider_id.clone(),
            Route::provider_id,
        );
        let (delivered, rejected, retried) = (
            channel.status.delivered.clone(),
            channel.status.rejected.clone(),
            channel.status.retried.clone(),
        );
        parts.step("status", |route| {
            let route = route.delivered_on(delivered).rejected_on(rejected);
            route.retried_on(retried)
        });
        parts.option("sign", channel.sign.as_ref().map(place), Route::sign);
        parts
    }

    fn step(&mut self, key: &'static str, change: impl FnOnce(Route) -> Route + 'static) {
        self.steps.push((key, Box::new(change)));
    }

    fn option<T: 'static>(
        &mut self,
        key: &'static str,
        value: Option<T>,
        change: impl FnOnce(Route, T) -> Route + 'static,
    ) {
        if let Some(value) = value {
            self.step(key, |route| change(route, value));
        }
    }

    fn whole(self) -> Route {
        let apply = |route, (_, change): (_, Change)| change(route);
        self.steps.into_iter().fold(self.route, apply)
    }

    /// The keys that the library refuses, and why.
    fn refused(self, name: &str) -> Vec<(&'static str, String)> {
        let mut route = self.route;
        let mut found = Vec::new();
        for (key, change) in self.steps {
            let next = change(route.clone());
            match refused(name, &next) {
                None => route = next,
                Some(reason) => found.push((key, reason)),
            }
        }
        found
    }
}

/// The route of a channel, or all that is wrong with it.
pub(super) fn route(
    name: &str,
    channel: &Channel,
    folder: &Path,
    source: &Source<'_>,
) -> Result<Route, Vec<Fault>> {
    let parts = |url| Parts::new(channel, url, folder);
    let route = parts(&channel.url).whole();
    let Some(reason) = refused(name, &route) else {
        return Ok(route);
    };
    let mut found = match refused(name, &parts(&channel.url).route) {
        None => parts(&channel.url).refused(name),
        Some(reason) => [("url", reason)]
            .into_iter()
            .chain(parts(PLACEHOLDER).refused(name))
            .collect(),
    };
    if found.is_empty() {
        found.push(("url", reason));
    }
    let fault = |(key, reason): (_, String)| {
        source.channel_fault(name, key, &format!("is wrong: {reason}"))
    };
    Err(found.into_iter().map(fault).collect())
}

/// What the library has against a route.
fn refused(name: &str, route: &Route) -> Option<String> {
    let builder = HttpDispatcher::builder().channel(name, route.clone());
    let error = builder.build().err()?.to_string();
    let reason = error.strip_prefix(&format!("channel {name}: "));
    Some(reason.unwrap_or(&error).to_string())
}

fn reply(reply: &model::Reply) -> ReplyRule {
    let mut rule = ReplyRule::new();
    for pointer in &reply.require.0 {
        rule = rule.require(pointer);
    }
    for pointer in &reply.forbid.0 {
        rule = rule.forbid(pointer);
    }
    for (pointer, value) in &reply.equals {
        rule = rule.equals(pointer, value.clone());
    }
    rule.otherwise(match reply.otherwise {
        model::Otherwise::Retry => Otherwise::Retry,
        model::Otherwise::Reject => Otherwise::Reject,
    })
}
