//! Two looks at one machine: which counters have moved between them.
//!
//! A pure function of the facts at two times. The checks of `checks/watch.toml` speak of what has moved; those of one look
//! then say only what still happens, and what rests on counters that stand still is told apart as old.

mod counters;

use serde::Serialize;

use super::check::{Check, Checks};
use super::report::{Finding, Report, State};
use super::run;
use crate::expr::{Scope, Shape, Value};
use crate::facts::{Facts, System, storage_nics};

/// Why two looks cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// There is no time between them.
    #[error("the second look is not after the first one: name the earlier capture with --since")]
    Order,
    /// The machine has started between them.
    #[error("the machine was started between the two looks: its counters began anew")]
    Restarted,
    /// They are of different machines.
    #[error("the two looks are of different machines: {0} and {1}")]
    Machines(String, String),
    /// One of them is no Linux machine.
    #[error("two looks are compared on Linux only, not yet on FreeBSD")]
    System,
}

/// What the doctor says of two looks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Watched {
    /// Seconds between the two looks.
    pub seconds: i64,
    /// What happens now: what has moved, and what the second look shows besides.
    pub report: Report,
    /// What the second look alone would have found, by counters that did not move, or too little to matter.
    pub old: Vec<Finding>,
}

/// Compares two looks at a machine that are so many seconds apart: by checks of one look, and by those of two
/// ([`Checks::of_watching`]).
///
/// # Errors
/// They cannot be compared: other machine, other order, a start of the machine between them.
pub fn watch(
    before: &Facts,
    after: &Facts,
    seconds: i64,
    checks: &Checks,
    pairs: &Checks,
) -> Result<Watched, WatchError> {
    comparable(before, after, seconds)?;
    let moving = moving(before, after, seconds, pairs);
    let now = super::examine(after, checks);
    let still = super::examine(&counters::standing_as_zero(before, after), checks);
    let covered = covers(pairs, &moving);
    let mut old = Vec::new();
    let mut report = moving.clone();
    report.checks += now.checks;
    for finding in now.findings {
        let same = |other: &Finding| other.check == finding.check && other.about == finding.about;
        match covered.iter().find(|covered| covered.covers(&finding)) {
            // The finding that has a rate says more.
            Some(Covered { state: State::Finding, .. }) => {}
            Some(_) => old.push(finding),
            None if !still.findings.iter().any(same) => old.push(finding),
            None => report.findings.push(finding),
        }
    }
    report.looked.extend(now.looked);
    report.machine = now.machine;
    report.could_look = now.could_look;
    report.sort();
    Ok(Watched { seconds, report, old })
}

/// Looks only at what has moved, by checks of two looks.
pub fn moving(before: &Facts, after: &Facts, seconds: i64, checks: &Checks) -> Report {
    let mut scope = Scope::new(after);
    let moved = counters::moved(before, after);
    let value = |facts: &Facts| cel::to_value(facts).unwrap_or(Value::Null);
    scope.set("before", value(before));
    scope.set("moved", value(&moved));
    scope.set("moved_nics", cel::to_value(storage_nics(&moved)).unwrap_or(Value::Null));
    scope.set("seconds", seconds);
    scope.set("span", span(seconds));
    let mut report = Report::new(after, checks);
    run(checks, System::Linux, &scope, &mut report);
    report
}

/// The names that checks of two looks may use: the facts of the second look, and what was before and between.
pub(super) fn names() -> Shape {
    let nics = Shape::list(Shape::of::<crate::facts::Nic>());
    Shape::facts()
        .with("before", Shape::of::<Facts>())
        .with("moved", Shape::of::<Facts>())
        .with("moved_nics", nics)
        .with("seconds", Shape::Plain)
        .with("span", Shape::Plain)
}

/// A time in words: `60 seconds`, `3 hours`.
fn span(seconds: i64) -> String {
    let (number, unit) = match seconds {
        ..=120 => (seconds, "second"),
        121..=7_200 => (seconds / 60, "minute"),
        7_201..=172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}

fn comparable(before: &Facts, after: &Facts, seconds: i64) -> Result<(), WatchError> {
    if [before, after].iter().any(|facts| facts.system() != System::Linux) {
        return Err(WatchError::System);
    }
    if seconds < 1 {
        return Err(WatchError::Order);
    }
    let name = |facts: &Facts| {
        let platform = &facts.platform;
        let words = [&platform.vendor, &platform.model, &platform.board, &platform.arch];
        let words: Vec<&str> = words.into_iter().flatten().map(String::as_str).collect();
        words.join(" ")
    };
    let (one, other) = (name(before), name(after));
    if one != other {
        return Err(WatchError::Machines(one, other));
    }
    match (before.load.uptime_seconds, after.load.uptime_seconds) {
        (Some(was), Some(now)) if now < was => Err(WatchError::Restarted),
        _ => Ok(()),
    }
}

/// What a check of two looks has seen of a thing.
struct Covered<'a> {
    check: &'a Check,
    about: Option<String>,
    state: State,
}

impl Covered<'_> {
    /// Whether it says the same, or its contrary, as the finding of one look.
    fn covers(&self, finding: &Finding) -> bool {
        self.check.tells.contains(&finding.check) && self.about == finding.about
    }
}

fn covers<'a>(checks: &'a Checks, report: &Report) -> Vec<Covered<'a>> {
    let all = report.looked.iter().filter_map(|looked| {
        let check = checks.iter().find(|check| check.id == looked.check)?;
        let (about, state) = (looked.about.clone(), looked.state);
        matches!(state, State::Finding | State::Healthy).then_some(Covered { check, about, state })
    });
    let mut all: Vec<Covered<'_>> = all.collect();
    // Of several, one that found something stands first.
    all.sort_by_key(|covered| covered.state);
    all
}
