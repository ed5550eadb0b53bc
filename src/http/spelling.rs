//! Texts that must not be told, found however they are spelled: in capitals, and escaped for JSON, a
//! URL or HTML, once or several times over.
//!
//! Text and secret are folded to the same form, and what is found goes out of the text as it stands.
//! It knows nothing else of this crate: the tool compiles it too.

use std::cmp::Reverse;
use std::ops::Range;

/// So often is a text unescaped: what was escaped more often is no accident.
const DEEPEST: usize = 6;

/// A text without its spelling.
pub(crate) fn folded(text: &str) -> String {
    Folded::of(text.as_bytes()).text
}

/// A text with a mark in the place of these, which are folded; nothing where none is in it.
pub(crate) fn blanked<'a>(
    bytes: &[u8],
    secrets: impl IntoIterator<Item = &'a str>,
    mark: &str,
) -> Option<Vec<u8>> {
    let folded = Folded::of(bytes);
    let mut found: Vec<Range<usize>> = Vec::new();
    for secret in secrets.into_iter().filter(|it| !it.is_empty()) {
        let places = folded.text.match_indices(secret);
        found.extend(places.filter_map(|(at, _)| span(folded.from.get(at..at + secret.len())?)));
    }
    found.sort_by_key(|it| (it.start, Reverse(it.end)));
    let (mut clean, mut end) = (Vec::new(), 0);
    for place in &found {
        if place.start >= end {
            clean.extend_from_slice(bytes.get(end..place.start)?);
            clean.extend_from_slice(mark.as_bytes());
        }
        end = end.max(place.end);
    }
    clean.extend_from_slice(bytes.get(end..)?);
    (!found.is_empty()).then_some(clean)
}

/// From the first of these to the last.
fn span(places: &[Range<usize>]) -> Option<Range<usize>> {
    Some(places.first()?.start..places.last()?.end)
}

/// A text without its spelling, and where each byte of it stands in the one that it was.
struct Folded {
    text: String,
    from: Vec<Range<usize>>,
}

impl Folded {
    fn of(bytes: &[u8]) -> Self {
        let mut plain = Unescaped::new(bytes);
        for _ in 0..DEEPEST {
            match plain.once_more() {
                Some(plainer) => plain = plainer,
                None => break,
            }
        }
        let mut folded = Self {
            text: String::new(),
            from: Vec::new(),
        };
        let mut at = 0;
        for chunk in plain.bytes.utf8_chunks() {
            let valid = chunk.valid().chars().map(|it| (it, it.len_utf8()));
            // What is no UTF-8 was most likely written in Latin-1.
            let others = chunk.invalid().iter().map(|it| (char::from(*it), 1));
            for (letter, length) in valid.chain(others) {
                let place = plain.from.get(at..at + length).and_then(span);
                folded.push(letter, &place.unwrap_or_default());
                at += length;
            }
        }
        folded
    }

    fn push(&mut self, letter: char, place: &Range<usize>) {
        // A form of the web writes spaces so.
        let letter = if letter == '+' { ' ' } else { letter };
        let small = letter.to_uppercase().flat_map(char::to_lowercase);
        self.text.extend(small);
        self.from.resize(self.text.len(), place.clone());
    }
}

/// Bytes, and where each stands in the text that they were.
#[derive(Default)]
struct Unescaped {
    bytes: Vec<u8>,
    from: Vec<Range<usize>>,
}

impl Unescaped {
    fn new(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            from: (0..bytes.len()).map(|at| at..at + 1).collect(),
        }
    }

    /// Without one layer of escapes; nothing where there is none.
    fn once_more(&self) -> Option<Self> {
        let mut plainer = Self::default();
        let mut at = 0;
        while let Some(rest) = self.bytes.get(at..).filter(|it| !it.is_empty()) {
            let (bytes, length) = match escape(rest) {
                Some((letter, length)) => (letter.bytes(), length),
                None => (rest.iter().take(1).copied().collect(), 1),
            };
            let place = self.from.get(at..at + length).and_then(span)?;
            plainer.bytes.extend(bytes);
            plainer.from.resize(plainer.bytes.len(), place);
            at += length;
        }
        (plainer.bytes.len() < self.bytes.len()).then_some(plainer)
    }
}

/// What an escape stands for.
enum Letter {
    Byte(u8),
    Char(char),
}

impl Letter {
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Byte(byte) => vec![byte],
            Self::Char(letter) => letter.to_string().into_bytes(),
        }
    }
}

/// The escape at the beginning, and its length.
fn escape(text: &[u8]) -> Option<(Letter, usize)> {
    match text {
        [b'%', rest @ ..] => Some((Letter::Byte(hex(rest.get(..2)?)?.try_into().ok()?), 3)),
        [b'\\', b'u' | b'U', rest @ ..] => unicode(rest),
        [b'\\', letter, ..] => {
            let byte = match letter.to_ascii_lowercase() {
                quoted @ (b'"' | b'\'' | b'\\' | b'/') => quoted,
                b'b' => 8,
                b'f' => 12,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                _ => return None,
            };
            Some((Letter::Byte(byte), 2))
        }
        [b'&', rest @ ..] => entity(rest),
        _ => None,
    }
}

/// What stands behind `\u`, a pair where one is needed.
fn unicode(rest: &[u8]) -> Option<(Letter, usize)> {
    let first = hex(rest.get(..4)?)?;
    if let Some(letter) = char::from_u32(first) {
        return Some((Letter::Char(letter), 6));
    }
    let second = rest.get(4..)?.split_at_checked(2)?;
    let second = second.0.eq_ignore_ascii_case(b"\\u").then_some(second.1)?;
    let pair = [first, hex(second.get(..4)?)?].map(|it| it.try_into().ok());
    let [Some(first), Some(second)] = pair else {
        return None;
    };
    let mut letters = char::decode_utf16([first, second]);
    Some((Letter::Char(letters.next()?.ok()?), 12))
}

/// What stands behind `&`.
fn entity(rest: &[u8]) -> Option<(Letter, usize)> {
    const LONGEST: usize = 8;
    let end = rest.iter().take(LONGEST).position(|it| *it == b';')?;
    let letter = match &*rest.get(..end)?.to_ascii_lowercase() {
        b"amp" => '&',
        b"lt" => '<',
        b"gt" => '>',
        b"quot" => '"',
        b"apos" => '\'',
        [b'#', b'x', digits @ ..] => char::from_u32(hex(digits)?)?,
        [b'#', digits @ ..] => {
            let digits = std::str::from_utf8(digits).ok()?;
            char::from_u32(digits.parse().ok()?)?
        }
        _ => return None,
    };
    Some((Letter::Char(letter), end + 2))
}

fn hex(digits: &[u8]) -> Option<u32> {
    let all = digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| all)?;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> String {
        let quoted = serde_json::to_string(text).unwrap();
        quoted[1..quoted.len() - 1].to_owned()
    }

    /// As programs write it that keep to ASCII.
    fn ascii(text: &str) -> String {
        let mut escaped = String::new();
        for unit in json(text).encode_utf16() {
            match u8::try_from(unit) {
                Ok(byte) if byte.is_ascii() => escaped.push(byte.into()),
                _ => escaped.push_str(&format!("\\u{unit:04x}")),
            }
        }
        escaped
    }

    fn url(text: &str) -> String {
        percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
    }

    fn html(text: &str) -> String {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        text.replace('"', "&quot;").replace('\'', "&#39;")
    }

    const SECRETS: [&str; 10] = [
        "Köln Meier/4711",
        "a\"b\\c/d'e",
        "100% & <more> + \"x\"",
        "C:\\new\\users\\till",
        "Straße 😀 5",
        "+49 170 1234567",
        "%41%42%C3%B6",
        "&amp;&lt;script&#62;",
        "\\u00f6\\n",
        "plain",
    ];

    /// In capitals and small letters the same, and however it was escaped, by one after the other too.
    #[test]
    fn a_text_is_found_in_whatever_spelling() {
        let ways: [fn(&str) -> String; 9] = [
            str::to_owned,
            json,
            ascii,
            |it| json(it).replace('/', "\\/"),
            url,
            |it| url(it).to_lowercase(),
            |it| url(it).replace("%20", "+"),
            html,
            str::to_uppercase,
        ];
        for secret in SECRETS {
            for first in ways {
                for second in ways {
                    let spelled = second(&first(secret));
                    let text = format!("ä: {spelled}; rest");
                    let clean = blanked(text.as_bytes(), [&*folded(secret)], "…");
                    let clean = clean.unwrap_or_else(|| panic!("{secret}: {text}"));
                    assert_eq!(String::from_utf8(clean).unwrap(), "ä: …; rest", "{text}");
                }
            }
        }
        assert!(blanked(b"K\xf6ln", [&*folded("Köln")], "…").is_some());
    }

    #[test]
    fn what_is_found_is_replaced_everywhere_and_nothing_else() {
        for (text, parts, clean) in [
            ("a-aab-aab", &["aab"][..], "a-***-***"),
            ("aaab", &["aab"], "a***"),
            ("abab", &["ab"], "******"),
            ("abcd", &["ab", "abcd", "bc"], "***"),
            ("abcd", &["bcd", "ab"], "***"),
            ("%zz \\x & %", &["none", ""], "%zz \\x & %"),
            ("", &["a"], ""),
            ("%61%62c&d", &["b"], "%61***c&d"),
        ] {
            let blanked = blanked(text.as_bytes(), parts.iter().copied(), "***");
            let told = blanked.unwrap_or(text.as_bytes().to_vec());
            assert_eq!(String::from_utf8(told).unwrap(), clean, "{text}");
        }
    }
}
