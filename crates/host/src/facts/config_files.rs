//! What configuration files say that speak of the same settings.

use serde::{Deserialize, Serialize};

use super::Value;
use crate::source::Source;

/// What configuration files say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigFiles {
    /// sysctl.conf and sysctl.d, in the order in which they are read.
    pub sysctl: Vec<SysctlLine>,
    /// `options` lines of modprobe.d.
    pub modprobe: Vec<ModprobeOption>,
    /// udev rules below /etc that set an attribute of a block device, NIC or NVMe drive.
    pub udev: Vec<UdevRule>,
}

/// A setting in a sysctl file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SysctlLine {
    /// The file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: i64,
    /// Name, with dots: `net.core.rmem_max`.
    pub name: String,
    /// What it is to be.
    pub value: Option<Value>,
}

/// An option of a module in a modprobe file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModprobeOption {
    /// The file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: i64,
    /// The module.
    pub module: String,
    /// The option.
    pub name: String,
    /// What it is to be.
    pub value: Option<Value>,
}

/// A udev rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UdevRule {
    /// The file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: i64,
    /// The rule.
    pub text: String,
}

/// Reads the files.
pub(super) fn read(_source: &dyn Source) -> ConfigFiles {
    ConfigFiles::default()
}
