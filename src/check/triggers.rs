//! Triggers of other hands on the outbox's tables.

use rusqlite::Connection;

use crate::condition::Finding;
use crate::condition::Severity::{Note, Warning};
use crate::error::Result;
use crate::printable::printable_name;
use crate::schema::{self, Trigger};

pub(super) fn findings(conn: &Connection) -> Result<Vec<Finding>> {
    let (grave, calm): (Vec<_>, Vec<_>) = schema::foreign_triggers(conn)?
        .into_iter()
        .partition(interferes);
    let mut found = Vec::new();
    if !grave.is_empty() {
        let text = match &*grave {
            [one] => format!(
                "the trigger {} can refuse, change or delete what the outbox writes, and is none of its own",
                named(one)
            ),
            many => format!(
                "{} triggers can refuse, change or delete what the outbox writes, and are none of its own: {}",
                many.len(),
                names(many)
            ),
        };
        found.push(
            Finding::new(
                Warning,
                "interfering_trigger",
                text,
                "a message whose row refuses its changes is not sent, or not recorded as sent, and one \
                 that is deleted is lost: let the trigger's author spare what the outbox does, or remove \
                 it by DROP TRIGGER",
            )
            .of(grave.len() as u64, None),
        );
    }
    if !calm.is_empty() {
        let text = format!(
            "triggers of other hands stand on the outbox: {}",
            names(&calm)
        );
        let remedy = "they run within every commit of the outbox: where one fails, so does the change \
                      that it runs after";
        found.push(Finding::new(Note, "foreign_trigger", text, remedy).of(calm.len() as u64, None));
    }
    Ok(found)
}

/// Those that may keep a message from being sent, or from being recorded as sent.
pub(crate) fn interfering(conn: &Connection) -> Result<Option<Finding>> {
    let found = findings(conn)?;
    Ok(found.into_iter().find(Finding::needs_person))
}

fn named(trigger: &Trigger) -> String {
    let name = printable_name(&trigger.name);
    format!("{name} on {}", printable_name(&trigger.table))
}

fn names(triggers: &[Trigger]) -> String {
    /// More would fill the screen.
    const SHOWN: usize = 10;
    let mut names: Vec<_> = triggers.iter().take(SHOWN).map(named).collect();
    if triggers.len() > SHOWN {
        names.push("…".into());
    }
    names.join(", ")
}

/// Whether its text can refuse what it runs at, or writes the outbox itself.
fn interferes(trigger: &Trigger) -> bool {
    let text = trigger.sql.to_ascii_lowercase();
    let words: Vec<_> = text
        .split(|it: char| !it.is_alphanumeric() && it != '_')
        .filter(|it| !it.is_empty() && *it != "main")
        .collect();
    let ours = |it: &&str| it.starts_with("outbox");
    words.contains(&"raise")
        || words.windows(3).any(|it| match it {
            ["delete", "from", table] | ["insert" | "replace", "into", table] => ours(table),
            ["update", table, "set"] => ours(table),
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_that_aborts_or_writes_the_outbox_is_told_from_one_that_watches() {
        for (body, grave) in [
            (
                "AFTER UPDATE ON outbox BEGIN SELECT RAISE(ABORT, 'no'); END",
                true,
            ),
            (
                "AFTER UPDATE ON outbox BEGIN SELECT raise ( ignore ); END",
                true,
            ),
            (
                "AFTER INSERT ON outbox BEGIN DELETE FROM \"outbox\" WHERE id = NEW.id; END",
                true,
            ),
            (
                "AFTER INSERT ON outbox BEGIN DELETE FROM main.outbox; END",
                true,
            ),
            (
                "AFTER INSERT ON outbox BEGIN UPDATE outbox SET channel = 'x'; END",
                true,
            ),
            (
                "AFTER UPDATE OF status ON outbox BEGIN INSERT INTO log VALUES (NEW.id); END",
                false,
            ),
            (
                "AFTER DELETE ON outbox BEGIN DELETE FROM sale WHERE message = OLD.id; END",
                false,
            ),
        ] {
            let trigger = Trigger {
                name: "mine".into(),
                table: "outbox".into(),
                sql: format!("CREATE TRIGGER mine {body}"),
            };
            assert_eq!(interferes(&trigger), grave, "{body}");
        }
    }
}
