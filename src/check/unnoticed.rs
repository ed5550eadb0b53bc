//! What went wrong without anybody being told.

use crate::condition::{Finding, Severity};
use crate::error::Result;
use crate::printable::printable_name;
use crate::store::check::Seen;
use crate::store::{again, odd, read};

pub(super) fn findings(conn: &rusqlite::Connection) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    let names = read::channels(conn)?;
    let depth = odd::depth(names.len());
    let done = again::done(conn)?;
    for name in names {
        let shown = name.show();
        let told = printable_name(&shown);
        let mut add = |seen: Seen, code, what: &str, remedy: &str, command: &[&str]| {
            let (1.., Some(id)) = (seen.count, seen.first) else {
                return;
            };
            let text = match seen.count {
                1 => format!("{told}: message {id} {what}"),
                count => format!("{told}: {count} messages {what}, the last is {id}"),
            };
            let finding =
                Finding::new(Severity::Warning, code, text, remedy).of(seen.count, seen.first);
            // Nobody can type a name that is no text.
            let all = seen.count > 1 && command.len() > 1 && name.is_text();
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
            odd::expired_at_once(conn, &name, depth)?,
            "expired_unit",
            "expired at once, as the moment looks like another unit",
            "times are milliseconds since 1970 UTC: mend the program that enqueues; a retry sends it \
             after all",
            &["retry"],
        );
        add(
            odd::answered_by_a_page(conn, &name, depth, &done)?,
            "web_page",
            "counted as sent, and a web page answered",
            "a captive portal or a proxy may have taken it: ask the receiver, and send again what is \
             not there; with a `reply` rule in the route such an answer does not count",
            &["send-again", "--all", "--web-page", "--dry-run"],
        );
    }
    Ok(found)
}
