//! What a connection over RDMA has on its way.

use std::time::Duration;

use lunet_ring::{Account, Arena, Buf, Payload};
use lunet_verbs::{Pieces, Remote, Status};
use slab::Slab;

use super::port::{Endpoint, Port};
use crate::conn::ConnId;
use crate::transmit::{Outgoing, Post};

/// After so many operations whose end was not asked for, one is asked for: with it their buffers come back.
const SILENT: u32 = 16;

/// How long a connection waits for arena memory before it tries again.
const PATIENCE: Duration = Duration::from_millis(10);

/// What is told of a connection.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The device's name.
    pub device: String,
    /// This end's GID.
    pub gid: String,
    /// The largest payload of a packet, in bytes.
    pub path_mtu: u32,
}

/// The queue pair of a connection, as its shard sees it.
pub struct Link {
    /// Which of the shard's ports.
    pub port: usize,
    /// Its queue pair there.
    pub endpoint: Endpoint,
    /// Where it goes along.
    pub facts: Facts,
    /// The log has a line for each of its steps. Of strangers it has so many lines and no more.
    pub logged: bool,
    /// The log has its end.
    pub told: bool,
    /// Sends taken in this turn. All of them had come before the first of its answers left, so it is those
    /// that the client has sent without one, or less.
    pub taken: usize,
    /// The turn in which they were counted.
    pub turn: u64,
    /// RDMA Reads under way.
    reads: Slab<u64>,
    /// So many of them at a time.
    depth: usize,
    /// Bytes queued so far, as far as they fit: the difference to `done` is what is on its way.
    posted: u32,
    done: u32,
    /// Operations queued since the last one whose end is told.
    silent: u32,
    /// Arena memory was short: when to try again.
    pub retry: Option<Duration>,
    /// Something is on its way, whose end nobody is woken for: when to look.
    pub look: Option<Duration>,
    /// The shard counts it among those that wait for the end of something.
    pub waits: bool,
}

/// The token of a piece of work: the connection's slot, and a number.
pub fn token(slot: ConnId, number: u32) -> u64 {
    slot.token() << 32 | u64::from(number)
}

/// Why a connection has broken.
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
    /// Names it, for its protocol.
    pub id: u64,
    /// Takes the data, from its first byte on.
    pub buf: Buf,
    /// How much to read, in bytes.
    pub len: u32,
    /// Where from.
    pub from: Remote,
}

/// What the protocol is told of a failed operation.
pub fn fault(status: Status) -> Fault {
    match status {
        Status::RemoteAccess => Fault::RemoteAccess,
        Status::ReceiverNotReady => Fault::NoReceive,
        Status::LocalLength | Status::RemoteInvalidRequest => Fault::TooLong,
        Status::Flushed | Status::RetryExceeded => Fault::Disconnected,
        _ => Fault::Device,
    }
}

impl Link {
    /// A queue pair on which nothing was sent. `reads`: RDMA Reads that the client serves at a time.
    pub fn new(port: usize, endpoint: Endpoint, reads: u8) -> Self {
        let depth = usize::from(reads.max(1));
        let reads = Slab::with_capacity(depth);
        Self {
            port,
            endpoint,
            facts: Facts::default(),
            logged: true,
            told: false,
            taken: 0,
            turn: 0,
            reads,
            depth,
            posted: 0,
            done: 0,
            silent: 0,
            retry: None,
            look: None,
            waits: false,
        }
    }

    /// Bytes that are on their way.
    pub fn in_flight(&self) -> usize {
        self.posted.wrapping_sub(self.done) as usize
    }

    /// RDMA Reads are under way.
    pub fn is_reading(&self) -> bool {
        !self.reads.is_empty()
    }

    /// A Send or RDMA Write is out, and all before it.
    pub fn sent(&mut self, number: u32) {
        self.done = number;
    }

    /// True while another RDMA Read may be posted.
    pub fn takes_reads(&self) -> bool {
        self.reads.len() < self.depth
    }

    /// An RDMA Read has come back.
    pub fn read_done(&mut self, number: u32) -> Option<u64> {
        self.reads.try_remove(number as usize)
    }

    /// Queues an RDMA Read. False if the device does not take it.
    pub fn read(&mut self, port: &mut Port, slot: ConnId, read: RemoteRead) -> bool {
        let number = self.reads.insert(read.id) as u32;
        let into = (read.buf, 0..read.len as usize);
        port.queue_read(self.endpoint, into, read.from, token(slot, number)).is_ok()
    }

    /// Queues what waits, as far as the send queue and the memory go. False if the device does not take
    /// it: the connection is broken.
    pub fn post(
        &mut self,
        port: &mut Port,
        out: &mut Outgoing,
        slot: ConnId,
        memory: (&Arena, &Account),
        now: Duration,
    ) -> bool {
        self.retry = None;
        loop {
            let room = port.room(self.endpoint);
            if room == 0 {
                return true;
            }
            let Some(post) = out.pop() else { return true };
            // With the end of one the buffers of all before it come back, so few ends need to be told.
            let follows = out.posts.front().is_some_and(Post::is_in_place);
            let report = !follows || room == 1 || self.silent >= SILENT;
            let bytes = post.bytes() as u32;
            let Some(copy) = copy_of(&post, memory) else {
                out.put_back(post);
                self.retry = Some(now + PATIENCE);
                return true;
            };
            self.posted = self.posted.wrapping_add(bytes);
            self.silent = if report { 0 } else { self.silent + 1 };
            let name = (token(slot, self.posted), report);
            let queued = match place(post, copy) {
                Placed::Send { head, data, invalidate } => {
                    port.queue_send(self.endpoint, (&head, data), invalidate, name)
                }
                Placed::Write { data, to } => port.queue_write(self.endpoint, data, to, name),
            };
            // There was room: so the queue pair has failed.
            if queued.is_err() {
                return false;
            }
        }
    }
}

/// A post whose bytes lie where the device reaches them.
enum Placed {
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

/// Takes memory for what does not lie in the arena; nothing if all of it does. `None`: there is no room.
fn copy_of(post: &Post, (arena, account): (&Arena, &Account)) -> Option<Option<Buf>> {
    if post.is_in_place() {
        return Some(None);
    }
    let len = match post {
        Post::Send { rest, .. } => rest.len(),
        Post::Write { range, .. } => range.len(),
    };
    arena.alloc_for(len, account).map(Some)
}

/// Puts the bytes of a post where the device reaches them: into `copy`, unless they lie there.
fn place(post: Post, copy: Option<Buf>) -> Placed {
    let mut data = Pieces::new();
    match (post, copy) {
        (Post::Send { head, rest, invalidate }, copy) => {
            if let Some(mut buf) = copy {
                buf.copy_from_slice(&rest);
                data.push((Payload::Buf(buf), 0..rest.len()));
            }
            Placed::Send { head, data, invalidate }
        }
        (Post::Write { payload, range, to }, None) => {
            data.push((payload, range));
            Placed::Write { data, to }
        }
        (Post::Write { payload, range, to }, Some(mut buf)) => {
            let mut at = 0;
            payload.for_each_chunk(range, |bytes| {
                buf[at..at + bytes.len()].copy_from_slice(bytes);
                at += bytes.len();
            });
            data.push((Payload::Buf(buf), 0..at));
            Placed::Write { data, to }
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
        let Placed::Write { data, to } = place(post, copy) else { panic!("it is a Write") };
        assert_eq!((to.address, to.key, data.len()), (2, 1, 1));
        assert!(matches!(&data[0], (Payload::Buf(buf), range)
            if **buf == [5; 5000] && *range == (0..5000)));
        assert_eq!(account.held(), 8192);
        drop(data);
        assert_eq!(account.held(), 0);
    }
}
