//! What a receiver must not make us keep: the secrets of a request that it repeats in its answer.
//!
//! An answer is looked through once; only where the heart of a secret is found are its spellings
//! made and blanked.

use std::borrow::Cow;

use memchr::memmem::find;

use crate::dispatch::{Delivery, Outcome};

use super::credential::Credential;
use super::plan::Plan;

/// The shortest secret that is looked for.
const LEAST: usize = 4;

/// The shortest value of a header or a query that is looked for where its name does not speak of
/// a secret: shorter words are words of an answer too.
const LEAST_VALUE: usize = 8;

/// Headers that say nothing about who sends them.
const HARMLESS: [&str; 12] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "content-encoding",
    "content-language",
    "content-type",
    "date",
    "pragma",
    "prefer",
    "user-agent",
];

/// Parts of names whose values are secrets, however short.
const SPEAKING: [&str; 9] = [
    "auth",
    "cookie",
    "credential",
    "key",
    "pass",
    "secret",
    "session",
    "signature",
    "token",
];

/// What is secret of a header, or of a part of a query: nothing, its value, and where the name
/// speaks of a secret its longer parts as well, which a receiver may repeat alone.
pub(super) fn of_value<'a>(name: &str, value: &'a str) -> Vec<&'a str> {
    let value = value.trim();
    if speaks(name) {
        let parts = value.split([' ', ';', ',', '=']);
        let parts = parts.filter(|it| it.len() >= LEAST_VALUE && *it != value);
        return [value]
            .into_iter()
            .filter(|it| it.len() >= LEAST)
            .chain(parts)
            .collect();
    }
    let number = |it: char| it.is_ascii_digit() || ".,:-+ ".contains(it);
    let harmless = HARMLESS.iter().any(|it| it.eq_ignore_ascii_case(name));
    let harmless = harmless || value.chars().all(number);
    match harmless || value.len() < LEAST_VALUE {
        true => Vec::new(),
        false => vec![value],
    }
}

/// Whether a name speaks of a secret.
pub(super) fn speaks(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SPEAKING.iter().any(|it| name.contains(it))
}

/// The secrets of one request.
pub(super) struct Hidden<'a> {
    plan: &'a Plan,
    delivery: &'a Delivery,
    credentials: &'a [Credential],
    sign: Option<&'a Credential>,
}

impl<'a> Hidden<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        delivery: &'a Delivery,
        credentials: &'a [Credential],
        sign: Option<&'a Credential>,
    ) -> Self {
        Self {
            plan,
            delivery,
            credentials,
            sign,
        }
    }

    /// Those of the credentials, of the route, of the message.
    fn each(&self, mut tell: impl FnMut(&str)) {
        for credential in self.credentials.iter().chain(self.sign) {
            let secrets = credential.secrets();
            let long = secrets.iter().filter(|it| it.len() >= LEAST);
            long.for_each(|it| tell(it));
        }
        self.plan.hidden.iter().for_each(|it| tell(it));
        for (name, value) in &self.delivery.headers {
            let secrets = of_value(name, value).into_iter();
            secrets.filter(|it| !self.names(it)).for_each(&mut tell);
        }
    }

    /// Whether it is a name of the message, which an answer may well repeat.
    fn names(&self, value: &str) -> bool {
        let it = self.delivery;
        let some = [&it.event_type, &it.recipient, &it.ordering_key];
        [&it.channel, &it.message_id, &it.dedupe_key]
            .into_iter()
            .chain(some.into_iter().flatten())
            .any(|name| name == value)
    }

    /// An answer without them.
    pub(super) fn blank(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        if !bytes.is_empty() {
            self.each(|secret| {
                if find(&bytes, heart(secret)).is_some() {
                    for spelling in spellings(secret) {
                        bytes = replaced(&bytes, spelling.as_bytes());
                    }
                }
            });
        }
        bytes
    }

    fn blank_text(&self, text: String) -> String {
        match String::from_utf8(self.blank(text.into_bytes())) {
            Ok(text) => text,
            // What is cut out of a text at whole characters leaves a text.
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    /// An outcome without them.
    pub(super) fn hide(&self, mut outcome: Outcome) -> Outcome {
        match &mut outcome {
            Outcome::Delivered(receipt) => {
                receipt.provider_id = receipt.provider_id.take().map(|it| self.blank_text(it));
            }
            Outcome::Rejected(failure)
            | Outcome::Retry(failure)
            | Outcome::Unreachable(failure)
            | Outcome::Blocked(failure) => {
                failure.text = self.blank_text(std::mem::take(&mut failure.text));
                failure.answer = failure.answer.take().map(|it| self.blank(it));
            }
        }
        outcome
    }
}

/// The longest run of letters and digits: it is in every spelling.
fn heart(secret: &str) -> &[u8] {
    let runs = secret.as_bytes().split(|it| !it.is_ascii_alphanumeric());
    runs.max_by_key(|it| it.len()).unwrap_or_default()
}

/// A secret as an answer may repeat it: as it is, in JSON with and without escaped slashes, in a
/// URL, in HTML.
fn spellings(secret: &str) -> Vec<Cow<'_, str>> {
    let quoted = serde_json::to_string(secret).unwrap_or_default();
    let json = quoted.trim_matches('"').to_owned();
    let url = percent_encoding::utf8_percent_encode(secret, percent_encoding::NON_ALPHANUMERIC);
    let html = secret
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;");
    let mut all = vec![
        Cow::Borrowed(secret),
        json.replace('/', "\\/").into(),
        json.into(),
        url.to_string().into(),
        html.into(),
    ];
    all.retain(|it| it.len() >= LEAST);
    all.dedup();
    all
}

fn replaced(bytes: &[u8], part: &[u8]) -> Vec<u8> {
    let mut clean = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = find(rest, part).filter(|_| !part.is_empty()) {
        clean.extend_from_slice(rest.get(..at).unwrap_or_default());
        clean.extend_from_slice(b"***");
        rest = rest.get(at + part.len()..).unwrap_or_default();
    }
    clean.extend_from_slice(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_and_the_length_of_a_value_say_whether_it_is_secret() {
        for (name, value, hidden) in [
            ("X-Api-Key", "secret", &["secret"][..]),
            ("X-Api-Key", "12345", &["12345"]),
            ("X-Api-Key", "abc", &[]),
            (
                "X-Auth",
                "Token 0123456789",
                &["Token 0123456789", "0123456789"],
            ),
            (
                "Cookie",
                "sid=a1b2c3d4; b=1",
                &["sid=a1b2c3d4; b=1", "a1b2c3d4"],
            ),
            ("X-Tenant", "muster-gmbh", &["muster-gmbh"]),
            ("X-Store", "17", &[]),
            ("X-Store", "till", &[]),
            ("X-Date", "2026-11-30", &[]),
            ("Accept", "application/json", &[]),
            ("User-Agent", "till/7.1 (shop)", &[]),
        ] {
            assert_eq!(of_value(name, value), hidden, "{name}: {value}");
        }
    }

    #[test]
    fn the_heart_of_a_secret_is_in_every_spelling_of_it() {
        for secret in ["abc/def&s3cr3t+\"XY", "plain", "a b", "<<>>", "ü-&/"] {
            for spelling in spellings(secret) {
                let found = find(spelling.as_bytes(), heart(secret));
                assert!(found.is_some(), "{secret}: {spelling}");
            }
        }
    }

    #[test]
    fn what_is_found_is_replaced_everywhere() {
        for (text, part, clean) in [
            ("a-aab-aab", "aab", "a-***-***"),
            ("aaab", "aab", "a***"),
            ("abab", "ab", "******"),
            ("text", "other", "text"),
            ("", "a", ""),
            ("a", "", "a"),
        ] {
            assert_eq!(replaced(text.as_bytes(), part.as_bytes()), clean.as_bytes());
        }
    }
}
