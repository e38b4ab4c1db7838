//! Controllers of NVMe: what a change does to them, and their end.

use anyhow::Result;
use lunet_api::{SessionChange, SessionFate};
use lunet_front_nvme::SessionInfo;

use super::effects::{Effect, Removal, known};
use super::{Manager, Served, not_done};
use crate::config::{Config, Hosts, Subsystem};
use crate::serve;

impl Manager {
    /// The controllers; all of them, unless it does not matter if some are missing.
    pub(super) fn known_controllers(&self, some_will_do: bool) -> Result<Vec<SessionInfo>> {
        self.nvme.as_ref().map_or(Ok(Vec::new()), |handle| known(handle, some_will_do))
    }

    /// How many controllers there are of subsystems for which this is true: of the name of the target that one is, or
    /// else of its NQN.
    pub(super) fn controllers(&self, on: impl Fn(&str) -> bool) -> usize {
        let now = self.now();
        let wanted = |info: &&SessionInfo| {
            let subsystem = now.plan.config.nvme.find(&info.subsystem);
            let target = subsystem.and_then(|subsystem| subsystem.target.as_deref());
            on(target.unwrap_or(&info.subsystem))
        };
        let all = self.nvme.as_ref().map(|handle| handle.sessions()).unwrap_or_default();
        all.iter().filter(wanted).count()
    }

    /// Host and address of each controller that sees a volume.
    pub(super) fn hosts_on(
        &self,
        now: &Served,
        volume: &str,
        some_will_do: bool,
    ) -> Result<Vec<(String, String)>> {
        let config = &now.plan.config;
        let shows = |info: &SessionInfo| {
            let subsystem = config.nvme.find(&info.subsystem);
            let mut namespaces = subsystem.into_iter().flat_map(|found| &found.namespaces);
            namespaces.any(|(_, at)| config.volumes[*at].name == volume)
        };
        let mut all = self.known_controllers(some_will_do)?;
        all.retain(shows);
        Ok(all.into_iter().map(|info| (info.host_nqn, info.peer.to_string())).collect())
    }

    /// Ends the controllers of a host, which are told of.
    pub(super) fn end_controllers(&self, host: &str) -> Result<Vec<SessionChange>> {
        let Some(handle) = &self.nvme else { return Ok(Vec::new()) };
        let mut all = handle.sessions();
        all.retain(|info| info.host_nqn == host);
        let handles: Vec<u16> = all.iter().map(|info| info.cntlid).collect();
        if !handles.is_empty() {
            handle.end_sessions(&handles).map_err(not_done)?;
        }
        Ok(all.iter().map(|info| change(info, SessionFate::Ends, "on request")).collect())
    }

    /// What another configuration does to the controllers that there are.
    pub(super) fn effects_on(
        &self,
        all: &[SessionInfo],
        before: &Config,
        after: &Config,
    ) -> Vec<Effect> {
        let Some(handle) = &self.nvme else { return Vec::new() };
        // For each portal that there would be, the slots by which controllers name it.
        let slots = handle.slots_of(&serve::listen_nvme(after));
        let portal = |info: &SessionInfo| slots.iter().position(|own| own.contains(&info.portal));
        all.iter().flat_map(|info| effects(info, portal(info), before, after)).collect()
    }
}

fn change(info: &SessionInfo, fate: SessionFate, why: &str) -> SessionChange {
    SessionChange {
        session: info.cntlid,
        initiator: info.host_nqn.clone(),
        peer: info.peer.to_string(),
        target: Some(info.subsystem.clone()),
        fate,
        lun: None,
        volume: None,
        why: why.to_owned(),
    }
}

/// What happens to one controller, which would have come by the portal with this index.
fn effects(
    info: &SessionInfo,
    portal: Option<usize>,
    before: &Config,
    after: &Config,
) -> Vec<Effect> {
    let nqn = &info.subsystem;
    let Some(was) = before.nvme.find(nqn) else { return Vec::new() };
    let ends =
        |why: &str, removal| vec![Effect { change: change(info, SessionFate::Ends, why), removal }];
    let Some(portal) = portal else {
        let gone = Removal::Gone(format!("portal {}", info.local));
        return ends("the portal is gone", Some(gone));
    };
    let Some(is) = after.nvme.find(nqn) else {
        let gone = Removal::Gone(format!("subsystem {nqn}"));
        return ends("the subsystem is gone", Some(gone));
    };
    if was.hosts != is.hosts && !admits(&is.hosts, info) {
        return ends("the host may not connect any more", None);
    }
    if !is.portals.is_empty() && !is.portals.contains(&portal) {
        let gone = Removal::Gone(format!("the way to {nqn} by portal {}", info.local));
        return ends("the portal does not lead to the subsystem any more", Some(gone));
    }
    let volume = |config: &Config, subsystem: &Subsystem, nsid: u32| {
        let (_, at) = subsystem.namespaces.iter().find(|(number, _)| *number == nsid)?;
        Some(config.volumes[*at].name.clone())
    };
    let lost = |(nsid, _): &(u32, usize)| {
        let name = volume(before, was, *nsid)?;
        if volume(after, is, *nsid).as_ref() == Some(&name) {
            return None;
        }
        let why = format!("namespace {nsid}, volume {name}, is gone");
        let mut change = change(info, SessionFate::LosesLun, &why);
        change.volume = Some(name);
        let removal = Some(Removal::Gone(format!("namespace {nsid} of {nqn}")));
        Some(Effect { change, removal })
    };
    was.namespaces.iter().filter_map(lost).collect()
}

/// True if a host that is connected could connect now.
fn admits(hosts: &Hosts, info: &SessionInfo) -> bool {
    match hosts {
        Hosts::Everybody => true,
        Hosts::ThisMachine => info.peer.ip().is_loopback() || info.peer.ip() == info.local.ip(),
        Hosts::Named(hosts) => hosts.iter().any(|host| host.nqn == info.host_nqn),
    }
}
