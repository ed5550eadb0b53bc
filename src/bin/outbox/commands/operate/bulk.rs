//! `outbox retry` and `outbox cancel`: some messages, or all of a kind.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use sqlite_outbox::{Entry, Operator, Outbox, Selection, Status};

use super::{FIRST, Meant, each_of, early, entries, first, name, operator, remark};
use crate::args::{self, Database, Exit, Format, Usage};
use crate::nearest::there_are;
use crate::output::{Out, count, note};
use crate::signals::Signals;

/// Which messages, and why.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Ids, dedupe keys or message ids; id:17, key:17 or message:… says which
    #[arg(conflicts_with = "all")]
    which: Vec<String>,
    /// All that there are when it begins; narrow it with the options below
    #[arg(long)]
    all: bool,
    /// Only this channel; a message outside of it is refused
    #[arg(long)]
    channel: Option<String>,
    /// With --all: only those that stand there; several with commas, or --status again
    #[arg(long, conflicts_with = "which", value_delimiter = ',', ignore_case = true,
          value_parser = args::status())]
    status: Vec<Status>,
    /// With --all: only those whose last failed attempt has this code, e.g. timeout or http_400
    #[arg(long, value_name = "CODE", conflicts_with = "which")]
    code: Option<String>,
    #[command(flatten)]
    meant: Meant,
    #[command(flatten)]
    format: Format,
}

/// What is done to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Retry,
    Cancel,
}

impl Deed {
    /// What can be chosen by name.
    fn takes(self, status: Status) -> bool {
        match self {
            Self::Retry => matches!(status, Status::Dead | Status::Expired | Status::Cancelled),
            Self::Cancel => matches!(status, Status::Pending | Status::Waiting | Status::Dead),
        }
    }

    fn rule(self) -> &'static str {
        match self {
            Self::Retry => "only dead, expired and cancelled messages can be retried",
            Self::Cancel => "only pending, waiting and dead messages can be cancelled",
        }
    }

    /// What `--all` means with these statuses, or with none. Followers go first: a head that is
    /// cancelled makes one pending.
    fn all(self, named: &[Status]) -> Vec<Status> {
        use Status::{Cancelled, Dead, Expired, Pending, Waiting};
        let named = match (self, named) {
            (Self::Retry, []) => &[Dead][..],
            (Self::Cancel, []) => &[Waiting, Pending, Dead],
            (_, named) => named,
        };
        let all = [Waiting, Pending, Dead, Expired, Cancelled].into_iter();
        all.filter(|it| named.contains(it)).collect()
    }

    fn act_on_each(
        self,
        operator: &Operator<'_>,
        ids: &[i64],
    ) -> (usize, sqlite_outbox::Result<()>) {
        match self {
            Self::Retry => operator.retry_each(ids),
            Self::Cancel => operator.cancel_each(ids),
        }
    }

    fn act_on_all(
        self,
        operator: &Operator<'_>,
        selection: &Selection,
    ) -> sqlite_outbox::Result<u64> {
        match self {
            Self::Retry => operator.retry_all(selection),
            Self::Cancel => operator.cancel_all(selection),
        }
    }

    fn said(self, number: u64, dry: bool) -> String {
        let messages = count(number, "message", "messages");
        match (self, dry) {
            (Self::Retry, false) => format!("{messages} retried"),
            (Self::Retry, true) => format!("{messages} would be retried"),
            (Self::Cancel, false) => format!("{messages} cancelled"),
            (Self::Cancel, true) => format!("{messages} would be cancelled"),
        }
    }
}

#[derive(Serialize)]
struct Done {
    count: u64,
    dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ids: Option<Vec<i64>>,
    /// The dedupe keys of these, or of the first that a dry run found.
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<Vec<String>>,
}

pub(crate) fn run(arguments: &Arguments, deed: Deed) -> anyhow::Result<Exit> {
    if let Some(status) = arguments.status.iter().find(|it| !deed.takes(**it)) {
        let text = format!("--status {status}: {}", deed.rule());
        return Err(Usage(text).into());
    }
    if arguments.which.is_empty() && !arguments.all {
        return Err(Usage("which message? give its id or key, or --all".into()).into());
    }
    let outbox = arguments.database.open()?;
    let signals = Signals::listen()?;
    let operator = operator(&outbox, arguments.meant.reason.as_deref()).unless(&signals.cancel());
    let dry_run = arguments.meant.dry_run;
    let (count, ids, shown) = match arguments.all {
        true => {
            let (count, first) = all(arguments, deed, &operator)?;
            (count, None, entries(&outbox, &first)?)
        }
        false => {
            let chosen = some(arguments, deed, &outbox, &operator)?;
            let ids: Vec<_> = chosen.keys().copied().collect();
            (ids.len() as u64, Some(ids), chosen.into_values().collect())
        }
    };
    let mut out = Out::new();
    if arguments.format.json {
        let keys: Vec<_> = shown.into_iter().map(|it| it.dedupe_key).collect();
        out.json(&Done {
            count,
            dry_run,
            keys: (dry_run || ids.is_some()).then_some(keys),
            ids,
        })?;
    } else {
        out.line(deed.said(count, dry_run))?;
        first(&shown, count, &mut out)?;
    }
    out.flush()?;
    if let (0, Some(channel)) = (count, &arguments.channel) {
        remark(&outbox, channel)?;
    }
    if let (0, Some(code)) = (count, &arguments.code) {
        remark_on_code(arguments, deed, code, &outbox, &operator)?;
    }
    Ok(Exit::Done)
}

/// Tells of a code that none of these messages has: it may be mistyped.
fn remark_on_code(
    arguments: &Arguments,
    deed: Deed,
    code: &str,
    outbox: &Outbox,
    operator: &Operator<'_>,
) -> anyhow::Result<()> {
    /// Messages that are looked at: there are few codes, and they repeat.
    const LOOKED_AT: usize = 10_000;
    let mut known = BTreeSet::new();
    for status in deed.all(&arguments.status) {
        let ids = operator.selected(&arguments.of(status))?;
        for id in ids.into_iter().rev().take(LOOKED_AT) {
            let last = outbox.attempts(id)?.pop().map(|it| it.outcome);
            let none = (status == Status::Dead).then(|| NO_CODE.to_string());
            known.extend(last.or(none));
        }
    }
    let codes = known.iter().map(String::as_str);
    match known.is_empty() {
        true => note("none of these messages has failed, so none has a code"),
        false => note(&format!(
            "none of these messages has the code {code:?}; {}",
            there_are(code, codes)
        )),
    }
    Ok(())
}

impl Arguments {
    /// Those with a status, whatever their code.
    fn of(&self, status: Status) -> Selection {
        let selection = Selection::new().status(status);
        match &self.channel {
            Some(channel) => selection.channel(channel),
            None => selection,
        }
    }
}

/// Does it to all that are chosen, of what is there when it begins; answers how many they are and, of a
/// dry run, the first.
fn all(
    arguments: &Arguments,
    deed: Deed,
    operator: &Operator<'_>,
) -> anyhow::Result<(u64, Vec<i64>)> {
    // It takes a while, and the application goes on selling.
    let last = operator.highest_id()?;
    let (mut total, mut first) = (0, Vec::new());
    for status in deed.all(&arguments.status) {
        let mut selection = arguments.of(status).up_to(last);
        if let Some(code) = &arguments.code {
            selection = selection.reason_code(code);
        }
        if deed == Deed::Retry && status == Status::Dead {
            let code = arguments.code.as_deref();
            for doubtful in DOUBTFUL {
                if code.is_none_or(|it| it == doubtful.0) {
                    let of = selection.clone().reason_code(doubtful.0);
                    warn(doubtful, operator.count(&of)?);
                }
            }
        }
        if arguments.meant.dry_run {
            let found = operator.selected(&selection)?;
            total += found.len() as u64;
            first.extend(found.into_iter().take(FIRST));
            continue;
        }
        let done = deed.act_on_all(operator, &selection);
        total += done.map_err(|it| early(it, total, |number| deed.said(number, false)))?;
    }
    first.sort_unstable();
    first.truncate(FIRST);
    Ok((total, first))
}

/// The code of dead letters without a failed attempt on record.
const NO_CODE: &str = "unknown";

/// Codes of which a retry is done where it was asked for, and what is to be said of it.
const DOUBTFUL: [(&str, &str, &str); 2] = [
    (
        "invalid",
        "cannot be sent as stored",
        "a retry fails in the same way; `outbox edit` mends one",
    ),
    (
        "unrecorded",
        "arrived already",
        "a retry sends it again, under the same message id; `outbox cancel` is what it needs",
    ),
];

fn warn((code, what, then): (&str, &str, &str), number: u64) {
    if number > 0 {
        let messages = count(number, "dead letter", "dead letters");
        note(&format!("{messages} {what} (code {code}): {then}"));
    }
}

/// All are looked at before the first is changed.
fn some(
    arguments: &Arguments,
    deed: Deed,
    outbox: &Outbox,
    operator: &Operator<'_>,
) -> anyhow::Result<BTreeMap<i64, Entry>> {
    let mut chosen: BTreeMap<i64, Entry> = BTreeMap::new();
    for which in &arguments.which {
        let entry = outbox.find(which, arguments.channel.as_deref())?;
        if !deed.takes(entry.status) {
            let again = match (deed, entry.status) {
                (Deed::Retry, Status::Sent) => "; `outbox send-again` sends it once more",
                _ => "",
            };
            let name = name(&entry);
            bail!("{name} is {}: {}{again}", entry.status, deed.rule());
        }
        chosen.insert(entry.id, entry);
    }
    if deed == Deed::Retry {
        let mut codes = Vec::new();
        for entry in chosen.values().filter(|it| it.status == Status::Dead) {
            codes.extend(outbox.why(entry.id)?.code);
        }
        for doubtful in DOUBTFUL {
            let number = codes.iter().filter(|it| *it == doubtful.0).count();
            warn(doubtful, number as u64);
        }
    }
    if !arguments.meant.dry_run {
        let ids: Vec<_> = chosen.keys().copied().collect();
        let done = deed.act_on_each(operator, &ids);
        each_of(done, |number| deed.said(number, false))?;
    }
    Ok(chosen)
}
