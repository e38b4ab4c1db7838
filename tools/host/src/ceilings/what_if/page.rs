//! The answer for a terminal.

use std::fmt::Write;

use super::{Answer, Comparison, Range, Row};
use crate::ceilings::{Direction, sentences};
use crate::expr::rate;
use crate::wrap;

/// Each direction: a table with both machines, the layers that bind, where the ranges come from, and the arithmetic of what
/// has changed.
pub fn page(answer: &Answer) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "What if {}", answer.what_if.join(", "));
    for note in &answer.notes {
        wrap(&mut out, "  ", note);
    }
    for comparison in &answer.comparisons {
        out.push('\n');
        table(&mut out, comparison);
    }
    out.push_str("\nWhere the ranges come from (each alone, on the changed machine)\n");
    for one in &answer.uncertainty {
        let moves = one
            .moves
            .iter()
            .map(|(direction, range)| format!("{} {}", title(*direction), between(range)));
        wrap(&mut out, "  ", &format!("{}: {}.", one.why, moves.collect::<Vec<_>>().join(", ")));
    }
    if answer.uncertainty.is_empty() {
        out.push_str("  No assumption moves what the whole machine carries.\n");
    }
    let changed = |layer: &&crate::ceilings::Layer| !answer.now.layers.contains(layer);
    for layer in answer.changed.layers.iter().filter(changed) {
        let _ = write!(out, "\n{}, changed\n", layer.name);
        for sentence in sentences(layer) {
            wrap(&mut out, "  ", &sentence);
        }
    }
    out
}

fn title(direction: Direction) -> &'static str {
    match direction {
        Direction::Reads => "reads",
        Direction::Writes => "writes",
        Direction::Both => "both at once, each",
        Direction::OneSession => "one session",
    }
}

fn table(out: &mut String, comparison: &Comparison) {
    let rows = comparison.layers.iter().chain([&comparison.machine]);
    let width = rows.clone().map(|row| row.name.len()).max().unwrap_or(0);
    let width = width.max(title(comparison.direction).len());
    let title = title(comparison.direction);
    let _ = writeln!(
        out,
        "{title:width$}  {:>10}  {:>10}  {:22}  {:>5}  ratio between",
        "now", "changed", "changed, between", "ratio"
    );
    for row in rows {
        let _ = writeln!(out, "{}", line(row, width).trim_end());
    }
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "nothing known".to_owned());
    let mut binds = format!(
        "Bound by: {} now, {} then",
        name(&comparison.binds_now),
        name(&comparison.binds_changed)
    );
    if !comparison.may_bind.is_empty() {
        let _ = write!(binds, " (or {})", comparison.may_bind.join(", or "));
    }
    binds.push('.');
    if let Some(why) = &comparison.incomparable {
        let _ = write!(binds, " No ratio of the machines: {why}.");
    }
    wrap(out, "  ", &binds);
}

fn line(row: &Row, width: usize) -> String {
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), rate);
    let range = row.changed_range.as_ref().map_or_else(String::new, between);
    let ratio = row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    let ratios = row
        .ratio_range
        .map_or_else(String::new, |range| format!("{:.2} to {:.2}", range.from, range.to));
    format!(
        "{:width$}  {:>10}  {:>10}  {range:22}  {ratio:>5}  {ratios}",
        row.name,
        figure(row.now),
        figure(row.changed)
    )
}

fn between(range: &Range) -> String {
    format!("{} to {}", rate(range.from), rate(range.to))
}
