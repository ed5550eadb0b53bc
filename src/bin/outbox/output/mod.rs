//! Writing to the terminal or the pipe, and what may never get there.

mod aside;
mod said;
mod table;
mod time;

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};

use anyhow::Context;
use serde::Serialize;
use sqlite_outbox::{Failure, is_printable};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub(crate) use aside::{WIPED, frame, set_aside, settle};
pub(crate) use said::{as_json, error_width, failed, lines_lost, note, say, say_json};
pub(crate) use sqlite_outbox::{printable, printable_name};
pub(crate) use table::{Column, Table, cut, cut_left};
pub(crate) use time::{age, ago, exact, now, per_second, stamped_wrong};

/// Whoever read our output has gone. Not worth a word.
#[derive(Debug)]
pub(crate) struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the output was closed")
    }
}

impl std::error::Error for Closed {}

/// What stands between a command and a remark that a shell passes over.
const REMARK: &str = "   # ";

/// A colour, when there is a terminal that wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    /// It flows, or has arrived.
    Good,
    /// It waits, and goes on by itself or when a person lets it.
    Wait,
    /// A person has to see to it.
    Bad,
    /// What stands above something.
    Head,
}

impl Tone {
    /// One of the terminal's own colours that can be read on light and on dark: not yellow, not
    /// dim.
    fn code(self) -> Option<&'static str> {
        Some(match self {
            Self::Plain => return None,
            Self::Good => "32",
            Self::Wait => "35",
            Self::Bad => "31",
            Self::Head => "1",
        })
    }
}

/// Standard output. Buffered; everything is out when [`Out::flush`] answers.
pub(crate) struct Out {
    stream: Box<dyn Write>,
    /// Columns of the terminal; `None` where there is none.
    width: Option<usize>,
    colour: bool,
}

impl Out {
    pub(crate) fn new() -> Self {
        let terminal = io::stdout().is_terminal();
        let width = || terminal_size::terminal_size().map_or(80, |(it, _)| usize::from(it.0));
        Self {
            stream: Box::new(BufWriter::new(io::stdout().lock())),
            width: terminal.then(width).map(|it| it.max(20)),
            colour: terminal && colours(),
        }
    }

    /// Columns of the terminal; `None` where a program reads: then nothing is cut or broken.
    pub(crate) fn room(&self) -> Option<usize> {
        self.width
    }

    /// One line of ours; whatever came from elsewhere must have been through [`printable`].
    pub(crate) fn line(&mut self, line: impl AsRef<str>) -> anyhow::Result<()> {
        let line = line.as_ref();
        written(writeln!(self.stream, "{line}"))
    }

    /// One line that may hold anything.
    pub(crate) fn text(&mut self, text: &str) -> anyhow::Result<()> {
        self.line(printable(text))
    }

    /// Some sentences that may hold anything: broken between words on a terminal, one line where
    /// a program reads. `first` stands before the first line, and its width before the others.
    pub(crate) fn paragraph(&mut self, first: &str, tone: Tone, text: &str) -> anyhow::Result<()> {
        self.broken(first, first.width(), tone, text)
    }

    /// A command on a line of its own, unbroken, to be copied. A remark behind it goes before it where
    /// there is no room for both.
    pub(crate) fn command(&mut self, indent: usize, text: &str) -> anyhow::Result<()> {
        let text = printable(text);
        let wide = self.width.is_some_and(|it| indent + text.width() > it);
        match text.split_once(REMARK).filter(|_| wide) {
            Some((command, remark)) => {
                self.line(format!("{:indent$}# {remark}", ""))?;
                self.line(format!("{:indent$}{command}", ""))
            }
            None => self.line(format!("{:indent$}{text}", "")),
        }
    }

    /// The same behind a name of a list, which stands in its own colour and takes so many places.
    pub(crate) fn field(&mut self, name: &str, places: usize, text: &str) -> anyhow::Result<()> {
        let name = self.paint(Tone::Head, &format!("{name:places$}"));
        self.broken(&name, places, Tone::Plain, text)
    }

    fn broken(&mut self, first: &str, places: usize, tone: Tone, text: &str) -> anyhow::Result<()> {
        let text = printable(text);
        let room = self.width.map(|it| it.saturating_sub(places));
        for (number, line) in wrap(&text, room.unwrap_or(usize::MAX))
            .into_iter()
            .enumerate()
        {
            let line = self.paint(tone, line);
            match number {
                0 => self.line(format!("{first}{line}"))?,
                _ => self.line(format!("{:places$}{line}", ""))?,
            }
        }
        Ok(())
    }

    /// One JSON value on one line. It is not made in memory first: a payload may be large, and six
    /// times as large as JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        self.json_sized(value).map(drop)
    }

    /// The same; answers the bytes of the line.
    pub(crate) fn json_sized(&mut self, value: &impl Serialize) -> anyhow::Result<usize> {
        let mut clean = Escaping {
            to: &mut self.stream,
            written: 0,
        };
        let wrote = serde_json::to_writer(&mut clean, value);
        let size = clean.written;
        written(wrote.map_err(io::Error::from))?;
        self.line("")?;
        Ok(size)
    }

    /// The text in a colour, if colours are wanted.
    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        match tone.code().filter(|_| self.colour) {
            Some(code) => format!("\x1b[{code}m{text}\x1b[0m"),
            None => text.into(),
        }
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

/// An output that cannot be written is an error, [`Closed`] where its reader has gone.
pub(crate) fn written(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Closed.into()),
        result => result.context("the output could not be written"),
    }
}

/// The text in lines of at most so many places, broken at spaces where there are any. A word that
/// alone is longer stays whole, to be copied: the terminal folds it, and what follows stands behind
/// its end.
pub(crate) fn wrap(text: &str, room: usize) -> Vec<&str> {
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
        } else if used > room {
            used = it.width().unwrap_or(0);
        }
    }
    lines.push(text.get(start..).unwrap_or_default());
    lines
}

/// `1 message`, `2,000 messages`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{} {many}", thousands(number)),
    }
}

/// `1,234,567`, for sentences; tables and programs get bare digits.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// See [`Failure::brief`].
pub(crate) fn brief(error: &str) -> &str {
    Failure::brief(error)
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

/// A JSON value on one line, which someone may show on a terminal.
pub(crate) fn json_line(value: &impl Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string(value)?;
    Ok(escape_json(&text).into_owned())
}

/// Takes JSON that begins with a whole character each time, and passes it on in pieces: what is not
/// printable in it makes a longer copy.
struct Escaping<'a> {
    to: &'a mut dyn Write,
    written: usize,
}

impl Write for Escaping<'_> {
    fn write(&mut self, all: &[u8]) -> io::Result<usize> {
        const PIECE: usize = 64 * 1024;
        let piece = all.get(..PIECE).unwrap_or(all);
        let text = match std::str::from_utf8(piece) {
            Err(cut) if cut.error_len().is_none() && piece.len() < all.len() => {
                std::str::from_utf8(piece.get(..cut.valid_up_to()).unwrap_or_default())
            }
            whole => whole,
        };
        let text = text.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        let clean = escape_json(text);
        self.to.write_all(clean.as_bytes())?;
        self.written = self.written.saturating_add(clean.len());
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// A JSON text of several lines for a file, which someone may show on a terminal.
pub(crate) fn json_text(value: &impl Serialize) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    // Within strings a newline is written as two characters already.
    let lines: Vec<_> = text.lines().map(escape_json).collect();
    Ok(lines.join("\n") + "\n")
}

/// JSON that means the same and can be shown as it is: the writer leaves some as they are, and
/// outside of strings there are none.
fn escape_json(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for it in text.chars() {
        match is_printable(it) {
            true => clean.push(it),
            false => {
                for unit in it.encode_utf16(&mut [0; 2]) {
                    let _ = write!(clean, "\\u{unit:04x}");
                }
            }
        }
    }
    Cow::Owned(clean)
}

/// What is printed on a terminal of this width, without colours; `None`: where there is none.
#[cfg(test)]
pub(crate) fn printed(
    width: Option<usize>,
    print: impl FnOnce(&mut Out) -> anyhow::Result<()>,
) -> String {
    let mut file = tempfile::tempfile().unwrap();
    let mut out = Out {
        stream: Box::new(file.try_clone().unwrap()),
        width,
        colour: false,
    };
    print(&mut out).unwrap();
    io::Seek::rewind(&mut file).unwrap();
    io::read_to_string(file).unwrap()
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
        assert_eq!(
            wrap("a indivisible b c d", 7),
            ["a", "indivisible b", "c d"]
        );
        assert_eq!(wrap("日本 日本", 5), ["日本", "日本"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn large_numbers_are_told_in_thousands() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(thousands(number), text);
        }
        assert_eq!(count(3_214, "message", "messages"), "3,214 messages");
    }

    #[test]
    fn a_long_json_is_passed_on_in_pieces_of_whole_characters() {
        // A sign of two bytes lies across the bound, and then what is not printable.
        let text = format!("a{}\u{9b}", "ä".repeat(100_000));
        let mut to = Vec::new();
        let mut out = Escaping {
            to: &mut to,
            written: 0,
        };
        serde_json::to_writer(&mut out, &text).unwrap();
        assert_eq!(out.written, 2 + 1 + 200_000 + 6);
        assert_eq!(out.written, to.len());
        assert_eq!(serde_json::from_slice::<String>(&to).unwrap(), text);
        assert!(to.ends_with(b"\\u009b\""));
    }

    #[test]
    fn json_for_a_terminal_means_the_same() {
        let text = "a\x1b[2J\r\n\u{7f}\u{9b}31m\u{202e}\u{e0041}\"\\d";
        let json = serde_json::to_string(text).unwrap();
        let escaped = escape_json(&json);
        assert!(escaped.chars().all(is_printable), "{escaped}");
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
    }
}
