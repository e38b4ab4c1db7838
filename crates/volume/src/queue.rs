//! What the locks of a volume mean on one shard: requests are held back while a command has their range for
//! itself, and such a command waits until those before it have left the storage. See [`Locks`](crate::locks::Locks).

use std::ops::{Bound, RangeInclusive};
use std::time::Duration;

use arrayvec::ArrayVec;
use lunet_block::{ByteRange, Error, Request};
use lunet_ring::{Payload, SocketId, TxChain};

use crate::channel::ChannelHandle;
use crate::executor::Executor;
use crate::locks::{Passage, Stage, Waiter};
use crate::open::{OpenVolume, VolumeId};
use crate::operation::{
    Command, DEPTH, Face, Operation, OperationId, Requests, request_tag, split_tag,
};
use crate::storage::{Drain, Storage};
use crate::volume::WHOLE;
use crate::work::{Failure, Work};

/// How often a shard that waits for a lock looks by itself: a message may find the mailbox full.
const LOOK: Duration = Duration::from_millis(10);

/// An operation's place in the queue.
pub(crate) struct Claim {
    /// The place.
    id: u64,
    /// The range that it is for.
    range: ByteRange,
    /// Shards that have not been asked to hold requests back.
    unasked: Vec<usize>,
}

/// Where a request stands that waits for a lock to be given up: all of one place are together, by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Held {
    /// The slot of its volume.
    volume: VolumeId,
    /// The place in the queue that it shares with others.
    place: u64,
    /// Its number among all.
    order: u64,
}

impl Held {
    /// Where all are that share a place.
    fn all_of(volume: VolumeId, place: u64) -> RangeInclusive<Self> {
        Self { volume, place, order: 0 }..=Self { volume, place, order: u64::MAX }
    }
}

/// What a lock waits for: requests at the storage, and answers by reference.
pub(crate) struct Watch {
    /// The lock's place in the queue.
    id: u64,
    /// The requests.
    tags: Vec<u64>,
    /// Since when it waits for nothing but answers by reference.
    lent_since: Option<Duration>,
}

/// True while answers by reference of a volume are on their way: half of them might show what is written
/// now.
fn lent<F>(channels: &[Option<ChannelHandle>], volume: &OpenVolume<F>) -> bool {
    let channel = channels.get(volume.channel).and_then(Option::as_ref);
    channel.is_some_and(|channel| channel.lent() > 0)
}

impl<F> Storage<F> {
    /// Lets a request through to a volume that has locks, or holds it back.
    pub(crate) fn submit_guarded(
        &mut self,
        requests: &mut Requests,
        (slot, seq): (VolumeId, u32),
        request: Request<Payload>,
    ) {
        if requests.claim.is_some() || request.range.len == 0 {
            return self.send(slot, request);
        }
        let volume = &mut self.volumes[slot];
        match volume.core.locks.pass(self.config.shard, request.range) {
            Passage::NoQueue => volume.guarded = false,
            Passage::Free => {}
            Passage::Behind(place) => {
                let held = Held { volume: slot, place, order: self.holds };
                self.holds += 1;
                if let Some(waiting) = requests.get_mut(seq) {
                    waiting.held = Some(held);
                }
                self.held.insert(held, request);
                return;
            }
        }
        self.send(slot, request);
    }

    /// Takes a place in the queue for a range of an operation's volume. False if the queue is full.
    pub(crate) fn claim(&mut self, requests: &mut Requests, range: ByteRange) -> bool {
        let shards = self.config.shards.count();
        let locks = &self.volumes[requests.volume].core.locks;
        let Some(place) = locks.lock(range, Waiter::Shard(self.config.shard), shards) else {
            return false;
        };
        let unasked = (0..shards).collect();
        requests.claim = Some(Box::new(Claim { id: place, range, unasked }));
        self.in_queue.push(requests.id());
        true
    }

    /// True if the operation has its range for itself. Asks the shards to hold others back, once it is first.
    pub(crate) fn has_range(&mut self, requests: &mut Requests) -> bool {
        let (own, slot) = (self.config.shard, requests.volume);
        let Some(claim) = &mut requests.claim else { return false };
        let locks = &self.volumes[slot].core.locks;
        if locks.stage(claim.id) == Some(Stage::First) && !claim.unasked.is_empty() {
            let drain =
                Drain { volume: slot, locks: locks.clone(), id: claim.id, range: claim.range };
            let drains_own = claim.unasked.contains(&own);
            // Who cannot be asked now is asked at the next look.
            let shards = &self.config.shards;
            claim.unasked.retain(|shard| *shard != own && !shards.ask(*shard, drain.clone()));
            // It needs all operations of this shard.
            self.drains.extend(drains_own.then_some(drain));
        }
        let granted = self.volumes[slot].core.locks.stage(claim.id) == Some(Stage::Granted);
        if granted {
            self.leave_queue(requests.id());
        }
        granted
    }

    /// An operation goes on at the next look.
    pub(crate) fn queue(&mut self, id: OperationId) {
        self.in_queue.push(id);
    }

    /// Something can be done in this loop iteration.
    pub(crate) fn look_soon(&mut self) {
        self.looked = Duration::ZERO;
    }

    /// An operation waits for no look any more.
    pub(crate) fn leave_queue(&mut self, id: OperationId) {
        self.in_queue.retain(|waiting| *waiting != id);
    }

    /// Gives a place in the queue up.
    pub(crate) fn release(&mut self, id: OperationId, slot: VolumeId, claim: &Claim) {
        self.leave_queue(id);
        let woken = self.volumes[slot].core.locks.leave(claim.id);
        self.config.shards.wake(&woken);
    }

    /// A request has left the storage.
    pub(crate) fn left_storage(&mut self, slot: VolumeId, tag: u64) {
        for watch in &mut self.volumes[slot].watches {
            watch.tags.retain(|waits_for| *waits_for != tag);
        }
        self.lending |= self.end_watches(slot);
    }

    /// Tells locks whose range this shard is out of. True if one waits for nothing but answers by reference:
    /// after the first lock there are no new ones, so that is once at the most.
    pub(crate) fn end_watches(&mut self, slot: VolumeId) -> bool {
        let now = self.now;
        let volume = &mut self.volumes[slot];
        let lent = lent(&self.channels, volume);
        let locks = volume.core.locks.clone();
        let (mut woken, mut lending) = (Vec::new(), false);
        volume.watches.retain_mut(|watch| {
            let drained = watch.tags.is_empty() && !lent;
            if drained {
                woken.extend(locks.drained(watch.id));
            }
            if watch.tags.is_empty() && lent {
                watch.lent_since.get_or_insert(now);
                lending = true;
            }
            !drained
        });
        self.config.shards.wake(&woken);
        lending
    }

    /// True if answers by reference of the volume in a slot wait to be taken: in a chain, or on their way on a socket.
    pub fn is_lender(&mut self, slot: VolumeId, chain: &TxChain, socket: SocketId) -> bool {
        let number = self.volumes[slot].channel;
        let Some(Some(channel)) = self.channels.get(number) else { return false };
        let lends = |chain: &TxChain| chain.has(|payload| channel.lends(payload));
        lends(chain) || self.ring.is_sending(socket, |payload| channel.lends(payload))
    }

    /// Resets closed connections whose clients do not take answers by reference of the volume in a slot.
    pub fn reset_closed_lenders(&mut self, slot: VolumeId) {
        let number = self.volumes[slot].channel;
        let Some(Some(channel)) = self.channels.get(number) else { return };
        self.ring.reset_closed(|payload| channel.lends(payload));
    }

    /// Gives the place of held requests up when there are none any more.
    pub(crate) fn leave_if_empty(&mut self, slot: VolumeId, place: u64) {
        if self.held.range(Held::all_of(slot, place)).next().is_some() {
            return;
        }
        let woken = self.volumes[slot].core.locks.leave(place);
        self.config.shards.wake(&woken);
    }
}

impl<C: Command> Executor<C> {
    /// Locks all of an operation's volume until the operation ends. Waiting for the lock is its work; when that is over,
    /// no request of others is at the storage. False if the queue is full.
    pub fn hold(&mut self, id: OperationId) -> bool {
        let Operation { requests, work, .. } = &mut self.operations[id];
        *work = Work::Hold;
        self.storage.claim(requests, WHOLE)
    }

    /// Drains ranges for operations of this shard. True if there were any.
    pub(crate) fn drain_own(&mut self) -> bool {
        let drains = std::mem::take(&mut self.storage.drains);
        drains.iter().for_each(|drain| self.drain(drain));
        !drains.is_empty()
    }

    /// True if an operation stands in the queue behind others.
    pub fn waits_for_range(&self, id: OperationId) -> bool {
        let requests = &self.operations[id].requests;
        let locks = &self.storage.volumes[requests.volume].core.locks;
        let claim = requests.claim.as_ref();
        claim.is_some_and(|claim| locks.stage(claim.id) == Some(Stage::Waiting))
    }

    /// An operation goes on at the next look.
    pub fn queue(&mut self, id: OperationId) {
        self.storage.queue(id);
    }

    /// The operations that go on at a look, if they can: they are to be pumped. One may have ended because of another.
    pub fn queued(&mut self) -> Vec<OperationId> {
        let queued = self.storage.in_queue.clone();
        for id in &queued {
            match self.operations.get_mut(*id).map(|operation| &mut operation.work) {
                // They stay in the queue until they have their range.
                Some(Work::Exclusive(_) | Work::Hold) => continue,
                Some(Work::Overwrite(overwrite)) => overwrite.renew(),
                _ => {}
            }
            self.storage.leave_queue(*id);
        }
        let mut queued = queued;
        queued.append(&mut self.storage.passed);
        queued
    }

    /// From now on, requests that reach into a range are held back, as long as the lock is there. Says so when
    /// none is at the storage any more.
    pub fn drain(&mut self, drain: &Drain) {
        let Drain { volume: slot, ref locks, id: place, range } = *drain;
        let mut tags = Vec::new();
        let volume = self.storage.volumes.get_mut(slot);
        if let Some(volume) = volume.filter(|it| std::sync::Arc::ptr_eq(&it.core.locks, locks)) {
            volume.guarded = true;
            volume.exclusive = true;
            volume.watches.retain(|watch| locks.stage(watch.id).is_some());
            for (id, operation) in self.operations.iter() {
                let at_work = operation.requests.in_flight.iter().filter(|request| {
                    request.slot == slot && request.held.is_none() && request.range.overlaps(range)
                });
                tags.extend(at_work.map(|request| request_tag(id, request.seq)));
            }
            if !tags.is_empty() || lent(&self.storage.channels, volume) {
                self.storage.lending |= tags.is_empty();
                let lent_since = tags.is_empty().then_some(self.storage.now);
                return volume.watches.push(Watch { id: place, tags, lent_since });
            }
        }
        self.storage.config.shards.wake(locks.drained(place).as_slice());
    }

    /// Looks whether answers by reference are gone. Returns the volumes of which clients have not taken them within
    /// `patience`: a lock waits for that, and a client that takes a little now and then could keep it waiting for hours,
    /// since the memory is in the hands of the kernel. Such clients are to be disconnected.
    pub fn look_at_lent(&mut self, patience: Duration) -> Vec<VolumeId> {
        if !std::mem::take(&mut self.storage.lending) {
            return Vec::new();
        }
        let watched = self.storage.volumes.iter().filter(|(_, volume)| !volume.watches.is_empty());
        let mut slots: Vec<VolumeId> = watched.map(|(slot, _)| slot).collect();
        slots.retain(|slot| {
            self.storage.lending |= self.storage.end_watches(*slot);
            let watches = &self.storage.volumes[*slot].watches;
            let since = watches.iter().filter_map(|watch| watch.lent_since).min();
            since.is_some_and(|since| self.storage.now >= since + patience)
        });
        slots
    }

    /// The requests of an abandoned operation that are held back never go to the storage.
    pub(crate) fn drop_held(&mut self, id: OperationId) {
        if self.storage.held.is_empty() {
            return;
        }
        let own = &mut self.operations[id].requests;
        let requests = own.in_flight.iter();
        let held: ArrayVec<Held, DEPTH> = requests.filter_map(|request| request.held).collect();
        for request in own.in_flight.iter().filter(|request| request.held.is_some()) {
            let counted = request.counted;
            counted.into_iter().for_each(|it| self.storage.leave_pool(request.slot, it));
        }
        own.in_flight.retain(|request| request.held.is_none());
        for held in held {
            let Some(request) = self.storage.held.remove(&held) else { continue };
            if let Some(Payload::Buf(buf)) = request.complete(Err(Error::Cancelled)).buf {
                self.storage.give_back(&mut self.operations[id].requests, buf);
            }
            self.storage.leave_if_empty(held.volume, held.place);
        }
    }

    /// When to look, if something waits for its turn, for a limit, or for memory that is lent.
    pub fn next_look(&self) -> Option<Duration> {
        let waits = !self.storage.held.is_empty()
            || !self.storage.in_queue.is_empty()
            || self.storage.lending;
        let look = (waits || !self.unmarked.is_empty()).then_some(self.storage.looked + LOOK);
        look.into_iter().chain(self.storage.line_due).min()
    }

    /// Something can be done in this loop iteration.
    pub fn look_soon(&mut self) {
        self.storage.look_soon();
    }

    /// Looks whose turn it is: operations that wait for a limit may go on, requests whose way is free go to the storage,
    /// and answers whose mark is stable are told.
    /// The [queued](Self::queued) operations are the caller's.
    pub fn look(&mut self) {
        self.storage.looked = self.storage.now;
        let mut next = self.storage.held.keys().next().copied();
        while let Some(Held { volume, place, .. }) = next {
            let core = &self.storage.volumes[volume].core;
            let closed = core.face.is_closed();
            if closed || core.locks.may_pass(place) {
                self.let_pass(volume, place, closed);
            }
            let behind = Held { volume, place, order: u64::MAX };
            let rest = (Bound::Excluded(behind), Bound::Unbounded);
            next = self.storage.held.range(rest).next().map(|(held, _)| *held);
        }
        self.storage.done.append(&mut self.unmarked);
        self.pass_lines();
    }

    /// Sends all requests of a place to the storage, or fails their commands: the volume is worked on as a whole, and
    /// they would wait for hours.
    fn let_pass(&mut self, slot: VolumeId, place: u64, closed: bool) {
        while let Some((held, _)) = self.storage.held.range(Held::all_of(slot, place)).next() {
            let held = *held;
            let Some(request) = self.storage.held.remove(&held) else { break };
            let (id, seq) = split_tag(request.tag);
            let operation = &mut self.operations[id];
            if let Some(waiting) = operation.requests.get_mut(seq) {
                waiting.held = None;
            }
            if closed {
                operation.requests.fail(Failure::Closed { slot });
                self.storage.done.push(request.complete(Err(Error::Cancelled)));
            } else {
                self.storage.send(slot, request);
            }
            self.look_again(id);
        }
        // All of them are at the storage: whoever comes next waits for them there.
        self.storage.leave_if_empty(slot, place);
    }
}
