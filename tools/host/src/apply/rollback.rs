//! Takes everything back.

use super::journal::{Journal, Layer, State};
use super::machine::{Fault, Machine};
use super::step::{self, Step};
use super::{Failure, edit, file, later, persist, refresh};
use crate::rules::{Effect, Setting};

/// What was taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolledBack {
    /// How many steps there were to take back; none if nothing was changed.
    pub steps: usize,
    /// What stays as it is, because somebody else has changed it since.
    pub kept: Vec<String>,
    /// What people must know or do.
    pub notes: Vec<String>,
    /// What could not be taken back; it stays in the journal.
    pub left: Vec<Failure>,
}

/// Brings back what was there before the first `apply`. What is that already is left alone, so it
/// can be done again after an interruption; what somebody else has changed since stays.
///
/// # Errors
/// The journal cannot be read or written.
pub fn rollback(machine: &dyn Machine, state: &str) -> Result<RolledBack, Fault> {
    let Some(mut journal) = Journal::read(machine, state)? else {
        machine.tidy(&Journal::path(state))?;
        return Ok(RolledBack::default());
    };
    let mut told = RolledBack {
        steps: journal.layers.iter().map(|layer| layer.steps.len()).sum(),
        notes: notes(machine, &journal.layers),
        ..RolledBack::default()
    };
    // In the middle of a change values are what the kernel makes of half of it.
    if matches!(journal.state, State::Applied | State::Trying) {
        let changed = later::find(machine, &journal.layers, journal.state == State::Applied);
        later::leave(&mut journal.layers, &changed);
        told.kept = changed.into_iter().map(|changed| changed.told).collect();
    }
    journal.state = State::RollingBack;
    journal.write(machine, state)?;
    let mut undone = Undone::default();
    let mut layers = Vec::new();
    for layer in journal.layers.iter().rev() {
        let failed = undo_layer(machine, layer, layer.steps.len(), &mut undone);
        layers.insert(0, failed);
    }
    // What was set first knows what was there at the beginning; taking back a later layer, or
    // another group of a trial, may have changed it.
    if undone.left.is_empty() && journal.layers.len() > 1 {
        for (layer, kept) in journal.layers.iter().zip(&mut layers).rev() {
            values_again(machine, layer, kept, &mut undone);
        }
    }
    told.kept.extend(undone.kept.into_iter().flat_map(|(_, told)| told));
    told.left = undone.left;
    // What was taken back belongs to others again, also if something else could not be.
    layers.retain(|layer| !layer.steps.is_empty() || !layer.refresh.is_empty());
    journal.layers = layers;
    journal.write(machine, state)?;
    Ok(told)
}

/// What was undone.
#[derive(Debug, Default)]
pub(super) struct Undone {
    /// What could not be taken back.
    pub left: Vec<Failure>,
    /// What stays because somebody else has changed it: the name of the thing, and words.
    kept: Vec<(String, Vec<String>)>,
}

impl Undone {
    /// What is told of a thing last, by the layer that set it first, counts.
    fn keep(&mut self, name: String, told: Vec<String>) {
        if !told.is_empty() {
            self.kept.retain(|(have, _)| *have != name);
            self.kept.push((name, told));
        }
    }

    fn fail(&mut self, rule: Option<&String>, what: String, fault: Fault) {
        self.left.push(Failure { rule: rule.cloned(), what, why: fault.0 });
    }

    fn failed(&self, name: &str) -> bool {
        self.left.iter().any(|failure| failure.what == name)
    }
}

/// Undoes the first `count` steps, the last one first. All are tried, whatever fails.
pub(super) fn undo(machine: &dyn Machine, layer: &Layer, count: usize) -> Vec<Failure> {
    let mut undone = Undone::default();
    undo_layer(machine, layer, count, &mut undone);
    undone.left
}

/// Undoes the first `count` steps of a layer, and gives back what of the layer is still to be done.
fn undo_layer(machine: &dyn Machine, layer: &Layer, count: usize, undone: &mut Undone) -> Layer {
    let mut rest = Layer { steps: Vec::new(), refresh: Vec::new(), ..layer.clone() };
    for owned in layer.steps[..count].iter().rev() {
        let what = owned.step.name();
        // What was laid over it is still there.
        if undone.failed(&what) {
            rest.steps.insert(0, owned.clone());
            continue;
        }
        if let Some(told) = in_use(machine, layer, &owned.step) {
            undone.keep(what, vec![told]);
            continue;
        }
        match owned.step.undo(machine) {
            Ok(told) => undone.keep(what, told),
            Err(fault) => {
                undone.fail(owned.rule.as_ref(), what, fault);
                rest.steps.insert(0, owned.clone());
            }
        }
    }
    // Taking back one value may have changed another one.
    values_again(machine, layer, &mut rest, undone);
    if let Err(failure) = refresh(machine, layer) {
        // udev and systemd only keep what they have read: a reboot does the same.
        if !failure.what.starts_with("udevadm") && !failure.what.starts_with("systemctl") {
            undone.left.push(failure);
            rest.refresh.clone_from(&layer.refresh);
        }
    }
    guards(layer, &mut rest);
    rest
}

/// Undoes the values of a layer once more.
fn values_again(machine: &dyn Machine, layer: &Layer, rest: &mut Layer, undone: &mut Undone) {
    for owned in layer.steps.iter().filter(|owned| matches!(owned.step, Step::Value { .. })) {
        let what = owned.step.name();
        if undone.failed(&what) {
            continue;
        }
        if let Err(fault) = owned.step.undo(machine) {
            undone.fail(owned.rule.as_ref(), what, fault);
            rest.steps.push(owned.clone());
        }
    }
}

/// What keeps other values as they are is needed for as long as there are values to take back.
fn guards(layer: &Layer, rest: &mut Layer) {
    if rest.steps.iter().any(|owned| matches!(owned.step, Step::Value { .. })) {
        let guards = layer.steps.iter().filter(|owned| owned.step.guards());
        let missing: Vec<_> = guards.filter(|owned| !rest.steps.contains(owned)).cloned().collect();
        rest.steps.extend(missing);
    }
}

/// Why a unit of systemd is still needed, if it is: somebody has put commands into it.
fn in_use(machine: &dyn Machine, layer: &Layer, step: &Step) -> Option<String> {
    let Step::Unit { unit, before: false } = step else { return None };
    let path = step::unit_path(unit);
    let rest = layer.steps.iter().find_map(|owned| match &owned.step {
        Step::File { path: have, edits, .. } if *have == path => {
            file::without(machine, &path, edits)
        }
        _ => None,
    })?;
    edit::has_commands(&rest)
        .then(|| format!("{unit} stays enabled: it has commands that `lunet tune` did not write"))
}

/// What people must know or do when these layers are taken back.
fn notes(machine: &dyn Machine, layers: &[Layer]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for (layer, entry) in
        layers.iter().flat_map(|layer| layer.entries.iter().map(move |e| (layer, e)))
    {
        let setting = &entry.setting;
        let note = match setting {
            Setting::Cmdline { name } => {
                format!("{name}={} works until the next reboot.", entry.wanted)
            }
            Setting::Module { module, .. } if layer.persist && !layer.on_truenas() => {
                persist::in_ramdisk(machine, module)
            }
            _ => continue,
        };
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    for entry in layers.iter().flat_map(|layer| &layer.entries) {
        let note = format!("{} goes back {}.", entry.setting, entry.effect.words());
        let told = matches!(entry.setting, Setting::Cmdline { .. });
        if entry.effect != Effect::Live && !told && !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}
