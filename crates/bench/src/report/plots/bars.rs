//! Throughput or operations per second: a bar for each target with each workload, its interval, and the ceilings.

use super::{Figure, class};
use crate::model::{Bound, Ceiling, CeilingKind, Results, Unit, Workload};
use crate::report::format::{iops, mark, number, shortened};
use crate::report::svg::{Svg, Width, marks};
use crate::stats::{Estimate, Interval};

/// Ceilings beyond so many times the longest bar are named, not drawn.
const FAR: f64 = 1.6;
const HEADING: f64 = 22.0;
const ROW: f64 = 33.0;
const BAR: f64 = 9.0;
const AXIS: f64 = 40.0;
const LEFT: f64 = 8.0;
const RIGHT: f64 = 14.0;

struct Row {
    series: usize,
    target: String,
    estimate: Estimate,
    /// Letters and values of its ceilings.
    ceilings: Vec<(char, f64)>,
}

struct Group {
    workload: String,
    rows: Vec<Row>,
}

/// `None` if nothing was measured.
pub(in crate::report) fn bars(results: &Results, unit: Unit) -> Option<Figure> {
    let lettered = letters(results);
    let groups: Vec<Group> =
        results.workloads.iter().filter_map(|load| group(results, load, unit, &lettered)).collect();
    let rows = || groups.iter().flat_map(|group| &group.rows);
    let longest = rows().map(|row| row.estimate.high).fold(0.0, f64::max);
    if longest <= 0.0 {
        return None;
    }
    let near = rows().flat_map(|row| &row.ceilings).map(|(_, value)| *value);
    let most = near.filter(|value| *value <= longest * FAR).fold(longest, f64::max);
    let title = match unit {
        Unit::MibPerS => "Throughput",
        Unit::Iops => "Operations per second",
    };
    let mut figure = Figure::new(title, |width| draw(&groups, unit, most, width));
    figure.caption = caption(results, &groups, unit, most, &lettered);
    Some(figure)
}

/// A letter for each layer: ceilings of the same name in several workloads share one.
fn letters(results: &Results) -> Vec<(char, &Ceiling)> {
    let mut told: Vec<(char, &Ceiling)> = Vec::new();
    for ceiling in results.ceilings.iter().filter(|one| one.kind != CeilingKind::Cpu) {
        if !told.iter().any(|(_, have)| have.name == ceiling.name) && told.len() < 26 {
            let letter = char::from(b'A' + u8::try_from(told.len()).unwrap_or(25));
            told.push((letter, ceiling));
        }
    }
    told
}

fn group(
    results: &Results,
    load: &Workload,
    unit: Unit,
    lettered: &[(char, &Ceiling)],
) -> Option<Group> {
    let row = |(series, target): (usize, &crate::model::Target)| {
        let summary = results.summary(&target.name, &load.name)?;
        let concern = results.ceilings.iter().filter(|one| one.concerns(&target.name, &load.name));
        let letter = |ceiling: &Ceiling| {
            lettered.iter().find(|(_, one)| one.name == ceiling.name).map(|(letter, _)| *letter)
        };
        let ceilings = concern.filter_map(|ceiling| {
            Some((letter(ceiling)?, ceiling.in_unit(unit, load.block_bytes)))
        });
        Some(Row {
            series,
            target: target.name.clone(),
            estimate: if unit == Unit::Iops { summary.iops } else { summary.mib_per_s },
            ceilings: ceilings.collect(),
        })
    };
    let rows: Vec<Row> = results.targets.iter().enumerate().filter_map(row).collect();
    (!rows.is_empty()).then(|| Group { workload: load.name.clone(), rows })
}

fn told(unit: Unit, value: f64) -> String {
    if unit == Unit::Iops { iops(value) } else { number(value) }
}

fn draw(groups: &[Group], unit: Unit, most: f64, width: Width) -> String {
    let rows: usize = groups.iter().map(|group| group.rows.len()).sum();
    let height = HEADING * groups.len() as f64 + ROW * rows as f64 + AXIS + 6.0;
    let mut svg = Svg::new(width.px(), height);
    let at = marks(most, if width == Width::Wide { 6 } else { 4 });
    let end = at.last().copied().unwrap_or(most).max(most);
    let wide = width.px() - LEFT - RIGHT;
    let x = |value: f64| LEFT + value / end * wide;
    let bottom = height - AXIS;
    for value in &at {
        svg.line((x(*value), 4.0), (x(*value), bottom), "grid");
        svg.mark(x(*value), bottom + 15.0, &mark(*value));
    }
    svg.text(LEFT + wide / 2.0, bottom + 32.0, "d m", unit.text());
    let mut y = 4.0;
    for group in groups {
        let name = shortened(&group.workload, width.chars(wide));
        svg.text(LEFT, y + 14.0, "t b", &name);
        y += HEADING;
        for row in &group.rows {
            draw_row(&mut svg, row, unit, y, width, &x);
            y += ROW;
        }
    }
    let label = format!("Bars: {} by workload and target", unit.text());
    svg.finish(class(width), &label)
}

fn draw_row(svg: &mut Svg, row: &Row, unit: Unit, y: f64, width: Width, x: &dyn Fn(f64) -> f64) {
    let estimate = &row.estimate;
    let spread = format!(" ({} to {})", told(unit, estimate.low), told(unit, estimate.high));
    let value = told(unit, estimate.median);
    let text = if estimate.rounds > 1 { value + &spread } else { value };
    let room = width.px() - LEFT - RIGHT - text.chars().count() as f64 * 6.6 - 10.0;
    svg.dot((LEFT + 4.0, y + 8.0), row.series, &row.target);
    svg.text(LEFT + 14.0, y + 12.0, "t", &shortened(&row.target, width.chars(room - 14.0)));
    svg.text(width.px() - RIGHT, y + 12.0, "t e n", &text);
    let top = y + 17.0;
    svg.rect((LEFT, top), (x(estimate.median) - LEFT, BAR), &format!("bar s{}", row.series % 6));
    let middle = top + BAR / 2.0;
    if estimate.rounds > 1 {
        let (low, high) = (x(estimate.low), x(estimate.high));
        svg.line((low, middle), (high, middle), "whisker");
        svg.line((low, middle - 4.0), (low, middle + 4.0), "whisker");
        svg.line((high, middle - 4.0), (high, middle + 4.0), "whisker");
    }
    let mut inside: Vec<(f64, char)> =
        row.ceilings.iter().map(|(letter, value)| (x(*value), *letter)).collect();
    inside.retain(|(at, _)| *at <= width.px() - RIGHT + 1.0);
    inside.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut labels: Vec<(f64, String)> = Vec::new();
    for (at, letter) in inside {
        svg.line((at, top - 3.0), (at, top + BAR + 4.0), "ceiling");
        // Letters that would lie on each other stand in one place.
        match labels.last_mut().filter(|(last, _)| at - last < 14.0) {
            Some((last, letters)) => {
                letters.push(letter);
                *last = at;
            }
            None => labels.push((at, letter.to_string())),
        }
    }
    for (at, letters) in labels {
        svg.text(at + 4.0, top + BAR, "c", &letters);
    }
}

/// What the letters mean, and what lies beyond the end of the axis.
fn caption(
    results: &Results,
    groups: &[Group],
    unit: Unit,
    most: f64,
    lettered: &[(char, &Ceiling)],
) -> String {
    let rows = || groups.iter().flat_map(|group| &group.rows);
    let mut told = match rows().map(|row| row.estimate.interval).next() {
        Some(Interval::Confidence95) => {
            "Median of the rounds, with an interval of 95 % confidence."
        }
        _ => "Median of the rounds, with the least and the greatest: too few for an interval.",
    }
    .to_owned();
    if rows().all(|row| row.estimate.rounds == 1) {
        told = "One round: nothing can be said about the spread.".to_owned();
    }
    for (letter, ceiling) in lettered {
        let own = |row: &&Row| row.ceilings.iter().any(|(one, _)| one == letter);
        let values = rows().filter(own).flat_map(|row| &row.ceilings);
        let values = values.filter(|(one, _)| one == letter).map(|(_, value)| *value);
        let (low, high) = values
            .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        if high == 0.0 {
            continue;
        }
        let far = if low > most { ", beyond the axis" } else { "" };
        let value = match high - low > low * 0.001 {
            true => format!("{} to {}", self::told(unit, low), self::told(unit, high)),
            false => self::told(unit, low),
        };
        told += &format!(" {letter}: ceiling of {}, {value} {}{far}.", ceiling.name, unit.text());
    }
    let exceeded = results.verdicts.iter().all(|verdict| verdict.bound != Some(Bound::Drive));
    let beyond = rows().any(|row| row.ceilings.iter().any(|(_, value)| row.estimate.low > *value));
    if exceeded && beyond {
        told += " What exceeds a ceiling was answered by a cache, or the ceiling was disturbed.";
    }
    told
}
