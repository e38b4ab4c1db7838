//! The executor of a shard: every operation on its volumes, and the storage that it works on.
//!
//! A protocol begins an [`Operation`] for a command and gives it its [`Work`]; [`Executor::pump`] lets that get on with
//! the client. The answers of the storage come back by [`Executor::next_batch`] and go to [`Executor::take_answer`].
//! An operation that nobody waits for any more stays until the storage has let go of it, and
//! what it may still write is fenced off.

use std::sync::Arc;
use std::time::Duration;

use lunet_block::{ByteRange, Completion, Error, IoDone, IoToken, Op, Submit};
use lunet_ring::{Account, Buf, Payload, Ring};

use crate::channel::ChannelHandle;
use crate::count::Kind;
use crate::open::VolumeId;
use crate::operation::{Command, Face, Operation, OperationId, Operations, request_tag, split_tag};
use crate::storage::{ShardConfig, Storage};
use crate::volume::Volume;
use crate::work::{Client, Piece, Plain, Progress, Work};

/// Storage that is asked for more than flushes, and has answered nothing for this long, is not waited for when the
/// server stops.
const SILENCE: Duration = Duration::from_secs(3);

/// EMFILE, for the 65,537th channel.
const EMFILE: i32 = 24;

/// Operations of one shard.
pub struct Executor<C: Command> {
    /// What they work on.
    pub storage: Storage<C::Face>,
    /// The operations.
    pub operations: Operations<C>,
    /// Slots and channels of volumes that come with the next change.
    prepared: Vec<(VolumeId, usize)>,
    /// The other list of answers, while one is worked off.
    batch: Vec<Completion<Payload>>,
    /// Answers that are told when the mark of the failed write-back is stable, or cannot be.
    pub(crate) unmarked: Vec<Completion<Payload>>,
    /// How many operations that wait for memory have another try before memory must come back.
    pub(crate) hungry: usize,
    /// What the arena had seen of memory coming back when they were tried last.
    pub(crate) fed: u64,
    /// When was looked whose turn it is.
    pub(crate) looked: Duration,
}

/// What an operation has made of an answer, or of data.
pub enum Step {
    /// It can get on: it is to be [pumped](Executor::pump).
    Done,
    /// Its protocol knows what to do with it.
    Answer(Completion<Payload>),
    /// All data that the protocol [needs](Work::Collect) is here, with its length.
    Collected(Buf, usize),
}

impl<C: Command> Executor<C> {
    /// An executor over an event loop, without volumes.
    pub fn new(ring: Ring, config: ShardConfig) -> Self {
        Self {
            storage: Storage::new(ring, config),
            operations: Operations::default(),
            prepared: Vec::new(),
            batch: Vec::with_capacity(256),
            unmarked: Vec::new(),
            hungry: 0,
            fed: 0,
            looked: Duration::ZERO,
        }
    }

    /// Lets an operation do what it can do now. Where the write cache of its volume is switched off, a flush follows
    /// whatever has written without FUA.
    pub fn pump(&mut self, id: OperationId, client: &mut impl Client) -> Progress {
        loop {
            let Operation { requests, work, .. } = &mut self.operations[id];
            let storage = &mut self.storage;
            let progress = match work {
                Work::Read(read) => return read.pump(requests, storage, client),
                Work::Write(write) => write.pump(requests, storage, client),
                Work::Compare(compare) => compare.pump(requests, storage, client),
                Work::Collect(intake) => intake.pump(requests, storage, client),
                Work::Fill(fill) => fill.pump(requests, storage),
                Work::Plain(plain) => plain.pump(requests, storage),
                Work::Exclusive(exclusive) => exclusive.pump(requests, storage, client),
                Work::None => Progress::finished_if(requests.in_flight() == 0),
            };
            let on = match progress {
                Progress::Finished => self.writes_through(id),
                // A range of its own that this shard had nothing in.
                Progress::Waits => !self.storage.drains.is_empty() && self.drain_own(),
                Progress::Answered => false,
            };
            if !on {
                return progress;
            }
        }
    }

    /// Lets an operation without a client get on that needs none.
    pub fn pump_alone(&mut self, id: OperationId) -> Progress {
        let Operation { requests, work, .. } = &mut self.operations[id];
        match work {
            Work::Plain(plain) => plain.pump(requests, &mut self.storage),
            _ => Progress::finished_if(requests.in_flight() == 0),
        }
    }

    /// True if what an operation has written must be made stable, which is its work now.
    fn writes_through(&mut self, id: OperationId) -> bool {
        let Operation { requests, work, .. } = &mut self.operations[id];
        if requests.writes.is_none() || requests.stable || requests.is_failed() {
            return false;
        }
        requests.stable = true;
        let face = &self.storage.volumes[requests.volume].core.face;
        if face.writes_through() {
            *work = Work::Plain(Plain::flush());
        }
        face.writes_through()
    }

    /// Data that an operation has asked for has come: `len` bytes from `offset` on are in `buf`.
    pub fn data_arrived(&mut self, id: OperationId, offset: u64, len: usize, buf: Buf) -> Step {
        let Operation { requests, work, .. } = &mut self.operations[id];
        requests.soliciting -= 1;
        let intake = match work {
            Work::Write(write) => &mut write.intake,
            Work::Compare(compare) => &mut compare.intake,
            Work::Collect(intake) => intake,
            Work::Exclusive(exclusive) => &mut exclusive.intake,
            Work::None | Work::Read(_) | Work::Fill(_) | Work::Plain(_) => return Step::Done,
        };
        let piece = intake.arrived(offset, len, buf);
        self.take_piece(id, piece)
    }

    /// Whole blocks have come: they go where the operation wants them.
    pub fn take_piece(&mut self, id: OperationId, piece: Piece) -> Step {
        let Operation { requests, work, .. } = &mut self.operations[id];
        if requests.is_failed() {
            return Step::Done;
        }
        match work {
            Work::Write(write) => write.piece(requests, &mut self.storage, piece),
            Work::Compare(compare) => compare.piece(requests, &mut self.storage, piece),
            Work::Exclusive(exclusive) => exclusive.piece(piece),
            Work::Collect(_) => return Step::Collected(piece.buf, piece.len),
            Work::None | Work::Read(_) | Work::Fill(_) | Work::Plain(_) => {}
        }
        Step::Done
    }

    /// Takes an answer in that has been [taken](Self::take_answer), for an operation that somebody waits for.
    pub fn answered(&mut self, id: OperationId, seq: u32, done: Completion<Payload>) -> Step {
        let Operation { requests, work, .. } = &mut self.operations[id];
        let result = match work {
            Work::Read(read) => read.done(seq, done),
            Work::Write(write) => write.done(&done),
            Work::Compare(compare) => compare.done(requests, &mut self.storage, done),
            Work::Fill(fill) => fill.done(done),
            Work::Plain(_) => Plain::done(&done),
            Work::Exclusive(exclusive) => exclusive.done(done),
            Work::None | Work::Collect(_) => return Step::Answer(done),
        };
        if let Err(failure) = result {
            requests.fail(failure);
        }
        Step::Done
    }

    /// Begins an operation.
    // Inlined, as `remove`: an operation is large, and is built and taken apart where it lies.
    #[inline]
    pub fn insert(&mut self, operation: Operation<C>) -> OperationId {
        self.storage.volumes[operation.requests.volume].operations += 1;
        self.operations.insert(operation)
    }

    /// Ends an operation, and gives up its place in the queue for a range. What is left is the command.
    #[inline]
    pub fn remove(&mut self, id: OperationId) -> C {
        let requests = &mut self.operations[id].requests;
        let (volume, claim, orphan) = (requests.volume, requests.claim.take(), requests.orphan);
        if let Some(claim) = &claim {
            self.storage.release(id, volume, claim);
        }
        let command = self.operations.remove(id);
        self.storage.volumes[volume].orphans -= usize::from(orphan);
        self.leave_volume(volume);
        command
    }

    /// An operation works on another volume besides its own, until it [leaves](Self::leave_volume) that.
    pub fn enter_volume(&mut self, slot: VolumeId) {
        self.storage.volumes[slot].operations += 1;
    }

    /// An operation has nothing more to do with a volume.
    pub fn leave_volume(&mut self, slot: VolumeId) {
        self.storage.volumes[slot].operations -= 1;
        self.retire(slot);
    }

    /// Nobody waits for an operation any more. What it may still write is fenced off, and its requests that can be
    /// called back are. If [nothing is at work](crate::Requests::is_over) for it, the caller removes it.
    pub fn abandon(&mut self, id: OperationId) {
        let operation = &mut self.operations[id];
        operation.requests.expect_nothing();
        operation.work.drop_buffers();
        self.drop_held(id);
        if self.operations[id].requests.is_over() {
            return;
        }
        self.orphan(id);
        self.fence(id);
        for request in self.operations[id].requests.in_flight.clone() {
            // The volume may have got another channel since.
            let channels = self.storage.channels.iter_mut().flatten();
            for channel in channels.filter(|channel| channel.volume == request.slot) {
                channel.cancel(request_tag(id, request.seq), &mut self.storage.ring);
            }
        }
    }

    /// Fences off what an operation may still write.
    pub fn fence(&mut self, id: OperationId) {
        let operation = &mut self.operations[id];
        let Some(range) = operation.requests.writes else { return };
        if operation.requests.fenced.is_none() {
            self.storage.volumes[operation.requests.writes_on].core.fence.raise(range);
        }
        operation.requests.fenced = Some(range);
    }

    /// The storage is done with an operation: others may have its blocks.
    pub fn lift_fence(&mut self, id: OperationId) {
        let operation = &mut self.operations[id];
        if let Some(range) = operation.requests.fenced.take() {
            self.storage.volumes[operation.requests.writes_on].core.fence.lift(range);
        }
    }

    /// Sends a request of an operation to its volume.
    pub fn submit(&mut self, id: OperationId, op: Op, range: ByteRange, buf: Option<Payload>) {
        self.storage.submit(&mut self.operations[id].requests, op, range, buf);
    }

    /// Sends a request of an operation to the volume in this slot.
    pub fn submit_to(
        &mut self,
        slot: VolumeId,
        id: OperationId,
        op: Op,
        range: ByteRange,
        buf: Option<Payload>,
    ) {
        self.storage.submit_to(slot, &mut self.operations[id].requests, op, range, buf);
    }

    /// An operation waits for memory.
    pub fn starve(&mut self, id: OperationId) {
        self.storage.starve(&mut self.operations[id].requests);
    }

    /// A buffer that an operation does not need any more.
    pub fn give_back(&mut self, id: OperationId, buf: Buf) {
        self.storage.give_back(&mut self.operations[id].requests, buf);
    }

    /// The end of a volume's operation on the event loop.
    pub fn disk_done(&mut self, token: IoToken, buf: Option<Payload>, result: Result<usize, i32>) {
        let number = usize::from(token.channel);
        // A channel stays until its last request is answered.
        let Some(Some(channel)) = self.storage.channels.get_mut(number) else { return };
        let done = IoDone { slot: token.slot, buf, result };
        if let Some(completion) = channel.advance(done, &mut self.storage.ring) {
            channel.queued -= 1;
            channel.since = self.storage.now;
            self.storage.done.push(completion);
            self.resubmit(number);
            self.close_channel(number);
        }
    }

    /// The channel has room again.
    fn resubmit(&mut self, number: usize) {
        let Some(Some(channel)) = self.storage.channels.get_mut(number) else { return };
        while let Some(request) = channel.waiting.pop_front() {
            let (id, _) = split_tag(request.tag);
            if self.operations.get(id).is_some_and(|it| it.requests.is_fenced()) {
                self.storage.done.push(request.complete(Err(Error::Cancelled)));
                continue;
            }
            match channel.submit(request, &mut self.storage.ring) {
                Submit::Queued => channel.queued += 1,
                Submit::Done(completion) => self.storage.done.push(completion),
                Submit::Busy(request) => return channel.waiting.push_front(request),
            }
        }
    }

    /// The answers that have come, in order; each is to be [taken](Self::take_answer). `None` if there are none. The
    /// list is to be [given back](Self::end_batch).
    pub fn next_batch(&mut self) -> Option<Vec<Completion<Payload>>> {
        // Two lists that change places, so that answers go out in the order of arrival.
        let others = (!self.storage.done.is_empty()).then(|| std::mem::take(&mut self.batch));
        others.map(|others| std::mem::replace(&mut self.storage.done, others))
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
        let at = operation.requests.in_flight.iter().position(|request| request.seq == seq);
        let slot = at.map_or(operation.requests.volume, |at| operation.requests.in_flight[at].slot);
        let volume = &self.storage.volumes[slot];
        if matches!(done.result, Err(Error::NotStable(_))) && volume.core.health.is_marking() {
            self.unmarked.push(done);
            return None;
        }
        if let Some(at) = at {
            operation.requests.in_flight.remove(at);
        }
        if !volume.watches.is_empty() {
            self.storage.left_storage(slot, done.tag);
        }
        Some((id, seq, done))
    }

    /// Another thread has done its work for an operation: what it touched at the storage, others may have now.
    pub fn came_back(&mut self, id: OperationId) {
        self.operations[id].requests.away = false;
        for request in std::mem::take(&mut self.operations[id].requests.in_flight) {
            self.storage.left_storage(request.slot, request_tag(id, request.seq));
        }
    }

    /// Another thread does not work for an operation after all.
    pub fn stays(&mut self, id: OperationId) {
        self.operations[id].requests.in_flight.clear();
    }

    /// True if nothing is at work any more; says of which volumes something is.
    pub fn is_done(&self) -> bool {
        for (slot, volume) in self.storage.volumes.iter() {
            if self.operations.iter().any(|(_, operation)| operation.requests.volume == slot) {
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
        let mut limits = vec![flush_limit; self.storage.volumes.slots()];
        let others = self.operations.iter().filter(|(_, it)| it.kind != Kind::Flush);
        for request in others.flat_map(|(_, operation)| &operation.requests.in_flight) {
            limits[request.slot.slot()] = SILENCE;
        }
        let hangs = |slot: VolumeId| {
            let channels = self.storage.channels.iter().flatten().filter(|it| it.volume == slot);
            let mut busy = channels.filter(|channel| channel.queued > 0);
            busy.any(|channel| {
                self.storage.now.saturating_sub(channel.since) >= limits[slot.slot()]
            })
        };
        // Work of another thread stands beside requests, and is done for nobody.
        let waits = |it: &Operation<C>| it.kind != Kind::Flush && it.requests.in_flight() == 0;
        self.operations.iter().all(|(_, operation)| {
            let age = self.storage.now.saturating_sub(operation.started);
            waits(operation) && age >= SILENCE
                || operation.requests.in_flight.iter().any(|request| hangs(request.slot))
        })
    }

    /// Opens channels to all that is new among the next volumes, so that [`adopt`](Self::adopt) cannot fail.
    ///
    /// # Errors
    /// A plain sentence. Nothing has changed then.
    pub fn prepare<'v>(
        &mut self,
        next: impl Iterator<Item = (VolumeId, &'v Arc<Volume<C::Face>>)>,
    ) -> Result<(), String>
    where
        C::Face: 'v,
    {
        for (slot, volume) in next {
            if self.storage.volumes.get(slot).is_some_and(|old| Arc::ptr_eq(&old.core, volume)) {
                continue;
            }
            let free = self.storage.channels.iter().position(Option::is_none);
            let number = free.unwrap_or(self.storage.channels.len());
            let opened = u16::try_from(number).map_err(|_| EMFILE);
            let opened =
                opened.and_then(|at| volume.backend.open_channel(at, &mut self.storage.ring));
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
            let channel =
                ChannelHandle::new(channel, volume.health.clone(), slot, self.storage.now);
            if number == self.storage.channels.len() {
                self.storage.channels.push(Some(channel));
            } else {
                self.storage.channels[number] = Some(channel);
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
    pub fn adopt<'v>(&mut self, next: impl Fn(VolumeId) -> Option<&'v Arc<Volume<C::Face>>>)
    where
        C::Face: 'v,
    {
        for (slot, number) in std::mem::take(&mut self.prepared) {
            let Some(core) = next(slot) else { continue };
            // The old channel may be the only one that the kernel tells of a failed write-back.
            self.flush_volume(slot);
            if let Some(old) = self.storage.volumes.put(slot, core.clone(), number) {
                self.leave_channel(old);
            }
        }
        let there = self.storage.volumes.iter().map(|(slot, _)| slot);
        let gone: Vec<VolumeId> = there.filter(|slot| next(*slot).is_none()).collect();
        for slot in gone {
            self.flush_volume(slot);
            self.storage.volumes[slot].removed = true;
            self.retire(slot);
        }
    }

    /// A channel is not used any more: it ends with its last request.
    fn leave_channel(&mut self, number: usize) {
        if let Some(channel) = &mut self.storage.channels[number] {
            channel.leaving = true;
        }
        self.close_channel(number);
    }

    /// Lets a channel go that leaves and has nothing more to do.
    fn close_channel(&mut self, number: usize) {
        if let Some(channel) = self.storage.channels[number].take_if(|channel| channel.is_over()) {
            channel.close(&mut self.storage.ring);
        }
    }

    /// Lets a volume go that was removed and has no operations.
    #[inline]
    fn retire(&mut self, slot: VolumeId) {
        let over = |volume: &crate::OpenVolume<C::Face>| volume.removed && volume.operations == 0;
        if self.storage.volumes.get(slot).is_some_and(over) {
            if let Some(volume) = self.storage.volumes.take(slot) {
                self.leave_channel(volume.channel);
            }
        }
    }

    /// Flushes every volume that this shard wrote to, for nobody in particular.
    pub fn flush_written(&mut self) {
        let slots: Vec<VolumeId> = self.storage.volumes.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.flush_volume(slot);
        }
    }

    fn flush_volume(&mut self, slot: VolumeId) {
        let Some(volume) = self.storage.volumes.get_mut(slot) else { return };
        if std::mem::take(&mut volume.written) && volume.core.caps.write_cache {
            let operation = Operation::new(slot, Kind::Flush, self.storage.now, C::internal());
            let id = self.insert(operation);
            self.submit(id, Op::Flush, ByteRange::new(0, 0), None);
        }
    }

    /// The account of what a session has at the storage of a volume: its own, and a part of its connection's.
    pub fn storage_account(
        &self,
        session: &mut Option<Account>,
        connection: &Account,
        slot: VolumeId,
    ) -> Account {
        let volume = &self.storage.volumes[slot].account;
        let part = session.get_or_insert_with(|| Account::part(connection, volume));
        if part.held() == 0 {
            part.attach(connection);
        }
        part.clone()
    }
}
