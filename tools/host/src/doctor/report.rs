//! What was found, and what was looked at.

use serde::Serialize;

use super::{Check, Checks, Severity};
use crate::facts::{Facts, System};

/// Something that should be otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Id of the check.
    pub check: String,
    /// Layer that the check belongs to.
    pub layer: String,
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: `nvme3n1`, `eth0`; nothing if it is about the whole machine.
    pub about: Option<String>,
    /// What was looked at.
    pub looked: String,
    /// What was found.
    pub found: String,
    /// Why it matters.
    pub why: String,
    /// How to fix it.
    pub fix: String,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// There is something to say.
    Finding,
    /// All is well.
    Healthy,
    /// A fact is missing.
    Unknown,
    /// The machine has nothing of the kind.
    Absent,
    /// The check makes no sense as it is written.
    Broken,
}

/// What was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Looked {
    /// Id of the check.
    pub check: String,
    /// Layer that the check belongs to.
    pub layer: String,
    /// What it looked at.
    pub about: Option<String>,
    /// How it ended.
    pub state: State,
    /// What it saw, or what it misses.
    pub text: String,
}

/// What the doctor says.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The machine: its system and kernel.
    pub machine: String,
    /// How many checks there are.
    pub checks: usize,
    /// Whether anything could be seen at all.
    pub could_look: bool,
    /// What should be otherwise, the worst first.
    pub findings: Vec<Finding>,
    /// What was looked at.
    pub looked: Vec<Looked>,
}

impl Report {
    /// An empty one.
    pub(super) fn new(facts: &Facts, checks: &Checks) -> Self {
        let platform = &facts.platform;
        let system = facts.system();
        let kernel = match system {
            System::Linux => Some("Linux"),
            // The name of plain FreeBSD has its release in it.
            System::FreeBsd if platform.kind.as_deref() == Some("freebsd") => None,
            System::FreeBsd => Some("FreeBSD"),
        };
        let release = platform.kernel.as_ref().zip(kernel);
        let release = release.map(|(release, kernel)| format!("{kernel} {release}"));
        let words: Vec<String> = platform.name.clone().into_iter().chain(release).collect();
        let could_look = platform.kernel.is_some() || facts.memory.total_bytes.is_some();
        let count = checks.of(system).count();
        Self { could_look, checks: count, ..Self::of(words.join(", "), checks) }
    }

    /// An empty one of what could be seen.
    pub(super) fn of(machine: String, checks: &Checks) -> Self {
        Self { machine, checks: checks.len(), could_look: true, ..Self::default() }
    }

    /// 0 = healthy, 1 = findings, 2 = could not look.
    pub fn exit_code(&self) -> u8 {
        match (self.could_look, self.findings.is_empty()) {
            (false, _) => 2,
            (true, true) => 0,
            (true, false) => 1,
        }
    }

    /// How many things ended so.
    pub fn count(&self, state: State) -> usize {
        self.looked.iter().filter(|looked| looked.state == state).count()
    }

    fn note(&mut self, check: &Check, about: Option<String>, state: State, text: String) {
        let (id, layer) = (check.id.clone(), check.layer.clone());
        self.looked.push(Looked { check: id, layer, about, state, text });
    }

    pub(super) fn healthy(&mut self, check: &Check, about: Option<String>, looked: String) {
        self.note(check, about, State::Healthy, looked);
    }

    pub(super) fn found(&mut self, finding: Finding) {
        self.looked.push(Looked {
            check: finding.check.clone(),
            layer: finding.layer.clone(),
            about: finding.about.clone(),
            state: State::Finding,
            text: finding.looked.clone(),
        });
        self.findings.push(finding);
    }

    pub(super) fn unknown(&mut self, check: &Check, about: Option<String>, what: &str) {
        self.note(check, about, State::Unknown, format!("{}: not known: {what}", check.title));
    }

    /// Once for each check.
    pub(super) fn absent(&mut self, check: &Check) {
        if !self.looked.iter().any(|looked| looked.check == check.id) {
            self.note(check, None, State::Absent, format!("{}: nothing of the kind", check.title));
        }
    }

    pub(super) fn wrong(&mut self, check: &Check, what: &str) {
        self.note(check, None, State::Broken, format!("the check itself is wrong: {what}"));
    }

    /// The worst first; otherwise in the order of the checks.
    pub(super) fn sort(&mut self) {
        self.findings.sort_by_key(|finding| finding.severity);
    }
}
