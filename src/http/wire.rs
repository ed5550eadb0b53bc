//! What goes over a connection at once: a small request in one piece, and few questions to the
//! system beside it.
//!
//! ureq sends head and body one after the other, asks twice between two requests whether the
//! connection is still there, and sets the time that is left before each write and read. For a
//! small message that is most of its cost, and on the network two packets instead of one.

use std::cell::Cell;
use std::time::Duration;

use ureq::unversioned::transport::time::Duration as Span;
use ureq::unversioned::transport::{Buffers, LazyBuffers, NextTimeout, Transport};

/// Bytes read and written at once.
pub(super) const READ: usize = 16 * 1024;
pub(super) const WRITTEN: usize = 64 * 1024;

/// The most bytes of a URL or a header: ureq wants a whole line into what is free of the buffer, and
/// half of it may be held back.
pub(super) const LONGEST: usize = WRITTEN / 2 - 1024;

/// The head of an answer must fit in.
const INPUT: usize = 128 * 1024;

/// Times that are left are rounded up to this, so that the next request has the same.
const STEP: Duration = Duration::from_millis(250);
/// Shorter ones are exact.
const EXACT: Duration = Duration::from_secs(2);

thread_local! {
    /// Bytes that ureq wrote, head included, for the present request of this thread.
    pub(super) static SENT: Cell<usize> = const { Cell::new(0) };
}

/// A connection that sends together what is small.
#[derive(Debug)]
pub(super) struct Wire {
    inner: Box<dyn Transport>,
    buffers: Held,
    /// How long it may take to send what is held back.
    limit: NextTimeout,
    /// Something was read since ureq last asked whether the connection is open.
    heard: bool,
}

/// Buffers with something in front that is not sent yet.
#[derive(Debug)]
struct Held {
    buffers: LazyBuffers,
    held: usize,
}

impl Wire {
    pub(super) fn new(inner: Box<dyn Transport>) -> Self {
        Self {
            inner,
            buffers: Held {
                buffers: LazyBuffers::new(INPUT, WRITTEN),
                held: 0,
            },
            limit: NextTimeout::default(),
            heard: false,
        }
    }

    fn flush(&mut self) -> Result<(), ureq::Error> {
        let held = std::mem::take(&mut self.buffers.held);
        let all = self.buffers.buffers.output();
        let mut rest = all.get(..held).unwrap_or_default();
        while !rest.is_empty() {
            let sent = copy(rest, self.inner.buffers().output());
            self.inner.transmit_output(sent, self.limit)?;
            rest = rest.get(sent..).unwrap_or_default();
        }
        Ok(())
    }
}

impl Transport for Wire {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    /// Holds it back until an answer is awaited or half of the buffer is full.
    fn transmit_output(&mut self, amount: usize, limit: NextTimeout) -> Result<(), ureq::Error> {
        SENT.set(SENT.get().saturating_add(amount));
        self.buffers.held = self.buffers.held.saturating_add(amount);
        self.limit = rounded(limit);
        match self.buffers.held > WRITTEN / 2 {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn await_input(&mut self, limit: NextTimeout) -> Result<bool, ureq::Error> {
        self.flush()?;
        self.heard = true;
        let more = self.inner.maybe_await_input(rounded(limit))?;
        let inner = self.inner.buffers();
        let read = copy(inner.input(), self.buffers.input_append_buf());
        inner.input_consume(read);
        self.buffers.input_appended(read);
        Ok(more && read > 0)
    }

    /// ureq asks right after an answer, and again before the next request. The second time is
    /// enough: it shows as well what came in between, be it the end.
    fn is_open(&mut self) -> bool {
        let asked_again = !std::mem::take(&mut self.heard);
        !asked_again || self.inner.buffers().input().is_empty() && self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

impl Buffers for Held {
    fn output(&mut self) -> &mut [u8] {
        behind(self.buffers.output(), self.held)
    }

    fn input(&self) -> &[u8] {
        self.buffers.input()
    }

    fn input_append_buf(&mut self) -> &mut [u8] {
        self.buffers.input_append_buf()
    }

    fn input_appended(&mut self, amount: usize) {
        self.buffers.input_appended(amount);
    }

    fn input_consume(&mut self, amount: usize) {
        self.buffers.input_consume(amount);
    }

    fn tmp_and_output(&mut self) -> (&mut [u8], &mut [u8]) {
        let (tmp, output) = self.buffers.tmp_and_output();
        (tmp, behind(output, self.held))
    }

    /// Not before everything is sent: awaiting input is what sends it.
    fn can_use_input(&self) -> bool {
        self.held == 0 && self.buffers.can_use_input()
    }
}

fn behind(output: &mut [u8], held: usize) -> &mut [u8] {
    output.get_mut(held..).unwrap_or_default()
}

/// As much as there is room for.
fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let amount = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..amount), to.get_mut(..amount)) {
        to.copy_from_slice(from);
    }
    amount
}

fn rounded(limit: NextTimeout) -> NextTimeout {
    let Span::Exact(left) = limit.after else {
        return limit;
    };
    if left <= EXACT {
        return limit;
    }
    let steps = left.as_millis().div_ceil(STEP.as_millis());
    let left = STEP.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX));
    NextTimeout {
        after: Span::Exact(left),
        ..limit
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A connection to a receiver that answers at once, and what was asked of it.
    #[derive(Debug)]
    struct Socket {
        buffers: LazyBuffers,
        answer: Vec<u8>,
        asked: Arc<Mutex<Asked>>,
    }

    #[derive(Debug, Default)]
    struct Asked {
        /// What was sent, call by call.
        sent: Vec<Vec<u8>>,
        limits: Vec<NextTimeout>,
        probes: usize,
    }

    impl Transport for Socket {
        fn buffers(&mut self) -> &mut dyn Buffers {
            &mut self.buffers
        }

        fn transmit_output(
            &mut self,
            amount: usize,
            limit: NextTimeout,
        ) -> Result<(), ureq::Error> {
            let mut asked = self.asked.lock().unwrap();
            asked.sent.push(self.buffers.output()[..amount].to_vec());
            asked.limits.push(limit);
            Ok(())
        }

        fn await_input(&mut self, _: NextTimeout) -> Result<bool, ureq::Error> {
            let read = copy(&self.answer, self.buffers.input_append_buf());
            self.buffers.input_appended(read);
            Ok(read > 0)
        }

        fn is_open(&mut self) -> bool {
            self.asked.lock().unwrap().probes += 1;
            true
        }
    }

    fn wire(answer: &[u8]) -> (Wire, Arc<Mutex<Asked>>) {
        let asked = Arc::default();
        let socket = Socket {
            buffers: LazyBuffers::new(2 * INPUT, READ),
            answer: answer.to_vec(),
            asked: Arc::clone(&asked),
        };
        (Wire::new(Box::new(socket)), asked)
    }

    fn limit(milliseconds: u64) -> NextTimeout {
        NextTimeout {
            after: Span::from_millis(milliseconds),
            ..NextTimeout::default()
        }
    }

    /// As ureq does: into the buffer, then out.
    fn send(wire: &mut Wire, part: &[u8]) {
        let written = copy(part, wire.buffers().output());
        assert_eq!(written, part.len(), "no room");
        wire.transmit_output(written, limit(29_900)).unwrap();
    }

    #[test]
    fn a_small_request_goes_out_in_one_piece_before_an_answer_is_looked_at() {
        let (mut wire, asked) = wire(b"200 OK");
        send(&mut wire, b"POST / and its head, ");
        send(&mut wire, b"and its body");
        assert!(asked.lock().unwrap().sent.is_empty(), "it is held back");
        assert!(wire.maybe_await_input(limit(29_900)).unwrap());
        let whole: &[u8] = b"POST / and its head, and its body";
        assert_eq!(asked.lock().unwrap().sent, [whole]);
        assert_eq!(asked.lock().unwrap().limits, [limit(30_000)]);
        assert_eq!(wire.buffers().input(), b"200 OK");
    }

    /// Else what is left of an answer would be waited for behind a request that was never sent.
    #[test]
    fn input_that_is_there_already_is_not_used_before_the_request_is_sent() {
        let (mut wire, asked) = wire(b"200 OK");
        send(&mut wire, b"one");
        wire.await_input(limit(29_900)).unwrap();
        wire.buffers().input_consume(3);
        assert!(wire.buffers().can_use_input());
        send(&mut wire, b"two");
        assert!(!wire.buffers().can_use_input());
        wire.maybe_await_input(limit(29_900)).unwrap();
        assert_eq!(asked.lock().unwrap().sent, [b"one", b"two"]);
    }

    #[test]
    fn a_large_request_goes_out_in_pieces_and_in_order() {
        let (mut wire, asked) = wire(b"200 OK");
        let request: Vec<u8> = (0..200_000_u32).map(|it| (it % 251) as u8).collect();
        for part in request.chunks(10_000) {
            send(&mut wire, part);
        }
        let early = asked.lock().unwrap().sent.concat().len();
        assert!(early >= request.len() - WRITTEN / 2, "{early} bytes so far");
        wire.await_input(limit(29_900)).unwrap();
        let asked = asked.lock().unwrap();
        assert!(asked.sent.len() >= 2, "{} pieces", asked.sent.len());
        assert!(asked.sent.concat() == request, "other bytes");
    }

    #[test]
    fn a_connection_is_probed_once_between_two_requests() {
        let (mut wire, asked) = wire(b"200 OK");
        for request in 1..=3 {
            send(&mut wire, b"POST");
            wire.await_input(limit(29_900)).unwrap();
            wire.buffers().input_consume(6);
            // ureq asks after the answer, and before the next request.
            assert!(wire.is_open());
            assert_eq!(asked.lock().unwrap().probes, request - 1);
            assert!(wire.is_open());
            assert_eq!(asked.lock().unwrap().probes, request);
        }
    }

    #[test]
    fn what_comes_behind_an_answer_closes_the_connection() {
        // More than one read takes in: the rest stays with the socket.
        let (mut wire, asked) = wire(&[b'x'; INPUT + 10]);
        send(&mut wire, b"POST");
        wire.await_input(limit(29_900)).unwrap();
        let read = wire.buffers().input().len();
        wire.buffers().input_consume(read);
        assert!(wire.is_open(), "the second question tells");
        assert!(!wire.is_open());
        assert_eq!(asked.lock().unwrap().probes, 0, "it is known without");
    }

    #[test]
    fn a_time_that_is_left_is_rounded_up_unless_it_is_short() {
        let cases = [
            (29_999, 30_000),
            (29_751, 30_000),
            (29_750, 29_750),
            (2_001, 2_250),
            (2_000, 2_000),
            (1, 1),
        ];
        for (left, wanted) in cases {
            let limit = NextTimeout {
                after: Span::from_millis(left),
                ..NextTimeout::default()
            };
            assert_eq!(rounded(limit).after, Span::from_millis(wanted), "{left}");
        }
        let never = NextTimeout::default();
        assert_eq!(rounded(never), never);
    }
}
