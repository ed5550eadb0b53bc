//! Clocks that lie: a till boots in 1970, sleeps in the middle of a request, is set by hand.
//!
//! The production drain on a manual clock. What must hold in every case: nothing dies, nothing
//! expires before its time, and within a minute of real time messages flow.

use std::sync::Mutex;
use std::time::Duration;

use sqlite_outbox::testing::{Call, Inline, ManualClock};
use sqlite_outbox::{
    ChannelState, Counts, Delivery, Dispatcher, Event, Failure, Message, Outbox, Outcome, Policy,
    Settings, Status,
};

use crate::fixture::{Till, one, put};

const START: i64 = 1_800_000_000_000;
const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 3_600 * SECOND;
const DAY: i64 = 24 * HOUR;
const TEN_YEARS: i64 = 3_650 * DAY;

/// A till whose clock is set by hand.
struct Desk {
    till: Till,
    clock: ManualClock,
    outbox: Outbox,
    drain: Inline,
    events: Vec<Event>,
}

impl Desk {
    fn at(wall: i64) -> Self {
        let till = Till::new();
        let clock = ManualClock::at(wall);
        let outbox = Outbox::options()
            .clock(clock.shared())
            .open(&till.path)
            .unwrap();
        let drain = Inline::new(&outbox, settings()).unwrap();
        Self {
            till,
            clock,
            outbox,
            drain,
            events: Vec::new(),
        }
    }

    fn sell(&self, from: usize, count: usize) {
        for i in from..from + count {
            put(&self.outbox, &sale(i)).unwrap();
        }
    }

    /// Lets real time pass, on both clocks, as a pump would.
    fn live(&mut self, span: i64, receiver: &dyn Dispatcher) {
        let mut left = span;
        loop {
            let step = self.drain.step(receiver).unwrap();
            self.events.extend(step.events);
            if step.dispatched > 0 || step.wait.is_zero() {
                continue;
            }
            if left <= 0 {
                return;
            }
            let wait = i64::try_from(step.wait.as_millis()).unwrap().clamp(1, left);
            self.clock
                .advance(Duration::from_millis(wait.unsigned_abs()));
            left -= wait;
        }
    }

    fn counts(&self) -> Counts {
        self.outbox.stats().unwrap().total
    }

    /// The process is killed and started again.
    fn crash(&mut self) {
        self.drain = Inline::new(&self.outbox, settings()).unwrap();
    }

    #[track_caller]
    fn all_sent(&self, messages: u64) {
        let counts = self.counts();
        assert_eq!((counts.sent, counts.unsent()), (messages, 0), "{counts:?}");
        assert_eq!((counts.dead, counts.expired), (0, 0), "{counts:?}");
    }
}

fn settings() -> Settings {
    Settings::default().poll(Duration::from_secs(60))
}

fn sale(i: usize) -> Message {
    Message::text("sales", format!("sale {i}")).dedupe_key(format!("S-{i}"))
}

fn up(_: &Delivery) -> anyhow::Result<Outcome> {
    Ok(Outcome::delivered())
}

fn down(_: &Delivery) -> anyhow::Result<Outcome> {
    Ok(Outcome::Unreachable(Failure::new("refused", "refused")))
}

fn nobody(_: &Delivery) -> anyhow::Result<Outcome> {
    panic!("nothing may be sent now")
}

#[test]
fn a_machine_that_slept_eight_hours_in_mid_request_charges_and_repeats_nothing() {
    let mut desk = Desk::at(START);
    desk.sell(0, 20);
    let clock = desk.clock.clone();
    let slept = Mutex::new(false);
    let keys = Mutex::new(Vec::new());
    let receiver = |delivery: &Delivery| {
        keys.lock().unwrap().push(delivery.message_id.clone());
        if !std::mem::replace(&mut *slept.lock().unwrap(), true) {
            clock.sleep(Duration::from_secs(8 * 3600));
        }
        Ok(Outcome::delivered())
    };
    desk.live(MINUTE, &receiver);
    desk.all_sent(20);
    let mut keys = keys.into_inner().unwrap();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 20);
    assert_eq!(desk.counts().max_attempts, 0);
}

#[test]
fn a_request_that_failed_over_a_sleep_is_repeated_within_a_minute() {
    let mut desk = Desk::at(START);
    desk.sell(0, 5);
    let clock = desk.clock.clone();
    let slept = Mutex::new(false);
    let receiver = |_: &Delivery| {
        if std::mem::replace(&mut *slept.lock().unwrap(), true) {
            return Ok(Outcome::delivered());
        }
        clock.sleep(Duration::from_secs(8 * 3600));
        Ok(Outcome::Unreachable(Failure::new(
            "timeout",
            "the line is gone",
        )))
    };
    desk.live(MINUTE, &receiver);
    desk.all_sent(5);
    assert_eq!(desk.counts().max_attempts, 0);
}

#[test]
fn a_till_that_boots_in_1970_sends_and_then_jumps_to_now() {
    let mut desk = Desk::at(5 * MINUTE);
    desk.sell(0, 10);
    desk.live(MINUTE, &down);
    assert_eq!(desk.counts().dead, 0);
    // Sending needs no right clock.
    desk.live(2 * MINUTE, &up);
    desk.all_sent(10);
    desk.sell(10, 10);
    desk.clock.jump(START);
    desk.live(MINUTE, &up);
    desk.all_sent(20);
}

#[test]
fn messages_enqueued_in_1970_with_a_life_of_hours_live_for_hours_from_now() {
    a_life_of_hours_begins_anew(5 * MINUTE);
}

/// Where the battery is dead, the clock may stand at the day of the firmware.
#[test]
fn messages_enqueued_in_2015_with_a_life_of_hours_live_for_hours_from_now() {
    a_life_of_hours_begins_anew(1_420_070_400_000);
}

fn a_life_of_hours_begins_anew(wrong: i64) {
    // More than are mended in one step: the rest used to expire in the same transaction.
    let mut desk = Desk::at(wrong);
    for i in 0..200 {
        put(&desk.outbox, &sale(i).ttl(Duration::from_secs(4 * 3600))).unwrap();
    }
    desk.live(MINUTE, &down);
    desk.clock.jump(START - wrong);
    desk.live(HOUR, &down);
    let counts = desk.counts();
    assert_eq!((counts.expired, counts.dead), (0, 0), "{counts:?}");
    // They are meant to end all the same.
    desk.live(4 * HOUR, &down);
    assert_eq!(desk.counts().expired, 200, "{:?}", desk.counts());
}

/// A message dies of its own budget only when it is a day old, by moments that can be believed.
#[test]
fn a_first_charge_in_1970_makes_no_message_old_enough_to_die() {
    let mut desk = Desk::at(5 * MINUTE);
    let second = Duration::from_secs(1);
    let policy = Policy::default().max_attempts(2).backoff(second, second);
    desk.drain = Inline::new(&desk.outbox, settings().default_policy(policy)).unwrap();
    let bad = put(&desk.outbox, &Message::text("sales", "bad"))
        .unwrap()
        .id();
    let receiver = |it: &Delivery| {
        Ok(match it.payload == b"bad" {
            true => Outcome::retry("500"),
            false => Outcome::delivered(),
        })
    };
    let mut sales = 0..;
    let mut charge = |desk: &mut Desk, attempts: i64| {
        while desk.outbox.get(bad).unwrap().unwrap().attempts < attempts {
            let sale = sales.next().unwrap();
            assert!(sale < 1_000, "never charged");
            desk.sell(sale, 1);
            desk.live(SECOND, &receiver);
        }
    };
    charge(&mut desk, 1);
    desk.clock.jump(START);
    // Until the clock is believed, nothing dies of age.
    desk.live(5 * MINUTE, &receiver);
    charge(&mut desk, 5);
    let row = desk.outbox.get(bad).unwrap().unwrap();
    assert_eq!(row.status, Status::Pending, "{row:?}");
}

#[test]
fn a_till_with_a_file_of_today_that_boots_in_1970_repairs_and_expires_nothing() {
    let mut desk = Desk::at(START);
    for i in 0..10 {
        put(&desk.outbox, &sale(i).ttl(Duration::from_secs(600))).unwrap();
    }
    desk.live(MINUTE, &down);
    desk.clock.jump(-START);
    desk.crash();
    desk.live(MINUTE, &down);
    assert_eq!(desk.counts().expired, 0);
    desk.live(2 * MINUTE, &up);
    desk.all_sent(10);
}

#[test]
fn ten_years_forward_and_back_kill_expire_and_hold_up_nothing() {
    for receiver_is_up in [true, false] {
        let mut desk = Desk::at(START);
        for i in 0..100 {
            let day = Duration::from_secs(24 * 3600);
            put(&desk.outbox, &sale(i).ttl(day)).unwrap();
        }
        desk.live(10 * MINUTE, &down);
        desk.clock.jump(TEN_YEARS);
        match receiver_is_up {
            true => desk.live(5 * SECOND, &up),
            false => desk.live(5 * SECOND, &down),
        }
        let counts = desk.counts();
        assert_eq!((counts.expired, counts.dead), (0, 0), "{counts:?}");
        desk.clock.jump(-TEN_YEARS);
        desk.sell(100, 10);
        desk.live(MINUTE, &up);
        desk.all_sent(110);
        assert_eq!(desk.counts().max_attempts, 0);
    }
}

#[test]
fn a_process_that_died_ten_years_ahead_leaves_nothing_stuck() {
    let mut desk = Desk::at(START);
    desk.sell(0, 100);
    desk.live(10 * MINUTE, &down);
    desk.clock.jump(TEN_YEARS);
    desk.live(5 * SECOND, &down);
    // Claimed, sent, and never recorded.
    desk.drain.wake();
    while desk.drain.step(&down).unwrap().dispatched == 0 {
        desk.clock.advance(Duration::from_millis(10));
    }
    desk.clock.jump(-TEN_YEARS);
    desk.crash();
    desk.sell(100, 10);
    desk.live(MINUTE, &up);
    desk.all_sent(110);
}

/// Each claim used to step over all of it, under the write lock, and each transaction to take 64 of it
/// away: with 100,000 of them a till felt it for a quarter of an hour.
#[test]
fn a_claim_takes_what_is_overdue_out_of_its_way() {
    let mut desk = Desk::at(START);
    for i in 0..1_000 {
        put(&desk.outbox, &sale(i).ttl(Duration::from_secs(600))).unwrap();
    }
    desk.sell(1_000, 10);
    desk.clock.advance(Duration::from_secs(3600));
    let step = desk.drain.step(&up).unwrap();
    let Some(Event::Expired { messages }) = step.events.last() else {
        panic!("{:?}", step.events);
    };
    assert!(
        (65..=256).contains(messages),
        "{messages} in one transaction"
    );
    desk.live(MINUTE, &up);
    let counts = desk.counts();
    assert_eq!(
        (counts.expired, counts.sent, counts.unsent()),
        (1_000, 10, 0)
    );
}

#[test]
fn what_expired_by_a_clock_that_kept_its_word_expires() {
    let mut desk = Desk::at(START);
    for i in 0..200 {
        put(&desk.outbox, &sale(i).ttl(Duration::from_secs(24 * 3600))).unwrap();
    }
    desk.live(MINUTE, &down);
    desk.clock.jump(2 * DAY);
    desk.live(50 * SECOND, &down);
    assert_eq!(desk.counts().expired, 0, "a jump alone proves nothing");
    desk.live(2 * MINUTE, &down);
    assert_eq!(desk.counts().expired, 200);
    assert_eq!(desk.counts().dead, 0);
    // In steps, so that nobody waits for the lock.
    let steps = desk.events.iter().filter_map(|event| match event {
        Event::Expired { messages } => Some(*messages),
        _ => None,
    });
    let steps: Vec<_> = steps.collect();
    assert!(
        steps.len() > 1 && steps.iter().all(|it| *it <= 128),
        "{steps:?}"
    );
}

#[test]
fn a_clock_set_back_half_a_day_delays_nothing() {
    let mut desk = Desk::at(START);
    // One failed on its own merits and waits out its back-off.
    put(&desk.outbox, &sale(0)).unwrap();
    desk.live(SECOND, &up);
    desk.sell(1, 20);
    let busy = |_: &Delivery| Ok(Outcome::retry("locked"));
    desk.live(2 * SECOND, &busy);
    assert_eq!(desk.counts().max_attempts, 1);
    desk.sell(21, 100);
    desk.clock.jump(-12 * HOUR);
    desk.sell(121, 10);
    desk.live(MINUTE, &up);
    desk.all_sent(131);
}

/// A head in back-off is demoted, as a person retries one before it, and the clock is set back meanwhile.
fn demoted(desk: &mut Desk) -> Call {
    let lane = |i| sale(i).ordering_key("one");
    let first = put(&desk.outbox, &lane(0)).unwrap().id();
    let shop = desk.outbox.clone();
    let anna = shop.operator("anna");
    anna.cancel(first).unwrap();
    put(&desk.outbox, &sale(1)).unwrap();
    desk.live(SECOND, &up);
    put(&desk.outbox, &lane(2)).unwrap();
    desk.live(SECOND, &|_: &Delivery| Ok(Outcome::retry("locked")));
    assert_eq!(desk.counts().max_attempts, 1);
    anna.retry(first).unwrap();
    desk.drain.cycle(&up).unwrap();
    let call = desk.drain.begin().unwrap();
    assert_eq!(call.delivery.id, first);
    desk.clock.jump(-5 * HOUR);
    desk.drain.cycle(&up).unwrap();
    put(&desk.outbox, &lane(3)).unwrap();
    call
}

/// What waited in its lane when the clock was set back kept the due time of before, and its lane stood for hours.
#[test]
fn a_message_in_back_off_that_waits_behind_another_when_the_clock_is_set_back_is_not_late_for_long()
{
    let mut desk = Desk::at(START);
    let call = demoted(&mut desk);
    desk.drain.end(call, up(&Delivery::new("sales", "x")));
    desk.live(6 * MINUTE, &up);
    desk.all_sent(4);
}

/// The same where a person takes away what it waits for.
#[test]
fn nor_is_one_whose_way_a_person_clears() {
    let mut desk = Desk::at(START);
    let call = demoted(&mut desk);
    let first = call.delivery.id;
    let no = Outcome::Rejected(Failure::new("http", "no such item"));
    desk.drain.end(call, Ok(no));
    desk.live(SECOND, &up);
    desk.outbox.operator("anna").cancel(first).unwrap();
    desk.live(6 * MINUTE, &up);
    let counts = desk.counts();
    assert_eq!((counts.sent, counts.cancelled, counts.unsent()), (3, 1, 0));
}

/// The same where the rest of its run was still on the wire when the process died.
#[test]
fn nor_is_one_whose_run_died_before() {
    let mut desk = Desk::at(START);
    for i in 0..3 {
        put(&desk.outbox, &sale(i).ordering_key("one")).unwrap();
    }
    assert_eq!(desk.drain.cycle(&up).unwrap().dispatched, 3);
    // As the first answer of a batch is recorded while the others are awaited.
    let failed = "UPDATE outbox SET status = 'waiting', attempts = 1, last_attempt_at = ?1,
                         next_attempt_at = ?1 + 30000 WHERE id = 1";
    desk.till.sql().execute(failed, [START]).unwrap();
    desk.clock.jump(-5 * HOUR);
    desk.crash();
    put(&desk.outbox, &sale(3).ordering_key("one")).unwrap();
    desk.live(6 * MINUTE, &up);
    desk.all_sent(4);
}

/// A sale by the right clock, before the program started, hid that the file was ahead of it.
#[test]
fn a_restart_with_the_clock_set_back_and_a_sale_before_it_delays_no_message_in_back_off() {
    let mut desk = Desk::at(START);
    desk.sell(0, 2);
    desk.live(SECOND, &|_: &Delivery| Ok(Outcome::retry("locked")));
    desk.clock.jump(-5 * HOUR);
    desk.sell(2, 1);
    desk.crash();
    desk.live(MINUTE, &up);
    desk.all_sent(3);
}

#[test]
fn a_restart_with_the_clock_set_back_delays_no_new_or_ready_message() {
    let mut desk = Desk::at(START);
    desk.sell(0, 100);
    desk.clock.jump(-12 * HOUR);
    desk.crash();
    desk.sell(100, 10);
    desk.live(MINUTE, &up);
    desk.all_sent(110);
}

/// The restarted process saw no step; it sees a file that is ahead of its clock.
#[test]
fn a_restart_with_the_clock_set_back_delays_no_message_in_back_off() {
    let mut desk = Desk::at(START);
    desk.sell(0, 20);
    desk.live(10 * MINUTE, &down);
    desk.sell(20, 1);
    desk.live(10 * SECOND, &down);
    desk.clock.jump(-12 * HOUR);
    desk.crash();
    desk.live(MINUTE, &up);
    desk.all_sent(21);
}

#[test]
fn a_hold_keeps_what_was_left_of_it_when_the_clock_is_set_back() {
    let mut desk = Desk::at(START);
    desk.sell(0, 30);
    let limited = |_: &Delivery| {
        let failure = Failure::new("http_429", "slow down").status(429);
        Ok(Outcome::Retry(failure.after(Duration::from_secs(30))))
    };
    desk.live(SECOND, &limited);
    assert_eq!(state(&desk.outbox), ChannelState::Holding);
    // Another process watches the same clock.
    let mut other = Inline::new(&desk.outbox, settings()).unwrap();
    other.until_idle(&nobody).unwrap();
    desk.live(4 * SECOND, &nobody);
    desk.clock.jump(-12 * HOUR);
    desk.live(SECOND, &nobody);
    other.until_idle(&nobody).unwrap();
    desk.live(19 * SECOND, &nobody);
    desk.drain.wake();
    desk.live(SECOND, &nobody);
    desk.live(MINUTE, &up);
    desk.all_sent(30);
}

#[test]
fn a_hold_that_was_asked_for_while_a_process_hung_is_not_shortened_by_what_it_knew() {
    let mut desk = Desk::at(START);
    desk.sell(0, 30);
    let limited = |seconds| {
        move |_: &Delivery| {
            let failure = Failure::new("http_429", "slow down").status(429);
            Ok(Outcome::Retry(failure.after(Duration::from_secs(seconds))))
        }
    };
    desk.live(SECOND, &limited(30));
    // One that knows of this hold hangs, while another hears of the next by the clock set back.
    let mut hung = Inline::new(&desk.outbox, settings()).unwrap();
    hung.until_idle(&nobody).unwrap();
    desk.clock.jump(-2 * MINUTE);
    desk.live(MINUTE, &limited(300));
    assert_eq!(state(&desk.outbox), ChannelState::Holding);
    hung.until_idle(&nobody).unwrap();
    desk.live(4 * MINUTE, &nobody);
    desk.live(2 * MINUTE, &up);
    desk.all_sent(30);
}

#[test]
fn a_lease_stamped_by_a_clock_that_ran_ahead_is_taken_over_within_a_minute() {
    let mut desk = Desk::at(START);
    desk.clock.jump(3 * HOUR);
    desk.sell(0, 10);
    // It claims, and is killed before anything is recorded.
    while desk.drain.step(&down).unwrap().dispatched == 0 {
        desk.clock.advance(Duration::from_millis(10));
    }
    assert!(desk.counts().sending > 0);
    desk.clock.jump(-3 * HOUR);
    desk.crash();
    desk.live(MINUTE, &up);
    desk.all_sent(10);
}

#[test]
fn a_living_claim_is_not_stolen_when_the_clock_jumps() {
    let mut desk = Desk::at(START);
    desk.sell(0, 1);
    let clock = desk.clock.clone();
    let outbox = desk.outbox.clone();
    let receiver = |_: &Delivery| {
        clock.jump(3 * HOUR);
        // Another process looks at once, and again a moment later.
        let mut other = Inline::new(&outbox, settings()).unwrap();
        for _ in 0..20 {
            other.step(&nobody).unwrap();
            clock.advance(Duration::from_millis(50));
        }
        Ok(Outcome::delivered())
    };
    desk.live(MINUTE, &receiver);
    desk.all_sent(1);
}

#[test]
fn times_before_1970_and_at_the_end_of_time_stop_nothing() {
    for wall in [-DAY, 0, 1, i64::MAX / 2] {
        let mut desk = Desk::at(wall);
        desk.sell(0, 10);
        desk.live(MINUTE, &down);
        desk.live(2 * MINUTE, &up);
        desk.all_sent(10);
    }
}

#[test]
fn a_clock_that_steps_back_between_claim_and_answer_shows_no_negative_span() {
    let mut desk = Desk::at(START);
    desk.sell(0, 1);
    let clock = desk.clock.clone();
    let receiver = |_: &Delivery| {
        clock.jump(-3 * DAY);
        Ok(Outcome::Unreachable(Failure::new("refused", "refused")))
    };
    let mut steps = 0;
    while desk.drain.step(&receiver).unwrap().dispatched == 0 {
        desk.clock.advance(Duration::from_millis(10));
        steps += 1;
        assert!(steps < 100);
    }
    desk.live(10 * SECOND, &down);
    let stats = desk.outbox.stats().unwrap();
    assert_eq!(stats.total.oldest_unsent_ms(stats.now), Some(0));
    let id = desk.outbox.get_by_key("sales", "S-0").unwrap().unwrap().id;
    let attempts = desk.outbox.attempts(id).unwrap();
    assert!(!attempts.is_empty());
    assert!(attempts.iter().all(|it| it.duration_ms.unwrap_or(0) >= 0));
    desk.live(MINUTE, &up);
    desk.all_sent(1);
}

#[test]
fn a_schedule_is_kept_by_the_wall_clock_and_by_no_repair() {
    let mut desk = Desk::at(START);
    put(&desk.outbox, &sale(0).available_at(START + HOUR)).unwrap();
    put(&desk.outbox, &sale(1).available_at(START + 90 * DAY)).unwrap();
    desk.crash();
    desk.drain.wake();
    desk.live(59 * MINUTE, &nobody);
    desk.clock.jump(-2 * HOUR);
    desk.live(2 * HOUR, &nobody);
    desk.live(2 * MINUTE, &up);
    let counts = desk.counts();
    assert_eq!((counts.sent, counts.unsent()), (1, 1), "{counts:?}");
}

#[test]
fn times_are_whole_milliseconds_and_each_is_served_at_its_own() {
    let mut desk = Desk::at(START);
    // As text, .7 would sort behind .735.
    for (i, at) in [START + 700, START + 735, START + 1_000].iter().enumerate() {
        put(&desk.outbox, &sale(i).available_at(*at)).unwrap();
    }
    let arrived = Mutex::new(Vec::new());
    let clock = desk.clock.clone();
    let receiver = |_: &Delivery| {
        arrived.lock().unwrap().push(clock.now() - START);
        Ok(Outcome::delivered())
    };
    desk.live(2 * SECOND, &receiver);
    let arrived = arrived.into_inner().unwrap();
    assert_eq!(arrived.len(), 3);
    for (at, due) in arrived.iter().zip([700, 735, 1_000]) {
        assert!((due..due + 100).contains(at), "{arrived:?}");
    }
    let kinds = "SELECT count(*) FROM outbox WHERE typeof(created_at) <> 'integer'
                   OR typeof(next_attempt_at) <> 'integer'
                   OR typeof(settled_at) NOT IN ('integer', 'null')";
    assert_eq!(one(&desk.till.sql(), kinds), "0");
}

#[test]
fn nothing_settled_is_touched_by_any_jump() {
    let mut desk = Desk::at(START);
    desk.sell(0, 50);
    let odd = |delivery: &Delivery| {
        Ok(match delivery.dedupe_key.ends_with('7') {
            true => Outcome::rejected("no such article"),
            false => Outcome::delivered(),
        })
    };
    desk.live(MINUTE, &odd);
    desk.sell(50, 10);
    for by in [TEN_YEARS, -TEN_YEARS, -START, START] {
        desk.clock.jump(by);
        desk.live(5 * SECOND, &down);
    }
    let counts = desk.counts();
    assert_eq!((counts.sent, counts.dead, counts.unsent()), (45, 5, 10));
    desk.live(MINUTE, &up);
    assert_eq!(desk.counts().sent, 55);
    let dead = desk.outbox.get_by_key("sales", "S-7").unwrap().unwrap();
    assert_eq!((dead.status, dead.payload.len()), (Status::Dead, 6));
}

fn state(outbox: &Outbox) -> ChannelState {
    outbox.stats().unwrap().channels[0].state
}
