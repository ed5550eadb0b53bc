//! The lines of a file, as few of them in memory as can be.

use std::io::{BufRead, BufReader, Read};

use anyhow::{Context, anyhow};

/// Lines in one transaction, at most, and the bytes of them after which it is enough.
const CHUNK: usize = 64;
const ENOUGH: usize = 4 * 1024 * 1024;

/// One line with its number: its bytes, or why there is no use for it.
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) text: anyhow::Result<Vec<u8>>,
}

pub(super) struct Source {
    /// Bytes a line may have.
    most: usize,
    reader: BufReader<Box<dyn Read>>,
    number: usize,
}

impl Source {
    pub(super) fn new(source: Box<dyn Read>, most: usize) -> Self {
        Self {
            most,
            reader: BufReader::with_capacity(64 * 1024, source),
            number: 0,
        }
    }

    /// The next lines that are not empty, and whether more may follow. Ends early rather than wait
    /// for input while it holds a line.
    pub(super) fn chunk(&mut self) -> (Vec<Line>, anyhow::Result<bool>) {
        let mut chunk = Vec::new();
        let mut bytes = 0;
        while chunk.len() < CHUNK && bytes < ENOUGH {
            if !chunk.is_empty() && !self.reader.buffer().contains(&b'\n') {
                break;
            }
            match self.line() {
                Ok(Some(Line { text: Ok(it), .. })) if it.trim_ascii().is_empty() => {}
                Ok(Some(line)) => {
                    bytes += line.text.as_ref().map_or(0, Vec::len);
                    chunk.push(line);
                }
                Ok(None) => return (chunk, Ok(false)),
                Err(error) => return (chunk, Err(error)),
            }
        }
        (chunk, Ok(true))
    }

    fn line(&mut self) -> anyhow::Result<Option<Line>> {
        let mut line = Vec::new();
        let most = self.most as u64 + 2;
        self.number += 1;
        let number = self.number;
        let unread = || format!("line {number} cannot be read");
        let read = (&mut self.reader)
            .take(most)
            .read_until(b'\n', &mut line)
            .with_context(unread)?;
        if read == 0 {
            return Ok(None);
        }
        let whole = line.ends_with(b"\n");
        for end in [b'\n', b'\r'] {
            line.pop_if(|last| *last == end);
        }
        if self.number == 1 && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        let text = match line.len() > self.most {
            false => Ok(line),
            true => {
                // The next line begins where this one ends; what lies between is not kept.
                if !whole {
                    self.reader.skip_until(b'\n').with_context(unread)?;
                }
                let most = self.most;
                Err(anyhow!("it has more than the {most} bytes a line may have"))
            }
        };
        Ok(Some(Line { number, text }))
    }
}
