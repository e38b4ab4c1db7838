//! Makes a world that goes wrong smaller: fewer hosts, operations and faults, as long as it goes wrong in the same way.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::scenario::{self, Plan, Report};

/// Worlds of a smaller plan that are tried: the seed draws other numbers in each.
const TRIES: u64 = 60;

/// A world, and how it goes wrong.
#[derive(Clone, Debug)]
pub struct Failing {
    /// Its seed.
    pub seed: u64,
    /// Its plan.
    pub plan: Plan,
    /// What it comes to.
    pub report: Report,
}

/// The smallest world that is found to go wrong as that of this seed does. `tell` hears of each that is smaller than
/// those before.
///
/// # Errors
/// The world of the seed does not go wrong, or cannot be run.
pub fn shrink(seed: u64, plan: Option<Plan>, mut tell: impl FnMut(&Failing)) -> Result<Failing> {
    let report = scenario::run(seed, plan)?;
    ensure!(report.wrong.is_some(), "seed {seed} does not go wrong");
    let mut failing = Failing { seed, plan: report.plan.clone(), report };
    let kind = kind_of(&failing.report).unwrap_or_default();
    loop {
        let whole = serde_json::to_value(&failing.plan)?;
        let mut smaller = None;
        for candidate in candidates(&whole) {
            let Ok(plan) = serde_json::from_value::<Plan>(candidate) else { continue };
            smaller = find(failing.seed, &plan, &kind)?;
            if smaller.is_some() {
                break;
            }
        }
        match smaller {
            None => return Ok(failing),
            Some(found) => failing = found,
        }
        tell(&failing);
    }
}

/// A world with this plan that goes wrong in the same way.
fn find(first: u64, plan: &Plan, kind: &str) -> Result<Option<Failing>> {
    for seed in first..first + TRIES {
        let report = scenario::run(seed, Some(plan.clone()))?;
        if kind_of(&report).as_deref() == Some(kind) {
            return Ok(Some(Failing { seed, plan: plan.clone(), report }));
        }
    }
    Ok(None)
}

/// What went wrong, without who, where and when: the words of the sentence up to the history of a block.
fn kind_of(report: &Report) -> Option<String> {
    let wrong = report.wrong.as_ref()?;
    let words = wrong.split("; its history").next().unwrap_or_default().split([' ', ':', ',']);
    let words = words.filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    Some(words.collect::<Vec<_>>().join(" "))
}

/// Plans with one number less, the largest steps first.
fn candidates(plan: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    let mut paths = Vec::new();
    numbers(plan, String::new(), &mut paths);
    for divisor in [u64::MAX, 4, 2] {
        for (path, number) in &paths {
            let less = number / divisor;
            let mut smaller = plan.clone();
            if let Some(place) = smaller.pointer_mut(path) {
                *place = match place {
                    Value::Bool(_) => Value::Bool(false),
                    _ => less.into(),
                };
                all.push(smaller);
            }
        }
    }
    for (path, number) in &paths {
        let mut smaller = plan.clone();
        if let Some(place @ Value::Number(_)) = smaller.pointer_mut(path) {
            *place = (number - 1).into();
            all.push(smaller);
        }
    }
    all
}

/// Everything in a plan that can be less: its path, and how much it is.
fn numbers(value: &Value, path: String, found: &mut Vec<(String, u64)>) {
    match value {
        Value::Number(number) => {
            found.extend(number.as_u64().filter(|number| *number > 0).map(|number| (path, number)));
        }
        Value::Bool(true) => found.push((path, 1)),
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| numbers(value, format!("{path}/{name}"), found));
        }
        Value::Array(items) => {
            let named = items.iter().enumerate();
            named.for_each(|(at, value)| numbers(value, format!("{path}/{at}"), found));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_gets_less() {
        let plan =
            serde_json::json!({ "hosts": 4, "faults": { "read": 1, "none": 0 }, "cache": true });
        let all = candidates(&plan);
        assert!(all.contains(
            &serde_json::json!({ "hosts": 0, "faults": { "read": 1, "none": 0 }, "cache": true })
        ));
        assert!(all.contains(
            &serde_json::json!({ "hosts": 2, "faults": { "read": 1, "none": 0 }, "cache": true })
        ));
        assert!(all.contains(
            &serde_json::json!({ "hosts": 4, "faults": { "read": 0, "none": 0 }, "cache": true })
        ));
        assert!(all.contains(
            &serde_json::json!({ "hosts": 4, "faults": { "read": 1, "none": 0 }, "cache": false })
        ));
        assert!(!all.contains(&plan));
    }
}
