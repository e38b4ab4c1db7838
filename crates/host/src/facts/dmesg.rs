//! Lines of the kernel's log that mean something here.

use serde::{Deserialize, Serialize};

use crate::source::Source;

/// What the kernel's log says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dmesg {
    /// Whether it could be read: often only root may. It holds what has happened since start,
    /// unless newer lines have pushed the older ones out.
    pub readable: bool,
    /// The lines that mean something.
    pub hits: Vec<DmesgHit>,
}

/// Lines of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DmesgHit {
    /// What they mean: one of the names in this module's table.
    pub kind: String,
    /// The device that the first one names.
    pub device: Option<String>,
    /// The last of them, without its time.
    pub text: String,
    /// How many there are.
    pub count: i64,
}

/// Reads the log.
pub(super) fn read(_source: &dyn Source) -> Dmesg {
    Dmesg::default()
}
