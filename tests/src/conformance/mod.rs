//! Runs libiscsi's `iscsi-test-cu` against a volume, one process per test, and counts what it really did.
//!
//! The tool's own summary counts a skipped test as passed, and one hanging test would take the rest with it. Hence a process
//! and a time limit for each test, and a verdict from the verbose output ([`verdict`]). [`configurations`] are what the
//! suite runs on, [`matrix`] runs it on them, [`reasons`] what no target can pass, [`page`] the page about it all.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process;

pub mod configurations;
pub mod matrix;
pub mod page;
pub mod reasons;
mod verdict;

pub use verdict::Verdict;

/// The program that this module runs, unless [`SUITE`] names another.
pub const PROGRAM: &str = "iscsi-test-cu";

/// The environment variable that names another build of the suite.
pub const SUITE: &str = "ISCSI_TEST_CU";

/// The other build of the suite that the environment names.
pub fn another_suite() -> Option<OsString> {
    env::var_os(SUITE).filter(|path| !path.is_empty())
}

/// Runs the suite.
fn program() -> Command {
    Command::new(another_suite().unwrap_or_else(|| PROGRAM.into()))
}

/// `Sanitize.Reset` sleeps a minute after each look that finds SANITIZE at work, or a unit attention of the resets before.
const LIMIT: Duration = Duration::from_secs(270);

/// The words of a failed test that was answered BUSY. A target may (SAM-5 5.3.1) while the blocks of an aborted write are
/// still on their way to the medium, and initiators try again. The tool does not.
const BUSY: &str = "command failed with status 8 ";

/// How often a test is tried that can be tried again, and after what time.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// One test of the suite.
#[derive(Clone, Debug)]
pub struct Case {
    /// `Suite.Test`.
    pub name: String,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took.
    pub elapsed: Duration,
    /// How often it was begun again, because the target answered BUSY.
    pub busy: u32,
}

/// The result of a whole run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the order in which the tool lists them.
    pub cases: Vec<Case>,
}

/// The names of all tests, `Suite.Test`, as the tool lists them.
pub fn list() -> Result<Vec<String>> {
    // The listing ends with status 10.
    let listing = process::run(program().arg("-l"), LIMIT)?;
    let tests: Vec<String> = listing
        .stdout
        .lines()
        .filter_map(|line| line.trim().strip_prefix("ALL."))
        .filter(|name| name.contains('.'))
        .map(str::to_owned)
        .collect();
    ensure!(!tests.is_empty(), "{PROGRAM} lists no tests: {}", listing.describe());
    Ok(tests)
}

/// The logical unit that the tests run on, and what is known of it.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Both lead to the same logical unit. Its data is destroyed.
    pub urls: [String; 2],
    /// Why a test is not to be started here; `None`: it is.
    pub leaves_out: fn(&str) -> Option<&'static str>,
    /// Writes take their time: see [`reasons::SECOND_RUN`].
    pub slow: bool,
}

/// Runs every test of `names`.
pub fn run(unit: &Unit, names: &[String], mut progress: impl FnMut(&Case)) -> Result<Report> {
    let mut report = Report::default();
    for name in names {
        let case = match ((unit.leaves_out)(name), report.missing_command(name)) {
            (Some(reason), _) => Case {
                name: name.clone(),
                verdict: Verdict::LeftOut(reason),
                elapsed: Duration::ZERO,
                busy: 0,
            },
            (None, Some(reason)) => Case {
                name: name.clone(),
                verdict: Verdict::Skipped(vec![format!("{reason} (not run: it does not ask)")]),
                elapsed: Duration::ZERO,
                busy: 0,
            },
            (None, None) => run_one(unit, name)?,
        };
        progress(&case);
        report.cases.push(case);
    }
    Ok(report)
}

fn run_one(unit: &Unit, name: &str) -> Result<Case> {
    let (again, between) = reasons::SECOND_RUN;
    let twice = unit.slow && name == again;
    let tests = if twice {
        // In two families, so that it is named twice.
        format!("ALL.{name},ALL.{between},iSCSI.{name}")
    } else {
        format!("ALL.{name}")
    };
    let (mut busy, mut tries) = (0, 0);
    loop {
        let mut command = program();
        // Some tests say only with the SCSI log switched on that they leave something out.
        command.args(["--dataloss", "--allow-sanitize", "--verbose", "--Verbose-scsi"]);
        command.arg(format!("--test={tests}")).args(&unit.urls);
        let finished = process::run(&mut command, LIMIT)?;
        let judge = if twice { verdict::of_second } else { verdict::of };
        let verdict = judge(name, &finished);
        let was_busy = matches!(verdict, Verdict::Failed(_)) && finished.stdout.contains(BUSY);
        // The first run leaves its flag set if the answer comes before that to the logout behind it.
        let too_late = twice && matches!(verdict, Verdict::Unfit(_));
        tries += 1;
        if !(was_busy || too_late) || tries == TRIES {
            return Ok(Case { name: name.to_owned(), verdict, elapsed: finished.elapsed, busy });
        }
        busy += u32::from(was_busy);
        thread::sleep(PAUSE);
    }
}

impl Report {
    /// Does `name` use a command that another test has found missing?
    fn missing_command(&self, name: &str) -> Option<&'static str> {
        let (_, asker, reason) = reasons::UNCHECKED.iter().find(|(test, ..)| *test == name)?;
        self.skipped(asker, reason).then_some(*reason)
    }

    fn skipped(&self, name: &str, reason: &str) -> bool {
        self.cases.iter().any(|case| match &case.verdict {
            Verdict::Skipped(reasons) => case.name == name && reasons.iter().any(|r| r == reason),
            _ => false,
        })
    }

    /// How a test ended; `None` if it is not among them.
    pub fn verdict(&self, name: &str) -> Option<&Verdict> {
        self.cases.iter().find(|case| case.name == name).map(|case| &case.verdict)
    }

    /// How many passed, failed, were skipped, hung.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { total: self.cases.len(), ..Counts::default() };
        for case in &self.cases {
            match case.verdict {
                Verdict::Passed | Verdict::Partly(_) => counts.passed += 1,
                Verdict::Skipped(_) => counts.skipped += 1,
                Verdict::LeftOut(_) => counts.left_out += 1,
                Verdict::Failed(_) => counts.failed += 1,
                Verdict::Hung => counts.hung += 1,
                Verdict::Unfit(_) => counts.unfit += 1,
            }
            counts.busy += case.busy;
        }
        counts
    }

    /// The failed and hung tests, one line each. Empty when there is none.
    pub fn failures(&self) -> String {
        let mut text = String::new();
        for case in &self.cases {
            let what = match &case.verdict {
                Verdict::Failed(what) => what.as_str(),
                Verdict::Hung => "killed at its time limit",
                _ => continue,
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}: {what}", case.name);
        }
        text
    }
}

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All.
    pub total: usize,
    /// Ran without a failed assertion.
    pub passed: usize,
    /// With a failed assertion.
    pub failed: usize,
    /// Left something out.
    pub skipped: usize,
    /// Not started, because the configuration is not one for them.
    pub left_out: usize,
    /// Killed at the time limit.
    pub hung: usize,
    /// No target can pass them.
    pub unfit: usize,
    /// How often a test was begun again because the target was busy.
    pub busy: u32,
}
