//! The only SQL.

pub(crate) mod channel;
pub(crate) mod check;
pub(crate) mod claim;
pub(crate) mod conflict;
pub(crate) mod connect;
pub(crate) mod enqueue;
pub(crate) mod file;
pub(crate) mod find;
mod look;
pub(crate) mod operate;
#[cfg(test)]
mod plans;
pub(crate) mod pool;
pub(crate) mod read;
pub(crate) mod retention;
pub(crate) mod round;
pub(crate) mod select;
pub(crate) mod settle;
pub(crate) mod stats;
pub(crate) mod upkeep;
pub(crate) mod why;

use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef};

/// A number of rows as SQLite takes it.
pub(crate) fn rows(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Text as it is stored: a name that is no UTF-8 must not end a walk over all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    /// As text, if it is any.
    pub(crate) fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl ToSql for Raw {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

impl FromSql for Raw {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_bytes().map(|bytes| Self(bytes.to_vec()))
    }
}
