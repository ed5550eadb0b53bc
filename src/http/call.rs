//! Calling on the receivers, to see whether somebody is there and who the certificate says it is.

use std::sync::Arc;

use ureq::http::header::DATE;
use ureq::http::{Method, Request};

use crate::dispatch::Failure;

use super::plan::Plan;
use super::{HttpDispatcher, errors, judge, send};

/// What came of calling on a route's receiver; see [`HttpDispatcher::call_on_receivers`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// The channels that go there in the same way; `default` for the fallback's route.
    pub channels: Vec<String>,
    /// Where it went, without path and query.
    pub url: String,
    /// The receiver's clock, in milliseconds since 1970 UTC, if it told.
    pub server_time: Option<i64>,
    /// The status of the answer, or why there was none.
    pub answer: Result<u16, Failure>,
}

impl HttpDispatcher {
    /// Asks every receiver for `HEAD /`, over its route's proxy and certificates, on a connection
    /// of its own, one after the other. No credentials and no message go out. Any status will do:
    /// somebody is there, and TLS is in order. Channels with the same receiver, proxy and
    /// certificates are one call.
    pub fn call_on_receivers(&self) -> Vec<Call> {
        let routes = self.0.routes.iter();
        let routes = routes.map(|(name, plan)| (name.as_str(), plan));
        let fallback = self.0.fallback.iter().map(|plan| ("default", plan));
        let mut calls: Vec<(&Plan, Vec<String>)> = Vec::new();
        for (channel, plan) in routes.chain(fallback) {
            let same = |(it, _): &&mut (&Plan, _)| {
                it.url.https == plan.url.https
                    && it.target == plan.target
                    && Arc::ptr_eq(&it.line, &plan.line)
            };
            match calls.iter_mut().find(same) {
                Some((_, channels)) => channels.push(channel.into()),
                None => calls.push((plan, vec![channel.into()])),
            }
        }
        let calls = calls.into_iter();
        calls.map(|(plan, channels)| call(channels, plan)).collect()
    }
}

fn call(channels: Vec<String>, plan: &Plan) -> Call {
    let scheme = if plan.url.https { "https" } else { "http" };
    let url = format!("{scheme}://{}/", plan.target);
    let mut call = Call {
        channels,
        server_time: None,
        answer: Err(Failure::new("unknown", "the URL has no root")),
        url,
    };
    let Ok(uri) = call.url.parse() else {
        return call;
    };
    let mut request = Request::new(&[][..]);
    *request.method_mut() = Method::HEAD;
    *request.uri_mut() = uri;
    call.answer = match plan.line.run(request, true) {
        Ok(response) => {
            let date = response.headers().get(DATE).and_then(|it| it.to_str().ok());
            call.server_time = date.and_then(judge::date);
            Ok(response.status().as_u16())
        }
        Err((error, _)) => {
            let (code, text) = errors::describe(&error, send::place(plan));
            Err(Failure::new(code, text))
        }
    };
    call
}
