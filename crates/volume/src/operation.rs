//! Work on the storage of a volume, and its requests in flight.

use std::ops::{Index, IndexMut};
use std::time::Duration;

use arrayvec::ArrayVec;
use lunet_block::ByteRange;
use lunet_ring::Account;
use slab::Slab;

use crate::count::Kind;
use crate::open::VolumeId;
use crate::queue::{Claim, Held};
use crate::work::{Failure, Work};

/// The most data that one request moves through a buffer, in bytes.
pub const CHUNK: usize = 256 << 10;

/// Requests that one operation keeps in flight.
pub const DEPTH: usize = 4;

/// Names an operation on its shard. Another operation may get it when that one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationId(u32);

/// What a protocol knows of an operation: the command that it belongs to.
pub trait Command {
    /// What the protocol keeps with each volume.
    type Face: Face;

    /// The command of an operation that nobody has asked for, such as the flush of a volume that is removed.
    fn internal() -> Self;
}

/// What a protocol keeps with each volume, as far as operations must know of it.
pub trait Face {
    /// True while the volume is worked on as a whole for so long that no command may wait for that.
    fn is_closed(&self) -> bool;

    /// True if what was written must be stable before it is answered.
    fn writes_through(&self) -> bool;
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
    /// The command.
    pub command: C,
}

impl<C> Operation<C> {
    /// An operation that has not begun.
    #[inline]
    pub fn new(volume: VolumeId, kind: Kind, started: Duration, command: C) -> Self {
        Self { kind, started, requests: Requests::new(volume), work: Work::None, command }
    }

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
    /// The slot of the volume that it writes to: its own, but for a copy.
    pub writes_on: VolumeId,
    /// What it has written is on stable storage, as far as it must be.
    pub stable: bool,
    /// Who pays for its buffers at the storage; `None`: the volume.
    pub at_storage: Option<Account>,
    /// Another thread works for it.
    pub away: bool,
    /// Pieces of data that its client was asked for and has not sent.
    pub(crate) soliciting: u32,
    /// The number of its next request.
    next_seq: u32,
    /// Its requests in flight.
    pub(crate) in_flight: ArrayVec<InFlight, DEPTH>,
    /// The first failure: it stops after what is at work.
    failure: Option<Failure>,
    /// The fence that stands because of it.
    pub(crate) fenced: Option<ByteRange>,
    /// It counts among those of its volume that nobody waits for.
    pub(crate) orphan: bool,
    /// It is in the list of those that wait for memory.
    pub(crate) starved: bool,
    /// It has the shard's spare buffer.
    pub(crate) spare: bool,
    /// Its place in the queue for a range of the volume.
    pub(crate) claim: Option<Box<Claim>>,
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
}

impl Requests {
    #[inline]
    fn new(volume: VolumeId) -> Self {
        Self {
            id: OperationId(u32::MAX),
            volume,
            writes: None,
            writes_on: volume,
            stable: false,
            at_storage: None,
            away: false,
            soliciting: 0,
            next_seq: 0,
            in_flight: ArrayVec::new(),
            failure: None,
            fenced: None,
            orphan: false,
            starved: false,
            spare: false,
            claim: None,
        }
    }

    /// The operation that they belong to.
    pub const fn id(&self) -> OperationId {
        self.id
    }

    /// The number of the next request.
    pub(crate) const fn next_seq(&self) -> u32 {
        self.next_seq
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// True if they wait for nothing, neither from the storage nor from the client.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.soliciting == 0
    }

    /// True if no more of them may be in flight.
    pub fn is_full(&self) -> bool {
        self.in_flight.is_full()
    }

    /// True if nothing is at work for the operation, at the storage or on another thread.
    pub fn is_over(&self) -> bool {
        self.in_flight.is_empty() && !self.away
    }

    /// True if what the operation may write is fenced off.
    pub fn is_fenced(&self) -> bool {
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
    pub fn begin(&mut self, slot: VolumeId, range: ByteRange) -> u32 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.in_flight.push(InFlight { seq, slot, range, held: None });
        seq
    }

    pub(crate) fn get_mut(&mut self, seq: u32) -> Option<&mut InFlight> {
        self.in_flight.iter_mut().find(|request| request.seq == seq)
    }
}

/// The operations of a shard. A wrong name is a mistake of lunet's, and stops it.
pub struct Operations<C>(Slab<Operation<C>>);

impl<C> Default for Operations<C> {
    fn default() -> Self {
        Self(Slab::with_capacity(256))
    }
}

impl<C> Index<OperationId> for Operations<C> {
    type Output = Operation<C>;

    fn index(&self, id: OperationId) -> &Operation<C> {
        &self.0[id.0 as usize]
    }
}

impl<C> IndexMut<OperationId> for Operations<C> {
    fn index_mut(&mut self, id: OperationId) -> &mut Operation<C> {
        &mut self.0[id.0 as usize]
    }
}

impl<C> Operations<C> {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (OperationId, &Operation<C>)> {
        self.0.iter().map(|(at, operation)| (OperationId(at as u32), operation))
    }

    /// All of them, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (OperationId, &mut Operation<C>)> {
        self.0.iter_mut().map(|(at, operation)| (OperationId(at as u32), operation))
    }

    /// The first one that is such.
    pub fn find(&self, such: impl Fn(&Operation<C>) -> bool) -> Option<OperationId> {
        self.iter().find(|(_, operation)| such(operation)).map(|(id, _)| id)
    }

    /// An operation that may have ended.
    pub fn get(&self, id: OperationId) -> Option<&Operation<C>> {
        self.0.get(id.0 as usize)
    }

    /// An operation that may have ended, to change it.
    pub fn get_mut(&mut self, id: OperationId) -> Option<&mut Operation<C>> {
        self.0.get_mut(id.0 as usize)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn insert(&mut self, mut operation: Operation<C>) -> OperationId {
        let free = self.0.vacant_entry();
        let id = OperationId(free.key() as u32);
        operation.requests.id = id;
        free.insert(operation);
        id
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: OperationId) -> C {
        self.0.remove(id.0 as usize).command
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
