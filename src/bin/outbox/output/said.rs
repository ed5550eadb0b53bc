//! What is said on standard error beside the output proper: a line for a person, or, for a program
//! that asked for JSON, an object a line.

use std::io;
use std::sync::OnceLock;

use serde::Serialize;

use super::{aside, json_line, printable, wrap};

/// Whether `--json` was asked for, also where the rest of the command line makes no sense.
pub(crate) fn as_json() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| {
        let words = std::env::args_os().skip(1).take_while(|it| it != "--");
        let json = |it: std::ffi::OsString| {
            let rest = it.as_encoded_bytes().strip_prefix(b"--json");
            rest.is_some_and(|it| it.is_empty() || it.starts_with(b"="))
        };
        words.into_iter().any(json)
    })
}

/// One line.
pub(crate) fn say(line: &str) {
    aside::line(line);
}

/// That so many lines found no reader.
pub(crate) fn lines_lost(lines: u64) -> String {
    format!("lines that nobody read and were lost: {lines}")
}

/// An object for a program.
pub(crate) fn say_json(object: &impl Serialize) {
    say(&json_line(object).unwrap_or_default());
}

#[derive(Serialize)]
struct Note<'a> {
    note: &'a str,
}

/// A line for a person beside the output proper; several on a narrow terminal.
pub(crate) fn note(text: &str) {
    if as_json() {
        return say_json(&Note { note: text });
    }
    let mut first = "note: ";
    let room = error_width().map_or(usize::MAX, |it| it.saturating_sub(first.len()));
    for line in wrap(&printable(text), room) {
        say(&format!("{first}{line}"));
        first = "      ";
    }
}

#[derive(Serialize)]
struct Failed<'a> {
    error: &'a str,
    exit: u8,
}

/// What went wrong, in one line; where several things are wrong, a line for each.
pub(crate) fn failed(texts: &[String], exit: u8) {
    match as_json() {
        true => say_json(&Failed {
            error: &texts.join("; "),
            exit,
        }),
        false => texts
            .iter()
            .for_each(|it| say(&format!("error: {}", printable(it)))),
    }
}

/// Columns of the terminal behind standard error; `None` where there is none.
pub(crate) fn error_width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stderr()).map(|(it, _)| usize::from(it.0))
}
