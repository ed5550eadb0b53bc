//! `outbox send-again`: what was sent, once more.

use clap::{ArgGroup, Args};
use serde::Serialize;
use sqlite_outbox::{Cancel, Entry, Operator, Outbox, Selection, SentAgain, Status};

use super::{FIRST, Meant, each_of, early, entries, first, name, remark};
use crate::args::{self, Database, Exit, Format, Usage};
use crate::output::{Out, count, note};
use crate::signals::Signals;

/// Send messages once more that count as sent and have not arrived
///
/// A captive portal, a proxy or a maintenance page may have answered 200 in place of the receiver;
/// ask the receiver first. Each is put in anew at the end of its ordering key, under a key of its
/// own: KEY-again, or the one that --key gives. It keeps its message id, by which a receiver that has
/// it after all recognises it. What was sent again already is left out, or refused where no --key is
/// given. --all leaves out repetitions too, unless a web page answered them as well: it can be repeated.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("narrow").multiple(true).args(["web_page", "since", "until"])),
    after_help = "\
Examples:
  outbox send-again till.db S-104522 --reason 'not in the ERP'
  outbox send-again till.db --all --channel sales --web-page --dry-run
  outbox send-again till.db --all --channel sales --since 3h --until 2026-11-29T14:05Z"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Ids, dedupe keys or message ids; id:17, key:17 or message:… says which
    #[arg(conflicts_with = "all")]
    which: Vec<String>,
    /// The key that it gets, of one message
    #[arg(long, conflicts_with = "all")]
    key: Option<String>,
    /// All that the options below leave, of one channel
    #[arg(long, requires = "channel", requires = "narrow")]
    all: bool,
    /// Only this channel; a message outside of it is refused
    #[arg(long)]
    channel: Option<String>,
    /// With --all: only those that a web page answered
    #[arg(long, requires = "all")]
    web_page: bool,
    /// With --all: only those that were sent at this moment (UTC) or later; 3h is three hours ago
    #[arg(long, value_name = "T", requires = "all", value_parser = args::moment)]
    since: Option<i64>,
    /// With --all: only those that were sent before this moment
    #[arg(long, value_name = "T", requires = "all", value_parser = args::moment)]
    until: Option<i64>,
    #[command(flatten)]
    meant: Meant,
    #[command(flatten)]
    format: Format,
}

#[derive(Serialize)]
struct Done {
    count: u64,
    dry_run: bool,
    /// Of those that were named.
    #[serde(skip_serializing_if = "Option::is_none")]
    sent: Option<Vec<Sent>>,
    /// How many were chosen and cannot be sent again, were already, or are repetitions themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
    /// The keys of the first that a dry run found.
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Sent {
    former: i64,
    former_key: String,
    /// Whatever id it would get, in a dry run it has none yet.
    id: Option<i64>,
    dedupe_key: String,
    #[serde(skip)]
    named: String,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let wrong = match arguments.which.as_slice() {
        [] if !arguments.all => "which message? give its id or key, or --all with --channel",
        [_, _, ..] if arguments.key.is_some() => "--key takes one message: a key is for one",
        _ => "",
    };
    if !wrong.is_empty() {
        return Err(Usage(wrong.into()).into());
    }
    let outbox = arguments.database.open()?;
    let signals = Signals::listen()?;
    let operator = arguments.meant.operator(&outbox).unless(&signals.cancel());
    let mut out = Out::new();
    match arguments.all {
        true => all(arguments, &outbox, &operator, &mut out)?,
        false => some(arguments, &outbox, &operator, &mut out)?,
    }
    out.flush()?;
    Ok(Exit::Done)
}

fn said(number: u64, dry: bool) -> String {
    let messages = count(number, "message", "messages");
    match dry {
        true => format!("{messages} would be sent again"),
        false => format!("{messages} put in to be sent again"),
    }
}

fn all(
    arguments: &Arguments,
    outbox: &Outbox,
    operator: &Operator<'_>,
    out: &mut Out,
) -> anyhow::Result<()> {
    let selection = Selection::new().status(Status::Sent);
    let mut selection = selection.up_to(operator.highest_id()?);
    if let Some(channel) = &arguments.channel {
        selection = selection.channel(channel);
    }
    if let Some(since) = arguments.since {
        selection = selection.since(since);
    }
    if let Some(until) = arguments.until {
        selection = selection.before(until);
    }
    if arguments.web_page {
        selection = selection.web_page();
    }
    let dry_run = arguments.meant.dry_run;
    let chosen = operator.count(&selection)?;
    let shown = match dry_run {
        true => {
            let ids = operator.selected_again(&selection)?;
            entries(outbox, ids.get(..FIRST).unwrap_or(&ids))?
        }
        false => Vec::new(),
    };
    let sent = operator.send_all_again(&selection);
    let sent = sent.map_err(|it| early(it, 0, |number| said(number, dry_run)))?;
    let left_out = chosen.saturating_sub(sent);
    if arguments.format.json {
        let keys = shown.into_iter().map(|it| it.dedupe_key).collect();
        out.json(&Done {
            count: sent,
            dry_run,
            sent: None,
            left_out: Some(left_out),
            keys: dry_run.then_some(keys),
        })?;
    } else {
        out.line(said(sent, dry_run))?;
        first(&shown, sent, out)?;
    }
    if left_out > 0 {
        let messages = count(left_out, "message is", "messages are");
        note(&format!(
            "{messages} left out: sent again already, a repetition that no web page answered, or without the \
             payload that retention removed"
        ));
    }
    match &arguments.channel {
        Some(channel) if chosen == 0 => Ok(remark(outbox, channel)?),
        _ => Ok(()),
    }
}

/// All are tried before the first is changed.
fn some(
    arguments: &Arguments,
    outbox: &Outbox,
    operator: &Operator<'_>,
    out: &mut Out,
) -> anyhow::Result<()> {
    let mut chosen: Vec<Entry> = Vec::new();
    for which in &arguments.which {
        let entry = outbox.find(which, arguments.channel.as_deref())?;
        if chosen.iter().all(|it| it.id != entry.id) {
            chosen.push(entry);
        }
    }
    let ids: Vec<_> = chosen.iter().map(|it| it.id).collect();
    let send = |operator: &Operator<'_>| match (&arguments.key, ids.as_slice()) {
        (Some(key), [id]) => match operator.send_again(*id, Some(key)) {
            Ok(sent) => (vec![sent], Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        },
        (_, ids) => operator.send_each_again(ids),
    };
    let tell = |number| said(number, arguments.meant.dry_run);
    // Not stopped: it does nothing.
    send(&operator.clone().unless(&Cancel::new()).dry_run()).1?;
    let (done, ended) = send(operator);
    each_of((done.len(), ended), tell)?;
    let sent: Vec<_> = chosen
        .into_iter()
        .zip(done)
        .map(|(entry, SentAgain { id, dedupe_key, .. })| Sent {
            former: entry.id,
            named: name(&entry),
            former_key: entry.dedupe_key,
            id: (!arguments.meant.dry_run).then_some(id),
            dedupe_key,
        })
        .collect();
    if arguments.format.json {
        return out.json(&Done {
            count: sent.len() as u64,
            dry_run: arguments.meant.dry_run,
            sent: Some(sent),
            left_out: None,
            keys: None,
        });
    }
    for it in &sent {
        let Sent {
            named, dedupe_key, ..
        } = it;
        out.text(&match it.id {
            Some(id) => format!("{named} goes out again as message {id} (key {dedupe_key})"),
            None => format!("{named} would go out again under the key {dedupe_key}"),
        })?;
    }
    Ok(())
}
