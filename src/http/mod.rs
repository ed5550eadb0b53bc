//! The HTTP dispatcher: routes by channel, one request per message.
//!
//! A message goes through `send` from top to bottom: `request` builds it, `line` carries it,
//! `judge` says what the answer means. Nothing here knows the database.

mod call;
mod credential;
mod errors;
mod hidden;
mod judge;
mod line;
mod names;
mod plan;
mod preview;
mod proxy;
mod reply;
mod request;
mod route;
mod secret;
mod send;
mod spelling;
mod text;
mod url;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::SystemClock;
use crate::dispatch::{Delivery, Dispatcher, Outcome};
use crate::error::{Error, Result};

use line::{Line, Settings};
use names::Names;
use plan::Plan;

pub use call::{Call, Receiver};
pub use credential::{Credential, CredentialRequest, CredentialSource};
pub use preview::Preview;
pub use reply::{Otherwise, Reply, ReplyRule};
pub use route::Route;
pub use secret::Secret;

/// Sends each message as one HTTP request over its channel's [`Route`].
///
/// Connections are kept alive and shared by the workers. Cloning is cheap; clones share everything.
///
/// | what came back | outcome | [`Failure::code`](crate::Failure::code) |
/// |---|---|---|
/// | 2xx, and the route's [`ReplyRule`] holds | delivered | |
/// | 2xx, and it does not | as the rule says: retry or rejected | `reply_rule` |
/// | 400, 406, 410–415, 422, 431, 451 | rejected | `http_422` … |
/// | 3xx, never followed | blocked | `redirected` |
/// | 401, with fresh credentials too; 407 | blocked | `unauthorised` |
/// | 511 | blocked | `portal` |
/// | any other status | retry | `http_503` … |
/// | no answer | unreachable | `dns`, `refused`, `unreachable`, `reset`, `tls`, `proxy`, `timeout`, `garbage`, `interrupted`, `unknown` |
/// | credentials cannot be had | blocked | `no_credentials` |
/// | the message cannot be sent over this route | rejected, local | `invalid` |
///
/// A request is repeated at once, and only once, when a kept connection turns out dead or 401 asks
/// for fresh credentials; it is the same in every byte of the body and in its idempotency key.
/// `Retry-After` is taken from 429 and 503. Up to 64 KiB of an answer are read and 4 KiB kept.
///
/// ```
/// # fn main() -> sqlite_outbox::Result<()> {
/// use sqlite_outbox::{HttpDispatcher, Route, Secret};
///
/// let erp = HttpDispatcher::builder()
///     .channel(
///         "sales",
///         Route::post("https://erp.example/api/sales/{dedupe_key}").bearer(Secret::env("ERP_TOKEN")),
///     )
///     .build()?;
/// # drop(erp);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HttpDispatcher(Arc<Inner>);

struct Inner {
    routes: BTreeMap<String, Plan>,
    fallback: Option<Plan>,
    lines: Vec<Arc<Line>>,
    clock: SystemClock,
    interrupts: AtomicU64,
}

impl fmt::Debug for HttpDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpDispatcher")
            .field("routes", &self.0.routes)
            .field("fallback", &self.0.fallback)
            .finish_non_exhaustive()
    }
}

/// As many as there can be workers.
const POOL: usize = 1024;

/// Collects the routes of an [`HttpDispatcher`].
#[derive(Debug, Clone)]
#[must_use = "nothing is checked or sent before build()"]
pub struct HttpDispatcherBuilder {
    routes: BTreeMap<String, Route>,
    fallback: Option<Route>,
    pool: usize,
}

impl HttpDispatcher {
    /// A dispatcher without routes.
    pub fn builder() -> HttpDispatcherBuilder {
        HttpDispatcherBuilder {
            routes: BTreeMap::new(),
            fallback: None,
            pool: POOL,
        }
    }

    /// Reads every secret, and tells the channels and reasons of those that cannot be had or used, as a
    /// signing secret that is not base64; the channel is `default` for the fallback's. Commands are run; a [`CredentialSource`] is not asked.
    pub fn unreadable_secrets(&self) -> Vec<(String, String)> {
        let found = self.plans().flat_map(|(channel, plan)| {
            let reasons = plan.unusable_secrets().into_iter();
            reasons.map(move |it| (channel.to_string(), it))
        });
        found.collect()
    }

    /// Headers that are set as they are and whose names speak of a secret, with their channels; the
    /// channel is `default` for the fallback's. [`Route::secret_header`] keeps such a value out of
    /// settings and shown requests.
    pub fn headers_like_secrets(&self) -> Vec<(&str, &str)> {
        self.plans()
            .flat_map(|(channel, plan)| {
                let names = plan.headers.keys().map(|it| it.as_str());
                names
                    .filter(|it| hidden::speaks(it))
                    .map(move |it| (channel, it))
            })
            .collect()
    }

    /// The channels whose routes take any 2xx for a delivery, the login page of a network too; the
    /// channel is `default` for the fallback's.
    pub fn without_reply_rule(&self) -> Vec<&str> {
        self.plans()
            .filter(|(_, plan)| plan.reply.is_none() && plan.reply_with.is_none())
            .map(|(channel, _)| channel)
            .collect()
    }

    /// Parts of a URL's query that have a fixed value and whose names speak of a secret, with their
    /// channels; the channel is `default` for the fallback's. URLs are written to logs on their way.
    pub fn queries_like_secrets(&self) -> Vec<(&str, String)> {
        let all = self.plans();
        all.flat_map(|(channel, plan)| plan.url.speaking().into_iter().map(move |it| (channel, it)))
            .collect()
    }

    /// The channels whose credentials go over plain http to another machine, and its `host:port`; the
    /// channel is `default` for the fallback's. Whoever is in between can read and use them.
    pub fn credentials_in_plain_sight(&self) -> Vec<(&str, &str)> {
        let all = self.plans();
        let seen = all.filter(|(_, plan)| !plan.url.https && !plan.url.is_loopback());
        seen.filter(|(_, plan)| plan.shows_credentials())
            .map(|(channel, plan)| (channel, plan.target.as_str()))
            .collect()
    }

    /// All routes with their channels, the fallback's as `default`.
    fn plans(&self) -> impl Iterator<Item = (&str, &Plan)> {
        let routes = self.0.routes.iter();
        let routes = routes.map(|(name, plan)| (name.as_str(), plan));
        routes.chain(self.0.fallback.iter().map(|plan| ("default", plan)))
    }

    fn plan(&self, channel: &str) -> Option<&Plan> {
        self.0.routes.get(channel).or(self.0.fallback.as_ref())
    }
}

impl HttpDispatcherBuilder {
    /// Serves `channel` over `route`. The last one given for a channel holds.
    pub fn channel(mut self, channel: impl Into<String>, route: Route) -> Self {
        self.routes.insert(channel.into(), route);
        self
    }

    /// Serves every channel that has no route of its own.
    pub fn fallback(mut self, route: Route) -> Self {
        self.fallback = Some(route);
        self
    }

    /// Idle connections kept per receiver, for some seconds. Default 1,024: whatever the workers had
    /// open at once. With fewer than workers, requests pay for new connections.
    pub fn pool(mut self, workers: usize) -> Self {
        self.pool = workers.max(1);
        self
    }

    /// Checks every route and reads the certificate files. Nothing is sent yet, and secrets are
    /// read when the first message needs them.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`] names the channel and what is wrong with its route, the proxy of
    /// the environment included.
    pub fn build(self) -> Result<HttpDispatcher> {
        let hosts = self.routes.len() + usize::from(self.fallback.is_some());
        if hosts == 0 {
            return Err(Error::InvalidSetting("no channel has a route".into()));
        }
        let names = Names::default();
        let mut lines: Vec<Arc<Line>> = Vec::new();
        let mut line = |settings: Settings| {
            if let Some(known) = lines.iter().find(|it| it.has(&settings)) {
                return Ok(known.clone());
            }
            let fresh = Arc::new(Line::new(settings, names.clone())?);
            lines.push(fresh.clone());
            Ok(fresh)
        };
        let environment = |name: &str| std::env::var(name).ok();
        let mut plan = |channel: &str, route: &Route| {
            route
                .plan(self.pool, hosts, &environment, &mut line)
                .map_err(|reason| Error::InvalidSetting(format!("{channel}: {reason}")))
        };
        let mut routes = BTreeMap::new();
        for (channel, route) in &self.routes {
            if channel.is_empty() {
                return Err(Error::InvalidSetting("a channel has no name".into()));
            }
            routes.insert(channel.clone(), plan(&format!("channel {channel}"), route)?);
        }
        let fallback = match &self.fallback {
            Some(route) => Some(plan("the default channel", route)?),
            None => None,
        };
        Ok(HttpDispatcher(Arc::new(Inner {
            routes,
            fallback,
            lines,
            clock: SystemClock::default(),
            interrupts: AtomicU64::new(0),
        })))
    }
}

impl Dispatcher for HttpDispatcher {
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        match self.plan(&delivery.channel) {
            Some(plan) => Ok(send::send(
                plan,
                delivery,
                &self.0.clock,
                &self.0.interrupts,
            )),
            None => anyhow::bail!("no route for channel {}", delivery.channel),
        }
    }

    fn serves(&self, channel: &str) -> bool {
        self.plan(channel).is_some()
    }

    /// Twice the route's timeout and a little, and the time its credentials may take.
    fn time_limit(&self, channel: &str) -> Duration {
        self.plan(channel)
            .map_or(Duration::from_secs(120), |plan| plan.time_limit)
    }

    /// Ends the calls in flight; a name lookup or TCP connect runs to its own timeout. The
    /// dispatcher can be used again at once, over new connections.
    fn interrupt(&self) {
        self.0.interrupts.fetch_add(1, Ordering::AcqRel);
        for line in &self.0.lines {
            line.interrupt();
        }
    }
}
