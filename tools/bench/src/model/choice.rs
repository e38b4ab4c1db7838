//! Which of several transports to use, as far as the rounds tell.

use super::{Results, Role, Run};
use crate::stats::{Effect, Judgement, effect};

/// What is looked at, in this order: the next figure decides between those that the last one could not tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Throughput,
    Latency,
    Cpu,
}

impl Figure {
    const ALL: [Self; 3] = [Self::Throughput, Self::Latency, Self::Cpu];

    fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Latency => "mean latency",
            Self::Cpu => "CPU time per I/O",
        }
    }

    /// The figure of a run; `both`: of both ends, where one is the processor's time.
    fn of(self, run: &Run, both: bool) -> Option<f64> {
        let figure = match self {
            Self::Throughput => Some(run.mib_per_s()),
            Self::Latency => super::summary::mean_us(run),
            // Blocks of a workload are alike, so per GiB and per I/O have the same ratio.
            Self::Cpu if both => {
                let client = run.cpu_per_gib(Role::Client);
                client.and_then(|client| Some(client + run.cpu_per_gib(Role::Server)?))
            }
            Self::Cpu => run.cpu_per_gib(Role::Client),
        };
        figure.filter(|figure| *figure > 0.0)
    }

    /// `other` in parts of `base`, round by round.
    fn compared(
        self,
        results: &Results,
        workload: &str,
        (base, other): (&str, &str),
    ) -> Option<Effect> {
        let (bases, others) = (results.runs_of(base, workload), results.runs_of(other, workload));
        // Where the server of one was not seen, its time counts for neither.
        let both = bases.iter().chain(&others).all(|run| run.cpu_per_gib(Role::Server).is_some());
        let pair = |run: &&Run| {
            let same = bases.iter().find(|base| base.round == run.round)?;
            Some((self.of(same, both)?, self.of(run, both)?))
        };
        let pairs: Vec<(f64, f64)> = others.iter().filter_map(pair).collect();
        effect(&pairs)
    }

    /// `Some(true)`: that is better; `None`: it cannot be told from noise.
    fn is_better(self, effect: Effect) -> Option<bool> {
        match effect.judge() {
            Judgement::More => Some(self == Self::Throughput),
            Judgement::Less => Some(self != Self::Throughput),
            Judgement::Noise | Judgement::TooFew => None,
        }
    }
}

/// True if `better` is better than `worse` with one workload at least, and worse with none.
fn beats(results: &Results, figure: Figure, better: &str, worse: &str) -> bool {
    let all = results.workloads.iter().filter_map(|load| {
        figure.is_better(figure.compared(results, &load.name, (worse, better))?)
    });
    let told: Vec<bool> = all.collect();
    !told.is_empty() && told.iter().all(|better| *better)
}

/// Which of the transports that were measured to use on this machine, in one sentence, and why; `None` if only one transport was
/// measured.
pub fn choice(results: &Results) -> Option<String> {
    let among: Vec<_> = results.targets.iter().filter(|one| one.kind.is_remote()).collect();
    let first = among.first()?.kind;
    if among.iter().all(|one| one.kind == first) {
        return None;
    }
    let all: Vec<&str> = among.iter().map(|one| one.name.as_str()).collect();
    let (mut left, mut last) = (all.clone(), None);
    for figure in Figure::ALL {
        let beaten: Vec<&str> = left
            .iter()
            .filter(|one| left.iter().any(|other| beats(results, figure, other, one)))
            .copied()
            .collect();
        left.retain(|one| !beaten.contains(one));
        last = beaten.first().copied().or(last);
    }
    let any = || {
        let mut pairs = all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b)));
        pairs.find_map(|(a, b)| {
            results.workloads.iter().find_map(|load| {
                Figure::Throughput.compared(results, &load.name, (a, b)).filter(|_| a != b)
            })
        })
    };
    if any().is_none() {
        return Some(format!(
            "Which transport to use cannot be said from {} rounds: run six or more (--rounds 6).",
            results.rounds()
        ));
    }
    Some(match (left[..].split_first(), last) {
        (Some((one, [])), Some(rival)) => reason(results, one, rival),
        (Some((one, rest)), Some(rival)) => format!(
            "{} There is no clear difference between it and {}.",
            reason(results, one, rival),
            rest.join(", ")
        ),
        _ if depends(results, &all) => format!(
            "There is no clear difference between {} over all workloads: each is better at some and worse at others, so choose \
             by the workload that is yours.",
            all.join(", ")
        ),
        _ => format!(
            "There is no clear difference between {}: use the one that your hosts support best.",
            all.join(", ")
        ),
    })
}

/// True if some are told apart, though none beats another.
fn depends(results: &Results, all: &[&str]) -> bool {
    let pairs =
        all.iter().enumerate().flat_map(|(at, a)| all[at + 1..].iter().map(move |b| (*a, *b)));
    pairs.into_iter().any(|pair| {
        Figure::ALL.into_iter().any(|figure| {
            results.workloads.iter().any(|load| {
                let effect = figure.compared(results, &load.name, pair);
                effect.and_then(|effect| figure.is_better(effect)).is_some()
            })
        })
    })
}

/// Why one rather than its rival: with the workload that tells them apart most.
fn reason(results: &Results, one: &str, rival: &str) -> String {
    let apart = |load: &str| {
        let effects =
            Figure::ALL.into_iter().map(|figure| figure.compared(results, load, (rival, one)));
        let told = effects.flatten().filter(|effect| effect.judge() != Judgement::Noise);
        told.map(|effect| (1.0 + effect.mean).ln().abs()).fold(0.0, f64::max)
    };
    let most = results.workloads.iter().max_by(|a, b| apart(&a.name).total_cmp(&apart(&b.name)));
    let Some(load) = most.map(|load| load.name.as_str()) else { return String::new() };
    let words = |figure: Figure| {
        let effect = figure.compared(results, load, (rival, one))?;
        let name = figure.name();
        Some(match figure.is_better(effect) {
            None => format!("no clear difference in {name}"),
            Some(_) => format!(
                "{:.2} times the {name} ({:.2} to {:.2})",
                1.0 + effect.mean,
                1.0 + effect.low,
                1.0 + effect.high
            ),
        })
    };
    let why: Vec<String> = Figure::ALL.into_iter().filter_map(words).collect();
    let why = match &why[..] {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        all => all.join(""),
    };
    format!("On this machine use {one} rather than {rival}: with {load} it has {why}.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TargetKind;

    /// Name, kind, and MiB/s of a round.
    type Measured = (&'static str, TargetKind, fn(u32) -> f64);

    /// Rounds of targets with these kinds, and MiB/s of each as a function of the round.
    fn measured(targets: &[Measured], rounds: u32) -> Results {
        let small = include_str!("../../tests/data/small.json");
        let mut results = Results::from_json(small, "small").expect("it is right");
        let (target, load) = (results.targets[0].clone(), results.workloads[0].clone());
        let run = results.runs[0].clone();
        results.workloads = vec![load.clone()];
        (results.targets, results.runs) = (Vec::new(), Vec::new());
        for (name, kind, rate) in targets {
            let mut target = target.clone();
            (target.name, target.kind) = ((*name).to_owned(), *kind);
            results.targets.push(target);
            for round in 1..=rounds {
                let mut run = run.clone();
                (run.target, run.workload, run.round) =
                    ((*name).to_owned(), load.name.clone(), round);
                run.system = None;
                run.processes.clear();
                run.write = None;
                for flow in run.read.iter_mut().chain(&mut run.write) {
                    flow.latency = None;
                    flow.mib_per_s = rate(round);
                }
                results.runs.push(run);
            }
        }
        results.summarise();
        results
    }

    fn slow(round: u32) -> f64 {
        100.0 + f64::from(round)
    }

    fn fast(round: u32) -> f64 {
        200.0 + 2.0 * f64::from(round)
    }

    /// As often above as below [`slow`].
    fn alike(round: u32) -> f64 {
        slow(round) * if round % 2 == 0 { 1.03 } else { 0.97 }
    }

    use TargetKind::{Iscsi, Iser, NvmeTcp};

    #[test]
    fn the_faster_transport_is_named_with_its_interval() {
        let results = measured(&[("tcp", Iscsi, slow), ("rdma", Iser, fast)], 6);
        let text = choice(&results).expect("two transports");
        assert!(text.starts_with("On this machine use rdma rather than tcp: with "), "{text}");
        assert!(text.contains("2.00 times the throughput (2.00 to 2.00)"), "{text}");
    }

    #[test]
    fn what_is_alike_has_no_clear_difference() {
        let results = measured(&[("tcp", Iscsi, slow), ("nvme", NvmeTcp, alike)], 6);
        let text = choice(&results).expect("two transports");
        assert!(text.starts_with("There is no clear difference between tcp, nvme"), "{text}");
        let three: [Measured; 3] = [
            ("rdma", Iser, fast),
            ("tcp", Iscsi, slow),
            ("nvme", NvmeTcp, |round| 2.0 * alike(round)),
        ];
        let results = measured(&three, 6);
        let text = choice(&results).expect("three transports");
        assert!(text.starts_with("On this machine use rdma rather than tcp"), "{text}");
        assert!(text.ends_with("no clear difference between it and nvme."), "{text}");
    }

    #[test]
    fn too_few_rounds_and_one_transport_say_nothing() {
        let results = measured(&[("tcp", Iscsi, slow), ("rdma", Iser, fast)], 3);
        let text = choice(&results).expect("two transports");
        assert!(text.contains("from 3 rounds") && text.contains("--rounds 6"), "{text}");
        assert_eq!(choice(&measured(&[("a", Iscsi, slow), ("b", Iscsi, fast)], 6)), None);
    }
}
