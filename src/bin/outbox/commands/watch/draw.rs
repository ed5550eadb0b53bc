//! Rows on a screen of any size. Colours are those of the terminal, so that they can be read on
//! light and on dark; where there are none, bold and reverse are left.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use sqlite_outbox::{ChannelState, ChannelStats};
use unicode_width::UnicodeWidthStr;

use super::model::{Model, time};
use super::rows::{self, bars};
use super::sheet::{Block, Cell, List, Sheet, Theme, cut_left, line, wrapped};
use crate::output::{Tone, age, cut, scrub};

/// From here on, reasons stand beside the channels and not below them.
const WIDE: usize = 120;

pub(super) fn all(frame: &mut Frame<'_>, model: &Model, theme: Theme) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    if width == 0 || height == 0 {
        return;
    }
    let mut sheet = Sheet {
        theme,
        width,
        lines: Vec::new(),
    };
    let room = height - 1;
    head(&mut sheet, model, room);
    if model.look.is_some() {
        chart(&mut sheet, model, room);
        lists(&mut sheet, model, room);
    }
    sheet.lines.truncate(room);
    sheet.lines.resize(room, Line::default());
    foot(&mut sheet, model);
    for (line, y) in sheet.lines.iter().zip(area.top()..area.bottom()) {
        frame.render_widget(line, Rect::new(area.x, y, area.width, 1));
    }
}

fn head(sheet: &mut Sheet, model: &Model, room: usize) {
    let Some(look) = &model.look else {
        sheet.text(Tone::Head, &model.path);
        match trouble(model) {
            Some(trouble) => sheet.text(Tone::Bad, &trouble),
            None => sheet.text(Tone::Dim, "reading …"),
        }
        return;
    };
    let time = time(look.stats.now);
    let space = sheet.width.saturating_sub(time.width() + 2);
    let path = cut_left(&model.path, space);
    let fill = " ".repeat(sheet.width.saturating_sub(path.width() + time.width()));
    sheet.lines.push(Line::from(vec![
        Span::styled(path, sheet.theme.style(Tone::Head)),
        Span::raw(fill),
        Span::styled(time, sheet.theme.style(Tone::Dim)),
    ]));
    match trouble(model) {
        Some(trouble) => sheet.text(Tone::Bad, &trouble),
        None => sheet.text(Tone::Plain, &scrub(&look.stats.to_string())),
    }
    if room > 6 {
        sheet.text(Tone::Plain, &rows::progress(model));
    }
    if room > 9 {
        sheet.text(Tone::Plain, &rows::sending(model));
    }
}

/// Why what is shown is not of this moment.
fn trouble(model: &Model) -> Option<String> {
    let waiting = model
        .waiting
        .map(|it| format!("the file does not answer since {it} s"));
    waiting.or_else(|| model.trouble.clone())
}

/// The depth of all channels together.
fn chart(sheet: &mut Sheet, model: &Model, room: usize) {
    let troubled = |it: &&ChannelStats| it.state != ChannelState::Ok;
    let channels = model.channels();
    let lines = channels.len() + channels.iter().filter(troubled).count();
    let rows = match room {
        // The channels themselves are more important.
        _ if room < 12 + lines.min(8) => return,
        ..17 => return,
        17..23 => 2,
        23..32 => 3,
        _ => 6,
    };
    let span = model.total.span(sheet.width);
    let seen = model.total.depths().rev().take(sheet.width).max();
    let text = match span {
        Duration::ZERO => "UNSENT OVER TIME".into(),
        span => {
            let span = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
            let most = seen.unwrap_or_default();
            format!("UNSENT over the last {}, {most} at most", age(span))
        }
    };
    sheet.lines.push(Line::default());
    sheet.text(Tone::Head, &text);
    for row in bars(model.total.depths(), sheet.width, rows) {
        let span = Span::styled(row, sheet.theme.bars());
        sheet.lines.push(Line::from(span));
    }
}

/// Channels and failures share what is left: a third of it is kept for the failures.
fn lists(sheet: &mut Sheet, model: &Model, room: usize) {
    let spaced = room > 13;
    let detail = match (rows::detail(model), room > 15) {
        (Some(text), true) => wrapped(&text, sheet.width, 2),
        _ => Vec::new(),
    };
    let space = usize::from(spaced) * 2 + 2;
    let left = room.saturating_sub(sheet.lines.len() + space + detail.len());
    let (channels, failures) = (channels(sheet, model), failures(sheet, model));
    let wanted = |blocks: &[Block]| blocks.iter().map(|it| it.lines.len()).sum::<usize>();
    let lower = wanted(&failures.blocks).min(left / 3).max(1);
    let upper = wanted(&channels.blocks).min(left.saturating_sub(lower));
    let lower = left.saturating_sub(upper);
    for (list, room) in [(channels, upper), (failures, lower)] {
        if spaced {
            sheet.lines.push(Line::default());
        }
        list.print(sheet, room);
    }
    for line in detail {
        sheet.text(Tone::Plain, &line);
    }
}

/// The widest text of a column within bounds.
fn fit<'a>(texts: impl Iterator<Item = &'a str>, least: usize, most: usize) -> usize {
    texts
        .map(UnicodeWidthStr::width)
        .max()
        .unwrap_or(0)
        .clamp(least, most)
}

fn channels(sheet: &Sheet, model: &Model) -> List {
    let (theme, width) = (sheet.theme, sheet.width);
    let channels = rows::channels(model);
    let most = match width {
        WIDE.. => 24,
        60.. => 12,
        _ => width.saturating_sub(40).max(7),
    };
    let name = fit(channels.iter().map(|it| it.name.as_str()), 7, most);
    let narrow = width < 60;
    // What all but the depths take, with the gaps.
    let taken = name + 12 + 6 + 7 + 10 + 4 + 7 + 7 * 2 + 2;
    let depth = match width {
        WIDE.. => 16,
        _ => width.saturating_sub(taken),
    };
    let cells = |texts: [String; 9], state: Tone, dead: Tone| {
        let [
            title,
            word,
            unsent,
            sending,
            oldest,
            graves,
            rate,
            bars,
            why,
        ] = texts;
        let mut cells: Vec<Cell> = vec![
            (title, Tone::Plain, name, false),
            (word, state, 12, false),
            (unsent, Tone::Plain, 6, true),
        ];
        if !narrow {
            cells.push((sending, Tone::Plain, 7, true));
        }
        match narrow {
            false => cells.push((oldest, Tone::Plain, 10, true)),
            true if width >= 47 => cells.push((oldest, Tone::Plain, 8, true)),
            true => {}
        }
        cells.push((graves, dead, 4, true));
        if !narrow {
            cells.push((rate, Tone::Plain, 7, true));
        }
        if !narrow && depth >= 4 {
            cells.push((bars, Tone::Plain, depth, false));
        }
        if width >= WIDE {
            cells.push((why, Tone::Plain, width, false));
        }
        cells
    };
    let titles = [
        "CHANNEL", "STATE", "UNSENT", "SENDING", "OLDEST", "DEAD", "RATE", "DEPTH", "WHY",
    ];
    let title = line(
        theme,
        false,
        width,
        cells(titles.map(String::from), Tone::Plain, Tone::Plain),
    );
    let block = |it: &rows::Channel| {
        let depths = bars(it.depths.iter().copied(), depth, 1);
        let dead = if it.dead > 0 { Tone::Bad } else { Tone::Plain };
        let texts = [
            it.name.clone(),
            it.state.into(),
            it.unsent.to_string(),
            it.sending.to_string(),
            it.oldest.clone(),
            it.dead.to_string(),
            it.rate.clone(),
            depths.concat(),
            it.why.clone(),
        ];
        let mut lines = vec![line(theme, it.chosen, width, cells(texts, it.tone, dead))];
        if !it.why.is_empty() && width < WIDE {
            let text = cut(&format!("    {}", it.why), width);
            lines.push(Line::from(text));
        }
        Block {
            chosen: it.chosen,
            lines,
        }
    };
    List {
        title: title.to_string().trim_end().into(),
        blocks: channels.iter().map(block).collect(),
        empty: "  no message yet",
    }
}

fn failures(sheet: &Sheet, model: &Model) -> List {
    let (theme, width) = (sheet.theme, sheet.width);
    let failures = rows::failures(model);
    let channel = fit(failures.iter().map(|it| it.channel.as_str()), 7, 14);
    let key = fit(
        failures.iter().map(|it| it.key.as_str()),
        7,
        match width {
            WIDE.. => 36,
            70.. => 16,
            _ => 11,
        },
    );
    let cells = |texts: [String; 7], tone: Tone| {
        let [ago, from, id, name, tries, next, why] = texts;
        let mut cells: Vec<Cell> = vec![(ago, Tone::Plain, 10, true)];
        if width >= 70 {
            cells.push((from, Tone::Plain, channel, false));
        }
        if width >= WIDE {
            cells.push((id, Tone::Plain, 8, true));
        }
        cells.push((name, Tone::Plain, key, false));
        if width >= WIDE {
            cells.push((tries, Tone::Plain, 5, true));
        }
        cells.push((next, tone, 8, false));
        cells.push((why, Tone::Plain, width, false));
        cells
    };
    let titles = ["FAILED AGO", "CHANNEL", "ID", "KEY", "TRIES", "NEXT", "WHY"];
    let title = line(
        theme,
        false,
        width,
        cells(titles.map(String::from), Tone::Plain),
    );
    let block = |it: rows::Failure| Block {
        chosen: it.chosen,
        lines: vec![line(
            theme,
            it.chosen,
            width,
            cells(
                [it.ago, it.channel, it.id, it.key, it.tries, it.next, it.why],
                it.tone,
            ),
        )],
    };
    List {
        title: title.to_string().trim_end().into(),
        blocks: failures.into_iter().map(block).collect(),
        empty: "  nothing failed that is still here",
    }
}

/// A question, the outcome of an action, or the keys.
fn foot(sheet: &mut Sheet, model: &Model) {
    if let Some((_, question)) = &model.asking {
        let keys = "  y/n";
        let text = cut(question, sheet.width.saturating_sub(keys.width()).max(1));
        let style = sheet
            .theme
            .style(Tone::Head)
            .add_modifier(Modifier::REVERSED);
        let line = Line::from(Span::styled(format!("{text}{keys}"), style));
        sheet.lines.push(line);
    } else if model.working {
        sheet.text(Tone::Head, "working …");
    } else if let Some((tone, note)) = &model.note {
        sheet.text(*tone, note);
    } else {
        let keys = match sheet.width {
            76.. => "arrows choose  Tab list  p pause  r resume  R retry dead  c cancel  q quit",
            _ => "p pause r resume R retry dead c cancel q quit",
        };
        sheet.text(Tone::Dim, keys);
    }
}
