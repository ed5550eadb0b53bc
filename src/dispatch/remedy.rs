//! What a person can do about a failure, by its code.

use super::Failure;

impl Failure {
    /// What a person can do when it goes on, in a few words; `None` where the code alone does not
    /// say.
    pub fn remedy(&self) -> Option<&'static str> {
        remedy(&self.code)
    }
}

pub(crate) fn remedy(code: &str) -> Option<&'static str> {
    Some(match code {
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
        _ => return None,
    })
}
