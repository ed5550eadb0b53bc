//! Writing to the terminal or the pipe, and what may never get there.

mod table;
mod time;

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, StdoutLock, Write};

use anyhow::Context;
use serde::Serialize;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub(crate) use table::{Column, Table, cut};
pub(crate) use time::{age, ago, exact, now};

/// Whoever read our output has gone. Not worth a word.
#[derive(Debug)]
pub(crate) struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the output was closed")
    }
}

impl std::error::Error for Closed {}

/// A colour, when there is a terminal that wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
    Dim,
    Head,
}

/// Standard output. Buffered; everything is out when [`Out::finish`] answers.
pub(crate) struct Out {
    stream: BufWriter<StdoutLock<'static>>,
    terminal: bool,
    colour: bool,
    width: usize,
}

impl Out {
    pub(crate) fn new() -> Self {
        let terminal = io::stdout().is_terminal();
        let width = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        Self {
            stream: BufWriter::new(io::stdout().lock()),
            terminal,
            colour: terminal && colours(),
            width: match terminal {
                true => width.unwrap_or(80).max(40),
                false => 80,
            },
        }
    }

    /// Columns of the terminal, 80 where there is none.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// One line of ours; whatever came from elsewhere must have been through [`scrub`].
    pub(crate) fn line(&mut self, line: impl AsRef<str>) -> anyhow::Result<()> {
        let line = line.as_ref();
        written(writeln!(self.stream, "{line}"))
    }

    /// One line that may hold anything.
    pub(crate) fn text(&mut self, text: &str) -> anyhow::Result<()> {
        self.line(scrub(text))
    }

    /// Some sentences that may hold anything: broken between words on a terminal, one line where
    /// a program reads. `first` stands before the first line, and its width before the others.
    pub(crate) fn paragraph(&mut self, first: &str, tone: Tone, text: &str) -> anyhow::Result<()> {
        let text = scrub(text);
        let room = match self.terminal {
            true => self.width.saturating_sub(first.width()),
            false => usize::MAX,
        };
        for (number, line) in wrap(&text, room).into_iter().enumerate() {
            let line = self.paint(tone, line);
            match number {
                0 => self.line(format!("{first}{line}"))?,
                _ => self.line(format!("{:1$}{line}", "", first.width()))?,
            }
        }
        Ok(())
    }

    /// One JSON value on one line.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        let text = serde_json::to_string(value)?;
        self.line(escape_json(&text))
    }

    /// The text in a colour, if colours are wanted.
    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            _ if !self.colour => return text.into(),
            Tone::Plain => return text.into(),
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Dim => "2",
            Tone::Head => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        written(self.stream.flush())
    }
}

/// Whether a terminal may be written to in colours.
pub(crate) fn colours() -> bool {
    let unwanted = |name| std::env::var_os(name).is_some_and(|it| !it.is_empty());
    !unwanted("NO_COLOR") && !dumb()
}

/// Whether the terminal knows nothing but text.
pub(crate) fn dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|it| it == "dumb")
}

/// For commands whose exit code says something: it holds even when nobody reads the output.
pub(crate) fn unless_closed(result: anyhow::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.is::<Closed>() => Ok(()),
        result => result,
    }
}

fn written(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Closed.into()),
        result => result.context("the output could not be written"),
    }
}

/// The text in lines of at most so many places, broken at spaces where there are any.
fn wrap(text: &str, room: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let (mut start, mut used, mut space) = (0, 0, None);
    for (at, it) in text.char_indices() {
        used += it.width().unwrap_or(0);
        if it == ' ' {
            space = Some(at);
        }
        if used > room
            && let Some(end) = space.take()
        {
            lines.push(text.get(start..end).unwrap_or_default());
            start = end + 1;
            used = text.get(start..=at).map_or(0, UnicodeWidthStr::width);
        }
    }
    lines.push(text.get(start..).unwrap_or_default());
    lines
}

/// `1 message`, `2 messages`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {many}"),
    }
}

/// `512 B`, `1.5 MB`: thousands, as disks are sold.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];
    for (name, unit) in UNITS {
        if number >= unit {
            let (whole, tenth) = (number / unit, number % unit * 10 / unit);
            return format!("{whole}.{tenth} {name}");
        }
    }
    format!("{number} B")
}

/// A line for a person beside the output proper.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "note: {}", scrub(text));
}

/// Control characters, and those that turn the direction of writing, could take over a terminal
/// or make it show what is not there.
pub(crate) fn harmful(it: char) -> bool {
    it.is_control()
        || matches!(
            it,
            '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{61c}'
        )
        || matches!(it, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// The text on one line with every harmful character escaped.
pub(crate) fn scrub(text: &str) -> Cow<'_, str> {
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for it in text.chars() {
        match it {
            '\n' => clean.push_str("\\n"),
            '\r' => clean.push_str("\\r"),
            '\t' => clean.push_str("\\t"),
            it if harmful(it) => clean.extend(it.escape_unicode()),
            it => clean.push(it),
        }
    }
    Cow::Owned(clean)
}

/// A JSON text of several lines for a file, which someone may show on a terminal.
pub(crate) fn json_text(value: &impl Serialize) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    // Within strings a newline is written as two characters already.
    let lines: Vec<_> = text.lines().map(escape_json).collect();
    Ok(lines.join("\n") + "\n")
}

/// JSON that means the same and has no harmful character: the writer leaves some as they are, and
/// outside of strings there are none.
fn escape_json(text: &str) -> Cow<'_, str> {
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for it in text.chars() {
        match harmful(it) {
            true => drop(write!(clean, "\\u{:04x}", u32::from(it))),
            false => clean.push(it),
        }
    }
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_broken_between_words() {
        assert_eq!(wrap("one two three", 80), ["one two three"]);
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("one two three", 3), ["one", "two", "three"]);
        assert_eq!(wrap("indivisible", 3), ["indivisible"]);
        assert_eq!(wrap("日本 日本", 5), ["日本", "日本"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn nothing_that_moves_a_cursor_gets_through() {
        let text = "a\x1b[2Jb\r\n\tc\u{7f}\u{9b}31m\u{202e}d";
        let clean = scrub(text);
        assert_eq!(clean, "a\\u{1b}[2Jb\\r\\n\\tc\\u{7f}\\u{9b}31m\\u{202e}d");
        assert_eq!(scrub("café 日本"), "café 日本");
        let json = serde_json::to_string(text).unwrap();
        let escaped = escape_json(&json);
        assert!(!escaped.contains(harmful));
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
    }
}
