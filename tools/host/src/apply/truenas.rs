//! What TrueNAS keeps: its own interface (`midclt`) instead of files, which an update would lose.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::edit::{self, Edit};
use super::machine::{Fault, Machine};
use crate::source::Command;

/// The comment by which our entries are known again.
const COMMENT: &str = "lunet tune";

/// Something that TrueNAS keeps, with what was there before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kept", rename_all = "lowercase")]
pub enum Kept {
    /// A sysctl or a parameter of ZFS.
    Tunable {
        /// `SYSCTL` or `ZFS`.
        kind: String,
        /// Name of the tunable.
        var: String,
        /// The entry that was there before.
        before: Option<Tunable>,
        /// What it shall be.
        after: String,
    },
    /// Additions to the kernel's command line.
    Options {
        /// What they were.
        before: String,
        /// What they shall be.
        after: String,
        /// Which of them are ours.
        edits: Vec<Edit>,
    },
    /// A command that is run at each start.
    Script {
        /// The command line of the entry.
        command: String,
        /// Whether an entry with this command that was there before was enabled.
        before: Option<bool>,
    },
}

/// An entry for a sysctl or a parameter of ZFS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunable {
    value: String,
    enabled: bool,
}

impl From<&Value> for Tunable {
    fn from(entry: &Value) -> Self {
        Self { value: text(&entry["value"]), enabled: on(entry) }
    }
}

impl std::fmt::Display for Tunable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.value, if self.enabled { "" } else { " and disabled" })
    }
}

impl Kept {
    /// A tunable, with what is there now.
    pub(super) fn tunable(
        machine: &dyn Machine,
        kind: &str,
        var: &str,
        after: &str,
    ) -> Result<Self, Fault> {
        let before = find(machine, "tunable.query", "var", var)?;
        let before = before.as_ref().map(Tunable::from);
        Ok(Self::Tunable { kind: kind.into(), var: var.into(), before, after: after.into() })
    }

    /// The kernel's command line with one argument more.
    pub(super) fn options(machine: &dyn Machine, add: &[(String, String)]) -> Result<Self, Fault> {
        let before = options(machine)?;
        let (after, edits) = super::persist::arguments(&before, add);
        Ok(Self::Options { before, after, edits })
    }

    /// A command at start, with whether it is there already.
    pub(super) fn script(machine: &dyn Machine, command: String) -> Result<Self, Fault> {
        let before = script(machine, &command)?.map(|(_, enabled)| enabled);
        Ok(Self::Script { command, before })
    }

    pub(super) fn run(&self, machine: &dyn Machine) -> Result<(), Fault> {
        match self {
            Self::Tunable { kind, var, after, .. } => {
                match find(machine, "tunable.query", "var", var)? {
                    Some(entry) => {
                        let change = json!({"value": after, "enabled": true}).to_string();
                        job(machine, "tunable.update", &[&text(&entry["id"]), &change])
                    }
                    None => {
                        let new = json!({
                            "type": kind, "var": var, "value": after, "enabled": true,
                            "comment": COMMENT,
                        });
                        job(machine, "tunable.create", &[&new.to_string()])
                    }
                }
            }
            Self::Options { after, .. } => update_options(machine, after),
            Self::Script { command, .. } => match script(machine, command)? {
                Some((_, true)) => Ok(()),
                Some((id, false)) => enable_script(machine, &id, true),
                None => {
                    let new = json!({
                        "type": "COMMAND", "command": command, "when": "POSTINIT", "enabled": true,
                        "comment": COMMENT,
                    });
                    call(machine, "initshutdownscript.create", &[&new.to_string()])
                }
            },
        }
    }

    /// Takes it back, and tells what stays because somebody else has changed it since.
    pub(super) fn undo(&self, machine: &dyn Machine) -> Result<Vec<String>, Fault> {
        match self {
            Self::Tunable { var, before, after, .. } => {
                tunable_back(machine, var, before.as_ref(), after)
            }
            Self::Options { before, after, edits } => options_back(machine, before, after, edits),
            Self::Script { command, before } => {
                let Some((id, enabled)) = script(machine, command)? else {
                    return Ok(Vec::new());
                };
                match before {
                    Some(before) if *before == enabled => Ok(()),
                    Some(before) => enable_script(machine, &id, *before),
                    None => call(machine, "initshutdownscript.delete", &[&id]),
                }
                .map(|()| Vec::new())
            }
        }
    }

    pub(super) fn holds(&self, machine: &dyn Machine) -> Result<bool, Fault> {
        Ok(match self {
            Self::Tunable { var, after, .. } => find(machine, "tunable.query", "var", var)?
                .is_some_and(|entry| text(&entry["value"]) == *after && on(&entry)),
            Self::Options { edits, .. } => edit::holds(&options(machine)?, edits),
            Self::Script { command, .. } => {
                script(machine, command)?.is_some_and(|(_, enabled)| enabled)
            }
        })
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::Tunable { var, .. } => format!("tunable {var} of TrueNAS"),
            Self::Options { .. } => "kernel_extra_options of TrueNAS".to_owned(),
            Self::Script { command, .. } => format!("start script of TrueNAS: {command}"),
        }
    }

    /// The commands that do it, for a script that people read.
    pub(super) fn commands(&self) -> Vec<String> {
        let quoted = |value: Value| super::script::quote(&value.to_string());
        match self {
            Self::Tunable { kind, var, after, before: None } => vec![format!(
                "midclt call -job tunable.create {}",
                quoted(json!({"type": kind, "var": var, "value": after, "comment": COMMENT}))
            )],
            Self::Tunable { var, after, .. } => vec![format!(
                "midclt call -job tunable.update \"$(midclt call tunable.query {} '{{\"get\": true}}' \
                 | jq .id)\" {}",
                quoted(json!([["var", "=", var]])),
                quoted(json!({"value": after, "enabled": true}))
            )],
            Self::Options { after, .. } => vec![format!(
                "midclt call system.advanced.update {}",
                quoted(json!({"kernel_extra_options": after}))
            )],
            Self::Script { command, .. } => vec![format!(
                "midclt call initshutdownscript.create {}",
                quoted(json!({
                    "type": "COMMAND", "command": command, "when": "POSTINIT", "comment": COMMENT,
                }))
            )],
        }
    }
}

/// A tunable goes back to what it was, if it is still what we have made of it.
fn tunable_back(
    machine: &dyn Machine,
    var: &str,
    before: Option<&Tunable>,
    after: &str,
) -> Result<Vec<String>, Fault> {
    let Some(entry) = find(machine, "tunable.query", "var", var)? else {
        let gone =
            before.map(|was| format!("tunable {var} was deleted since; before it was {was}"));
        return Ok(gone.into_iter().collect());
    };
    let have = Tunable::from(&entry);
    if before == Some(&have) {
        return Ok(Vec::new());
    }
    if have.value != after || !have.enabled {
        let was = before.map_or_else(|| "not there".to_owned(), Tunable::to_string);
        return Ok(vec![format!(
            "tunable {var} was changed to {have} since, and stays; before it was {was}"
        )]);
    }
    let id = text(&entry["id"]);
    match before {
        Some(before) => {
            let change = json!({"value": before.value, "enabled": before.enabled}).to_string();
            job(machine, "tunable.update", &[&id, &change])
        }
        None => job(machine, "tunable.delete", &[&id]),
    }
    .map(|()| Vec::new())
}

/// The additions to the command line go back; what others have added since stays.
fn options_back(
    machine: &dyn Machine,
    before: &str,
    after: &str,
    edits: &[Edit],
) -> Result<Vec<String>, Fault> {
    let have = options(machine)?;
    if have == before {
        return Ok(Vec::new());
    }
    if have == after {
        return update_options(machine, before).map(|()| Vec::new());
    }
    let (rest, mut told) = edit::unset(&have, edits);
    if rest != have {
        update_options(machine, &rest)?;
        told.push("they were edited since: only what `lunet tune` added was taken out".to_owned());
    }
    Ok(told.into_iter().map(|what| format!("kernel_extra_options: {what}")).collect())
}

/// Whether an entry is enabled.
fn on(entry: &Value) -> bool {
    entry["enabled"].as_bool() != Some(false)
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn query(machine: &dyn Machine, args: &[&str]) -> Result<Value, Fault> {
    let all: Vec<&str> = ["call"].iter().chain(args).copied().collect();
    let output = machine.source().run(&Command::new("midclt", &all));
    let output = output.filter(|output| output.code == 0);
    let parsed = output.and_then(|output| serde_json::from_str(&output.stdout).ok());
    parsed.ok_or_else(|| Fault(format!("midclt call {} does not answer", args[0])))
}

/// The entry whose field has this value.
fn find(
    machine: &dyn Machine,
    method: &str,
    field: &str,
    value: &str,
) -> Result<Option<Value>, Fault> {
    let all = query(machine, &[method])?;
    let mut entries = all.as_array().cloned().unwrap_or_default().into_iter();
    Ok(entries.find(|entry| text(&entry[field]) == value))
}

/// The entry with this command, and whether it is enabled.
fn script(machine: &dyn Machine, command: &str) -> Result<Option<(String, bool)>, Fault> {
    let entry = find(machine, "initshutdownscript.query", "command", command)?;
    Ok(entry.map(|entry| (text(&entry["id"]), on(&entry))))
}

fn enable_script(machine: &dyn Machine, id: &str, enabled: bool) -> Result<(), Fault> {
    let change = json!({"enabled": enabled}).to_string();
    call(machine, "initshutdownscript.update", &[id, &change])
}

fn options(machine: &dyn Machine) -> Result<String, Fault> {
    Ok(text(&query(machine, &["system.advanced.config"])?["kernel_extra_options"]))
}

fn update_options(machine: &dyn Machine, options: &str) -> Result<(), Fault> {
    let change = json!({"kernel_extra_options": options}).to_string();
    call(machine, "system.advanced.update", &[&change])
}

fn call(machine: &dyn Machine, method: &str, args: &[&str]) -> Result<(), Fault> {
    let all: Vec<&str> = ["call", method].iter().chain(args).copied().collect();
    machine.act("midclt", &all).map(drop)
}

/// Calls that TrueNAS works on in the background are waited for.
fn job(machine: &dyn Machine, method: &str, args: &[&str]) -> Result<(), Fault> {
    let all: Vec<&str> = ["call", "-job", method].iter().chain(args).copied().collect();
    machine.act("midclt", &all).map(drop)
}
