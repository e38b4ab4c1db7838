//! Runs libiscsi's `iscsi-test-cu` against a volume, one process per test, and counts what it really did.
//!
//! The tool's own summary counts a skipped test as passed, and one hanging test would take the rest with it. Hence a process
//! and a time limit for each test, and a verdict from the verbose output.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process::{self, Finished};

/// The program that this module runs.
pub const PROGRAM: &str = "iscsi-test-cu";

/// The longest test of the suite sleeps 30 s by itself.
const LIMIT: Duration = Duration::from_secs(90);

/// How one test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It ran and every assertion held.
    Passed,
    /// It says that it left something out, with its reasons, each one once.
    Skipped(Vec<String>),
    /// An assertion failed, or the tool gave up; with what it printed.
    Failed(String),
    /// It had to be killed at its time limit.
    Hung,
    /// No target can pass it, for this reason.
    Unfit(&'static str),
}

/// The only assertion that fails in `iSCSITMF.LUNResetSimpleAsync` of libiscsi 1.19.
const TOOL_DEFECT: &str =
    "test_async_lu_reset_simple.c:157  - CU_ASSERT_EQUAL(reconnect_succeeded,1)";

const TOOL_DEFECT_REASON: &str = "defect of libiscsi 1.19: right after queuing LOGICAL UNIT RESET, before anything is sent, it \
     asserts a flag that only the answer sets";

/// Tests that fail where a command is missing because they do not ask whether there is one: the test, one of the same
/// run that does ask, and what that says then.
const UNCHECKED: [(&str, &str, &str); 2] = [
    (
        "MultipathIO.CompareAndWriteAsync",
        "CompareAndWrite.Simple",
        "COMPAREANDWRITE is not implemented.",
    ),
    // It asks for a changeable software write protection first, although all that it would do then is to send SANITIZE.
    ("Sanitize.Readonly", "Sanitize.InvalidServiceAction", "SANITIZE is not implemented."),
];

/// One test of the suite.
#[derive(Clone, Debug)]
pub struct Case {
    /// `Suite.Test`.
    pub name: String,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took.
    pub elapsed: Duration,
}

/// The result of a whole run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the order in which the tool lists them.
    pub cases: Vec<Case>,
}

/// The names of all tests, `Suite.Test`, as the installed tool lists them.
pub fn list() -> Result<Vec<String>> {
    // The listing ends with status 10.
    let listing = process::run(Command::new(PROGRAM).arg("-l"), LIMIT)?;
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

/// Runs every test of `names` against the logical unit at `url`. Its data is destroyed.
pub fn run(url: &str, names: &[String], mut progress: impl FnMut(&Case)) -> Result<Report> {
    let mut report = Report::default();
    for name in names {
        if let Some(reason) = report.missing_command(name) {
            let verdict =
                Verdict::Skipped(vec![format!("{reason} (not run: the test does not ask)")]);
            let case = Case { name: name.clone(), verdict, elapsed: Duration::ZERO };
            progress(&case);
            report.cases.push(case);
            continue;
        }
        let mut command = Command::new(PROGRAM);
        // Some tests say only with the SCSI log switched on that they leave something out.
        command.args(["--dataloss", "--allow-sanitize", "--verbose", "--Verbose-scsi"]);
        command.arg(format!("--test=ALL.{name}"));
        // Twice the same address are two sessions: that is what the MultipathIO tests need.
        command.args([url, url]);
        let finished = process::run(&mut command, LIMIT)?;
        let case =
            Case { name: name.clone(), verdict: verdict(&finished), elapsed: finished.elapsed };
        progress(&case);
        report.cases.push(case);
    }
    Ok(report)
}

fn verdict(finished: &Finished) -> Verdict {
    let Some(status) = finished.status else {
        return Verdict::Hung;
    };
    let said = own_output(&finished.stdout);
    if said.contains(TOOL_DEFECT) && said.matches(" - CU_").count() == 1 {
        return Verdict::Unfit(TOOL_DEFECT_REASON);
    }
    // The row `tests  Total Ran Passed Failed Inactive` of the summary at the end.
    let row = finished.stdout.lines().find_map(|line| line.trim().strip_prefix("tests "));
    let counts: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
    let ran_and_passed = counts.starts_with(&["1", "1", "1", "0"]);
    if !status.success() || !ran_and_passed {
        return Verdict::Failed(excerpt(said, finished));
    }
    let mut reasons: Vec<String> = Vec::new();
    for (_, reason) in said.lines().filter_map(|line| line.split_once("[SKIPPED]")) {
        let reason = reason.trim().to_owned();
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    if reasons.is_empty() && said.split_whitespace().count() <= 1 {
        reasons.push(SILENT.to_owned());
    }
    if reasons.is_empty() { Verdict::Passed } else { Verdict::Skipped(reasons) }
}

/// Every command that a test sends is in the log: with nothing but the test's name there, nothing was tested.
const SILENT: &str = "(left out silently: the test sends nothing)";

/// What the test itself printed. Before and after each test the tool takes away persistent reservations, and says
/// `[SKIPPED] PERSISTENT RESERVE IN is not implemented` even when the test has nothing to do with them.
fn own_output(text: &str) -> &str {
    let own = text.split_once("  Test: ").map_or("", |(_, own)| own);
    let ends = ["...passed", "\npassed", "\nRun Summary"].map(|end| own.find(end));
    let end = ends.into_iter().flatten().min().unwrap_or(own.len());
    &own[..end]
}

/// The lines that say what went wrong.
fn excerpt(said: &str, finished: &Finished) -> String {
    let telling: Vec<&str> = said
        .lines()
        .chain(finished.stderr.lines())
        .map(str::trim)
        .filter(|l| ["FAILED", "ailed to", " - CU_", ".c:"].iter().any(|mark| l.contains(mark)))
        .take(8)
        .collect();
    if telling.is_empty() { finished.describe() } else { telling.join(" / ") }
}

impl Report {
    /// Does `name` use a command that another test has found missing?
    fn missing_command(&self, name: &str) -> Option<&'static str> {
        let (_, asker, reason) = UNCHECKED.iter().find(|(test, ..)| *test == name)?;
        self.skipped(asker, reason).then_some(*reason)
    }

    fn skipped(&self, name: &str, reason: &str) -> bool {
        self.cases.iter().any(|case| match &case.verdict {
            Verdict::Skipped(reasons) => case.name == name && reasons.iter().any(|r| r == reason),
            _ => false,
        })
    }

    /// How many passed, failed, were skipped, hung.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { total: self.cases.len(), ..Counts::default() };
        for case in &self.cases {
            match case.verdict {
                Verdict::Passed => counts.passed += 1,
                Verdict::Skipped(_) => counts.skipped += 1,
                Verdict::Failed(_) => counts.failed += 1,
                Verdict::Hung => counts.hung += 1,
                Verdict::Unfit(_) => counts.unfit += 1,
            }
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
                Verdict::Passed | Verdict::Skipped(_) | Verdict::Unfit(_) => continue,
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}: {what}", case.name);
        }
        text
    }

    /// The page `docs/conformance.md`. `versions` names the tool and the target.
    pub fn markdown(&self, versions: &str) -> String {
        let Counts { total, passed, failed, skipped, hung, unfit } = self.counts();
        let mut page = format!(
            "# Conformance\n\n\
             libiscsi's `{PROGRAM}` with `-d -S -v -V`, one process per test, against a file volume.\n\
             Written by `make conformance`. {versions}\n\n\
             | tests | passed | failed | hung | skipped | unfit |\n|---|---|---|---|---|---|\n\
             | {total} | {passed} | {failed} | {hung} | {skipped} | {unfit} |\n\n\
             The tool counts a skipped test as passed. Here a test counts as skipped when it says that it left anything out, \
             and as unfit when no target can pass it.\n"
        );
        page.push_str("\n## By suite\n\n| suite | passed | failed | hung | skipped |\n|---|---|---|---|---|\n");
        for (suite, c) in self.by_suite() {
            let _ = writeln!(
                page,
                "| {suite} | {} | {} | {} | {} |",
                c.passed, c.failed, c.hung, c.skipped
            );
        }
        let failures = self.failures();
        if !failures.is_empty() {
            let _ = write!(page, "\n## Failed\n\n```text\n{failures}```\n");
        }
        page.push_str(
            "\n## Skipped, with the tool's own reason\n\n| reason | tests |\n|---|---|\n",
        );
        for (reason, tests) in self.by_reason() {
            let _ = writeln!(page, "| {} | {} |", reason.replace('|', "\\|"), tests.join(", "));
        }
        page
    }

    fn by_suite(&self) -> BTreeMap<&str, Counts> {
        let mut suites: BTreeMap<&str, Report> = BTreeMap::new();
        for case in &self.cases {
            let suite = case.name.split('.').next().unwrap_or_default();
            suites.entry(suite).or_default().cases.push(case.clone());
        }
        suites.into_iter().map(|(suite, report)| (suite, report.counts())).collect()
    }

    fn by_reason(&self) -> BTreeMap<String, Vec<&str>> {
        let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for case in &self.cases {
            if let Verdict::Skipped(why) = &case.verdict {
                reasons.entry(why.join("; ")).or_default().push(&case.name);
            }
        }
        reasons
    }
}

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All.
    pub total: usize,
    /// Ran completely, without a failed assertion.
    pub passed: usize,
    /// With a failed assertion.
    pub failed: usize,
    /// Left something out.
    pub skipped: usize,
    /// Killed at the time limit.
    pub hung: usize,
    /// No target can pass them.
    pub unfit: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict_of(script: &str) -> Result<Verdict> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        Ok(verdict(&process::run(&mut shell, Duration::from_secs(10))?))
    }

    #[test]
    fn a_skip_is_not_a_pass() -> Result<()> {
        let passed = "echo '  Test: Simple ...'; echo Send; echo 'passed    [SKIPPED] Cleaning.'; \
                      echo '  tests      1      1      1      0        0'";
        assert_eq!(verdict_of(passed)?, Verdict::Passed);
        let silent =
            "echo '  Test: Simple ...passed'; echo '  tests      1      1      1      0        0'";
        assert_eq!(verdict_of(silent)?, Verdict::Skipped(vec![SILENT.into()]));
        let skipped = "echo '  Test: Simple ...  [SKIPPED] No UNMAP.'; echo '[SKIPPED] No UNMAP.'; echo passed; \
                       echo '  tests      1      1      1      0        0'";
        assert_eq!(verdict_of(skipped)?, Verdict::Skipped(vec!["No UNMAP.".into()]));
        Ok(())
    }

    #[test]
    fn a_failed_row_a_bad_status_and_no_summary_are_failures() -> Result<()> {
        let failed = "echo '  tests      1      1      0      1        0'";
        assert!(matches!(verdict_of(failed)?, Verdict::Failed(_)));
        let bad_status = "echo '  tests      1      1      1      0        0'; exit 1";
        assert!(matches!(verdict_of(bad_status)?, Verdict::Failed(_)));
        assert!(matches!(verdict_of("echo 'Failed to log in'")?, Verdict::Failed(_)));
        Ok(())
    }
}
