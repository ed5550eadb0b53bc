//! Dead letters by the reason of their death; of very many reasons only the codes, across channels.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlite_outbox::{DeadReason, Fault, Outbox, Why};

use super::advice::Place;
use super::{Dead, command};
use crate::output::{Out, Tone, brief, count, printable, printable_name};

/// More of them are told together, or not at all.
const SHOWN: usize = 40;

/// `gap` goes before each.
pub(super) fn tell(
    outbox: &Outbox,
    dead: &[DeadReason],
    place: &Place<'_>,
    gap: &mut impl FnMut(&mut Out) -> anyhow::Result<()>,
    out: &mut Out,
) -> anyhow::Result<()> {
    if dead.len() <= SHOWN {
        for reason in dead {
            gap(out)?;
            let sample = outbox.why(reason.sample).ok();
            of_channel(reason, sample.as_ref(), place, out)?;
        }
        return Ok(());
    }
    let mut codes: BTreeMap<&str, Vec<&DeadReason>> = BTreeMap::new();
    for reason in dead {
        codes.entry(&reason.code).or_default().push(reason);
    }
    let number = |it: &[&DeadReason]| it.iter().map(|it| it.count).sum::<u64>();
    let mut codes: Vec<_> = codes.into_iter().collect();
    codes.sort_by_key(|(_, reasons)| Reverse(number(reasons)));
    for (code, reasons) in codes.iter().take(SHOWN) {
        gap(out)?;
        of_code(code, reasons, number(reasons), outbox, place, out)?;
    }
    gap(out)?;
    let mut text = String::from("Each channel by itself is shown with --json");
    if let Some(more) = codes.get(SHOWN..).filter(|it| !it.is_empty()) {
        let codes = count(more.len() as u64, "more code", "more codes");
        let letters = more.iter().map(|(_, it)| number(it)).sum();
        let letters = count(letters, "dead letter", "dead letters");
        text = format!("… and {codes} of {letters}. {text}");
    }
    out.paragraph("", Tone::Plain, &format!("{text}."))
}

/// Each with whose fault it is.
pub(super) fn blamed<'a>(outbox: &Outbox, dead: &'a [DeadReason]) -> Vec<Dead<'a>> {
    let samples: Vec<_> = dead.iter().map(|it| it.sample).collect();
    let known = outbox.why_each(&samples).unwrap_or_default();
    let known: HashMap<_, _> = known.iter().map(|it| (it.id, it.fault.as_str())).collect();
    let each = dead.iter();
    each.map(|it| Dead {
        fault: known.get(&it.sample).copied(),
        ..Dead::new(it)
    })
    .collect()
}

/// Those of one channel.
fn of_channel(
    reason: &DeadReason,
    sample: Option<&Why>,
    place: &Place<'_>,
    out: &mut Out,
) -> anyhow::Result<()> {
    let letters = count(reason.count, "dead letter", "dead letters");
    let head = format!(
        "{}: {letters}, {}",
        printable_name(&reason.channel),
        printable(&reason.code)
    );
    out.line(out.paint(Tone::Bad, &head))?;
    example(reason, sample, out)?;
    let again = place.retry_group(Some(&reason.channel), &reason.code);
    if sample.is_some_and(|it| it.fault == Fault::Receiver) {
        out.line("Once it is mended:")?;
        command(&place.resume(&reason.channel), out)?;
        return command(&again, out);
    }
    remedy(reason, sample, Some(&reason.channel), place, out)
}

/// Those of all channels that failed in the same way.
fn of_code(
    code: &str,
    reasons: &[&DeadReason],
    number: u64,
    outbox: &Outbox,
    place: &Place<'_>,
    out: &mut Out,
) -> anyhow::Result<()> {
    let letters = count(number, "dead letter", "dead letters");
    let channels: BTreeSet<_> = reasons.iter().map(|it| &it.channel).collect();
    let channels = count(channels.len() as u64, "channel", "channels");
    let head = format!("{}: {letters} in {channels}", printable(code));
    out.line(out.paint(Tone::Bad, &head))?;
    // The largest group comes first.
    let told = reasons.iter().find(|it| it.text.is_some());
    let Some(reason) = told.or(reasons.first()) else {
        return Ok(());
    };
    let sample = outbox.why(reason.sample).ok();
    example(reason, sample.as_ref(), out)?;
    remedy(reason, sample.as_ref(), None, place, out)
}

/// One of them, and whose fault it is.
fn example(reason: &DeadReason, sample: Option<&Why>, out: &mut Out) -> anyhow::Result<()> {
    let text = reason.text.as_deref();
    let text = text.map_or("nothing is recorded of why", brief);
    let example = format!("For example message {}: {text}", reason.sample);
    out.paragraph("", Tone::Plain, &example)?;
    match sample {
        Some(why) => out.paragraph("", Tone::Plain, why.blame()),
        None => Ok(()),
    }
}

fn remedy(
    reason: &DeadReason,
    sample: Option<&Why>,
    channel: Option<&str>,
    place: &Place<'_>,
    out: &mut Out,
) -> anyhow::Result<()> {
    let again = place.retry_group(channel, &reason.code);
    match &*reason.code {
        "invalid" => {
            out.line("Retrying cannot help: each has to be mended itself, or cancelled.")?;
            return command(&place.edit(reason.sample, reason.text.as_deref()), out);
        }
        "unrecorded" => {
            out.paragraph(
                "",
                Tone::Plain,
                "The receiver has taken each, and a retry would send it a second time. Mend the \
                 trigger or rule, then take them out of the queue:",
            )?;
            return command(&place.cancel_group(channel, &reason.code), out);
        }
        _ => {}
    }
    match sample.and_then(Why::remedy) {
        Some(remedy) => {
            out.paragraph("", Tone::Plain, &format!("Mend the cause: {remedy}. Then:"))?
        }
        None if sample.is_some_and(Why::is_rejected) => {
            out.paragraph(
                "",
                Tone::Plain,
                "A retry sends the same content. Edit what is wrong with each, or have the receiver \
                 mended and retry:",
            )?;
            command(&place.mended(reason.sample), out)?;
        }
        None => out.line("Mend the cause, then:")?,
    }
    command(&again, out)
}
