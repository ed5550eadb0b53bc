//! What a program sees of the outbox.

mod drain;
mod enqueue;
mod weeks;
