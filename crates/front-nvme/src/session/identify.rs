//! What a controller tells its host of namespaces, paths and other controllers.

use lunet_block::{Caps, Support};
use std::net::SocketAddr;

use lunet_nvme::controller::Source;
use lunet_nvme::identify::{Identifiers, Namespace, ascii};
use lunet_nvme::log::{
    ADRFAM_IPV4, ADRFAM_IPV6, AnaGroup, AnaState, DiscoveryEntry, EFLAGS_PERSISTENT, Health,
    ReservationLog, SECTYPE_NONE, SECTYPE_TLS13, SubsystemType, TREQ_NO_SQ_FLOW, TREQ_NOT_SECURE,
    TREQ_SECURE, TRTYPE_TCP,
};
use lunet_nvme::name::{DISCOVERY_NQN, field_of_nqn};
use lunet_nvme::pdu::{U16, U32, U64};
use lunet_server::portals::Listed;
use lunet_volume::{Face, PathState, Volume};

use crate::config::{Tls, TlsKey};
use crate::connection::{Conn, Queue};
use crate::engine::{BLOCKS, Engine, RANGE_BLOCKS, RANGES};
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
    pub paths: (&'a [(u32, PathState)], u64),
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
    /// The server's address on the connection.
    pub local: std::net::SocketAddr,
    /// Where from.
    pub origin: lunet_server::network::Origin,
}

impl Way {
    /// How the host of a connection has come.
    pub fn of(conn: &Conn) -> Self {
        Self { portal: conn.portal, local: conn.local, origin: conn.origin() }
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
        let group = |(nsid, state): &(u32, PathState)| AnaGroup {
            id: *nsid,
            changes,
            state: match state {
                PathState::Optimized => AnaState::Optimized,
                PathState::NonOptimized => AnaState::NonOptimized,
                PathState::Inaccessible => AnaState::Inaccessible,
            },
            nsids: vec![*nsid],
        };
        (changes, paths.iter().map(group).collect())
    }

    fn discovery(&self) -> (u64, Vec<DiscoveryEntry>) {
        let world = &self.engine.world;
        let entries = self.engine.core.front.options.queue_entries;
        (world.rules.generation, discovery(world, &self.queue.member.host.nqn, self.way, entries))
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

/// The states of all namespaces that a queue sees, by the portal that it came by.
pub(super) fn paths<Fc: Face>(engine: &Engine<Fc>, conn: &Conn) -> Vec<(u32, PathState)> {
    let queue = conn.front.queue.as_ref();
    let namespaces = queue.map_or(&[][..], |queue| &queue.namespaces);
    let state = |seen: &crate::connection::Seen| {
        let open = engine.exec.storage.volumes.get(seen.volume)?;
        Some((seen.nsid, engine.world.path(&open.core, conn.portal)))
    };
    namespaces.iter().filter_map(state).collect()
}

/// Identify Namespace.
fn namespace<Fc: Face>(nsid: u32, volume: &Volume<Fc>) -> Namespace {
    let caps: &Caps = &volume.caps;
    let blocks = |bytes: u32| U16::new((bytes / caps.block_size).clamp(1, 65_536) as u16 - 1);
    let thin = caps.unmap != Support::None;
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    let protected = volume.face.is_read_only();
    let mut page = Namespace {
        nsze: U64::new(caps.blocks),
        ncap: U64::new(caps.blocks),
        nuse: U64::new(caps.blocks),
        nsfeat: GRANULARITY | flag(thin, THIN),
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

/// What a portal has of TLS for a host with this key: that of a subsystem, or any for discovery.
fn offered(portal: Tls, key: Option<&TlsKey>, discovery: bool) -> Tls {
    match (portal, key) {
        (Tls::Required, _) => Tls::Required,
        (Tls::Off, _) | (_, None) => Tls::Off,
        (Tls::Allowed, Some(key)) if key.required && !discovery => Tls::Required,
        (Tls::Allowed, Some(_)) => Tls::Allowed,
    }
}

/// TREQ and SECTYPE.
const fn security(tls: Tls) -> (u8, u8) {
    match tls {
        Tls::Off => (0, SECTYPE_NONE),
        Tls::Allowed => (TREQ_NOT_SECURE, SECTYPE_TLS13),
        Tls::Required => (TREQ_SECURE, SECTYPE_TLS13),
    }
}

/// The discovery log for a host: the portals by which it can come, with what it may have there.
pub(super) fn discovery<Fc: Face>(
    world: &World<Fc>,
    host: &str,
    way: Way,
    entries: u16,
) -> Vec<DiscoveryEntry> {
    let portals = world.portals.listed(way.local);
    let entry = |portal: &Listed, nqn: &str, kind: SubsystemType, tls: Tls| {
        let (secure, mut tsas) = (security(tls), [0; 256]);
        tsas[0] = secure.1;
        DiscoveryEntry {
            treq: secure.0 | TREQ_NO_SQ_FLOW,
            tsas,
            portid: U16::new(portal.slot as u16 + 1),
            ..at(portal.address, nqn, kind, entries)
        }
    };
    let own = portals.iter().filter(|portal| portal.slot == way.portal);
    let own = own.map(|portal| {
        let reached = world.exports().filter(|(_, it)| it.is_reached_through(portal.slot));
        let key = reached.filter_map(|(_, it)| it.host(host)?.tls.as_ref()).next();
        let tls = offered(world.rules.tls(portal.slot), key, true);
        entry(portal, DISCOVERY_NQN, SubsystemType::CurrentDiscovery, tls)
    });
    let mut log: Vec<DiscoveryEntry> = own.collect();
    for (_, subsystem) in world.exports() {
        if !subsystem.admits(host, way.origin) {
            continue;
        }
        let reached = |slot: usize| subsystem.is_reached_through(slot);
        for portal in portals.iter().filter(|portal| reached(portal.slot)) {
            if !portal.same.is_some_and(reached) {
                let key = subsystem.host(host).and_then(|host| host.tls.as_ref());
                let tls = offered(world.rules.tls(portal.slot), key, false);
                log.push(entry(portal, &subsystem.nqn, SubsystemType::Nvm, tls));
            }
        }
    }
    let referral = |to: &SocketAddr| at(*to, DISCOVERY_NQN, SubsystemType::Referral, entries);
    log.extend(world.rules.referrals.iter().map(referral));
    log
}

/// An entry of the discovery log that leads to this address, without what only its port knows.
fn at(address: SocketAddr, nqn: &str, kind: SubsystemType, entries: u16) -> DiscoveryEntry {
    let (ip, port) = (address.ip(), address.port());
    DiscoveryEntry {
        trtype: TRTYPE_TCP,
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
