//! What was proved, as people read it.

use std::fmt::Write;

use super::{Judgement, Report, Worth};
use crate::expr::rate;

/// The report for a terminal.
pub fn write(report: &Report) -> String {
    let mut out = String::new();
    if report.steps.is_empty() {
        out.push_str("There is nothing to try: no rule wants a change that works at once.\n");
    } else {
        let _ = writeln!(
            out,
            "Without changes: {} (median of {} runs). With a confidence of 95 %:",
            rate(report.baseline),
            report.rounds
        );
    }
    let all = report.steps.iter().chain(&report.together).chain(&report.confirmed);
    for worth in all {
        let _ = writeln!(out, "  {}", line(worth));
    }
    let kept: Vec<&str> =
        report.steps.iter().filter(|worth| worth.kept).map(|worth| worth.name.as_str()).collect();
    let helps = report.steps.iter().any(|worth| worth.judgement == Judgement::Helps);
    match (kept.is_empty(), helps) {
        (true, true) => {
            out.push_str("What helps alone does not help together: everything was rolled back.\n")
        }
        (true, false) => out.push_str("Nothing is kept: everything is as it was.\n"),
        (false, _) => {
            let _ = writeln!(out, "Kept: {}. `lunet tune rollback` undoes it.", kept.join(", "));
        }
    }
    for (rule, why) in &report.left_out {
        let _ = writeln!(out, "Not tried: {rule}: {why}.");
    }
    for note in &report.notes {
        let _ = writeln!(out, "Note: {note}");
    }
    out
}

fn line(worth: &Worth) -> String {
    let Some(effect) = worth.effect else {
        return format!("{}: some runs did nothing, so that nothing can be said", worth.name);
    };
    let told = match (worth.judgement, worth.kept) {
        (Judgement::Helps, true) => "helps, kept",
        (Judgement::Helps, false) => "helps",
        (Judgement::Harms, _) => "harms, rolled back",
        (Judgement::Noise, _) => "cannot be told from noise, rolled back",
    };
    format!(
        "{}: {} ({} to {}): {told}",
        worth.name,
        percent(effect.mean),
        percent(effect.low),
        percent(effect.high)
    )
}

/// Beyond a doubling, people think in factors.
fn percent(part: f64) -> String {
    match part {
        part if part > 1.0 => format!("{:.1} times", part + 1.0),
        part => format!("{:+.1} %", part * 100.0),
    }
}
