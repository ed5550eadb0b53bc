//! Text from anywhere, as people may see it: nothing in it moves a cursor, turns the direction of
//! writing, or cannot be seen.

use std::borrow::Cow;

/// What cannot be seen, or changes how others are shown, in the order of their numbers: the format
/// characters (general category Cf), the separators of lines and paragraphs (Zl, Zp), and letters and
/// marks that leave nothing, or a blank, on the screen.
const UNSEEN: [(char, char); 33] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{2800}', '\u{2800}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{fffe}', '\u{ffff}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{16fe4}', '\u{16fe4}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d159}', '\u{1d159}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{1fffe}', '\u{1ffff}'),
    ('\u{2fffe}', '\u{2ffff}'),
    ('\u{e0000}', '\u{e0fff}'),
    ('\u{f0000}', '\u{fffff}'),
    ('\u{100000}', '\u{10ffff}'),
];

/// Whether a character may be shown to a person as it is: no control character, none that turns the
/// direction of writing, none that cannot be seen.
///
/// What joins others is among the latter, so an emoji of several parts is shown in its parts.
pub fn is_printable(it: char) -> bool {
    // Nearly all text ends here.
    if (' '..='~').contains(&it) {
        return true;
    }
    let range = UNSEEN.partition_point(|(_, last)| *last < it);
    let unseen = UNSEEN.get(range).is_some_and(|(first, _)| *first <= it);
    !unseen && !it.is_control()
}

/// The text on one line, with every character that may not be shown ([`is_printable`]) written as
/// `\n`, `\r`, `\t` or `\u{200b}`. The columns of a message may hold anything: show them to a person
/// through this.
///
/// ```
/// assert_eq!(sqlite_outbox::printable("S-1\u{202e}\n"), "S-1\\u{202e}\\n");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for it in text.chars() {
        match it {
            '\n' => clean.push_str("\\n"),
            '\r' => clean.push_str("\\r"),
            '\t' => clean.push_str("\\t"),
            it if is_printable(it) => clean.push(it),
            it => clean.extend(it.escape_unicode()),
        }
    }
    Cow::Owned(clean)
}

/// A name as [`printable`], within quotes where it begins or ends with a blank: else nobody sees what
/// tells it from another.
///
/// ```
/// # use sqlite_outbox::printable_name;
/// assert_eq!((&*printable_name("sales"), &*printable_name("sales ")), ("sales", "\"sales \""));
/// ```
pub fn printable_name(name: &str) -> Cow<'_, str> {
    match name.trim() == name {
        true => printable(name),
        false => Cow::Owned(format!("\"{}\"", printable(name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_rise_and_do_not_touch() {
        assert!(UNSEEN.iter().all(|(first, last)| first <= last));
        assert!(UNSEEN.windows(2).all(|it| it[0].1 < it[1].0));
    }

    #[test]
    fn what_cannot_be_seen_is_written_out() {
        for (kind, text) in [
            ("C0", "\0\u{7}\u{1b}\u{1f}\u{7f}"),
            ("C1", "\u{80}\u{9b}\u{9f}"),
            ("soft hyphen", "\u{ad}"),
            (
                "zero width",
                "\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}\u{180e}",
            ),
            ("marks of direction", "\u{200e}\u{200f}\u{61c}"),
            ("embeddings", "\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}"),
            ("isolates", "\u{2066}\u{2067}\u{2068}\u{2069}\u{206f}"),
            ("separators", "\u{2028}\u{2029}"),
            (
                "fillers and blanks",
                "\u{115f}\u{1160}\u{3164}\u{ffa0}\u{2800}\u{34f}",
            ),
            ("annotations", "\u{fff9}\u{fffa}\u{fffb}"),
            ("variants", "\u{fe0e}\u{fe0f}\u{e0100}"),
            ("tags", "\u{e0001}\u{e0041}\u{e007f}"),
            ("musical", "\u{1d173}\u{1d17a}"),
            ("private", "\u{f0000}\u{10ffff}"),
        ] {
            for it in text.chars() {
                assert!(!is_printable(it), "{kind}: {it:?}");
                assert!(printable(&it.to_string()).is_ascii(), "{kind}: {it:?}");
            }
        }
    }

    #[test]
    fn what_can_be_seen_stays_as_it_is() {
        for text in [
            "",
            "S-104522 ~",
            "café",
            "Müller & Söhne",
            "日本語",
            "עברית",
            "العربية",
            "€ ½ …",
            "🛒",
            "\u{fffd}",
        ] {
            assert_eq!(printable(text), text);
        }
    }

    #[test]
    fn nothing_that_moves_a_cursor_gets_through() {
        let clean = printable("a\x1b[2Jb\r\n\tc\u{7f}\u{9b}31m\u{202e}d");
        assert_eq!(clean, "a\\u{1b}[2Jb\\r\\n\\tc\\u{7f}\\u{9b}31m\\u{202e}d");
    }
}
