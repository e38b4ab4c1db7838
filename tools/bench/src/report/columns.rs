//! Plain text in columns, and in lines that a terminal does not break.

use unicode_width::UnicodeWidthStr;

use super::format::plain;

/// Between columns.
const GAP: usize = 2;
/// Longer names stand on a line of their own.
const LONG: usize = 24;
/// No terminal is taken for narrower.
const NARROWEST: usize = 40;

/// A row of a stacked table.
pub(super) struct Row<'a> {
    /// What stands above it, once for all rows that follow each other.
    pub group: &'a str,
    pub name: &'a str,
    /// Two lines for each column; the second may be empty.
    pub cells: Vec<[String; 2]>,
}

/// Rows as columns: the first `left` to the left, the others to the right.
pub(super) fn columns(rows: &[Vec<String>], left: usize) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let wide = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| length(cell)).max();
    let widths: Vec<usize> = (0..).map_while(wide).collect();
    let mut told = String::new();
    for row in &rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            line += &match at < left {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            };
            line += &" ".repeat(GAP);
        }
        told += line.trim_end();
        told.push('\n');
    }
    told
}

/// Rows that are too wide to stand beside their names: the group stands above its rows, the second line of a cell below the
/// first, and columns that do not fit any more stand in a table of their own.
pub(super) fn stacked(heads: &[&str], rows: &[Row<'_>], width: usize) -> String {
    let width = width.max(NARROWEST);
    let longest = rows.iter().map(|row| length(row.name)).max().unwrap_or(0);
    // Figures begin here, indented by two.
    let begin = if longest > LONG { 2 } else { longest + 2 };
    let wide = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.cells.get(at)).flatten();
        cells.map(|cell| length(cell)).max().unwrap_or(0).max(length(heads[at])) + GAP
    };
    let mut tables = Vec::new();
    let mut first = 0;
    while first < heads.len() {
        let (mut end, mut used) = (first, begin);
        while end < heads.len() && (end == first || used + wide(end) <= width) {
            used += wide(end);
            end += 1;
        }
        let widths: Vec<usize> = (first..end).map(wide).collect();
        tables.push(part(heads, rows, first, &widths, begin));
        first = end;
    }
    tables.join("\n")
}

/// Some columns of a stacked table, from the first on.
fn part(heads: &[&str], rows: &[Row<'_>], first: usize, widths: &[usize], begin: usize) -> String {
    let line = |start: &str, cells: &mut dyn Iterator<Item = &str>| {
        let mut line = format!("{start:<begin$}");
        for (cell, width) in cells.zip(widths) {
            line += &format!("{cell:>width$}");
        }
        format!("{}\n", line.trim_end())
    };
    let mut told = line("", &mut heads[first..].iter().copied());
    let mut above = "";
    for row in rows {
        if row.group != above {
            told += &format!("{}\n", plain(row.group));
            above = row.group;
        }
        let name = format!("  {}", plain(row.name));
        let name = match length(&name) > begin {
            true => {
                told += &format!("{name}\n");
                String::new()
            }
            false => name,
        };
        let cells = &row.cells[first..];
        told += &line(&name, &mut cells.iter().map(|cell| cell[0].as_str()));
        if cells.iter().take(widths.len()).any(|cell| !cell[1].is_empty()) {
            told += &line("", &mut cells.iter().map(|cell| cell[1].as_str()));
        }
    }
    told
}

/// A paragraph in [`lines`] of at least [`NARROWEST`] columns, each with a line feed; one line without a width.
pub fn wrapped(text: &str, width: Option<usize>, first: usize, hang: usize) -> String {
    let Some(width) = width.map(|width| width.max(NARROWEST)) else {
        return format!("{}{text}\n", " ".repeat(first));
    };
    lines(text, width, first, hang).join("\n") + "\n"
}

/// Breaks a paragraph between words into lines of at most `width` terminal columns; a longer word has a line of its own. The
/// first line is indented by `first` spaces, the others by `hang`.
pub fn lines(text: &str, width: usize, first: usize, hang: usize) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), " ".repeat(first));
    let mut empty = true;
    // One space only: columns within the text keep theirs.
    for word in text.split(' ') {
        if !empty && length(&line) + 1 + length(word) > width {
            lines.push(line.trim_end().to_owned());
            line = " ".repeat(hang);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line += word;
        empty = false;
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// Terminal columns that a text takes.
fn length(text: &str) -> usize {
    text.width()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{rounds, small};
    use super::super::{compare_table, table};
    use super::*;

    /// Whatever the width: no line is longer, and no figure is lost.
    #[test]
    fn tables_fit_their_terminal() {
        let (old, new) = (rounds(1.0), rounds(2.0));
        for width in [80, 100, 120, 200] {
            for told in [
                table(&small(), Some(width)),
                table(&old, Some(width)),
                compare_table(&old, &new, ("old.json", "new.json"), Some(width)),
            ] {
                let longest = told.lines().map(length).max().expect("there are some");
                assert!(longest <= width, "{longest} of {width}:\n{told}");
            }
            // Between two words there may be a line feed.
            let words = |text: &str| {
                let mut all: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
                all.sort();
                all.dedup();
                all
            };
            let all = words(&table(&old, Some(width)));
            // Groups stand above their rows and need no heads.
            let heads = ["workload", "target"];
            for word in
                words(&table(&old, None)).iter().filter(|word| !heads.contains(&word.as_str()))
            {
                assert!(
                    all.contains(word) || all.contains(&format!("{word}:")),
                    "{word} at {width}"
                );
            }
        }
        let wide = table(&old, None);
        assert_eq!(table(&old, Some(400)), wide);
        assert!(wide.lines().any(|line| line.chars().count() > 120));
    }

    #[test]
    fn long_names_stand_alone() {
        let mut results = small();
        let long = "iscsi://storage.example:3260/iqn.2026-11.local.lunet:demo/0";
        for name in results
            .targets
            .iter_mut()
            .map(|target| &mut target.name)
            .chain(results.runs.iter_mut().map(|run| &mut run.target))
            .filter(|name| *name == "served")
        {
            long.clone_into(name);
        }
        results.comparisons.clear();
        results.summarise();
        let told = table(&results, Some(80));
        let mut lines = told.lines().skip_while(|line| line.trim() != long);
        assert_eq!(lines.next().map(str::trim_start), Some(long));
        assert!(lines.next().is_some_and(|line| line.contains("8,100")), "{told}");
    }

    #[test]
    fn sentences_break_between_words() {
        let text = "Bound by the drive at 85 % of its ceiling; next: the network";
        assert_eq!(
            wrapped(text, Some(40), 2, 4),
            "  Bound by the drive at 85 % of its\n    ceiling; next: the network\n"
        );
        assert_eq!(wrapped(text, None, 2, 4), format!("  {text}\n"));
        let long = "x".repeat(90);
        assert_eq!(wrapped(&long, Some(40), 0, 2), format!("{long}\n"));
    }
}
