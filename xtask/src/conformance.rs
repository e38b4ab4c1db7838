//! `xtask conformance`: libiscsi's own test suite, and a page about it.

use std::fs;
use std::fs::File;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use lunet_e2e::conformance::{self, Verdict};
use lunet_e2e::data::scratch;
use lunet_e2e::server::{self, Serve};
use lunet_e2e::tgt::{FIRST_LUN, Tgt};

/// Large enough for every test, and small enough for READ(6) to reach beyond the end.
const SIZE: &str = "512M";

/// Options of `xtask conformance`.
#[derive(Args)]
pub struct Arguments {
    /// Which target to test.
    #[arg(long, value_enum, default_value_t = Peer::Lunet)]
    peer: Peer,
    /// A running target's logical unit instead. Its data is destroyed.
    #[arg(long)]
    url: Option<String>,
    /// Only the tests whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Where the page goes. Nowhere for a partial run or another target, unless given.
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
    let whole_lunet = arguments.only.is_empty() && arguments.url.is_none();
    let (report, about) = match (&arguments.url, arguments.peer) {
        (Some(url), _) => (conformance::run(url, &names, progress)?, url.clone()),
        (None, Peer::Lunet) => {
            let server = Serve::demo(SIZE).quiet().start()?;
            (conformance::run(server.url(), &names, progress)?, server::version()?)
        }
        (None, Peer::Tgt) => {
            let dir = scratch("lunet-conformance-")?;
            let path = dir.path().join("volume");
            File::create(&path)?.set_len(512 << 20)?;
            let tgt = Tgt::start(&[&path], &[], None)?;
            (
                conformance::run(&tgt.url(FIRST_LUN), &names, progress)?,
                format!("tgt {}", Tgt::version()?),
            )
        }
    };
    let default_page = || {
        (whole_lunet && arguments.peer == Peer::Lunet).then(|| PathBuf::from("docs/conformance.md"))
    };
    if let Some(page) = arguments.page.clone().or_else(default_page) {
        if let Some(parent) = page.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&page, report.markdown(&format!("Target: {about}.")))?;
        println!("wrote {}", page.display());
    }
    let counts = report.counts();
    print!("{}", report.failures());
    println!(
        "{} tests: {} passed, {} failed, {} hung, {} skipped, {} unfit",
        counts.total, counts.passed, counts.failed, counts.hung, counts.skipped, counts.unfit
    );
    ensure!(counts.failed + counts.hung == 0, "not every test that ran passed");
    Ok(())
}

fn progress(case: &conformance::Case) {
    let word = match &case.verdict {
        Verdict::Passed => "passed".to_owned(),
        Verdict::Skipped(reasons) => format!("skipped: {}", reasons.join("; ")),
        Verdict::Failed(what) => format!("FAILED: {what}"),
        Verdict::Hung => "HUNG".to_owned(),
        Verdict::Unfit(why) => format!("unfit: {why}"),
    };
    eprintln!("{:48} {:6.2} s  {word}", case.name, case.elapsed.as_secs_f64());
}
