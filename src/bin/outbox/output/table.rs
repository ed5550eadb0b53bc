//! Tables that fit the terminal.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{Out, Tone, scrub};

/// The side on which a column is filled up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

/// One column and how it gives way when there is no room.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    title: &'static str,
    align: Align,
    /// May be cut down to this many places; `None` never.
    least: Option<usize>,
}

impl Column {
    pub(crate) fn number(title: &'static str) -> Self {
        Self {
            title,
            align: Align::Right,
            least: None,
        }
    }

    pub(crate) fn word(title: &'static str) -> Self {
        Self {
            title,
            align: Align::Left,
            least: None,
        }
    }

    /// Free text, cut where it does not fit.
    pub(crate) fn text(title: &'static str, least: usize) -> Self {
        Self {
            title,
            align: Align::Left,
            least: Some(least),
        }
    }
}

const GAP: &str = "  ";

/// Rows under titles. Cells are scrubbed here.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<(String, Tone)>>,
    widths: Option<Vec<usize>>,
}

impl Table {
    pub(crate) fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self {
            columns: columns.into(),
            rows: Vec::new(),
            widths: None,
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = (String, Tone)>) {
        let clean = |(text, tone): (String, Tone)| (scrub(&text).into_owned(), tone);
        self.rows.push(cells.into_iter().map(clean).collect());
    }

    /// Prints what was added since the last time. The titles and widths come from the first rows,
    /// so a long list can be printed piece by piece.
    pub(crate) fn print(&mut self, out: &mut Out) -> anyhow::Result<()> {
        let first = self.widths.is_none();
        let widths = match self.widths.take() {
            Some(widths) => widths,
            None => self.measure(out.width()),
        };
        if first {
            let titles = self.columns.iter().map(|it| (it.title.into(), Tone::Head));
            let titles: Vec<_> = titles.collect();
            out.line(self.render(out, &titles, &widths))?;
        }
        for row in &self.rows {
            out.line(self.render(out, row, &widths))?;
        }
        self.rows.clear();
        self.widths = Some(widths);
        Ok(())
    }

    fn render(&self, out: &Out, cells: &[(String, Tone)], widths: &[usize]) -> String {
        let mut line = String::new();
        let last = widths.len().saturating_sub(1);
        let parts = self.columns.iter().zip(widths).zip(cells).enumerate();
        for (index, ((column, width), (text, tone))) in parts {
            let text = match column.least {
                Some(_) => cut(text, *width),
                None => text.clone(),
            };
            let fill = " ".repeat(width.saturating_sub(text.width()));
            let text = out.paint(*tone, &text);
            match column.align {
                Align::Right => line.extend([fill, text]),
                Align::Left if index == last => line.push_str(&text),
                Align::Left => line.extend([text, fill]),
            }
            if index < last {
                line.push_str(GAP);
            }
        }
        line.truncate(line.trim_end().len());
        line
    }

    /// Natural widths; where they do not fit, the texts give way from the left: the last one is the
    /// most telling.
    fn measure(&self, room: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|it| it.title.width()).collect();
        for row in &self.rows {
            for (width, (text, _)) in widths.iter_mut().zip(row) {
                *width = (*width).max(text.width());
            }
        }
        let gaps = GAP.len() * widths.len().saturating_sub(1);
        loop {
            let excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(room);
            if excess == 0 {
                return widths;
            }
            let mut soft = widths.iter_mut().zip(&self.columns);
            match soft.find(|(width, it)| it.least.is_some_and(|least| least < **width)) {
                Some((width, _)) => *width -= 1,
                None => return widths,
            }
        }
    }
}

/// The text in at most so many places, with `…` where it was cut.
pub(crate) fn cut(text: &str, room: usize) -> String {
    if text.width() <= room {
        return text.into();
    }
    let mut short = String::new();
    let mut used = 1;
    for it in text.chars() {
        used += it.width().unwrap_or(0);
        if used > room {
            break;
        }
        short.push(it);
    }
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_by_places_not_by_bytes() {
        assert_eq!(cut("short", 10), "short");
        assert_eq!(cut("rather long", 7), "rather…");
        assert_eq!(cut("日本語の文", 5), "日本…");
    }

    #[test]
    fn texts_give_way_from_the_left_and_numbers_do_not() {
        let mut table = Table::new([
            Column::number("ID"),
            Column::text("KEY", 4),
            Column::text("WHY", 4),
        ]);
        let cell = |text: &str| (text.to_string(), Tone::Plain);
        table.row([cell("1234567"), cell("S-1045"), cell(&"x".repeat(200))]);
        assert_eq!(table.measure(40), [7, 4, 25]);
        assert_eq!(table.measure(10), [7, 4, 4]);
        assert_eq!(table.measure(400), [7, 6, 200]);
    }
}
