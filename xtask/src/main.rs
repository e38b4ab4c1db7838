//! The project's own tools. `make bench` and `make conformance` call them.

#![forbid(unsafe_code)]

mod bench;
mod conformance;
mod planted;

use anyhow::Result;
use clap::Parser;

/// Tools for those who work on lunet.
#[derive(Parser)]
#[command(name = "xtask")]
enum Tool {
    /// Compares lunet with tgt, and with other targets, on this machine and writes docs/benchmarks/. Needs root and two cores.
    Bench(bench::Arguments),
    /// Compares this build of lunet with another one, and prints the ratios. Needs two cores.
    Compare(bench::compare::Arguments),
    /// Measures a volume beside one that does not answer, and prints the ratios. Needs two cores.
    Neighbour(bench::neighbour::Arguments),
    /// Compares lunet's initiator with libiscsi's iscsi-perf: reads per CPU second. Needs two cores.
    Initiator(bench::initiator::Arguments),
    /// Compares what fio and lunet's initiator say of the same slow LUN. Needs two cores and /dev/fuse.
    Agree(bench::agree::Arguments),
    /// Runs one load of lunet's initiator; `initiator` calls it.
    #[command(hide = true)]
    Load(bench::initiator::LoadArguments),
    /// Plants bottlenecks one by one, and looks whether lunet bench names them. Needs root and two cores.
    Planted(planted::Arguments),
    /// Runs libiscsi's test suite against a volume and writes docs/conformance.md.
    Conformance(conformance::Arguments),
}

fn main() -> Result<()> {
    match Tool::parse() {
        Tool::Bench(arguments) => bench::run(&arguments),
        Tool::Compare(arguments) => bench::compare::run(&arguments),
        Tool::Neighbour(arguments) => bench::neighbour::run(&arguments),
        Tool::Initiator(arguments) => bench::initiator::run(&arguments),
        Tool::Agree(arguments) => bench::agree::run(&arguments),
        Tool::Load(arguments) => bench::initiator::load(&arguments),
        Tool::Planted(arguments) => planted::run(&arguments),
        Tool::Conformance(arguments) => conformance::run(arguments),
    }
}
