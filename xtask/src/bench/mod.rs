//! `xtask bench`: lunet against tgt, stock and tuned, in one interleaved run.
//!
//! The speed of a machine moves by a factor from hour to hour. So every round runs every load against every target, one
//! after the other, and only ratios and CPU time per byte are worth comparing.

pub mod compare;
mod idle;
pub mod initiator;
mod loads;
mod machine;
pub mod neighbour;
mod peers;
mod report;
mod usage;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use loads::{DEPTH_ONE, LOADS, Load};
use peers::{BUSY, Medium, Peer};
use report::{Report, Sample};

/// The client's core and the target's.
const CLIENT_CORE: usize = 0;
const TARGET_CORE: usize = 1;

/// Options of `xtask bench`.
#[derive(Args)]
pub struct Arguments {
    /// How often everything is repeated.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// How long each iscsi-perf run takes.
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Size of each volume in MiB. Eight of them are made, five of these in memory.
    #[arg(long, default_value_t = 1024)]
    size: u64,
    /// Where the files of the volumes are made: on a disk, not in memory.
    #[arg(long, default_value = "target")]
    scratch: PathBuf,
    /// Where the report goes.
    #[arg(long, default_value = "docs/benchmarks")]
    out: PathBuf,
}

/// Runs everything and writes the report.
pub fn run(arguments: Arguments) -> Result<()> {
    ensure!(arguments.rounds > 0 && arguments.seconds > 0, "rounds and seconds begin at 1");
    let cores = std::thread::available_parallelism()?.get();
    ensure!(cores > TARGET_CORE, "the client and the target need a core each; here is {cores}");
    let machine = machine::look()?;
    fs::create_dir_all(&arguments.scratch)?;
    let size = arguments.size << 20;

    let mut idles = Vec::new();
    let peers = peers::start(&arguments.scratch, size, TARGET_CORE)?;
    for peer in peers.iter().filter(|peer| peer.name != BUSY) {
        eprintln!("idle sessions: {}", peer.name);
        idles.push(idle::measure(peer).with_context(|| peer.name)?);
    }
    let samples = measure(&peers, &arguments, size)?;
    drop(peers);

    let report = Report::new(machine, &arguments, idles, samples);
    write(&report, &arguments.out)?;
    println!("{}", report.markdown());
    Ok(())
}

fn measure(peers: &[Peer], arguments: &Arguments, size: u64) -> Result<Vec<Sample>> {
    for peer in peers {
        for medium in Medium::ALL {
            eprintln!("filling: {}, {}", peer.name, medium.name());
            loads::fill(&peer.url(medium), size).with_context(|| peer.name)?;
        }
    }
    let mut samples = Vec::new();
    for round in 1..=arguments.rounds {
        for medium in Medium::ALL {
            for load in &LOADS {
                // Every round begins with another peer: none is always the one after the busiest.
                let first = (round as usize - 1) % peers.len();
                for peer in peers.iter().cycle().skip(first).take(peers.len()) {
                    if peer.name == BUSY && (load.name != DEPTH_ONE.name || medium == Medium::File)
                    {
                        continue;
                    }
                    let sample = sample(peer, medium, load, round, arguments.seconds)?;
                    eprintln!(
                        "round {round}/{}  {:6}  {:30}  {:15}  {:9.0}/s  {:7.3} CPU s/GiB",
                        arguments.rounds,
                        medium.name(),
                        load.name,
                        peer.name,
                        sample.per_second,
                        sample.cpu_per_gib
                    );
                    samples.push(sample);
                }
            }
        }
    }
    Ok(samples)
}

fn sample(peer: &Peer, medium: Medium, load: &Load, round: u32, seconds: u32) -> Result<Sample> {
    let before = usage::cpu(peer.pid())?;
    let done = loads::run(load, &peer.url(medium), seconds, CLIENT_CORE)
        .with_context(|| format!("{}, {}, {}", peer.name, medium.name(), load.name))?;
    let cpu = usage::cpu(peer.pid())? - before;
    let elapsed = done.elapsed.as_secs_f64();
    let bytes = done.operations * load.block as f64;
    ensure!(done.operations > 0.0 && elapsed > 0.0, "{}: {} did nothing", peer.name, load.name);
    Ok(Sample {
        round,
        peer: peer.name.to_owned(),
        medium: medium.name().to_owned(),
        load: load.name.to_owned(),
        per_second: done.operations / elapsed,
        mib_per_second: bytes / elapsed / f64::from(1 << 20),
        // The client keeps `depth` operations on their way all the time (Little's law).
        mean_latency_us: elapsed * 1e6 * f64::from(load.depth) / done.operations,
        cpu_per_gib: cpu.as_secs_f64() / (bytes / f64::from(1 << 30)),
    })
}

fn write(report: &Report, out: &Path) -> Result<()> {
    fs::create_dir_all(out)?;
    let base = out.join(&report.machine.date);
    let (json, page) = (base.with_extension("json"), base.with_extension("md"));
    fs::write(&json, serde_json::to_string_pretty(report)? + "\n")?;
    fs::write(&page, report.markdown())?;
    eprintln!("wrote {} and {}", json.display(), page.display());
    Ok(())
}
