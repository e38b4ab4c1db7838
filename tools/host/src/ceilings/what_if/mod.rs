//! What a change of the machine would give, and how sure that is.
//!
//! The changed machine is facts like any other's, and the same model works out both. What the model assumes is varied in
//! both at once: an assumption that is wrong is as wrong before as after, so a ratio is surer than the figures.

mod compare;
mod grammar;
mod machine;
mod page;

use serde::Serialize;

pub use compare::{Comparison, Range, Row, Uncertainty};
pub use grammar::{
    Change, Group, Lanes, Layout, Measure, Mistake, Model, Paths, Transport, VdevKind,
};
pub use machine::Conflict;
pub use page::page;

use super::{Ceilings, Measured, network};
use crate::facts::Facts;

/// What the changes would give.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The changes.
    pub what_if: Vec<String>,
    /// What was taken for granted, a sentence each.
    pub notes: Vec<String>,
    /// The machine as it is.
    pub now: Ceilings,
    /// The machine as it would be.
    pub changed: Ceilings,
    /// Both, layer by layer, for each direction.
    pub comparisons: Vec<Comparison>,
    /// Where the ranges come from: the assumptions that move a figure of the changed machine.
    pub uncertainty: Vec<Uncertainty>,
}

/// Compares the machine with the changed one; all changes are of one machine.
///
/// # Errors
/// Changes contradict each other, or the machine lacks what they start from.
pub fn what_if(
    facts: &Facts,
    measured: Option<&Measured>,
    changes: &[Change],
) -> Result<Answer, Conflict> {
    let changed = machine::changed(facts, measured, changes)?;
    let pair = compare::Pair::new(facts, measured, &changed);
    Ok(Answer {
        what_if: changes.iter().map(Change::to_string).collect(),
        notes: changed.notes.clone(),
        now: pair.now(),
        changed: pair.changed(),
        comparisons: pair.comparisons(),
        uncertainty: pair.uncertainty(),
    })
}

#[cfg(test)]
mod tests;
