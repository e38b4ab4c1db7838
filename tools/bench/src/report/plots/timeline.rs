//! How the runs of one workload went on.

use super::{Figure, class, curve, legend};
use crate::model::{Ceiling, CeilingKind, Results, Run, Unit};
use crate::report::format::{mark, number, shortened};
use crate::report::svg::{SERIES, Svg, Width, marks};
use crate::stats::median;

const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 42.0;
const HEIGHT: f64 = 242.0;
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
    figure.legend = legend(results, lines.iter().map(|line| (line.series, line.name.as_str())));
    figure.caption =
        "Line: the middle of the rounds at that second; band: from the least to the greatest."
            .into();
    let told = |name: &str| lines.iter().any(|line| line.name == name);
    let ran = |name: &str| !results.runs_of(name, workload).is_empty();
    let names = results.targets.iter().map(|target| target.name.as_str());
    let short: Vec<&str> = names.filter(|name| ran(name) && !told(name)).collect();
    if !short.is_empty() {
        figure.caption +=
            &format!(" Too short to show how they went on: the runs of {}.", short.join(", "));
    }
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
    svg.text(LEFT, 11.0, "d", "MiB/s");
    for line in lines {
        let series = format!("s{}", line.series % SERIES);
        let up = line.moments.iter().map(|at| (x(at.0), y(at.3)));
        let down = line.moments.iter().rev().map(|at| (x(at.0), y(at.1)));
        svg.path(&up.chain(down).collect::<Vec<_>>(), true, &format!("area {series}"));
        let middle: Vec<(f64, f64)> = line.moments.iter().map(|at| (x(at.0), y(at.2))).collect();
        svg.path(&middle, false, &curve(line.series));
        // A mark on every tenth moment is enough to tell the lines apart.
        let step = line.moments.len().div_ceil(10);
        let middle = median(&line.moments.iter().map(|at| at.2).collect::<Vec<_>>());
        svg.tell(&format!(
            "{}: {} MiB/s most of the time",
            line.name,
            number(middle.unwrap_or(0.0))
        ));
        for at in line.moments.iter().step_by(step) {
            let title = format!("{}, {:.1} s: {} MiB/s", line.name, at.0, number(at.2));
            svg.dot((x(at.0), y(at.2)), line.series, &title);
        }
    }
    let points: Vec<(f64, f64)> =
        lines.iter().flat_map(|line| &line.moments).map(|at| (x(at.0), y(at.2))).collect();
    label_ceilings(&mut svg, ceilings, &points, width, &y);
    svg.finish(class(width), "Lines: throughput over time, for each target")
}

/// The ceilings as lines. Their names stand where they are farthest from the curves and from each other.
fn label_ceilings(
    svg: &mut Svg,
    ceilings: &[(String, f64)],
    points: &[(f64, f64)],
    width: Width,
    y: &dyn Fn(f64) -> f64,
) {
    let (left, right) = (LEFT + 4.0, width.px() - RIGHT - 2.0);
    let mut taken: Vec<(f64, f64, f64)> = Vec::new();
    for (name, value) in ceilings {
        let at = y(*value);
        svg.line((LEFT, at), (width.px() - RIGHT, at), "ceiling");
        let text = shortened(&format!("{name}: {}", number(*value)), width.chars(right - left));
        let wide = text.chars().count() as f64 * 6.7;
        let room = |start: f64, base: f64| {
            let middle = base - 4.0;
            let curve =
                points.iter().filter(|(x, _)| *x > start - 12.0 && *x < start + wide + 12.0);
            let curve = curve.map(|(_, y)| (y - middle).abs()).fold(60.0, f64::min);
            let lines = ceilings.iter().map(|(_, value)| y(*value)).filter(|line| *line != at);
            let curve = lines.map(|line| (line - middle).abs()).fold(curve, f64::min);
            let other = taken.iter().filter(|(from, to, _)| *from < start + wide && *to > start);
            let other = other.map(|(_, _, y)| (y - base).abs()).fold(60.0, f64::min);
            let inside = (21.0..=HEIGHT - BOTTOM).contains(&base);
            if other >= 13.0 && inside { curve } else { 0.0 }
        };
        let places = [right - wide, left].into_iter().flat_map(|x| [(x, at - 4.0), (x, at + 13.0)]);
        let best = places.max_by(|a, b| room(a.0, a.1).total_cmp(&room(b.0, b.1)));
        let (start, base) = best.unwrap_or((left, at - 4.0));
        taken.push((start, start + wide, base));
        match start > left {
            true => svg.text(right, base, "c e", &text),
            false => svg.text(left, base, "c", &text),
        }
    }
}
