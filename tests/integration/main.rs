//! What a program sees of the outbox.

mod drain;
mod enqueue;
mod fixture;
mod reads;
mod sql_contract;
mod store;
