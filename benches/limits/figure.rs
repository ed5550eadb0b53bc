//! Figures, their targets, and how they are shown.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::file;

/// What a figure should reach.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// `value / limit` at least.
    Ratio(f64),
    /// `value / limit` at most.
    Times(f64),
    /// `value` at most its limit, which is itself the target.
    Limit,
    /// `value` at most.
    AtMost(f64),
    /// `value` at most the limit and this much more.
    Beyond(f64),
    /// For comparison only.
    None,
}

/// One measured thing beside its limit.
#[derive(Debug, Clone)]
pub struct Figure {
    pub name: String,
    /// `None`: cannot be measured on this system.
    pub value: Option<f64>,
    pub limit: f64,
    pub unit: &'static str,
    pub target: Target,
}

impl Figure {
    pub fn new(name: &str, value: f64, limit: f64, unit: &'static str, target: Target) -> Self {
        Self {
            name: name.into(),
            value: Some(value),
            limit,
            unit,
            target,
        }
    }

    fn ratio(&self) -> Option<f64> {
        self.value
            .filter(|_| self.limit > 0.0)
            .map(|it| it / self.limit)
    }

    fn met(&self) -> Option<bool> {
        let value = self.value?;
        match self.target {
            Target::Ratio(least) => Some(self.ratio()? >= least),
            Target::Times(most) => Some(self.ratio()? <= most),
            Target::Limit => Some(value <= self.limit),
            Target::AtMost(most) => Some(value <= most),
            Target::Beyond(more) => Some(value <= self.limit + more),
            Target::None => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ratio(least) => write!(f, "ratio ≥ {least}"),
            Self::Times(most) => write!(f, "ratio ≤ {most}"),
            Self::Limit => write!(f, "≤ limit"),
            Self::AtMost(most) => write!(f, "≤ {most}"),
            Self::Beyond(more) => write!(f, "≤ limit + {more}"),
            Self::None => Ok(()),
        }
    }
}

/// Three significant digits, or whole from 100 on.
fn short(value: f64) -> String {
    match value.abs() {
        it if it >= 100.0 => grouped(&format!("{value:.0}")),
        it if it >= 10.0 => format!("{value:.1}"),
        it if it >= 0.995 => format!("{value:.2}"),
        0.0 => "0".into(),
        _ => format!("{value:.3}"),
    }
}

/// With a comma between thousands.
pub fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Collects figures; the table grows as they come.
#[derive(Debug)]
pub struct Report {
    json: bool,
    /// Figures of a smoke test are judged by nobody.
    quick: bool,
    begun: Instant,
    object: Map<String, Value>,
    /// Figures that have a target, and those of them that do not reach it.
    judged: usize,
    missed: usize,
}

impl Report {
    pub fn new(json: bool, quick: bool) -> Self {
        if !json {
            println!(
                "| {:<30} | {:>10} | {:>10} | {:>6} | {:<10} | target |",
                "figure", "value", "limit", "ratio", "unit"
            );
            println!(
                "|{:-<32}|{:->12}|{:->12}|{:->8}|{:-<12}|---|",
                "", ":", ":", ":", ""
            );
        }
        Self {
            json,
            quick,
            begun: Instant::now(),
            object: Map::new(),
            judged: 0,
            missed: 0,
        }
    }

    pub fn add(&mut self, figure: Figure) {
        let met = figure.met().filter(|_| !self.quick);
        self.judged += usize::from(met.is_some());
        self.missed += usize::from(met == Some(false));
        if !self.json {
            let value = figure.value.map_or("not here".into(), short);
            let ratio = figure.ratio().map_or(String::new(), short);
            let mark = if met == Some(false) {
                " **missed**"
            } else {
                ""
            };
            println!(
                "| {:<30} | {value:>10} | {:>10} | {ratio:>6} | {:<10} | {}{mark} |",
                figure.name,
                short(figure.limit),
                figure.unit,
                figure.target,
            );
        }
        let entry = json!({
            "value": figure.value, "limit": figure.limit, "ratio": figure.ratio(), "unit": figure.unit,
        });
        self.object.insert(figure.name, entry);
    }

    pub fn end(self) -> Result<()> {
        if self.json {
            println!("{}", Value::Object(self.object));
            return Ok(());
        }
        if self.quick {
            println!("\nIt runs; for figures, run it without --quick.");
            return Ok(());
        }
        let cores = std::thread::available_parallelism()?;
        println!(
            "\n{cores} cores; a sync of the disk takes {:.2} ms; {} s in all; {} of {} targets missed.",
            file::sync_time()?.as_secs_f64() * 1e3,
            self.begun.elapsed().as_secs(),
            self.missed,
            self.judged,
        );
        Ok(())
    }
}

/// The middle one.
pub fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// The value below which this part of them lies.
pub fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * part).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// Runs several things in turn, round by round; the median of each.
pub fn in_turn<const N: usize>(
    rounds: usize,
    mut things: [&mut dyn FnMut() -> Result<f64>; N],
) -> Result<[f64; N]> {
    let mut seen = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for (thing, seen) in things.iter_mut().zip(&mut seen) {
            seen.push(thing()?);
        }
    }
    Ok(seen.map(|it| median(&it)))
}

/// How many a second.
pub fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

pub fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
