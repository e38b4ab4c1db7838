//! The executor of a shard: every operation on its volumes, and the storage that it works on.
//!
//! A protocol begins an [`Operation`] for a command and gives it its [`Work`]; [`Executor::pump`] lets that get on with
//! the client. The answers of the storage come back by [`Executor::next_batch`] and go to [`Executor::take_answer`].
//! An operation that nobody waits for any more stays until the storage has let go of it, and
//! what it may still write is fenced off.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lunet_block::{ByteRange, Completion, Error, IoDone, IoToken, Op, Submit};
use lunet_os::sync::mpsc::Receiver;
use lunet_ring::{Account, Buf, Payload, Ring};

use crate::channel::ChannelHandle;
use crate::count::{Kind, VolumeCount};
use crate::memory::Budget;
use crate::offload::Ticket;
use crate::open::{OpenVolume, VolumeId};
use crate::operation::{
    Command, Face, Operation, OperationId, Operations, Parties, request_tag, split_tag,
};
use crate::stage::Timed;
use crate::storage::{ShardConfig, Storage};
use crate::volume::Volume;
use crate::work::{Client, Copy, Failure, Piece, Plain, Progress, Work};

/// Storage that is asked for more than flushes, and has answered nothing for this long, is not waited for when the
/// server stops.
const SILENCE: Duration = Duration::from_secs(3);

/// EMFILE, for the 65,537th channel.
const EMFILE: i32 = 24;

/// A volume that cannot be opened on an event loop.
#[derive(Debug, thiserror::Error)]
#[error("volume {volume} cannot be opened on an event loop: {error}")]
pub struct NoChannel {
    /// Its name.
    pub(crate) volume: String,
    /// The operating system's reason.
    pub(crate) error: io::Error,
}

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
}

/// What an operation has made of an answer, or of data.
pub enum Step {
    /// It can get on: it is to be [pumped](Executor::pump).
    Done,
    /// The same, and so many more bytes of a [copy](Executor::copy) are written without a gap.
    Copied(u64),
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
        }
    }

    /// Lets an operation do what it can do now. Where the write cache of its volume is switched off, a flush follows
    /// whatever has written without FUA.
    pub fn pump(&mut self, id: OperationId, client: &mut impl Client) -> Progress {
        let progress = self.advance(id, client);
        if self.operations[id].requests.timing.is_some() {
            if let Some(timed) = self.look_at(id, progress) {
                client.timed(timed);
            }
        }
        progress
    }

    fn advance(&mut self, id: OperationId, client: &mut impl Client) -> Progress {
        loop {
            let Operation { requests, work, .. } = &mut self.operations[id];
            let storage = &mut self.storage;
            lunet_os::met(work);
            let progress = match work {
                Work::Read(read) => return read.pump(requests, storage, client),
                Work::Write(write) => write.pump(requests, storage, client),
                Work::Compare(compare) => compare.pump(requests, storage, client),
                Work::Collect(intake) => intake.pump(requests, storage, client),
                Work::Exclusive(exclusive) => exclusive.pump(requests, storage, client),
                Work::None
                | Work::Fill(_)
                | Work::Plain(_)
                | Work::Copy(_)
                | Work::Hold
                | Work::Overwrite(_) => return self.advance_alone(id, Some(client.budget())),
            };
            if !self.goes_on(id, progress) {
                return progress;
            }
        }
    }

    /// The same for an operation that moves no data of a client. `budget` pays for its buffers, if it needs any.
    pub fn pump_alone(&mut self, id: OperationId, budget: Option<Budget<'_>>) -> Progress {
        let progress = self.advance_alone(id, budget);
        if self.operations[id].requests.timing.is_some() {
            self.look_at(id, progress);
        }
        progress
    }

    fn advance_alone(&mut self, id: OperationId, budget: Option<Budget<'_>>) -> Progress {
        loop {
            let Operation { requests, work, .. } = &mut self.operations[id];
            let storage = &mut self.storage;
            lunet_os::met(work);
            let progress = match work {
                Work::Fill(fill) => fill.pump(requests, storage),
                Work::Plain(plain) => plain.pump(requests, storage),
                Work::Copy(copy) => copy.pump(requests, storage, budget),
                Work::Hold => Progress::finished_if(storage.has_range(requests)),
                Work::Overwrite(overwrite) => overwrite.pump(requests, storage),
                Work::None => Progress::finished_if(requests.in_flight() == 0),
                Work::Read(_)
                | Work::Write(_)
                | Work::Compare(_)
                | Work::Collect(_)
                | Work::Exclusive(_) => unreachable!("it moves data of a client"),
            };
            if !self.goes_on(id, progress) {
                return progress;
            }
        }
    }

    /// An operation that is timed has come so far: looks what it waits for now. If it is over, that is what is known of
    /// it.
    #[cold]
    #[inline(never)]
    fn look_at(&mut self, id: OperationId, progress: Progress) -> Option<Timed> {
        let now = self.storage.clock();
        let requests = &mut self.operations[id].requests;
        requests.look(&mut self.storage, now);
        if progress == Progress::Waits {
            return None;
        }
        requests.timing = None;
        self.storage.volumes[requests.volume].count.stages.answered();
        Some(Timed { volume: requests.volume, at: now })
    }

    /// An operation that may be timed goes on without having been pumped.
    pub(crate) fn look_again(&mut self, id: OperationId) {
        if self.operations[id].requests.timing.is_some() {
            self.look_at(id, Progress::Waits);
        }
    }

    /// True if an operation that has come so far can get on at once.
    #[inline]
    fn goes_on(&mut self, id: OperationId, progress: Progress) -> bool {
        match progress {
            Progress::Finished => self.follows_up(id),
            // A range of its own that this shard had nothing in.
            Progress::Waits => !self.storage.drains.is_empty() && self.drain_own(),
            Progress::Answered => false,
        }
    }

    /// The work of an operation is over. True if what it has written must be made stable, which is its work now.
    #[inline(never)]
    fn follows_up(&mut self, id: OperationId) -> bool {
        let requests = &mut self.operations[id].requests;
        if requests.is_failed() {
            return false;
        }
        if requests.writes.is_some() && !requests.stable {
            requests.stable = true;
            if self.storage.volumes[requests.writes_on()].core.face.writes_through() {
                self.operations[id].work = Work::Plain(Plain::flush());
                return true;
            }
        }
        if self.operations[id].requests.parties.is_some() {
            self.end_copy(id);
        }
        false
    }

    /// A copy is over: the operation has nothing more to do with its volumes.
    #[cold]
    fn end_copy(&mut self, id: OperationId) {
        let Operation { requests, work, .. } = &mut self.operations[id];
        requests.writes = None;
        *work = Work::None;
        if let Some(parties) = requests.parties.take() {
            self.leave_volume(parties.source);
            self.leave_volume(parties.destination);
        }
    }

    /// Copies a range of a volume to one of the same length, or zeroes if there is no source: that is what an operation
    /// without other work does now. Both volumes stay until it is done.
    pub fn copy(
        &mut self,
        id: OperationId,
        volumes: (Option<VolumeId>, VolumeId),
        ranges: (ByteRange, ByteRange),
    ) {
        let Operation { requests, work, .. } = &mut self.operations[id];
        assert!(requests.parties.is_none(), "one copy at a time");
        let copy = Copy::new(volumes, ranges);
        let Parties { source, destination } = copy.parties();
        requests.parties = Some(copy.parties());
        (requests.writes, requests.stable) = (Some(ranges.1), false);
        *work = Work::Copy(Box::new(copy));
        let now = self.storage.latest();
        for slot in [source, destination] {
            self.storage.volumes[slot].enter(now);
        }
    }

    /// True if a copy asks the storage for more when it is pumped next.
    pub fn asks_more(&self, id: OperationId) -> bool {
        let Operation { requests, work, .. } = &self.operations[id];
        matches!(work, Work::Copy(copy) if copy.asks_more(requests))
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
            Work::None
            | Work::Read(_)
            | Work::Fill(_)
            | Work::Plain(_)
            | Work::Copy(_)
            | Work::Hold
            | Work::Overwrite(_) => return Step::Done,
        };
        let piece = intake.arrived(offset, len, buf);
        if let Work::Write(write) = work {
            // It was paid for when it was asked for.
            if !requests.is_failed() {
                write.piece(requests, &mut self.storage, piece);
            }
            return Step::Done;
        }
        self.take_piece(id, piece)
    }

    /// Whole blocks have come with the command: those of a write wait while its volume has enough at its storage.
    pub fn take_unasked(&mut self, id: OperationId, piece: Piece) -> Step {
        let Operation { requests, work, .. } = &mut self.operations[id];
        let Work::Write(write) = work else { return self.take_piece(id, piece) };
        write.unasked(requests, &mut self.storage, piece);
        Step::Done
    }

    /// Whole blocks have come: they go where the operation wants them, or wait while a limit is reached.
    pub fn take_piece(&mut self, id: OperationId, piece: Piece) -> Step {
        let Operation { requests, work, .. } = &mut self.operations[id];
        if requests.is_failed() {
            return Step::Done;
        }
        match work {
            Work::Write(write) => write.first(requests, &mut self.storage, piece),
            Work::Compare(compare) => compare.piece(requests, &mut self.storage, piece),
            Work::Exclusive(exclusive) => exclusive.piece(piece),
            Work::Collect(_) => return Step::Collected(piece.buf, piece.len),
            Work::None
            | Work::Read(_)
            | Work::Fill(_)
            | Work::Plain(_)
            | Work::Copy(_)
            | Work::Hold
            | Work::Overwrite(_) => {}
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
            Work::Copy(copy) => {
                let copied = copy.done(requests, &mut self.storage, done);
                return self.copied(id, copied);
            }
            Work::Overwrite(overwrite) => overwrite.done(done),
            Work::None | Work::Collect(_) | Work::Hold => return Step::Done,
        };
        if let Err(failure) = result {
            requests.fail(failure);
        }
        Step::Done
    }

    /// The step that the end of a part of a copy is.
    fn copied(&mut self, id: OperationId, copied: Result<Option<u64>, Failure>) -> Step {
        match copied {
            Ok(bytes) => bytes.map_or(Step::Done, Step::Copied),
            Err(failure) => {
                self.operations[id].requests.fail(failure);
                Step::Done
            }
        }
    }

    /// Begins an operation of a kind on a volume, with no work yet, and its command as it is by
    /// [default](Command::clear).
    #[inline]
    pub fn begin(&mut self, volume: VolumeId, kind: Kind) -> OperationId {
        let latest = self.storage.latest();
        self.storage.volumes[volume].enter(latest);
        self.operations.begin((volume, kind), self.storage.now)
    }

    /// The same for a command of a client whose first bytes had come at this time. Some of these are timed.
    #[inline]
    pub fn begin_command(
        &mut self,
        volume: VolumeId,
        kind: Kind,
        arrived: Duration,
    ) -> OperationId {
        let id = self.begin(volume, kind);
        let now = self.storage.now;
        if kind != Kind::Other && self.storage.volumes[volume].sampler.takes(now) {
            let timing = self.storage.begin_timing(volume, arrived);
            self.operations[id].requests.timing = Some(timing);
        }
        id
    }

    /// The command of an operation is about to be answered: it has moved so many bytes, unless it has failed.
    pub fn count_answer(&mut self, id: OperationId, bytes: u64, now: Duration) {
        let Operation { kind, started, requests, .. } = &self.operations[id];
        let failed = requests.is_failed();
        let micros = now.saturating_sub(*started).as_micros() as u64;
        let count = &mut self.storage.volumes[requests.volume].count;
        count.record(*kind, if failed { 0 } else { bytes }, micros, failed);
    }

    /// For a report: the count of every volume that is served, by name, with the time of answers that are on their way.
    pub fn counts(&self, on_their_way: &[Timed]) -> Vec<(String, VolumeCount)> {
        let storage = &self.storage;
        let served = storage.volumes.iter().filter(|(_, volume)| !volume.removed);
        let counts = served.map(|(slot, volume)| {
            let mut count = volume.count.clone().of_shard(storage.config.shard);
            count.busy.0 = volume.busy(storage.now);
            let channel = storage.channels.get(volume.channel).and_then(Option::as_ref);
            count.busy.1 = channel.map_or(Duration::ZERO, |channel| channel.busy(storage.now));
            let all = self.operations.iter().map(|(_, operation)| &operation.requests);
            for requests in all.filter(|requests| requests.volume == slot) {
                count.in_flight += 1;
                requests.add_time(&mut count.stages, storage.now);
            }
            for timed in on_their_way.iter().filter(|timed| timed.volume == slot) {
                count.stages.answer_waits(storage.now.saturating_sub(timed.at));
            }
            (volume.core.name.clone(), count)
        });
        counts.collect()
    }

    /// Ends an operation with which the storage is done: others may have its blocks, and its place in the queue for a
    /// range.
    #[inline]
    pub fn remove(&mut self, id: OperationId) {
        self.look_again(id);
        let requests = &self.operations[id].requests;
        let volume = requests.volume;
        if requests.holds_something() {
            self.let_go(id);
        }
        self.operations.remove(id);
        self.leave_volume(volume);
    }

    /// Gives up what an operation holds besides memory.
    #[cold]
    fn let_go(&mut self, id: OperationId) {
        let requests = &mut self.operations[id].requests;
        let volume = requests.volume;
        let (fenced, claim) = (requests.fenced.take(), requests.claim.take());
        let orphan = std::mem::take(&mut requests.orphan);
        self.storage.volumes[volume].orphans -= usize::from(orphan);
        if let Some((slot, range)) = fenced {
            self.storage.volumes[slot].core.fence.lift(range);
        }
        if let Some(claim) = &claim {
            self.storage.release(id, volume, claim);
        }
        self.leave_line(id);
        self.storage.unreserve(&mut self.operations[id].requests);
        self.end_copy(id);
    }

    /// An operation has nothing more to do with a volume.
    fn leave_volume(&mut self, slot: VolumeId) {
        let latest = self.storage.latest();
        self.storage.volumes[slot].leave(latest);
        self.retire(slot);
    }

    /// Nobody waits for an operation any more. What it may still write is fenced off, and its requests that can be
    /// called back are. If [nothing is at work](crate::Requests::is_over) for it, it ends.
    pub fn abandon(&mut self, id: OperationId) {
        let operation = &mut self.operations[id];
        operation.requests.expect_nothing();
        operation.work.drop_buffers();
        self.leave_line(id);
        self.storage.unreserve(&mut self.operations[id].requests);
        self.drop_held(id);
        if self.operations[id].requests.is_over() {
            self.remove(id);
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

    /// Fences off what an operation may still write, until it [ends](Self::remove).
    pub fn fence(&mut self, id: OperationId) {
        let requests = &mut self.operations[id].requests;
        if let (Some(range), None) = (requests.writes, requests.fenced) {
            let slot = requests.writes_on();
            self.storage.volumes[slot].core.fence.raise(range);
            requests.fenced = Some((slot, range));
        }
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
        let mut next = channel.advance(done, &mut self.storage.ring);
        if next.is_none() {
            return;
        }
        while let Some(completion) = next {
            channel.end(self.storage.now);
            self.storage.done.push(completion);
            next = channel.more(&mut self.storage.ring);
        }
        self.resubmit(number);
        self.close_channel(number);
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
                Submit::Queued => channel.begin(self.storage.now),
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
        let counted = at.and_then(|at| operation.requests.in_flight.remove(at).counted);
        let watched = !volume.watches.is_empty();
        if let Some(counted) = counted {
            self.storage.leave_pool(slot, counted);
        }
        if watched {
            self.storage.left_storage(slot, done.tag);
        }
        Some((id, seq, done))
    }

    /// Has another thread do what may block, for an operation that does nothing else meanwhile. What comes of it can be
    /// received when that [has come back](Self::came_back). `None` if too much work waits: nothing has happened then.
    pub fn send_away<T: Send + 'static>(
        &mut self,
        id: OperationId,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Receiver<T>> {
        self.storage.send_away(&mut self.operations[id].requests, work)
    }

    /// Another thread has done its work: what that touched at the storage, others may have now. Returns the operation
    /// that it was for. If nobody waits for that any more, [nothing is at work](crate::Requests::is_over) for it now.
    pub fn came_back(&mut self, ticket: Ticket) -> Option<(OperationId, Step)> {
        let id = self.operations.find(|operation| operation.requests.away == Some(ticket))?;
        let Operation { requests, work, .. } = &mut self.operations[id];
        requests.away = None;
        for request in std::mem::take(&mut requests.in_flight) {
            request.counted.into_iter().for_each(|it| self.storage.leave_pool(request.slot, it));
            self.storage.left_storage(request.slot, request_tag(id, request.seq));
        }
        let step = match work {
            Work::Copy(copy) if !requests.orphan => {
                let copied = copy.returned(requests, &mut self.storage);
                self.copied(id, copied)
            }
            _ => Step::Done,
        };
        Some((id, step))
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

    /// Checks, in a build with debug assertions, that nothing is left of operations that have ended: no request that is
    /// held back, no place in a line, no answer that nobody took. For the end of a shard that [is done](Self::is_done).
    pub fn check_ended(&self) {
        let storage = &self.storage;
        debug_assert!(
            storage.held.is_empty(),
            "requests are held back for operations that have ended"
        );
        debug_assert!(storage.in_queue.is_empty(), "operations that have ended stand in a line");
        debug_assert!(storage.lines.is_empty(), "operations that have ended wait for a limit");
        debug_assert!(
            storage.drains.is_empty(),
            "ranges are drained for operations that have ended"
        );
        debug_assert!(storage.done.is_empty(), "answers were not worked off");
        debug_assert!(self.unmarked.is_empty(), "answers still wait for a mark");
        let starved = storage.starved.iter().filter(|id| self.operations.get(**id).is_some());
        debug_assert_eq!(starved.count(), 0, "operations that have ended wait for memory");
        for channel in storage.channels.iter().flatten() {
            debug_assert_eq!(channel.queued, 0, "requests are counted that have ended");
        }
    }

    /// True if nothing is at work but at storage that hangs, for who does not wait for that: it has answered
    /// nothing for three seconds, or for `flush_limit` if it has nothing but flushes to do, of which each may take
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
    /// A volume has no channel. Nothing has changed then.
    pub fn prepare<'v>(
        &mut self,
        next: impl Iterator<Item = (VolumeId, &'v Arc<Volume<C::Face>>)>,
    ) -> Result<(), NoChannel>
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
                    let error = io::Error::from_raw_os_error(errno);
                    return Err(NoChannel { volume: volume.name.clone(), error });
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
        let over = |volume: &OpenVolume<C::Face>| volume.removed && volume.operations == 0;
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
            let id = self.begin(slot, Kind::Flush);
            let requests = &mut self.operations[id].requests;
            self.storage.submit(requests, Op::Flush, ByteRange::new(0, 0), None);
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
