//! Faults put into the source on purpose, one at a time: the simulation finds each of them.
//!
//! Goal: to know that the checker checks. Method: [`table`] replaces text of the source; what is to
//! be replaced must stand there exactly once, so the table fails when the code moves. With
//! `OUTBOX_LONG=1` each fault is put into a copy of the crate, which is built and simulated with the
//! seeds from 0 on, until a promise is broken; `OUTBOX_MUTANT=words` takes only those whose name
//! contains the words. RELIABILITY.md has the table of what was found, and how soon.

mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::fixture::long;
use table::{MUTANTS, Mutant};

/// Lives within which a fault must show.
const SEEDS: u64 = 3_000;

/// All of the tests that the copy needs.
const MAIN: &str = "#![allow(clippy::all, dead_code)]\nmod fixture;\nmod simulation;\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file of the crate after a fault was put in.
fn mutated(file: &str, mutant: &Mutant) -> String {
    let mut text = fs::read_to_string(root().join(file)).unwrap();
    for change in mutant.changes.iter().filter(|it| it.file == file) {
        let name = mutant.name;
        let times = text.matches(change.search).count();
        assert_eq!(
            times, 1,
            "{name}: {file} has this {times} times:\n{}",
            change.search
        );
        text = text.replace(change.search, change.replace);
    }
    text
}

#[test]
fn every_mutant_fits_the_source() {
    assert!(MUTANTS.len() >= 12);
    for mutant in MUTANTS {
        for change in mutant.changes {
            let original = fs::read_to_string(root().join(change.file)).unwrap();
            assert_ne!(mutated(change.file, mutant), original, "{}", mutant.name);
        }
    }
}

/// A copy of the crate that shares one target folder, so that only what changed is built.
struct Copy {
    folder: PathBuf,
    target: PathBuf,
}

impl Copy {
    fn new() -> Self {
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let target = target.map_or_else(|| root().join("target"), PathBuf::from);
        let folder = target.join("mutants").join("crate");
        let copy = Self {
            target: target.join("mutants").join("target"),
            folder,
        };
        let _ = fs::remove_dir_all(&copy.folder);
        copy.take(Path::new(""));
        fs::write(copy.folder.join("tests/integration/main.rs"), MAIN).unwrap();
        copy
    }

    /// Copies a folder, but for what is built, hidden or another crate.
    fn take(&self, inner: &Path) {
        fs::create_dir_all(self.folder.join(inner)).unwrap();
        for entry in fs::read_dir(root().join(inner)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            let path = inner.join(&name);
            let other = ["target", "compat", "fuzz"].iter().any(|it| name == *it);
            if other || name.to_string_lossy().starts_with('.') {
                continue;
            }
            match entry.path().is_dir() {
                true => self.take(&path),
                false => drop(fs::copy(entry.path(), self.folder.join(path)).unwrap()),
            }
        }
    }

    /// The simulation's outcome with what stands in the copy now.
    fn simulate(&self) -> Output {
        let mut build = self.cargo();
        let built = build.arg("--no-run").output().unwrap();
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "it must still build:\n{said}");
        let mut run = self.cargo();
        run.env("OUTBOX_SEED", format!("0..{SEEDS}"));
        run.args(["--", "simulation::whatever"]).output().unwrap()
    }

    fn cargo(&self) -> Command {
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env_remove("OUTBOX_LONG")
            .args(["test", "--locked", "--no-default-features"])
            .args(["--features", "bundled", "--test", "integration"]);
        cargo
    }

    fn find(&self, mutant: &Mutant) -> Output {
        let files = || mutant.changes.iter().map(|it| it.file);
        for file in files() {
            fs::write(self.folder.join(file), mutated(file, mutant)).unwrap();
        }
        let output = self.simulate();
        for file in files() {
            fs::write(self.folder.join(file), fs::read(root().join(file)).unwrap()).unwrap();
        }
        output
    }
}

/// The promise that was broken and the seed that broke it.
fn verdict(output: &Output) -> Option<(String, u64)> {
    let said = String::from_utf8_lossy(&output.stdout);
    let (before, _) = said.split_once(" is broken: ")?;
    let promise = before.lines().last()?.to_owned();
    let (_, seed) = said.split_once("OUTBOX_SEED=")?;
    let seed = seed.split_whitespace().next()?.parse().ok()?;
    Some((promise, seed))
}

#[test]
fn the_simulation_finds_every_mutant() {
    if !long() {
        return;
    }
    let wanted = std::env::var("OUTBOX_MUTANT").unwrap_or_default();
    let copy = Copy::new();
    let mut survived = Vec::new();
    for mutant in MUTANTS.iter().filter(|it| it.name.contains(&wanted)) {
        match verdict(&copy.find(mutant)) {
            Some((promise, seed)) => {
                println!("| {} | {promise} | {} |", mutant.name, seed + 1);
            }
            None => survived.push(mutant.name),
        }
    }
    assert!(
        survived.is_empty(),
        "these survive {SEEDS} lives: {survived:#?}"
    );
}
