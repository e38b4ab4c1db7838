//! The experiment: which runs are made in which order, and what they come to.
//!
//! Whoever tries many changes that do nothing finds one that seems to help: so chances are corrected for their number (Holm),
//! and what seems to help is measured once more, in runs of its own. A machine that grows faster or slower while it is
//! measured makes whatever runs later seem better or worse: so orders are random, and each second round has the order of the
//! one before turned round, by which every set of changes is in the middle of its rounds on average.

use lunet_bench::stats::{by_chance, corrected, effect, median};
use lunet_block::Random;

use super::{Effect, FEWEST, Judgement, MOST, ProveError, Worth};

/// How often a change that does nothing may seem to help or harm, over all changes of the plan.
const SEEMS: f64 = 0.05;

/// How often one that seems to help may do so again by chance.
const AGAIN: f64 = 0.025;

/// What runs are made with.
pub(super) trait Subject {
    /// Sets these changes and no others, and runs the load once: bytes per second. `done` runs there were, of `all` as far
    /// as that is known.
    ///
    /// # Errors
    /// The proof cannot go on.
    fn run(&mut self, changes: &[usize], done: usize, all: usize) -> Result<f64, ProveError>;
}

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// The middle of all runs without changes.
    pub baseline: f64,
    /// Each change.
    pub steps: Vec<Worth>,
    /// All of them together, if there are several.
    pub together: Option<Worth>,
    /// Those that help together, if there are several.
    pub confirmed: Option<Worth>,
}

/// The fewest rounds in which one of so many changes can be told from chance at all.
pub fn fewest(changes: usize) -> usize {
    let tells = |rounds: &usize| 0.5_f64.powi(*rounds as i32) * changes as f64 <= SEEMS;
    (FEWEST..=MOST).find(tells).unwrap_or(MOST)
}

/// Makes the runs of an experiment, and judges them.
///
/// # Errors
/// Those of the subject.
pub(super) fn measure(
    subject: &mut dyn Subject,
    names: &[String],
    rounds: usize,
    random: &mut Random,
) -> Result<Measured, ProveError> {
    let mut runs = Runs { subject, rounds, random, made: 0 };
    let count = names.len();
    let mut sets: Vec<Vec<usize>> = vec![Vec::new()];
    sets.extend((0..count).map(|step| vec![step]));
    if count > 1 {
        sets.push((0..count).collect());
    }
    let first = runs.of(&sets)?;
    let mut steps: Vec<Worth> = names
        .iter()
        .zip(&first[1..])
        .map(|(name, with)| Worth::new(name, &first[0], with))
        .collect();
    seem(&mut steps, &first);
    let together = (count > 1).then(|| {
        let mut worth = Worth::new("all together", &first[0], &first[count + 1]);
        worth.judgement = worth.effect.map_or(Judgement::Noise, Judgement::from);
        worth
    });
    again(&mut runs, &mut steps)?;
    let helps: Vec<usize> =
        (0..count).filter(|&step| steps[step].judgement == Judgement::Helps).collect();
    let mut confirmed = None;
    if helps.len() > 1 {
        let last = runs.of(&[Vec::new(), helps])?;
        let mut worth = Worth::new("what helps, together", &last[0], &last[1]);
        worth.judgement = judge(&last[0], &last[1]);
        confirmed = Some(worth);
    }
    let baseline = median(&first[0]).unwrap_or_default();
    Ok(Measured { baseline, steps, together, confirmed })
}

/// Judges each change by the first runs: those without changes, and those with each change.
fn seem(steps: &mut [Worth], runs: &[Vec<f64>]) {
    let with = &runs[1..=steps.len()];
    let chance = |slow: &[f64], fast: &[f64]| by_chance(&pairs(slow, fast)).unwrap_or(1.0);
    let more: Vec<f64> = with.iter().map(|with| chance(&runs[0], with)).collect();
    let less: Vec<f64> = with.iter().map(|with| chance(with, &runs[0])).collect();
    let (more, less) = (corrected(&more), corrected(&less));
    for (step, (more, less)) in steps.iter_mut().zip(more.into_iter().zip(less)) {
        step.judgement = match () {
            () if more <= SEEMS => Judgement::Helps,
            () if less <= SEEMS => Judgement::Harms,
            () => Judgement::Noise,
        };
    }
}

/// Measures what seems to help once more, each alone.
fn again(runs: &mut Runs<'_>, steps: &mut [Worth]) -> Result<(), ProveError> {
    let seems: Vec<usize> =
        (0..steps.len()).filter(|&step| steps[step].judgement == Judgement::Helps).collect();
    if seems.is_empty() {
        return Ok(());
    }
    let mut sets = vec![Vec::new()];
    sets.extend(seems.iter().map(|step| vec![*step]));
    let second = runs.of(&sets)?;
    for (step, with) in seems.into_iter().zip(&second[1..]) {
        steps[step].again = effect(&pairs(&second[0], with));
        if judge(&second[0], with) != Judgement::Helps {
            steps[step].judgement = Judgement::Noise;
        }
    }
    Ok(())
}

/// What one comparison alone comes to.
fn judge(without: &[f64], with: &[f64]) -> Judgement {
    let is_chance = |pairs: Vec<(f64, f64)>| by_chance(&pairs).is_none_or(|chance| chance > AGAIN);
    match () {
        () if !is_chance(pairs(without, with)) => Judgement::Helps,
        () if !is_chance(pairs(with, without)) => Judgement::Harms,
        () => Judgement::Noise,
    }
}

fn pairs(without: &[f64], with: &[f64]) -> Vec<(f64, f64)> {
    without.iter().copied().zip(with.iter().copied()).collect()
}

impl Worth {
    fn new(name: &str, without: &[f64], with: &[f64]) -> Self {
        let effect: Option<Effect> = effect(&pairs(without, with));
        let (judgement, kept) = (Judgement::Noise, false);
        Self { name: name.to_owned(), effect, again: None, judgement, kept }
    }
}

/// Runs of sets of changes.
struct Runs<'a> {
    subject: &'a mut dyn Subject,
    rounds: usize,
    random: &'a mut Random,
    /// How many there were.
    made: usize,
}

impl Runs<'_> {
    /// Runs of each set, round by round.
    fn of(&mut self, sets: &[Vec<usize>]) -> Result<Vec<Vec<f64>>, ProveError> {
        let all = self.made + sets.len() * self.rounds;
        let mut runs = vec![Vec::new(); sets.len()];
        for order in orders(self.random, sets.len(), self.rounds) {
            for set in order {
                runs[set].push(self.subject.run(&sets[set], self.made, all)?);
                self.made += 1;
            }
        }
        Ok(runs)
    }
}

/// The order of each round: the numbers below `count`.
fn orders(random: &mut Random, count: usize, rounds: usize) -> Vec<Vec<usize>> {
    let mut orders: Vec<Vec<usize>> = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let order = match orders.last().filter(|_| round % 2 == 1) {
            Some(before) => before.iter().rev().copied().collect(),
            None => shuffled(random, count),
        };
        orders.push(order);
    }
    orders
}

/// The numbers below `count` in a random order.
fn shuffled(random: &mut Random, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose speed drifts, with noise.
    struct Machine {
        random: Random,
        /// The factor of each change.
        factors: Vec<f64>,
        /// The standard deviation of a run, as part of its speed.
        noise: f64,
        /// How much faster each run is than the one before.
        drift: f64,
        /// A random walk on top of it: the standard deviation of a step.
        walk: f64,
        speed: f64,
    }

    impl Machine {
        /// A number of the normal distribution, nearly: the sum of twelve even ones.
        fn normal(&mut self) -> f64 {
            let one = |random: &mut Random| (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
            (0..12).map(|_| one(&mut self.random)).sum::<f64>() - 6.0
        }
    }

    impl Subject for Machine {
        fn run(&mut self, changes: &[usize], _: usize, _: usize) -> Result<f64, ProveError> {
            self.speed *= 1.0 + self.drift + self.walk * self.normal();
            let factor: f64 = changes.iter().map(|change| self.factors[*change]).product();
            let noise = 1.0 + self.noise * self.normal();
            Ok(self.speed * factor * noise.max(0.01))
        }
    }

    /// A proof of changes with these factors on a machine that drifts.
    fn proof(seed: u64, factors: &[f64], drift: f64) -> Measured {
        let random = Random::new(seed ^ 0x5eed);
        let factors = factors.to_vec();
        let names: Vec<String> = (0..factors.len()).map(|n| n.to_string()).collect();
        let mut machine = Machine { random, factors, noise: 0.03, drift, walk: 0.003, speed: 1e9 };
        measure(&mut machine, &names, 10, &mut Random::new(seed)).expect("it runs")
    }

    fn helping(measured: &Measured) -> usize {
        measured.steps.iter().filter(|step| step.judgement == Judgement::Helps).count()
    }

    /// 14 changes that do nothing, while the machine grows faster or slower by a third.
    #[test]
    fn at_most_one_of_a_hundred_proofs_keeps_what_does_nothing() {
        for drift in [0.0, 0.002, -0.002] {
            let kept = (0..500).filter(|seed| helping(&proof(*seed, &[1.0; 14], drift)) > 0);
            let kept = kept.count();
            assert!(kept <= 5, "{kept} of 500 with a drift of {drift} each run");
        }
    }

    #[test]
    fn a_tenth_more_is_found_nine_times_of_ten() {
        let mut factors = [1.0; 14];
        factors[4] = 1.1;
        for drift in [0.0, 0.002, -0.002] {
            let found = |seed: &u64| {
                let measured = proof(*seed, &factors, drift);
                measured.steps[4].judgement == Judgement::Helps
            };
            let found = (0..200).filter(found).count();
            assert!(found >= 180, "{found} of 200 with a drift of {drift} each run");
        }
    }

    #[test]
    fn what_harms_is_told() {
        let told = proof(1, &[0.8, 1.0], 0.0).steps;
        assert_eq!((told[0].judgement, told[1].judgement), (Judgement::Harms, Judgement::Noise));
    }

    #[test]
    fn every_set_is_in_the_middle_of_two_rounds() {
        let orders = orders(&mut Random::new(3), 5, 7);
        assert_eq!(orders.len(), 7);
        for two in orders.chunks_exact(2) {
            for set in 0..5 {
                let place = |order: &Vec<usize>| order.iter().position(|at| *at == set);
                assert_eq!(place(&two[0]).zip(place(&two[1])).map(|(a, b)| a + b), Some(4));
            }
        }
        assert_ne!(orders[0], orders[2], "the next pair has an order of its own");
    }

    #[test]
    fn more_changes_need_more_rounds() {
        assert_eq!([1, 3, 4, 14, 51].map(fewest), [6, 6, 7, 9, 10]);
    }
}
