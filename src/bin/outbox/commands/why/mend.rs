//! What mends a message that cannot be sent as it is. Where a person has to say what, the option
//! stands without a value: copied as it is, it is refused and changes nothing.

use std::collections::BTreeMap;

use serde_json::Value;

use super::shell::option;
use crate::commands::sink::shown;

/// The command, and what follows the message. What is wrong is what the reason begins with; the
/// stored headers are asked for where it is them.
pub(super) fn change(
    reason: Option<&str>,
    headers: impl FnOnce() -> Option<String>,
) -> (&'static str, String) {
    // What its route wants of it is at the end, what its row has at the beginning.
    let lacks = reason.and_then(|it| it.split("the message has no ").nth(1));
    let rest = lacks.or(reason).map(|it| {
        let known = ["the message's ", "the "];
        known
            .iter()
            .find_map(|start| it.strip_prefix(start))
            .unwrap_or(it)
    });
    let column = rest.and_then(|it| it.split_whitespace().next());
    let column = column.map(|it| it.trim_matches([',', '.', ';', ':']));
    let rest = match column.unwrap_or_default() {
        "claims" => return ("cancel", String::new()),
        "channel" => " --to-channel   # and the right one",
        "ordering_key" => " --ordering-key   # and the right one, or '' for none",
        "dedupe_key" => " --key   # and another one",
        "message_id" => " --new-message-id",
        "event_type" => " --event-type   # and the right one, or '' for none",
        "recipient" => " --recipient   # and the right one, or '' for none",
        "principal" => " --principal   # and the right one, or '' for none",
        "content_type" => " --content-type   # and the right one",
        "header" | "headers" => return ("edit", meant(headers().as_deref())),
        "payload" => " --file   # and a file with the right payload",
        _ => "   # and what it is to have: a payload, --header, --content-type, …",
    };
    ("edit", rest.into())
}

/// The headers that a row has in another form, as options; else the bare option.
fn meant(stored: Option<&str>) -> String {
    let pairs = stored.and_then(pairs).filter(|it| !it.is_empty());
    let Some(pairs) = pairs else {
        return " --header   # and 'NAME: VALUE', or --no-headers instead".into();
    };
    let options = pairs
        .iter()
        .map(|(name, value)| format!(" {}", option("--header", &format!("{name}: {value}"))));
    options.collect::<String>() + "   # where this was meant; or --no-headers"
}

/// `Name: value` a line, or JSON whose values are no texts. None at all where one of them cannot be
/// a header, or may be a secret.
fn pairs(stored: &str) -> Option<Vec<(String, String)>> {
    let pairs: Vec<_> = match serde_json::from_str::<BTreeMap<String, Value>>(stored) {
        Ok(fields) => fields
            .into_iter()
            .map(|(name, value)| Some((name, scalar(value)?)))
            .collect::<Option<_>>()?,
        Err(_) => stored
            .lines()
            .filter(|it| !it.trim().is_empty())
            .map(|it| crate::args::header(it).ok())
            .collect::<Option<_>>()?,
    };
    let plain = |(name, value): &(String, String)| {
        let token = |it: u8| it.is_ascii_alphanumeric() || b"-_.".contains(&it);
        name.bytes().all(token)
            && value.bytes().all(|it| (0x20..0x7f).contains(&it))
            && shown(&name.to_ascii_lowercase(), value) == *value
    };
    pairs.iter().all(plain).then_some(pairs)
}

fn scalar(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_in_another_form_are_filled_in_and_secrets_are_not() {
        for (stored, options) in [
            ("X-Store: 17", " --header 'X-Store: 17'   #"),
            (
                "A: b\r\n\r\nC: it's\n",
                r" --header 'A: b' --header 'C: it'\''s'   #",
            ),
            (
                r#"{"X-Store":17,"x":true}"#,
                " --header 'X-Store: 17' --header 'x: true'   #",
            ),
            (r#"{"X-Store":[17]}"#, " --header   #"),
            ("Authorization: Bearer s3cret", " --header   #"),
            ("a b: c", " --header   #"),
            ("X: \u{e4}", " --header   #"),
            ("17", " --header   #"),
            ("{}", " --header   #"),
        ] {
            let found = meant(Some(stored));
            assert!(found.starts_with(options), "{stored}: {found}");
        }
        assert!(meant(None).starts_with(" --header   #"));
    }
}
