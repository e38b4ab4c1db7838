//! `lunet tune prove`

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use lunet_config::units;
use lunet_host::apply::{LiveMachine, Lock, Options};
use lunet_host::prove::{FEWEST, Fio, MOST, Progress, Proof, ProveError, prove as run, write};
use lunet_host::rules::Profile;
use lunet_host::source::Live;

use super::apply::Kept;
use super::{OwnRules, Selected, look, plan_for};
use lunet_cli::interrupt::of_the_end;
use lunet_cli::print;

/// Stopped by a signal, as shells count.
const STOPPED: u8 = 130;

#[derive(Args)]
pub struct ProveArgs {
    /// Where to measure: a directory, in which a temporary file is made, or a file or block device,
    /// which is only read
    path: PathBuf,
    /// What to tune for: throughput, latency or mixed (virtual machines)
    #[arg(long = "for", value_name = "WORKLOAD", default_value = "mixed")]
    profile: Profile,
    #[command(flatten)]
    chosen: Selected,
    #[command(flatten)]
    own: OwnRules,
    /// Number of rounds: more rounds tell smaller effects from noise
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = rounds)]
    rounds: usize,
    /// Duration of a run in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Size of the temporary file, such as 10GiB; one that is not larger than the memory measures
    /// the cache
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = units::parse_size)]
    size: u64,
    /// Make what helps persist across reboots
    #[arg(long)]
    persist: bool,
    #[command(flatten)]
    kept: Kept,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn rounds(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rounds) if (FEWEST..=MOST).contains(&rounds) => Ok(rounds),
        _ => Err(format!("{FEWEST} to {MOST} rounds: fewer tell nothing")),
    }
}

pub fn prove(args: &ProveArgs) -> Result<ExitCode> {
    let rules = args.own.load(true)?;
    let state = &args.kept.state;
    let _lock = Lock::take(state)?;
    let facts = look(&Live);
    let plan = plan_for(&Live, &facts, &rules, args.profile, args.chosen.choice())?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in of_the_end() {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    let truenas = facts.platform.truenas.is_some();
    let options = Options { state, persist: args.persist, truenas };
    let proof = Proof { rounds: args.rounds, seed: seed()?, options, stop: &stop };
    let told = Fio::new(args.profile, &args.path, args.size, args.seconds, &stop)
        .and_then(|mut fio| run(&LiveMachine, &plan, proof, &mut fio, &mut bar()));
    clear();
    match told {
        Ok(report) if args.json => print(&format!("{:#}\n", serde_json::to_value(&report)?))?,
        Ok(report) => {
            let load = Fio::words(args.profile, !args.path.is_dir());
            print(&format!("Load: {load}, {} s each run.\n{}", args.seconds, write(&report)))?;
        }
        Err(error @ ProveError::Stopped) => {
            let _ = writeln!(io::stderr(), "lunet: {error}");
            return Ok(ExitCode::from(STOPPED));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Another one each time: the order of the runs must not be that of the last proof.
fn seed() -> Result<u64> {
    let mut bytes = [0; 8];
    lunet_os::random::fill(&mut bytes).context("there are no random numbers")?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Shows how far it is: on a terminal in one line, otherwise a line for each run.
fn bar() -> impl FnMut(&Progress<'_>) {
    let start = Instant::now();
    move |progress| {
        let (done, all) = (progress.done, progress.all);
        if !io::stderr().is_terminal() {
            let _ = writeln!(io::stderr(), "run {} of {all}: {}", done + 1, progress.what);
            return;
        }
        let filled = done * 20 / all.max(1);
        let left = match (u32::try_from(done), u32::try_from(all - done)) {
            (Ok(done), Ok(left)) if done > 0 => {
                format!(", {} s left", (start.elapsed() / done * left).as_secs())
            }
            _ => String::new(),
        };
        let bar: String = (0..20).map(|at| if at < filled { '#' } else { '.' }).collect();
        let line = format!("[{bar}] run {} of {all}{left}: {}", done + 1, progress.what);
        let _ = write!(io::stderr(), "\r\x1b[K{line}");
    }
}

fn clear() {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}
