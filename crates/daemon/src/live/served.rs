//! What is served at one moment, in the configuration's terms.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use lunet_api::Code;
use lunet_front_iscsi::{Layout, VolumeEntry};
use lunet_volume::Health;

use crate::opening::Unserved;
use crate::plan::Plan;
use crate::trouble::refuse;
use crate::{failures, serve};
use lunet_config::{self as config, Backend};

/// An open volume.
#[derive(Clone)]
pub struct Open {
    /// As it was configured when it was opened, but for its limits, which are those in force. What else has changed since
    /// takes effect after a restart.
    pub config: config::Volume,
    /// The open volume, shared by all shards.
    pub volume: lunet_backends::Volume,
    /// Whether its storage has failed: one for as long as that is open.
    pub health: Arc<Health>,
}

impl Open {
    /// A volume whose storage was just opened, and failed before if there is a mark that says so.
    pub fn new(
        config: config::Volume,
        volume: lunet_backends::Volume,
        marks: &mut failures::Marks<'_>,
    ) -> Self {
        let health = failures::found(&config, marks);
        Self { config, volume, health }
    }

    /// A volume that was opened anew on purpose: what failed before is over as soon as it is [forgotten](failures::forget).
    pub fn anew(config: config::Volume, volume: lunet_backends::Volume, data: &Path) -> Self {
        let health = Health::kept(&config.name, failures::mark_file(data, &config));
        Self { config, volume, health }
    }

    /// Making something of it stable has failed: that lasts, and is kept when this returns.
    pub fn not_stable(&self, errno: i32) {
        self.health.not_stable(errno, failures::PATIENCE);
    }

    /// An image that its failover group has open. Nothing of it can fail to become stable later.
    pub fn of_group(config: config::Volume, volume: lunet_backends::Volume) -> Self {
        let health = Health::new(&config.name);
        Self { config, volume, health }
    }

    /// The same storage, which is open, as another volume.
    pub fn with(&self, config: config::Volume, volume: lunet_backends::Volume) -> Self {
        Self { config, volume, health: self.health.clone() }
    }
}

/// What is served at one moment. Never changed, but replaced.
pub struct Served {
    /// The configuration in force.
    pub plan: Plan,
    /// `[server]` as it was when the server started: what changed since waits for a restart.
    pub server: config::Server,
    /// The identity of the data directory.
    pub machine: crate::identity::Machine,
    /// The open volumes by name.
    pub open: BTreeMap<String, Open>,
    /// Sessions that could not log in by these rules stay all the same.
    pub keep_sessions: bool,
    /// All other volumes of the configuration.
    pub unserved: BTreeMap<String, Unserved>,
}

impl Served {
    /// The next one, on the same machine.
    pub fn with(&self, plan: Plan, open: BTreeMap<String, Open>) -> Self {
        let mut unserved = self.unserved.clone();
        let named = |name: &String| plan.config.volumes.iter().any(|volume| volume.name == *name);
        unserved.retain(|name, _| !open.contains_key(name) && named(name));
        let (server, machine) = (self.server.clone(), self.machine.clone());
        Self { plan, server, machine, open, unserved, keep_sessions: false }
    }

    /// The same, without volumes that the configuration has no more, and with those of groups that it has newly, which their
    /// groups are to open.
    pub fn for_groups(mut self) -> Self {
        let volumes = &self.plan.config.volumes;
        self.open.retain(|name, _| volumes.iter().any(|volume| volume.name == *name));
        let (open, unserved) = (&self.open, &mut self.unserved);
        let known = |name: &String| open.contains_key(name);
        for volume in volumes.iter().filter(|volume| !known(&volume.name)) {
            let Some(group) = &volume.group else { continue };
            let waits = || Unserved::waiting(volume, group, None);
            unserved.entry(volume.name.clone()).or_insert_with(waits);
        }
        self
    }

    /// The same, where each volume has the limits and the share that are configured: those of volumes that are open change
    /// as well, and so do those that a group opens with what it knew.
    pub fn limited(mut self) -> Self {
        for volume in &self.plan.config.volumes {
            let open = self.open.get_mut(&volume.name).map(|open| &mut open.config);
            let unserved = self.unserved.get_mut(&volume.name).map(|one| &mut one.config);
            for config in open.into_iter().chain(unserved) {
                (config.rates, config.share) = (volume.rates, volume.share);
            }
        }
        self
    }

    /// The same, with or without the sessions that could not log in now.
    pub fn keeping(self, keep_sessions: bool) -> Self {
        Self { keep_sessions, ..self }
    }

    /// The same in the target's terms.
    pub fn layout(&self) -> Layout {
        let config = &self.plan.config;
        // Every volume of the configuration is open or has a stand-in; if one were missing, its LUNs
        // would become those of another volume.
        let entry = |volume: &config::Volume| match self.open.get(&volume.name) {
            Some(open) => Some(serve::entry(self, open)),
            None => Some(serve::stand_in(self, self.unserved.get(&volume.name)?)),
        };
        let entries: Vec<VolumeEntry> = config.volumes.iter().filter_map(entry).collect();
        debug_assert_eq!(entries.len(), config.volumes.len());
        let mut layout = serve::layout(config, entries);
        for target in &mut layout.targets {
            target.luns.retain(|(_, at)| self.is_identified(&config.volumes[*at]));
        }
        Layout { keep_sessions: self.keep_sessions, ..layout }
    }

    /// False for a volume of a failover group as long as it is not known how all gateways call it: initiators would take it
    /// for another one.
    fn is_identified(&self, volume: &config::Volume) -> bool {
        let open = self.open.get(&volume.name).map(|open| &open.config);
        let known = open.or_else(|| self.unserved.get(&volume.name).map(|one| &one.config));
        let named = |known: &config::Volume| known.naa.is_some() && known.serial.is_some();
        volume.group.is_none() || known.is_some_and(named)
    }

    /// The volume with this name.
    pub fn volume(&self, name: &str) -> Result<&Open> {
        match (self.open.get(name), self.unserved.get(name)) {
            (Some(open), _) => Ok(open),
            (None, Some(unserved)) => {
                refuse(Code::NotServed, format!("not served: {}", unserved.failure), "")
            }
            (None, None) => {
                let names = self.open.keys().chain(self.unserved.keys()).map(String::as_str);
                refuse(
                    Code::NotFound,
                    format!(
                        "there is no volume \"{name}\"{}",
                        config::near_or_list(name, names, "lunet volume list")
                    ),
                    "",
                )
            }
        }
    }

    /// The target with this name.
    pub fn target(&self, name: &str) -> Result<&config::Target> {
        let targets = &self.plan.config.targets;
        match targets.iter().find(|target| target.name == name) {
            Some(target) => Ok(target),
            None => {
                let names = targets.iter().map(|target| target.name.as_str());
                refuse(
                    Code::NotFound,
                    format!(
                        "there is no target {name}{}",
                        config::near_or_list(name, names, "lunet target list")
                    ),
                    "",
                )
            }
        }
    }

    /// The LUNs that show a volume, with their targets.
    pub fn luns_of<'a>(&'a self, volume: &'a str) -> impl Iterator<Item = (&'a str, u16)> + 'a {
        let config = &self.plan.config;
        config.targets.iter().flat_map(move |target| {
            let ours = move |(_, at): &&(u16, usize)| config.volumes[*at].name == volume;
            target.luns.iter().filter(ours).map(|(lun, _)| (target.name.as_str(), *lun))
        })
    }
}

/// Where the blocks of a volume are kept.
pub fn backend(volume: &config::Volume) -> lunet_api::Backend {
    match volume.backend {
        Backend::File { .. } => lunet_api::Backend::File,
        Backend::Block { .. } => lunet_api::Backend::Block,
        Backend::Rbd { .. } => lunet_api::Backend::Rbd,
        Backend::Memory { .. } => lunet_api::Backend::Memory,
        Backend::Null { .. } => lunet_api::Backend::Null,
    }
}
