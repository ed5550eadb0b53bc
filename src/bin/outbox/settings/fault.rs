//! What is wrong in a settings file, with the line and the key.

use std::fmt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::nearest::meant;

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    line: usize,
    text: String,
}

/// What a fault says about the others.
#[derive(Debug)]
pub(super) enum Hint {
    /// A key of this name is not there.
    Missing(String),
    /// This key was meant.
    Meant(String),
}

/// All that is wrong with a settings file.
#[derive(Debug)]
pub(crate) struct Faults {
    path: PathBuf,
    all: Vec<Fault>,
}

impl Faults {
    /// In the order of their lines.
    pub(super) fn new(path: &Path, mut all: Vec<Fault>) -> Self {
        // In one line, what was found first says most: a slip in a name before what comes of it.
        all.sort_by_key(|it| it.line);
        all.dedup();
        let path = path.into();
        Self { path, all }
    }

    /// Each as a sentence of its own.
    pub(crate) fn each(&self) -> impl Iterator<Item = String> {
        let path = self.path.display();
        let all = self.all.iter();
        all.map(move |it| format!("{path}, line {}: {}", it.line, it.text))
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.each().collect();
        f.write_str(&all.join("; "))
    }
}

impl std::error::Error for Faults {}

/// The text of a settings file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// A fault at a place in the text.
    pub(super) fn fault(&self, at: usize, reason: &str) -> Fault {
        let path = self.path_at(at);
        let text = match path.is_empty() {
            false => format!("{} {reason}", dotted(&path)),
            true => reason.trim_start_matches("is wrong: ").into(),
        };
        let line = self.line(at);
        Fault { line, text }
    }

    /// A fault of a key in the section of a channel, or of the section if the key is not there.
    pub(super) fn channel_fault(&self, channel: &str, key: &str, reason: &str) -> Fault {
        let table = DeTable::parse(self.text);
        let section = table.as_ref().ok().and_then(|table| {
            let channels = table.get_ref().get("channel")?.get_ref().as_table()?;
            channels.iter().find(|(name, _)| name.get_ref() == channel)
        });
        let Some((_, section)) = section else {
            let way = ["channel", channel, key].map(String::from);
            let text = format!("{} {reason}", dotted(&way));
            return Fault { line: 1, text };
        };
        let keys = section.get_ref().as_table();
        let key = keys.and_then(|keys| keys.iter().find(|(name, _)| name.get_ref() == key));
        match key {
            Some((key, _)) => self.fault(key.span().start, reason),
            None => self.fault(section.span().start, reason),
        }
    }

    /// What the parser says, in one line, without values that may be secrets.
    pub(super) fn parse_fault(&self, error: &toml::de::Error) -> (Fault, Option<Hint>) {
        let at = error.span().map_or(0, |it| it.start);
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        let mut quoted = message.split('`').skip(1).step_by(2);
        let mut hint = None;
        let text = if message.starts_with("unknown field") {
            let unknown = quoted.next().unwrap_or_default();
            let known: Vec<_> = quoted.collect();
            let near = meant(unknown, &known);
            hint = near.map(|it| Hint::Meant(it.into()));
            match near {
                Some(key) => format!("is no key; did you mean {key}?"),
                None => format!("is no key; there are {}", known.join(", ")),
            }
        } else if message.starts_with("missing field") {
            let missing = quoted.next().unwrap_or_default();
            hint = Some(Hint::Missing(missing.into()));
            format!("has no {missing}")
        } else if message.starts_with("unknown variant") {
            let value = quoted.next().unwrap_or_default();
            let known: Vec<_> = quoted.map(|it| format!("\"{it}\"")).collect();
            format!("is \"{value}\", not {}", known.join(" or "))
        } else {
            wrong_type(&message).unwrap_or_else(|| as_sentence(&message))
        };
        (self.fault(at, &text), hint)
    }

    /// What is written twice: each key, and each section once, whatever is in it.
    pub(super) fn duplicates(&self, errors: &[toml::de::Error]) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut section: Option<(usize, &str)> = None;
        for error in errors.iter().filter(|it| is_duplicate(it)) {
            let at = error.span().unwrap_or_default();
            let (line, header) = (self.line(at.start), self.header(at.start));
            if section.is_some() && section == header {
                continue;
            }
            let key = self.text.get(at).unwrap_or_default();
            let text = match header {
                Some((own, name)) if own == line => {
                    section = header;
                    format!("the section [{name}] is written twice: put all of it into one")
                }
                Some((_, name)) => format!("{name}.{key} is written twice"),
                None => format!("{key} is written twice"),
            };
            faults.push(Fault { line, text });
        }
        faults
    }

    /// Line and name of the section that an offset is in.
    fn header(&self, at: usize) -> Option<(usize, &str)> {
        let own = self.line(at);
        let before = self.text.lines().enumerate().take(own);
        let headers = before.filter_map(|(number, it)| {
            let name = it.trim_start().strip_prefix('[')?.split_once(']')?.0;
            Some((number + 1, name.trim()))
        });
        headers.last()
    }

    /// The line of an offset, from 1.
    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or_default();
        1 + before.iter().filter(|it| **it == b'\n').count()
    }

    /// The way to the key whose name or value is at an offset; empty where there is none.
    pub(super) fn path_at(&self, at: usize) -> Vec<String> {
        let mut path = Vec::new();
        if let Ok(table) = DeTable::parse(self.text) {
            descend(table.get_ref(), at, &mut path);
        }
        path
    }
}

pub(super) fn is_duplicate(error: &toml::de::Error) -> bool {
    error.message().starts_with("duplicate key")
}

/// The way to a key as it is written.
fn dotted(path: &[String]) -> String {
    let names = path.iter().map(|it| match it.is_empty() {
        true => "\"\"",
        false => it,
    });
    names.collect::<Vec<_>>().join(".")
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

/// A value of another type, without the value.
fn wrong_type(message: &str) -> Option<String> {
    let rest = message.strip_prefix("invalid type: ")?;
    let (found, expected) = rest.rsplit_once(", expected ")?;
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
    Some(format!("is {found}, not {expected}"))
}

/// The parser's own messages stand after the name of a key.
fn as_sentence(message: &str) -> String {
    match ["must ", "needs ", "has "]
        .iter()
        .any(|it| message.starts_with(it))
    {
        true => message.into(),
        false => format!("is wrong: {message}"),
    }
}
