//! Tables that fit the terminal.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{Out, Tone, printable, wrap};

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
    /// Where it is cut, its end is kept.
    ends: bool,
    /// Broken between words in place of cut; the last column only.
    prose: bool,
    /// May be left out, those with the lowest rank first; `None` never.
    spare: Option<u8>,
}

impl Column {
    pub(crate) fn number(title: &'static str) -> Self {
        Self {
            title,
            align: Align::Right,
            least: None,
            ends: false,
            prose: false,
            spare: None,
        }
    }

    pub(crate) fn word(title: &'static str) -> Self {
        Self {
            align: Align::Left,
            ..Self::number(title)
        }
    }

    /// Free text, cut where it does not fit.
    pub(crate) fn text(title: &'static str, least: usize) -> Self {
        Self {
            least: Some(least),
            ..Self::word(title)
        }
    }

    /// A name whose end tells it from others, cut where it does not fit.
    pub(crate) fn key(title: &'static str, least: usize) -> Self {
        Self {
            ends: true,
            ..Self::text(title, least)
        }
    }

    /// Sentences that are to be read whole, on further lines where they do not fit. The last column.
    pub(crate) fn prose(title: &'static str, least: usize) -> Self {
        Self {
            prose: true,
            ..Self::text(title, least)
        }
    }

    /// Left out where there is no room for all, before those of a higher rank.
    pub(crate) fn spare(self, rank: u8) -> Self {
        Self {
            spare: Some(rank),
            ..self
        }
    }
}

const GAP: &str = "  ";

/// A text that cannot be read any more in fewer places.
const FEWEST: usize = 4;

/// Rows under titles. Cells are scrubbed here. On a terminal every row is one line, but for prose;
/// where there is none, nothing is left out and nothing is cut.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<(String, Tone)>>,
    /// `None` for a column that is left out.
    widths: Option<Vec<Option<usize>>>,
    /// Titles of those that would have said something.
    unsaid: Vec<&'static str>,
}

impl Table {
    pub(crate) fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self {
            columns: columns.into(),
            rows: Vec::new(),
            widths: None,
            unsaid: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = (String, Tone)>) {
        let clean = |(text, tone): (String, Tone)| (printable(&text).into_owned(), tone);
        self.rows.push(cells.into_iter().map(clean).collect());
    }

    /// Prints what was added since the last time. The titles and widths come from the first rows,
    /// so a long list can be printed piece by piece.
    pub(crate) fn print(&mut self, out: &mut Out) -> anyhow::Result<()> {
        let first = self.widths.is_none();
        let widths = match self.widths.take() {
            Some(widths) => widths,
            None => self.measure(out.room()),
        };
        if first {
            let titles = self.columns.iter().map(|it| (it.title.into(), Tone::Head));
            let titles: Vec<_> = titles.collect();
            out.line(self.render(out, &titles, &widths))?;
            let left_out = |index: &usize| widths.get(*index).is_some_and(Option::is_none);
            let telling = (0..self.columns.len()).filter(left_out);
            let telling = telling.filter(|index| !self.is_blank(*index));
            let titles = telling.filter_map(|index| Some(self.columns.get(index)?.title));
            self.unsaid = titles.collect();
        }
        for row in &self.rows {
            for line in self.lines(out, row, &widths) {
                out.line(line)?;
            }
        }
        self.rows.clear();
        self.widths = Some(widths);
        Ok(())
    }

    /// Says which columns had no room, behind the last row.
    pub(crate) fn end(&self, out: &mut Out) -> anyhow::Result<()> {
        match &*self.unsaid {
            [] => Ok(()),
            titles => out.paragraph(
                "",
                Tone::Plain,
                &format!("(no room for {})", titles.join(", ")),
            ),
        }
    }

    /// A row, and below it what is left of its prose.
    fn lines(&self, out: &Out, cells: &[(String, Tone)], widths: &[Option<usize>]) -> Vec<String> {
        let prose = self
            .columns
            .last()
            .filter(|it| it.prose && out.room().is_some());
        let (Some(_), Some((last, before)), Some(Some(width))) =
            (prose, cells.split_last(), widths.last())
        else {
            return vec![self.render(out, cells, widths)];
        };
        let blank = || vec![(String::new(), Tone::Plain); before.len()];
        let rows = wrap(&last.0, *width).into_iter().enumerate();
        let rows = rows.map(|(number, text)| {
            let mut cells = if number == 0 {
                before.to_vec()
            } else {
                blank()
            };
            cells.push((text.to_string(), last.1));
            self.render(out, &cells, widths)
        });
        rows.collect()
    }

    fn render(&self, out: &Out, cells: &[(String, Tone)], widths: &[Option<usize>]) -> String {
        let mut line = String::new();
        let mut gap = "";
        for ((column, width), (text, tone)) in self.columns.iter().zip(widths).zip(cells) {
            let Some(width) = *width else { continue };
            let text = match (column.least, out.room()) {
                (Some(_), Some(_)) if column.ends => cut_left(text, width),
                (Some(_), Some(_)) => cut(text, width),
                _ => text.clone(),
            };
            let fill = " ".repeat(width.saturating_sub(text.width()));
            let text = out.paint(*tone, &text);
            line.push_str(gap);
            line.extend(match column.align {
                Align::Right => [fill, text],
                Align::Left => [text, fill],
            });
            gap = GAP;
        }
        line.truncate(line.trim_end().len());
        line
    }

    /// Natural widths. Where they do not fit, columns that can be spared go: those that say nothing
    /// before a text is cut, the others before one would become too short. Of the texts, the widest
    /// is cut first, and the last one is the most telling.
    fn measure(&self, room: Option<usize>) -> Vec<Option<usize>> {
        let mut widths: Vec<_> = self
            .columns
            .iter()
            .map(|it| Some(it.title.width()))
            .collect();
        for row in &self.rows {
            for (width, (text, _)) in widths.iter_mut().zip(row) {
                *width = (*width).max(Some(text.width()));
            }
        }
        let Some(room) = room else {
            return widths;
        };
        let spare = |(index, it): (usize, &Column)| it.spare.map(|rank| (rank, index));
        let mut spare: Vec<_> = self.columns.iter().enumerate().filter_map(spare).collect();
        spare.sort_unstable();
        let (blank, telling): (Vec<_>, Vec<_>) =
            spare.into_iter().partition(|it| self.is_blank(it.1));
        for (_, index) in blank {
            if total(&widths) > room {
                widths.splice(index..=index, [None]);
            }
        }
        for (_, index) in telling {
            if self.narrowest(&widths) > room {
                widths.splice(index..=index, [None]);
            }
        }
        self.cut_to(room, &mut widths);
        // What comes in later rows may be longer: the last text has all the room there is.
        let left = room.saturating_sub(total(&widths));
        if let (Some(Some(width)), Some(Some(_))) =
            (widths.last_mut(), self.columns.last().map(|it| it.least))
        {
            *width += left;
        }
        widths
    }

    /// A column of zeros.
    fn is_blank(&self, index: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.get(index));
        cells.all(|(text, _)| text == "0")
    }

    /// What a row takes when every text is as short as it may become.
    fn narrowest(&self, widths: &[Option<usize>]) -> usize {
        let short = |(width, it): (&Option<usize>, &Column)| {
            width.map(|width| it.least.map_or(width, |least| width.min(least)))
        };
        let widths: Vec<_> = widths.iter().zip(&self.columns).map(short).collect();
        total(&widths)
    }

    fn cut_to(&self, room: usize, widths: &mut [Option<usize>]) {
        // Too narrow even so: better short than broken over two lines.
        let tight = self.narrowest(widths) > room;
        while total(widths) > room {
            let soft = widths.iter_mut().zip(&self.columns);
            let soft = soft.filter_map(|(width, it)| {
                let least = if tight { FEWEST } else { it.least? };
                let width = width.as_mut().filter(|width| **width > least)?;
                it.least.map(|_| width)
            });
            match soft.rev().max_by_key(|width| **width) {
                Some(width) => *width -= 1,
                None => return,
            }
        }
    }
}

fn total(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten();
    shown.clone().sum::<usize>() + GAP.len() * shown.count().saturating_sub(1)
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

/// The same with the end kept: of a path or a key it says more than the beginning.
pub(crate) fn cut_left(text: &str, room: usize) -> String {
    if text.width() <= room {
        return text.into();
    }
    let turned: String = text.chars().rev().collect();
    cut(&turned, room).chars().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_by_places_not_by_bytes() {
        assert_eq!(cut("short", 10), "short");
        assert_eq!(cut("rather long", 7), "rather…");
        assert_eq!(cut("日本語の文", 5), "日本…");
        assert_eq!(cut_left("S-2026-0001", 6), "…-0001");
        assert_eq!(cut_left("日本語の文", 5), "…の文");
    }

    fn cell(text: &str) -> (String, Tone) {
        (text.to_string(), Tone::Plain)
    }

    #[test]
    fn the_widest_text_gives_way_and_numbers_do_not() {
        let mut table = Table::new([
            Column::number("ID"),
            Column::text("KEY", 4),
            Column::text("WHY", 4),
        ]);
        table.row([cell("1234567"), cell("S-1045"), cell(&"x".repeat(200))]);
        let measure = |room| {
            table
                .measure(room)
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
        };
        assert_eq!(measure(Some(40)), [7, 6, 23]);
        assert_eq!(measure(Some(20)), [7, 4, 5]);
        assert_eq!(measure(Some(10)), [7, 4, 4]);
        assert_eq!(measure(Some(400)), [7, 6, 383]);
        assert_eq!(measure(None), [7, 6, 200]);
    }

    #[test]
    fn what_can_be_spared_goes_before_a_text_becomes_too_short() {
        let mut table = Table::new([
            Column::text("KEY", 8),
            Column::number("TRIES").spare(0),
            Column::number("AGE").spare(1),
        ]);
        table.row([cell("日本語キー-1"), cell("12"), cell("14 min")]);
        assert_eq!(table.measure(Some(25)), [Some(10), Some(5), Some(6)]);
        assert_eq!(table.measure(Some(23)), [Some(8), Some(5), Some(6)]);
        assert_eq!(table.measure(Some(22)), [Some(12), None, Some(6)]);
        assert_eq!(table.measure(Some(12)), [Some(12), None, None]);
        assert_eq!(table.measure(Some(6)), [Some(6), None, None]);
        assert_eq!(table.measure(Some(2)), [Some(4), None, None]);
        let mut table = Table::new([Column::text("KEY", 4), Column::number("TRIES").spare(0)]);
        table.row([cell("S-104522"), cell("0")]);
        assert_eq!(table.measure(Some(14)), [Some(8), None]);
        assert_eq!(table.measure(Some(15)), [Some(8), Some(5)]);
    }
}
