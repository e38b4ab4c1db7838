//! What a controller tells its host of namespaces, paths and other controllers.

use lunet_block::{Caps, Support};
use std::net::SocketAddr;

use lunet_nvme::controller::Source;
use lunet_nvme::fabrics::Transport;
use lunet_nvme::identify::{Identifiers, Namespace, ascii};
use lunet_nvme::log::{
    ADRFAM_IPV4, ADRFAM_IPV6, AnaGroup, AnaState, DiscoveryEntry, EFLAGS_PERSISTENT, Health,
    ReservationLog, SECTYPE_NONE, SECTYPE_TLS13, SubsystemType, TREQ_NO_SQ_FLOW, TREQ_NOT_SECURE,
    TREQ_SECURE, TRTYPE_RDMA, TRTYPE_TCP, TSAS_RDMA,
};
use lunet_nvme::name::{DISCOVERY_NQN, field_of_nqn};
use lunet_nvme::pdu::{U16, U32, U64};
use lunet_server::hosting::Portal;
use lunet_server::portals::Listed;
use lunet_volume::{Face, PathState, Volume};

use crate::config::{Concatenation, Host, Tls};
use crate::connection::{Conn, Queue};
use crate::engine::{BLOCKS, Engine, RANGE_BLOCKS, RANGES};
use crate::group::Group;
use crate::world::{Exports, World};

/// NMIC: several controllers may have the namespace.
const SHARED: u8 = 1;
/// NSFEAT: thin provisioning; NPWG and its neighbours are valid.
const THIN: u8 = 1;
const GRANULARITY: u8 = 1 << 4;
/// RESCAP: all six types, and Ignore Existing Key as of NVMe 1.3; bit 0 is persistence through power loss.
const RESERVATIONS: u8 = 0xfe;
/// DLFEAT: deallocated blocks read as zeroes; Write Zeroes may deallocate.
const READS_ZEROES: u8 = 1;
const ZEROES_DEALLOCATE: u8 = 1 << 3;
/// Critical warning: the storage has failed, and what was acknowledged may be lost.
const UNRELIABLE: u8 = 1 << 2;
/// NSATTR: write protected.
const PROTECTED: u8 = 1;

/// What the host of an admin queue may see.
pub struct View<'a, Fc: Face> {
    /// The shard's front.
    pub engine: &'a Engine<Fc>,
    /// The admin queue.
    pub queue: &'a Queue,
    /// The portals by which the host comes and may come.
    pub way: Way,
    /// The states of paths that it is told, and how often they have changed.
    pub paths: (&'a [(u32, AnaState)], u64),
    /// The oldest notice of reservations, which it takes.
    pub notice: ReservationLog,
    /// It was taken.
    pub taken: bool,
}

/// How a host has come.
#[derive(Clone, Copy)]
pub struct Way {
    /// The slot of the portal.
    pub portal: usize,
    /// What carries the connection.
    pub transport: Transport,
    /// The server's address on the connection.
    pub local: std::net::SocketAddr,
    /// Where from.
    pub origin: lunet_server::network::Origin,
}

impl Way {
    /// How the host of a connection has come.
    pub fn of(conn: &Conn) -> Self {
        let transport = if conn.front.proto.is_rdma() { Transport::Rdma } else { Transport::Tcp };
        Self { portal: conn.portal, transport, local: conn.local, origin: conn.origin() }
    }
}

impl<Fc: Face> View<'_, Fc> {
    fn volume(&self, nsid: u32) -> Option<&Volume<Fc>> {
        let seen = self.queue.namespaces.iter().find(|seen| seen.nsid == nsid)?;
        self.engine.exec.storage.volumes.get(seen.volume).map(|open| &*open.core)
    }
}

impl<Fc: Face> Source for View<'_, Fc> {
    fn next_namespace(&self, above: u32) -> Option<u32> {
        let nsids = self.queue.namespaces.iter().map(|seen| seen.nsid);
        nsids.into_iter().find(|nsid| *nsid > above)
    }

    fn namespace(&self, nsid: u32) -> Option<(Namespace, Identifiers)> {
        let volume = self.volume(nsid)?;
        let names = volume.face.names()?;
        let page = namespace(nsid, volume);
        let (eui64, nguid, uuid) = (names.short, Some(names.long), Some(names.uuid));
        Some((page, Identifiers { eui64, nguid, uuid }))
    }

    fn controllers(&self) -> Vec<u16> {
        let subsystem = self.queue.member.subsystem;
        subsystem.map_or(Vec::new(), |slot| self.engine.core.front.registry.of_subsystem(slot))
    }

    fn groups(&self) -> (u64, Vec<AnaGroup>) {
        let (paths, changes) = self.paths;
        let group = |(nsid, state): &(u32, AnaState)| AnaGroup {
            id: *nsid,
            changes,
            state: *state,
            nsids: vec![*nsid],
        };
        (changes, paths.iter().map(group).collect())
    }

    fn discovery(&self) -> (u64, Vec<DiscoveryEntry>) {
        let world = &self.engine.world;
        let entries = self.engine.core.front.options.queue_entries;
        let rdma = &self.engine.core.rdma;
        // Both only grow, so the sum changes with either.
        let generation = world.rules.generation + u64::from(rdma.changes());
        let served = |slot: usize| rdma.is_served(slot);
        let way = (self.way, &served as &dyn Fn(usize) -> bool);
        (generation, discovery(world, &self.queue.member.host.nqn, way, entries))
    }

    fn health(&self) -> Health {
        let volumes = self
            .engine
            .exec
            .storage
            .volumes
            .iter()
            .filter(|(slot, _)| self.queue.namespaces.iter().any(|seen| seen.volume == *slot));
        let failed = volumes.into_iter().any(|(_, open)| !open.core.health.is_sound());
        // Nothing else is known of what the volumes are on.
        Health { critical: if failed { UNRELIABLE } else { 0 }, ..Health::default() }
    }

    fn take_reservation_notice(&mut self) -> ReservationLog {
        self.taken = true;
        self.notice
    }
}

/// The state of all paths of a connection that is one of a failover group's controller.
pub(super) fn of_group<Fc: Face>(engine: &Engine<Fc>, conn: &Conn) -> Option<AnaState> {
    let gated = conn.front.gated.as_ref()?;
    engine.groups.get(gated.group).map(Group::state)
}

/// How hosts are told the state of a path.
pub(super) fn of_path(path: PathState) -> AnaState {
    match path {
        PathState::Optimized => AnaState::Optimized,
        PathState::NonOptimized => AnaState::NonOptimized,
        PathState::Inaccessible => AnaState::Inaccessible,
    }
}

/// The states of all namespaces that a queue sees, by the portal that it came by.
pub(super) fn paths<Fc: Face>(engine: &Engine<Fc>, conn: &Conn) -> Vec<(u32, AnaState)> {
    let queue = conn.front.queue.as_ref();
    let namespaces = queue.map_or(&[][..], |queue| &queue.namespaces);
    let own = of_group(engine, conn);
    let state = |seen: &crate::connection::Seen| {
        let open = engine.exec.storage.volumes.get(seen.volume)?;
        Some((
            seen.nsid,
            own.unwrap_or_else(|| of_path(engine.world.path(&open.core, conn.portal))),
        ))
    };
    // As the namespaces themselves, with no room to spare.
    namespaces.iter().filter_map(state).collect::<Box<[_]>>().into_vec()
}

/// Identify Namespace.
fn namespace<Fc: Face>(nsid: u32, volume: &Volume<Fc>) -> Namespace {
    let caps: &Caps = &volume.caps;
    let blocks = |bytes: u32| U16::new((bytes / caps.block_size).clamp(1, 65_536) as u16 - 1);
    let thin = caps.unmap != Support::None;
    // Where nobody knows how much is allocated, NUSE would be wrong.
    let used = volume.face.used().filter(|_| thin);
    let used = used.map(|bytes| bytes.div_ceil(u64::from(caps.block_size)).min(caps.blocks));
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    let protected = volume.face.is_read_only();
    let mut page = Namespace {
        nsze: U64::new(caps.blocks),
        ncap: U64::new(caps.blocks),
        nuse: U64::new(used.unwrap_or(caps.blocks)),
        nsfeat: GRANULARITY | flag(used.is_some(), THIN),
        nmic: SHARED,
        rescap: RESERVATIONS | u8::from(volume.store.is_some()),
        dlfeat: flag(thin && caps.unmap_zeroes, READS_ZEROES | ZEROES_DEALLOCATE),
        npwg: blocks(caps.physical_block_size),
        npwa: blocks(caps.physical_block_size),
        npdg: blocks(caps.unmap_granularity),
        npda: blocks(caps.unmap_granularity),
        mssrl: U16::new(RANGE_BLOCKS),
        mcl: U32::new(BLOCKS),
        msrc: RANGES,
        anagrpid: U32::new(nsid),
        nsattr: flag(protected, PROTECTED),
        nvmcap: u128::from(caps.bytes()).to_le_bytes(),
        ..Namespace::default()
    };
    if let Some(names) = volume.face.names() {
        (page.nguid, page.eui64) = (names.long, names.short.unwrap_or_default());
    }
    page.lbaf[0].lbads = caps.block_size.trailing_zeros() as u8;
    page
}

/// TREQ and SECTYPE of a portal: for a host of a subsystem, or for discovery. What a host may do or leave is not told: to nvme-cli,
/// "not required" means that it has to ask for a key of TLS by its authentication (concatenation), which not every host can.
fn security(portal: Tls, host: Option<&Host>) -> (u8, u8) {
    let key = host.and_then(|host| host.tls.as_ref());
    let concatenates = host.is_some_and(|host| host.concatenation == Concatenation::Required);
    match portal {
        Tls::Required => (TREQ_SECURE, SECTYPE_TLS13),
        Tls::Allowed if key.is_some_and(|key| key.required) => (TREQ_SECURE, SECTYPE_TLS13),
        Tls::Allowed if concatenates => (TREQ_NOT_SECURE, SECTYPE_TLS13),
        Tls::Allowed | Tls::Off => (0, SECTYPE_NONE),
    }
}

/// The transports by which a host can come to a portal. `served`: the portal is served over RDMA.
fn transports(portal: &Portal, way: Way, served: bool) -> Vec<Transport> {
    // Which of all addresses are on an RDMA device is not known here: but a host that came over RDMA came to one.
    let there = !portal.address.ip().is_unspecified() || way.transport == Transport::Rdma;
    let tcp = portal.transports.tcp().then_some(Transport::Tcp);
    tcp.into_iter().chain((served && there).then_some(Transport::Rdma)).collect()
}

/// The discovery log for a host: the portals by which it can come, with what it may have there. `served`: portals that
/// are served over RDMA.
pub(super) fn discovery<Fc: Face>(
    world: &World<Fc>,
    host: &str,
    (way, served): (Way, &dyn Fn(usize) -> bool),
    entries: u16,
) -> Vec<DiscoveryEntry> {
    let portals = world.portals.listed(way.local);
    let secure = |slot: usize, host: Option<&Host>| security(world.rules.tls(slot), host);
    let entry = |portal: &Listed, nqn: &str, kind: SubsystemType, transport, host| {
        let mut entry = at((portal.address, transport), nqn, kind, entries);
        if transport == Transport::Tcp {
            let (secure, kind) = secure(portal.slot, host);
            entry.treq |= secure;
            entry.tsas[0] = kind;
        }
        entry.portid = U16::new(portal.slot as u16 + 1);
        entry
    };
    let transports = |slot: usize| {
        let portal = world.portals.get(slot);
        portal.map_or(Vec::new(), |portal| transports(portal, way, served(slot)))
    };
    let own = portals.iter().filter(|portal| portal.slot == way.portal);
    let own = own.map(|portal| {
        entry(portal, DISCOVERY_NQN, SubsystemType::CurrentDiscovery, way.transport, None)
    });
    let mut log: Vec<DiscoveryEntry> = own.collect();
    for (_, subsystem) in world.exports() {
        if !subsystem.admits(host, way.origin) {
            continue;
        }
        let reached = |slot: usize| subsystem.is_reached_through(slot);
        for portal in portals.iter().filter(|portal| reached(portal.slot)) {
            let host = subsystem.host(host);
            let has_to_use_tls = secure(portal.slot, host).1 != SECTYPE_NONE;
            let same = portal.same.filter(|slot| reached(*slot)).map_or(Vec::new(), transports);
            for transport in transports(portal.slot) {
                // There is no TLS over RDMA.
                let refused = transport == Transport::Rdma && has_to_use_tls;
                if !refused && !same.contains(&transport) {
                    log.push(entry(portal, &subsystem.nqn, SubsystemType::Nvm, transport, host));
                }
            }
        }
    }
    let referral = |to: &SocketAddr| {
        at((*to, Transport::Tcp), DISCOVERY_NQN, SubsystemType::Referral, entries)
    };
    log.extend(world.rules.referrals.iter().map(referral));
    log
}

/// An entry of the discovery log that leads to this address, without what only its port knows.
fn at(
    (address, transport): (SocketAddr, Transport),
    nqn: &str,
    kind: SubsystemType,
    entries: u16,
) -> DiscoveryEntry {
    let (ip, port) = (address.ip(), address.port());
    let (trtype, specific) = match transport {
        Transport::Tcp => (TRTYPE_TCP, &[SECTYPE_NONE][..]),
        Transport::Rdma => (TRTYPE_RDMA, &TSAS_RDMA[..]),
    };
    let mut tsas = [0; 256];
    tsas[..specific.len()].copy_from_slice(specific);
    DiscoveryEntry {
        trtype,
        tsas,
        adrfam: if ip.is_ipv4() { ADRFAM_IPV4 } else { ADRFAM_IPV6 },
        subtype: kind.code(),
        treq: TREQ_NO_SQ_FLOW,
        cntlid: U16::MAX_VALUE,
        asqsz: U16::new(entries),
        eflags: U16::new(match kind {
            SubsystemType::CurrentDiscovery => EFLAGS_PERSISTENT,
            _ => 0,
        }),
        trsvcid: ascii(&port.to_string()),
        subnqn: field_of_nqn(nqn),
        traddr: ascii(&ip.to_string()),
        ..DiscoveryEntry::default()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use lunet_nvme::identify::text_of;
    use lunet_server::hosting::Transports;
    use lunet_server::network::Origin;
    use lunet_server::portals::Portals;

    use super::*;
    use crate::rdma_tests::{SUBSYSTEM, layout};

    #[test]
    fn nothing_is_told_that_a_host_may_leave() {
        let host = |concatenation| Host {
            nqn: "nqn.2026-11.host:a".into(),
            secret: None,
            controller_secret: None,
            tls: None,
            concatenation,
        };
        let makes = host(Concatenation::Required);
        let cases = [
            (Tls::Off, None, (0, SECTYPE_NONE)),
            (Tls::Off, Some(&makes), (0, SECTYPE_NONE)),
            (Tls::Allowed, None, (0, SECTYPE_NONE)),
            (Tls::Allowed, Some(&host(Concatenation::Allowed)), (0, SECTYPE_NONE)),
            (Tls::Allowed, Some(&makes), (TREQ_NOT_SECURE, SECTYPE_TLS13)),
            (Tls::Required, None, (TREQ_SECURE, SECTYPE_TLS13)),
        ];
        for (n, (portal, host, told)) in cases.into_iter().enumerate() {
            assert_eq!(security(portal, host), told, "case {n}");
        }
    }

    /// TRTYPE, TRADDR, TSAS and PORTID of an entry.
    type Entry = (u8, String, [u8; 3], u16);

    /// The entries that lead to subsystems, and TRTYPE of the first one, which is the log's own.
    fn log(portals: &[(&str, Transports)], came: Transport, tls: Tls) -> (u8, Vec<Entry>) {
        let portal = |(address, transports): &(&str, Transports)| {
            let address: SocketAddr = address.parse().expect("an address");
            (Portal { address, tag: 1, transports: *transports }, address)
        };
        let portals = Portals::new(portals.iter().map(portal));
        let mut layout = layout(None);
        layout.tls = vec![(0, tls)];
        let world = World::default().next(layout, Arc::new(portals));
        let local: SocketAddr = "192.0.2.1:4420".parse().expect("an address");
        let peer: IpAddr = "192.0.2.9".parse().expect("an address");
        let way = Way { portal: 0, transport: came, local, origin: Origin::new(peer, local.ip()) };
        let served = |_: usize| true;
        let entries = discovery(&world, "nqn.2026-11.org.lunet:host", (way, &served), 128);
        let own = entries.first().expect("the log's own entry").trtype;
        let of = entries.iter().filter(|entry| text_of(&entry.subnqn) == Some(SUBSYSTEM));
        let seen = of.map(|entry| {
            let address = text_of(&entry.traddr).expect("an address").to_owned();
            let tsas = [entry.tsas[0], entry.tsas[1], entry.tsas[2]];
            (entry.trtype, address, tsas, entry.portid.get())
        });
        (own, seen.collect())
    }

    #[test]
    fn a_portal_is_listed_with_each_transport_by_which_it_can_be_reached() {
        let (tcp, rdma) = ((3, [0; 3]), (1, [1; 3]));
        let entry =
            |(trtype, tsas): (u8, [u8; 3]), port| (trtype, "192.0.2.1".to_owned(), tsas, port);
        let both = [("192.0.2.1:4420", Transports::Both)];
        let all = vec![entry(tcp, 1), entry(rdma, 1)];
        assert_eq!(log(&both, Transport::Tcp, Tls::Off), (3, all.clone()));
        assert_eq!(log(&both, Transport::Rdma, Tls::Off), (1, all.clone()));
        assert_eq!(
            log(&both, Transport::Tcp, Tls::Required).1.len(),
            1,
            "there is no TLS over RDMA"
        );
        let alone = [("192.0.2.1:4420", Transports::Rdma)];
        assert_eq!(log(&alone, Transport::Rdma, Tls::Off), (1, vec![entry(rdma, 1)]));
        // All addresses: which of them are on an adapter is known of the one that the host has come to.
        let any = [("0.0.0.0:4420", Transports::Both)];
        assert_eq!(log(&any, Transport::Tcp, Tls::Off).1, [entry(tcp, 1)]);
        assert_eq!(log(&any, Transport::Rdma, Tls::Off).1, all);
        // Two portals that differ by their transports alone are two ways; the same way is listed once.
        let two = [("0.0.0.0:4420", Transports::Tcp), ("192.0.2.1:4420", Transports::Rdma)];
        assert_eq!(log(&two, Transport::Tcp, Tls::Off).1, [entry(tcp, 1), entry(rdma, 2)]);
        let twice = [("0.0.0.0:4420", Transports::Both), ("192.0.2.1:4420", Transports::Both)];
        assert_eq!(log(&twice, Transport::Tcp, Tls::Off).1, [entry(tcp, 2), entry(rdma, 2)]);
    }
}
