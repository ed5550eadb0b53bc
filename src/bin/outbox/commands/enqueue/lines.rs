//! A message for each line: a few in each short transaction, none open while waiting for input.

use std::path::Path;

use anyhow::{Context, bail};
use serde::Serialize;
use sqlite_outbox::{DEFAULT_MAX_PAYLOAD, Enqueued, Error, Message, Outbox, Transfer};

use super::source::{Line, Source};
use super::{Arguments, Choice, Done, command, exported, message, open, warn_of_type};
use crate::args::Exit;
use crate::commands::operate::operator;
use crate::commands::told;
use crate::output::{Out, count, note};

/// What became of the lines so far.
#[derive(Default)]
struct Tally {
    new: usize,
    replaced: usize,
    duplicates: usize,
    conflicts: usize,
    /// Exported lines of messages that are over.
    left_out: usize,
    /// Lines that were refused and passed over.
    bad: usize,
    /// The output is gone; the work goes on.
    unprinted: Option<anyhow::Error>,
}

/// A line that was passed over.
#[derive(Serialize)]
struct Refused {
    line: usize,
    result: &'static str,
    error: String,
}

/// A line that can be taken: who it is, for people, and what to do with it.
struct Taken {
    number: usize,
    place: String,
    what: What,
}

enum What {
    New(Box<Message>),
    Exported(Box<Transfer>),
}

pub(super) fn run(
    outbox: &Outbox,
    arguments: &Arguments,
    path: &Path,
    out: &mut Out,
) -> anyhow::Result<Exit> {
    let most = match arguments.exported {
        true => exported::MAX_LINE,
        false => DEFAULT_MAX_PAYLOAD,
    };
    let mut source = Source::new(open(path)?, most);
    let mut tally = Tally::default();
    let mut warned = arguments.exported;
    let ended = loop {
        // What was read before an error is stored first.
        let (chunk, read) = source.chunk();
        let mut texts = chunk.iter().filter_map(|it| it.text.as_ref().ok());
        warned = warned || texts.any(|it| warn_of_type(arguments.content_type.as_deref(), it));
        let stored = store(outbox, arguments, chunk, &mut tally, out);
        match stored.and(read) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    if tally.conflicts > 0 {
        let these = count(tally.conflicts as u64, "line has", "lines have");
        note(&format!(
            "{these} a key that stands for OTHER content; kept aside and not sent: `{}` shows both \
             and decides",
            command("conflicts", &arguments.database.db, "")
        ));
    }
    let summary = tally.summary();
    if let Err(error) = ended {
        let error = told(&error);
        let again = arguments.again();
        bail!("{error}; it ended there. Before it: {summary}. {again}");
    }
    match (tally.unprinted, arguments.format.json) {
        (Some(error), _) => return Err(error),
        (None, true) => {}
        (None, false) => out.line(summary)?,
    }
    Ok(match tally.bad {
        0 => Exit::Done,
        _ => Exit::Error,
    })
}

impl Arguments {
    /// How to go on after an import that ended early.
    fn again(&self) -> &'static str {
        let keyed = self.exported || self.key_from.is_some();
        match (keyed, self.on_duplicate) {
            (true, Choice::Ignore | Choice::Replace) => {
                "Mend it and take all lines again: those that are there are not taken twice"
            }
            (true, Choice::Fail) => {
                "Mend it and go on with that line: those before it are there, and would be refused"
            }
            (false, _) => {
                "Mend it and go on with that line: those before it would be taken a second time"
            }
        }
    }
}

impl Tally {
    fn count(&mut self, enqueued: Enqueued) {
        match enqueued {
            Enqueued::New { .. } => self.new += 1,
            Enqueued::Replaced { .. } => self.replaced += 1,
            Enqueued::Duplicate { .. } => self.duplicates += 1,
            Enqueued::Conflict { .. } => self.conflicts += 1,
        }
    }

    /// A line for a program, if one reads; when the output is gone, the work goes on.
    fn tell(&mut self, arguments: &Arguments, out: &mut Out, line: &impl Serialize) {
        if arguments.format.json && self.unprinted.is_none() {
            self.unprinted = out.json(line).err();
        }
    }

    fn summary(&self) -> String {
        let mut text = match self.new {
            1 => "1 message enqueued".to_string(),
            count => format!("{count} messages enqueued"),
        };
        for (count, what) in [
            (self.replaced, "replaced"),
            (self.duplicates, "there already"),
            (self.conflicts, "kept aside"),
            (self.left_out, "left out: sent, expired or cancelled"),
            (self.bad, "refused and skipped"),
        ] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        text
    }
}

/// Stores the lines up to the first that is refused; with `--skip-bad` all others.
fn store(
    outbox: &Outbox,
    arguments: &Arguments,
    chunk: Vec<Line>,
    tally: &mut Tally,
    out: &mut Out,
) -> anyhow::Result<()> {
    let Some(first) = chunk.first().map(|it| it.number) else {
        return Ok(());
    };
    let mut taken = Vec::new();
    // Each with its number.
    let mut refused: Vec<(usize, anyhow::Error)> = Vec::new();
    for line in chunk {
        let number = line.number;
        match take(arguments, line) {
            Ok(Some(line)) => taken.push(line),
            Ok(None) => tally.left_out += 1,
            Err(error) => {
                refused.push((number, error));
                if !arguments.skip_bad {
                    break;
                }
            }
        }
    }
    let operator = operator(outbox, None);
    let choice = arguments.on_duplicate.into();
    let done = operator.transaction(|tx| {
        let mut done = Vec::new();
        for Taken {
            number,
            place,
            what,
        } in &taken
        {
            let answer = match what {
                What::New(message) => operator.enqueue(tx, message),
                What::Exported(transfer) => operator.import(tx, transfer, choice),
            };
            match answer {
                Ok(enqueued) => done.push((*number, enqueued)),
                // The transaction is still good, so what stands before this line is kept.
                Err(
                    error @ (Error::InvalidMessage { .. }
                    | Error::TooLarge { .. }
                    | Error::Duplicate { .. }
                    | Error::OutboxFull { .. }),
                ) => {
                    let error = anyhow::Error::from(error).context(place.clone());
                    refused.push((*number, error));
                    if !arguments.skip_bad {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    });
    let done = done.with_context(|| format!("line {first}"))?;
    for (number, enqueued) in done {
        tally.count(enqueued);
        let line = Some(number);
        tally.tell(
            arguments,
            out,
            &Done {
                line,
                ..Done::from(enqueued)
            },
        );
    }
    refused.sort_by_key(|it| it.0);
    for (line, error) in refused {
        if !arguments.skip_bad {
            return Err(error);
        }
        tally.bad += 1;
        let error = told(&error);
        note(&format!("skipped: {error}"));
        let result = "refused";
        tally.tell(
            arguments,
            out,
            &Refused {
                line,
                result,
                error,
            },
        );
    }
    Ok(())
}

/// What a line is; nothing where it is over.
fn take(arguments: &Arguments, line: Line) -> anyhow::Result<Option<Taken>> {
    let number = line.number;
    let mut place = format!("line {number}");
    let text = line.text.with_context(|| place.clone())?;
    if !arguments.exported {
        let message = message(arguments, text).with_context(|| place.clone())?;
        let what = What::New(Box::new(message));
        return Ok(Some(Taken {
            number,
            place,
            what,
        }));
    }
    let name = |it: &str| format!("line {number}, key {it}");
    match exported::transfer(&text) {
        Ok(Some(transfer)) => {
            place = name(&String::from_utf8_lossy(&transfer.dedupe_key));
            let what = What::Exported(Box::new(transfer));
            Ok(Some(Taken {
                number,
                place,
                what,
            }))
        }
        Ok(None) => Ok(None),
        Err(error) => Err(error.context(exported::key(&text).map_or(place, |it| name(&it)))),
    }
}
