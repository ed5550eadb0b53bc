//! The settings file as it is written.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::values::{Keep, Pairs, Place, Share, Span, Texts, Whole};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub(super) drain: Drain,
    #[serde(default)]
    pub(super) channel: Pairs<Spanned<Channel>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Drain {
    pub(super) workers: Option<Whole<1, 1024>>,
    pub(super) prefetch: Option<Whole<1, 256>>,
    pub(super) lease: Option<Spanned<Span>>,
    pub(super) lock_share: Option<Share>,
    pub(super) settle_sync: Option<Sync>,
    pub(super) keep_payload: Option<Keep>,
    pub(super) keep_sent: Option<Keep>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Sync {
    Full,
    Normal,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Channel {
    pub(super) url: String,
    pub(super) method: Option<String>,
    #[serde(default)]
    pub(super) headers: Pairs<String>,
    pub(super) bearer: Option<Place>,
    pub(super) basic: Option<Basic>,
    #[serde(default)]
    pub(super) secret_headers: Pairs<Place>,
    pub(super) timeout: Option<Span>,
    pub(super) connect_timeout: Option<Span>,
    #[serde(default)]
    pub(super) allow_http: bool,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) client_cert: Option<ClientCert>,
    pub(super) proxy: Option<String>,
    pub(super) idempotency_header: Option<String>,
    pub(super) idempotency_key: Option<String>,
    pub(super) reply: Option<Reply>,
    pub(super) provider_id: Option<String>,
    #[serde(default)]
    pub(super) status: Status,
    pub(super) sign: Option<Place>,
    pub(super) retry: Option<Spanned<Retry>>,
    pub(super) max_in_flight: Option<Whole<1, 1024>>,
    pub(super) rate: Option<Whole<1, 1_000_000>>,
    pub(super) run_length: Option<Whole<1, 1024>>,
    pub(super) brake: Option<Whole<1, 1_000_000>>,
    pub(super) retry_after: Option<Holds>,
    pub(super) keep_answer: Option<Whole<0, 65_536>>,
    pub(super) on_dead: Option<Spanned<OnDead>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = r#"a table like { user = "NAME", password = { env = "NAME" } }"#
)]
pub(super) struct Basic {
    pub(super) user: String,
    pub(super) password: Place,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = r#"a table like { chain = "PATH", key = "PATH" }"#
)]
pub(super) struct ClientCert {
    pub(super) chain: PathBuf,
    pub(super) key: PathBuf,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Reply {
    pub(super) require: Texts,
    pub(super) forbid: Texts,
    pub(super) equals: Pairs<serde_json::Value>,
    pub(super) otherwise: Otherwise,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Otherwise {
    #[default]
    Retry,
    Reject,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Status {
    pub(super) delivered: Vec<u16>,
    pub(super) rejected: Vec<u16>,
    pub(super) retried: Vec<u16>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Retry {
    pub(super) base: Option<Span>,
    pub(super) cap: Option<Span>,
    pub(super) max_attempts: Option<Whole<1, 1_000_000>>,
    pub(super) min_dead_age: Option<Span>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Holds {
    Channel,
    Message,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum OnDead {
    Hold,
    Skip,
}
