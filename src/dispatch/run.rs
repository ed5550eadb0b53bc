//! What one worker gets to send, and how far it is.

use std::collections::VecDeque;

use crate::dispatch::{Delivery, Failure, Outcome};

/// Several messages of one ordering key for one worker, in order; or a single message.
///
/// The run ends early when a message was not delivered (nothing may overtake it), when its lease
/// has run out, or when the outbox is stopping; what was not handed out is given back uncharged.
///
/// A transport that puts several into one request takes them by [`next_batch`](Self::next_batch) and
/// settles them one by one, in the order in which it got them:
///
/// ```
/// use sqlite_outbox::{Delivery, Dispatcher, Failure, Outcome, Run};
///
/// # fn post(_: &[Delivery]) -> anyhow::Result<Vec<u16>> { Ok(vec![200, 503]) }
/// struct Batches;
///
/// impl Dispatcher for Batches {
///     fn dispatch(&self, one: &Delivery) -> anyhow::Result<Outcome> {
///         let statuses = post(std::slice::from_ref(one))?;
///         anyhow::ensure!(statuses == [200], "{statuses:?}");
///         Ok(Outcome::delivered())
///     }
///
///     fn dispatch_run(&self, run: &mut Run<'_>) {
///         loop {
///             let batch = run.next_batch(50);
///             if batch.is_empty() {
///                 return; // all is sent, or the run may not go on
///             }
///             match post(batch) {
///                 // One status for each message that the receiver came to, in the same order.
///                 Ok(statuses) => {
///                     for status in statuses {
///                         run.settle(match status {
///                             200 => Ok(Outcome::delivered()),
///                             422 => Ok(Outcome::rejected("HTTP 422")),
///                             _ => Ok(Outcome::retry(format!("HTTP {status}"))),
///                         });
///                     }
///                 }
///                 // It is not known of any: the first is tried again, and the others behind it.
///                 Err(error) => run.settle(Ok(Outcome::Unreachable(Failure::new(
///                     "unreachable",
///                     format!("{error:#}"),
///                 )))),
///             }
///         }
///     }
/// }
/// ```
///
/// What of a batch stands behind the first that was not delivered may be settled too, or left. Where the
/// receiver has taken it, say so: it is recorded as delivered, and has then arrived before the one that
/// failed, which only the receiver could have prevented. What is left counts as not sent: it is given back
/// uncharged, and goes behind the one that failed. So a transport that has to keep the order leaves it, and
/// one that answers for none of a batch has failed with the first (the code `unsaid`).
pub struct Run<'a> {
    queue: Queue,
    /// One was not delivered: nothing may overtake it.
    broken: bool,
    /// Whether the dispatcher has asked for anything, or the rest was taken out of its hands.
    touched: bool,
    may_send: &'a mut dyn FnMut(&Delivery) -> bool,
    report: &'a mut dyn FnMut(Delivery, Option<Outcome>),
}

/// What a run has not settled yet.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Delivery>,
    /// Handed out, in order.
    out: VecDeque<Delivery>,
}

impl Queue {
    pub(crate) fn new(deliveries: impl IntoIterator<Item = Delivery>) -> Self {
        Self {
            waiting: deliveries.into_iter().collect(),
            out: VecDeque::new(),
        }
    }

    /// Whether nothing of it is handed out.
    pub(crate) fn is_home(&self) -> bool {
        self.out.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.out.is_empty()
    }
}

impl std::fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("out", &self.queue.out.len())
            .field("waiting", &self.queue.waiting.len())
            .finish_non_exhaustive()
    }
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        deliveries: impl IntoIterator<Item = Delivery>,
        may_send: &'a mut dyn FnMut(&Delivery) -> bool,
        report: &'a mut dyn FnMut(Delivery, Option<Outcome>),
    ) -> Self {
        Self::go_on(Queue::new(deliveries), may_send, report)
    }

    /// The rest of a run that was paused.
    pub(crate) fn go_on(
        queue: Queue,
        may_send: &'a mut dyn FnMut(&Delivery) -> bool,
        report: &'a mut dyn FnMut(Delivery, Option<Outcome>),
    ) -> Self {
        Self {
            queue,
            broken: false,
            touched: false,
            may_send,
            report,
        }
    }

    /// Takes out what is not settled, to go on with it later.
    pub(crate) fn pause(&mut self) -> Queue {
        std::mem::take(&mut self.queue)
    }

    /// The channel of what is left of it.
    pub(super) fn channel(&self) -> Option<&str> {
        let next = self.queue.waiting.front();
        next.map(|it| it.channel.as_str())
    }

    /// The next message to send, if the run may go on.
    #[allow(clippy::should_implement_trait)] // lends, so it cannot be an Iterator
    pub fn next(&mut self) -> Option<&Delivery> {
        self.next_batch(1);
        self.queue.out.front()
    }

    /// The next messages to put into one request, `most` at most, in order; none when the run may
    /// not go on. Each of them is then [settled](Self::settle), in the same order.
    ///
    /// What was handed out before and not settled counts as failed; behind one that was not delivered, as
    /// not sent.
    pub fn next_batch(&mut self, most: usize) -> &[Delivery] {
        self.touched |= most > 0;
        self.take_back();
        while self.queue.out.len() < most
            && let Some(next) = self.queue.waiting.pop_front()
        {
            if !(self.may_send)(&next) {
                self.queue.waiting.push_front(next);
                self.give_back();
                break;
            }
            self.queue.out.push_back(next);
        }
        self.queue.out.make_contiguous()
    }

    /// Says what happened to the first message that was handed out and not settled yet.
    pub fn settle(&mut self, outcome: anyhow::Result<Outcome>) {
        if self.queue.out.is_empty() {
            return;
        }
        // Made first: an error whose text panics must not take the message with it.
        let outcome = outcome
            .unwrap_or_else(|error| Outcome::Retry(Failure::new("unknown", format!("{error:#}"))));
        let Some(delivery) = self.queue.out.pop_front() else {
            return;
        };
        let delivered = matches!(outcome, Outcome::Delivered(_));
        (self.report)(delivery, Some(outcome));
        if !delivered {
            self.broken = true;
            self.give_back();
        }
    }

    /// What was handed out and not settled.
    fn take_back(&mut self) {
        if !self.broken && !self.queue.out.is_empty() {
            self.settle(Ok(unsaid()));
        }
        for delivery in self.queue.out.drain(..) {
            (self.report)(delivery, None);
        }
    }

    /// What is not handed out stays as it was.
    pub(crate) fn give_back(&mut self) {
        self.touched = true;
        for delivery in self.queue.waiting.drain(..) {
            (self.report)(delivery, None);
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.take_back();
        // Due at once, it would be handed out again and again.
        if !self.touched
            && let Some(first) = self.queue.waiting.pop_front()
        {
            let failure = Failure::new(Failure::UNTAKEN, "the dispatcher took no message").local();
            (self.report)(first, Some(Outcome::Retry(failure)));
        }
        self.give_back();
    }
}

fn unsaid() -> Outcome {
    let text = "the dispatcher did not say what happened";
    Outcome::Retry(Failure::new(Failure::UNSAID, text))
}
