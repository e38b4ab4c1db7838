//! The doctor on the captured machines: nothing in those that are healthy, and each planted fault by its name.
//!
//! A fault is one change to a healthy machine (`faults/*.toml`). `LUNET_BLESS=1` writes the table in docs/doctor.md anew.

mod agreement;
mod captured;
mod fixes;
mod halves;
mod planted;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use lunet_host::ceilings::{self, what_if};
use lunet_host::doctor::{Checks, Report, State, examine};
use lunet_host::facts::{System, facts};
use lunet_host::source::Tree;
use serde::Deserialize;

use self::captured::{here, hold, machines, tree};
use self::halves::in_halves;
use self::planted::Replacement;

/// The machine before anybody cared for it; in all others there is nothing to find.
const RECIPE: &str = "recipe";

fn healthy() -> Vec<String> {
    machines().into_iter().filter(|name| name != RECIPE).collect()
}

/// A change to a healthy machine.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    /// What is wrong, in a few words.
    name: String,
    /// The machine.
    machine: String,
    /// The check that finds it.
    finds: String,
    /// A word that the finding must say.
    says: String,
    /// What follows from it and is found as well.
    #[serde(default)]
    also: Vec<String>,
    /// A tree that is laid over the machine.
    overlay: Option<String>,
    /// In a file or the output of a command (`$ ...`) this text becomes that one.
    replace: Option<Replacement>,
    /// The same, several times.
    #[serde(default)]
    replaces: Vec<Replacement>,
}

#[derive(Deserialize)]
struct Faults {
    fault: Vec<Fault>,
}

fn checks() -> Checks {
    Checks::embedded().unwrap_or_else(|error| panic!("{error}"))
}

fn report(tree: &Tree, checks: &Checks) -> Report {
    examine(&facts(tree), checks)
}

fn faults() -> Vec<Fault> {
    let mut all = Vec::new();
    let mut files: Vec<PathBuf> =
        fs::read_dir(here("tests/faults")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let read: Faults =
            toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        all.extend(read.fault);
    }
    all
}

/// The machine with the fault.
fn planted(fault: &Fault) -> Result<Tree, String> {
    let replaces: Vec<Replacement> = fault.replace.iter().chain(&fault.replaces).cloned().collect();
    planted::planted(&fault.machine, fault.overlay.as_deref(), &replaces)
}

/// What the doctor says of each machine with a fault: worked out once for all tests, by two threads.
static REPORTS: LazyLock<Vec<Result<Report, String>>> = LazyLock::new(|| {
    let (faults, checks) = (faults(), checks());
    in_halves(&faults, |fault| planted(fault).map(|tree| report(&tree, &checks)))
});

#[test]
fn healthy_machines_are_healthy() {
    let checks = checks();
    for name in healthy() {
        let report = report(&tree(&name), &checks);
        assert!(report.findings.is_empty(), "{name}: {:#?}", report.findings);
        assert_eq!(report.exit_code(), 0, "{name}");
        // Silence is no health: most of what was looked at was seen.
        let (healthy, unknown) = (report.count(State::Healthy), report.count(State::Unknown));
        assert!(healthy > 8 * unknown && healthy > 20, "{name}: {healthy} seen, {unknown} not");
        assert_eq!(report.count(State::Broken), 0, "{name}: {:#?}", report.looked);
    }
}

#[test]
fn each_planted_fault_is_found_and_named() {
    let faults = faults();
    let mut wrong = String::new();
    for (fault, report) in faults.iter().zip(REPORTS.iter()) {
        let report = match report {
            Ok(report) => report,
            Err(error) => {
                let _ = writeln!(wrong, "{}: {error}", fault.name);
                continue;
            }
        };
        let found: BTreeSet<&str> = report.findings.iter().map(|f| f.check.as_str()).collect();
        let says = report.findings.iter().any(|f| {
            f.check == fault.finds
                && format!("{} {} {}", f.found, f.why, f.fix).contains(&fault.says)
        });
        let wanted = fault.also.iter().chain([&fault.finds]).map(String::as_str).collect();
        if found != wanted || !says {
            let _ = writeln!(
                wrong,
                "{}: {:?} is to be found, with {:?}",
                fault.name, fault.finds, fault.says
            );
            for finding in &report.findings {
                let _ = writeln!(wrong, "    {}: {} {}", finding.check, finding.found, finding.why);
            }
            for looked in report.looked.iter().filter(|looked| looked.check == fault.finds) {
                let _ = writeln!(wrong, "    looked: {looked:?}");
            }
        }
        if report.count(State::Broken) > 0 {
            let _ = writeln!(wrong, "{}: a check is broken", fault.name);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(faults.len() >= 400, "{}", faults.len());
}

/// On a private and on a public address: nobody on another machine gets in.
#[test]
fn a_target_for_this_machine_alone_is_not_called_open() {
    let checks = checks();
    for address in ["10.40.0.31", "203.0.114.10"] {
        let mut tree = tree("debian-lunet");
        let overlay = format!(
            "$ lunet target list --json --socket /srv/lunet/lunet.sock\n\
             | [{{\"name\": \"iqn.2026-11.local.lunet:vms\", \"for\": \"this-machine\", \
             \"luns\": [{{\"lun\": 0, \"volume\": \"vms\", \"size_bytes\": 1099511627776}}]}}]\n\
             $ lunet config show --socket /srv/lunet/lunet.sock\n\
             | [[target]]\n| name = \"iqn.2026-11.local.lunet:vms\"\n| luns = [\"vms\"]\n\
             $ lunet stats --json --socket /srv/lunet/lunet.sock\n\
             | {{\"portals\": [{{\"address\": \"{address}:3260\", \"tcp\": true}}]}}\n"
        );
        tree.overlay(&overlay).unwrap();
        let report = report(&tree, &checks);
        for check in ["target-open-to-all", "target-public-without-chap"] {
            let found = report.findings.iter().find(|finding| finding.check == check);
            assert!(found.is_none(), "{found:?}");
            let looked = report.looked.iter().find(|looked| looked.check == check);
            let words = format!("{looked:?}");
            assert!(words.contains("for this machine only"), "{words}");
        }
    }
}

/// The tables in docs/doctor.md say what this test has found.
#[test]
fn the_page_has_every_fault() {
    for (system, end) in
        [(System::Linux, "<!-- end -->\n"), (System::FreeBsd, "<!-- end of freebsd -->\n")]
    {
        let start = match system {
            System::Linux => "<!-- written by tools/host/tests/doctor.rs -->\n",
            System::FreeBsd => "<!-- written by tools/host/tests/doctor.rs, freebsd -->\n",
        };
        hold("../../docs/doctor.md", Some((start, end)), &faults_of(system));
    }
}

/// The numbers, and each fault of a system with what the doctor says.
fn faults_of(system: System) -> String {
    let (checks, faults) = (checks(), faults());
    let mut table = String::from(
        "| check | severity | fault | on the machine | what the doctor says |\n|---|---|---|---|---|\n",
    );
    let mut planted = 0;
    for check in checks.of(system) {
        let all = faults.iter().zip(REPORTS.iter());
        for (fault, report) in all.filter(|(fault, _)| fault.finds == check.id) {
            planted += 1;
            let report = report.as_ref().unwrap();
            let finding = report.findings.iter().find(|f| f.check == fault.finds).unwrap();
            let severity = format!("{}", check.severity).to_lowercase();
            let found = finding.found.replace('|', "\\|").replace('*', "\\*");
            let _ = writeln!(
                table,
                "| `{}` | {severity} | {} | {} | {found} |",
                check.id, fault.name, fault.machine
            );
        }
    }
    let machines = healthy();
    let machines = machines.iter().filter(|name| facts(&tree(name)).system() == system).count();
    let count = checks.of(system).count();
    match system {
        System::Linux => {
            format!(
                "{count} checks, {planted} planted faults, {machines} healthy machines.\n\n{table}"
            )
        }
        System::FreeBsd => {
            format!(
                "{count} checks, {planted} faults planted into {machines} healthy machines.\n\n{table}"
            )
        }
    }
}

/// docs/ceilings.md shows the sum for the recipe's machine.
#[test]
fn the_page_has_the_sum() {
    let ceilings = ceilings::ceilings(&facts(&tree(RECIPE)), None);
    hold("../../docs/ceilings.md", Some(("```text\n", "```\n")), &ceilings::page(&ceilings));
}

/// And what mirrors and two ports of 25 Gbit/s would give it.
#[test]
fn the_page_has_the_what_if() {
    let changes = ["pool=4xmirror(2)", "nic=2x25g"].map(|word| word.parse().unwrap());
    let answer = what_if::what_if(&facts(&tree(RECIPE)), None, &changes).unwrap();
    let marks = ("<!-- written by tools/host/tests/doctor.rs -->\n", "<!-- end -->\n");
    let page = format!("```text\n{}```\n", what_if::page(&answer));
    hold("../../docs/ceilings.md", Some(marks), &page);
}

#[test]
fn every_check_finds_its_fault() {
    let found: BTreeSet<String> = faults().into_iter().map(|fault| fault.finds).collect();
    let checks = checks();
    let without: Vec<&str> =
        checks.iter().map(|check| check.id.as_str()).filter(|id| !found.contains(*id)).collect();
    assert!(without.is_empty(), "checks that no fault shows to work: {without:?}");
}

/// The causes that were gathered from administrators name where they are described.
#[test]
fn every_newer_check_names_its_source() {
    const BEFORE: usize = 171;
    let checks = checks();
    let without: Vec<&str> = checks
        .iter()
        .filter(|check| check.source.is_none())
        .map(|check| check.id.as_str())
        .collect();
    assert!(without.len() <= BEFORE, "{without:?}");
}

/// The machines of `healthy.rs`, of which there are notes.
fn others() -> Vec<(String, Tree)> {
    let all = fs::read_dir(here("tests/healthy")).unwrap().map(|entry| entry.unwrap().path());
    let tree = |path: &PathBuf| Tree::open(path).unwrap_or_else(|error| panic!("{error}"));
    all.filter(|path| path.is_dir()).map(|path| (path.display().to_string(), tree(&path))).collect()
}

/// A setting that a fix gives is another one than the machine has: who has followed a fix is told what to do next, and
/// not the same again.
#[test]
#[ignore = "some hundred reports: make test-all runs it"]
fn a_fix_that_was_followed_is_not_given_again() {
    let (faults, checks) = (faults(), checks());
    let machines: Vec<(String, Tree)> = faults
        .iter()
        .filter_map(|fault| Some((fault.name.clone(), planted(fault).ok()?)))
        .chain(machines().into_iter().map(|name| (name.clone(), tree(&name))))
        .chain(others())
        .collect();
    let said = in_halves(&machines, |(name, tree)| {
        let (mut wrong, mut followed) = (String::new(), 0);
        for finding in report(tree, &checks).findings {
            for given in fixes::given(&finding.fix, tree) {
                let mut then = tree.clone();
                if !given.follow(&mut then) {
                    continue;
                }
                followed += 1;
                let again = report(&then, &checks).findings.into_iter().find(|again| {
                    (&again.check, &again.about) == (&finding.check, &finding.about)
                        && fixes::given(&again.fix, &then).contains(&given)
                });
                if let Some(again) = again {
                    let _ = writeln!(wrong, "{name} ({}): {given:?}: {}", again.check, again.fix);
                }
            }
        }
        (wrong, followed)
    });
    let followed: usize = said.iter().map(|(_, followed)| followed).sum();
    let wrong: String = said.into_iter().map(|(wrong, _)| wrong).collect();
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(followed >= 100, "{followed}");
}

/// Hash tables have another order each time, and no word of a report may show it.
#[test]
fn a_machine_is_told_the_same_each_time() {
    let checks = checks();
    for name in machines() {
        let facts = facts(&tree(&name));
        let told = || serde_json::to_string_pretty(&examine(&facts, &checks)).unwrap();
        let first = told();
        // Each look has hash tables of its own.
        let looks = if name == RECIPE { 20 } else { 3 };
        for _ in 1..looks {
            assert_eq!(told(), first, "{name}");
        }
    }
}
