//! A figure and its spread.

use serde::{Deserialize, Serialize};

/// What an interval is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interval {
    /// The median of many more rounds lies in it with a confidence of at least 95 %.
    Confidence95,
    /// There were too few rounds for that: the least and the greatest.
    Range,
}

/// A figure, from one run of each round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Median of the rounds.
    pub median: f64,
    /// See `interval`.
    pub low: f64,
    /// See `interval`.
    pub high: f64,
    /// What `low` and `high` are.
    pub interval: Interval,
    /// Smallest value of a round.
    pub min: f64,
    /// Largest value of a round.
    pub max: f64,
    /// The median distance from the median: half of the rounds lie within it.
    pub mad: f64,
    /// How many rounds.
    pub rounds: usize,
}

impl Estimate {
    /// Of one figure for each round. `None` if there are none.
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = median(&sorted)?;
        let distances: Vec<f64> = sorted.iter().map(|figure| (figure - median).abs()).collect();
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let cut = order(sorted.len());
        let (low, high, interval) = match cut {
            Some(cut) => (sorted[cut], sorted[sorted.len() - 1 - cut], Interval::Confidence95),
            None => (min, max, Interval::Range),
        };
        let mad = self::median(&distances)?;
        Some(Self { median, low, high, interval, min, max, mad, rounds: sorted.len() })
    }
}

/// How many figures from each end the interval of the median begins: it holds the median unless at most so many of `n`
/// lie on one side, which is chance as with a coin. `None` if even the least and the greatest are not enough.
fn order(n: usize) -> Option<usize> {
    let mut ways = 0.5f64.powi(i32::try_from(n).ok()?);
    let (mut below, mut cut) = (0.0, None);
    for k in 0..n / 2 {
        below += ways;
        if below > 0.025 {
            break;
        }
        cut = Some(k);
        ways *= (n - k) as f64 / (k + 1) as f64;
    }
    cut
}

/// The middle of the figures.
pub fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}
