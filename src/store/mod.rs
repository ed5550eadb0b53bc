//! The only SQL.

pub(crate) mod again;
pub(crate) mod beside;
mod bulk;
pub(crate) mod census;
pub(crate) mod channel;
pub(crate) mod check;
pub(crate) mod claim;
pub(crate) mod conflict;
pub(crate) mod connect;
pub(crate) mod decode;
pub(crate) mod enqueue;
pub(crate) mod file;
pub(crate) mod find;
mod look;
pub(crate) mod odd;
pub(crate) mod operate;
#[cfg(feature = "backup")]
mod partial;
pub(crate) mod patience;
pub(crate) mod place;
#[cfg(test)]
mod plans;
pub(crate) mod pool;
pub(crate) mod read;
pub(crate) mod relocate;
pub(crate) mod retention;
pub(crate) mod round;
pub(crate) mod salvage;
pub(crate) mod select;
pub(crate) mod settle;
pub(crate) mod stats;
pub(crate) mod transfer;
pub(crate) mod untold;
pub(crate) mod upkeep;
pub(crate) mod why;

use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Row, RowIndex, ToSql};

/// Rows that one statement changes at most. One statement for many rows costs half of what many
/// statements do.
pub(crate) const SET: usize = 64;

/// A statement in a few sizes, so that each is written and prepared once. A set that is smaller is
/// padded.
pub(crate) struct Sized([String; 3]);

impl Sized {
    pub(crate) fn new(text: fn(usize) -> String) -> Self {
        Self([1, 8, SET].map(text))
    }

    /// The text for so many rows, and the size it has.
    pub(crate) fn of(&self, rows: usize) -> (&str, usize) {
        let [one, few, many] = &self.0;
        match rows {
            0..=1 => (one, 1),
            2..=8 => (few, 8),
            _ => (many, SET),
        }
    }
}

/// Cuts rows that are sorted by id into sets for one statement each, such that few others lie
/// between the first and the last of a set. With the statistics of a nearly empty outbox SQLite
/// walks over all that lie in between, and without such bounds over the whole table.
pub(crate) fn sets<T>(mut rows: &[T], id: impl Fn(&T) -> i64) -> impl Iterator<Item = &[T]> {
    const APART: i64 = SET as i64;
    std::iter::from_fn(move || {
        let first = id(rows.first()?);
        let near = |(at, row): (usize, &T)| {
            at < SET && id(row).saturating_sub(first) <= self::rows(at).saturating_mul(APART)
        };
        let size = rows.iter().enumerate().take_while(|it| near(*it)).count();
        let (set, rest) = rows.split_at(size.max(1));
        rows = rest;
        Some(set)
    })
}

/// A moment in the order in which SQLite has them: what is no number stands behind all that are. One
/// row that was written past all checks must not stop the others.
pub(crate) fn moment(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<Option<i64>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Null => None,
        ValueRef::Integer(at) => Some(at),
        ValueRef::Real(at) => Some(at as i64),
        ValueRef::Text(_) | ValueRef::Blob(_) => Some(i64::MAX),
    })
}

/// A number of rows as SQLite takes it.
pub(crate) fn rows(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// A name as it is stored: one that is no UTF-8, or no text, must not end a walk over all of them,
/// nor begin it again. The order is SQLite's: texts before blobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Raw {
    is_blob: bool,
    bytes: Vec<u8>,
}

impl Raw {
    pub(crate) fn text(text: impl Into<Vec<u8>>) -> Self {
        Self {
            is_blob: false,
            bytes: text.into(),
        }
    }

    /// As text, if it is any.
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self.is_blob {
            true => None,
            false => std::str::from_utf8(&self.bytes).ok(),
        }
    }

    /// Whether a walk in SQLite's order that stands here gets on with `next`. In a file of another
    /// encoding a broken name is read as another one, which may stand before it: the walk would
    /// begin anew there, and never end.
    pub(crate) fn leads_to(&self, next: &Self) -> bool {
        self < next || (self != next && !self.show().contains('\u{FFFD}'))
    }

    pub(crate) fn show(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl ToSql for Raw {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self.is_blob {
            true => ValueRef::Blob(&self.bytes),
            false => ValueRef::Text(&self.bytes),
        }))
    }
}

impl FromSql for Raw {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self {
            is_blob: matches!(value, ValueRef::Blob(_)),
            bytes: value.as_bytes()?.to_vec(),
        })
    }
}
