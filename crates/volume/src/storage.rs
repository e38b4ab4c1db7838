//! The storage of one shard: the event loop, and the channels to the volumes.
//!
//! A request passes the locks of its volume (`queue`), is charged to an account (`memory`), and goes to the volume's
//! channel.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunet_block::{ByteRange, Completion, Op, Request, Submit};
use lunet_os::sync::mpsc::{Receiver, sync_channel};
use lunet_ring::{Buf, Payload, Ring};

use crate::channel::ChannelHandle;
use crate::locks::{Locks, Waiter};
use crate::memory::{Hosts, SPARE};
use crate::offload::{SlowWork, Ticket};
use crate::open::{OpenVolumes, VolumeId};
use crate::operation::{OperationId, Requests, request_tag};
use crate::queue::Held;

/// The shards of all servers of the process, as far as operations must reach them. Messages about locks may be lost: whoever waits looks
/// by itself as well.
pub trait Shards: Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// Asks a shard to [drain](crate::Executor::drain) a range. False if it cannot be asked now.
    fn ask(&self, shard: usize, drain: Drain) -> bool;

    /// Tells those whose turn it is.
    fn wake(&self, waiters: &[Waiter]);

    /// Has another thread do what may block, on behalf of an operation of a shard on the volume in a slot. The shard is
    /// told the ticket when that is done ([`came_back`](crate::Executor::came_back)), however much it is told besides.
    /// False if too much work waits: nothing happens then.
    fn send_away(&self, asks: (usize, Ticket), volume: VolumeId, work: SlowWork) -> bool;
}

/// A range that a shard is to hold requests back from.
#[derive(Clone)]
pub struct Drain {
    /// The slot of the volume.
    pub(crate) volume: VolumeId,
    /// Its locks.
    pub(crate) locks: Arc<Locks>,
    /// The lock's place in the queue.
    pub(crate) id: u64,
    /// The range.
    pub(crate) range: ByteRange,
}

impl Drain {
    /// A shard that has not begun has nothing at the storage, and looks at the locks before its first request. Whom to
    /// tell if it was the last that was waited for.
    #[must_use]
    pub fn of_nothing(&self) -> Option<Waiter> {
        self.locks.drained(self.id)
    }
}

/// What an executor is told about its shard.
pub struct ShardConfig {
    /// Number of the shard among all, from 0.
    pub shard: usize,
    /// All shards.
    pub shards: Arc<dyn Shards>,
    /// Sessions that there may be.
    pub max_sessions: usize,
    /// The server's start: what times are counted from.
    pub began: Instant,
}

/// The event loop of a shard, its volumes, and all that requests pass on their way to them. `F` is what protocols show
/// of a volume.
pub struct Storage<F> {
    /// The shard's event loop.
    pub ring: Ring,
    /// The volumes that are served, and those removed that still have operations.
    pub volumes: OpenVolumes<F>,
    /// Connections on this shard: their shares of the memory depend on it.
    pub connections: usize,
    /// Whose they are, as far as that is known.
    pub(crate) hosts: Hosts,
    /// The time of this loop iteration, since the server's start.
    pub now: Duration,
    /// The time when the last answers of the storage were taken, if that is later.
    pub heard: Duration,
    pub(crate) config: ShardConfig,
    /// Channels by the number in their tokens.
    pub(crate) channels: Vec<Option<ChannelHandle>>,
    /// Answers that have not been worked off.
    pub(crate) done: Vec<Completion<Payload>>,
    /// Operations that wait for buffer memory, in order.
    pub(crate) starved: VecDeque<OperationId>,
    /// When is looked next which volumes hang.
    pub(crate) watch: Option<Duration>,
    /// Requests that a lock is in the way of.
    pub(crate) held: BTreeMap<Held, Request<Payload>>,
    /// How many there were.
    pub(crate) holds: u64,
    /// Operations that go on when it is their turn, or at the next look.
    pub(crate) in_queue: Vec<OperationId>,
    /// When was looked whose turn it is.
    pub(crate) looked: Duration,
    /// Ranges that this shard is to be drained of for operations of its own.
    pub(crate) drains: Vec<Drain>,
    /// A lock waits for answers by reference that are on their way to clients.
    pub(crate) lending: bool,
    /// Volumes with operations that wait for a limit.
    pub(crate) lines: Vec<VolumeId>,
    /// When one of them may go on, or is to be looked at.
    pub(crate) line_due: Option<Duration>,
    /// The slowest clock of a pool, by its address, at a time.
    pub(crate) slowest: Option<(Duration, usize, u64)>,
    /// Operations that have waited for a limit, and may go on.
    pub(crate) passed: Vec<OperationId>,
    /// For the one comparison that must get on when memory is short.
    pub(crate) spare: Option<Buf>,
    /// The number of the next work for another thread.
    next_ticket: u64,
}

impl<F> Storage<F> {
    pub(crate) fn new(ring: Ring, config: ShardConfig) -> Self {
        let spare = ring.arena().alloc(SPARE);
        Self {
            ring,
            volumes: OpenVolumes::default(),
            connections: 0,
            hosts: Hosts::default(),
            now: Duration::ZERO,
            heard: Duration::ZERO,
            config,
            channels: Vec::new(),
            done: Vec::with_capacity(256),
            starved: VecDeque::new(),
            watch: None,
            held: BTreeMap::new(),
            holds: 0,
            in_queue: Vec::new(),
            looked: Duration::ZERO,
            drains: Vec::new(),
            lending: false,
            lines: Vec::new(),
            line_due: None,
            slowest: None,
            passed: Vec::new(),
            spare,
            next_ticket: 0,
        }
    }

    /// Sends a request of an operation to its volume.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        requests: &mut Requests,
        op: Op,
        range: ByteRange,
        buf: Option<Payload>,
    ) {
        self.submit_to(requests.volume, requests, op, range, buf);
    }

    /// Sends a request of an operation to the volume in this slot.
    pub(crate) fn submit_to(
        &mut self,
        slot: VolumeId,
        requests: &mut Requests,
        op: Op,
        range: ByteRange,
        mut buf: Option<Payload>,
    ) {
        let volume = &mut self.volumes[slot];
        if let Some(Payload::Buf(buf)) = &mut buf {
            buf.charge(requests.at_storage.as_ref().unwrap_or(&volume.account));
        }
        let seq = requests.begin(slot, range);
        if (requests.reserved.is_some() || volume.core.share.pool().is_some()) && range.len > 0 {
            requests.count((slot, seq), &volume.core.share, self.now);
        }
        let request = Request::new(request_tag(requests.id(), seq), op, range, buf);
        volume.written |= op.changes();
        let tag = request.tag;
        if volume.guarded {
            self.submit_guarded(requests, (slot, seq), request);
        } else {
            self.send(slot, request);
        }
        if requests.timing.is_some() {
            self.note_limit(requests, slot, tag);
        }
    }

    /// Has another thread do what may block, for an operation. What comes of it can be received when the thread has come
    /// back. `None` if too much work waits: nothing has happened then.
    pub(crate) fn send_away<T: Send + 'static>(
        &mut self,
        requests: &mut Requests,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Receiver<T>> {
        let ticket = Ticket::new(self.next_ticket);
        self.next_ticket += 1;
        let (result, back) = sync_channel(1);
        // Somebody listens, or the operation is over.
        let work = move || drop(result.send(work()));
        let ShardConfig { shard, shards, .. } = &self.config;
        let sent = shards.send_away((*shard, ticket), requests.writes_on(), Box::new(work));
        requests.away = sent.then_some(ticket);
        sent.then_some(back)
    }

    /// Hands a request to its volume's channel.
    pub(crate) fn send(&mut self, slot: VolumeId, request: Request<Payload>) {
        let number = self.volumes[slot].channel;
        let channel = self.channels[number].as_mut().expect("a volume's channel is open");
        if !channel.waiting.is_empty() {
            return channel.waiting.push_back(request);
        }
        match channel.submit(request, &mut self.ring) {
            Submit::Queued => {
                channel.begin(self.now);
                self.expect_answers();
            }
            Submit::Done(completion) => self.done.push(completion),
            Submit::Busy(request) => {
                channel.waiting.push_back(request);
                self.volumes[slot].count.waits.1 += 1;
            }
        }
    }
}
