//! What went wrong without anybody being told.

use crate::condition::{Finding, Severity};
use crate::error::Result;
use crate::printable::printable_name;
use crate::store::check::Seen;
use crate::store::{odd, read};

pub(super) fn findings(conn: &rusqlite::Connection, _: i64) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    for name in read::channels(conn)? {
        let shown = name.show();
        let told = printable_name(&shown);
        let mut add = |seen: Seen, code, what: &str, remedy: &str, command: &str| {
            let (1.., Some(id)) = (seen.count, seen.first) else {
                return;
            };
            let text = match seen.count {
                1 => format!("{told}: message {id} {what}"),
                count => format!("{told}: {count} messages {what}, the last is {id}"),
            };
            let finding =
                Finding::new(Severity::Warning, code, text, remedy).of(seen.count, seen.first);
            found.push(
                finding
                    .command([command, &format!("id:{id}")])
                    .channel(&*shown),
            );
        };
        add(
            odd::expired_at_once(conn, &name)?,
            "expired_unit",
            "expired at once, as the moment looks like another unit",
            "times are milliseconds since 1970 UTC: mend the program that enqueues; a retry sends it \
             after all",
            "retry",
        );
        add(
            odd::answered_by_a_page(conn, &name)?,
            "web_page",
            "counted as sent, and a web page answered",
            "a captive portal or a proxy may have taken it: ask the receiver, and enqueue what is not \
             there anew under another key; with a `reply` rule in the route such an answer does not \
             count",
            "show",
        );
    }
    Ok(found)
}
