//! What a whole file waits for: its numbers are those of its messages.

use std::collections::BTreeMap;

use sqlite_outbox::{Message, OnDead};

use super::why;
use crate::desk::{DAY, Desk, HOUR, MINUTE, START, down, up};

/// Of each channel and reason, how many messages: one by one, and by the groups. Whoever is shown of a
/// group waits for what it says.
fn told(desk: &Desk) -> BTreeMap<(String, &'static str), u64> {
    let mut each: BTreeMap<_, u64> = BTreeMap::new();
    let unsettled = "SELECT id FROM outbox WHERE status NOT IN ('sent', 'expired', 'cancelled')";
    let conn = desk.till.sql();
    let mut ids = conn.prepare(unsettled).unwrap();
    for id in ids.query_map([], |row| row.get(0)).unwrap() {
        let it = why(desk, id.unwrap());
        *each.entry((it.channel, it.reason.code())).or_default() += 1;
    }
    let groups = desk.outbox.why_all().unwrap();
    for it in &groups {
        assert_eq!(why(desk, it.why.id).reason, it.why.reason);
    }
    let by_groups: BTreeMap<_, _> = groups
        .iter()
        .map(|it| ((it.why.channel.clone(), it.why.reason.code()), it.messages))
        .collect();
    assert_eq!(
        by_groups.len(),
        groups.len(),
        "one group for each: {groups:?}"
    );
    assert_eq!(by_groups, each);
    each
}

/// A fresh message was said to have expired, and a scheduled one to have failed.
#[test]
fn messages_that_wait_for_different_things_are_not_told_as_like_ones() {
    let desk = Desk::new();
    for _ in 0..3 {
        desk.put(Message::text("sales", "scheduled").available_at(START + 2 * HOUR));
    }
    desk.put(Message::text("sales", "failed"));
    desk.put(Message::text("sales", "late").expires_at(START + HOUR));
    desk.put(Message::text("sales", "late too").expires_at(START + HOUR));
    desk.put(Message::text("sales", "old"));
    desk.sql(&format!(
        "UPDATE outbox SET claims = 1, attempts = 1, next_attempt_at = {}, last_attempt_at = {START},
                last_error = 'HTTP 500 boom' WHERE id = 4",
        START + 3 * HOUR / 2,
    ));
    desk.pass(HOUR + MINUTE);
    for _ in 0..4 {
        desk.put(Message::text("sales", "fresh"));
    }
    let told = told(&desk);
    let told: Vec<_> = told.iter().map(|((_, code), it)| (*code, *it)).collect();
    assert_eq!(
        told,
        [
            ("back_off", 1),
            ("due", 4),
            ("expired", 2),
            ("no_drain", 1),
            ("scheduled", 3)
        ]
    );
}

#[test]
fn one_that_cannot_be_sent_stands_for_no_other_and_nobody_for_it() {
    let desk = Desk::new();
    for _ in 0..9 {
        desk.put(Message::text("sales", "x"));
    }
    desk.sql("UPDATE outbox SET headers = 'X-Store: 17' WHERE id IN (1, 5)");
    desk.sql("UPDATE outbox SET recipient = CAST(x'ff' AS TEXT) WHERE id = 9");
    let told = told(&desk);
    assert_eq!(told[&("sales".into(), "invalid")], 3);
    assert_eq!(told[&("sales".into(), "due")], 6);
}

/// Lanes, states of channels, claims, moments of all kinds, each beside each.
#[test]
fn the_numbers_of_a_whole_file_are_those_of_its_messages() {
    let desk = Desk::new();
    for channel in ["sales", "down", "paused", "skip"] {
        desk.put(Message::text(channel, "x"));
    }
    desk.anna().on_dead("skip", OnDead::Skip).unwrap();
    desk.anna().pause("paused").unwrap();
    desk.sync(&up);
    desk.put(Message::text("down", "x"));
    desk.sync(&down);
    let mut dice: u64 = 0x5eed;
    let mut roll = |sides: u64| {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    };
    let now = desk.clock.now();
    let moments = [
        0,
        now - 2 * HOUR,
        now - MINUTE / 2,
        now + 3_000,
        now + HOUR,
        now + 40 * DAY,
        now + 4000 * DAY,
    ];
    let mut script = String::new();
    for id in 100..700 {
        let channel = ["sales", "down", "paused", "skip"][roll(4) as usize];
        let key = match roll(3) {
            0 => format!("'{}'", roll(20)),
            _ => "NULL".into(),
        };
        let mut moment = |none: u64| match roll(none) {
            0 => moments[roll(7) as usize].to_string(),
            _ => "NULL".into(),
        };
        let (available, expires) = (moment(4), moment(4));
        let due = moment(2).replace("NULL", "0");
        let created = [now, now - 3 * HOUR][roll(2) as usize];
        let attempts = roll(2);
        script.push_str(&format!(
            "INSERT INTO outbox (id, channel, ordering_key, payload, available_at, expires_at, created_at)
             VALUES ({id}, '{channel}', {key}, 'x', {available}, {expires}, {created});
             UPDATE outbox SET attempts = {attempts}, claims = {attempts},
                    next_attempt_at = max({due}, next_attempt_at) WHERE id = {id};"
        ));
        if roll(12) == 0 {
            let lease = [now - HOUR, now + MINUTE][roll(2) as usize];
            let claim = format!("status = 'sending', next_attempt_at = {lease}");
            script.push_str(&format!(
                "UPDATE outbox SET {claim} WHERE id = {id} AND status = 'pending';"
            ));
        }
        if roll(20) == 0 {
            script.push_str(&format!(
                "UPDATE outbox SET status = 'dead', settled_at = 1
                  WHERE id = {id} AND (status = 'pending' OR status = 'waiting');"
            ));
        }
    }
    desk.sql(&script);
    let told = told(&desk);
    assert!(told.len() > 15, "{told:?}");
    assert!(told.values().sum::<u64>() >= 600, "{told:?}");
}
