//! Taking in what another outbox has, byte for byte, within the caller's transaction.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, named_params};

use crate::error::{Error, Result};
use crate::message::{Enqueued, OnDuplicate};
use crate::schema;
use crate::store::enqueue::{HOLDER, REPLACE};
use crate::store::operate::{self, Deed};
use crate::store::read::{bytes, number, text};
use crate::transfer::Transfer;

/// Due now or at its own moment, with a fresh budget.
const INSERT: &str = "
INSERT INTO outbox (channel, message_id, dedupe_key, event_type, recipient, ordering_key, principal,
                    content_type, headers, available_at, expires_at, created_at, payload)
VALUES (:channel, :message_id, :dedupe_key, :event_type, :recipient, :ordering_key, :principal,
        :content_type, :headers, :available_at, :expires_at, :now, :payload)
ON CONFLICT (channel, dedupe_key) DO NOTHING";

/// What the record says of a message whose content another one took over.
const REPLACED: &str = "replace";

/// A text of any bytes.
struct Text<'a>(&'a [u8]);

impl ToSql for Text<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0)))
    }
}

/// As text where it is text: people read it with `sqlite3`. A zero byte in one hides what follows
/// from programs in C.
fn payload(bytes: &[u8]) -> ToSqlOutput<'_> {
    let is_text = std::str::from_utf8(bytes).is_ok() && !bytes.contains(&0);
    ToSqlOutput::Borrowed(match is_text {
        true => ValueRef::Text(bytes),
        false => ValueRef::Blob(bytes),
    })
}

/// Stores it, or says who has its key. One that has other content and is not replaced stays, and
/// the new one is kept aside.
pub(crate) fn import(
    conn: &Connection,
    transfer: &Transfer,
    choice: OnDuplicate,
    deed: Deed<'_>,
) -> Result<Enqueued> {
    transfer.validate()?;
    schema::check_writer(conn)?;
    let Some(holder) = holder(conn, transfer)? else {
        return match insert(conn, transfer, deed.now)? {
            0 => Err(Error::Refused(
                "a trigger of the application ignored the message".into(),
            )),
            _ => Ok(Enqueued::New {
                id: conn.last_insert_rowid(),
            }),
        };
    };
    let id = holder.id;
    match choice {
        OnDuplicate::Fail => Err(Error::Duplicate { id }),
        _ if holder.same => Ok(Enqueued::Duplicate { id }),
        OnDuplicate::Replace if holder.replaceable => {
            operate::note_former(conn, REPLACED, id, deed)?;
            replace(conn, transfer, id)?;
            Ok(Enqueued::Replaced { id })
        }
        _ => {
            // The conflict keeper of the schema does it.
            insert(conn, transfer, deed.now)?;
            Ok(Enqueued::Conflict { id })
        }
    }
}

fn insert(conn: &Connection, it: &Transfer, now: i64) -> Result<usize> {
    let name = named_params! {
        ":channel": Text(&it.channel),
        ":message_id": Text(&it.message_id),
        ":dedupe_key": Text(&it.dedupe_key),
        ":now": now,
    };
    execute(conn, INSERT, it, name)
}

fn replace(conn: &Connection, it: &Transfer, id: i64) -> Result<usize> {
    execute(conn, REPLACE, it, named_params! { ":id": id })
}

/// Runs a statement that takes what a message holds, and some more.
fn execute(
    conn: &Connection,
    sql: &str,
    it: &Transfer,
    more: &[(&str, &dyn ToSql)],
) -> Result<usize> {
    let content = named_params! {
        ":event_type": it.event_type.as_deref().map(Text),
        ":recipient": it.recipient.as_deref().map(Text),
        ":ordering_key": it.ordering_key.as_deref().map(Text),
        ":principal": it.principal.as_deref().map(Text),
        ":content_type": Text(&it.content_type),
        ":headers": it.headers.as_deref().map(Text),
        ":available_at": it.available_at,
        ":expires_at": it.expires_at,
        ":payload": payload(&it.payload),
    };
    let all = [content, more].concat();
    Ok(conn.prepare_cached(sql)?.execute(&*all)?)
}

/// The message that has the key.
struct Holder {
    id: i64,
    same: bool,
    /// Never claimed, so nobody can have seen it, and in the same lane.
    replaceable: bool,
}

fn holder(conn: &Connection, transfer: &Transfer) -> Result<Option<Holder>> {
    let key = (Text(&transfer.channel), Text(&transfer.dedupe_key));
    let holder = conn.prepare_cached(HOLDER)?.query_row(key, |row| {
        let status = text(row, "status")?.unwrap_or_default();
        let lane = stored(row, "ordering_key")? == transfer.ordering_key.as_deref();
        Ok(Holder {
            id: row.get("id")?,
            same: same(row, transfer, &status)?,
            replaceable: lane
                && number(row, "claims")? == Some(0)
                && matches!(status.as_str(), "pending" | "waiting"),
        })
    });
    Ok(holder.optional()?)
}

fn stored<'a>(row: &'a Row<'_>, column: &str) -> rusqlite::Result<Option<&'a [u8]>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Null => None,
        value => Some(bytes(value)),
    })
}

fn same(row: &Row<'_>, transfer: &Transfer, status: &str) -> rusqlite::Result<bool> {
    for (column, bytes) in transfer.texts() {
        if stored(row, column)? != bytes {
            return Ok(false);
        }
    }
    let payload = stored(row, "payload")?.unwrap_or_default();
    // Retention may have emptied it: then there is nothing left to differ from.
    let emptied = payload.is_empty() && matches!(status, "sent" | "expired" | "cancelled");
    Ok((emptied || payload == transfer.payload)
        && stored(row, "headers")? == transfer.headers.as_deref()
        && number(row, "available_at")? == transfer.available_at
        && number(row, "expires_at")? == transfer.expires_at)
}

/// Adds to the record what a message is that may be about to be replaced, if there is one; answers
/// the entry.
pub(crate) fn note_replaced(
    conn: &Connection,
    channel: &str,
    key: &str,
    deed: Deed<'_>,
) -> Result<Option<i64>> {
    let sql = "SELECT id FROM outbox WHERE channel = ?1 AND dedupe_key = ?2 AND claims = 0";
    let mut statement = conn.prepare_cached(sql)?;
    let Some(holder) = statement
        .query_row([channel, key], |row| row.get(0))
        .optional()?
    else {
        return Ok(None);
    };
    operate::note_former(conn, REPLACED, holder, deed)?;
    Ok(Some(conn.last_insert_rowid()))
}

/// Takes an entry back whose deed was not done.
pub(crate) fn forget(conn: &Connection, entry: i64) -> Result<()> {
    let sql = "DELETE FROM outbox_audit WHERE id = ?1";
    conn.prepare_cached(sql)?.execute([entry])?;
    Ok(())
}
