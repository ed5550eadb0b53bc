//! Rows on a screen of any size. Colours are those of the terminal, so that they can be read on
//! light and on dark; where there are none, bold and reverse are left.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::model::{Model, time};
use super::rows::{self, bars};
use super::sheet::{Block, Cell, List, Sheet, Theme, line, wrapped};
use crate::commands::status;
use crate::output::{Tone, age, count, cut, cut_left, printable};

/// From here on, reasons stand beside the channels and not below them.
const WIDE: usize = 150;

/// A course of time in fewer places says nothing.
const LEAST_DEPTH: usize = 8;

/// From here on, failed messages have all their columns.
const ROOMY: usize = 110;

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
    if model.help {
        keys(&mut sheet, room);
    } else if model.look.is_some() {
        body(&mut sheet, model, room);
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
            None => sheet.text(Tone::Plain, "reading …"),
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
        Span::styled(time, sheet.theme.style(Tone::Plain)),
    ]));
    match trouble(model) {
        Some(trouble) => sheet.text(Tone::Bad, &trouble),
        None => {
            let mut text = status::waiting(&look.stats);
            if model.others > 0 {
                let others = count(model.others as u64, "calmer channel", "calmer channels");
                text.push_str(&format!("; {others} not listed"));
            }
            sheet.text(Tone::Plain, &text);
        }
    }
    if let Some(text) = status::for_a_person(&look.stats) {
        // Conflicts are decided beside the view.
        let beside = format!("{text}: `outbox conflicts {}`", model.path);
        let short = text.split(" need").next().unwrap_or_default();
        let fits = |it: &&str| it.width() <= sheet.width;
        let told = [&*beside, &*text];
        let told = told
            .into_iter()
            .skip(usize::from(look.stats.conflicts == 0));
        sheet.text(Tone::Bad, told.clone().find(fits).unwrap_or(short));
    }
    // Whole where there is room: what is cut cannot be read anywhere in the view.
    let shown = look.findings.len().clamp(1, 3);
    for text in look.findings.iter().take(shown) {
        for line in wrapped(&printable(text), sheet.width, (room / 4 / shown).max(1)) {
            sheet.text(Tone::Bad, &line);
        }
    }
    if room > 13 {
        sheet.text(Tone::Plain, &rows::progress(model));
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

/// The depth of all channels together, in rows that the lists do not need.
fn chart(sheet: &mut Sheet, model: &Model, lists: usize, room: usize) {
    let rows = match room.saturating_sub(sheet.lines.len() + 2 + lists) {
        ..2 => return,
        rows => rows.min(if room < 32 { 3 } else { 6 }),
    };
    let most = model.total.depths().rev().take(sheet.width).max();
    let Some(most) = most.filter(|it| *it > 0) else {
        return;
    };
    let text = match model.total.span(sheet.width) {
        Duration::ZERO => "UNSENT OVER TIME".into(),
        span => {
            let span = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
            format!("UNSENT over the last {}, {most} at most", age(span))
        }
    };
    sheet.lines.push(Line::default());
    sheet.text(Tone::Head, &text);
    for row in bars(model.total.depths(), sheet.width, rows) {
        sheet.lines.push(Line::from(row));
    }
}

/// The chart, the channels and the failures share what is left. The lists come first; reasons below
/// the channels give way to channels, all but that of the chosen one.
fn body(sheet: &mut Sheet, model: &Model, room: usize) {
    let gap = usize::from(room > 13);
    let detail = match (rows::detail(model), room > 15) {
        (Some(text), true) => wrapped(&text, sheet.width, 2),
        _ => Vec::new(),
    };
    let wanted = |list: &List| list.blocks.iter().map(|it| it.lines.len()).sum::<usize>();
    let failures = failures(sheet, model);
    let titles = gap * 2 + 2;
    let some = wanted(&failures).clamp(1, 4);
    let left = |sheet: &Sheet| room.saturating_sub(sheet.lines.len() + titles + detail.len());
    let mut channels = channels(sheet, model);
    if wanted(&channels) + some > left(sheet) {
        channels.blocks.iter_mut().for_each(Block::shorten);
    }
    let lists = titles + detail.len() + wanted(&channels) + some;
    chart(sheet, model, lists, room);
    let left = left(sheet);
    let lower = wanted(&failures).min(left / 3).max(1);
    let upper = wanted(&channels).max(1).min(left.saturating_sub(lower));
    let lower = left.saturating_sub(upper);
    for (list, room) in [(channels, upper), (failures, lower)] {
        if gap > 0 {
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
    let narrow = width < 60;
    let names = || channels.iter().map(|it| it.name.as_str());
    // A column only where there are some: the places are few.
    let expired = channels.iter().any(|it| it.expired > 0);
    let late = if expired { 7 + 2 } else { 0 };
    // All but the name and the depths, with the gaps.
    let others = |state, oldest, rate| state + 6 + 7 + oldest + 4 + late + rate + 7 * 2 + 2;
    // Columns that follow what stands in them would jump: only where there is no room else.
    let tight = !narrow && fit(names(), 7, 24) + others(12, 10, 7) + LEAST_DEPTH > width;
    let widest = |of: fn(&rows::Channel) -> &str, least, most| match tight {
        true => fit(channels.iter().map(of), least, most),
        false => most,
    };
    let state = match narrow && expired {
        true => fit(channels.iter().map(|it| it.state), 5, 12),
        false => widest(|it| it.state, 5, 12),
    };
    let oldest = widest(|it| &it.oldest, 6, 10);
    let rate = widest(|it| &it.rate, 4, 7);
    let others = others(state, oldest, rate);
    let most = match width {
        // Names have what the reasons beside them leave.
        WIDE.. => {
            let reasons = channels.iter().map(|it| it.why.width()).max();
            let taken = others + 16 + 4 + reasons.unwrap_or(0);
            width.saturating_sub(taken).clamp(24, 48)
        }
        // Then a long name gives way to the course of time, where that gets its place.
        60.. => match width.saturating_sub(others) {
            room if room < 10 + LEAST_DEPTH => room.clamp(10, 24),
            room => (room - LEAST_DEPTH).clamp(10, (room / 2).max(24)),
        },
        // Without the age, where the expired take its place.
        _ if expired => width.saturating_sub(state + 6 + 4 + late + 8 + 2).max(7),
        _ => width.saturating_sub(40).max(7),
    };
    let name = fit(names(), 7, most);
    let depth = match width {
        WIDE.. => 16,
        _ => width.saturating_sub(name + others),
    };
    let cells = |texts: [String; 10], tone: Tone, dead: Tone| {
        let [
            title,
            word,
            unsent,
            sending,
            since,
            graves,
            missed,
            pace,
            bars,
            why,
        ] = texts;
        let mut cells: Vec<Cell> = vec![
            (title, Tone::Plain, name, false),
            (word, tone, state, false),
            (unsent, Tone::Plain, 6, true),
        ];
        if !narrow {
            cells.push((sending, Tone::Plain, 7, true));
        }
        match narrow {
            false => cells.push((since, Tone::Plain, oldest, true)),
            true if width >= 47 && !expired => cells.push((since, Tone::Plain, 8, true)),
            true => {}
        }
        cells.push((graves, dead, 4, true));
        if expired {
            cells.push((missed, Tone::Plain, 7, true));
        }
        if !narrow {
            cells.push((pace, Tone::Plain, rate, true));
        }
        if !narrow && depth >= LEAST_DEPTH {
            cells.push((bars, Tone::Plain, depth, false));
        }
        if width >= WIDE {
            cells.push((why, Tone::Plain, width, false));
        }
        cells
    };
    let titles = [
        "CHANNEL", "STATE", "UNSENT", "SENDING", "OLDEST", "DEAD", "EXPIRED", "RATE", "DEPTH",
        "WHY",
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
            it.expired.to_string(),
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
    let texts = |of: fn(&rows::Failure) -> &str| failures.iter().map(of);
    let ago = fit(texts(|it| &it.ago), 3, 10);
    let channel = fit(
        texts(|it| &it.channel),
        7,
        if width < ROOMY { 12 } else { 24 },
    );
    let key = match width {
        ROOMY.. => 36,
        70.. => 24,
        _ => (width / 3).max(11),
    };
    let key = fit(texts(|it| &it.key), 7, key);
    let due = fit(texts(|it| &it.next), 8, if width < 70 { 8 } else { 14 });
    let cells = |texts: [String; 7], tone: Tone| {
        let [when, from, id, name, charged, next, why] = texts;
        let mut cells: Vec<Cell> = Vec::new();
        if width >= 60 {
            cells.push((when, Tone::Plain, ago, true));
        }
        if width >= 70 {
            cells.push((from, Tone::Plain, channel, false));
        }
        if width >= ROOMY {
            cells.push((id, Tone::Plain, 8, true));
        }
        cells.push((name, Tone::Plain, key, false));
        if width >= ROOMY {
            cells.push((charged, Tone::Plain, 7, true));
        }
        cells.push((next, tone, due, false));
        cells.push((why, Tone::Plain, width, false));
        cells
    };
    let titles = ["AGO", "CHANNEL", "ID", "KEY", "CHARGED", "NEXT", "WHY"];
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
                [
                    it.ago,
                    it.channel,
                    it.id,
                    cut_left(&it.key, key),
                    it.charged,
                    it.next,
                    it.why,
                ],
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

/// What the keys do.
fn keys(sheet: &mut Sheet, room: usize) {
    if room > 12 {
        sheet.lines.push(Line::default());
    }
    for (key, text) in [
        ("arrows", "choose; so do j and k"),
        ("Tab", "go to the other list"),
        ("p", "pause the channel"),
        ("r", "resume it, whatever stopped it"),
        ("R", "send its dead letters again,"),
        ("", "or only the chosen one"),
        ("c", "cancel the chosen message"),
        ("q", "quit"),
    ] {
        let key = Span::styled(format!("{key:>8}  "), sheet.theme.style(Tone::Head));
        sheet.lines.push(Line::from(vec![key, Span::raw(text)]));
    }
    sheet.text(Tone::Plain, "          What changes something asks first.");
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
        sheet.text(
            Tone::Plain,
            match sheet.width {
                62.. => "p pause  r resume  R retry  c cancel  Tab list  ? keys  q quit",
                52.. => "p pause  r resume  R retry  c cancel  ? keys  q quit",
                42.. => "p pause  r resume  R retry  ? keys  q quit",
                _ => "? keys  q quit",
            },
        );
    }
}
