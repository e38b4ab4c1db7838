//! What was proved, as people read it.

use std::fmt::Write;

use super::{Effect, Judgement, Report, Worth};
use crate::expr::rate;

/// The report for a terminal.
pub fn write(report: &Report) -> String {
    let mut out = String::new();
    if report.steps.is_empty() {
        out.push_str("There is nothing to try: no rule wants a change that works at once.\n");
    } else {
        let _ = writeln!(
            out,
            "Without changes: {} (median of {} runs). With a confidence of 95 % for each alone:",
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
    let told = match (worth.judgement, worth.kept, worth.again.is_some()) {
        (Judgement::Helps, true, _) => "helps, kept",
        (Judgement::Helps, false, _) => "helps",
        (Judgement::Harms, ..) => "harms, rolled back",
        (Judgement::Noise, _, true) => "not confirmed, rolled back",
        (Judgement::Noise, _, false) => "cannot be told from noise, rolled back",
    };
    let interval = |effect: Effect| {
        let [mean, low, high] = [effect.mean, effect.low, effect.high].map(percent);
        format!("{mean} ({low} to {high})")
    };
    let again = worth.again.map(|again| format!("; again {}", interval(again)));
    format!("{}: {}{}: {told}", worth.name, interval(effect), again.unwrap_or_default())
}

/// Beyond a doubling, people think in factors.
fn percent(part: f64) -> String {
    match part {
        part if part > 1.0 => format!("{:.1} times", part + 1.0),
        part => format!("{:+.1} %", part * 100.0),
    }
}
