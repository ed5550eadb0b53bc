//! Sending once more what was sent: a message of its own under another key, beside the one that a
//! portal, or anything else that is not the receiver, has answered.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension, named_params};

use crate::entry::Status;
use crate::error::{Error, Result};
use crate::message;
use crate::selection::SentAgain;
use crate::store::odd::is_page;
use crate::store::operate::{self, Deed};
use crate::store::read;
use crate::store::round::NOTED;

/// At the end of its lane, due now. The message id stays: a receiver that has the message after all
/// recognises it. Moment and expiry were those of the first time.
const COPY: &str = "
INSERT INTO outbox (channel, message_id, dedupe_key, event_type, recipient, ordering_key, principal,
                    content_type, headers, created_at, payload)
SELECT channel, message_id, :key, event_type, recipient, ordering_key, principal, content_type,
       headers, :now, payload
  FROM outbox WHERE id = :id AND status = 'sent'";

/// What retention empties loses its answer too, and it notes that it was here (`?2`). An empty payload
/// is as it was enqueued where either speaks against retention.
const SENT: &str = "
SELECT status, channel, dedupe_key,
       length(CAST(payload AS BLOB)) = 0 AND answer IS NULL
         AND EXISTS (SELECT 1 FROM outbox_meta WHERE key = ?2) AS emptied
  FROM outbox WHERE id = ?1";

const HOLDER: &str = "
SELECT id FROM outbox
 WHERE channel = (SELECT channel FROM outbox WHERE id = ?1) AND dedupe_key = ?2";

/// In the record, of the message that was sent and of the one that stands for it now.
const AGAIN: &str = "send_again";
const OF: &str = "again_of";

const DONE: &str =
    "SELECT message FROM outbox_audit WHERE action = 'send_again' AND message IS NOT NULL";

/// What stands for another one, and how its answer begins.
const REPETITIONS: &str = "
SELECT o.id, substr(o.answer, 1, 200) AS start
  FROM outbox_audit AS a CROSS JOIN outbox AS o ON o.id = a.message
 WHERE a.action = 'again_of'";

const IS_DONE: &str = "
SELECT EXISTS (SELECT 1 FROM outbox_audit WHERE action = 'send_again' AND message = ?1)";

/// As a repetition keeps its message id.
const LATEST: &str = "
SELECT max(o.id) AS latest
  FROM outbox_audit AS a
  JOIN outbox AS o ON o.id = a.message
  JOIN outbox AS former ON former.id = ?1
 WHERE a.action = 'again_of' AND o.id > former.id AND o.message_id = former.message_id";

/// The messages that were sent again already, as far as the record goes back.
pub(crate) fn done(conn: &Connection) -> Result<BTreeSet<i64>> {
    let mut statement = conn.prepare_cached(DONE)?;
    let ids = statement.query_map([], |row| row.get(0))?;
    Ok(ids.collect::<rusqlite::Result<_>>()?)
}

/// What is not sent again with all others: what was already, and a repetition, unless a web page answered
/// that as well.
pub(crate) fn left_out(conn: &Connection) -> Result<BTreeSet<i64>> {
    let mut ids = done(conn)?;
    let mut statement = conn.prepare_cached(REPETITIONS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if !read::text(row, "start")?.as_deref().is_some_and(is_page) {
            ids.insert(row.get("id")?);
        }
    }
    Ok(ids)
}

/// Whether this one was.
pub(crate) fn is_done(conn: &Connection, id: i64) -> Result<bool> {
    Ok(conn
        .prepare_cached(IS_DONE)?
        .query_row([id], |row| row.get(0))?)
}

/// The last message that stands for it since, if that is still there.
pub(crate) fn latest(conn: &Connection, id: i64) -> Result<Option<i64>> {
    Ok(conn
        .prepare_cached(LATEST)?
        .query_row([id], |row| row.get("latest"))?)
}

/// A message that is to be sent again.
struct Former {
    status: Status,
    channel: String,
    dedupe_key: String,
    /// It has no payload, and may have had one.
    emptied: bool,
}

fn former(conn: &Connection, id: i64) -> Result<Former> {
    let found = conn.prepare_cached(SENT)?.query_row((id, NOTED), |row| {
        let word = |column| Ok::<_, rusqlite::Error>(read::text(row, column)?.unwrap_or_default());
        Ok(Former {
            status: Status::parse(&word("status")?).unwrap_or(Status::Unknown),
            channel: word("channel")?,
            dedupe_key: word("dedupe_key")?,
            emptied: row.get("emptied")?,
        })
    });
    found
        .optional()?
        .ok_or_else(|| Error::NotFound(id.to_string()))
}

fn refused(id: i64, why: &str) -> Error {
    Error::Refused(format!("message {id} {why}"))
}

/// Enqueues a sent message once more, under this key or one that is made from its own.
pub(crate) fn send(
    conn: &Connection,
    id: i64,
    key: Option<&str>,
    deed: Deed<'_>,
) -> Result<SentAgain> {
    let former = former(conn, id)?;
    if former.status == Status::Sent && key.is_none() && is_done(conn, id)? {
        return Err(refused(
            id,
            "was sent again already, see what was done to it; to send it yet again, give a key",
        ));
    }
    copy(conn, id, &former, key, deed)
}

/// Sends it again if it can be; answers whether it did.
pub(crate) fn send_if(conn: &Connection, id: i64, deed: Deed<'_>) -> Result<bool> {
    match former(conn, id).and_then(|it| copy(conn, id, &it, None, deed)) {
        Ok(_) => Ok(true),
        // Nothing was written then.
        Err(Error::Refused(_) | Error::NotFound(_) | Error::InvalidMessage { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A refusal has written nothing.
fn copy(
    conn: &Connection,
    id: i64,
    former: &Former,
    key: Option<&str>,
    deed: Deed<'_>,
) -> Result<SentAgain> {
    match former.status {
        Status::Sent if former.emptied => {
            return Err(refused(
                id,
                "has no payload any more: what was sent loses it after `keep_payload`; let the \
                 application enqueue it under another key, or enqueue an empty one if it had none",
            ));
        }
        Status::Sent => {}
        it if it.is_unsent() => {
            return Err(refused(id, &format!("is {it}: it will be sent by itself")));
        }
        it => {
            let why = format!("is {it}: only sent messages can be sent again; retry it");
            return Err(refused(id, &why));
        }
    }
    let own = || format!("{}-again", former.dedupe_key);
    let dedupe_key = key.map_or_else(own, String::from);
    message::name("dedupe key", &dedupe_key)?;
    let mut holder = conn.prepare_cached(HOLDER)?;
    let holder = holder.query_row((id, &dedupe_key), |row| row.get(0));
    if let Some(holder) = holder.optional()? {
        return Err(match key {
            Some(_) => Error::Duplicate { id: holder },
            None => refused(
                id,
                &format!("would get the key {dedupe_key}, which message {holder} has; give a key"),
            ),
        });
    }
    conn.prepare_cached(COPY)?.execute(named_params! {
        ":id": id, ":key": dedupe_key, ":now": deed.now,
    })?;
    let new = conn.last_insert_rowid();
    let given = deed.reason.map(|it| format!("; {it}")).unwrap_or_default();
    for (action, message, what) in [
        (AGAIN, id, format!("as message {new}, key {dedupe_key}")),
        (
            OF,
            new,
            format!("it is message {id}, key {}", former.dedupe_key),
        ),
    ] {
        let reason = format!("{what}{given}");
        let channel = Some(former.channel.as_str());
        operate::note(conn, action, Some(message), channel, Some(&reason), deed)?;
    }
    Ok(SentAgain {
        id: new,
        dedupe_key,
    })
}
