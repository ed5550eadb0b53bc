//! Credentials: asked for when they are needed, kept per principal, shown nowhere.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ureq::http::header::{AUTHORIZATION, HeaderName, HeaderValue};

use super::request::{pair, signing_key};
use super::secret::Secret;

/// The most principals whose credentials a route remembers.
const MAX_PRINCIPALS: usize = 1024;

/// What a request shows to prove who it comes from. `Debug` shows none of it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credential {
    /// `Authorization: Bearer …`
    Bearer(String),
    /// `Authorization: Basic …`
    Basic {
        /// The user; must not contain a colon.
        user: String,
        /// The password.
        password: String,
    },
    /// A header of the receiver's own, e.g. `X-Api-Key`.
    Header {
        /// Its name.
        name: String,
        /// The secret.
        value: String,
    },
}

impl Credential {
    /// The header it is sent as, or what is wrong with it, without the secret.
    pub(super) fn header(&self) -> Result<(HeaderName, HeaderValue), String> {
        sound(self.secret())?;
        let (name, value) = match self {
            Self::Bearer(token) => ("authorization", format!("Bearer {token}")),
            Self::Basic { user, password } => {
                check_user(user)?;
                ("authorization", format!("Basic {}", code(user, password)))
            }
            Self::Header { name, value } => (name.as_str(), value.clone()),
        };
        let (name, value) = pair(name, &value)?;
        // ureq refuses it, and blames the receiver.
        if name == AUTHORIZATION && value.to_str().is_err() {
            let odd = self.secret().chars().position(|it| !it.is_ascii());
            return Err(format!(
                "character {} of the secret is not ASCII, which the header {name} cannot carry",
                odd.unwrap_or_default() + 1
            ));
        }
        Ok((name, value))
    }

    fn secret(&self) -> &str {
        match self {
            Self::Bearer(secret)
            | Self::Basic {
                password: secret, ..
            }
            | Self::Header { value: secret, .. } => secret,
        }
    }

    /// Every text in it that must not be shown.
    pub(super) fn secrets(&self) -> Vec<Cow<'_, str>> {
        match self {
            Self::Bearer(secret) | Self::Header { value: secret, .. } => vec![secret.into()],
            Self::Basic { user, password } => vec![code(user, password).into(), password.into()],
        }
    }
}

/// The variable of a shell that stands for a secret without a name, and for that of a header.
const SECRET: &str = "SECRET";

fn variable(header: &str) -> String {
    let mut name = format!("{SECRET}_");
    for it in header.chars() {
        match it {
            '-' => name.push('_'),
            it if it.is_ascii_alphanumeric() => name.push(it.to_ascii_uppercase()),
            _ => name.push_str("__"),
        }
    }
    name
}

/// What no header can carry.
fn sound(secret: &str) -> Result<(), String> {
    if secret.is_empty() {
        return Err("the secret is empty".into());
    }
    match secret.chars().any(char::is_control) {
        true => Err("the secret contains a line break or another control character".into()),
        false => Ok(()),
    }
}

fn check_user(user: &str) -> Result<(), String> {
    match user.contains(':') || user.chars().any(char::is_control) {
        true => Err("the user of basic contains a colon or control character".into()),
        false => Ok(()),
    }
}

/// User and password as they are sent.
fn code(user: &str, password: &str) -> String {
    BASE64_STANDARD.encode(format!("{user}:{password}"))
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bearer(_) => f.write_str("Bearer(…)"),
            Self::Basic { .. } => f.write_str("Basic(…)"),
            Self::Header { name, .. } => write!(f, "Header({name}: …)"),
        }
    }
}

/// What a [`CredentialSource`] is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CredentialRequest<'a> {
    /// The channel of the message.
    pub channel: &'a str,
    /// The message's principal: whose credential is wanted.
    pub principal: Option<&'a str>,
    /// The receiver has just answered 401 to the credential given before: a fresh one is wanted.
    pub rejected: bool,
}

/// Where credentials come from, e.g. a login at the ERP. Implemented for closures.
///
/// The answer is kept per route and principal and asked for again once the receiver answers 401.
/// It runs on a worker; the message waits meanwhile, so an answer should take seconds at most. An
/// error makes the channel wait as unauthorised and is shown as its reason.
pub trait CredentialSource: Send + Sync {
    /// The credential to send.
    fn credential(&self, request: &CredentialRequest<'_>) -> anyhow::Result<Credential>;
}

impl<F> CredentialSource for F
where
    F: Fn(&CredentialRequest<'_>) -> anyhow::Result<Credential> + Send + Sync,
{
    fn credential(&self, request: &CredentialRequest<'_>) -> anyhow::Result<Credential> {
        self(request)
    }
}

/// A secret of one's own is the same for everyone.
const NOBODY: CredentialRequest<'_> = CredentialRequest {
    channel: "",
    principal: None,
    rejected: false,
};

/// One credential of a route, as it was set.
#[derive(Clone)]
pub(super) enum Scheme {
    Bearer(Secret),
    Basic(String, Secret),
    Header(String, Secret),
    /// The secret that requests are signed with, kept as a header of that name.
    Sign(Secret),
    Source(Arc<dyn CredentialSource>),
}

impl Scheme {
    /// The credential, of which nothing is known to stand in the way of sending it.
    fn ask(&self, request: &CredentialRequest<'_>) -> anyhow::Result<Credential> {
        let credential = match self {
            Self::Bearer(secret) => Credential::Bearer(secret.read()?),
            Self::Basic(user, secret) => Credential::Basic {
                user: user.clone(),
                password: secret.read()?,
            },
            Self::Header(name, secret) => Credential::Header {
                name: name.clone(),
                value: secret.read()?,
            },
            Self::Sign(secret) => Credential::Header {
                name: "webhook-signature".into(),
                value: secret.read()?,
            },
            Self::Source(source) => source.credential(request)?,
        };
        let judged = match self {
            Self::Sign(_) => signing_key(credential.secret()).map(drop),
            _ => credential.header().map(drop),
        };
        match judged {
            Ok(()) => Ok(credential),
            Err(wrong) => anyhow::bail!("{self:?}: {wrong}"),
        }
    }

    /// What can be known to be wrong before it is needed.
    pub(super) fn check(&self) -> Result<(), String> {
        if let Self::Basic(user, _) = self {
            check_user(user)?;
        }
        match self.secret() {
            Some(secret) if secret.is_known() => {
                self.try_read().map(drop).map_err(|it| it.to_string())
            }
            Some(secret) => secret.check(),
            None => Ok(()),
        }
    }

    /// The secret, where it is one of its own.
    fn secret(&self) -> Option<&Secret> {
        match self {
            Self::Bearer(secret)
            | Self::Basic(_, secret)
            | Self::Header(_, secret)
            | Self::Sign(secret) => Some(secret),
            Self::Source(_) => None,
        }
    }

    /// Secrets of one's own are the same for every channel and principal.
    fn key(&self, channel: &str, principal: Option<&str>) -> Key {
        match self {
            Self::Source(_) => (channel.into(), principal.map(str::to_string)),
            _ => Key::default(),
        }
    }

    /// Name and value of the header with stand-ins for what is secret.
    pub(super) fn stand_in(&self) -> (&str, String) {
        match self {
            Self::Bearer(secret) => (
                "authorization",
                format!("Bearer {}", secret.stand_in(SECRET)),
            ),
            Self::Basic(user, secret) => {
                // Within double quotes of a shell.
                let user = user.chars().fold(String::new(), |mut user, it| {
                    if matches!(it, '"' | '$' | '`' | '\\') {
                        user.push('\\');
                    }
                    user.push(it);
                    user
                });
                let login = format!("{user}:{}", secret.stand_in(SECRET));
                (
                    "authorization",
                    format!("Basic $(printf %s \"{login}\" | base64 | tr -d '\\n')"),
                )
            }
            Self::Header(name, secret) => (name, secret.stand_in(&variable(name))),
            Self::Sign(_) => ("webhook-signature", "$SIGNATURE".into()),
            Self::Source(_) => ("authorization", "$CREDENTIAL".into()),
        }
    }

    /// The variable among its stand-ins that a person has to fill in.
    pub(super) fn to_fill_in(&self) -> Option<String> {
        match self {
            Self::Bearer(secret) | Self::Basic(_, secret) => {
                secret.is_nameless().then(|| SECRET.into())
            }
            Self::Header(name, secret) => secret.is_nameless().then(|| variable(name)),
            Self::Sign(_) => None,
            Self::Source(_) => Some("CREDENTIAL".into()),
        }
    }

    /// Reads the secret. A source is not asked: that may log in somewhere.
    pub(super) fn try_read(&self) -> anyhow::Result<Option<Credential>> {
        match self {
            Self::Source(_) => Ok(None),
            own => own.ask(&NOBODY).map(Some),
        }
    }

    /// Whether asking it may take its time.
    pub(super) fn is_slow(&self) -> bool {
        self.secret().is_none_or(Secret::is_slow)
    }
}

impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bearer(secret) => write!(f, "bearer from {secret:?}"),
            Self::Basic(_, secret) => write!(f, "basic from {secret:?}"),
            Self::Header(name, secret) => write!(f, "{name} from {secret:?}"),
            Self::Sign(secret) => write!(f, "the signing secret from {secret:?}"),
            Self::Source(_) => f.write_str("a credential source"),
        }
    }
}

/// Channel and principal.
type Key = (String, Option<String>);

type Slot = Arc<Mutex<Option<Credential>>>;

/// A scheme with what it answered.
#[derive(Debug)]
pub(super) struct Purse {
    pub(super) scheme: Scheme,
    slots: Mutex<HashMap<Key, Slot>>,
}

impl Purse {
    pub(super) fn new(scheme: Scheme) -> Self {
        Self {
            scheme,
            slots: Mutex::default(),
        }
    }

    /// The credential to send. `rejected` is the one that was answered by 401: when another worker
    /// has replaced it already, its answer serves; only one asks at a time.
    pub(super) fn credential(
        &self,
        channel: &str,
        principal: Option<&str>,
        rejected: Option<&Credential>,
    ) -> anyhow::Result<Credential> {
        let slot = self.slot(self.scheme.key(channel, principal));
        let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held.as_ref()
            && rejected != Some(held)
        {
            return Ok(held.clone());
        }
        *held = None;
        let fresh = self.scheme.ask(&CredentialRequest {
            channel,
            principal,
            rejected: rejected.is_some(),
        })?;
        *held = Some(fresh.clone());
        Ok(fresh)
    }

    /// Asks anew next time, unless that has happened already.
    pub(super) fn forget(&self, channel: &str, principal: Option<&str>, rejected: &Credential) {
        let slot = self.slot(self.scheme.key(channel, principal));
        let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if held.as_ref() == Some(rejected) {
            *held = None;
        }
    }

    fn slot(&self, key: Key) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= MAX_PRINCIPALS && !slots.contains_key(&key) {
            slots.clear();
        }
        slots.entry(key).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_asked_per_principal_and_again_only_after_a_rejection() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let purse = Purse::new(Scheme::Source(Arc::new(
            move |request: &CredentialRequest<'_>| {
                let mut log = log.lock().unwrap();
                log.push((request.principal.map(str::to_string), request.rejected));
                Ok(Credential::Bearer(format!("t{}", log.len())))
            },
        )));
        let get = |principal, rejected| purse.credential("sales", principal, rejected).unwrap();
        let anna = get(Some("anna"), None);
        assert_eq!(get(Some("anna"), None), anna);
        assert_ne!(get(Some("ben"), None), anna);
        let fresh = get(Some("anna"), Some(&anna));
        // A second worker that was rejected with the old one takes the fresh one.
        assert_eq!(get(Some("anna"), Some(&anna)), fresh);
        purse.forget("sales", Some("anna"), &anna);
        assert_eq!(get(Some("anna"), None), fresh);
        let calls: Vec<_> = asked.lock().unwrap().iter().map(|it| it.1).collect();
        assert_eq!(calls, [false, false, true]);
    }
}
