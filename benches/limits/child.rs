//! Parts that need a process of their own: the bench starts itself again with a hidden argument.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{idle, memory, wake, wire};

/// The hidden argument. What follows is a role and what it needs to know.
pub const FLAG: &str = "--child";

/// The bench itself in a role. Its input is a pipe, its output too.
pub fn command(role: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg(FLAG)
        .args(role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    Ok(command)
}

/// Runs a role to its end; it prints one JSON value.
pub fn run(role: &[&str]) -> Result<Value> {
    let output = command(role)?.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{} failed", role[0]);
    serde_json::from_slice(&output.stdout).with_context(|| role.join(" "))
}

/// Plays a role.
pub fn play(arguments: &[String]) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["sink", delay] => wire::serve(Duration::from_millis(delay.parse()?)),
        ["idle", path, seconds] => idle::child(Path::new(path), seconds.parse()?),
        ["sleep", seconds] => idle::sleeper(seconds.parse()?),
        ["commit", path, count] => wake::child(Path::new(path), count.parse()?),
        ["drain", path, url] => memory::child(Path::new(path), url),
        _ => bail!("{FLAG} is the bench's own business"),
    }
}
