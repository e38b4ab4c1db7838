//! What was changed, written down before it is changed.

use serde::{Deserialize, Serialize};

use super::machine::{Fault, Kept, Machine};
use super::step::Step;
use crate::rules::{Effect, Profile, Setting};

/// Where the journal is kept unless somebody says otherwise: root's own, and not in the server's directory, whose user must
/// not be able to say what root writes when it is taken back or applied again.
pub const STATE: &str = "/var/lib/lunet-tune";

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Changes are being made, or were when the program ended.
    Applying,
    /// All changes are made.
    Applied,
    /// Changes are made and taken back again and again, or were when the program ended.
    Trying,
    /// Changes are being taken back, or were when the program ended.
    RollingBack,
}

/// A setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Id of the rule.
    pub rule: String,
    /// What was set.
    pub setting: Setting,
    /// What it was.
    pub before: Option<String>,
    /// What it shall be.
    pub wanted: String,
    /// From when on it works.
    pub effect: Effect,
}

/// A step, and the rule that it is done for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    /// The rule; nothing for what keeps the settings of several.
    pub rule: Option<String>,
    /// The step that was done.
    pub step: Step,
}

/// What one `apply` changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// When, in seconds since 1970.
    pub at: Option<i64>,
    /// Which start of the machine that was in.
    pub boot: Option<String>,
    /// For which profile.
    pub profile: Profile,
    /// Whether it persists across reboots.
    pub persist: bool,
    /// The settings with their old and new values.
    pub entries: Vec<Entry>,
    /// The steps, in the order in which they are done.
    pub steps: Vec<Owned>,
    /// Programs that take over changed files.
    pub refresh: Vec<Vec<String>>,
}

/// Everything that was changed and not taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// Version of the journal's format.
    pub version: u32,
    /// How far it has come.
    pub state: State,
    /// Each `apply`, the first one first.
    pub layers: Vec<Layer>,
}

/// The form that this program writes.
const VERSION: u32 = 2;

impl Layer {
    /// Whether TrueNAS keeps it.
    pub(super) fn on_truenas(&self) -> bool {
        self.steps.iter().any(|owned| matches!(owned.step, Step::TrueNas(_)))
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self { version: VERSION, state: State::Applied, layers: Vec::new() }
    }
}

impl Journal {
    /// The file, in this directory.
    pub fn path(directory: &str) -> String {
        format!("{}/journal.json", directory.trim_end_matches('/'))
    }

    /// Reads it; `None` if nothing is changed.
    ///
    /// # Errors
    /// It cannot be read, or somebody else has written it.
    pub fn read(machine: &dyn Machine, directory: &str) -> Result<Option<Self>, Fault> {
        let path = Self::path(directory);
        let wrong = |what: String| Fault(format!("the journal {path}: {what}"));
        let Some(kept) = machine.get(&path).map_err(|fault| wrong(fault.0))? else {
            return Ok(None);
        };
        let json: serde_json::Value =
            serde_json::from_slice(&kept.bytes).map_err(|error| wrong(error.to_string()))?;
        let version = &json["version"];
        if *version != VERSION {
            return Err(wrong(format!(
                "it has the form {version}, and this lunet knows {VERSION}: `lunet tune rollback` of \
                 the lunet that wrote it takes it back"
            )));
        }
        serde_json::from_value(json).map(Some).map_err(|error| wrong(error.to_string()))
    }

    /// Writes it down, safe from a crash; an empty one is taken away.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, machine: &dyn Machine, directory: &str) -> Result<(), Fault> {
        let path = Self::path(directory);
        let wrong = |what: &str| Fault(format!("the journal {path} cannot be written: {what}"));
        if self.layers.is_empty() {
            let taken = machine.tidy(&path).and_then(|()| machine.put(&path, None));
            return taken.map_err(|fault| wrong(&fault.0));
        }
        let bytes = serde_json::to_vec_pretty(self).map_err(|error| wrong(&error.to_string()))?;
        let kept = Kept { bytes, mode: 0o600 };
        machine.put(&path, Some(&kept)).map_err(|fault| wrong(&fault.0))
    }
}
