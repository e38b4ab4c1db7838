//! Proves what each change of a plan is worth: by runs with and without it, in turns.
//!
//! In every round there is a run without any change, one with each change alone and one with all
//! together ([`experiment`]). What seems to help is tried once more alone, and what helps then is kept, if several changes do so
//! together; what harms or cannot be told from noise is rolled back. All changes are in the journal
//! before the first one is made: whatever ends the program, `lunet tune rollback` restores the
//! machine.

mod experiment;
mod fio;
mod report;
mod statistics;

pub use experiment::fewest;
pub use fio::Fio;
pub use report::write;
pub use statistics::{Effect, FEWEST, Judgement, MOST};

use std::sync::atomic::{AtomicBool, Ordering};

use lunet_block::Random;
use serde::Serialize;

use self::experiment::Subject;
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
    /// Rounds: [`FEWEST`] to [`MOST`], and as many as the changes need ([`fewest`]).
    pub rounds: usize,
    /// Decides about the order of the runs: another one each time.
    pub seed: u64,
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
    /// Its effect in the runs that were made because it seemed to help.
    pub again: Option<Effect>,
    /// What that comes to, over all changes.
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
    /// Those that help together, if there are several.
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
    /// So few rounds cannot tell any of the changes from chance.
    #[error(
        "{changes} changes in {rounds} rounds cannot be told from chance: make {needed} rounds (`--rounds {needed}`), or choose fewer changes (`--only`)"
    )]
    TooFew {
        /// Changes to be tried.
        changes: usize,
        /// Rounds that were asked for.
        rounds: usize,
        /// Rounds that they need.
        needed: usize,
    },
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
    let (changes, rounds, needed) = (plans.len(), proof.rounds, fewest(plans.len()));
    if rounds < needed {
        return Err(ProveError::TooFew { changes, rounds, needed });
    }
    let names: Vec<String> = plans.iter().map(|plan| plan.items[0].rule.clone()).collect();
    let trial = Trial::begin(machine, &plans, proof.options)?;
    let mut runner = Runner { trial, stop: proof.stop, bench, progress, names: &names };
    let measured = experiment::measure(&mut runner, &names, rounds, &mut Random::new(proof.seed));
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
    let measured = measured?;
    report.baseline = measured.baseline;
    report.steps = measured.steps;
    report.together = measured.together;
    report.confirmed = measured.confirmed;
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
    // Each helps alone; together they may be in each other's way.
    let helping = report.steps.iter().filter(|worth| worth.judgement == Judgement::Helps).count();
    let is_whole = report.confirmed.as_ref().is_some_and(|all| all.judgement == Judgement::Helps);
    if helping > 1 && !is_whole {
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
    if let Some(all) = &mut report.confirmed {
        all.kept = true;
    }
    Ok(())
}

/// Makes the runs on a machine.
struct Runner<'a> {
    trial: Trial<'a>,
    stop: &'a AtomicBool,
    bench: &'a mut dyn Bench,
    progress: &'a mut dyn FnMut(&Progress<'_>),
    names: &'a [String],
}

impl Subject for Runner<'_> {
    fn run(&mut self, changes: &[usize], done: usize, all: usize) -> Result<f64, ProveError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(ProveError::Stopped);
        }
        let what = match changes {
            [] => "without changes",
            [one] => &self.names[*one],
            _ => "several together",
        };
        (self.progress)(&Progress { done, all, what });
        self.trial.only(changes)?;
        self.bench.run()
    }
}

#[cfg(test)]
mod tests;
