//! What a reader sees first: how fast each target is, and its bottleneck.

use crate::model::{Bound, Results, Target, Unit, Verdict, Workload};
use crate::model::{Comparison, Measure, Summary};
use crate::report::format::{escape, iops, number, percent, time};
use crate::report::plots::key;
use crate::stats::{Estimate, Judgement};

use super::{MANY, folded};

/// The figure by which people know such a workload: operations of small blocks, MiB/s of larger ones.
pub(in crate::report) fn unit(load: &Workload) -> Unit {
    if load.block_bytes <= 16 << 10 { Unit::Iops } else { Unit::MibPerS }
}

/// A figure in this unit, without the unit.
pub(in crate::report) fn told(unit: Unit, value: f64) -> String {
    if unit == Unit::Iops { iops(value) } else { number(value) }
}

/// A tile for each target.
pub(super) fn tiles(results: &Results) -> String {
    let tile = |(series, target): (usize, &Target)| tile(results, series, target);
    let all: String = results.targets.iter().enumerate().filter_map(tile).collect();
    if all.is_empty() { all } else { format!("<div class=\"grid tiles\">{all}</div>") }
}

/// The most that it moved, its most operations, its quickest answers: each with what bound it.
fn tile(results: &Results, series: usize, target: &Target) -> Option<String> {
    let own = || results.summaries.iter().filter(|one| one.target == target.name);
    let most = |of: fn(&Summary) -> f64| own().max_by(|a, b| of(a).total_cmp(&of(b)));
    let moved = most(|one| one.mib_per_s.median)?;
    let mut stats = stat(results, moved, &number(moved.mib_per_s.median), "MiB/s", "");
    if let Some(many) = most(|one| one.iops.median) {
        stats += &stat(results, many, &iops(many.iops.median), "IOPS", "");
    }
    let latency = |one: &&Summary| one.latency_mean_us.map(|mean| mean.median);
    let quick = own().filter(|one| latency(one).is_some());
    let quick =
        quick.min_by(|a, b| latency(a).unwrap_or(0.0).total_cmp(&latency(b).unwrap_or(0.0)));
    if let Some((one, us)) = quick.and_then(|one| Some((one, latency(&one)?))) {
        let told = time(us);
        let (figure, of) = told.split_once(' ').unwrap_or((&told, ""));
        stats += &stat(results, one, figure, of, "mean latency");
    }
    if let [only] = &results.workloads[..] {
        stats += &format!("<div class=\"all\">{}</div>", under(results, &target.name, &only.name));
    }
    let errors: u64 = own().map(|one| one.errors).sum();
    let failed = match errors {
        0 => String::new(),
        errors => format!("<p class=\"worse\">{errors} operations failed.</p>"),
    };
    let (name, place) = (escape(&target.name), escape(&target.location));
    Some(format!(
        "<article class=\"card tile\"><h3>{}{name}</h3><p class=\"where\">{place}</p>{failed}\
         <div class=\"stats\">{stats}</div></article>",
        key(series)
    ))
}

fn stat(results: &Results, of: &Summary, figure: &str, unit: &str, what: &str) -> String {
    // If there is but one workload, its words stand below all figures once.
    let under = match results.workloads.len() {
        1 => String::new(),
        _ => under(results, &of.target, &of.workload),
    };
    let what = match (what, under.is_empty()) {
        ("", _) => String::new(),
        (what, true) => format!("<span class=\"soft\">{what}</span>"),
        (what, false) => format!("<span class=\"soft\">{what},</span>"),
    };
    let why = format!("{what}{under}");
    let why = if why.is_empty() { why } else { format!("<div class=\"why\">{why}</div>") };
    format!("<div><div class=\"big\"><b>{}</b> {}</div>{why}</div>", escape(figure), escape(unit))
}

/// The workload, and what bound it.
fn under(results: &Results, target: &str, workload: &str) -> String {
    let bound = verdict(results, target, workload).map_or_else(String::new, |verdict| {
        format!("<span class=\"bind\">{}</span>", escape(&binds(verdict)))
    });
    format!("<span class=\"soft\">{}</span>{bound}", escape(workload))
}

fn verdict<'a>(results: &'a Results, target: &str, workload: &str) -> Option<&'a Verdict> {
    results.verdicts.iter().find(|one| one.target == target && one.workload == workload)
}

/// In a few words: `bound by the drive, 85 %`.
fn binds(verdict: &Verdict) -> String {
    let Some(bound) = verdict.bound else {
        return "the bottleneck cannot be determined".to_owned();
    };
    let own = verdict.layers.iter().find(|load| load.bound == bound);
    // Of the others the share is no part of a ceiling, and needs the whole sentence.
    let of_ceiling = matches!(
        bound,
        Bound::Limit
            | Bound::Drive
            | Bound::Network
            | Bound::Memory
            | Bound::Protocol
            | Bound::ClientCpu
            | Bound::ServerCpu
            | Bound::MachineCpu
    );
    let share = own.filter(|_| of_ceiling).map(|load| format!(" at {}", percent(load.share)));
    format!("bound by {}{}", bound.name(), share.unwrap_or_default())
}

/// Each workload with each target: the figure, its interval, the ratio, the bottleneck.
pub(super) fn matrix(results: &Results) -> String {
    let mut rows = String::new();
    for load in &results.workloads {
        let cells: Vec<Option<String>> =
            results.targets.iter().map(|target| cell(results, target, load)).collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let dash = "<td>\u{2013}</td>".to_owned();
        let cells: String =
            cells.into_iter().map(|cell| cell.unwrap_or_else(|| dash.clone())).collect();
        rows += &format!("<tr><th scope=\"row\">{}</th>{cells}</tr>", escape(&load.name));
    }
    if rows.is_empty() {
        return rows;
    }
    let head = |(series, target): (usize, &Target)| {
        format!("<th scope=\"col\">{}{}</th>", key(series), escape(&target.name))
    };
    let heads: String = results.targets.iter().enumerate().map(head).collect();
    let table = format!(
        "<div class=\"card scroll\"><table class=\"glance\"><thead><tr><th scope=\"col\">workload</th>{heads}</tr></thead>\
         <tbody>{rows}</tbody></table></div>"
    );
    match results.workloads.len() {
        many if many > MANY => folded(&format!("All {many} workloads"), &table, false),
        _ => table,
    }
}

fn cell(results: &Results, target: &Target, load: &Workload) -> Option<String> {
    let summary = results.summary(&target.name, &load.name)?;
    let unit = unit(load);
    let estimate = if unit == Unit::Iops { summary.iops } else { summary.mib_per_s };
    let spread = match estimate.rounds {
        1 => String::new(),
        _ => format!("<small>{}</small>", escape(&interval(unit, &estimate))),
    };
    let ratio = results.comparisons.iter().find(|one| {
        one.measure == Measure::Throughput && one.other == target.name && one.workload == load.name
    });
    let ratio = ratio.map_or_else(String::new, ratio_words);
    let bound = verdict(results, &target.name, &load.name).map_or_else(String::new, |one| {
        format!("<small class=\"bind\">{}</small>", escape(&binds(one)))
    });
    Some(format!(
        "<td><span class=\"of\">{}</span><b>{}</b> {}{spread}{ratio}{bound}</td>",
        escape(&target.name),
        told(unit, estimate.median),
        unit.text()
    ))
}

fn interval(unit: Unit, estimate: &Estimate) -> String {
    format!("{} to {}", told(unit, estimate.low), told(unit, estimate.high))
}

/// A sign besides the colour: not everybody sees the colour.
fn ratio_words(one: &Comparison) -> String {
    let (class, sign) = match one.judgement {
        Judgement::More => ("better", '\u{25b2}'),
        Judgement::Less => ("worse", '\u{25bc}'),
        Judgement::Noise => {
            return format!("<small>\u{2248} {}, within noise</small>", escape(&one.base));
        }
        Judgement::TooFew => return String::new(),
    };
    let Some(effect) = one.effect else { return String::new() };
    format!(
        "<small class=\"{class}\">{sign} {:.2} times {}</small>",
        effect.mean + 1.0,
        escape(&one.base)
    )
}
