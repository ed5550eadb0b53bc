//! What a program sees of the outbox. One binary, so that the tests link once.

mod drain;
mod enqueue;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod server;
