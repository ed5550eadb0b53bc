//! A transactional outbox in the application's own SQLite file.

mod circuit;
mod clock;
mod dispatch;
mod error;
mod message;
mod observer;
mod retry;
mod stats;
mod verdict;

pub use circuit::OnDead;
pub use clock::{Clock, SystemClock};
pub use dispatch::{Delivery, Dispatcher, Failure, Outcome, Receipt, Router, Run};
pub use error::{Error, Result};
pub use message::{DEFAULT_MAX_PAYLOAD, Enqueued, MAX_HEADERS, MAX_NAME, Message, OnDuplicate};
pub use observer::{Event, Observer};
pub use retry::{Hold, Policy};
pub use stats::{ChannelState, ChannelStats, Counts, Stats};

pub use rusqlite;
