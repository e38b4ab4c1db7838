//! Third-party copy: EXTENDED COPY, and tokens (POPULATE TOKEN, WRITE USING TOKEN).
//!
//! A copy is a task of its own kind. If its command is answered before it is done, the task goes on without it
//! and belongs to the connection. What became of copies is kept for each connection: it is the nexus.

mod job;
mod step;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::target::Tag;
use lunet_scsi::copy::{
    Operations, Origin, Outcome, Piece, Populate, Query, Refused, Request, Rod, RodToken, Side,
    TokenKind, WriteUsing, action,
};
use lunet_scsi::{Code, Key, Reply, Sense, Transfer, status};
use lunet_volume::{Kind, OperationId, VolumeId, Work};

pub use self::job::Copy;
use self::job::Parts;
use self::step::copy_of;
use super::start::send_reply;
use super::task::{Job, Owner, fail, sense};
use super::{Engine, respond};
use crate::connection::Conn;
use lunet_server::conn::ConnId;

/// The copy operations of the connections on this shard, by slot.
#[derive(Default)]
pub struct Copies(HashMap<ConnId, Operations>);

impl Copies {
    /// Those of one connection.
    pub fn of(&mut self, slot: ConnId) -> &mut Operations {
        self.0.entry(slot).or_default()
    }
}

impl Engine {
    /// A command about copies that has no parameter list: it is answered at once.
    pub(super) fn copy_request(
        &mut self,
        conn: &mut Conn,
        (slot, tag): (ConnId, Tag),
        (lun, volume): (u16, VolumeId),
        request: &Request,
    ) {
        let format = self.exec.storage.volumes[volume].core.face.unit.sense_format();
        let reply = match request {
            Request::Query(query) => self.copy_query(slot, lun, *query, volume),
            Request::Abort { list } => match self.copies.of(slot).abort(u64::from(lun), *list) {
                Ok(Some(op)) => {
                    self.abort_copy(conn, slot, op);
                    Reply::GOOD
                }
                Ok(None) => Reply::GOOD,
                Err(sense) => Reply::check(sense),
            },
            // These come with a parameter list.
            Request::Extended(_) | Request::Populate(_) | Request::WriteUsing(_) => {
                Reply::check(Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE))
            }
        };
        self.exec.storage.volumes[volume].count.record(Kind::Other, 0, 0, reply.sense.is_some());
        let transfer = Transfer { data_in: reply.data.len() as u64, data_out: 0 };
        send_reply(conn, tag, reply, transfer, format);
    }

    fn copy_query(&mut self, slot: ConnId, lun: u16, query: Query, volume: VolumeId) -> Reply {
        let format = self.exec.storage.volumes[volume].core.face.unit.sense_format();
        self.copies.of(slot).query(u64::from(lun), query, format, self.local.exec.storage.now)
    }

    /// The parameter list of a command that copies has come.
    pub(super) fn copy_collected(&mut self, conn: &mut Conn, id: OperationId, request: Request) {
        let task = &mut self.exec.operations[id];
        task.kind = Kind::Other;
        (task.work, task.command.job) = (Work::None, Job::Storage);
        let Some(slot) = task.command.owner.map(|owner| owner.slot) else { return };
        let (list, action, background) = match &request {
            Request::Extended(copy) => (copy.list, copy.action, copy.immediate),
            Request::Populate(populate) => (Some(populate.list), action::POPULATE_TOKEN, false),
            Request::WriteUsing(write) => {
                (Some(write.list), action::WRITE_USING_TOKEN, write.immediate)
            }
            Request::Query(_) | Request::Abort { .. } => return,
        };
        let volume = task.requests.volume;
        if self.exec.storage.is_crowded(volume) {
            return self.refuse(id, status::BUSY);
        }
        let task = &self.exec.operations[id];
        let block_size = self.exec.storage.volumes[task.requests.volume].core.caps.block_size;
        let unit = u64::from(task.command.lun);
        let origin = Origin { unit, list, action, background, block_size };
        let op = match self.copies.of(slot).begin(origin, self.local.exec.storage.now) {
            Ok(op) => op,
            Err(Refused::InUse(sense)) => return fail(&mut self.exec.operations[id], sense),
            Err(Refused::Full) => return self.refuse(id, status::TASK_SET_FULL),
        };
        let planned = match request {
            Request::Extended(extended) => Ok((Parts::Segments(extended), false)),
            Request::WriteUsing(write) => self.plan_write(conn, id, &write),
            Request::Populate(populate) => {
                return self.populate(conn, id, (slot, op), populate);
            }
            Request::Query(_) | Request::Abort { .. } => return,
        };
        match planned {
            Ok((parts, partial)) => {
                let world = self.world.clone();
                let copy = Copy { slot, op, parts, next: 0, world, partial };
                self.exec.operations[id].command.job = Job::Copy(Box::new(copy));
                if background {
                    self.answer_early(conn, id);
                }
            }
            Err(sense) => {
                // It never got as far as to be an operation.
                self.copies.of(slot).forget(op);
                fail(&mut self.exec.operations[id], sense);
            }
        }
    }

    /// IMMED: the command is answered, the copy goes on.
    fn answer_early(&mut self, conn: &mut Conn, id: OperationId) {
        let task = &mut self.exec.operations[id];
        let Some(Owner { slot, tag }) = task.command.owner.take() else { return };
        task.command.background = Some(slot);
        let transfer = task.command.transfer;
        conn.front.set_task(tag, None);
        respond(conn, tag, status::GOOD, &[], transfer);
    }

    /// POPULATE TOKEN: nothing is read, so it is done at once, IMMED or not.
    fn populate(
        &mut self,
        conn: &Conn,
        id: OperationId,
        (slot, op): (ConnId, u64),
        populate: Populate,
    ) {
        let volume =
            self.exec.storage.volumes[self.exec.operations[id].requests.volume].core.clone();
        let block_size = volume.caps.block_size;
        let bytes = populate.blocks() * u64::from(block_size);
        let mut secret = [0; RodToken::SECRET];
        let random = lunet_os::random::fill(&mut secret).is_ok();
        let (Some(session), true) = (&conn.front.session, random) else {
            self.copies.of(slot).forget(op);
            let sense = Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE);
            return fail(&mut self.exec.operations[id], sense);
        };
        let token = RodToken::new(&volume.face.unit, &session.scsi, bytes, &secret);
        let rod = Rod { ranges: populate.ranges, block_size };
        let inactivity = Duration::from_secs(populate.inactivity.into());
        self.core.front.tokens.add(
            token,
            (&volume, rod),
            conn.serial,
            (inactivity, self.exec.storage.now),
        );
        let operations = self.copies.of(slot);
        operations.made(op, token);
        operations.advance(op, 0, bytes, 1);
        operations.end(op, Outcome::Done, self.local.exec.storage.now);
    }

    /// What WRITE USING TOKEN has to do, and whether that is less than it asks for.
    fn plan_write(
        &self,
        conn: &Conn,
        id: OperationId,
        write: &WriteUsing,
    ) -> Result<(Parts, bool), Sense> {
        let unit =
            &self.exec.storage.volumes[self.exec.operations[id].requests.volume].core.face.unit;
        let block_size = unit.caps.block_size;
        if write.kind()? == TokenKind::Zero {
            let ranges = write.ranges.iter().map(|range| range.bytes(block_size));
            let pieces = ranges.map(|range| Piece { from: range, to: range }).collect();
            return Ok((Parts::Pieces(None, pieces), false));
        }
        let (source, rod) = self.core.front.tokens.find(&write.token, self.exec.storage.now)?;
        let served = self.world.volumes().find(|(_, volume)| Arc::ptr_eq(volume, &source));
        let (slot, _) = served.ok_or(Sense::parameter(Code::TOKEN_REVOKED, 16))?;
        // Who does not see the volume gets nothing by a token for it either.
        if !self.may_reach(conn, slot) {
            return Err(Sense::parameter(Code::TOKEN_UNKNOWN, 16));
        }
        let pieces = write.pieces(&rod, block_size)?;
        if write.delete {
            self.core.front.tokens.delete(&write.token);
        }
        let bytes: u64 = pieces.iter().map(|piece| piece.to.len).sum();
        let partial = bytes < write.blocks() * u64::from(block_size);
        Ok((Parts::Pieces(Some(slot), pieces), partial))
    }

    /// A copy is over: its outcome is kept for whoever asks.
    pub(super) fn end_copy(&mut self, id: OperationId) {
        let task = &self.local.exec.operations[id];
        let Some(copy) = copy_of(task) else { return };
        let operations = self.copies.of(copy.slot);
        if task.command.refused.is_some() {
            return operations.forget(copy.op);
        }
        let outcome = match sense(task, &self.local.exec.storage.volumes) {
            Some(sense) => Outcome::Failed(sense),
            None if copy.partial => Outcome::Partial,
            None => Outcome::Done,
        };
        operations.end(copy.op, outcome, self.local.exec.storage.now);
    }

    /// COPY OPERATION ABORT: ends a copy at once, and its command if that waits.
    fn abort_copy(&mut self, conn: &mut Conn, slot: ConnId, op: u64) {
        let is = |copy: &Copy| (copy.slot, copy.op) == (slot, op);
        let found = self.exec.operations.find(|task| copy_of(task).is_some_and(is));
        let Some(id) = found else { return };
        let command = &self.exec.operations[id].command;
        if let Some(Owner { tag, .. }) = command.owner {
            let transfer = command.transfer;
            conn.front.set_task(tag, None);
            respond(conn, tag, status::TASK_ABORTED, &[], transfer);
        }
        self.abandon(id);
    }

    /// The nexus is lost: its copies end, and what was known of them is forgotten.
    pub fn end_copies(&mut self, slot: ConnId) {
        self.abandon_background(slot, None);
        self.copies.0.remove(&slot);
    }

    /// A logical unit of a connection was reset, or is gone: as above, for that unit.
    pub fn reset_copies(&mut self, slot: ConnId, lun: u16) {
        self.abandon_background(slot, Some(lun));
        if let Some(operations) = self.copies.0.get_mut(&slot) {
            operations.reset(u64::from(lun));
        }
    }

    /// Ends copies of a connection whose commands are answered: all, or those of one unit.
    pub fn abandon_background(&mut self, slot: ConnId, lun: Option<u16>) {
        let concerned = self.exec.operations.iter().filter(|(_, task)| {
            task.command.background == Some(slot) && lun.is_none_or(|lun| lun == task.command.lun)
        });
        let concerned: Vec<OperationId> = concerned.map(|(id, _)| id).collect();
        for id in concerned {
            self.abandon(id);
        }
    }

    /// Volumes were reset: copies from or to them fail, whatever unit has their commands. What they may
    /// still write is fenced off.
    pub fn interrupt_copies(&mut self, volumes: &[VolumeId]) {
        let mut interrupted = Vec::new();
        for (id, task) in self.exec.operations.iter_mut() {
            let (Some(copy), Some(parties)) = (copy_of(task), task.requests.parties()) else {
                continue;
            };
            let hit = |slot: VolumeId| volumes.contains(&slot);
            let side = match (hit(parties.source), hit(parties.destination)) {
                (true, _) => Side::Source,
                (_, true) => Side::Destination,
                _ => continue,
            };
            let sense = copy.failure(side, status::TASK_ABORTED, None);
            fail(task, sense);
            interrupted.push(id);
        }
        for id in interrupted {
            self.exec.fence(id);
        }
    }
}
