//! The project's own tools. `make bench` and `make conformance` call them.

#![forbid(unsafe_code)]

mod bench;
mod conformance;

use anyhow::Result;
use clap::Parser;

/// Tools for those who work on lunet.
#[derive(Parser)]
#[command(name = "xtask")]
enum Tool {
    /// Compares lunet with tgt on this machine and writes docs/benchmarks/. Needs root and two cores.
    Bench(bench::Arguments),
    /// Compares this build of lunet with another one, and prints the ratios. Needs two cores.
    Compare(bench::compare::Arguments),
    /// Measures a volume beside one that does not answer, and prints the ratios. Needs two cores.
    Neighbour(bench::neighbour::Arguments),
    /// Runs libiscsi's test suite against a volume and writes docs/conformance.md.
    Conformance(conformance::Arguments),
}

fn main() -> Result<()> {
    match Tool::parse() {
        Tool::Bench(arguments) => bench::run(arguments),
        Tool::Compare(arguments) => bench::compare::run(&arguments),
        Tool::Neighbour(arguments) => bench::neighbour::run(&arguments),
        Tool::Conformance(arguments) => conformance::run(arguments),
    }
}
