//! What a person can do about a failure, by its code.

use super::Failure;

impl Failure {
    /// What a person can do when it goes on, in a few words; `None` where the code alone does not
    /// say.
    pub fn remedy(&self) -> Option<&'static str> {
        remedy(&self.code, &self.text)
    }
}

/// What may be wrong with a certificate, in the words that a failure has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Certificate {
    /// Its time is over.
    Expired,
    /// Its time has not come, by the clock here.
    Early,
    /// It is another host's.
    OtherName,
    /// Nobody who is trusted here has signed it.
    UnknownIssuer,
    /// It is an authority's, as one that signed itself often is.
    Authority,
}

impl Certificate {
    const ALL: [Self; 5] = [
        Self::Expired,
        Self::Early,
        Self::OtherName,
        Self::UnknownIssuer,
        Self::Authority,
    ];

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Expired => "its certificate has expired",
            Self::Early => "its certificate is not valid yet",
            Self::OtherName => "the name in the URL is not the certificate's",
            Self::UnknownIssuer => "nobody who is trusted here has signed its certificate",
            Self::Authority => "it shows the certificate of an authority",
        }
    }

    /// What a failure's text says about it.
    pub(crate) fn told(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| text.contains(it.words()))
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::Expired => {
                "the receiver's operator must renew it; where this machine's clock is ahead, set that"
            }
            Self::Early => {
                "set this machine's clock; where that is right, tell the receiver's operator"
            }
            Self::OtherName => {
                "put the name that the certificate has into the URL of the settings, or let its \
                 operator have the certificate made for this name"
            }
            Self::UnknownIssuer => {
                "where a company's proxy replaces the certificate, or it has signed itself, put its \
                 root into the system's store or into ca_file of the route"
            }
            Self::Authority => {
                "the receiver's operator must give it a certificate of a server, as one that has signed \
                 itself often is none"
            }
        }
    }
}

/// What a failure's text says of somebody who takes connections and does not agree on TLS.
pub(crate) const NO_TLS: &str = "answers, but not with TLS";

pub(crate) fn remedy(code: &str, text: &str) -> Option<&'static str> {
    if let ("tls", Some(wrong)) = (code, Certificate::told(text)) {
        return Some(wrong.remedy());
    }
    Some(match code {
        "tls" if text.contains(NO_TLS) => {
            "check scheme and port of the URL; where something in between swallows TLS, as a firewall or \
             the login of a network does, get this machine let through"
        }
        "tls" => {
            "set the clock if it is wrong; where a company's proxy replaces the certificate, put its \
             root into the system's store or into ca_file of the route"
        }
        "dns" => "check the name in the URL, and this machine's name server",
        "proxy" => "check proxy of the route, or HTTPS_PROXY of the environment",
        "refused" => {
            "check the port, and whether the program there runs: the machine is there and refuses"
        }
        "timeout" | "unreachable" | "reset" | "garbage" => {
            "check the network, the address and the firewall"
        }
        "portal" => "log in to the network, or get this machine let through",
        "http_404" | "http_405" | "http_410" => {
            "look at the URL and the method in the settings: nothing of this kind is at that address"
        }
        "redirected" => {
            "if the address that the answer names is the receiver's, put it into the route"
        }
        "reply_rule" => {
            "compare the answer with the `reply` rule of the settings; where it is a web page, \
             something in between answers: log in to the network, or mend the proxy or the address"
        }
        Failure::PANIC | Failure::UNSAID | Failure::UNTAKEN => {
            "show the error to whoever made the program that sends: its dispatcher has a mistake"
        }
        _ => return None,
    })
}
