//! What a failover group's gate lets through.

use std::time::Duration;

use lunet_gateway::Admission;
use lunet_iscsi::target::{Command, Tag};
use lunet_ring::Buf;
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

/// How long another gateway has to log in anew.
pub const LEAVES_WITHIN: Duration = Duration::from_secs(3);

/// What a command is for the gateways of a group. What is not known to do no harm when it is late, or when another gateway than
/// the owner answers it, changes something: so no command is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// It tells of the unit, as a port or as a thing, and any gateway answers it in any epoch: INQUIRY, REPORT LUNS, REPORT
    /// TARGET PORT GROUPS, READ CAPACITY, LOG SENSE.
    Tells,
    /// So do these, but the owner knows it first where commands are passed on: MODE SENSE.
    TellsModes,
    /// So do these, but the owner alone knows how a SANITIZE or FORMAT UNIT comes on: REQUEST SENSE.
    TellsSense,
    /// TEST UNIT READY: a gateway that passes commands on answers for itself, unless there is such an operation.
    Asks,
    /// PERSISTENT RESERVE IN, by the record.
    Report,
    /// It changes nothing for those behind it: reads, PRE-FETCH, VERIFY, GET LBA STATUS, SYNCHRONIZE CACHE, RECEIVE COPY
    /// RESULTS.
    Reads,
    /// Everything else: writes, reservations, mode parameters, SANITIZE, START STOP UNIT, copies, and what is no command.
    Changes,
}

impl Nature {
    /// That of a command block of any length.
    pub fn of(cdb: &[u8]) -> Self {
        let action = cdb.get(1).map_or(0, |byte| byte & 0x1F);
        match (cdb.first().copied().unwrap_or(0xFF), action) {
            (0x12 | 0xA0 | 0x25 | 0x4D, _) | (0xA3, 0x0A) | (0x9E, 0x10) => Self::Tells,
            (0x1A | 0x5A, _) => Self::TellsModes,
            (0x03, _) => Self::TellsSense,
            (0x00, _) => Self::Asks,
            (0x5E, _) => Self::Report,
            (0x08 | 0x28 | 0x88 | 0xA8, _) => Self::Reads,
            (0x34 | 0x90 | 0x2F | 0x8F | 0xAF | 0x35 | 0x91 | 0x84, _) | (0x9E, 0x12) => {
                Self::Reads
            }
            _ => Self::Changes,
        }
    }

    /// True if any gateway answers it, whatever its gate says.
    const fn is_of_any_gateway(self) -> bool {
        matches!(self, Self::Tells | Self::TellsModes | Self::TellsSense)
    }
}

/// PERSISTENT RESERVE OUT: it waits for no other change, but ends with BUSY while there is one.
const PERSISTENT_RESERVE_OUT: u8 = 0x5F;

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
        let nature = Nature::of(command.cdb());
        // The record answers.
        if nature == Nature::Report && group.takes.is_some() {
            return false;
        }
        if group.gate.is_through() {
            return nature != Nature::Tells && self.passes_on(conn, slot, (nature, command));
        }
        if nature.is_of_any_gateway() {
            return false;
        }
        let Some(turned) = TurnedBack::by(group.gate.admits(gated.stamp(command.answers))) else {
            let waits = !group.held.is_empty() && command.cdb[0] != PERSISTENT_RESERVE_OUT;
            return waits && self.holds_back(conn, slot, command)
                || self.goes_another_way(conn, nature, command);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_to_be_harmless_is_a_change() {
        let harmless = (0..=u8::MAX).filter(|code| Nature::of(&[*code, 0]) != Nature::Changes);
        // The list of opcodes that SPC-5 and SBC-4 have read or report without a service action.
        let known = [
            0x00, 0x03, 0x08, 0x12, 0x1A, 0x25, 0x28, 0x2F, 0x34, 0x35, 0x4D, 0x5A, 0x5E, 0x84,
            0x88, 0x8F, 0x90, 0x91, 0xA0, 0xA8, 0xAF,
        ];
        assert_eq!(harmless.collect::<Vec<u8>>(), known);
        for cdb in [[0x9E, 0x10], [0x9E, 0x12], [0xA3, 0x0A]] {
            assert_ne!(Nature::of(&cdb), Nature::Changes, "{cdb:02x?}");
        }
        // PERSISTENT RESERVE OUT, MODE SELECT, SANITIZE, FORMAT UNIT, START STOP UNIT, UNMAP, WRITE SAME, EXTENDED COPY,
        // RESERVE, SET TARGET PORT GROUPS.
        for code in [0x5F, 0x15, 0x55, 0x48, 0x04, 0x1B, 0x42, 0x41, 0x93, 0x83, 0x16, 0x56, 0xA4] {
            assert_eq!(Nature::of(&[code, 0x0A]), Nature::Changes, "{code:02x}");
        }
        assert_eq!(Nature::of(&[]), Nature::Changes);
    }
}
