//! Secrets: read from their place when they are needed, shown nowhere.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::clock::{Clock, SystemClock, pause};
use anyhow::Context;

/// How long a secret's command may run.
pub(super) const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// The most bytes a secret may have.
const MAX_SECRET: u64 = 64 * 1024;

/// A secret, or the place where it is found.
///
/// `Debug` never shows it. Environment, file and command are read when the first message needs
/// them and again after the receiver answered 401, so a renewed secret needs no restart.
///
/// This crate logs no secret and takes those of a request out of what its receiver echoes. One
/// leak is not ours to stop: the library `ureq_proto` dumps raw requests to the [`log`] target of
/// its name at level trace. A program that logs at trace should leave that target out.
#[derive(Clone)]
pub struct Secret(Place);

#[derive(Clone)]
enum Place {
    Value(String),
    Env(String),
    File(PathBuf),
    Command(Vec<String>),
}

impl Secret {
    /// The secret itself.
    pub fn value(secret: impl Into<String>) -> Self {
        Self(Place::Value(secret.into()))
    }

    /// The value of an environment variable.
    pub fn env(name: impl Into<String>) -> Self {
        Self(Place::Env(name.into()))
    }

    /// The content of a file, without white space around it. What is no file, such as a named pipe, is not
    /// read: it may never answer.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Place::File(path.into()))
    }

    /// The first line a program prints. It is run without a shell and killed after 10 seconds.
    pub fn command<S: Into<String>>(command: impl IntoIterator<Item = S>) -> Self {
        Self(Place::Command(
            command.into_iter().map(Into::into).collect(),
        ))
    }

    /// What is wrong with the place.
    pub(super) fn check(&self) -> Result<(), String> {
        match &self.0 {
            Place::Env(name) if name.is_empty() || name.contains(['=', '\0']) => {
                Err("the secret's environment variable has no valid name".into())
            }
            Place::Command(command) if command.first().is_none_or(String::is_empty) => {
                Err("the secret's command is empty".into())
            }
            _ => Ok(()),
        }
    }

    /// Whether it was given itself.
    pub(super) fn is_known(&self) -> bool {
        matches!(self.0, Place::Value(_))
    }

    /// What stands for it in a command to copy: a shell expression without the secret. `name` is that of a
    /// variable, where it has none of its own.
    pub(super) fn stand_in(&self, name: &str) -> String {
        match &self.0 {
            Place::Env(name) if is_shell_name(name) => format!("${name}"),
            Place::Env(name) => format!("$(printenv {})", shell_quoted(name)),
            Place::File(path) => {
                // A relative one counts from where this program runs, not the command.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let path = shell_quoted(&path.to_string_lossy());
                // As `read` has it: without a byte order mark and white space around it, which whole lines
                // may be. Of several lines nothing is left: no header can carry them.
                format!(
                    "$(tr '\\r' '\\n' <{path} | sed \"1s/^$(printf '\\357\\273\\277')//; s/^[[:space:]]*//; \
                     s/[[:space:]]*\\$//\" | awk 'NF {{ n++; line = $0 }} END {{ if (n == 1) print line }}')"
                )
            }
            Place::Value(_) | Place::Command(_) => format!("${name}"),
        }
    }

    /// Whether nothing names it that a shell could ask.
    pub(super) fn is_nameless(&self) -> bool {
        matches!(self.0, Place::Value(_) | Place::Command(_))
    }

    /// Whether reading it may take its time.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self.0, Place::Command(_))
    }

    /// What stands at its place, without what editors and shells put around it.
    pub(super) fn read(&self) -> anyhow::Result<String> {
        let text = match &self.0 {
            Place::Value(value) => value.clone(),
            // VarError would print a value that is not UTF-8.
            Place::Env(name) => std::env::var_os(name)
                .with_context(|| format!("the environment variable {name} is not set"))?
                .into_string()
                .ok()
                .with_context(|| format!("the environment variable {name} is not UTF-8"))?,
            Place::File(path) => {
                let file =
                    open(path).with_context(|| format!("{} cannot be read", path.display()))?;
                let mut bytes = Vec::new();
                file.take(MAX_SECRET)
                    .read_to_end(&mut bytes)
                    .with_context(|| format!("{} cannot be read", path.display()))?;
                text(bytes).with_context(|| format!("{self:?}"))?
            }
            Place::Command(command) => text(run(command)?).with_context(|| format!("{self:?}"))?,
        };
        // Editors of Windows begin a file with a byte order mark.
        Ok(text.trim_start_matches('\u{feff}').trim().into())
    }
}

/// Opens what is a file. A pipe may never answer, and nothing could break that off.
pub(super) fn open(path: &Path) -> io::Result<File> {
    match std::fs::metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(io::Error::other("it is no file")),
    }
}

fn is_shell_name(name: &str) -> bool {
    let letters = |it: char| it.is_ascii_alphanumeric() || it == '_';
    name.chars().all(letters) && !name.starts_with(|it: char| it.is_ascii_digit())
}

/// One word of a shell, whatever is in it.
fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Value(_) => f.write_str("a secret value"),
            Place::Env(name) => write!(f, "the environment variable {name}"),
            Place::File(path) => write!(f, "the file {}", path.display()),
            Place::Command(command) => {
                // Arguments may hold secrets of their own.
                let program = command.first().map_or("", String::as_str);
                write!(f, "the command {program}")
            }
        }
    }
}

fn text(bytes: Vec<u8>) -> anyhow::Result<String> {
    if let [0xff, 0xfe, ..] | [0xfe, 0xff, ..] = bytes.as_slice() {
        anyhow::bail!("the secret is written as UTF-16: save it as UTF-8");
    }
    String::from_utf8(bytes)
        .ok()
        .context("the secret is not UTF-8")
}

/// Runs the program and answers its first line.
fn run(command: &[String]) -> anyhow::Result<Vec<u8>> {
    let Some((program, arguments)) = command.split_first() else {
        anyhow::bail!("the secret's command is empty");
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("the command {program} cannot be run"))?;
    let clock = SystemClock::default();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if clock.monotonic() >= COMMAND_LIMIT {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("the command {program} did not end within {COMMAND_LIMIT:?}");
        }
        pause(Duration::from_millis(10));
    };
    if !status.success() {
        anyhow::bail!("the command {program} failed: {status}");
    }
    let mut line = Vec::new();
    if let Some(output) = child.stdout.take() {
        // Not to the end: a daemon it left behind may hold the pipe open.
        for byte in BufReader::new(output.take(MAX_SECRET)).bytes() {
            match byte? {
                b'\n' if !line.is_empty() => break,
                b'\n' | b'\r' => {}
                other => line.push(other),
            }
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::credential::{Credential, Scheme};

    #[test]
    fn debug_shows_the_place_of_a_secret_and_never_the_secret() {
        let shown = format!(
            "{:?} {:?} {:?} {:?} {:?}",
            Secret::value("s3cr3t"),
            Secret::env("ERP_TOKEN"),
            Secret::command(["vault", "--pin", "s3cr3t"]),
            Credential::Bearer("s3cr3t".into()),
            Scheme::Basic("anna".into(), Secret::value("s3cr3t")),
        );
        assert!(!shown.contains("s3cr3t"), "{shown}");
        assert!(
            shown.contains("ERP_TOKEN") && shown.contains("vault"),
            "{shown}"
        );
    }

    #[test]
    fn a_secret_is_read_from_its_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "  from-file\r\n").unwrap();
        assert_eq!(Secret::file(file.path()).read().unwrap(), "from-file");
        assert_eq!(Secret::value("plain").read().unwrap(), "plain");
        if cfg!(unix) {
            let secret = Secret::command(["sh", "-c", "echo from-command; echo more"]);
            assert_eq!(secret.read().unwrap(), "from-command");
            let error = Secret::command(["sh", "-c", "exit 3"]).read().unwrap_err();
            assert!(error.to_string().contains("failed"), "{error}");
        }
    }

    #[test]
    fn an_unusable_secret_says_why_without_the_secret() {
        let cases = [
            (Secret::env("OUTBOX_NO_SUCH_VARIABLE"), "is not set"),
            (Secret::file("no/such/file"), "cannot be read"),
            (Secret::command(["no-such-program-here"]), "cannot be run"),
        ];
        for (secret, reason) in cases {
            let error = format!("{:#}", secret.read().unwrap_err());
            assert!(error.contains(reason), "{error}");
            assert!(!error.contains("r3t"), "{error}");
        }
    }
}
