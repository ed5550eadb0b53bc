//! A route as it is set.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::dispatch::Outcome;

use super::credential::{CredentialSource, Scheme};
use super::judge::Overrides;
use super::reply::{Reply, ReplyRule};
use super::secret::Secret;

pub(super) type Judge = Arc<dyn Fn(&Reply) -> Option<Outcome> + Send + Sync>;

/// Where the messages of a channel go, and how.
///
/// Nothing is checked before [`HttpDispatcherBuilder::build`](crate::HttpDispatcherBuilder::build).
///
/// The URL may contain `{channel}`, `{event_type}`, `{dedupe_key}`, `{message_id}`, `{recipient}`
/// and `{id}` after the host; values are percent-encoded as one path segment. A message that has
/// no value for a placeholder of its route becomes a dead letter.
#[derive(Clone)]
#[must_use = "a route serves once it is given to HttpDispatcher::builder()"]
pub struct Route {
    pub(super) method: String,
    pub(super) url: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) credentials: Vec<Scheme>,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) allow_http: bool,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) client_cert: Option<(PathBuf, PathBuf)>,
    pub(super) proxy: Way,
    pub(super) key_header: String,
    pub(super) key: String,
    pub(super) reply: Option<ReplyRule>,
    pub(super) reply_with: Option<Judge>,
    pub(super) overrides: Overrides,
    pub(super) provider_id: Option<String>,
    pub(super) sign: Option<Scheme>,
}

/// How a route finds its proxy.
#[derive(Clone)]
pub(super) enum Way {
    Environment,
    Proxy(String),
    Direct,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL was not checked yet and may hold anything; headers may be secrets all the same.
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Route")
            .field("method", &self.method)
            .field("headers", &names)
            .field("credentials", &self.credentials)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Route {
    /// A route by POST.
    pub fn post(url: impl Into<String>) -> Self {
        Self::new("POST", url)
    }

    /// A route by `POST`, `PUT`, `PATCH` or `DELETE`. The payload is the body in every case.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            method: method.into(),
            url: url.into(),
            headers: Vec::new(),
            credentials: Vec::new(),
            timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(10),
            allow_http: false,
            ca_file: None,
            client_cert: None,
            proxy: Way::Environment,
            key_header: "Idempotency-Key".into(),
            key: "{message_id}".into(),
            reply: None,
            reply_with: None,
            overrides: Overrides::default(),
            provider_id: None,
            sign: None,
        }
    }

    /// A header of every request. A message's own header of the same name takes its place;
    /// `User-Agent` replaces ours. For secrets use [`Route::secret_header`]; a value that looks like one,
    /// or is long and no number, is blanked all the same where the receiver repeats it. All of them
    /// together have 31 KiB at most.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// `Authorization: Bearer …`
    pub fn bearer(mut self, token: Secret) -> Self {
        self.credentials.push(Scheme::Bearer(token));
        self
    }

    /// `Authorization: Basic …`
    pub fn basic(mut self, user: impl Into<String>, password: Secret) -> Self {
        self.credentials.push(Scheme::Basic(user.into(), password));
        self
    }

    /// A secret in a header of the receiver's own, e.g. `X-Api-Key`.
    pub fn secret_header(mut self, name: impl Into<String>, secret: Secret) -> Self {
        self.credentials.push(Scheme::Header(name.into(), secret));
        self
    }

    /// Asks `source` for the credential, once per channel and principal and again after 401.
    pub fn credentials(mut self, source: impl CredentialSource + 'static) -> Self {
        self.credentials.push(Scheme::Source(Arc::new(source)));
        self
    }

    /// The longest one exchange may take, from the name lookup to the end of the answer. Default
    /// 60 s, at most an hour. Keep it long: giving up early leaves it unknown whether the message
    /// was taken. When only the status decides, the answer's body is waited for 5 s at most.
    pub fn timeout(mut self, span: Duration) -> Self {
        self.timeout = span;
        self
    }

    /// The longest the name lookup may take, and then the connection with TLS. Default 10 s.
    pub fn connect_timeout(mut self, span: Duration) -> Self {
        self.connect_timeout = span;
        self
    }

    /// Allows `http://` to other machines: whoever is in between reads and changes everything.
    /// Default: only to this machine.
    pub fn allow_http(mut self, allow: bool) -> Self {
        self.allow_http = allow;
        self
    }

    /// Trusts the certificates in this PEM file, and only these, for this route. Default: what
    /// the machine trusts.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Shows a client certificate: PEM files of the chain and of its unencrypted key.
    pub fn client_cert(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client_cert = Some((chain.into(), key.into()));
        self
    }

    /// Goes through this HTTP proxy, `http://user:password@host:port`, by CONNECT, plain `http://`
    /// and loopback too.
    ///
    /// Default: `HTTPS_PROXY` or `HTTP_PROXY` by the URL's scheme, then `ALL_PROXY`, except for
    /// loopback and what `NO_PROXY` lists (hosts with their subdomains, addresses, CIDR blocks,
    /// `*`). The environment is read when the dispatcher is built.
    pub fn proxy(mut self, url: impl Into<String>) -> Self {
        self.proxy = Way::Proxy(url.into());
        self
    }

    /// Goes direct, whatever the environment says.
    pub fn direct(mut self) -> Self {
        self.proxy = Way::Direct;
        self
    }

    /// The name of the idempotency header. Default `Idempotency-Key`.
    pub fn idempotency_header(mut self, name: impl Into<String>) -> Self {
        self.key_header = name.into();
        self
    }

    /// The idempotency key, of `{message_id}`, `{instance}`, `{channel}` and `{dedupe_key}`.
    /// Default `{message_id}`. What is not printable ASCII is percent-encoded.
    pub fn idempotency_key(mut self, template: impl Into<String>) -> Self {
        self.key = template.into();
        self
    }

    /// When a 2xx answer counts as a delivery. Default: always.
    pub fn reply(mut self, rule: ReplyRule) -> Self {
        self.reply = Some(rule);
        self
    }

    /// Judges answers in code; `None` leaves an answer to the rule and the table.
    pub fn reply_with(
        mut self,
        judge: impl Fn(&Reply) -> Option<Outcome> + Send + Sync + 'static,
    ) -> Self {
        self.reply_with = Some(Arc::new(judge));
        self
    }

    /// Takes these status codes for a delivery, whatever the body, e.g. 409 of a receiver that
    /// already has the message.
    pub fn delivered_on(mut self, codes: impl IntoIterator<Item = u16>) -> Self {
        self.overrides.delivered.extend(codes);
        self
    }

    /// Takes these status codes for a refusal of the message, e.g. 417.
    pub fn rejected_on(mut self, codes: impl IntoIterator<Item = u16>) -> Self {
        self.overrides.rejected.extend(codes);
        self
    }

    /// Tries again on these status codes, e.g. 400 of a receiver that says it for everything.
    pub fn retried_on(mut self, codes: impl IntoIterator<Item = u16>) -> Self {
        self.overrides.retried.extend(codes);
        self
    }

    /// The JSON pointer of the receiver's own id in its answer, when no rule requires one.
    pub fn provider_id(mut self, pointer: impl Into<String>) -> Self {
        self.provider_id = Some(pointer.into());
        self
    }

    /// Signs each request after the Standard Webhooks specification (`webhook-id`,
    /// `webhook-timestamp`, `webhook-signature`) with a secret of the form `whsec_…`.
    pub fn sign(mut self, secret: Secret) -> Self {
        self.sign = Some(Scheme::Sign(secret));
        self
    }
}
