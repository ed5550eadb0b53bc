//! A transactional outbox in the application's own SQLite file.

mod circuit;
mod clock;
mod dispatch;
mod drain;
mod draining;
mod entry;
mod error;
#[cfg(feature = "http")]
mod http;
mod message;
mod observer;
mod options;
mod outbox;
mod pump;
mod retry;
mod schema;
mod settings;
mod stats;
mod store;
pub mod testing;
mod verdict;

pub use circuit::OnDead;
pub use clock::{Clock, SystemClock};
pub use dispatch::{Delivery, Dispatcher, Failure, Outcome, Receipt, Router, Run};
pub use draining::{Cancel, ChannelReport, DrainReport, Draining, Ended, PumpBuilder};
pub use entry::{Attempt, Entry, Filter, Status};
pub use error::{Error, Result};
#[cfg(feature = "http")]
pub use http::{
    Credential, CredentialRequest, CredentialSource, HttpDispatcher, HttpDispatcherBuilder,
    Otherwise, Preview, Reply, ReplyRule, Route, Secret,
};
pub use message::{DEFAULT_MAX_PAYLOAD, Enqueued, MAX_HEADERS, MAX_NAME, Message, OnDuplicate};
pub use observer::{Event, Observer};
pub use options::Options;
pub use outbox::Outbox;
pub use pump::{Health, Pump, Tally};
pub use retry::{Hold, Policy};
pub use schema::{SCHEMA, SCHEMA_VERSION};
pub use settings::{Settings, SettleSync};
pub use stats::{ChannelState, ChannelStats, Counts, Stats};
pub use store::pool::PooledConnection;

pub use rusqlite;
