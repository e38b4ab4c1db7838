//! Takes everything back.

use super::journal::{Journal, Layer, State};
use super::machine::{Fault, Machine};
use super::step::Step;
use super::{Failure, refresh};

/// What was taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolledBack {
    /// How many steps there were to take back; none if nothing was changed.
    pub steps: usize,
    /// What could not be taken back; it stays in the journal.
    pub left: Vec<Failure>,
}

/// Brings back what was there before the first `apply`. What is that already is left alone, so it
/// can be done again after an interruption.
///
/// # Errors
/// The journal cannot be read or written.
pub fn rollback(machine: &dyn Machine, state: &str) -> Result<RolledBack, Fault> {
    let Some(mut journal) = Journal::read(machine, state)? else {
        machine.tidy(&Journal::path(state))?;
        return Ok(RolledBack::default());
    };
    journal.state = State::RollingBack;
    journal.write(machine, state)?;
    let mut told = RolledBack::default();
    for layer in journal.layers.iter().rev() {
        told.steps += layer.steps.len();
        told.left.extend(undo(machine, layer, layer.steps.len()));
    }
    // What was set first knows what was there at the beginning; taking back a later layer, or
    // another group of a trial, may have changed it.
    if told.left.is_empty() && journal.layers.len() > 1 {
        let layers = journal.layers.iter().rev();
        told.left = layers.flat_map(|layer| undo(machine, layer, layer.steps.len())).collect();
    }
    if told.left.is_empty() {
        journal.layers.clear();
        journal.write(machine, state)?;
    }
    Ok(told)
}

/// Undoes the first `count` steps, the last one first. All are tried, whatever fails.
pub(super) fn undo(machine: &dyn Machine, layer: &Layer, count: usize) -> Vec<Failure> {
    let mut left = Vec::new();
    for owned in layer.steps[..count].iter().rev() {
        if let Err(fault) = owned.step.undo(machine) {
            let (rule, what) = (owned.rule.clone(), owned.step.name());
            left.push(Failure { rule, what, why: fault.0 });
        }
    }
    // Taking back one value may have changed another one.
    for owned in layer.steps.iter().filter(|owned| matches!(owned.step, Step::Value { .. })) {
        let what = owned.step.name();
        let known = left.iter().any(|failure| failure.what == what);
        if let Err(fault) = if known { Ok(()) } else { owned.step.undo(machine) } {
            left.push(Failure { rule: owned.rule.clone(), what, why: fault.0 });
        }
    }
    if let Err(failure) = refresh(machine, layer) {
        // udev and systemd only keep what they have read: a reboot does the same.
        if !failure.what.starts_with("udevadm") && !failure.what.starts_with("systemctl") {
            left.push(failure);
        }
    }
    left
}
