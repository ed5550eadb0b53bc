//! What people do to messages and channels: the change and its audit row, within the caller's
//! transaction.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, named_params};

use crate::circuit::OnDead;
use crate::edit::Edit;
use crate::entry::Status;
use crate::error::{Error, Result};
use crate::message;
use crate::retry;
use crate::schema;
use crate::stats::ChannelState;
use crate::store::{Raw, channel, read, relocate, rows, upkeep};

/// Back in its place, due now, with a fresh budget. The answer was that of the failure, and a
/// delivery keeps an answer that it finds.
const RETRY: &str = "
UPDATE outbox SET status = 'pending', attempts = 0, settled_at = NULL, answer = NULL,
       next_attempt_at = max(coalesce(available_at, 0), :due),
       expires_at = CASE WHEN status = 'expired' OR expires_at <= :now THEN NULL ELSE expires_at END
 WHERE id = :id AND (status = 'dead' OR status = 'expired' OR status = 'cancelled')";

const CANCEL: &str = "
UPDATE outbox SET status = 'cancelled', settled_at = ?2
 WHERE id = ?1 AND (status = 'pending' OR status = 'waiting' OR status = 'dead')";

/// What was never claimed was never seen, so it may change; a dead letter starts anew. Its new
/// message id tells the receiver that it is another one.
const EDIT: &str = "
UPDATE outbox SET payload = CASE WHEN :text IS NOT NULL THEN :text
                                 WHEN :bytes IS NOT NULL THEN :bytes ELSE payload END,
       headers = CASE WHEN :with_headers THEN :headers ELSE headers END,
       content_type = coalesce(:content_type, content_type),
       dedupe_key = coalesce(:dedupe_key, dedupe_key),
       event_type = CASE WHEN :with_event_type THEN :event_type ELSE event_type END,
       recipient = CASE WHEN :with_recipient THEN :recipient ELSE recipient END,
       principal = CASE WHEN :with_principal THEN :principal ELSE principal END,
       message_id = lower(hex(randomblob(16))),
       attempts = 0, settled_at = NULL, answer = NULL, provider_id = NULL, last_error = NULL,
       next_attempt_at = CASE WHEN status = 'dead' THEN max(coalesce(available_at, 0), :due)
                              ELSE next_attempt_at END,
       expires_at = CASE WHEN status = 'dead' AND expires_at <= :now THEN NULL ELSE expires_at END,
       status = CASE WHEN status = 'dead' THEN 'pending' ELSE status END
 WHERE id = :id AND (status = 'dead' OR claims = 0 AND status IN ('pending', 'waiting'))";

/// Not the content, so it may have been attempted. What was is due as a retry.
const RESCHEDULE: &str = "
UPDATE outbox SET available_at = :available,
       next_attempt_at = max(coalesce(:available, 0), CASE WHEN claims = 0 THEN 0 ELSE :due END)
 WHERE id = :id AND (status = 'pending' OR status = 'waiting' OR status = 'dead')";

const AUDIT: &str = "
INSERT INTO outbox_audit (at, who, action, message, channel, reason)
VALUES (:at, :who, :action, :message, :channel, :reason)";

const AUDIT_FORMER: &str = "
INSERT INTO outbox_audit (at, who, action, message, channel, reason, former_message_id, former_payload)
SELECT :at, :who, :action, id, channel, :reason, message_id, payload FROM outbox WHERE id = :message";

const PAUSE: &str = "
INSERT INTO outbox_channel (channel, paused_at, paused_by, pause_reason) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (channel) DO UPDATE SET
  paused_at = excluded.paused_at, paused_by = excluded.paused_by,
  pause_reason = excluded.pause_reason";

const UNPAUSE: &str = "
UPDATE outbox_channel SET paused_at = NULL, paused_by = NULL, pause_reason = NULL
 WHERE channel = ?1";

const ON_DEAD: &str = "
INSERT INTO outbox_channel (channel, on_dead) VALUES (?1, ?2)
ON CONFLICT (channel) DO UPDATE SET on_dead = excluded.on_dead";

/// Index `outbox_dead_rows`.
pub(crate) const DEAD_LANES: &str = "
SELECT id, ordering_key FROM outbox
 WHERE channel = ?1 AND status = 'dead' AND id > ?2 ORDER BY id LIMIT ?3";

/// The longest name or reason in the audit, in characters.
const MAX_TEXT: usize = 1_000;

/// Who does something, when, and why.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deed<'a> {
    pub(crate) who: &'a str,
    pub(crate) reason: Option<&'a str>,
    pub(crate) now: i64,
}

/// What can be done to a message that was enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Retry,
    Cancel,
    Edit,
}

impl Action {
    fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::Edit => "edit",
        }
    }

    /// Whether it can be done to messages that stand there.
    pub(crate) fn takes(self, status: Status) -> bool {
        match self {
            Self::Retry => {
                matches!(status, Status::Dead | Status::Expired | Status::Cancelled)
            }
            Self::Cancel | Self::Edit => {
                matches!(status, Status::Pending | Status::Waiting | Status::Dead)
            }
        }
    }

    /// Which messages it takes, in words.
    pub(crate) fn rule(self) -> &'static str {
        match self {
            Self::Retry => "only dead, expired and cancelled messages can be retried",
            Self::Cancel => "only pending, waiting and dead messages can be cancelled",
            Self::Edit => {
                "only dead messages and those never attempted can be edited; of those that wait for \
                 another attempt, the schedule alone"
            }
        }
    }
}

/// Begins a transaction that may write: with the lock, and not in a file of the future.
pub(crate) fn begin(conn: &Connection) -> Result<Transaction<'_>> {
    let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    schema::check_writer(&tx)?;
    Ok(tx)
}

/// Retries or cancels one message; says why when it cannot be done.
pub(crate) fn act(conn: &Connection, id: i64, action: Action, deed: Deed<'_>) -> Result<()> {
    let place = place(conn, id)?.ok_or_else(|| Error::NotFound(id.to_string()))?;
    match change(conn, id, action, &place, deed)? {
        true => Ok(()),
        false => Err(refusal(id, action, &place)),
    }
}

/// Retries or cancels a message that still stands where it was found; answers whether it did.
pub(crate) fn act_if(
    conn: &Connection,
    id: i64,
    found: Status,
    action: Action,
    deed: Deed<'_>,
) -> Result<bool> {
    let Some(place) = place(conn, id)? else {
        return Ok(false);
    };
    // A follower becomes pending by itself, and the other way round.
    let lane = |it: Status| matches!(it, Status::Pending | Status::Waiting);
    let same = place.status == found || lane(place.status) && lane(found);
    Ok(same && change(conn, id, action, &place, deed)?)
}

/// Does something whole or not at all, within the caller's transaction. An error may have ended that.
pub(crate) fn whole<T>(conn: &Connection, act: impl FnOnce() -> Result<T>) -> Result<T> {
    conn.prepare_cached("SAVEPOINT outbox_one")?.execute([])?;
    let done = act();
    if done.is_err() && !conn.is_autocommit() {
        conn.prepare_cached("ROLLBACK TO outbox_one")?.execute([])?;
    }
    if !conn.is_autocommit() {
        conn.prepare_cached("RELEASE outbox_one")?.execute([])?;
    }
    done
}

/// Gives a message other content or another moment; answers its id, another one where it moves.
pub(crate) fn edit(conn: &Connection, id: i64, edit: &Edit, deed: Deed<'_>) -> Result<i64> {
    let place = place(conn, id)?.ok_or_else(|| Error::NotFound(id.to_string()))?;
    let (content, dead) = (edit.has_content(), place.status == Status::Dead);
    if !Action::Edit.takes(place.status) || content && !dead && place.claims != 0 {
        return Err(refusal(id, Action::Edit, &place));
    }
    let given = deed.reason.map(|it| format!("; {it}")).unwrap_or_default();
    let was = match edit.moves() {
        true => format!(", it was message {id}"),
        false => String::new(),
    };
    let reason = edit.changed().map(|it| format!("other {it}{was}{given}"));
    let reason = reason.as_deref().or(deed.reason);
    let (action, channel) = (Action::Edit.as_str(), place.channel.as_deref());
    match content {
        true => note_former(conn, action, id, Deed { reason, ..deed })?,
        false => note(conn, action, Some(id), channel, reason, deed)?,
    }
    let mut changed = 0;
    if let Some(moment) = edit.available {
        let available = moment.map(|it| it.resolve(deed.now));
        place.outlives(id, available, deed.now)?;
        changed = conn.prepare_cached(RESCHEDULE)?.execute(named_params! {
            ":id": id, ":available": available, ":due": deed.now.max(1),
        })?;
    }
    if content {
        changed = content_of(conn, id, edit, &place, deed)?;
    } else if dead {
        changed = again(conn, id, deed)?;
    }
    match changed {
        0 => Err(refusal(id, Action::Edit, &place)),
        _ if edit.moves() => relocate::relocate(conn, id, edit),
        _ => Ok(id),
    }
}

fn content_of(
    conn: &Connection,
    id: i64,
    edit: &Edit,
    place: &Place,
    deed: Deed<'_>,
) -> Result<usize> {
    if let Some(key) = &edit.dedupe_key
        && let Some(other) = other_holder(conn, id, key)?
    {
        return Err(Error::Duplicate { id: other });
    }
    // Text stays readable for people with only `sqlite3`; the bytes sent are the same.
    let text = edit.payload.as_deref();
    let text = text.and_then(|it| std::str::from_utf8(it).ok());
    let headers = edit.headers.as_ref().filter(|it| !it.is_empty());
    Ok(conn.prepare_cached(EDIT)?.execute(named_params! {
        ":id": id, ":now": deed.now, ":due": deed.now.max(1), ":bytes": edit.payload,
        ":text": text.filter(|_| place.payload_is_text),
        ":with_headers": edit.headers.is_some(), ":headers": headers.map(message::as_json),
        ":content_type": edit.content_type, ":dedupe_key": edit.dedupe_key,
        ":with_event_type": edit.event_type.is_some(), ":event_type": edit.event_type.as_ref(),
        ":with_recipient": edit.recipient.is_some(), ":recipient": edit.recipient.as_ref(),
        ":with_principal": edit.principal.is_some(), ":principal": edit.principal.as_ref(),
    })?)
}

/// Another message of its channel that has this key.
fn other_holder(conn: &Connection, id: i64, key: &str) -> Result<Option<i64>> {
    let sql = "SELECT id FROM outbox
                WHERE channel = (SELECT channel FROM outbox WHERE id = ?1) AND dedupe_key = ?2
                  AND id <> ?1";
    let mut statement = conn.prepare_cached(sql)?;
    Ok(statement
        .query_row((id, key), |row| row.get(0))
        .optional()?)
}

fn again(conn: &Connection, id: i64, deed: Deed<'_>) -> Result<usize> {
    Ok(conn.prepare_cached(RETRY)?.execute(named_params! {
        ":id": id, ":now": deed.now, ":due": deed.now.max(1),
    })?)
}

/// Where a message stands.
struct Place {
    status: Status,
    claims: i64,
    channel: Option<String>,
    payload_is_text: bool,
    expires_at: Option<i64>,
}

impl Place {
    /// Whether the message may be sent before it expires, if it waits for this moment.
    fn outlives(&self, id: i64, available: Option<i64>, now: i64) -> Result<()> {
        let lifted = |it: &i64| self.status == Status::Dead && *it <= now;
        match (available, self.expires_at.filter(|it| !lifted(it))) {
            (Some(at), Some(end)) if at >= end => Err(Error::Refused(format!(
                "message {id} would expire before that moment; choose an earlier one"
            ))),
            _ => Ok(()),
        }
    }
}

fn place(conn: &Connection, id: i64) -> Result<Option<Place>> {
    let sql = "SELECT status, claims, channel, expires_at, typeof(payload) = 'text' AS is_text
                 FROM outbox WHERE id = ?1";
    let found = conn.prepare_cached(sql)?.query_row([id], |row| {
        let status = read::text(row, "status")?.unwrap_or_default();
        Ok(Place {
            status: Status::parse(&status).unwrap_or(Status::Unknown),
            claims: read::number(row, "claims")?.unwrap_or_default(),
            channel: read::text(row, "channel")?,
            payload_is_text: row.get("is_text")?,
            expires_at: read::number(row, "expires_at")?,
        })
    });
    Ok(found.optional()?)
}

fn change(
    conn: &Connection,
    id: i64,
    action: Action,
    place: &Place,
    deed: Deed<'_>,
) -> Result<bool> {
    if !action.takes(place.status) {
        return Ok(false);
    }
    let changed = match action {
        Action::Retry => again(conn, id, deed)?,
        Action::Cancel => conn.prepare_cached(CANCEL)?.execute((id, deed.now))?,
        Action::Edit => 0,
    };
    if changed > 0 {
        let channel = place.channel.as_deref();
        note(conn, action.as_str(), Some(id), channel, deed.reason, deed)?;
    }
    Ok(changed > 0)
}

fn refusal(id: i64, action: Action, place: &Place) -> Error {
    let state = match place.status {
        Status::Pending | Status::Waiting if action == Action::Edit => {
            "was attempted already, so the receiver may have seen it: cancel it and enqueue the \
             other content under a key of its own"
                .to_owned()
        }
        Status::Pending | Status::Waiting => format!("is {}: it will be sent", place.status),
        Status::Sending => "is being sent right now".to_owned(),
        Status::Sent if action == Action::Retry => {
            "was sent already (`send-again` sends it once more)".to_owned()
        }
        Status::Sent => "was sent already".to_owned(),
        Status::Dead => "is dead".to_owned(),
        Status::Expired => "has expired".to_owned(),
        Status::Cancelled => "was cancelled".to_owned(),
        Status::Unknown => "has a status that this program does not know".to_owned(),
    };
    Error::Refused(format!("message {id} {state}; {}", action.rule()))
}

/// Stops a channel until it is resumed.
pub(crate) fn pause(conn: &Connection, name: &str, deed: Deed<'_>) -> Result<()> {
    let by = (name, deed.now, cut(deed.who), deed.reason.map(cut));
    conn.prepare_cached(PAUSE)?.execute(by)?;
    note(conn, "pause", None, Some(name), deed.reason, deed)
}

/// Lets a channel go on, whatever stopped it.
///
/// Answers up to which moment a message waited for its channel, and for nothing of its own.
pub(crate) fn resume(conn: &Connection, name: &str, deed: Deed<'_>) -> Result<Option<i64>> {
    let known = channel::load(conn, name)?;
    let mut state = known.clone();
    state.resume();
    if state != known {
        channel::save(conn, name, &state)?;
        conn.prepare_cached(UNPAUSE)?.execute([name])?;
    }
    note(conn, "resume", None, Some(name), deed.reason, deed)?;
    let troubled = known.state != ChannelState::Ok;
    Ok(troubled.then(|| retry::own_wait_after(known.next_try(deed.now), deed.now)))
}

/// Stores what dead letters of a channel do to those behind them. The lanes are mended after it.
pub(crate) fn on_dead(conn: &Connection, name: &str, choice: OnDead, deed: Deed<'_>) -> Result<()> {
    let (word, action) = match choice {
        OnDead::Hold => ("hold", "on_dead_hold"),
        OnDead::Skip => ("skip", "on_dead_skip"),
    };
    conn.prepare_cached(ON_DEAD)?.execute((name, word))?;
    note(conn, action, None, Some(name), deed.reason, deed)
}

/// Puts the lanes of the next dead letters in order; returns the last of them, `None` at the end.
/// Those lanes are all that a change of `on_dead` can touch.
pub(crate) fn mend_lanes(
    conn: &Connection,
    name: &str,
    (after, limit): (i64, usize),
    now: i64,
) -> Result<Option<i64>> {
    let dead = conn
        .prepare_cached(DEAD_LANES)?
        .query_map((name, after, rows(limit)), |row| {
            Ok((row.get("id")?, read::raw(row, "ordering_key")?))
        })?
        .collect::<rusqlite::Result<Vec<(i64, Option<Raw>)>>>()?;
    let last = dead.last().map(|it| it.0);
    let keys: BTreeSet<Raw> = dead.into_iter().filter_map(|it| it.1).collect();
    for key in keys {
        upkeep::normalise(conn, &(Raw::text(name), key), now)?;
    }
    Ok(last)
}

/// Adds to the record what a message is before it changes: its message id and payload.
pub(crate) fn note_former(
    conn: &Connection,
    action: &str,
    message: i64,
    deed: Deed<'_>,
) -> Result<()> {
    let (who, reason) = signed(deed);
    conn.prepare_cached(AUDIT_FORMER)?.execute(named_params! {
        ":at": deed.now, ":who": who, ":action": action, ":message": message, ":reason": reason,
    })?;
    Ok(())
}

/// Who and why, as long as the record takes them.
pub(crate) fn signed(deed: Deed<'_>) -> (String, Option<String>) {
    (cut(deed.who), deed.reason.map(cut))
}

/// Adds to the record of what people did.
pub(crate) fn note(
    conn: &Connection,
    action: &str,
    message: Option<i64>,
    channel: Option<&str>,
    reason: Option<&str>,
    deed: Deed<'_>,
) -> Result<()> {
    conn.prepare_cached(AUDIT)?.execute(named_params! {
        ":at": deed.now, ":who": cut(deed.who), ":action": action, ":message": message,
        ":channel": channel, ":reason": reason.map(cut),
    })?;
    Ok(())
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}
