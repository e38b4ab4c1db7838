//! Other programs that tune the machine.

use serde::{Deserialize, Serialize};

use crate::source::Source;

/// A program that also changes settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tuner {
    /// `tuned`, `irqbalance`, `power-profiles-daemon`, `tlp`, `mlnx_tune`, `set_irq_affinity`...
    pub name: String,
    /// Whether it runs.
    pub active: Option<bool>,
    /// Which of its profiles is in force.
    pub profile: Option<String>,
}

/// Reads which there are.
pub(super) fn read(_source: &dyn Source) -> Vec<Tuner> {
    Vec::new()
}
