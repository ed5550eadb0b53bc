//! The one place of the tool that starts a thread.

use std::thread::{Builder, JoinHandle};

/// Starts a thread; it ends with the process if it does not end before.
#[allow(clippy::disallowed_methods)]
pub(crate) fn start(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(work)
}
