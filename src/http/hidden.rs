//! What a receiver must not make us keep: the secrets of a request that it repeats in its answer.
//!
//! An answer is looked through once; only where the heart of a secret is found is it folded, to find
//! the secret however it is spelled.

use memchr::memmem::find;

use crate::dispatch::{Delivery, Outcome};

use super::credential::Credential;
use super::plan::Plan;
use super::spelling::{blanked, folded};

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
    pub(super) fn blank(&self, bytes: Vec<u8>) -> Vec<u8> {
        let mut found = Vec::new();
        self.each(|secret| {
            if find(&bytes, heart(secret)).is_some() {
                found.push(folded(secret));
            }
        });
        match found.is_empty() {
            true => bytes,
            false => blanked(&bytes, found.iter().map(String::as_str), "***").unwrap_or(bytes),
        }
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
}
