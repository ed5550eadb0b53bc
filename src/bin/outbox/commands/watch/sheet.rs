//! Lines of a screen: styles, lists that scroll, cells that fit.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::output::{Tone, cut};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Theme {
    pub(super) colour: bool,
}

impl Theme {
    pub(super) fn style(self, tone: Tone) -> Style {
        let colour = |it: Color| match self.colour {
            true => Style::new().fg(it),
            false => Style::new(),
        };
        match tone {
            Tone::Plain => Style::new(),
            Tone::Good => colour(Color::Green),
            Tone::Bad => colour(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Wait => colour(Color::Magenta),
            Tone::Head => Style::new().add_modifier(Modifier::BOLD),
        }
    }
}

/// A part of the screen that is being filled from the top.
pub(super) struct Sheet {
    pub(super) theme: Theme,
    pub(super) width: usize,
    pub(super) lines: Vec<Line<'static>>,
}

impl Sheet {
    pub(super) fn text(&mut self, tone: Tone, text: &str) {
        let span = Span::styled(cut(text, self.width), self.theme.style(tone));
        self.lines.push(Line::from(span));
    }
}

/// Lines that stand or go together.
pub(super) struct Block {
    pub(super) chosen: bool,
    pub(super) lines: Vec<Line<'static>>,
}

impl Block {
    /// Only the first line, unless it is the chosen one.
    pub(super) fn shorten(&mut self) {
        if !self.chosen {
            self.lines.truncate(1);
        }
    }
}

pub(super) struct List {
    pub(super) title: String,
    pub(super) blocks: Vec<Block>,
    /// Said when there is none.
    pub(super) empty: &'static str,
}

impl List {
    /// As many blocks as there is room for, the chosen one among them.
    pub(super) fn print(self, sheet: &mut Sheet, room: usize) {
        let number = self.blocks.len();
        let chosen = self.blocks.iter().position(|it| it.chosen).unwrap_or(0);
        let mut start = 0;
        let height = |from: usize| {
            let shown = self.blocks.iter().take(chosen + 1).skip(from);
            shown.map(|it| it.lines.len()).sum::<usize>()
        };
        while start < chosen && height(start) > room {
            start += 1;
        }
        let mut lines = Vec::new();
        let mut end = start;
        for block in self.blocks.into_iter().skip(start) {
            let fits = lines.len() + block.lines.len() <= room;
            if !fits && end > start {
                break;
            }
            lines.extend(block.lines);
            end += 1;
        }
        lines.truncate(room);
        let shown = match end - start == number {
            true => String::new(),
            false => format!("  {}-{end} of {number}", start + 1),
        };
        // Which part it is stands above the title, or else in its place.
        match sheet.lines.last_mut().filter(|it| it.spans.is_empty()) {
            Some(above) => {
                let text = format!("{shown:>width$}", width = sheet.width);
                above.push_span(Span::styled(text, sheet.theme.style(Tone::Plain)));
                sheet.text(Tone::Head, &self.title);
            }
            None => {
                let room = sheet.width.saturating_sub(shown.width());
                sheet.text(Tone::Head, &format!("{}{shown}", cut(&self.title, room)));
            }
        }
        if number == 0 && room > 0 {
            sheet.text(Tone::Plain, self.empty);
        }
        sheet.lines.extend(lines);
    }
}

/// A cell: its text, its tone, its places, and whether it stands at the right of them.
pub(super) type Cell = (String, Tone, usize, bool);

pub(super) fn line(theme: Theme, chosen: bool, width: usize, cells: Vec<Cell>) -> Line<'static> {
    let mark = if chosen { "> " } else { "  " };
    let mut spans = vec![Span::raw(mark)];
    let mut used = mark.width();
    for (text, tone, places, right) in cells {
        let places = places.min(width.saturating_sub(used));
        let text = if places == 0 {
            String::new()
        } else {
            cut(&text, places)
        };
        let fill = " ".repeat(places.saturating_sub(text.width()));
        let style = theme.style(tone);
        let text = match right {
            true => format!("{fill}{text}"),
            false => format!("{text}{fill}"),
        };
        spans.push(Span::styled(text, style));
        spans.push(Span::raw("  "));
        used += places + 2;
    }
    let line = Line::from(spans);
    match chosen {
        true => line.style(Style::new().add_modifier(Modifier::REVERSED)),
        false => line,
    }
}

/// The text on so many lines at most, cut where that is not enough.
pub(super) fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text;
    while lines.len() + 1 < most && rest.width() > width {
        let (line, after) = rest.split_at(end(rest, width));
        if line.is_empty() {
            break;
        }
        lines.push(line.into());
        rest = after.trim_start();
    }
    lines.push(cut(rest, width));
    lines
}

/// Where the first line of a text ends: behind a word, if it has one in its second half.
fn end(text: &str, width: usize) -> usize {
    let mut used = 0;
    let too_far = |it: char| {
        used += it.width().unwrap_or(0);
        used > width
    };
    let end = text.find(too_far).unwrap_or(text.len());
    let space = text.get(..end).and_then(|it| it.rfind(' '));
    space.filter(|at| *at > end / 2).unwrap_or(end)
}
