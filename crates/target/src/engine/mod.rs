//! From command to answer: decodes with the device server, moves data between connection and
//! volume in bounded pieces, and answers.
//!
//! One engine per shard. It owns the event loop, the volumes' channels and every task; connections
//! are lent to it.

mod answer;
mod away;
mod compare;
mod copy;
mod exclusive;
mod intake;
mod lba_status;
mod line;
mod memory;
mod power;
mod read;
mod requests;
mod reserve;
mod sanitize;
mod start;
mod task;
mod volumes;
mod write;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lunet_block::{Completion, Error, IoDone, Op, Request};
use lunet_ring::{Buf, Payload, Ring};
use lunet_scsi::copy::Outcome;
use lunet_scsi::{Attention, Sense};
use slab::Slab;

use self::answer::{respond, respond_sense, wanted};
use self::copy::Copies;
use self::line::Held;
use self::requests::{request_tag, split_tag};
use self::task::{Job, Task};
pub use self::volumes::Volumes;
use self::volumes::Way;
use crate::conn::{BACKLOG_HIGH, Conn};
use crate::core::Core;
use crate::stats::{Kind, Protocol, VolumeCount};
use crate::world::World;

/// Storage that is asked for more than flushes, and has answered nothing for this long, is not waited for when the
/// server stops.
const SILENCE: Duration = Duration::from_secs(3);

/// Tasks and volumes of one shard.
pub struct Engine {
    /// The event loop.
    pub ring: Ring,
    /// The server's shared, unchanging part.
    pub core: Arc<Core>,
    /// What is served.
    pub world: Arc<World>,
    /// The volumes of the world, and those removed that still have tasks.
    pub volumes: Volumes,
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
    /// Channels by the number in their tokens.
    ways: Vec<Option<Way>>,
    /// Slots and channels of volumes that come with the next world.
    prepared: Vec<(usize, usize)>,
    tasks: Slab<Task>,
    /// Answers that came on the spot; worked off at the end of each step.
    done: Vec<Completion<Payload>>,
    /// The other list, while one is worked off.
    batch: Vec<Completion<Payload>>,
    /// Tasks that wait for buffer memory, in order.
    starved: VecDeque<u32>,
    /// How many of them have another try before memory must come back.
    hungry: usize,
    /// What the arena had seen of memory coming back when they were tried last.
    fed: u64,
    /// When is looked next which volumes hang.
    watch: Option<Duration>,
    /// Requests that a lock is in the way of.
    held: BTreeMap<Held, Request<Payload>>,
    /// How many there were.
    holds: u64,
    /// Tasks that go on when it is their turn, or at the next look.
    in_line: Vec<u32>,
    /// Answers of the storage that are told when the mark of the failed write-back is stable, or cannot be.
    unmarked: Vec<Completion<Payload>>,
    /// A lock waits for answers by reference that are on their way to initiators.
    lending: bool,
    /// Connections that have not taken such answers in the time that a lock waits: they are to be closed.
    pub keep_waiting: Vec<u32>,
    /// When was looked whose turn it is.
    looked: Duration,
    /// What became of the copies of each connection.
    copies: Copies,
    /// For the one comparison that must get on when memory is short.
    spare: Option<Buf>,
}

impl Engine {
    /// An engine over an event loop.
    ///
    /// # Errors
    /// A plain sentence, if a volume cannot be opened on this loop.
    pub fn new(number: usize, ring: Ring, core: Arc<Core>) -> Result<Self, String> {
        let spare = ring.arena().alloc(compare::SPARE);
        let world = core.world();
        let mut engine = Self {
            number,
            ring,
            core,
            world: Arc::default(),
            volumes: Volumes::default(),
            ways: Vec::new(),
            prepared: Vec::new(),
            protocol: Protocol::default(),
            connections: 0,
            now: Duration::ZERO,
            tasks: Slab::with_capacity(256),
            done: Vec::with_capacity(256),
            batch: Vec::with_capacity(256),
            touched: Vec::with_capacity(256),
            starved: VecDeque::new(),
            hungry: 0,
            fed: 0,
            watch: None,
            held: BTreeMap::new(),
            holds: 0,
            in_line: Vec::new(),
            unmarked: Vec::new(),
            lending: false,
            keep_waiting: Vec::new(),
            looked: Duration::ZERO,
            copies: Copies::default(),
            spare,
        };
        engine.prepare(&world)?;
        engine.adopt(world);
        Ok(engine)
    }

    /// The counts of every volume in the world, by name.
    pub fn volume_counts(&self) -> Vec<(String, VolumeCount)> {
        let served = self.volumes.iter().filter(|(slot, _)| self.world.volume(*slot).is_some());
        let counts = served.map(|(slot, volume)| {
            let in_flight = self.tasks.iter().filter(|(_, task)| task.volume == slot).count();
            (volume.core.name.clone(), volume.count.with(in_flight))
        });
        counts.collect()
    }

    /// Tasks at work, abandoned ones included.
    pub fn tasks_at_work(&self) -> usize {
        self.tasks.len()
    }

    /// True if nothing is at work any more; says of which volumes something is.
    pub fn is_done(&self) -> bool {
        for (slot, volume) in self.volumes.iter() {
            if self.tasks.iter().any(|(_, task)| task.volume == slot) {
                let volume = &volume.core.name;
                tracing::error!(%volume, "the storage does not answer: it is not waited for any more");
            }
        }
        self.tasks.is_empty()
    }

    /// True if nothing is at work but at storage that hangs, for who does not wait for that: it has answered
    /// nothing for [`SILENCE`], or for `flush_limit` if it has nothing but flushes to do, of which each may take
    /// long.
    pub fn all_hangs(&self, flush_limit: Duration) -> bool {
        let mut limits = vec![flush_limit; self.volumes.slots()];
        for (_, task) in self.tasks.iter().filter(|(_, task)| task.kind != Kind::Flush) {
            for flight in &task.inflight {
                limits[flight.slot] = SILENCE;
            }
        }
        let hangs = |slot: usize| {
            let ways = self.ways.iter().flatten().filter(|way| way.volume == slot);
            ways.filter(|way| way.queued > 0)
                .any(|way| self.now.saturating_sub(way.since) >= limits[slot])
        };
        // Work of another thread stands beside requests, and is done for nobody.
        let waits = |task: &Task| task.kind != Kind::Flush && task.inflight.is_empty();
        self.tasks.iter().all(|(_, task)| {
            let age = self.now.saturating_sub(task.started);
            waits(task) && age >= SILENCE || task.inflight.iter().any(|flight| hangs(flight.slot))
        })
    }

    /// The end of a volume's operation on the event loop.
    pub fn disk_done(
        &mut self,
        conns: &mut Slab<Conn>,
        token: lunet_block::IoToken,
        buf: Option<Payload>,
        result: Result<usize, i32>,
    ) {
        let number = usize::from(token.channel);
        // A channel stays until its last request is answered.
        let Some(Some(way)) = self.ways.get_mut(number) else { return };
        let done = IoDone { slot: token.slot, buf, result };
        if let Some(completion) = way.advance(done, &mut self.ring) {
            way.queued -= 1;
            way.since = self.now;
            self.done.push(completion);
            self.resubmit(number);
            self.close_way(number);
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
        if let Some(copy) = &task.copy {
            self.copies.of(copy.slot).end(copy.op, Outcome::Aborted, self.now);
        }
        task.owner = None;
        task.background = None;
        task.soliciting = 0;
        task.drop_buffers();
        self.drop_held(index);
        let task = &mut self.tasks[index as usize];
        if task.inflight.is_empty() && !task.is_away() {
            self.remove_task(index);
            return;
        }
        self.orphan(index);
        let task = &mut self.tasks[index as usize];
        if let Some(range) = task.writes {
            if task.fenced.is_none() {
                self.volumes[task.writes_on].core.fence.raise(range);
            }
            task.fenced = Some(range);
        }
        for flight in task.inflight.clone() {
            // The volume may have got another channel since.
            for way in self.ways.iter_mut().flatten().filter(|way| task.uses(way.volume)) {
                way.cancel(request_tag(index, flight.seq), &mut self.ring);
            }
        }
    }

    fn conn_of<'a>(&self, conns: &'a mut Slab<Conn>, task: u32) -> Option<&'a mut Conn> {
        let slot = self.tasks.get(task as usize)?.slot()?;
        conns.get_mut(slot as usize)
    }

    fn complete(&mut self, conns: &mut Slab<Conn>, mut done: Completion<Payload>) {
        let (index, seq) = split_tag(done.tag);
        let task = &mut self.tasks[index as usize];
        let own = task.volume;
        let slot = task.flight(seq).map_or(own, |flight| flight.slot);
        let failed = matches!(done.result, Err(Error::NotStable(_)));
        if failed && self.volumes[slot].core.health.is_marking() {
            return self.unmarked.push(done);
        }
        task.inflight.retain(|flight| flight.seq != seq);
        if !self.volumes[slot].watches.is_empty() {
            self.left_storage(slot, done.tag);
        }
        let task = &self.tasks[index as usize];
        if matches!(task.job, Job::Sanitize(_)) {
            return self.sanitize_done(conns, index, done);
        }
        match task.slot().and_then(|slot| conns.get_mut(slot as usize)) {
            Some(conn) => {
                if let Some(Payload::Buf(buf)) = &mut done.buf {
                    buf.charge(&conn.account);
                }
                match &self.tasks[index as usize].job {
                    Job::Read(_) => self.read_done(index, seq, done),
                    Job::Write(_) => self.write_done(index, done),
                    Job::Compare(_) => self.compare_done(index, done),
                    Job::Fill(_) => self.fill_done(index, done),
                    Job::Bare(_) => self.bare_done(index, done),
                    Job::Copy => self.copy_done(index, done),
                    Job::Exclusive(_) => self.exclusive_done(index, done),
                    Job::Collect(_) | Job::Sanitize(_) | Job::Settle(_) | Job::Away(_) => {}
                }
                self.pump(conn, index);
            }
            None => self.orphan_done(index, done),
        }
    }

    /// A request of an abandoned task, or of one that was answered before it was done.
    fn orphan_done(&mut self, index: u32, done: Completion<Payload>) {
        let volume = self.tasks[index as usize].volume;
        // Of storage that fails for good the volume's health has told, once.
        let told =
            |error: &Error| matches!(error, Error::Cancelled | Error::NotStable(_) | Error::Gone);
        if let Some(error) = done.result.err().filter(|error| !told(error)) {
            let name = &self.volumes[volume].core.name;
            tracing::warn!(volume = %name, %error, "a request without a waiting command failed");
        }
        let failed = done.result.err().filter(|error| *error != Error::Cancelled);
        if let Some(error) = failed.filter(|_| done.op == Op::Flush) {
            // A unit whose flush has failed is not stopped.
            let task = &mut self.tasks[index as usize];
            task.fail(Sense::from_block(error, done.op));
            let core = &self.volumes[volume].core;
            if let Some((seat, nexus)) = task.deferred.take() {
                let attention = Attention::FlushFailed;
                core.face.reservations.with(|state| state.attend((seat, &nexus), attention));
            }
        }
        if let Some(Payload::Buf(buf)) = done.buf {
            self.give_back(index, buf);
        }
        let task = &self.tasks[index as usize];
        if task.inflight.is_empty() && !task.is_away() {
            self.let_go(index);
        }
    }

    /// The storage is done with a task that nobody waits for.
    fn let_go(&mut self, index: u32) {
        let task = &self.tasks[index as usize];
        if let Some(range) = task.fenced {
            self.volumes[task.writes_on].core.fence.lift(range);
        }
        // Before the task goes: with it goes a volume that was removed.
        self.change_power(index);
        self.remove_task(index);
    }

    /// A request of a task has failed: the command ends with the sense data of that.
    fn fail(&mut self, index: u32, error: Error, op: Op, range: lunet_block::ByteRange) {
        let task = &mut self.tasks[index as usize];
        let block = u64::from(self.volumes[task.volume].core.caps.block_size);
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
            Job::Exclusive(_) => self.pump_exclusive(conn, index),
            Job::Settle(_) => self.pump_settle(index),
            Job::Sanitize(_) | Job::Away(_) => false,
            Job::Copy => self.pump_copy(conn, index),
        };
        if finished && !self.writes_through(index) {
            self.finish(conn, index);
        }
    }

    /// Where the write cache is switched off, a flush follows whatever has written without FUA. True
    /// if one is under way.
    fn writes_through(&mut self, index: u32) -> bool {
        let task = &mut self.tasks[index as usize];
        let over = task.sense.is_some() || task.refused.is_some();
        // A copy has seen to it by itself.
        if task.writes.is_none() || task.stable || over {
            return false;
        }
        task.stable = true;
        if !self.volumes[task.volume].core.face.unit.write_through() {
            return false;
        }
        task.job = Job::Bare(task::Bare::flush());
        !self.pump_bare(index)
    }
}
