//! Tables that are never wrong by cutting: figures are shown whole or not at all, names that are
//! cut say so, and rows without a place are counted.

use lunet_bench::report::lines;
use ratatui::text::Line;

/// Between two columns.
const GAP: usize = 1;

/// To how many characters a name may shrink before a column goes.
const NAME: usize = 12;

/// What stands for what was taken out of a name.
const CUT: char = '…';

/// A table's columns. The first one has the rows' names.
pub(super) struct Columns<'a> {
    pub heads: &'a [&'a str],
    /// How wide a column is at least, in terminal cells, so that it does not jump with its figures.
    pub least: &'a [usize],
    /// The columns but the first, the most important one first: the last one goes first.
    pub order: &'a [usize],
}

/// A table as lines, set for the width and the height of a place.
pub(super) struct Fitted {
    /// The head; empty if there is no place for it.
    pub head: String,
    pub rows: Vec<String>,
}

/// The columns that have a place, with their widths.
struct Plan {
    kept: Vec<(usize, usize)>,
}

impl Columns<'_> {
    /// Sets the rows behind the first `skipped` ones into a place of `width` and `height` cells.
    pub fn fit(&self, rows: &[Vec<String>], skipped: usize, width: usize, height: usize) -> Fitted {
        let plan = self.plan(rows, width);
        let heads: Vec<String> = self.heads.iter().map(|head| (*head).to_owned()).collect();
        let shown: Vec<&Vec<String>> = rows.iter().skip(skipped).collect();
        // The head has a line, and so have those that are left out.
        let room = height.saturating_sub(1);
        let fits = if shown.len() <= room { shown.len() } else { room.saturating_sub(1) };
        let mut out: Vec<String> = shown[..fits].iter().map(|row| plan.line(row)).collect();
        if shown.len() > fits && room > 0 {
            out.push(whole(&[&format!("{} more", shown.len() - fits)], width));
        }
        let head = if height > 0 { plan.line(&heads) } else { String::new() };
        Fitted { head, rows: out }
    }

    /// Chooses the columns: first names shrink, then columns go, then names shrink further.
    fn plan(&self, rows: &[Vec<String>], width: usize) -> Plan {
        let natural = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cells(cell));
            let head = cells_of_head(self.heads, column);
            cells.chain([head]).max().unwrap_or(0)
        };
        let wide =
            |column: usize| natural(column).max(self.least.get(column).copied().unwrap_or(0));
        let name = natural(0);
        let smallest = name.min(NAME);
        let mut columns: Vec<usize> = Vec::new();
        let mut used = smallest;
        for column in self.order {
            let more = GAP + wide(*column);
            // A column that is less important has no place before one that is more so.
            if used + more > width {
                break;
            }
            used += more;
            columns.push(*column);
        }
        columns.sort_unstable();
        let others: usize = columns.iter().map(|column| GAP + wide(*column)).sum();
        let name = name.min(width.saturating_sub(others));
        let kept = [(0, name)].into_iter();
        Plan { kept: kept.chain(columns.into_iter().map(|c| (c, wide(c)))).collect() }
    }
}

impl Plan {
    fn line(&self, row: &[String]) -> String {
        let mut out = String::new();
        for (column, width) in &self.kept {
            let cell = row.get(*column).map_or("", String::as_str);
            if *column == 0 {
                let name = shortened(cell, *width);
                let fill = width.saturating_sub(cells(&name));
                out.push_str(&name);
                out.push_str(&" ".repeat(fill));
            } else {
                out.push_str(&" ".repeat(GAP + width.saturating_sub(cells(cell))));
                out.push_str(cell);
            }
        }
        out
    }
}

/// How many terminal cells a text takes.
pub(super) fn cells(text: &str) -> usize {
    Line::raw(text).width()
}

fn cells_of_head(heads: &[&str], column: usize) -> usize {
    heads.get(column).map_or(0, |head| cells(head))
}

/// A paragraph in at most `most` lines of a width; the last line is shortened if the text is longer.
pub(super) fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut lines = lines(&words.join(" "), width, 0, 0);
    let rest = lines.split_off(most.min(lines.len()).saturating_sub(1)).join(" ");
    lines.push(rest);
    lines.iter().map(|line| shortened(line, width)).collect()
}

/// A name in at most `width` cells. What is taken out is taken from its middle: names of one kind
/// begin alike and end differently.
pub(super) fn shortened(name: &str, width: usize) -> String {
    if cells(name) <= width {
        return name.to_owned();
    }
    let Some(room) = width.checked_sub(1) else { return String::new() };
    let take = |chars: &mut dyn Iterator<Item = char>, most: usize| {
        let mut out = String::new();
        for next in chars {
            if cells(&out) + cells(&next.to_string()) > most {
                break;
            }
            out.push(next);
        }
        out
    };
    let start = take(&mut name.chars(), room / 3);
    let end = take(&mut name.chars().rev(), room - cells(&start));
    let end: String = end.chars().rev().collect();
    format!("{start}{CUT}{end}")
}

/// The longest of the texts that has a place, the first one if several have; else nothing.
pub(super) fn whole(texts: &[&str], width: usize) -> String {
    texts
        .iter()
        .find(|text| cells(text) <= width)
        .map_or_else(String::new, |text| (*text).to_owned())
}

/// As many of the parts as have a place, the most important ones, in the order that they stand in.
/// Each has its rank: 0 goes last.
pub(super) fn parts(parts: &[(usize, String)], between: &str, width: usize) -> String {
    let mut ranks: Vec<usize> = parts.iter().map(|(rank, _)| *rank).collect();
    ranks.sort_unstable();
    for most in ranks.iter().rev() {
        let kept: Vec<&str> =
            parts.iter().filter(|(rank, _)| rank <= most).map(|(_, text)| text.as_str()).collect();
        let text = kept.join(between);
        if cells(&text) <= width {
            return text;
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_cut_says_so_and_keeps_its_end() {
        let name = "iqn.2026-11.local.lunet:host-a";
        assert_eq!(shortened(name, 30), name);
        assert_eq!(shortened(name, 12), "iqn…t:host-a");
        assert_eq!((shortened(name, 1), shortened(name, 0)), ("…".into(), String::new()));
        for width in 0..40 {
            // Signs of two cells have no half.
            assert!(cells(&shortened("磁盘卷名称很长很长", width)) <= width, "{width}");
        }
    }

    #[test]
    fn parts_go_by_their_rank() {
        let all = [(0, "up".to_owned()), (2, "sessions".to_owned()), (1, "work".to_owned())];
        assert_eq!(parts(&all, "; ", 30), "up; sessions; work");
        assert_eq!(parts(&all, "; ", 17), "up; work");
        assert_eq!(parts(&all, "; ", 7), "up");
        assert_eq!(parts(&all, "; ", 1), "");
    }

    #[test]
    fn rows_without_a_place_are_counted() {
        let columns = Columns { heads: &["name", "n"], least: &[0, 3], order: &[1] };
        let rows: Vec<Vec<String>> =
            (0..10).map(|n| vec![format!("v{n}"), n.to_string()]).collect();
        let fitted = |skipped, height| columns.fit(&rows, skipped, 20, height);
        assert_eq!(fitted(0, 11).rows.len(), 10);
        assert_eq!(fitted(0, 4).rows, ["v0     0", "v1     1", "8 more"]);
        assert_eq!(fitted(7, 4).rows, ["v7     7", "v8     8", "v9     9"]);
        assert_eq!(fitted(0, 2).rows, ["10 more"]);
        assert_eq!((fitted(0, 1).rows.len(), fitted(0, 0).head.len()), (0, 0));
    }
}
