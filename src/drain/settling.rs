//! The first half of the transaction: what became of the messages that came back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::clock::Dice;
use crate::clock::FIRST_HONEST;
use crate::dispatch::{Delivery, Failure, Outcome, Receipt};
use crate::drain::flight::{Report, Told};
use crate::drain::transact::{Channels, Effects, Transact, Trouble};
use crate::observer::Event;
use crate::stats::ChannelState;
use crate::store::pool;
use crate::store::settle::{self, Claim, Recorded, Sent};
use crate::store::untold::Untold;
use crate::verdict::{Facts, Verdict, judge};

/// A receiver's clock that differs by less is nobody's business, in milliseconds.
const SKEW_SHOWN: u64 = 60_000;

impl Transact<'_> {
    pub(crate) fn settle(
        &self,
        reports: &[Report],
        channels: &mut Channels<'_>,
        dice: &mut Dice,
        effects: &mut Effects,
    ) -> Result<(), Trouble> {
        let mut sent = Vec::new();
        for report in reports.iter().take(self.batch) {
            self.settle_one(report, channels, dice, &mut sent, effects)?;
            effects.changes.landed.push((report.run, report.id));
            effects.recorded += 1;
        }
        sent.sort_by_key(|it| it.claim.id);
        match settle::record_sent(self.conn, &sent, self.at.wall)? == sent.len() {
            true => Ok(()),
            false => Err(Trouble::Uneven),
        }
    }

    fn settle_one(
        &self,
        report: &Report,
        channels: &mut Channels<'_>,
        dice: &mut Dice,
        sent: &mut Vec<Sent>,
        effects: &mut Effects,
    ) -> Result<(), Trouble> {
        let flown = self.memory.flight.get(report.run);
        let (delivery, outcome) = match &report.told {
            Told::Outcome(delivery, outcome) => (Some(delivery.as_ref()), Some(outcome)),
            Told::Released | Told::Interrupted => (None, None),
        };
        let claim = Claim {
            id: report.id,
            claims: report.claims,
        };
        let Some((delivery, outcome)) = delivery.zip(outcome) else {
            let wrote = self.guarded(report.id, effects, |_| {
                settle::record(self.conn, claim, &Verdict::Released, 0, 0, self.at.wall)
            })?;
            self.heed_fence(report, wrote.as_ref(), effects);
            if wrote == Some(Recorded::Yes) && matches!(report.told, Told::Interrupted) {
                let failure = Failure::new("interrupted", "the outbox was stopped meanwhile");
                settle::log_attempt(
                    self.conn,
                    report.id,
                    &failure,
                    report.elapsed_ms,
                    0,
                    self.at.wall,
                )?;
            }
            return Ok(());
        };
        let name = &delivery.channel;
        let policy = self.settings.policy_of(name);
        // A claim that passed on tells nothing about the channel as it is now, unless it arrived.
        let arrived = matches!(outcome, Outcome::Delivered(_));
        if !arrived && !settle::is_ours(self.conn, claim)? {
            effects.changes.lost.push(report.run);
            effects.events.push(Event::Late {
                id: report.id,
                delivered: false,
            });
            return Ok(());
        }
        let facts = Facts {
            attempts: delivery.charged,
            first_charged_at: match delivery.charged > 0 && !arrived {
                true => settle::first_charge(self.conn, report.id, FIRST_HONEST)?,
                false => None,
            },
            probe: flown.is_some_and(|run| run.probe),
            clock_trusted: self.trusted,
        };
        let state = channels.get(name)?;
        note_skew(state, outcome, self.at.wall);
        let verdict = judge(
            Some(outcome.bounded()),
            facts,
            state,
            policy,
            self.at.wall,
            dice,
        );
        if !arrived && state.state != ChannelState::Ok {
            effects.changes.troubled.push(name.clone());
        }
        // Deliveries are recorded together at the end, unless someone looks at each.
        let verdict = match verdict {
            Verdict::Sent(receipt) if self.together() => {
                if !self.memory.untouchable.contains(&report.id) {
                    self.delivered(delivery, &receipt, effects)?;
                    let keep_answer = policy.keep_answer;
                    sent.push(Sent {
                        claim,
                        receipt,
                        keep_answer,
                    });
                }
                return Ok(());
            }
            verdict => verdict,
        };
        let untold = Untold::of(&verdict, policy.keep_answer);
        let wrote = self.recording(report.id, untold, effects, |_| {
            settle::record(
                self.conn,
                claim,
                &verdict,
                policy.keep_answer,
                report.elapsed_ms,
                self.at.wall,
            )
        })?;
        self.heed_fence(report, wrote.as_ref(), effects);
        match wrote {
            None => {}
            Some(Recorded::Yes) => self.recorded(delivery, verdict, effects)?,
            // Told when the earlier holder's answer was noted.
            Some(Recorded::Confirmed) => {}
            Some(Recorded::Late) => self.late(delivery, &verdict, policy.keep_answer, effects)?,
        }
        Ok(())
    }

    /// A message of the run has passed on, and with it the others: nothing goes on behind them.
    fn heed_fence(&self, report: &Report, wrote: Option<&Recorded>, effects: &mut Effects) {
        if wrote == Some(&Recorded::Late) {
            effects.changes.lost.push(report.run);
        }
    }

    /// Whether many rows may be changed by one statement.
    fn together(&self) -> bool {
        !self.careful && self.hook.is_none()
    }

    /// The verdict stands in the file: say so.
    fn recorded(
        &self,
        delivery: &Delivery,
        verdict: Verdict,
        effects: &mut Effects,
    ) -> Result<(), Trouble> {
        let (id, channel) = (delivery.id, delivery.channel.clone());
        match verdict {
            Verdict::Sent(receipt) => self.delivered(delivery, &receipt, effects)?,
            Verdict::Again {
                due,
                charged,
                failure,
                ..
            } => effects.events.push(Event::Retried {
                id,
                channel,
                charged,
                next_attempt_at: due,
                error: failure.text,
            }),
            Verdict::Dead { failure, .. } => {
                effects.events.push(Event::Dead {
                    id,
                    channel,
                    error: failure.text,
                });
            }
            Verdict::Released => {}
        }
        Ok(())
    }

    /// A success is true however late it comes.
    fn late(
        &self,
        delivery: &Delivery,
        verdict: &Verdict,
        keep_answer: usize,
        effects: &mut Effects,
    ) -> Result<(), Trouble> {
        let Verdict::Sent(receipt) = verdict else {
            effects.events.push(Event::Late {
                id: delivery.id,
                delivered: false,
            });
            return Ok(());
        };
        let claim = Claim {
            id: delivery.id,
            claims: i64::from(delivery.attempt),
        };
        // A hook that committed took this verdict with it, and what the message's own hook wrote.
        if !self.memory.hookless.is_empty() && settle::was_recorded(self.conn, claim)? {
            let error = self.memory.hookless.get(&delivery.id).cloned();
            return self.tell_delivered(delivery, receipt, error, effects);
        }
        effects.events.push(Event::Late {
            id: delivery.id,
            delivered: true,
        });
        let untold = Untold::Delivered(receipt, keep_answer);
        let news = self.recording(delivery.id, untold, effects, |_| {
            settle::record_late(
                self.conn,
                delivery.id,
                &delivery.message_id,
                receipt,
                keep_answer,
                self.at.wall,
            )
        })?;
        if news == Some(true) {
            self.delivered(delivery, receipt, effects)?;
        }
        Ok(())
    }

    /// The row has just become sent: the application may store what it learned, in this transaction.
    fn delivered(
        &self,
        delivery: &Delivery,
        receipt: &Receipt,
        effects: &mut Effects,
    ) -> Result<(), Trouble> {
        let error = self.run_hook(delivery, receipt)?;
        self.tell_delivered(delivery, receipt, error, effects)
    }

    fn tell_delivered(
        &self,
        delivery: &Delivery,
        receipt: &Receipt,
        hook_failed: Option<String>,
        effects: &mut Effects,
    ) -> Result<(), Trouble> {
        *effects
            .changes
            .delivered
            .entry(delivery.channel.clone())
            .or_default() += 1;
        effects.events.push(Event::Delivered {
            id: delivery.id,
            channel: delivery.channel.clone(),
            provider_id: receipt.provider_id.clone(),
        });
        if let Some(error) = hook_failed {
            self.guarded(delivery.id, effects, |_| {
                settle::note_hook_failure(self.conn, delivery.id, &error)
            })?;
            effects.events.push(Event::HookFailed {
                id: delivery.id,
                error,
            });
        }
        Ok(())
    }

    /// Runs the hook under its own savepoint; what it says when it fails.
    fn run_hook(&self, delivery: &Delivery, receipt: &Receipt) -> Result<Option<String>, Trouble> {
        let Some(hook) = self.hook else {
            return Ok(None);
        };
        if let Some(error) = self.memory.hookless.get(&delivery.id) {
            return Ok(Some(error.clone()));
        }
        self.conn.execute_batch("SAVEPOINT outbox_hook")?;
        let said = catch_unwind(AssertUnwindSafe(|| {
            let said = pool::within_hook(|| hook(self.conn, delivery, receipt));
            // Its text is made here: it may panic as well.
            said.map_err(|error| format!("{error:#}"))
        }));
        let failure = match said {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(panic) => Some(format!("it panicked: {}", panic_text(panic.as_ref()))),
        };
        let end = match failure {
            None => "RELEASE outbox_hook",
            Some(_) => "ROLLBACK TO outbox_hook; RELEASE outbox_hook",
        };
        // A hook that ended the transaction took our verdicts with it, or committed half of them.
        if self.conn.is_autocommit() || self.conn.execute_batch(end).is_err() {
            let error = failure.unwrap_or_else(|| "it ended the transaction it was given".into());
            return Err(Trouble::HookEndedTransaction {
                id: delivery.id,
                error,
            });
        }
        Ok(failure)
    }
}

/// The text of a panic, as far as it has one.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a text")
}

/// Keeps how far the receiver's clock is from ours, where that is worth a person's notice.
fn note_skew(channel: &mut crate::circuit::Channel, outcome: &Outcome, now: i64) {
    let told = match outcome {
        Outcome::Delivered(receipt) => receipt.server_time,
        Outcome::Rejected(failure)
        | Outcome::Retry(failure)
        | Outcome::Unreachable(failure)
        | Outcome::Blocked(failure) => failure.server_time,
    };
    let Some(told) = told else { return };
    let skew = told.saturating_sub(now);
    let known = channel.clock_skew.unwrap_or(0);
    if skew.saturating_sub(known).unsigned_abs() > SKEW_SHOWN {
        channel.clock_skew = (skew.unsigned_abs() > SKEW_SHOWN).then_some(skew);
    }
}
