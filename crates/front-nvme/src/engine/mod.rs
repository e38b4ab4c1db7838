//! NVMe on one shard: from an I/O command to its answer.
//!
//! One engine per shard. It has the volumes' channels and every command; connections are lent to it.

mod answer;
mod copy;
mod data;
mod forward;
mod fused;
mod gate;
mod relay;
mod reserve;
mod start;
mod task;

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use lunet_block::{Completion, Error};
use lunet_ring::Payload;
use lunet_server::conn::ConnId;
use lunet_server::front::{Local, Occasion};
use lunet_volume::{BACKLOG_HIGH, Face, OperationId, Progress, Step, VolumeId};

pub use self::copy::{BLOCKS, RANGE_BLOCKS, RANGES};
use self::data::Host;
use self::gate::Held;
pub use self::task::NvmeCommand;
use self::task::{Job, Owner, WORKED_ON, fail};
use crate::connection::{Conn, Conns};
use crate::group::Groups;

/// NVMe on one shard: its commands, at work on the volumes. `Fc` is what protocols show of a volume.
pub struct Engine<Fc: Face> {
    /// What it shares with the shard.
    local: Local<Self>,
    /// When the storage had answered the requests that are being worked off, since the server's start. One look at
    /// the clock is for all of them.
    answered: Option<Duration>,
    /// The failover groups.
    pub groups: Groups,
    /// Somebody waits until nothing of a group is under way.
    pub draining: bool,
    /// Commands of groups that wait for a gate, or for a change of reservations, in their order.
    held: Vec<Held>,
}

impl<Fc: Face> Deref for Engine<Fc> {
    type Target = Local<Self>;

    fn deref(&self) -> &Local<Self> {
        &self.local
    }
}

impl<Fc: Face> DerefMut for Engine<Fc> {
    fn deref_mut(&mut self) -> &mut Local<Self> {
        &mut self.local
    }
}

impl<Fc: Face> Engine<Fc> {
    /// The engine of a shard without connections.
    pub fn new(local: Local<Self>) -> Self {
        let groups = Groups::default();
        Self { local, answered: None, groups, draining: false, held: Vec::new() }
    }

    /// Works off every answer of the storage that has come.
    pub fn take_answers(&mut self, conns: &mut Conns) {
        while let Some(mut batch) = self.exec.next_batch() {
            let now = lunet_os::time::since(self.core.started);
            self.answered = Some(now);
            self.exec.storage.heard = now;
            for done in batch.drain(..) {
                if let Some((id, seq, done)) = self.exec.take_answer(done) {
                    self.storage_answered(conns, (id, seq), done);
                }
            }
            self.exec.end_batch(batch);
            self.answered = None;
        }
        if self.draining {
            self.look_drained();
        }
    }

    fn storage_answered(
        &mut self,
        conns: &mut Conns,
        (id, seq): (OperationId, u32),
        mut done: Completion<Payload>,
    ) {
        let command = &self.exec.operations[id].command;
        if let Some(conn) = command.owner.and_then(|owner| conns.get_mut(owner.slot)) {
            if let Some(Payload::Buf(buf)) = &mut done.buf {
                buf.charge(&conn.account);
            }
            let step = self.exec.answered(id, seq, done);
            self.take_step(conn, id, step);
            return self.pump(conn, id);
        }
        // Of storage that fails for good the volume's health has told, once.
        let told =
            |error: &Error| matches!(error, Error::Cancelled | Error::NotStable(_) | Error::Gone);
        if let Some(error) = done.result.err().filter(|error| !told(error)) {
            let volume = self.exec.operations[id].requests.volume;
            let name = &self.exec.storage.volumes[volume].core.name;
            tracing::warn!(volume = %name, %error, "a request without a waiting command failed");
        }
        if let Some(Payload::Buf(buf)) = done.buf {
            self.exec.give_back(id, buf);
        }
        self.let_go(conns, id);
    }

    /// The storage, or another thread, may be done with an operation that nobody waits for.
    fn let_go(&mut self, conns: &mut Conns, id: OperationId) {
        let task = &mut self.exec.operations[id];
        if !task.requests.is_over() {
            return;
        }
        let shuts_down = match task.command.job {
            Job::ShutDown { connection } => Some(connection),
            _ => None,
        };
        self.exec.remove(id);
        if let Some(serial) = shuts_down {
            let found = conns.iter().find(|(_, conn)| conn.serial == serial).map(|(slot, _)| slot);
            let admin = found.and_then(|slot| conns.get_mut(slot)?.front.admin.as_mut());
            admin.into_iter().for_each(|admin| admin.flushed());
        }
    }

    /// The backlog of a connection has shrunk: its reads go on.
    pub fn unblock(&mut self, conns: &mut Conns, slot: ConnId) {
        let Some(conn) = conns.get_mut(slot) else { return };
        if conn.blocked.is_empty() || conn.backlog() >= BACKLOG_HIGH {
            return;
        }
        for id in std::mem::take(&mut conn.blocked) {
            if self.exec.operations.get(id).is_some_and(|task| task.command.owned_by(slot)) {
                self.pump(conn, id);
            }
        }
        self.take_answers(conns);
    }

    /// An operation may get on, if it has not ended because of another.
    pub fn resume(&mut self, conns: &mut Conns, id: OperationId, why: Occasion) {
        let Some(conn) = self.conn_of(conns, id) else { return };
        if why == Occasion::Memory && conn.reserve.is_none() {
            self.exec.storage.renew(&conn.account, &mut conn.reserve);
        }
        if why == Occasion::Look && self.exec.waits_for_range(id) {
            let volume = self.exec.operations[id].requests.volume;
            // Nobody waits for hours behind work on the whole of it.
            if self.exec.storage.volumes[volume].core.face.is_closed() {
                fail(&mut self.exec.operations[id], WORKED_ON);
            }
        }
        self.pump(conn, id);
    }

    /// Work of another thread that an operation waited for is done.
    pub fn returned(&mut self, conns: &mut Conns, id: OperationId, step: Step) {
        match self.conn_of(conns, id) {
            Some(conn) => {
                self.take_step(conn, id, step);
                self.pump(conn, id);
            }
            None => self.let_go(conns, id),
        }
    }

    /// A volume hangs: what is at its storage counts for the volume alone.
    pub fn storage_hangs(&mut self, conns: &Conns, volume: VolumeId) {
        let queues = conns.iter().filter_map(|(_, conn)| conn.front.queue.as_ref());
        for seen in queues.flat_map(|queue| &queue.namespaces) {
            if let Some(part) = seen.at_storage.as_ref().filter(|_| seen.volume == volume) {
                part.detach();
            }
        }
    }

    /// Forgets a command: no answer will be sent. What it may still write is fenced off until the storage has let go of
    /// it.
    pub fn abandon(&mut self, id: OperationId) {
        let Local { exec, protocol, .. } = &mut self.local;
        let Some(task) = exec.operations.get_mut(id) else { return };
        protocol.aborted += 1;
        task.command.owner = None;
        task.command.job = Job::Storage;
        self.exec.abandon(id);
    }

    fn conn_of<'a>(&self, conns: &'a mut Conns, task: OperationId) -> Option<&'a mut Conn> {
        let owner = self.exec.operations.get(task)?.command.owner?;
        conns.get_mut(owner.slot)
    }

    /// Lets an operation do whatever it can do now; answers if it is finished.
    fn pump(&mut self, conn: &mut Conn, id: OperationId) {
        let Local { exec, touched, .. } = &mut self.local;
        let task = &exec.operations[id];
        let Some(Owner { slot, tag, .. }) = task.command.owner else { return };
        touched.push(slot);
        lunet_os::met(&task.command.job);
        let progress = match &task.command.job {
            Job::Storage | Job::Collect(..) => {
                self.exec.pump(id, &mut Host { conn: &mut *conn, tag })
            }
            Job::Fused(pair) if !pair.is_complete() && !task.requests.is_failed() => {
                Progress::Waits
            }
            Job::Fused(_) => self.exec.pump(id, &mut Host { conn: &mut *conn, tag }),
            Job::Copy(_) => self.pump_copy(conn, id),
            Job::Await(awaited) if awaited.left > 0 => Progress::Waits,
            // Its end comes from the owner, unless it has failed before.
            Job::Forwarded(_) | Job::Relayed(_) => Progress::Waits,
            Job::Await(_) | Job::FlushAll(_) | Job::ShutDown { .. } => {
                self.exec.pump_alone(id, Some(conn.budget()))
            }
        };
        match progress {
            Progress::Waits => {}
            Progress::Finished => self.finish(conn, id),
            Progress::Answered => self.retire(conn, id),
        }
    }
}
