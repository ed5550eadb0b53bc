//! The network goes and comes back: a real pump, real connections, a server that comes late.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{
    ChannelState, ChannelStats, Counts, Credential, CredentialRequest, Delivery, Event, Failure,
    HttpDispatcher, Message, Outbox, Outcome, Policy, Pump, Route, Settings,
};

use crate::exact::warm;
use crate::fixture::{Till, argument, child, column, nap, one, put, succeeded};
use crate::server::{Answer, Seen, Server, ok, respond};

/// Longer than anything here should take: it catches hangs.
const HANG: Duration = Duration::from_secs(30);

fn fill(outbox: &Outbox, channel: &str, messages: usize) {
    let all: Vec<_> = (0..messages)
        .map(|i| Message::text(channel, format!("{i}")).dedupe_key(format!("S-{i}")))
        .collect();
    outbox
        .transaction(|tx| {
            for answer in outbox.enqueue_all(tx, &all)? {
                answer?;
            }
            anyhow::Ok(())
        })
        .unwrap();
}

fn over(port: u16) -> HttpDispatcher {
    HttpDispatcher::builder()
        .channel("sales", Route::post(format!("http://127.0.0.1:{port}/")))
        .build()
        .unwrap()
}

fn counts(outbox: &Outbox) -> Counts {
    outbox.stats().unwrap().total
}

fn channel(outbox: &Outbox, name: &str) -> ChannelStats {
    let mut channels = outbox.stats().unwrap().channels;
    channels.retain(|it| it.channel == name);
    channels.remove(0)
}

/// Waits until `holds`, and says how long that took.
#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) -> Duration {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < HANG, "{what}: not in time");
        nap(10);
    }
    started.elapsed()
}

fn start(outbox: &Outbox, dispatcher: HttpDispatcher) -> Pump {
    outbox.pump(dispatcher).start().unwrap()
}

/// A till whose backlog found nobody for a while.
fn cut_off(messages: usize) -> (Till, Outbox, Pump, u16) {
    let till = Till::new();
    let outbox = till.open();
    fill(&outbox, "sales", messages);
    let port = Server::free_port();
    let pump = start(&outbox, over(port));
    until("the outage is seen", || {
        channel(&outbox, "sales").state == ChannelState::Offline
    });
    (till, outbox, pump, port)
}

#[test]
fn a_backlog_flows_within_the_probe_ceiling_without_any_call() {
    let (_till, outbox, pump, port) = cut_off(500);
    nap(3_000);
    assert_eq!((counts(&outbox).sent, counts(&outbox).dead), (0, 0));
    let server = Server::at(port, |_| ok());
    let first = until("it flows", || counts(&outbox).sent > 0);
    let all = until("all of it", || counts(&outbox).unsent() == 0);
    println!("without a call: first after {first:.1?}, all {all:.1?} later");
    // Three seconds down: the next probe is at most four away.
    assert!(first < Duration::from_secs(10), "{first:?}");
    assert!(all < Duration::from_secs(15), "{all:?}");
    assert_eq!(server.seen().len(), 500);
    assert_eq!((counts(&outbox).dead, counts(&outbox).max_attempts), (0, 0));
    pump.stop(HANG).unwrap();
}

#[test]
fn a_backlog_flows_at_once_with_wake() {
    let (_till, outbox, pump, port) = cut_off(500);
    nap(3_000);
    let server = Server::at(port, |_| ok());
    let woken = Instant::now();
    pump.wake();
    until("it flows", || counts(&outbox).sent > 0);
    let first = woken.elapsed();
    until("all of it", || counts(&outbox).unsent() == 0);
    println!(
        "with wake: first after {first:.1?}, all after {:.1?}",
        woken.elapsed()
    );
    assert!(first < Duration::from_millis(500), "{first:?}");
    assert_eq!(server.seen().len(), 500);
    pump.stop(HANG).unwrap();
}

#[test]
fn a_backlog_that_was_given_back_to_the_last_message_flows_at_once_with_wake() {
    let (till, outbox, pump, port) = cut_off(500);
    // As after many probes in little time: every message has its few seconds to wait.
    let wait = "UPDATE outbox SET next_attempt_at = 4000 + CAST(strftime('%s') AS INTEGER) * 1000";
    till.sql().execute(wait, []).unwrap();
    let server = Server::at(port, |_| ok());
    let woken = Instant::now();
    outbox.wake();
    until("it flows", || counts(&outbox).sent > 0);
    let first = woken.elapsed();
    assert!(first < Duration::from_millis(1_000), "{first:?}");
    until("all of it", || counts(&outbox).unsent() == 0);
    assert_eq!(server.seen().len(), 500);
    pump.stop(HANG).unwrap();
}

#[test]
fn a_sync_button_ignores_back_off_once_and_keeps_schedules() {
    let till = Till::new();
    let outbox = till.open();
    fill(&outbox, "sales", 100);
    let later = Message::text("sales", "later").delay(Duration::from_secs(3600));
    put(&outbox, &later).unwrap();
    let wait = "UPDATE outbox SET attempts = 5, available_at = nullif(available_at, created_at),
                  next_attempt_at = max(next_attempt_at,
                    600000 + CAST(strftime('%s') AS INTEGER) * 1000)";
    till.sql().execute(wait, []).unwrap();
    let server = Server::start(|_| ok());
    let dispatcher = over(server.port());
    assert_eq!(outbox.drain(&dispatcher).unwrap().sent, 0);
    let report = outbox.draining(&dispatcher).now().run().unwrap();
    assert_eq!((report.sent, report.unsent), (100, 1));
}

/// The walk over what is in back-off went on behind the moment where a transaction had ended.
#[test]
fn a_sync_button_finds_what_waits_behind_many_schedules_of_its_own_millisecond() {
    let (till, clock) = (Till::new(), ManualClock::at(1_800_000_000_000));
    let outbox = Outbox::options()
        .clock(clock.shared())
        .open(&till.path)
        .unwrap();
    let later = clock.now() + 60_000;
    for _ in 0..300 {
        put(
            &outbox,
            &Message::text("sales", "later").available_at(later),
        )
        .unwrap();
    }
    fill(&outbox, "sales", 1);
    let wait = "UPDATE outbox SET next_attempt_at = ?1, available_at = NULL WHERE id = 301";
    till.sql().execute(wait, [later]).unwrap();
    let up = |_: &Delivery| Ok(Outcome::delivered());
    let report = outbox.draining(&up).now().run().unwrap();
    assert_eq!((report.sent, report.unsent), (1, 300));
}

#[test]
fn a_wake_does_not_shorten_what_the_receiver_asked_for() {
    let till = Till::new();
    let outbox = till.open();
    fill(&outbox, "sales", 50);
    let open = Arc::new(AtomicBool::new(false));
    let asked = open.clone();
    let server = Server::start(move |_| match asked.load(Ordering::SeqCst) {
        true => ok(),
        false => respond(503, &[("Retry-After", "4")], ""),
    });
    let started = Instant::now();
    let pump = start(&outbox, over(server.port()));
    until("it holds", || {
        channel(&outbox, "sales").state == ChannelState::Holding
    });
    open.store(true, Ordering::SeqCst);
    nap(200);
    let before = server.seen().len();
    assert!(
        before <= 2,
        "{before} requests before the first answer was looked at"
    );
    while started.elapsed() < Duration::from_millis(3_900) {
        pump.wake();
        outbox.wake();
        nap(50);
        assert_eq!(
            server.seen().len(),
            before,
            "disturbed within its four seconds"
        );
    }
    let shown = channel(&outbox, "sales");
    assert!(shown.until.is_some() && shown.reason.unwrap().contains("503"));
    until("all of it", || counts(&outbox).unsent() == 0);
    assert!(started.elapsed() < Duration::from_secs(12));
    assert_eq!(
        counts(&outbox).max_attempts,
        0,
        "nothing was delivered yet: no charge"
    );
    pump.stop(HANG).unwrap();
}

/// Numbers as they arrived, by ordering key.
fn order(seen: &[Seen], accepted: &str) -> HashMap<String, Vec<usize>> {
    let mut lanes = HashMap::<_, Vec<usize>>::new();
    for request in seen {
        if request.header("authorization") == Some(accepted) {
            let text = String::from_utf8(request.body.clone()).unwrap();
            let (lane, number) = text.split_once(' ').unwrap();
            lanes
                .entry(lane.to_owned())
                .or_default()
                .push(number.parse().unwrap());
        }
    }
    lanes
}

#[test]
fn an_expired_login_stops_everything_harms_nothing_and_leaves_no_token_in_the_file() {
    const OLD: &str = "old-t0ken-0451";
    const NEW: &str = "new-t0ken-1984";
    let till = Till::new();
    let outbox = till.open();
    for i in 0..60 {
        let lane = format!("till-{}", i % 6);
        let message = Message::text("sales", format!("{lane} {i}")).ordering_key(lane);
        put(&outbox, &message).unwrap();
    }
    // It shows what it was given, as careless servers do.
    let server = Server::start(|seen| match seen.header("authorization") {
        Some(it) if it.ends_with(NEW) => ok(),
        other => respond(401, &[], &format!("bad token: {}", other.unwrap_or("none"))),
    });
    let token = Arc::new(Mutex::new(OLD.to_string()));
    let known = token.clone();
    let route = Route::post(server.url("/?access=qu3ry-s3cret")).credentials(
        move |_: &CredentialRequest<'_>| Ok(Credential::Bearer(known.lock().unwrap().clone())),
    );
    let dispatcher = HttpDispatcher::builder().channel("sales", route).build();
    let pump = start(&outbox, dispatcher.unwrap());
    until("the refusal is seen", || {
        channel(&outbox, "sales").state == ChannelState::Unauthorised
    });
    nap(2_500);
    let counts_now = counts(&outbox);
    assert_eq!((counts_now.unsent(), counts_now.dead), (60, 0));
    assert_eq!(counts_now.max_attempts, 0);
    assert!(
        server.seen().len() <= 16,
        "{} requests",
        server.seen().len()
    );
    *token.lock().unwrap() = NEW.into();
    pump.wake();
    until("all of it", || counts(&outbox).unsent() == 0);
    let lanes = order(&server.seen(), &format!("Bearer {NEW}"));
    assert_eq!(lanes.len(), 6);
    for (lane, numbers) in lanes {
        assert!(
            numbers.is_sorted() && numbers.len() == 10,
            "{lane}: {numbers:?}"
        );
    }
    let stats = format!("{:?}", outbox.stats().unwrap());
    let errors = column(
        &till.sql(),
        "SELECT error FROM outbox_attempt WHERE error IS NOT NULL",
    );
    assert!(errors.iter().any(|it| it.contains("401")), "{errors:?}");
    for secret in [OLD, NEW, "qu3ry-s3cret"] {
        for name in till.files() {
            let bytes = std::fs::read(till.folder.path().join(&name)).unwrap();
            let found = bytes
                .windows(secret.len())
                .any(|it| it == secret.as_bytes());
            assert!(!found, "{name} contains {secret}");
        }
        assert!(!stats.contains(secret));
    }
    pump.stop(HANG).unwrap();
}

#[test]
fn a_hanging_server_of_one_channel_never_delays_another() {
    let till = Till::new();
    let outbox = till.open();
    let hanging = Server::start(|seen| match seen.number {
        1 => ok(),
        _ => Answer::Hang,
    });
    let good = Server::start(|_| ok());
    let dispatcher = HttpDispatcher::builder()
        .channel("hanging", Route::post(hanging.url("/")))
        .channel("good", Route::post(good.url("/")))
        .build()
        .unwrap();
    let cap = Policy::default().max_in_flight(1);
    let settings = Settings::default().workers(4).policy("hanging", cap);
    let pump = outbox.pump(dispatcher).settings(settings).start().unwrap();
    // Once something was delivered, nothing but its cap limits a channel.
    put(
        &outbox,
        &Message::text("hanging", "the last one that is taken"),
    )
    .unwrap();
    until("a delivery", || counts(&outbox).sent == 1);
    fill(&outbox, "hanging", 100);
    until("a call that hangs", || hanging.requests() == 2);
    fill(&outbox, "good", 100);
    let started = Instant::now();
    until("the good ones", || {
        channel(&outbox, "good").counts.unsent() == 0
    });
    let took = started.elapsed();
    println!("100 good ones beside a hanging server: {took:.1?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    fill_more(&outbox);
    until("and later ones", || {
        channel(&outbox, "good").counts.unsent() == 0
    });
    assert_eq!(hanging.requests(), 2, "over its cap");
    assert_eq!(channel(&outbox, "hanging").counts.unsent(), 100);
    // Stopping breaks the calls off, and nobody is to blame for that.
    let stopping = Instant::now();
    pump.stop(Duration::from_millis(200)).unwrap();
    assert!(stopping.elapsed() < Duration::from_secs(3));
    let left = channel(&outbox, "hanging");
    assert_eq!((left.counts.pending, left.counts.sending), (100, 0));
    assert_eq!(left.counts.max_attempts, 0);
    assert_eq!(left.state, ChannelState::Ok, "{:?}", left.reason);
    let now = one(
        &till.sql(),
        "SELECT count(*) FROM outbox WHERE channel = 'hanging'
            AND next_attempt_at <= CAST(strftime('%s') AS INTEGER) * 1000",
    );
    assert_eq!(now, "100", "all due at once");
}

fn fill_more(outbox: &Outbox) {
    for i in 0..20 {
        put(outbox, &Message::text("good", format!("more {i}"))).unwrap();
    }
}

/// The server has it, the answer was lost, the process was stopped: it must be recognisable.
#[test]
fn every_repetition_has_one_key_and_the_same_bytes_whoever_sends_it() {
    let till = Till::new();
    let body = r#"{"total":1250,"text":"ä\u0000"}"#;
    put(&till.open(), &Message::text("sales", body)).unwrap();
    let server = Server::start(|seen| match seen.number {
        1 => Answer::SendAndClose(Vec::new()),
        2 => Answer::Hang,
        _ => ok(),
    });
    // Each time another process, as far as the file can tell.
    for requests in 1..=3 {
        let outbox = till.open();
        let pump = start(&outbox, over(server.port()));
        pump.wake();
        until("a request", || server.seen().len() >= requests);
        if requests == 3 {
            until("it arrived", || counts(&outbox).sent == 1);
        }
        nap(100);
        pump.stop(Duration::ZERO).unwrap();
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    let key = seen[0].header("idempotency-key").unwrap();
    for request in &seen {
        assert_eq!(request.header("idempotency-key"), Some(key));
        assert_eq!(request.body, body.as_bytes());
    }
    assert_eq!(counts(&till.open()).max_attempts, 0);
}

#[test]
fn one_hosts_outage_is_no_other_hosts() {
    let till = Till::new();
    let outbox = till.open();
    fill(&outbox, "erp", 50);
    fill(&outbox, "chat", 50);
    let port = Server::free_port();
    let chat = Server::start(|_| ok());
    let dispatcher = HttpDispatcher::builder()
        .channel("erp", Route::post(format!("http://127.0.0.1:{port}/")))
        .channel("chat", Route::post(chat.url("/")))
        .build()
        .unwrap();
    let pump = start(&outbox, dispatcher);
    until("the other host", || {
        channel(&outbox, "chat").counts.unsent() == 0
    });
    until("the outage", || {
        channel(&outbox, "erp").state == ChannelState::Offline
    });
    assert_eq!(channel(&outbox, "chat").state, ChannelState::Ok);
    assert_eq!(channel(&outbox, "erp").counts.unsent(), 50);
    let erp = Server::at(port, |_| ok());
    pump.wake();
    until("it too", || counts(&outbox).unsent() == 0);
    assert_eq!((erp.seen().len(), chat.seen().len()), (50, 50));
    pump.stop(HANG).unwrap();
}

#[test]
fn the_state_and_its_reason_are_seen_from_another_process() {
    let (till, outbox, pump, _port) = cut_off(5);
    let shown = channel(&outbox, "sales");
    assert_eq!(shown.reason_code.as_deref(), Some("refused"));
    assert!(shown.since.is_some() && shown.until.is_some());
    let other = Outbox::open_existing(&till.path).unwrap();
    assert_eq!(channel(&other, "sales").state, ChannelState::Offline);
    let name = "reconnect::child_sees_the_state";
    succeeded(child(name, &till.path).spawn().unwrap());
    pump.stop(HANG).unwrap();
}

#[test]
fn child_sees_the_state() {
    let Some(path) = argument() else { return };
    let outbox = Outbox::open_existing(path).unwrap();
    let shown = channel(&outbox, "sales");
    assert_eq!(shown.state, ChannelState::Offline);
    assert_eq!(shown.reason_code.as_deref(), Some("refused"));
    assert!(shown.reason.unwrap().contains("127.0.0.1"));
}

#[test]
fn a_restarted_process_probes_before_it_floods() {
    let (till, _outbox, pump, port) = cut_off(300);
    pump.stop(HANG).unwrap();
    let under_way = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(Mutex::new(Vec::new()));
    let (now, seen) = (under_way.clone(), most.clone());
    let server = Server::at(port, move |_| {
        let beside = now.fetch_add(1, Ordering::SeqCst) + 1;
        seen.lock().unwrap().push(beside);
        nap(20);
        now.fetch_sub(1, Ordering::SeqCst);
        ok()
    });
    let outbox = Outbox::open(&till.path).unwrap();
    let settings = Settings::default().workers(16);
    let pump = outbox.pump(over(port)).settings(settings).start().unwrap();
    until("all of it", || counts(&outbox).unsent() == 0);
    let most = most.lock().unwrap();
    assert_eq!(most[0], 1, "one probe goes first");
    assert!(
        most[..3].iter().all(|it| *it <= 2),
        "slowly: {:?}",
        &most[..3]
    );
    assert!(*most.iter().max().unwrap() > 4, "and then in full");
    assert_eq!(server.seen().len(), 300);
    pump.stop(HANG).unwrap();
}

/// Each delivery allows one more request at a time.
#[test]
fn recovery_starts_with_one_and_grows_with_what_arrives() {
    let till = Till::new();
    let clock = ManualClock::at(1_800_000_000_000);
    let outbox = Outbox::options()
        .clock(clock.shared())
        .open(&till.path)
        .unwrap();
    fill(&outbox, "sales", 500);
    let mut drain = Inline::new(&outbox, Settings::default().workers(64)).unwrap();
    let down = |_: &Delivery| Ok(Outcome::unreachable("refused"));
    for _ in 0..600 {
        drain.step(&down).unwrap();
        clock.advance(Duration::from_millis(100));
    }
    let up = |_: &Delivery| Ok(Outcome::delivered());
    let mut sizes = Vec::new();
    for _ in 0..20_000 {
        let step = drain.step(&up).unwrap();
        if step.dispatched > 0 {
            sizes.push(step.dispatched);
        }
        clock.advance(Duration::from_millis(10));
    }
    assert_eq!(sizes.iter().sum::<usize>(), 500);
    assert_eq!(sizes[0], 1, "{sizes:?}");
    for at in 1..6 {
        let delivered: usize = sizes[..at].iter().sum();
        assert!(sizes[at] <= 1 + delivered, "{sizes:?}");
    }
}

/// It was well itself, and has read of it in the file.
#[test]
fn after_anothers_trouble_a_process_starts_slowly_too() {
    let till = Till::new();
    let (clock, outbox) = till.manual(1_800_000_000_000);
    let [mut troubled, mut other] =
        [(); 2].map(|()| Inline::new(&outbox, Settings::default()).unwrap());
    let up = |_: &Delivery| Ok(Outcome::delivered());
    warm(&outbox, &mut other);
    fill(&outbox, "sales", 3);
    let down = |_: &Delivery| Ok(Outcome::unreachable("refused"));
    troubled.until_idle(&down).unwrap();
    assert_eq!(channel(&outbox, "sales").state, ChannelState::Offline);
    assert_eq!(other.cycle(&up).unwrap().dispatched, 0);
    clock.advance(Duration::from_secs(60));
    troubled.until_idle(&up).unwrap();
    assert_eq!(channel(&outbox, "sales").state, ChannelState::Ok);
    fill(&outbox, "sales", 100);
    assert_eq!(other.cycle(&up).unwrap().dispatched, 1);
}

/// What had been claimed ahead used to be sent all the same, one by one: sixty timeouts in a row,
/// or sixty logins that lock the account.
#[test]
fn what_was_claimed_ahead_is_given_back_when_the_channel_is_in_trouble() {
    let troubles: [fn() -> Outcome; 3] = [
        || Outcome::unreachable("no route to host"),
        || Outcome::unauthorised("expired"),
        || {
            let failure = Failure::new("http_429", "slow down").status(429);
            Outcome::Retry(failure.after(Duration::from_secs(60)))
        },
    ];
    for trouble in troubles {
        let till = Till::new();
        let (on_the_way, told) = crossbeam_channel::bounded::<()>(0);
        let on_the_way = Mutex::new(Some(on_the_way));
        let outbox = Outbox::options()
            .observer(move |event: &Event| {
                if let Event::Channel { .. } = event {
                    on_the_way.lock().unwrap().take();
                }
            })
            .open(&till.path)
            .unwrap();
        fill(&outbox, "sales", 300);
        let arrived = AtomicUsize::new(0);
        let receiver = |_: &Delivery| {
            let number = arrived.fetch_add(1, Ordering::SeqCst);
            if number < 100 {
                return Ok(Outcome::delivered());
            }
            // Two failures are trouble; the others come back when it is known.
            if number >= 102 {
                assert!(
                    told.recv_timeout(HANG)
                        .is_err_and(|it| it.is_disconnected())
                );
            }
            Ok(trouble())
        };
        let report = outbox.drain(&receiver).unwrap();
        assert_eq!((report.sent, report.unsent), (100, 200));
        let failed = arrived.load(Ordering::SeqCst) - 100;
        assert!(
            failed <= 10,
            "{failed} calls into trouble with four workers"
        );
        assert_eq!(counts(&outbox).sending, 0);
    }
}

/// A crowd that fails together must not come back together.
#[test]
fn two_hundred_failures_at_once_are_spread_over_half_their_wait() {
    let till = Till::new();
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = events.clone();
    let outbox = Outbox::options()
        .observer(move |event: &Event| heard.lock().unwrap().push(event.clone()))
        .open(&till.path)
        .unwrap();
    fill(&outbox, "sales", 500);
    let arrived = AtomicUsize::new(0);
    let receiver = |_: &Delivery| {
        let number = arrived.fetch_add(1, Ordering::SeqCst);
        if number < 300 {
            return Ok(Outcome::delivered());
        }
        // All two hundred are under way before the first one hears of its failure.
        let started = Instant::now();
        while arrived.load(Ordering::SeqCst) < 500 && started.elapsed() < HANG {
            nap(5);
        }
        Ok(Outcome::unreachable("the line is cut"))
    };
    let settings = Settings::default().workers(256).prefetch(1).lock_share(1.0);
    let report = outbox.draining(&receiver).settings(settings).run().unwrap();
    assert_eq!((report.sent, report.retried, report.dead), (300, 200, 0));
    let due: Vec<i64> = events
        .lock()
        .unwrap()
        .iter()
        .filter_map(|event| match event {
            Event::Retried {
                charged: false,
                next_attempt_at,
                ..
            } => Some(*next_attempt_at),
            _ => None,
        })
        .collect();
    assert_eq!(
        due.len(),
        199,
        "one delivery pays for one charge, whoever fails with it"
    );
    let spread = due.iter().max().unwrap() - due.iter().min().unwrap();
    assert!(spread >= 2_300, "{spread} ms");
    let mut distinct = due.clone();
    distinct.sort();
    distinct.dedup();
    assert!(distinct.len() > 150, "{} different times", distinct.len());
}
