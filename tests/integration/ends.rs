//! How a pump or a drain ends, and what it does with a dispatcher that misbehaves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{
    ChannelState, Clock, Delivery, Dispatcher, Ended, Error, Event, Failure, Message, Options,
    Outbox, Outcome, Policy, Pump, Receipt, Router, Run, Settings, Status, SystemClock,
};

use crate::fixture::{Till, column, nap, one, put};

/// Longer than anything here should take: it catches hangs.
const HANG: Duration = Duration::from_secs(20);

/// The machine's clock, which a test can put forward or break.
#[derive(Debug, Clone, Default)]
struct Ahead {
    real: SystemClock,
    by: Arc<AtomicI64>,
    broken: Arc<AtomicBool>,
}

impl Ahead {
    fn advance(&self, seconds: i64) {
        self.by.fetch_add(seconds * 1_000, Ordering::SeqCst);
    }

    fn by(&self) -> i64 {
        assert!(!self.broken.load(Ordering::SeqCst), "the clock is broken");
        self.by.load(Ordering::SeqCst)
    }
}

impl Clock for Ahead {
    fn wall(&self) -> i64 {
        self.real.wall() + self.by()
    }

    fn monotonic(&self) -> Duration {
        self.real.monotonic() + Duration::from_millis(self.by().unsigned_abs())
    }
}

/// An outbox whose events can be waited for.
fn observed(till: &Till, options: Options) -> (Outbox, Receiver<Event>) {
    let (events, heard) = unbounded();
    let options = options.observer(move |event: &Event| drop(events.send(event.clone())));
    (options.open(&till.path).unwrap(), heard)
}

fn fill(outbox: &Outbox, messages: usize) {
    for n in 0..messages {
        put(outbox, &Message::text("sales", n.to_string())).unwrap();
    }
}

#[track_caller]
fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + HANG;
    while !reached() {
        assert!(std::time::Instant::now() < until, "never: {what}");
        nap(5);
    }
}

/// The first event that is looked for.
#[track_caller]
fn heard<T>(events: &Receiver<Event>, mut which: impl FnMut(Event) -> Option<T>) -> T {
    let until = std::time::Instant::now() + HANG;
    loop {
        if let Some(found) = which(events.recv_deadline(until).unwrap()) {
            return found;
        }
    }
}

fn stopped(events: &Receiver<Event>) -> Option<String> {
    heard(events, |event| match event {
        Event::Stopped { error } => Some(error),
        _ => None,
    })
}

fn locked(till: &Till) -> Connection {
    let conn = till.sql();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    conn
}

/// Holds every call until it is let go, by name of what it should answer, or interrupted.
struct Gate {
    entered: Sender<i64>,
    answers: Receiver<Outcome>,
}

fn gate() -> (Gate, Receiver<i64>, Sender<Outcome>) {
    let ((entered, inside), (release, answers)) = (unbounded(), bounded(0));
    (Gate { entered, answers }, inside, release)
}

impl Gate {
    fn answer(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        let _ = self.entered.send(delivery.id);
        // Without anyone who could answer, it takes all.
        Ok(self.answers.recv().unwrap_or_else(|_| Outcome::delivered()))
    }
}

/// A stop used to be fine although the file knew nothing of what had arrived, if its last look came
/// in a pause between two tries.
#[test]
fn a_stop_that_could_not_record_what_came_back_says_so_and_why() {
    let till = Till::new();
    let (outbox, events) = observed(&till, Outbox::options());
    fill(&outbox, 10);
    let (gate, inside, release) = gate();
    let pump = outbox.pump(move |it: &Delivery| gate.answer(it));
    // So mannerly that its last look comes in such a pause.
    let settings = Settings::default().workers(1).lock_share(0.05);
    let pump = pump.settings(settings).start().unwrap();
    inside.recv_timeout(HANG).unwrap();
    let lock = locked(&till);
    drop(release);
    wait_until("an error", || pump.health().error.is_some());
    let error = pump.stop(Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, Error::Busy(_)), "{error:?}");
    let told = stopped(&events).expect("the observer hears of it");
    assert!(told.contains("lock"), "{told}");
    lock.execute_batch("COMMIT").unwrap();
    let sending = one(
        &lock,
        "SELECT count(*) FROM outbox WHERE status = 'sending'",
    );
    assert_ne!(sending, "0", "else nothing was left to record");
}

#[test]
fn a_stop_that_leaves_nothing_to_record_is_fine_though_the_file_is_locked() {
    let till = Till::new();
    let (outbox, events) = observed(&till, Outbox::options());
    fill(&outbox, 1);
    let _lock = locked(&till);
    let pump = outbox.pump(|_: &Delivery| Ok(Outcome::delivered()));
    let pump = pump.start().unwrap();
    wait_until("an error", || pump.health().error.is_some());
    pump.stop(Duration::ZERO).unwrap();
    assert_eq!(stopped(&events), None);
}

/// A dispatcher whose calls end when they are interrupted, with this answer.
struct Ends {
    entered: Sender<i64>,
    interrupted: AtomicBool,
    answer: fn() -> anyhow::Result<Outcome>,
}

impl Dispatcher for Ends {
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        if delivery.payload == b"warm" {
            return Ok(Outcome::delivered());
        }
        let _ = self.entered.send(delivery.id);
        wait_until("interrupted", || self.interrupted.load(Ordering::SeqCst));
        (self.answer)()
    }

    fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
    }
}

/// The channel has just delivered, so a failure would be charged. Then a call is broken off.
fn broken_off(answer: fn() -> anyhow::Result<Outcome>) -> (Till, Outbox, i64) {
    let till = Till::new();
    let (outbox, events) = observed(&till, Outbox::options());
    let (entered, inside) = unbounded();
    let interrupted = AtomicBool::new(false);
    let pump = outbox
        .pump(Ends {
            entered,
            interrupted,
            answer,
        })
        .start()
        .unwrap();
    put(&outbox, &Message::text("sales", "warm")).unwrap();
    heard(&events, |it| {
        matches!(it, Event::Delivered { .. }).then_some(())
    });
    let id = put(&outbox, &Message::text("sales", "one")).unwrap().id();
    inside.recv_timeout(HANG).unwrap();
    pump.stop(Duration::ZERO).unwrap();
    assert_eq!(stopped(&events), None);
    (till, outbox, id)
}

#[test]
fn what_arrived_though_the_call_was_interrupted_counts_as_sent() {
    let (_till, outbox, id) = broken_off(|| Ok(Outcome::delivered()));
    assert_eq!(outbox.get(id).unwrap().unwrap().status, Status::Sent);
}

/// It was counted from when the pump had last looked up, half a second before as a rule.
#[test]
fn a_call_under_way_has_the_whole_grace_period() {
    let (till, clock) = (Till::new(), Ahead::default());
    let options = Outbox::options().clock(Arc::new(clock.clone()));
    let outbox = options.open(&till.path).unwrap();
    fill(&outbox, 1);
    let (gate, inside, release) = gate();
    let interrupted = Arc::new(AtomicBool::new(false));
    let late = Late {
        gate,
        interrupted: interrupted.clone(),
    };
    let pump = outbox.pump(late).start().unwrap();
    inside.recv_timeout(HANG).unwrap();
    nap(100);
    // It sleeps meanwhile.
    clock.advance(10);
    let stop = std::thread::spawn(move || pump.stop(Duration::from_secs(8)));
    nap(300);
    let broken_off = interrupted.load(Ordering::SeqCst);
    drop(release);
    stop.join().unwrap().unwrap();
    assert!(!broken_off, "interrupted within the grace period");
    assert_eq!(outbox.unsent().unwrap(), 0);
}

/// It was forgotten, and the receiver asked again at the next start.
#[test]
fn a_receiver_that_asks_for_peace_while_the_pump_stops_has_it() {
    let (_till, outbox, id) = broken_off(|| {
        let busy = Failure::new("http", "busy").status(429);
        Ok(Outcome::Retry(busy.after(Duration::from_secs(600))))
    });
    let row = outbox.get(id).unwrap().unwrap();
    let channel = &outbox.stats().unwrap().channels[0];
    assert_eq!(
        (row.status, channel.state),
        (Status::Pending, ChannelState::Holding)
    );
}

/// The receiver is not to blame for a call that we broke off, nor is the message.
#[test]
fn a_call_that_fails_because_it_was_interrupted_is_charged_to_nobody() {
    let answers: [fn() -> anyhow::Result<Outcome>; 3] = [
        || anyhow::bail!("broken pipe"),
        || Ok(Outcome::unreachable("closed")),
        || Ok(Outcome::rejected("half a message")),
    ];
    for answer in answers {
        let (till, outbox, id) = broken_off(answer);
        let row = outbox.get(id).unwrap().unwrap();
        assert_eq!((row.status, row.attempts), (Status::Pending, 0));
        let sql = "SELECT outcome || ' ' || charged FROM outbox_attempt";
        assert_eq!(column(&till.sql(), sql), ["interrupted 0"]);
        let stats = outbox.stats().unwrap();
        assert_eq!(stats.channels[0].state, ChannelState::Ok);
    }
}

/// Delivers what is warm; the rest hangs, and the clock leaps when it is asked to end.
struct Hangs {
    clock: Ahead,
    hangs: Receiver<Outcome>,
}

impl Dispatcher for Hangs {
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        match delivery.payload.as_slice() {
            b"warm" => Ok(Outcome::delivered()),
            _ => Ok(self.hangs.recv()?),
        }
    }

    fn interrupt(&self) {
        self.clock.advance(60);
    }
}

/// Nothing fails here: there is more to give back than the time left allows.
#[test]
fn a_stop_that_runs_out_of_time_says_so_and_leaves_the_rest_to_its_lease() {
    let (till, clock) = (Till::new(), Ahead::default());
    let options = Outbox::options().clock(Arc::new(clock.clone()));
    let (outbox, events) = observed(&till, options);
    let (_hang, hangs) = bounded(0);
    let receiver = Hangs { clock, hangs };
    let pump = outbox
        .pump(receiver)
        .settings(Settings::new().workers(32))
        .start()
        .unwrap();
    let enqueue = |payload: &str, count| {
        let messages = vec![Message::text("sales", payload); count];
        let put = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
        assert!(put.unwrap().iter().all(Result::is_ok));
    };
    enqueue("warm", 300);
    wait_until("warm", || outbox.unsent().unwrap() == 0);
    enqueue("cold", 600);
    let sending = || outbox.stats().unwrap().total.sending;
    wait_until("claimed", || sending() == 32 * 16);
    let error = pump.stop(Duration::ZERO).unwrap_err();
    let Error::Stopped(why) = &error else {
        panic!("{error:?}")
    };
    assert!(why.contains("could be recorded in time"), "{why}");
    assert_eq!(stopped(&events), Some(error.chain()));
    assert!((1..32 * 16).contains(&sending()), "{}", sending());
}

/// The answer of the second call comes while the pump records that of the first, and has run out of
/// patience: it is in hand, and must not be thrown away with what hangs.
#[test]
fn an_answer_that_comes_while_a_pump_gives_up_is_recorded() {
    let (till, clock) = (Till::new(), Ahead::default());
    let (gate, inside, release) = gate();
    let release = Arc::new(std::sync::Mutex::new(Some(release)));
    let (letting_go, asked) = (Arc::clone(&release), clock.clone());
    let options = Outbox::options().clock(Arc::new(clock));
    let outbox = options
        .observer(move |event: &Event| {
            if matches!(event, Event::Delivered { .. }) {
                // The second call ends now.
                drop(letting_go.lock().unwrap().take());
                nap(500);
            }
        })
        .open(&till.path)
        .unwrap();
    fill(&outbox, 2);
    let interrupted = Arc::new(AtomicBool::new(false));
    let pump = outbox
        .pump(Late {
            gate,
            interrupted: interrupted.clone(),
        })
        // It sleeps until the first answer comes, and so sees the clock no sooner.
        .settings(Settings::new().workers(2).poll(HANG))
        .start()
        .unwrap();
    for _ in 0..2 {
        inside.recv_timeout(HANG).unwrap();
    }
    let first = std::thread::spawn(move || {
        wait_until("interrupted", || interrupted.load(Ordering::SeqCst));
        // The pump has fallen asleep; no patience is left when the first answer comes and wakes it.
        nap(100);
        asked.advance(5);
        let release = release.lock().unwrap().clone().unwrap();
        release.send(Outcome::delivered()).unwrap();
    });
    pump.stop(Duration::ZERO).unwrap();
    first.join().unwrap();
    let sent = one(
        &till.sql(),
        "SELECT count(*) FROM outbox WHERE status = 'sent'",
    );
    assert_eq!(sent, "2");
}

/// Holds its calls, whether it is interrupted or not.
struct Late {
    gate: Gate,
    interrupted: Arc<AtomicBool>,
}

impl Dispatcher for Late {
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        self.gate.answer(delivery)
    }

    fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_pump_that_is_dropped_stops_without_being_waited_for() {
    let till = Till::new();
    let (outbox, events) = observed(&till, Outbox::options());
    let pump = outbox.pump(|_: &Delivery| Ok(Outcome::delivered()));
    let pump = pump.start().unwrap();
    fill(&outbox, 1);
    heard(&events, |it| {
        matches!(it, Event::Delivered { .. }).then_some(())
    });
    drop(pump);
    assert_eq!(stopped(&events), None);
    fill(&outbox, 1);
    nap(300);
    assert_eq!(outbox.unsent().unwrap(), 1);
}

/// A drain while the file is locked from the first call on, or from its start, and time that passes
/// meanwhile.
fn patient(answers: bool, seconds: i64) -> sqlite_outbox::Result<u64> {
    let (till, clock) = (Till::new(), Ahead::default());
    let options = Outbox::options().clock(Arc::new(clock.clone()));
    let (outbox, events) = observed(&till, options);
    fill(&outbox, 1);
    let lock = std::sync::Mutex::new((!answers).then(|| locked(&till)));
    let receiver = |_: &Delivery| {
        lock.lock().unwrap().get_or_insert_with(|| locked(&till));
        Ok(Outcome::delivered())
    };
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| outbox.draining(&receiver).run());
        wait_until("locked", || lock.lock().unwrap().is_some());
        nap(300);
        clock.advance(seconds);
        // Told by the very cycle that finds how long it has lasted.
        heard(&events, |it| {
            matches!(it, Event::StoreFailed { .. }).then_some(())
        });
        nap(500);
        // What has given up does not hear of it any more.
        drop(lock.lock().unwrap().take());
        drain.join().unwrap().map(|report| report.sent)
    })
}

/// What could be sent may wait for the next drain; an answer that is lost is a message sent again.
#[test]
fn a_drain_gives_up_on_a_locked_file_after_half_a_minute_with_answers_after_five() {
    assert!(matches!(patient(false, 32), Err(Error::Busy(_))));
    assert_eq!(patient(true, 60).unwrap(), 1);
    assert!(matches!(patient(true, 310), Err(Error::Busy(_))));
}

/// A dispatcher that panics where it is asked something.
#[derive(Clone, Default)]
struct Panics {
    serves: Arc<AtomicBool>,
    time_limit: bool,
    interrupt: bool,
    hangs: Option<Receiver<()>>,
    calls: Arc<AtomicUsize>,
}

impl Dispatcher for Panics {
    fn dispatch(&self, _: &Delivery) -> anyhow::Result<Outcome> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if let Some(hangs) = &self.hangs {
            let _ = hangs.recv();
        }
        Ok(Outcome::delivered())
    }

    fn serves(&self, channel: &str) -> bool {
        let panics = channel == "odd" && self.serves.load(Ordering::SeqCst);
        assert!(!panics, "serves");
        true
    }

    fn time_limit(&self, _: &str) -> Duration {
        assert!(!self.time_limit, "time_limit");
        Duration::from_secs(10)
    }

    fn interrupt(&self) {
        assert!(!self.interrupt, "interrupt");
    }
}

#[test]
fn a_channel_about_which_the_dispatcher_panics_is_not_served_and_the_others_flow() {
    let till = Till::new();
    let (outbox, events) = observed(&till, Outbox::options());
    let dispatcher = Panics::default();
    dispatcher.serves.store(true, Ordering::SeqCst);
    put(&outbox, &Message::text("odd", "one")).unwrap();
    fill(&outbox, 3);
    let report = outbox.drain(&dispatcher).unwrap();
    assert_eq!(
        (report.sent, report.unsent, report.ended),
        (3, 1, Ended::Idle)
    );
    assert_eq!(report.channels[0].state, ChannelState::Unrouted);
    assert_eq!(stopped(&events), None);
    let pump = outbox.pump(dispatcher.clone()).start().unwrap();
    let channel = heard(&events, |event| match event {
        Event::Unrouted { channel } => Some(channel),
        _ => None,
    });
    assert_eq!(channel, "odd");
    dispatcher.serves.store(false, Ordering::SeqCst);
    pump.wake();
    heard(&events, |it| {
        matches!(it, Event::Delivered { .. }).then_some(())
    });
    pump.stop(HANG).unwrap();
}

#[test]
fn a_limit_that_cannot_be_had_is_the_default_one() {
    let till = Till::new();
    let outbox = till.open();
    fill(&outbox, 3);
    let dispatcher = Panics {
        time_limit: true,
        ..Panics::default()
    };
    assert_eq!(outbox.drain(&dispatcher).unwrap().sent, 3);
}

/// It left what was claimed to its lease.
#[test]
fn a_stop_whose_interrupt_panics_gives_back_what_hangs() {
    let till = Till::new();
    let (outbox, events) = observed(&till, Outbox::options());
    fill(&outbox, 3);
    let (_hang, hangs) = bounded(0);
    let dispatcher = Panics {
        interrupt: true,
        hangs: Some(hangs),
        ..Panics::default()
    };
    let pump = outbox.pump(dispatcher.clone()).start().unwrap();
    wait_until("called", || dispatcher.calls.load(Ordering::SeqCst) > 0);
    pump.stop(Duration::ZERO).unwrap();
    assert_eq!(stopped(&events), None);
    let total = outbox.stats().unwrap().total;
    assert_eq!((total.pending, total.sending), (3, 0));
}

#[test]
fn one_dispatcher_of_a_router_whose_interrupt_panics_keeps_no_other_from_hearing() {
    let interrupted = Arc::new(AtomicBool::new(false));
    let broken = Panics {
        interrupt: true,
        ..Panics::default()
    };
    let late = Late {
        gate: gate().0,
        interrupted: Arc::clone(&interrupted),
    };
    let router = Router::new().route("sales", broken).route("stock", late);
    assert!(catch_unwind(AssertUnwindSafe(|| router.interrupt())).is_err());
    assert!(interrupted.load(Ordering::SeqCst));
}

#[test]
fn whoever_watches_is_told_of_an_end_by_panic_too() {
    let (till, clock) = (Till::new(), Ahead::default());
    let options = Outbox::options().clock(Arc::new(clock.clone()));
    let (outbox, events) = observed(&till, options);
    fill(&outbox, 1);
    let receiver = |_: &Delivery| Ok(Outcome::delivered());
    let drained = catch_unwind(AssertUnwindSafe(|| {
        let drain = outbox.draining(&receiver);
        drain.progress(|_| panic!("the progress is broken")).run()
    }));
    assert!(drained.is_err(), "a panic of the caller is his own");
    let told = stopped(&events).unwrap();
    assert!(told.contains("the progress is broken"), "{told}");

    let pump = outbox.pump(receiver).start().unwrap();
    fill(&outbox, 1);
    heard(&events, |it| {
        matches!(it, Event::Delivered { .. }).then_some(())
    });
    clock.broken.store(true, Ordering::SeqCst);
    pump.wake();
    let told = stopped(&events).unwrap();
    assert!(told.contains("the clock is broken"), "{told}");
    assert!(matches!(pump.stop(HANG), Err(Error::Stopped(_))));
}

/// A transport for runs that takes none of them, or panics before it does, until it is mended.
#[derive(Clone, Default)]
struct Takes {
    runs: Arc<AtomicUsize>,
    panics: bool,
    mended: Arc<AtomicBool>,
}

impl Dispatcher for Takes {
    fn dispatch(&self, _: &Delivery) -> anyhow::Result<Outcome> {
        Ok(Outcome::delivered())
    }

    fn dispatch_run(&self, run: &mut Run<'_>) {
        self.runs.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "no connection");
        if self.mended.load(Ordering::SeqCst) {
            while let Some(delivery) = run.next() {
                let outcome = self.dispatch(delivery);
                run.settle(outcome);
            }
        }
    }
}

/// What it gave back was due at once, so that a drain never ended and a pump did not rest.
#[test]
fn a_dispatcher_that_takes_nothing_is_slowed_down_and_blames_nobody() {
    let till = Till::new();
    let outbox = till.open();
    fill(&outbox, 10);
    for n in 0..5 {
        let lane = Message::text("sales", n.to_string()).ordering_key("customer");
        put(&outbox, &lane).unwrap();
    }
    let dispatcher = Takes::default();
    let report = outbox.draining(&dispatcher).deadline(HANG).run().unwrap();
    assert_eq!((report.ended, report.sent), (Ended::Idle, 0));
    // Of the lane the first one.
    assert_eq!(
        (report.retried, dispatcher.runs.load(Ordering::SeqCst)),
        (11, 11)
    );
    assert_eq!(report.channels[0].state, ChannelState::Ok);
    let sql = "SELECT DISTINCT outcome || ' ' || charged FROM outbox_attempt";
    assert_eq!(column(&till.sql(), sql), ["untaken 0"]);
    let row = outbox.get(1).unwrap().unwrap();
    let error = row.last_error.unwrap();
    assert!(error.contains("took no message"), "{error}");
    assert_eq!(row.attempts, 0);

    dispatcher.mended.store(true, Ordering::SeqCst);
    assert_eq!(outbox.draining(&dispatcher).now().run().unwrap().sent, 15);
}

/// It was worse than a panic in the middle, which counts as a failed attempt.
#[test]
fn a_panic_before_anything_is_taken_is_a_failed_attempt() {
    let till = Till::new();
    let outbox = till.open();
    fill(&outbox, 10);
    let dispatcher = Takes {
        panics: true,
        ..Takes::default()
    };
    let report = outbox.draining(&dispatcher).deadline(HANG).run().unwrap();
    assert_eq!((report.ended, report.sent), (Ended::Idle, 0));
    let failed: Vec<_> = outbox.list(&sqlite_outbox::Filter::new()).unwrap();
    let told = |it: &sqlite_outbox::Entry| {
        let error = it.last_error.as_deref();
        error.is_some_and(|it| it.contains("no connection"))
    };
    assert!(failed.iter().any(told), "{failed:?}");
}

/// Says that it does not know, by an error that cannot say why.
#[derive(Debug)]
struct Speechless;

impl std::fmt::Display for Speechless {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("the text is shorter than that")
    }
}

impl std::error::Error for Speechless {}

/// Its report was lost, so that the lane went on past it, and it stayed claimed for minutes.
#[test]
fn a_message_whose_error_panics_when_it_is_read_is_tried_again_in_its_place() {
    let till = Till::new();
    let outbox = till.open();
    for n in 1..=40 {
        let lane = Message::text("sales", n.to_string()).ordering_key("one");
        put(&outbox, &lane).unwrap();
    }
    let tried = std::sync::Mutex::new(Vec::new());
    let receiver = |delivery: &Delivery| {
        tried.lock().unwrap().push(delivery.id);
        match (delivery.id, delivery.attempt) {
            (16, 1) => Err(Speechless.into()),
            _ => Ok(Outcome::delivered()),
        }
    };
    let report = outbox.draining(&receiver).deadline(HANG).run().unwrap();
    assert_eq!((report.sent, report.ended), (15, Ended::Idle));
    let outcome = column(&till.sql(), "SELECT outcome FROM outbox_attempt");
    assert_eq!(outcome, ["panic"]);
    let again = outbox.draining(&receiver).now().deadline(HANG).run();
    assert_eq!(again.unwrap().sent, 25);
    let mut expected: Vec<i64> = (1..=40).collect();
    expected.insert(15, 16);
    assert_eq!(*tried.lock().unwrap(), expected);
}

/// The drain ended by that panic, and whatever was delivered with the message was sent again at every start.
#[test]
fn a_hook_whose_error_panics_when_it_is_read_has_failed_and_ends_nothing() {
    let till = Till::new();
    let outbox = Outbox::options()
        .on_delivered(|_, _, _| Err(Speechless.into()))
        .open(&till.path)
        .unwrap();
    fill(&outbox, 5);
    let report = outbox.drain(&|_: &Delivery| Ok(Outcome::delivered()));
    assert_eq!(report.unwrap().sent, 5);
    let error = outbox.get(1).unwrap().unwrap().last_error.unwrap();
    assert!(
        error.contains("panicked: the text is shorter than that"),
        "{error}"
    );
}

/// What a panic carries, which panics again where it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// The worker ended, and with it what waited behind its run.
#[test]
fn a_panic_that_panics_again_costs_no_worker_and_its_lane_goes_on() {
    let till = Till::new();
    let outbox = till.open();
    for n in 0..100 {
        let lane = Message::text("sales", n.to_string()).ordering_key(format!("c{}", n % 7));
        put(&outbox, &lane).unwrap();
    }
    let receiver = |delivery: &Delivery| match delivery.attempt {
        1 if delivery.id % 9 == 0 => std::panic::panic_any(Bomb),
        _ => Ok(Outcome::delivered()),
    };
    let pump = outbox.pump(receiver);
    let no_delay = Policy::default().backoff(Duration::from_millis(1), Duration::from_millis(1));
    let settings = Settings::new().workers(2).default_policy(no_delay);
    let pump = pump.settings(settings).start().unwrap();
    wait_until("all of it", || outbox.unsent().unwrap() == 0);
    pump.stop(HANG).unwrap();
}

/// Stopping is no failure: what is not taken then is given back as it was.
#[test]
fn what_a_stopping_pump_does_not_hand_out_was_not_refused() {
    let till = Till::new();
    let outbox = till.open();
    let (gate, inside, release) = gate();
    for n in 0..5 {
        let lane = Message::text("sales", n.to_string()).ordering_key("customer");
        put(&outbox, &lane).unwrap();
    }
    let pump = outbox.pump(move |it: &Delivery| gate.answer(it));
    let pump = pump.start().unwrap();
    inside.recv_timeout(HANG).unwrap();
    let stop = std::thread::spawn(move || pump.stop(HANG));
    nap(200);
    drop(release);
    stop.join().unwrap().unwrap();
    assert_eq!(outbox.unsent().unwrap(), 4);
    assert_eq!(one(&till.sql(), "SELECT count(*) FROM outbox_attempt"), "0");
    let again = outbox.drain(&|_: &Delivery| Ok(Outcome::delivered()));
    assert_eq!(again.unwrap().sent, 4, "due at once");
}

/// Where in a run a call does not return.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    /// Before it takes anything, as where it connects.
    Before,
    OnTheWire,
    /// Between the first answer of a batch and the second.
    InABatch,
    /// When all of it is told.
    After,
}

/// Takes twenty messages; then calls of `sales` do not return until they are let go.
struct Sticks {
    place: Place,
    taken: AtomicUsize,
    sticks: Receiver<()>,
}

impl Sticks {
    fn stick(&self, place: Place) {
        if place == self.place && self.taken.load(Ordering::SeqCst) >= 20 {
            let _ = self.sticks.recv();
        }
    }
}

impl Dispatcher for Sticks {
    fn dispatch(&self, _: &Delivery) -> anyhow::Result<Outcome> {
        Ok(Outcome::delivered())
    }

    fn dispatch_run(&self, run: &mut Run<'_>) {
        self.stick(Place::Before);
        loop {
            let batch = run.next_batch(5);
            let sticks = batch.first().is_some_and(|it| it.channel == "sales");
            let taken = batch.len();
            if taken == 0 {
                break;
            }
            for n in 0..taken {
                if sticks {
                    self.stick(match n {
                        0 => Place::OnTheWire,
                        _ => Place::InABatch,
                    });
                }
                self.taken.fetch_add(1, Ordering::SeqCst);
                run.settle(Ok(Outcome::delivered()));
            }
        }
        self.stick(Place::After);
    }

    fn time_limit(&self, _: &str) -> Duration {
        Duration::from_secs(1)
    }
}

fn sticking(outbox: &Outbox, place: Place, workers: usize) -> (Pump, Sender<()>) {
    let (let_go, sticks) = bounded(0);
    let taken = AtomicUsize::new(0);
    let sticks = Sticks {
        place,
        taken,
        sticks,
    };
    let settings = Settings::new().lease(Duration::from_secs(1));
    let pump = outbox.pump(sticks).settings(settings.workers(workers));
    (pump.start().unwrap(), let_go)
}

/// A process whose four workers hung renewed what it had claimed behind them for ever; and when that was mended, it
/// still did so where they hung anywhere but between the taking of a message and its answer.
#[test]
fn what_waits_behind_calls_that_do_not_return_goes_to_a_process_that_is_well() {
    for (place, keys) in [
        (Place::OnTheWire, 0),
        (Place::After, 0),
        (Place::Before, 7),
        (Place::OnTheWire, 7),
        (Place::InABatch, 7),
        (Place::After, 7),
    ] {
        let till = Till::new();
        let (outbox, events) = observed(&till, Outbox::options());
        for n in 0..200 {
            let sale = Message::text("sales", n.to_string());
            let sale = match keys {
                0 => sale,
                keys => sale.ordering_key(format!("c{}", n % keys)),
            };
            put(&outbox, &sale).unwrap();
        }
        let (pump, let_go) = sticking(&outbox, place, 4);
        let overrun = |event| matches!(event, Event::Overrun { .. }).then_some(());
        (0..4).for_each(|_| heard(&events, overrun));
        // What is not on the wire is free at once.
        wait_until("given back", || outbox.stats().unwrap().total.sending <= 4);
        let well = till.open();
        let receiver = |_: &Delivery| Ok(Outcome::delivered());
        let well = well.pump(receiver).start().unwrap();
        wait_until("all of it", || outbox.unsent().unwrap() == 0);
        well.stop(HANG).unwrap();
        let lost = "SELECT count(*) FROM outbox_attempt WHERE outcome = 'lost'";
        let lost: usize = one(&till.sql(), lost).parse().unwrap();
        let expected = match (place, keys) {
            (Place::After, _) => 0..=0,
            (_, 0) => 4..=4,
            // With keys, what was claimed with the one that is on the wire.
            _ => 4..=64,
        };
        assert!(expected.contains(&lost), "{place:?}: {lost}");

        // Those that were gone are back.
        drop(let_go);
        fill(&outbox, 20);
        wait_until("all of it", || outbox.unsent().unwrap() == 0);
        pump.stop(HANG).unwrap();
    }
}

#[test]
fn calls_that_do_not_return_keep_no_other_channel_waiting() {
    let till = Till::new();
    let (outbox, events) = observed(&till, Outbox::options());
    let of = |channel: &str| {
        let messages = vec![Message::text(channel, "x"); 100];
        let put = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
        assert!(put.unwrap().iter().all(Result::is_ok));
    };
    of("sales");
    of("stock");
    let (pump, let_go) = sticking(&outbox, Place::OnTheWire, 4);
    let overrun = |event| matches!(event, Event::Overrun { .. }).then_some(());
    (0..4).for_each(|_| heard(&events, overrun));
    of("prices");
    let sent = "SELECT count(*) FROM outbox WHERE channel <> 'sales' AND status = 'sent'";
    wait_until("the others", || one(&till.sql(), sent) == "200");
    drop(let_go);
    wait_until("all of it", || outbox.unsent().unwrap() == 0);
    pump.stop(HANG).unwrap();
}

/// The next run of the lane was claimed already, and waited for a worker that nobody missed.
#[test]
fn a_lane_goes_on_behind_a_worker_that_does_not_return_after_its_last_answer() {
    for workers in [1, 4] {
        let till = Till::new();
        let (outbox, events) = observed(&till, Outbox::options());
        for n in 0..200 {
            let sale = Message::text("sales", n.to_string()).ordering_key("one");
            put(&outbox, &sale).unwrap();
        }
        let (pump, let_go) = sticking(&outbox, Place::After, workers);
        let overrun = |event| matches!(event, Event::Overrun { .. }).then_some(());
        heard(&events, overrun);
        wait_until("given back", || outbox.stats().unwrap().total.sending == 0);
        let taken = std::sync::Mutex::new(Vec::new());
        let well = till.open();
        let receiver = |it: &Delivery| {
            taken.lock().unwrap().push(it.id);
            Ok(Outcome::delivered())
        };
        let report = well.draining(&receiver).deadline(HANG).run().unwrap();
        assert_eq!(report.ended, Ended::Idle);
        assert!(taken.into_inner().unwrap().is_sorted());
        assert_eq!(outbox.unsent().unwrap(), 0);
        drop(let_go);
        pump.stop(HANG).unwrap();
    }
}

/// It went on sending what it had claimed for as long as the application took to hear of it.
#[test]
fn a_receiver_that_asks_for_peace_has_it_however_slowly_progress_is_told() {
    let till = Till::new();
    let outbox = till.open();
    fill(&outbox, 200);
    let begun = AtomicUsize::new(0);
    let receiver = |_: &Delivery| {
        let n = begun.fetch_add(1, Ordering::SeqCst);
        nap(10);
        Ok(match n {
            0..100 => Outcome::delivered(),
            _ => {
                let busy = Failure::new("http", "busy");
                Outcome::Retry(busy.after(Duration::from_secs(600)))
            }
        })
    };
    let after = AtomicUsize::new(0);
    let progress = |tally: &sqlite_outbox::Tally| {
        if tally.retried > 0 {
            // Until what is on the wire is over.
            nap(50);
            let before = begun.load(Ordering::SeqCst);
            nap(100);
            after.fetch_add(begun.load(Ordering::SeqCst) - before, Ordering::SeqCst);
        }
    };
    let drain = outbox.draining(&receiver).progress(progress);
    drain.deadline(HANG).run().unwrap();
    assert_eq!(after.into_inner(), 0);
}

/// Waits for someone before it takes anything, as where it connects.
struct Connects {
    connecting: Sender<()>,
    connected: Receiver<()>,
}

impl Dispatcher for Connects {
    fn dispatch(&self, _: &Delivery) -> anyhow::Result<Outcome> {
        Ok(Outcome::delivered())
    }

    fn dispatch_run(&self, run: &mut Run<'_>) {
        let _ = self.connecting.send(());
        let _ = self.connected.recv();
        while let Some(delivery) = run.next() {
            let outcome = self.dispatch(delivery);
            run.settle(outcome);
        }
    }
}

/// It waited for the renewal of its lease, the next write there was, with nothing to be seen of that.
#[test]
fn a_look_that_found_the_file_locked_holds_up_nothing_that_is_claimed() {
    let till = Till::new();
    till.sql()
        .execute_batch("CREATE TABLE sale (id INTEGER PRIMARY KEY)")
        .unwrap();
    let outbox = till.open();
    fill(&outbox, 1);
    let (connecting, connects) = unbounded();
    let (go_on, connected) = bounded(0);
    let dispatcher = Connects {
        connecting,
        connected,
    };
    let settings = Settings::new().lease(Duration::from_secs(600));
    let pump = outbox.pump(dispatcher).settings(settings);
    let pump = pump.start().unwrap();
    connects.recv_timeout(HANG).unwrap();
    let app = till.sql();
    app.execute_batch("BEGIN EXCLUSIVE").unwrap();
    wait_until("it is noticed", || pump.health().error.is_some());
    app.execute_batch("COMMIT").unwrap();
    drop(go_on);
    wait_until("it is sent", || outbox.unsent().unwrap() == 0);
    pump.stop(HANG).unwrap();
}

/// They were kept whole in the channel and in each attempt.
#[test]
fn what_a_dispatcher_says_is_kept_up_to_a_bound() {
    let till = Till::new();
    let outbox = till.open();
    let long = "ü".repeat(1 << 20);
    let receiver = |delivery: &Delivery| {
        Ok(match delivery.payload.as_slice() {
            b"0" => Outcome::Delivered(Receipt::with_id(long.clone())),
            _ => Outcome::Blocked(Failure::new(long.clone(), long.clone())),
        })
    };
    for payload in ["0", "1"] {
        put(&outbox, &Message::text("sales", payload)).unwrap();
        outbox.drain(&receiver).unwrap();
    }
    let kept = "SELECT max(length(reason)) || ' ' || max(length(reason_code)) FROM outbox_channel
        UNION ALL SELECT max(length(error)) || ' ' || max(length(outcome)) FROM outbox_attempt
        UNION ALL SELECT max(length(last_error)) || ' ' || max(length(provider_id)) FROM outbox";
    assert_eq!(
        column(&till.sql(), kept),
        ["1000 100", "1000 100", "1000 1000"]
    );
}

/// Each took a thread for its first message and another for its second, until there was none left.
#[test]
fn thirty_receivers_that_hang_keep_no_other_channel_waiting() {
    let till = Till::new();
    let outbox = till.open();
    let of = |channel: String, messages| {
        let messages = vec![Message::text(channel, "x"); messages];
        let put = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
        assert!(put.unwrap().iter().all(Result::is_ok));
    };
    (0..30).for_each(|n| of(format!("hangs-{n}"), 20));
    let hanging = Arc::new(AtomicUsize::new(0));
    let (let_go, hangs) = bounded::<()>(0);
    let calls = Arc::clone(&hanging);
    let pump = outbox
        .pump(move |delivery: &Delivery| {
            if delivery.channel.starts_with("hangs") {
                calls.fetch_add(1, Ordering::SeqCst);
                let _ = hangs.recv();
            }
            Ok(Outcome::delivered())
        })
        .start()
        .unwrap();
    wait_until("all hang", || hanging.load(Ordering::SeqCst) == 30);
    (0..5).for_each(|n| of(format!("well-{n}"), 40));
    let sent = "SELECT count(*) FROM outbox WHERE channel > 'i' AND status = 'sent'";
    wait_until("the others", || one(&till.sql(), sent) == "200");
    assert_eq!(hanging.load(Ordering::SeqCst), 30, "no channel has two");
    drop(let_go);
    wait_until("all of it", || outbox.unsent().unwrap() == 0);
    pump.stop(HANG).unwrap();
}

/// It tried for five minutes, without a pause between two tries, though there was no hope.
#[test]
fn a_drain_whose_answers_a_damaged_file_cannot_hold_ends_soon_after_its_deadline() {
    let till = Till::new();
    fill(&till.open(), 1);
    let conn = till.sql();
    let root = one(
        &conn,
        "SELECT rootpage FROM sqlite_master WHERE name = 'outbox_attempt'",
    );
    let root: usize = root.parse().unwrap();
    let size: usize = one(&conn, "PRAGMA page_size").parse().unwrap();
    conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    drop(conn);
    let mut file = std::fs::read(&till.path).unwrap();
    file[(root - 1) * size..][..size].fill(0xff);
    std::fs::write(&till.path, file).unwrap();
    let outbox = till.open();
    let receiver = |_: &Delivery| Ok(Outcome::retry("later"));
    let began = std::time::Instant::now();
    let drain = outbox
        .draining(&receiver)
        .deadline(Duration::from_millis(100));
    let ended = drain.run();
    assert!(matches!(ended, Err(Error::Damaged(_))), "{ended:?}");
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
}
