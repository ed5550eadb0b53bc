//! The live view, where there is no terminal to draw it on.

use super::Desk;

#[test]
fn without_a_terminal_there_is_one_clear_error() {
    let desk = Desk::new();
    let ran = desk.run(["watch", "till.db"]);
    ran.failed(1, "needs a terminal");
    assert!(ran.err.contains("`outbox status`"), "{ran:?}");
    desk.run(["watch", "till.db", "--config", "outbox.toml"])
        .failed(1, "needs a terminal");
}

#[test]
fn a_missing_path_is_an_error_and_stays_missing() {
    let desk = Desk::empty();
    desk.run(["watch", "till.db"]).failed(1, "there is no file");
    assert!(!desk.path("till.db").exists());
    desk.write(
        "notes.txt",
        "no database at all, but long enough to look like something",
    );
    desk.run(["watch", "notes.txt"])
        .failed(1, "is not a SQLite database");
}

#[test]
fn a_span_that_makes_no_sense_is_refused() {
    let desk = Desk::new();
    for wrong in ["10ms", "1", "often"] {
        let ran = desk.run(["watch", "till.db", "--every", wrong]);
        assert_eq!(ran.code, 2, "{ran:?}");
    }
}

#[cfg(unix)]
mod on_a_terminal {
    use std::io::Write;

    use super::super::terminal::{Terminal, end};
    use super::Desk;

    #[test]
    fn a_view_ends_with_its_terminal_though_no_signal_tells_of_it() {
        let desk = Desk::new();
        // So long that only the end of the terminal can be what is noticed, and no reading.
        let mut terminal = Terminal::new(80, 24);
        let view = terminal.start(desk.command(["watch", "till.db", "--every", "1h"]));
        terminal.shows("till.db");
        drop(terminal);
        assert_eq!(end(view).code(), Some(0));
    }

    #[test]
    fn a_key_ends_it_too_and_gives_the_terminal_back() {
        let desk = Desk::new();
        let mut terminal = Terminal::new(80, 24);
        let view = terminal.start(desk.command(["watch", "till.db"]));
        terminal.shows("till.db");
        terminal.hand.write_all(b"q").unwrap();
        // The screen that was there before.
        terminal.shows("\x1b[?1049l");
        assert_eq!(end(view).code(), Some(0));
    }
}
