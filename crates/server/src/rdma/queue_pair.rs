//! The queue pair of a connection, and the work that is posted to it.

use std::time::Duration;

use lunet_ring::{Account, Arena, Buf, Payload};
use lunet_verbs::{Pieces, Remote, Status};
use slab::Slab;

use super::adapter::{Adapter, Endpoint};
use crate::conn::ConnId;
use crate::transmit::{Outgoing, Post};

/// After so many unsignaled operations one is signaled: its completion returns the buffers of all before it.
const MAX_UNSIGNALED: u32 = 16;

/// Data that lies elsewhere is copied in pieces of so many bytes: there may never be as much memory in one piece as a
/// client reads at a time.
const COPY: usize = 256 << 10;

/// How long a connection waits for arena memory before it tries again.
const RETRY: Duration = Duration::from_millis(10);

/// What the log and reports say of a connection.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The device's name.
    pub device: String,
    /// The GID of the server's end.
    pub gid: String,
    /// Path MTU in bytes.
    pub path_mtu: u32,
}

/// A shard's state of a connection's queue pair.
pub struct QueuePair {
    /// Index of its device on the shard.
    pub(crate) device: usize,
    /// Names the queue pair at the device.
    pub(crate) endpoint: Endpoint,
    /// For the log and reports; empty until the connection is established.
    pub facts: Facts,
    /// Each step of the connection is logged. For unknown clients the number of lines is limited.
    pub logged: bool,
    /// The end of the connection has been logged.
    pub(crate) end_logged: bool,
    /// Messages received in this batch of completions. All of them had arrived before the first of their responses
    /// was sent, so the client has sent at least that many without a response.
    pub(crate) taken: usize,
    /// The batch in which they were counted.
    pub(crate) batch: u64,
    /// RDMA Reads in progress, with the protocol's ids.
    reads: Slab<u64>,
    /// At most so many of them at a time.
    depth: usize,
    /// Bytes queued and bytes sent since the start, modulo 2^32: the difference is in flight.
    posted: u32,
    done: u32,
    /// Operations queued since the last signaled one.
    unsignaled: u32,
    /// Arena memory was short: when to try again.
    pub(crate) retry: Option<Duration>,
    /// Sends are in flight whose completions raise no interrupt: when to poll for them.
    pub poll_at: Option<Duration>,
    /// The shard counts it among the connections that wait for a send completion or data.
    pub waits: bool,
}

/// The token of an operation: the connection's slot, and a number.
pub fn token(slot: ConnId, number: u32) -> u64 {
    slot.token() << 32 | u64::from(number)
}

/// Why a connection has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The client's memory cannot be reached with the key and address that it gave.
    RemoteAccess,
    /// The client had posted no receive for a message.
    NoReceive,
    /// A message did not fit into the receive buffer, at this end or at the other.
    TooLong,
    /// More messages came than the client may have without an answer.
    Flood,
    /// The client closed the connection, or cannot be reached.
    Disconnected,
    /// The device failed.
    Device,
}

/// A read of the client's memory that is to be posted.
pub struct RemoteRead {
    /// The protocol's id of this read.
    pub id: u64,
    /// Takes the data, from its first byte on.
    pub buf: Buf,
    /// How much to read, in bytes.
    pub len: u32,
    /// Where from.
    pub from: Remote,
}

/// The fault that a protocol is told for the status of a failed operation.
pub fn fault(status: Status) -> Fault {
    match status {
        Status::RemoteAccess => Fault::RemoteAccess,
        Status::ReceiverNotReady => Fault::NoReceive,
        Status::LocalLength | Status::RemoteInvalidRequest => Fault::TooLong,
        Status::Flushed | Status::RetryExceeded => Fault::Disconnected,
        _ => Fault::Device,
    }
}

impl QueuePair {
    /// A queue pair on which nothing was sent. `reads`: RDMA Reads that may be in progress at a time, as the client and the
    /// device have it.
    pub fn new(device: usize, endpoint: Endpoint, reads: u8) -> Self {
        let depth = usize::from(reads.max(1));
        let reads = Slab::with_capacity(depth);
        Self {
            device,
            endpoint,
            facts: Facts::default(),
            logged: true,
            end_logged: false,
            taken: 0,
            batch: 0,
            reads,
            depth,
            posted: 0,
            done: 0,
            unsignaled: 0,
            retry: None,
            poll_at: None,
            waits: false,
        }
    }

    /// Bytes that are posted and not known to be sent.
    pub(crate) fn in_flight(&self) -> usize {
        self.posted.wrapping_sub(self.done) as usize
    }

    /// True while RDMA Reads are in progress.
    pub(crate) fn is_reading(&self) -> bool {
        !self.reads.is_empty()
    }

    /// A signaled Send or RDMA Write has completed, and with it all before it.
    pub(crate) fn sent(&mut self, number: u32) {
        self.done = number;
    }

    /// True while another RDMA Read may be posted.
    pub(crate) fn takes_reads(&self) -> bool {
        self.reads.len() < self.depth
    }

    /// An RDMA Read has completed; returns the protocol's id of it.
    pub(crate) fn read_done(&mut self, number: u32) -> Option<u64> {
        self.reads.try_remove(number as usize)
    }

    /// Queues an RDMA Read. False if the device does not take it.
    pub(crate) fn read(&mut self, adapter: &mut Adapter, slot: ConnId, read: RemoteRead) -> bool {
        let number = self.reads.insert(read.id) as u32;
        let into = (read.buf, 0..read.len as usize);
        adapter.queue_read(self.endpoint, into, read.from, token(slot, number)).is_ok()
    }

    /// Queues what waits, as far as the send queue and the memory go. False if the device does not take
    /// it: the connection is broken.
    pub(crate) fn post(
        &mut self,
        adapter: &mut Adapter,
        out: &mut Outgoing,
        slot: ConnId,
        memory: (&Arena, &Account),
        now: Duration,
    ) -> bool {
        self.retry = None;
        loop {
            let room = adapter.room(self.endpoint);
            if room == 0 {
                return true;
            }
            let Some(post) = out.pop() else { return true };
            let Some(copy) = copy_of(&post, memory) else {
                out.put_back(post);
                self.retry = Some(now + RETRY);
                return true;
            };
            let (registered, rest) = into_registered(post, copy);
            rest.into_iter().for_each(|rest| out.put_back(rest));
            // A completion returns the buffers of all operations before it, so few need to be signaled.
            let follows = out.posts.front().is_some_and(Post::is_in_place);
            let signaled = !follows || room == 1 || self.unsignaled >= MAX_UNSIGNALED;
            self.posted = self.posted.wrapping_add(registered.bytes() as u32);
            self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
            let name = (token(slot, self.posted), signaled);
            let queued = match registered {
                Registered::Send { head, data, invalidate } => {
                    adapter.queue_send(self.endpoint, (&head, data), invalidate, name)
                }
                Registered::Write { data, to } => {
                    adapter.queue_write(self.endpoint, data, to, name)
                }
            };
            // There was room: so the queue pair has failed.
            if queued.is_err() {
                return false;
            }
        }
    }
}

/// A post whose bytes lie in registered memory.
enum Registered {
    Send {
        head: arrayvec::ArrayVec<u8, { crate::transmit::HEAD }>,
        data: Pieces,
        invalidate: Option<u32>,
    },
    Write {
        data: Pieces,
        to: Remote,
    },
}

impl Registered {
    fn bytes(&self) -> usize {
        let of = |data: &Pieces| data.iter().map(|(_, range)| range.len()).sum::<usize>();
        match self {
            Self::Send { head, data, .. } => head.len() + of(data),
            Self::Write { data, .. } => of(data),
        }
    }
}

/// Allocates memory for bytes that are not in the arena, or for the first of them; `Some(None)` if all are. `None`: the arena
/// is full.
fn copy_of(post: &Post, (arena, account): (&Arena, &Account)) -> Option<Option<Buf>> {
    if post.is_in_place() {
        return Some(None);
    }
    let len = match post {
        Post::Send { rest, .. } => rest.len(),
        Post::Write { range, .. } => range.len().min(COPY),
    };
    arena.alloc_for(len, account).map(Some)
}

/// Moves the bytes of a post into registered memory: into `copy`, unless they are in the arena. And what is left of it, if they
/// do not all fit there.
fn into_registered(post: Post, copy: Option<Buf>) -> (Registered, Option<Post>) {
    let mut data = Pieces::new();
    match (post, copy) {
        (Post::Send { head, rest, invalidate }, copy) => {
            if let Some(mut buf) = copy {
                buf.copy_from_slice(&rest);
                data.push((Payload::Buf(buf), 0..rest.len()));
            }
            (Registered::Send { head, data, invalidate }, None)
        }
        (Post::Write { payload, range, to }, None) => {
            data.push((payload, range));
            (Registered::Write { data, to }, None)
        }
        (Post::Write { payload, range, to }, Some(mut buf)) => {
            let (len, mut at) = (range.len().min(COPY), 0);
            let (now, left) = (range.start..range.start + len, range.start + len..range.end);
            payload.for_each_chunk(now, |bytes| {
                buf[at..at + bytes.len()].copy_from_slice(bytes);
                at += bytes.len();
            });
            data.push((Payload::Buf(buf), 0..at));
            let behind = Remote { address: to.address + len as u64, ..to };
            let rest = Post::Write { payload, range: left.clone(), to: behind };
            (Registered::Write { data, to }, (!left.is_empty()).then_some(rest))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_apart() {
        let told = [
            (Status::RemoteAccess, Fault::RemoteAccess),
            (Status::ReceiverNotReady, Fault::NoReceive),
            (Status::LocalLength, Fault::TooLong),
            (Status::Flushed, Fault::Disconnected),
            (Status::RetryExceeded, Fault::Disconnected),
            (Status::Fatal, Fault::Device),
            (Status::NotPosted(12), Fault::Device),
        ];
        for (status, expected) in told {
            assert_eq!(fault(status), expected, "{status:?}");
        }
    }

    #[test]
    fn what_lies_elsewhere_is_copied_and_waits_for_memory() {
        let arena = Arena::new(1 << 20).expect("a small mapping");
        let account = Account::default();
        let to = Remote { key: 1, address: 2 };
        let post = Post::Write { payload: vec![5; 6000].into(), range: 1000..6000, to };
        let all = arena.alloc(1 << 20).expect("all of it");
        assert!(copy_of(&post, (&arena, &account)).is_none(), "there is no memory");
        drop(all);
        let copy = copy_of(&post, (&arena, &account)).expect("there is memory");
        let (Registered::Write { data, to }, None) = into_registered(post, copy) else {
            panic!("it is a Write, and all of it")
        };
        assert_eq!((to.address, to.key, data.len()), (2, 1, 1));
        assert!(matches!(&data[0], (Payload::Buf(buf), range)
            if **buf == [5; 5000] && *range == (0..5000)));
        assert_eq!(account.held(), 8192);
        drop(data);
        assert_eq!(account.held(), 0);
    }

    #[test]
    fn more_than_there_is_memory_for_in_one_piece_is_copied_in_pieces() {
        let arena = Arena::new(1 << 20).expect("a small mapping");
        let account = Account::default();
        let bytes: Vec<u8> = (0..(3 << 20)).map(|at: usize| (at / 4096) as u8).collect();
        let (from, all) = (100, bytes.len());
        let to = Remote { key: 1, address: 1 << 40 };
        let mut post = Some(Post::Write { payload: bytes.clone().into(), range: from..all, to });
        let mut at = from;
        while let Some(next) = post {
            let copy = copy_of(&next, (&arena, &account)).expect("there is memory for a piece");
            let (Registered::Write { data, to }, rest) = into_registered(next, copy) else {
                panic!("it is a Write")
            };
            assert_eq!((to.key, to.address), (1, (1 << 40) + (at - from) as u64));
            let (Payload::Buf(buf), range) = &data[0] else { panic!("registered memory") };
            assert_eq!(buf[range.clone()], bytes[at..at + range.len()], "from {at} on");
            at += range.len();
            post = rest;
        }
        assert_eq!(at, all, "all of it was written");
    }
}
