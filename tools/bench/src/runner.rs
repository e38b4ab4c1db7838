//! Runs every workload on every target, interleaved in rounds.
//!
//! In every round each target runs every workload once, and neighbours in time are runs of the same workload: what disturbs the
//! machine for a while disturbs all targets alike. Who begins changes with the rounds, and the order of the workloads too.

use std::error::Error;
use std::time::Instant;

use crate::fio::{Fio, FioError, Location};
use crate::model::{Command, Results, Run, SCHEMA, Target, TargetKind, Workload};
use crate::profiles::{Profile, Style};

/// What generates load on a target.
pub trait Generator {
    /// What it measures. The name is unique.
    fn target(&self) -> Target;

    /// How this workload is run, as a line for a shell.
    fn command(&self, workload: &Workload) -> Command;

    /// Makes what the workload needs, before the first round. Is told seconds that have passed and seconds in all, 0 if unknown.
    ///
    /// # Errors
    /// It cannot.
    fn prepare(
        &mut self,
        workload: &Workload,
        progress: &mut dyn FnMut(f64, f64),
    ) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Runs it once. Round, order and names are filled in by the caller.
    ///
    /// # Errors
    /// It failed, or was stopped.
    fn run(
        &mut self,
        workload: &Workload,
        progress: &mut dyn FnMut(f64, f64),
    ) -> Result<Run, Box<dyn Error + Send + Sync>>;
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'a> {
    /// Name of the target that is measured now.
    pub target: &'a str,
    /// The workload that it runs.
    pub workload: &'a str,
    /// The round, from 1; 0 while things are prepared.
    pub round: u32,
    /// Rounds in all.
    pub rounds: u32,
    /// The part of everything that is done, 0 to 1.
    pub done: f64,
    /// What is left, in seconds, as far as the runs so far tell.
    pub left_s: f64,
    /// MiB/s of this target's last run of this workload.
    pub last_mib_per_s: Option<f64>,
}

/// A run that failed. What was measured before it is in the results.
#[derive(Debug, thiserror::Error)]
#[error("{target}, {workload}, round {round}: {error}")]
pub struct RunError {
    /// Name of the target.
    pub target: String,
    /// Name of the workload.
    pub workload: String,
    /// The round, from 1; 0: while things were prepared.
    pub round: u32,
    /// What went wrong.
    pub error: Box<dyn Error + Send + Sync>,
}

/// The runs of one round: indices of the workload and of the target. Rounds begin at 1.
pub fn turns(round: u32, workloads: usize, targets: usize) -> Vec<(usize, usize)> {
    let shift = round as usize;
    let mut turns = Vec::with_capacity(workloads * targets);
    for load in 0..workloads {
        // Every other round backwards: a trend over the round falls on both ends.
        let load = if round % 2 == 0 { workloads - 1 - load } else { load };
        turns.extend((0..targets).map(|target| (load, (target + shift) % targets.max(1))));
    }
    turns
}

/// Runs a profile on all targets, and adds everything to the results.
///
/// # Errors
/// The first run that failed; the results hold what was measured before it.
pub fn measure(
    results: &mut Results,
    profile: &Profile,
    generators: &mut [Box<dyn Generator + '_>],
    progress: &mut dyn FnMut(&Progress<'_>),
) -> Result<(), RunError> {
    let began = Instant::now();
    results.schema = SCHEMA;
    profile.name.clone_into(&mut results.profile);
    results.workloads.clone_from(&profile.workloads);
    results.targets = generators.iter().map(|one| one.target()).collect();
    for generator in generators.iter() {
        results.commands.extend(profile.workloads.iter().map(|load| generator.command(load)));
    }
    let told = all(results, profile, generators, &began, progress);
    results.seconds = began.elapsed().as_secs_f64();
    results.summarise();
    told
}

fn all(
    results: &mut Results,
    profile: &Profile,
    generators: &mut [Box<dyn Generator + '_>],
    began: &Instant,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> Result<(), RunError> {
    let names: Vec<String> = results.targets.iter().map(|target| target.name.clone()).collect();
    let loads = &profile.workloads;
    let failed = |target: &str, load: &Workload, round| {
        let (target, workload) = (target.to_owned(), load.name.clone());
        move |error| RunError { target, workload, round, error }
    };
    for (generator, target) in generators.iter_mut().zip(&names) {
        for load in loads {
            let mut told = Progress {
                target,
                workload: &load.name,
                round: 0,
                rounds: profile.rounds,
                done: 0.0,
                left_s: profile.seconds(names.len()),
                last_mib_per_s: None,
            };
            progress(&told);
            let mut on = |passed: f64, all: f64| {
                told.left_s = profile.seconds(names.len()) + (all - passed).max(0.0);
                progress(&told);
            };
            generator.prepare(load, &mut on).map_err(failed(target, load, 0))?;
        }
    }
    let runs = profile.rounds as usize * loads.len() * names.len();
    let start = began.elapsed().as_secs_f64();
    for round in 1..=profile.rounds {
        for (load, target) in turns(round, loads.len(), names.len()) {
            let (load, target_name) = (&loads[load], &names[target]);
            let finished = results.runs.len();
            let begun = began.elapsed().as_secs_f64();
            let last = results.runs_of(target_name, &load.name).last().map(|run| run.mib_per_s());
            let mut on = |passed: f64, all: f64| {
                let part = if all > 0.0 { (passed / all).min(1.0) } else { 0.0 };
                let done = (finished as f64 + part) / runs as f64;
                let spent = began.elapsed().as_secs_f64() - start;
                progress(&Progress {
                    target: target_name,
                    workload: &load.name,
                    round,
                    rounds: profile.rounds,
                    done,
                    left_s: left(profile, names.len(), done, spent),
                    last_mib_per_s: last,
                });
            };
            let run = generators[target].run(load, &mut on);
            let mut run = run.map_err(failed(target_name, load, round))?;
            run.round = round;
            run.order = u32::try_from(finished + 1).unwrap_or(u32::MAX);
            run.began_s = begun;
            (run.target, run.workload) = (target_name.clone(), load.name.clone());
            results.runs.push(run);
        }
    }
    Ok(())
}

/// As the plan says at first, and then more and more as the runs so far say.
fn left(profile: &Profile, targets: usize, done: f64, spent: f64) -> f64 {
    let planned = profile.seconds(targets) * (1.0 - done);
    let seen = if done > 0.0 { spent / done * (1.0 - done) } else { planned };
    planned * (1.0 - done) + seen * done
}

/// fio on a location, with the name that its target has in the results.
#[derive(Debug)]
pub struct Local<'a> {
    name: String,
    location: &'a Location,
    fio: Fio<'a>,
    /// Layouts that were made: workloads with the same files share them.
    made: Vec<Command>,
}

impl<'a> Local<'a> {
    /// See [`Fio::new`].
    ///
    /// # Errors
    /// There is no fio.
    pub fn new(
        name: impl Into<String>,
        location: &'a Location,
        style: Style,
        servers: Vec<i32>,
        stop: &'a std::sync::atomic::AtomicBool,
    ) -> Result<Self, FioError> {
        let fio = Fio::new(location, style, servers, stop)?;
        Ok(Self { name: name.into(), location, fio, made: Vec::new() })
    }

    /// See [`Fio::on_cpus`].
    pub fn on_cpus(self, cpus: Option<String>) -> Self {
        Self { fio: self.fio.on_cpus(cpus), ..self }
    }
}

impl Generator for Local<'_> {
    fn target(&self) -> Target {
        let kind: TargetKind = self.location.kind();
        let location = self.location.named().display().to_string();
        Target {
            name: self.name.clone(),
            kind,
            location,
            tool: "fio".to_owned(),
            data_digest: false,
        }
    }

    fn command(&self, workload: &Workload) -> Command {
        self.fio.command(workload)
    }

    fn prepare(
        &mut self,
        workload: &Workload,
        progress: &mut dyn FnMut(f64, f64),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let layout = self.fio.layout(workload);
        if !self.made.contains(&layout) {
            self.fio.prepare(workload, progress)?;
            self.made.push(layout);
        }
        Ok(())
    }

    fn run(
        &mut self,
        workload: &Workload,
        progress: &mut dyn FnMut(f64, f64),
    ) -> Result<Run, Box<dyn Error + Send + Sync>> {
        Ok(self.fio.run(workload, progress)?)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashSet;
    use std::rc::Rc;

    use super::*;
    use crate::model::Flow;

    #[test]
    fn every_round_has_every_run_and_another_one_begins() {
        let rounds: Vec<Vec<(usize, usize)>> = (1..=6).map(|round| turns(round, 3, 2)).collect();
        for round in &rounds {
            let all: HashSet<_> = round.iter().collect();
            assert_eq!((round.len(), all.len()), (6, 6));
            // The same workload on both targets, one after the other.
            assert!(round.chunks(2).all(|two| two[0].0 == two[1].0), "{round:?}");
        }
        assert_ne!(rounds[0], rounds[1]);
        let first = rounds.iter().filter(|round| round[0].1 == 0).count();
        assert_eq!(first, 3, "each begins as often");
        assert!(turns(1, 3, 0).is_empty());
    }

    type Log = Rc<RefCell<Vec<String>>>;

    /// A target that moves so much, and fails in one round if it is to.
    struct Fake {
        name: &'static str,
        rate: f64,
        fails: Option<usize>,
        runs: usize,
        log: Log,
    }

    impl Generator for Fake {
        fn target(&self) -> Target {
            let name = self.name.to_owned();
            Target {
                location: name.clone(),
                name,
                kind: TargetKind::File,
                tool: "fio".into(),
                data_digest: false,
            }
        }

        fn command(&self, workload: &Workload) -> Command {
            Command { what: workload.name.clone(), line: self.name.to_owned() }
        }

        fn prepare(
            &mut self,
            workload: &Workload,
            progress: &mut dyn FnMut(f64, f64),
        ) -> Result<(), Box<dyn Error + Send + Sync>> {
            progress(1.0, 2.0);
            self.log.borrow_mut().push(format!("prepare {} {}", self.name, workload.name));
            Ok(())
        }

        fn run(
            &mut self,
            _: &Workload,
            progress: &mut dyn FnMut(f64, f64),
        ) -> Result<Run, Box<dyn Error + Send + Sync>> {
            progress(0.5, 1.0);
            self.runs += 1;
            if self.fails == Some(self.runs) {
                return Err("the disk is gone".into());
            }
            self.log.borrow_mut().push(format!("run {}", self.name));
            let flow = Flow {
                bytes: 1 << 30,
                operations: 1,
                mib_per_s: self.rate,
                iops: 1.0,
                latency: None,
            };
            Ok(Run { seconds: 1.0, read: Some(flow), ..Run::default() })
        }
    }

    fn both(fails: Option<usize>) -> (Results, Result<(), RunError>, Vec<f64>, Log) {
        let log = Log::default();
        let fake = |name, rate, fails| -> Box<dyn Generator> {
            Box::new(Fake { name, rate, fails, runs: 0, log: log.clone() })
        };
        let mut generators = vec![fake("a", 100.0, None), fake("b", 200.0, fails)];
        let profile = Profile::named("quick").expect("it is there");
        let (mut results, mut parts) = (Results::default(), Vec::new());
        let told = measure(&mut results, &profile, &mut generators, &mut |progress| {
            assert!(progress.left_s >= 0.0);
            parts.push(progress.done);
        });
        (results, told, parts, log)
    }

    #[test]
    fn all_runs_are_kept_in_their_order() {
        let (results, told, parts, log) = both(None);
        told.expect("nothing fails");
        crate::model::check(&results).expect("it makes sense");
        assert_eq!((results.runs.len(), results.rounds()), (6 * 3 * 2, 6));
        assert!(log.borrow()[..6].iter().all(|line| line.starts_with("prepare")), "{log:?}");
        assert!(parts.windows(2).all(|two| two[0] <= two[1]), "progress only grows");
        let order: Vec<u32> = results.runs.iter().map(|run| run.order).collect();
        assert_eq!(order, (1..=36).collect::<Vec<u32>>());
        let more = results.comparisons.iter().filter(|one| one.words().contains("2.00 times"));
        assert_eq!(more.count(), 3, "{:?}", results.comparisons);
        assert_eq!(results.commands.len(), 6);
    }

    #[test]
    fn what_was_measured_before_a_failure_is_kept() {
        let (results, told, ..) = both(Some(5));
        let told = told.expect_err("one fails").to_string();
        assert!(told.starts_with("b, ") && told.ends_with("round 2: the disk is gone"), "{told}");
        assert_eq!(results.runs_of("b", &results.workloads[2].name).len(), 2);
        assert_eq!(results.runs.iter().filter(|run| run.target == "b").count(), 4);
        assert!(!results.summaries.is_empty());
    }
}
