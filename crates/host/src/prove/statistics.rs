//! Whether a change helps, by Wilcoxon's signed-rank test.
//!
//! Runs are taken in rounds: one run without any change, and one with each. What is compared is the
//! logarithm of the ratio of the two runs of a round, so that what slows all runs of a round down
//! falls out, and "twice as fast" counts as much as "half as fast". The effect is the estimate of
//! Hodges and Lehmann, the median of the means of all pairs of these logarithms; its confidence
//! interval is the one that belongs to the test (Hollander and Wolfe, Nonparametric Statistical
//! Methods, chapter 3). Nothing is supposed about how the noise is spread, which on storage has
//! outliers far beyond those of a normal distribution: in at most 1 of 20 experiments a change
//! without any effect is taken for one that has an effect, exactly and not about.

use serde::Serialize;

/// The effect of a change, as parts of what it was: 0.1 = a tenth more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// The best guess.
    pub mean: f64,
    /// With a confidence of 95 %, no less than this.
    pub low: f64,
    /// And no more than this.
    pub high: f64,
}

/// What an effect comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Judgement {
    /// It is faster with the change.
    Helps,
    /// It is slower with the change.
    Harms,
    /// That cannot be told from noise.
    Noise,
}

/// The fewest rounds from which anything can be said: five that all point the same way are chance in
/// 1 of 16 experiments.
pub const FEWEST: usize = 6;
/// More rounds than this are no use.
pub const MOST: usize = 200;

/// The effect, from pairs of a run without and a run with the change. `None` if there are too few,
/// or a run did nothing at all.
pub fn effect(pairs: &[(f64, f64)]) -> Option<Effect> {
    let possible = (FEWEST..=MOST).contains(&pairs.len());
    if !possible || pairs.iter().any(|(a, b)| *a <= 0.0 || *b <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|(without, with)| (with / without).ln()).collect();
    let mut means = Vec::new();
    for (at, one) in logs.iter().enumerate() {
        means.extend(logs[at..].iter().map(|other| f64::midpoint(*one, *other)));
    }
    means.sort_by(f64::total_cmp);
    let cut = critical(logs.len());
    let part = |log: f64| log.exp() - 1.0;
    Some(Effect {
        mean: part(median(&means)?),
        low: part(means[cut]),
        high: part(means[means.len() - 1 - cut]),
    })
}

/// The largest sum of ranks that is so small in no more than 1 of 40 experiments without an effect.
fn critical(rounds: usize) -> usize {
    // How many of the 2^n ways to give signs to the ranks 1 to n have this sum of negative ranks, as
    // part of all.
    let mut ways = vec![1.0_f64];
    for rank in 1..=rounds {
        let mut next = vec![0.0; ways.len() + rank];
        for (sum, part) in ways.iter().enumerate() {
            next[sum] += part / 2.0;
            next[sum + rank] += part / 2.0;
        }
        ways = next;
    }
    let mut below = 0.0;
    let fits = |part: &&f64| {
        below += **part;
        below <= 0.025
    };
    ways.iter().take_while(fits).count().saturating_sub(1)
}

impl Effect {
    /// What it comes to.
    pub fn judge(&self) -> Judgement {
        match () {
            () if self.low > 0.0 => Judgement::Helps,
            () if self.high < 0.0 => Judgement::Harms,
            () => Judgement::Noise,
        }
    }
}

/// The middle of the runs.
pub fn median(runs: &[f64]) -> Option<f64> {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::{Judgement, effect, median};

    /// Runs of 1 s on a loop device of a busy machine, in the order in which they were taken: fio,
    /// sequential buffered reads, in bytes per second.
    const RECORDED: &str = include_str!("../../tests/data/fio-runs.txt");

    fn recorded() -> Vec<f64> {
        let runs: Vec<f64> = RECORDED
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.parse().expect("a number"))
            .collect();
        assert!(runs.len() >= 200, "{}", runs.len());
        runs
    }

    /// Experiments of ten rounds over stretches of the recorded runs, with a change that makes the
    /// runs faster by this factor: how many of a hundred come to what.
    fn experiments(factor: f64) -> [usize; 3] {
        let runs = recorded();
        let mut told = [0; 3];
        let mut all = 0;
        for start in 0..runs.len() - 20 {
            // Which of the two runs of a round comes first changes, as in real experiments.
            let pair = |round: usize| {
                let (a, b) = (runs[start + 2 * round], runs[start + 2 * round + 1]);
                if (start + round * 7) % 3 == 0 { (b, a * factor) } else { (a, b * factor) }
            };
            let pairs: Vec<(f64, f64)> = (0..10).map(pair).collect();
            let judged = effect(&pairs).expect("ten rounds are enough").judge();
            told[judged as usize] += 1;
            all += 1;
        }
        told.map(|count: usize| count * 100 / all)
    }

    #[test]
    fn a_change_that_does_nothing_is_noise_in_19_of_20_experiments() {
        let [_, _, noise] = experiments(1.0);
        assert!(noise >= 95, "noise in {noise} of 100");
    }

    #[test]
    fn a_change_that_helps_or_harms_much_is_seen() {
        let [helps, harms, _] = experiments(5.0);
        assert!(helps >= 95 && harms == 0, "{helps} {harms}");
        let [helps, harms, _] = experiments(0.2);
        assert!(harms >= 95 && helps == 0, "{helps} {harms}");
    }

    #[test]
    fn the_interval_is_that_of_the_textbook() {
        let pairs: Vec<(f64, f64)> = [0.1_f64, 0.2, 0.3, 0.4, 0.5, 0.6]
            .iter()
            .map(|log| (100.0, 100.0 * log.exp()))
            .collect();
        let effect = effect(&pairs).expect("six are enough");
        let near = |a: f64, log: f64| (a - (log.exp() - 1.0)).abs() < 1e-9;
        assert!(near(effect.low, 0.1) && near(effect.mean, 0.35), "{effect:?}");
        assert!(near(effect.high, 0.6), "{effect:?}");
        assert_eq!(effect.judge(), Judgement::Helps);
        assert!(super::effect(&pairs[..5]).is_none());
        assert!(super::effect(&[(1.0, 0.0); 8]).is_none());
        // Wilcoxon's table for both ends at 5 %.
        let table = [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52)];
        for (rounds, cut) in table {
            assert_eq!(super::critical(rounds), cut, "{rounds}");
        }
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
