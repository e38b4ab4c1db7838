//! From command to answer: decodes with the device server, moves data between connection and
//! volume in bounded pieces, and answers.
//!
//! One engine per shard. It owns the event loop, the volumes' channels and every task; connections
//! are lent to it.

mod compare;
mod intake;
mod read;
mod reserve;
mod start;
mod task;
mod write;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lunet_block::{Channel, Completion, Error, IoDone, Op, Request, Submit};
use lunet_iscsi::target::{Response, Tag, Wanted};
use lunet_ring::{Buf, Payload, Ring};
use lunet_scsi::{Sense, SenseData, Transfer, status};
use slab::Slab;

use self::task::{Job, Owner, Task};
use crate::conn::{BACKLOG_HIGH, Conn};
use crate::core::Core;
use crate::stats::{Kind, Protocol, VolumeCount};

/// A volume on this shard.
struct Volume {
    channel: Box<dyn Channel<Payload, Ring>>,
    /// Requests that the channel had no room for.
    waiting: VecDeque<Request<Payload>>,
    count: VolumeCount,
    /// Written since the last flush that this shard asked for.
    written: bool,
}

/// Tasks and volumes of one shard.
pub struct Engine {
    /// The event loop.
    pub ring: Ring,
    /// The server's shared, unchanging part.
    pub core: Arc<Core>,
    /// Which shard this is.
    number: usize,
    /// Counts of the protocol.
    pub protocol: Protocol,
    /// Connections on this shard: their shares of the memory depend on it.
    pub connections: usize,
    /// The time of this turn of the loop, since the server's start.
    pub now: Duration,
    /// Slots of connections on which tasks have made progress.
    pub touched: Vec<u32>,
    /// Flushes that failed with nobody waiting for them.
    pub failed_flushes: u64,
    volumes: Vec<Volume>,
    tasks: Slab<Task>,
    /// Answers that came on the spot; worked off at the end of each step.
    done: Vec<Completion<Payload>>,
    /// The other list, while one is worked off.
    batch: Vec<Completion<Payload>>,
    /// Tasks that wait for buffer memory, in order.
    starved: VecDeque<u32>,
    /// For the one comparison that must get on when memory is short.
    spare: Option<Buf>,
}

impl Engine {
    /// An engine over an event loop.
    ///
    /// # Errors
    /// The operating system's, if a volume cannot be opened on this loop.
    pub fn new(number: usize, mut ring: Ring, core: Arc<Core>) -> Result<Self, i32> {
        let mut volumes = Vec::with_capacity(core.volumes.len());
        for (number, entry) in core.volumes.iter().enumerate() {
            let channel = entry.volume.open_channel(number as u16, &mut ring)?;
            volumes.push(Volume {
                channel,
                waiting: VecDeque::new(),
                count: VolumeCount::default(),
                written: false,
            });
        }
        let spare = ring.arena().alloc(compare::SPARE);
        Ok(Self {
            number,
            ring,
            core,
            protocol: Protocol::default(),
            connections: 0,
            now: Duration::ZERO,
            volumes,
            tasks: Slab::with_capacity(256),
            done: Vec::with_capacity(256),
            batch: Vec::with_capacity(256),
            touched: Vec::with_capacity(256),
            failed_flushes: 0,
            starved: VecDeque::new(),
            spare,
        })
    }

    /// The counts of every volume.
    pub fn volume_counts(&self) -> Vec<VolumeCount> {
        self.volumes.iter().map(|volume| volume.count.clone()).collect()
    }

    /// Tasks at work, abandoned ones included.
    pub fn tasks_at_work(&self) -> usize {
        self.tasks.len()
    }

    /// How many bytes of arena memory the connection may hold. While half of the memory is free
    /// everybody may take plenty; of the other half each may take an even share, and no more than
    /// half of what is left, so that something is left for the next. So a client that does not
    /// read its answers, or never sends the data it announced, cannot starve the others.
    pub fn allowance(&self, conn: &Conn) -> usize {
        allowance(self.ring.arena().free_bytes(), self.ring.arena().total_bytes(), self.connections)
            .saturating_sub(conn.account.held())
    }

    /// The end of a volume's operation on the event loop.
    pub fn disk_done(
        &mut self,
        conns: &mut Slab<Conn>,
        token: lunet_block::IoToken,
        buf: Option<Payload>,
        result: Result<usize, i32>,
    ) {
        let volume = &mut self.volumes[usize::from(token.channel)];
        let done = IoDone { slot: token.slot, buf, result };
        if let Some(completion) = volume.channel.advance(done, &mut self.ring) {
            self.done.push(completion);
            self.resubmit(usize::from(token.channel));
        }
        self.settle(conns);
    }

    /// Works off every answer that has come on the spot.
    pub fn settle(&mut self, conns: &mut Slab<Conn>) {
        while !self.done.is_empty() {
            // Two lists that change places, so that answers go out in the order of arrival.
            let mut batch = std::mem::replace(&mut self.done, std::mem::take(&mut self.batch));
            for completion in batch.drain(..) {
                self.complete(conns, completion);
            }
            self.batch = batch;
        }
    }

    /// Gives tasks that wait for memory another try. Each gets one; who is still short waits on.
    pub fn feed_starved(&mut self, conns: &mut Slab<Conn>) {
        for _ in 0..self.starved.len() {
            let Some(task) = self.starved.pop_front() else { return };
            if let Some(conn) = self.conn_of(conns, task) {
                self.pump(conn, task);
            }
        }
        self.settle(conns);
    }

    /// The backlog of a connection has shrunk: its reads go on.
    pub fn unblock(&mut self, conns: &mut Slab<Conn>, slot: u32) {
        let Some(conn) = conns.get_mut(slot as usize) else { return };
        if conn.blocked.is_empty() || conn.backlog() >= BACKLOG_HIGH {
            return;
        }
        for task in std::mem::take(&mut conn.blocked) {
            if self.tasks.get(task as usize).is_some_and(|task| task.owned_by(slot)) {
                self.pump(conn, task);
            }
        }
        self.settle(conns);
    }

    /// Forgets a command: no answer will be sent. What it may still write is fenced off until the
    /// storage below has let go of it.
    pub fn abandon(&mut self, index: u32) {
        let Some(task) = self.tasks.get_mut(index as usize) else { return };
        self.protocol.aborted += 1;
        task.owner = None;
        task.soliciting = 0;
        task.drop_buffers();
        if task.inflight.is_empty() {
            self.tasks.remove(index as usize);
            return;
        }
        if let Some(range) = task.writes {
            task.fenced = Some(range);
            self.core.volumes[task.volume].fence.raise(range);
        }
        for seq in task.inflight.clone() {
            let volume = &mut self.volumes[task.volume];
            volume.channel.cancel(request_tag(index, seq), &mut self.ring);
        }
    }

    /// Flushes every volume that this shard wrote to, without a connection that waits for it.
    pub fn flush_written(&mut self) {
        for volume in 0..self.volumes.len() {
            if std::mem::take(&mut self.volumes[volume].written)
                && self.core.volumes[volume].unit.caps.write_cache
            {
                let job = Job::Bare(task::Bare::flush());
                let index = self.tasks.insert(Task::new(volume, Kind::Flush, self.now, job));
                self.pump_bare(index as u32);
            }
        }
    }

    /// Sends a request of a task to its volume.
    fn submit(
        &mut self,
        task: u32,
        seq: u32,
        op: Op,
        range: lunet_block::ByteRange,
        buf: Option<Payload>,
    ) {
        let index = self.tasks[task as usize].volume;
        let volume = &mut self.volumes[index];
        volume.written |= !matches!(op, Op::Read | Op::ReadMapped | Op::Flush);
        let request = Request::new(request_tag(task, seq), op, range, buf);
        if !volume.waiting.is_empty() {
            return volume.waiting.push_back(request);
        }
        match volume.channel.submit(request, &mut self.ring) {
            Submit::Queued => {}
            Submit::Done(completion) => self.done.push(completion),
            Submit::Busy(request) => volume.waiting.push_back(request),
        }
    }

    /// The channel has room again.
    fn resubmit(&mut self, index: usize) {
        while let Some(request) = self.volumes[index].waiting.pop_front() {
            let (task, _) = split_tag(request.tag);
            if self.tasks.get(task as usize).is_some_and(|task| task.fenced.is_some()) {
                self.done.push(request.complete(Err(Error::Cancelled)));
                continue;
            }
            let volume = &mut self.volumes[index];
            match volume.channel.submit(request, &mut self.ring) {
                Submit::Queued => {}
                Submit::Done(completion) => self.done.push(completion),
                Submit::Busy(request) => return volume.waiting.push_front(request),
            }
        }
    }

    fn conn_of<'a>(&self, conns: &'a mut Slab<Conn>, task: u32) -> Option<&'a mut Conn> {
        let owner = self.tasks.get(task as usize)?.owner?;
        conns.get_mut(owner.slot as usize)
    }

    fn complete(&mut self, conns: &mut Slab<Conn>, done: Completion<Payload>) {
        let (index, seq) = split_tag(done.tag);
        let task = &mut self.tasks[index as usize];
        task.inflight.retain(|s| *s != seq);
        match task.owner.and_then(|owner| conns.get_mut(owner.slot as usize)) {
            Some(conn) => {
                match &self.tasks[index as usize].job {
                    Job::Read(_) => self.read_done(index, seq, done),
                    Job::Write(_) => self.write_done(index, done),
                    Job::Compare(_) => self.compare_done(index, done),
                    Job::Fill(_) => self.fill_done(index, done),
                    Job::Bare(_) => self.bare_done(index, done),
                    Job::Collect(_) | Job::Settle(_) => {}
                }
                self.pump(conn, index);
            }
            None => self.orphan_done(index, done),
        }
    }

    /// A request of an abandoned task, or of one that was answered before it was done.
    fn orphan_done(&mut self, index: u32, done: Completion<Payload>) {
        let volume = self.tasks[index as usize].volume;
        if let Some(error) = done.result.err().filter(|error| *error != Error::Cancelled) {
            self.failed_flushes += u64::from(done.op == Op::Flush);
            let name = &self.core.volumes[volume].name;
            tracing::warn!(volume = %name, %error, "a request without a waiting command failed");
        }
        if let Some(Payload::Buf(buf)) = done.buf {
            self.give_back(index, buf);
        }
        let task = &self.tasks[index as usize];
        if task.inflight.is_empty() {
            if let Some(range) = task.fenced {
                self.core.volumes[volume].fence.lift(range);
            }
            let task = self.tasks.remove(index as usize);
            self.stop_unit(&task);
        }
    }

    /// A request of a task has failed: the command ends with the sense data of that.
    fn fail(&mut self, index: u32, error: Error, op: Op, range: lunet_block::ByteRange) {
        let task = &mut self.tasks[index as usize];
        let block = u64::from(self.core.volumes[task.volume].unit.caps.block_size);
        let sense = Sense::from_block(error, op);
        task.fail(match op {
            Op::Flush => sense,
            _ => sense.with_information(range.offset / block),
        });
    }

    /// Lets a task do whatever it can do now; answers if it is finished.
    fn pump(&mut self, conn: &mut Conn, index: u32) {
        let task = &self.tasks[index as usize];
        self.touched.extend(task.owner.map(|owner| owner.slot));
        let finished = match &task.job {
            Job::Read(_) => self.pump_read(conn, index),
            Job::Write(_) => self.pump_write(conn, index),
            Job::Compare(_) => self.pump_compare(conn, index),
            Job::Collect(_) => self.pump_collect(conn, index),
            Job::Fill(_) => self.pump_fill(index),
            Job::Bare(_) => self.pump_bare(index),
            Job::Settle(_) => self.pump_settle(index),
        };
        if finished {
            self.finish(conn, index);
        }
    }

    /// Answers a command whose work is over.
    fn finish(&mut self, conn: &mut Conn, index: u32) {
        let task = self.tasks.remove(index as usize);
        debug_assert!(task.idle(), "a command was answered with work in flight");
        let Some(Owner { tag, .. }) = task.owner else { return };
        conn.set_task(tag, None);
        if let Some(code) = task.refused {
            self.protocol.busy += u64::from(code == status::BUSY);
            return respond(conn, tag, code, &[], task.transfer);
        }
        self.stop_unit(&task);
        let moved =
            if task.sense.is_some() { 0 } else { task.transfer.data_in + task.transfer.data_out };
        self.count(&task, moved, task.sense.is_some());
        match &task.sense {
            Some(sense) => {
                let format = self.core.volumes[task.volume].unit.sense_format();
                respond_sense(conn, tag, &sense.encode(format), task.transfer);
            }
            None => respond(conn, tag, status::GOOD, &[], task.transfer),
        }
    }

    /// Counts an answered command.
    fn count(&mut self, task: &Task, bytes: u64, failed: bool) {
        let elapsed = self.core.started.elapsed().saturating_sub(task.started);
        let count = &mut self.volumes[task.volume].count;
        count.record(task.kind, bytes, elapsed.as_micros() as u64, failed);
    }
}

/// The share of a connection, see [`Engine::allowance`].
fn allowance(free: usize, total: usize, connections: usize) -> usize {
    let share = (total / 2 / connections.max(1)).max(task::CHUNK / 16);
    if free > total / 2 { share.max(BACKLOG_HIGH) } else { share.min(free / 2) }
}

fn respond(conn: &mut Conn, tag: Tag, code: u8, sense: &[u8], transfer: Transfer) {
    // What a failed command moved is counted by the connection.
    let wanted = (code == status::GOOD).then(|| wanted(transfer));
    let response = Response { status: code, sense, wanted };
    conn.proto.respond(tag, response, &mut conn.out);
}

fn respond_sense(conn: &mut Conn, tag: Tag, sense: &SenseData, transfer: Transfer) {
    respond(conn, tag, status::CHECK_CONDITION, sense, transfer);
}

/// What a command moves, as the protocol counts it. Longer commands than 4 GiB are refused by the
/// device server.
fn wanted(transfer: Transfer) -> Wanted {
    let clip = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    Wanted { read: clip(transfer.data_in), write: clip(transfer.data_out) }
}

const fn request_tag(task: u32, seq: u32) -> u64 {
    (task as u64) << 32 | seq as u64
}

const fn split_tag(tag: u64) -> (u32, u32) {
    ((tag >> 32) as u32, tag as u32)
}
