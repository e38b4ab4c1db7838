//! How fast: of one workload a bar for each target with its interval, and the ceilings as lines through those that they
//! hold for.

use super::{Figure, class};
use crate::model::{Bound, Ceiling, CeilingKind, Results, Target, Unit, Workload};
use crate::report::format::{mark, shortened};
use crate::report::page::glance::{told, unit};
use crate::report::svg::{SERIES, Svg, Width, marks};
use crate::stats::Estimate;

/// Ceilings beyond so many times the longest bar are named, not drawn.
const FAR: f64 = 1.6;
const ROW: f64 = 40.0;
const BAR: f64 = 13.0;
/// A line of ceilings' names.
const LANE: f64 = 15.0;
const AXIS: f64 = 38.0;
const LEFT: f64 = 6.0;
const RIGHT: f64 = 12.0;

struct Row {
    series: usize,
    target: String,
    estimate: Estimate,
}

/// A ceiling and the rows that it holds for.
struct Line {
    name: String,
    value: f64,
    rows: Vec<usize>,
}

struct Bars {
    unit: Unit,
    rows: Vec<Row>,
    lines: Vec<Line>,
    /// The end of the axis at least.
    most: f64,
}

/// `None` if nothing was measured.
pub(in crate::report) fn bars(results: &Results, load: &Workload) -> Option<Figure> {
    let unit = unit(load);
    let row = |(series, target): (usize, &Target)| {
        let summary = results.summary(&target.name, &load.name)?;
        let estimate = if unit == Unit::Iops { summary.iops } else { summary.mib_per_s };
        Some(Row { series, target: target.name.clone(), estimate })
    };
    let rows: Vec<Row> = results.targets.iter().enumerate().filter_map(row).collect();
    let longest = rows.iter().map(|row| row.estimate.high).fold(0.0, f64::max);
    if longest <= 0.0 {
        return None;
    }
    let (lines, beyond): (Vec<Line>, Vec<Line>) =
        lines(results, load, unit, &rows).into_iter().partition(|one| one.value <= longest * FAR);
    let most = lines.iter().map(|one| one.value).fold(longest, f64::max);
    let exceeded = exceeded(results, load, &rows, &lines);
    let bars = Bars { unit, rows, lines, most };
    let mut figure = Figure::new(&load.name, |width| draw(&bars, &load.name, width));
    figure.caption = caption(unit, &beyond, exceeded);
    Some(figure)
}

/// The ceilings from the least to the greatest. Those of one name and one value are one line.
fn lines(results: &Results, load: &Workload, unit: Unit, rows: &[Row]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let counts = |one: &&Ceiling| one.kind != CeilingKind::Cpu && one.value > 0.0;
    for ceiling in results.ceilings.iter().filter(counts) {
        let value = ceiling.in_unit(unit, load.block_bytes);
        let own = rows.iter().enumerate();
        let own = own.filter(|(_, row)| ceiling.concerns(&row.target, &load.name));
        let own: Vec<usize> = own.map(|(at, _)| at).collect();
        if own.is_empty() {
            continue;
        }
        let same = |line: &&mut Line| {
            line.name == ceiling.name && (line.value - value).abs() <= value * 1e-3
        };
        match lines.iter_mut().find(same) {
            Some(line) => line.rows.extend(own),
            None => lines.push(Line { name: ceiling.name.clone(), value, rows: own }),
        }
    }
    lines.sort_by(|a, b| a.value.total_cmp(&b.value));
    lines
}

/// Whether a ceiling was exceeded that the verdict does not speak of.
fn exceeded(results: &Results, load: &Workload, rows: &[Row], lines: &[Line]) -> bool {
    let drive = |target: &str| {
        let mut own = results.verdicts.iter().filter(|one| one.workload == load.name);
        own.any(|one| one.target == target && one.bound == Some(Bound::Drive))
    };
    let beyond = |line: &Line| {
        let mut own = line.rows.iter().filter_map(|at| rows.get(*at));
        own.any(|row| row.estimate.low > line.value && !drive(&row.target))
    };
    lines.iter().any(beyond)
}

fn caption(unit: Unit, beyond: &[Line], exceeded: bool) -> String {
    let mut words = String::new();
    let names: Vec<String> =
        beyond.iter().map(|one| format!("{} {}", one.name, told(unit, one.value))).collect();
    if !names.is_empty() {
        words = format!("Ceilings beyond the axis, in {}: {}.", unit.text(), names.join("; "));
    }
    if exceeded {
        words += " What exceeds a ceiling was answered by a cache, or the ceiling was disturbed.";
    }
    words.trim_start().to_owned()
}

/// Where the name of a ceiling stands: in which line, and from where to where.
struct Label {
    lane: usize,
    /// Where it begins or, if it stands to the left of its line, ends.
    x: f64,
    before: bool,
    text: String,
}

/// Names beside their lines, as many lanes as they need not to overlap.
fn labels(bars: &Bars, width: Width, x: &dyn Fn(f64) -> f64) -> Vec<Label> {
    let mut ends: Vec<f64> = Vec::new();
    let most = width.chars(width.px() * 0.8);
    let place = |line: &Line| {
        let value = told(bars.unit, line.value);
        let name = shortened(&line.name, most.saturating_sub(value.len() + 1));
        let text = format!("{name} {value}");
        let wide = text.chars().count() as f64 * 7.2;
        let at = x(line.value);
        let room = (width.px() - at - 4.0 >= wide, at - 4.0 >= wide);
        let (x, before, left) = match room {
            (true, _) => (at + 4.0, false, at + 4.0),
            (false, true) => (at - 4.0, true, at - 4.0 - wide),
            // A long name on a phone: it begins at the edge.
            (false, false) => (0.0, false, 0.0),
        };
        let lane = ends.iter().position(|end| *end + 8.0 < left).unwrap_or(ends.len());
        match ends.get_mut(lane) {
            Some(end) => *end = left + wide,
            None => ends.push(left + wide),
        }
        Label { lane, x, before, text }
    };
    bars.lines.iter().map(place).collect()
}

fn draw(bars: &Bars, name: &str, width: Width) -> String {
    let at = marks(bars.most, if width == Width::Wide { 6 } else { 4 });
    let end = at.last().copied().unwrap_or(bars.most).max(bars.most);
    let wide = width.px() - LEFT - RIGHT;
    let x = |value: f64| LEFT + value / end * wide;
    let labels = labels(bars, width, &x);
    let lanes = labels.iter().map(|label| label.lane + 1).max().unwrap_or(0);
    let top = lanes as f64 * LANE + 4.0;
    let bottom = top + ROW * bars.rows.len() as f64;
    let mut svg = Svg::new(width.px(), bottom + AXIS);
    for value in &at {
        svg.line((x(*value), top), (x(*value), bottom), "grid");
        svg.mark(x(*value), bottom + 15.0, &mark(*value));
    }
    svg.text(LEFT + wide / 2.0, bottom + 32.0, "d m", bars.unit.text());
    for (at, row) in bars.rows.iter().enumerate() {
        let y = top + at as f64 * ROW;
        let bar = format!("bar s{}", row.series % SERIES);
        svg.rect((LEFT, y + 20.0), (x(row.estimate.median) - LEFT, BAR), &bar);
    }
    for (line, label) in bars.lines.iter().zip(&labels) {
        draw_ceiling(&mut svg, line, label, top, x(line.value));
        let value = told(bars.unit, line.value);
        svg.tell(&format!("ceiling of {}: {value} {}", line.name, bars.unit.text()));
    }
    for (at, row) in bars.rows.iter().enumerate() {
        draw_row(&mut svg, row, bars.unit, top + at as f64 * ROW, width, &x);
    }
    svg.finish(class(width), &format!("Bars of {name}: {} of each target", bars.unit.text()))
}

/// Through the bars that it holds for, but not through their words.
fn draw_ceiling(svg: &mut Svg, line: &Line, label: &Label, top: f64, x: f64) {
    let base = label.lane as f64 * LANE + 12.0;
    svg.line((x, base - 10.0), (x, top - 1.0), "lead");
    for row in &line.rows {
        let y = top + *row as f64 * ROW;
        svg.line((x, y + 17.0), (x, y + ROW - 4.0), "ceiling");
    }
    match label.before {
        true => svg.text(label.x, base, "c e", &label.text),
        false => svg.text(label.x, base, "c", &label.text),
    }
}

fn draw_row(svg: &mut Svg, row: &Row, unit: Unit, y: f64, width: Width, x: &dyn Fn(f64) -> f64) {
    let estimate = &row.estimate;
    let value = told(unit, estimate.median);
    let text = match estimate.rounds {
        1 => value,
        _ => format!("{value} ({} to {})", told(unit, estimate.low), told(unit, estimate.high)),
    };
    let room = width.px() - LEFT - RIGHT - text.chars().count() as f64 * 6.8 - 24.0;
    svg.dot((LEFT + 4.0, y + 11.0), row.series, "");
    svg.text(LEFT + 14.0, y + 15.0, "t h", &shortened(&row.target, width.chars(room)));
    svg.text(width.px() - RIGHT, y + 15.0, "t e n h", &text);
    let middle = y + 20.0 + BAR / 2.0;
    if estimate.rounds > 1 {
        let (low, high) = (x(estimate.low), x(estimate.high));
        svg.line((low, middle), (high, middle), "whisker");
        svg.line((low, middle - 4.0), (low, middle + 4.0), "whisker");
        svg.line((high, middle - 4.0), (high, middle + 4.0), "whisker");
    }
    svg.tell(&format!("{}: {text} {}", row.target, unit.text()));
}
