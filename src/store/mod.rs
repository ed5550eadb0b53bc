//! The only place with SQL.

pub(crate) mod connect;
pub(crate) mod enqueue;
pub(crate) mod pool;
pub(crate) mod read;
pub(crate) mod stats;
