//! What a program sees of the outbox. One binary, so that the tests link once.

// These guard the library; a helper of a test may stop the test, and tests watch the real time.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod admission;
mod again;
mod broken;
mod bulk;
mod census;
mod channels;
#[cfg(feature = "cli")]
mod cli;
mod clock;
mod connections;
mod costs;
mod desk;
mod drain;
mod duplicates;
mod ends;
mod enqueue;
mod exact;
mod fencing;
mod fixture;
mod foreign_hands;
#[cfg(feature = "http")]
mod http;
mod manners;
mod model;
mod mutants;
#[cfg(feature = "netwatch")]
mod netwatch;
mod operators;
mod order;
mod patience;
mod power;
#[cfg(feature = "http")]
mod processes;
mod promises;
mod pump;
mod readme;
mod reads;
#[cfg(feature = "http")]
mod reconnect;
mod replaced;
mod retention;
mod salvage;
#[cfg(feature = "http")]
mod server;
mod settled;
mod shim;
mod simulation;
mod sizes;
#[cfg(feature = "http")]
mod soak;
mod sql_contract;
mod store;
mod tidy;
mod trouble;
#[path = "../vfs/mod.rs"]
mod vfs;
mod weeks;
mod why;
