//! Captures a machine: everything that facts, plans and checks ask of it.

use crate::facts::{Facts, facts};
use crate::plan::{PlanError, plan};
use crate::rules::{Choice, Profile, Rules};
use crate::source::{Recorder, Source, Tree};

/// Captures a machine, without its secrets: from the tree come the same facts, plans and findings.
///
/// # Errors
/// A rule has a mistake.
pub fn capture(source: &dyn Source, rules: &Rules) -> Result<(Tree, Facts), PlanError> {
    let recorder = Recorder::new(source);
    let found = facts(&recorder);
    // A plan asks for what settings are now, which facts need not know.
    for profile in Profile::ALL {
        plan(&recorder, &found, rules, profile, &Choice::default())?;
    }
    // When it was: a tree has no other clock.
    recorder.now();
    Ok((recorder.into_tree(), found))
}
