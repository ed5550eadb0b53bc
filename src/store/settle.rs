//! Recording what became of a claim. Every statement matches `(id, claims)` and looks at its row
//! count: a claim that has passed on is settled by whoever holds it now.
//!
//! A row that is `sending` with a `settled_at` was delivered by an earlier holder whose answer came
//! late. It becomes sent when the present holder reports, whatever the report says.

use std::sync::LazyLock;

use rusqlite::{Connection, OptionalExtension, named_params};

use crate::dispatch::{Failure, Receipt};
use crate::store::untold::Untold;
use crate::store::{Raw, Sized, sets};
use crate::verdict::Verdict;

pub(crate) const SENT: &str = "
UPDATE outbox SET status = 'sent', settled_at = :now, last_attempt_at = :now, last_error = NULL,
       provider_id = coalesce(provider_id, :provider_id), answer = coalesce(answer, :answer)
 WHERE id = :id AND claims = :claims AND status = 'sending' AND settled_at IS NULL";

/// The same for many deliveries, each `(id, claims, provider_id, answer)`. Not an `UPDATE … FROM`:
/// with the statistics of a nearly empty outbox, SQLite would walk the whole table for it.
pub(crate) static SENT_SET: LazyLock<Sized> = LazyLock::new(|| Sized::new(sent_sql));

fn sent_sql(size: usize) -> String {
    let first = |row: usize| row * 4 + 4;
    let each = |column: usize| -> String {
        let told = |row: usize| format!(" WHEN ?{} THEN ?{}", first(row), first(row) + column);
        (0..size).map(told).collect()
    };
    let ids: Vec<String> = (0..size).map(|row| format!("?{}", first(row))).collect();
    format!(
        "
UPDATE outbox NOT INDEXED SET status = 'sent', settled_at = ?1, last_attempt_at = ?1, last_error = NULL,
       provider_id = coalesce(provider_id, CASE id{} END), answer = coalesce(answer, CASE id{} END)
 WHERE id BETWEEN ?2 AND ?3 AND id IN ({}) AND claims = CASE id{} END
   AND status = 'sending' AND settled_at IS NULL",
        each(2),
        each(3),
        ids.join(", "),
        each(1),
    )
}

/// An earlier holder delivered it: nothing the present one says can undo that.
pub(crate) const CONFIRM: &str = "
UPDATE outbox SET status = 'sent'
 WHERE id = ?1 AND claims = ?2 AND status = 'sending' AND settled_at IS NOT NULL";

/// Back in line. In a lane the triggers decide whether it is `pending`.
pub(crate) const AGAIN: &str = "
UPDATE outbox SET status = 'pending', next_attempt_at = :due, attempts = :attempts,
       last_attempt_at = :now, last_error = :error
 WHERE id = :id AND claims = :claims AND status = 'sending' AND settled_at IS NULL";

/// Due at once: among the fresh ones if it never was tried, else among the retries.
pub(crate) const RELEASE: &str = "
UPDATE outbox SET status = CASE WHEN ordering_key IS NULL THEN 'pending' ELSE 'waiting' END,
       next_attempt_at = CASE WHEN last_attempt_at IS NULL THEN 0 ELSE ?3 END
 WHERE id = ?1 AND claims = ?2 AND status = 'sending' AND settled_at IS NULL";

pub(crate) const DEAD: &str = "
UPDATE outbox SET status = 'dead', settled_at = :now, attempts = :attempts,
       last_attempt_at = :now, last_error = :error, answer = :answer
 WHERE id = :id AND claims = :claims AND status = 'sending' AND settled_at IS NULL";

pub(crate) const RENEW: &str = "
UPDATE outbox SET next_attempt_at = ?3 WHERE id = ?1 AND claims = ?2 AND status = 'sending'";

pub(crate) const IS_OURS: &str = "
SELECT EXISTS (SELECT 1 FROM outbox WHERE id = ?1 AND claims = ?2 AND status = 'sending')";

pub(crate) const LATE_SENT: &str = "
UPDATE outbox SET status = 'sent', settled_at = :now, last_attempt_at = :now, last_error = NULL,
       provider_id = coalesce(provider_id, :provider_id), answer = coalesce(:answer, answer)
 WHERE id = :id AND message_id = :message_id AND status <> 'sent'
   AND (status <> 'sending' OR ordering_key IS NULL)";

/// An ordered row that someone else is sending right now: freeing its lane would let the next
/// message overtake the copy that is on the wire.
pub(crate) const LATE_NOTED: &str = "
UPDATE outbox SET settled_at = :now, last_attempt_at = :now,
       provider_id = coalesce(provider_id, :provider_id), answer = coalesce(answer, :answer)
 WHERE id = :id AND message_id = :message_id AND status = 'sending' AND settled_at IS NULL";

/// A stale run goes back as a whole, never row by row: its members share their lease.
pub(crate) const TAKE_BACK_RUN: &str = "
UPDATE outbox SET status = CASE WHEN settled_at IS NULL THEN 'waiting' ELSE 'sent' END,
       next_attempt_at = 0
 WHERE channel = ?1 AND ordering_key = ?2 AND status = 'sending' AND next_attempt_at = ?3";

pub(crate) const TAKE_BACK: &str = "
UPDATE outbox SET status = CASE WHEN settled_at IS NULL THEN 'pending' ELSE 'sent' END,
       next_attempt_at = 0
 WHERE id = ?1 AND claims = ?2 AND status = 'sending'";

pub(crate) const RUN_CLAIMS: &str = "
SELECT id FROM outbox
 WHERE channel = ?1 AND ordering_key = ?2 AND status = 'sending' AND next_attempt_at = ?3
   AND settled_at IS NULL";

pub(crate) const POSTPONE: &str = "
UPDATE outbox SET next_attempt_at = ?2 WHERE id = ?1 AND (status = 'pending' OR status = 'waiting')";

/// Unfenced on purpose: the row itself is broken, whoever holds it.
pub(crate) const QUARANTINE: &str = "
UPDATE outbox SET status = 'dead', settled_at = ?2, last_error = ?3,
       provider_id = coalesce(provider_id, ?4), answer = coalesce(?5, answer)
 WHERE id = ?1 AND status NOT IN ('sent', 'dead', 'cancelled', 'expired')
RETURNING channel";

pub(crate) const LOG_ATTEMPT: &str = "
INSERT INTO outbox_attempt (message, at, duration_ms, outcome, http_status, charged, error)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

/// The newest twenty stay, and the first charge of each budget, which `min_dead_age` counts from.
pub(crate) const PRUNE_ATTEMPTS: &str = "
DELETE FROM outbox_attempt
 WHERE message = ?1 AND charged <> 1
   AND id <= (SELECT id FROM outbox_attempt WHERE message = ?1 ORDER BY id DESC LIMIT 1 OFFSET 20)";

/// Of the present budget, by a clock that could be believed.
pub(crate) const FIRST_CHARGE: &str = "
SELECT min(at) FROM outbox_attempt
 WHERE message = ?1 AND charged > 0 AND typeof(at) = 'integer' AND at >= ?2
   AND id >= (SELECT max(id) FROM outbox_attempt WHERE message = ?1 AND charged = 1)";

pub(crate) const WAS_RECORDED: &str = "
SELECT EXISTS (SELECT 1 FROM outbox WHERE id = ?1 AND claims = ?2 AND status = 'sent')";

pub(crate) const LOSSES: &str = "
SELECT count(*) FROM outbox_attempt WHERE message = ?1 AND outcome = 'lost'";

/// The longest `last_error`, in characters.
const MAX_ERROR: usize = 1_000;

/// The claim that a verdict is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) id: i64,
    pub(crate) claims: i64,
}

/// What became of a verdict in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// As judged.
    Yes,
    /// The claim was still ours, and an earlier holder had delivered the message: it is sent.
    Confirmed,
    /// The claim had passed on.
    Late,
}

/// A delivery to be recorded.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) claim: Claim,
    pub(crate) receipt: Receipt,
    pub(crate) keep_answer: usize,
}

/// Writes deliveries, given in the order of their ids, many by one statement. Returns how many were
/// written: where some were not, their claims had passed on.
pub(crate) fn record_sent(conn: &Connection, sent: &[Sent], now: i64) -> rusqlite::Result<usize> {
    let mut recorded = 0;
    for set in sets(sent, |it| it.claim.id) {
        let (sql, size) = SENT_SET.of(set.len());
        let mut statement = conn.prepare_cached(sql)?;
        statement.raw_bind_parameter(1, now)?;
        statement.raw_bind_parameter(2, set.first().map(|it| it.claim.id))?;
        statement.raw_bind_parameter(3, set.last().map(|it| it.claim.id))?;
        for row in 0..size {
            // What is left over matches nothing.
            let told = set.get(row);
            let answer = told.and_then(|it| bounded(it.receipt.answer.as_deref(), it.keep_answer));
            let provider = told.and_then(|it| it.receipt.provider_id.as_deref());
            let first = row * 4 + 4;
            statement.raw_bind_parameter(first, told.map(|it| it.claim.id))?;
            statement.raw_bind_parameter(first + 1, told.map(|it| it.claim.claims))?;
            statement.raw_bind_parameter(first + 2, provider)?;
            statement.raw_bind_parameter(first + 3, answer)?;
        }
        recorded += statement.raw_execute()?;
    }
    Ok(recorded)
}

/// Writes one verdict, and the attempt if it failed.
pub(crate) fn record(
    conn: &Connection,
    claim: Claim,
    verdict: &Verdict,
    keep_answer: usize,
    elapsed_ms: i64,
    now: i64,
) -> rusqlite::Result<Recorded> {
    let Claim { id, claims } = claim;
    let rows = match verdict {
        Verdict::Sent(receipt) => conn.prepare_cached(SENT)?.execute(named_params! {
            ":id": id, ":claims": claims, ":now": now,
            ":provider_id": receipt.provider_id,
            ":answer": bounded(receipt.answer.as_deref(), keep_answer),
        })?,
        Verdict::Again {
            due,
            attempts,
            failure,
            ..
        } => conn.prepare_cached(AGAIN)?.execute(named_params! {
            ":id": id, ":claims": claims, ":now": now, ":due": due.max(&0),
            ":attempts": attempts, ":error": cut(&failure.text),
        })?,
        Verdict::Dead {
            attempts, failure, ..
        } => conn.prepare_cached(DEAD)?.execute(named_params! {
            ":id": id, ":claims": claims, ":now": now,
            ":attempts": attempts, ":error": cut(&failure.text),
            ":answer": bounded(failure.answer.as_deref(), keep_answer),
        })?,
        Verdict::Released => conn
            .prepare_cached(RELEASE)?
            .execute((id, claims, now.max(1)))?,
    };
    if rows == 0 {
        let confirmed = conn.prepare_cached(CONFIRM)?.execute((id, claims))?;
        return Ok(if confirmed == 0 {
            Recorded::Late
        } else {
            Recorded::Confirmed
        });
    }
    match verdict {
        Verdict::Again {
            attempts,
            charged,
            failure,
            ..
        }
        | Verdict::Dead {
            attempts,
            charged,
            failure,
        } => {
            let nth = if *charged { *attempts } else { 0 };
            log_attempt(conn, id, failure, elapsed_ms, nth, now)?;
        }
        Verdict::Sent(_) | Verdict::Released => {}
    }
    Ok(Recorded::Yes)
}

/// Whether the claim has not passed on.
pub(crate) fn is_ours(conn: &Connection, claim: Claim) -> rusqlite::Result<bool> {
    conn.prepare_cached(IS_OURS)?
        .query_row((claim.id, claim.claims), |row| row.get(0))
}

/// Records a success whose claim had passed on. True when it is news: the row became sent by it, or
/// will be with the report of its present holder.
pub(crate) fn record_late(
    conn: &Connection,
    id: i64,
    message_id: &str,
    receipt: &Receipt,
    keep_answer: usize,
    now: i64,
) -> rusqlite::Result<bool> {
    let answer = bounded(receipt.answer.as_deref(), keep_answer);
    let params = named_params! {
        ":id": id, ":message_id": message_id, ":now": now,
        ":provider_id": receipt.provider_id, ":answer": answer,
    };
    if conn.prepare_cached(LATE_SENT)?.execute(params)? > 0 {
        return Ok(true);
    }
    Ok(conn.prepare_cached(LATE_NOTED)?.execute(params)? > 0)
}

/// Extends a claim. False when it has passed on.
pub(crate) fn renew(conn: &Connection, claim: Claim, lease: i64) -> rusqlite::Result<bool> {
    let rows = conn
        .prepare_cached(RENEW)?
        .execute((claim.id, claim.claims, lease))?;
    Ok(rows > 0)
}

/// Takes an abandoned claim back, with its whole run. Returns the messages that go out again.
pub(crate) fn take_back(
    conn: &Connection,
    claim: Claim,
    run: Option<(&str, &str, i64)>,
) -> rusqlite::Result<Vec<i64>> {
    match run {
        Some(run) => {
            let members = conn
                .prepare_cached(RUN_CLAIMS)?
                .query_map(run, |row| row.get(0))?
                .collect::<rusqlite::Result<Vec<i64>>>()?;
            conn.prepare_cached(TAKE_BACK_RUN)?.execute(run)?;
            Ok(members)
        }
        None => {
            let rows = conn
                .prepare_cached(TAKE_BACK)?
                .execute((claim.id, claim.claims))?;
            Ok(if rows > 0 { vec![claim.id] } else { Vec::new() })
        }
    }
}

/// Moves an unclaimed message's due time.
pub(crate) fn postpone(conn: &Connection, id: i64, due: i64) -> rusqlite::Result<()> {
    conn.prepare_cached(POSTPONE)?.execute((id, due))?;
    Ok(())
}

/// Makes a message that cannot be handled a dead letter, with what the receiver gave if it has taken
/// it; returns its channel, or `None` when it was settled already.
pub(crate) fn quarantine(
    conn: &Connection,
    id: i64,
    failure: &Failure,
    untold: Untold<'_>,
    now: i64,
) -> rusqlite::Result<Option<String>> {
    let (provider_id, answer) = untold.given();
    let error = cut(&failure.text);
    let channel = conn
        .prepare_cached(QUARANTINE)?
        .query_row((id, now, error, provider_id, answer), |row| {
            row.get::<_, Raw>("channel")
        })
        .optional()?;
    if channel.is_some() {
        log_attempt(conn, id, failure, 0, 0, now)?;
    }
    Ok(channel.map(|name| name.show()))
}

/// Remembers a failed attempt. `nth` is the charge's number within its budget, 0 for none.
pub(crate) fn log_attempt(
    conn: &Connection,
    id: i64,
    failure: &Failure,
    elapsed_ms: i64,
    nth: u32,
    now: i64,
) -> rusqlite::Result<()> {
    let code = failure.code.as_ref();
    let error = cut(&failure.text);
    conn.prepare_cached(LOG_ATTEMPT)?.execute((
        id,
        now,
        elapsed_ms,
        code,
        failure.status,
        nth,
        error,
    ))?;
    conn.prepare_cached(PRUNE_ATTEMPTS)?.execute([id])?;
    Ok(())
}

/// When the first attempt of the present budget was charged, as far as a clock after `honest` told.
pub(crate) fn first_charge(
    conn: &Connection,
    id: i64,
    honest: i64,
) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached(FIRST_CHARGE)?
        .query_row((id, honest), |row| row.get(0))
}

/// Whether the row became sent by this very claim.
pub(crate) fn was_recorded(conn: &Connection, claim: Claim) -> rusqlite::Result<bool> {
    conn.prepare_cached(WAS_RECORDED)?
        .query_row((claim.id, claim.claims), |row| row.get(0))
}

/// How often a process ended while it held this message, as far as remembered.
pub(crate) fn losses(conn: &Connection, id: i64) -> rusqlite::Result<u32> {
    conn.prepare_cached(LOSSES)?
        .query_row([id], |row| row.get(0))
}

/// Adds to `last_error` of a settled message what the application's hook said.
pub(crate) fn note_hook_failure(conn: &Connection, id: i64, error: &str) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE outbox SET last_error = ?2 WHERE id = ?1")?
        .execute((
            id,
            cut(&format!("delivered, but on_delivered failed: {error}")),
        ))?;
    Ok(())
}

/// The start of an answer as text; `None` when nothing is to be kept.
pub(super) fn bounded(answer: Option<&[u8]>, limit: usize) -> Option<String> {
    let answer = answer.filter(|it| limit > 0 && !it.is_empty())?;
    let kept = answer.get(..limit).unwrap_or(answer);
    Some(String::from_utf8_lossy(kept).into_owned())
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_ERROR).collect()
}
