//! Runs worlds: `lunet-sim --seeds 2000`, or one of them with its story: `lunet-sim --story SEED`.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use lunet_sim::scenario;

/// Seeds that one process runs: what a killed server had stays in memory until the process ends.
const CHUNK: u64 = 100;

/// Runs simulated worlds.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// How many to run at a time; as many as there are processors if not given.
    #[arg(long)]
    jobs: Option<usize>,
    /// Runs this seed alone, and prints what happened in its world.
    #[arg(long)]
    story: Option<u64>,
    /// Ends with the first seed that goes wrong.
    #[arg(long)]
    until_wrong: bool,
    /// Runs the seeds in this process, each twice, and says where the second world differs from the first.
    #[arg(long)]
    twice: bool,
    /// Runs the seeds in this process: for the other ways to call it.
    #[arg(long, hide = true)]
    here: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let seeds = arguments.first..arguments.first + arguments.seeds;
    let good = if let Some(seed) = arguments.story {
        story(seed)?
    } else if arguments.twice {
        seeds.map(twice).collect::<Result<Vec<bool>>>()?.into_iter().all(|same| same)
    } else if arguments.here {
        here(seeds)?
    } else {
        all(&arguments)?
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One world with its story.
fn story(seed: u64) -> Result<bool> {
    let report = scenario::run(seed)?;
    report.story.iter().for_each(|line| println!("{line}"));
    println!("{} operations, {} turns, {:?}", report.operations, report.turns, report.lasted);
    if let Some(wrong) = &report.wrong {
        println!("seed {seed}: {wrong}");
    }
    Ok(report.wrong.is_none())
}

/// Whether a seed gives the same world a second time.
fn twice(seed: u64) -> Result<bool> {
    let (one, two) = (scenario::run(seed)?.story, scenario::run(seed)?.story);
    let differs = one.iter().zip(&two).find(|(one, two)| one != two);
    if let Some((one, two)) = differs {
        println!("seed {seed}: {one}\n   the second time: {two}");
    }
    Ok(differs.is_none() && one.len() == two.len())
}

/// Worlds of this process: a line for each, for the parent.
fn here(seeds: impl Iterator<Item = u64>) -> Result<bool> {
    for seed in seeds {
        let report = scenario::run(seed)?;
        let wrong = report.wrong.unwrap_or_default().replace('\n', " ");
        println!("{seed} {} {} {wrong}", report.operations, report.turns);
    }
    Ok(true)
}

#[derive(Default)]
struct Totals {
    next: AtomicU64,
    done: AtomicU64,
    operations: AtomicU64,
    turns: AtomicU64,
    wrong: AtomicU64,
}

/// All seeds, in processes.
fn all(arguments: &Arguments) -> Result<bool> {
    let (begun, totals) = (Instant::now(), Totals::default());
    let jobs = arguments.jobs.or_else(|| Some(thread::available_parallelism().ok()?.get()));
    let result = thread::scope(|scope| {
        let workers: Vec<_> =
            (0..jobs.unwrap_or(1)).map(|_| scope.spawn(|| work(arguments, &totals))).collect();
        let mut told = begun;
        while workers.iter().any(|worker| !worker.is_finished()) {
            thread::sleep(Duration::from_millis(50));
            if told.elapsed() > Duration::from_secs(20) {
                told = Instant::now();
                eprintln!("{} of {} seeds", totals.done.load(Ordering::Relaxed), arguments.seeds);
            }
        }
        let joined = workers.into_iter().map(thread::ScopedJoinHandle::join);
        joined.map(|worker| worker.expect("it does not panic")).collect::<Result<Vec<()>>>()
    });
    result?;
    let (took, of) = (begun.elapsed().as_secs_f64(), |n: &AtomicU64| n.load(Ordering::Relaxed));
    println!(
        "{} seeds in {took:.1} s: {} operations ({:.0} a second), {} turns of threads; {} seeds went wrong",
        of(&totals.done),
        of(&totals.operations),
        of(&totals.operations) as f64 / took,
        of(&totals.turns),
        of(&totals.wrong)
    );
    Ok(of(&totals.wrong) == 0)
}

/// Runs chunks of the seeds in child processes until there are no more.
fn work(arguments: &Arguments, totals: &Totals) -> Result<()> {
    loop {
        let begin = totals.next.fetch_add(CHUNK, Ordering::Relaxed);
        if begin >= arguments.seeds {
            return Ok(());
        }
        let count = CHUNK.min(arguments.seeds - begin);
        let first = arguments.first + begin;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--here", "--first", &first.to_string(), "--seeds", &count.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        let mut seen = 0;
        for line in lines {
            take(&line?, totals)?;
            seen += 1;
            if arguments.until_wrong && totals.wrong.load(Ordering::Relaxed) > 0 {
                totals.next.store(arguments.seeds, Ordering::Relaxed);
                child.kill()?;
                child.wait()?;
                return Ok(());
            }
        }
        child.wait()?;
        ensure!(seen == count, "the process of seed {} has ended by itself", first + seen);
    }
}

/// Takes the line of a seed.
fn take(line: &str, totals: &Totals) -> Result<()> {
    let mut words = line.splitn(4, ' ');
    let mut number =
        || words.next().unwrap_or_default().parse::<u64>().context("a line of a child");
    let (seed, operations, turns) = (number()?, number()?, number()?);
    let wrong = words.next().unwrap_or_default();
    totals.done.fetch_add(1, Ordering::Relaxed);
    totals.operations.fetch_add(operations, Ordering::Relaxed);
    totals.turns.fetch_add(turns, Ordering::Relaxed);
    if !wrong.is_empty() {
        totals.wrong.fetch_add(1, Ordering::Relaxed);
        println!("seed {seed}: {wrong}\n    see what happened: lunet-sim --story {seed}");
    }
    Ok(())
}
