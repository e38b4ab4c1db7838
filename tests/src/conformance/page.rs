//! The page `docs/conformance.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::configurations::Configuration;
use super::matrix::Outcome;
use super::reasons::{NEVER, PARTS};
use super::{LIMIT, PROGRAM, Verdict};

/// More names than this are said by those that are missing.
const FEW: usize = 6;

/// What was found by hand, at the end of the page.
const BY_HAND: &str = include_str!("by_hand.md");

/// What ran where.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The target and its version.
    pub target: String,
    /// The version of the package that the tool comes in.
    pub tool: String,
    /// The day, as 2026-11-20.
    pub date: String,
    /// The kernel and the distribution.
    pub machine: String,
    /// Configurations that could not run here, each with the reason.
    pub missing: Vec<(String, &'static str)>,
}

/// A whole run: each configuration with what came of it.
pub type Runs<'a> = [(&'a Configuration, &'a Outcome)];

/// The tests that pass in no configuration.
pub fn never_passed<'n>(names: &'n [String], outcomes: &[&Outcome]) -> Vec<&'n str> {
    let passes = |name: &str| {
        outcomes.iter().any(|outcome| outcome.report.verdict(name).is_some_and(Verdict::is_pass))
    };
    names.iter().map(String::as_str).filter(|name| !passes(name)).collect()
}

/// The page, in Markdown.
pub fn markdown(runs: &Runs, names: &[String], about: &About) -> String {
    let mut page = String::from("# Conformance\n\n");
    head(&mut page, runs, names, about);
    configurations(&mut page, runs, about);
    failures(&mut page, runs);
    never(&mut page, runs, names);
    parts(&mut page);
    tests(&mut page, runs, names);
    page.push_str(
        "\n## What is not here\n\n\
         sg3_utils' own checks (`sg_*`) need a SCSI device of the kernel, which an iSCSI initiator in the kernel makes. \
         The machine that wrote this page has none.\n",
    );
    page.push_str(BY_HAND);
    page
}

// Writing to a String cannot fail, here and below.

fn head(page: &mut String, runs: &Runs, names: &[String], about: &About) {
    let About { target, tool, date, machine, .. } = about;
    let outcomes: Vec<&Outcome> = runs.iter().map(|(_, outcome)| *outcome).collect();
    let passing = names.len() - never_passed(names, &outcomes).len();
    let counts: Vec<_> = outcomes.iter().map(|outcome| outcome.report.counts()).collect();
    let started: usize = counts.iter().map(|c| c.total - c.left_out).sum();
    let bad: usize = counts.iter().map(|c| c.failed + c.hung).sum();
    let busy: u32 = counts.iter().map(|c| c.busy).sum();
    let _ = write!(
        page,
        "libiscsi's test suite, `{PROGRAM}` of {tool}, against {target}, {date}, on {machine}.\n\
         Written by `make conformance`.\n\n\
         **{passing} of {} tests run and pass; of {started} runs in {} configurations {bad} failed or hung.**\n\n\
         Each test is a process of its own with `-d -S -v -V`, the two URLs of a multipath device, and {} s of time. \
         The tool counts a skipped test as passed. Here a test counts as skipped when it says that it left anything out, and \
         as unfit when no target can pass it. A test is begun again when the target answers BUSY, as initiators do \
         ({busy} times here).\n",
        names.len(),
        runs.len(),
        LIMIT.as_secs(),
    );
}

fn configurations(page: &mut String, runs: &Runs, about: &About) {
    page.push_str(
        "\n## Configurations\n\n\
         | configuration | is | passed | skipped | not started | failed | hung | unfit | seconds |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for (configuration, outcome) in runs {
        let c = outcome.report.counts();
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            configuration.name,
            configuration.about,
            c.passed,
            c.skipped,
            c.left_out,
            c.failed,
            c.hung,
            c.unfit,
            outcome.elapsed.as_secs()
        );
    }
    for (name, why) in &about.missing {
        let _ = writeln!(page, "| {name} | did not run: {why} | | | | | | | |");
    }
    let checked: u64 = runs.iter().filter_map(|(_, outcome)| outcome.digests).sum();
    let _ = write!(
        page,
        "\nlibiscsi 1.19 knows header digests, but offers DataDigest=None only. In the configurations `-digests` a relay of \
         lunet's own tests stands between the tool and lunet: it negotiates CRC32C, adds the digest to each data segment \
         that the tool sends, and checks those that lunet sends: {checked} of them, none was wrong. The server requires \
         both digests then. In the others it forbids them, or as the name says.\n"
    );
}

fn failures(page: &mut String, runs: &Runs) {
    let mut text = String::new();
    for (configuration, outcome) in runs {
        for line in outcome.report.failures().lines() {
            let _ = writeln!(text, "{}: {line}", configuration.name);
        }
    }
    if !text.is_empty() {
        let _ = write!(page, "\n## Failed\n\n```text\n{text}```\n");
    }
}

fn never(page: &mut String, runs: &Runs, names: &[String]) {
    let outcomes: Vec<&Outcome> = runs.iter().map(|(_, outcome)| *outcome).collect();
    let never = never_passed(names, &outcomes);
    if never.is_empty() {
        return;
    }
    page.push_str("\n## Tests that pass nowhere\n\n| test | why |\n|---|---|\n");
    for name in never {
        let known = NEVER.iter().find(|(test, _)| *test == name);
        let why = known.map_or("see below", |(_, why)| why);
        let _ = writeln!(page, "| {name} | {why} |");
    }
}

fn parts(page: &mut String) {
    page.push_str("\n## Tests that pass but for a part\n\n| test | the part, with the tool's own reason |\n|---|---|\n");
    for (test, words) in PARTS {
        let _ = writeln!(page, "| {test} | {words} |");
    }
}

fn tests(page: &mut String, runs: &Runs, names: &[String]) {
    page.push_str(
        "\n## Every test\n\n| test | passed in | skipped in, with the tool's own reason, or unfit | not started in |\n\
         |---|---|---|---|\n",
    );
    for name in names {
        let mut passed = Vec::new();
        let mut skipped: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let mut left_out: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (configuration, outcome) in runs {
            let place = configuration.name.as_str();
            match outcome.report.verdict(name) {
                Some(Verdict::Passed | Verdict::Partly(_)) => passed.push(place),
                Some(Verdict::Skipped(why)) => {
                    skipped.entry(why.join("; ")).or_default().push(place);
                }
                Some(Verdict::LeftOut(why)) => left_out.entry(why).or_default().push(place),
                Some(Verdict::Unfit(why)) => {
                    skipped.entry(format!("unfit: {why}")).or_default().push(place);
                }
                Some(Verdict::Failed(_) | Verdict::Hung) | None => {}
            }
        }
        let because = |(why, places): (&str, &Vec<&str>)| {
            format!("{}: {}", places_in_words(places, runs), why.replace('|', "\\|"))
        };
        let skips: Vec<String> = skipped.iter().map(|(w, p)| because((w, p))).collect();
        let lefts: Vec<String> = left_out.iter().map(|(w, p)| because((w, p))).collect();
        let _ = writeln!(
            page,
            "| {name} | {} | {} | {} |",
            places_in_words(&passed, runs),
            skips.join("<br>"),
            lefts.join("<br>")
        );
    }
}

/// The names of configurations, the short way.
fn places_in_words(places: &[&str], runs: &Runs) -> String {
    let others: Vec<&str> =
        runs.iter().map(|(c, _)| c.name.as_str()).filter(|name| !places.contains(name)).collect();
    match (places.len(), others.len()) {
        (0, _) => "none".into(),
        (_, 0) => "all".into(),
        (n, _) if n <= FEW => places.join(", "),
        (_, m) if m <= FEW => format!("all but {}", others.join(", ")),
        (n, _) => format!("{n}: {}", places.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Case, Report, configurations};
    use super::*;

    #[test]
    fn a_page_names_the_fewer_places() {
        let configurations = configurations::all();
        let case = |verdict| Case { name: "A.B".into(), verdict, elapsed: Duration::ZERO, busy: 0 };
        let outcome = |verdict| Outcome {
            report: Report { cases: vec![case(verdict)] },
            digests: None,
            elapsed: Duration::ZERO,
        };
        let skipped = Verdict::Skipped(vec!["No | here.".into()]);
        let outcomes: Vec<Outcome> = (0..configurations.len())
            .map(|n| outcome(if n == 1 { skipped.clone() } else { Verdict::Passed }))
            .collect();
        let runs: Vec<_> = configurations.iter().zip(&outcomes).collect();
        let names = ["A.B".to_owned()];
        let page = markdown(&runs, &names, &About::default());
        let odd = &configurations[1].name;
        let row = format!("| A.B | all but {odd} | {odd}: No \\| here. |  |\n");
        assert!(page.contains(&row), "{page}");
        assert!(never_passed(&names, &[&outcomes[0]]).is_empty());
        assert_eq!(never_passed(&names, &[&outcomes[1]]), ["A.B"]);
    }
}
