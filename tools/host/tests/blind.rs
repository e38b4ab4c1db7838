//! The blind trial: faults that administrators meet, written by one who had not read the checks.
//!
//! It measures what the doctor misses; it is no list of what it must find. `blind/*.toml` are the faults, and what
//! became of each is held in `blind/result.txt`, so that a change of the checks shows there.
//! `LUNET_BLESS=1 cargo test -p lunet-host --test blind -- --nocapture` writes it anew and shows the share by area.

mod captured;
mod planted;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use lunet_host::doctor::{Checks, examine};
use lunet_host::facts::facts;
use lunet_host::source::Tree;
use serde::Deserialize;

use self::captured::{here, hold, machines, tree};
use self::planted::{Replacement, planted};

const RESULT: &str = "tests/blind/result.txt";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    /// What is wrong, in a few words; no two faults have the same.
    name: String,
    /// The area, as the file is named.
    area: String,
    /// The healthy machine that it is planted in.
    machine: String,
    /// The object: a right finding names one of these.
    about: Vec<String>,
    /// A right finding has one word of each list.
    words: Vec<Vec<String>>,
    severity: Severity,
    /// What is wrong, in a sentence.
    tells: String,
    /// What an administrator would do.
    fix: String,
    /// Where the fault is described.
    source: String,
    /// A tree that is laid over the machine.
    overlay: Option<String>,
    /// Made after the overlay.
    #[serde(default)]
    replaces: Vec<Replacement>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    Slow,
    Broken,
    Risk,
}

#[derive(Deserialize)]
struct Faults {
    fault: Vec<Fault>,
}

/// What the doctor said of a fault.
#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    /// A finding names the object and what is wrong with it.
    Named,
    /// There are findings that the healthy machine has not, but none that is right.
    Vague,
    /// There is no finding that the healthy machine has not.
    Missed,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Self::Named => "named",
            Self::Vague => "vague",
            Self::Missed => "missed",
        }
    }
}

fn faults() -> Vec<Fault> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(here("tests/blind")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let read: Faults =
            toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let area = file.file_stem().unwrap().to_str().unwrap();
        assert!(read.fault.iter().all(|fault| fault.area == area), "{}", file.display());
        all.extend(read.fault);
    }
    all
}

fn with(fault: &Fault) -> Result<Tree, String> {
    planted(&fault.machine, fault.overlay.as_deref(), &fault.replaces)
}

/// What the doctor says about a machine, in lower case.
fn findings(tree: &Tree, checks: &Checks) -> BTreeSet<String> {
    let report = examine(&facts(tree), checks);
    let text = report
        .findings
        .iter()
        .map(|finding| format!("{}: {} {}", finding.check, finding.found, finding.why));
    text.map(|text| text.to_lowercase()).collect()
}

fn outcome(fault: &Fault, healthy: &BTreeSet<String>, faulty: &BTreeSet<String>) -> Outcome {
    let has = |text: &str, words: &[String]| {
        words.iter().any(|word| text.contains(word.to_lowercase().as_str()))
    };
    let new: Vec<&String> = faulty.difference(healthy).collect();
    let right = |text: &&String| {
        has(text, &fault.about) && fault.words.iter().all(|words| has(text, words))
    };
    match (new.iter().any(|&text| right(&text)), new.is_empty()) {
        (true, _) => Outcome::Named,
        (false, false) => Outcome::Vague,
        (false, true) => Outcome::Missed,
    }
}

#[test]
fn each_blind_fault_can_be_planted() {
    let (faults, machines) = (faults(), machines());
    let mut wrong = String::new();
    let mut names = BTreeSet::new();
    for fault in &faults {
        let name = &fault.name;
        if !names.insert(name) {
            let _ = writeln!(wrong, "{name}: there are two of this name");
        }
        if !machines.contains(&fault.machine) {
            let _ = writeln!(wrong, "{name}: there is no machine {}", fault.machine);
            continue;
        }
        let told = [&fault.tells, &fault.fix, &fault.source];
        let empty = |words: &[String]| words.is_empty() || words.iter().any(String::is_empty);
        if told.iter().any(|text| text.is_empty())
            || empty(&fault.about)
            || fault.words.is_empty()
            || fault.words.iter().any(|words| empty(words))
        {
            let _ = writeln!(wrong, "{name}: something is left empty");
        }
        match with(fault) {
            Ok(planted) if planted == tree(&fault.machine) => {
                let _ = writeln!(wrong, "{name}: it changes nothing");
            }
            Ok(_) => {}
            Err(error) => {
                let _ = writeln!(wrong, "{name}: {error}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(faults.len() >= 130, "{}", faults.len());
}

#[test]
fn what_the_doctor_says_of_each_blind_fault_is_held() {
    let checks = Checks::embedded().unwrap_or_else(|error| panic!("{error}"));
    let healthy: BTreeMap<String, BTreeSet<String>> = machines()
        .into_iter()
        .map(|name| {
            let found = findings(&tree(&name), &checks);
            (name, found)
        })
        .collect();
    let mut lines = String::new();
    let mut counts: BTreeMap<String, [usize; 3]> = BTreeMap::new();
    for fault in faults() {
        let faulty = findings(&with(&fault).unwrap(), &checks);
        let outcome = outcome(&fault, &healthy[&fault.machine], &faulty);
        let _ = writeln!(lines, "{:<6} {}: {}", outcome.word(), fault.area, fault.name);
        for key in [fault.area.as_str(), "all", severity(&fault.severity)] {
            counts.entry(key.to_owned()).or_default()[outcome as usize] += 1;
        }
        // Words cannot tell whether a finding is right; a reader of this can.
        for text in faulty.difference(&healthy[&fault.machine]) {
            println!("{} {}: {text}", outcome.word(), fault.name);
        }
    }
    println!("{:<12} {:>6} {:>6} {:>6} {:>6}", "area", "faults", "named", "vague", "missed");
    for (area, [named, vague, missed]) in &counts {
        let sum = named + vague + missed;
        println!("{area:<12} {sum:>6} {named:>6} {vague:>6} {missed:>6}");
    }
    hold(RESULT, None, &lines);
    let marks = ("<!-- written by tools/host/tests/blind.rs -->\n", "<!-- end -->\n");
    hold("../../docs/doctor.md", Some(marks), &page(&lines));
}

/// The table of the page: what became of the causes of each area, and which ones are not seen.
fn page(lines: &str) -> String {
    let mut areas: BTreeMap<&str, (usize, usize, Vec<&str>)> = BTreeMap::new();
    for line in lines.lines() {
        let (outcome, rest) = line.split_once(' ').expect("a line has an outcome");
        let (area, name) = rest.trim().split_once(": ").expect("a line has an area");
        let (causes, named, rest) = areas.entry(area).or_default();
        *causes += 1;
        match outcome {
            "named" => *named += 1,
            _ => rest.push(name),
        }
    }
    let sum = |of: fn(&(usize, usize, Vec<&str>)) -> usize| areas.values().map(of).sum::<usize>();
    let mut table = format!(
        "| area | causes | named | not named |\n|---|---|---|---|\n| **all** | **{}** | **{}** | **{}** |\n",
        sum(|area| area.0),
        sum(|area| area.1),
        sum(|area| area.2.len())
    );
    for (area, (causes, named, rest)) in &areas {
        let _ = writeln!(table, "| {area} | {causes} | {named} | {} |", rest.join("; "));
    }
    table
}

fn severity(severity: &Severity) -> &'static str {
    match severity {
        Severity::Slow => "(slow)",
        Severity::Broken => "(broken)",
        Severity::Risk => "(risk)",
    }
}
