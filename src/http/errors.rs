//! What went wrong when no answer came: ureq's errors as codes and sentences.

use std::io::ErrorKind;
use std::time::Duration;

use crate::dispatch::{Certificate, Failure, NO_TLS, Outcome};
use crate::stats::Utc;

use super::names::NotFound;

/// Where a request went, for the sentence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// `host:port` of the receiver.
    pub(super) target: &'a str,
    /// `host:port` of the proxy, when there is one.
    pub(super) proxy: Option<&'a str>,
    /// It took the connection and has not agreed on TLS.
    pub(super) mute: bool,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
}

/// Whether a connection from the pool may have died before the request was looked at.
pub(super) fn is_dead_connection(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Io(error) if matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::NotConnected
    ))
}

/// The stable code and the sentence. No text of ours or ureq's here holds a URL's query.
pub(super) fn describe(error: &ureq::Error, place: Place<'_>) -> (&'static str, String) {
    let Place { target, proxy, .. } = place;
    // With a proxy every lookup and connection of ours is to the proxy.
    let (next, or_proxy): (_, fn(&'static str) -> &'static str) = match proxy {
        Some(proxy) => (format!("the proxy {proxy}"), |_| "proxy"),
        None => (target.to_string(), |code| code),
    };
    match error {
        ureq::Error::Other(inner) => match inner.downcast_ref::<NotFound>() {
            Some(reason) => (or_proxy("dns"), reason.to_string()),
            None => ("unknown", format!("{target}: {inner}")),
        },
        ureq::Error::HostNotFound => (or_proxy("dns"), format!("{next} cannot be found")),
        ureq::Error::Timeout(_) if place.mute => ("tls", no_tls(target)),
        ureq::Error::Timeout(ureq::Timeout::Connect) => (
            "timeout",
            format!("no connection to {next} within {:?}", place.connect_timeout),
        ),
        ureq::Error::Timeout(_) => (
            "timeout",
            format!("{target} did not answer within {:?}", place.timeout),
        ),
        ureq::Error::ConnectProxyFailed(reason) => ("proxy", format!("{next}: {reason}")),
        ureq::Error::InvalidProxyUrl => ("proxy", "the proxy's URL is not valid".into()),
        ureq::Error::Tls(reason) => ("tls", format!("TLS with {target}: {reason}")),
        ureq::Error::Rustls(reason) => ("tls", describe_tls(reason, target)),
        ureq::Error::Pem(_) | ureq::Error::TlsRequired => {
            ("tls", format!("TLS with {target}: {error}"))
        }
        ureq::Error::Protocol(reason) => (
            "garbage",
            format!("{target} answered something that is not HTTP: {reason}"),
        ),
        ureq::Error::LargeResponseHeader(..) => {
            ("garbage", format!("{target} answered too many headers"))
        }
        ureq::Error::Io(error) => describe_io(error, target, &next, or_proxy),
        other => ("unknown", format!("{target}: {other}")),
    }
}

/// A port that takes connections and answers no greeting of TLS, or with something else.
fn no_tls(target: &str) -> String {
    format!("{target} {NO_TLS}: does it speak http://, or TLS on another port?")
}

/// What rustls has no word for it shows as a value of Rust.
fn describe_tls(reason: &rustls::Error, target: &str) -> String {
    use rustls::{CertificateError, Error};
    let day = |at: rustls::pki_types::UnixTime| {
        let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
        Utc(seconds.saturating_mul(1_000))
    };
    let wrong = match reason {
        Error::InvalidCertificate(wrong) => wrong,
        _ => &CertificateError::BadEncoding,
    };
    let told = match wrong {
        CertificateError::Expired => Some((Certificate::Expired, String::new())),
        CertificateError::ExpiredContext { time, not_after } => Some((
            Certificate::Expired,
            format!(", at {}; here it is {}", day(*not_after), day(*time)),
        )),
        CertificateError::NotValidYet => Some((Certificate::Early, String::new())),
        CertificateError::NotValidYetContext { time, not_before } => Some((
            Certificate::Early,
            format!(
                ", but from {} on; here it is {}",
                day(*not_before),
                day(*time)
            ),
        )),
        CertificateError::NotValidForName => Some((Certificate::OtherName, String::new())),
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names = presented.join(", ");
            Some((Certificate::OtherName, format!(", which is for {names}")))
        }
        CertificateError::UnknownIssuer => Some((Certificate::UnknownIssuer, String::new())),
        _ => None,
    };
    if let Some((wrong, more)) = told {
        return format!("TLS with {target}: {}{more}", wrong.words());
    }
    match reason {
        Error::InvalidMessage(_) => no_tls(target),
        Error::InvalidCertificate(CertificateError::BadSignature) => format!(
            "TLS with {target}: its certificate was not signed by the authority that it names \
             (BadSignature)"
        ),
        Error::InvalidCertificate(CertificateError::Other(inner)) => {
            let reason = match inner.to_string() {
                it if it == "CaUsedAsEndEntity" => {
                    format!(
                        "{}, which is not one for a server",
                        Certificate::Authority.words()
                    )
                }
                it => format!("invalid peer certificate: {it}"),
            };
            format!("TLS with {target}: {reason}")
        }
        reason => format!("TLS with {target}: {reason}"),
    }
}

fn describe_io(
    error: &std::io::Error,
    target: &str,
    next: &str,
    or_proxy: fn(&'static str) -> &'static str,
) -> (&'static str, String) {
    if let Some(reason) = error
        .get_ref()
        .and_then(|it| it.downcast_ref::<rustls::Error>())
    {
        return ("tls", describe_tls(reason, target));
    }
    match error.kind() {
        ErrorKind::ConnectionRefused => (
            or_proxy("refused"),
            format!("{next} refuses the connection"),
        ),
        ErrorKind::NetworkUnreachable
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkDown
        | ErrorKind::AddrNotAvailable => (
            or_proxy("unreachable"),
            format!("{next} cannot be reached: {error}"),
        ),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            ("timeout", format!("{target} did not answer: {error}"))
        }
        ErrorKind::UnexpectedEof
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::NotConnected => {
            // Which says no more than the sentence.
            let more = Some(error.to_string()).filter(|it| it != "Peer disconnected");
            let more = more.map(|it| format!(": {it}")).unwrap_or_default();
            let text = format!("{target} ended the connection without an answer{more}");
            ("reset", text)
        }
        ErrorKind::InvalidData => ("garbage", format!("{target} answered garbage: {error}")),
        _ => ("unknown", format!("{target}: {error}")),
    }
}

/// What such an error means for the message: nobody of ours answered, except where the fault is
/// known to be the request's or the proxy's login.
pub(super) fn outcome(error: &ureq::Error, place: Place<'_>) -> Outcome {
    match error {
        ureq::Error::Http(_) | ureq::Error::BadUri(_) | ureq::Error::BodyExceedsLimit(_) => {
            Outcome::Rejected(Failure::new(Failure::INVALID, error.to_string()).local())
        }
        // ureq keeps the proxy's status only in the text.
        ureq::Error::ConnectProxyFailed(reason) if reason.contains("407") => {
            let (_, text) = describe(error, place);
            Outcome::Blocked(Failure::new(
                Failure::UNAUTHORISED,
                format!("the proxy wants a login: {text}"),
            ))
        }
        _ => {
            let (code, text) = describe(error, place);
            Outcome::Unreachable(Failure::new(code, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Each has another culprit and another remedy.
    #[test]
    fn a_certificate_is_told_of_by_what_is_wrong_with_it() {
        use rustls::CertificateError as Wrong;
        use rustls::pki_types::UnixTime;
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let (now, other) = (at(1_800_000_000), at(1_700_000_000));
        let name = rustls::pki_types::ServerName::try_from("erp.example").unwrap();
        let cases = [
            (
                Wrong::ExpiredContext {
                    time: now,
                    not_after: other,
                },
                "has expired, at 2023-11-14 22:13:20 UTC; here it is 2027-01-15 08:00:00 UTC",
                "must renew it",
            ),
            (
                Wrong::NotValidYetContext {
                    time: other,
                    not_before: now,
                },
                "is not valid yet, but from 2027-01-15 08:00:00 UTC on",
                "set this machine's clock",
            ),
            (
                Wrong::NotValidForNameContext {
                    expected: name,
                    presented: vec!["DnsName(\"shop.example\")".into()],
                },
                "the name in the URL is not the certificate's, which is for",
                "into the URL of the settings",
            ),
            (
                Wrong::UnknownIssuer,
                "nobody who is trusted here",
                "ca_file",
            ),
        ];
        for (wrong, words, remedy) in cases {
            let text = describe_tls(&rustls::Error::InvalidCertificate(wrong), "erp.example:443");
            assert!(text.contains(words), "{text}");
            let failure = Failure::new("tls", text);
            assert!(failure.remedy().unwrap().contains(remedy), "{failure:?}");
        }
    }

    #[test]
    fn a_certificate_that_cannot_serve_is_told_of_in_words() {
        let other = |text: &str| {
            let inner = rustls::OtherError(Arc::new(std::io::Error::other(text.to_string())));
            let error = rustls::CertificateError::Other(inner);
            describe_tls(&rustls::Error::InvalidCertificate(error), "erp.example:443")
        };
        assert_eq!(
            other("CaUsedAsEndEntity"),
            "TLS with erp.example:443: it shows the certificate of an authority, which is not one for \
             a server"
        );
        let failure = Failure::new("tls", other("CaUsedAsEndEntity"));
        assert!(
            failure
                .remedy()
                .unwrap()
                .contains("certificate of a server")
        );
        assert_eq!(
            other("a curve of its own"),
            "TLS with erp.example:443: invalid peer certificate: a curve of its own"
        );
    }
}
