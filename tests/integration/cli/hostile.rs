//! Rows that no program should have written: every command says something sensible, and none gives
//! up.

use super::Desk;

/// Values that the checks of the tables forbid, put in with the checks off.
const ROWS: &str = "
PRAGMA ignore_check_constraints = 1;
DROP TRIGGER outbox_guard;
INSERT INTO outbox (id, channel, dedupe_key, payload, status, headers, attempts, claims,
                    next_attempt_at, created_at, settled_at, expires_at, content_type, message_id)
VALUES (1, CAST(x'fffe' AS TEXT), CAST(x'ff' AS TEXT), x'00ff', 'pending', 'no json', 'many', -1,
        9223372036854775807, -9223372036854775808, 'then', x'01', x'ff', 'm'),
       (2, 'sales', 'S-2', 17, 'teleported', '[]', -1, 9223372036854775807, 'soon', 'once', NULL,
        1.5, 'text/plain', ''),
       (3, 'sales', 'S-3', 'x', 'dead', '{\"A\":1}', 9223372036854775807, 0, -5,
        9223372036854775807, 9223372036854775807, -1, 'a' || char(13, 10) || 'b', 'm'),
       (4, 'sales', 'S-4', 'x', 'sending', NULL, 0, 0, 9223372036854775807, 0, NULL, NULL, '', 'm');
INSERT INTO outbox_conflict (at, message, channel, dedupe_key, content_type, payload, headers)
VALUES ('once', 4711, CAST(x'fffe' AS TEXT), CAST(x'ff' AS TEXT), x'ff', 1.5, x'00'),
       (9223372036854775807, 3, 'sales', 'S-3', '', x'ff', '[]');
INSERT INTO outbox_audit (at, who, action, message, reason, former_payload)
VALUES ('once', x'ff', 'edit', 3, 17, 'text'), (-1, '', '', 3, NULL, x'ff');
INSERT INTO outbox_attempt (message, at, outcome, charged) VALUES (3, 'once', x'ff', 'yes');";

#[test]
fn every_command_that_looks_survives_impossible_rows() {
    let desk = Desk::new();
    desk.sql().execute_batch(ROWS).unwrap();
    desk.write(
        "outbox.toml",
        "[channel.default]\nurl = \"http://localhost:9/\"\n",
    );
    let mut commands = vec![
        vec!["status", "till.db"],
        vec!["list", "till.db"],
        vec!["export", "till.db"],
        vec!["why", "till.db"],
        vec!["why", "till.db", "--config", "outbox.toml"],
        vec!["conflicts", "till.db"],
        vec!["conflicts", "till.db", "1", "2"],
        vec!["check", "till.db"],
        vec!["bundle", "till.db", "-"],
        vec!["retry", "till.db", "--all", "--dry-run"],
        vec!["purge", "till.db", "--older-than=1d", "--dry-run"],
    ];
    for id in ["id:1", "id:2", "id:3", "id:4"] {
        commands.push(vec!["show", "till.db", id]);
        commands.push(vec!["why", "till.db", id]);
    }
    for command in commands {
        for json in [&[][..], &["--json"]] {
            let ran = desk.run(command.iter().chain(json));
            // 4: it says that a person is needed.
            assert!(matches!(ran.code, 0 | 4), "{command:?} {ran:?}");
            assert!(!ran.out.is_empty(), "{command:?} {ran:?}");
            let moves = |it: char| it.is_control() && it != '\n';
            assert!(!ran.out.contains(moves), "{command:?} {ran:?}");
        }
    }
    let ran = desk.run(["curl", "till.db", "id:3", "--config", "outbox.toml"]);
    ran.failed(1, "headers");
    desk.done([
        "edit",
        "till.db",
        "id:3",
        "--no-headers",
        "--content-type=text/plain",
    ]);
}

#[test]
fn a_credential_in_a_row_is_not_shown() {
    let desk = Desk::new();
    desk.sql()
        .execute(
            "INSERT INTO outbox (channel, dedupe_key, payload, headers)
             VALUES ('sales', 'S-1', '{}', '{\"Authorization\":\"Bearer PRIVATE\",\"X-Store\":\"17\"}')",
            [],
        )
        .unwrap();
    let text = desk.done(["show", "till.db", "S-1"]);
    assert!(!text.contains("PRIVATE") && text.contains("17"), "{text}");
    for args in [
        &["list", "till.db"][..],
        &["why", "till.db"],
        &["bundle", "till.db", "-"],
    ] {
        let ran = desk.run(args);
        assert!(!ran.out.contains("PRIVATE"), "{ran:?}");
    }
}
