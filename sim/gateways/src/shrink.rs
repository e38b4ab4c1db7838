//! Makes a world that goes wrong smaller.

use serde_json::Value;

use crate::plan::Plan;
use crate::world::{Report, run};

/// Seeds that are tried for each smaller plan.
const TRIES: u64 = 100;

/// A world that goes wrong in the same way, with less in it: its seed and what became of it.
pub fn shrink(seed: u64, plan: Option<Plan>, strict: bool) -> Option<(u64, Report)> {
    let report = run(seed, plan, false, strict);
    let kind = kind_of(&report)?;
    let mut best = (seed, report);
    loop {
        let whole = serde_json::to_value(&best.1.plan).ok()?;
        let smaller = candidates(&whole).into_iter().find_map(|candidate| {
            let plan: Plan = serde_json::from_value(candidate).ok()?;
            (seed..seed + TRIES).find_map(|seed| {
                let report = run(seed, Some(plan.clone()), false, strict);
                (kind_of(&report).as_ref() == Some(&kind)).then_some((seed, report))
            })
        });
        let Some(found) = smaller else { return Some(best) };
        if serde_json::to_value(&found.1.plan).ok()? == whole {
            return Some(best);
        }
        best = found;
    }
}

/// The words of what went wrong, without numbers.
fn kind_of(report: &Report) -> Option<String> {
    let words = report.wrong.as_ref()?.split([' ', ':', ',']);
    let words = words.filter(|word| !word.contains(|c: char| c.is_ascii_digit())).take(6);
    Some(words.collect::<Vec<_>>().join(" "))
}

/// Plans with one number less, or one step.
fn candidates(plan: &Value) -> Vec<Value> {
    let Value::Object(fields) = plan else { return Vec::new() };
    let mut all = Vec::new();
    for (name, value) in fields {
        let mut push = |value: Value| {
            let mut smaller = plan.clone();
            smaller[name] = value;
            all.push(smaller);
        };
        match value {
            Value::Number(number) => {
                let number = number.as_u64().unwrap_or(0);
                let mut less = vec![0, number / 2, number.saturating_sub(1)];
                less.dedup();
                less.into_iter().filter(|less| *less < number).for_each(|less| push(less.into()));
            }
            Value::Array(items) if !items.is_empty() => push(items[..items.len() - 1].into()),
            _ => {}
        }
    }
    all
}
