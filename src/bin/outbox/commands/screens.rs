//! What `status`, `list` and `show` print on terminals of several widths, and where there is none.

use std::path::Path;

use sqlite_outbox::{Filter, Outbox};
use tempfile::TempDir;
use unicode_width::UnicodeWidthStr;

use super::damage::Damage;
use super::{list, show, status};
use crate::output::printed;

const WIDTHS: [usize; 5] = [30, 40, 50, 80, 140];

const ERROR: &str = "the customer of this order is unknown; HTTP 422 Unprocessable Entity: \
    {\"detail\":\"the customer of this order is unknown\"}";

/// A till in trouble: long names, wide letters, dead letters, a conflict, numbers of any size.
fn till() -> (TempDir, Outbox) {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(folder.path().join("till.db")).unwrap();
    let conn = outbox.connection().unwrap();
    conn.execute_batch(&format!(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1200)
         INSERT INTO outbox (id, channel, dedupe_key, payload, created_at)
         SELECT 4000000 + n, 'sales', 'S-' || n, '{{}}', 1795960000000 FROM n;
         INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('mail', '日本語の鍵です', '{{}}');
         INSERT INTO outbox (channel, dedupe_key, payload, status, settled_at, attempts, last_error,
                             answer)
         VALUES ('loyalty-points-eu-west', 'R-2026-11-29-till-7-0001', '{{\"total\":  1250}}', 'dead',
                 1795961000000, 20, '{ERROR}', '{{\"detail\":\"the customer of this order is unknown\"}}');
         INSERT INTO outbox_attempt (message, at, duration_ms, outcome, http_status, charged, error)
         SELECT id, 1795961000000 + n, 12, 'http_422', 422, 1, last_error
           FROM outbox, (SELECT 1 AS n UNION SELECT 2) WHERE status = 'dead';
         INSERT INTO outbox_channel (channel, state, since, until, reason_code, reason)
         VALUES ('mail', 'offline', 1795960000000, 1795960100000, 'refused',
                 'mail.example refuses the connection, as it has done since this morning');
         INSERT INTO outbox (channel, dedupe_key, payload) VALUES ('sales', 'S-1', 'other')
           ON CONFLICT DO NOTHING;"
    ))
    .unwrap();
    (folder, outbox)
}

/// Every line fits, but for one with a word that alone is longer, which the terminal folds.
fn fits(text: &str, width: usize) {
    for line in text.lines() {
        let longest = line
            .split(' ')
            .map(UnicodeWidthStr::width)
            .max()
            .unwrap_or(0);
        let fits = line.width() <= width;
        assert!(fits || 16 + longest > width, "{width}: {line:?}\n{text}");
    }
}

#[test]
fn status_fits_any_terminal_and_says_what_needs_a_person() {
    let (_folder, outbox) = till();
    let stats = outbox.stats().unwrap();
    let shown = |width| {
        printed(width, |out| {
            status::print(&stats, &[], Path::new("till.db"), None, out)
        })
    };
    for width in WIDTHS {
        let text = shown(Some(width));
        fits(&text, width);
        let text = text.replace('\n', " ");
        for part in [
            "1,201 messages waiting, oldest ",
            "1 dead letter and 1 conflict",
            "What to do:   outbox why till.db   outbox conflicts till.db",
        ] {
            assert!(text.contains(part), "{width} {part}: {text}");
        }
    }
    let title = |text: &str| {
        text.lines()
            .find(|it| it.starts_with("CHANNEL"))
            .unwrap()
            .to_string()
    };
    let columns = |width| {
        title(&shown(width))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let all = "CHANNEL STATE UNSENT OLDEST DEAD EXPIRED CANCELLED SENT";
    assert_eq!(columns(None), all);
    assert_eq!(columns(Some(140)), all);
    assert_eq!(columns(Some(50)), "CHANNEL STATE UNSENT OLDEST DEAD");
    assert!(shown(Some(80)).contains("loyalty-points-eu-west  ok"));
    assert!(shown(Some(50)).contains("loyalty-point"));
    // What has expired needs a person, what was sent does not.
    for width in 40..140 {
        let columns = columns(Some(width));
        let sent_alone = columns.ends_with(" SENT") && !columns.contains("EXPIRED");
        assert!(!sent_alone, "{width}: {columns}");
    }
}

#[test]
fn a_list_has_a_line_for_each_message_on_any_terminal() {
    let (_folder, outbox) = till();
    let shown = |width| {
        let filter = Filter::new().newest_first();
        printed(width, |out| {
            let explainer = outbox.explainer();
            list::as_table(&outbox, filter, 3, &explainer, &mut Damage::default(), out).map(drop)
        })
    };
    for width in WIDTHS {
        let text = shown(Some(width));
        let (rows, below) = text.split_at(text.find("(no room").unwrap_or(text.len()));
        assert_eq!(rows.lines().count(), 4, "{text}");
        assert_eq!(below.is_empty(), width >= 80, "{text}");
        for line in text.lines() {
            assert!(line.width() <= width, "{width}: {text}");
        }
    }
    let narrow = shown(Some(50));
    assert!(narrow.starts_with("     ID  STATUS   KEY"), "{narrow}");
    assert!(
        narrow.contains("(no room for CHANNEL, AGE, CHARGED)"),
        "{narrow}"
    );
    // What tells alike keys apart stays before how old they are.
    let narrow = shown(Some(60));
    assert!(narrow.starts_with("     ID  CHANNEL "), "{narrow}");
    assert!(shown(Some(80)).contains("-till-7-0001"));
    let pipe = shown(None);
    assert!(pipe.contains("HTTP 422 Unprocessable Entity\n"), "{pipe}");
    assert!(pipe.contains("日本語の鍵です"), "{pipe}");
}

#[test]
fn a_message_is_shown_with_every_error_once_and_broken_between_words() {
    let (_folder, outbox) = till();
    let entry = outbox.find("R-2026-11-29-till-7-0001", None).unwrap();
    let attempts = outbox.attempts(entry.id).unwrap();
    assert_eq!(attempts.len(), 2);
    let known = show::Known {
        attempts: &attempts,
        ..show::Known::default()
    };
    let shown = |width| {
        printed(width, |out| {
            show::print(&entry, &known, Path::new("till.db"), out)
        })
    };
    for width in WIDTHS {
        fits(&shown(Some(width)), width);
    }
    let text = shown(None);
    // In the error and in the answer, which is the evidence.
    assert_eq!(
        text.matches("the customer of this order is unknown")
            .count(),
        2,
        "{text}"
    );
    for part in [
        "last error    the customer of this order is unknown; HTTP 422 Unprocessable Entity\n",
        "settled       2026-11-29T14:03:20.000Z, ",
        "  2026-11-29T14:03:20.001Z  http_422 after 12 ms\n",
        "payload, 16 bytes\n  {\"total\":  1250}\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

/// A thousand channels, two of them in trouble.
fn crowd() -> (TempDir, Outbox) {
    let (folder, outbox) = till();
    let conn = outbox.connection().unwrap();
    conn.execute_batch(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1000)
         INSERT INTO outbox (channel, payload) SELECT printf('c%04d', n), '{}' FROM n",
    )
    .unwrap();
    (folder, outbox)
}

#[test]
fn of_a_crowd_of_channels_a_terminal_shows_some_and_a_pipe_all() {
    let (_folder, outbox) = crowd();
    let stats = outbox.stats().unwrap();
    let shown = |width| {
        printed(width, |out| {
            status::print(&stats, &[], Path::new("till.db"), None, out)
        })
    };
    let text = shown(Some(80));
    assert!(text.lines().count() < 70, "{text}");
    fits(&text, 80);
    // What needs a person, what stands still, and the busiest.
    let at = |name: &str| text.find(&format!("\n{name} ")).unwrap_or(usize::MAX);
    assert!(at("loyalty-points-eu-west") < at("mail"), "{text}");
    assert!(
        at("mail") < at("sales") && at("sales") < at("c0001"),
        "{text}"
    );
    let more = "… and 963 more channels with 963 messages unsent. All are shown with --json";
    assert!(text.replace('\n', " ").contains(more), "{text}");
    let pipe = shown(None);
    assert!(pipe.contains("\nc0001 ") && pipe.contains("\nc1000 "));
    assert!(!pipe.contains("… and"));
}
