//! Comparisons: each ratio with its interval, on both sides of 'the same'.

use super::{Figure, class};
use crate::model::Comparison;
use crate::report::format::{mark, shortened};
use crate::report::svg::{Log, Svg, Width};
use crate::stats::Judgement;

const LEFT: f64 = 10.0;
const RIGHT: f64 = 14.0;
const ROW: f64 = 52.0;
const AXIS: f64 = 40.0;

/// `None` if nothing can be compared.
pub(in crate::report) fn forest(title: &str, comparisons: &[&Comparison]) -> Option<Figure> {
    let known: Vec<&Comparison> =
        comparisons.iter().filter(|one| one.effect.is_some()).copied().collect();
    if known.is_empty() {
        return None;
    }
    let mut figure = Figure::new(title, |width| draw(&known, width));
    let apart = known.iter().any(|one| !one.interleaved);
    figure.caption = match apart {
        false => "Ratio of the two runs of a round, with an interval of 95 % confidence. Grey and hollow: cannot be told from noise.",
        true => {
            "Ratio with an interval of 95 % confidence. Grey and hollow: cannot be told from noise. The runs were not interleaved: what \
             changed on the machine between the two counts as a difference."
        }
    }
    .to_owned();
    Some(figure)
}

/// Whether it is better, worse, or cannot be told.
fn judged(one: &Comparison) -> &'static str {
    let better = match one.judgement {
        Judgement::More => one.measure.more_is_better(),
        Judgement::Less => !one.measure.more_is_better(),
        Judgement::Noise | Judgement::TooFew => return "noise",
    };
    if better { "better" } else { "worse" }
}

/// Who is compared, and what came out.
fn told(one: &Comparison) -> [String; 2] {
    let words = match (one.judgement, one.effect) {
        (Judgement::Noise, Some(effect)) => {
            format!("noise ({:.2} to {:.2})", effect.low + 1.0, effect.high + 1.0)
        }
        _ => one.words(),
    };
    [format!("{} / {}", one.other, one.base), words]
}

fn draw(all: &[&Comparison], width: Width) -> String {
    // On a phone long names leave no room for the figures, which then have a line of their own.
    let room = width.chars(width.px() - LEFT - RIGHT);
    let beside = |one: &&Comparison| told(one).join(": ").chars().count() <= room;
    let more = if all.iter().all(beside) { 0.0 } else { 15.0 };
    let each = ROW + more;
    let height = each * all.len() as f64 + AXIS;
    let mut svg = Svg::new(width.px(), height);
    let ends = all.iter().filter_map(|one| one.effect);
    let far = ends
        .flat_map(|effect| [effect.low, effect.high])
        .map(|part| (part + 1.0).max(0.01).ln().abs());
    // As far to the left as to the right, and never closer than a quarter.
    let far = (far.fold(0.0, f64::max) * 1.08).max(1.25f64.ln());
    let scale = Log { low: (-far).exp(), high: far.exp() };
    let wide = width.px() - LEFT - RIGHT;
    let x = |ratio: f64| LEFT + scale.part(ratio) * wide;
    let bottom = height - AXIS;
    let most = if width == Width::Wide { 9 } else { 6 };
    for value in ratios(scale, most) {
        let class = if value == 1.0 { "one" } else { "grid" };
        // Short lines, beside the intervals alone: they would run through the text.
        for row in 0..all.len() {
            let top = row as f64 * each + 33.0 + more;
            svg.line((x(value), top), (x(value), top + 12.0), class);
        }
        svg.mark(x(value), bottom + 15.0, &mark(value));
    }
    svg.text(LEFT + wide / 2.0, bottom + 32.0, "d m", "times as much (1: the same)");
    for (row, one) in all.iter().enumerate() {
        let Some(effect) = one.effect else { continue };
        let y = row as f64 * each;
        let [who, words] = told(one);
        svg.text(LEFT, y + 14.0, "t", &shortened(&one.workload, room));
        if more > 0.0 {
            svg.text(LEFT, y + 29.0, "d", &shortened(&who, room));
            svg.text(LEFT, y + 44.0, "d", &words);
        } else {
            svg.text(LEFT, y + 29.0, "d", &format!("{who}: {words}"));
        }
        let (low, high, middle) = (x(effect.low + 1.0), x(effect.high + 1.0), x(effect.mean + 1.0));
        let class = judged(one);
        let line = y + 39.0 + more;
        svg.line((low, line), (high, line), &format!("interval {class}"));
        svg.rect((middle - 4.0, line - 4.0), (8.0, 8.0), &format!("mark {class}"));
        svg.tell(&format!("{}, {who}: {words}", one.workload));
    }
    svg.finish(class(width), "Ratios with their intervals")
}

/// Marks on both sides of 1.
fn ratios(scale: Log, most: usize) -> Vec<f64> {
    let steps: [&[f64]; 4] = [
        &[1.0, 1.1, 1.2, 1.3, 1.5],
        &[1.0, 1.25, 1.5, 2.0, 3.0],
        &[1.0, 2.0, 4.0, 8.0],
        &[1.0, 3.0, 10.0, 30.0, 100.0],
    ];
    let within = |steps: &&[f64]| {
        let inside: Vec<f64> = steps.iter().copied().filter(|step| *step <= scale.high).collect();
        let enough =
            inside.len() == steps.len() && steps.last().is_some_and(|last| last * 1.3 < scale.high);
        inside.len() * 2 - 1 <= most && !enough
    };
    let steps = steps.into_iter().find(within).unwrap_or(&[1.0, 10.0, 100.0]);
    let up = steps.iter().copied().filter(|step| *step <= scale.high);
    let mut all: Vec<f64> = up.clone().chain(up.map(|step| 1.0 / step)).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}
