//! Makes the changes of a plan, looks whether they hold, and takes them back.
//!
//! Before anything is changed, a journal is written that says what everything was. So whatever
//! happens, a value that the kernel refuses, a crash, a reboot, `rollback` brings back exactly what
//! was there.

mod again;
mod edit;
mod file;
mod journal;
mod later;
mod machine;
mod persist;
mod rollback;
mod script;
mod step;
mod trial;
mod truenas;
mod verify;

pub use again::{Again, AgainError, again};
pub use edit::{Edit, Key, Wish, set};
pub use file::Content;
pub use journal::{Entry, Journal, Layer, Owned, STATE, State};
pub use machine::{Fault, Kept, LiveMachine, Lock, Machine};
pub use rollback::{RolledBack, rollback};
pub use script::script;
pub use step::Step;
pub use trial::{Ended, Trial};
pub use truenas::Tunable;
pub use verify::{Drift, Verified, verify};

use crate::plan::{Item, Plan};
use crate::rules::Setting;

/// How to apply.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Directory of the journal.
    pub state: &'a str,
    /// Whether the changes shall persist across reboots.
    pub persist: bool,
    /// Whether this is TrueNAS, which keeps settings in its own way.
    pub truenas: bool,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The settings that were changed.
    pub changed: Vec<Entry>,
    /// The rules that were left out, and why.
    pub left_out: Vec<(String, String)>,
    /// What people must know or do.
    pub notes: Vec<String>,
}

/// A step that could not be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rule that it was for; nothing for what keeps the settings of several.
    pub rule: Option<String>,
    /// What it was about.
    pub what: String,
    /// Why not.
    pub why: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rule = self.rule.as_ref().map(|rule| format!("{rule}: ")).unwrap_or_default();
        write!(f, "{rule}{}: {}", self.what, self.why)
    }
}

/// Why a plan was not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// There is half of a change.
    #[error("an earlier apply or rollback was interrupted: `lunet tune rollback` first")]
    Interrupted,
    /// Without a journal nothing is changed.
    #[error("{0}; nothing was changed")]
    Journal(Fault),
    /// Somebody else changes what is tried.
    #[error("{0}; what was measured with it says nothing")]
    Changed(String),
    /// A step failed.
    #[error("{failed}; {}", after(*.undone, .left))]
    Failed {
        /// Which one.
        failed: Failure,
        /// How many steps were taken back.
        undone: usize,
        /// What could not be taken back.
        left: Vec<Failure>,
    },
}

fn after(undone: usize, left: &[Failure]) -> String {
    match (undone, left) {
        (0, []) => "nothing was changed".to_owned(),
        (_, []) => "everything was rolled back".to_owned(),
        (_, left) => {
            let left: Vec<String> = left.iter().map(Failure::to_string).collect();
            format!("these could not be rolled back: {}", left.join("; "))
        }
    }
}

/// Makes all changes of a plan, or none.
///
/// # Errors
/// See [`ApplyError`]: in each case everything is as it was, unless it says what is not.
pub fn apply(
    machine: &dyn Machine,
    plan: &Plan,
    options: Options<'_>,
) -> Result<Applied, ApplyError> {
    let mut journal =
        Journal::read(machine, options.state).map_err(ApplyError::Journal)?.unwrap_or_default();
    if journal.state != State::Applied {
        return Err(ApplyError::Interrupted);
    }
    let mut applied = Applied::default();
    let layer = prepare(machine, plan, options, &mut applied)
        .map_err(|failed| ApplyError::Failed { failed, undone: 0, left: Vec::new() })?;
    if layer.entries.is_empty() {
        return Ok(applied);
    }
    applied.changed.clone_from(&layer.entries);
    let before = journal.clone();
    journal.layers.push(layer.clone());
    journal.state = State::Applying;
    journal.write(machine, options.state).map_err(ApplyError::Journal)?;
    match run(machine, &layer) {
        Ok(()) => {
            journal.state = State::Applied;
            match journal.write(machine, options.state) {
                Ok(()) => Ok(applied),
                Err(fault) => {
                    let (rule, why) = (None, fault.0);
                    let failed = Failure { rule, what: "the last step".to_owned(), why };
                    Err(take_back(machine, &layer, layer.steps.len(), &before, options, failed))
                }
            }
        }
        Err((count, failed)) => Err(take_back(machine, &layer, count, &before, options, failed)),
    }
}

/// Undoes the first steps of a layer, and then what the journal says of it.
fn take_back(
    machine: &dyn Machine,
    layer: &Layer,
    count: usize,
    before: &Journal,
    options: Options<'_>,
    failed: Failure,
) -> ApplyError {
    let mut left = rollback::undo(machine, layer, count);
    if left.is_empty() {
        if let Err(fault) = before.write(machine, options.state) {
            left.push(Failure { rule: None, what: "the journal".to_owned(), why: fault.0 });
        }
    }
    ApplyError::Failed { failed, undone: count, left }
}

/// Does all steps. If one fails: how many may have changed something, and what failed.
fn run(machine: &dyn Machine, layer: &Layer) -> Result<(), (usize, Failure)> {
    for (index, owned) in layer.steps.iter().enumerate() {
        owned.step.run(machine).map_err(|fault| {
            (index + 1, Failure { rule: owned.rule.clone(), what: owned.step.name(), why: fault.0 })
        })?;
    }
    let all = layer.steps.len();
    settle(machine, layer).map_err(|failure| (all, failure))?;
    refresh(machine, layer).map_err(|failure| (all, failure))
}

/// Sets again what a later step has changed: the kernel works out a drive's read-ahead anew when
/// another attribute of its queue is written.
fn settle(machine: &dyn Machine, layer: &Layer) -> Result<(), Failure> {
    let values = || layer.steps.iter().filter(|owned| matches!(owned.step, Step::Value { .. }));
    for owned in values().chain(values()) {
        let held = owned.step.holds(machine).and_then(|holds| match holds {
            true => Ok(()),
            false => owned.step.run(machine),
        });
        held.map_err(|fault| {
            let (rule, what) = (owned.rule.clone(), owned.step.name());
            Failure { rule, what, why: format!("another step has changed it: {}", fault.0) }
        })?;
    }
    Ok(())
}

/// Has changed files taken over.
fn refresh(machine: &dyn Machine, layer: &Layer) -> Result<(), Failure> {
    for command in &layer.refresh {
        let Some((program, args)) = command.split_first() else { continue };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        machine.act(program, &args).map_err(|fault| Failure {
            rule: None,
            what: command.join(" "),
            why: fault.0,
        })?;
    }
    Ok(())
}

/// Works out all steps and what everything is now. Changes nothing.
fn prepare(
    machine: &dyn Machine,
    plan: &Plan,
    options: Options<'_>,
    applied: &mut Applied,
) -> Result<Layer, Failure> {
    let boot = machine.source().text("/proc/sys/kernel/random/boot_id");
    let mut layer = Layer {
        at: machine.source().now(),
        boot,
        profile: plan.profile,
        persist: options.persist,
        entries: Vec::new(),
        steps: Vec::new(),
        refresh: Vec::new(),
    };
    for item in plan.changes() {
        let Some((setting, wanted)) = of(item) else { continue };
        if matches!(setting, Setting::Cmdline { .. }) && !options.persist {
            let why = "it is on the kernel's command line: add --persist, and reboot".to_owned();
            applied.left_out.push((item.rule.clone(), why));
            continue;
        }
        // A second line in a file is added to what the first one makes of it.
        let again = layer.steps.iter_mut().any(|owned| owned.step.change_again(setting, wanted));
        if !again {
            let steps = Step::live(machine, setting, wanted).map_err(|fault| Failure {
                rule: Some(item.rule.clone()),
                what: setting.to_string(),
                why: fault.0,
            })?;
            let own = |step| Owned { rule: Some(item.rule.clone()), step };
            layer.steps.extend(steps.into_iter().map(own));
        }
        layer.entries.push(Entry {
            rule: item.rule.clone(),
            setting: setting.clone(),
            before: item.now.clone(),
            wanted: wanted.to_owned(),
            effect: item.effect,
        });
    }
    guard(machine, &mut layer.steps);
    if options.persist {
        keep(machine, options, &mut layer, applied)?;
    }
    Ok(layer)
}

/// Adds the read-ahead of drives of which another attribute is set, so that it stays as it is.
fn guard(machine: &dyn Machine, steps: &mut Vec<Owned>) {
    let mut guards: Vec<Step> = Vec::new();
    for owned in steps.iter() {
        let Step::Value { path, .. } = &owned.step else { continue };
        let Some((queue, _)) = path.split_once("/queue/") else { continue };
        let path = format!("{queue}/queue/read_ahead_kb");
        let known = |step: &Step| step.name() == path;
        if steps.iter().any(|owned| known(&owned.step)) || guards.iter().any(known) {
            continue;
        }
        if let Some(now) = machine.source().text(&path) {
            guards.push(Step::Value { path, before: now.clone(), after: now, via: None });
        }
    }
    steps.extend(guards.into_iter().map(|step| Owned { rule: None, step }));
}

/// The setting of a change, and what it shall be.
fn of(item: &Item) -> Option<(&Setting, &str)> {
    item.setting.as_ref().zip(item.wanted.as_deref())
}

/// Adds the steps that make the settings persist across reboots.
fn keep(
    machine: &dyn Machine,
    options: Options<'_>,
    layer: &mut Layer,
    applied: &mut Applied,
) -> Result<(), Failure> {
    let wanted: Vec<(&Setting, &str)> =
        layer.entries.iter().map(|entry| (&entry.setting, entry.wanted.as_str())).collect();
    let kept = persist::keep(machine, options.truenas, &wanted).map_err(|fault| Failure {
        rule: None,
        what: "making it persist across reboots".to_owned(),
        why: fault.0,
    })?;
    let steps = kept.steps.into_iter().map(|step| Owned { rule: None, step });
    match options.truenas {
        // TrueNAS notes the value that it finds as the one to go back to.
        true => layer.steps.splice(0..0, steps).for_each(drop),
        false => layer.steps.extend(steps),
    }
    layer.refresh = kept.refresh;
    applied.notes = kept.notes;
    Ok(())
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
