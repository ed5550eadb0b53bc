//! The view on screens of three sizes, and what keys do to it.

mod columns;

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::{Color, Modifier};
use sqlite_outbox::{ChannelState, ChannelStats, Counts};

use super::model::{Action, Chosen, Effect, Letter, Look, Model};
use super::rows;
use super::sheet::{Theme, wrapped};
use super::{draw, every};

const NOW: i64 = 1_795_961_107_250;

fn channel(name: &str, state: ChannelState, unsent: u64, sent: u64) -> ChannelStats {
    let mut counts = Counts::default();
    counts.pending = unsent;
    counts.sent = sent;
    counts.oldest_unsent_at = Some(NOW - 840_000).filter(|_| unsent > 0);
    let mut channel = ChannelStats::default();
    channel.channel = name.into();
    channel.state = state;
    channel.counts = counts;
    channel
}

fn letter(id: i64, channel: &str, dead: bool) -> Letter {
    Letter {
        id,
        channel: channel.into(),
        key: format!("S-{id}"),
        dead,
        attempts: 3,
        at: NOW - 120_000,
        due: NOW + 12_000,
        error: "customer 4711 is unknown; HTTP 422 Unprocessable Entity".into(),
    }
}

/// A till with trouble: `sales` flows, `mail` is offline, `returns` has a dead letter.
fn look(sent: u64) -> Look {
    let mut mail = channel("mail", ChannelState::Offline, 2, 0);
    mail.reason = Some("mail.example refuses the connection".into());
    mail.since = Some(NOW - 1_200_000);
    mail.until = Some(NOW + 12_000);
    let mut returns = channel("returns", ChannelState::Ok, 0, 5);
    returns.counts.dead = 1;
    let mut sales = channel("sales", ChannelState::Ok, 40 - sent, sent);
    sales.counts.pending -= 2;
    sales.counts.sending = 2;
    let mut look = Look::default();
    for it in [mail, returns, sales] {
        look.stats.total.pending += it.counts.pending;
        look.stats.total.sending += it.counts.sending;
        look.stats.total.sent += it.counts.sent;
        look.stats.total.dead += it.counts.dead;
        look.stats.channels.push(it);
    }
    look.stats.now = NOW;
    look.sending = vec![letter(7, "sales", false), letter(8, "sales", false)];
    look.failed = vec![letter(77, "returns", true), letter(78, "mail", false)];
    look
}

fn model() -> Model {
    let mut model = Model::new("/home/shop/data/till.db");
    for second in 0..20 {
        model.seen(look(second), Duration::from_secs(second));
    }
    model
}

fn screen(model: &Model, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let theme = Theme { colour: true };
    terminal
        .draw(|frame| draw::all(frame, model, theme))
        .unwrap();
    let cells = terminal.backend().buffer().content();
    let lines = cells.chunks(usize::from(width));
    lines
        .map(|line| line.iter().map(|it| it.symbol()).collect())
        .collect()
}

#[test]
fn eighty_columns_show_everything() {
    let lines = screen(&model(), 80, 24);
    let text = lines.join("\n");
    for part in [
        "/home/shop/data/till.db",
        "14:05:07Z",
        "23 messages waiting",
        "1 dead letter needs a person",
        "19 sent here in 19 s, 1.0/s",
        "2 in flight: S-7 (sales), S-8 (sales)",
        "UNSENT over the last 19 s, 42 at most",
        "> returns  ok                 0        0           -     1        -",
        "    1 dead letter: customer 4711 is unknown; HTTP 422 Unprocessable Entity",
        "  mail     offline            2        0      14 min     0        -",
        "    mail.example refuses the connection; for 20 min, next probe in 12 s",
        "  sales    ok                21        2      14 min     0    1.0/s",
        "  2 min  returns  S-77     dead      customer 4711 is unknown; HTTP 422",
        "  2 min  mail     S-78     in 12 s   customer",
        "? keys  q quit",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(lines.iter().any(|it| it.ends_with('█')), "{text}");
    assert!(lines[23].starts_with("p pause"), "{text}");
}

#[test]
fn a_narrow_screen_keeps_what_counts() {
    let lines = screen(&model(), 50, 20);
    let text = lines.join("\n");
    for part in [
        "1 dead letter needs a person",
        "> returns  ok                 0         -     1",
        "  mail     offline            2    14 min     0",
        "    mail.example refuses the connection",
        "  S-77     dead      customer",
        "? keys  q",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_wide_screen_puts_reasons_beside_the_channels() {
    let lines = screen(&model(), 160, 40);
    let mail = lines.iter().find(|it| it.contains("offline  ")).unwrap();
    assert!(mail.contains("mail.example refuses the connection; for 20 min, next probe in 12 s"));
    let dead = lines.iter().find(|it| it.contains("S-77 ")).unwrap();
    assert!(dead.contains("     77  S-77"), "{dead}");
    assert!(dead.contains("HTTP 422 Unprocessable Entity"), "{dead}");
}

#[test]
fn reasons_give_way_to_channels_and_the_chart_to_both() {
    let mut look = look(0);
    for number in 0..6 {
        let mut more = channel(&format!("shop-{number}"), ChannelState::Offline, 1, 0);
        more.reason = Some("shop.example refuses the connection".into());
        look.stats.channels.push(more);
    }
    let mut model = Model::new("till.db");
    model.seen(look, Duration::ZERO);
    let text = screen(&model, 80, 24).join("\n");
    assert!(!text.contains("UNSENT over"), "{text}");
    for part in [
        "> returns",
        "    1 dead letter: customer",
        "  shop-5",
        "  sales",
        "S-78",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert_eq!(text.matches("refuses").count(), 0, "{text}");
    let text = screen(&model, 80, 40).join("\n");
    assert!(text.contains("UNSENT OVER"), "{text}");
    assert_eq!(text.matches("refuses").count(), 7, "{text}");
}

#[test]
fn what_needs_a_person_is_said_at_the_top_of_the_smallest_screen() {
    let lines = screen(&model(), 40, 12);
    assert!(
        lines[2].starts_with("1 dead letter needs a person"),
        "{lines:#?}"
    );
    assert!(lines[4].starts_with("> returns"), "{lines:#?}");
    let mut look = look(0);
    look.stats.total.dead = 1_234;
    look.stats.conflicts = 17;
    let mut model = Model::new("till.db");
    model.seen(look, Duration::ZERO);
    let lines = screen(&model, 40, 12);
    assert_eq!(lines[2].trim_end(), "1,234 dead letters and 17 conflicts");
}

#[test]
fn a_question_mark_shows_the_keys_until_the_next_one() {
    let mut model = model();
    assert_eq!(model.press(KeyCode::Char('?')), Effect::Nothing);
    for (width, height) in [(40, 12), (80, 24), (200, 60)] {
        let text = screen(&model, width, height).join("\n");
        assert!(text.contains("R  send its dead letters again"), "{text}");
    }
    assert_eq!(model.press(KeyCode::Char('p')), Effect::Nothing);
    assert!(model.asking.is_none() && !model.help);
    model.press(KeyCode::Char('?'));
    assert_eq!(model.press(KeyCode::Char('q')), Effect::Quit);
}

#[test]
fn no_size_is_too_small() {
    let mut model = model();
    model.press(KeyCode::End);
    model.press(KeyCode::Char('c'));
    for (width, height) in [
        (1, 1),
        (2, 3),
        (10, 5),
        (50, 8),
        (80, 2),
        (500, 1),
        (7, 200),
    ] {
        screen(&model, width, height);
        screen(&Model::new("till.db"), width, height);
    }
}

#[test]
fn many_channels_scroll_with_the_cursor_and_the_troubled_are_first() {
    let mut look = look(0);
    for number in 0..30 {
        let name = format!("a{number:02}");
        look.stats
            .channels
            .push(channel(&name, ChannelState::Ok, 1, 0));
    }
    let mut model = Model::new("till.db");
    model.seen(look, Duration::ZERO);
    let text = screen(&model, 80, 24).join("\n");
    assert!(text.contains("of 33\n"), "{text}");
    assert!(text.contains("> returns"), "{text}");
    for _ in 0..20 {
        model.press(KeyCode::Down);
    }
    let text = screen(&model, 80, 24).join("\n");
    assert!(text.contains("> a17"), "{text}");
    assert!(
        text.contains("S-77"),
        "the failures keep their place\n{text}"
    );
}

#[test]
fn colours_are_left_out_where_nobody_wants_them() {
    for colour in [true, false] {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let model = model();
        let theme = Theme { colour };
        terminal
            .draw(|frame| draw::all(frame, &model, theme))
            .unwrap();
        let cells = terminal.backend().buffer().content();
        assert_eq!(cells.iter().any(|it| it.fg != Color::Reset), colour);
        // Not every terminal has a dim that can be read, nor a yellow on white.
        assert!(!cells.iter().any(|it| it.modifier.contains(Modifier::DIM)));
        assert!(!cells.iter().any(|it| it.fg == Color::Yellow));
        // A background of our own would be wrong on light or on dark.
        assert!(cells.iter().all(|it| it.bg == Color::Reset));
        let bad = Modifier::BOLD;
        let offline = cells.iter().filter(|it| it.modifier.contains(bad));
        assert!(offline.count() > 0);
    }
}

#[test]
fn nothing_from_the_file_reaches_the_terminal_raw() {
    let mut look = look(0);
    let evil = "\x1b[2J\u{202e}x\r\n";
    for letter in &mut look.failed {
        letter.error = evil.into();
        letter.key = evil.into();
        letter.channel = evil.into();
    }
    for channel in &mut look.stats.channels {
        channel.reason = Some(evil.into());
        channel.paused_by = Some(evil.into());
        channel.channel.push_str(evil);
    }
    let mut model = Model::new(evil);
    model.seen(look, Duration::ZERO);
    model.press(KeyCode::End);
    for (width, height) in [(80, 24), (50, 20), (160, 40)] {
        let text = screen(&model, width, height).concat();
        assert!(!text.contains(|it: char| it.is_control() || it == '\u{202e}'));
    }
    model.press(KeyCode::Home);
    model.press(KeyCode::Char('p'));
    let question = model.asking.unwrap().1;
    assert!(!question.contains('\x1b'), "{question}");
}

#[test]
fn an_action_is_done_only_after_a_yes() {
    let mut model = model();
    model.press(KeyCode::Down);
    assert_eq!(model.press(KeyCode::Char('p')), Effect::Nothing);
    assert_eq!(model.asking.as_ref().unwrap().1, "Pause mail?");
    assert!(screen(&model, 80, 24)[23].starts_with("Pause mail?  y/n"));
    // Neither another key nor a new reading answers for the person.
    assert_eq!(model.press(KeyCode::Down), Effect::Nothing);
    model.seen(look(20), Duration::from_secs(20));
    assert!(model.asking.is_some());
    assert_eq!(model.press(KeyCode::Char('n')), Effect::Nothing);
    assert_eq!(model.asking, None);
    model.press(KeyCode::Char('p'));
    let effect = model.press(KeyCode::Char('y'));
    assert_eq!(effect, Effect::Act(Action::Pause("mail".into())));
    model.press(KeyCode::Char('p'));
    assert_eq!(model.asking, None, "one thing after the other");
    model.done(Err("another program keeps the file locked".into()));
    assert!(screen(&model, 80, 24)[23].starts_with("another program"));
}

#[test]
fn each_key_acts_on_what_is_chosen() {
    let mut model = model();
    let mut says = |keys: &[KeyCode]| {
        for key in keys {
            model.press(*key);
        }
        let question = model.asking.take().map(|it| it.1);
        question.unwrap_or_else(|| model.note.take().unwrap().1)
    };
    let (down, tab) = (KeyCode::Char('j'), KeyCode::Tab);
    let key = KeyCode::Char;
    assert_eq!(says(&[key('R')]), "Send 1 dead letter of returns again?");
    assert_eq!(says(&[key('r')]), "returns is not stopped");
    assert_eq!(says(&[down, key('r')]), "Resume mail, which is offline?");
    assert_eq!(says(&[key('R')]), "mail has no dead letters");
    assert!(says(&[key('c')]).contains("choose a message"));
    assert_eq!(says(&[tab, key('R')]), "Send #77 S-77 again?");
    assert_eq!(says(&[key('p')]), "Pause returns?");
    assert!(says(&[key('c')]).starts_with("Cancel #77 S-77"));
    assert!(says(&[down, key('R')]).contains("tried again in 12 s"));
    assert_eq!(model.press(key('q')), Effect::Quit);
}

#[test]
fn the_cursor_stays_with_its_message() {
    let mut model = model();
    model.press(KeyCode::End);
    assert_eq!(model.chosen, Some(Chosen::Letter(78)));
    let mut next = look(20);
    next.failed.insert(0, letter(99, "sales", true));
    model.seen(next, Duration::from_secs(20));
    assert_eq!(model.letter().unwrap().id, 78);
    let mut next = look(21);
    next.failed.truncate(1);
    model.seen(next, Duration::from_secs(21));
    assert_eq!(model.chosen, Some(Chosen::Letter(77)), "its neighbour");
    let text = screen(&model, 80, 24).join("\n");
    assert!(
        text.contains("#77 S-77, 3 charged attempts: customer 4711"),
        "{text}"
    );
}

#[test]
fn a_failed_reading_says_so_and_keeps_what_was_there() {
    let mut model = Model::new("till.db");
    assert!(screen(&model, 80, 24)[1].contains("reading"));
    model.unseen("there is no file till.db");
    assert!(screen(&model, 80, 24)[1].contains("there is no file till.db"));
    model.seen(look(0), Duration::ZERO);
    model.unseen("there is no file till.db");
    let lines = screen(&model, 80, 24);
    assert_eq!(
        lines[1].trim_end(),
        "there is no file till.db; below is 14:05:07Z"
    );
    assert!(lines.join("\n").contains("> returns"));
    model.waiting = Some(3);
    assert!(screen(&model, 80, 24)[1].contains("does not answer since 3 s"));
    model.seen(look(1), Duration::from_secs(9));
    assert_eq!(model.trouble, None);
}

#[test]
fn a_rate_is_what_went_out_and_a_purge_is_none() {
    let mut model = Model::new("till.db");
    for (second, sent) in [(0, 10), (1, 15), (2, 5), (3, 8)] {
        model.seen(look(sent), Duration::from_secs(second));
    }
    assert_eq!(model.total.sent(), 8);
    assert!(rows::progress(&model).starts_with("8 sent here in 3 s, 2.7/s"));
    assert!(
        !rows::progress(&model).contains("left"),
        "mail stands still"
    );
    let mut flowing = look(9);
    flowing.stats.channels.remove(0);
    model.seen(flowing, Duration::from_secs(4));
    assert!(rows::progress(&model).ends_with(", about 13 s left"));
}

#[test]
fn bars_rise_with_the_depth_and_end_at_the_right() {
    let bars = |depths: &[u64], width, rows| rows::bars(depths.iter().copied(), width, rows);
    assert_eq!(bars(&[0, 4, 8], 5, 1), ["   ▄▇"]);
    assert_eq!(bars(&[9, 0, 4, 8], 3, 2), ["  ▇", " ██"]);
    assert_eq!(
        bars(&[1, 1_000_000], 2, 1),
        ["▁▇"],
        "as long as something waits"
    );
    assert_eq!(bars(&[u64::MAX, 0], 2, 1), ["▇ "]);
    assert_eq!(bars(&[], 3, 1), ["   "]);
    assert_eq!(bars(&[1], 0, 1), [""]);
}

#[test]
fn a_reason_is_broken_between_words() {
    assert_eq!(
        wrapped("customer 4711 is unknown", 14, 2),
        ["customer 4711", "is unknown"]
    );
    assert_eq!(wrapped("aaaaaaaaaaaa", 5, 2), ["aaaaa", "aaaa…"]);
    assert_eq!(wrapped("日本語", 1, 2), ["…"]);
}

#[test]
fn a_view_is_read_ten_times_a_second_at_most() {
    assert_eq!(every("250ms"), Ok(Duration::from_millis(250)));
    assert!(every("10ms").is_err());
}
