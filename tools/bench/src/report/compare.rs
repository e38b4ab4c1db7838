//! Two files of results, side by side.

use super::columns::wrapped;
use super::format::plain;
use super::page;
use super::table::ratios;
use crate::model::{Comparison, compare_results};
use crate::model::{Results, Workload};

/// Both in one: targets carry the labels, and workloads of the same name are the same if their parameters are.
pub fn joined(before: &Results, after: &Results, labels: (&str, &str)) -> Results {
    let mut all = Results {
        schema: before.schema,
        lunet: format!("{} and {}", before.lunet, after.lunet),
        started: after.started.clone(),
        seconds: before.seconds + after.seconds,
        profile: format!("{} and {}", before.profile, after.profile),
        ..Results::default()
    };
    for (results, label) in [(before, labels.0), (after, labels.1)] {
        add(&mut all, results, label);
    }
    all.summarise();
    // The two were not measured in turns.
    all.choice = None;
    all.comparisons = compare_results(before, after);
    for one in &mut all.comparisons {
        let target = one.base.trim_end_matches(", before").to_owned();
        one.base = format!("{}: {target}", labels.0);
        one.other = format!("{}: {target}", labels.1);
    }
    all
}

fn add(all: &mut Results, results: &Results, label: &str) {
    let own = |name: &str| format!("{label}: {name}");
    let mut renamed = Vec::new();
    for workload in &results.workloads {
        let mut workload = workload.clone();
        let same = |have: &Workload| have.name == workload.name && *have != workload;
        if all.workloads.iter().any(same) {
            let name = own(&workload.name);
            renamed.push((workload.name.clone(), name.clone()));
            workload.name = name;
        }
        if !all.workloads.contains(&workload) {
            all.workloads.push(workload);
        }
    }
    let load = |name: &str| {
        let new = renamed.iter().find(|(old, _)| old == name);
        new.map_or_else(|| name.to_owned(), |(_, new)| new.clone())
    };
    all.notes.extend(results.notes.iter().map(|note| own(note)));
    for (old, _) in &renamed {
        all.notes
            .push(format!("{old} is not the same workload in both files: it is not compared."));
    }
    all.targets.extend(results.targets.iter().cloned().map(|mut target| {
        target.name = own(&target.name);
        target
    }));
    all.runs.extend(results.runs.iter().cloned().map(|mut run| {
        (run.target, run.workload) = (own(&run.target), load(&run.workload));
        run
    }));
    for ceiling in &results.ceilings {
        // A ceiling of one file says nothing about the other one: it is that of each of its own targets.
        let of = results.targets.iter().map(|target| &target.name);
        for target in of.filter(|name| ceiling.target.as_ref().is_none_or(|own| own == *name)) {
            let mut ceiling = ceiling.clone();
            ceiling.name = own(&ceiling.name);
            ceiling.target = Some(own(target));
            ceiling.workload = ceiling.workload.map(|name| load(&name));
            all.ceilings.push(ceiling);
        }
    }
    all.verdicts.extend(results.verdicts.iter().cloned().map(|mut verdict| {
        (verdict.target, verdict.workload) = (own(&verdict.target), load(&verdict.workload));
        verdict
    }));
    all.machines.extend(results.machines.iter().cloned().map(|mut machine| {
        machine.role = own(&machine.role);
        machine
    }));
    all.commands.extend(results.commands.iter().cloned().map(|mut command| {
        command.what = own(&command.what);
        command
    }));
}

/// Two files as a page, with the plots of one.
pub fn compare_page(before: &Results, after: &Results, labels: (&str, &str)) -> String {
    page::compared(&joined(before, after, labels), labels)
}

/// Two files as a table for the terminal, in a terminal of this width.
pub fn compare_table(
    before: &Results,
    after: &Results,
    labels: (&str, &str),
    width: Option<usize>,
) -> String {
    let all = joined(before, after, labels);
    let mut told = wrapped(&format!("A: {}", plain(labels.0)), width, 0, 3);
    told += &wrapped(&format!("B: {}", plain(labels.1)), width, 0, 3);
    told.push('\n');
    if all.comparisons.is_empty() {
        let none = "Nothing in A has a target and a workload of the same name in B.";
        return told + &wrapped(none, width, 0, 0);
    }
    let named = |one: &Comparison| {
        one.other.split_once(": ").map_or(one.other.as_str(), |(_, name)| name).to_owned()
    };
    let rows: Vec<(String, &Comparison)> =
        all.comparisons.iter().map(|one| (named(one), one)).collect();
    told += &ratios(Some(["workload", "target", "what", "B / A"]), &rows, width);
    told.push('\n');
    let apart = "The runs were not interleaved: what changed on the machine between A and B counts as a difference.";
    told + &wrapped(apart, width, 0, 0)
}
