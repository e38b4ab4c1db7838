//! Proves what each change of a plan is worth: by runs with and without it, in turns.
//!
//! In every round there is a run without any change, one with each change alone and one with all
//! together, in an order that changes from round to round. What helps is kept, and tried once more
//! together; what harms or cannot be told from noise is rolled back. All changes are in the journal
//! before the first one is made: whatever ends the program, `lunet tune rollback` restores the
//! machine.

mod fio;
mod report;
mod statistics;

pub use fio::Fio;
pub use report::write;
pub use statistics::{Effect, FEWEST, Judgement, MOST, effect, median};

use std::sync::atomic::{AtomicBool, Ordering};

use lunet_block::Random;
use serde::Serialize;

use crate::apply::{self, ApplyError, Failure, Fault, Machine, Options, Trial};
use crate::plan::{Item, Plan};

/// A load whose speed can be measured.
pub trait Bench {
    /// Runs it once: bytes per second.
    ///
    /// # Errors
    /// It failed, or was stopped.
    fn run(&mut self) -> Result<f64, ProveError>;
}

/// How to prove.
#[derive(Clone, Copy, Debug)]
pub struct Proof<'a> {
    /// Rounds: [`FEWEST`] to [`MOST`].
    pub rounds: usize,
    /// Where the journal is, and whether the changes that help persist across reboots.
    pub options: Options<'a>,
    /// Is set when everything is to be restored and left.
    pub stop: &'a AtomicBool,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Runs that are done, and runs in all.
    pub done: usize,
    /// See `done`.
    pub all: usize,
    /// What is tried now.
    pub what: &'a str,
}

/// What a change is worth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worth {
    /// The rule; of several together, `all together` or `what helps, together`.
    pub name: String,
    /// Its effect, if it could be worked out.
    pub effect: Option<Effect>,
    /// What that comes to.
    pub judgement: Judgement,
    /// Whether it was kept.
    pub kept: bool,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Bytes per second without any change: the middle of all runs.
    pub baseline: f64,
    /// Rounds that were made.
    pub rounds: usize,
    /// Each change.
    pub steps: Vec<Worth>,
    /// All of them together, if there are several.
    pub together: Option<Worth>,
    /// Those that help together, if they are neither one nor all.
    pub confirmed: Option<Worth>,
    /// Rules that cannot be tried, and why.
    pub left_out: Vec<(String, String)>,
    /// What people must know or do about what was kept.
    pub notes: Vec<String>,
}

/// Why nothing was proved. Everything is as it was, unless it says what is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProveError {
    /// Somebody stopped it.
    #[error("stopped: everything is as it was")]
    Stopped,
    /// The load generator has failed.
    #[error("{0}")]
    Bench(String),
    /// A change cannot be made.
    #[error("{0}")]
    Apply(#[from] ApplyError),
    /// What was changed could not be taken back: it stays in the journal.
    #[error("{}; these could not be rolled back: {}", .why, list(.left))]
    Left {
        /// Why it ended.
        why: String,
        /// What is not as it was.
        left: Vec<Failure>,
    },
    /// The journal cannot be written.
    #[error("{0}")]
    Journal(#[from] Fault),
}

fn list(left: &[Failure]) -> String {
    left.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The rules of a plan whose changes can be tried, with their items; and those that cannot.
fn candidates(plan: &Plan) -> (Vec<Plan>, Vec<(String, String)>) {
    let mut plans: Vec<Plan> = Vec::new();
    let mut left_out = Vec::new();
    for item in plan.changes() {
        if item.effect != crate::rules::Effect::Live {
            let why = format!("it works {}", item.effect.words());
            left_out.push((item.rule.clone(), why));
            continue;
        }
        let same = |have: &&mut Plan| have.items.iter().any(|first| first.rule == item.rule);
        match plans.iter_mut().find(same) {
            Some(have) => have.items.push(item.clone()),
            None => plans.push(Plan { profile: plan.profile, items: vec![item.clone()] }),
        }
    }
    left_out.dedup();
    (plans, left_out)
}

/// Tries every change of the plan, keeps what helps and takes back what does not.
///
/// # Errors
/// See [`ProveError`].
pub fn prove(
    machine: &dyn Machine,
    plan: &Plan,
    proof: Proof<'_>,
    bench: &mut dyn Bench,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> Result<Report, ProveError> {
    let (plans, left_out) = candidates(plan);
    let mut report = Report { left_out, rounds: proof.rounds, ..Report::default() };
    if plans.is_empty() {
        return Ok(report);
    }
    let names: Vec<String> = plans.iter().map(|plan| plan.items[0].rule.clone()).collect();
    let trial = Trial::begin(machine, &plans, proof.options)?;
    let mut runner = Runner { trial, proof, bench, progress, names: &names };
    let measured = runner.measure(&mut report);
    let ended = runner.trial.end();
    let (left, changed) = match ended {
        Ok(ended) => (ended.left, ended.changed),
        Err(fault) => {
            measured?;
            return Err(fault.into());
        }
    };
    if !left.is_empty() {
        let why = measured.err().map_or_else(|| "the runs are done".to_owned(), |e| e.to_string());
        return Err(ProveError::Left { why, left });
    }
    if !changed.is_empty() {
        return Err(ApplyError::Changed(changed.join("; ")).into());
    }
    measured?;
    keep(machine, &plans, &names, proof, &mut report)?;
    Ok(report)
}

/// Sets what helps, for good.
fn keep(
    machine: &dyn Machine,
    plans: &[Plan],
    names: &[String],
    proof: Proof<'_>,
    report: &mut Report,
) -> Result<(), ProveError> {
    let whole = report.confirmed.as_ref().or(report.together.as_ref());
    // Each helps alone; together they may be in each other's way.
    let helping = report.steps.iter().filter(|worth| worth.judgement == Judgement::Helps).count();
    if helping > 1 && whole.is_some_and(|worth| worth.judgement != Judgement::Helps) {
        return Ok(());
    }
    let kept = |name: &String| {
        let step = report.steps.iter().find(|worth| worth.name == *name);
        step.is_some_and(|worth| worth.judgement == Judgement::Helps)
    };
    let chosen = names.iter().zip(plans).filter(|(name, _)| kept(name));
    let items: Vec<Item> = chosen.flat_map(|(_, plan)| plan.items.clone()).collect();
    let Some(first) = plans.first().filter(|_| !items.is_empty()) else { return Ok(()) };
    let plan = Plan { profile: first.profile, items };
    report.notes = apply::apply(machine, &plan, proof.options)?.notes;
    for worth in &mut report.steps {
        worth.kept = worth.judgement == Judgement::Helps;
    }
    for worth in [&mut report.together, &mut report.confirmed].into_iter().flatten() {
        worth.kept = worth.judgement == Judgement::Helps;
    }
    let several = report.confirmed.is_some();
    if let Some(all) = report.together.as_mut().filter(|_| several || helping < names.len()) {
        all.kept = false;
    }
    Ok(())
}

/// Makes the runs.
struct Runner<'a> {
    trial: Trial<'a>,
    proof: Proof<'a>,
    bench: &'a mut dyn Bench,
    progress: &'a mut dyn FnMut(&Progress<'_>),
    names: &'a [String],
}

impl Runner<'_> {
    fn measure(&mut self, report: &mut Report) -> Result<(), ProveError> {
        let count = self.names.len();
        let mut sets: Vec<Vec<usize>> = vec![Vec::new()];
        sets.extend((0..count).map(|step| vec![step]));
        if count > 1 {
            sets.push((0..count).collect());
        }
        let runs = self.rounds(&sets, 0)?;
        report.baseline = median(&runs[0]).unwrap_or_default();
        let worth = |name: &str, with: &[f64], without: &[f64]| {
            let pairs: Vec<(f64, f64)> =
                without.iter().copied().zip(with.iter().copied()).collect();
            let effect = effect(&pairs);
            let judgement = effect.map_or(Judgement::Noise, Judgement::from);
            Worth { name: name.to_owned(), effect, judgement, kept: false }
        };
        for (name, with) in self.names.iter().zip(&runs[1..]) {
            report.steps.push(worth(name, with, &runs[0]));
        }
        report.together = (count > 1).then(|| worth("all together", &runs[count + 1], &runs[0]));
        let helps: Vec<usize> =
            (0..count).filter(|&step| report.steps[step].judgement == Judgement::Helps).collect();
        if helps.len() > 1 && helps.len() < count {
            let done = sets.len() * self.proof.rounds;
            let runs = self.rounds(&[Vec::new(), helps], done)?;
            report.confirmed = Some(worth("what helps, together", &runs[1], &runs[0]));
        }
        Ok(())
    }

    /// Runs of each set of changes, round by round.
    fn rounds(&mut self, sets: &[Vec<usize>], before: usize) -> Result<Vec<Vec<f64>>, ProveError> {
        let all = before + sets.len() * self.proof.rounds;
        let mut runs = vec![Vec::new(); sets.len()];
        let mut random = Random::new(1);
        for round in 0..self.proof.rounds {
            for (index, set) in order(&mut random, sets.len()).into_iter().enumerate() {
                if self.proof.stop.load(Ordering::Relaxed) {
                    return Err(ProveError::Stopped);
                }
                let what = match sets[set].as_slice() {
                    [] => "without changes",
                    [one] => &self.names[*one],
                    _ => "several together",
                };
                let done = before + round * sets.len() + index;
                (self.progress)(&Progress { done, all, what });
                self.trial.only(&sets[set])?;
                let rate = self.bench.run()?;
                runs[set].push(rate);
            }
        }
        Ok(runs)
    }
}

/// The numbers below `count` in a random order.
fn order(random: &mut Random, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests;
