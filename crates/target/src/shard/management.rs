//! Task management (RFC 7143 section 11.5, SAM-5 chapter 7).
//!
//! A function that concerns this session's own commands is done on the spot. One that reaches into
//! other sessions goes to every shard, and is answered when the last of them has done its part.
//! None waits for storage: an aborted command is forgotten, and its blocks fenced off.

use std::sync::Arc;

use lunet_iscsi::pdu::{TmfFunction, TmfResponse};
use lunet_iscsi::target::Tag;
use lunet_scsi::reserve::Reservations;
use lunet_scsi::{Attention, Lun};

use super::Shard;
use crate::conn::PendingClear;
use crate::mail::{Cause, Clear, Mail, Owed};
use crate::registry::Place;

/// A task management function as it arrived.
#[derive(Clone, Copy)]
pub(super) struct Function {
    /// Its name at the connection, for the response.
    pub tag: Tag,
    /// What to do.
    pub function: TmfFunction,
    /// To which logical unit.
    pub lun: u64,
    /// To which command.
    pub referenced: Option<Tag>,
}

/// Functions of one connection that may wait for other shards at a time.
const MAX_CLEARS: usize = 8;

impl Shard {
    /// A task management function has arrived.
    pub(super) fn manage(&mut self, slot: u32, function: Function) {
        let unit = self.unit_of(slot, function.lun);
        let response = match function.function {
            TmfFunction::AbortTask => {
                if let Some(tag) = function.referenced {
                    self.abort(slot, tag);
                }
                TmfResponse::Complete
            }
            TmfFunction::AbortTaskSet => match unit {
                Some((lun, _)) => {
                    self.abort_unit(slot, lun);
                    TmfResponse::Complete
                }
                None => TmfResponse::LunDoesNotExist,
            },
            TmfFunction::ClearTaskSet | TmfFunction::LogicalUnitReset => match unit {
                Some((_, volume)) => {
                    let cause = match function.function {
                        TmfFunction::ClearTaskSet => Cause::ClearTaskSet,
                        _ => Cause::Reset,
                    };
                    return self.clear_everywhere(slot, &function, [volume].into(), cause);
                }
                None => TmfResponse::LunDoesNotExist,
            },
            TmfFunction::TargetWarmReset | TmfFunction::TargetColdReset => {
                let volumes = self.volumes_of(slot);
                let cold = function.function == TmfFunction::TargetColdReset;
                let cause = if cold { Cause::ColdReset } else { Cause::Reset };
                return self.clear_everywhere(slot, &function, volumes, cause);
            }
            _ => TmfResponse::NotSupported,
        };
        let conn = &mut self.conns[slot as usize];
        conn.proto.respond_tmf(function.tag, response, &mut conn.out);
    }

    /// Forgets one command of a connection.
    pub(super) fn abort(&mut self, slot: u32, tag: Tag) {
        let conn = &mut self.conns[slot as usize];
        conn.proto.abort(tag);
        if let Some(task) = conn.task(tag) {
            conn.set_task(tag, None);
            self.engine.abandon(task);
        }
    }

    /// Forgets every command of a connection at one logical unit. Returns how many there were.
    pub(super) fn abort_unit(&mut self, slot: u32, lun: u16) -> usize {
        let conn = &self.conns[slot as usize];
        let tasks = conn.tasks.iter().flatten();
        let tags: Vec<Tag> = tasks.filter_map(|task| self.engine.tag_at(*task, lun)).collect();
        for tag in &tags {
            self.abort(slot, *tag);
        }
        tags.len()
    }

    /// The number of a LUN of a connection, and the slot of its volume.
    fn unit_of(&self, slot: u32, lun: u64) -> Option<(u16, usize)> {
        let session = self.conns[slot as usize].session.as_ref()?;
        let Lun(lun) = Lun::decode(lun.to_be_bytes())?;
        session.luns.iter().find(|seen| seen.lun == lun).map(|seen| (lun, seen.volume))
    }

    fn volumes_of(&self, slot: u32) -> Arc<[usize]> {
        let session = self.conns[slot as usize].session.as_ref();
        session
            .map(|session| session.luns.iter().map(|lun| lun.volume).collect())
            .unwrap_or_default()
    }

    fn clear_everywhere(
        &mut self,
        slot: u32,
        function: &Function,
        volumes: Arc<[usize]>,
        cause: Cause,
    ) {
        let conn = &mut self.conns[slot as usize];
        if conn.clears.len() >= MAX_CLEARS {
            return conn.proto.respond_tmf(function.tag, TmfResponse::Rejected, &mut conn.out);
        }
        if cause != Cause::ClearTaskSet {
            for volume in volumes.iter() {
                let volume = &self.engine.volumes[*volume].core;
                volume.reservations.with(Reservations::reset);
                // Mode parameters are the default ones again (SPC-5 5.6.3).
                volume.unit.state.reset();
            }
        }
        let reply = Place { shard: self.number, connection: conn.serial };
        let ticket = conn.next_ticket;
        conn.next_ticket = ticket.wrapping_add(1);
        let clear = Clear { volumes, cause, reply, ticket };
        let mailboxes = self.core.mailboxes();
        let sent = mailboxes.iter().filter(|m| m.send(Mail::Clear(clear.clone())).is_ok()).count();
        if sent < mailboxes.len() {
            // Answers of those that got the letter find no function that waits for them.
            return conn.proto.respond_tmf(function.tag, TmfResponse::Rejected, &mut conn.out);
        }
        conn.clears.push(PendingClear { ticket, tag: function.tag, waiting: sent, cause });
    }

    /// Another shard's session, or one of this shard's, has cleared these volumes.
    pub(super) fn clear(&mut self, clear: &Clear) {
        if clear.cause != Cause::ClearTaskSet {
            self.engine.interrupt_copies(&clear.volumes);
        }
        let slots: Vec<u32> = self.conns.iter().map(|(slot, _)| slot as u32).collect();
        for slot in slots {
            let Some(session) = &self.conns[slot as usize].session else { continue };
            let own = self.conns[slot as usize].serial == clear.reply.connection;
            let concerned = session.luns.iter().enumerate();
            let concerned: Vec<(usize, u16)> = concerned
                .filter(|(_, seen)| clear.volumes.contains(&seen.volume))
                .map(|(at, seen)| (at, seen.lun))
                .collect();
            for (at, lun) in concerned {
                let aborted = self.abort_unit(slot, lun);
                if clear.cause != Cause::ClearTaskSet {
                    self.engine.reset_copies(slot, lun);
                }
                let attention = match clear.cause {
                    Cause::ClearTaskSet if own || aborted == 0 => continue,
                    Cause::ClearTaskSet => Attention::CommandsCleared,
                    Cause::Reset | Cause::ColdReset => Attention::BusDeviceReset,
                };
                if let Some(session) = &mut self.conns[slot as usize].session {
                    session.luns[at].nexus.establish(attention);
                }
            }
            if clear.cause == Cause::ColdReset && !own {
                self.drain(slot);
            }
        }
        let owed = Owed::Cleared { waiter: clear.reply.connection, ticket: clear.ticket };
        self.core.mailboxes()[clear.reply.shard].deliver(owed);
    }

    /// One more shard has done its part of a function.
    pub(super) fn cleared(&mut self, serial: u64, ticket: u32) {
        let Some(slot) = self.find(serial) else { return };
        let conn = &mut self.conns[slot as usize];
        let Some(at) = conn.clears.iter().position(|c| c.ticket == ticket) else { return };
        conn.clears[at].waiting -= 1;
        if conn.clears[at].waiting > 0 {
            return;
        }
        let pending = conn.clears.swap_remove(at);
        conn.proto.respond_tmf(pending.tag, TmfResponse::Complete, &mut conn.out);
        if pending.cause == Cause::ColdReset {
            self.drain(slot);
        }
        self.touch(slot);
    }
}
