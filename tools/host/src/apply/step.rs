//! One change of one thing, with everything that is needed to take it back.

use serde::{Deserialize, Serialize};

use super::edit::{self, Edit};
use super::file::{self, Content, directory_of, text_of};
use super::machine::{Fault, Kept, Machine};
use super::truenas;
use crate::plan::{Now, now, same, zfs_property};
use crate::rules::Setting;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "lowercase")]
pub enum Step {
    /// A value in a file of the kernel's.
    Value {
        /// Path of the file.
        path: String,
        /// What it was.
        before: String,
        /// What it shall be.
        after: String,
        /// What has to be written before `before` when it is taken back: OpenZFS keeps a limit
        /// that is set to 0.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        via: Option<String>,
    },
    /// An ordinary file.
    File {
        /// Path of the file.
        path: String,
        /// What it was; nothing if it was not there.
        before: Option<Content>,
        /// What it shall be.
        after: Content,
        /// What of it is ours, in the order in which it was put there.
        edits: Vec<Edit>,
        /// Whether its directory was missing.
        new_directory: bool,
    },
    /// Entries of a ring of a NIC.
    Ring {
        /// Name of the network interface: `eth0`.
        nic: String,
        /// `rx` or `tx`.
        ring: String,
        /// What it was.
        before: String,
        /// What it shall be.
        after: String,
    },
    /// A property of ZFS.
    Zfs {
        /// The volume or file system.
        dataset: String,
        /// Name of the ZFS property.
        property: String,
        /// What it was; nothing if it was not set there but inherited.
        before: Option<String>,
        /// What it shall be.
        after: String,
    },
    /// A unit of systemd that is started with the machine.
    Unit {
        /// Name of the systemd unit.
        unit: String,
        /// Whether it was started with the machine before.
        before: bool,
    },
    /// Something that TrueNAS keeps.
    TrueNas(truenas::Kept),
}

impl Step {
    /// The steps that set something now, with what it was. None for what only works later.
    ///
    /// # Errors
    /// It cannot be read what it was.
    pub(super) fn live(
        machine: &dyn Machine,
        setting: &Setting,
        wanted: &str,
    ) -> Result<Vec<Self>, Fault> {
        let source = machine.source();
        let value = |path: String| -> Result<Vec<Self>, Fault> {
            Ok(vec![Self::value(machine, path, wanted)?])
        };
        match setting {
            Setting::Sysctl { name } => value(crate::plan::sysctl_path(name)),
            Setting::Module { module, name } => value(crate::plan::module_path(module, name)),
            Setting::Sysfs { path } => value(path.clone()),
            Setting::Cpus { file } => {
                let paths = crate::plan::cpu_paths(source, file).into_iter();
                paths.map(|path| Self::value(machine, path, wanted)).collect()
            }
            Setting::Cmdline { .. } => Ok(Vec::new()),
            Setting::Ring { nic, ring } => match now(source, setting) {
                Now::Value(before) => Ok(vec![Self::Ring {
                    nic: nic.clone(),
                    ring: ring.clone(),
                    before,
                    after: wanted.to_owned(),
                }]),
                _ => Err(Fault("ethtool does not show it".to_owned())),
            },
            Setting::Zfs { dataset, property } => {
                let (value, from) = zfs_property(source, dataset, property)
                    .ok_or_else(|| Fault("zfs does not show it".to_owned()))?;
                let before = (from == "local" || from == "received").then_some(value);
                let (dataset, property) = (dataset.clone(), property.clone());
                Ok(vec![Self::Zfs { dataset, property, before, after: wanted.to_owned() }])
            }
            Setting::Conf { file, key, section } => {
                let section = section.as_deref();
                let change = |text: &str| super::persist::conf_line(text, section, key, wanted);
                Ok(vec![Self::edit(machine, file, change)?])
            }
            Setting::FreeBsd { .. } => Err(Fault(
                "lunet shows what to set on FreeBSD, and does not set it there".to_owned(),
            )),
        }
    }

    fn value(machine: &dyn Machine, path: String, wanted: &str) -> Result<Self, Fault> {
        let source = machine.source();
        let text = source.read(&path).ok_or_else(|| Fault("it cannot be read".to_owned()))?;
        let before = crate::plan::plain(&text);
        let via = (before == "0").then(|| arc_limit(machine, &path)).flatten();
        Ok(Self::Value { path, before, after: wanted.to_owned(), via })
    }

    /// The step that changes the text of an ordinary file. Nothing is changed yet.
    ///
    /// # Errors
    /// The file cannot be read, or is no text.
    pub fn edit(
        machine: &dyn Machine,
        path: &str,
        change: impl Fn(&str) -> (String, Vec<Edit>),
    ) -> Result<Self, Fault> {
        let before = machine.get(path)?;
        let text = before.as_ref().map(|kept| text_of(kept, path)).transpose()?;
        let mode = before.as_ref().map_or(0o644, |kept| kept.mode);
        let (after, edits) = change(&text.unwrap_or_default());
        let after = Kept { bytes: after.into_bytes(), mode };
        Ok(Self::File {
            path: path.to_owned(),
            before: before.as_ref().map(Content::from),
            after: Content::from(&after),
            edits,
            new_directory: machine.source().list(directory_of(path)).is_none(),
        })
    }

    /// The step that has systemd start a unit.
    pub(super) fn unit(machine: &dyn Machine, unit: &str) -> Self {
        Self::Unit { unit: unit.to_owned(), before: enabled(machine, unit) }
    }

    /// Whether this is the step that changes the file of the setting, which then changes this
    /// line as well.
    pub(super) fn change_again(&mut self, setting: &Setting, wanted: &str) -> bool {
        match (self, setting) {
            (Self::File { path, after, edits, .. }, Setting::Conf { file, key, section })
                if path == file =>
            {
                let mut kept = Kept::from(&*after);
                let text = String::from_utf8_lossy(&kept.bytes).into_owned();
                let section = section.as_deref();
                let (text, more) = super::persist::conf_line(&text, section, key, wanted);
                kept.bytes = text.into_bytes();
                *after = Content::from(&kept);
                edits.extend(more);
                true
            }
            _ => false,
        }
    }

    /// Does it, and looks whether it was done.
    ///
    /// # Errors
    /// The machine refuses, or does something else.
    pub fn run(&self, machine: &dyn Machine) -> Result<(), Fault> {
        match self {
            Self::Value { path, after, .. } => {
                machine.write(path, after)?;
                self.written(machine, after)
            }
            Self::File { path, after, .. } => machine.put(path, Some(&after.into())),
            Self::Ring { nic, ring, after, .. } => {
                machine.act("ethtool", &["-G", nic, ring, after])?;
                self.written(machine, after)
            }
            Self::Zfs { dataset, property, after, .. } => {
                machine.act("zfs", &["set", &format!("{property}={after}"), dataset])?;
                self.written(machine, after)
            }
            Self::Unit { unit, .. } => {
                machine.act("systemctl", &["daemon-reload"])?;
                machine.act("systemctl", &["enable", unit]).map(drop)
            }
            Self::TrueNas(kept) => kept.run(machine),
        }
    }

    /// Takes it back, and tells what stays of it because somebody else has changed it since.
    /// Whatever is as it was, is left alone; what is gone needs nothing.
    ///
    /// # Errors
    /// The machine refuses.
    pub fn undo(&self, machine: &dyn Machine) -> Result<Vec<String>, Fault> {
        let plain = |done: Result<(), Fault>| done.map(|()| Vec::new());
        match self {
            Self::Value { path, before, via, .. } => {
                plain(self.value_back(machine, path, before, via.as_deref()))
            }
            Self::File { path, before, after, edits, new_directory } => {
                machine.tidy(path)?;
                let told = file::back(machine, path, before.as_ref(), after, edits)?;
                if *new_directory {
                    machine.prune(directory_of(path));
                }
                Ok(told)
            }
            Self::Ring { nic, ring, before, .. } => match self.now(machine) {
                Now::Value(now) if now != *before => {
                    machine.act("ethtool", &["-G", nic, ring, before])?;
                    plain(self.written(machine, before))
                }
                _ => Ok(Vec::new()),
            },
            Self::Zfs { dataset, property, before, .. } => {
                plain(property_back(machine, dataset, property, before.as_deref()))
            }
            // Without its file, and that is put away next, it is not known to systemd.
            Self::Unit { unit, before } if !before && enabled(machine, unit) => {
                machine.act("systemctl", &["disable", unit]).map(|_| Vec::new())
            }
            Self::Unit { .. } => Ok(Vec::new()),
            Self::TrueNas(kept) => kept.undo(machine),
        }
    }

    fn value_back(
        &self,
        machine: &dyn Machine,
        path: &str,
        before: &str,
        via: Option<&str>,
    ) -> Result<(), Fault> {
        let source = machine.source();
        let Some(text) = source.read(path) else {
            // A drive that was unplugged, a module that was unloaded.
            return match source.list(directory_of(path)) {
                None => Ok(()),
                Some(_) => Err(Fault("it cannot be read any more".to_owned())),
            };
        };
        if same(&text, before) {
            return Ok(());
        }
        if let Some(via) = via {
            let _ = machine.write(path, via);
        }
        machine.write(path, before)?;
        self.written(machine, before)
    }

    /// Whether it is still as it was set.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn holds(&self, machine: &dyn Machine) -> Result<bool, Fault> {
        match self {
            Self::File { path, after, edits, .. } => {
                let Some(kept) = machine.get(path)? else { return Ok(false) };
                Ok(kept == after.into() || edit::holds(&text_of(&kept, path)?, edits))
            }
            Self::TrueNas(kept) => kept.holds(machine),
            Self::Unit { unit, .. } => Ok(enabled(machine, unit)),
            Self::Value { after, .. } | Self::Ring { after, .. } | Self::Zfs { after, .. } => {
                Ok(matches!(self.now(machine), Now::Value(now) if same(&now, after)))
            }
        }
    }

    /// Whether it only sees to it that something stays as it is.
    pub(super) fn guards(&self) -> bool {
        matches!(self, Self::Value { before, after, .. } if before == after)
    }

    /// What it is about.
    pub fn name(&self) -> String {
        match self {
            Self::Value { path, .. } | Self::File { path, .. } => path.clone(),
            Self::Ring { nic, ring, .. } => format!("{ring} ring of {nic}"),
            Self::Zfs { dataset, property, .. } => format!("{property} of {dataset}"),
            Self::Unit { unit, .. } => unit.clone(),
            Self::TrueNas(kept) => kept.name(),
        }
    }

    /// What the value is that it has set.
    pub(super) fn now(&self, machine: &dyn Machine) -> Now {
        let setting = match self {
            Self::Value { path, .. } => Setting::Sysfs { path: path.clone() },
            Self::Ring { nic, ring, .. } => Setting::Ring { nic: nic.clone(), ring: ring.clone() },
            Self::Zfs { dataset, property, .. } => {
                Setting::Zfs { dataset: dataset.clone(), property: property.clone() }
            }
            _ => return Now::Absent,
        };
        now(machine.source(), &setting)
    }

    /// Whether what was written can be read back. The kernel takes some values and makes others
    /// of them.
    fn written(&self, machine: &dyn Machine, value: &str) -> Result<(), Fault> {
        match self.now(machine) {
            Now::Value(now) if same(&now, value) => Ok(()),
            Now::Value(now) => Err(Fault(format!("{value} was written, and it is {now}"))),
            Now::Unset | Now::Absent => Err(Fault("it cannot be read back".to_owned())),
        }
    }
}

/// Where the file of a unit of systemd is.
pub(super) fn unit_path(unit: &str) -> String {
    format!("/etc/systemd/system/{unit}")
}

/// Whether a unit is started with the machine.
fn enabled(machine: &dyn Machine, unit: &str) -> bool {
    let link = format!("/etc/systemd/system/multi-user.target.wants/{unit}");
    machine.source().link(&link).is_some()
}

fn property_back(
    machine: &dyn Machine,
    dataset: &str,
    property: &str,
    before: Option<&str>,
) -> Result<(), Fault> {
    let Some((value, from)) = zfs_property(machine.source(), dataset, property) else {
        return Ok(()); // The volume is gone.
    };
    let local = from == "local" || from == "received";
    match before {
        Some(before) if local && value == before => Ok(()),
        Some(before) => {
            machine.act("zfs", &["set", &format!("{property}={before}"), dataset]).map(drop)
        }
        None if !local => Ok(()),
        None => machine.act("zfs", &["inherit", property, dataset]).map(drop),
    }
}

/// The limit that OpenZFS has worked out for the cache, where its parameter is 0.
fn arc_limit(machine: &dyn Machine, path: &str) -> Option<String> {
    let wanted = match path.rsplit('/').next()? {
        "zfs_arc_max" => "c_max",
        "zfs_arc_min" => "c_min",
        _ => return None,
    };
    let stats = machine.source().read("/proc/spl/kstat/zfs/arcstats")?;
    stats.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(wanted)).then(|| words.nth(1).map(str::to_owned)).flatten()
    })
}
