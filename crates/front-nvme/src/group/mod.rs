//! Failover groups: how the thread that runs a group's state machine ([`lunet_gateway`]) acts on the shards.
//!
//! A group is some subsystems of this server, with their volumes. Each shard has a copy of the group's gate, which a message
//! changes ([`Order`]); each queue of the group's controllers belongs to an epoch ([`Gated`]). What is asked of a command
//! is in `engine::gate`, what reaches a connection in `session::group`. A queue of another subsystem has no [`Gated`], and
//! that is all that its commands ever look at.
//!
//! The state of a path is the access state of this gateway's port in the group's record: ANA has each controller tell of
//! itself alone. What has to be the same through every gateway is what is in the groups, and that is a namespace each.

mod link;
mod relay;
mod request;

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};

use lunet_gateway::{Access, AccessState, Admission, Epoch, Gate, GatewayId, MAX_PORTS, Port};
use lunet_nvme::Through;
use lunet_nvme::fabrics::MAX_CNTLID;
use lunet_nvme::log::AnaState;
use lunet_nvme::status::Status;
use lunet_os::sync::{Mutex, MutexGuard};
use lunet_relay::Ways;
use lunet_server::part::Part;
use lunet_volume::{Face, Volume, VolumeId};

pub use lunet_relay::{Execution, GroupRequest, TakesRequests};

pub use self::link::{Gated, Good, Relay};
pub use self::relay::{
    Answered, ENTRIES, EXCHANGE, HASH, News, Nvme, RelayFor, RelayNews, RelayRequest, Relayed,
    RelayedPart, Relays, names, secrets,
};
use self::request::Prepared;
pub use self::request::{Body, Said, busy, report, volume_of};
use crate::Handle;
use crate::message::Message;
use crate::world::World;

/// Numbers groups, on all servers of the process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Why subsystems cannot be a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// There is no such subsystem.
    #[error("subsystem {0} of the group is not served")]
    Unknown(String),
    /// Hosts would reach a volume past the group's gate.
    #[error(
        "volume {volume} of the group is shown by subsystem {subsystem} as well, which is not in it"
    )]
    Shared {
        /// The volume.
        volume: String,
        /// The other subsystem.
        subsystem: String,
    },
}

/// The way to a group, for a thread that is no shard. Methods with `done` return at once; `done` is called, once, when
/// every shard has done its part, or has ended. Orders of one thread are carried out in their order on every shard.
pub struct GroupHandle<Fc: Face> {
    handle: Handle<Fc>,
    id: GroupId,
    members: Arc<Members>,
    /// The change of reservations that is under way.
    prepared: Arc<Mutex<Option<Prepared<Fc>>>>,
}

impl<Fc: Face> Clone for GroupHandle<Fc> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            id: self.id,
            members: self.members.clone(),
            prepared: self.prepared.clone(),
        }
    }
}

/// What a group is made of, as far as that does not change.
pub struct Members {
    /// The names of its subsystems.
    pub subsystems: Vec<String>,
    /// The number of this gateway.
    pub gateway: GatewayId,
    /// The protocols whose registrants its record may have.
    pub families: &'static [&'static str],
}

impl<Fc: Face> GroupHandle<Fc> {
    /// Makes these subsystems a group with this gate, which is closed or blocked at first. Their names stay the group's
    /// whatever becomes of them in the configuration, queues that are there included. Nobody can connect to them before
    /// [`access`](Self::access) was told, as the names of their volumes are in the group's record. Whoever configures sees to it
    /// that volumes of the group are shown by its subsystems alone, or by targets of the same group.
    ///
    /// # Errors
    /// [`GroupError`]; nothing has changed then.
    pub fn begin(
        handle: &Handle<Fc>,
        members: Members,
        gate: Gate,
        done: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<Self, GroupError> {
        check(&handle.world(), &members.subsystems)?;
        let id = GroupId(NEXT.fetch_add(1, Ordering::Relaxed));
        let (members, prepared) = (Arc::new(members), Arc::default());
        let group = Self { handle: handle.clone(), id, members, prepared };
        let ways = Arc::default();
        group.order(&Order::Begin { members: group.members.clone(), gate, ways }, done);
        Ok(group)
    }

    /// Commands that the gate lets [through](lunet_gateway::Admission::Forward) are passed on from now on, and other gateways
    /// that pass commands on show by the secret that they are some.
    pub fn relay(&self, relays: Relays, done: impl FnOnce() + Send + Sync + 'static) {
        self.order(&Order::Relays(Arc::new(relays)), done);
    }

    /// Each shard goes by this gate from now on. Commands that wait there and have not been begun are asked once more.
    pub fn set_gate(&self, gate: Gate, done: impl FnOnce() + Send + Sync + 'static) {
        self.order(&Order::Gate(gate), done);
    }

    /// The gate is closed, and nothing that concerns a command of the group leaves a shard from the moment on that it has
    /// this: connections are aborted, as by [`abort_connections`](Self::abort_connections).
    pub fn stop_answering(&self, gate: Gate, done: impl FnOnce() + Send + Sync + 'static) {
        self.order(&Order::StopAnswering(gate), done);
    }

    /// Aborts the connections of the group: hosts see a reset, or that the queue pair is gone; what they have sent stays
    /// unread. Done when the sockets are closed.
    pub fn abort_connections(&self, done: impl FnOnce() + Send + Sync + 'static) {
        self.order(&Order::Abort, done);
    }

    /// Done when nothing of the group is under way on any shard, and what was abandoned is not at the storage any more. The
    /// gate was blocked before. A gate that opens ends the wait: `done` is not called then.
    pub fn drain(&self, done: impl FnOnce() + Send + Sync + 'static) {
        self.order(&Order::Drain, done);
    }

    /// Hosts are told the state of this gateway's own port from now on.
    pub fn access(
        &self,
        ports: &[Port],
        Access(states): &Access,
        done: impl FnOnce() + Send + Sync + 'static,
    ) {
        let own = |group: u16| {
            let mut ports = ports.iter();
            ports.any(|port| port.group == group && port.gateway == self.members.gateway)
        };
        let found = states.iter().find(|(group, _)| own(*group)).map(|(_, state)| *state);
        // A gateway that the record does not name serves nothing.
        self.order(&Order::Access(found.unwrap_or(AccessState::Standby)), done);
    }

    fn order(&self, order: &Order, done: impl FnOnce() + Send + Sync + 'static) {
        let part = Part::new(done);
        let (group, order) = (self.id, order.clone());
        self.handle.tell(move || {
            let (order, part) = (order.clone(), part.clone());
            Message::Group(GroupMessage { group, order, part })
        });
    }

    fn prepared(&self) -> MutexGuard<'_, Option<Prepared<Fc>>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group's volume with this designator, and its slot.
    fn volume(&self, designator: [u8; 16]) -> Option<(VolumeId, Arc<Volume<Fc>>)> {
        let world = self.handle.world();
        let own = volumes_of(&world, &self.members.subsystems).into_iter();
        let mut own = own.filter_map(|slot| Some((slot, world.volume(slot)?.clone())));
        own.find(|(_, volume)| volume.face.designator() == Some(designator))
    }
}

/// Sees whether subsystems can be a group.
fn check<Fc: Face>(world: &World<Fc>, names: &[String]) -> Result<(), GroupError> {
    for name in names {
        let mut all = world.exports();
        if !all.any(|(_, subsystem)| subsystem.nqn == *name) {
            return Err(GroupError::Unknown(name.clone()));
        }
    }
    for slot in volumes_of(world, names) {
        let mut others = world.exports().filter(|(_, subsystem)| !names.contains(&subsystem.nqn));
        let shows = others.find(|(_, other)| other.namespaces.iter().any(|(_, it)| *it == slot));
        if let (Some((_, other)), Some(volume)) = (shows, world.volume(slot)) {
            let (volume, subsystem) = (volume.name.clone(), other.nqn.clone());
            return Err(GroupError::Shared { volume, subsystem });
        }
    }
    Ok(())
}

/// The slots of the volumes that these subsystems show.
fn volumes_of<Fc: Face>(world: &World<Fc>, subsystems: &[String]) -> Vec<VolumeId> {
    let own = world.exports().filter(|(_, subsystem)| subsystems.contains(&subsystem.nqn));
    let mut slots: Vec<VolumeId> = Vec::new();
    for (_, slot) in own.flat_map(|(_, subsystem)| &subsystem.namespaces) {
        if !slots.contains(slot) {
            slots.push(*slot);
        }
    }
    slots
}

/// Names a group on all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupId(u32);

#[cfg(test)]
impl GroupId {
    /// The one group of a test that gives orders itself.
    pub fn of_test() -> Self {
        Self(u32::MAX)
    }
}

/// What a shard is told of a group.
pub struct GroupMessage {
    /// Which group.
    pub group: GroupId,
    /// What to do.
    pub order: Order,
    /// Dropped when that is done.
    pub part: Part,
}

/// See the methods of [`GroupHandle`].
#[derive(Clone)]
pub enum Order {
    /// There is a group.
    Begin {
        /// What it is made of.
        members: Arc<Members>,
        /// Its gate.
        gate: Gate,
        /// By which gateway each of its hosts comes.
        ways: Arc<Ways>,
    },
    /// Commands are passed on that way.
    Relays(Arc<Relays>),
    /// Its gate has changed.
    Gate(Gate),
    /// The same, and nothing is answered.
    StopAnswering(Gate),
    /// Its connections are to be aborted.
    Abort,
    /// What is under way is to be waited for.
    Drain,
    /// This gateway's port has this state.
    Access(AccessState),
    /// Requests on reservations go there.
    Requests(TakesRequests),
    /// One of them is answered.
    Answer(u64, Said),
    /// Commands are held back for which the reservations of this volume count.
    Hold(VolumeId),
    /// They go on.
    LetGo(VolumeId),
}

/// The groups, as a shard knows them.
#[derive(Default)]
pub struct Groups(Vec<Group>);

/// A group, as a shard knows it.
pub struct Group {
    pub(super) id: GroupId,
    /// What it is made of.
    pub members: Arc<Members>,
    /// Its gate.
    pub gate: Gate,
    /// The state of this gateway's port; `None`: nobody has read the record yet.
    pub access: Option<AccessState>,
    /// Volumes that it has had: operations may be left on one that is not served any more.
    known: Vec<VolumeId>,
    /// Who waits until nothing is under way.
    pub drains: Vec<Part>,
    /// Where requests on reservations go.
    pub takes: Option<TakesRequests>,
    /// Volumes whose reservations are being changed.
    pub held: Vec<VolumeId>,
    /// Where commands go that the gate lets through.
    pub relays: Option<Arc<Relays>>,
    /// By which gateway each of its hosts comes.
    pub ways: Arc<Ways>,
    /// The way back to this shard for relays.
    pub news: RelayNews,
}

impl Group {
    /// A group whose record nobody has read yet.
    pub fn new(
        (id, members): (GroupId, Arc<Members>),
        gate: Gate,
        ways: Arc<Ways>,
        news: RelayNews,
    ) -> Self {
        let (known, drains, held) = (Vec::new(), Vec::new(), Vec::new());
        let (access, takes, relays) = (None, None, None);
        Self { id, members, gate, access, known, drains, takes, held, relays, ways, news }
    }

    /// The group's secret, if a gateway may have a host's commands executed here that it passes on.
    pub fn lets_through(&self, through: &Through) -> Option<&[u8; 32]> {
        let owns = self.gate.is_open() && self.gate.epoch() == Epoch(through.epoch);
        let other = GatewayId(through.gateway) != self.members.gateway;
        let relays = self.relays.as_ref().filter(|_| owns && other)?;
        Some(&relays.secret)
    }

    /// Its volumes by their slots: those of this world, and those that were removed since.
    pub fn volumes<Fc: Face>(&mut self, world: &World<Fc>) -> &[VolumeId] {
        let now = volumes_of(world, &self.members.subsystems);
        self.known.retain(|slot| world.volume(*slot).is_none() && !now.contains(slot));
        self.known.extend(now);
        &self.known
    }

    /// Nobody waits any more until nothing is under way.
    pub fn give_up_drains(&mut self) {
        self.drains.drain(..).for_each(|part| part.give_up());
    }

    /// True if it has a subsystem of this name.
    pub fn has(&self, nqn: &str) -> bool {
        self.members.subsystems.iter().any(|name| name == nqn)
    }

    /// True if this gateway does not own the group.
    pub fn is_closed(&self) -> bool {
        self.gate.admits(self.gate.connected().stamp()) == Admission::Standby
    }

    /// The state of the path that is told to hosts: that of the record, unless this gateway knows better that it serves
    /// nothing.
    pub fn state(&self) -> AnaState {
        match self.access {
            Some(AccessState::Transitioning) => AnaState::Change,
            // The record has told of another owner, or is about to.
            Some(_) if self.gate.is_through() => AnaState::NonOptimized,
            Some(AccessState::Optimized) if !self.is_closed() => AnaState::Optimized,
            _ => AnaState::Inaccessible,
        }
    }

    /// What a command gets while this gateway does not own the group.
    pub fn refusal(&self) -> Status {
        match self.state() {
            AnaState::Change => Status::ANA_TRANSITION,
            _ => Status::ANA_INACCESSIBLE,
        }
    }
}

/// The controller identifiers of one gateway: no two gateways of a subsystem give the same to a host, which would take that
/// for a mistake.
fn identifiers(GatewayId(gateway): GatewayId) -> RangeInclusive<u16> {
    let part = MAX_CNTLID / MAX_PORTS as u16;
    let first = (gateway.max(1) - 1) % MAX_PORTS as u16 * part + 1;
    first..=first + part - 1
}

impl Groups {
    /// One more.
    pub fn add(&mut self, group: Group) {
        self.0.push(group);
    }

    /// The group of this name.
    pub fn get(&self, id: GroupId) -> Option<&Group> {
        self.0.iter().find(|group| group.id == id)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.0.iter_mut().find(|group| group.id == id)
    }

    /// All of them, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.0.iter_mut()
    }

    /// The group that has the subsystem of this name.
    pub fn of(&self, nqn: &str) -> Option<&Group> {
        self.0.iter().find(|group| group.has(nqn))
    }

    /// What a connection has to know whose Connect to a subsystem is answered now. `None` if that is in no group.
    pub fn connected(
        &self,
        nqn: &str,
        host: &str,
        through: Option<GatewayId>,
    ) -> Option<Box<Gated>> {
        Some(Box::new(Gated::new(self.of(nqn)?, host, through)))
    }

    /// The identifiers that controllers of a subsystem may have.
    pub fn identifiers(&self, nqn: &str) -> RangeInclusive<u16> {
        self.of(nqn).map_or(1..=MAX_CNTLID, |group| identifiers(group.members.gateway))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_give_no_identifier_twice() {
        let mut last = 0;
        for gateway in 1..=MAX_PORTS as u16 {
            let range = identifiers(GatewayId(gateway));
            assert!(*range.start() > last && range.start() < range.end(), "{gateway}: {range:?}");
            last = *range.end();
        }
        assert!(last <= MAX_CNTLID);
    }
}
