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
        let (end, reload) = Default::default();
        let signals = Self { end, reload };
        signals.end_on(SIGINT)?;
        signals.end_on(SIGTERM)?;
        Ok(signals)
    }

    fn end_on(&self, signal: i32) -> anyhow::Result<()> {
        signal_hook::flag::register_conditional_default(signal, self.end.clone())
            .and_then(|_| signal_hook::flag::register(signal, self.end.clone()))
            .context("signals cannot be heard")?;
        Ok(())
    }

    /// SIGHUP ends the process too, where there is one: for what has to give back its terminal. Others
    /// leave it as it is, which nohup may have changed.
    pub(crate) fn with_hangup(self) -> anyhow::Result<Self> {
        #[cfg(unix)]
        self.end_on(signal_hook::consts::SIGHUP)?;
        Ok(self)
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_that_hangs_up_asks_for_the_end_where_it_has_to_be_given_back() {
        let signals = Signals::listen().unwrap().with_hangup().unwrap();
        assert!(!signals.came());
        signal_hook::low_level::raise(signal_hook::consts::SIGHUP).unwrap();
        assert!(signals.came());
    }
}
