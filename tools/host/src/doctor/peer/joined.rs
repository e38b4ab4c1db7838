//! What belongs together on a target and an initiator.

use serde::{Deserialize, Serialize};

use super::Pair;
use crate::expr::Shape;
use crate::facts::{
    Drive, Facts, IscsiDisk, IscsiSession, Lun, Nic, NvmeHost, NvmePath, Portal, Rdma, Target,
    TargetSession, TcpConnection, View, in_network,
};

/// Interfaces of both in one network over which storage goes, or could go.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Link {
    /// `10.25.0.20`, of the target.
    target_address: String,
    /// Of the initiator.
    initiator_address: String,
    /// Length of the network's prefix at the target, in bits.
    target_prefix: i64,
    /// The same at the initiator.
    initiator_prefix: i64,
    /// Who has the address.
    target_nic: Nic,
    initiator_nic: Nic,
    /// The hardware below it: the card below a VLAN, the first member of a bond.
    target_card: Nic,
    initiator_card: Nic,
    target_rdma: Option<Rdma>,
    initiator_rdma: Option<Rdma>,
    /// Whether a session or path goes over RDMA there.
    over_rdma: bool,
}

impl Link {
    /// The addresses of target and initiator, and the smaller MTU of both; `None` if an MTU is not known.
    pub(super) fn ends(&self) -> Option<(&str, &str, i64)> {
        let mtu = self.target_nic.mtu?.min(self.initiator_nic.mtu?);
        Some((&self.target_address, &self.initiator_address, mtu))
    }
}

/// A network in which both have interfaces.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Network {
    /// `10.25.0.20/24`.
    network: String,
    /// Interfaces of the target with a portal in it.
    target_nics: Vec<String>,
    /// Interfaces of the initiator in it.
    initiator_nics: Vec<String>,
}

/// A session of open-iscsi with this target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Session {
    session: IscsiSession,
    target: Target,
    /// The session as the target has it.
    theirs: Option<TargetSession>,
    /// What the target shows the initiator, where it says so.
    view: Option<View>,
    /// The interface of the initiator that has the session's own address.
    from_nic: Option<Nic>,
    /// The interface of the initiator in whose network the portal is.
    near_nic: Option<Nic>,
    near_rdma: Option<Rdma>,
    /// Commands that all its disks may send at once.
    wanted: i64,
    /// Commands that the target takes.
    taken: Option<i64>,
    disks: Vec<Disk>,
}

/// A disk of a session and the LUN behind it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Disk {
    disk: IscsiDisk,
    drive: Option<Drive>,
    lun: Option<Lun>,
}

/// An NVMe path to a subsystem of this target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Path {
    host: NvmeHost,
    path: NvmePath,
    target: Target,
    near_rdma: Option<Rdma>,
    /// Whether the subsystem is offered over RDMA at the same address.
    rdma_offered: bool,
}

/// A target or subsystem that the initiator uses, or is on its list.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Service {
    target: Target,
    /// Sessions and paths of this initiator.
    used: i64,
    /// Networks with a portal in which the initiator has an interface.
    networks: i64,
    /// Networks that its sessions and paths use.
    used_networks: i64,
    /// Whether the initiator's name is on the list.
    listed: bool,
    /// The initiator's name.
    initiator: String,
}

/// A portal of a target that the initiator uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Reach {
    target: String,
    portal: Portal,
    /// Whether the initiator has an interface in its network.
    near: bool,
    /// Whether the initiator has a default route; `null` if nobody knows.
    default_route: Option<bool>,
}

/// A TCP connection as both ends see it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Connection {
    target: TcpConnection,
    initiator: TcpConnection,
    /// The smaller MTU of the two interfaces.
    mtu: Option<i64>,
}

/// An address of the target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Address {
    address: String,
    /// Whether the initiator has it as well.
    both: bool,
}

/// Cards of one model in both.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Card {
    id: String,
    target: Nic,
    initiator: Nic,
}

/// What the lists of two machines look like.
pub(super) fn shapes() -> [(&'static str, Shape); 9] {
    [
        ("links", Shape::of::<Link>()),
        ("networks", Shape::of::<Network>()),
        ("sessions", Shape::of::<Session>()),
        ("paths", Shape::of::<Path>()),
        ("services", Shape::of::<Service>()),
        ("portals", Shape::of::<Reach>()),
        ("connections", Shape::of::<Connection>()),
        ("cards", Shape::of::<Card>()),
        ("addresses", Shape::of::<Address>()),
    ]
}

/// `10.25.0.20/24` in two.
fn split(address: &str) -> Option<(&str, i64)> {
    let (bare, prefix) = address.split_once('/')?;
    Some((bare, prefix.parse().ok()?))
}

fn has<'a>(facts: &'a Facts, address: &str) -> Option<&'a Nic> {
    let bare = address.trim_matches(['[', ']']);
    let own = |nic: &&Nic| nic.addresses.iter().any(|a| split(a).is_some_and(|(a, _)| a == bare));
    facts.nics.iter().find(own)
}

fn near<'a>(facts: &'a Facts, address: &str) -> Option<&'a Nic> {
    facts.nics.iter().find(|nic| nic.addresses.iter().any(|own| in_network(address, own)))
}

/// The hardware below an interface.
fn card<'a>(facts: &'a Facts, nic: &'a Nic) -> &'a Nic {
    let mut at = nic;
    for _ in 0..3 {
        let below = at.parent.as_ref().or(at.slaves.first());
        match below.and_then(|name| facts.nics.iter().find(|nic| nic.name == *name)) {
            Some(nic) => at = nic,
            None => break,
        }
    }
    at
}

fn rdma<'a>(facts: &'a Facts, nic: &Nic) -> Option<&'a Rdma> {
    let own = |rdma: &&Rdma| rdma.netdev.as_deref() == Some(&nic.name);
    let below = |rdma: &&Rdma| rdma.netdev.is_some() && rdma.netdev == nic.parent;
    facts.rdma.iter().find(own).or_else(|| facts.rdma.iter().find(below))
}

fn open_sessions(facts: &Facts) -> impl Iterator<Item = &IscsiSession> {
    facts.initiators.open_iscsi.iter().flat_map(|open| &open.sessions)
}

fn nvme_paths(facts: &Facts) -> impl Iterator<Item = (&NvmeHost, &NvmePath)> {
    let hosts = facts.initiators.nvme_hosts.iter();
    hosts.flat_map(|host| host.paths.iter().map(move |path| (host, path)))
}

/// Whether one machine has a session or path to an address of the other.
pub(super) fn uses(one: &Facts, other: &Facts) -> bool {
    used_addresses(one).any(|address| has(other, address).is_some())
}

fn used_addresses(facts: &Facts) -> impl Iterator<Item = &str> {
    let sessions = open_sessions(facts).filter_map(|session| session.address.as_deref());
    sessions.chain(nvme_paths(facts).filter_map(|(_, path)| path.address.as_deref()))
}

/// Addresses at which the target serves.
fn portals_of(facts: &Facts) -> impl Iterator<Item = &Portal> {
    facts.targets.iter().flat_map(|target| &target.portals)
}

fn everywhere(portal: &Portal) -> bool {
    matches!(portal.address.as_str(), "0.0.0.0" | "::" | "[::]" | "*")
}

pub(super) fn links(pair: &Pair) -> Vec<Link> {
    let Pair { target, initiator, .. } = pair;
    let serves = |address: &str| {
        used_addresses(initiator).any(|used| used == address)
            || portals_of(target).any(|p| p.address.trim_matches(['[', ']']) == address)
    };
    let mut all = Vec::new();
    for target_nic in &target.nics {
        for theirs in target_nic.addresses.iter().filter_map(|address| split(address)) {
            if !serves(theirs.0) || theirs.0.starts_with("fe80") {
                continue;
            }
            for initiator_nic in &initiator.nics {
                for own in initiator_nic.addresses.iter().filter_map(|address| split(address)) {
                    let whole = |(bare, prefix)| format!("{bare}/{prefix}");
                    // A prefix that is too short or too long on one side is still one network.
                    if own.0 != theirs.0
                        && (in_network(own.0, &whole(theirs)) || in_network(theirs.0, &whole(own)))
                    {
                        all.push(link(pair, (target_nic, theirs), (initiator_nic, own)));
                    }
                }
            }
        }
    }
    all
}

fn link(pair: &Pair, target: (&Nic, (&str, i64)), initiator: (&Nic, (&str, i64))) -> Link {
    let (target_nic, (target_address, target_prefix)) = target;
    let (initiator_nic, (initiator_address, initiator_prefix)) = initiator;
    let at = |address: &Option<String>| address.as_deref() == Some(target_address);
    let over = |transport: &Option<String>| matches!(transport.as_deref(), Some("iser" | "rdma"));
    let over_rdma = open_sessions(&pair.initiator)
        .any(|session| at(&session.address) && over(&session.transport))
        || nvme_paths(&pair.initiator).any(|(_, path)| at(&path.address) && over(&path.transport));
    Link {
        target_address: target_address.to_owned(),
        initiator_address: initiator_address.to_owned(),
        target_prefix,
        initiator_prefix,
        target_nic: target_nic.clone(),
        initiator_nic: initiator_nic.clone(),
        target_card: card(&pair.target, target_nic).clone(),
        initiator_card: card(&pair.initiator, initiator_nic).clone(),
        target_rdma: rdma(&pair.target, target_nic).cloned(),
        initiator_rdma: rdma(&pair.initiator, initiator_nic).cloned(),
        over_rdma,
    }
}

pub(super) fn networks(pair: &Pair) -> Vec<Network> {
    let mut all: Vec<Network> = Vec::new();
    for link in links(pair) {
        let whole = format!("{}/{}", link.target_address, link.target_prefix);
        let known = all.iter_mut().find(|n| in_network(&link.target_address, &n.network));
        let network = match known {
            Some(network) => network,
            None => {
                all.push(Network { network: whole, ..Network::default() });
                let last = all.len() - 1;
                &mut all[last]
            }
        };
        for (names, name) in [
            (&mut network.target_nics, link.target_nic.name),
            (&mut network.initiator_nics, link.initiator_nic.name),
        ] {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    all
}

pub(super) fn sessions(pair: &Pair) -> Vec<Session> {
    let Pair { target: served, initiator, .. } = pair;
    let own = initiator_name(initiator);
    let all = open_sessions(initiator).filter_map(|session| {
        let address = session.address.as_deref()?;
        has(served, address)?;
        let target = served.targets.iter().find(|target| target.name == session.target)?;
        // By the address: the name may have changed since. Not every target tells addresses.
        let theirs = target.sessions.iter().find(|theirs| match &theirs.address {
            Some(_) => theirs.address == session.local_address,
            None => theirs.initiator == own,
        });
        let mine = |view: &&View| view.name == own || view.initiators.contains(&own);
        let view = target.views.iter().find(mine);
        let local = session.local_address.as_deref();
        let from_nic = local.and_then(|local| has(initiator, local));
        let into = |nic: &&Nic| nic.addresses.iter().any(|own| in_network(address, own));
        let near_nic = from_nic.filter(into).or_else(|| near(initiator, address));
        let wanted: i64 = session.disks.iter().filter_map(|disk| disk.queue_depth).sum();
        Some(Session {
            wanted: wanted.min(session.cmds_max.unwrap_or(wanted)),
            taken: view
                .and_then(|view| view.queue_depth)
                .or(theirs.and_then(|theirs| theirs.queue_depth))
                .or(target.queue_depth),
            theirs: theirs.cloned(),
            view: view.cloned(),
            from_nic: from_nic.cloned(),
            near_rdma: near_nic.and_then(|nic| rdma(initiator, nic)).cloned(),
            near_nic: near_nic.cloned(),
            disks: session.disks.iter().map(|disk| behind(initiator, target, disk)).collect(),
            session: session.clone(),
            target: target.clone(),
        })
    });
    all.collect()
}

fn behind(initiator: &Facts, target: &Target, disk: &IscsiDisk) -> Disk {
    Disk {
        drive: initiator.drives.iter().find(|drive| drive.name == disk.name).cloned(),
        lun: target.luns.iter().find(|lun| Some(lun.lun) == disk.lun).cloned(),
        disk: disk.clone(),
    }
}

fn initiator_name(facts: &Facts) -> String {
    let open = facts.initiators.open_iscsi.as_ref();
    open.and_then(|open| open.initiator_name.clone()).unwrap_or_default()
}

pub(super) fn paths(pair: &Pair) -> Vec<Path> {
    let all = nvme_paths(&pair.initiator).filter_map(|(host, path)| {
        let target = pair.target.targets.iter().find(|target| target.name == host.nqn)?;
        let address = path.address.as_deref()?;
        let nic = near(&pair.initiator, address);
        Some(Path {
            host: host.clone(),
            path: path.clone(),
            near_rdma: nic.and_then(|nic| rdma(&pair.initiator, nic)).cloned(),
            rdma_offered: target.portals.iter().any(|portal| {
                portal.transport.as_deref() == Some("rdma")
                    && (portal.address == address || everywhere(portal))
            }),
            target: target.clone(),
        })
    });
    all.collect()
}

pub(super) fn services(pair: &Pair) -> Vec<Service> {
    let own = initiator_name(&pair.initiator);
    // SCST's lists may have `name#portal`.
    let named = |entry: &String| entry.split('#').next() == Some(&own) || entry == "*";
    let all = pair.target.targets.iter().map(|target| {
        let sessions = open_sessions(&pair.initiator).filter(|s| s.target == target.name);
        let paths = nvme_paths(&pair.initiator).filter(|(host, _)| host.nqn == target.name);
        let used: Vec<&str> = sessions
            .filter_map(|session| session.address.as_deref())
            .chain(paths.filter_map(|(_, path)| path.address.as_deref()))
            .collect();
        let addresses = target.portals.iter().filter(|portal| !everywhere(portal));
        let nics = |addresses: &mut dyn Iterator<Item = &str>| {
            let nics = addresses.filter_map(|address| near(&pair.initiator, address));
            let mut names: Vec<&str> = nics.map(|nic| nic.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            i64::try_from(names.len()).unwrap_or(i64::MAX)
        };
        Service {
            used: i64::try_from(used.len()).unwrap_or(i64::MAX),
            networks: nics(&mut addresses.map(|portal| portal.address.as_str())),
            used_networks: nics(&mut used.iter().copied()),
            listed: !own.is_empty() && target.acl.iter().any(named),
            initiator: own.clone(),
            target: target.clone(),
        }
    });
    all.filter(|service| service.used > 0 || service.listed).collect()
}

pub(super) fn portals(pair: &Pair) -> Vec<Reach> {
    let mut routes = pair.initiator.nics.iter().filter_map(|nic| nic.default_route);
    let first = routes.next();
    let default_route = first.map(|first| first || routes.any(|route| route));
    let services = services(pair);
    let all = services.iter().flat_map(|service| {
        service.target.portals.iter().map(move |portal| (&service.target.name, portal))
    });
    all.filter(|(_, portal)| !everywhere(portal))
        .map(|(target, portal)| Reach {
            target: target.clone(),
            portal: portal.clone(),
            near: near(&pair.initiator, portal.address.trim_matches(['[', ']'])).is_some(),
            default_route,
        })
        .collect()
}

pub(super) fn connections(pair: &Pair) -> Vec<Connection> {
    let mut all = Vec::new();
    for own in &pair.initiator.tcp_connections {
        let theirs = pair.target.tcp_connections.iter().find(|theirs| {
            (&theirs.remote_address, theirs.remote_port) == (&own.local_address, own.local_port)
                && (&theirs.local_address, theirs.local_port)
                    == (&own.remote_address, own.remote_port)
        });
        let Some(theirs) = theirs else { continue };
        let mtu = |facts: &Facts, address: &str| has(facts, address).and_then(|nic| nic.mtu);
        let both =
            mtu(&pair.target, &own.remote_address).zip(mtu(&pair.initiator, &own.local_address));
        all.push(Connection {
            target: theirs.clone(),
            initiator: own.clone(),
            mtu: both.map(|(one, other)| one.min(other)),
        });
    }
    all
}

pub(super) fn cards(pair: &Pair) -> Vec<Card> {
    let mut all: Vec<Card> = Vec::new();
    for link in links(pair) {
        let id = |nic: &Nic| nic.pcie.as_ref().and_then(|pcie| pcie.id.clone());
        let (Some(one), Some(other)) = (id(&link.target_card), id(&link.initiator_card)) else {
            continue;
        };
        let (target, initiator) = (link.target_card, link.initiator_card);
        let new = !all.iter().any(|card| {
            card.target.firmware == target.firmware && card.initiator.firmware == initiator.firmware
        });
        if one == other && new {
            all.push(Card { id: one, target, initiator });
        }
    }
    all
}

/// Of the target, without those that every machine has.
pub(super) fn addresses(pair: &Pair) -> Vec<Address> {
    let all = pair.target.nics.iter().flat_map(|nic| &nic.addresses);
    all.filter_map(|address| split(address))
        .filter(|(address, _)| !address.starts_with("127.") && !address.starts_with("fe80"))
        .map(|(address, _)| Address {
            address: address.to_owned(),
            both: has(&pair.initiator, address).is_some(),
        })
        .collect()
}
