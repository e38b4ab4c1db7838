//! Looks whether what was applied still holds.

use serde::Serialize;

use super::journal::{Entry, Journal, State};
use super::machine::{Fault, Machine};
use super::step::Step;
use crate::plan::{Now, now, same};
use crate::rules::Setting;

/// Something that is not as it was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// The rule; nothing for what keeps settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// What it is about.
    pub what: String,
    /// What it should be.
    pub wanted: String,
    /// What it is.
    pub is: String,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Whether anything is applied at all.
    pub applied: bool,
    /// Whether an apply or rollback was interrupted.
    pub interrupted: bool,
    /// How many settings and files are as they were set.
    pub good: usize,
    /// What is not.
    pub drift: Vec<Drift>,
    /// What waits for a reboot.
    pub waiting: Vec<String>,
}

/// Looks at everything that is in the journal.
///
/// # Errors
/// The journal cannot be read.
pub fn verify(machine: &dyn Machine, state: &str) -> Result<Verified, Fault> {
    let mut found = Verified::default();
    let Some(journal) = Journal::read(machine, state)? else { return Ok(found) };
    found.applied = true;
    found.interrupted = journal.state != State::Applied;
    let boot = machine.source().text("/proc/sys/kernel/random/boot_id");
    // What was set last counts.
    let mut entries: Vec<(&Entry, bool)> = Vec::new();
    let mut kept: Vec<&Step> = Vec::new();
    for layer in &journal.layers {
        for entry in &layer.entries {
            entries.retain(|(have, _)| have.setting != entry.setting);
            entries.push((entry, boot.is_some() && layer.boot == boot));
        }
        for owned in &layer.steps {
            let keeps =
                matches!(owned.step, Step::File { .. } | Step::Unit { .. } | Step::TrueNas(_));
            kept.retain(|have| have.name() != owned.step.name());
            kept.extend(keeps.then_some(&owned.step));
        }
    }
    for (entry, same_boot) in entries {
        setting(machine, entry, same_boot, &mut found);
    }
    for step in kept {
        let held = step.holds(machine);
        if held == Ok(true) {
            found.good += 1;
            continue;
        }
        let is = held.err().map_or_else(|| "changed or gone".to_owned(), |fault| fault.0);
        let wanted = "as it was written".to_owned();
        found.drift.push(Drift { rule: None, what: step.name(), wanted, is });
    }
    Ok(found)
}

fn setting(machine: &dyn Machine, entry: &Entry, same_boot: bool, found: &mut Verified) {
    let told = now(machine.source(), &entry.setting);
    let is = match &told {
        Now::Value(is) if same(is, &entry.wanted) => {
            found.good += 1;
            return;
        }
        Now::Value(is) => is.clone(),
        Now::Unset => "not set".to_owned(),
        Now::Absent => "not there".to_owned(),
    };
    if matches!(entry.setting, Setting::Cmdline { .. }) && same_boot {
        found.waiting.push(format!("{}: {}", entry.rule, entry.setting));
        return;
    }
    found.drift.push(Drift {
        rule: Some(entry.rule.clone()),
        what: entry.setting.to_string(),
        wanted: entry.wanted.clone(),
        is,
    });
}
