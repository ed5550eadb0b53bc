//! A message as JSON: the columns by name.

use std::collections::BTreeMap;

use base64::Engine;
use base64::display::Base64Display;
use base64::prelude::BASE64_STANDARD;
use serde::{Serialize, Serializer};
use sqlite_outbox::{Attempt, AuditEntry, Conflict, Entry, is_printable};

use super::conflicts;
use super::show::Known;

/// A payload: text where it is text that can be written as one.
#[derive(Serialize)]
pub(super) struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<Base64<'a>>,
}

/// Bytes as base64, made while they are written: a payload may be large.
#[derive(Clone, Copy)]
struct Base64<'a>(&'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &BASE64_STANDARD))
    }
}

impl<'a> Body<'a> {
    pub(super) fn of(payload: &'a [u8]) -> Self {
        let text = std::str::from_utf8(payload)
            .ok()
            .filter(|it| reads_well(it));
        Self {
            payload: text,
            payload_base64: text.is_none().then_some(Base64(payload)),
        }
    }
}

/// Whether a text is about as long when it is written as JSON: a control character takes six bytes,
/// so a text of nothing else would be four times as long as its base64.
fn reads_well(text: &str) -> bool {
    const SHORT: usize = 64;
    let written = |it: char| match it {
        '"' | '\\' | '\n' | '\r' | '\t' => 2,
        it if is_printable(it) => it.len_utf8(),
        it => 6 * it.len_utf16(),
    };
    let most = 2 * text.len() + SHORT;
    let mut length = 0;
    text.chars().all(|it| {
        length += written(it);
        length <= most
    })
}

/// A message; the texts that are no UTF-8 stand a second time as `<column>_base64`.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    id: i64,
    channel: &'a str,
    message_id: &'a str,
    dedupe_key: &'a str,
    event_type: Option<&'a str>,
    recipient: Option<&'a str>,
    ordering_key: Option<&'a str>,
    principal: Option<&'a str>,
    content_type: &'a str,
    headers: Option<&'a str>,
    #[serde(flatten)]
    body: Body<'a>,
    status: &'static str,
    available_at: Option<i64>,
    expires_at: Option<i64>,
    next_attempt_at: i64,
    claims: i64,
    attempts: i64,
    last_attempt_at: Option<i64>,
    last_error: Option<&'a str>,
    provider_id: Option<&'a str>,
    answer: Option<&'a str>,
    created_at: i64,
    settled_at: Option<i64>,
    #[serde(flatten)]
    broken: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_attempts: Option<Vec<Failed<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    audit: Option<Vec<Deed<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conflicts: Option<Vec<conflicts::Row<'a>>>,
}

/// Texts that are no UTF-8, as `<column>_base64`.
pub(super) fn as_base64(broken: &BTreeMap<&str, Vec<u8>>) -> BTreeMap<String, String> {
    let texts = broken.iter();
    texts
        .map(|(column, bytes)| (format!("{column}_base64"), BASE64_STANDARD.encode(bytes)))
        .collect()
}

/// Something that was done to a message or a channel.
#[derive(Serialize)]
pub(super) struct Deed<'a> {
    at: i64,
    who: &'a str,
    action: &'a str,
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    former_message_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    former_payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    former_payload_base64: Option<Base64<'a>>,
}

impl<'a> Deed<'a> {
    fn new(entry: &'a AuditEntry) -> Self {
        let former = entry.former_payload.as_deref().map(Body::of);
        let (text, code) = former.map_or((None, None), |it| (it.payload, it.payload_base64));
        Self {
            at: entry.at,
            who: &entry.who,
            action: &entry.action,
            reason: entry.reason.as_deref(),
            former_message_id: entry.former_message_id.as_deref(),
            former_payload: text,
            former_payload_base64: code,
        }
    }
}

/// A failed attempt.
#[derive(Serialize)]
pub(super) struct Failed<'a> {
    at: i64,
    duration_ms: Option<i64>,
    outcome: &'a str,
    http_status: Option<i64>,
    charged: bool,
    error: Option<&'a str>,
}

impl<'a> Failed<'a> {
    pub(super) fn new(attempt: &'a Attempt) -> Self {
        Self {
            at: attempt.at,
            duration_ms: attempt.duration_ms,
            outcome: &attempt.outcome,
            http_status: attempt.http_status,
            charged: attempt.charged.is_some(),
            error: attempt.error.as_deref(),
        }
    }
}

impl<'a> Row<'a> {
    pub(super) fn new(entry: &'a Entry) -> Self {
        Self {
            id: entry.id,
            channel: &entry.channel,
            message_id: &entry.message_id,
            dedupe_key: &entry.dedupe_key,
            event_type: entry.event_type.as_deref(),
            recipient: entry.recipient.as_deref(),
            ordering_key: entry.ordering_key.as_deref(),
            principal: entry.principal.as_deref(),
            content_type: &entry.content_type,
            headers: entry.headers.as_deref(),
            body: Body::of(&entry.payload),
            status: entry.status.as_str(),
            available_at: entry.available_at,
            expires_at: entry.expires_at,
            next_attempt_at: entry.next_attempt_at,
            claims: entry.claims,
            attempts: entry.attempts,
            last_attempt_at: entry.last_attempt_at,
            last_error: entry.last_error.as_deref(),
            provider_id: entry.provider_id.as_deref(),
            answer: entry.answer.as_deref(),
            created_at: entry.created_at,
            settled_at: entry.settled_at,
            broken: as_base64(&entry.broken),
            failed_attempts: None,
            audit: None,
            conflicts: None,
        }
    }

    /// With what else is known of it.
    pub(super) fn with(mut self, known: &Known<'a>) -> Self {
        self.failed_attempts = Some(known.attempts.iter().map(Failed::new).collect());
        self.audit = Some(known.audit.iter().map(Deed::new).collect());
        self.conflicts = Some(known.conflicts.iter().map(conflicts::Row::new).collect());
        self
    }
}

/// In which columns a message that is kept aside differs from the one that holds its key.
pub(super) fn difference(conflict: &Conflict, holder: &Entry) -> String {
    let columns = [
        ("payload", conflict.payload != holder.payload),
        ("event_type", conflict.event_type != holder.event_type),
        ("recipient", conflict.recipient != holder.recipient),
        ("ordering_key", conflict.ordering_key != holder.ordering_key),
        ("principal", conflict.principal != holder.principal),
        ("content_type", conflict.content_type != holder.content_type),
        ("headers", conflict.headers != holder.headers),
        ("available_at", conflict.available_at != holder.available_at),
        ("expires_at", conflict.expires_at != holder.expires_at),
    ];
    let differ = columns.iter().filter(|(_, differs)| *differs);
    let names: Vec<_> = differ.map(|(name, _)| *name).collect();
    names.join(", ")
}
