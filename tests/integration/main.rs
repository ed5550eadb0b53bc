//! What a program sees of the outbox.

// Helpers are no tests to clippy, and tests watch the real time.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod admission;
mod connections;
mod drain;
mod duplicates;
mod enqueue;
mod fixture;
mod reads;
mod sql_contract;
mod store;
