//! The table for the terminal.

use super::format::{iops, number, plain, time};
use crate::model::Results;
use crate::stats::Estimate;

/// The results as plain text: figures, comparisons, verdicts, how ceilings were got.
pub fn table(results: &Results) -> String {
    let mut rows = vec![
        ["workload", "target", "MiB/s", "IOPS", "mean", "99 %", "client s/GiB", "server s/GiB"]
            .map(str::to_owned),
    ];
    for one in &results.summaries {
        rows.push([
            one.workload.clone(),
            one.target.clone(),
            spread(Some(one.mib_per_s), number),
            spread(Some(one.iops), iops),
            spread(one.latency_mean_us, time),
            spread(one.latency_p99_us, time),
            spread(one.client_cpu_s_per_gib, number),
            spread(one.server_cpu_s_per_gib, number),
        ]);
    }
    let mut told = columns(&rows, 2);
    told += &legend(results);
    if !results.comparisons.is_empty() {
        told += "\n";
        let mut rows = Vec::new();
        for one in &results.comparisons {
            let who = format!("{} / {}", one.other, one.base);
            rows.push([one.workload.clone(), who, one.measure.name().to_owned(), one.words()]);
        }
        told += &columns(&rows, 4);
    }
    for verdict in &results.verdicts {
        let (target, workload) = (plain(&verdict.target), plain(&verdict.workload));
        told += &format!("\n{target}, {workload}:\n  {}\n", plain(&verdict.sentence));
        told += &format!("  {}\n", plain(&verdict.advice));
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
        told += &format!("{heading}  {name}: {} {} ({how})\n", number(one.value), one.unit.text());
        heading = "";
    }
    for note in results.notes.iter().cloned().chain(super::page::tables::disturbed(results)) {
        told += &format!("\nNote: {}\n", plain(&note));
    }
    told
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
    format!("\n{interval} s/GiB: processor seconds for each GiB.\n")
}

fn spread(estimate: Option<Estimate>, told: impl Fn(f64) -> String) -> String {
    match estimate {
        None => "-".to_owned(),
        Some(one) if one.rounds == 1 => told(one.median),
        Some(one) => format!("{} ({}-{})", told(one.median), told(one.low), told(one.high)),
    }
}

/// Rows as columns: the first `left` to the left, the others to the right.
pub(super) fn columns<const N: usize>(rows: &[[String; N]], left: usize) -> String {
    let rows: Vec<[String; N]> =
        rows.iter().map(|row| row.each_ref().map(|cell| plain(cell))).collect();
    let wide = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(wide).collect();
    let mut told = String::new();
    for row in &rows {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let width = widths[at];
            line += &match at < left {
                true => format!("{cell:<width$}  "),
                false => format!("{cell:>width$}  "),
            };
        }
        told += line.trim_end();
        told.push('\n');
    }
    told
}
