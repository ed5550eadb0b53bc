//! The request of one message.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use ring::hmac;
use ureq::http::header::{CONTENT_TYPE, EXPECT, HeaderName, HeaderValue};
use ureq::http::{HeaderMap, Request, Uri};

use crate::dispatch::Delivery;

use super::credential::Credential;
use super::plan::{Plan, RESERVED};
use super::wire::LONGEST;

/// What stands for itself in an encoded header value.
const HEADER: &AsciiSet = &CONTROLS.add(b'%').add(b' ');

/// Everything of a request that is the same in every repeat.
pub(super) struct Head {
    uri: Uri,
    headers: HeaderMap,
    webhook_id: String,
}

/// Builds the head, or says why this message cannot be sent at all.
pub(super) fn head(plan: &Plan, delivery: &Delivery) -> Result<Head, String> {
    let uri = plan.url.fill(delivery)?;
    let mut headers = plan.headers.clone();
    let own: BTreeMap<_, _> = delivery.headers.iter().cloned().collect();
    crate::message::headers(&own).map_err(|error| error.to_string())?;
    for (name, value) in &own {
        let (name, value) = pair(name, value)?;
        if plan.guarded.contains(&name) {
            return Err(format!(
                "the header {name} belongs to the route, not to a message"
            ));
        }
        headers.insert(name, value);
    }
    if !delivery.content_type.is_empty() {
        let (name, value) = pair(CONTENT_TYPE.as_str(), &delivery.content_type)?;
        headers.insert(name, value);
    }
    let key = plan.key.fill(delivery, plain)?;
    let (name, value) = pair(plan.key_header.as_str(), &key)?;
    headers.insert(name, value);
    Ok(Head {
        uri,
        headers,
        webhook_id: plain(&delivery.message_id),
    })
}

impl Head {
    pub(super) fn url(&self) -> String {
        self.uri.to_string()
    }

    pub(super) fn webhook_id(&self) -> &str {
        &self.webhook_id
    }

    /// The headers so far, as text.
    pub(super) fn shown(&self) -> Vec<(String, String)> {
        let all = self.headers.iter();
        all.map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes());
            (name.to_string(), value.into_owned())
        })
        .collect()
    }

    /// The request itself. `sign` is the signing secret and the time in seconds.
    pub(super) fn request<'a>(
        &self,
        plan: &Plan,
        payload: &'a [u8],
        credentials: &[Credential],
        sign: Option<(&str, i64)>,
        expect: bool,
    ) -> Result<Request<&'a [u8]>, String> {
        let mut request = Request::new(payload);
        *request.method_mut() = plan.method.clone();
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        *headers = self.headers.clone();
        for credential in credentials {
            let (name, mut value) = credential.header()?;
            if RESERVED.contains(&name.as_str()) || name == plan.key_header {
                return Err(format!("the header {name} cannot carry a credential"));
            }
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        if let Some((secret, at)) = sign {
            let signature = signature(secret, &self.webhook_id, at, payload)?;
            let stamp = at.to_string();
            let all = [
                ("webhook-id", self.webhook_id.as_str()),
                ("webhook-timestamp", &stamp),
                ("webhook-signature", &signature),
            ];
            for (name, value) in all {
                let (name, value) = pair(name, value)?;
                headers.insert(name, value);
            }
        }
        if expect {
            headers.insert(EXPECT, HeaderValue::from_static("100-continue"));
        }
        Ok(request)
    }
}

/// A header as it can be sent. The value is not repeated in the error: it may be a secret.
pub(super) fn pair(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let parsed = name
        .parse::<HeaderName>()
        .map_err(|_| format!("{name:?} is no header name"))?;
    if name.len().saturating_add(value.len()) > LONGEST {
        return Err(format!(
            "the header {name} is longer than {} KiB",
            LONGEST / 1024
        ));
    }
    let value = HeaderValue::from_str(value)
        .map_err(|_| format!("the value of the header {name} contains a control character"))?;
    Ok((parsed, value))
}

/// A value as it can stand in a header: printable ASCII as it is, anything else percent-encoded.
/// Two values never become the same: what looks encoded already is encoded too.
fn plain(value: &str) -> String {
    let printable = value.bytes().all(|it| (0x20..0x7f).contains(&it)) && value.trim() == value;
    let bytes = value.as_bytes();
    let looks_encoded = bytes
        .windows(3)
        .any(|it| matches!(it, [b'%', a, b] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit()));
    match printable && !looks_encoded {
        true => value.to_string(),
        false => utf8_percent_encode(value, HEADER).to_string(),
    }
}

/// The key of a Standard Webhooks secret.
pub(super) fn signing_key(secret: &str) -> Result<Vec<u8>, String> {
    let code = secret.strip_prefix("whsec_").unwrap_or(secret);
    match BASE64_STANDARD.decode(code) {
        Ok(key) if !key.is_empty() => Ok(key),
        _ => Err("the signing secret is not whsec_ and base64".into()),
    }
}

/// The signature after the Standard Webhooks specification.
fn signature(secret: &str, id: &str, at: i64, payload: &[u8]) -> Result<String, String> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &signing_key(secret)?);
    let mut context = hmac::Context::with_key(&key);
    context.update(format!("{id}.{at}.").as_bytes());
    context.update(payload);
    let tag = context.sign();
    Ok(format!("v1,{}", BASE64_STANDARD.encode(tag.as_ref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_not_printable_ascii_is_encoded_and_none_collide() {
        let cases = [
            ("S-104522", "S-104522"),
            ("50% off", "50% off"),
            ("Käse", "K%C3%A4se"),
            ("Käse 50%", "K%C3%A4se%2050%25"),
            ("K%C3%A4se", "K%25C3%25A4se"),
            (" S-1", "%20S-1"),
            ("a\r\nX: y", "a%0D%0AX:%20y"),
        ];
        for (key, wanted) in cases {
            assert_eq!(plain(key), wanted);
        }
    }

    #[test]
    fn the_signature_is_the_one_of_the_specification() {
        // The example of the specification's own libraries.
        let signature = signature(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(
            signature.as_deref(),
            Ok("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
        );
        assert!(signing_key("whsec_?").is_err());
        assert!(signing_key("whsec_").is_err());
    }
}
