//! Sets again what was applied and no longer holds: after a reboot, or because a device came later.

use super::Failure;
use super::journal::{Journal, Owned, State};
use super::machine::{Fault, Machine};
use super::step::Step;

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// Whether anything is applied at all.
    pub applied: bool,
    /// What was set again.
    pub set: Vec<String>,
    /// What could not be.
    pub failed: Vec<Failure>,
}

/// Why nothing was set again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgainError {
    /// There is half of a change.
    #[error("an earlier apply or rollback was interrupted: `lunet tune rollback` first")]
    Interrupted,
    /// What was applied is not known.
    #[error("{0}")]
    Journal(Fault),
}

/// Sets again each value that the journal has and that no longer holds, the last one that was set of each. Files stay
/// as they are: who has changed one since has meant it. What fails keeps nothing else from being set.
///
/// # Errors
/// See [`AgainError`]. Nothing was changed then.
pub fn again(machine: &dyn Machine, state: &str) -> Result<Again, AgainError> {
    let mut done = Again::default();
    let Some(journal) = Journal::read(machine, state).map_err(AgainError::Journal)? else {
        return Ok(done);
    };
    if journal.state != State::Applied {
        return Err(AgainError::Interrupted);
    }
    done.applied = true;
    let mut values: Vec<&Owned> = Vec::new();
    for owned in journal.layers.iter().flat_map(|layer| &layer.steps) {
        let is_value =
            matches!(owned.step, Step::Value { .. } | Step::Ring { .. } | Step::Zfs { .. });
        if !is_value || owned.step.guards() {
            continue;
        }
        values.retain(|have| have.step.name() != owned.step.name());
        values.push(owned);
    }
    // A second time for what setting something else has changed, as a drive's queue does with its read-ahead.
    for owned in values.iter().chain(&values) {
        let (rule, what) = (owned.rule.clone(), owned.step.name());
        if done.failed.iter().any(|failed| failed.what == what) {
            continue;
        }
        let set = match owned.step.holds(machine) {
            Ok(true) => continue,
            _ => owned.step.run(machine),
        };
        match set {
            Ok(()) if done.set.contains(&what) => {}
            Ok(()) => done.set.push(what),
            Err(fault) => done.failed.push(Failure { rule, what, why: fault.0 }),
        }
    }
    Ok(done)
}
