//! The rounds of a benchmark together.

use serde::{Deserialize, Serialize};

use super::{Results, Role, Run, Workload};
use crate::stats::{Effect, Estimate, Judgement, effect, unpaired};

/// A target with a workload, over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Name of the target.
    pub target: String,
    /// Name of the workload.
    pub workload: String,
    /// Both directions together, in MiB/s.
    pub mib_per_s: Estimate,
    /// Both directions together, in operations per second.
    pub iops: Estimate,
    /// The mean latency of a round, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_mean_us: Option<Estimate>,
    /// What half of the operations of a round do not exceed, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_p50_us: Option<Estimate>,
    /// The same of 99 of 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_p99_us: Option<Estimate>,
    /// The same of 999 of 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_p999_us: Option<Estimate>,
    /// Processor seconds of the load generator for each GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu_s_per_gib: Option<Estimate>,
    /// Processor seconds of the server for each GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_s_per_gib: Option<Estimate>,
    /// Context switches of the whole machine for each operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches_per_operation: Option<Estimate>,
    /// Operations that failed, in all rounds.
    #[serde(default)]
    pub errors: u64,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// MiB/s. Operations per second have the same ratio.
    Throughput,
    /// Mean latency of a request.
    Latency,
    /// Processor seconds of the server for each GiB.
    ServerCpu,
    /// Processor seconds of the load generator for each GiB.
    ClientCpu,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Throughput, Self::Latency, Self::ServerCpu, Self::ClientCpu];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Latency => "mean latency",
            Self::ServerCpu => "server CPU per GiB",
            Self::ClientCpu => "client CPU per GiB",
        }
    }

    /// Whether more of it is better.
    pub fn more_is_better(self) -> bool {
        self == Self::Throughput
    }

    fn of(self, run: &Run) -> Option<f64> {
        let figure = match self {
            Self::Throughput => Some(run.mib_per_s()),
            Self::Latency => mean_us(run),
            Self::ServerCpu => run.cpu_per_gib(Role::Server),
            Self::ClientCpu => run.cpu_per_gib(Role::Client),
        };
        figure.filter(|figure| *figure > 0.0)
    }
}

/// One target against another, or the same in two files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Name of the workload.
    pub workload: String,
    /// What is compared with.
    pub base: String,
    /// What is compared.
    pub other: String,
    /// Of what.
    pub measure: Measure,
    /// Whether both ran in turns, in the same rounds.
    pub interleaved: bool,
    /// How many rounds of each.
    pub rounds: usize,
    /// The other in parts of the base: 0.1 = a tenth more. Absent if there were too few rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// What that comes to.
    pub judgement: Judgement,
}

impl Comparison {
    /// What it comes to, in a sentence: `1.98 times (1.90 to 2.05)`, `cannot be told from noise (0.97 to 1.04 times)`.
    pub fn words(&self) -> String {
        let Some(effect) = self.effect else {
            return format!("too few rounds ({}) to compare", self.rounds);
        };
        // Two digits that count, of small ratios as well.
        let times = |part: f64| match part + 1.0 {
            ratio if ratio < 0.1 => format!("{ratio:.3}"),
            ratio => format!("{ratio:.2}"),
        };
        let (low, high) = (times(effect.low), times(effect.high));
        match self.judgement {
            Judgement::Noise => format!("cannot be told from noise ({low} to {high} times)"),
            _ => format!("{} times ({low} to {high})", times(effect.mean)),
        }
    }
}

/// The summaries of results, and each target against the first one.
pub fn summarise(results: &Results) -> (Vec<Summary>, Vec<Comparison>) {
    let (mut summaries, mut comparisons) = (Vec::new(), Vec::new());
    for workload in &results.workloads {
        for target in &results.targets {
            let runs = results.runs_of(&target.name, &workload.name);
            summaries.extend(summary(&target.name, &workload.name, &runs));
        }
        let Some((base, others)) = results.targets.split_first() else { continue };
        for other in others {
            for measure in Measure::ALL {
                let names = (base.name.as_str(), other.name.as_str());
                comparisons.extend(interleaved(results, &workload.name, names, measure));
            }
        }
    }
    (summaries, comparisons)
}

/// The mean latency of all requests of a run, in microseconds.
pub(super) fn mean_us(run: &Run) -> Option<f64> {
    let parts = || run.read.iter().chain(&run.write).filter_map(|flow| flow.latency.as_ref());
    let count: u64 = parts().map(|part| part.count).sum();
    let sum: f64 = parts().map(|part| part.mean_us * part.count as f64).sum();
    (count > 0).then(|| sum / count as f64)
}

fn summary(target: &str, workload: &str, runs: &[&Run]) -> Option<Summary> {
    let all = |of: &dyn Fn(&Run) -> Option<f64>| {
        let figures: Vec<f64> = runs.iter().filter_map(|run| of(run)).collect();
        Estimate::of(&figures)
    };
    let percentile =
        |percent: f64| all(&|run: &Run| run.latency().and_then(|all| all.percentile_us(percent)));
    let switches = |run: &Run| {
        let operations: u64 = run.read.iter().chain(&run.write).map(|flow| flow.operations).sum();
        let switches = run.system.as_ref()?.context_switches as f64;
        (operations > 0).then(|| switches / operations as f64)
    };
    Some(Summary {
        target: target.to_owned(),
        workload: workload.to_owned(),
        mib_per_s: all(&|run: &Run| Some(run.mib_per_s()))?,
        iops: all(&|run: &Run| Some(run.iops()))?,
        latency_mean_us: all(&mean_us),
        latency_p50_us: percentile(50.0),
        latency_p99_us: percentile(99.0),
        latency_p999_us: percentile(99.9),
        client_cpu_s_per_gib: all(&|run: &Run| run.cpu_per_gib(Role::Client)),
        server_cpu_s_per_gib: all(&|run: &Run| run.cpu_per_gib(Role::Server)),
        switches_per_operation: all(&switches),
        errors: runs.iter().map(|run| run.errors).sum(),
    })
}

/// Two targets of one benchmark, round by round: the second in parts of the first. `None` if they have no round in common in
/// which both have this figure.
pub fn interleaved(
    results: &Results,
    workload: &str,
    (base, other): (&str, &str),
    measure: Measure,
) -> Option<Comparison> {
    let bases = results.runs_of(base, workload);
    let others = results.runs_of(other, workload);
    let pair = |run: &&Run| {
        let same = bases.iter().find(|base| base.round == run.round)?;
        Some((measure.of(same)?, measure.of(run)?))
    };
    let pairs: Vec<(f64, f64)> = others.iter().filter_map(pair).collect();
    if pairs.is_empty() {
        return None;
    }
    let effect = effect(&pairs);
    Some(Comparison {
        workload: workload.to_owned(),
        base: base.to_owned(),
        other: other.to_owned(),
        measure,
        interleaved: true,
        rounds: pairs.len(),
        effect,
        judgement: effect.map_or(Judgement::TooFew, |effect| effect.judge()),
    })
}

/// Two files: what both have measured with the same target and workload. They did not run in turns.
pub fn compare_results(before: &Results, after: &Results) -> Vec<Comparison> {
    let mut told = Vec::new();
    // Of the same name and the same kind.
    let same = |workload: &&Workload| before.workload(&workload.name) == Some(*workload);
    for workload in after.workloads.iter().filter(same) {
        for target in &after.targets {
            for measure in Measure::ALL {
                told.extend(apart(before, after, &target.name, &workload.name, measure));
            }
        }
    }
    told
}

fn apart(
    before: &Results,
    after: &Results,
    target: &str,
    workload: &str,
    measure: Measure,
) -> Option<Comparison> {
    let figures = |results: &Results| -> Vec<f64> {
        results.runs_of(target, workload).iter().filter_map(|run| measure.of(run)).collect()
    };
    let (old, new) = (figures(before), figures(after));
    if old.is_empty() || new.is_empty() {
        return None;
    }
    let effect = unpaired(&old, &new);
    Some(Comparison {
        workload: workload.to_owned(),
        base: format!("{target}, before"),
        other: format!("{target}, after"),
        measure,
        interleaved: false,
        rounds: old.len().min(new.len()),
        effect,
        judgement: effect.map_or(Judgement::TooFew, |effect| effect.judge()),
    })
}
