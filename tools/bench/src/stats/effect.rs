//! Whether one of two things is faster.
//!
//! Runs are taken in rounds: one run of each. What is compared is the logarithm of the ratio of the two runs of a round, so
//! that what slows all runs of a round down falls out, and "twice as fast" counts as much as "half as fast". The test is
//! Wilcoxon's signed-rank test; the effect is the estimate of Hodges and Lehmann, the median of the means of all pairs of
//! these logarithms, and its confidence interval is the one that belongs to the test (Hollander and Wolfe, Nonparametric
//! Statistical Methods, chapter 3). Nothing is supposed about how the noise is spread, which on storage has outliers far
//! beyond those of a normal distribution: in at most 1 of 20 experiments a change without any effect is taken for one that
//! has an effect, exactly and not about.
//!
//! Runs that were not taken in rounds, as those of two files, are compared by the rank sum test of Wilcoxon, Mann and
//! Whitney with the interval of Moses (chapter 4 there). What changed on the machine between the two counts as an effect.

use serde::{Deserialize, Serialize};

use super::median;

/// The effect of a change, as parts of what it was: 0.1 = a tenth more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Point estimate of the effect.
    pub mean: f64,
    /// With a confidence of 95 %, no less than this.
    pub low: f64,
    /// And no more than this.
    pub high: f64,
}

/// What an effect comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// It is more than the other.
    More,
    /// It is less.
    Less,
    /// That cannot be told from noise.
    Noise,
    /// There were too few rounds to say anything.
    TooFew,
}

/// The fewest rounds from which anything can be said: five that all point the same way are chance in
/// 1 of 16 experiments.
pub const FEWEST: usize = 6;
/// More rounds than this are no use.
pub const MOST: usize = 200;
/// One end of an interval of 95 %.
const TAIL: f64 = 0.025;

/// The effect, from pairs of a run without and a run with the change. `None` if there are too few,
/// or a run did nothing at all.
pub fn effect(pairs: &[(f64, f64)]) -> Option<Effect> {
    interval(walsh(pairs)?, signed_ranks(pairs.len())?)
}

/// How often chance alone makes the runs with the change so much the faster ones, of all experiments with a change that does
/// nothing: the p-value of the one-sided test, exactly. Swap the runs of each pair for the slower ones. `None` as for
/// [`effect`].
pub fn by_chance(pairs: &[(f64, f64)]) -> Option<f64> {
    // As many means speak against it as the sum of the ranks with that sign. What is equal speaks against it, too.
    let against = walsh(pairs)?.iter().filter(|mean| **mean <= 0.0).count();
    Some(sums_of_ranks(pairs.len()).iter().take(against + 1).sum::<f64>().min(1.0))
}

/// The p-values of several tests, each so much greater that the least of them says how often chance alone makes any of them so
/// small (Holm 1979).
pub fn corrected(chances: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_by(|a, b| chances[*a].total_cmp(&chances[*b]));
    let mut out = vec![1.0; chances.len()];
    let mut least = 0.0_f64;
    for (place, at) in order.into_iter().enumerate() {
        least = least.max(chances[at] * (chances.len() - place) as f64).min(1.0);
        out[at] = least;
    }
    out
}

/// The means of all pairs of logarithms of ratios. `None` if there are too few, or a run did nothing at all.
fn walsh(pairs: &[(f64, f64)]) -> Option<Vec<f64>> {
    let possible = (FEWEST..=MOST).contains(&pairs.len());
    if !possible || pairs.iter().any(|(a, b)| *a <= 0.0 || *b <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|(without, with)| (with / without).ln()).collect();
    let mut means = Vec::new();
    for (at, one) in logs.iter().enumerate() {
        means.extend(logs[at..].iter().map(|other| f64::midpoint(*one, *other)));
    }
    Some(means)
}

/// The effect, from runs without and runs with the change that were not taken in rounds. `None` if there are too few (at
/// least four of each are enough), or a run did nothing at all.
pub fn unpaired(without: &[f64], with: &[f64]) -> Option<Effect> {
    let possible = without.len().max(with.len()) <= MOST;
    if !possible || without.iter().chain(with).any(|run| *run <= 0.0) {
        return None;
    }
    let logs = with.iter().flat_map(|with| without.iter().map(move |out| (with / out).ln()));
    interval(logs.collect(), rank_sums(without.len(), with.len())?)
}

/// The middle of the differences, and those that are so many from the ends.
fn interval(mut differences: Vec<f64>, cut: usize) -> Option<Effect> {
    differences.sort_by(f64::total_cmp);
    let part = |log: f64| log.exp() - 1.0;
    Some(Effect {
        mean: part(median(&differences)?),
        low: part(differences[cut]),
        high: part(differences[differences.len() - 1 - cut]),
    })
}

/// The largest sum of ranks that is so small in no more than 1 of 40 experiments without an effect.
pub(super) fn signed_ranks(rounds: usize) -> Option<usize> {
    last_below(&sums_of_ranks(rounds))
}

/// How many of the 2^n ways to give signs to the ranks 1 to n have each sum of negative ranks, as part of all.
fn sums_of_ranks(rounds: usize) -> Vec<f64> {
    let mut ways = vec![1.0_f64];
    for rank in 1..=rounds {
        let mut next = vec![0.0; ways.len() + rank];
        for (sum, part) in ways.iter().enumerate() {
            next[sum] += part / 2.0;
            next[sum + rank] += part / 2.0;
        }
        ways = next;
    }
    ways
}

/// The same for the number of pairs in which the run with the change is the slower one.
pub(super) fn rank_sums(without: usize, with: usize) -> Option<usize> {
    // The part of the orders of i and j runs in which that number is k, from those in which the greatest run is one of
    // the first kind (which then is above all j others) or of the second. A row for each i is enough.
    let mut row: Vec<Vec<f64>> = vec![vec![1.0]; with + 1];
    for i in 1..=without {
        let mut next: Vec<Vec<f64>> = vec![vec![1.0]];
        for j in 1..=with {
            let mut parts = vec![0.0; i * j + 1];
            let first = i as f64 / (i + j) as f64;
            for (k, part) in row[j].iter().enumerate() {
                parts[k + j] += part * first;
            }
            for (k, part) in next[j - 1].iter().enumerate() {
                parts[k] += part * (1.0 - first);
            }
            next.push(parts);
        }
        row = next;
    }
    row.last().and_then(|parts| last_below(parts))
}

fn last_below(parts: &[f64]) -> Option<usize> {
    let mut below = 0.0;
    let fits = |part: &&f64| {
        below += **part;
        below <= TAIL
    };
    parts.iter().take_while(fits).count().checked_sub(1)
}

impl Effect {
    /// What it comes to.
    pub fn judge(&self) -> Judgement {
        match () {
            () if self.low > 0.0 => Judgement::More,
            () if self.high < 0.0 => Judgement::Less,
            () => Judgement::Noise,
        }
    }
}
