//! An address that appears brings the next probe forward.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlite_outbox::{ChannelState, Delivery, Message, Outbox, Outcome, netwatch};

use crate::fixture::{Till, argument, child, nap, put, succeeded};

#[test]
fn a_watch_that_hears_nothing_is_no_gate() {
    let till = Till::new();
    let outbox = till.open();
    let _watch = netwatch::watch(&outbox).unwrap();
    put(&outbox, &Message::text("sales", "one")).unwrap();
    let up = |_: &Delivery| Ok(Outcome::delivered());
    assert_eq!(outbox.drain(&up).unwrap().sent, 1);
}

/// In a network of its own, where the system allows one.
#[cfg(target_os = "linux")]
#[test]
fn an_address_that_appears_wakes_the_pump() {
    let quiet = |command: &mut Command| {
        let done = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        done.is_ok_and(|it| it.success())
    };
    if !quiet(Command::new("unshare").args(["-rn", "ip", "link"])) {
        eprintln!("not tested: no network of its own can be had here");
        return;
    }
    let till = Till::new();
    let inner = child("netwatch::child_gets_an_address", &till.path);
    let mut command = Command::new("unshare");
    command
        .arg("-rn")
        .arg(inner.get_program())
        .args(inner.get_args());
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    succeeded(command.spawn().unwrap());
}

#[test]
fn child_gets_an_address() {
    let Some(path) = argument() else { return };
    let ip = |args: &[&str]| assert!(Command::new("ip").args(args).status().unwrap().success());
    ip(&["link", "set", "lo", "up"]);
    let outbox = Outbox::open(path).unwrap();
    put(&outbox, &Message::text("sales", "one")).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let pump = outbox.pump(move |_: &Delivery| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(Outcome::unreachable("no network"))
    });
    let pump = pump.start().unwrap();
    let _watch = netwatch::watch(&outbox).unwrap();
    // Long enough down for the next probe to be seconds away.
    let started = Instant::now();
    let probe = loop {
        assert!(started.elapsed() < Duration::from_secs(60));
        nap(20);
        let stats = outbox.stats().unwrap();
        let sales = &stats.channels[0];
        let wait = sales.until.unwrap_or(0) - stats.now;
        // While a probe is under way, the next is a minute away.
        if sales.state == ChannelState::Offline && (5_000..30_000).contains(&wait) {
            break sales.until;
        }
    };
    let before = calls.load(Ordering::SeqCst);
    ip(&["addr", "add", "10.9.9.1/24", "dev", "lo"]);
    while calls.load(Ordering::SeqCst) == before {
        let now = outbox.stats().unwrap().now;
        assert!(Some(now) < probe, "nothing came of it");
        nap(10);
    }
    pump.stop(Duration::from_secs(1)).unwrap();
}
