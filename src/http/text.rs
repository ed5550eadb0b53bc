//! An answer as a person reads it, on one line.

use serde_json::Value;

use super::reply::Reply;

/// The most characters of a body that stand in a text.
pub(super) const SHOWN: usize = 300;

/// Where receivers put what a person needs to read: problem+json, Odoo, Frappe, Graph, OAuth.
const MESSAGES: [&str; 8] = [
    "/detail",
    "/message",
    // Odoo says the real thing here and "Odoo Server Error" one level up.
    "/error/data/message",
    "/error/message",
    "/exception",
    "/title",
    "/error_description",
    "/error",
];

/// The message in the body, what is wrong, the status, the start of the body.
pub(super) fn of(reply: &Reply, json: Option<&Value>, broken: Option<String>) -> String {
    let body = shown(&reply.body);
    let message = json.and_then(|json| {
        let found = MESSAGES.iter().filter_map(|it| json.pointer(it)?.as_str());
        found
            .map(|it| shown(it.as_bytes()))
            .find(|it| !it.is_empty())
    });
    let location = reply.status.is_redirection().then(|| {
        let place = reply.header("location").unwrap_or("nowhere");
        // A query may carry tokens.
        let place = place.split(['?', '#']).next().unwrap_or_default();
        format!(
            "redirected to {}, which is not followed",
            shown(place.as_bytes())
        )
    });
    let portal = (reply.status() == 511).then(|| "the network asks for a login".to_string());
    let status = match reply.status.canonical_reason() {
        Some(reason) => format!("HTTP {} {reason}", reply.status()),
        None => format!("HTTP {}", reply.status()),
    };
    let parts = [message, broken, location, portal, Some(status)];
    let mut text = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
    if !body.is_empty() {
        text.push_str(": ");
        text.push_str(&body);
    }
    text
}

/// The start of a body on one line: control characters and runs of white space become one space.
pub(super) fn shown(bytes: &[u8]) -> String {
    // Four bytes are the most one character has.
    let start = bytes.get(..SHOWN * 4).unwrap_or(bytes);
    let text = String::from_utf8_lossy(start);
    let mut line = String::new();
    let mut count = 0;
    for it in text.chars() {
        let it = if it.is_control() || it.is_whitespace() {
            ' '
        } else {
            it
        };
        if it == ' ' && (line.is_empty() || line.ends_with(' ')) {
            continue;
        }
        if count == SHOWN {
            line.push('…');
            break;
        }
        line.push(it);
        count += 1;
    }
    line.truncate(line.trim_end().len());
    line
}
