//! What the output of one test says.

use crate::process::Finished;

use super::reasons::{DEFECTS, PARTS};

/// How one test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It ran and every assertion held.
    Passed,
    /// So it did, but one of its parts is for something that this target does not have; with the tool's words.
    Partly(Vec<String>),
    /// It says that it left something out, with its reasons, each one once.
    Skipped(Vec<String>),
    /// It was not started: it makes no sense with this configuration, for this reason.
    LeftOut(&'static str),
    /// An assertion failed, or the tool gave up; with what it printed.
    Failed(String),
    /// It had to be killed at its time limit.
    Hung,
    /// No target can pass it, for this reason.
    Unfit(&'static str),
}

impl Verdict {
    /// Did it run, and did every assertion hold?
    pub fn is_pass(&self) -> bool {
        matches!(self, Verdict::Passed | Verdict::Partly(_))
    }
}

/// The verdict on the test `name`.
pub(super) fn of(name: &str, finished: &Finished) -> Verdict {
    let Some(status) = finished.status else {
        return Verdict::Hung;
    };
    let said = own_output(&finished.stdout);
    if let Some(reason) = defect(name, said) {
        return Verdict::Unfit(reason);
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
    let is_part =
        |reason: &String| PARTS.iter().any(|(test, part)| *test == name && reason == part);
    match reasons.is_empty() {
        true => Verdict::Passed,
        false if reasons.iter().all(is_part) => Verdict::Partly(reasons),
        false => Verdict::Skipped(reasons),
    }
}

/// The verdict on the second of two runs in one process, of a test whose first run is not fit. Another test may have run in
/// between.
pub(super) fn of_second(name: &str, finished: &Finished) -> Verdict {
    let Some(_) = finished.status else {
        return Verdict::Hung;
    };
    let runs: Vec<&str> = finished.stdout.split("  Test: ").skip(1).collect();
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
        return Verdict::Failed(finished.describe());
    };
    let passed = last.lines().any(|line| line.starts_with("passed"));
    match (defect(name, first), defect(name, last)) {
        (Some(_), None) if runs.len() > 1 && passed && assertions(last) == 0 => Verdict::Passed,
        (Some(reason), None) if runs.len() == 1 => Verdict::Unfit(reason),
        (Some(_), Some(reason)) => Verdict::Unfit(reason),
        _ => Verdict::Failed(excerpt(&finished.stdout, finished)),
    }
}

/// The reason why no target can pass the test, if that is all that went wrong.
fn defect(name: &str, said: &str) -> Option<&'static str> {
    let known = DEFECTS.iter().find(|defect| defect.test == name)?;
    let fits = said.contains(known.assertion) && !said.contains(known.unless);
    (fits && assertions(said) == 1).then_some(known.reason)
}

/// How many assertions failed.
fn assertions(said: &str) -> usize {
    said.matches(" - CU_").count()
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

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use anyhow::Result;

    use super::*;
    use crate::process;

    fn verdict_of(name: &str, script: &str) -> Result<Verdict> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        Ok(of(name, &process::run(&mut shell, Duration::from_secs(10))?))
    }

    #[test]
    fn a_skip_is_not_a_pass() -> Result<()> {
        let passed = "echo '  Test: Simple ...'; echo Send; echo 'passed    [SKIPPED] Cleaning.'; \
                      echo '  tests      1      1      1      0        0'";
        assert_eq!(verdict_of("Read10.Simple", passed)?, Verdict::Passed);
        let silent =
            "echo '  Test: Simple ...passed'; echo '  tests      1      1      1      0        0'";
        assert_eq!(verdict_of("Read10.Simple", silent)?, Verdict::Skipped(vec![SILENT.into()]));
        let skipped = "echo '  Test: Simple ...  [SKIPPED] No UNMAP.'; echo '[SKIPPED] No UNMAP.'; echo passed; \
                       echo '  tests      1      1      1      0        0'";
        assert_eq!(
            verdict_of("Read10.Simple", skipped)?,
            Verdict::Skipped(vec!["No UNMAP.".into()])
        );
        Ok(())
    }

    #[test]
    fn a_known_part_left_out_is_a_pass_in_part() -> Result<()> {
        let (test, part) = PARTS[0];
        let script = |more: &str| {
            format!(
                "echo '  Test: X ...'; echo Send; echo '[SKIPPED] {part}'; {more} echo passed; \
                 echo '  tests      1      1      1      0        0'"
            )
        };
        assert_eq!(verdict_of(test, &script(""))?, Verdict::Partly(vec![part.into()]));
        let more = script("echo '[SKIPPED] Another.';");
        assert!(matches!(verdict_of(test, &more)?, Verdict::Skipped(_)));
        assert!(matches!(verdict_of("Read10.Simple", &script(""))?, Verdict::Skipped(_)));
        Ok(())
    }

    #[test]
    fn a_failed_row_a_bad_status_and_no_summary_are_failures() -> Result<()> {
        let failed = "echo '  tests      1      1      0      1        0'";
        assert!(matches!(verdict_of("Read10.Simple", failed)?, Verdict::Failed(_)));
        let bad_status = "echo '  tests      1      1      1      0        0'; exit 1";
        assert!(matches!(verdict_of("Read10.Simple", bad_status)?, Verdict::Failed(_)));
        let login = "echo 'Failed to log in'";
        assert!(matches!(verdict_of("Read10.Simple", login)?, Verdict::Failed(_)));
        Ok(())
    }

    #[test]
    fn the_defect_of_the_tool_is_told_from_other_failures() -> Result<()> {
        for known in DEFECTS {
            let script = |more: &str| {
                format!(
                    "printf '%s\\n' '  Test: X ...' FAILED '1. {}' '{more}' '' 'Run Summary'; exit 1",
                    known.assertion
                )
            };
            assert_eq!(verdict_of(known.test, &script(""))?, Verdict::Unfit(known.reason));
            for more in ["2. x.c:1  - CU_ASSERT(0)", known.unless] {
                let verdict = verdict_of(known.test, &script(more))?;
                assert!(matches!(verdict, Verdict::Failed(_)), "{more}");
            }
        }
        Ok(())
    }

    #[test]
    fn of_two_runs_the_second_counts_if_the_first_is_not_fit() -> Result<()> {
        let known = &DEFECTS[0];
        let verdict = |first: &str, last: &str| -> Result<Verdict> {
            let mut shell = Command::new("printf");
            shell.args([
                "%s\n",
                "  Test: X ...",
                first,
                "  Test: Y ...passed",
                "  Test: X ...",
                last,
            ]);
            Ok(of_second(known.test, &process::run(&mut shell, Duration::from_secs(10))?))
        };
        let (unfit, other) = (format!("1. {}", known.assertion), "2. x.c:1  - CU_ASSERT(0)");
        assert_eq!(verdict(&unfit, "passed")?, Verdict::Passed);
        assert_eq!(verdict(&unfit, &unfit)?, Verdict::Unfit(known.reason));
        for (first, last) in [(unfit.as_str(), other), (other, "passed"), (&unfit, "")] {
            assert!(matches!(verdict(first, last)?, Verdict::Failed(_)), "{first} {last}");
        }
        Ok(())
    }
}
