//! The plots of PERFORMANCE.md, measured and drawn as SVG in plain text.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;

use crate::Asked;
use crate::backlog::claim_with;
use crate::drain::{http, ours};
use crate::figure::{grouped, in_turn};
use crate::wire::{self, Sink};

const LATENCIES: [u64; 5] = [0, 1, 5, 20, 100];
const WORKERS: [usize; 3] = [1, 8, 64];
const COLOURS: [&str; 3] = ["#1f77b4", "#2ca02c", "#d62728"];

/// A line through points, dashed where it is the limit.
struct Line {
    label: String,
    colour: &'static str,
    dashed: bool,
    points: Vec<(f64, f64)>,
}

/// Measures and writes both plots into `folder`.
pub fn plot(asked: &Asked, folder: &Path) -> Result<()> {
    std::fs::write(folder.join("throughput.svg"), throughput(asked)?)?;
    std::fs::write(folder.join("backlog.svg"), backlog(asked)?)?;
    Ok(())
}

/// Messages a second against the time the receiver takes.
fn throughput(asked: &Asked) -> Result<String> {
    let sinks = LATENCIES
        .iter()
        .map(|it| Sink::start(*it))
        .collect::<Result<Vec<_>>>()?;
    let mut lines = Vec::new();
    for (workers, colour) in WORKERS.into_iter().zip(COLOURS) {
        let (mut drained, mut raw) = (Vec::new(), Vec::new());
        for (at, (sink, latency)) in sinks.iter().zip(LATENCIES).enumerate() {
            // Some two seconds each, or what the machine can do in them.
            let count = asked.size((2_000 / latency.max(1) as usize * workers).clamp(20, 30_000));
            let dispatcher = http(&sink.url)?;
            let [ours, limit] = in_turn(
                asked.rounds(3),
                [
                    &mut || ours(asked, &dispatcher, count, None, workers, 1.0),
                    &mut || wire::raw(sink, count, workers),
                ],
            )?;
            drained.push((at as f64, ours));
            raw.push((at as f64, limit));
        }
        let threads = if workers == 1 { "worker" } else { "workers" };
        lines.push(Line {
            label: format!("{workers} {threads}"),
            colour,
            dashed: false,
            points: drained,
        });
        lines.push(Line {
            label: format!("raw ureq, {workers}"),
            colour,
            dashed: true,
            points: raw,
        });
    }
    let ticks = LATENCIES.map(|it| format!("{it} ms"));
    Ok(draw(
        "Messages a second, by the time the receiver takes",
        &ticks,
        &lines,
    ))
}

/// Milliseconds of a claim of 50 against what is pending.
fn backlog(asked: &Asked) -> Result<String> {
    let sizes = [1_000, 10_000, 100_000, 1_000_000];
    let mut points = Vec::new();
    for (at, size) in sizes.into_iter().enumerate() {
        points.push((at as f64, claim_with(asked, asked.size(size).max(100))?));
    }
    let lines = [Line {
        label: "claim of 50".into(),
        colour: COLOURS[0],
        dashed: false,
        points,
    }];
    let ticks = ["1,000", "10,000", "100,000", "1,000,000"].map(String::from);
    Ok(draw(
        "Milliseconds of a claim of 50, by messages pending",
        &ticks,
        &lines,
    ))
}

/// A plot with a logarithmic upright axis and evenly spaced ticks.
fn draw(title: &str, ticks: &[String], lines: &[Line]) -> String {
    let (width, height, left, top, right, bottom) = (720.0, 420.0, 70.0, 40.0, 150.0, 40.0);
    let values = || {
        lines
            .iter()
            .flat_map(|line| line.points.iter().map(|it| it.1))
    };
    let low = values().fold(f64::INFINITY, f64::min).log10().floor();
    let high = values().fold(0.0, f64::max).log10().ceil().max(low + 1.0);
    let x = |at: f64| left + at / (ticks.len() - 1) as f64 * (width - left - right);
    let y = |value: f64| {
        height - bottom - (value.log10() - low) / (high - low) * (height - top - bottom)
    };
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="{left}" y="22" font-size="15">{title}</text>
"##
    );
    for power in low as i32..=high as i32 {
        let value = 10f64.powi(power);
        let label = if power < 0 {
            value.to_string()
        } else {
            grouped(&value.to_string())
        };
        let at = y(value);
        let end = width - right;
        let _ = writeln!(
            svg,
            r##"<path d="M{left} {at:.1}H{end}" stroke="#dddddd"/><text x="{}" y="{:.1}" text-anchor="end">{label}</text>"##,
            left - 8.0,
            at + 4.0,
        );
    }
    for (at, tick) in ticks.iter().enumerate() {
        let _ = writeln!(
            svg,
            r#"<text x="{:.1}" y="{}" text-anchor="middle">{tick}</text>"#,
            x(at as f64),
            height - bottom + 20.0,
        );
    }
    for (index, line) in lines.iter().enumerate() {
        let Line {
            label,
            colour,
            dashed,
            points,
        } = line;
        let dash = if *dashed {
            r#" stroke-dasharray="5 4""#
        } else {
            ""
        };
        let path: Vec<_> = points
            .iter()
            .map(|it| format!("{:.1} {:.1}", x(it.0), y(it.1)))
            .collect();
        let (from, to) = (width - right + 16.0, width - right + 42.0);
        let row = top + 14.0 + index as f64 * 20.0;
        let _ = writeln!(
            svg,
            r#"<path d="M{}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>
<path d="M{from} {row}H{to}" stroke="{colour}" stroke-width="2"{dash}/><text x="{}" y="{}">{label}</text>"#,
            path.join("L"),
            to + 6.0,
            row + 4.0,
        );
    }
    svg.push_str("</svg>\n");
    svg
}
