//! What NVMe shows of what is served: subsystems, with the volumes that are their namespaces.

use std::net::SocketAddr;
use std::sync::Arc;

use lunet_server::network::Origin;
use lunet_server::portals::Portals;
use lunet_server::served;
use lunet_volume::{Face, PathState, Volume, VolumeId};

use crate::config::{
    CAPSULE_DATA, Host, Hosts, Layout, MAX_NAMESPACES, Options, SubsystemEntry, Tls,
};
use crate::engine::Engine;

/// What is served over NVMe at one moment.
pub type World<Fc> = served::World<Engine<Fc>>;

/// A subsystem.
pub struct Subsystem {
    /// Its NQN.
    pub nqn: String,
    /// Its serial number.
    pub serial: String,
    /// Its model number.
    pub model: String,
    /// Its namespaces, ascending, each with the slot of its volume.
    pub namespaces: Vec<(u32, VolumeId)>,
    /// Who may connect.
    hosts: Hosts,
    /// Whether it is reached through the portal in each slot.
    portals: Vec<bool>,
}

impl Subsystem {
    /// True if the same hosts may connect, by the same proofs.
    pub fn has_hosts_of(&self, other: &Self) -> bool {
        self.hosts == other.hosts
    }

    fn new(entry: SubsystemEntry, portals: &Portals) -> Self {
        let mut namespaces = entry.namespaces;
        namespaces.sort_unstable();
        let named = |slot: &usize| entry.portals.is_empty() || entry.portals.contains(slot);
        let reached = |slot| portals.get(slot).is_some() && named(&slot);
        Self {
            portals: (0..portals.slots().len()).map(reached).collect(),
            namespaces,
            hosts: entry.hosts,
            nqn: entry.nqn,
            serial: entry.serial,
            model: entry.model,
        }
    }

    /// True if it is reached through the portal in this slot.
    pub fn is_reached_through(&self, portal: usize) -> bool {
        // A connection may have come by a portal that the shard's world does not have yet.
        self.portals.get(portal) == Some(&true)
    }

    /// True if a host of this name that comes from there may connect, and know of the subsystem.
    pub fn admits(&self, host: &str, origin: Origin) -> bool {
        match &self.hosts {
            Hosts::Any => true,
            Hosts::Local => origin.here,
            Hosts::Listed(hosts) => hosts.iter().any(|listed| listed.nqn == host),
        }
    }

    /// True if it is for this machine alone, since nobody has said who may connect, and the host is on another.
    pub fn is_closed_to(&self, origin: Origin) -> bool {
        self.hosts == Hosts::Local && !origin.here
    }

    /// The host of this name, if it is one of those that are named.
    pub fn host(&self, name: &str) -> Option<&Host> {
        match &self.hosts {
            Hosts::Listed(hosts) => hosts.iter().find(|host| host.nqn == name),
            Hosts::Any | Hosts::Local => None,
        }
    }

    /// The slot of a namespace's volume.
    pub fn volume(&self, nsid: u32) -> Option<VolumeId> {
        let at = self.namespaces.binary_search_by_key(&nsid, |(nsid, _)| *nsid).ok()?;
        Some(self.namespaces[at].1)
    }
}

/// What else NVMe knows of what is served.
#[derive(Default)]
pub struct Rules {
    /// The number of the group of each portal, by its slot.
    groups: Vec<Option<usize>>,
    /// What each portal has of TLS, by its slot.
    tls: Vec<Tls>,
    /// Discovery controllers elsewhere.
    pub referrals: Vec<SocketAddr>,
    /// Counts the changes of what the discovery log may say (GENCTR).
    pub generation: u64,
    /// Controllers of hosts that could not connect now stay all the same.
    pub keep_sessions: bool,
}

impl Rules {
    /// What the portal in this slot has of TLS.
    pub fn tls(&self, portal: usize) -> Tls {
        // A connection may have come by a portal that the shard's world does not have yet.
        self.tls.get(portal).copied().unwrap_or_default()
    }
}

/// Why a layout cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Unservable {
    /// A name is not valid.
    #[error("subsystem {nqn:?}: {why}")]
    Name {
        /// The name.
        nqn: String,
        /// What is wrong with it.
        why: lunet_nvme::name::NqnError,
    },
    /// Two subsystems have one name, or it is that of discovery.
    #[error("subsystem {0:?}: the NQN is taken")]
    Taken(String),
    /// A namespace identifier is 0, too large, or there twice.
    #[error(
        "subsystem {nqn:?}: namespace {nsid} is there twice, or not from 1 to {MAX_NAMESPACES}"
    )]
    Namespace {
        /// The subsystem.
        nqn: String,
        /// The identifier.
        nsid: u32,
    },
    /// An option is out of its range.
    #[error("{0} is out of its range")]
    Option(&'static str),
    /// A namespace has no volume, or one that has no names.
    #[error("subsystem {nqn:?}: namespace {nsid} has no volume that can be served over NVMe")]
    Volume {
        /// The subsystem.
        nqn: String,
        /// The identifier.
        nsid: u32,
    },
}

/// Checks what is offered to hosts.
///
/// # Errors
/// What is wrong with it.
pub fn check_options(options: &Options) -> Result<(), Unservable> {
    let capsule = options.capsule_data;
    let is_capsule = capsule.is_power_of_two() && (CAPSULE_DATA..=128 << 10).contains(&capsule);
    let wrong = [
        ("the number of queues", options.queues == 0 || options.queues > 1024),
        ("the number of entries of a queue", !(2..=4096).contains(&options.queue_entries)),
        ("the data of a capsule", !is_capsule),
        // With less, the ANA log would not fit into a command; a command has its data in memory.
        ("the most data of a command", !(4..=10).contains(&options.mdts)),
    ];
    match wrong.into_iter().find(|(_, wrong)| *wrong) {
        Some((what, _)) => Err(Unservable::Option(what)),
        None => Ok(()),
    }
}

/// Checks a layout.
///
/// # Errors
/// What is wrong with it.
pub fn check<Fc: Face>(layout: &Layout<Fc>) -> Result<(), Unservable> {
    let mut names = vec![lunet_nvme::name::DISCOVERY_NQN];
    for entry in &layout.subsystems {
        let nqn = || entry.nqn.clone();
        lunet_nvme::name::check_any_nqn(&entry.nqn)
            .map_err(|why| Unservable::Name { nqn: nqn(), why })?;
        if names.contains(&entry.nqn.as_str()) {
            return Err(Unservable::Taken(nqn()));
        }
        names.push(&entry.nqn);
        for (at, (nsid, slot)) in entry.namespaces.iter().enumerate() {
            let (nsid, before) = (*nsid, &entry.namespaces[..at]);
            if !(1..=MAX_NAMESPACES).contains(&nsid) || before.iter().any(|(it, _)| *it == nsid) {
                return Err(Unservable::Namespace { nqn: nqn(), nsid });
            }
            let volume = layout.volumes.iter().find(|(it, _)| it == slot);
            if volume.is_none_or(|(_, volume)| volume.face.names().is_none()) {
                return Err(Unservable::Volume { nqn: nqn(), nsid });
            }
        }
    }
    Ok(())
}

/// What NVMe asks of what is served.
pub trait Exports<Fc: Face>: Sized {
    /// The slot of the subsystem with this name.
    fn find(&self, nqn: &str) -> Option<(usize, &Arc<Subsystem>)>;

    /// What a volume lets those do who have come by the portal in this slot.
    fn path(&self, volume: &Volume<Fc>, portal: usize) -> PathState;

    /// The world after this one with these portals. The layout's subsystems name their portals by slots.
    fn next(&self, layout: Layout<Fc>, portals: Arc<Portals>) -> Self;
}

impl<Fc: Face> Exports<Fc> for World<Fc> {
    fn find(&self, nqn: &str) -> Option<(usize, &Arc<Subsystem>)> {
        self.exports().find(|(_, subsystem)| subsystem.nqn == nqn)
    }

    fn path(&self, volume: &Volume<Fc>, portal: usize) -> PathState {
        let group = self.rules.groups.get(portal).copied().flatten();
        group.map_or(PathState::Optimized, |group| volume.face.access(group))
    }

    fn next(&self, layout: Layout<Fc>, portals: Arc<Portals>) -> Self {
        let number = |tag| layout.groups.iter().find(|(it, _)| *it == tag).map(|(_, group)| *group);
        let groups = portals.slots().map(|portal| number(portal.tag)).collect();
        let of_portal = |slot: usize| layout.tls.iter().find(|(it, _)| *it == slot);
        let tls = |slot| of_portal(slot).map_or(Tls::default(), |(_, tls)| *tls);
        let tls = (0..portals.slots().len()).map(tls).collect();
        let (generation, referrals) = (self.rules.generation + 1, layout.referrals);
        let keep_sessions = layout.keep_sessions;
        let rules = Rules { groups, tls, referrals, generation, keep_sessions };
        let mut next = self.successor(portals.clone(), rules);
        for (slot, volume) in layout.volumes {
            next.put_volume(Some(slot), volume);
        }
        for entry in layout.subsystems {
            let old = self.find(&entry.nqn).map(|(slot, _)| slot);
            next.put_export(old, Arc::new(Subsystem::new(entry, &portals)));
        }
        next
    }
}
