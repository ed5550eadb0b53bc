//! Whose fault it is, from what was heard last.

use crate::dispatch::{Certificate, Failure};
use crate::stats::other_unit;
use crate::store::odd::is_page;
use crate::why::{Fault, Reason, Why};

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
        Some(code) if is_program(code) => Fault::Program,
        Some("unauthorised" | "no_credentials" | "redirected" | "reply_rule") => Fault::Route,
        Some("lost" | "interrupted") => Fault::Nobody,
        // Too slow, too early, too many: as good as no answer.
        Some("http_408" | "http_425" | "http_429") => Fault::Receiver,
        Some(code) if others && code.starts_with("http_4") => Fault::Message,
        Some(_) if is_address(code) => Fault::Route,
        Some(_) => Fault::Receiver,
    }
}

/// Whether the program that sends did not do its part, whatever the receiver would have said.
pub(super) fn is_program(code: &str) -> bool {
    matches!(code, Failure::PANIC | Failure::UNSAID | Failure::UNTAKEN)
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

impl Why {
    /// Whose fault it is, in a sentence.
    pub fn blame(&self) -> &'static str {
        match self.fault {
            Fault::Message => "The fault lies with the message itself.",
            Fault::Receiver if self.reason == Reason::NoOther => {
                "The fault may be the receiver's or the message's own."
            }
            Fault::Receiver if self.is_undecided() => {
                "The fault may be the receiver's or the message's own: nothing of its channel was \
                 delivered since."
            }
            Fault::Receiver if self.reason == Reason::Dead => {
                "The receiver rejects everything lately, so the fault is probably the receiver's."
            }
            Fault::Receiver => "The fault lies with the receiver.",
            Fault::Program if self.reason == Reason::NoDrain => {
                "The fault lies with the program that should send."
            }
            Fault::Program => "The fault lies with the program that sends.",
            Fault::Route if self.reason == Reason::NoCredentials => {
                "The fault lies with the settings of the program that sends; the receiver was not \
                 asked."
            }
            Fault::Route => "The fault lies with the route: its address, credentials or settings.",
            Fault::Network => "The fault lies with the network.",
            Fault::Machine if self.reason == Reason::Dead => {
                "The fault lies with a trigger or rule in the file that refused the change."
            }
            Fault::Machine if self.reason == Reason::FarAhead => {
                "A clock that was wrong is probably at fault."
            }
            Fault::Machine => "The fault is probably this machine's clock.",
            Fault::Operator => "A person decided so.",
            Fault::Nobody => "Nobody is at fault.",
        }
    }
}
