//! An error in one line for a person: what failed, why, and what to do.

use std::ffi::OsString;
use std::io::Read;
use std::path::Path;

use sqlite_outbox::Error;

use super::operate::who;
use super::shell::{command, quoted, quoted_path};

/// All of it, nothing twice.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let mut parts = Vec::new();
    for cause in error.chain() {
        let Some(ours) = cause.downcast_ref::<Error>() else {
            parts.push(unnumbered(&cause.to_string()).into());
            continue;
        };
        parts.push(ours.chain());
        // It tells of its own causes.
        let text = parts.join(": ");
        return match remedy(ours) {
            Some(remedy) => format!("{text}; {remedy}"),
            None => text,
        };
    }
    parts.join(": ")
}

/// Without the number that the system has for an error it has words for.
fn unnumbered(text: &str) -> &str {
    let number = |it: &str| it.trim_end_matches(')').parse::<u32>().is_ok();
    match text.rsplit_once(" (os error ") {
        Some((words, rest)) if number(rest) => words,
        _ => text,
    }
}

/// What a person at this tool can do, where the library's sentence cannot say it.
fn remedy(error: &Error) -> Option<String> {
    match error {
        Error::NotFound(_) => Some(format!(
            "it was never committed to this file, or was purged: look for another key, another file, \
             or an error where it was enqueued; `{}` shows those that are there",
            command("list", Path::new(&words().nth(1)?), "")
        )),
        Error::Missing(_) => swapped().map(|it| format!("the file comes first: `{it}`")),
        Error::ReadOnly(_) => Some(format!(
            "you are {}: run it as the user whose program writes the file",
            who()
        )),
        Error::Busy(_) => Some(format!(
            "`lsof {}` names the programs that have it open",
            quoted_path(Path::new(&words().nth(1)?))
        )),
        _ => None,
    }
}

/// The command line, as far as it begins as commands do, with the command and its file.
fn words() -> impl Iterator<Item = OsString> {
    let word = |it: &OsString| !it.as_encoded_bytes().starts_with(b"-");
    std::env::args_os().skip(1).take_while(word)
}

/// The same command with its first two words in the other order, where the second is a database.
fn swapped() -> Option<String> {
    let words: Vec<_> = words().collect();
    let [name, which, file, rest @ ..] = &*words else {
        return None;
    };
    let file = Path::new(file);
    let mut head = [0; 6];
    std::fs::File::open(file).ok()?.read_exact(&mut head).ok()?;
    let rest = [which].into_iter().chain(rest);
    let rest: Vec<_> = rest.map(|it| quoted(&it.to_string_lossy())).collect();
    let swapped = command(&name.to_string_lossy(), file, &rest.join(" "));
    (head == *b"SQLite").then_some(swapped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_is_told_without_its_number() {
        for (text, told) in [
            (
                "No such file or directory (os error 2)",
                "No such file or directory",
            ),
            ("broken (os error x)", "broken (os error x)"),
            ("broken", "broken"),
        ] {
            assert_eq!(unnumbered(text), told);
        }
    }
}
