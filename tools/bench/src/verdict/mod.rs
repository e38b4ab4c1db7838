//! The bottleneck: from what was measured and what each layer can carry.
//!
//! A layer binds when it works near its ceiling. Where none does, the operations wait for each other: with so many on their
//! way, and so long for each, Little's law gives exactly this rate, and the question is what takes that long. If that cannot
//! be told either, the verdict says so. Thresholds are constants with their reasons; the rules are pure functions.

mod evidence;
mod rules;
mod words;

pub use evidence::{CpuUse, Evidence, Extras};

use crate::model::{Bound, Load, Results, Verdict};

/// Judges every target with every workload of these results.
pub fn verdicts(results: &Results, extras: &dyn Fn(&str, &str) -> Extras) -> Vec<Verdict> {
    let mut told = Vec::new();
    for workload in &results.workloads {
        for target in &results.targets {
            let extras = extras(&target.name, &workload.name);
            let evidence = Evidence::of(results, target, workload, extras);
            told.extend(evidence.map(|evidence| verdict(&evidence)));
        }
    }
    told
}

/// Judges one.
pub fn verdict(evidence: &Evidence<'_>) -> Verdict {
    let mut layers = rules::layers(evidence);
    let bound = rules::binds(evidence, &layers);
    // The one that binds first, then those that are used most.
    layers.sort_by(|a, b| {
        let first = |load: &Load| Some(load.bound) == bound;
        first(b).cmp(&first(a)).then(b.share.total_cmp(&a.share))
    });
    Verdict {
        target: evidence.target.to_owned(),
        workload: evidence.workload.name.clone(),
        bound,
        sentence: words::sentence(evidence, bound, &layers),
        advice: words::advice(evidence, bound).to_owned(),
        layers,
    }
}

impl Bound {
    /// For people: `the network`.
    pub fn name(self) -> &'static str {
        words::name(self)
    }
}

#[cfg(test)]
mod tests;
