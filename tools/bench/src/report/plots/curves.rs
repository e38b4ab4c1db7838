//! Where the curve bends: workloads that differ in one parameter alone, as a line for each target.

use super::{Figure, class, curve, legend};
use crate::model::{Results, Unit, Workload};
use crate::report::format::{iops, mark, number};
use crate::report::svg::{SERIES, Svg, Width, marks};
use crate::stats::Estimate;

const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 42.0;
const HEIGHT: f64 = 248.0;
/// Two points are a line whatever they say.
const FEWEST: usize = 3;

/// What differs, how to read it, how to take it out of a workload, and in what the curve is told.
struct Axis {
    name: &'static str,
    of: fn(&Workload) -> u64,
    without: fn(&mut Workload),
    unit: Unit,
}

const AXES: [Axis; 3] = [
    Axis {
        name: "queue depth",
        of: |load| load.depth.into(),
        without: |load| load.depth = 0,
        unit: Unit::Iops,
    },
    Axis {
        name: "block size",
        of: |load| load.block_bytes,
        without: |load| load.block_bytes = 0,
        unit: Unit::MibPerS,
    },
    Axis {
        name: "jobs",
        of: |load| load.jobs.into(),
        // Each job's part of the space shrinks with their number.
        without: |load| (load.jobs, load.size_bytes) = (0, None),
        unit: Unit::MibPerS,
    },
];

/// A target's points: the place of the parameter, and the figure.
struct Line {
    series: usize,
    name: String,
    points: Vec<(usize, Estimate)>,
}

/// A figure for each parameter that at least three workloads have in different sizes while they share all the others.
pub(in crate::report) fn curves(results: &Results) -> Vec<Figure> {
    AXES.iter().flat_map(|axis| families(results, axis)).collect()
}

fn families(results: &Results, axis: &Axis) -> Vec<Figure> {
    let common = |load: &Workload| {
        let mut load = Workload { name: String::new(), ..load.clone() };
        (axis.without)(&mut load);
        load
    };
    let mut seen: Vec<(Workload, Vec<&Workload>)> = Vec::new();
    for load in &results.workloads {
        let family = common(load);
        match seen.iter_mut().find(|(have, _)| *have == family) {
            Some((_, members)) => members.push(load),
            None => seen.push((family, vec![load])),
        }
    }
    seen.retain(|(_, members)| members.len() >= FEWEST);
    seen.into_iter().filter_map(|(_, members)| figure(results, axis, members)).collect()
}

fn figure(results: &Results, axis: &Axis, mut members: Vec<&Workload>) -> Option<Figure> {
    members.sort_by_key(|load| (axis.of)(load));
    let mut lines = Vec::new();
    for (series, target) in results.targets.iter().enumerate() {
        let point = |(at, load): (usize, &&Workload)| {
            let summary = results.summary(&target.name, &load.name)?;
            Some((at, if axis.unit == Unit::Iops { summary.iops } else { summary.mib_per_s }))
        };
        let points: Vec<(usize, Estimate)> = members.iter().enumerate().filter_map(point).collect();
        if points.len() >= FEWEST {
            lines.push(Line { series, name: target.name.clone(), points });
        }
    }
    if lines.is_empty() {
        return None;
    }
    let places: Vec<String> = members.iter().map(|load| place(axis, load)).collect();
    let title = format!("{}: {}", capital(axis.name), shared(axis, members[0]));
    let mut figure = Figure::new(&title, |width| draw(&lines, &places, axis, width));
    figure.legend = legend(results, lines.iter().map(|line| (line.series, line.name.as_str())));
    "Medians of the rounds with their intervals.".clone_into(&mut figure.caption);
    Some(figure)
}

fn place(axis: &Axis, load: &Workload) -> String {
    match (axis.of)(load) {
        bytes if axis.name == "block size" && bytes % (1 << 20) == 0 => format!("{}M", bytes >> 20),
        bytes if axis.name == "block size" => format!("{}k", bytes >> 10),
        count => count.to_string(),
    }
}

fn capital(name: &str) -> String {
    let mut name = name.to_owned();
    name[..1].make_ascii_uppercase();
    name
}

/// What all of them have in common: the words of one without the parameter's own.
fn shared(axis: &Axis, load: &Workload) -> String {
    let words =
        Workload { jobs: if axis.name == "jobs" { 1 } else { load.jobs }, ..load.clone() }.words();
    match axis.name {
        "queue depth" => words.split(", depth").next().unwrap_or(&words).to_owned(),
        "block size" => words.split_once(' ').map_or(words.clone(), |(_, rest)| rest.to_owned()),
        _ => words,
    }
}

fn draw(lines: &[Line], places: &[String], axis: &Axis, width: Width) -> String {
    let mut svg = Svg::new(width.px(), HEIGHT);
    let (wide, high) = (width.px() - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let points = || lines.iter().flat_map(|line| &line.points);
    let most = points().map(|(_, estimate)| estimate.high).fold(0.0, f64::max);
    let at = marks(most, 5);
    let end = at.last().copied().unwrap_or(most).max(most);
    let x = |column: usize| LEFT + (column as f64 + 0.5) / places.len() as f64 * wide;
    let y = |value: f64| TOP + (1.0 - value / end) * high;
    for value in &at {
        svg.line((LEFT, y(*value)), (width.px() - RIGHT, y(*value)), "grid");
        svg.text(LEFT - 6.0, y(*value) + 4.0, "d e", &mark(*value));
    }
    svg.text(LEFT, 11.0, "d", axis.unit.text());
    for (column, name) in places.iter().enumerate() {
        svg.text(x(column), HEIGHT - BOTTOM + 16.0, "d m", name);
    }
    svg.text(LEFT + wide / 2.0, HEIGHT - 6.0, "d m", axis.name);
    for line in lines {
        let series = format!("s{}", line.series % SERIES);
        let way: Vec<(f64, f64)> =
            line.points.iter().map(|(at, estimate)| (x(*at), y(estimate.median))).collect();
        svg.path(&way, false, &curve(line.series));
        for (at, estimate) in &line.points {
            if estimate.rounds > 1 {
                // Beside each other, not on each other.
                let beside = (line.series as f64 - (lines.len() - 1) as f64 / 2.0) * 3.0;
                let x = x(*at) + beside;
                let ends = ((x, y(estimate.low)), (x, y(estimate.high)));
                svg.line(ends.0, ends.1, &format!("interval thin {series}"));
            }
            let figure = if axis.unit == Unit::Iops {
                iops(estimate.median)
            } else {
                number(estimate.median)
            };
            let title = format!(
                "{}, {} {}: {figure} {}",
                line.name,
                axis.name,
                places[*at],
                axis.unit.text()
            );
            svg.tell(&title);
            svg.dot((x(*at), y(estimate.median)), line.series, &title);
        }
    }
    let label = format!("Lines: {} by {}, for each target", axis.unit.text(), axis.name);
    svg.finish(class(width), &label)
}
