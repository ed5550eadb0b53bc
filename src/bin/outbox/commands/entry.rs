//! A message as JSON: the columns by name.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use sqlite_outbox::{Attempt, Entry};

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
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_attempts: Option<Vec<Failed<'a>>>,
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
        let text = std::str::from_utf8(&entry.payload).ok();
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
            payload: text,
            payload_base64: text
                .is_none()
                .then(|| BASE64_STANDARD.encode(&entry.payload)),
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
            failed_attempts: None,
        }
    }

    pub(super) fn with_attempts(mut self, attempts: &'a [Attempt]) -> Self {
        self.failed_attempts = Some(attempts.iter().map(Failed::new).collect());
        self
    }
}
