//! What a failover group's gate lets through.

use std::time::Duration;

use lunet_gateway::Admission;
use lunet_iscsi::target::{Command, Tag};
use lunet_ring::Buf;
use lunet_scsi::alua::works_in_standby;
use lunet_scsi::{Code, Key, Lun, Sense, Transfer, status};
use lunet_volume::{OperationId, VolumeId};

use super::task::{Job, Task};
use super::{Engine, respond, respond_sense};
use crate::connection::{Conn, find_lun};
use crate::group::GroupId;
use crate::reservations;
use lunet_server::conn::ConnId;

/// What a command gets at a gateway that does not own the group.
const STANDBY: Sense = Sense::new(Key::NotReady, Code::PORT_IN_STANDBY);

/// How a command ends that may not be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnedBack {
    /// With BUSY: it is to be sent again.
    Busy,
    /// As by a port in standby.
    Standby(Sense),
}

impl TurnedBack {
    /// What a gate says. `None`: the command is executed.
    pub fn by(admission: Admission) -> Option<Self> {
        match admission {
            Admission::Execute => None,
            // What is passed on is not executed here.
            Admission::Busy | Admission::Forward => Some(Self::Busy),
            Admission::Standby => Some(Self::Standby(STANDBY)),
        }
    }
}

/// A command that waits until a change of reservations has taken effect, or is given up.
pub struct Held {
    /// Its connection.
    pub slot: ConnId,
    /// That connection's serial number: another may have its slot.
    pub connection: u64,
    /// The volume.
    pub volume: VolumeId,
    /// The command.
    pub command: Command<Buf>,
}

/// PERSISTENT RESERVE IN and OUT.
fn is_about_reservations(cdb: &[u8]) -> bool {
    matches!(cdb.first(), Some(0x5E | 0x5F))
}

/// True for a command that any gateway answers in any epoch: it tells of the unit, as port or as a thing, and changes
/// nothing. Of what works in standby those are left out that do: MODE SELECT, LOG SELECT, and what is about reservations.
fn is_of_any_gateway(cdb: &[u8]) -> bool {
    let changes = matches!(cdb.first(), Some(0x15 | 0x4C | 0x55 | 0x5E | 0x5F));
    !changes && works_in_standby(cdb)
}

/// How long another gateway has to log in anew.
pub const LEAVES_WITHIN: Duration = Duration::from_secs(3);

/// True for a command that changes nothing for those behind it, so that it does no harm if it is late: what any gateway
/// answers, TEST UNIT READY, reads, PRE-FETCH, VERIFY, GET LBA STATUS, SYNCHRONIZE CACHE, and RECEIVE COPY RESULTS.
pub fn changes_nothing(cdb: &[u8]) -> bool {
    is_of_any_gateway(cdb)
        || match cdb.first() {
            Some(0x00 | 0x08 | 0x28 | 0x88 | 0xA8) => true,
            Some(0x34 | 0x90 | 0x2F | 0x8F | 0xAF | 0x35 | 0x91 | 0x84) => true,
            Some(0x9E) => cdb.get(1).is_some_and(|action| action & 0x1F == 0x12),
            _ => false,
        }
}

impl Engine {
    /// Sees whether a command of a group's session may be executed, which is about to be. If not, it is answered, and this
    /// is true.
    #[cold]
    #[inline(never)]
    pub(super) fn turns_back(
        &mut self,
        conn: &mut Conn,
        slot: ConnId,
        command: &mut Command<Buf>,
    ) -> bool {
        let Some(session) = &mut conn.front.session else { return false };
        let Some(gated) = &session.gated else { return false };
        let Some(group) = self.groups.get(gated.group) else { return false };
        if is_of_any_gateway(command.cdb())
            || group.takes.is_some() && is_about_reservations(command.cdb())
        {
            return false;
        }
        if group.gate.is_through() {
            return self.passes_on(conn, slot, command);
        }
        let Some(turned) = TurnedBack::by(group.gate.admits(gated.stamp(command.answers))) else {
            return !group.held.is_empty() && self.holds_back(conn, slot, command)
                || self.goes_another_way(conn, command);
        };
        let lun = Lun::decode(command.lun.to_be_bytes());
        // The device server knows what to say where there is no unit.
        let Some(seen) = lun.and_then(|lun| find_lun(&mut session.luns, lun.0)) else {
            return false;
        };
        let lun = seen.lun;
        self.turn_back(conn, lun, command.tag, turned);
        true
    }

    /// Answers a command of a LUN that is not executed.
    pub(super) fn turn_back(&mut self, conn: &mut Conn, lun: u16, tag: Tag, turned: TurnedBack) {
        let Some(session) = &mut conn.front.session else { return };
        let Some(seen) = find_lun(&mut session.luns, lun) else { return };
        match turned {
            TurnedBack::Busy => {
                self.protocol.busy += 1;
                respond(conn, tag, status::BUSY, &[], Transfer::default());
            }
            TurnedBack::Standby(sense) => {
                let core = &self.exec.storage.volumes[seen.volume].core;
                reservations::refresh(core, seen.place.seat, &mut seen.nexus);
                // A unit attention comes first (SAM-5 5.14.4).
                let sense = seen.nexus.take_sense().unwrap_or(sense);
                let sense = sense.encode(core.face.unit.sense_format());
                respond_sense(conn, tag, &sense, Transfer::default());
            }
        }
    }

    /// Sees whether a command has to wait for a change of reservations. If so, it is taken.
    fn holds_back(&mut self, conn: &mut Conn, slot: ConnId, command: &mut Command<Buf>) -> bool {
        let Some(session) = &mut conn.front.session else { return false };
        let lun = Lun::decode(command.lun.to_be_bytes());
        let seen = lun.and_then(|lun| find_lun(&mut session.luns, lun.0));
        let group = session.gated.as_ref().and_then(|gated| self.groups.get(gated.group));
        let (Some(seen), Some(group)) = (seen, group) else { return false };
        let volume = seen.volume;
        if !group.held.contains(&volume) {
            return false;
        }
        let Command {
            tag, lun, cdb, attribute, expects_read, expects_write, arrived, answers, ..
        } = *command;
        let (long_cdb, data) = (command.long_cdb.take(), command.data.take());
        let command = Command {
            tag,
            lun,
            cdb,
            long_cdb,
            attribute,
            expects_read,
            expects_write,
            data,
            arrived,
            answers,
        };
        self.held.push(Held { slot, connection: conn.serial, volume, command });
        true
    }

    /// True for a command that has not been begun: it waits for data, memory or a lock.
    pub fn waits_to_begin(&self, id: OperationId) -> bool {
        let Some(task) = self.exec.operations.get(id) else { return false };
        let waits = match &task.command.job {
            Job::Storage | Job::Collect(_) | Job::Copy(_) => true,
            Job::Sanitize(_)
            | Job::Await(_)
            | Job::Away(_)
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
        for id in left {
            // One may have ended with another.
            match self.exec.operations.get(id).map(|task| &task.command.job) {
                Some(Job::Sanitize(_)) => self.give_up_sanitize(id),
                // Its connection, if it had one, has given it up already.
                Some(_) => self.exec.abandon(id),
                None => {}
            }
        }
    }
}

/// True if an operation is one on these volumes, or copies from or to them.
fn is_at(task: &Task, volumes: &[VolumeId]) -> bool {
    // What the owner decides about is not at the storage.
    if matches!(task.command.job, Job::Forwarded(_) | Job::Relayed(_)) {
        return false;
    }
    let parties = task.requests.parties();
    volumes.contains(&task.requests.volume)
        || parties.is_some_and(|parties| {
            volumes.contains(&parties.source) || volumes.contains(&parties.destination)
        })
}
