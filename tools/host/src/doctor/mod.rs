//! Why a machine is slow or at risk: checks over its facts.
//!
//! A check is data (`checks/*.toml`): an expression says over what it ranges, another one when
//! there is something to say, and texts say what. What an expression needs and nobody knows makes
//! the check unknown, never healthy.

mod check;
mod derived;
mod page;
pub mod peer;
mod report;
mod watch;

pub use check::{Check, CheckError, Checks, Severity};
pub use page::page;
pub use page::watched_page;
pub use report::{Finding, Looked, Report, State};
pub use watch::{WatchError, Watched, moving, watch};

use crate::expr::{EvalError, Scope, Value};
use crate::facts::{Facts, System};
use crate::probe::Probe;
use crate::probe::nvme::NvmeProbe;

/// Looks at everything that the checks speak of.
pub fn examine(facts: &Facts, checks: &Checks) -> Report {
    let mut scope = Scope::new(facts);
    derived::set(&mut scope, facts);
    let mut report = Report::new(facts, checks);
    run(checks, facts.system(), &scope, &mut report);
    report
}

/// Looks at what was seen of a target over the network.
pub fn examine_target(probe: &Probe, checks: &Checks) -> Report {
    let mut scope = Scope::new(&Facts::default());
    scope.set("probe", cel::to_value(probe).unwrap_or(Value::Null));
    let mut report = Report::of(probe.url.clone(), checks);
    run(checks, System::Linux, &scope, &mut report);
    report
}

/// Looks at what was seen of an NVMe subsystem over the network.
pub fn examine_subsystem(probe: &NvmeProbe, checks: &Checks) -> Report {
    let mut scope = Scope::new(&Facts::default());
    scope.set("nvme", cel::to_value(probe).unwrap_or(Value::Null));
    let mut report = Report::of(probe.url.clone(), checks);
    run(checks, System::Linux, &scope, &mut report);
    report
}

/// Looks at everything that the checks for this system speak of.
fn run(checks: &Checks, system: System, scope: &Scope<'_>, report: &mut Report) {
    for check in checks.of(system) {
        match subjects(check, scope) {
            Ok(subjects) if subjects.is_empty() => report.absent(check),
            Ok(subjects) => {
                for subject in subjects {
                    let mut inner = scope.inner();
                    if let Some(subject) = subject {
                        inner.set(&check.name, subject);
                    }
                    one(check, &mut inner, report);
                }
            }
            Err(EvalError::Unknown(what)) => report.unknown(check, None, &what),
            Err(EvalError::Wrong(what)) => report.wrong(check, &what),
        }
    }
    report.sort();
}

/// What the check ranges over: once, if it says nothing about that.
fn subjects(check: &Check, scope: &Scope<'_>) -> Result<Vec<Option<Value>>, EvalError> {
    match &check.each {
        Some(each) => Ok(each.list(scope)?.into_iter().map(Some).collect()),
        None => Ok(vec![None]),
    }
}

/// Looks at one subject.
fn one(check: &Check, scope: &mut Scope<'_>, report: &mut Report) {
    let about = check.about.as_ref().and_then(|about| about.fill(scope).ok());
    match verdict(check, scope) {
        Ok(None) => report.absent(check),
        Ok(Some(false)) => {
            // A healthy thing may lack a number that only the sentence wants.
            let looked = check.looked.fill(scope).unwrap_or_else(|_| check.title.clone());
            report.healthy(check, about, looked);
        }
        Ok(Some(true)) => match texts(check, scope, about.clone()) {
            Ok(finding) => report.found(finding),
            Err(EvalError::Unknown(what)) => report.unknown(check, about, &what),
            Err(EvalError::Wrong(what)) => report.wrong(check, &what),
        },
        Err(EvalError::Unknown(what)) => report.unknown(check, about, &what),
        Err(EvalError::Wrong(what)) => report.wrong(check, &what),
    }
}

/// Whether there is something to say; nothing, if the check has no business with the subject.
fn verdict(check: &Check, scope: &mut Scope<'_>) -> Result<Option<bool>, EvalError> {
    if let Some(applies) = &check.applies {
        if !applies.holds(scope)? {
            return Ok(None);
        }
    }
    for (name, expression) in &check.lets {
        let value = expression.eval(scope)?;
        scope.set(name, value);
    }
    check.when.holds(scope).map(Some)
}

fn texts(check: &Check, scope: &Scope<'_>, about: Option<String>) -> Result<Finding, EvalError> {
    Ok(Finding {
        check: check.id.clone(),
        layer: check.layer.clone(),
        severity: check.severity,
        about,
        looked: check.looked.fill(scope).unwrap_or_else(|_| check.title.clone()),
        found: check.found.fill(scope)?,
        why: check.why.fill(scope)?,
        fix: check.fix.fill(scope)?,
    })
}

#[cfg(test)]
mod tests;
