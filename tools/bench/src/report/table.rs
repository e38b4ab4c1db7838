//! The table for the terminal.

use super::columns::{Row, columns, stacked, wrapped};
use super::format::{iops, number, plain, time};
use crate::model::Comparison;
use crate::model::Results;
use crate::stats::Estimate;

/// The results as plain text: figures, comparisons, verdicts, how ceilings were got. `width` is that of the terminal, in
/// characters: what does not fit stands below instead of beside, and sentences are broken between words. Without one, every
/// line is as long as it is.
pub fn table(results: &Results, width: Option<usize>) -> String {
    let mut told = figures(results, width);
    told.push('\n');
    told += &wrapped(&legend(results), width, 0, 0);
    if !results.comparisons.is_empty() {
        told.push('\n');
        let all: Vec<(String, &Comparison)> = results
            .comparisons
            .iter()
            .map(|one| (format!("{} / {}", one.other, one.base), one))
            .collect();
        told += &ratios(None, &all, width);
    }
    if let Some(choice) = &results.choice {
        told.push('\n');
        told += &wrapped(&plain(choice), width, 0, 0);
    }
    for verdict in &results.verdicts {
        let (target, workload) = (plain(&verdict.target), plain(&verdict.workload));
        told.push('\n');
        told += &wrapped(&format!("{target}, {workload}:"), width, 0, 2);
        told += &wrapped(&plain(&verdict.sentence), width, 2, 2);
        told += &wrapped(&plain(&verdict.advice), width, 2, 2);
    }
    let mut heading = "\nCeilings:\n";
    let mut told_before: Vec<(&str, &str)> = Vec::new();
    for one in &results.ceilings {
        // Several targets may stand on the same drive.
        if told_before.contains(&(&one.name, &one.how)) {
            continue;
        }
        told_before.push((&one.name, &one.how));
        let (name, how) = (plain(&one.name), plain(&one.how));
        let line = format!("{name}: {} {} ({how})", number(one.value), one.unit.text());
        told += heading;
        told += &wrapped(&line, width, 2, 4);
        heading = "";
    }
    for note in results.notes.iter().cloned().chain(super::page::tables::disturbed(results)) {
        told.push('\n');
        told += &wrapped(&format!("Note: {}", plain(&note)), width, 0, 2);
    }
    told
}

/// What was measured, in one line for each target and workload; if that is too wide, in two.
fn figures(results: &Results, width: Option<usize>) -> String {
    let heads = ["MiB/s", "IOPS", "mean", "99 %", "client s/GiB", "server s/GiB"];
    let cells: Vec<[Cell; 6]> = results
        .summaries
        .iter()
        .map(|one| {
            [
                cell(Some(one.mib_per_s), number),
                cell(Some(one.iops), iops),
                cell(one.latency_mean_us, time),
                cell(one.latency_p99_us, time),
                cell(one.client_cpu_s_per_gib, number),
                cell(one.server_cpu_s_per_gib, number),
            ]
        })
        .collect();
    let mut rows = vec![vec!["workload".to_owned(), "target".to_owned()]];
    rows[0].extend(heads.map(str::to_owned));
    for (one, cells) in results.summaries.iter().zip(&cells) {
        let mut row = vec![one.workload.clone(), one.target.clone()];
        row.extend(cells.iter().map(Cell::line));
        rows.push(row);
    }
    let beside = columns(&rows, 2);
    if fits(&beside, width) {
        return beside;
    }
    let mut stacks = Vec::new();
    for (one, cells) in results.summaries.iter().zip(&cells) {
        let cells = cells.iter().map(Cell::lines).collect();
        stacks.push(Row { group: &one.workload, name: &one.target, cells });
    }
    stacked(&heads, &stacks, width.unwrap_or(usize::MAX))
}

/// A figure, and its interval if there is one.
struct Cell {
    median: String,
    interval: String,
}

impl Cell {
    fn line(&self) -> String {
        match self.interval.as_str() {
            "" => self.median.clone(),
            interval => format!("{} ({interval})", self.median),
        }
    }

    fn lines(&self) -> [String; 2] {
        let interval = match self.interval.as_str() {
            "" => String::new(),
            interval => format!("({interval})"),
        };
        [self.median.clone(), interval]
    }
}

fn cell(estimate: Option<Estimate>, told: impl Fn(f64) -> String) -> Cell {
    let Some(one) = estimate else {
        return Cell { median: "-".to_owned(), interval: String::new() };
    };
    let interval = match one.rounds {
        1 => String::new(),
        _ => format!("{}-{}", told(one.low), told(one.high)),
    };
    Cell { median: told(one.median), interval }
}

/// Comparisons with the names of what is compared; if that is too wide, the names stand above.
pub(super) fn ratios(
    heads: Option<[&str; 4]>,
    all: &[(String, &Comparison)],
    width: Option<usize>,
) -> String {
    let row = |(who, one): &(String, &Comparison)| {
        vec![one.workload.clone(), who.clone(), one.measure.name().to_owned(), one.words()]
    };
    let first = heads.map(|heads| heads.map(str::to_owned).to_vec());
    let rows: Vec<Vec<String>> = first.into_iter().chain(all.iter().map(row)).collect();
    let beside = columns(&rows, 4);
    if fits(&beside, width) {
        return beside;
    }
    let mut told = heads.map_or_else(String::new, |heads| format!("{}:\n", heads[3]));
    let mut above = String::new();
    for (who, one) in all {
        let heading = plain(&format!("{}, {who}:", one.workload));
        if heading != above {
            told += &wrapped(&heading, width, 0, 2);
            above = heading;
        }
        let line = format!("{:<18}  {}", one.measure.name(), one.words());
        told += &wrapped(&line, width, 2, 4);
    }
    told
}

fn fits(text: &str, width: Option<usize>) -> bool {
    width.is_none_or(|width| text.lines().all(|line| line.chars().count() <= width))
}

fn legend(results: &Results) -> String {
    let rounds = results.rounds();
    let interval = match rounds {
        0 | 1 => "One round: nothing can be said about the spread.".to_owned(),
        few if (few as usize) < crate::stats::FEWEST => {
            format!("Medians of {few} interleaved rounds; in brackets the least and the greatest.")
        }
        many => format!("Medians of {many} interleaved rounds; in brackets 95 % confidence."),
    };
    format!("{interval} s/GiB: processor seconds for each GiB.")
}
