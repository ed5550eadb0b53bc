//! Any text as a settings file: it is a set of settings, or an error of one line, and nothing
//! panics. The modules are the tool's own.
#![no_main]
#![allow(dead_code, unreachable_pub)]

#[path = "../../src/bin/outbox/args.rs"]
mod args;
#[path = "../../src/bin/outbox/commands/mod.rs"]
mod commands;
#[path = "../../src/bin/outbox/logger.rs"]
mod logger;
#[path = "../../src/bin/outbox/output/mod.rs"]
mod output;
#[path = "../../src/bin/outbox/settings/mod.rs"]
mod settings;
#[path = "../../src/bin/outbox/signals.rs"]
mod signals;
#[path = "../../src/bin/outbox/threads.rs"]
mod threads;

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static PLACE: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
    let memory = std::path::Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let folder = folder.unwrap();
    let path = folder.path().join("outbox.toml");
    (folder, path)
});

fuzz_target!(|text: &str| {
    std::fs::write(&PLACE.1, text).unwrap();
    if let Err(error) = settings::load(&PLACE.1, None) {
        let text = format!("{error:#}");
        assert!(!output::scrub(&text).contains('\n'), "{text:?}");
    }
});
