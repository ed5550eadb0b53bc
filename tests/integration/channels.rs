//! Ten thousand channels in one file: what is asked of it, and what is sent, costs little for those
//! that have nothing to do. Statements are counted, not time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{
    Cancel, Delivery, Dispatcher, Ended, Event, Message, Options, Outbox, Outcome, Settings,
};

use crate::costs::{count, note_statements, ran};
use crate::fixture::{Till, column, nap, one, put};

const CHANNELS: usize = 2_000;
const NOW: i64 = 1_800_000_000_000;

/// Messages are put in, one in each of many channels, an hour ago, and everything that runs is
/// counted. The clock stands still.
fn many(message: impl Fn(Message) -> Message) -> (Till, Outbox) {
    fill(
        Outbox::options().clock(ManualClock::at(NOW).shared()),
        message,
    )
}

fn fill(options: Options, message: impl Fn(Message) -> Message) -> (Till, Outbox) {
    let till = Till::new();
    let options = options.on_connect(|conn: &Connection| {
        note_statements(conn);
        Ok(())
    });
    let outbox = options.open(&till.path).unwrap();
    let messages: Vec<_> = (0..CHANNELS)
        .map(|it| message(Message::text(format!("channel {it:05}"), "x")))
        .collect();
    let answers = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
    assert!(answers.unwrap().iter().all(Result::is_ok));
    let hour = "UPDATE outbox SET created_at = created_at - 3600000";
    till.sql().execute(hour, []).unwrap();
    ran();
    (till, outbox)
}

fn up(_: &Delivery) -> anyhow::Result<Outcome> {
    Ok(Outcome::delivered())
}

fn down(_: &Delivery) -> anyhow::Result<Outcome> {
    Ok(Outcome::unreachable("no network"))
}

fn later(message: Message) -> Message {
    message.delay(Duration::from_secs(60))
}

fn statements() -> usize {
    count(&ran(), |sql| !sql.starts_with("--"))
}

#[test]
fn counting_takes_a_few_statements_however_many_channels_there_are() {
    let (till, outbox) = many(|it| it);
    let stats = outbox.stats().unwrap();
    assert_eq!(stats.channels.len(), CHANNELS);
    assert_eq!(stats.total.pending, CHANNELS as u64);
    let ran = statements();
    assert!(ran < 20, "{ran} statements for {CHANNELS} channels");
    // One for each that has something settled, at most.
    let sent = "UPDATE outbox SET status = 'sent', settled_at = 1800000000000 WHERE id <= 100";
    till.sql().execute(sent, []).unwrap();
    assert_eq!(outbox.stats().unwrap().total.sent, 100);
    let ran = statements();
    assert!(ran < 120, "{ran} statements, 100 channels have sent");
}

#[test]
fn explaining_all_asks_a_few_questions_of_each_channel() {
    let (_till, outbox) = many(|it| it);
    let groups = outbox.why_all().unwrap();
    assert_eq!(groups.len(), CHANNELS);
    assert_eq!(groups[0].why.reason.code(), "no_drain");
    let ran = statements();
    assert!(
        ran < 5 * CHANNELS,
        "{ran} statements for {CHANNELS} channels"
    );
}

#[test]
fn a_message_of_one_of_many_channels_costs_no_more_than_another() {
    let (_till, outbox) = many(|it| it);
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    ran();
    let events = drain.until_idle(&up).unwrap();
    let sent = events
        .iter()
        .filter(|it| matches!(it, Event::Delivered { .. }));
    assert_eq!(sent.count(), CHANNELS);
    let each = statements() / CHANNELS;
    // Its candidates twice, the row, the claim, the delivery, the channel's first evidence.
    assert!(each <= 9, "{each} statements for each message");
}

#[test]
fn channels_that_have_nothing_to_do_cost_a_cycle_no_statement() {
    let (_till, outbox) = many(later);
    for number in 0..100 {
        put(&outbox, &Message::text("zz", number.to_string())).unwrap();
    }
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    // What a start has to look through goes by.
    drain.until_idle(&up).unwrap();
    assert_eq!(outbox.unsent().unwrap(), CHANNELS as u64);
    for number in 0..100 {
        put(&outbox, &Message::text("zz", format!("more {number}"))).unwrap();
    }
    ran();
    let events = drain.until_idle(&up).unwrap();
    assert_eq!(events.len(), 100);
    let ran = statements();
    assert!(
        ran < 100 * 2 + CHANNELS / 5,
        "{ran} statements for 100 messages"
    );
}

#[test]
fn a_drain_is_idle_only_when_it_has_looked_at_every_channel() {
    let (_till, outbox) = many(later);
    put(&outbox, &Message::text("channel 00300 and a half", "x")).unwrap();
    put(&outbox, &Message::text("zz", "x")).unwrap();
    let report = outbox.drain(&up).unwrap();
    assert_eq!(report.sent, 2);
    assert_eq!(report.unsent, CHANNELS as u64);
}

#[test]
fn who_stops_looks_at_no_channel_any_more() {
    let (_till, outbox) = many(|it| it);
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    drain.cycle(&up).unwrap();
    let call = drain.begin().unwrap();
    drain.stop();
    // The others are given back.
    for _ in 0..5 {
        drain.cycle(&up).unwrap();
    }
    ran();
    for _ in 0..10 {
        drain.cycle(&up).unwrap();
    }
    let waiting = statements();
    assert!(
        waiting <= 10,
        "{waiting} statements while the last call is under way"
    );
    drain.end(call, Ok(Outcome::delivered()));
    drain.cycle(&up).unwrap();
    assert!(drain.is_empty());
}

/// After the stop, each channel was asked for each reason of each message.
#[test]
fn a_drain_of_many_channels_ends_soon_after_it_is_cancelled() {
    let (_till, outbox) = many(|it| it);
    let cancel = Cancel::new();
    let sent = AtomicUsize::new(0);
    let count = |_: &Delivery| {
        if sent.fetch_add(1, Ordering::Relaxed) == 100 {
            cancel.cancel();
        }
        Ok(Outcome::delivered())
    };
    let begun = Instant::now();
    let report = outbox.draining(&count).cancel(&cancel).run().unwrap();
    assert_eq!(report.ended, Ended::Cancelled);
    assert_eq!(outbox.why_all().unwrap().len() as u64, report.unsent);
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
}

/// The states of so many channels are read again some at a time; a pause holds at once.
#[test]
fn a_pause_of_one_among_many_channels_holds_at_once() {
    let (till, outbox) = many(later);
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    drain.until_idle(&up).unwrap();
    let states = "INSERT INTO outbox_channel (channel, state, since, until)
                  SELECT channel, 'offline', 1, 1 FROM outbox";
    till.sql().execute(states, []).unwrap();
    drain.cycle(&up).unwrap();
    put(&outbox, &Message::text("zz", "x")).unwrap();
    outbox.operator("anna").pause("zz").unwrap();
    let events = drain.until_idle(&up).unwrap();
    assert!(
        !events
            .iter()
            .any(|it| matches!(it, Event::Delivered { .. })),
        "{events:?}"
    );
    outbox.operator("anna").resume("zz").unwrap();
    let events = drain.until_idle(&up).unwrap();
    assert!(
        events
            .iter()
            .any(|it| matches!(it, Event::Delivered { .. })),
        "{events:?}"
    );
}

#[test]
fn a_receiver_that_is_down_is_tried_once_for_each_channel_and_then_left_alone() {
    let (_till, outbox) = many(|it| it);
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    let events = drain.until_idle(&down).unwrap();
    let tried = events
        .iter()
        .filter(|it| matches!(it, Event::Retried { .. }));
    let tried = tried.count();
    assert!((CHANNELS..=2 * CHANNELS).contains(&tried), "{tried} tries");
    ran();
    // An application that commits does not make it read all of that again.
    put(
        &outbox,
        &Message::text("zz", "x").delay(Duration::from_secs(60)),
    )
    .unwrap();
    ran();
    drain.cycle(&down).unwrap();
    let cycle = statements();
    assert!(cycle <= 10, "{cycle} statements after a commit");
}

/// Channels that were named and got no room were passed over until all others had been served.
#[test]
fn each_of_many_channels_is_served_in_its_turn() {
    let (_till, outbox) = many(|it| it);
    let mut drain = Inline::new(&outbox, Settings::default().workers(64)).unwrap();
    let events = drain.until_idle(&up).unwrap();
    let sent = events.iter().filter_map(|it| match it {
        Event::Delivered { id, .. } => Some(*id),
        _ => None,
    });
    for (place, id) in sent.enumerate() {
        let late = place as i64 - id;
        assert!(late < 300, "channel {id} has waited for {place} others");
    }
}

/// Before the last of them was tried, the probe of the first was due again, and so on.
#[test]
fn a_drain_does_not_wait_for_a_receiver_that_is_down_in_any_of_many_channels() {
    let (_till, outbox) = fill(Outbox::options(), |it| it);
    let tries = AtomicUsize::new(0);
    // So slow that the first probes are due again long before the last channel was tried.
    let slow = |_: &Delivery| {
        nap(30);
        tries.fetch_add(1, Ordering::Relaxed);
        Ok(Outcome::unreachable("no network"))
    };
    let report = outbox.drain(&slow).unwrap();
    assert_eq!(report.ended, Ended::Idle);
    let tries = tries.into_inner();
    assert!((CHANNELS..=2 * CHANNELS).contains(&tries), "{tries} tries");
}

/// In the first of many, when the drain has just looked there.
#[test]
fn a_message_that_comes_behind_the_looks_back_is_found_within_a_moment() {
    let clock = ManualClock::at(NOW);
    let (_till, outbox) = fill(Outbox::options().clock(clock.shared()), later);
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    drain.until_idle(&up).unwrap();
    // Somebody writes: it goes around again, some channels at a time.
    put(&outbox, &later(Message::text("zz", "x"))).unwrap();
    let step = drain.step(&up).unwrap();
    assert!(
        !step.idle && step.wait.is_zero(),
        "there is more to look at"
    );
    let late = Message::text("channel 00150", "now");
    let late = put(&outbox, &late).unwrap().id();
    loop {
        let step = drain.step(&up).unwrap();
        let is_it = |it: &Event| matches!(it, Event::Delivered { id, .. } if *id == late);
        if step.events.iter().any(is_it) {
            break;
        }
        if !step.wait.is_zero() {
            clock.advance(Duration::from_millis(100));
        }
        assert!(clock.now() < NOW + 1_000, "it is not found");
    }
}

/// Their states are read some at a time as well, and somebody pauses one that was read already.
#[test]
fn a_channel_that_is_paused_behind_the_looks_back_is_left_alone() {
    let clock = ManualClock::at(NOW);
    let (till, outbox) = fill(Outbox::options().clock(clock.shared()), later);
    let states = "INSERT INTO outbox_channel (channel) SELECT DISTINCT channel FROM outbox";
    till.sql().execute(states, []).unwrap();
    let mut drain = Inline::new(&outbox, Settings::default()).unwrap();
    let step = drain.step(&up).unwrap();
    assert!(!step.idle && step.wait.is_zero(), "there is more to read");
    let paused = "channel 00000";
    outbox.operator("anna").pause(paused).unwrap();
    drain.until_idle(&up).unwrap();
    // Nobody writes any more, and all become due.
    clock.advance(Duration::from_secs(61));
    drain.until_idle(&up).unwrap();
    let left = "SELECT group_concat(channel) FROM outbox WHERE status <> 'sent'";
    assert_eq!(one(&till.sql(), left), paused);
}

/// Delivers, as long as it has a route at all.
struct Routed(bool);

impl Dispatcher for Routed {
    fn dispatch(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        up(delivery)
    }

    fn serves(&self, _: &str) -> bool {
        self.0
    }
}

/// What came back of a channel was taken for a reason to claim more there, without asking whether
/// there still was a route. So a drain whose route was withdrawn went on through the whole backlog;
/// and a benchmark that settled by a drain without routes measured two claims for one.
#[test]
fn a_channel_whose_route_is_gone_is_claimed_from_no_more_when_its_messages_come_back() {
    let sale = |it: usize| Message::text("sales", format!("{it}"));
    let alone: Vec<_> = (0..200).map(sale).collect();
    let lane = alone.iter().cloned().map(|it| it.ordering_key("till 1"));
    for messages in [alone.clone(), lane.collect()] {
        let till = Till::new();
        let outbox = till.open();
        let answers = outbox.transaction(|tx| outbox.enqueue_all(tx, &messages));
        assert!(answers.unwrap().iter().all(Result::is_ok));
        let mut drain = Inline::new(&outbox, Settings::new().lock_share(1.0)).unwrap();
        let claimed = drain.step(&Routed(true)).unwrap().dispatched;
        assert!(claimed > 0);
        for _ in 0..10 {
            assert_eq!(drain.step(&Routed(false)).unwrap().dispatched, 0);
        }
        assert_eq!(outbox.unsent().unwrap(), 200 - claimed as u64);
    }
}

/// Others come while one channel has claimed all there is room for: what becomes free of it is theirs in
/// equal parts, whoever is asked first.
#[test]
fn what_becomes_free_is_shared_by_the_channels_that_wait() {
    let till = Till::new();
    let (_, outbox) = till.manual(NOW);
    let fill = |channel: &str, messages: usize| {
        for _ in 0..messages {
            put(&outbox, &Message::text(channel, "x")).unwrap();
        }
    };
    let settings = Settings::default().workers(1).prefetch(16);
    let mut drain = Inline::new(&outbox, settings).unwrap();
    // All three are known to be well, so each may claim as many as there is room for.
    for channel in ["a", "b", "c"] {
        fill(channel, 1);
    }
    drain.until_idle(&up).unwrap();
    fill("a", 40);
    assert_eq!(drain.cycle(&up).unwrap().dispatched, 16);
    fill("b", 20);
    fill("c", 20);
    let beyond = drain.cycle(&up).unwrap().dispatched;
    assert_eq!(beyond, 2, "one each, which no other keeps waiting");
    for _ in 0..2 {
        let call = drain.begin().unwrap();
        assert_eq!(call.delivery.channel, "a");
        drain.end(call, Ok(Outcome::delivered()));
    }
    assert_eq!(drain.cycle(&up).unwrap().dispatched, 2);
    let sql = "SELECT channel || ' ' || count(*) FROM outbox WHERE status = 'sending'
                GROUP BY channel ORDER BY channel";
    let claimed = column(&till.sql(), sql);
    assert_eq!(claimed, ["a 14", "b 2", "c 2"]);
}
