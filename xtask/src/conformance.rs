//! `xtask conformance`: libiscsi's own test suite on every configuration, and a page about it. `ISCSI_TEST_CU` names
//! another build of the suite than the one installed.

use std::fs;
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use lunet_e2e::conformance::configurations::{self, Configuration};
use lunet_e2e::conformance::matrix;
use lunet_e2e::conformance::page::{About, markdown};
use lunet_e2e::conformance::{self, Case, Report, Unit, Verdict};
use lunet_e2e::data::scratch;
use lunet_e2e::process::output;
use lunet_e2e::server;
use lunet_e2e::tgt::{FIRST_LUN, Tgt};

/// For a program that only says something.
const SHORT: Duration = Duration::from_secs(10);

/// Options of `xtask conformance`.
#[derive(Args)]
pub struct Arguments {
    /// Target to test
    #[arg(long, value_enum, default_value_t = Peer::Lunet)]
    peer: Peer,
    /// Test this logical unit of a running target instead; its data is destroyed
    #[arg(long)]
    url: Option<String>,
    /// Only tests whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Only configurations whose name contains this; `list` lists them
    #[arg(long, default_value = "")]
    configuration: String,
    /// Number of configurations that run in parallel; the tests mostly sleep
    #[arg(long, default_value_t = 6)]
    jobs: usize,
    /// Page to write [default: docs/conformance.md for a complete run on lunet, otherwise none]
    #[arg(long)]
    page: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    Lunet,
    Tgt,
}

/// Runs the suite; fails when a test fails or hangs.
pub fn run(arguments: Arguments) -> Result<()> {
    let names: Vec<String> = conformance::list()?;
    let names: Vec<String> = names.into_iter().filter(|n| n.contains(&arguments.only)).collect();
    ensure!(!names.is_empty(), "no test has `{}` in its name", arguments.only);
    match (&arguments.url, arguments.peer) {
        (Some(url), _) => other(url, url, &names),
        (None, Peer::Lunet) => all_configurations(&arguments, &names),
        (None, Peer::Tgt) => {
            let dir = scratch("lunet-conformance-")?;
            let path = dir.path().join("volume");
            File::create(&path)?.set_len(512 << 20)?;
            let tgt = Tgt::start(&[&path], &[], None)?;
            other("tgt", &tgt.url(FIRST_LUN), &names)
        }
    }
}

/// A target that is not started from a configuration.
fn other(name: &str, url: &str, names: &[String]) -> Result<()> {
    let urls = [url.to_owned(), url.to_owned()];
    let unit = Unit { urls, leaves_out: |_| None, slow: false };
    let report = conformance::run(&unit, names, |case| progress("", case))?;
    print!("{}", report.failures());
    summary(name, &report)
}

fn all_configurations(arguments: &Arguments, names: &[String]) -> Result<()> {
    let wanted = |c: &Configuration| c.name.contains(&arguments.configuration);
    if arguments.configuration == "list" {
        configurations::all().iter().for_each(|c| println!("{:32} {}", c.name, c.about));
        return Ok(());
    }
    let (ready, missing): (Vec<_>, Vec<_>) =
        configurations::all().into_iter().filter(wanted).partition(|c| c.obstacle().is_none());
    ensure!(!ready.is_empty(), "no configuration has `{}` in its name", arguments.configuration);
    let outcomes = matrix::run_all(&ready, names, arguments.jobs, |c, case| {
        progress(&c.name, case);
    })?;
    let runs: Vec<_> = ready.iter().zip(&outcomes).collect();
    let whole = arguments.only.is_empty() && arguments.configuration.is_empty();
    let whole = whole && conformance::another_suite().is_none();
    let page = arguments.page.clone().or(whole.then(|| "docs/conformance.md".into()));
    if let Some(page) = page {
        let missing = missing.into_iter().filter_map(|c| Some((c.obstacle()?, c.name)));
        let missing = missing.map(|(why, name)| (name, why)).collect();
        fs::write(&page, markdown(&runs, names, &about(missing)?))?;
        println!("wrote {}", page.display());
    }
    let mut all = Report::default();
    for (configuration, outcome) in runs {
        print!("{:32} ", configuration.name);
        // Every configuration is told of before the first failure ends it.
        let _ = summary("", &outcome.report);
        print!("{}", outcome.report.failures());
        all.cases.extend(outcome.report.cases.iter().cloned());
    }
    summary("all together", &all)
}

fn about(missing: Vec<(String, &'static str)>) -> Result<About> {
    let ask = |program: &str, arguments: &[&str]| {
        output(Command::new(program).args(arguments), SHORT).map(|text| text.trim().to_owned())
    };
    let another = conformance::another_suite();
    let package = ask("dpkg-query", &["-W", "-f", "${Version}", "libiscsi-bin"]);
    let commit = ask("git", &["describe", "--always", "--dirty=+", "--abbrev=12"]);
    Ok(About {
        target: match commit {
            Ok(commit) => format!("{} (commit {commit})", server::version()?),
            Err(_) => server::version()?,
        },
        // Other distributions than Debian have no dpkg.
        tool: match (another, package) {
            (Some(path), _) => path.to_string_lossy().into_owned(),
            (None, Ok(version)) => format!("libiscsi-bin {version}"),
            (None, Err(_)) => "an unknown version".into(),
        },
        date: ask("date", &["-u", "+%F"])?,
        machine: ask("uname", &["-sr"])?,
        missing,
    })
}

fn summary(name: &str, report: &Report) -> Result<()> {
    let c = report.counts();
    println!(
        "{name} {} tests: {} passed, {} skipped, {} not started, {} failed, {} hung, {} unfit",
        c.total, c.passed, c.skipped, c.left_out, c.failed, c.hung, c.unfit
    );
    ensure!(c.failed + c.hung == 0, "not every test that ran passed");
    Ok(())
}

fn progress(label: &str, case: &Case) {
    let word = match &case.verdict {
        Verdict::Passed => "passed".to_owned(),
        Verdict::Partly(reasons) => format!("passed but for: {}", reasons.join("; ")),
        Verdict::Skipped(reasons) => format!("skipped: {}", reasons.join("; ")),
        Verdict::LeftOut(why) => format!("not started: {why}"),
        Verdict::Failed(what) => format!("FAILED: {what}"),
        Verdict::Hung => "HUNG".to_owned(),
        Verdict::Unfit(why) => format!("unfit: {why}"),
    };
    eprintln!("{label:28} {:40} {:6.2} s  {word}", case.name, case.elapsed.as_secs_f64());
}
