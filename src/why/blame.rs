//! Whose fault it is, from what was heard last.

use crate::dispatch::Certificate;
use crate::stats::other_unit;
use crate::store::odd::is_page;
use crate::why::Fault;

/// Whose fault a failure is. Where others of its channel were delivered since, an answer that asks
/// for another request is about the message.
pub(super) fn blame(code: Option<&str>, text: Option<&str>, others: bool) -> Fault {
    match code {
        None if others => Fault::Message,
        None => Fault::Nobody,
        Some("tls") => match text.and_then(Certificate::told) {
            Some(Certificate::Expired | Certificate::Authority) => Fault::Receiver,
            Some(Certificate::Early) => Fault::Machine,
            Some(Certificate::OtherName) => Fault::Route,
            Some(Certificate::UnknownIssuer) | None => Fault::Network,
        },
        Some(
            "refused" | "dns" | "timeout" | "proxy" | "unreachable" | "reset" | "portal"
            | "garbage",
        ) => Fault::Network,
        Some("reply_rule") if text.is_some_and(|it| it.split(": ").any(is_page)) => Fault::Network,
        // Other answers hold the rule.
        Some("reply_rule") if others => Fault::Receiver,
        Some(
            "unauthorised" | "no_credentials" | "redirected" | "reply_rule" | "panic" | "untaken",
        ) => Fault::Route,
        Some("lost" | "interrupted") => Fault::Nobody,
        // Too slow, too early, too many: as good as no answer.
        Some("http_408" | "http_425" | "http_429") => Fault::Receiver,
        Some(code) if others && code.starts_with("http_4") => Fault::Message,
        Some(_) if is_address(code) => Fault::Route,
        Some(_) => Fault::Receiver,
    }
}

/// Whether an answer says that nothing of this kind is at the address.
pub(super) fn is_address(code: Option<&str>) -> bool {
    matches!(code, Some("http_404" | "http_405" | "http_410"))
}

/// Whose fault it is that this moment has passed.
pub(super) fn expiry_fault(at: Option<i64>) -> Fault {
    match at.and_then(other_unit) {
        Some(_) => Fault::Message,
        None => Fault::Nobody,
    }
}
