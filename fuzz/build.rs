//! Lists the tool's modules as its own `main.rs` does, for the target that compiles them too.

use std::fmt::Write;
use std::path::Path;

fn main() {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/bin/outbox");
    let root = tool.join("main.rs");
    println!("cargo::rerun-if-changed={}", root.display());
    let main = std::fs::read_to_string(&root).unwrap();
    let mut list = String::new();
    let mut elsewhere = None;
    for line in main.lines() {
        let attribute = line.strip_prefix("#[path = \"");
        if let Some(path) = attribute.and_then(|it| it.strip_suffix("\"]")) {
            elsewhere = Some(tool.join(path));
        }
        let Some(name) = line
            .strip_prefix("mod ")
            .and_then(|it| it.strip_suffix(';'))
        else {
            continue;
        };
        let beside = tool.join(format!("{name}.rs"));
        let path = elsewhere.take().unwrap_or(match beside.exists() {
            true => beside,
            false => tool.join(name).join("mod.rs"),
        });
        writeln!(list, "#[path = {path:?}]\nmod {name};").unwrap();
    }
    let target = std::env::var("OUT_DIR").unwrap();
    std::fs::write(Path::new(&target).join("tool.rs"), list).unwrap();
}
