//! What a person does, who has the tool and means well.

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Error, OnDead, Outbox, Selection, Status};

use super::history::{What, Who};
use super::life::Life;

impl Life {
    pub(super) fn person(&mut self) {
        let channel = self.any_channel();
        let shop: &Outbox = &self.till.shop;
        let anna = shop.operator("anna");
        let refused = |done: Result<(), Error>| match done {
            Ok(()) | Err(Error::Refused(_)) => {}
            Err(error) => panic!("{error:?}"),
        };
        let dead = Selection::new().channel(channel).status(Status::Dead);
        let what = self.dice.below(20);
        let id = 1 + self.dice.below(self.sold.max(1) as i64);
        let known = shop.get(id).unwrap().is_some();
        let did = match what {
            0..6 => {
                anna.retry_all(&dead).unwrap();
                "retries the dead"
            }
            6..9 => {
                let beside = ["dead", "sending", "sending"][(what - 6) as usize];
                if let Some(id) = taken_out(&self.till.sql, beside) {
                    refused(anna.retry(id));
                }
                "retries what was taken out"
            }
            9..12 if known => {
                refused(anna.cancel(id));
                "cancels"
            }
            12..14 if known => {
                let edited = anna.edit(id, format!("sale edited {what} {id}"));
                refused(edited.map(|_| ()));
                "edits"
            }
            14 => {
                anna.pause(channel).unwrap();
                "pauses"
            }
            15..18 => {
                anna.resume(channel).unwrap();
                "resumes"
            }
            18 => {
                let choice = [OnDead::Hold, OnDead::Skip][self.dice.below(2) as usize];
                anna.on_dead(channel, choice).unwrap();
                "chooses for the dead"
            }
            _ => "looks",
        };
        self.till
            .note(Who::Operator, What::Note(format!("{did}: {channel}, {id}")));
        self.till.read_on(Who::Operator);
    }
}

/// A message that was cancelled or has expired; if there is one, of a lane that is being sent (or has
/// a dead letter).
fn taken_out(conn: &Connection, beside: &str) -> Option<i64> {
    let sql = "
        SELECT id FROM outbox AS o WHERE status IN ('cancelled', 'expired')
         ORDER BY NOT EXISTS (SELECT 1 FROM outbox AS d
                               WHERE d.channel = o.channel AND d.ordering_key = o.ordering_key
                                 AND d.status = ?1 AND d.id > o.id), id LIMIT 1";
    let mut statement = conn.prepare_cached(sql).unwrap();
    let mut ids = statement.query_map([beside], |row| row.get(0)).unwrap();
    ids.next().map(Result::unwrap)
}
