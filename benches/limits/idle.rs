//! What a pump costs that has nothing to do, in a process of its own.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use sqlite_outbox::Outbox;

use crate::Asked;
use crate::child;
use crate::drain::noop_dispatcher;
use crate::figure::{Figure, Target, median};

/// CPU seconds per minute and bytes written, with an empty outbox and a running pump; beside it, of
/// a thread that only sleeps as often.
pub fn idle(asked: &Asked) -> Result<Vec<Figure>> {
    let till = asked.till(0, None)?;
    let (rounds, seconds) = if asked.quick { (1, 1) } else { (3, 10) };
    let (path, seconds) = (till.path.to_string_lossy(), seconds.to_string());
    let (mut pump, mut sleep, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let said = child::run(&["idle", &path, &seconds])?;
        pump.extend(said["cpu"].as_f64());
        bytes.extend(said["bytes"].as_f64());
        sleep.extend(child::run(&["sleep", &seconds])?["cpu"].as_f64());
    }
    let figure = |name: &str, value: Option<f64>, limit, unit, target| Figure {
        name: name.into(),
        value,
        limit,
        unit,
        target,
    };
    let of = |values: &[f64]| (!values.is_empty()).then(|| median(values));
    let (cpu, unit) = (of(&pump), "s/min");
    let least = of(&sleep).unwrap_or_default();
    let bytes = bytes.into_iter().reduce(f64::max);
    Ok(vec![
        figure("idle_cpu_s_per_min", cpu, 0.15, unit, Target::Limit),
        figure("idle_cpu_beside_sleep", cpu, least, unit, Target::None),
        figure("idle_bytes", bytes, 0.0, "bytes", Target::Limit),
    ])
}

/// A child: a pump, and nothing to send.
pub fn child(path: &Path, seconds: u64) -> Result<()> {
    let outbox = Outbox::open_existing(path)?;
    let pump = outbox.pump(noop_dispatcher).start()?;
    said(seconds);
    drop(pump);
    Ok(())
}

/// A child: a thread that does nothing as often as an idle pump looks around.
pub fn sleeper(seconds: u64) -> Result<()> {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_millis(25));
        }
    });
    said(seconds);
    Ok(())
}

/// Waits, and prints what that has cost.
fn said(seconds: u64) {
    std::thread::sleep(Duration::from_secs(1));
    let (cpu, bytes) = (cpu_seconds(), bytes_written());
    std::thread::sleep(Duration::from_secs(seconds));
    let since = |before: Option<f64>, now: Option<f64>| Some(now? - before?);
    let cpu = since(cpu, cpu_seconds()).map(|it| it * 60.0 / seconds as f64);
    let bytes = since(bytes, bytes_written());
    println!("{}", json!({"cpu": cpu, "bytes": bytes}));
}

/// On a processor so far, all threads together; known on Linux.
fn cpu_seconds() -> Option<f64> {
    let mut nanoseconds = 0.0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        nanoseconds += text.split_whitespace().next()?.parse::<f64>().ok()?;
    }
    Some(nanoseconds / 1e9)
}

/// By all writes to files of this process so far; known on Linux.
fn bytes_written() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines()
        .find_map(|it| it.strip_prefix("wchar:"))?
        .trim()
        .parse()
        .ok()
}

/// The most memory this process ever had, in MB; known on Linux.
pub fn peak_memory() -> Value {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|it| it.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|it| it.split_whitespace().next()?.parse::<f64>().ok());
    json!(kibibytes.map(|it| it * 1024.0 / 1e6))
}
