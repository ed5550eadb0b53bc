//! The same trouble for a pump with its threads, by the real clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlite_outbox::{Delivery, Error, Message, Outbox, Outcome, Settings};

use crate::fixture::{Till, nap, one, put};
use crate::vfs::{Call, Fault, Trouble, Vfs};

const HANG: Duration = Duration::from_secs(60);

/// A receiver that takes everything and counts it by dedupe key.
#[derive(Clone, Default)]
pub(super) struct Counter(Arc<Mutex<HashMap<String, u32>>>);

impl Counter {
    pub(super) fn take(&self, delivery: &Delivery) -> anyhow::Result<Outcome> {
        let key = delivery.dedupe_key.clone();
        *self.0.lock().unwrap().entry(key).or_default() += 1;
        nap(3);
        Ok(Outcome::delivered())
    }

    pub(super) fn calls(&self) -> u32 {
        self.0.lock().unwrap().values().sum()
    }

    pub(super) fn keys(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

pub(super) fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let until = Instant::now() + HANG;
    while !reached() {
        assert!(Instant::now() < until, "never: {what}");
        nap(5);
    }
}

fn fill(outbox: &Outbox, messages: usize) {
    let sold = outbox.transaction(|tx| {
        for n in 0..messages {
            let message = Message::text("sales", "x").dedupe_key(format!("S-{n}"));
            outbox.enqueue(tx, &message)?;
        }
        anyhow::Ok(())
    });
    sold.unwrap();
}

/// What is under way when nothing can be recorded any more is the last: the rest of what was claimed
/// waits.
#[test]
fn a_pump_on_a_failing_disk_sends_nothing_more_and_goes_on_when_the_disk_does() {
    let troubles: [(&[Call], Trouble); 3] = [
        (&[Call::Write], Trouble::Full),
        (&[Call::Sync], Trouble::Io),
        (&[Call::ShmLock], Trouble::Io),
    ];
    for (calls, trouble) in troubles {
        let (till, vfs, counter) = (Till::new(), Vfs::register(), Counter::default());
        let outbox = Outbox::options().vfs(vfs.name()).open(&till.path).unwrap();
        fill(&outbox, 100);
        let settings = Settings::default().workers(2).prefetch(8);
        let receiver = counter.clone();
        // So slow that the pump hears of the trouble before all that it has claimed is sent.
        let pump = outbox.pump(move |it: &Delivery| {
            nap(40);
            receiver.take(it)
        });
        let pump = pump.settings(settings).start().unwrap();
        wait_until("30 calls", || counter.calls() >= 30);
        vfs.fail(Fault {
            calls,
            first: 1,
            times: u64::MAX,
            trouble,
        });
        wait_until("an error", || pump.health().error.is_some());
        // What was under way then.
        nap(300);
        let calls_then = counter.calls();
        nap(700);
        assert_eq!(
            counter.calls(),
            calls_then,
            "{trouble:?}: sent what cannot be recorded"
        );
        let count = |sql: &str| one(&till.sql(), sql).parse::<u32>().unwrap();
        let recorded = count("SELECT count(*) FROM outbox WHERE status = 'sent'");
        let claimed = count("SELECT count(*) FROM outbox WHERE status = 'sending'");
        assert!(
            calls_then < recorded + claimed,
            "{trouble:?}: {calls_then} sent of {recorded} recorded and {claimed} claimed"
        );
        assert!(vfs.heal() > 0);
        wait_until("all sent", || outbox.unsent().is_ok_and(|it| it == 0));
        assert_eq!(
            (counter.keys(), counter.calls()),
            (100, 100),
            "{trouble:?}: once each"
        );
        assert_eq!(pump.health().error, None, "{trouble:?}");
        pump.stop(HANG).unwrap();
    }
}

/// Two drains with a lease of a second, and someone who keeps the write lock for six.
#[test]
fn a_lock_held_for_longer_than_the_lease_costs_time_and_nothing_else() {
    let (till, counter) = (Till::new(), Counter::default());
    let outboxes = [till.open(), till.open()];
    fill(&outboxes[0], 300);
    let pumps = outboxes.each_ref().map(|outbox| {
        let receiver = counter.clone();
        let settings = Settings::default().lease(Duration::from_secs(1)).workers(2);
        let pump = outbox.pump(move |it: &Delivery| receiver.take(it));
        pump.settings(settings).start().unwrap()
    });
    wait_until("20 calls", || counter.calls() >= 20);
    let holder = till.sql();
    holder.busy_timeout(HANG).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let held = Instant::now();
    let late = Message::text("sales", "late").dedupe_key("late");
    let error = put(&outboxes[0], &late).unwrap_err();
    assert!(matches!(error, Error::Busy(_)), "{error:?}");
    assert!(held.elapsed() < HANG, "it hung");
    while held.elapsed() < Duration::from_secs(6) {
        nap(50);
    }
    holder.execute_batch("COMMIT").unwrap();
    put(&outboxes[0], &late).unwrap();
    wait_until("all sent", || outboxes[0].unsent().unwrap() == 0);
    assert_eq!((counter.keys(), counter.calls()), (301, 301), "once each");
    for pump in pumps {
        pump.stop(HANG).unwrap();
    }
    assert_eq!(one(&till.sql(), "PRAGMA integrity_check"), "ok");
}
