//! What a rule can set.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{LoadError, Text};
use crate::expr::{EvalError, Scope};

/// Something on a machine that has a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Setting {
    /// A kernel setting: `net.core.rmem_max`.
    Sysctl {
        /// Dotted name of the sysctl.
        name: String,
    },
    /// A parameter of a kernel module.
    Module {
        /// Name of the kernel module.
        module: String,
        /// Name of the module's parameter.
        name: String,
    },
    /// An attribute of a device, by its path below /sys.
    Sysfs {
        /// Below /sys or /proc.
        path: String,
    },
    /// The same attribute of every CPU: `cpufreq/scaling_governor`.
    Cpus {
        /// The path below a CPU's directory.
        file: String,
    },
    /// An argument of the kernel's command line.
    Cmdline {
        /// Its name, without the `=`.
        name: String,
    },
    /// Entries of a ring of a NIC.
    Ring {
        /// Name of the network interface, as a template.
        nic: String,
        /// `rx` or `tx`.
        ring: String,
    },
    /// A property of a ZFS volume or file system.
    Zfs {
        /// The volume or file system.
        dataset: String,
        /// Name of the ZFS property.
        property: String,
    },
    /// A `key = value` line of a configuration file.
    Conf {
        /// Path of the file.
        file: String,
        /// Name of the key in that file.
        key: String,
        /// The section that the line is in, where the file has sections: `nfsd` of `[nfsd]`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        section: Option<String>,
    },
    /// A kernel setting of FreeBSD. lunet says what it should be, and never writes it.
    FreeBsd {
        /// Name of the sysctl or loader tunable: `kern.ipc.maxsockbuf`.
        name: String,
        /// Whether it is set while the kernel is loaded (loader.conf), or at start and at any time (sysctl.conf).
        #[serde(default)]
        loader: bool,
    },
}

impl Setting {
    /// The line for sysctl.conf or loader.conf of FreeBSD; of other settings what they are.
    pub fn freebsd_line(&self, value: &str) -> String {
        match self {
            Self::FreeBsd { name, loader: true } => format!("{name}=\"{value}\""),
            other => format!("{other}={value}"),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl { name } => f.write_str(name),
            Self::Module { module, name } => write!(f, "{name} of module {module}"),
            Self::Sysfs { path } => f.write_str(path),
            Self::Cpus { file } => write!(f, "{file} of every CPU"),
            Self::Cmdline { name } => write!(f, "{name} on the kernel's command line"),
            Self::Ring { nic, ring } => write!(f, "{ring} ring of {nic}"),
            Self::Zfs { dataset, property } => write!(f, "{property} of {dataset}"),
            Self::Conf { file, key, section: Some(section) } => {
                write!(f, "{key} below [{section}] in {file}")
            }
            Self::Conf { file, key, section: None } => write!(f, "{key} in {file}"),
            Self::FreeBsd { name, .. } => f.write_str(name),
        }
    }
}

/// A setting with expressions in it.
#[derive(Debug)]
pub struct SetRule {
    setting: Setting,
    templates: Vec<Text>,
}

impl SetRule {
    /// Compiles the texts in the setting.
    pub(super) fn compile(
        mut setting: Setting,
        compile: impl Fn(&str) -> Result<Text, LoadError>,
    ) -> Result<Self, LoadError> {
        let texts = texts(&mut setting).into_iter();
        let templates = texts.map(|text| compile(text)).collect::<Result<_, _>>()?;
        Ok(Self { setting, templates })
    }

    /// The setting as the rule's file has it.
    pub fn source(&self) -> &Setting {
        &self.setting
    }

    /// The very setting of this machine.
    pub fn resolve(&self, scope: &Scope<'_>) -> Result<Setting, EvalError> {
        let mut setting = self.setting.clone();
        for (text, template) in texts(&mut setting).into_iter().zip(&self.templates) {
            *text = template.fill(scope)?;
        }
        Ok(setting)
    }
}

/// The texts of a setting.
fn texts(setting: &mut Setting) -> Vec<&mut String> {
    match setting {
        Setting::Sysctl { name } | Setting::Cmdline { name } | Setting::FreeBsd { name, .. } => {
            vec![name]
        }
        Setting::Module { module, name } => vec![module, name],
        Setting::Sysfs { path } => vec![path],
        Setting::Cpus { file } => vec![file],
        Setting::Ring { nic, ring } => vec![nic, ring],
        Setting::Zfs { dataset, property } => vec![dataset, property],
        Setting::Conf { file, key, section } => [file, key].into_iter().chain(section).collect(),
    }
}
