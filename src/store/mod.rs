//! The only SQL.

pub(crate) mod channel;
pub(crate) mod check;
pub(crate) mod claim;
pub(crate) mod connect;
pub(crate) mod enqueue;
pub(crate) mod file;
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

/// A number of rows as SQLite takes it.
pub(crate) fn rows(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
