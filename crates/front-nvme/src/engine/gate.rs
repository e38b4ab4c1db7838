//! What a failover group's gate lets through.

use lunet_gateway::{Admission, Gate};
use lunet_nvme::command::{ALL_NAMESPACES, Fuse, Io};
use lunet_nvme::controller::{Command, Tag};
use lunet_nvme::status::Status;
use lunet_relay::Going;
use lunet_ring::Buf;
use lunet_server::conn::{ConnId, Phase};
use lunet_volume::{Face, OperationId, VolumeId};

use super::Engine;
use super::relay::by_its_way;
use super::task::{Job, Task};
use crate::connection::{Conn, Conns, complete};
use crate::group::{Gated, Good, GroupId};

/// A command of a group's queue, or a fused pair.
pub struct Arrived {
    /// The first one of a pair.
    pub first: Option<Command<Buf>>,
    /// The command, or the second one.
    pub command: Command<Buf>,
    /// What it is good for.
    pub good: Good,
}

impl Arrived {
    /// It is turned back now, as its queue is not good for it.
    pub(super) fn turned_back(&self, gated: &mut Gated, gate: &Gate) {
        for command in self.first.iter().chain([&self.command]) {
            gated.turned_back(command.sqe.cid.get(), gate);
        }
    }
}

/// A command that waits for its group.
pub struct Held {
    /// Its connection.
    slot: ConnId,
    /// That connection's serial number: another may have its slot.
    connection: u64,
    /// The volume whose reservations are being changed; `None`: it waits for a gate that is blocked, or for a relay.
    volume: Option<VolumeId>,
    arrived: Arrived,
}

/// What becomes of a command.
pub(super) enum Verdict {
    /// It is begun, and goes by its host's way if it is a change.
    Begin(Option<Going>),
    /// It goes by this relay.
    Relay(u64),
    /// It waits, see [`Held::volume`].
    Wait(Option<VolumeId>),
    /// It is answered by this, which has the host try again, here or by another path.
    TurnBack(Status),
}

/// True for changes of reservations. They wait for no other change: the group's thread turns back what comes meanwhile.
fn changes_reservations(io: &Io) -> bool {
    matches!(
        io,
        Io::ReservationRegister { .. }
            | Io::ReservationAcquire { .. }
            | Io::ReservationRelease { .. }
    )
}

impl<Fc: Face> Engine<Fc> {
    /// A command has arrived on a queue of a group's controller.
    #[cold]
    #[inline(never)]
    pub(super) fn arrived(&mut self, conn: &mut Conn, slot: ConnId, command: Command<Buf>) {
        let entries = conn.front.proto.entries() as usize;
        let Some(gated) = &mut conn.front.gated else { return };
        let Some(group) = self.groups.get(gated.group) else { return };
        let mut good = gated.arrives(command.sqe.cid.get(), &group.gate, entries);
        let mut first = None;
        match command.fuse {
            Fuse::First => {
                gated.first = Some(good);
                conn.front.first = Some(command);
                return;
            }
            // The first one was sent before, so its epoch is that of both.
            Fuse::Second => {
                good = gated.first.take().unwrap_or(good);
                first = conn.front.first.take();
            }
            Fuse::Normal => {}
        }
        self.ask(conn, slot, Arrived { first, command, good });
    }

    /// Does with a command what its group says.
    fn ask(&mut self, conn: &mut Conn, slot: ConnId, arrived: Arrived) {
        let connection = conn.serial;
        match self.verdict(conn, &arrived) {
            Verdict::Begin(going) => {
                let tag = arrived.command.tag;
                self.admitted(conn, slot, arrived.first, arrived.command);
                let begun = going.and_then(|going| Some((going, conn.front.task(tag)?)));
                if let Some((going, id)) = begun {
                    if let Some(task) = self.exec.operations.get_mut(id) {
                        task.command.going = Some(going);
                    }
                }
            }
            Verdict::Relay(relay) => self.begin_relayed(conn, (slot, relay), arrived),
            Verdict::Wait(volume) => self.held.push(Held { slot, connection, volume, arrived }),
            Verdict::TurnBack(status) => {
                self.protocol.busy += 1;
                answer(conn, &arrived, status);
            }
        }
    }

    fn verdict(&self, conn: &mut Conn, arrived: &Arrived) -> Verdict {
        let (Some(gated), Some(queue)) = (&mut conn.front.gated, &conn.front.queue) else {
            return Verdict::TurnBack(Status::ANA_INACCESSIBLE);
        };
        let Some(group) = self.groups.get(gated.group) else { return Verdict::Begin(None) };
        let nsid = arrived.command.sqe.nsid.get();
        let is_meant = |at: u32| nsid == ALL_NAMESPACES || nsid == at;
        let mut seen = queue.namespaces.iter().filter(|seen| is_meant(seen.nsid)).peekable();
        // What is none is answered as everywhere, and so are commands on what is not there.
        let Ok(io) = Io::decode(&arrived.command.sqe) else { return Verdict::Begin(None) };
        // The record answers a report, at any gateway.
        let reports = group.takes.is_some() && matches!(io, Io::ReservationReport { .. });
        if seen.peek().is_none() || reports {
            return Verdict::Begin(None);
        }
        if group.gate.is_through() {
            return self.by_relay(conn, arrived);
        }
        match group.gate.admits(arrived.good.stamp) {
            // It waits for nothing that it may decide about itself.
            Admission::Execute if changes_reservations(&io) => by_its_way(conn, group, arrived),
            Admission::Execute => match seen.find(|seen| group.held.contains(&seen.volume)) {
                Some(seen) => Verdict::Wait(Some(seen.volume)),
                None => by_its_way(conn, group, arrived),
            },
            // Its queue belongs to an earlier epoch.
            Admission::Busy if group.gate.is_open() => {
                arrived.turned_back(gated, &group.gate);
                Verdict::TurnBack(Status::ANA_TRANSITION)
            }
            // Another gateway has its host wait, which goes by another relay when the group is somebody's.
            Admission::Busy if gated.is_relay => Verdict::TurnBack(Status::ANA_TRANSITION),
            // Until the group is somebody's, which is soon: no answer has hosts wait better than none.
            Admission::Busy => Verdict::Wait(None),
            // What is passed on was seen to above.
            Admission::Forward | Admission::Standby => Verdict::TurnBack(group.refusal()),
        }
    }

    /// Commands that wait for this go on: they are asked as if they came now.
    pub fn go_on_held(&mut self, conns: &mut Conns, on: impl Fn(&Conn, Option<VolumeId>) -> bool) {
        for held in std::mem::take(&mut self.held) {
            let conn = conns.get_mut(held.slot).filter(|conn| conn.serial == held.connection);
            let Some(conn) = conn.filter(|conn| conn.phase == Phase::Open) else { continue };
            if !on(conn, held.volume) {
                self.held.push(held);
                continue;
            }
            let slot = held.slot;
            self.touched.push(slot);
            if conn.front.queue.as_ref().is_none_or(|queue| queue.member.is_shut_down()) {
                answer(conn, &held.arrived, Status::SEQUENCE.no_retry());
            } else {
                self.ask(conn, slot, held.arrived);
            }
        }
    }

    /// Ends a command that waits for its group, and the other one of its pair. True if it was there to be ended.
    pub fn end_held(&mut self, conn: &mut Conn, tag: Tag, status: Status) -> bool {
        let is = |held: &Held| {
            let mut tags = held.arrived.first.iter().chain([&held.arrived.command]);
            held.connection == conn.serial && tags.any(|command| command.tag == tag)
        };
        let Some(at) = self.held.iter().position(is) else { return false };
        let held = self.held.remove(at);
        for command in held.arrived.first.iter().chain([&held.arrived.command]) {
            complete(conn, command.tag, status);
        }
        true
    }

    /// Ends all commands of a connection that wait for a gate, or for a relay.
    pub fn turn_back_held(&mut self, conn: &mut Conn, status: Status) {
        let waits = |held: &Held| held.connection == conn.serial && held.volume.is_none();
        let (ended, others) = std::mem::take(&mut self.held).into_iter().partition(waits);
        self.held = others;
        for held in Vec::into_iter(ended) {
            self.protocol.busy += 1;
            answer(conn, &held.arrived, status);
        }
    }

    /// Forgets the commands of a connection that wait.
    pub fn forget_held(&mut self, slot: ConnId) {
        self.held.retain(|held| held.slot != slot);
    }

    /// True for a command that has not been begun: it waits for data, memory or a lock.
    pub fn waits_to_begin(&self, id: OperationId) -> bool {
        let Some(task) = self.exec.operations.get(id) else { return false };
        let waits = match &task.command.job {
            Job::Storage | Job::Collect(..) | Job::Fused(_) | Job::Copy(_) => true,
            // Others may have been flushed before.
            Job::FlushAll(_)
            | Job::ShutDown { .. }
            | Job::Await(_)
            | Job::Forwarded(_)
            | Job::Relayed(_) => false,
        };
        waits && task.requests.is_untouched()
    }

    /// Tells those who wait for it that nothing of a group is under way.
    #[cold]
    #[inline(never)]
    pub fn look_drained(&mut self) {
        let Self { local, groups, .. } = self;
        for group in groups.iter_mut().filter(|group| !group.drains.is_empty()) {
            let volumes = group.volumes(&local.world);
            if !local.exec.operations.iter().any(|(_, task)| is_at(task, volumes)) {
                // Told by that.
                group.drains.clear();
            }
        }
        self.draining = self.groups.iter_mut().any(|group| !group.drains.is_empty());
    }

    /// Gives up all that is under way on the volumes of a group, whose connections are gone.
    pub fn give_up_group(&mut self, id: GroupId) {
        let Self { local, groups, .. } = self;
        let Some(group) = groups.get_mut(id) else { return };
        let volumes = group.volumes(&local.world).to_vec();
        let left = local.exec.operations.iter().filter(|(_, task)| is_at(task, &volumes));
        let left: Vec<OperationId> = left.map(|(id, _)| id).collect();
        left.into_iter().for_each(|id| self.abandon(id));
    }
}

/// Answers a command that was not begun. Of a pair it is the first one that is to blame.
pub(super) fn answer(conn: &mut Conn, Arrived { first, command, .. }: &Arrived, status: Status) {
    match first {
        Some(first) => {
            complete(conn, first.tag, status);
            complete(conn, command.tag, Status::FAILED_FUSED);
        }
        None => complete(conn, command.tag, status),
    }
}

/// True if an operation is one on these volumes.
fn is_at<Fc: Face>(task: &Task<Fc>, volumes: &[VolumeId]) -> bool {
    // What the owner decides about is not at the storage.
    !matches!(task.command.job, Job::Forwarded(_) | Job::Relayed(_))
        && volumes.contains(&task.requests.volume)
}
