//! What the receiver answered, and the rules by which an answer counts as a delivery.

use std::fmt;

use serde_json::Value;
use ureq::http::{HeaderMap, StatusCode};

/// The most bytes of an answer that are read; the rest is left and the connection closed.
pub(super) const MAX_BODY: usize = 64 * 1024;

/// The receiver's answer as [`Route::reply_with`](crate::Route::reply_with) sees it.
#[derive(Clone)]
pub struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    /// Why the body is not whole, if it is not.
    pub(super) cut: Option<String>,
}

impl Reply {
    /// The HTTP status, e.g. 200.
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// The first header of this name, in any case, if it is printable ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|it| it.to_str().ok())
    }

    /// The body, not decompressed; at most its first 64 KiB. A secret of the request that the
    /// receiver echoes is blanked.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body as JSON, if it is that.
    pub fn json(&self) -> Option<Value> {
        // Some servers begin with a byte order mark.
        let text = self
            .body
            .strip_prefix(b"\xEF\xBB\xBF")
            .unwrap_or(&self.body);
        serde_json::from_slice(text).ok()
    }

    /// Whether the body ended as announced, within 64 KiB and the time allowed.
    pub fn is_whole(&self) -> bool {
        self.cut.is_none()
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers and body may echo credentials.
        f.debug_struct("Reply")
            .field("status", &self.status())
            .field("body_bytes", &self.body.len())
            .field("whole", &self.is_whole())
            .finish_non_exhaustive()
    }
}

/// What becomes of a message whose 2xx answer breaks the [`ReplyRule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Otherwise {
    /// It is tried again: something in between answered, or the failure may pass.
    #[default]
    Retry,
    /// The receiver refuses it: dead at once.
    Reject,
}

/// When a 2xx answer counts as a delivery. All conditions must hold.
///
/// A body that is no JSON, or longer than 64 KiB, breaks every rule: this is how a captive
/// portal's login page is told from the receiver. Paths are JSON pointers such as `/data/name`.
///
/// ```
/// # #[cfg(feature = "http")] {
/// use sqlite_outbox::{Otherwise, ReplyRule};
///
/// let odoo = ReplyRule::new()
///     .require("/result/id")
///     .forbid("/error")
///     .otherwise(Otherwise::Retry);
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use = "a rule holds for the route it is given to"]
pub struct ReplyRule {
    require: Vec<String>,
    forbid: Vec<String>,
    equals: Vec<(String, Value)>,
    otherwise: Otherwise,
}

impl ReplyRule {
    /// A rule without conditions: any JSON will do.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value must be there and not null. The first one required is the provider id.
    pub fn require(mut self, pointer: impl Into<String>) -> Self {
        self.require.push(pointer.into());
        self
    }

    /// The value must be absent or null.
    pub fn forbid(mut self, pointer: impl Into<String>) -> Self {
        self.forbid.push(pointer.into());
        self
    }

    /// The value must be this one.
    pub fn equals(mut self, pointer: impl Into<String>, value: impl Into<Value>) -> Self {
        self.equals.push((pointer.into(), value.into()));
        self
    }

    /// What to do when a condition does not hold. Default: try again.
    pub fn otherwise(mut self, choice: Otherwise) -> Self {
        self.otherwise = choice;
        self
    }

    pub(super) fn choice(&self) -> Otherwise {
        self.otherwise
    }

    /// The pointer whose value is the provider id.
    pub(super) fn id(&self) -> Option<&str> {
        self.require.first().map(String::as_str)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let required = self.require.iter().chain(&self.forbid);
        let compared = self.equals.iter().map(|(pointer, _)| pointer);
        for pointer in required.chain(compared) {
            check_pointer(pointer)?;
        }
        Ok(())
    }

    /// Nothing when the rule holds, else the condition that does not.
    pub(super) fn broken(&self, json: Option<&Value>, cut: Option<&str>) -> Option<String> {
        let Some(json) = json else {
            return Some(match cut {
                Some(cut) => format!("the answer is not whole: {cut}"),
                None => "the answer is no JSON".into(),
            });
        };
        let set = |pointer: &str| json.pointer(pointer).filter(|it| !it.is_null());
        if let Some(it) = self.forbid.iter().find(|it| set(it).is_some()) {
            return Some(format!("the answer has {it}"));
        }
        if let Some(it) = self.require.iter().find(|it| set(it).is_none()) {
            return Some(format!("the answer has no {it}"));
        }
        let wrong = self.equals.iter();
        wrong
            .filter(|(pointer, value)| json.pointer(pointer) != Some(value))
            .map(|(pointer, value)| format!("{pointer} in the answer is not {value}"))
            .next()
    }
}

pub(super) fn check_pointer(pointer: &str) -> Result<(), String> {
    if pointer.is_empty() || pointer.starts_with('/') {
        Ok(())
    } else {
        Err(format!(
            "{pointer:?} is no JSON pointer; it would begin with a slash"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_rule_holds_only_when_every_condition_does() {
        let rule = ReplyRule::new()
            .require("/data/name")
            .forbid("/error")
            .equals("/status", "ok")
            .equals("/routed", true);
        let good = json!({"data": {"name": "S-1"}, "error": null, "status": "ok", "routed": true});
        assert_eq!(rule.broken(Some(&good), None), None);
        let cases = [
            (json!({}), "no /data/name"),
            (json!({"data": {"name": null}}), "no /data/name"),
            (
                json!({"data": {"name": "S-1"}, "error": {"code": 200}}),
                "has /error",
            ),
            (
                json!({"data": {"name": "S-1"}, "status": "no"}),
                "/status in the answer is not \"ok\"",
            ),
            (
                json!({"data": {"name": "S-1"}, "status": "ok", "routed": false}),
                "/routed",
            ),
            (json!("text"), "no /data/name"),
        ];
        for (answer, reason) in cases {
            let found = rule.broken(Some(&answer), None).expect(reason);
            assert!(found.contains(reason), "{found}");
        }
        assert_eq!(
            rule.broken(None, None).as_deref(),
            Some("the answer is no JSON")
        );
        assert!(
            rule.broken(None, Some("cut"))
                .unwrap()
                .contains("not whole")
        );
    }

    #[test]
    fn a_pointer_without_a_slash_is_refused() {
        assert!(ReplyRule::new().require("data/name").check().is_err());
        assert!(ReplyRule::new().forbid("error").check().is_err());
        assert!(ReplyRule::new().equals("status", 1).check().is_err());
        assert!(ReplyRule::new().require("/data").check().is_ok());
    }
}
