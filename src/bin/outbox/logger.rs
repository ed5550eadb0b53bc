//! What the library has to say beside its results, for a person who asked to hear it.

use std::sync::OnceLock;

use clap::Args;
use log::{Level, LevelFilter, Log, Metadata, Record};
use serde::Serialize;

use crate::output::{
    as_json, exact, json_line, lines_lost, now, printable, say, say_json, set_aside,
};

/// How much is said on stderr.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Loudness {
    /// Say more on stderr: what fails and why; twice: every delivery
    #[arg(short, long, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Say nothing on stderr but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl Loudness {
    /// Whether a progress bar would not be in the way.
    pub(crate) fn is_plain(self) -> bool {
        self.verbose == 0 && !self.quiet
    }
}

/// Where log lines go beside what a command prints itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The command ends with a report: without -v there is no log.
    Reports,
    /// The command tells what happens by lines of its own: these are not repeated by the log.
    Tells,
}

/// The target of what the library also tells its observer.
const EVENTS: &str = "sqlite_outbox::event";

#[derive(Debug)]
struct Logger {
    level: LevelFilter,
    role: Role,
}

/// Starts logging. To be called once.
pub(crate) fn start(loudness: Loudness, role: Role) {
    let level = match (loudness.verbose, role) {
        (_, Role::Tells) if loudness.quiet => LevelFilter::Error,
        (0, Role::Tells) => LevelFilter::Warn,
        (0, Role::Reports) => LevelFilter::Off,
        (1, _) => LevelFilter::Info,
        (2.., _) => LevelFilter::Debug,
    };
    // The library logs from the threads that send.
    set_aside(match role {
        _ if as_json() => |lost| {
            let (at, log, text) = (now(), "warning", &*lines_lost(lost));
            json_line(&Logged { at, log, text }).unwrap_or_default()
        },
        Role::Reports => |lost| format!("warning: {}", lines_lost(lost)),
        Role::Tells => |lost| format!("{} {}", exact(now()), lines_lost(lost)),
    });
    // Trace would show payloads and, in other crates, credentials.
    static LOGGER: OnceLock<Logger> = OnceLock::new();
    if log::set_logger(LOGGER.get_or_init(|| Logger { level, role })).is_ok() {
        log::set_max_level(level);
    }
}

#[derive(Serialize)]
struct Logged<'a> {
    at: i64,
    log: &'a str,
    text: &'a str,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let (target, level) = (metadata.target(), metadata.level());
        let within = |name: &str| {
            let rest = target.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        // It dumps raw requests, and with them the credentials.
        // The other says as a value of Rust what the failure says in words.
        if within("ureq_proto") || within("rustls_platform_verifier") || level > self.level {
            return false;
        }
        if target == EVENTS && self.role == Role::Tells {
            return false;
        }
        within("sqlite_outbox") || within("outbox") || level <= Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let word = match record.level() {
            Level::Error => "error",
            Level::Warn => "warning",
            Level::Info => "info",
            Level::Debug | Level::Trace => "debug",
        };
        let text = record.args().to_string();
        let at = now();
        match self.role {
            _ if as_json() => say_json(&Logged {
                at,
                log: word,
                text: &text,
            }),
            Role::Reports => say(&format!("{word}: {}", printable(&text))),
            Role::Tells => say(&format!("{} {word}: {}", exact(at), printable(&text))),
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(role: Role, level: LevelFilter, target: &str, at: Level) -> bool {
        let metadata = Metadata::builder().target(target).level(at).build();
        Logger { level, role }.enabled(&metadata)
    }

    #[test]
    fn raw_requests_are_never_logged() {
        for target in ["ureq_proto", "ureq_proto::client", "ureq_proto::util"] {
            for level in [Level::Error, Level::Warn, Level::Debug, Level::Trace] {
                assert!(!shown(Role::Reports, LevelFilter::Trace, target, level));
            }
        }
        let ureq = |level| shown(Role::Reports, LevelFilter::Trace, "ureq::run", level);
        assert!(ureq(Level::Warn) && !ureq(Level::Info) && !ureq(Level::Debug));
    }

    #[test]
    fn what_a_command_tells_itself_is_not_repeated() {
        for level in [Level::Error, Level::Warn, Level::Info] {
            assert!(shown(Role::Reports, LevelFilter::Debug, EVENTS, level));
            assert!(!shown(Role::Tells, LevelFilter::Debug, EVENTS, level));
        }
        let message = "sqlite_outbox::message";
        assert!(
            shown(Role::Tells, LevelFilter::Debug, message, Level::Info),
            "a failed attempt is no line of its own"
        );
        let pump = "sqlite_outbox::pump::engine";
        assert!(shown(Role::Tells, LevelFilter::Warn, pump, Level::Error));
        assert!(!shown(Role::Tells, LevelFilter::Warn, pump, Level::Info));
    }
}
