//! `xtask compare`: this lunet against another build of it, in one interleaved run.
//!
//! For changes that shall not slow the plain path: the figure is the median of the rounds' ratios, because the two runs of a
//! round are neighbours in time, and the machine's speed is much the same for both.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::loads::{LOADS, Load, Tool};
use super::peers::{self, Build, Medium};
use super::spread::Spread;
use super::{CLIENT_CORE, TARGET_CORE, loads, usage};

/// Options of `xtask compare`.
#[derive(Args)]
pub struct Arguments {
    /// The lunet program of the other build
    before: PathBuf,
    /// Number of rounds
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Duration of each timed run in seconds
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Measure all queue depths and numbers of sessions with lunet's load generator, instead of the usual loads
    #[arg(long)]
    depths: bool,
    /// Over NVMe/TCP instead of iSCSI
    #[arg(long, requires = "depths")]
    nvme: bool,
    /// A line for `[server]` of this build, such as 'busy-poll = "0s"'
    #[arg(long, default_value = "", conflicts_with = "watched")]
    setting: String,
    /// A line for `[server]` of the other build
    #[arg(long, default_value = "")]
    setting_before: String,
    /// Watch this build meanwhile: its metrics are read once a second, and its events as they come
    #[arg(long)]
    watched: bool,
    /// Only rows that contain this, such as 'memory' or 'depth 32,' [default: all]; can be repeated
    #[arg(long)]
    only: Vec<String>,
    /// Size of each volume in MiB; two are created in memory and two in files
    #[arg(long, default_value_t = 512)]
    size: u64,
    /// Directory for the files of the volumes, on a disk and not in memory
    #[arg(long, default_value = "target")]
    scratch: PathBuf,
}

/// What is measured: a volume, and the process that serves it.
pub struct Place {
    /// For messages.
    pub name: &'static str,
    /// The server.
    pub pid: u32,
    /// The volume, over iSCSI or NVMe.
    pub url: String,
}

/// One run of one load at one place.
#[derive(Clone, Copy)]
pub struct Sample {
    /// Operations.
    pub per_second: f64,
    /// Operations for each second of CPU time of the server, user and system.
    pub per_cpu: f64,
    /// CPU time of the server and the processes that it has started, user and system, in seconds.
    pub cpu_per_gib: f64,
}

/// Runs everything and prints the ratios.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.rounds > 0 && arguments.seconds > 0, "rounds and seconds begin at 1");
    fs::create_dir_all(&arguments.scratch)?;
    let size = arguments.size << 20;
    let scratch = &arguments.scratch;
    let (other, old) = (&arguments.before, &arguments.setting_before);
    let nvme = arguments.nvme;
    let old = Build { program: Some(other), more: old, nvme, watched: false };
    let new = Build { program: None, more: &arguments.setting, nvme, watched: arguments.watched };
    let before = peers::lunet_of(old, "before", scratch, size, TARGET_CORE)?;
    let after = peers::lunet_of(new, "after", scratch, size, TARGET_CORE)?;
    for peer in [&before, &after] {
        for medium in Medium::ALL {
            loads::fill(&peer.url(medium), size)?;
        }
    }
    println!("| volume in | load | operations per second | CPU per GiB |\n|---|---|---|---|");
    let loads = if arguments.depths {
        depths()
    } else {
        LOADS.iter().map(|load| (load.name.to_owned(), *load)).collect()
    };
    for medium in Medium::ALL {
        for (name, load) in &loads {
            let row = format!("| {} | {name} |", medium.name());
            if !arguments.only.is_empty() && !arguments.only.iter().any(|part| row.contains(part)) {
                continue;
            }
            let places = [&before, &after].map(|peer| peer.place(medium));
            let rounds = rounds_of(&places, load, arguments.rounds, arguments.seconds)?;
            let ratio = |measure: fn(&Sample) -> f64| {
                Spread::of(rounds.iter().map(|[old, new]| measure(new) / measure(old)).collect())
            };
            let cell = |spread: Option<Spread>| spread.map_or_else(String::new, Spread::ratio);
            let speed = cell(ratio(|sample| sample.per_second));
            let cpu = cell(ratio(|sample| sample.cpu_per_gib));
            println!("{row} {speed} | {cpu} |");
        }
    }
    println!(
        "\nafter / before: the median of {} rounds, in brackets the least and the greatest.",
        arguments.rounds
    );
    Ok(())
}

/// Reads and writes of both sizes at all depths, from one, four and eight sessions.
pub fn depths() -> Vec<(String, Load)> {
    const SIZES: [(u64, &str, &[u32]); 2] =
        [(4 << 10, "4k", &[1, 4, 8, 16, 32, 64, 128]), (128 << 10, "128k", &[1, 4, 32])];
    let mut loads = Vec::new();
    for (block, size, depths) in SIZES {
        for sessions in [1, 4, 8] {
            for &depth in depths {
                for writes in [false, true] {
                    let kind = if writes { "writes" } else { "reads" };
                    let name = format!("{size} random {kind}, depth {depth}, sessions {sessions}");
                    let tool = Tool::Own { sessions, writes };
                    loads.push((name, Load { name: "own initiator", tool, block, depth }));
                }
            }
        }
    }
    loads
}

/// So many rounds at two places, one after the other; who begins changes with the rounds.
pub fn rounds_of(
    [one, other]: &[Place; 2],
    load: &Load,
    rounds: u32,
    seconds: u32,
) -> Result<Vec<[Sample; 2]>> {
    let take = |place| sample(place, load, seconds);
    let round = |round| {
        Ok(if round % 2 == 0 {
            let first = take(one)?;
            [first, take(other)?]
        } else {
            let second = take(other)?;
            [take(one)?, second]
        })
    };
    (1..=rounds).map(round).collect()
}

/// One run at a place.
pub fn sample(place: &Place, load: &Load, seconds: u32) -> Result<Sample> {
    let before = usage::cpu_of_all(place.pid)?;
    let done = loads::run(load, &place.url, seconds, CLIENT_CORE)
        .with_context(|| format!("{}, {}", place.name, load.name))?;
    let cpu = (usage::cpu_of_all(place.pid)? - before).as_secs_f64();
    let elapsed = done.elapsed.as_secs_f64();
    let bytes = done.operations * load.block as f64;
    ensure!(done.operations > 0.0 && elapsed > 0.0, "{}: {} did nothing", place.name, load.name);
    Ok(Sample {
        per_second: done.operations / elapsed,
        per_cpu: done.operations / cpu,
        cpu_per_gib: cpu / (bytes / f64::from(1 << 30)),
    })
}
