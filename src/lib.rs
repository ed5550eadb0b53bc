//! A transactional outbox in the application's own SQLite file: the sale and the message about it
//! commit together, and the message is sent when there is a network.
//!
//! It is for programs that must go on working offline: desktop, point of sale, edge. It is no
//! broker, no job runner, no inbox, and not exactly-once: a receiver sees the same idempotency key
//! on every attempt of a message and has to respect it.
//!
//! # Commit
//!
//! Open the outbox in the file the application has anyway, and enqueue in its transactions.
//!
//! ```
//! use sqlite_outbox::{Message, Outbox};
//!
//! # fn main() -> anyhow::Result<()> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("till.db");
//! let outbox = Outbox::open(path)?; // makes the tables where they are missing
//! outbox.transaction(|tx| {
//!     tx.execute_batch("CREATE TABLE sale (id TEXT PRIMARY KEY, total INTEGER)")?;
//!     tx.execute("INSERT INTO sale VALUES ('S-104522', 1250)", [])?;
//!     let message = Message::text("sales", "S-104522").dedupe_key("S-104522");
//!     outbox.enqueue(tx, &message)?;
//!     anyhow::Ok(())
//! })?; // both are committed, or neither
//! assert_eq!(outbox.unsent()?, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Any `rusqlite` transaction on the file will do; `enqueue` wants it as proof that there is one.
//! Programs in other languages insert into the table `outbox` by plain SQL: [`SCHEMA`] is the
//! contract.
//!
//! # Drain
//!
//! A [`Dispatcher`] carries one message, blocking. A closure is one; [`HttpDispatcher`] is another.
//! [`Outbox::drain`] sends until nothing more can be done now, and says what it left and why.
//!
//! ```
//! use sqlite_outbox::{Delivery, Message, Outbox, Outcome};
//!
//! # fn main() -> anyhow::Result<()> {
//! # let dir = tempfile::tempdir()?;
//! # let outbox = Outbox::open(dir.path().join("till.db"))?;
//! # outbox.transaction(|tx| outbox.enqueue(tx, &Message::text("sales", "one")))?;
//! let nobody = |_: &Delivery| Ok(Outcome::unreachable("no network"));
//! let report = outbox.drain(&nobody)?;
//! assert_eq!((report.sent, report.dead, report.unsent), (0, 0, 1)); // nothing lost, nobody charged
//!
//! let erp = |sale: &Delivery| {
//!     println!("{} {}", sale.message_id, String::from_utf8_lossy(&sale.payload));
//!     Ok(Outcome::delivered())
//! };
//! assert_eq!(outbox.drain(&erp)?.sent, 1);
//! # Ok(())
//! # }
//! ```
//!
//! [`Outbox::pump`] does the same in the background, and notices commits of other processes.
//!
//! # Whose fault it was
//!
//! What the dispatcher answers decides ([`Outcome`]). A failure is charged to the *message* only
//! when its channel has delivered something since the last charge; otherwise it is the *channel's*
//! trouble: its circuit opens, it is probed now and then with one message, and everything else
//! waits uncharged. So an outage of any length uses up no message's attempts, and a message that is
//! really at fault still becomes a dead letter. [`Policy`] has the numbers.
//!
//! # Order
//!
//! Messages of a channel with the same [`Message::ordering_key`] first arrive in enqueue order, one
//! at a time, whatever fails, waits or crashes. Others have no order.
//!
//! # See why
//!
//! [`Outbox::stats`] counts and names each channel's state; printed, it is one line for the
//! cashier. [`Outbox::list`], [`Outbox::find`] and [`Outbox::attempts`] show single messages. The
//! tool `outbox` shows the same to someone who has only the file.
//!
//! # Test
//!
//! [`testing`] has a clock that is set by hand, a scripted receiver, and a drain that runs step by
//! step in the calling thread.

#![forbid(unsafe_code)]
// Without the feature `http` the documentation names a type that is not there.
#![cfg_attr(not(feature = "http"), allow(rustdoc::broken_intra_doc_links))]

mod check;
mod circuit;
mod clock;
mod condition;
mod conflict;
mod dispatch;
mod drain;
mod draining;
mod edit;
mod entry;
mod error;
#[cfg(feature = "http")]
mod http;
mod maintenance;
mod message;
#[cfg(feature = "netwatch")]
pub mod netwatch;
mod observer;
mod operator;
mod options;
mod outbox;
mod printable;
mod pump;
mod retry;
mod schema;
mod selection;
mod settings;
mod stats;
mod store;
pub mod testing;
mod transfer;
mod verdict;
mod why;

pub use circuit::OnDead;
pub use clock::{Clock, FIRST_HONEST, SystemClock};
pub use condition::{Compacted, FileInfo, Finding, Lost, Salvage, Severity};
pub use conflict::{Conflict, Resolution};
pub use dispatch::{Delivery, Dispatcher, Failure, Outcome, Receipt, Router, Run};
pub use draining::{Cancel, ChannelReport, DrainReport, Draining, Ended, PumpBuilder};
pub use edit::Edit;
pub use entry::{Attempt, AuditEntry, DeadReason, Entry, Filter, Status};
pub use error::{Error, Result};
#[cfg(feature = "http")]
pub use http::{
    Call, Credential, CredentialRequest, CredentialSource, HttpDispatcher, HttpDispatcherBuilder,
    Otherwise, Preview, Receiver, Reply, ReplyRule, Route, Secret,
};
pub use message::{DEFAULT_MAX_PAYLOAD, Enqueued, MAX_HEADERS, MAX_NAME, Message, OnDuplicate};
pub use observer::{Event, Observer};
pub use operator::Operator;
pub use options::Options;
pub use outbox::Outbox;
pub use printable::{is_printable, printable, printable_name};
pub use pump::{Health, Pump, Tally};
pub use retry::{Hold, Policy};
pub use schema::{SCHEMA, SCHEMA_VERSION};
pub use selection::{Selection, SentAgain};
pub use settings::{Settings, SettleSync};
pub use stats::{ChannelState, ChannelStats, Counts, FAR_AHEAD, Stats};
pub use store::pool::PooledConnection;
pub use transfer::Transfer;
pub use why::{Explainer, Fault, Reason, Why, WhyGroup};

pub use rusqlite;
