//! `xtask planted`: does the verdict of `lunet bench` name the bottleneck?
//!
//! Each case plants one bottleneck, in a server, a control group, a network namespace or a relay of its own, and lets `lunet bench`
//! measure several times. The bottleneck it names is compared with the planted one. Everything planted goes with its guard.

mod cases;
mod group;
mod net;
mod relay;

use std::any::Any;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use lunet_e2e::process::{Finished, run as finish};
use lunet_e2e::server::{lunet_binary, version};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use cases::{CASES, Case};

/// One call of `lunet bench`, which takes about ten seconds.
const LIMIT: Duration = Duration::from_secs(180);

/// Options of `xtask planted`.
#[derive(Args)]
pub struct Arguments {
    /// Number of measurements of each bottleneck
    #[arg(long, default_value_t = 10)]
    runs: u32,
    /// Only cases with these words in their names; can be repeated
    #[arg(long, value_name = "WORDS")]
    only: Vec<String>,
    /// Duration of each measurement in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    runtime: u32,
    /// Print every verdict, not only those that name something else
    #[arg(long)]
    sentences: bool,
}

/// A bottleneck that stands until this is dropped.
pub struct Planted {
    /// Words before the program: what runs it elsewhere, or in a group.
    before: Vec<String>,
    /// Options and targets of `lunet bench`.
    arguments: Vec<String>,
    /// What holds it: dropped from the first on.
    _guards: Vec<Box<dyn Any>>,
}

/// What a verdict said.
struct Said {
    bound: String,
    layer: String,
    sentence: String,
}

/// What the runs of a case said.
struct Outcome {
    case: &'static Case,
    right: u32,
    example: Option<String>,
    wrong: Vec<String>,
}

/// Runs the cases and prints the table; an error if one was not named rightly each time.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.runs > 0, "--runs begins at 1");
    let cores = std::thread::available_parallelism()?.get();
    ensure!(cores > 1, "the client and the server need a core each; here is {cores}");
    let status = std::fs::read_to_string("/proc/self/status")?;
    let root = status.lines().any(|line| line.starts_with("Uid:\t0\t"));
    ensure!(root, "control groups and network namespaces need root: run it with sudo");
    let stop = Arc::new(AtomicBool::new(false));
    // The guards remove what was planted, so a signal must not end the program at once.
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&stop))?;
    }
    group::sweep();
    net::sweep();
    let chosen: Vec<&'static Case> = CASES.iter().filter(|case| wanted(case, arguments)).collect();
    let names = || CASES.iter().map(|case| case.name).collect::<Vec<_>>().join(", ");
    ensure!(!chosen.is_empty(), "no case has that in its name; there are: {}", names());
    let mut outcomes = Vec::new();
    for case in chosen {
        let outcome = measure(case, arguments, &stop).with_context(|| case.name)?;
        outcomes.push(outcome);
    }
    println!("{}", table(&outcomes, arguments.runs)?);
    let missed = outcomes.iter().filter(|one| one.right < arguments.runs).count();
    ensure!(missed == 0, "{missed} of {} were not named rightly every time", outcomes.len());
    Ok(())
}

fn wanted(case: &Case, arguments: &Arguments) -> bool {
    let only = &arguments.only;
    only.is_empty() || only.iter().any(|words| case.name.contains(words.as_str()))
}

fn measure(case: &'static Case, arguments: &Arguments, stop: &AtomicBool) -> Result<Outcome> {
    let planted = (case.plant)()?;
    let mut outcome = Outcome { case, right: 0, example: None, wrong: Vec::new() };
    for number in 1..=arguments.runs {
        let said = bench(&planted, case, arguments.runtime);
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted; what was planted is removed");
        }
        let said = said?;
        let right = case.bounds.contains(&said.bound.as_str()) && said.layer.contains(case.whose);
        eprintln!(
            "{} {number}/{}: {}{}",
            case.name,
            arguments.runs,
            if right { "" } else { "WRONG: " },
            if right && !arguments.sentences { &said.bound } else { &said.sentence },
        );
        if right {
            outcome.right += 1;
            outcome.example.get_or_insert(said.sentence);
        } else {
            outcome.wrong.push(said.sentence);
        }
    }
    Ok(outcome)
}

/// One call of `lunet bench`.
fn bench(planted: &Planted, case: &Case, runtime: u32) -> Result<Said> {
    let program = lunet_binary()?;
    let mut command = match planted.before.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
        None => Command::new(program),
    };
    let load = &case.workload;
    command.arg("bench").args(&planted.arguments);
    command.args(["--profile", load.profile, "--only", load.name]);
    command.args(["--rounds", "2", "--size", "64MiB", "--json"]);
    command.arg(format!("--runtime={runtime}ms"));
    let finished = finish(&mut command, LIMIT)?;
    let code = finished.status.and_then(|status| status.code());
    ensure!(code == Some(0), "{}", finished.describe());
    said(&finished).with_context(|| finished.describe())
}

fn said(finished: &Finished) -> Result<Said> {
    let results: Value = serde_json::from_str(&finished.stdout)?;
    let verdict = results["verdicts"].get(0).context("no verdict")?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Ok(Said {
        // Left out if it cannot be told.
        bound: text(&verdict["bound"]).unwrap_or_else(|| "cannot be told".to_owned()),
        layer: text(&verdict["layers"][0]["name"]).unwrap_or_default(),
        sentence: text(&verdict["sentence"]).context("no sentence")?,
    })
}

fn table(outcomes: &[Outcome], runs: u32) -> Result<String> {
    let mut out = format!("{}, {runs} runs each\n\n", version()?);
    out +=
        "| planted | how | named | of | as in | what else was said |\n|---|---|---|---|---|---|\n";
    for one in outcomes {
        let mut else_said: Vec<&str> = one.wrong.iter().map(String::as_str).collect();
        else_said.dedup();
        let else_said = if else_said.is_empty() { "-".to_owned() } else { else_said.join(" ") };
        out += &format!(
            "| {} | {} | {} | {runs} | {} | {else_said} |\n",
            one.case.planted,
            one.case.how,
            one.right,
            one.example.as_deref().unwrap_or("-"),
        );
    }
    Ok(out)
}
