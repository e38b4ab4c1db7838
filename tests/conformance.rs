//! libiscsi's own test suite, on the configurations that together run all of it. `make conformance` runs it on many more.

use std::thread;

use anyhow::{Result, ensure};
use lunet_e2e::conformance::configurations::{SELECTION, all};
use lunet_e2e::conformance::matrix::run_all;
use lunet_e2e::conformance::page::never_passed;
use lunet_e2e::conformance::{list, reasons::NEVER};

#[test]
fn every_test_passes_somewhere_and_none_fails_or_hangs() -> Result<()> {
    let names = list()?;
    let (chosen, missing): (Vec<_>, Vec<_>) = all()
        .into_iter()
        .filter(|configuration| SELECTION.contains(&configuration.name.as_str()))
        .partition(|configuration| configuration.obstacle().is_none());
    for configuration in missing {
        println!("left out: {}: {:?}", configuration.name, configuration.obstacle());
    }
    // The tests of the suite sleep more than they work.
    let jobs = thread::available_parallelism()?.get() * 2;
    let outcomes = run_all(&chosen, &names, jobs, |_, _| ())?;
    let mut failures = String::new();
    for (configuration, outcome) in chosen.iter().zip(&outcomes) {
        for line in outcome.report.failures().lines() {
            failures.push_str(&format!("{}: {line}\n", configuration.name));
        }
        ensure!(outcome.digests != Some(0), "{}: no digest was checked", configuration.name);
    }
    ensure!(failures.is_empty(), "{failures}");
    let never: Vec<&str> = NEVER.iter().map(|(test, _)| *test).collect();
    let outcomes: Vec<_> = outcomes.iter().collect();
    assert_eq!(never_passed(&names, &outcomes), never);
    Ok(())
}
