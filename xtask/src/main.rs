//! The project's own tools. `make bench` and `make conformance` call them.

#![forbid(unsafe_code)]

mod bench;
mod build_time;
mod conformance;
mod conformance_nvme;
mod planted;
mod scale;

use anyhow::Result;
use clap::Parser;

/// Development tools of lunet.
#[derive(Parser)]
#[command(name = "xtask")]
enum Tool {
    /// Compare lunet with tgt and other targets on this machine, and write docs/benchmarks/ (root, two cores)
    Bench(bench::Arguments),
    /// Compare this build of lunet with another one, and print the ratios (two cores)
    Compare(bench::compare::Arguments),
    /// Compare lunet's transports on one volume in memory, and print the ratios (two cores)
    Transports(bench::transports::Arguments),
    /// Compare volumes in files of a disk with what fio reaches on that disk, and print the ratios (two cores)
    Drive(bench::drive::Arguments),
    /// Measure a volume while another volume's storage hangs, and print the ratios (two cores)
    Neighbour(bench::neighbour::Arguments),
    /// Restart lunet under load, and print the longest pause that initiators see (root, /dev/fuse)
    Restart(bench::restart::Arguments),
    /// Compare lunet's load generator with libiscsi's iscsi-perf: reads per CPU second (two cores)
    Initiator(bench::initiator::Arguments),
    /// Compare what fio and lunet's load generator measure on the same slow LUN (two cores, /dev/fuse)
    Agree(bench::agree::Arguments),
    /// Run one load of lunet's load generator; the other tools call it
    #[command(hide = true)]
    Load(bench::initiator::LoadArguments),
    /// Plant bottlenecks one by one, and check that lunet bench names them (root, two cores)
    Planted(planted::Arguments),
    /// Serve 1,000 LUNs to 10,000 sessions, and print what that costs; fails beyond its bounds (loopback)
    Scale(scale::Arguments),
    /// Build a fresh clone, and print wall and CPU time of each build and the size of the programs (two idle cores)
    BuildTime(build_time::Arguments),
    /// Run libiscsi's test suite on every configuration, and write docs/conformance.md
    Conformance(conformance::Arguments),
    /// Run other projects' NVMe test suites, and write docs/conformance-nvme.md
    ConformanceNvme(conformance_nvme::Arguments),
}

fn main() -> Result<()> {
    match Tool::parse() {
        Tool::Bench(arguments) => bench::run(&arguments),
        Tool::Compare(arguments) => bench::compare::run(&arguments),
        Tool::Transports(arguments) => bench::transports::run(&arguments),
        Tool::Drive(arguments) => bench::drive::run(&arguments),
        Tool::Neighbour(arguments) => bench::neighbour::run(&arguments),
        Tool::Restart(arguments) => bench::restart::run(&arguments),
        Tool::Initiator(arguments) => bench::initiator::run(&arguments),
        Tool::Agree(arguments) => bench::agree::run(&arguments),
        Tool::Load(arguments) => bench::initiator::load(&arguments),
        Tool::Planted(arguments) => planted::run(&arguments),
        Tool::Scale(arguments) => scale::run(&arguments),
        Tool::BuildTime(arguments) => build_time::run(&arguments),
        Tool::Conformance(arguments) => conformance::run(arguments),
        Tool::ConformanceNvme(arguments) => conformance_nvme::run(&arguments),
    }
}
