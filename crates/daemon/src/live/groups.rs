//! Volumes of failover groups: their groups open them, and take them away again.

use anyhow::Result;
use lunet_api::{Change, Code};

use super::{Manager, Open, Served};
use crate::opening::Unserved;
use crate::plan::Plan;
use crate::trouble::refuse;
use lunet_config::{self as config, Config, Volume};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl Manager {
    /// Has all shards serve other storage of volumes of a group: an image that it has open, or `None`, which is a stand-in.
    /// Waits for a change that is under way.
    ///
    /// # Errors
    /// The server stops, or a shard is not ready for it: nothing has changed then.
    pub fn give_group(&self, volumes: Vec<(Volume, Option<lunet_backends::Volume>)>) -> Result<()> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.closed.load(Ordering::Acquire) {
            return refuse(Code::Stopping, "lunet is stopping", "");
        }
        let now = self.now();
        let (mut open, mut waiting) = (now.open.clone(), Vec::new());
        for (config, volume) in volumes {
            let name = config.name.clone();
            // It has left the configuration meanwhile.
            if now.plan.config.volumes.iter().all(|it| it.name != name) {
                continue;
            }
            let before = open.remove(&name);
            match volume {
                Some(volume) => drop(open.insert(name, Open::of_group(config, volume))),
                None => {
                    let size = before.map(|open| open.volume.caps().bytes());
                    let group = config.group.clone().unwrap_or_default();
                    waiting.push((name, Unserved::waiting(&config, &group, size)));
                }
            }
        }
        let mut next = now.with(now.plan.clone(), open).keeping(now.keep_sessions);
        next.unserved.extend(waiting);
        self.adopt(next, None)
    }
}

/// Refuses a plan by which a failover group would be another one: its gateways agree on what it is when they start.
pub(super) fn check(now: &Served, next: &Plan) -> Result<()> {
    let (old, new) = (&now.plan.config, &next.config);
    if old.pending != new.pending {
        return refuse(
            Code::NeedsRestart,
            "a group that waits for its configuration: its table cannot change while lunet runs",
            "restart it, or take that back",
        );
    }
    let names = old.groups.iter().chain(&new.groups).map(|group| &group.name);
    for name in names {
        let (old, new) = (facts(old, name), facts(new, name));
        if let Some(cannot) = cannot_change(old.as_ref(), new.as_ref()) {
            return refuse(
                Code::NeedsRestart,
                format!("group {name}: {cannot} while lunet runs"),
                "restart it, or take that back",
            );
        }
    }
    Ok(())
}

impl Manager {
    /// A group is served from now on: which of its images are smaller than their volumes is looked at anew.
    pub fn sizes_are_unknown(&self, volumes: &[Volume]) {
        let now = self.now();
        for open in volumes.iter().filter_map(|volume| now.open.get(&volume.name)) {
            open.health.end(|cause| matches!(cause, lunet_volume::Cause::CutShort { .. }));
        }
    }

    /// The image of a volume has become smaller than that is: it is at fault.
    pub fn cut_short(&self, volume: &str, bytes: u64) {
        if let Some(open) = self.now().open.get(volume) {
            let _ = open.health.fail(lunet_volume::Cause::CutShort { bytes });
        }
    }
}

/// Of one volume of a group, which it may get and lose: what may not change while it has it. Its limits and its share are
/// those of each gateway, and may.
type Shown = (u16, Option<u32>, Volume);

/// What may not change of a group.
#[derive(PartialEq)]
struct Fixed<'c> {
    group: config::Group,
    target: &'c str,
    portals: Vec<&'c config::Portal>,
    /// What it is over NVMe, and by which portals.
    nvme: Option<(&'c str, Vec<&'c config::Portal>)>,
}

/// What in a change of a group is none for a server that runs; `None`: nothing.
fn cannot_change(
    old: Option<&(Fixed<'_>, Vec<Shown>)>,
    new: Option<&(Fixed<'_>, Vec<Shown>)>,
) -> Option<String> {
    let (Some((fixed, before)), Some((next, after))) = (old, new) else {
        return (old.is_some() != new.is_some()).then(|| "groups cannot come or go".to_owned());
    };
    if fixed != next {
        return Some("its table, its target and their portals cannot change".to_owned());
    }
    if !fixed.group.shared {
        let text = "its LUNs and volumes cannot change, as each gateway has a file of its own,";
        return (before != after).then(|| text.to_owned());
    }
    // The image stays the group's, so nothing would have it opened by its new name.
    let renamed = after.iter().find_map(|(.., volume)| {
        let same = |it: &&Shown| config::image_of(&it.2) == config::image_of(volume);
        let known = &before.iter().find(same)?.2.name;
        (*known != volume.name)
            .then(|| format!("volume {known} cannot get the name {}", volume.name))
    });
    if renamed.is_some() {
        return renamed;
    }
    let other = after.iter().find(|(.., volume)| {
        let known = before.iter().find(|(.., known)| known.name == volume.name);
        known.is_some_and(|known| !after.contains(known))
    });
    other.map(|(.., volume)| {
        let name = &volume.name;
        format!(
            "volume {name} can be added to it or removed, but its image, its LUN and its keys other than limits and shares cannot change"
        )
    })
}

fn facts<'c>(config: &'c Config, name: &str) -> Option<(Fixed<'c>, Vec<Shown>)> {
    let group = config.groups.iter().find(|group| group.name == name)?;
    let target = &config.targets[group.target];
    let leads = |at: &usize| target.portals.is_empty() || target.portals.contains(at);
    let portals = config.portals.iter().enumerate().filter(|(at, _)| leads(at));
    let subsystem = config.nvme.of_target(&target.name);
    let nvme = subsystem.map(|subsystem| {
        let named = |at: &usize| subsystem.portals.is_empty() || subsystem.portals.contains(at);
        let portals = config.nvme.portals.iter().enumerate().filter(|(at, _)| named(at));
        (subsystem.nqn.as_str(), portals.map(|(_, portal)| portal).collect())
    });
    let nsid = |at: usize| {
        let mut namespaces = subsystem?.namespaces.iter();
        namespaces.find(|(_, volume)| *volume == at).map(|(nsid, _)| *nsid)
    };
    let shown = |(lun, at): &(u16, usize)| {
        let (rates, share) = Default::default();
        (*lun, nsid(*at), Volume { rates, share, ..config.volumes[*at].clone() })
    };
    let fixed = Fixed {
        // Others of the file may come and go.
        group: config::Group { target: 0, ..group.clone() },
        target: &target.name,
        portals: portals.map(|(_, portal)| portal).collect(),
        nvme,
    };
    Some((fixed, target.luns.iter().map(shown).collect()))
}

/// Refuses a change of the storage of a group's volume.
pub(super) fn refuse_change(now: &Served, change: &Change) -> Result<()> {
    if let Change::DeleteTarget { name: target, .. }
    | Change::Map { target, .. }
    | Change::Unmap { target, .. } = change
    {
        let Some(shared) = now.plan.shared_with(target) else { return Ok(()) };
        let group = &shared.group;
        return refuse(
            Code::Unsupported,
            format!("target {target} is that of group {group}, whose gateways have the same LUNs"),
            format!("change what they share: `lunet group config {group} --edit`"),
        );
    }
    let name = match change {
        Change::ReopenVolume { name }
        | Change::RecreateVolume { name }
        | Change::AdoptVolume { name }
        | Change::DeleteVolume { name, .. } => name,
        _ => return Ok(()),
    };
    let volumes = &now.plan.config.volumes;
    let group = volumes.iter().find(|volume| volume.name == *name).and_then(|it| it.group.as_ref());
    match group {
        Some(group) => refuse(
            Code::Unsupported,
            format!("volume {name} belongs to group {group}, whose gateways share its image"),
            "",
        ),
        None => Ok(()),
    }
}
