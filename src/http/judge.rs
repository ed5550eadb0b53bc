//! What an answer means: one table.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::clock::millis;
use crate::dispatch::{Failure, Outcome, Receipt};
use crate::retry::HOLD_MAX;

use super::reply::{Otherwise, Reply, ReplyRule};
use super::text::{self, SHOWN};

/// The most bytes of an answer that are kept as evidence.
const KEPT: usize = 4096;

/// What becomes of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Delivered,
    Rejected,
    Retry,
    Blocked,
}

/// Status codes a route judges otherwise than the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Overrides {
    pub(super) delivered: Vec<u16>,
    pub(super) rejected: Vec<u16>,
    pub(super) retried: Vec<u16>,
}

impl Overrides {
    fn find(&self, status: u16) -> Option<Fate> {
        if self.delivered.contains(&status) {
            Some(Fate::Delivered)
        } else if self.rejected.contains(&status) {
            Some(Fate::Rejected)
        } else if self.retried.contains(&status) {
            Some(Fate::Retry)
        } else {
            None
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let all = self.delivered.iter().chain(&self.rejected);
        for status in all.clone().chain(&self.retried) {
            if !(200..600).contains(status) {
                return Err(format!("{status} is no final HTTP status"));
            }
        }
        let rest = self.rejected.iter().chain(&self.retried);
        let twice = rest.clone().find(|it| self.delivered.contains(it));
        match twice.or_else(|| self.rejected.iter().find(|it| self.retried.contains(it))) {
            Some(status) => Err(format!("the status {status} is judged in two ways")),
            None => Ok(()),
        }
    }
}

/// The table. `broken` says whether the route's reply rule is broken, and what then.
pub(super) fn judge(
    status: u16,
    overrides: &Overrides,
    broken: Option<Otherwise>,
) -> (Fate, Cow<'static, str>) {
    let code = || Cow::Owned(format!("http_{status}"));
    if let Some(fate) = overrides.find(status) {
        return (fate, code());
    }
    match (status, broken) {
        (200..=299, None) => (Fate::Delivered, code()),
        (200..=299, Some(Otherwise::Retry)) => (Fate::Retry, "reply_rule".into()),
        (200..=299, Some(Otherwise::Reject)) => (Fate::Rejected, "reply_rule".into()),
        (300..=399, _) => (Fate::Blocked, "redirected".into()),
        (401 | 407, _) => (Fate::Blocked, Failure::UNAUTHORISED.into()),
        (511, _) => (Fate::Blocked, "portal".into()),
        (400 | 406 | 410..=415 | 422 | 431 | 451, _) => (Fate::Rejected, code()),
        _ => (Fate::Retry, code()),
    }
}

/// Judges a whole reply. `now` is in milliseconds since 1970 UTC.
pub(super) fn outcome(
    reply: &Reply,
    overrides: &Overrides,
    rule: Option<&ReplyRule>,
    id: Option<&str>,
    now: i64,
) -> Outcome {
    let json = reply.json();
    let rule_asked = rule.filter(|_| matches!(reply.status(), 200..=299));
    let broken = rule_asked.and_then(|rule| {
        let why = rule.broken(json.as_ref(), reply.cut.as_deref())?;
        Some((rule.choice(), why))
    });
    let (fate, code) = judge(
        reply.status(),
        overrides,
        broken.as_ref().map(|(choice, _)| *choice),
    );
    let server_time = reply.header("date").and_then(date);
    let answer = reply.body.get(..KEPT).unwrap_or(&reply.body);
    let answer = (!answer.is_empty()).then(|| answer.to_vec());
    if fate == Fate::Delivered {
        let pointer = rule.and_then(ReplyRule::id).or(id);
        return Outcome::Delivered(Receipt {
            provider_id: json
                .as_ref()
                .zip(pointer)
                .and_then(|(json, it)| name(json.pointer(it)?)),
            answer,
            server_time,
        });
    }
    let mut failure = Failure::new(code, String::new()).status(reply.status());
    failure.answer = answer;
    failure.server_time = server_time;
    failure.text = text::of(reply, json.as_ref(), broken.map(|(_, why)| why));
    if matches!(reply.status(), 429 | 503) {
        failure.retry_after = reply
            .header("retry-after")
            .and_then(|it| retry_after(it, server_time.unwrap_or(now)));
    }
    match fate {
        Fate::Rejected => Outcome::Rejected(failure),
        Fate::Blocked => Outcome::Blocked(failure),
        _ => Outcome::Retry(failure),
    }
}

/// Seconds or a date. Zero, the past and garbage are no wish; a day is the most. The receiver's
/// own clock is the better base for its date: the till's may be wrong.
fn retry_after(text: &str, now: i64) -> Option<Duration> {
    let text = text.trim();
    let wish = match text.parse::<u64>() {
        Ok(seconds) => i64::try_from(seconds)
            .unwrap_or(i64::MAX)
            .saturating_mul(1000),
        Err(_) if !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit()) => i64::MAX,
        Err(_) => date(text)?.saturating_sub(now),
    };
    let wish = u64::try_from(wish.min(HOLD_MAX)).ok()?;
    (wish > 0).then(|| Duration::from_millis(wish))
}

pub(super) fn date(text: &str) -> Option<i64> {
    let at = httpdate::parse_http_date(text.trim()).ok()?;
    let since = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(millis(since))
}

/// A provider id: what a person would call the value.
fn name(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.chars().take(SHOWN).collect()),
        other => Some(other.to_string().chars().take(SHOWN).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ureq::http::{HeaderMap, StatusCode};

    fn reply(status: u16, headers: &[(&'static str, &str)], body: &str) -> Reply {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        Reply {
            status: StatusCode::from_u16(status).unwrap(),
            headers: map,
            body: body.into(),
            cut: None,
        }
    }

    fn failure(reply: &Reply) -> Failure {
        match outcome(reply, &Overrides::default(), None, None, 0) {
            Outcome::Rejected(it) | Outcome::Retry(it) | Outcome::Blocked(it) => it,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_status_has_one_meaning() {
        use Fate::*;
        let plain = Overrides::default();
        for status in 100..=999_u16 {
            let wanted = match status {
                200..=299 => Delivered,
                300..=399 | 401 | 407 | 511 => Blocked,
                400 | 406 | 410 | 411 | 412 | 413 | 414 | 415 | 422 | 431 | 451 => Rejected,
                _ => Retry,
            };
            assert_eq!(judge(status, &plain, None).0, wanted, "{status}");
        }
        let codes = [
            (503, "http_503"),
            (301, "redirected"),
            (401, "unauthorised"),
            (407, "unauthorised"),
            (511, "portal"),
            (422, "http_422"),
        ];
        for (status, code) in codes {
            assert_eq!(judge(status, &plain, None).1, code);
        }
    }

    #[test]
    fn a_broken_rule_changes_only_successes() {
        let plain = Overrides::default();
        for (choice, fate) in [
            (Otherwise::Retry, Fate::Retry),
            (Otherwise::Reject, Fate::Rejected),
        ] {
            assert_eq!(
                judge(200, &plain, Some(choice)),
                (fate, "reply_rule".into())
            );
            assert_eq!(judge(422, &plain, Some(choice)).0, Fate::Rejected);
            assert_eq!(judge(503, &plain, Some(choice)).0, Fate::Retry);
            assert_eq!(judge(302, &plain, Some(choice)).0, Fate::Blocked);
        }
    }

    #[test]
    fn a_route_overrides_the_table() {
        let own = Overrides {
            delivered: vec![409],
            rejected: vec![417, 404],
            retried: vec![400],
        };
        let cases = [
            (409, Fate::Delivered),
            (417, Fate::Rejected),
            (404, Fate::Rejected),
            (400, Fate::Retry),
            (422, Fate::Rejected),
        ];
        for (status, fate) in cases {
            assert_eq!(judge(status, &own, None).0, fate, "{status}");
        }
        // A taken key is proof enough; its body is an error document.
        assert_eq!(judge(409, &own, Some(Otherwise::Retry)).0, Fate::Delivered);
        assert!(own.check().is_ok());
        let twice = Overrides {
            delivered: vec![409],
            retried: vec![409],
            ..Overrides::default()
        };
        assert!(twice.check().unwrap_err().contains("two ways"));
        let odd = Overrides {
            rejected: vec![42],
            ..Overrides::default()
        };
        assert!(odd.check().is_err());
    }

    #[test]
    fn retry_after_is_read_in_every_form_and_clamped() {
        let now = 1_700_000_000_000; // Tue, 14 Nov 2023 22:13:20 GMT
        let day = Some(Duration::from_secs(24 * 3600));
        let cases = [
            ("2", Some(Duration::from_secs(2))),
            (" 120 ", Some(Duration::from_secs(120))),
            (
                "Tue, 14 Nov 2023 22:13:23 GMT",
                Some(Duration::from_secs(3)),
            ),
            ("Tue, 14 Nov 2023 22:13:19 GMT", None),
            ("Thu, 14 Nov 2999 22:13:19 GMT", day),
            ("99999999999", day),
            ("99999999999999999999999999", day),
            ("0", None),
            ("-5", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(retry_after(text, now), wanted, "{text:?}");
        }
    }

    #[test]
    fn a_date_to_retry_after_is_relative_to_the_receivers_clock() {
        let headers = [
            ("date", "Tue, 14 Nov 2023 22:13:20 GMT"),
            ("retry-after", "Tue, 14 Nov 2023 22:13:25 GMT"),
        ];
        // The till believes it is 1970.
        let failure = failure(&reply(503, &headers, ""));
        assert_eq!(failure.retry_after, Some(Duration::from_secs(5)));
        assert_eq!(failure.server_time, Some(1_700_000_000_000));
        // Only 429 and 503 say how long to wait.
        let other = super::tests::failure(&reply(500, &headers, ""));
        assert_eq!(other.retry_after, None);
    }

    #[test]
    fn a_failure_leads_with_what_a_person_needs() {
        let odoo =
            r#"{"error":{"message":"Odoo Server Error","data":{"message":"Customer is on hold"}}}"#;
        let cases = [
            (
                422,
                r#"{"title":"T","detail":"Price is negative"}"#,
                "Price is negative; HTTP 422",
            ),
            (
                400,
                r#"{"message":"no\nsuch item"}"#,
                "no such item; HTTP 400 Bad Request",
            ),
            (500, odoo, "Customer is on hold; HTTP 500"),
            (
                417,
                r#"{"exception":"ValidationError: x"}"#,
                "ValidationError: x; HTTP 417",
            ),
            (
                400,
                r#"{"error":{"message":"(#100) Invalid"}}"#,
                "(#100) Invalid; HTTP 400",
            ),
            (
                500,
                "<html>\r\n <b>Oops</b>",
                "HTTP 500 Internal Server Error: <html> <b>Oops</b>",
            ),
            (
                422,
                r#"{"detail":[{"loc":1}]}"#,
                "HTTP 422 Unprocessable Entity: {\"detail\"",
            ),
            (503, "", "HTTP 503 Service Unavailable"),
            (599, "\u{1b}[31mred", "HTTP 599: [31mred"),
        ];
        for (status, body, start) in cases {
            let text = failure(&reply(status, &[], body)).text;
            assert!(text.starts_with(start), "{text}");
            assert!(!text.chars().any(char::is_control), "{text:?}");
        }
    }

    #[test]
    fn a_failure_is_not_explained_by_a_rule_for_successes() {
        let rule = ReplyRule::new().equals("/routed", true);
        let reply = reply(401, &[], r#"{"message":"log in"}"#);
        let Outcome::Blocked(failure) =
            outcome(&reply, &Overrides::default(), Some(&rule), None, 0)
        else {
            panic!("not blocked");
        };
        assert!(!failure.text.contains("routed"), "{}", failure.text);
    }

    #[test]
    fn texts_and_evidence_are_bounded() {
        let failure = failure(&reply(500, &[], &"ä".repeat(30_000)));
        assert!(failure.text.chars().count() < SHOWN + 60);
        assert_eq!(failure.answer.map(|it| it.len()), Some(KEPT));
    }

    #[test]
    fn a_redirect_shows_where_to_without_the_query() {
        let headers = [("location", "https://login.example/a?token=s3cr3t")];
        let failure = failure(&reply(302, &headers, ""));
        assert!(
            failure
                .text
                .contains("redirected to https://login.example/a")
        );
        assert!(!failure.text.contains("s3cr3t"), "{}", failure.text);
    }

    #[test]
    fn a_receipt_carries_id_answer_and_time() {
        let rule = ReplyRule::new().require("/data/name");
        let reply = reply(
            201,
            &[("date", "Tue, 14 Nov 2023 22:13:20 GMT")],
            r#"{"data":{"name":"INV-7"},"id":42}"#,
        );
        let get = |rule, id| match outcome(&reply, &Overrides::default(), rule, id, 0) {
            Outcome::Delivered(receipt) => receipt,
            other => panic!("{other:?}"),
        };
        let receipt = get(Some(&rule), Some("/id"));
        assert_eq!(receipt.provider_id.as_deref(), Some("INV-7"));
        assert_eq!(receipt.server_time, Some(1_700_000_000_000));
        assert_eq!(receipt.answer.as_deref(), Some(reply.body()));
        assert_eq!(get(None, Some("/id")).provider_id.as_deref(), Some("42"));
        assert_eq!(get(None, Some("/none")).provider_id, None);
    }
}
