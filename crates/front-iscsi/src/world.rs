//! What iSCSI shows of what is served: targets, and the logical units of volumes.

use std::net::IpAddr;
use std::sync::Arc;

use lunet_files::ReadError;
use lunet_iscsi::chap::Proof;
use lunet_iscsi::pdu::LoginStatus;
use lunet_iscsi::target::LoginIdentity;
use lunet_scsi::alua::PortGroups;
use lunet_scsi::reserve::Port;
use lunet_scsi::{Modes, PowerChange, Sanitation, Unit};
use lunet_volume::reserve::{Listener, Shared, Store};
use lunet_volume::{Volume, VolumeId};

use crate::access::{Access, Objection};
use crate::config::{Layout, TargetEntry, VolumeEntry};
use crate::engine::Engine;
use crate::entrance::{Entrance, Visitor};
use crate::keeper::KeptRegistration;
use crate::marks;
use crate::ports::Ports;
use crate::reservations::SharedSeats;
use lunet_server::network::Origin;
use lunet_server::portals::Portals;
use lunet_server::served;

/// A volume with the logical unit that shows it. Another size or content of it has the same seats.
pub type ScsiVolume = Volume<LogicalUnit>;

/// How SCSI shows a volume.
pub struct LogicalUnit {
    /// What the device server knows of it.
    pub unit: Unit,
    /// Who is logged in there, and by which ports.
    pub seats: Arc<SharedSeats>,
}

/// True if an entry of the next layout says nothing new of a volume.
fn is_same(volume: &ScsiVolume, entry: &VolumeEntry) -> bool {
    let (ours, next) = (&volume.face.unit, &entry.unit);
    Arc::ptr_eq(&volume.backend, &entry.volume)
        && Arc::ptr_eq(&volume.health, &entry.health)
        && volume.path == entry.path
        && (&ours.identity, &ours.caps, &ours.limits) == (&next.identity, &next.caps, &next.limits)
        && (ours.removable, ours.threshold, ours.write_cache, ours.absent)
            == (next.removable, next.threshold, next.write_cache, next.absent)
}

/// A target.
pub struct CoreTarget {
    /// The iSCSI name.
    pub name: String,
    /// TargetAlias (RFC 7143): a name for people.
    pub alias: Option<String>,
    /// Its LUNs, ascending, each with the slot of its volume.
    luns: Vec<(u16, VolumeId)>,
    /// How it looks through the portal in each slot to somebody who sees no LUNs.
    scsi: Vec<lunet_scsi::Target>,
    /// Whether it is reached through the portal in each slot.
    portals: Vec<bool>,
    /// Who may see and reach it.
    pub access: Access,
    /// Its initiators may reset it.
    pub allow_reset: bool,
}

impl CoreTarget {
    fn new(entry: TargetEntry, slots: &[VolumeId], (ports, ways): (&Ports, &Ways)) -> Self {
        let mut luns: Vec<_> = entry.luns.iter().map(|(lun, at)| (*lun, slots[*at])).collect();
        luns.sort_unstable();
        let reached = |slot| ways.portals.get(slot).is_some() && entry.reached_through(slot);
        Self {
            portals: (0..ways.portals.slots().len()).map(reached).collect(),
            scsi: ports.views(&entry, (&ways.portals, &ways.groups)),
            luns,
            name: entry.name,
            alias: entry.alias,
            access: entry.access,
            allow_reset: entry.allow_reset,
        }
    }

    /// True if it is reached through the portal in this slot.
    pub fn is_reached_through(&self, portal: usize) -> bool {
        // A connection may have come by a portal that the shard's world does not have yet.
        self.portals.get(portal) == Some(&true)
    }

    /// True if an initiator may know of the target and reach it by this portal.
    pub fn admits(&self, portal: usize, initiator: &str, origin: Origin) -> bool {
        self.entrance(portal).admits(initiator, origin)
    }

    /// The way in by this portal.
    pub fn entrance(&self, portal: usize) -> Entrance<'_> {
        Entrance::Target { access: &self.access, reached: self.is_reached_through(portal) }
    }

    /// The LUNs that an initiator sees, ascending, each with the slot of its volume.
    pub fn view(&self, initiator: &str, address: IpAddr) -> Vec<(u16, VolumeId)> {
        let shown = |(lun, _): &&(u16, VolumeId)| self.access.shows(*lun, initiator, address);
        self.luns.iter().filter(shown).copied().collect()
    }

    /// The slots of all volumes that it shows to somebody.
    pub fn volumes(&self) -> impl Iterator<Item = VolumeId> {
        self.luns.iter().map(|(_, volume)| *volume)
    }

    /// How the target looks through a portal to somebody who sees these LUNs.
    pub fn seen(&self, portal: usize, luns: Vec<u16>) -> lunet_scsi::Target {
        lunet_scsi::Target { luns, ..self.scsi.get(portal).cloned().unwrap_or_default() }
    }
}

/// What is served over iSCSI at one moment.
pub type World = served::World<Engine>;

/// What else iSCSI knows of what is served.
#[derive(Default)]
pub struct Rules {
    /// The target port groups that the portals make.
    pub groups: PortGroups,
    /// Who may ask for the list of targets.
    pub discovery: Access,
    /// Sessions that could not log in now stay all the same.
    pub keep_sessions: bool,
}

/// The ways by which initiators come.
#[derive(Clone, Default)]
pub struct Ways {
    /// The portals.
    pub portals: Arc<Portals>,
    /// The target port groups that they make.
    pub groups: PortGroups,
}

/// What iSCSI asks of what is served.
pub trait Exports: Sized {
    /// True if an initiator that has logged in with this proof may see the volume in this slot
    /// through any target: of the portal that it came in by, and without proving more than it has.
    fn shows(&self, slot: VolumeId, proof: Option<&Proof>, came_by: (usize, &str, Origin)) -> bool;

    /// The way of a session of this target, or of discovery, that has come by the portal in this slot. It is that
    /// of the portal at the same address, which may have gone and come back in another slot: a session that was
    /// kept is one of its sessions again.
    fn way_of<'w>(&'w self, target: Option<&'w CoreTarget>, portal: usize) -> Entrance<'w>;

    /// The way in to the list of targets by this portal.
    fn finders(&self, portal: usize) -> Entrance<'_>;

    /// The slot of the target that somebody may log in to who has negotiated all that a login
    /// asks for; none for discovery.
    ///
    /// # Errors
    /// What is answered instead.
    fn entrance(
        &self,
        portal: usize,
        identity: &LoginIdentity,
        origin: Origin,
    ) -> Result<Option<usize>, LoginStatus>;

    /// The slot of the target with this name.
    fn find_target(&self, name: &str) -> Option<(usize, &Arc<CoreTarget>)>;

    /// The world after this one with these ways, and what it changes of what both share. Volumes and targets
    /// are known by their names. The layout's targets name their portals by slots.
    ///
    /// # Errors
    /// What was kept of a new volume cannot be taken up.
    fn next(&self, layout: Layout, ways: Ways, ports: &Ports)
    -> Result<(Self, Effects), ReadError>;
}

impl Exports for World {
    fn shows(
        &self,
        slot: VolumeId,
        proof: Option<&Proof>,
        (portal, initiator, origin): (usize, &str, Origin),
    ) -> bool {
        self.exports().any(|(_, target)| {
            target.view(initiator, origin.address).iter().any(|(_, volume)| *volume == slot)
                && self
                    .way_of(Some(target), portal)
                    .objection(Visitor { initiator, origin, proof, vouched: false })
                    .is_none()
        })
    }

    fn way_of<'w>(&'w self, target: Option<&'w CoreTarget>, portal: usize) -> Entrance<'w> {
        let home = self.portals.home(portal);
        let Some(target) = target else {
            return Entrance::Discovery { access: &self.rules.discovery, reached: home.is_some() };
        };
        let reached = home.is_some_and(|slot| target.is_reached_through(slot));
        Entrance::Target { access: &target.access, reached }
    }

    fn finders(&self, portal: usize) -> Entrance<'_> {
        let reached = self.portals.get(portal).is_some();
        Entrance::Discovery { access: &self.rules.discovery, reached }
    }

    fn entrance(
        &self,
        portal: usize,
        identity: &LoginIdentity,
        origin: Origin,
    ) -> Result<Option<usize>, LoginStatus> {
        let (initiator, proof) = (identity.initiator_name.as_str(), identity.proof.as_ref());
        let vouched = identity.through.is_some();
        let (slot, entrance) = match &identity.target_name {
            None => (None, self.finders(portal)),
            Some(name) => {
                let (slot, target) = self.find_target(name).ok_or(LoginStatus::NotFound)?;
                (Some(slot), target.entrance(portal))
            }
        };
        use Objection::{Closed, Initiator, Portal};
        match entrance.objection(Visitor { initiator, origin, proof, vouched }) {
            None => Ok(slot),
            // The portal was removed after the connection came, or is none of the target's.
            Some(Portal) => Err(LoginStatus::NotFound),
            Some(Closed | Initiator) if slot.is_some() => Err(LoginStatus::NotFound),
            Some(Closed | Initiator) => Err(LoginStatus::AuthorizationFailure),
            Some(_) => Err(LoginStatus::AuthenticationFailure),
        }
    }

    fn find_target(&self, name: &str) -> Option<(usize, &Arc<CoreTarget>)> {
        self.exports().find(|(_, target)| target.name == name)
    }

    fn next(
        &self,
        layout: Layout,
        ways: Ways,
        ports: &Ports,
    ) -> Result<(Self, Effects), ReadError> {
        let mut effects = Effects::default();
        let leading: Vec<_> = (0..layout.volumes.len())
            .map(|at| ports.leading_to(at, &layout.targets, &ways.portals))
            .collect();
        let (discovery, keep_sessions) = (layout.discovery, layout.keep_sessions);
        let rules = Rules { groups: ways.groups.clone(), discovery, keep_sessions };
        let mut next = self.successor(ways.portals.clone(), rules);
        let mut slots = Vec::with_capacity(layout.volumes.len());
        for (entry, leading) in layout.volumes.into_iter().zip(leading) {
            let old = self.volumes().find(|(_, volume)| volume.name == entry.name);
            let volume = match old {
                Some((_, old)) if is_same(old, &entry) => old.clone(),
                Some((_, old)) => {
                    if !entry.unit.removable {
                        effects.loaded.push(old.clone());
                    }
                    Arc::new(successor(old, entry))
                }
                None => Arc::new(newcomer(entry, &ways.groups)?),
            };
            effects.leading.push((volume.face.seats.clone(), leading));
            slots.push(next.put_volume(old.map(|(slot, _)| slot), volume));
        }
        for entry in layout.targets {
            let old = self.find_target(&entry.name).map(|(slot, _)| slot);
            let target = Arc::new(CoreTarget::new(entry, &slots, (ports, &ways)));
            next.put_export(old, target);
        }
        Ok((next, effects))
    }
}

/// What the next world changes of the state that it shares with the one before: nothing of it may be done
/// before the next world is served.
#[derive(Default)]
pub struct Effects {
    /// The target ports that lead to each volume.
    leading: Vec<(Arc<SharedSeats>, Vec<Port>)>,
    /// Volumes that are not removable any more.
    loaded: Vec<Arc<ScsiVolume>>,
}

impl Effects {
    /// Does it.
    pub fn publish(self) {
        for (seats, leading) in self.leading {
            seats.set_ports(leading);
        }
        for volume in self.loaded.iter().filter(|volume| volume.face.unit.state.ejected()) {
            // Nobody could load what was ejected before.
            volume.face.unit.state.change_power(PowerChange::Load);
        }
    }
}

fn newcomer(entry: VolumeEntry, groups: &PortGroups) -> Result<ScsiVolume, ReadError> {
    let store = store(&entry);
    let state = Store::reservations(store.as_ref())?;
    if let Some(store) = &store {
        let stands = marks::get(store)?;
        if stands != Sanitation::None {
            let what = if stands == Sanitation::Unformatted { "FORMAT UNIT" } else { "SANITIZE" };
            tracing::warn!(volume = %entry.name, "{what} was cut off: it has failed");
            entry.unit.state.end_sanitize(stands);
        }
        let write_cache = marks::write_cache(store);
        let modes = entry.unit.state.modes();
        entry.unit.state.set_modes(Modes { write_cache, ..modes });
    }
    entry.unit.state.access.configure(groups);
    let seats = Arc::<SharedSeats>::default();
    let listener: Arc<dyn Listener> = seats.clone();
    let reservations = Arc::new(Shared::new(state, vec![listener]));
    let face = LogicalUnit { seats, unit: entry.unit };
    let mut volume = Volume::new(entry.name, (entry.volume, entry.health), entry.path, face);
    (volume.reservations, volume.store) = (reservations, store);
    Ok(volume)
}

/// The same volume with another size or content.
fn successor(old: &ScsiVolume, entry: VolumeEntry) -> ScsiVolume {
    let store = store(&entry);
    let unit = Unit { state: old.face.unit.state.clone(), ..entry.unit };
    let face = LogicalUnit { seats: old.face.seats.clone(), unit };
    let volume = Volume::new(entry.name, (entry.volume, entry.health), entry.path, face);
    let mut volume = volume.in_place_of(old);
    volume.store = store;
    volume
}

/// What keeps the state of a volume, which belongs to its NAA designator.
fn store(entry: &VolumeEntry) -> Option<Store> {
    let path = entry.reservations.clone()?;
    Some(Store::new::<KeptRegistration>(path, entry.unit.identity.naa.to_string()))
}
