//! What is nobody else's business, left out: of the settings, and of what receivers said.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;
use sqlite_outbox::{AuditEntry, Entry};

use crate::spelling::{blanked, folded};

/// The shortest text that is looked for, in characters: shorter ones are in any sentence.
const LEAST: usize = 4;

/// Payloads up to here are looked for in errors piece by piece; of larger ones no error is told.
const SEARCHED: usize = 1024 * 1024;

/// Texts that must not be told, however they are spelled.
#[derive(Debug, Default)]
pub(super) struct Private {
    /// Folded.
    texts: BTreeSet<String>,
    /// There are more than can be looked for.
    everything: bool,
}

impl Private {
    /// What a message says and to whom, and its headers.
    pub(super) fn of(entry: &Entry) -> Self {
        let mut private = Self::default();
        let headers = entry.headers.as_deref().unwrap_or_default();
        private.json(headers.as_bytes());
        private.everything = entry.payload.len() > SEARCHED;
        if !private.everything {
            private.json(&entry.payload);
        }
        private.names(entry);
        private
    }

    /// Whose message it is, and which.
    pub(super) fn names(&mut self, entry: &Entry) {
        let names = [&entry.recipient, &entry.principal, &entry.ordering_key];
        let names = names.into_iter().flatten().chain([&entry.dedupe_key]);
        self.add(names.cloned());
    }

    /// What a message was before somebody changed it, and the key that stands in the record itself.
    pub(super) fn recorded(&mut self, audited: &AuditEntry) {
        let former = audited.former_payload.as_deref().unwrap_or_default();
        if former.len() <= SEARCHED {
            self.json(former);
        }
        let before = match audited.action.as_str() {
            "send_again" | "again_of" => ", key ",
            "conflict_enqueue" => "it was in conflict over ",
            _ => return,
        };
        let reason = audited.reason.as_deref().unwrap_or_default();
        let key = reason.split_once(before).map(|it| it.1);
        let key = key.map(|it| it.split_once("; ").map_or(it, |it| it.0));
        self.add(key.map(String::from));
    }

    pub(super) fn also(&mut self, other: &Self) {
        self.texts.extend(other.texts.iter().cloned());
    }

    pub(super) fn add(&mut self, texts: impl IntoIterator<Item = String>) {
        let texts = texts.into_iter().map(|it| folded(&it));
        let long = texts.filter(|it| it.chars().count() >= LEAST);
        self.texts.extend(long);
    }

    /// The values of a JSON text, the lines of any other.
    fn json(&mut self, text: &[u8]) {
        match serde_json::from_slice(text) {
            Ok(value) => self.values(&value),
            Err(_) => {
                let text = String::from_utf8_lossy(text);
                self.add(text.lines().map(|it| it.trim().to_string()));
            }
        }
    }

    fn values(&mut self, value: &Value) {
        match value {
            Value::Object(table) => table.values().for_each(|it| self.values(it)),
            Value::Array(list) => list.iter().for_each(|it| self.values(it)),
            Value::String(text) => self.add([text.clone()]),
            Value::Number(number) => self.add([number.to_string()]),
            Value::Bool(_) | Value::Null => {}
        }
    }

    /// A text without them, and without the answer that it repeats.
    pub(super) fn out_of(&self, text: &str) -> String {
        if self.everything {
            return hidden_text();
        }
        let text = without_answer(text);
        let texts = self.texts.iter().map(String::as_str);
        match blanked(text.as_bytes(), texts, &hidden_text()) {
            Some(clean) => String::from_utf8(clean).unwrap_or_else(|_| hidden_text()),
            None => text,
        }
    }

    pub(super) fn leave(&self, text: &mut Option<String>) {
        *text = text.as_deref().map(|it| self.out_of(it));
    }
}

/// An error without the start of the answer, which follows the status.
fn without_answer(text: &str) -> String {
    let ends = text.match_indices("HTTP ").filter_map(|(at, word)| {
        let rest = text.get(at + word.len()..)?;
        let digits = rest
            .get(..3)
            .filter(|it| it.bytes().all(|it| it.is_ascii_digit()))?;
        let reason = rest.get(digits.len()..)?;
        let end = reason.find(|it: char| !it.is_ascii_alphabetic() && !" -'".contains(it))?;
        let cut = text.len() - reason.len() + end;
        text.get(cut..)?.starts_with(": ").then_some(cut)
    });
    match ends.min().and_then(|it| text.get(..it)) {
        Some(told) => format!("{told}: …"),
        None => text.into(),
    }
}

/// The settings of a file that was loaded before, so that every key in it is known, and the header
/// values that are left out of them.
pub(super) fn settings(path: &Path) -> anyhow::Result<(Value, Vec<String>)> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the settings {} cannot be read", path.display()))?;
    let value: toml::Value = toml::from_str(&text)?;
    let mut value = serde_json::to_value(value)?;
    let mut secrets = Vec::new();
    redact(&mut value, &mut secrets);
    Ok((value, secrets))
}

fn redact(value: &mut Value, secrets: &mut Vec<String>) {
    let Value::Object(table) = value else { return };
    for (key, value) in table {
        match (key.as_str(), &mut *value) {
            ("url" | "proxy", Value::String(url)) => *url = without_secrets(url),
            ("headers", Value::Object(headers)) => {
                for value in headers.values_mut() {
                    secrets.extend(value.as_str().map(String::from));
                    *value = hidden();
                }
            }
            // Arguments may be secrets; the program is not.
            ("command", Value::Array(words)) => {
                words.iter_mut().skip(1).for_each(|it| *it = hidden());
            }
            ("user", it) => *it = hidden(),
            (_, it) => redact(it, secrets),
        }
    }
}

fn hidden() -> Value {
    Value::String(hidden_text())
}

fn hidden_text() -> String {
    "…".into()
}

/// A URL without login, query and fragment.
fn without_secrets(url: &str) -> String {
    let end = url.find(['?', '#']);
    let (place, rest) = url.split_at(end.unwrap_or(url.len()));
    let (scheme, place) = place.split_once("://").unwrap_or(("", place));
    let (host, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let host = match host.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => host.into(),
    };
    let rest = if rest.is_empty() { "" } else { "?…" };
    let colon = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{colon}{host}{path}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_may_be_secret_is_not_told() {
        for (url, shown) in [
            ("https://erp.example/a/{id}", "https://erp.example/a/{id}"),
            (
                "https://u:p@erp.example/a?token=x",
                "https://…@erp.example/a?…",
            ),
            ("http://u:p@s@proxy:3128", "http://…@proxy:3128"),
            ("u:p@proxy:3128", "…@proxy:3128"),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
        let mut value = json!({"channel": {"a": {
            "headers": {"X-Token": "secret"}, "bearer": {"command": ["login", "secret"]},
            "basic": {"user": "secret", "password": {"env": "PW"}}, "timeout": "60s",
        }}});
        let mut secrets = Vec::new();
        redact(&mut value, &mut secrets);
        assert_eq!(secrets, ["secret"]);
        let text = value.to_string();
        assert!(!text.contains("secret"), "{text}");
        assert!(
            text.contains("login") && text.contains("60s") && text.contains("PW"),
            "{text}"
        );
    }

    #[test]
    fn of_an_error_only_what_the_receiver_calls_its_message_is_told() {
        for (error, told) in [
            (
                "no article; HTTP 422 Unprocessable Entity: {\"a\":1}",
                "no article; HTTP 422 Unprocessable Entity: …",
            ),
            (
                "sales: offline: HTTP 599: <html>",
                "sales: offline: HTTP 599: …",
            ),
            (
                "HTTP 503 Service Unavailable",
                "HTTP 503 Service Unavailable",
            ),
            (
                "erp.example refuses the connection",
                "erp.example refuses the connection",
            ),
            ("HTTP 42: HTTP ä", "HTTP 42: HTTP ä"),
        ] {
            assert_eq!(without_answer(error), told);
        }
    }
}
