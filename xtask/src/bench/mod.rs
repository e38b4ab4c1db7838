//! `xtask bench`: lunet against tgt, stock and tuned, and whatever else is named, in one run of `lunet bench`.
//!
//! This starts the servers on one core, lets the verb make the load on another one, and writes what it found under
//! docs/benchmarks: the JSON and the page as `lunet bench` makes them, and a short page of tables.

pub mod agree;
pub mod compare;
pub mod drive;
mod fio;
mod idle;
pub mod initiator;
mod loads;
pub mod machine;
pub mod neighbour;
mod peers;
mod report;
pub mod restart;
pub mod spread;
pub mod transports;
pub mod usage;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use clap::Args;
use lunet_bench::model::Results;
use lunet_e2e::process::leashed;
use lunet_e2e::server::lunet_binary;

use idle::Idle;
use peers::{BUSY, Medium, Peer};
use report::Report;

/// The client's core and the target's.
const CLIENT_CORE: usize = 0;
const TARGET_CORE: usize = 1;

/// The name of the target that lunet serves here, and the same as a subsystem of NVMe.
const TARGET: &str = "iqn.2026-11.local.lunet:bench";
const SUBSYSTEM: &str = "nqn.2026-11.local.lunet:bench";

/// What the verb runs: workloads of its profile `sweep`.
const PROFILE: &str = "sweep";
const LOADS: [&str; 5] = [
    "4k random reads, depth 32",
    "128k random reads, depth 32",
    "4k random reads, depth 1",
    "128k random writes, depth 32",
    "4k random I/O, 70 % reads, depth 32",
];

/// Options of `xtask bench`.
#[derive(Args)]
pub struct Arguments {
    /// Number of rounds; six are the fewest that give a confidence interval
    #[arg(long, default_value_t = 6)]
    rounds: u32,
    /// Duration of each run, as for `lunet bench`
    #[arg(long, default_value = "1500ms")]
    runtime: String,
    /// Size of each volume in MiB; seven are created, four of them in memory
    #[arg(long, default_value_t = 1024)]
    size: u64,
    /// Another running target, as NAME=iscsi://HOST/TARGET/LUN; it is written to; can be repeated
    #[arg(long, value_name = "NAME=URL")]
    target: Vec<String>,
    /// Overwrite this other target although it holds data, as for `lunet bench`; can be repeated
    #[arg(long, value_name = "URL")]
    destroy: Vec<String>,
    /// Directory for the files of the volumes, on a disk and not in memory
    #[arg(long, default_value = "target")]
    scratch: PathBuf,
    /// Directory for the report
    #[arg(long, default_value = "docs/benchmarks")]
    out: PathBuf,
}

/// Runs everything and writes the report.
pub fn run(arguments: &Arguments) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    ensure!(cores > TARGET_CORE, "the client and the target need a core each; here is {cores}");
    let about = machine::look()?;
    fs::create_dir_all(&arguments.scratch)?;
    let peers = peers::start(&arguments.scratch, arguments.size << 20, TARGET_CORE)?;
    let mut idles = Vec::new();
    for peer in peers.iter().filter(|peer| peer.name != BUSY) {
        eprintln!("idle sessions: {}", peer.name);
        idles.push(idle::measure(peer).with_context(|| peer.name)?);
    }
    let mut results = measure(&peers, arguments)?;
    let how = peers.iter().map(|peer| (peer.name, peer.how.clone())).collect();
    drop(peers);
    if let Some(machine) = results.machines.first_mut() {
        machine.sections.push(about.section());
        machine.sections.push(Idle::section(&idles));
    }
    let report = Report { about, how, idles, results };
    write(&report, &arguments.out)?;
    println!("{}", report.markdown());
    Ok(())
}

/// The name of a peer's volume in the results.
fn called(peer: &str, medium: Medium) -> String {
    format!("{peer}, {}", medium.name())
}

/// One run of the verb: `lunet bench`.
fn measure(peers: &[Peer], arguments: &Arguments) -> Result<Results> {
    let mut command = leashed(None);
    command.arg(lunet_binary()?).args(["bench", "--json", "--profile", PROFILE]);
    command.args(["--rounds", &arguments.rounds.to_string(), "--runtime", &arguments.runtime]);
    command.args(["--size", &format!("{}MiB", arguments.size)]);
    command.args(["--cpus", &CLIENT_CORE.to_string()]);
    command.args(LOADS.iter().flat_map(|load| ["--only", load]));
    command.args(arguments.destroy.iter().flat_map(|url| ["--destroy", url]));
    if let Some(null) = peers.iter().find_map(Peer::null_url) {
        command.args(["--null", &null]);
    }
    for medium in Medium::ALL {
        for peer in peers.iter().filter(|peer| peer.name != BUSY || medium == Medium::Memory) {
            command.arg(format!("{}={}", called(peer.name, medium), peer.url(medium)));
        }
    }
    command.args(&arguments.target);
    eprintln!("lunet bench runs: about eight minutes, and one more for each other target");
    // Its bar and its sentences are for whoever looks.
    let told = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    ensure!(told.status.success(), "lunet bench: {}", told.status);
    let mut results = Results::from_json(&String::from_utf8(told.stdout)?, "its results")?;
    // The page is published, and what else runs on a machine is its owner's business: how much it was stays.
    for other in results.runs.iter_mut().flat_map(|run| &mut run.others) {
        "another program".clone_into(&mut other.name);
    }
    Ok(results)
}

fn write(report: &Report, out: &Path) -> Result<()> {
    fs::create_dir_all(out)?;
    let base = out.join(&report.about.date);
    let files = [
        // Thousands of lines of white space are of no use to anybody.
        ("json", serde_json::to_string(&report.results)? + "\n"),
        ("html", lunet_bench::report::page(&report.results)),
        ("md", report.markdown()),
    ];
    for (kind, text) in files {
        let file = base.with_extension(kind);
        fs::write(&file, text)?;
        eprintln!("wrote {}", file.display());
    }
    Ok(())
}
