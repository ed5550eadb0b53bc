//! What went wrong without anybody being told.

use crate::condition::{Finding, Severity};
use crate::error::Result;
use crate::printable::printable_name;
use crate::store::{again, odd, read};

pub(super) fn findings(conn: &rusqlite::Connection) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    let names = read::channels(conn)?;
    let depth = odd::depth(names.len());
    // Nearly always there is no such answer, and the record need not be read.
    let mut done = None;
    for name in names {
        let shown = name.show();
        let told = printable_name(&shown);
        let mut add = |ids: &[i64], code, what: &str, remedy: &str, command: &[&str]| {
            let Some(id) = ids.first() else {
                return;
            };
            let text = match ids.len() {
                1 => format!("{told}: message {id} {what}"),
                count => format!("{told}: {count} messages {what}, the last is {id}"),
            };
            let finding =
                Finding::new(Severity::Warning, code, text, remedy).of(ids.len() as u64, Some(*id));
            // Nobody can type a name that is no text.
            let all = ids.len() > 1 && command.len() > 1 && name.is_text();
            let finding = match all {
                true => finding.command([command, &["--channel", &shown]].concat()),
                false => {
                    let one = command.iter().take(1).map(|it| (*it).to_string());
                    finding.command(one.chain([format!("id:{id}")]))
                }
            };
            found.push(finding.channel(&*shown));
        };
        add(
            &odd::expired_at_once(conn, &name, depth)?,
            "expired_unit",
            "expired at once, as the moment looks like another unit",
            "times are milliseconds since 1970 UTC: mend the program that enqueues; a retry sends it \
             after all",
            &["retry"],
        );
        let mut pages = odd::answered_by_a_page(conn, &name, depth)?;
        if !pages.is_empty() {
            let done = match &mut done {
                Some(known) => known,
                none => none.insert(again::done(conn)?),
            };
            pages.retain(|id| !done.contains(id));
        }
        add(
            &pages,
            "web_page",
            "counted as sent, and a web page answered",
            "a captive portal or a proxy may have taken it: ask the receiver, and send again what is \
             not there; with a `reply` rule in the route such an answer does not count",
            &["send-again", "--all", "--web-page", "--dry-run"],
        );
    }
    Ok(found)
}
