//! Failover groups: how the thread that runs a group's state machine ([`lunet_gateway`]) acts on the shards.
//!
//! A group is some targets of this server, with their volumes. Each shard has a copy of the group's gate, which a message
//! changes ([`Order`]); each connection of the group's sessions belongs to an epoch ([`Gated`]). What is asked of a command
//! is in `engine::gate`, what reaches a connection in `session::group`. A session of another target has no [`Gated`],
//! and that is all that its commands ever look at.
//!
//! `front-nvme` has the same for groups of subsystems: there a connection has no ping, and ANA takes the place of target port
//! groups. Whoever has a group in both gives each order to both.

mod keep;
mod relay;
mod request;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lunet_gateway::{
    Access, AccessState, Admission, Attention, Epoch, Gate, GatewayId, Link, Ping, Port,
    Registered, Stamp, Turn,
};
use lunet_iscsi::Through;
use lunet_iscsi::target::Asked;
use lunet_os::sync::Mutex;
pub use lunet_relay::{Execution, GroupRequest, TakesRequests};
use lunet_reservations::Registrant;
use lunet_scsi::alua::{Alua, SharedGroup, SharedGroups, SharedState};
use lunet_scsi::reserve::{self, FAMILY, TargetPort};
use lunet_server::conn::{Phase, Wire};
use lunet_server::part::Part;
use lunet_volume::VolumeId;

pub use self::keep::{Keep, Kept};
pub use self::relay::{
    Answered, Charge, Full, Function, Going, Iscsi, Load, MAX_DATA, News, OnWay, Relay, RelayFor,
    RelayNews, RelayRequest, Relayed, Relays, Ways, accounts, algorithms, credentials,
};
use self::request::Prepared;
pub use self::request::{Body, FAMILIES, Said, naa_of, report, volume_of};
use crate::Handle;
use crate::connection::{Conn, Pdus};
use crate::message::Message;
use crate::registry::Nexus;
use crate::reservations::with_seats;
use crate::world::{Exports, World};

/// Numbers groups, on all servers of the process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Why targets cannot be a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// There is no such target.
    #[error("target {0} of the group is not served")]
    Unknown(String),
    /// Initiators would change access states, which are the group's.
    #[error("volume {0} of the group lets initiators change access states: set ALUA to implicit")]
    NotImplicit(String),
    /// Initiators would reach a volume past the group's gate.
    #[error("volume {volume} of the group is shown by target {target} as well, which is not in it")]
    Shared {
        /// The volume.
        volume: String,
        /// The other target.
        target: String,
    },
    /// A record of the group says what cannot be.
    #[error("the record of the group has reservations of volume {0} that contradict themselves")]
    Contradiction(String),
}

/// The way to a group, for a thread that is no shard. Methods with `done` return at once; `done` is called, once, when
/// every shard has done its part, or has ended. Orders of one thread are carried out in their order on every shard.
#[derive(Clone)]
pub struct GroupHandle {
    handle: Handle,
    id: GroupId,
    targets: Arc<[String]>,
    shared: Arc<Shared>,
}

/// What the clones of a handle share.
#[derive(Default)]
struct Shared {
    ports: Mutex<Arc<GroupPorts>>,
    ways: Arc<Ways>,
    /// The change of reservations that is under way.
    prepared: Mutex<Option<Prepared>>,
}

impl GroupHandle {
    /// Makes these targets a group with this gate, which is closed or blocked at first. Their names stay the group's whatever
    /// becomes of them in the configuration, sessions that are there included. Whoever configures sees to it that
    /// volumes of the group are shown by its targets alone, or by subsystems of the same group, and with implicit ALUA.
    ///
    /// # Errors
    /// [`GroupError`]; nothing has changed then.
    pub fn begin(
        handle: &Handle,
        targets: &[&str],
        gate: Gate,
        done: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<Self, GroupError> {
        check(&handle.world(), targets)?;
        let id = GroupId(NEXT.fetch_add(1, Ordering::Relaxed));
        let targets: Arc<[String]> = targets.iter().map(|name| (*name).to_owned()).collect();
        let group = Self { handle: handle.clone(), id, targets, shared: Arc::default() };
        let (targets, ways) = (group.targets.clone(), group.shared.ways.clone());
        group.order(&Order::Begin { targets, gate, ways }, done);
        Ok(group)
    }

    /// Commands that the gate lets [through](lunet_gateway::Admission::Forward) are passed on from now on, and other gateways
    /// that pass commands on show by the secret that they are some.
    pub fn relay(&self, relays: Relays, done: impl FnOnce() + Send + Sync + 'static) {
        self.order(&Order::Relays(Arc::new(relays)), done);
    }

    /// Each shard goes by this gate from now on. Commands that wait there and have not been begun are asked once more.
    /// If it opens, the connections are pinged.
    pub fn set_gate(&self, gate: Gate, done: impl FnOnce() + Send + Sync + 'static) {
        self.order(&Order::Gate(gate), done);
    }

    /// The gate is closed, and nothing that concerns a command of the group leaves a shard from the moment on that it has
    /// this: connections are aborted, as by [`abort_connections`](Self::abort_connections). What works on the volumes without a
    /// connection (SANITIZE, a flush that was answered before it was done) is given up.
    pub fn stop_answering(&self, gate: Gate, done: impl FnOnce() + Send + Sync + 'static) {
        self.order(&Order::StopAnswering(gate), done);
    }

    /// Aborts the connections of the group: initiators see a reset, or that the queue pair is gone; what they have sent stays
    /// unread. Done when the sockets are closed.
    pub fn abort_connections(&self, done: impl FnOnce() + Send + Sync + 'static) {
        self.order(&Order::Abort, done);
    }

    /// Done when nothing of the group is under way on any shard: reads, writes, flushes, copies, SANITIZE, and what was
    /// abandoned and is still at the storage. The gate was blocked before. A gate that opens ends the wait: `done` is
    /// not called then.
    pub fn drain(&self, done: impl FnOnce() + Send + Sync + 'static) {
        self.order(&Order::Drain, done);
    }

    /// Every nexus at a volume of the group has this unit attention when this returns. Nexuses are told once.
    pub fn attention(&self, attention: Attention) {
        let attention = match attention {
            Attention::AccessChanged => lunet_scsi::Attention::AccessStateChanged,
            Attention::ReservationsChanged => lunet_scsi::Attention::ReservationsPreempted,
            Attention::NexusLoss => lunet_scsi::Attention::NexusLoss,
        };
        let world = self.handle.world();
        for slot in volumes_of(&world, &self.targets) {
            if let Some(volume) = world.volume(slot) {
                with_seats(volume, |seats| seats.attend_all(attention));
            }
        }
    }

    /// Nexuses here that have lost their registration with a volume are told so.
    pub fn preempted(&self, lost: &[([u8; 16], Registered)]) {
        for (naa, one) in lost.iter().filter(|(_, one)| one.family == FAMILY) {
            let Some((_, volume)) = self.volume(*naa) else { continue };
            let registrant = Registrant::new(FAMILY, &one.name);
            with_seats(&volume, |seats| {
                seats.attend_registrant(&registrant, lunet_scsi::Attention::ReservationsPreempted);
            });
        }
    }

    /// Initiators are told these target ports, of all gateways, and these states from now on. A portal of this server is the
    /// port whose group is its target portal group tag.
    pub fn access(
        &self,
        ports: &[Port],
        access: &Access,
        done: impl FnOnce() + Send + Sync + 'static,
    ) {
        let ports = Arc::new(GroupPorts::new(ports, access));
        *self.shared.ports.lock().unwrap_or_else(PoisonError::into_inner) = ports.clone();
        self.order(&Order::Ports(ports), done);
    }

    /// The ports that initiators are told.
    fn ports(&self) -> Arc<GroupPorts> {
        self.shared.ports.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn order(&self, order: &Order, done: impl FnOnce() + Send + Sync + 'static) {
        let part = Part::new(done);
        let (group, order) = (self.id, order.clone());
        self.handle.tell(move || {
            let (order, part) = (order.clone(), part.clone());
            Message::Group(GroupMessage { group, order, part })
        });
    }
}

/// Sees whether targets can be a group.
fn check(world: &World, targets: &[&str]) -> Result<(), GroupError> {
    let names: Vec<String> = targets.iter().map(|name| (*name).to_owned()).collect();
    for name in &names {
        world.find_target(name).ok_or_else(|| GroupError::Unknown(name.clone()))?;
    }
    for slot in volumes_of(world, &names) {
        let Some(volume) = world.volume(slot) else { continue };
        if volume.face.unit.alua != Alua::Implicit {
            return Err(GroupError::NotImplicit(volume.name.clone()));
        }
        let others = world.exports().filter(|(_, target)| !names.contains(&target.name));
        let mut others = others.filter(|(_, target)| target.volumes().any(|shown| shown == slot));
        if let Some((_, target)) = others.next() {
            let (volume, target) = (volume.name.clone(), target.name.clone());
            return Err(GroupError::Shared { volume, target });
        }
    }
    Ok(())
}

/// The slots of the volumes that these targets show.
fn volumes_of(world: &World, targets: &[String]) -> Vec<VolumeId> {
    let own = world.exports().filter(|(_, target)| targets.contains(&target.name));
    let mut slots: Vec<VolumeId> = Vec::new();
    for slot in own.flat_map(|(_, target)| target.volumes()) {
        if !slots.contains(&slot) {
            slots.push(slot);
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
        /// The names of its targets.
        targets: Arc<[String]>,
        /// Its gate.
        gate: Gate,
        /// By which gateway each host comes.
        ways: Arc<Ways>,
    },
    /// Commands are passed on.
    Relays(Arc<Relays>),
    /// Its gate has changed.
    Gate(Gate),
    /// The same, and nothing is answered.
    StopAnswering(Gate),
    /// Its connections are to be aborted.
    Abort,
    /// What is under way is to be waited for.
    Drain,
    /// It has other ports or states.
    Ports(Arc<GroupPorts>),
    /// Requests on reservations go there.
    Requests(TakesRequests),
    /// One of them is answered.
    Answer(u64, Said),
    /// Commands are held back for which the reservations of this volume count.
    Hold(VolumeId),
    /// They go on.
    LetGo(VolumeId),
    /// The record has the mark of SANITIZE or FORMAT UNIT for these volumes, and for no others.
    Marked(Arc<[VolumeId]>),
}

/// Target ports of all gateways, and what they report.
#[derive(Default)]
pub struct GroupPorts {
    ports: Vec<Port>,
    /// What REPORT TARGET PORT GROUPS says.
    pub report: SharedGroups,
}

impl GroupPorts {
    /// These, in these states.
    pub fn new(ports: &[Port], Access(states): &Access) -> Self {
        let group = |(tag, state): &(u16, AccessState)| {
            let state = match state {
                AccessState::Optimized => SharedState::Optimized,
                AccessState::NonOptimized => SharedState::NonOptimized,
                AccessState::Standby => SharedState::Standby,
                AccessState::Transitioning => SharedState::Transitioning,
            };
            let own = ports.iter().filter(|port| port.group == *tag);
            let mut own: Vec<u16> = own.map(|port| port.relative).collect();
            // Every gateway reports the same, in whatever order it was told.
            own.sort_unstable();
            SharedGroup { tag: *tag, state, ports: own }
        };
        let mut groups: Vec<SharedGroup> = states.iter().map(group).collect();
        groups.sort_unstable_by_key(|group| group.tag);
        Self { ports: ports.to_vec(), report: SharedGroups(groups) }
    }

    /// The ports of a target, as reservations name them.
    pub fn of_target(&self, target: &Arc<str>) -> Vec<reserve::Port> {
        let port = |port: &Port| reserve::Port {
            name: TargetPort { target: target.clone(), tag: port.group },
            relative: port.relative,
        };
        self.ports.iter().map(port).collect()
    }

    /// Lets a target be seen through its port as all gateways number it.
    fn show(&self, seen: &mut lunet_scsi::Target) {
        let own = self.ports.iter().find(|port| port.group == seen.portal_group_tag);
        if let Some(port) = own {
            seen.relative_port = port.relative;
        }
        seen.several_ports |= self.ports.len() > 1;
    }
}

/// The groups, as a shard knows them.
#[derive(Default)]
pub struct Groups(Vec<Group>);

/// A group, as a shard knows it.
pub struct Group {
    id: GroupId,
    targets: Arc<[String]>,
    /// Its gate.
    pub gate: Gate,
    /// Its ports.
    pub ports: Arc<GroupPorts>,
    /// Volumes that it has had: operations may be left on one that is not served any more.
    known: Vec<VolumeId>,
    /// Who waits until nothing is under way.
    pub drains: Vec<Part>,
    /// Where requests on reservations go.
    pub takes: Option<TakesRequests>,
    /// Where commands go that the gate lets through.
    pub relays: Option<Arc<Relays>>,
    /// By which gateway each host comes.
    pub ways: Arc<Ways>,
    /// The way back to this shard for relays.
    pub news: RelayNews,
    /// Volumes whose reservations are being changed.
    pub held: Vec<VolumeId>,
    /// Volumes that the record has the mark of SANITIZE or FORMAT UNIT for.
    pub marked: Arc<[VolumeId]>,
    /// Volumes of which the owner of this epoch has said to this shard that they are not ready.
    pub not_ready: Vec<VolumeId>,
}

impl Group {
    /// A group whose ports nobody knows yet.
    pub fn new(
        (id, targets): (GroupId, Arc<[String]>),
        gate: Gate,
        ways: Arc<Ways>,
        news: RelayNews,
    ) -> Self {
        let (ports, known, drains, held) = (Arc::default(), Vec::new(), Vec::new(), Vec::new());
        let (takes, relays, marked, not_ready) = (None, None, Arc::default(), Vec::new());
        Self {
            id,
            targets,
            gate,
            ports,
            known,
            drains,
            takes,
            relays,
            ways,
            news,
            held,
            marked,
            not_ready,
        }
    }

    /// Its volumes by their slots: those of this world, and those that were removed since.
    pub fn volumes(&mut self, world: &World) -> &[VolumeId] {
        let now = volumes_of(world, &self.targets);
        self.known.retain(|slot| world.volume(*slot).is_none() && !now.contains(slot));
        self.known.extend(now);
        &self.known
    }

    /// Nobody waits any more until nothing is under way.
    pub fn give_up_drains(&mut self) {
        self.drains.drain(..).for_each(|part| part.give_up());
    }

    /// What a gateway has to prove that logs in to one of its targets for an initiator; and its target port group. `None` if
    /// it is not one, or this is not the owner of that epoch.
    pub fn lets_through(&self, through: &Through) -> Option<(&[u8; 32], u16)> {
        let owns = self.gate.is_open() && self.gate.epoch() == Epoch(through.epoch);
        let relays = self.relays.as_ref().filter(|_| owns)?;
        let mut ports = self.ports.ports.iter();
        let port = ports.find(|port| port.gateway == GatewayId(through.gateway))?;
        Some((&relays.secret, port.group))
    }

    /// True if it has a target of this name.
    pub fn has(&self, target: &str) -> bool {
        self.targets.iter().any(|name| name == target)
    }
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

    /// What a connection has to know whose login to a target is answered now. `None` if that is in no group.
    pub fn connected(&self, target: &str, nexus: &Nexus) -> Option<Box<Gated>> {
        Some(Box::new(Gated::new(self.of_target(target)?, nexus)))
    }

    /// The group of a target.
    pub fn of_target(&self, target: &str) -> Option<&Group> {
        self.0.iter().find(|group| group.has(target))
    }

    /// Lets a target be seen as its group shows it.
    pub fn show(&self, seen: &mut lunet_scsi::Target) {
        if let Some(group) = self.0.iter().find(|group| group.has(&seen.name)) {
            group.ports.show(seen);
        }
    }

    /// The group whose targets show the volume in a slot.
    pub fn of_volume(&self, world: &World, slot: VolumeId) -> Option<GroupId> {
        let shows = |group: &&Group| volumes_of(world, &group.targets).contains(&slot);
        self.0.iter().find(shows).map(|group| group.id)
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The connection of a session of a group.
pub struct Gated {
    /// Its group.
    pub group: GroupId,
    /// By which gateway the host comes.
    pub on_way: OnWay,
    /// How it reaches the owner.
    pub relay: Relay,
    /// What is on its way there.
    pub load: Arc<Load>,
    link: Link,
    /// What it was before the latest ping that has changed it.
    before: Link,
    /// How many questions were answered when that ping was: commands with fewer were sent before.
    since: u32,
    asked: Option<(Asked, Question)>,
    /// Something else is to be asked when the answer is there.
    asks_again: bool,
}

/// What the answer to a question shows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Question {
    /// The epoch.
    ping: Ping,
    /// The host's way.
    turn: Turn,
    /// The relay that was open.
    relay: Option<u64>,
}

impl Gated {
    /// A connection whose login is answered now.
    pub fn new(group: &Group, nexus: &Nexus) -> Self {
        let (way, link) = (group.ways.of(&nexus.initiator), group.gate.connected());
        let fresh = (way.turn(), 0, way.turn());
        // Each gateway has one port, whose group is its number.
        let on_way = OnWay { way, through: GatewayId(nexus.portal_group), fresh };
        let (relay, load) = (Relay::None, Arc::default());
        let (asked, asks_again) = (None, false);
        Self {
            group: group.id,
            on_way,
            relay,
            load,
            link,
            before: link,
            since: 0,
            asked,
            asks_again,
        }
    }

    /// True if a gate lets commands of its epoch in, or will.
    pub fn is_served_by(&self, gate: &Gate) -> bool {
        let serves = matches!(gate.admits(self.link.stamp()), Admission::Execute | Admission::Busy);
        serves && gate.connected() == self.link
    }

    /// What a command is fresh for, by its answers as for a [stamp](Self::stamp).
    pub fn fresh(&self, answers: u32) -> Turn {
        let (now, since, before) = self.on_way.fresh;
        if answers >= since { now } else { before }
    }

    fn question(&self, gate: &Gate) -> Question {
        let relay = match self.relay {
            Relay::Asked(number) | Relay::Open(number, _) => Some(number),
            Relay::None | Relay::Opening(_) => None,
        };
        Question { ping: gate.ping(), turn: self.on_way.way.turn(), relay }
    }

    /// True if the answer that is waited for shows all that there is to be shown.
    pub fn is_asked(&self, gate: &Gate) -> bool {
        self.asked.is_some_and(|(_, question)| question == self.question(gate))
    }

    /// The stamp of what arrives now.
    pub fn now(&self) -> Stamp {
        self.link.stamp()
    }

    /// The stamp of a command, by the [answers](lunet_iscsi::target::Command::answers) that had come when its header was
    /// there: it may have waited for its data meanwhile, or for commands before it.
    pub fn stamp(&self, answers: u32) -> Stamp {
        if answers >= self.since { self.link.stamp() } else { self.before.stamp() }
    }

    /// The initiator was asked this for the sake of a gate.
    pub fn asks(&mut self, asked: Option<Asked>, gate: &Gate) {
        self.asked = asked.map(|asked| (asked, self.question(gate)));
    }

    /// True if something is to be asked anew, as it had to wait for the answer that has come.
    pub fn take_again(&mut self) -> bool {
        std::mem::take(&mut self.asks_again)
    }

    /// Its answer has come, and is the one of this number.
    pub fn answered(&mut self, asked: Asked, answers: u32) {
        let Some((_, question)) = self.asked.take_if(|(waits, _)| *waits == asked) else { return };
        let (fresh, ..) = self.on_way.fresh;
        if question.turn > fresh {
            self.on_way.fresh = (question.turn, answers, fresh);
        }
        if let Relay::Asked(number) = self.relay
            && question.relay == Some(number)
        {
            self.relay = Relay::Open(number, answers);
        }
        let before = self.link;
        self.link.renew(question.ping);
        if self.link != before {
            (self.before, self.since) = (before, answers);
        }
    }
}

/// Asks the host of a connection something, unless it is asked that already: what it sends behind its answer belongs to the
/// epoch of the gate.
///
/// Over RDMA a question that is not answered is waited for: a host has few receives for what it has not asked for (RFC 7145
/// section 8.2, MaxOutstandingUnexpectedPDUs).
pub fn ask(conn: &mut Conn, now: Duration, gate: &Gate) {
    let gated = conn.front.session.as_mut().and_then(|session| session.gated.as_mut());
    let Some(gated) = gated.filter(|gated| conn.phase == Phase::Open && !gated.is_asked(gate))
    else {
        return;
    };
    if matches!(conn.wire, Wire::Rdma(_)) && gated.asked.is_some() {
        gated.asks_again = true;
        return;
    }
    let asked = conn.front.proto.ask(now, &mut Pdus(&mut conn.out));
    let session = conn.front.session.as_mut();
    if let Some(gated) = session.and_then(|session| session.gated.as_mut()) {
        gated.asks(asked, gate);
    }
}
