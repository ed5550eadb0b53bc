//! `outbox curl`: the request of a message as a command that anyone can run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use serde::Serialize;
use sqlite_outbox::{Delivery, Entry, Preview, is_printable};

use super::shell::{literal, quoted, quoted_path};
use crate::args::{Database, Exit, Format};
use crate::output::{Out, note};
use crate::settings;

/// Arguments of a program have a limit; what a shell pipes has none.
const ARGUMENT: usize = 64 * 1024;

/// Print the request of a message as a curl command
///
/// Run in a shell, it sends what `drain` would send, byte for byte, with the same idempotency key.
/// The outbox does not hear of the answer. No secret is read: a variable, a file or a place to
/// fill in stands for each.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: what is sent, and what does the ERP say to it?
  outbox curl till.db S-104522 --config outbox.toml
  outbox curl till.db S-104522 --config outbox.toml --include | sh")]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// An id, a dedupe key or a message id; id:17, key:17 or message:… says which
    which: String,
    /// The settings file: where each channel goes, and how
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The channel, where a dedupe key stands in several
    #[arg(long)]
    channel: Option<String>,
    /// Let curl print status and headers of the answer too
    #[arg(long)]
    include: bool,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Shown<'a> {
    method: &'a str,
    url: &'a str,
    headers: BTreeMap<&'a str, &'a str>,
    proxy: Option<&'a str>,
    command: String,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let loaded = settings::load(&arguments.config, None)?;
    let outbox = arguments.database.open_to_read()?;
    let entry = outbox.find(&arguments.which, arguments.channel.as_deref())?;
    let preview = loaded
        .dispatcher
        .preview(&delivery(&entry, outbox.instance_id())?)?;
    if entry.payload.is_empty() && entry.settled_at.is_some() {
        note("the payload is empty: it may have been removed since the message was settled");
    }
    if preview
        .headers
        .iter()
        .any(|(_, value)| value == "$SIGNATURE")
    {
        note("the signature is made when the request is sent: fill in $TIMESTAMP and $SIGNATURE");
    }
    if !preview.to_fill_in.is_empty() {
        let variables = preview.to_fill_in.iter().map(|it| format!("${it}"));
        let variables = variables.collect::<Vec<_>>().join(", ");
        note(&format!(
            "what a command or program has to say is not asked for: fill in {variables}"
        ));
    }
    if preview.proxy_login {
        note("the proxy wants a login: set $PROXY_LOGIN to USER:PASSWORD");
    }
    let mut out = Out::new();
    let command = command(&preview, &entry.payload, arguments.include);
    if arguments.format.json {
        let headers = preview.headers.iter();
        out.json(&Shown {
            method: &preview.method,
            url: &preview.url,
            headers: headers
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect(),
            proxy: preview.proxy.as_deref(),
            command,
        })?;
    } else {
        // All of it can be shown, but for the newlines of a payload, which mean themselves.
        out.line(command)?;
    }
    out.flush()?;
    Ok(Exit::Done)
}

fn delivery(entry: &Entry, instance: &str) -> anyhow::Result<Delivery> {
    if let Some(column) = entry.broken.keys().next() {
        bail!("{column} is not valid UTF-8, so it is not sent; `outbox edit` gives it another");
    }
    let mut delivery = Delivery::new(&entry.channel, entry.payload.clone());
    delivery.id = entry.id;
    delivery.instance = instance.into();
    delivery.message_id.clone_from(&entry.message_id);
    delivery.dedupe_key.clone_from(&entry.dedupe_key);
    delivery.event_type.clone_from(&entry.event_type);
    delivery.recipient.clone_from(&entry.recipient);
    delivery.ordering_key.clone_from(&entry.ordering_key);
    delivery.principal.clone_from(&entry.principal);
    delivery.content_type.clone_from(&entry.content_type);
    delivery.created_at = entry.created_at;
    if let Some(headers) = entry.headers.as_deref().filter(|it| !it.is_empty()) {
        let headers: BTreeMap<String, String> = serde_json::from_str(headers)
            .context("the message's headers are no JSON object of texts")?;
        delivery.headers = headers.into_iter().collect();
    }
    Ok(delivery)
}

fn command(preview: &Preview, payload: &[u8], include: bool) -> String {
    let (before, body) = body(payload);
    let mut parts = vec![
        format!(
            "{before}curl {}--request {}",
            if include { "--include " } else { "" },
            quoted(&preview.method)
        ),
        format!("--globoff {}", quoted(&preview.url)),
    ];
    for (name, value) in &preview.headers {
        parts.push(match preview.stand_ins.contains(name) {
            // An expression of ours, to be filled in by the shell.
            true => format!("--header \"{name}: {value}\""),
            false if value.is_empty() => format!("--header {}", quoted(&format!("{name};"))),
            // There a tab means a space.
            false => {
                let header = format!("{name}: {value}").replace('\t', " ");
                format!("--header {}", quoted(&header))
            }
        });
    }
    // What curl would add of its own.
    if !preview
        .headers
        .iter()
        .any(|(name, _)| name == "content-type")
    {
        parts.push("--header 'content-type:'".into());
    }
    match &preview.proxy {
        Some(proxy) => {
            parts.push(format!("--proxy {}", quoted(&format!("http://{proxy}"))));
            if preview.proxy_login {
                parts.push("--proxy-user \"$PROXY_LOGIN\"".into());
            }
        }
        None => parts.push("--noproxy '*'".into()),
    }
    if let Some(file) = &preview.ca_file {
        parts.push(format!("--cacert {}", quoted_path(file)));
    }
    if let Some((chain, key)) = &preview.client_cert {
        parts.push(format!("--cert {}", quoted_path(chain)));
        parts.push(format!("--key {}", quoted_path(key)));
    }
    parts.push(body);
    parts.join(" \\\n  ")
}

/// What comes before curl, and curl's argument for the payload. A text that a terminal can show is
/// an argument; `--data-raw` takes it byte for byte, a leading @ too. All else comes as base64.
fn body(payload: &[u8]) -> (String, String) {
    let text = std::str::from_utf8(payload).ok();
    let text = text.filter(|it| it.len() <= ARGUMENT);
    let shown = |it: char| it == '\n' || is_printable(it);
    match text.filter(|it| it.chars().all(shown)) {
        Some(text) => (String::new(), format!("--data-raw {}", literal(text))),
        None => {
            let code = BASE64_STANDARD.encode(payload);
            let before = format!("printf %s '{code}' | base64 -d | ");
            (before, "--data-binary @-".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_cannot_show_is_base64() {
        assert_eq!(body(b"@a\nb").1, "--data-raw '@a\nb'");
        for odd in [
            &b"a\0b"[..],
            b"\xff",
            b"a\rb",
            b"a\tb",
            "\u{202e}".as_bytes(),
        ] {
            assert_eq!(body(odd).1, "--data-binary @-", "{odd:?}");
        }
    }
}
