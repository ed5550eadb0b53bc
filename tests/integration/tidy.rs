//! The rules of the house that a compiler does not know.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Which module stands on which layer. Imports go down or stay on their layer.
const LAYERS: &[(u8, &[&str])] = &[
    (
        4,
        &[
            "check",
            "outbox",
            "options",
            "draining",
            "operator",
            "why",
            "maintenance",
            "testing",
            "netwatch",
        ],
    ),
    (3, &["pump"]),
    (2, &["drain"]),
    (1, &["store", "schema", "http"]),
    (
        0,
        &[
            "circuit",
            "clock",
            "condition",
            "conflict",
            "dispatch",
            "edit",
            "entry",
            "error",
            "message",
            "observer",
            "printable",
            "retry",
            "selection",
            "settings",
            "stats",
            "transfer",
            "verdict",
        ],
    ),
];

/// A file longer than this asks to be cut.
const MAX_LINES: usize = 450;

/// One file of `src`.
struct Source {
    /// Relative to `src`, with slashes.
    name: String,
    text: String,
}

impl Source {
    /// The first part of its path: its module.
    fn module(&self) -> &str {
        let end = self.name.find(['/', '.']).unwrap_or(self.name.len());
        &self.name[..end]
    }

    /// Without comments and unit tests, with line numbers.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self.text.find("#[cfg(test)]\nmod tests");
        self.text[..end.unwrap_or(self.text.len())]
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
            .map(|(number, line)| (number + 1, line))
    }

    /// Every place whose code contains one of `words`.
    fn places(&self, words: &[&str]) -> Vec<String> {
        self.code()
            .filter(|(_, line)| words.iter().any(|word| line.contains(word)))
            .map(|(number, line)| format!("{}:{number}: {}", self.name, line.trim()))
            .collect()
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All Rust files below `folder`.
fn rust_files(folder: &str) -> Vec<Source> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|it| it == "rs") {
                found.push(path);
            }
        }
    }
    let folder = root().join(folder);
    let mut paths = Vec::new();
    walk(&folder, &mut paths);
    paths.sort();
    assert!(!paths.is_empty());
    paths
        .iter()
        .map(|path| Source {
            name: path
                .strip_prefix(&folder)
                .unwrap()
                .to_string_lossy()
                .replace('\\', "/"),
            text: read(path),
        })
        .collect()
}

/// Fails and lists the places where `words` stand in files that `allowed` does not accept.
fn only_in(allowed: impl Fn(&str) -> bool, words: &[&str], rule: &str) {
    let sources = rust_files("src");
    let guilty = sources.iter().filter(|it| !allowed(&it.name));
    let places: Vec<_> = guilty.flat_map(|it| it.places(words)).collect();
    assert!(places.is_empty(), "{rule}:\n{}", places.join("\n"));
}

/// The logger is code of the application: a panic in it ended the pump.
#[test]
fn every_line_of_the_log_is_written_where_a_panic_of_the_logger_ends_nothing() {
    let macros =
        ["trace", "debug", "info", "warn", "error", "log"].map(|it| format!("log::{it}!("));
    let bare = |line: &&String| {
        macros.iter().any(|it| line.contains(it)) && !line.contains("logged(|| log::")
    };
    // Its lines are all written by one call.
    let sources = rust_files("src").into_iter();
    let sources = sources.filter(|it| !it.name.starts_with("bin") && it.name != "pump/told.rs");
    let places: Vec<_> = sources.flat_map(|it| it.places(&["log::"])).collect();
    let bare: Vec<_> = places.iter().filter(bare).collect();
    assert!(bare.is_empty(), "{bare:#?}");
    assert!(places.len() > 5);
}

fn layer(module: &str) -> Option<u8> {
    let of = |layer: &&(u8, &[&str])| layer.1.contains(&module);
    LAYERS.iter().find(of).map(|(layer, _)| *layer)
}

/// The store and the network do not know each other, though they stand on one layer.
fn strangers(one: &str, other: &str) -> bool {
    one == "http" && matches!(other, "store" | "schema")
}

#[test]
fn no_file_is_too_long_to_hold() {
    let long: Vec<_> = rust_files("src")
        .iter()
        .map(|it| (it.name.clone(), it.text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_LINES)
        .collect();
    assert!(long.is_empty(), "more than {MAX_LINES} lines: {long:?}");
}

#[test]
fn imports_go_down_only() {
    let mut wrong = Vec::new();
    for source in rust_files("src") {
        let module = source.module();
        // The tool sees the public API only, as any other program: the compiler looks after that.
        if module == "lib" || module == "bin" {
            continue;
        }
        let own = layer(module).unwrap_or_else(|| panic!("{module} has no layer: give it one"));
        for (number, line) in source.code() {
            for (at, _) in line.match_indices("crate::") {
                let path = &line[at + "crate::".len()..];
                let end = path.find(|it: char| !it.is_ascii_alphanumeric() && it != '_');
                let target = &path[..end.unwrap_or(path.len())];
                // Not a module: a name that lib.rs exports, from whatever layer.
                let allowed = layer(target).is_some_and(|it| it <= own)
                    && !strangers(module, target)
                    && !strangers(target, module);
                if !allowed {
                    wrong.push(format!("{}:{number}: {}", source.name, line.trim()));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "imports that do not go down:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn the_layers_name_no_module_that_is_gone() {
    for module in LAYERS.iter().flat_map(|(_, modules)| *modules) {
        let src = root().join("src");
        let there = src.join(format!("{module}.rs")).exists() || src.join(module).is_dir();
        assert!(there, "{module}");
    }
}

#[test]
fn sql_stands_in_the_store_only() {
    only_in(
        // The last one is a test, which needs a file in trouble.
        |file| {
            file.starts_with("store/")
                || file == "schema.rs"
                || file == "bin/outbox/commands/screens.rs"
        },
        &["SELECT ", "INSERT INTO", "UPDATE outbox", "DELETE FROM"],
        "SQL outside src/store and src/schema.rs",
    );
}

#[test]
fn only_the_pump_starts_threads() {
    only_in(
        |file| file.starts_with("pump/") || file == "bin/outbox/threads.rs",
        &[
            "thread::spawn",
            "thread::Builder",
            "thread::scope",
            "thread::{",
        ],
        "threads outside src/pump and the tool's threads.rs",
    );
}

#[test]
fn each_library_has_one_home() {
    only_in(
        |file| file.starts_with("http/"),
        &["ureq::"],
        "ureq outside src/http",
    );
    only_in(
        |file| file.starts_with("pump/"),
        &["crossbeam_channel::"],
        "crossbeam outside src/pump",
    );
}

#[test]
fn nothing_is_parked() {
    // Written in two parts, so that this file does not find itself.
    let words = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("FIX", "ME"),
        concat!("#[ig", "nore"),
    ];
    for folder in ["src", "tests/integration", "examples"] {
        for source in rust_files(folder) {
            for word in words {
                assert!(
                    !source.text.contains(word),
                    "{folder}/{}: {word}",
                    source.name
                );
            }
        }
    }
}

#[test]
fn the_readme_shows_the_quickstart_as_it_is() {
    assert_eq!(super::readme::block("rust"), read("examples/quickstart.rs"));
}

#[test]
fn the_architecture_names_every_module() {
    let text = read("ARCHITECTURE.md");
    for module in LAYERS.iter().flat_map(|(_, modules)| *modules) {
        let (file, folder) = (format!("`{module}.rs`"), format!("`{module}/`"));
        assert!(text.contains(&file) || text.contains(&folder), "{module}");
    }
}

/// Names of all tests, with the path of their module.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (folder, inner) in [("tests/integration", ""), ("src", "::tests")] {
        for source in rust_files(folder) {
            let path = source.name.trim_end_matches(".rs").replace('/', "::");
            let nested = source.text.contains("mod tests") || path.ends_with("::tests");
            let inner = if nested { inner } else { "" };
            let module = path.trim_end_matches(inner).to_string() + inner;
            let mut marked = false;
            for line in source.text.lines().map(str::trim) {
                marked |= line == "#[test]";
                if let (true, Some(rest)) = (marked, line.strip_prefix("fn ")) {
                    let name = rest.split('(').next().unwrap_or_default();
                    names.insert(format!("{module}::{name}"));
                    marked = false;
                }
            }
        }
    }
    names
}

#[test]
fn the_judgement_names_tests_and_scripts_that_exist() {
    let tests = tests();
    let text = read("JUDGEMENT.md");
    let named = text.split('`').skip(1).step_by(2);
    let (mut shown, mut missing) = (0, Vec::new());
    for name in named {
        let there = match name {
            _ if name.starts_with("tests/real/") && name.ends_with(".sh") => {
                let script = root().join(name);
                script.exists() && script.with_extension("out").exists()
            }
            _ if name.contains("::") && name.starts_with(|it: char| it.is_lowercase()) => {
                tests.contains(name)
            }
            _ => continue,
        };
        shown += 1;
        if !there {
            missing.push(name);
        }
    }
    assert!(missing.is_empty(), "no such test: {missing:#?}");
    assert!(shown > 100, "only {shown} found: is the table read at all?");
}

#[test]
fn the_cases_and_the_proof_name_tests_that_exist() {
    let tests = tests();
    for (page, least) in [("CASES.md", 70), ("RELIABILITY.md", 15)] {
        let text = read(page);
        // Commands have names of modules.
        let prose: String = text.split("```").step_by(2).collect();
        let quoted = prose.split('`').skip(1).step_by(2);
        let of_a_test = |it: &&str| it.contains("::") && it.starts_with(char::is_lowercase);
        let named: Vec<_> = quoted.filter(of_a_test).collect();
        let missing: Vec<_> = named.iter().filter(|it| !tests.contains(**it)).collect();
        assert!(missing.is_empty(), "{page}: no such test: {missing:#?}");
        assert!(named.len() > least, "{page}: only {} found", named.len());
    }
}

/// The application may open its file with an old SQLite, which then reads our triggers and views.
#[test]
fn the_schema_is_nothing_new_to_sqlite_3_24() {
    let schema = read("schema.sql");
    let code: Vec<_> = schema
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default())
        .collect();
    let code = code.join("\n").to_uppercase();
    let newer = [
        "STRICT",
        "RETURNING",
        "->",
        " OVER (",
        " OVER(",
        "FILTER (",
        "FILTER(",
        "GENERATED ALWAYS",
        "NULLS FIRST",
        "NULLS LAST",
        "MATERIALIZED",
        "IIF(",
        "UNIXEPOCH(",
        "FORMAT(",
        "STRING_AGG(",
        "IS DISTINCT FROM",
        "IS NOT DISTINCT FROM",
    ];
    for word in newer {
        assert!(!code.contains(word), "schema.sql contains {word}");
    }
}
