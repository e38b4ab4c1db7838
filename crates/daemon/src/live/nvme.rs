//! Controllers of NVMe: what a change does to them, and their end.

use anyhow::Result;
use lunet_api::{Code, Done, SessionChange, SessionFate};
use lunet_front_nvme::SessionInfo;

use super::effects::{Consent, Effect, Removal, Weighed, known};
use super::sessions::concerning;
use super::{Manager, Served, done, not_done};
use crate::serve;
use crate::trouble::refuse;
use lunet_config::{Config, Hosts, Subsystem};

/// True if this list for a target names NVMe hosts, false if it names initiators.
///
/// # Errors
/// It names both.
pub(super) fn hosts_alone(entries: &[String]) -> Result<bool> {
    let is_nqn =
        |entry: &String| entry.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("nqn."));
    let hosts = entries.iter().filter(|entry| is_nqn(entry)).count();
    if hosts > 0 && hosts < entries.len() {
        return refuse(
            Code::Invalid,
            "these are NQNs of NVMe hosts and initiators, which have lists of their own",
            "name the hosts in one command and the initiators in another",
        );
    }
    Ok(hosts > 0)
}

/// The subsystem that a target is.
fn subsystem<'a>(config: &'a Config, target: &str) -> Result<&'a Subsystem> {
    match config.nvme.of_target(target) {
        Some(found) => Ok(found),
        None => refuse(
            Code::Unsupported,
            format!("target {target} is not served over NVMe"),
            "add `protocols = [\"iscsi\", \"nvme\"]` to it in the configuration, and run `lunet config apply`",
        ),
    }
}

/// Whom a subsystem lets in, in words.
pub(super) fn hosts_in_words(hosts: &Hosts) -> String {
    match hosts {
        Hosts::Everybody => "every host".to_owned(),
        Hosts::ThisMachine => "hosts on this machine".to_owned(),
        Hosts::Named(hosts) if hosts.is_empty() => "nobody".to_owned(),
        Hosts::Named(hosts) => {
            let names: Vec<&str> = hosts.iter().map(|host| host.nqn.as_str()).collect();
            names.join(", ")
        }
    }
}

impl Manager {
    /// Lets NVMe hosts in to a target.
    pub(super) fn allow_hosts(
        &self,
        now: &Served,
        target: &str,
        nqns: &[String],
        consent: Consent,
    ) -> Result<Done> {
        now.target(target)?;
        let was = &subsystem(&now.plan.config, target)?.hosts;
        let mut fresh: Vec<String> =
            nqns.iter().filter(|nqn| was.find(nqn).is_none()).cloned().collect();
        fresh.sort();
        fresh.dedup();
        if fresh.is_empty() {
            return Ok(done(format!(
                "over NVMe, target {target} is for {} already",
                hosts_in_words(was)
            )));
        }
        let next =
            self.edited_at(now, target, consent, |editor| editor.allow_hosts(target, &fresh))?;
        let would = hosts_in_words(&subsystem(&next.plan.config, target)?.hosts);
        let ends = next.sessions.iter().filter(|one| one.fate == SessionFate::Ends).count();
        if !consent.force && (ends > 0 || *was == Hosts::Everybody) {
            return refuse(
                Code::ChangesAccess,
                format!(
                    "over NVMe, target {target} would be for {would}, which shuts out all others and ends {ends} controllers"
                ),
                "name all hosts that are to connect, or use --force",
            );
        }
        let local = *was == Hosts::ThisMachine;
        let mut done = self.hosts_changed(now, next, target)?;
        if local {
            done.notes.push(
                format!("until now it was for hosts on this machine: they must be in the list, too (`cat /etc/nvme/hostnqn`, `lunet target allow {target} HOSTNQN`)"),
            );
        }
        Ok(done)
    }

    /// Lets NVMe hosts in to a target no more.
    pub(super) fn deny_hosts(
        &self,
        now: &Served,
        target: &str,
        nqns: &[String],
        consent: Consent,
    ) -> Result<Done> {
        now.target(target)?;
        let was = &subsystem(&now.plan.config, target)?.hosts;
        for nqn in nqns {
            if was.find(nqn).is_none() {
                return refuse(
                    Code::NotFound,
                    format!(
                        "\"{nqn}\" is not in the list of target {target}, which over NVMe is for {}",
                        hosts_in_words(was)
                    ),
                    format!(
                        "`lunet target allow {target} HOSTNQN` names who may connect, and no others may"
                    ),
                );
            }
        }
        if was.named().iter().all(|host| nqns.contains(&host.nqn)) {
            return refuse(
                Code::LastOne,
                format!(
                    "no host would be in the list of target {target}, which would be for others then"
                ),
                "allow another host first, or take \"nvme\" out of its `protocols` with `lunet config apply`",
            );
        }
        let meant = Consent { force: true, ..consent };
        let next = self.edited_at(now, target, meant, |editor| {
            nqns.iter().try_for_each(|nqn| editor.deny_host(target, nqn))
        })?;
        self.hosts_changed(now, next, target)
    }

    fn hosts_changed(&self, now: &Served, next: Weighed, target: &str) -> Result<Done> {
        let sessions = next.sessions.clone();
        let is = hosts_in_words(&subsystem(&next.plan.config, target)?.hosts);
        self.commit(now, next, now.open.clone())?;
        Ok(concerning(done(format!("over NVMe, target {target} is for {is}")), sessions))
    }

    /// The controllers; all of them, unless it does not matter if some are missing.
    pub(super) fn known_controllers(&self, some_will_do: bool) -> Result<Vec<SessionInfo>> {
        self.nvme.handle().map_or(Ok(Vec::new()), |handle| known(handle, some_will_do))
    }

    /// For each controller the name of the target that its subsystem is, or else its NQN.
    pub(super) fn controllers(&self) -> Vec<String> {
        let now = self.now();
        let of = |info: SessionInfo| {
            let subsystem = now.plan.config.nvme.find(&info.subsystem);
            let target = subsystem.and_then(|subsystem| subsystem.target.clone());
            target.unwrap_or(info.subsystem)
        };
        let all = self.nvme.handle().map(|handle| handle.sessions()).unwrap_or_default();
        all.into_iter().map(of).collect()
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
        let Some(handle) = self.nvme.handle() else { return Ok(Vec::new()) };
        let mut all = handle.sessions();
        all.retain(|info| info.host_nqn == host);
        let handles: Vec<u16> = all.iter().map(|info| info.cntlid).collect();
        if !handles.is_empty() {
            handle.end_sessions(&handles).map_err(not_done)?;
        }
        Ok(all.iter().map(|info| change(info, SessionFate::Ends, "on request")).collect())
    }

    /// The controllers of a host, as they would be told of if they were ended.
    pub(super) fn controllers_of(&self, host: &str) -> Vec<SessionChange> {
        let all = self.nvme.handle().map(|handle| handle.sessions()).unwrap_or_default();
        let own = all.iter().filter(|info| info.host_nqn == host);
        own.map(|info| change(info, SessionFate::Ends, "on request")).collect()
    }

    /// What another configuration does to the controllers that there are.
    pub(super) fn effects_on(
        &self,
        all: &[SessionInfo],
        (before, after): (&Config, &Config),
        keep: bool,
    ) -> Vec<Effect> {
        let Some(handle) = self.nvme.handle() else { return Vec::new() };
        // For each portal that there would be, the slots by which controllers name it.
        let slots = handle.slots_of(&serve::listen_nvme(after));
        let portal = |info: &SessionInfo| slots.iter().position(|own| own.contains(&info.portal));
        all.iter().flat_map(|info| effects(info, portal(info), (before, after), keep)).collect()
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
    (before, after): (&Config, &Config),
    keep: bool,
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
    let mut all: Vec<Effect> = was.namespaces.iter().filter_map(lost).collect();
    let fate = if keep { SessionFate::Stays } else { SessionFate::Ends };
    let why = shut_out(info, &was.hosts, &is.hosts);
    all.extend(why.map(|why| Effect { change: change(info, fate, why), removal: None }));
    all
}

/// Why a host that is connected could not connect as it has, if other hosts may now, or by other proofs.
fn shut_out(info: &SessionInfo, was: &Hosts, is: &Hosts) -> Option<&'static str> {
    if was.are(is) {
        return None;
    }
    if !admits(is, info) {
        return Some("the host may not connect any more");
    }
    let now = is.find(&info.host_nqn)?;
    let proves = now.secret.is_some() || now.tls_key.is_some();
    let same = was.find(&info.host_nqn).is_some_and(|before| before.is(now));
    (proves && !same).then_some("the host has to prove itself otherwise now")
}

/// True if a host that is connected could connect now.
fn admits(hosts: &Hosts, info: &SessionInfo) -> bool {
    match hosts {
        Hosts::Everybody => true,
        Hosts::ThisMachine => info.peer.ip().is_loopback() || info.peer.ip() == info.local.ip(),
        Hosts::Named(_) => hosts.find(&info.host_nqn).is_some(),
    }
}
