//! Runs worlds: `lunet-sim-gateways --seeds 100000`, or one of them with its story: `lunet-sim-gateways --story SEED`.

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use lunet_sim_gateways::plan::Plan;
use lunet_sim_gateways::shrink::shrink;
use lunet_sim_gateways::world::{Report, run};
use lunet_sim_gateways::{MS, Time};

/// Runs simulated failover groups.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Runs this seed alone, and prints what happened in its world.
    #[arg(long)]
    story: Option<u64>,
    /// Looks for a smaller world that goes wrong as that of this seed does.
    #[arg(long)]
    shrink: Option<u64>,
    /// With --story or --shrink: the world's plan, as --shrink prints it.
    #[arg(long)]
    plan: Option<String>,
    /// Ends with the first seed that goes wrong.
    #[arg(long)]
    until_wrong: bool,
    /// Goes by what hosts see alone, and not by the order in which the cluster carries out I/O.
    #[arg(long)]
    hosts_only: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let plan = arguments.plan.as_deref().map(serde_json::from_str::<Plan>);
    let plan = plan.transpose().context("the plan cannot be read")?;
    let strict = !arguments.hosts_only;
    let good = if let Some(seed) = arguments.story {
        story(seed, &run(seed, plan, true, strict))
    } else if let Some(seed) = arguments.shrink {
        let (seed, report) = shrink(seed, plan, strict).context("this seed does not go wrong")?;
        let plan = serde_json::to_string(&report.plan)?;
        story(seed, &run(seed, Some(report.plan), true, strict));
        println!("again: lunet-sim-gateways --story {seed} --plan '{plan}'");
        false
    } else {
        all(&arguments, strict)
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn story(seed: u64, report: &Report) -> bool {
    report.story.iter().for_each(|line| println!("{line}"));
    println!("{:?}", report.plan);
    if let Some(wrong) = &report.wrong {
        println!("seed {seed}: {wrong}");
    }
    report.wrong.is_none()
}

#[derive(Default)]
struct Totals {
    seeds: u64,
    wrong: u64,
    operations: u64,
    events: u64,
    epochs: u64,
    fenced: u64,
    refused_moves: u64,
    short_entries: u64,
    lost_count: u64,
    longest_move: Time,
    longest_takeover: Time,
}

fn all(arguments: &Arguments, strict: bool) -> bool {
    let (begun, mut totals) = (Instant::now(), Totals::default());
    for seed in arguments.first..arguments.first + arguments.seeds {
        totals.seeds += 1;
        // The hook has printed where.
        let Ok(report) = catch_unwind(|| run(seed, None, false, strict)) else {
            totals.wrong += 1;
            println!("seed {seed}: it panicked");
            if arguments.until_wrong {
                break;
            }
            continue;
        };
        totals.operations += report.operations;
        totals.events += report.events;
        totals.epochs += report.epochs - 1;
        totals.fenced += report.fenced;
        totals.refused_moves += report.refused_moves;
        totals.short_entries += report.short_entries;
        totals.lost_count += u64::from(report.lost_count);
        totals.longest_move = totals.longest_move.max(report.longest_move);
        totals.longest_takeover = totals.longest_takeover.max(report.longest_takeover);
        if let Some(wrong) = report.wrong {
            totals.wrong += 1;
            println!("seed {seed}: {wrong}");
            if arguments.until_wrong {
                break;
            }
        }
    }
    let took = begun.elapsed().as_secs_f64();
    let Totals { seeds, wrong, operations, events, .. } = totals;
    println!(
        "{seeds} groups in {took:.1} s ({:.0} a second): {operations} operations, {events} events, {} changes of the owner, {} owners fenced, {} moves refused, {} takeovers given up as an entry was short; {wrong} seeds went wrong",
        seeds as f64 / took,
        totals.epochs,
        totals.fenced,
        totals.refused_moves,
        totals.short_entries
    );
    println!(
        "longest planned move without faults {} ms, longest takeover from a killed owner {} ms; {} worlds with too many states of reservations",
        totals.longest_move / MS,
        totals.longest_takeover / MS,
        totals.lost_count
    );
    wrong == 0
}
