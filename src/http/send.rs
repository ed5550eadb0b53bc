//! One message, start to end: the request, at most a few repeats, the judgement.

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};

use ureq::http::Response;

use crate::clock::Clock;
use crate::dispatch::{Delivery, Failure, Outcome};

use super::credential::Credential;
use super::errors::{self, Place, is_dead_connection};
use super::hidden::Hidden;
use super::judge;
use super::line::Stage;
use super::plan::Plan;
use super::reply::{MAX_BODY, Reply};
use super::request;
use super::text::shown;
use super::wire::SENT;

/// Larger bodies ask first, so that an early 413 is seen instead of a broken connection.
const EXPECT_ABOVE: usize = 128 * 1024;

/// Sends one message over its route. `interrupts` counts the calls of `interrupt`.
///
/// Repeated at once, each at most once: on a new connection when an idle one turned out dead,
/// with fresh credentials after 401, without `Expect` after 417 or a success before the body. No repeat begins later than the
/// route's timeout after the start, so the whole takes at most twice the timeout.
pub(super) fn send(
    plan: &Plan,
    delivery: &Delivery,
    clock: &dyn Clock,
    interrupts: &AtomicU64,
) -> Outcome {
    let head = match request::head(plan, delivery) {
        Ok(head) => head,
        Err(reason) => return invalid(reason),
    };
    let mut keys = match Keys::ask(plan, delivery, None) {
        Ok(keys) => keys,
        Err(error) => return no_credentials(&error),
    };
    let started = clock.monotonic();
    let before = interrupts.load(Ordering::Acquire);
    let interrupted = || interrupts.load(Ordering::Acquire) != before;
    let may_repeat = || !interrupted() && clock.monotonic().saturating_sub(started) < plan.timeout;
    let mut expect = delivery.payload.len() > EXPECT_ABOVE;
    let mut anew = false;
    let mut renewed = false;
    loop {
        let sign = keys.sign().map(|it| (it, clock.wall() / 1000));
        let payload = delivery.payload.as_slice();
        let request = head.request(plan, payload, &keys.credentials, sign, expect);
        let request = match request {
            Ok(request) => request,
            Err(reason) => return no_credentials(&anyhow::Error::msg(reason)),
        };
        let response = match plan.line.run(request, anew) {
            Ok(response) => response,
            Err((error, stage)) => {
                for place in plan.proxy.iter().chain([&plan.target]) {
                    plan.line.forget(place);
                }
                if stage == Stage::Idle && !anew && is_dead_connection(&error) && may_repeat() {
                    anew = true;
                    continue;
                }
                if interrupted() {
                    let failure = Failure::new(Failure::INTERRUPTED, "the request was interrupted");
                    return Outcome::Unreachable(failure);
                }
                return keys
                    .hidden(plan, delivery)
                    .hide(unanswered(plan, &error, stage));
            }
        };
        let mut reply = receive(response, plan);
        // Before anything is cut out of it: half a secret is one too.
        reply.body = keys.hidden(plan, delivery).blank(reply.body);
        // Nobody has what was not sent, whatever is said to the head alone.
        let unseen = (200..300).contains(&reply.status()) && SENT.get() < payload.len();
        if expect && (reply.status() == 417 || unseen) && may_repeat() {
            expect = false;
            continue;
        }
        if reply.status() == 401 && !keys.are_none() {
            if renewed || !may_repeat() {
                keys.forget(plan, delivery);
            } else {
                renewed = true;
                match Keys::ask(plan, delivery, Some(&keys)) {
                    // The same again would be answered the same.
                    Ok(fresh) if fresh == keys => {}
                    Ok(fresh) => {
                        keys = fresh;
                        continue;
                    }
                    Err(error) => return no_credentials(&error),
                }
            }
        }
        return keys
            .hidden(plan, delivery)
            .hide(settle(plan, &reply, clock.wall()));
    }
}

fn settle(plan: &Plan, reply: &Reply, now: i64) -> Outcome {
    let own = plan.reply_with.as_ref().and_then(|judge| judge(reply));
    own.unwrap_or_else(|| {
        let rule = plan.reply.as_ref();
        judge::outcome(
            reply,
            &plan.overrides,
            rule,
            plan.provider_id.as_deref(),
            now,
        )
    })
}

/// Reads what can be read of the body, so that the connection can be used again.
fn receive(response: Response<ureq::Body>, plan: &Plan) -> Reply {
    let (parts, body) = response.into_parts();
    let mut reply = Reply {
        status: parts.status,
        headers: parts.headers,
        body: Vec::new(),
        cut: None,
    };
    // One byte more tells a longer body, and reading past the end gives the connection back.
    let limit = u64::try_from(MAX_BODY)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let read = body.into_reader().take(limit).read_to_end(&mut reply.body);
    if let Err(error) = read {
        let (_, text) = errors::describe(&ureq::Error::from(error), place(plan, Stage::Whole));
        reply.cut = Some(text);
    } else if reply.body.len() > MAX_BODY {
        reply.body.truncate(MAX_BODY);
        reply.cut = Some(format!("it is longer than {} KiB", MAX_BODY / 1024));
    }
    reply
}

pub(super) fn place(plan: &Plan, stage: Stage) -> Place<'_> {
    Place {
        mute: plan.url.https && stage == Stage::Reached,
        target: &plan.target,
        proxy: plan.proxy.as_deref(),
        timeout: plan.timeout,
        connect_timeout: plan.connect_timeout,
    }
}

fn unanswered(plan: &Plan, error: &ureq::Error, stage: Stage) -> Outcome {
    let outcome = errors::outcome(error, place(plan, stage));
    if matches!(&outcome, Outcome::Unreachable(failure) if failure.code == "tls") {
        plan.line.renew();
    }
    outcome
}

fn invalid(reason: String) -> Outcome {
    Outcome::Rejected(Failure::new(Failure::INVALID, reason).local())
}

fn no_credentials(error: &anyhow::Error) -> Outcome {
    let text = format!("no credentials: {error:#}");
    Outcome::Blocked(Failure::new(Failure::NO_CREDENTIALS, shown(text.as_bytes())).local())
}

/// The secrets of one request.
#[derive(PartialEq)]
struct Keys {
    credentials: Vec<Credential>,
    sign: Option<Credential>,
}

impl Keys {
    /// Asks for everything; anew where `rejected` was what 401 came back for.
    fn ask(plan: &Plan, delivery: &Delivery, rejected: Option<&Self>) -> anyhow::Result<Self> {
        let (channel, principal) = (delivery.channel.as_str(), delivery.principal.as_deref());
        let mut credentials = Vec::with_capacity(plan.purses.len());
        for (at, purse) in plan.purses.iter().enumerate() {
            let old = rejected.and_then(|it| it.credentials.get(at));
            credentials.push(purse.credential(channel, principal, old)?);
        }
        let old = rejected.and_then(|it| it.sign.as_ref());
        let sign = match &plan.sign {
            Some(purse) => Some(purse.credential(channel, principal, old)?),
            None => None,
        };
        Ok(Self { credentials, sign })
    }

    fn are_none(&self) -> bool {
        self.credentials.is_empty() && self.sign.is_none()
    }

    /// The signing secret.
    fn sign(&self) -> Option<&str> {
        match &self.sign {
            Some(Credential::Header { value, .. }) => Some(value),
            _ => None,
        }
    }

    fn forget(&self, plan: &Plan, delivery: &Delivery) {
        let purses = plan.purses.iter().chain(&plan.sign);
        let credentials = self.credentials.iter().chain(&self.sign);
        for (purse, credential) in purses.zip(credentials) {
            let principal = delivery.principal.as_deref();
            purse.forget(&delivery.channel, principal, credential);
        }
    }

    /// What must not be kept of an answer.
    fn hidden<'a>(&'a self, plan: &'a Plan, delivery: &'a Delivery) -> Hidden<'a> {
        Hidden::new(plan, delivery, &self.credentials, self.sign.as_ref())
    }
}
