//! What a program sees of the outbox.

mod enqueue;
