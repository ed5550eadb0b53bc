//! The plan that is made of a route once everything in it is checked.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ureq::http::header::HeaderName;
use ureq::http::{HeaderMap, Method};

use super::credential::{Purse, Scheme};
use super::hidden;
use super::judge::Overrides;
use super::line::{Line, Settings};
use super::proxy;
use super::reply::{ReplyRule, check_pointer};
use super::request::pair;
use super::route::{Judge, Route, Way};
use super::secret::COMMAND_LIMIT;
use super::url::{Template, Url};
use super::wire::LONGEST;

/// How long a body may take when only the status decides.
const BODY_PATIENCE: Duration = Duration::from_secs(5);

/// The longest timeout: beyond it a setting is a slip of the unit.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// What of a dispatch is not waiting for the network.
const SLACK: Duration = Duration::from_secs(5);

/// Headers the transport sets.
pub(super) const RESERVED: [&str; 14] = [
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
    /// What of its headers, URL and proxy is secret, besides its credentials.
    pub(super) hidden: Vec<String>,
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

impl Plan {
    /// What is wrong with those secrets that can be read beforehand.
    pub(super) fn unusable_secrets(&self) -> Vec<String> {
        let all = self.purses.iter().chain(&self.sign);
        all.filter_map(|it| it.scheme.try_read().err())
            .map(|it| format!("{it:#}"))
            .collect()
    }

    /// Whether a request shows what only its receiver is to know.
    pub(super) fn shows_credentials(&self) -> bool {
        let speaking = |it: &HeaderName| hidden::speaks(it.as_str());
        !self.purses.is_empty()
            || self.headers.keys().any(speaking)
            || !self.url.speaking().is_empty()
    }
}

impl Route {
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
        let mut hidden = url.secrets();
        let key = Template::key(&self.key)?;
        let (key_header, _) = pair(&self.key_header, "")?;
        let mut headers = HeaderMap::new();
        let mut bytes = 0_usize;
        for (name, value) in &self.headers {
            let (name, value) = pair(name, value)?;
            // No receiver takes more, and a `HeaderMap` panics over tens of thousands.
            bytes = bytes.saturating_add(name.as_str().len() + value.len());
            if bytes > LONGEST {
                return Err(format!(
                    "the headers are longer than {} KiB",
                    LONGEST / 1024
                ));
            }
            if RESERVED.contains(&name.as_str()) || name == key_header {
                return Err(format!("the header {name} is not set by hand"));
            }
            if matches!(name.as_str(), "authorization" | "proxy-authorization") {
                return Err(format!(
                    "the header {name} holds a secret: use bearer, basic or secret_headers"
                ));
            }
            let text = String::from_utf8_lossy(value.as_bytes());
            let secrets = hidden::of_value(name.as_str(), &text);
            hidden.extend(secrets.into_iter().map(String::from));
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
        let login = proxy.as_ref().and_then(|it| it.password());
        hidden.extend(login.map(String::from));
        let decides =
            self.reply.is_some() || self.reply_with.is_some() || self.provider_id.is_some();
        let body_timeout = match decides {
            true => self.timeout,
            false => self.timeout.min(BODY_PATIENCE),
        };
        let slow = self.credentials.iter().chain(&self.sign);
        let slow = slow.filter(|it| it.is_slow()).count();
        let slow = u32::try_from(slow).unwrap_or(u32::MAX).saturating_mul(2);
        Ok(Plan {
            method,
            target: url.place(),
            url,
            headers,
            hidden,
            purses: self.credentials.iter().cloned().map(Purse::new).collect(),
            key_header,
            key,
            guarded,
            reply: self.reply.clone(),
            reply_with: self.reply_with.clone(),
            overrides: self.overrides.clone(),
            provider_id: self.provider_id.clone(),
            sign: self.sign.clone().map(Purse::new),
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
        for scheme in self.credentials.iter().chain(&self.sign) {
            scheme.check()?;
            match scheme {
                Scheme::Bearer(_) | Scheme::Basic(..) => authorizations += 1,
                Scheme::Header(name, _) => {
                    let (name, _) = pair(name, "")?;
                    if RESERVED.contains(&name.as_str()) || guarded.contains(&name) {
                        return Err(format!("the header {name} cannot carry a secret"));
                    }
                    guarded.push(name);
                }
                Scheme::Sign(_) | Scheme::Source(_) => {}
            }
        }
        match authorizations > 1 {
            true => Err("the route has more than one of bearer and basic".into()),
            false => Ok(()),
        }
    }
}
