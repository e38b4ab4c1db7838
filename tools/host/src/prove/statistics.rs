//! Whether a change helps: the statistics are those of `lunet bench`, by Wilcoxon's signed-rank test.

use lunet_bench::stats::Judgement as Told;
pub use lunet_bench::stats::{Effect, FEWEST, MOST};
use serde::Serialize;

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

impl From<Effect> for Judgement {
    fn from(effect: Effect) -> Self {
        match effect.judge() {
            Told::More => Self::Helps,
            Told::Less => Self::Harms,
            Told::Noise | Told::TooFew => Self::Noise,
        }
    }
}

#[cfg(test)]
mod tests {
    use lunet_bench::stats::effect;

    use super::Judgement;

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
            let judged = Judgement::from(effect(&pairs).expect("ten rounds are enough"));
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
}
