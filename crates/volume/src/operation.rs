//! Work on the storage of a volume, and its requests in flight.

use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use lunet_block::ByteRange;
use lunet_ring::Account;

use crate::clients::ClientLimits;
use crate::count::Kind;
use crate::offload::Ticket;
use crate::open::VolumeId;
use crate::queue::{Claim, Held};
use crate::share::Counted;
use crate::stage::Timing;
use crate::throttle::Place;
use crate::work::{Failure, Work};

/// The most data that one request moves through a buffer, in bytes.
pub const CHUNK: usize = 256 << 10;

/// Requests that one operation keeps in flight.
pub const DEPTH: usize = 4;

/// Names an operation on its shard. Another operation may get it when that one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationId(u32);

/// What a protocol knows of an operation: the command that it belongs to.
pub trait Command: Default {
    /// What the protocol keeps with each volume.
    type Face: Face;

    /// Makes it, in place, what [`Default`] is: that of an operation that nobody has asked for, such as the flush of a
    /// volume that is removed.
    fn clear(&mut self);
}

/// What a protocol keeps with each volume, as far as operations must know of it. All shards share it.
pub trait Face: Send + Sync + 'static {
    /// True while the volume is worked on as a whole for so long that no command may wait for that.
    fn is_closed(&self) -> bool;

    /// True if what was written must be stable before it is answered.
    fn writes_through(&self) -> bool;

    /// What the volume is known by. `None` where only one protocol serves it, under names of its own.
    fn names(&self) -> Option<Names> {
        None
    }

    /// What the record of its failover group calls it, if it may be one of one.
    fn designator(&self) -> Option<[u8; 16]> {
        None
    }

    /// Bytes that it takes on the storage below, as they were found last; `None` if nobody knows.
    fn used(&self) -> Option<u64> {
        None
    }

    /// True while its storage is not there.
    fn is_absent(&self) -> bool {
        false
    }

    /// True while it takes no writes.
    fn is_read_only(&self) -> bool {
        false
    }

    /// What it lets those do who come by a portal of the group with this number.
    fn access(&self, group: usize) -> PathState {
        let _ = group;
        PathState::Optimized
    }
}

/// What a volume is known by, whatever it is served over: it keeps these for ever, and no other volume has them. None is
/// all zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// A UUID (RFC 9562), big-endian.
    pub uuid: [u8; 16],
    /// An identifier of 128 bits, of which the bytes 8 to 10 stand for its maker (IEEE 802c).
    pub long: [u8; 16],
    /// One of 64 bits that begins with its maker, if it has one.
    pub short: Option<[u8; 8]>,
}

/// What a volume lets those do who come by one group of portals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Everything.
    Optimized,
    /// Everything, and other ways are better.
    NonOptimized,
    /// Neither reads nor writes.
    Inaccessible,
}

/// Work on a volume, from the arrival of its command until the storage has let go of it. `C` is the command.
pub struct Operation<C> {
    /// What it counts as.
    pub kind: Kind,
    /// When it began.
    pub started: Duration,
    /// Its requests, and what they hang on.
    pub requests: Requests,
    /// What it does.
    pub work: Work,
    /// The protocol's command, for its answer.
    pub command: C,
}

impl<C> Operation<C> {
    /// Its protocol knows why it has failed: it ends when nothing is at work for it. False if it had failed before.
    pub fn fail(&mut self) -> bool {
        self.requests.fail(Failure::Command)
    }
}

/// The requests of an operation, and what they hang on.
pub struct Requests {
    /// The operation.
    id: OperationId,
    /// The slot of its volume.
    pub volume: VolumeId,
    /// What it may write, so that an abort knows what to fence off.
    pub writes: Option<ByteRange>,
    /// What it has written is on stable storage, as far as it must be.
    pub stable: bool,
    /// Who pays for its buffers at the storage; `None`: the volume.
    pub at_storage: Option<Account>,
    /// The volumes of the copy that is at work, which stay as long.
    pub(crate) parties: Option<Parties>,
    /// Another thread works for it, and says so by this when it is done.
    pub(crate) away: Option<Ticket>,
    /// Pieces of data that its client was asked for and has not sent.
    pub(crate) soliciting: u32,
    /// The number of its next request.
    next_seq: u32,
    /// Its requests in flight.
    pub(crate) in_flight: ArrayVec<InFlight, DEPTH>,
    /// The first failure: it stops after what is at work.
    failure: Option<Failure>,
    /// The fence that stands because of it, and on which volume.
    pub(crate) fenced: Option<(VolumeId, ByteRange)>,
    /// It counts among those of its volume that nobody waits for.
    pub(crate) orphan: bool,
    /// It is in the list of those that wait for memory.
    pub(crate) starved: bool,
    /// It has waited for memory, or for room at the storage.
    pub(crate) waited: bool,
    /// It has the shard's spare buffer.
    pub(crate) spare: bool,
    /// Its place in the queue for a range of the volume.
    pub(crate) claim: Option<Box<Claim>>,
    /// It is one of those that are timed.
    pub(crate) timing: Option<Timing>,
    /// The limits of its client, if it has any.
    pub client: Option<Arc<ClientLimits>>,
    /// Its place among those that wait for a limit.
    pub(crate) place: Option<Place>,
    /// Bytes that were paid for and are not under way; where nothing is limited, none are.
    pub(crate) credit: u64,
    /// It is about to send a request to the volume in this slot, and is counted for that.
    pub(crate) reserved: Option<(VolumeId, Counted)>,
}

/// The volumes of a copy. Where zeroes are copied, both are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parties {
    /// The slot of the volume that is read.
    pub source: VolumeId,
    /// The slot of the volume that is written.
    pub destination: VolumeId,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    /// Its number among those of its operation.
    pub seq: u32,
    /// The slot of the volume that it goes to.
    pub slot: VolumeId,
    /// What it touches.
    pub range: ByteRange,
    /// A lock is in its way: it has not gone to the volume.
    pub held: Option<Held>,
    /// It counts in the pool of its volume, and since when.
    pub counted: Option<(Counted, Duration)>,
}

impl Requests {
    fn new(id: OperationId, volume: VolumeId) -> Self {
        Self {
            id,
            volume,
            writes: None,
            stable: false,
            at_storage: None,
            parties: None,
            away: None,
            soliciting: 0,
            next_seq: 0,
            in_flight: ArrayVec::new(),
            failure: None,
            fenced: None,
            orphan: false,
            starved: false,
            waited: false,
            spare: false,
            claim: None,
            timing: None,
            client: None,
            place: None,
            credit: 0,
            reserved: None,
        }
    }

    /// Makes them those of no operation, in place. Every field is named, so that none is forgotten.
    fn clear(&mut self) {
        let Self {
            id,
            volume: _,
            writes,
            stable,
            at_storage,
            parties,
            away,
            soliciting,
            next_seq,
            in_flight,
            failure,
            fenced,
            orphan,
            starved,
            waited,
            spare,
            claim,
            timing,
            client,
            place,
            credit,
            reserved,
        } = self;
        *id = NONE;
        (*writes, *fenced, *failure) = (None, None, None);
        (*at_storage, *claim, *parties, *away) = (None, None, None, None);
        (*stable, *orphan, *starved, *spare) = (false, false, false, false);
        (*waited, *timing) = (false, None);
        (*client, *place, *credit, *reserved) = (None, None, 0, None);
        (*soliciting, *next_seq) = (0, 0);
        in_flight.clear();
    }

    /// The operation that they belong to.
    pub(crate) const fn id(&self) -> OperationId {
        self.id
    }

    /// The number of the next request.
    pub(crate) const fn next_seq(&self) -> u32 {
        self.next_seq
    }

    /// The volumes of the copy that is at work.
    pub const fn parties(&self) -> Option<Parties> {
        self.parties
    }

    /// True if there is more to give up than memory when the operation ends.
    #[inline]
    pub(crate) const fn holds_something(&self) -> bool {
        self.fenced.is_some()
            || self.claim.is_some()
            || self.parties.is_some()
            || self.orphan
            || self.place.is_some()
            || self.reserved.is_some()
    }

    /// The slot of the volume that is written: the operation's own, but for a copy.
    #[inline]
    pub(crate) fn writes_on(&self) -> VolumeId {
        self.parties.map_or(self.volume, |parties| parties.destination)
    }

    /// Requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// True if they wait for nothing, neither from the storage nor from the client.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.soliciting == 0
    }

    /// True if no more of them may be in flight.
    pub(crate) fn is_full(&self) -> bool {
        self.in_flight.is_full()
    }

    /// True if nothing is at work for the operation, at the storage or on another thread.
    pub fn is_over(&self) -> bool {
        self.in_flight.is_empty() && self.away.is_none()
    }

    /// True if none of them has been given to the storage, and no other thread has worked for the operation: it can end as if
    /// it had never begun.
    pub fn is_untouched(&self) -> bool {
        self.away.is_none()
            && self.next_seq as usize == self.in_flight.len()
            && self.in_flight.iter().all(|request| request.held.is_some())
    }

    /// True if what the operation may write is fenced off.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.is_some()
    }

    /// Why the operation has failed first.
    pub const fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// True if the operation has failed.
    pub const fn is_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Remembers the first failure. False if there was one.
    pub(crate) fn fail(&mut self, failure: Failure) -> bool {
        let first = self.failure.is_none();
        self.failure.get_or_insert(failure);
        first
    }

    /// The client sends nothing more of what it was asked for.
    pub fn expect_nothing(&mut self) {
        self.soliciting = 0;
    }

    /// A request for a range of the volume in a slot is in flight from now on. Returns its number.
    pub(crate) fn begin(&mut self, slot: VolumeId, range: ByteRange) -> u32 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.in_flight.push(InFlight { seq, slot, range, held: None, counted: None });
        seq
    }

    pub(crate) fn get_mut(&mut self, seq: u32) -> Option<&mut InFlight> {
        self.in_flight.iter_mut().find(|request| request.seq == seq)
    }
}

/// In a slot that no operation has.
const NONE: OperationId = OperationId(u32::MAX);

/// The operations of a shard. A wrong name is a mistake of lunet's, and stops it.
///
/// An operation is some 800 bytes: it begins and ends where it lies, in the slot of one that has ended.
pub struct Operations<C> {
    slots: Vec<Operation<C>>,
    free: Vec<OperationId>,
}

impl<C> Default for Operations<C> {
    fn default() -> Self {
        Self { slots: Vec::with_capacity(256), free: Vec::with_capacity(256) }
    }
}

impl<C> Index<OperationId> for Operations<C> {
    type Output = Operation<C>;

    #[inline]
    fn index(&self, id: OperationId) -> &Operation<C> {
        let operation = &self.slots[id.0 as usize];
        assert!(operation.requests.id == id, "an operation that has ended");
        operation
    }
}

impl<C> IndexMut<OperationId> for Operations<C> {
    #[inline]
    fn index_mut(&mut self, id: OperationId) -> &mut Operation<C> {
        let operation = &mut self.slots[id.0 as usize];
        assert!(operation.requests.id == id, "an operation that has ended");
        operation
    }
}

impl<C> Operations<C> {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (OperationId, &Operation<C>)> {
        let named = self.slots.iter().map(|operation| (operation.requests.id, operation));
        named.filter(|(id, _)| *id != NONE)
    }

    /// All of them, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (OperationId, &mut Operation<C>)> {
        let named = self.slots.iter_mut().map(|operation| (operation.requests.id, operation));
        named.filter(|(id, _)| *id != NONE)
    }

    /// The first one that is such.
    pub fn find(&self, such: impl Fn(&Operation<C>) -> bool) -> Option<OperationId> {
        self.iter().find(|(_, operation)| such(operation)).map(|(id, _)| id)
    }

    /// An operation that may have ended.
    pub fn get(&self, id: OperationId) -> Option<&Operation<C>> {
        self.slots.get(id.0 as usize).filter(|operation| operation.requests.id == id)
    }

    /// An operation that may have ended, to change it.
    pub fn get_mut(&mut self, id: OperationId) -> Option<&mut Operation<C>> {
        self.slots.get_mut(id.0 as usize).filter(|operation| operation.requests.id == id)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<C: Command> Operations<C> {
    #[inline]
    pub(crate) fn begin(
        &mut self,
        (volume, kind): (VolumeId, Kind),
        started: Duration,
    ) -> OperationId {
        let Some(id) = self.free.pop() else {
            let id = OperationId(self.slots.len() as u32);
            let requests = Requests::new(id, volume);
            let (work, command) = (Work::None, C::default());
            self.slots.push(Operation { kind, started, requests, work, command });
            return id;
        };
        let slot = &mut self.slots[id.0 as usize];
        (slot.requests.id, slot.requests.volume) = (id, volume);
        (slot.kind, slot.started) = (kind, started);
        id
    }

    /// Ends one, with what it and its command hold.
    #[inline]
    pub(crate) fn remove(&mut self, id: OperationId) {
        let operation = &mut self[id];
        operation.requests.clear();
        operation.work = Work::None;
        operation.command.clear();
        self.free.push(id);
    }
}

/// What the answer to a request is known by.
pub(crate) const fn request_tag(operation: OperationId, seq: u32) -> u64 {
    (operation.0 as u64) << 32 | seq as u64
}

/// Whose request it was, and which of its requests.
pub(crate) const fn split_tag(tag: u64) -> (OperationId, u32) {
    (OperationId((tag >> 32) as u32), tag as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub struct Nothing;

    impl Face for Nothing {
        fn is_closed(&self) -> bool {
            false
        }

        fn writes_through(&self) -> bool {
            false
        }
    }

    impl Command for u32 {
        type Face = Nothing;

        fn clear(&mut self) {
            *self = 0;
        }
    }

    const ID: VolumeId = VolumeId::new(3);

    fn begin(operations: &mut Operations<u32>, command: u32) -> OperationId {
        let id = operations.begin((ID, Kind::Other), Duration::from_secs(1));
        assert_eq!(std::mem::replace(&mut operations[id].command, command), 0);
        id
    }

    #[test]
    fn an_operation_finds_nothing_of_the_one_that_had_its_slot() {
        let mut operations = Operations::default();
        let first = begin(&mut operations, 7);
        let requests = &mut operations[first].requests;
        let fresh = format!("{:?}", (requests.id, requests.volume, &requests.in_flight));
        requests.begin(VolumeId::new(9), ByteRange::new(0, 4096));
        requests.fail(Failure::Command);
        let (range, other) = (ByteRange::new(0, 1), VolumeId::new(9));
        (requests.writes, requests.fenced) = (Some(range), Some((other, range)));
        (requests.stable, requests.orphan, requests.away) = (true, true, Some(Ticket::new(1)));
        (requests.starved, requests.spare, requests.soliciting) = (true, true, 5);
        requests.at_storage = Some(Account::default());
        requests.parties = Some(Parties { source: ID, destination: other });
        operations[first].work = Work::Plain(crate::work::Plain::flush());
        operations.remove(first);
        assert_eq!(operations.len(), 0);
        assert!(operations.get(first).is_none() && operations.iter().next().is_none());

        let second = begin(&mut operations, 8);
        assert_eq!((second, operations.len()), (first, 1), "the slot is used again");
        let operation = &operations[second];
        let requests = &operation.requests;
        assert_eq!(format!("{:?}", (requests.id, requests.volume, &requests.in_flight)), fresh);
        assert!(matches!(operation.work, Work::None) && operation.command == 8);
        assert!(requests.writes.is_none() && requests.fenced.is_none() && !requests.is_failed());
        assert!(requests.at_storage.is_none() && requests.claim.is_none());
        assert_eq!((requests.writes_on(), requests.soliciting, requests.next_seq), (ID, 0, 0));
        assert!(requests.parties.is_none() && requests.away.is_none());
        let flags = [requests.stable, requests.orphan, requests.starved, requests.spare];
        assert_eq!(flags, [false; 4]);
    }

    #[test]
    #[should_panic(expected = "an operation that has ended")]
    fn the_name_of_an_operation_that_has_ended_is_a_mistake() {
        let mut operations = Operations::default();
        let id = begin(&mut operations, 1);
        operations.remove(id);
        let _ = &operations[id];
    }
}
