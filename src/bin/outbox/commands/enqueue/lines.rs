//! A message for each line: a few in each short transaction, none open while waiting for input.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, bail};
use serde::Serialize;
use sqlite_outbox::{DEFAULT_MAX_PAYLOAD, Enqueued, Error, Message, Outbox};

use super::{Arguments, Done, exported, message, open, quoted, warn_of_type};
use crate::args::Exit;
use crate::commands::told;
use crate::output::{Out, count, note};

/// Lines in one transaction, at most.
const CHUNK: usize = 64;

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
    let mut source = Lines::new(open(path)?, most);
    let mut tally = Tally::default();
    let mut warned = false;
    let ended = loop {
        // What was read before an error is stored first.
        let (chunk, read) = source.chunk();
        warned =
            warned || arguments.exported || chunk.iter().any(|(_, it)| warn_of_type(arguments, it));
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
            "{these} a key that stands for OTHER content; kept aside and not sent: `outbox conflicts \
             {}` shows both and decides",
            quoted(&arguments.database.db.to_string_lossy())
        ));
    }
    let summary = tally.summary();
    if let Err(error) = ended {
        let error = told(&error.context(format!("stopped early, {summary}")));
        let again = match arguments.exported || arguments.key_from.is_some() {
            true => "mend it and take the same lines again: what is there already stays as it is",
            false => "mend it and go on with it, not with those before it",
        };
        bail!("{error}; nothing from there on is enqueued: {again}");
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

impl Tally {
    fn count(&mut self, enqueued: Enqueued) {
        match enqueued {
            Enqueued::New { .. } => self.new += 1,
            Enqueued::Replaced { .. } => self.replaced += 1,
            Enqueued::Duplicate { .. } => self.duplicates += 1,
            Enqueued::Conflict { .. } => self.conflicts += 1,
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
    chunk: Vec<(usize, Vec<u8>)>,
    tally: &mut Tally,
    out: &mut Out,
) -> anyhow::Result<()> {
    if chunk.is_empty() {
        return Ok(());
    }
    let mut messages: Vec<(usize, String, Message)> = Vec::new();
    let mut faulty = Vec::new();
    for (number, payload) in chunk {
        let place = match exported::key(&payload).filter(|_| arguments.exported) {
            Some(key) => format!("line {number}, key {key}"),
            None => format!("line {number}"),
        };
        let message = match arguments.exported {
            true => exported::message(arguments, &payload),
            false => message(arguments, payload).map(Some),
        };
        match message {
            Ok(Some(message)) => messages.push((number, place, message)),
            Ok(None) => tally.left_out += 1,
            Err(error) => {
                faulty.push((number, error.context(place)));
                if !arguments.skip_bad {
                    break;
                }
            }
        }
    }
    let (done, refused) = outbox.transaction(|tx| {
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        for (number, place, message) in &messages {
            match outbox.enqueue(tx, message) {
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
        Ok((done, refused))
    })?;
    let json = arguments.format.json;
    for (number, enqueued) in done {
        tally.count(enqueued);
        if json && tally.unprinted.is_none() {
            let line = Some(number);
            let done = Done {
                line,
                ..Done::from(enqueued)
            };
            tally.unprinted = out.json(&done).err();
        }
    }
    // A line that was refused stands before one that could not be read.
    for (line, error) in refused.into_iter().chain(faulty) {
        if !arguments.skip_bad {
            return Err(error);
        }
        tally.bad += 1;
        let error = told(&error);
        note(&format!("skipped: {error}"));
        if json && tally.unprinted.is_none() {
            let result = "refused";
            let refused = Refused {
                line,
                result,
                error,
            };
            tally.unprinted = out.json(&refused).err();
        }
    }
    Ok(())
}

struct Lines {
    /// Bytes a line may have.
    most: usize,
    reader: BufReader<Box<dyn Read>>,
    number: usize,
}

impl Lines {
    fn new(source: Box<dyn Read>, most: usize) -> Self {
        Self {
            most,
            reader: BufReader::with_capacity(64 * 1024, source),
            number: 0,
        }
    }

    /// The next lines with their numbers, and whether more may follow. Ends early rather than wait
    /// for input while it holds a line.
    fn chunk(&mut self) -> (Vec<(usize, Vec<u8>)>, anyhow::Result<bool>) {
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK {
            if !chunk.is_empty() && !self.reader.buffer().contains(&b'\n') {
                break;
            }
            match self.line() {
                Ok(Some(line)) if line.trim_ascii().is_empty() => {}
                Ok(Some(line)) => chunk.push((self.number, line)),
                Ok(None) => return (chunk, Ok(false)),
                Err(error) => return (chunk, Err(error)),
            }
        }
        (chunk, Ok(true))
    }

    fn line(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let most = self.most as u64 + 2;
        self.number += 1;
        let read = (&mut self.reader)
            .take(most)
            .read_until(b'\n', &mut line)
            .with_context(|| format!("line {} cannot be read", self.number))?;
        if read == 0 {
            return Ok(None);
        }
        for end in [b'\n', b'\r'] {
            line.pop_if(|last| *last == end);
        }
        if self.number == 1 && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        if line.len() > self.most {
            let (number, most) = (self.number, self.most);
            bail!("line {number} has more than the {most} bytes a line may have");
        }
        Ok(Some(line))
    }
}
