//! What the server serves at one moment: volumes in slots, targets in slots.
//!
//! A world is never changed, it is replaced by the next one ([`crate::change`]). Every shard holds the world
//! that it works by, so nothing on the way of a command is locked or counted. What is in a slot stays
//! there from world to world; the slot of something that was removed is used again only after the last
//! shard, session and task has let go of it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use lunet_iscsi::chap::Proof;
use lunet_iscsi::pdu::LoginStatus;
use lunet_iscsi::target::LoginIdentity;
use lunet_scsi::alua::PortGroups;
use lunet_scsi::reserve::{Port, Reservations};
use lunet_scsi::{Modes, PowerChange, Sanitation, Unit};
use lunet_volume::{Volume, VolumeId};

use crate::access::{Access, Objection, Origin};
use crate::config::{Layout, TargetEntry, VolumeEntry};
use crate::entrance::{Entrance, Visitor};
use crate::keeper;
use crate::marks;
use crate::portals::Portals;
use crate::ports::Ports;
use crate::reservations::Shared;

/// A volume with the logical unit that shows it. Another size or content of it has the same reservations.
pub type ScsiVolume = Volume<LogicalUnit>;

/// How SCSI shows a volume.
pub struct LogicalUnit {
    /// What the device server knows of it.
    pub unit: Unit,
    /// Who may use it.
    pub reservations: Arc<Shared>,
    /// The file that keeps them through power loss.
    pub kept: Option<PathBuf>,
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
    /// The alias.
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

    /// How the target looks through a portal to somebody who sees these LUNs.
    pub fn seen(&self, portal: usize, luns: Vec<u16>) -> lunet_scsi::Target {
        lunet_scsi::Target { luns, ..self.scsi.get(portal).cloned().unwrap_or_default() }
    }
}

/// One state of what is served.
#[derive(Default)]
pub struct World {
    volumes: Vec<Slot<ScsiVolume>>,
    targets: Vec<Slot<CoreTarget>>,
    /// The ways to them.
    pub ways: Ways,
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

/// A place for something that comes and goes.
enum Slot<T> {
    /// It is there.
    Taken(Arc<T>),
    /// It was removed; somebody may still be busy with it.
    Left(Weak<T>),
}

impl<T> Slot<T> {
    fn get(&self) -> Option<&Arc<T>> {
        match self {
            Self::Taken(it) => Some(it),
            Self::Left(_) => None,
        }
    }

    fn leave(&self) -> Self {
        match self {
            Self::Taken(it) => Self::Left(Arc::downgrade(it)),
            Self::Left(it) => Self::Left(it.clone()),
        }
    }

    fn is_free(&self) -> bool {
        matches!(self, Self::Left(it) if it.strong_count() == 0)
    }
}

impl World {
    /// What is in a slot for volumes.
    pub fn volume(&self, slot: VolumeId) -> Option<&Arc<ScsiVolume>> {
        self.volumes.get(slot.slot()).and_then(Slot::get)
    }

    /// What is in a slot for targets.
    pub fn target(&self, slot: usize) -> Option<&Arc<CoreTarget>> {
        self.targets.get(slot).and_then(Slot::get)
    }

    /// The volumes with their slots.
    pub fn volumes(&self) -> impl Iterator<Item = (VolumeId, &Arc<ScsiVolume>)> {
        let slots = self.volumes.iter().enumerate();
        slots.filter_map(|(slot, it)| Some((VolumeId::new(slot), it.get()?)))
    }

    /// The targets with their slots.
    pub fn targets(&self) -> impl Iterator<Item = (usize, &Arc<CoreTarget>)> {
        self.targets.iter().enumerate().filter_map(|(slot, it)| Some((slot, it.get()?)))
    }

    /// True if an initiator that has logged in with this proof may see the volume in this slot
    /// through any target: of the portal that it came in by, and without proving more than it has.
    pub fn shows(
        &self,
        slot: VolumeId,
        proof: Option<&Proof>,
        (portal, initiator, origin): (usize, &str, Origin),
    ) -> bool {
        self.targets().any(|(_, target)| {
            target.view(initiator, origin.address).iter().any(|(_, volume)| *volume == slot)
                && self
                    .way_of(Some(target), portal)
                    .objection(Visitor { initiator, origin, proof })
                    .is_none()
        })
    }

    /// The way of a session of this target, or of discovery, that has come by the portal in this slot. It is that
    /// of the portal at the same address, which may have gone and come back in another slot: a session that was
    /// kept is one of its sessions again.
    pub fn way_of<'w>(&'w self, target: Option<&'w CoreTarget>, portal: usize) -> Entrance<'w> {
        let home = self.ways.portals.home(portal);
        let Some(target) = target else {
            return Entrance::Discovery { access: &self.discovery, reached: home.is_some() };
        };
        let reached = home.is_some_and(|slot| target.is_reached_through(slot));
        Entrance::Target { access: &target.access, reached }
    }

    /// The way in to the list of targets by this portal.
    pub fn finders(&self, portal: usize) -> Entrance<'_> {
        let reached = self.ways.portals.get(portal).is_some();
        Entrance::Discovery { access: &self.discovery, reached }
    }

    /// The slot of the target that somebody may log in to who has negotiated all that a login
    /// asks for; none for discovery.
    ///
    /// # Errors
    /// What is answered instead.
    pub fn entrance(
        &self,
        portal: usize,
        identity: &LoginIdentity,
        origin: Origin,
    ) -> Result<Option<usize>, LoginStatus> {
        let (initiator, proof) = (identity.initiator_name.as_str(), identity.proof.as_ref());
        let (slot, entrance) = match &identity.target_name {
            None => (None, self.finders(portal)),
            Some(name) => {
                let (slot, target) = self.find_target(name).ok_or(LoginStatus::NotFound)?;
                (Some(slot), target.entrance(portal))
            }
        };
        use Objection::{Closed, Initiator, Portal};
        match entrance.objection(Visitor { initiator, origin, proof }) {
            None => Ok(slot),
            // The portal was removed after the connection came, or is none of the target's.
            Some(Portal) => Err(LoginStatus::NotFound),
            Some(Closed | Initiator) if slot.is_some() => Err(LoginStatus::NotFound),
            Some(Closed | Initiator) => Err(LoginStatus::AuthorizationFailure),
            Some(_) => Err(LoginStatus::AuthenticationFailure),
        }
    }

    /// The slot of the target with this name.
    pub fn find_target(&self, name: &str) -> Option<(usize, &Arc<CoreTarget>)> {
        self.targets().find(|(_, target)| target.name == name)
    }

    /// The world after this one with these ways, and what it changes of what both share. Volumes and targets
    /// are known by their names. The layout's targets name their portals by slots.
    ///
    /// # Errors
    /// A plain sentence, if the reservations of a new volume were kept and cannot be taken up.
    pub fn next(
        &self,
        layout: Layout,
        ways: Ways,
        ports: &Ports,
    ) -> Result<(Self, Effects), String> {
        let mut effects = Effects::default();
        let leading: Vec<_> = (0..layout.volumes.len())
            .map(|at| ports.leading_to(at, &layout.targets, &ways.portals))
            .collect();
        let mut volumes: Vec<_> = self.volumes.iter().map(Slot::leave).collect();
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
            effects.leading.push((volume.face.reservations.clone(), leading));
            let own = old.map(|(slot, _)| slot.slot());
            slots.push(VolumeId::new(place(&mut volumes, own, volume)));
        }
        let mut targets: Vec<_> = self.targets.iter().map(Slot::leave).collect();
        for entry in layout.targets {
            let old = self.find_target(&entry.name).map(|(slot, _)| slot);
            let target = Arc::new(CoreTarget::new(entry, &slots, (ports, &ways)));
            place(&mut targets, old, target);
        }
        let (discovery, keep_sessions) = (layout.discovery, layout.keep_sessions);
        Ok((Self { volumes, targets, ways, discovery, keep_sessions }, effects))
    }
}

/// What the next world changes of the state that it shares with the one before: nothing of it may be done
/// before the next world is served.
#[derive(Default)]
pub struct Effects {
    /// The target ports that lead to each volume.
    leading: Vec<(Arc<Shared>, Vec<Port>)>,
    /// Volumes that are not removable any more.
    loaded: Vec<Arc<ScsiVolume>>,
}

impl Effects {
    /// Does it.
    pub fn publish(self) {
        for (reservations, leading) in self.leading {
            reservations.with(|state| state.set_ports(leading));
        }
        for volume in self.loaded.iter().filter(|volume| volume.face.unit.state.ejected()) {
            // Nobody could load what was ejected before.
            volume.face.unit.state.change_power(PowerChange::Load);
        }
    }
}

/// Puts something into its slot, or into a free one.
fn place<T>(slots: &mut Vec<Slot<T>>, own: Option<usize>, it: Arc<T>) -> usize {
    let slot = own.or_else(|| slots.iter().position(Slot::is_free)).unwrap_or(slots.len());
    if slot == slots.len() {
        slots.push(Slot::Taken(it));
    } else {
        slots[slot] = Slot::Taken(it);
    }
    slot
}

fn newcomer(entry: VolumeEntry, groups: &PortGroups) -> Result<ScsiVolume, String> {
    let state = reservations(&entry)?;
    if let Some(kept) = &entry.reservations {
        let stands = marks::get(kept, &entry.unit.identity.naa)?;
        if stands != Sanitation::None {
            let what = if stands == Sanitation::Unformatted { "FORMAT UNIT" } else { "SANITIZE" };
            tracing::warn!(volume = %entry.name, "{what} was cut off: it has failed");
            entry.unit.state.end_sanitize(stands);
        }
        let write_cache = marks::write_cache(kept, &entry.unit.identity.naa);
        let modes = entry.unit.state.modes();
        entry.unit.state.set_modes(Modes { write_cache, ..modes });
    }
    entry.unit.state.access.configure(groups);
    let face = LogicalUnit {
        reservations: Arc::new(Shared::new(state)),
        kept: entry.reservations,
        unit: entry.unit,
    };
    Ok(Volume::new(entry.name, (entry.volume, entry.health), entry.path, face))
}

/// The same volume with another size or content.
fn successor(old: &ScsiVolume, entry: VolumeEntry) -> ScsiVolume {
    let face = LogicalUnit {
        reservations: old.face.reservations.clone(),
        kept: entry.reservations,
        unit: Unit { state: old.face.unit.state.clone(), ..entry.unit },
    };
    Volume::new(entry.name, (entry.volume, entry.health), entry.path, face).in_place_of(old)
}

/// The reservations of a volume, as they were kept.
fn reservations(entry: &VolumeEntry) -> Result<Reservations, String> {
    let mut state = Reservations::new(Vec::new(), entry.reservations.is_some());
    let Some(path) = &entry.reservations else { return Ok(state) };
    if let Some(saved) = keeper::load(path, &entry.unit.identity.naa)? {
        let damaged = |error| format!("{} is damaged: {error}", path.display());
        state.restore(saved).map_err(damaged)?;
    }
    Ok(state)
}
