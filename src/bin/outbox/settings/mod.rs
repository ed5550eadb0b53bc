//! From the settings file to what the library takes. Every fault names its line.

mod fault;
mod model;
mod parse;
mod route;
mod values;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use sqlite_outbox::{
    Hold, HttpDispatcher, OnDead, Outbox, Policy, Route, Settings, SettleSync, is_printable,
};

use crate::commands::operate::who;
use crate::nearest;

use fault::{Fault, Source};
use model::{Channel, Drain, Retry};

use values::Whole;

pub(crate) use fault::Faults;

/// What the help of a command says about its settings file.
macro_rules! example {
    () => {
        "\
A settings file, outbox.toml:
  [channel.sales]
  url = \"https://erp.example/api/sales/{dedupe_key}\"
  bearer = { env = \"ERP_TOKEN\" }  # or file, or command
  reply = { require = \"/id\" }     # else it is no delivery
  [channel.default]               # every other channel
  url = \"https://erp.example/api/{channel}\"
Every key: outbox man outbox.toml
"
    };
}
pub(crate) use example;

/// The section that serves channels without a section.
const DEFAULT: &str = "default";

/// Workers where nothing else is said.
const WORKERS: usize = 4;

/// What a drain needs from its settings file.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) settings: Settings,
    pub(crate) dispatcher: HttpDispatcher,
    /// The channels with a section of their own.
    named: Vec<String>,
    /// What dead letters do to those behind them, where the settings say so.
    on_dead: BTreeMap<String, OnDead>,
}

impl Loaded {
    /// The channel with a section that was probably meant by one without.
    pub(crate) fn meant(&self, channel: &str) -> Option<&str> {
        let named: Vec<_> = self.named.iter().map(String::as_str).collect();
        nearest::meant(channel, &named)
    }

    /// Brings what the file keeps about its channels in line with the settings.
    ///
    /// Refused for a channel in which messages wait for their turn: letting them pass a dead
    /// letter, or holding them, is a decision about these messages, which a person takes knowingly.
    pub(crate) fn apply(&self, outbox: &Outbox) -> anyhow::Result<()> {
        for change in self.changes(outbox)? {
            if let Some(refusal) = change.refused() {
                bail!(refusal);
            }
            outbox
                .operator(who())
                .reason("on_dead of the settings")
                .on_dead(change.channel, change.to)?;
        }
        Ok(())
    }

    /// The channels for which [`Self::apply`] would be refused, and why.
    pub(crate) fn refusals(&self, outbox: &Outbox) -> sqlite_outbox::Result<Vec<(&str, String)>> {
        let changes = self.changes(outbox)?.into_iter();
        Ok(changes
            .filter_map(|it| Some((it.channel, it.refused()?)))
            .collect())
    }

    /// Where the settings say something else than the file.
    fn changes(&self, outbox: &Outbox) -> sqlite_outbox::Result<Vec<Change<'_>>> {
        if self.on_dead.is_empty() {
            return Ok(Vec::new());
        }
        let known = outbox.stats()?.channels;
        let changes = self.on_dead.iter().map(|(channel, choice)| {
            let stats = known.iter().find(|it| it.channel == *channel);
            Change {
                channel,
                from: stats.map_or(OnDead::default(), |it| it.on_dead),
                to: *choice,
                waiting: stats.map_or(0, |it| it.counts.waiting),
            }
        });
        Ok(changes.filter(|it| it.from != it.to).collect())
    }
}

/// What dead letters of a channel are to do to those behind them from now on.
struct Change<'a> {
    channel: &'a str,
    from: OnDead,
    to: OnDead,
    waiting: u64,
}

impl Change<'_> {
    fn refused(&self) -> Option<String> {
        let (channel, waiting) = (self.channel, self.waiting);
        let (stored, choice) = (word(self.from), word(self.to));
        (waiting > 0).then(|| {
            format!(
                "channel.{channel}.on_dead is \"{choice}\", the file says \"{stored}\", and messages \
                 are waiting ({waiting}): drain with \"{stored}\" until none is, or cancel them"
            )
        })
    }
}

/// The header of a channel's section, as TOML wants it.
pub(crate) fn section(channel: &str) -> String {
    let bare = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '_';
    if !channel.is_empty() && channel.chars().all(bare) {
        return format!("[channel.{channel}]");
    }
    let mut key = String::new();
    for it in channel.chars() {
        match it {
            '"' | '\\' => key.extend(['\\', it]),
            it if is_printable(it) => key.push(it),
            it => key.push_str(&format!("\\U{:08x}", u32::from(it))),
        }
    }
    format!("[channel.\"{key}\"]")
}

fn word(choice: OnDead) -> &'static str {
    match choice {
        OnDead::Hold => "hold",
        OnDead::Skip => "skip",
    }
}

impl From<&model::OnDead> for OnDead {
    fn from(choice: &model::OnDead) -> Self {
        match choice {
            model::OnDead::Hold => Self::Hold,
            model::OnDead::Skip => Self::Skip,
        }
    }
}

/// Reads a settings file anew: a pipe has nothing more to say, and may never answer.
pub(crate) fn reload(path: &Path, workers: Option<usize>) -> anyhow::Result<Loaded> {
    match path.metadata() {
        Ok(found) if !found.is_file() => bail!("the settings {} are no file", path.display()),
        _ => load(path, workers),
    }
}

/// Reads a settings file. `workers` from the command line has the last word. All that is wrong in
/// it is one error, [`Faults`].
pub(crate) fn load(path: &Path, workers: Option<usize>) -> anyhow::Result<Loaded> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the settings {} cannot be read", path.display()))?;
    let source = Source { text: &text };
    let (file, mut faults) = parse::parse(&source);
    let Some(file) = file else {
        return Err(Faults::new(path, faults).into());
    };
    let workers = workers.or(file.drain.workers.map(Whole::size));
    let workers = workers.unwrap_or(WORKERS);
    let mut settings = drain(&file.drain, &source, &mut faults).workers(workers);
    let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
    let mut on_dead = BTreeMap::new();
    let mut builder = HttpDispatcher::builder().pool(workers);
    for (name, channel) in &file.channel {
        if name.is_empty() {
            let reason = "has no name: write [channel.NAME]";
            faults.push(source.fault(channel.span().start, reason));
            continue;
        }
        if name.contains(':') {
            let reason = "serves nothing: no channel has a colon in its name";
            faults.push(source.fault(channel.span().start, reason));
            continue;
        }
        let channel = channel.get_ref();
        if let Some(choice) = &channel.on_dead {
            if name == DEFAULT {
                let reason =
                    "is kept in the file for each channel: write it into sections of their own";
                faults.push(source.fault(choice.span().start, reason));
            }
            on_dead.insert(name.clone(), choice.get_ref().into());
        }
        let policy = policy(name, channel, &source, &mut faults);
        settings = match name == DEFAULT {
            true => settings.default_policy(policy),
            false => settings.policy(name, policy),
        };
        builder = match route::route(name, channel, &folder, &source) {
            Ok(route) if name == DEFAULT => builder.fallback(route),
            Ok(route) => builder.channel(name, route),
            Err(wrong) => {
                faults.extend(wrong);
                builder
            }
        };
    }
    if file.channel.is_empty() && faults.is_empty() {
        let reason = "there is no channel; write a section [channel.NAME] or [channel.default]";
        faults.push(source.fault(text.len(), reason));
    }
    if !faults.is_empty() {
        return Err(Faults::new(path, faults).into());
    }
    let dispatcher = builder
        .build()
        .with_context(|| format!("the settings {}", path.display()))?;
    let named = file.channel.keys().filter(|it| *it != DEFAULT);
    Ok(Loaded {
        settings,
        dispatcher,
        named: named.cloned().collect(),
        on_dead,
    })
}

/// Every channel over one URL.
pub(crate) fn one_url(
    url: &str,
    allow_http: bool,
    workers: Option<usize>,
) -> sqlite_outbox::Result<Loaded> {
    let workers = workers.unwrap_or(WORKERS);
    let dispatcher = HttpDispatcher::builder()
        .pool(workers)
        .fallback(Route::post(url).allow_http(allow_http))
        .build()?;
    Ok(Loaded {
        settings: Settings::new().workers(workers),
        dispatcher,
        named: Vec::new(),
        on_dead: BTreeMap::new(),
    })
}

fn drain(drain: &Drain, source: &Source<'_>, faults: &mut Vec<Fault>) -> Settings {
    let mut settings = Settings::new();
    if let Some(prefetch) = drain.prefetch {
        settings = settings.prefetch(prefetch.size());
    }
    if let Some(lease) = &drain.lease {
        let span = lease.get_ref().0;
        if span < Duration::from_secs(1) || span > Duration::from_secs(600) {
            faults.push(source.fault(lease.span().start, "must be 1s to 10m"));
        } else {
            settings = settings.lease(span);
        }
    }
    if let Some(share) = drain.lock_share {
        settings = settings.lock_share(share.0);
    }
    settings = settings.settle_sync(match drain.settle_sync {
        Some(model::Sync::Normal) => SettleSync::Normal,
        Some(model::Sync::Full) | None => SettleSync::Full,
    });
    if let Some(keep) = drain.keep_payload {
        settings = settings.keep_payload(keep.0);
    }
    if let Some(keep) = drain.keep_sent {
        settings = settings.keep_sent(keep.0);
    }
    settings
}

fn policy(name: &str, channel: &Channel, source: &Source<'_>, faults: &mut Vec<Fault>) -> Policy {
    let mut policy = Policy::default();
    if let Some(retry) = &channel.retry {
        policy = retries(policy.clone(), retry.get_ref()).unwrap_or_else(|reason| {
            faults.push(source.channel_fault(name, "retry", reason));
            policy
        });
    }
    if let Some(requests) = channel.max_in_flight {
        policy = policy.max_in_flight(requests.size());
    }
    if let Some(per_second) = channel.rate {
        policy = policy.rate(per_second.size() as f64);
    }
    if let Some(messages) = channel.run_length {
        policy = policy.run_length(messages.size());
    }
    if let Some(rejections) = channel.brake {
        policy = policy.brake(rejections.0);
    }
    if let Some(bytes) = channel.keep_answer {
        policy = policy.keep_answer(bytes.size());
    }
    if let Some(hold) = channel.retry_after {
        policy = policy.retry_after(match hold {
            model::Holds::Channel => Hold::Channel,
            model::Holds::Message => Hold::Message,
        });
    }
    policy
}

fn retries(mut policy: Policy, retry: &Retry) -> Result<Policy, &'static str> {
    const BASE: Duration = Duration::from_secs(30);
    const CAP: Duration = Duration::from_secs(6 * 3600);
    if retry.base.is_some() || retry.cap.is_some() {
        let base = retry.base.map_or(BASE, |it| it.0);
        let cap = retry.cap.map_or(CAP.max(base), |it| it.0);
        if base.is_zero() {
            return Err("has a base of 0");
        }
        if cap < base {
            return Err("has a cap below its base");
        }
        policy = policy.backoff(base, cap);
    }
    if let Some(attempts) = retry.max_attempts {
        policy = policy.max_attempts(attempts.0);
    }
    if let Some(age) = retry.min_dead_age {
        policy = policy.min_dead_age(age.0);
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a channel is called, the section that is told is one that serves it.
    #[test]
    fn a_section_that_is_told_serves_its_channel() {
        for (channel, told) in [
            ("sales", "[channel.sales]"),
            ("shop.sales", "[channel.\"shop.sales\"]"),
            ("sales ", "[channel.\"sales \"]"),
            ("Kasse 2", "[channel.\"Kasse 2\"]"),
            ("größe", "[channel.\"größe\"]"),
            ("a\"b\\c", r#"[channel."a\"b\\c"]"#),
            ("a\u{200b}]\n", r#"[channel."a\U0000200b]\U0000000a"]"#),
        ] {
            assert_eq!(section(channel), told);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("outbox.toml");
            let text = format!("{told}\nurl = \"http://127.0.0.1:1/\"\n");
            std::fs::write(&path, text).unwrap();
            let loaded = load(&path, None).unwrap();
            assert!(
                sqlite_outbox::Dispatcher::serves(&loaded.dispatcher, channel),
                "{told}"
            );
        }
    }
}
