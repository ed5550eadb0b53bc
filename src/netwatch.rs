//! The machine's network as a hint: an address that appears brings the next probes forward.
//!
//! A hint and never a gate: an outbox that is not watched finds its receivers again within a
//! minute, and one that is watched tries them whatever the system believes about the network.
//!
//! ```no_run
//! # use sqlite_outbox::{Delivery, Outbox, Outcome};
//! # fn main() -> anyhow::Result<()> {
//! let outbox = Outbox::open("till.db")?;
//! let pump = outbox.pump(|_: &Delivery| Ok(Outcome::delivered())).start()?;
//! let watch = sqlite_outbox::netwatch::watch(&outbox)?; // for as long as it lives
//! # Ok(())
//! # }
//! ```

use std::fmt;

use crate::error::{Error, Result};
use crate::observer::logged;
use crate::outbox::Outbox;

/// Watches until it is dropped.
#[must_use = "the network is watched for as long as this lives"]
pub struct NetWatch {
    _handle: netwatcher::WatchHandle,
}

impl fmt::Debug for NetWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetWatch").finish_non_exhaustive()
    }
}

/// Calls [`Outbox::wake`] whenever the machine gets an address: a cable, a Wi-Fi, a tunnel.
///
/// It runs one thread that sleeps until the system tells of a change. What the system does not
/// tell (the router's own line coming back, say) is found by the probes.
///
/// # Errors
///
/// When the system does not let its network be watched. The outbox works without.
pub fn watch(outbox: &Outbox) -> Result<NetWatch> {
    let outbox = outbox.clone();
    let told = move |update: netwatcher::Update| {
        let mut new = update.addrs_added().map(|(_, address)| address.ip);
        if !update.is_initial && new.any(|ip| !ip.is_loopback()) {
            logged(|| log::debug!("the network has changed"));
            outbox.wake();
        }
    };
    let handle = netwatcher::watch_interfaces_with_callback(told)
        .map_err(|error| Error::Refused(format!("the network cannot be watched: {error:?}")))?;
    Ok(NetWatch { _handle: handle })
}
