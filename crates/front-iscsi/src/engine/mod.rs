//! From command to answer: decodes with the device server, moves data between connection and
//! volume in bounded pieces, and answers.
//!
//! One engine per shard. It has the volumes' channels and every command; connections are lent to it.

mod answer;
mod away;
mod copy;
mod data;
mod forward;
mod gate;
mod look;
mod power;
mod relay;
mod reserve;
mod sanitize;
mod start;
mod task;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use lunet_block::{Completion, Error, Op};
use lunet_ring::Payload;
use lunet_scsi::Attention;
use lunet_scsi::copy::Outcome;
use lunet_volume::{BACKLOG_HIGH, OperationId, Progress, VolumeId};

use self::answer::{respond, respond_sense, wanted};
use self::copy::Copies;
use self::data::Initiator;
use self::gate::Held;
pub use self::gate::TurnedBack;
pub use self::task::ScsiCommand;
use self::task::{Job, Owner};
use crate::connection::{Conn, Conns};
use crate::group::{Going, Groups};
use crate::reservations::with_seats;
use lunet_server::conn::ConnId;
use lunet_server::front::Local;

/// iSCSI on one shard: its SCSI commands, at work on the volumes.
pub struct Engine {
    /// What it shares with the shard.
    local: Local<Self>,
    /// When the storage had answered the requests that are being worked off, since the server's start. One look at
    /// the clock is for all of them.
    answered: Option<Duration>,
    /// What became of the copies of each connection.
    copies: Copies,
    /// A task management function may wait for other shards.
    pub clearing: bool,
    /// For each function, how many shards have not done their part.
    pub asked: Vec<Arc<AtomicUsize>>,
    /// The failover groups.
    pub groups: Groups,
    /// Somebody waits until nothing of a group is under way.
    pub draining: bool,
    /// Commands of groups that wait for a change of reservations, in their order.
    pub held: Vec<Held>,
    /// Volumes of groups whose mode parameters were reset, which is not in the record yet, with what that is answered by.
    pub resets: Vec<(u64, VolumeId)>,
    /// The command that is being begun is a change, which goes its host's way.
    going: Option<Going>,
}

impl Deref for Engine {
    type Target = Local<Self>;

    fn deref(&self) -> &Local<Self> {
        &self.local
    }
}

impl DerefMut for Engine {
    fn deref_mut(&mut self) -> &mut Local<Self> {
        &mut self.local
    }
}

impl Engine {
    /// The engine of a shard without connections.
    pub fn new(local: Local<Self>) -> Self {
        let copies = Copies::default();
        Self {
            local,
            answered: None,
            copies,
            clearing: false,
            asked: Vec::new(),
            groups: Groups::default(),
            draining: false,
            held: Vec::new(),
            resets: Vec::new(),
            going: None,
        }
    }

    /// Works off every answer of the storage that has come.
    pub fn take_answers(&mut self, conns: &mut Conns) {
        while let Some(mut batch) = self.exec.next_batch() {
            let now = lunet_os::time::since(self.core.started);
            self.answered = Some(now);
            self.exec.storage.heard = now;
            for done in batch.drain(..) {
                if let Some((id, seq, done)) = self.exec.take_answer(done) {
                    self.complete(conns, (id, seq), done);
                }
            }
            self.exec.end_batch(batch);
            self.answered = None;
        }
        if self.draining {
            self.look_drained();
        }
    }

    /// The backlog of a connection has shrunk: its reads go on.
    pub fn unblock(&mut self, conns: &mut Conns, slot: ConnId) {
        let Some(conn) = conns.get_mut(slot) else { return };
        if conn.blocked.is_empty() || conn.backlog() >= BACKLOG_HIGH {
            return;
        }
        for task in std::mem::take(&mut conn.blocked) {
            if self.exec.operations.get(task).is_some_and(|task| task.command.owned_by(slot)) {
                self.pump(conn, task);
            }
        }
        self.take_answers(conns);
    }

    /// Forgets a command: no answer will be sent. What it may still write is fenced off until the
    /// storage below has let go of it.
    pub fn abandon(&mut self, id: OperationId) {
        let Local { exec, protocol, .. } = &mut self.local;
        let Some(task) = exec.operations.get_mut(id) else { return };
        protocol.aborted += 1;
        if let Job::Copy(copy) = &task.command.job {
            self.copies.of(copy.slot).end(copy.op, Outcome::Aborted, exec.storage.now);
        }
        task.command.owner = None;
        task.command.background = None;
        self.exec.abandon(id);
    }

    fn conn_of<'a>(&self, conns: &'a mut Conns, task: OperationId) -> Option<&'a mut Conn> {
        let slot = self.exec.operations.get(task)?.command.slot()?;
        conns.get_mut(slot)
    }

    fn complete(
        &mut self,
        conns: &mut Conns,
        (id, seq): (OperationId, u32),
        mut done: Completion<Payload>,
    ) {
        let command = &self.exec.operations[id].command;
        match command.slot().and_then(|slot| conns.get_mut(slot)) {
            Some(conn) => {
                if let Some(Payload::Buf(buf)) = &mut done.buf {
                    buf.charge(&conn.account);
                }
                let step = self.exec.answered(id, seq, done);
                self.take_step(conn, id, step);
                self.pump(conn, id);
            }
            None if matches!(command.job, Job::Sanitize(_)) => {
                self.exec.answered(id, seq, done);
                self.step_sanitize(conns, id);
            }
            None => self.orphan_done(id, done),
        }
    }

    /// A request of an abandoned task, or of one that was answered before it was done.
    fn orphan_done(&mut self, id: OperationId, done: Completion<Payload>) {
        let volume = self.local.exec.operations[id].requests.volume;
        // Of storage that fails for good the volume's health has told, once.
        let told =
            |error: &Error| matches!(error, Error::Cancelled | Error::NotStable(_) | Error::Gone);
        if let Some(error) = done.result.err().filter(|error| !told(error)) {
            let name = &self.local.exec.storage.volumes[volume].core.name;
            tracing::warn!(volume = %name, %error, "a request without a waiting command failed");
        }
        let failed = done.result.err().filter(|error| *error != Error::Cancelled);
        if failed.is_some() && done.op == Op::Flush {
            // A unit whose flush has failed is not stopped.
            let task = &mut self.local.exec.operations[id];
            task.fail();
            let core = &self.local.exec.storage.volumes[volume].core;
            if let Some((seat, nexus)) = task.command.deferred.take().map(|asks| *asks) {
                let attention = Attention::FlushFailed;
                with_seats(core, |seats| seats.attend((seat, &nexus), attention));
            }
        }
        if let Some(Payload::Buf(buf)) = done.buf {
            self.local.exec.give_back(id, buf);
        }
        let task = &self.local.exec.operations[id];
        if task.requests.is_over() {
            self.let_go(id);
        }
    }

    /// The storage is done with a task that nobody waits for.
    fn let_go(&mut self, id: OperationId) {
        // Before the task goes: with it goes a volume that was removed.
        self.change_power(id);
        self.exec.remove(id);
    }

    /// Lets a task do whatever it can do now; answers if it is finished.
    fn pump(&mut self, conn: &mut Conn, id: OperationId) {
        let Local { exec, touched, .. } = &mut self.local;
        let task = &exec.operations[id];
        touched.extend(task.command.owner.map(|owner| owner.slot));
        lunet_os::met(&task.command.job);
        let progress = match &task.command.job {
            Job::Storage | Job::Collect(_) => {
                let Some(Owner { tag, .. }) = task.command.owner else { return };
                let transfer = task.command.transfer;
                self.exec.pump(id, &mut Initiator { conn: &mut *conn, tag, transfer })
            }
            Job::Await(awaited) if awaited.left == 0 => Progress::Finished,
            Job::Await(_)
            | Job::Sanitize(_)
            | Job::Away(_)
            | Job::Forwarded(_)
            | Job::Relayed(_) => Progress::Waits,
            Job::Copy(_) => self.pump_copy(conn, id),
        };
        match progress {
            Progress::Waits => {}
            Progress::Finished => self.finish(conn, id),
            Progress::Answered => self.retire(conn, id),
        }
    }
}
