//! Ctrl-C, a service manager, a request to read the settings again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use sqlite_outbox::Cancel;

/// Ctrl-C or a service manager. The second one ends the process at once.
#[derive(Debug, Clone)]
pub(crate) struct Signals {
    end: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// Listens for what ends the process.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let end = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_default(signal, end.clone())
                .and_then(|_| signal_hook::flag::register(signal, end.clone()))
                .context("signals cannot be heard")?;
        }
        let reload = Arc::default();
        Ok(Self { end, reload })
    }

    /// Listens for SIGHUP too, where there is one.
    pub(crate) fn with_reload(self) -> anyhow::Result<Self> {
        #[cfg(unix)]
        signal_hook::flag::register(signal_hook::consts::SIGHUP, self.reload.clone())
            .context("signals cannot be heard")?;
        Ok(self)
    }

    /// What they break off.
    pub(crate) fn cancel(&self) -> Cancel {
        self.end.clone().into()
    }

    /// Whether the process is to end.
    pub(crate) fn came(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }

    /// Whether the settings are to be read again; once for each request.
    pub(crate) fn reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }
}
