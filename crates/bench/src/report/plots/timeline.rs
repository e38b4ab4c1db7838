//! How the runs of one workload went on.

use super::{Figure, class};
use crate::model::{Ceiling, CeilingKind, Results, Run, Unit};
use crate::report::format::{mark, number};
use crate::report::svg::{Svg, Width, marks};
use crate::stats::median;

const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 42.0;
const HEIGHT: f64 = 230.0;
const FAR: f64 = 1.6;

/// All rounds at one moment: least, middle, greatest MiB/s.
type At = (f64, f64, f64, f64);

struct Line {
    series: usize,
    name: String,
    moments: Vec<At>,
}

/// `None` if no run was long enough for two moments.
pub(in crate::report) fn timeline(results: &Results, workload: &str) -> Option<Figure> {
    let mut lines = Vec::new();
    for (series, target) in results.targets.iter().enumerate() {
        let runs = results.runs_of(&target.name, workload);
        let moments = moments(&runs);
        if moments.len() > 1 {
            lines.push(Line { series, name: target.name.clone(), moments });
        }
    }
    if lines.is_empty() {
        return None;
    }
    let block = results.workload(workload)?.block_bytes;
    let most = lines.iter().flat_map(|line| &line.moments).map(|at| at.3).fold(0.0, f64::max);
    let concerns = |ceiling: &&Ceiling| {
        let own = results.targets.iter().any(|target| ceiling.concerns(&target.name, workload));
        own && ceiling.kind != CeilingKind::Cpu
    };
    let mut ceilings: Vec<(String, f64)> = Vec::new();
    for ceiling in results.ceilings.iter().filter(concerns) {
        let value = ceiling.in_unit(Unit::MibPerS, block);
        let new = !ceilings.iter().any(|(name, _)| *name == ceiling.name);
        if new && value <= most * FAR && value >= most * 0.1 {
            ceilings.push((ceiling.name.clone(), value));
        }
    }
    let top = ceilings.iter().map(|(_, value)| *value).fold(most, f64::max);
    let mut figure =
        Figure::new("Throughput over time", |width| draw(&lines, &ceilings, top, width));
    figure.legend = lines.iter().map(|line| (line.series, line.name.clone())).collect();
    figure.caption =
        "Line: the middle of the rounds at that second; band: from the least to the greatest."
            .into();
    Some(figure)
}

/// The rounds together, as far as all of them go.
fn moments(runs: &[&Run]) -> Vec<At> {
    let lengths = runs.iter().map(|run| run.timeline.len()).filter(|length| *length > 0);
    let Some(length) = lengths.min() else { return Vec::new() };
    let at = |index: usize| {
        let moments = runs.iter().filter_map(|run| run.timeline.get(index));
        let rates: Vec<f64> =
            moments.clone().map(|one| one.read_mib_per_s + one.write_mib_per_s).collect();
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = rates.iter().copied().fold(0.0, f64::max);
        let second = median(&moments.map(|one| one.at_s).collect::<Vec<_>>())?;
        Some((second, least, median(&rates)?, greatest))
    };
    (0..length).filter_map(at).collect()
}

fn draw(lines: &[Line], ceilings: &[(String, f64)], most: f64, width: Width) -> String {
    let mut svg = Svg::new(width.px(), HEIGHT);
    let (wide, high) = (width.px() - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let at = marks(most, 5);
    let end = at.last().copied().unwrap_or(most).max(most);
    let last =
        lines.iter().filter_map(|line| line.moments.last()).map(|at| at.0).fold(0.0, f64::max);
    let x = |second: f64| LEFT + second / last.max(1e-3) * wide;
    let y = |rate: f64| TOP + (1.0 - rate / end) * high;
    for value in &at {
        svg.line((LEFT, y(*value)), (width.px() - RIGHT, y(*value)), "grid");
        svg.text(LEFT - 6.0, y(*value) + 4.0, "d e", &mark(*value));
    }
    let seconds = marks(last, if width == Width::Wide { 8 } else { 5 });
    for second in seconds.iter().filter(|second| **second <= last * 1.001) {
        svg.mark(x(*second), HEIGHT - BOTTOM + 16.0, &mark(*second));
    }
    svg.text(LEFT + wide / 2.0, HEIGHT - 6.0, "d m", "seconds");
    svg.text(LEFT, TOP + 2.0, "d", "MiB/s");
    for line in lines {
        let series = format!("s{}", line.series % 6);
        let up = line.moments.iter().map(|at| (x(at.0), y(at.3)));
        let down = line.moments.iter().rev().map(|at| (x(at.0), y(at.1)));
        svg.path(&up.chain(down).collect::<Vec<_>>(), true, &format!("area {series}"));
        let middle: Vec<(f64, f64)> = line.moments.iter().map(|at| (x(at.0), y(at.2))).collect();
        svg.path(&middle, false, &format!("curve {series} d{}", line.series % 4));
        // A mark on every tenth moment is enough to tell the lines apart.
        let step = line.moments.len().div_ceil(10);
        for at in line.moments.iter().step_by(step) {
            let title = format!("{}, {:.1} s: {} MiB/s", line.name, at.0, number(at.2));
            svg.dot((x(at.0), y(at.2)), line.series, &title);
        }
    }
    let mut labels: Vec<(f64, &str, f64)> =
        ceilings.iter().map(|(name, value)| (y(*value), name.as_str(), *value)).collect();
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut last = f64::NEG_INFINITY;
    for (y, name, value) in labels {
        svg.line((LEFT, y), (width.px() - RIGHT, y), "ceiling");
        let text = format!("{name}: {}", number(value));
        // Above the line, or below it if another label is there.
        let beside = if y - last >= 14.0 { y - 4.0 } else { y + 13.0 };
        last = beside;
        svg.text(width.px() - RIGHT - 2.0, beside, "c e", &text);
    }
    svg.finish(class(width), "Lines: throughput over time, for each target")
}
