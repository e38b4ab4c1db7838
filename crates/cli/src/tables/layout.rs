//! Columns, and text that is safe to print.

use lunet_iscsi::printable::printable;

/// Rows of cells; the first cell of a row is set to the left, the others to the right.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    rows: Vec<Vec<String>>,
}

impl Columns {
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Appends the rows to `out`, each indented by two spaces.
    pub(crate) fn write(&self, out: &mut String) {
        let all: Vec<usize> = (0..self.widths().len()).collect();
        for line in self.lines(&all) {
            out.push_str(&line);
            out.push('\n');
        }
    }

    /// The columns that have a place in `width` characters: the first one, and of the others, whose most
    /// important one stands first in `order`, as many as fit. A cell is never cut.
    pub(crate) fn fitting(&self, order: &[usize], width: usize) -> Vec<usize> {
        let widths = self.widths();
        let wide = |column: usize| 2 + widths.get(column).copied().unwrap_or(0);
        let mut used = wide(0);
        // A column that is less important has no place before one that is more so.
        let mut fits = |column: &usize| {
            used += wide(*column);
            used <= width
        };
        let mut kept: Vec<usize> =
            order.iter().copied().take_while(|column| fits(column)).collect();
        kept.push(0);
        kept.sort_unstable();
        kept
    }

    /// The rows with these columns alone.
    pub(crate) fn lines(&self, kept: &[usize]) -> Vec<String> {
        let widths = self.widths();
        let line = |row: &Vec<String>| {
            let mut line = String::new();
            for column in kept {
                let Some((cell, width)) = row.get(*column).zip(widths.get(*column)) else {
                    continue;
                };
                let width = *width;
                match column {
                    0 => line.push_str(&format!("  {cell:<width$}")),
                    _ => line.push_str(&format!("  {cell:>width$}")),
                }
            }
            line.truncate(line.trim_end().len());
            line
        };
        self.rows.iter().map(line).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let wide = |column: usize| {
            let width = |row: &Vec<String>| row.get(column).map_or(0, |cell| cell.chars().count());
            self.rows.iter().map(width).max().unwrap_or(0)
        };
        (0..columns).map(wide).collect()
    }
}

/// `text` without what could steer a terminal or is not seen: names come from the network.
pub(crate) fn harmless(text: &str) -> String {
    printable(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut columns = Columns::default();
        columns.row(["", "operations", "data"]);
        columns.row(["read", "1 234", "8 GiB"]);
        let mut out = String::new();
        columns.write(&mut out);
        assert_eq!(out, "        operations   data\n  read       1 234  8 GiB\n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(harmless("iqn.\u{1b}[2J\u{202e}x\n"), "iqn.?[2J?x?");
    }
}
