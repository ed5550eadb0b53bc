//! Name lookups: bounded in time, remembered for a minute, one at a time per name.
//!
//! ureq looks the name up for every request, kept-alive connections included, and a bounded lookup
//! costs it a thread, which lives on when the system's resolver hangs. Here a hanging name costs
//! one thread per timeout, however many workers ask.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use crate::clock::{Clock, SystemClock};

/// How long an answer is believed. A failed exchange forgets it at once.
const REMEMBERED: Duration = Duration::from_secs(60);

/// A name without an address, with the reason for a person.
#[derive(Debug, Clone)]
pub(super) struct NotFound(pub(super) String);

impl std::fmt::Display for NotFound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotFound {}

/// The lookups of one dispatcher.
#[derive(Debug, Clone, Default)]
pub(super) struct Names(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    clock: SystemClock,
    system: DefaultResolver,
    known: Mutex<HashMap<String, Entry>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Entry {
    asking: bool,
    addresses: Option<(Duration, Vec<SocketAddr>)>,
    failed: Option<(Duration, NotFound)>,
}

impl Names {
    /// Looks `place`, a `host:port`, up anew next time.
    pub(super) fn forget(&self, place: &str) {
        if let Some(entry) = self.0.lock().get_mut(place) {
            entry.addresses = None;
        }
    }

    fn packed(&self, addresses: &[SocketAddr]) -> ResolvedSocketAddrs {
        let mut packed = self.empty();
        for address in addresses {
            // What does not fit is beyond the sixteenth address.
            let _ = packed.try_push(*address);
        }
        packed
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_slow(host: &str, limit: Duration) -> NotFound {
    NotFound(format!(
        "{host} cannot be found: the name service did not answer within {limit:?}"
    ))
}

/// Gives the turn to ask away, even when the lookup panics.
struct Turn<'a>(&'a Shared, &'a str);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.0.lock().get_mut(self.1) {
            entry.asking = false;
        }
        self.0.changed.notify_all();
    }
}

impl Resolver for Names {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let shared = &*self.0;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(ureq::Error::BadUri("no host".into()));
        };
        let port = match authority.port_u16() {
            Some(port) => port,
            None if scheme.as_str() == "https" => 443,
            None => 80,
        };
        let host = authority.host();
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(self.packed(&[SocketAddr::new(address, port)]));
        }

        let limit = timeout
            .not_zero()
            .map_or(Duration::MAX, |it| *it)
            .min(config.timeouts().connect.unwrap_or(Duration::MAX));
        let place = format!("{}:{port}", host.to_ascii_lowercase());
        let started = shared.clock.monotonic();
        let mut known = shared.lock();
        loop {
            let now = shared.clock.monotonic();
            let entry = known.entry(place.clone()).or_default();
            if let Some((found, addresses)) = &entry.addresses
                && now.saturating_sub(*found) < REMEMBERED
            {
                return Ok(self.packed(addresses));
            }
            // Someone else has just asked in vain while we waited.
            if let Some((failed, reason)) = &entry.failed
                && *failed >= started
            {
                return Err(ureq::Error::Other(Box::new(reason.clone())));
            }
            if !entry.asking {
                entry.asking = true;
                break;
            }
            let left = limit.saturating_sub(now.saturating_sub(started));
            if left.is_zero() {
                return Err(ureq::Error::Other(Box::new(too_slow(host, limit))));
            }
            known = match shared.changed.wait_timeout(known, left) {
                Ok((known, _)) => known,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        drop(known);

        let turn = Turn(shared, &place);
        let bounded = NextTimeout {
            after: limit.into(),
            reason: ureq::Timeout::Resolve,
            ..timeout
        };
        let answer = shared.system.resolve(uri, config, bounded);
        let now = shared.clock.monotonic();
        let mut known = shared.lock();
        let entry = known.entry(place.clone()).or_default();
        let result = match answer {
            Ok(addresses) => {
                entry.addresses = Some((now, addresses.to_vec()));
                entry.failed = None;
                Ok(addresses)
            }
            Err(error) => {
                let reason = match error {
                    ureq::Error::Timeout(_) => too_slow(host, limit),
                    ureq::Error::Io(error) => NotFound(format!("{host} cannot be found: {error}")),
                    _ => NotFound(format!("{host} cannot be found")),
                };
                entry.addresses = None;
                entry.failed = Some((now, reason.clone()));
                Err(ureq::Error::Other(Box::new(reason)))
            }
        };
        drop(known);
        drop(turn);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(span: Duration) -> NextTimeout {
        NextTimeout {
            after: span.into(),
            ..NextTimeout::default()
        }
    }

    fn ask(names: &Names, url: &str, span: Duration) -> Result<Vec<SocketAddr>, ureq::Error> {
        let config = Config::builder().build();
        names
            .resolve(&url.parse().unwrap(), &config, timeout(span))
            .map(|it| it.to_vec())
    }

    #[test]
    fn an_address_is_taken_as_it_is() {
        let names = Names::default();
        let span = Duration::from_secs(1);
        let found = ask(&names, "http://127.0.0.1:81/", span).unwrap();
        assert_eq!(found, ["127.0.0.1:81".parse().unwrap()]);
        let found = ask(&names, "https://[::1]/", span).unwrap();
        assert_eq!(found, ["[::1]:443".parse().unwrap()]);
        assert!(names.0.lock().is_empty());
    }

    #[test]
    fn an_answer_is_remembered_until_it_is_forgotten() {
        let names = Names::default();
        let made_up: SocketAddr = "192.0.2.1:80".parse().unwrap();
        names.0.lock().insert(
            "shop.invalid:80".into(),
            Entry {
                addresses: Some((names.0.clock.monotonic(), vec![made_up])),
                ..Entry::default()
            },
        );
        let span = Duration::from_secs(20);
        assert_eq!(
            ask(&names, "http://Shop.invalid/", span).unwrap(),
            [made_up]
        );
        names.forget("shop.invalid:80");
        let error = ask(&names, "http://shop.invalid/", span).unwrap_err();
        assert!(
            error.to_string().contains("shop.invalid cannot be found"),
            "{error}"
        );
    }

    #[test]
    fn a_worker_behind_a_hanging_lookup_waits_no_longer_than_its_own_limit() {
        let names = Names::default();
        names.0.lock().insert(
            "slow.invalid:80".into(),
            Entry {
                asking: true,
                ..Entry::default()
            },
        );
        let error = ask(&names, "http://slow.invalid/", Duration::from_millis(30)).unwrap_err();
        assert!(
            error.to_string().contains("did not answer within 30ms"),
            "{error}"
        );
    }
}
