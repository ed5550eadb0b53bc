//! Any text as a settings file: it is a set of settings, or an error of one line, and nothing
//! panics. The modules are the tool's own, as `build.rs` finds them.
#![no_main]
#![allow(dead_code, unreachable_pub, unused_imports)]

include!(concat!(env!("OUT_DIR"), "/tool.rs"));

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
        let text = commands::told(&error);
        assert!(!output::printable(&text).contains('\n'), "{text:?}");
    }
});
