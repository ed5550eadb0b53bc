//! Words of the commands that we suggest: what is pasted into a shell means what we meant.

use std::borrow::Cow;
use std::path::Path;

use sqlite_outbox::is_printable;

/// A command of ours about a file, which is named as it was typed here.
pub(super) fn command(name: &str, db: &Path, rest: &str) -> String {
    let gap = if rest.is_empty() { "" } else { " " };
    format!("outbox {name} {}{gap}{rest}", quoted_path(db))
}

/// The settings that were given, or else those that lie where they mostly do: beside the file, or
/// where the shell stands.
pub(super) fn settings<'a>(given: Option<&'a Path>, db: &Path) -> Option<Cow<'a, Path>> {
    const USUAL: &str = "outbox.toml";
    let places = [db.with_file_name(USUAL), USUAL.into()];
    let usual = || places.into_iter().find(|it| it.is_file());
    given.map(Cow::Borrowed).or_else(|| usual().map(Cow::Owned))
}

/// One word of a shell, whatever is in it.
pub(crate) fn quoted(text: &str) -> String {
    match text.chars().all(is_printable) {
        true => literal(text),
        false => coded(text.as_bytes()),
    }
}

/// The text between quotes in which nothing but the quote itself has a meaning, not even a newline.
pub(super) fn literal(text: &str) -> String {
    let plain = |it: char| it.is_ascii_alphanumeric() || "-_./:@%+,=".contains(it);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Bytes that are no text, or none to be seen: the shells people use know this form.
fn coded(bytes: &[u8]) -> String {
    let word: String = bytes
        .iter()
        .map(|it| match it {
            b'\'' | b'\\' => format!("\\{}", char::from(*it)),
            0x20..=0x7e => char::from(*it).to_string(),
            it => format!("\\x{it:02x}"),
        })
        .collect();
    format!("$'{word}'")
}

/// A path as one word of a shell, which no program takes for an option.
pub(crate) fn quoted_path(path: &Path) -> String {
    let plain = path.to_str().filter(|it| it.chars().all(is_printable));
    match plain {
        Some(text) if text.starts_with('-') => quoted(&format!("./{text}")),
        Some(text) => quoted(text),
        None => coded(path.as_os_str().as_encoded_bytes()),
    }
}

/// An option with its value, which may begin like an option.
pub(super) fn option(name: &str, value: &str) -> String {
    let gap = if value.starts_with('-') { '=' } else { ' ' };
    format!("{name}{gap}{}", quoted(value))
}

/// The last argument of a command, which may begin like an option.
pub(super) fn last(value: &str) -> String {
    let before = if value.starts_with('-') { "-- " } else { "" };
    format!("{before}{}", quoted(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word() {
        for (text, word) in [
            ("https://erp.example/a-b", "https://erp.example/a-b"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's $HOME `id`", r"'it'\''s $HOME `id`'"),
            ("sa\tles", r"$'sa\x09les'"),
            ("it's\u{1b}[2J\\", r"$'it\'s\x1b[2J\\'"),
            ("ä\n", r"$'\xc3\xa4\x0a'"),
        ] {
            assert_eq!(quoted(text), word);
        }
        assert_eq!(literal("a\nb"), "'a\nb'");
        assert_eq!(option("--channel", "sales"), "--channel sales");
        assert_eq!(option("--channel", "-x"), "--channel=-x");
        assert_eq!(last("-x y"), "-- '-x y'");
    }

    #[test]
    fn a_path_is_one_word_and_no_option() {
        for (path, word) in [
            ("till.db", "till.db"),
            ("-x.db", "./-x.db"),
            ("--help", "./--help"),
            ("a b.db", "'a b.db'"),
            ("it's\n.db", r"$'it\'s\x0a.db'"),
        ] {
            assert_eq!(quoted_path(Path::new(path)), word);
        }
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStrExt;
            let path = Path::new(std::ffi::OsStr::from_bytes(b"a\xffb.db"));
            assert_eq!(quoted_path(path), r"$'a\xffb.db'");
        }
    }
}
