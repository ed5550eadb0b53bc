//! Everything that can be asked of an outbox.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::testing::{Inline, ManualClock};
use sqlite_outbox::{Delivery, Error, Message, Outbox, Outcome};

use super::{NOW, corpus};

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) good: u64,
    pub(super) errors: u64,
    pub(super) sent: u64,
}

impl Answers {
    fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => {
                self.good += 1;
                Some(value)
            }
            Err(error) => {
                self.errors += 1;
                let text = format!("{error}");
                assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
                None
            }
        }
    }
}

fn look(outbox: &Outbox, answers: &mut Answers) {
    answers.note(outbox.stats().map(|it| it.to_string()));
    answers.note(outbox.unsent());
    answers.note(outbox.why_all().map(|it| format!("{it:?}")));
    answers.note(outbox.dead_reasons());
    answers.note(outbox.audit(None, 50).map(|it| format!("{it:?}")));
    answers.note(outbox.check().map(|it| format!("{it:?}")));
    answers.note(outbox.file_info());
    let listed = answers.note(outbox.list(&Default::default()));
    let ids = listed.unwrap_or_default().into_iter().map(|it| it.id);
    for id in ids.take(5).chain([1, 2, i64::MAX, i64::MIN]) {
        answers.note(outbox.get(id));
        answers.note(outbox.attempts(id).map(|it| format!("{it:?}")));
        answers.note(outbox.why(id).map(|it| it.to_string()));
    }
    answers.note(outbox.find("free-3", None));
}

/// Opens the file and asks for all there is. The file that cannot be opened is not touched.
pub(super) fn everything(path: &Path) -> Answers {
    let mut answers = Answers::default();
    let clock = ManualClock::at(NOW + 1_000);
    let options = || Outbox::options().clock(clock.shared());
    if let Some(outbox) = answers.note(options().open_existing(path)) {
        look(&outbox, &mut answers);
    }
    let Some(outbox) = answers.note(options().open(path)) else {
        return answers;
    };
    look(&outbox, &mut answers);
    let message = Message::text("sales", "new")
        .dedupe_key("new")
        .ordering_key("a");
    answers.note(outbox.transaction(|tx| outbox.enqueue(tx, &message)));
    let sent = AtomicU64::new(0);
    let receive = |it: &Delivery| {
        let nth = sent.fetch_add(1, Ordering::Relaxed);
        assert!(
            !it.channel.is_empty() && !it.message_id.is_empty(),
            "{it:?}"
        );
        Ok(match nth % 7 {
            5 => Outcome::rejected("no"),
            6 => Outcome::retry("later"),
            _ => Outcome::delivered(),
        })
    };
    if let Some(mut drain) = answers.note(Inline::new(&outbox, Default::default())) {
        for _ in 0..6 {
            answers.note(drain.step(&receive));
            clock.advance(Duration::from_secs(7));
        }
    }
    answers.sent = sent.into_inner();
    let anna = outbox.operator("anna");
    for id in [1, 2, 3, 4] {
        answers.note(anna.retry(id));
        answers.note(anna.edit(id, "new"));
        answers.note(anna.cancel(id));
    }
    answers.note(anna.pause("sales"));
    answers.note(anna.resume("sales"));
    answers.note(anna.retry_all(&Default::default()));
    answers.note(anna.purge(Duration::from_secs(1)));
    #[cfg(feature = "backup")]
    answers.note(outbox.backup(path.with_extension("copy")));
    answers.note(outbox.compact());
    look(&outbox, &mut answers);
    answers
}

/// Drains with a receiver that takes everything, until each message but `odd` counts as sent, nothing came of it for
/// two days, or a trigger has kept the drain busy for a thousand steps; how many do not.
pub(super) fn unsent_beside(path: &Path, odd: &str) -> usize {
    let clock = ManualClock::at(NOW + 1_000);
    let options = Outbox::options().clock(clock.shared());
    let unsent = || {
        let sent = Connection::open(path).unwrap().query_row(
            "SELECT count(*) FROM outbox WHERE status = 'sent' AND dedupe_key <> ?1
                AND (dedupe_key LIKE 'free-%' OR dedupe_key LIKE 'lane-%')",
            [odd],
            |row| row.get::<_, u32>(0),
        );
        corpus::OTHERS - sent.unwrap_or_default() as usize
    };
    let drain = options
        .open(path)
        .and_then(|it| Inline::new(&it, Default::default()));
    let Ok(mut drain) = drain else {
        return unsent();
    };
    let receive = |_: &Delivery| Ok(Outcome::delivered());
    let (mut steps, mut hours) = (0, 0);
    while unsent() > 0 && steps < 1_000 && hours < 48 {
        steps += 1;
        let step = drain.step(&receive);
        if step.is_err() || step.is_ok_and(|it| it.dispatched == 0 && !it.wait.is_zero()) {
            clock.advance(Duration::from_secs(3_600));
            hours += 1;
        }
    }
    unsent()
}
