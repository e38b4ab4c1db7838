//! Runs worlds: `lunet-sim --seeds 2000`, or one of them with its story: `lunet-sim --story SEED`.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use lunet_sim::coverage::Coverage;
use lunet_sim::scenario::{self, Plan, Report};
use lunet_sim::shrink::shrink;
use lunet_sim::watch;

/// Seeds that one process runs: what a killed server had stays in memory until the process ends.
const CHUNK: u64 = 20;

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
    /// Looks for a smaller world that goes wrong as that of this seed does, and prints what happened in it.
    #[arg(long)]
    shrink: Option<u64>,
    /// With --story or --shrink: the world's plan, as --shrink prints it; if left out, the seed's own.
    #[arg(long)]
    plan: Option<String>,
    /// Says of each enum that the server goes by which of its variants were reached.
    #[arg(long)]
    coverage: bool,
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
    watch::start()?;
    // Worlds use little of their memory, and half of their time would go into zeroing huge pages.
    rustix::thread::disable_transparent_huge_pages(true)?;
    let seeds = arguments.first..arguments.first + arguments.seeds;
    let plan = arguments.plan.as_deref().map(serde_json::from_str::<Plan>);
    let plan = plan.transpose().context("the plan cannot be read")?;
    let good = if let Some(seed) = arguments.story {
        story(seed, &scenario::run(seed, plan)?)
    } else if let Some(seed) = arguments.shrink {
        smaller(seed, plan)?
    } else if arguments.twice {
        seeds.map(twice).collect::<Result<Vec<bool>>>()?.into_iter().all(|same| same)
    } else if arguments.here {
        here(seeds)?
    } else {
        all(&arguments)?
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Lines of a story that are printed behind the one that says what is wrong.
const AFTERWARDS: usize = 10;

/// One world with its story.
fn story(seed: u64, report: &Report) -> bool {
    let wrong = report.story.iter().position(|line| line.contains(": WRONG: "));
    let end = wrong.map_or(report.story.len(), |at| (at + AFTERWARDS).min(report.story.len()));
    report.story[..end].iter().for_each(|line| println!("{line}"));
    if end < report.story.len() {
        println!("... and {} more lines", report.story.len() - end);
    }
    println!("{} operations, {} turns, {:?}", report.operations, report.turns, report.lasted);
    if let Some(wrong) = &report.wrong {
        println!("seed {seed}: {wrong}");
    }
    report.wrong.is_none()
}

/// A smaller world that goes wrong.
fn smaller(seed: u64, plan: Option<Plan>) -> Result<bool> {
    let found = shrink(seed, plan, |found| {
        let Report { operations, lasted, .. } = &found.report;
        eprintln!("seed {}: {operations} operations in {lasted:?} go wrong too", found.seed);
    })?;
    story(found.seed, &found.report);
    let plan = serde_json::to_string(&found.plan)?;
    println!("again: lunet-sim --story {} --plan '{plan}'", found.seed);
    Ok(false)
}

/// Whether a seed gives the same world a second time.
fn twice(seed: u64) -> Result<bool> {
    let (one, two) = (scenario::run(seed, None)?.story, scenario::run(seed, None)?.story);
    let differs = one.iter().zip(&two).find(|(one, two)| one != two);
    if let Some((one, two)) = differs {
        println!("seed {seed}: {one}\n   the second time: {two}");
    }
    Ok(differs.is_none() && one.len() == two.len())
}

/// Worlds of this process: a line for each, for the parent, and then what they have met. A world that panicked is the
/// last: nobody knows what it has left.
fn here(seeds: impl Iterator<Item = u64>) -> Result<bool> {
    let mut coverage = Coverage::default();
    for seed in seeds {
        let report = scenario::run(seed, None)?;
        coverage.add(&report.met);
        let wrong = report.wrong.unwrap_or_default().replace('\n', " ");
        println!("{seed} {} {} {wrong}", report.operations, report.turns);
        if thread::panicking() {
            break;
        }
    }
    coverage.lines().for_each(|line| println!("{line}"));
    Ok(true)
}

#[derive(Default)]
struct Totals {
    next: AtomicU64,
    done: AtomicU64,
    operations: AtomicU64,
    turns: AtomicU64,
    wrong: AtomicU64,
    coverage: Mutex<Coverage>,
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
    let coverage = totals.coverage.into_inner().unwrap_or_else(PoisonError::into_inner);
    print_coverage(&coverage, arguments.coverage)?;
    Ok(of(&totals.wrong) == 0)
}

/// What was reached: a line, or a line for each enum.
fn print_coverage(coverage: &Coverage, whole: bool) -> Result<()> {
    let reached = coverage.compare()?;
    if whole {
        reached.iter().for_each(|reached| println!("{reached}"));
    }
    let (all, never) = reached.iter().fold((0, 0), |(all, never), reached| {
        let (more, missing) = reached.counts();
        (all + more, never + missing)
    });
    println!("{} of {all} variants of {} enums were reached", all - never, reached.len());
    Ok(())
}

/// Runs chunks of the seeds in child processes until there are no more.
fn work(arguments: &Arguments, totals: &Totals) -> Result<()> {
    loop {
        let begin = totals.next.fetch_add(CHUNK, Ordering::Relaxed);
        let end = (begin + CHUNK).min(arguments.seeds);
        let mut at = begin;
        while at < end {
            let seen = chunk(arguments, totals, at, end)?;
            let first = arguments.first + at;
            ensure!(seen > 0, "the process of seed {first} has ended by itself");
            at += seen;
            if arguments.until_wrong && totals.wrong.load(Ordering::Relaxed) > 0 {
                totals.next.store(arguments.seeds, Ordering::Relaxed);
                at = end;
            }
        }
        if begin >= arguments.seeds {
            return Ok(());
        }
    }
}

/// Runs seeds in a child process: how many it has run.
fn chunk(arguments: &Arguments, totals: &Totals, begin: u64, end: u64) -> Result<u64> {
    let first = arguments.first + begin;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--here", "--first", &first.to_string(), "--seeds", &(end - begin).to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
    let mut seen = 0;
    for line in lines {
        let line = line?;
        if totals.coverage.lock().unwrap_or_else(PoisonError::into_inner).take(&line) {
            continue;
        }
        take(&line, totals)?;
        seen += 1;
        if arguments.until_wrong && totals.wrong.load(Ordering::Relaxed) > 0 {
            child.kill()?;
            break;
        }
    }
    child.wait()?;
    Ok(seen)
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
        println!(
            "seed {seed}: {wrong}\n    see what happened: lunet-sim --story {seed}, or in a smaller world: lunet-sim --shrink {seed}"
        );
    }
    Ok(())
}
