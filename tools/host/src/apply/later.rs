//! What somebody else has changed since we set it.

use super::journal::Layer;
use super::machine::Machine;
use super::step::Step;
use crate::plan::{Now, same, zfs_property};

/// A value that is neither what it was before, nor what we have made of it.
pub(super) struct Changed {
    /// What it is about.
    name: String,
    /// The same, for people.
    pub told: String,
    /// Sees to it that the value stays while others around it go back.
    guard: Option<Step>,
}

/// Looks which of the values of these layers somebody has changed. What the kernel itself changes
/// because of another value counts only if it is known to have been put right since (`settled`).
pub(super) fn find(machine: &dyn Machine, layers: &[Layer], settled: bool) -> Vec<Changed> {
    let boot = machine.source().text("/proc/sys/kernel/random/boot_id");
    let booted = layers.iter().any(|layer| layer.boot != boot);
    let steps = || layers.iter().flat_map(|layer| &layer.steps).map(|owned| &owned.step);
    let mut seen: Vec<String> = Vec::new();
    let mut changed = Vec::new();
    for step in steps() {
        let name = step.name();
        // A rule of udev that sets another attribute has the kernel work it out anew at a start.
        let moves = (booted || !settled) && name.ends_with("/read_ahead_kb");
        if seen.contains(&name) || moves {
            continue;
        }
        seen.push(name.clone());
        let same_thing: Vec<&Step> = steps().filter(|step| step.name() == name).collect();
        changed.extend(look(machine, &name, &same_thing));
    }
    changed
}

/// Looks at one thing, which these steps have set one after the other.
fn look(machine: &dyn Machine, name: &str, steps: &[&Step]) -> Option<Changed> {
    let (first, last) = (steps.first()?, steps.last()?);
    let (is, before, after, known) = match (first, last) {
        (Step::Zfs { dataset, property, before, .. }, Step::Zfs { after, .. }) => {
            let (is, from) = zfs_property(machine.source(), dataset, property)?;
            let is = (from == "local" || from == "received").then_some(is);
            let known = steps.iter().any(|step| {
                matches!(step, Step::Zfs { before, after, .. }
                    if is == *before || is.as_ref() == Some(after))
            });
            let words = |value: Option<String>| value.unwrap_or_else(|| "inherited".to_owned());
            (words(is), words(before.clone()), after, known)
        }
        (
            Step::Value { before, .. } | Step::Ring { before, .. },
            Step::Value { after, .. } | Step::Ring { after, .. },
        ) => {
            let Now::Value(is) = first.now(machine) else { return None };
            let known = steps.iter().any(|step| {
                matches!(step,
                    Step::Value { before, after, .. } | Step::Ring { before, after, .. }
                    if same(&is, before) || same(&is, after))
            });
            (is, before.clone(), after, known)
        }
        _ => return None,
    };
    if known {
        return None;
    }
    let told = format!(
        "{name} is {is}: somebody changed it after `lunet tune` had set {after}, so it stays; \
         before it was {before}"
    );
    let guard = match first {
        Step::Value { path, .. } => {
            Some(Step::Value { path: path.clone(), before: is.clone(), after: is, via: None })
        }
        _ => None,
    };
    Some(Changed { name: name.to_owned(), told, guard })
}

/// Takes what was changed out of the layers, so that it stays as it is.
pub(super) fn leave(layers: &mut [Layer], changed: &[Changed]) {
    for one in changed {
        let mut guard = one.guard.clone();
        for layer in &mut *layers {
            layer.steps.retain_mut(|owned| {
                if owned.step.name() != one.name {
                    return true;
                }
                guard.take().map(|guard| owned.step = guard).is_some()
            });
        }
    }
}
