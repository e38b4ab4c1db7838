//! Changes that are made and taken back again and again, to try what they are worth.

use super::journal::{Journal, Layer, State};
use super::machine::{Fault, Machine};
use super::{Applied, ApplyError, Failure, Options, later, prepare, rollback};
use crate::plan::Plan;

/// Groups of changes that can be switched on and off. They are in the journal for as long as the
/// trial lasts, as an apply that was not finished.
pub struct Trial<'a> {
    machine: &'a dyn Machine,
    state: &'a str,
    /// What the journal was before.
    before: Journal,
    groups: Vec<Layer>,
    on: Vec<bool>,
    /// Whether every value is as this trial has left it, unless somebody else has changed it.
    settled: bool,
}

/// How a trial ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// What could not be taken back; it stays in the journal.
    pub left: Vec<Failure>,
    /// What stays as it is because somebody else has changed it meanwhile.
    pub changed: Vec<String>,
}

impl<'a> Trial<'a> {
    /// Writes down what everything is. Changes nothing yet.
    ///
    /// # Errors
    /// As of `apply`.
    pub fn begin(
        machine: &'a dyn Machine,
        groups: &[Plan],
        options: Options<'a>,
    ) -> Result<Self, ApplyError> {
        let before =
            Journal::read(machine, options.state).map_err(ApplyError::Journal)?.unwrap_or_default();
        if before.state != State::Applied {
            return Err(ApplyError::Interrupted);
        }
        let live = Options { persist: false, ..options };
        let layer = |plan| {
            prepare(machine, plan, live, &mut Applied::default())
                .map_err(|failed| ApplyError::Failed { failed, undone: 0, left: Vec::new() })
        };
        let mut groups = groups.iter().map(layer).collect::<Result<Vec<Layer>, _>>()?;
        // What one group changes on purpose, no other one keeps as it is.
        let steps = groups.iter().flat_map(|layer| &layer.steps).filter(|own| !own.step.guards());
        let changed: Vec<String> = steps.map(|owned| owned.step.name()).collect();
        for layer in &mut groups {
            layer.steps.retain(|own| !own.step.guards() || !changed.contains(&own.step.name()));
        }
        let mut journal = before.clone();
        journal.state = State::Trying;
        journal.layers.extend(groups.iter().cloned());
        journal.write(machine, options.state).map_err(ApplyError::Journal)?;
        let on = vec![false; groups.len()];
        Ok(Self { machine, state: options.state, before, groups, on, settled: true })
    }

    /// Switches on these groups, and all others off.
    ///
    /// # Errors
    /// A change cannot be made, or not be taken back; or somebody else has changed a value that is
    /// tried.
    pub fn only(&mut self, wanted: &[usize]) -> Result<(), ApplyError> {
        if let Some(changed) = self.changed().into_iter().next() {
            return Err(ApplyError::Changed(changed.told));
        }
        self.settled = false;
        let failed = |failed| ApplyError::Failed { failed, undone: 0, left: Vec::new() };
        for index in (0..self.groups.len()).rev().filter(|index| !wanted.contains(index)) {
            if std::mem::take(&mut self.on[index]) {
                let layer = &self.groups[index];
                let left = rollback::undo(self.machine, layer, layer.steps.len());
                if let Some(first) = left.into_iter().next() {
                    return Err(failed(first));
                }
            }
        }
        for &index in wanted {
            if !std::mem::replace(&mut self.on[index], true) {
                super::run(self.machine, &self.groups[index])
                    .map_err(|(_, failure)| failed(failure))?;
            }
        }
        self.settle().map_err(failed)?;
        self.settled = true;
        Ok(())
    }

    /// What somebody else has changed since the last run was prepared.
    fn changed(&self) -> Vec<later::Changed> {
        match self.settled {
            true => later::find(self.machine, &self.groups, true),
            false => Vec::new(),
        }
    }

    /// What one group has changed of another one is put right.
    fn settle(&self) -> Result<(), Failure> {
        for (layer, on) in self.groups.iter().zip(&self.on) {
            match on {
                true => super::settle(self.machine, layer)?,
                false => {
                    let left = rollback::undo(self.machine, layer, layer.steps.len());
                    left.into_iter().next().map_or(Ok(()), Err)?;
                }
            }
        }
        let mut on = self.groups.iter().zip(&self.on).filter(|(_, on)| **on);
        on.try_for_each(|(layer, _)| super::settle(self.machine, layer))
    }

    /// Takes everything back that nobody else has changed. What could not be taken back stays in
    /// the journal.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn end(&mut self) -> Result<Ended, Fault> {
        let changed = self.changed();
        later::leave(&mut self.groups, &changed);
        let changed = changed.into_iter().map(|changed| changed.told).collect();
        let mut left = Vec::new();
        // Twice: taking back one group may have changed another one.
        for _ in 0..2 {
            left.clear();
            for layer in self.groups.iter().rev() {
                left.extend(rollback::undo(self.machine, layer, layer.steps.len()));
            }
        }
        if left.is_empty() {
            self.before.write(self.machine, self.state)?;
        }
        Ok(Ended { left, changed })
    }
}
