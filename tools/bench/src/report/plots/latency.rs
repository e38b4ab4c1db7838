//! Latencies of one workload: percentiles and histogram, all rounds together.

use super::{Figure, class, curve, legend};
use crate::model::{Latency, Results};
use crate::report::format::{mark, time};
use crate::report::svg::{Log, Svg, Width, marks};

const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 42.0;
const HEIGHT: f64 = 250.0;
/// Tails get as much room as the middle.
const PERCENTS: [f64; 7] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999];
/// A phone has no room for all of them.
const FEWER: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

/// The latencies of each target, with the number of its series.
fn latencies(results: &Results, workload: &str) -> Vec<(usize, String, Latency)> {
    let of = |(series, target): (usize, &crate::model::Target)| {
        let runs = results.runs_of(&target.name, workload);
        let parts: Vec<Latency> = runs.iter().filter_map(|run| run.latency()).collect();
        Some((series, target.name.clone(), Latency::merged(&parts)?))
    };
    results.targets.iter().enumerate().filter_map(of).collect()
}

fn names(all: &[(usize, String, Latency)]) -> impl Iterator<Item = (usize, &str)> {
    all.iter().map(|(series, name, _)| (*series, name.as_str()))
}

/// Horizontal lines and what they stand for.
fn time_axis(svg: &mut Svg, scale: Log, width: Width) {
    for at in scale.marks(7) {
        let y = TOP + (1.0 - scale.part(at)) * (HEIGHT - TOP - BOTTOM);
        svg.line((LEFT, y), (width.px() - RIGHT, y), "grid");
        svg.text(LEFT - 6.0, y + 4.0, "d e", &time(at));
    }
}

/// What so many of 100 operations do not exceed. `None` if nobody looked at the clock.
pub(in crate::report) fn percentiles(results: &Results, workload: &str) -> Option<Figure> {
    let all = latencies(results, workload);
    let known =
        |percent: &f64| all.iter().any(|(_, _, latency)| latency.percentile_us(*percent).is_some());
    let shown: Vec<f64> = PERCENTS.into_iter().filter(known).collect();
    if shown.is_empty() {
        return None;
    }
    let fewer: Vec<f64> = FEWER.into_iter().filter(known).collect();
    let mut figure = Figure::new("Latency percentiles", |width| {
        draw(&all, if width == Width::Wide { &shown } else { &fewer }, width)
    });
    figure.legend = legend(results, names(&all));
    figure.caption =
        "All rounds together; both axes stretch the tail. max: the slowest operation.".into();
    Some(figure)
}

fn draw(all: &[(usize, String, Latency)], shown: &[f64], width: Width) -> String {
    let mut svg = Svg::new(width.px(), HEIGHT);
    let maxima = all.iter().map(|(_, _, latency)| latency.max_us);
    let values = all.iter().flat_map(|(_, _, latency)| {
        shown.iter().filter_map(|percent| latency.percentile_us(*percent))
    });
    let scale = Log::around(values.chain(maxima));
    time_axis(&mut svg, scale, width);
    let (wide, high) = (width.px() - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    // The columns stand off the edges by half of their distance.
    let x = |column: usize| LEFT + (column as f64 + 0.5) / (shown.len() + 1) as f64 * wide;
    let y = |us: f64| TOP + (1.0 - scale.part(us)) * high;
    for (column, percent) in shown.iter().enumerate() {
        svg.text(x(column), HEIGHT - BOTTOM + 16.0, "d m", &format!("{percent}"));
    }
    svg.text(x(shown.len()), HEIGHT - BOTTOM + 16.0, "d m", "max");
    svg.text(LEFT + wide / 2.0, HEIGHT - 6.0, "d m", "percent of the operations took no longer");
    for (series, name, latency) in all {
        let us = shown.iter().map(|percent| latency.percentile_us(*percent));
        let us = us.chain(std::iter::once(Some(latency.max_us))).enumerate();
        let points: Vec<(usize, f64)> = us.filter_map(|(at, us)| Some((at, us?))).collect();
        let line: Vec<(f64, f64)> = points.iter().map(|(at, us)| (x(*at), y(*us))).collect();
        svg.path(&line, false, &curve(*series));
        let known = |of: f64| latency.percentile_us(of).map(|us| format!("{of} % {}", time(us)));
        let told: Vec<String> = [50.0, 99.0].into_iter().filter_map(known).collect();
        svg.tell(&format!("{name}: {}, the slowest {}", told.join(", "), time(latency.max_us)));
        for (at, us) in points {
            let percent = shown.get(at).map_or_else(|| "max".to_owned(), |of| format!("{of} %"));
            svg.dot((x(at), y(us)), *series, &format!("{name}, {percent}: {}", time(us)));
        }
    }
    svg.finish(class(width), "Lines: latency by percentile, for each target")
}

/// How many operations took how long. `None` if nobody looked at the clock.
pub(in crate::report) fn histogram(results: &Results, workload: &str) -> Option<Figure> {
    let all = latencies(results, workload);
    if all.iter().all(|(_, _, latency)| latency.buckets.is_empty()) {
        return None;
    }
    let mut figure = Figure::new("Latency histogram", |width| draw_histogram(&all, width));
    figure.legend = legend(results, names(&all));
    figure.caption = "All rounds together; each step is 9 % wide.".into();
    Some(figure)
}

/// The part of the operations in each bucket, in percent.
fn shares(latency: &Latency) -> impl Iterator<Item = (f64, f64, f64)> {
    let all = latency.count.max(1) as f64;
    let share = move |count: u64| count as f64 / all * 100.0;
    latency.buckets.iter().map(move |one| (one.from_us, one.to_us, share(one.count)))
}

fn draw_histogram(all: &[(usize, String, Latency)], width: Width) -> String {
    let mut svg = Svg::new(width.px(), HEIGHT);
    // What is rarer than 1 of 2000 would only stretch the axis: the percentiles show it.
    let seen = |share: f64| share >= 0.05;
    let edges = all.iter().flat_map(|(_, _, latency)| {
        shares(latency).filter(|(_, _, share)| seen(*share)).flat_map(|(from, to, _)| [from, to])
    });
    let scale = Log::around(edges);
    let most = all.iter().flat_map(|(_, _, latency)| shares(latency)).map(|(_, _, share)| share);
    let at = marks(most.fold(0.0, f64::max), 5);
    let end = at.last().copied().unwrap_or(1.0);
    let (wide, high) = (width.px() - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let x = |us: f64| LEFT + scale.part(us) * wide;
    let y = |share: f64| TOP + (1.0 - share / end) * high;
    for value in &at {
        svg.line((LEFT, y(*value)), (width.px() - RIGHT, y(*value)), "grid");
        svg.text(LEFT - 6.0, y(*value) + 4.0, "d e", &format!("{} %", mark(*value)));
    }
    for value in scale.marks(if width == Width::Wide { 9 } else { 5 }) {
        svg.line((x(value), y(0.0)), (x(value), y(0.0) + 4.0), "axis");
        svg.mark(x(value), HEIGHT - BOTTOM + 18.0, &time(value));
    }
    svg.text(LEFT + wide / 2.0, HEIGHT - 4.0, "d m", "time of an operation");
    for (series, name, latency) in all {
        let often = latency.buckets.iter().max_by_key(|one| one.count);
        if let Some(one) = often {
            svg.tell(&format!("{name}: most often {} to {}", time(one.from_us), time(one.to_us)));
        }
        let mut steps: Vec<(f64, f64)> = Vec::new();
        let mut last = None;
        for (from, to, share) in shares(latency).filter(|(_, to, _)| *to > scale.low) {
            if from > scale.high {
                break;
            }
            // Between buckets that hold something there may be some that hold nothing.
            steps.extend(last.filter(|end| from > end * 1.001).map(|end| (x(end), y(0.0))));
            steps.push((x(from), y(share)));
            last = Some(to);
        }
        let end = last.map_or(LEFT, &x);
        svg.steps(&steps, (end, y(0.0)), &format!("{} steps", curve(*series)));
    }
    svg.finish(class(width), "Steps: share of the operations by latency, for each target")
}
