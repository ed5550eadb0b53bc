//! Settings without what is secret, or may be.

use std::path::Path;

use anyhow::Context;
use serde_json::Value;

/// The settings of a file that was loaded before, so that every key in it is known.
pub(super) fn settings(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the settings {} cannot be read", path.display()))?;
    let value: toml::Value = toml::from_str(&text)?;
    let mut value = serde_json::to_value(value)?;
    redact(&mut value);
    Ok(value)
}

fn redact(value: &mut Value) {
    let Value::Object(table) = value else { return };
    for (key, value) in table {
        match (key.as_str(), &mut *value) {
            ("url" | "proxy", Value::String(url)) => *url = without_secrets(url),
            ("headers", Value::Object(headers)) => {
                headers.values_mut().for_each(|it| *it = hidden());
            }
            // Arguments may be secrets; the program is not.
            ("command", Value::Array(words)) => {
                words.iter_mut().skip(1).for_each(|it| *it = hidden());
            }
            ("user", it) => *it = hidden(),
            (_, it) => redact(it),
        }
    }
}

fn hidden() -> Value {
    Value::String("…".into())
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
        redact(&mut value);
        let text = value.to_string();
        assert!(!text.contains("secret"), "{text}");
        assert!(
            text.contains("login") && text.contains("60s") && text.contains("PW"),
            "{text}"
        );
    }
}
