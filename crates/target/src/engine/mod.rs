//! From command to answer: decodes with the device server, moves data between connection and
//! volume in bounded pieces, and answers.
//!
//! One engine per shard. It owns the event loop, the volumes' channels and every task; connections
//! are lent to it.

mod answer;
mod away;
mod copy;
mod data;
mod lba_status;
mod look;
mod power;
mod reserve;
mod sanitize;
mod start;
mod task;

use std::sync::Arc;

use lunet_block::{Completion, Error, IoToken, Op};
use lunet_ring::{Payload, Ring};
use lunet_scsi::Attention;
use lunet_scsi::copy::Outcome;
use lunet_volume::{BACKLOG_HIGH, Executor, OperationId, Progress, ShardConfig, Step, VolumeCount};

use self::answer::{respond, respond_sense, wanted};
use self::copy::Copies;
use self::data::Initiator;
use self::task::{Job, Owner, ScsiCommand};
use crate::conn::{Conn, ConnId, Conns};
use crate::core::Core;
use crate::stats::Protocol;
use crate::world::World;

/// The SCSI commands of one shard, at work on its volumes.
pub struct Engine {
    /// Work on the storage.
    pub exec: Executor<ScsiCommand>,
    /// What all shards share.
    pub core: Arc<Core>,
    /// What is served.
    pub world: Arc<World>,
    /// Which shard this is.
    number: usize,
    /// Counts of the protocol.
    pub protocol: Protocol,
    /// Slots of connections on which commands have made progress.
    pub touched: Vec<ConnId>,
    /// Connections that have not taken answers by reference in the time that a lock waits: they are to be closed.
    pub keep_waiting: Vec<ConnId>,
    /// What became of the copies of each connection.
    copies: Copies,
}

impl Engine {
    /// An engine over an event loop.
    ///
    /// # Errors
    /// A plain sentence, if a volume cannot be opened on this loop.
    pub fn new(number: usize, ring: Ring, core: Arc<Core>) -> Result<Self, String> {
        let world = core.world();
        let (shards, max_sessions) = (core.clone(), core.limits.max_sessions);
        let config = ShardConfig { shard: number, shards, max_sessions };
        let mut engine = Self {
            exec: Executor::new(ring, config),
            number,
            core,
            world: Arc::default(),
            protocol: Protocol::default(),
            touched: Vec::with_capacity(256),
            keep_waiting: Vec::new(),
            copies: Copies::default(),
        };
        engine.prepare(&world)?;
        engine.adopt(world);
        Ok(engine)
    }

    /// Opens channels to all that is new in the next world, so that [`adopt`](Self::adopt) cannot fail.
    ///
    /// # Errors
    /// A plain sentence. Nothing has changed then.
    pub fn prepare(&mut self, next: &World) -> Result<(), String> {
        self.exec.prepare(next.volumes())
    }

    /// Works by the next world from now on. Its new volumes are [prepared](Self::prepare). Sessions have
    /// no commands any more on what was removed.
    pub fn adopt(&mut self, next: Arc<World>) {
        self.exec.adopt(|slot| next.volume(slot));
        self.world = next;
    }

    /// The counts of every volume in the world, by name.
    pub fn volume_counts(&self) -> Vec<(String, VolumeCount)> {
        let operations = &self.exec.operations;
        let served = self.exec.storage.volumes.iter().filter(|(_, volume)| !volume.removed);
        let counts = served.map(|(slot, volume)| {
            let in_flight =
                operations.iter().filter(|(_, task)| task.requests.volume == slot).count();
            (volume.core.name.clone(), volume.count.with(in_flight))
        });
        counts.collect()
    }

    /// The end of a volume's operation on the event loop.
    pub fn disk_done(
        &mut self,
        conns: &mut Conns,
        token: IoToken,
        buf: Option<Payload>,
        result: Result<usize, i32>,
    ) {
        self.exec.disk_done(token, buf, result);
        self.settle(conns);
    }

    /// Works off every answer of the storage that has come.
    pub fn settle(&mut self, conns: &mut Conns) {
        while let Some(mut batch) = self.exec.next_batch() {
            for done in batch.drain(..) {
                if let Some((index, seq, done)) = self.exec.take_answer(done) {
                    self.complete(conns, (index, seq), done);
                }
            }
            self.exec.end_batch(batch);
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
        self.settle(conns);
    }

    /// Forgets a command: no answer will be sent. What it may still write is fenced off until the
    /// storage below has let go of it.
    pub fn abandon(&mut self, index: OperationId) {
        let Some(task) = self.exec.operations.get_mut(index) else { return };
        self.protocol.aborted += 1;
        if let Some(copy) = &task.command.copy {
            self.copies.of(copy.slot).end(copy.op, Outcome::Aborted, self.exec.storage.now);
        }
        task.command.owner = None;
        task.command.background = None;
        self.exec.abandon(index);
        if self.exec.operations[index].requests.is_over() {
            self.remove_task(index);
        }
    }

    /// A command has ended.
    fn remove_task(&mut self, index: OperationId) -> ScsiCommand {
        let command = self.exec.remove(index);
        for slot in command.copy.iter().flat_map(|copy| copy.held()) {
            self.exec.leave_volume(slot);
        }
        command
    }

    fn conn_of<'a>(&self, conns: &'a mut Conns, task: OperationId) -> Option<&'a mut Conn> {
        let slot = self.exec.operations.get(task)?.command.slot()?;
        conns.get_mut(slot)
    }

    fn complete(
        &mut self,
        conns: &mut Conns,
        (index, seq): (OperationId, u32),
        mut done: Completion<Payload>,
    ) {
        let task = &self.exec.operations[index];
        if matches!(task.command.job, Job::Sanitize(_)) {
            return self.sanitize_done(conns, index, done);
        }
        match task.command.slot().and_then(|slot| conns.get_mut(slot)) {
            Some(conn) => {
                if let Some(Payload::Buf(buf)) = &mut done.buf {
                    buf.charge(&conn.account);
                }
                match self.exec.answered(index, seq, done) {
                    Step::Answer(done) if self.exec.operations[index].command.copy.is_some() => {
                        self.copy_done(index, done);
                    }
                    Step::Answer(_) | Step::Done | Step::Collected(..) => {}
                }
                self.pump(conn, index);
            }
            None => self.orphan_done(index, done),
        }
    }

    /// A request of an abandoned task, or of one that was answered before it was done.
    fn orphan_done(&mut self, index: OperationId, done: Completion<Payload>) {
        let volume = self.exec.operations[index].requests.volume;
        // Of storage that fails for good the volume's health has told, once.
        let told =
            |error: &Error| matches!(error, Error::Cancelled | Error::NotStable(_) | Error::Gone);
        if let Some(error) = done.result.err().filter(|error| !told(error)) {
            let name = &self.exec.storage.volumes[volume].core.name;
            tracing::warn!(volume = %name, %error, "a request without a waiting command failed");
        }
        let failed = done.result.err().filter(|error| *error != Error::Cancelled);
        if failed.is_some() && done.op == Op::Flush {
            // A unit whose flush has failed is not stopped.
            let task = &mut self.exec.operations[index];
            task.fail();
            let core = &self.exec.storage.volumes[volume].core;
            if let Some((seat, nexus)) = task.command.deferred.take().map(|asks| *asks) {
                let attention = Attention::FlushFailed;
                core.face.reservations.with(|state| state.attend((seat, &nexus), attention));
            }
        }
        if let Some(Payload::Buf(buf)) = done.buf {
            self.exec.give_back(index, buf);
        }
        let task = &self.exec.operations[index];
        if task.requests.is_over() {
            self.let_go(index);
        }
    }

    /// The storage is done with a task that nobody waits for.
    fn let_go(&mut self, index: OperationId) {
        self.exec.lift_fence(index);
        // Before the task goes: with it goes a volume that was removed.
        self.change_power(index);
        self.remove_task(index);
    }

    /// Lets a task do whatever it can do now; answers if it is finished.
    fn pump(&mut self, conn: &mut Conn, index: OperationId) {
        let task = &self.exec.operations[index];
        self.touched.extend(task.command.owner.map(|owner| owner.slot));
        let progress = match &task.command.job {
            Job::Storage | Job::Collect(_) => {
                let Some(Owner { tag, .. }) = task.command.owner else { return };
                let transfer = task.command.transfer;
                self.exec.pump(index, &mut Initiator { conn: &mut *conn, tag, transfer })
            }
            Job::Settle(settle) if settle.left == 0 => Progress::Finished,
            Job::Settle(_) | Job::Sanitize(_) | Job::Away(_) => Progress::Waits,
            Job::Copy => Progress::finished_if(self.pump_copy(conn, index)),
        };
        match progress {
            Progress::Waits => {}
            Progress::Finished => self.finish(conn, index),
            Progress::Answered => self.retire(conn, index),
        }
    }
}
