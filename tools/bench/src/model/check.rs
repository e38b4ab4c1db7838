//! Whether results make sense.

use std::collections::HashSet;
use std::fmt;

use super::{Latency, Results, SCHEMA};

/// How results contradict themselves, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw(String);

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Flaw {}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Flaw> {
    if holds { Ok(()) } else { Err(Flaw(what())) }
}

/// Names are unique, runs refer to what is there, numbers are finite and not negative, histograms add up.
///
/// # Errors
/// Returns the first value that contradicts another.
pub fn check(results: &Results) -> Result<(), Flaw> {
    ensure(results.schema == SCHEMA, || format!("schema is {}, not {SCHEMA}", results.schema))?;
    let targets = names("target", results.targets.iter().map(|target| target.name.as_str()))?;
    let loads = names("workload", results.workloads.iter().map(|load| load.name.as_str()))?;
    for load in &results.workloads {
        let possible = load.block_bytes > 0 && load.outstanding() > 0 && load.read_percent <= 100;
        ensure(possible, || format!("workload {} cannot be run", load.name))?;
        number("seconds", load.seconds)?;
    }
    let mut seen = HashSet::new();
    for run in &results.runs {
        let place = (run.round, run.target.as_str(), run.workload.as_str());
        known("run", &targets, &run.target)?;
        known("run", &loads, &run.workload)?;
        ensure(run.round > 0, || "rounds begin at 1".to_owned())?;
        ensure(seen.insert(place), || format!("two runs of {place:?}"))?;
        numbers(run)?;
        for latency in
            [&run.read, &run.write].into_iter().flatten().filter_map(|flow| flow.latency.as_ref())
        {
            histogram(latency)?;
        }
        run.sync.iter().try_for_each(histogram)?;
    }
    for ceiling in &results.ceilings {
        ceiling.target.iter().try_for_each(|name| known("ceiling", &targets, name))?;
        ceiling.workload.iter().try_for_each(|name| known("ceiling", &loads, name))?;
        number(&ceiling.name, ceiling.value)?;
        ensure(!ceiling.how.is_empty(), || format!("{}: how it was got is missing", ceiling.name))?;
    }
    for verdict in &results.verdicts {
        known("verdict", &targets, &verdict.target)?;
        known("verdict", &loads, &verdict.workload)?;
        verdict.layers.iter().try_for_each(|layer| number(&layer.name, layer.share))?;
    }
    Ok(())
}

fn names<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<HashSet<&'a str>, Flaw> {
    let mut seen = HashSet::new();
    for name in names {
        ensure(!name.is_empty(), || format!("a {what} has no name"))?;
        ensure(seen.insert(name), || format!("two {what}s have the name {name}"))?;
    }
    Ok(seen)
}

fn known(what: &str, names: &HashSet<&str>, name: &str) -> Result<(), Flaw> {
    ensure(names.contains(name), || format!("a {what} is of {name}, which is not there"))
}

fn number(what: &str, value: f64) -> Result<(), Flaw> {
    ensure(value.is_finite() && value >= 0.0, || format!("{what} is {value}"))
}

fn numbers(run: &super::Run) -> Result<(), Flaw> {
    number("seconds", run.seconds)?;
    number("server_latency_us", run.server_latency_us.unwrap_or(0.0))?;
    for flow in run.read.iter().chain(&run.write) {
        number("mib_per_s", flow.mib_per_s)?;
        number("iops", flow.iops)?;
    }
    for second in &run.timeline {
        number("at_s", second.at_s)?;
        number("read_mib_per_s", second.read_mib_per_s)?;
        number("write_mib_per_s", second.write_mib_per_s)?;
    }
    for process in run.processes.iter().chain(&run.others) {
        number("user_s", process.user_s)?;
        number("system_s", process.system_s)?;
    }
    Ok(())
}

fn histogram(latency: &Latency) -> Result<(), Flaw> {
    let sum: u64 = latency.buckets.iter().map(|bucket| bucket.count).sum();
    ensure(latency.buckets.is_empty() || sum == latency.count, || {
        format!("a histogram holds {sum} of {} operations", latency.count)
    })?;
    let rising = latency.buckets.windows(2).all(|two| two[0].to_us <= two[1].from_us * 1.000_01);
    let wide = latency.buckets.iter().all(|bucket| bucket.from_us < bucket.to_us);
    ensure(rising && wide, || "the buckets of a histogram do not rise".to_owned())?;
    let climbing = latency.percentiles.windows(2).all(|two| two[0].us <= two[1].us);
    ensure(climbing, || "percentiles do not rise".to_owned())?;
    number("mean_us", latency.mean_us)
}
