//! What is wrong in a settings file, with the line and the key.

use std::path::Path;

use anyhow::anyhow;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The text of a settings file and its name for people.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// A fault at a place in the text.
    pub(super) fn fault(&self, at: usize, reason: &str) -> anyhow::Error {
        let (key, reason) = match self.key_at(at) {
            Some(key) => (format!("{key} "), reason),
            None => (String::new(), reason.trim_start_matches("is wrong: ")),
        };
        anyhow!(
            "{}, line {}: {key}{reason}",
            self.path.display(),
            self.line(at)
        )
    }

    /// A fault of a key in the section of a channel, or of the section if the key is not there.
    pub(super) fn channel_fault(&self, channel: &str, key: &str, reason: &str) -> anyhow::Error {
        let table = DeTable::parse(self.text);
        let section = table.as_ref().ok().and_then(|table| {
            let channels = table.get_ref().get("channel")?.get_ref().as_table()?;
            channels.iter().find(|(name, _)| name.get_ref() == channel)
        });
        let Some((_, section)) = section else {
            return anyhow!("{}: channel.{channel}: {reason}", self.path.display());
        };
        let keys = section.get_ref().as_table();
        let key = keys.and_then(|keys| keys.iter().find(|(name, _)| name.get_ref() == key));
        match key {
            Some((key, _)) => self.fault(key.span().start, reason),
            None => self.fault(section.span().start, reason),
        }
    }

    /// What the parser says, in one line, without values that may be secrets.
    pub(super) fn parse_fault(&self, error: &toml::de::Error) -> anyhow::Error {
        let at = error.span().map_or(0, |it| it.start);
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        let mut quoted = message.split('`').skip(1).step_by(2);
        if message.starts_with("unknown field") {
            let unknown = quoted.next().unwrap_or_default();
            let known: Vec<_> = quoted.collect();
            return self.fault(at, &unknown_key(unknown, &known));
        }
        if let Some(rest) = message.strip_prefix("invalid type: ")
            && let Some((found, expected)) = rest.rsplit_once(", expected ")
        {
            let found = match found.starts_with("string ") {
                true => "a text",
                false => found,
            };
            let expected = match expected {
                "i64" | "u16" => "a whole number",
                "a boolean" => "true or false",
                it if it.starts_with("struct ") => "a table",
                it => it,
            };
            return self.fault(at, &format!("is {found}, not {expected}"));
        }
        if message.starts_with("missing field") {
            let missing = quoted.next().unwrap_or_default();
            return self.fault(at, &format!("has no {missing}"));
        }
        if message.starts_with("unknown variant") {
            let value = quoted.next().unwrap_or_default();
            let known: Vec<_> = quoted.map(|it| format!("\"{it}\"")).collect();
            return self.fault(at, &format!("is \"{value}\", not {}", known.join(" or ")));
        }
        self.fault(at, &as_sentence(&message))
    }

    /// The line of an offset, from 1.
    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or_default();
        1 + before.iter().filter(|it| **it == b'\n').count()
    }

    /// The whole name of the key whose name or value is at an offset.
    fn key_at(&self, at: usize) -> Option<String> {
        let table = DeTable::parse(self.text).ok()?;
        let mut path = Vec::new();
        descend(table.get_ref(), at, &mut path);
        (!path.is_empty()).then(|| path.join("."))
    }
}

fn descend(table: &DeTable<'_>, at: usize, path: &mut Vec<String>) {
    for (key, value) in table {
        let inside = |it: std::ops::Range<usize>| it.contains(&at);
        if inside(key.span()) {
            path.push(key.get_ref().to_string());
            return;
        }
        let before = path.len();
        path.push(key.get_ref().to_string());
        if let DeValue::Table(inner) = value.get_ref() {
            descend(inner, at, path);
        }
        // The span of a section is its header only, so what is below it says whether it is here.
        if path.len() > before + 1 || inside(Spanned::span(value)) {
            return;
        }
        path.truncate(before);
    }
}

fn unknown_key(unknown: &str, known: &[&str]) -> String {
    let near = known
        .iter()
        .map(|it| (strsim::damerau_levenshtein(unknown, it), *it))
        .min();
    match near {
        Some((distance, key)) if distance <= 1 + unknown.chars().count() / 3 => {
            format!("is no key; did you mean {key}?")
        }
        _ => format!("is no key; there are {}", known.join(", ")),
    }
}

/// The parser's own messages stand after the name of a key.
fn as_sentence(message: &str) -> String {
    match message.starts_with("must ") || message.starts_with("needs ") {
        true => message.into(),
        false => format!("is wrong: {message}"),
    }
}
