//! The executor of a shard: the event loop, the channels to the volumes, and every operation on them.
//!
//! A protocol begins an [`Operation`] for a command and submits requests for it. A request passes the locks of its
//! volume (`queue`), is charged to an account (`memory`), and goes to the volume's channel; its answer comes back by
//! [`Executor::next_batch`]. An operation that nobody waits for any more stays until the storage has let go of it, and
//! what it may still write is fenced off.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lunet_block::{ByteRange, Completion, Error, IoDone, IoToken, Op, Request, Submit};
use lunet_ring::{Account, Buf, Payload, Ring};

use crate::channel::ChannelHandle;
use crate::count::Kind;
use crate::locks::{Locks, Waiter};
use crate::memory::SPARE;
use crate::open::OpenVolumes;
use crate::operation::{Command, Operation, OperationId, Operations, request_tag, split_tag};
use crate::queue::Held;
use crate::volume::Volume;

/// Storage that is asked for more than flushes, and has answered nothing for this long, is not waited for when the
/// server stops.
const SILENCE: Duration = Duration::from_secs(3);

/// EMFILE, for the 65,537th channel.
const EMFILE: i32 = 24;

/// The shards of a server, as far as locks must reach them. Messages may be lost: whoever waits looks by itself as well.
pub trait Shards: Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// Asks a shard to [drain](Executor::drain) a range. False if it cannot be asked now.
    fn ask(&self, shard: usize, drain: Drain) -> bool;

    /// Tells those whose turn it is.
    fn wake(&self, waiters: &[Waiter]);
}

/// A range that a shard is to hold requests back from.
#[derive(Clone)]
pub struct Drain {
    /// The slot of the volume.
    pub volume: usize,
    /// Its locks.
    pub locks: Arc<Locks>,
    /// The lock's place in the queue.
    pub id: u64,
    /// The range.
    pub range: ByteRange,
}

/// What an executor is told about its shard.
pub struct ShardConfig {
    /// Its number.
    pub shard: usize,
    /// All shards.
    pub shards: Arc<dyn Shards>,
    /// Sessions that there may be.
    pub max_sessions: usize,
}

/// Operations and volumes of one shard.
pub struct Executor<C: Command> {
    /// The event loop.
    pub ring: Ring,
    /// The volumes that are served, and those removed that still have operations.
    pub volumes: OpenVolumes<C::Face>,
    /// The operations.
    pub operations: Operations<C>,
    /// Connections on this shard: their shares of the memory depend on it.
    pub connections: usize,
    /// The time of this loop iteration, since the server's start.
    pub now: Duration,
    pub(crate) config: ShardConfig,
    /// Channels by the number in their tokens.
    pub(crate) channels: Vec<Option<ChannelHandle>>,
    /// Slots and channels of volumes that come with the next change.
    prepared: Vec<(usize, usize)>,
    /// Answers that have not been worked off.
    pub(crate) done: Vec<Completion<Payload>>,
    /// The other list, while one is worked off.
    batch: Vec<Completion<Payload>>,
    /// Answers that are told when the mark of the failed write-back is stable, or cannot be.
    pub(crate) unmarked: Vec<Completion<Payload>>,
    /// Operations that wait for buffer memory, in order.
    pub(crate) starved: VecDeque<OperationId>,
    /// How many of them have another try before memory must come back.
    pub(crate) hungry: usize,
    /// What the arena had seen of memory coming back when they were tried last.
    pub(crate) fed: u64,
    /// When is looked next which volumes hang.
    pub(crate) watch: Option<Duration>,
    /// Requests that a lock is in the way of.
    pub(crate) held: BTreeMap<Held, Request<Payload>>,
    /// How many there were.
    pub(crate) holds: u64,
    /// Operations that go on when it is their turn, or at the next look.
    pub(crate) in_queue: Vec<OperationId>,
    /// A lock waits for answers by reference that are on their way to clients.
    pub(crate) lending: bool,
    /// When was looked whose turn it is.
    pub(crate) looked: Duration,
    /// For the one comparison that must get on when memory is short.
    pub(crate) spare: Option<Buf>,
}

impl<C: Command> Executor<C> {
    /// An executor over an event loop, without volumes.
    pub fn new(ring: Ring, config: ShardConfig) -> Self {
        let spare = ring.arena().alloc(SPARE);
        Self {
            ring,
            volumes: OpenVolumes::default(),
            operations: Operations::default(),
            connections: 0,
            now: Duration::ZERO,
            config,
            channels: Vec::new(),
            prepared: Vec::new(),
            done: Vec::with_capacity(256),
            batch: Vec::with_capacity(256),
            unmarked: Vec::new(),
            starved: VecDeque::new(),
            hungry: 0,
            fed: 0,
            watch: None,
            held: BTreeMap::new(),
            holds: 0,
            in_queue: Vec::new(),
            lending: false,
            looked: Duration::ZERO,
            spare,
        }
    }

    /// Begins an operation.
    pub fn insert(&mut self, operation: Operation<C>) -> OperationId {
        self.volumes[operation.volume].operations += 1;
        self.operations.insert(operation)
    }

    /// Ends an operation, and gives up its place in the queue for a range.
    pub fn remove(&mut self, id: OperationId) -> Operation<C> {
        let operation = self.operations.remove(id);
        if let Some(claim) = &operation.claim {
            self.release(id, operation.volume, claim);
        }
        self.volumes[operation.volume].orphans -= usize::from(operation.orphan);
        self.leave_volume(operation.volume);
        operation
    }

    /// An operation works on another volume besides its own, until it [leaves](Self::leave_volume) that.
    pub fn enter_volume(&mut self, slot: usize) {
        self.volumes[slot].operations += 1;
    }

    /// An operation has nothing more to do with a volume.
    pub fn leave_volume(&mut self, slot: usize) {
        self.volumes[slot].operations -= 1;
        self.retire(slot);
    }

    /// Nobody waits for an operation any more. What it may still write is fenced off, and its requests that can be
    /// called back are. If [nothing is at work](Operation::is_over) for it, the caller removes it.
    pub fn abandon(&mut self, id: OperationId) {
        self.drop_held(id);
        if self.operations[id].is_over() {
            return;
        }
        self.orphan(id);
        self.fence(id);
        for request in self.operations[id].in_flight.clone() {
            // The volume may have got another channel since.
            let channels = self.channels.iter_mut().flatten();
            for channel in channels.filter(|channel| channel.volume == request.slot) {
                channel.cancel(request_tag(id, request.seq), &mut self.ring);
            }
        }
    }

    /// Fences off what an operation may still write.
    pub fn fence(&mut self, id: OperationId) {
        let operation = &mut self.operations[id];
        let Some(range) = operation.writes else { return };
        if operation.fenced.is_none() {
            self.volumes[operation.writes_on].core.fence.raise(range);
        }
        operation.fenced = Some(range);
    }

    /// The storage is done with an operation: others may have its blocks.
    pub fn lift_fence(&mut self, id: OperationId) {
        let operation = &mut self.operations[id];
        if let Some(range) = operation.fenced.take() {
            self.volumes[operation.writes_on].core.fence.lift(range);
        }
    }

    /// Sends a request of an operation to its volume.
    pub fn submit(
        &mut self,
        id: OperationId,
        seq: u32,
        op: Op,
        range: ByteRange,
        buf: Option<Payload>,
    ) {
        self.submit_to(self.operations[id].volume, (id, seq), op, range, buf);
    }

    /// Sends a request of an operation to the volume in this slot.
    pub fn submit_to(
        &mut self,
        slot: usize,
        (id, seq): (OperationId, u32),
        op: Op,
        range: ByteRange,
        mut buf: Option<Payload>,
    ) {
        let operation = &mut self.operations[id];
        let volume = &mut self.volumes[slot];
        if let Some(Payload::Buf(buf)) = &mut buf {
            buf.charge(operation.at_storage.as_ref().unwrap_or(&volume.account));
        }
        if let Some(request) = operation.request(seq) {
            (request.slot, request.range) = (slot, range);
        }
        let request = Request::new(request_tag(id, seq), op, range, buf);
        volume.written |= !matches!(op, Op::Read | Op::ReadMapped | Op::Flush);
        if volume.guarded {
            return self.submit_guarded(slot, request);
        }
        self.send(slot, request);
    }

    /// Hands a request to its volume's channel.
    pub(crate) fn send(&mut self, slot: usize, request: Request<Payload>) {
        let number = self.volumes[slot].channel;
        let channel = self.channels[number].as_mut().expect("a volume's channel is open");
        if !channel.waiting.is_empty() {
            return channel.waiting.push_back(request);
        }
        match channel.submit(request, &mut self.ring) {
            Submit::Queued => {
                if channel.queued == 0 {
                    channel.since = self.now;
                }
                channel.queued += 1;
                self.expect_answers();
            }
            Submit::Done(completion) => self.done.push(completion),
            Submit::Busy(request) => channel.waiting.push_back(request),
        }
    }

    /// The end of a volume's operation on the event loop.
    pub fn disk_done(&mut self, token: IoToken, buf: Option<Payload>, result: Result<usize, i32>) {
        let number = usize::from(token.channel);
        // A channel stays until its last request is answered.
        let Some(Some(channel)) = self.channels.get_mut(number) else { return };
        let done = IoDone { slot: token.slot, buf, result };
        if let Some(completion) = channel.advance(done, &mut self.ring) {
            channel.queued -= 1;
            channel.since = self.now;
            self.done.push(completion);
            self.resubmit(number);
            self.close_channel(number);
        }
    }

    /// The channel has room again.
    fn resubmit(&mut self, number: usize) {
        let Some(Some(channel)) = self.channels.get_mut(number) else { return };
        while let Some(request) = channel.waiting.pop_front() {
            let (id, _) = split_tag(request.tag);
            if self.operations.get(id).is_some_and(Operation::is_fenced) {
                self.done.push(request.complete(Err(Error::Cancelled)));
                continue;
            }
            match channel.submit(request, &mut self.ring) {
                Submit::Queued => channel.queued += 1,
                Submit::Done(completion) => self.done.push(completion),
                Submit::Busy(request) => return channel.waiting.push_front(request),
            }
        }
    }

    /// The answers that have come, in order; each is to be [taken](Self::take_answer). `None` if there are none. The
    /// list is to be [given back](Self::end_batch).
    pub fn next_batch(&mut self) -> Option<Vec<Completion<Payload>>> {
        // Two lists that change places, so that answers go out in the order of arrival.
        let others = (!self.done.is_empty()).then(|| std::mem::take(&mut self.batch));
        others.map(|others| std::mem::replace(&mut self.done, others))
    }

    /// A list of answers has been worked off.
    pub fn end_batch(&mut self, batch: Vec<Completion<Payload>>) {
        debug_assert!(batch.is_empty(), "each answer is worked off");
        self.batch = batch;
    }

    /// Takes an answer: its request is in flight no longer. `None` if it is not to be told yet.
    pub fn take_answer(
        &mut self,
        done: Completion<Payload>,
    ) -> Option<(OperationId, u32, Completion<Payload>)> {
        let (id, seq) = split_tag(done.tag);
        let operation = &mut self.operations[id];
        let at = operation.in_flight.iter().position(|request| request.seq == seq);
        let slot = at.map_or(operation.volume, |at| operation.in_flight[at].slot);
        let volume = &self.volumes[slot];
        if matches!(done.result, Err(Error::NotStable(_))) && volume.core.health.is_marking() {
            self.unmarked.push(done);
            return None;
        }
        if let Some(at) = at {
            operation.in_flight.remove(at);
        }
        if !volume.watches.is_empty() {
            self.left_storage(slot, done.tag);
        }
        Some((id, seq, done))
    }

    /// Another thread has done its work for an operation: what it touched at the storage, others may have now.
    pub fn came_back(&mut self, id: OperationId) {
        self.operations[id].away = false;
        for request in std::mem::take(&mut self.operations[id].in_flight) {
            self.left_storage(request.slot, request_tag(id, request.seq));
        }
    }

    /// Another thread does not work for an operation after all.
    pub fn stays(&mut self, id: OperationId) {
        self.operations[id].in_flight.clear();
    }

    /// True if nothing is at work any more; says of which volumes something is.
    pub fn is_done(&self) -> bool {
        for (slot, volume) in self.volumes.iter() {
            if self.operations.iter().any(|(_, operation)| operation.volume == slot) {
                let volume = &volume.core.name;
                tracing::error!(%volume, "the storage does not answer: it is not waited for any more");
            }
        }
        self.operations.is_empty()
    }

    /// True if nothing is at work but at storage that hangs, for who does not wait for that: it has answered
    /// nothing for [`SILENCE`], or for `flush_limit` if it has nothing but flushes to do, of which each may take
    /// long.
    pub fn all_hangs(&self, flush_limit: Duration) -> bool {
        let mut limits = vec![flush_limit; self.volumes.slots()];
        let others = self.operations.iter().filter(|(_, it)| it.kind != Kind::Flush);
        for request in others.flat_map(|(_, operation)| &operation.in_flight) {
            limits[request.slot] = SILENCE;
        }
        let hangs = |slot: usize| {
            let channels = self.channels.iter().flatten().filter(|it| it.volume == slot);
            let mut busy = channels.filter(|channel| channel.queued > 0);
            busy.any(|channel| self.now.saturating_sub(channel.since) >= limits[slot])
        };
        // Work of another thread stands beside requests, and is done for nobody.
        let waits = |it: &Operation<C>| it.kind != Kind::Flush && it.in_flight() == 0;
        self.operations.iter().all(|(_, operation)| {
            let age = self.now.saturating_sub(operation.started);
            waits(operation) && age >= SILENCE
                || operation.in_flight.iter().any(|request| hangs(request.slot))
        })
    }

    /// Opens channels to all that is new among the next volumes, so that [`adopt`](Self::adopt) cannot fail.
    ///
    /// # Errors
    /// A plain sentence. Nothing has changed then.
    pub fn prepare<'v>(
        &mut self,
        next: impl Iterator<Item = (usize, &'v Arc<Volume<C::Face>>)>,
    ) -> Result<(), String>
    where
        C::Face: 'v,
    {
        for (slot, volume) in next {
            if self.volumes.get(slot).is_some_and(|old| Arc::ptr_eq(&old.core, volume)) {
                continue;
            }
            let free = self.channels.iter().position(Option::is_none);
            let number = free.unwrap_or(self.channels.len());
            let opened = u16::try_from(number).map_err(|_| EMFILE);
            let opened = opened.and_then(|at| volume.backend.open_channel(at, &mut self.ring));
            let channel = match opened {
                Ok(channel) => channel,
                Err(errno) => {
                    self.cancel_prepared();
                    let error = std::io::Error::from_raw_os_error(errno);
                    let name = &volume.name;
                    return Err(format!(
                        "volume {name} cannot be opened on an event loop: {error}"
                    ));
                }
            };
            let channel = ChannelHandle::new(channel, volume.health.clone(), slot, self.now);
            if number == self.channels.len() {
                self.channels.push(Some(channel));
            } else {
                self.channels[number] = Some(channel);
            }
            self.prepared.push((slot, number));
        }
        Ok(())
    }

    /// The next volumes do not come after all.
    pub fn cancel_prepared(&mut self) {
        for (_, number) in std::mem::take(&mut self.prepared) {
            self.leave_channel(number);
        }
    }

    /// Serves the next volumes from now on, by their slots. Those that are new are [prepared](Self::prepare). Sessions
    /// have no commands any more on what was removed.
    pub fn adopt<'v>(&mut self, next: impl Fn(usize) -> Option<&'v Arc<Volume<C::Face>>>)
    where
        C::Face: 'v,
    {
        for (slot, number) in std::mem::take(&mut self.prepared) {
            let Some(core) = next(slot) else { continue };
            // The old channel may be the only one that the kernel tells of a failed write-back.
            self.flush_volume(slot);
            if let Some(old) = self.volumes.put(slot, core.clone(), number) {
                self.leave_channel(old);
            }
        }
        let there = self.volumes.iter().map(|(slot, _)| slot);
        let gone: Vec<usize> = there.filter(|slot| next(*slot).is_none()).collect();
        for slot in gone {
            self.flush_volume(slot);
            self.volumes[slot].removed = true;
            self.retire(slot);
        }
    }

    /// A channel is not used any more: it ends with its last request.
    fn leave_channel(&mut self, number: usize) {
        if let Some(channel) = &mut self.channels[number] {
            channel.leaving = true;
        }
        self.close_channel(number);
    }

    /// Lets a channel go that leaves and has nothing more to do.
    fn close_channel(&mut self, number: usize) {
        if let Some(channel) = self.channels[number].take_if(|channel| channel.is_over()) {
            channel.close(&mut self.ring);
        }
    }

    /// Lets a volume go that was removed and has no operations.
    fn retire(&mut self, slot: usize) {
        let over = |volume: &crate::OpenVolume<C::Face>| volume.removed && volume.operations == 0;
        if self.volumes.get(slot).is_some_and(over) {
            if let Some(volume) = self.volumes.take(slot) {
                self.leave_channel(volume.channel);
            }
        }
    }

    /// Flushes every volume that this shard wrote to, for nobody in particular.
    pub fn flush_written(&mut self) {
        let slots: Vec<usize> = self.volumes.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.flush_volume(slot);
        }
    }

    fn flush_volume(&mut self, slot: usize) {
        let Some(volume) = self.volumes.get_mut(slot) else { return };
        if std::mem::take(&mut volume.written) && volume.core.caps.write_cache {
            let operation = Operation::new(slot, Kind::Flush, self.now, C::internal());
            let id = self.insert(operation);
            let seq = self.operations[id].take_seq();
            self.submit(id, seq, Op::Flush, ByteRange::new(0, 0), None);
        }
    }

    /// The account of what a session has at the storage of a volume: its own, and a part of its connection's.
    pub fn storage_account(
        &self,
        session: &mut Option<Account>,
        connection: &Account,
        slot: usize,
    ) -> Account {
        let volume = &self.volumes[slot].account;
        let part = session.get_or_insert_with(|| Account::part(connection, volume));
        if part.held() == 0 {
            part.attach(connection);
        }
        part.clone()
    }
}
