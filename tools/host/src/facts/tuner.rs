//! Other programs that tune the machine.

use serde::{Deserialize, Serialize};

use crate::source::{Command, Source};

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

/// Programs, with a file that is there where they are installed, and their unit.
const KNOWN: &[(&str, &[&str], &str)] = &[
    ("tuned", &["/usr/sbin/tuned"], "tuned.service"),
    ("irqbalance", &["/usr/sbin/irqbalance"], "irqbalance.service"),
    (
        "power-profiles-daemon",
        &["/usr/libexec/power-profiles-daemon", "/usr/lib/power-profiles-daemon"],
        "power-profiles-daemon.service",
    ),
    ("tlp", &["/usr/sbin/tlp", "/usr/bin/tlp"], "tlp.service"),
    ("mlnx_tune", &["/usr/sbin/mlnx_tune", "/usr/bin/mlnx_tune"], ""),
    ("set_irq_affinity", &["/usr/sbin/set_irq_affinity.sh"], ""),
    ("cpupower", &["/usr/bin/cpupower"], "cpupower.service"),
    ("rc.local", &["/etc/rc.local"], "rc-local.service"),
];

/// Reads which there are.
pub(super) fn read(source: &dyn Source) -> Vec<Tuner> {
    let installed = |files: &[&str]| {
        files.iter().any(|file| {
            let (directory, name) = file.rsplit_once('/').unwrap_or_default();
            source.names(directory).iter().any(|have| have == name)
        })
    };
    KNOWN
        .iter()
        .filter(|(_, files, _)| installed(files))
        .map(|(name, _, unit)| Tuner {
            name: (*name).to_owned(),
            active: active(source, unit),
            profile: if *name == "tuned" { profile(source) } else { None },
        })
        .collect()
}

/// `systemctl is-active` fails for what does not run, and says so all the same.
fn active(source: &dyn Source, unit: &str) -> Option<bool> {
    if unit.is_empty() {
        return None;
    }
    match source.run(&Command::new("systemctl", &["is-active", unit]))?.stdout.trim() {
        "active" | "activating" | "reloading" => Some(true),
        "inactive" | "failed" | "unknown" => Some(false),
        _ => None,
    }
}

fn profile(source: &dyn Source) -> Option<String> {
    source.text("/etc/tuned/active_profile")
}
