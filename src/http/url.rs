//! The URL of a route: a template, checked once, filled in for every message.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rustls::pki_types::ServerName;
use ureq::http::Uri;

use crate::dispatch::Delivery;

use super::hidden;
use super::wire::LONGEST;

/// Everything but the characters that never mean anything in a URL.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A part of the message that may stand in a URL or an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Channel,
    EventType,
    DedupeKey,
    MessageId,
    Recipient,
    Id,
    Instance,
}

impl Field {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::EventType => "event_type",
            Self::DedupeKey => "dedupe_key",
            Self::MessageId => "message_id",
            Self::Recipient => "recipient",
            Self::Id => "id",
            Self::Instance => "instance",
        }
    }

    /// The message's value, or nothing when the row has none.
    pub(super) fn value(self, delivery: &Delivery) -> Option<Cow<'_, str>> {
        let value = match self {
            Self::Channel => Some(delivery.channel.as_str()),
            Self::EventType => delivery.event_type.as_deref(),
            Self::DedupeKey => Some(delivery.dedupe_key.as_str()),
            Self::MessageId => Some(delivery.message_id.as_str()),
            Self::Recipient => delivery.recipient.as_deref(),
            Self::Id => return Some(Cow::Owned(delivery.id.to_string())),
            Self::Instance => Some(delivery.instance.as_ref()),
        };
        value.filter(|it| !it.is_empty()).map(Cow::Borrowed)
    }
}

const IN_URL: [Field; 6] = [
    Field::Channel,
    Field::EventType,
    Field::DedupeKey,
    Field::MessageId,
    Field::Recipient,
    Field::Id,
];

const IN_KEY: [Field; 4] = [
    Field::MessageId,
    Field::Instance,
    Field::Channel,
    Field::DedupeKey,
];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Field(Field),
}

/// Text with `{placeholders}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<Piece>);

impl Template {
    /// A template of an idempotency key.
    pub(super) fn key(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("the idempotency key is empty".into());
        }
        if !text.bytes().all(|it| (0x21..0x7f).contains(&it)) {
            return Err(format!(
                "the idempotency key {text:?} is not printable ASCII without spaces"
            ));
        }
        Self::parse(text, &IN_KEY)
    }

    fn parse(text: &str, known: &[Field]) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, after)) = after.split_once('}') else {
                return Err(format!("a placeholder in {text:?} is not closed"));
            };
            let Some(field) = known.iter().find(|it| it.name() == name) else {
                let names: Vec<_> = known.iter().map(|it| it.name()).collect();
                return Err(format!(
                    "{{{name}}} is no placeholder here; there are {}",
                    names.join(", ")
                ));
            };
            if !before.is_empty() {
                pieces.push(Piece::Text(before.into()));
            }
            pieces.push(Piece::Field(*field));
            rest = after;
        }
        if rest.contains('}')
            || pieces
                .iter()
                .any(|it| matches!(it, Piece::Text(it) if it.contains('}')))
        {
            return Err(format!("a placeholder in {text:?} is not opened"));
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.into()));
        }
        Ok(Self(pieces))
    }

    /// The text with each placeholder's value run through `encode`.
    pub(super) fn fill(
        &self,
        delivery: &Delivery,
        encode: impl Fn(&str) -> String,
    ) -> Result<String, String> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(it) => text.push_str(it),
                Piece::Field(field) => match field.value(delivery) {
                    Some(value) => text.push_str(&encode(&value)),
                    None => return Err(format!("the message has no {}", field.name())),
                },
            }
        }
        Ok(text)
    }
}

/// A route's URL. Scheme, host and port are fixed; path and query may hold placeholders.
#[derive(Debug, Clone)]
pub(super) struct Url {
    template: Template,
    pub(super) https: bool,
    /// Lower case, without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Some(odd) = text.chars().find(|it| !it.is_ascii_graphic()) {
            return Err(format!(
                "the URL contains {odd:?}, which must be percent-encoded"
            ));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err("the URL does not begin with https:// or http://".into());
        };
        let https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            other => return Err(format!("the URL's scheme is {other}, not https or http")),
        };
        if text.contains('#') {
            return Err("the URL has a fragment (#…), which is never sent".into());
        }
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        if authority.contains('@') {
            return Err(
                "the URL contains a login; credentials belong to basic, bearer or secret_headers"
                    .into(),
            );
        }
        if authority.contains(['{', '}']) {
            return Err("the URL's host cannot be a placeholder".into());
        }
        let (host, port) = split_port(authority, if https { 443 } else { 80 })?;
        if https && ServerName::try_from(host.as_str()).is_err() {
            return Err(format!("the host {host} is neither an address nor a name"));
        }
        let template = Template::parse(text, &IN_URL)?;
        let url = Self {
            template,
            https,
            host,
            port,
        };
        url.fill(&sample())?;
        Ok(url)
    }

    /// The address for one message, every value encoded as a path segment.
    pub(super) fn fill(&self, delivery: &Delivery) -> Result<Uri, String> {
        let text = self.template.fill(delivery, |value| {
            utf8_percent_encode(value, SEGMENT).to_string()
        })?;
        if climbs(&text) {
            return Err("a value would climb out of the URL's path".into());
        }
        if text.len() > LONGEST {
            return Err(format!("the URL is longer than {} KiB", LONGEST / 1024));
        }
        text.parse()
            .map_err(|error| format!("the URL cannot be sent: {error}"))
    }

    /// The query without what comes from a message.
    fn fixed_query(&self) -> String {
        let fixed = self.template.0.iter().map(|it| match it {
            Piece::Text(text) => text.as_str(),
            Piece::Field(_) => "",
        });
        let text: String = fixed.collect();
        text.split_once('?').map_or("", |(_, query)| query).into()
    }

    /// The names of the query that speak of a secret and have a value.
    pub(super) fn speaking(&self) -> Vec<String> {
        let query = self.fixed_query();
        let pairs = query.split('&').filter_map(|it| it.split_once('='));
        pairs
            .filter(|(name, value)| !value.is_empty() && hidden::speaks(name))
            .map(|(name, _)| name.to_string())
            .collect()
    }

    /// What of the query is secret; a value of the message's is not.
    pub(super) fn secrets(&self) -> Vec<String> {
        let query = self.fixed_query();
        let pairs = query.split('&').filter_map(|it| it.split_once('='));
        let encoded = pairs.flat_map(|(name, value)| hidden::of_value(name, value));
        let both = encoded.flat_map(|it| {
            let plain = percent_decode_str(it).decode_utf8_lossy();
            [it.to_string(), plain.into_owned()]
        });
        let mut secrets: Vec<String> = both.collect();
        secrets.dedup();
        secrets
    }

    /// Whether the host is this machine.
    pub(super) fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }

    /// `host:port`, for texts.
    pub(super) fn place(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host.ends_with(".localhost")
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|it| it.to_canonical().is_loopback())
}

/// Splits `host`, `host:port`, `[v6]` and `[v6]:port`.
pub(super) fn split_port(authority: &str, default: u16) -> Result<(String, u16), String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, rest)) if host.parse::<std::net::Ipv6Addr>().is_ok() => (
                host,
                rest.strip_prefix(':').or((!rest.is_empty()).then_some("?")),
            ),
            _ => return Err(format!("{authority} is no IPv6 address")),
        },
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err("the URL has no host".into());
    }
    let port = match port {
        None => default,
        Some(text) => match text.parse::<u16>() {
            Ok(port) if port > 0 && text.bytes().all(|it| it.is_ascii_digit()) => port,
            _ => {
                return Err(format!(
                    "the URL's port {text:?} is not a number from 1 to 65535"
                ));
            }
        },
    };
    Ok((host.to_ascii_lowercase(), port))
}

/// Whether any path segment means "here" or "up", as a server that decodes first would see it.
fn climbs(url: &str) -> bool {
    let path = url.split('?').next().unwrap_or_default();
    let path = path.split_once("://").map_or(path, |(_, rest)| rest);
    path.split('/').skip(1).any(|segment| {
        let decoded = percent_decode_str(segment).decode_utf8_lossy();
        decoded
            .split(['/', '\\'])
            .any(|it| matches!(it, "." | ".."))
    })
}

/// A message with every field set, to try a template at build time.
fn sample() -> Delivery {
    Delivery {
        id: 1,
        message_id: "m".into(),
        channel: "c".into(),
        dedupe_key: "k".into(),
        event_type: Some("e".into()),
        recipient: Some("r".into()),
        ..Delivery::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str, key: &str) -> Result<String, String> {
        let delivery = Delivery {
            dedupe_key: key.into(),
            ..sample()
        };
        Url::parse(template)?
            .fill(&delivery)
            .map(|it| it.to_string())
    }

    #[test]
    fn values_are_encoded_as_one_path_segment() {
        let url = "https://erp.example/sales/{dedupe_key}/x?k={dedupe_key}";
        let cases = [
            ("S-1", "https://erp.example/sales/S-1/x?k=S-1"),
            ("a/b", "https://erp.example/sales/a%2Fb/x?k=a%2Fb"),
            ("50%", "https://erp.example/sales/50%25/x?k=50%25"),
            (
                "ä?#",
                "https://erp.example/sales/%C3%A4%3F%23/x?k=%C3%A4%3F%23",
            ),
            (
                "%2e%2e",
                "https://erp.example/sales/%252e%252e/x?k=%252e%252e",
            ),
            ("...", "https://erp.example/sales/.../x?k=..."),
        ];
        for (key, wanted) in cases {
            assert_eq!(filled(url, key).as_deref(), Ok(wanted), "{key}");
        }
    }

    #[test]
    fn no_value_climbs_out_of_the_path() {
        for key in [".", "..", "../admin", "a/../..", "..\\x", "/./"] {
            let error = filled("https://erp.example/api/{dedupe_key}", key).unwrap_err();
            assert!(error.contains("climb"), "{key}: {error}");
        }
        // Two harmless values that only together mean "up".
        assert!(filled("https://erp.example/{dedupe_key}{dedupe_key}", ".").is_err());
        // In a query dots mean nothing.
        assert!(filled("https://erp.example/x?k={dedupe_key}", "..").is_ok());
    }

    #[test]
    fn odd_urls_are_refused_with_a_reason() {
        let cases = [
            ("", "begin with https"),
            ("erp.example/api", "begin with https"),
            ("ftp://erp.example/", "scheme is ftp"),
            ("https://", "no host"),
            ("https:///api", "no host"),
            ("https://:8080/", "no host"),
            ("https://erp.example:99999/", "port"),
            ("https://erp.example:0/", "port"),
            ("https://erp.example:+80/", "port"),
            ("https://erp.example:/", "port"),
            ("https://u:p@erp.example/", "login"),
            ("https://erp.example/#top", "fragment"),
            ("https://erp.example/a b", "percent-encoded"),
            ("https://erp.example/ä", "percent-encoded"),
            ("https://erp.example/\r\nX: y", "percent-encoded"),
            ("https://{channel}.example/", "host cannot be"),
            ("https://erp.example/{secret}", "no placeholder"),
            ("https://erp.example/{channel", "not closed"),
            ("https://erp.example/channel}", "not opened"),
            ("https://erp.example/a/../b", "climb"),
            ("https://[::g]/", "IPv6"),
            ("https://[::1]x/", "port"),
            ("http://erp<>.example/", "cannot be sent"),
        ];
        for (url, reason) in cases {
            let error = Url::parse(url).expect_err(url);
            assert!(error.contains(reason), "{url}: {error}");
        }
    }

    #[test]
    fn host_and_port_are_found() {
        let cases = [
            ("https://ERP.example/x", "erp.example", 443, false),
            ("http://127.0.0.1:8080", "127.0.0.1", 8080, true),
            ("http://[::1]/", "::1", 80, true),
            ("https://till.localhost/", "till.localhost", 443, true),
            (
                "https://localhost.example?x=1",
                "localhost.example",
                443,
                false,
            ),
        ];
        for (text, host, port, loopback) in cases {
            let url = Url::parse(text).expect(text);
            assert_eq!((url.host.as_str(), url.port), (host, port), "{text}");
            assert_eq!(url.is_loopback(), loopback, "{text}");
        }
    }

    #[test]
    fn a_missing_value_is_named() {
        let url = Url::parse("https://erp.example/{recipient}").unwrap();
        let delivery = Delivery {
            recipient: None,
            ..sample()
        };
        assert_eq!(
            url.fill(&delivery).unwrap_err(),
            "the message has no recipient"
        );
    }
}
