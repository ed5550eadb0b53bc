//! The faults.

/// One fault.
pub(super) struct Mutant {
    pub(super) name: &'static str,
    pub(super) changes: &'static [Change],
}

/// A text that stands once in a file, and what stands there instead.
pub(super) struct Change {
    pub(super) file: &'static str,
    pub(super) search: &'static str,
    pub(super) replace: &'static str,
}

const fn change(file: &'static str, search: &'static str, replace: &'static str) -> Change {
    Change {
        file,
        search,
        replace,
    }
}

const SCHEMA: &str = "schema.sql";
const CLAIM: &str = "src/store/claim.rs";
const SETTLE: &str = "src/store/settle.rs";
const TRANSACT: &str = "src/drain/transact.rs";
const FLIGHT: &str = "src/drain/flight.rs";
const LEASE: &str = "src/drain/lease.rs";
const CIRCUIT: &str = "src/circuit.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a verdict is written without its fence",
        changes: &[
            change(
                SETTLE,
                "WHERE id = ?1 AND claims = ?2 AND status = 'sending')\";",
                "WHERE id = ?1 AND claims >= ?2 AND status = 'sending')\";",
            ),
            change(
                SETTLE,
                "last_error = :error\n WHERE id = :id AND claims = :claims",
                "last_error = :error\n WHERE id = :id AND claims >= :claims",
            ),
        ],
    },
    Mutant {
        name: "deliveries are written together without their fence",
        changes: &[change(
            SETTLE,
            "AND claims = CASE id{} END",
            "AND claims >= CASE id{} END",
        )],
    },
    Mutant {
        name: "one of several deliveries is not written",
        changes: &[change(
            "src/drain/settling.rs",
            "sent.sort_by_key(|it| it.claim.id);",
            "sent.sort_by_key(|it| it.claim.id);\n        sent.pop();",
        )],
    },
    Mutant {
        name: "a run is given back without its fence",
        changes: &[change(
            SETTLE,
            "THEN 0 ELSE ?3 END\n WHERE id = ?1 AND claims = ?2",
            "THEN 0 ELSE ?3 END\n WHERE id = ?1 AND claims >= ?2",
        )],
    },
    Mutant {
        name: "a failure is charged while the receiver is offline",
        changes: &[change(
            CIRCUIT,
            "std::mem::take(&mut self.evidence)",
            "{\n            self.evidence = false;\n            true\n        }",
        )],
    },
    Mutant {
        name: "the evidence of a delivery is not spent",
        changes: &[change(
            CIRCUIT,
            "std::mem::take(&mut self.evidence)",
            "self.evidence",
        )],
    },
    Mutant {
        name: "nobody is ever charged",
        changes: &[change(
            CIRCUIT,
            "std::mem::take(&mut self.evidence)",
            "std::mem::take(&mut self.evidence) && false",
        )],
    },
    Mutant {
        name: "memory changes although the commit failed",
        changes: &[change(
            "src/drain/write.rs",
            "match tx.commit() {",
            "match tx.commit().or(Ok(())) {",
        )],
    },
    Mutant {
        name: "answers are forgotten when a write fails",
        changes: &[change(
            "src/drain/write.rs",
            "self.failing = true;",
            "self.failing = true;\n        self.reports.clear();",
        )],
    },
    Mutant {
        name: "lane promotion is forgotten",
        changes: &[change(
            SCHEMA,
            "UPDATE outbox SET status = 'pending'\n   WHERE id =",
            "UPDATE outbox SET status = 'pending'\n   WHERE 0 AND id =",
        )],
    },
    Mutant {
        name: "lane demotion is forgotten",
        changes: &[change(
            SCHEMA,
            "UPDATE outbox SET status = 'waiting'\n   WHERE channel =",
            "UPDATE outbox SET status = 'waiting'\n   WHERE 0 AND channel =",
        )],
    },
    Mutant {
        name: "a retried dead letter forgets its place",
        changes: &[change(
            SCHEMA,
            " AND NOT (OLD.status = 'waiting'\n",
            " AND NOT (OLD.status = 'dead' AND NEW.status = 'pending')\n AND NOT (OLD.status = 'waiting'\n",
        )],
    },
    Mutant {
        name: "a run passes a dead letter that holds it",
        changes: &[change(CLAIM, "AND id < coalesce(", "AND id <> coalesce(")],
    },
    Mutant {
        name: "leases are not renewed",
        changes: &[change(
            FLIGHT,
            "} else if run.lease.is_worn(at, lease) {\n                renew.push(*number);",
            "} else if run.lease.is_worn(at, lease) && false {\n                renew.push(*number);",
        )],
    },
    Mutant {
        name: "a stale lease is taken at once",
        changes: &[change(
            "src/drain/memory.rs",
            "const STEAL_AFTER: Duration = Duration::from_secs(2);",
            "const STEAL_AFTER: Duration = Duration::from_micros(500);",
        )],
    },
    Mutant {
        name: "a worker does not look at its lease",
        changes: &[change(
            LEASE,
            "in_time && self.left(at) > 0 && ",
            "in_time && ",
        )],
    },
    Mutant {
        name: "a worker does not look at the expiry",
        changes: &[change(
            LEASE,
            "delivery.expires_at.is_none_or(|it| at.wall < it)",
            "delivery.expires_at.is_none_or(|_| true)",
        )],
    },
    Mutant {
        name: "a run that is given back is charged",
        changes: &[change(
            SETTLE,
            "UPDATE outbox SET status = CASE WHEN ordering_key IS NULL THEN 'pending' ELSE 'waiting' END,",
            "UPDATE outbox SET attempts = attempts + 1, status = CASE WHEN ordering_key IS NULL THEN 'pending' ELSE 'waiting' END,",
        )],
    },
    Mutant {
        name: "a run goes on after a failure",
        changes: &[change(
            "src/dispatch/run.rs",
            "if !delivered {",
            "if !delivered && false {",
        )],
    },
    Mutant {
        name: "the next run of a lane does not wait for the last",
        changes: &[change(
            "src/drain/chain.rs",
            "                *link = Link::Next(Box::new(run));\n                Follow::Waits",
            "                Follow::Goes(run)",
        )],
    },
    Mutant {
        name: "the next run of a lane is claimed past one that came back",
        changes: &[change(
            CLAIM,
            "SELECT NOT EXISTS (SELECT 1 FROM outbox\n                    WHERE channel = ?1 AND ordering_key = ?2 AND status = 'waiting' AND id <= ?3)",
            "SELECT NOT EXISTS (SELECT 1 FROM outbox\n                    WHERE channel = ?1 AND ordering_key = ?2 AND status = 'waiting' AND id < ?3 AND 0)",
        )],
    },
    Mutant {
        name: "probes do not alternate",
        changes: &[change(
            CIRCUIT,
            "Turn::Fresh => Turn::Retry,\n            Turn::Retry => Turn::Fresh,",
            "Turn::Fresh => Turn::Fresh,\n            Turn::Retry => Turn::Retry,",
        )],
    },
    Mutant {
        name: "the brake is dropped",
        changes: &[change(
            CIRCUIT,
            "let suspected = self.rejections >= brake;",
            "let suspected = self.rejections >= brake && false;",
        )],
    },
    Mutant {
        name: "a message dies whatever its age",
        changes: &[change(
            "src/verdict.rs",
            "let old_enough = due == 0 ||",
            "let old_enough = due >= 0 ||",
        )],
    },
    Mutant {
        name: "the state of a channel is not read again under the lock",
        changes: &[change(
            TRANSACT,
            "let before = match self.stale {",
            "let before = match false {",
        )],
    },
    Mutant {
        name: "a pause is ignored",
        changes: &[change(
            CIRCUIT,
            "if self.pause.is_some() {\n            return Admission::Closed(None);",
            "if self.pause.is_some() && false {\n            return Admission::Closed(None);",
        )],
    },
    Mutant {
        name: "a Retry-After is ignored",
        changes: &[change(
            CIRCUIT,
            "ChannelState::Holding => crate::retry::HOLD_MAX,",
            "ChannelState::Holding => 0,",
        )],
    },
    Mutant {
        name: "each attempt has a new idempotency key",
        changes: &[change(
            SETTLE,
            "UPDATE outbox SET status = 'pending', next_attempt_at = :due,",
            "UPDATE outbox SET status = 'pending', message_id = lower(hex(randomblob(16))), next_attempt_at = :due,",
        )],
    },
    Mutant {
        name: "the dedupe key is not kept",
        changes: &[change(
            "src/store/enqueue.rs",
            "coalesce(?6, lower(hex(randomblob(16))))",
            "coalesce(?6, '') || lower(hex(randomblob(16)))",
        )],
    },
    Mutant {
        name: "a late success frees a lane that another is sending",
        changes: &[change(
            SETTLE,
            "AND (status <> 'sending' OR ordering_key IS NULL)",
            "AND (status <> 'sending' OR ordering_key IS NULL OR 1)",
        )],
    },
    Mutant {
        name: "more is claimed than may be",
        changes: &[
            change(
                "src/drain/memory.rs",
                "(requests * settings.prefetch).min(",
                "(requests * settings.prefetch * 1000).min(",
            ),
            change(
                "src/settings.rs",
                "        self.workers * self.prefetch\n",
                "        self.workers * self.prefetch * 1000\n",
            ),
        ],
    },
    Mutant {
        name: "runs have any length",
        changes: &[change(
            "src/drain/claiming.rs",
            "run_length.saturating_sub(1);",
            "run_length.saturating_mul(1000);",
        )],
    },
    Mutant {
        name: "attempts are kept for ever",
        changes: &[change(
            SETTLE,
            "ORDER BY id DESC LIMIT 1 OFFSET 20",
            "ORDER BY id DESC LIMIT 1 OFFSET 2000000",
        )],
    },
    Mutant {
        name: "all that are recorded together get the first one's answer",
        changes: &[change(
            SETTLE,
            "let provider = told.and_then(|it|",
            "let provider = told.and(set.first()).and_then(|it|",
        )],
    },
    Mutant {
        name: "a retry forgets the headers",
        changes: &[change(
            SETTLE,
            "UPDATE outbox SET status = 'pending', next_attempt_at = :due,",
            "UPDATE outbox SET status = 'pending', headers = NULL, next_attempt_at = :due,",
        )],
    },
    Mutant {
        name: "a retry forgets the expiry",
        changes: &[change(
            SETTLE,
            "UPDATE outbox SET status = 'pending', next_attempt_at = :due,",
            "UPDATE outbox SET status = 'pending', expires_at = NULL, next_attempt_at = :due,",
        )],
    },
    Mutant {
        name: "a receiver is left alone for a tenth of what it asked for",
        changes: &[change(
            CIRCUIT,
            "let until = now.saturating_add(span);\n        if self.state",
            "let until = now.saturating_add(span / 10);\n        if self.state",
        )],
    },
    Mutant {
        name: "a clock in doubt makes messages expire",
        changes: &[
            change(
                TRANSACT,
                "if !self.trusted {\n            return Ok(());",
                "if !self.trusted && false {\n            return Ok(());",
            ),
            change(
                "src/drain/look.rs",
                "if self.watch.trusted()\n",
                "if (self.watch.trusted() || true)\n",
            ),
        ],
    },
    Mutant {
        name: "a run goes on although its channel got into trouble",
        changes: &[change(
            LEASE,
            "self.recalled.store(true, Ordering::Release);",
            "self.recalled.store(false, Ordering::Release);",
        )],
    },
    Mutant {
        name: "any number of rows is claimed by one transaction",
        changes: &[change(
            "src/drain/write.rs",
            "let mut batch = self.batch;",
            "let mut batch = self.batch * 1000;",
        )],
    },
    Mutant {
        name: "any number of rows expires by one transaction",
        changes: &[change(
            TRANSACT,
            "upkeep::overdue(self.conn, now, EXPIRE_STEP)?",
            "upkeep::overdue(self.conn, now, EXPIRE_STEP * 1000)?",
        )],
    },
    Mutant {
        name: "a round of the survey of channels ends early",
        changes: &[change(
            "src/drain/survey.rs",
            "if around || (ended && from_the_beginning) {",
            "if around || ended {",
        )],
    },
    Mutant {
        name: "a lane goes on twice behind a worker that has not returned",
        changes: &[change(
            CLAIM,
            "status = 'sending' AND id > ?3)",
            "status = 'sending' AND id > ?3 AND 0)",
        )],
    },
    Mutant {
        name: "a lane goes on behind a dead letter that ends its run",
        changes: &[change(
            CLAIM,
            "status = 'dead' AND id <= ?3)",
            "status = 'dead' AND id < ?3)",
        )],
    },
    Mutant {
        name: "an ordering key is not kept",
        changes: &[change(
            "src/store/enqueue.rs",
            "        &message.ordering_key,\n        &message.principal,",
            "        &None::<String>,\n        &message.principal,",
        )],
    },
];
