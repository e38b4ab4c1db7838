//! `xtask initiator`: lunet's own initiator against libiscsi's iscsi-perf, on the same target and core.
//!
//! A load generator that costs less can be trusted further: what it measures is the target. The figure is reads per
//! second of CPU time of the whole client process, and the ratio is taken within a round, because the machine's speed is
//! much the same for neighbours in time.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use lunet_client::front::Front;
use lunet_client::iscsi::{Initiator, Target};
use lunet_client::nvme::{self, Host};
use lunet_client::{Outcome, Plan, ReadData, Workload};
use lunet_e2e::process::{output, pinned};

use super::loads::{self, LOADS, Load, Tool};
use super::peers::{self, Medium};
use super::spread::Spread;
use super::{CLIENT_CORE, TARGET_CORE, usage};

/// Options of `xtask initiator`.
#[derive(Args)]
pub struct Arguments {
    /// Number of rounds
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Duration of each run in seconds
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// A running target, which is only read [default: a lunet with a memory volume is started]
    #[arg(long)]
    url: Option<String>,
    /// Directory for the files of the volumes
    #[arg(long, default_value = "target")]
    scratch: std::path::PathBuf,
}

/// Options of `xtask load`: one run of the own initiator, in a process of its own.
#[derive(Args)]
pub struct LoadArguments {
    url: String,
    block: u32,
    depth: u32,
    seconds: u64,
    /// Receive the data into memory instead of discarding it
    #[arg(long)]
    receive: bool,
    /// Number of sessions, each at that queue depth
    #[arg(long, default_value_t = 1)]
    sessions: u32,
    /// Write instead of reading
    #[arg(long)]
    writes: bool,
}

/// Runs one load and prints how many operations it did.
pub fn load(arguments: &LoadArguments) -> Result<()> {
    let workload = Workload {
        depth: arguments.depth,
        jobs: arguments.sessions,
        reads_percent: if arguments.writes { 0 } else { 100 },
        runtime: Some(Duration::from_secs(arguments.seconds)),
        read_data: if arguments.receive { ReadData::Receive } else { ReadData::Discard },
        ..Workload::new(arguments.block)
    };
    let outcome = if arguments.url.starts_with("nvme-tcp://") {
        run_load(Host::from(nvme::Target::parse(&arguments.url)?), workload)?
    } else {
        run_load(Initiator::from(Target::parse(&arguments.url)?), workload)?
    };
    let failures = outcome.failures();
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    println!("{}", outcome.work.operations());
    Ok(())
}

fn run_load<F: Front>(front: F, workload: Workload) -> Result<Outcome> {
    let plan = Plan { threads: Some(1), ..Plan::new(front, workload) };
    Ok(lunet_client::run(&plan, &AtomicBool::new(false), |_| {})?)
}

/// Who makes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    IscsiPerf,
    Discard,
    Receive,
}

impl Client {
    const ALL: [Self; 3] = [Self::IscsiPerf, Self::Discard, Self::Receive];

    fn name(self) -> &'static str {
        match self {
            Self::IscsiPerf => "iscsi-perf",
            Self::Discard => "lunet, data thrown away",
            Self::Receive => "lunet, data received",
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Operations per second.
    speed: f64,
    /// Operations per second of the client's CPU time.
    per_cpu: f64,
}

/// Runs everything and prints the table.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.rounds > 0 && arguments.seconds > 0, "rounds and seconds begin at 1");
    std::fs::create_dir_all(&arguments.scratch)?;
    let size = 512 << 20;
    let peer = match &arguments.url {
        Some(_) => None,
        None => Some(peers::lunet("lunet", "", &arguments.scratch, size, TARGET_CORE)?),
    };
    let url = match (&arguments.url, &peer) {
        (Some(url), _) => url.clone(),
        (None, Some(peer)) => peer.url(Medium::Memory),
        (None, None) => unreachable!("one of them is there"),
    };
    if peer.is_some() {
        loads::fill(&url, size)?;
    }
    println!(
        "| load | client | operations per second | per CPU second of the client | ratio to iscsi-perf |"
    );
    println!("|---|---|---|---|---|");
    let reads = LOADS.iter().filter(|load| matches!(load.tool, Tool::IscsiPerf) && load.depth > 1);
    for load in reads {
        let round = |_| Client::ALL.map(|client| sample(client, load, &url, arguments.seconds));
        let rounds = (0..arguments.rounds).map(round).map(|round| {
            let [a, b, c] = round;
            Ok([a?, b?, c?])
        });
        let rounds: Vec<[Sample; 3]> = rounds.collect::<Result<_>>()?;
        for (n, client) in Client::ALL.into_iter().enumerate() {
            let spread = |measure: &dyn Fn(&[Sample; 3]) -> f64| {
                Spread::of(rounds.iter().map(measure).collect())
            };
            let thousands =
                |spread: Option<Spread>| spread.map_or_else(String::new, Spread::thousands);
            let speed = thousands(spread(&|round| round[n].speed));
            let per_cpu = thousands(spread(&|round| round[n].per_cpu));
            let ratio = spread(&|round| round[n].per_cpu / round[0].per_cpu);
            let ratio = ratio.map_or_else(String::new, Spread::ratio);
            println!("| {} | {} | {speed} | {per_cpu} | {ratio} |", load.name, client.name());
        }
    }
    println!(
        "\nEach cell: the median of {} interleaved rounds of {} s, in brackets the least and the greatest.",
        arguments.rounds, arguments.seconds
    );
    Ok(())
}

fn sample(client: Client, load: &Load, url: &str, seconds: u32) -> Result<Sample> {
    let before = usage::children()?;
    let operations = match client {
        Client::IscsiPerf => loads::run(load, url, seconds, CLIENT_CORE)?.operations,
        Client::Discard | Client::Receive => own(client, load, url, seconds)?,
    };
    let cpu = (usage::children()? - before).as_secs_f64();
    ensure!(cpu > 0.0 && operations > 0.0, "{}: {} did nothing", client.name(), load.name);
    Ok(Sample { speed: operations / f64::from(seconds), per_cpu: operations / cpu })
}

/// This program once more, as the client: its CPU time is counted apart.
fn own(client: Client, load: &Load, url: &str, seconds: u32) -> Result<f64> {
    let program = std::env::current_exe()?;
    let program = program.to_str().context("the program's path is not text")?;
    let mut command = pinned(program, Some(CLIENT_CORE));
    command.args(["load", url, &load.block.to_string(), &load.depth.to_string()]);
    command.arg(seconds.to_string());
    if client == Client::Receive {
        command.arg("--receive");
    }
    let text = output(&mut command, Duration::from_secs(u64::from(seconds) + 60))?;
    text.trim().parse().with_context(|| text.clone())
}
