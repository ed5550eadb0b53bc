//! What the command line means: shared arguments, units and exit codes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser};
use sqlite_outbox::rusqlite::ErrorCode;
use sqlite_outbox::{Error, FAR_AHEAD, Options, Outbox, Status};

use crate::commands::Command;
use crate::output::{note, now};

/// Look after the outbox in an application's SQLite file: see what waits and why, and send it.
#[derive(Debug, Parser)]
#[command(
    name = "outbox",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "\
Exit codes:
  0  done
  1  an error, told in one line
  2  a command line that makes no sense
  3  drain: unsent messages remain
  4  drain, status: none remain, but dead letters or
     conflicts wait for a person; check: something does

Example: what is waiting in a till's file, and why?
  outbox status till.db
  outbox why till.db"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How the tool ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Done = 0,
    Error = 1,
    Usage = 2,
    /// A drain ended and unsent messages remain.
    Unsent = 3,
    /// Nothing is unsent, but dead letters or conflicts wait for a person.
    Attention = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Arguments that clap let pass and that still make no sense.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

#[derive(Debug, Args)]
pub(crate) struct Database {
    /// The application's SQLite file
    #[arg(value_name = "DB")]
    pub(crate) db: PathBuf,
}

impl Database {
    /// Opens an outbox that is there; creates nothing.
    pub(crate) fn open(&self) -> anyhow::Result<Outbox> {
        self.open_with(Outbox::options())
    }

    /// The same, for a look: it works where this user may not write.
    pub(crate) fn open_to_read(&self) -> anyhow::Result<Outbox> {
        let outbox = Outbox::open_to_read(&self.db)?;
        if outbox.reads_unlocked() {
            note(&format!(
                "{} cannot be written and is read as it lies; what another program writes \
                 meanwhile may be missed",
                self.db.display()
            ));
        }
        Ok(outbox)
    }

    /// The same, with options.
    pub(crate) fn open_with(&self, options: Options) -> anyhow::Result<Outbox> {
        let opened = options.open_existing(&self.db);
        Ok(opened.map_err(|error| unreadable(&self.db, error))?)
    }
}

/// A file that SQLite could not open, where that is for want of the right to: it does not say. Only
/// for a process that has no connection to it, as a handle that is closed takes the locks away.
pub(crate) fn unreadable(path: &Path, error: Error) -> Error {
    let denied = || {
        let refused = std::fs::File::open(path).err();
        refused.is_some_and(|it| it.kind() == std::io::ErrorKind::PermissionDenied)
    };
    match error {
        Error::Sqlite(cause)
            if cause.sqlite_error_code() == Some(ErrorCode::CannotOpen) && denied() =>
        {
            Error::Unreadable(path.into())
        }
        error => error,
    }
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Format {
    /// Print JSON for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// The letters and the words of each, and its milliseconds.
const UNITS: [(&[&str], u64); 6] = [
    (&["ms"], 1),
    (&["s", "sec", "secs", "second", "seconds"], 1_000),
    (&["m", "min", "mins", "minute", "minutes"], 60_000),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600_000),
    (&["d", "day", "days"], 86_400_000),
    (&["w", "week", "weeks"], 604_800_000),
];

/// `30s`, `10m`, `24h`, `7d`; also `1h30m`, `10 min`, `2 days`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(SPANS.into());
    }
    let mut millis: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split(rest, |it| it.is_ascii_digit());
        let (unit, after) = split(after.trim_start(), char::is_alphabetic);
        if number.is_empty() {
            return Err(SPANS.into());
        }
        if unit.is_empty() && after.is_empty() {
            return Err(format!(
                "the unit is missing: {number}s, {number}m, {number}h or {number}d?"
            ));
        }
        let factor = factor(unit).ok_or_else(|| {
            let unit = if unit.is_empty() { after } else { unit };
            format!("{unit:?} is no unit; there are ms, s, m, h, d and w")
        })?;
        let part = number
            .parse()
            .ok()
            .and_then(|it: u64| it.checked_mul(factor));
        let sum = part.and_then(|it| millis.checked_add(it));
        // Beyond ten thousand years nobody means what they write.
        let sum = sum.filter(|it| *it < 315_360_000_000_000);
        millis = sum.ok_or("the duration is too long")?;
        rest = after.trim_start();
    }
    Ok(Duration::from_millis(millis))
}

/// How long to wait: no longer than what is stored may wait without being called odd.
pub(crate) fn delay(text: &str) -> Result<Duration, String> {
    let span = duration(text)?;
    match span > FAR_AHEAD {
        true => Err("nobody means to wait for more than ten years; is it another unit?".into()),
        false => Ok(span),
    }
}

const SPANS: &str = "a duration is a number and a unit, like 30s, 10m, 24h, 7d or 1h30m";

fn split(text: &str, of: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|it| !of(it)).unwrap_or(text.len()))
}

fn factor(unit: &str) -> Option<u64> {
    let found = UNITS.iter().find(|(names, _)| names.contains(&unit));
    found.map(|(_, factor)| *factor)
}

/// A moment, in milliseconds since 1970 UTC: a span ago, or as the tool prints one.
pub(crate) fn moment(text: &str) -> Result<i64, String> {
    if let Ok(span) = duration(text) {
        let span = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        return Ok(now().saturating_sub(span));
    }
    let text = text.trim();
    let stamp: Result<jiff::Timestamp, _> = text.parse();
    let utc = || text.parse::<jiff::civil::DateTime>()?.in_tz("UTC");
    let found = stamp.or_else(|_| utc().map(|it| it.timestamp()));
    found.map(|it| it.as_millisecond()).map_err(|_| {
        "a moment is a span ago, like 2h, or a date and time in UTC, like 2026-11-29T14:05Z".into()
    })
}

/// A status by its name. Small and capital letters are the same where the argument says
/// `ignore_case`; completions and `--help` know the names.
pub(crate) fn status() -> impl TypedValueParser<Value = Status> {
    let words = PossibleValuesParser::new(Status::ALL.map(Status::as_str));
    words.try_map(|it| Status::parse(&it.to_lowercase()).ok_or("there is no such status"))
}

/// `Name: value`
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().into(), value.trim().into()))
        }
        _ => Err("a header is written 'Name: value'".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("24h"), Ok(Duration::from_secs(86_400)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("1 h 30 min"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("10min"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("2 days"), Ok(Duration::from_secs(172_800)));
        assert_eq!(duration("1 week 1d"), Ok(Duration::from_secs(8 * 86_400)));
        assert!(duration("30").unwrap_err().contains("30s"));
        assert!(duration("1h30").unwrap_err().contains("30m"));
        assert!(duration("1.5h").unwrap_err().contains("no unit"));
        for wrong in [
            "",
            "s",
            "-1s",
            "1.5h",
            "1y",
            "5mss",
            "ss",
            "2 ms s",
            "3000w 99999999999999w",
            "99999999999999999999s",
            "400000000d",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_delay_is_one_that_somebody_may_mean() {
        assert_eq!(delay("3650d"), Ok(FAR_AHEAD));
        for wrong in ["3651d", "200000w"] {
            assert!(delay(wrong).unwrap_err().contains("ten years"), "{wrong}");
        }
        assert!(delay("30").unwrap_err().contains("30s"));
    }

    #[test]
    fn a_moment_is_a_span_ago_or_a_date() {
        let then = moment("2h").unwrap();
        let ago = now() - then;
        assert!((7_200_000..7_260_000).contains(&ago), "{ago}");
        for text in [
            "2026-11-29T14:05:07.250Z",
            "2026-11-29 15:05:07.250+01:00",
            "2026-11-29 14:05:07.250",
        ] {
            assert_eq!(moment(text), Ok(1_795_961_107_250), "{text}");
        }
        assert_eq!(moment("2026-11-29T14:05Z"), Ok(1_795_961_100_000));
        for wrong in ["", "yesterday", "14:05", "1795961107250"] {
            assert!(moment(wrong).unwrap_err().contains("2h"), "{wrong}");
        }
    }

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    /// The lines below the options stand as they are written: they are short enough for any
    /// terminal, but for commands to copy.
    #[test]
    fn commands_have_a_line_each_and_what_stands_below_fits_a_narrow_terminal() {
        use clap::CommandFactory;
        for command in Cli::command().get_subcommands().chain([&Cli::command()]) {
            let about = command.get_about().map(ToString::to_string);
            let about = about.filter(|_| command.get_name() != "outbox");
            assert!(
                about.unwrap_or_default().len() <= 65,
                "{}",
                command.get_name()
            );
            let below = command.get_after_help().map(ToString::to_string);
            for line in below.unwrap_or_default().lines() {
                let most = if line.starts_with("  outbox ") {
                    90
                } else {
                    60
                };
                assert!(line.len() <= most, "{}: {line}", command.get_name());
            }
        }
    }

    #[test]
    fn a_status_is_known_by_its_name_in_any_letters() {
        use clap::{Arg, Command};
        let arg = Arg::new("status").value_parser(status()).ignore_case(true);
        let of = |word: String| {
            Command::new("x")
                .arg(&arg)
                .try_get_matches_from(["x".into(), word])
        };
        for status in Status::ALL {
            for word in [status.as_str().to_string(), status.as_str().to_uppercase()] {
                let found = of(word).unwrap();
                assert_eq!(found.get_one("status"), Some(&status));
            }
        }
        assert!(of("gone".into()).is_err());
    }
}
