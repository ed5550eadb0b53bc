//! A route as it is set, and the plan that is made of it once everything is checked.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ureq::http::header::HeaderName;
use ureq::http::{HeaderMap, Method};

use crate::dispatch::Outcome;

use super::judge::Overrides;
use super::line::{Line, Settings};
use super::proxy;
use super::reply::{Reply, ReplyRule, check_pointer};
use super::request::pair;
use super::secret::{COMMAND_LIMIT, CredentialSource, Purse, Scheme, Secret};
use super::url::{Template, Url};

/// How long a body may take when only the status decides.
const BODY_PATIENCE: Duration = Duration::from_secs(5);

/// The longest timeout: beyond it a setting is a slip of the unit.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// What of a dispatch is not waiting for the network.
const SLACK: Duration = Duration::from_secs(5);

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
    method: String,
    url: String,
    headers: Vec<(String, String)>,
    credentials: Vec<Scheme>,
    timeout: Duration,
    connect_timeout: Duration,
    allow_http: bool,
    ca_file: Option<PathBuf>,
    client_cert: Option<(PathBuf, PathBuf)>,
    proxy: Way,
    key_header: String,
    key: String,
    reply: Option<ReplyRule>,
    reply_with: Option<Judge>,
    overrides: Overrides,
    provider_id: Option<String>,
    sign: Option<Secret>,
}

/// How a route finds its proxy.
#[derive(Clone)]
enum Way {
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
    /// `User-Agent` replaces ours. For secrets use [`Route::secret_header`].
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
        self.sign = Some(secret);
        self
    }

    /// Checks everything. `line` finds or makes the connections for these settings.
    pub(super) fn plan(
        &self,
        pool: usize,
        hosts: usize,
        environment: &dyn Fn(&str) -> Option<String>,
        line: &mut dyn FnMut(Settings) -> Result<Arc<Line>, String>,
    ) -> Result<Plan, String> {
        let method = match self.method.to_ascii_uppercase().as_str() {
            "POST" => Method::POST,
            "PUT" => Method::PUT,
            "PATCH" => Method::PATCH,
            "DELETE" => Method::DELETE,
            _ => {
                return Err(format!(
                    "the method {:?} is none of POST, PUT, PATCH, DELETE",
                    self.method
                ));
            }
        };
        let url = Url::parse(&self.url)?;
        if !url.https && !self.allow_http && !url.is_loopback() {
            return Err(format!(
                "the URL is plain http to {}; use https, or allow_http where the network is yours",
                url.host
            ));
        }
        for (name, span) in [
            ("timeout", self.timeout),
            ("connect_timeout", self.connect_timeout),
        ] {
            if span.is_zero() || span > MAX_TIMEOUT {
                return Err(format!("the {name} {span:?} is not between 0 and an hour"));
            }
        }
        let key = Template::key(&self.key)?;
        let (key_header, _) = pair(&self.key_header, "")?;
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let (name, value) = pair(name, value)?;
            if RESERVED.contains(&name.as_str()) || name == key_header {
                return Err(format!("the header {name} is not set by hand"));
            }
            if matches!(name.as_str(), "authorization" | "proxy-authorization") {
                return Err(format!(
                    "the header {name} holds a secret: use bearer, basic or secret_header"
                ));
            }
            headers.insert(name, value);
        }
        if RESERVED.contains(&key_header.as_str()) {
            return Err(format!("{key_header} cannot carry the idempotency key"));
        }
        let mut guarded = vec![key_header.clone()];
        self.check_credentials(&mut guarded)?;
        if let Some(rule) = &self.reply {
            rule.check()?;
        }
        if let Some(pointer) = &self.provider_id {
            check_pointer(pointer)?;
        }
        self.overrides.check()?;
        let proxy = match &self.proxy {
            Way::Proxy(named) => Some(proxy::named(named)?),
            Way::Environment => proxy::from_environment(&url, environment)?,
            Way::Direct => None,
        };
        let decides =
            self.reply.is_some() || self.reply_with.is_some() || self.provider_id.is_some();
        let body_timeout = match decides {
            true => self.timeout,
            false => self.timeout.min(BODY_PATIENCE),
        };
        let slow = self.credentials.iter().filter(|it| it.is_slow()).count();
        let slow = slow + usize::from(self.sign.as_ref().is_some_and(Secret::is_slow));
        let slow = u32::try_from(slow).unwrap_or(u32::MAX).saturating_mul(2);
        Ok(Plan {
            method,
            target: url.place(),
            url,
            headers,
            purses: self.credentials.iter().cloned().map(Purse::new).collect(),
            key_header,
            key,
            guarded,
            reply: self.reply.clone(),
            reply_with: self.reply_with.clone(),
            overrides: self.overrides.clone(),
            provider_id: self.provider_id.clone(),
            sign: self
                .sign
                .clone()
                .map(|it| Purse::new(Scheme::Header("webhook-signature".into(), it))),
            timeout: self.timeout,
            connect_timeout: self.connect_timeout,
            time_limit: (self.timeout * 2 + SLACK)
                .saturating_add(COMMAND_LIMIT.saturating_mul(slow)),
            proxy: proxy
                .as_ref()
                .map(|it| format!("{}:{}", it.host(), it.port())),
            line: line(Settings {
                timeout: self.timeout,
                connect_timeout: self.connect_timeout,
                body_timeout,
                ca_file: self.ca_file.clone(),
                client_cert: self.client_cert.clone(),
                proxy,
                pool,
                hosts,
            })?,
        })
    }

    fn check_credentials(&self, guarded: &mut Vec<HeaderName>) -> Result<(), String> {
        let mut authorizations = 0;
        for scheme in &self.credentials {
            match scheme {
                Scheme::Bearer(secret) => {
                    secret.check()?;
                    authorizations += 1;
                }
                Scheme::Basic(user, secret) => {
                    secret.check()?;
                    authorizations += 1;
                    if user.contains(':') || user.chars().any(char::is_control) {
                        return Err(
                            "the user of basic contains a colon or control character".into()
                        );
                    }
                }
                Scheme::Header(name, secret) => {
                    secret.check()?;
                    let (name, _) = pair(name, "")?;
                    if RESERVED.contains(&name.as_str()) || guarded.contains(&name) {
                        return Err(format!("the header {name} cannot carry a secret"));
                    }
                    guarded.push(name);
                }
                Scheme::Source(_) => {}
            }
        }
        if authorizations > 1 {
            return Err("the route has more than one of bearer and basic".into());
        }
        if let Some(secret) = &self.sign {
            secret.check()?;
        }
        Ok(())
    }
}

/// Headers the transport sets.
const RESERVED: [&str; 14] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// A route that can be taken.
pub(super) struct Plan {
    pub(super) method: Method,
    pub(super) url: Url,
    /// `host:port` of the receiver.
    pub(super) target: String,
    /// `host:port` of the proxy.
    pub(super) proxy: Option<String>,
    pub(super) headers: HeaderMap,
    pub(super) purses: Vec<Purse>,
    pub(super) key_header: HeaderName,
    pub(super) key: Template,
    /// Headers of the route that a message must not set.
    pub(super) guarded: Vec<HeaderName>,
    pub(super) reply: Option<ReplyRule>,
    pub(super) reply_with: Option<Judge>,
    pub(super) overrides: Overrides,
    pub(super) provider_id: Option<String>,
    pub(super) sign: Option<Purse>,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) time_limit: Duration,
    pub(super) line: Arc<Line>,
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.target)?;
        match &self.proxy {
            Some(proxy) => write!(f, " via {proxy}"),
            None => Ok(()),
        }
    }
}
