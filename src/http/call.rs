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
    /// The receivers, to be called on one after the other or side by side. Channels with the same
    /// receiver, proxy and certificates have one.
    pub fn receivers(&self) -> Vec<Receiver<'_>> {
        let mut receivers: Vec<Receiver<'_>> = Vec::new();
        for (channel, plan) in self.plans() {
            let same = |it: &&mut Receiver<'_>| {
                it.plan.url.https == plan.url.https
                    && it.plan.target == plan.target
                    && Arc::ptr_eq(&it.plan.line, &plan.line)
            };
            match receivers.iter_mut().find(same) {
                Some(known) => known.channels.push(channel.into()),
                None => receivers.push(Receiver {
                    plan,
                    channels: vec![channel.into()],
                }),
            }
        }
        receivers
    }

    /// Calls on all [`receivers`](Self::receivers), one after the other.
    pub fn call_on_receivers(&self) -> Vec<Call> {
        self.receivers().into_iter().map(Receiver::call).collect()
    }
}

/// Somebody to call on; see [`HttpDispatcher::receivers`].
#[derive(Debug)]
pub struct Receiver<'a> {
    plan: &'a Plan,
    channels: Vec<String>,
}

impl Receiver<'_> {
    /// Asks for `HEAD /`, over the route's proxy and certificates, on a connection of its own. No
    /// credentials and no message go out. Any status will do: somebody is there, and TLS is in order.
    /// It takes as long as the route's timeouts allow.
    pub fn call(self) -> Call {
        call(self.channels, self.plan)
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
        Err((error, stage)) => {
            let (code, text) = errors::describe(&error, send::place(plan, stage));
            Err(Failure::new(code, text))
        }
    };
    call
}
