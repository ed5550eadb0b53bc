//! The command line as it is shown: commands by what they are for, and what was probably meant by
//! one that makes no sense.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory};

use crate::args::Cli;
use crate::commands::shell::{quoted, quoted_path};
use crate::nearest;
use crate::output::wrap;

/// Every command stands in one of them.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Look", &["status", "why", "check", "list", "show", "watch"]),
    ("Make and send", &["init", "enqueue", "drain", "run"]),
    (
        "Decide",
        &[
            "retry",
            "cancel",
            "edit",
            "send-again",
            "conflicts",
            "pause",
            "resume",
        ],
    ),
    (
        "Care for the file",
        &["backup", "export", "purge", "compact", "upgrade"],
    ),
    ("Rehearse and report", &["sink", "curl", "bundle"]),
    (
        "For shells and packagers",
        &["completions", "man", "schema", "help"],
    ),
];

/// Columns that the names of commands take.
const NAMES: usize = 15;

/// What stands behind an option that takes a span.
const SPAN: &str = "; D is a span like 30s, 10m, 1h30m or 7d";

/// The command line with all that `--help` says.
pub(crate) fn command() -> Command {
    let mut whole = Cli::command();
    let names: Vec<_> = whole
        .get_subcommands()
        .map(|it| it.get_name().to_string())
        .collect();
    for name in &names {
        whole = whole.mut_subcommand(name, |it| it.mut_args(with_span));
    }
    let groups = groups(&whole);
    let options = head(&whole, "Options");
    whole.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}{options}\n{{options}}{{after-help}}"
    ))
}

fn with_span(arg: Arg) -> Arg {
    let takes = |it: &[clap::builder::Str]| it.iter().any(|it| *it == "D" || *it == "now|D");
    let help = arg.get_help().map(ToString::to_string);
    match help.filter(|_| arg.get_value_names().is_some_and(takes)) {
        Some(help) => arg.help(help + SPAN),
        None => arg,
    }
}

fn head(whole: &Command, title: &str) -> String {
    let style = whole.get_styles().get_header();
    format!("{style}{title}:{style:#}")
}

fn groups(whole: &Command) -> String {
    const MOST: usize = 100;
    let width = terminal_size::terminal_size().map_or(MOST, |(it, _)| usize::from(it.0));
    let room = width.min(MOST).saturating_sub(NAMES);
    let style = whole.get_styles().get_literal();
    let mut text = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "{}", head(whole, title));
        for name in names {
            let about = whole.find_subcommand(name).and_then(Command::get_about);
            let about = about.map_or(
                "Print this, or the help of a command".into(),
                ToString::to_string,
            );
            let gap = " ".repeat(NAMES.saturating_sub(name.len() + 2));
            let _ = write!(text, "  {style}{name}{style:#}{gap}");
            let indent = " ".repeat(NAMES);
            let lines = wrap(&about, room);
            let _ = writeln!(text, "{}", lines.join(&format!("\n{indent}")));
        }
        text.push('\n');
    }
    text
}

/// The command whose help says more.
pub(crate) fn meant() -> String {
    let whole = Cli::command();
    let words = std::env::args_os().skip(1);
    let named = words.map(|it| it.to_string_lossy().into_owned());
    let mut named = named.filter(|it| !it.starts_with('-'));
    let known = named
        .next()
        .filter(|it| whole.find_subcommand(it).is_some());
    known.map_or("outbox".into(), |it| format!("outbox {it}"))
}

/// With what was probably meant by a command that is not there, and what there is for `--json` where
/// that is not known.
pub(crate) fn advised(error: clap::Error) -> clap::Error {
    let argument = error.get(ContextKind::InvalidArg);
    if matches!(argument, Some(ContextValue::String(it)) if it == "--json") {
        let words = std::env::args_os().skip(1);
        let tip = in_place_of_json(words.map(|it| it.to_string_lossy().into_owned()));
        return with_tip(error, ContextKind::SuggestedArg, tip);
    }
    if error.kind() == ErrorKind::InvalidUtf8 {
        let tip = no_text(std::env::args_os().skip(1));
        return with_tip(error, ContextKind::SuggestedArg, tip);
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let whole = Cli::command();
    let names: Vec<_> = whole.get_subcommands().map(Command::get_name).collect();
    let tip = match nearest::meant(word, &names) {
        _ if Path::new(word).is_file() => {
            format!(
                "the command comes before the file: outbox status {}",
                quoted(word)
            )
        }
        Some(name) => format!("{name} may be meant"),
        None => return error,
    };
    with_tip(error, ContextKind::SuggestedSubcommand, tip)
}

/// Which arguments are no text: paths may be, others not.
fn no_text(words: impl Iterator<Item = OsString>) -> String {
    let odd = words.filter(|it| it.to_str().is_none());
    let odd: Vec<_> = odd.map(|it| quoted_path(Path::new(&it))).collect();
    format!(
        "no text is {}; `--file PATH` takes a payload of any bytes",
        odd.join(", ")
    )
}

/// Our advice in the place of clap's own.
fn with_tip(mut error: clap::Error, own: ContextKind, tip: String) -> clap::Error {
    error.remove(own);
    let tips = vec![StyledStr::from(tip)];
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    error
}

/// The commands that print no JSON: for people, or in a form that somebody else has set.
const WITHOUT_JSON: [&str; 4] = ["watch", "completions", "man", "help"];

fn in_place_of_json(mut words: impl Iterator<Item = String>) -> String {
    match words.find(|it| WITHOUT_JSON.contains(&&**it)) {
        Some(name) if name == "watch" => {
            "watch is for people; `outbox status DB --json` prints the same once".into()
        }
        Some(name) => format!("{name} prints no JSON; what it prints has a form of its own"),
        None => "it comes behind the command, as in `outbox status DB --json`".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_stands_in_one_group() {
        let whole = Cli::command();
        let mut names: Vec<_> = whole.get_subcommands().map(Command::get_name).collect();
        names.push("help");
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|it| it.1.iter().copied()).collect();
        names.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, names);
    }

    #[test]
    fn every_command_prints_json_or_says_what_there_is_in_its_place() {
        for command in Cli::command().get_subcommands() {
            let takes = command.get_arguments().any(|it| it.get_id() == "json");
            let name = command.get_name();
            assert_ne!(takes, WITHOUT_JSON.contains(&name), "{name}");
        }
        let told = |words: [&str; 2]| in_place_of_json(words.into_iter().map(String::from));
        assert!(told(["watch", "till.db"]).contains("outbox status"));
        assert!(told(["man", "drain"]).contains("man prints no JSON"));
        assert!(told(["--json", "status"]).contains("behind the command"));
    }

    #[test]
    fn a_span_is_explained_where_one_is_taken() {
        let whole = command();
        let drain = whole.find_subcommand("drain").unwrap();
        let help = |id| {
            let arg = drain.get_arguments().find(|it| it.get_id() == id).unwrap();
            arg.get_help().unwrap().to_string()
        };
        assert!(help("deadline").ends_with(SPAN));
        assert!(!help("now").ends_with(SPAN));
    }
}
