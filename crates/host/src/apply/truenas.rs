//! What TrueNAS keeps: its own interface (`midclt`) instead of files, which an update would lose.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

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
        /// Its name.
        var: String,
        /// The value of an entry that was there before.
        before: Option<String>,
        /// What it shall be.
        after: String,
    },
    /// Additions to the kernel's command line.
    Options {
        /// What they were.
        before: String,
        /// What they shall be.
        after: String,
    },
    /// A command that is run at each start.
    Script {
        /// The command.
        command: String,
    },
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
        let before = before.map(|entry| text(&entry["value"]));
        Ok(Self::Tunable { kind: kind.into(), var: var.into(), before, after: after.into() })
    }

    /// The kernel's command line with one argument more.
    pub(super) fn options(machine: &dyn Machine, add: &[(String, String)]) -> Result<Self, Fault> {
        let before = options(machine)?;
        let after = super::persist::arguments(&before, add);
        Ok(Self::Options { before, after })
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
            Self::Script { command } => {
                if script(machine, command)?.is_some() {
                    return Ok(());
                }
                let new = json!({
                    "type": "COMMAND", "command": command, "when": "POSTINIT", "enabled": true,
                    "comment": COMMENT,
                });
                call(machine, "initshutdownscript.create", &[&new.to_string()])
            }
        }
    }

    pub(super) fn undo(&self, machine: &dyn Machine) -> Result<(), Fault> {
        match self {
            Self::Tunable { var, before, .. } => {
                let Some(entry) = find(machine, "tunable.query", "var", var)? else {
                    return Ok(());
                };
                let id = text(&entry["id"]);
                match before {
                    Some(before) if text(&entry["value"]) == *before => Ok(()),
                    Some(before) => {
                        let change = json!({"value": before}).to_string();
                        job(machine, "tunable.update", &[&id, &change])
                    }
                    None => job(machine, "tunable.delete", &[&id]),
                }
            }
            Self::Options { before, .. } => {
                if options(machine)? == *before {
                    return Ok(());
                }
                update_options(machine, before)
            }
            Self::Script { command } => match script(machine, command)? {
                Some(id) => call(machine, "initshutdownscript.delete", &[&id]),
                None => Ok(()),
            },
        }
    }

    pub(super) fn holds(&self, machine: &dyn Machine) -> Result<bool, Fault> {
        Ok(match self {
            Self::Tunable { var, after, .. } => find(machine, "tunable.query", "var", var)?
                .is_some_and(|entry| text(&entry["value"]) == *after),
            Self::Options { after, .. } => options(machine)? == *after,
            Self::Script { command } => script(machine, command)?.is_some(),
        })
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::Tunable { var, .. } => format!("tunable {var} of TrueNAS"),
            Self::Options { .. } => "kernel_extra_options of TrueNAS".to_owned(),
            Self::Script { command } => format!("start script of TrueNAS: {command}"),
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
                quoted(json!({"value": after}))
            )],
            Self::Options { after, .. } => vec![format!(
                "midclt call system.advanced.update {}",
                quoted(json!({"kernel_extra_options": after}))
            )],
            Self::Script { command } => vec![format!(
                "midclt call initshutdownscript.create {}",
                quoted(json!({
                    "type": "COMMAND", "command": command, "when": "POSTINIT", "comment": COMMENT,
                }))
            )],
        }
    }
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

fn script(machine: &dyn Machine, command: &str) -> Result<Option<String>, Fault> {
    let entry = find(machine, "initshutdownscript.query", "command", command)?;
    Ok(entry.map(|entry| text(&entry["id"])))
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
